"""Peers of every kind at a master's port, in a process of its own (see test_swarm_rpc.py)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import time
from typing import Any

import gevent
import gevent.server
import msgpack
import msgspec
import zmq.green as zmq
from locust.exception import RPCReceiveError
from locust.rpc import zmqrpc

from infersiege.records import ClockPing, Hello
from infersiege.swarm import messages, rpc
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.session_users import Director

SECRET = b"right"
Frames = list[bytes]


def _pack(*values: Any) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _hello(name: str) -> Hello:
    return Hello(worker=name, host="h", pid=1, boot_id="b", versions={}, spool_dir="/none")


class Master:
    """A real runner on a guarded port; hellos and clock pings that reach their handlers are written down."""

    def __init__(self) -> None:
        rpc.install(SECRET)
        self.runner: Any = SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)
        self.hellos: list[str] = []
        self.pings: list[int] = []
        messages.on(self.runner, Hello, lambda _, hello: self.hellos.append(hello.worker))
        messages.on(self.runner, ClockPing, self._on_ping)
        self._names = itertools.count()

    def _on_ping(self, _: str, ping: ClockPing) -> None:
        self.pings.append(ping.sent_ns)
        if ping.sent_ns < 0:
            raise RuntimeError("a handler with a bug")

    @property
    def port(self) -> int:
        return int(self.runner.server.port)

    def peer(self, identity: str, secret: bytes | None = SECRET) -> Any:
        """A raw DEALER. `secret` None: no keys at all."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity.encode())
        socket.setsockopt(zmq.LINGER, 0)
        if secret is not None:
            server_public, _ = rpc.derive_keys(secret, b"master")
            socket.curve_serverkey = server_public
            socket.curve_publickey, socket.curve_secretkey = rpc.derive_keys(secret, b"worker")
        socket.connect(f"tcp://127.0.0.1:{self.port}")
        return socket

    def hears_a_good_worker(self) -> bool:
        """A new peer, with Locust's own client class and our hello, gets through within three seconds."""
        name = f"good-{next(self._names)}"
        client = zmqrpc.Client("127.0.0.1", self.port, name)
        client.send(_message(messages.NAMES[Hello], msgspec.msgpack.encode(_hello(name)), name))
        try:
            with gevent.Timeout(3, False):
                while name not in self.hellos:
                    gevent.sleep(0.005)
                return True
            return False
        finally:
            client.close(linger=0)


def _message(kind: str, data: Any, node_id: str) -> Any:
    return rpc._message(kind, data, node_id)


NODE = "known"
"""A node that the master knows: for an unknown one Locust looks at less of the data."""

BAD: dict[str, Frames] = {
    "the byte c1, which msgpack never uses": [b"\xc1"],
    "an empty frame": [b""],
    "three frames": [_pack("ifs.hello", b"", NODE), b"", b""],
    "half a message": [_pack("ifs.hello", b"x" * 100, NODE)[:50]],
    "two messages in one frame": [_pack("quit", None, NODE) * 2],
    "no tuple": [msgpack.packb(7)],
    "a map": [msgpack.packb({"type": "quit"})],
    "a tuple of two": [_pack("quit", None)],
    "a tuple of four": [_pack("quit", None, NODE, 1)],
    "a tuple of none": [_pack()],
    "a type that is no text": [_pack(7, None, NODE)],
    "a type that can't be hashed": [_pack([], None, NODE)],
    "a node id that is no text": [_pack("quit", None, 7)],
    "a node id that can't be hashed": [_pack("quit", None, {})],
    "text that is not UTF-8": [b"\x93\xa4\xff\xfe\xfd\xfc\xc0" + msgpack.packb(NODE)],
    "a date that is none": [_pack("quit", {"__datetime__": True, "as_str": "yesterday"}, NODE)],
    "an object id without bson": [_pack("quit", {"__ObjectId__": True, "as_str": "x"}, NODE)],
    "an array that says it has four billion items": [b"\x93\xa4quit\xdd\xff\xff\xff\xff\xa1x"],
    "a text that says it has four gigabytes": [b"\x93\xdb" + struct.pack(">I", 2**32 - 1) + b"x"],
    "a thousand lists in each other": [b"\x91" * 1000 + b"\xc0"],
    "a peer that speaks for another one": [_pack("quit", None, "somebody else")],
    "heartbeat without data": [_pack("heartbeat", None, NODE)],
    "heartbeat without its state": [_pack("heartbeat", {"current_cpu_usage": 1}, NODE)],
    "heartbeat with a text for a number": [_pack("heartbeat", {"state": "ready", "current_cpu_usage": "x"}, NODE)],
    "client_ready with a number": [_pack("client_ready", 7, NODE)],
    "client_ready without a version": [_pack("client_ready", None, NODE)],
    "spawning_complete without data": [_pack("spawning_complete", None, NODE)],
    "spawning_complete with a list": [_pack("spawning_complete", {"user_classes_count": []}, NODE)],
    "exception without data": [_pack("exception", None, NODE)],
    "exception that can't be hashed": [_pack("exception", {"msg": "x", "traceback": []}, NODE)],
    "logs without data": [_pack("logs", None, NODE)],
    "logs of a worker that can't be hashed": [_pack("logs", {"worker_id": [], "logs": []}, NODE)],
    "a request for the locustfile": [_pack("locustfile", {"version": "2.47"}, NODE)],
    "the same without data": [_pack("locustfile", None, NODE)],
    "stats without data": [_pack("stats", None, NODE)],
    "stats of nothing": [_pack("stats", {}, NODE)],
    "one of ours with the data of none": [_pack("ifs.hello", None, NODE)],
    "one of ours that is no msgpack": [_pack("ifs.hello", b"\xc1", NODE)],
    "one of ours of the wrong type": [_pack("ifs.hello", msgpack.packb({"worker": 7}), NODE)],
    "one of ours that does not exist": [_pack("ifs.nothing", b"", NODE)],
    "one of ours whose handler has a bug": [_pack("ifs.clock", msgpack.packb({"worker": "w", "sent_ns": -1}), NODE)],
    "a type that does not exist": [_pack("nothing", None, NODE)],
}


def bad_frames() -> dict[str, Any]:
    """Case -> did a good worker get through after it. Sent by a peer that has the keys; a dead master is replaced."""
    master, peer = _with_known_peer()
    survived = {}
    pings: list[int] = []
    for case, frames in BAD.items():
        peer.send_multipart(frames)
        survived[case] = master.hears_a_good_worker()
        pings += master.pings
        master.pings.clear()
        if not survived[case]:
            master, peer = _with_known_peer()
    return {"survived": survived, "known": NODE in master.runner.clients, "pings": pings}


def _with_known_peer() -> tuple[Master, Any]:
    master = Master()
    peer = master.peer(NODE)
    peer.send_multipart([_pack("client_ready", "2.47.0", NODE)])
    with gevent.Timeout(5):
        while NODE not in master.runner.clients:
            gevent.sleep(0.005)
    return master, peer


def strangers() -> dict[str, Any]:
    """Peers without the secret: what they say never arrives, and they don't keep the others out."""
    master = Master()
    found = {}
    for name, secret in (("no key", None), ("wrong key", b"wrong"), ("right key", SECRET)):
        peer = master.peer(name, secret)
        encoded = msgspec.msgpack.encode(_hello(name))
        peer.send_multipart([_pack(messages.NAMES[Hello], encoded, name)])
        gevent.sleep(0.5)
        found[name] = name in master.hellos
        found[f"after {name}"] = master.hears_a_good_worker()
    raw = gevent.socket.create_connection(("127.0.0.1", master.port))
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    gevent.sleep(0.1)
    found["after bytes that are no ZMTP"] = master.hears_a_good_worker()
    raw.close()
    return found


def huge_frame(limit: int) -> dict[str, Any]:
    """A frame above the size limit is not received; its peer is cut, others are not."""
    rpc.MAX_FRAME_BYTES = limit
    master = Master()
    peer = master.peer("huge")
    found: dict[str, Any] = {"limit of the socket": master.runner.server.socket.maxmsgsize}

    def hello(padding: int) -> Frames:
        said = Hello(worker=f"pad-{padding}", host="x" * padding, pid=1, boot_id="b", versions={}, spool_dir="/none")
        return [_pack(messages.NAMES[Hello], msgspec.msgpack.encode(said), "huge")]

    for padding in (limit // 2, 2 * limit):
        peer.send_multipart(hello(padding))
        gevent.sleep(0.3)
        found[f"arrived {padding}"] = f"pad-{padding}" in master.hellos
    found["after"] = master.hears_a_good_worker()
    return found


def impostor() -> dict[str, Any]:
    """A peer that says `quit` in a good worker's name."""
    master = Master()
    good = master.peer("good")
    good.send_multipart([_pack("client_ready", "2.47.0", "good")])
    with gevent.Timeout(5):
        while "good" not in master.runner.clients:
            gevent.sleep(0.005)
    other = master.peer("other")
    other.send_multipart([_pack("quit", None, "good")])
    gevent.sleep(0.5)
    known = "good" in master.runner.clients
    good.send_multipart([_pack("quit", None, "good")])
    with gevent.Timeout(5, False):
        while "good" in master.runner.clients:
            gevent.sleep(0.005)
    return {"known after the impostors": known, "known after its own quit": "good" in master.runner.clients}


def returned() -> dict[str, Any]:
    """A worker that has given its line up and comes back over a new one, while the master believes in the old one."""
    master = Master()
    first = master.peer("good")
    first.send_multipart([_pack("client_ready", "2.47.0", "good")])
    with gevent.Timeout(5):
        while "good" not in master.runner.clients:
            gevent.sleep(0.005)
    second = master.peer("good")
    second.send_multipart([_pack(messages.NAMES[Hello], msgspec.msgpack.encode(_hello("again")), "good")])
    with gevent.Timeout(5, False):
        while "again" not in master.hellos:
            gevent.sleep(0.005)
    master.runner.send_message(messages.NAMES[ClockPing], b"answer", "good")
    with gevent.Timeout(5, False):
        kind, data, _ = msgpack.unpackb(second.recv())
        while kind != messages.NAMES[ClockPing]:
            kind, data, _ = msgpack.unpackb(second.recv())
        return {"heard": "again" in master.hellos, "answered": data.decode()}
    return {"heard": "again" in master.hellos, "answered": None}


def dead_line() -> dict[str, Any]:
    """A line that carries nothing any more, its TCP connection still open: how long until a new one carries all."""
    rpc.HEARTBEAT_MS, rpc.DEAD_LINE_MS = 300, 900
    master = Master()
    line = Line(master.port)
    client = zmqrpc.Client("127.0.0.1", line.port, "good")

    def say(number: int) -> None:
        ping = ClockPing(worker="good", sent_ns=number)
        client.send(_message(messages.NAMES[ClockPing], msgspec.msgpack.encode(ping), "good"))

    say(1)
    with gevent.Timeout(5, False):
        while not master.pings:
            gevent.sleep(0.005)
    found: dict[str, Any] = {"before": master.pings == [1]}
    line.freeze()
    begun = time.monotonic()
    with gevent.Timeout(20, False):
        # As a worker does: what is on the wire when the line dies is lost, the rest comes over the new one.
        for number in itertools.count(2):
            say(number)
            gevent.sleep(0.1)
            if len(master.pings) > 1:
                break
    found["after"] = master.pings[1:2]
    return found | {"seconds": time.monotonic() - begun, "connections": line.connections}


class Line:
    """A proxy whose connections can be made to carry nothing, without an end."""

    def __init__(self, port: int) -> None:
        self._master = port
        self._server = gevent.server.StreamServer(("127.0.0.1", 0), self._carry)
        self._server.start()
        self._frozen: set[int] = set()
        self.connections = 0

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def freeze(self) -> None:
        """Those that there are."""
        self._frozen = set(range(1, self.connections + 1))

    def _carry(self, worker: Any, _: object) -> None:
        self.connections += 1
        number = self.connections
        master = gevent.socket.create_connection(("127.0.0.1", self._master))

        def copy(source: Any, sink: Any) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    if number in self._frozen:
                        gevent.sleep(3600)
                    sink.sendall(data)

        gevent.joinall([gevent.spawn(copy, worker, master), gevent.spawn(copy, master, worker)])


def full_queue() -> dict[str, Any]:
    """More messages than a queue takes, to a master that is not there, and from one to a worker that is not there."""
    master = Master()
    with gevent.socket.create_server(("127.0.0.1", 0)) as nobody:
        client = zmqrpc.Client("127.0.0.1", nobody.getsockname()[1], "alone")
        begun = time.monotonic()
        for _ in range(3 * rpc.QUEUED_MESSAGES):
            client.send(_message(messages.NAMES[ClockPing], b"x", "alone"))
        found = {"worker": time.monotonic() - begun}
        client.close(linger=0)
    begun = time.monotonic()
    for _ in range(3 * rpc.QUEUED_MESSAGES):
        master.runner.send_message(messages.NAMES[ClockPing], b"x", "nobody")
    return found | {"master": time.monotonic() - begun}


def parse(cases: list[str]) -> dict[str, str]:
    """parse_frames on frames in hex: `ok`, or the name of what it raises."""
    found = {}
    logging.disable()
    for case in cases:
        frames = [bytes.fromhex(part) for part in case.split("|")]
        try:
            rpc.parse_frames(frames)
            found[case] = "ok"
        except RPCReceiveError:
            found[case] = "refused"
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            found[case] = f"{type(error).__name__}: {error}"
    return found
