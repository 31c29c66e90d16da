"""Whoever may knock at a master's port: strangers without the secret, peers that have it and misuse it, and replays.

Nothing of the client's own code is used here but the structs of its messages: bytes are made by hand.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack
import msgspec
import zmq
from zmq.utils import z85

from infersiege import records
from infersiege.records import (
    Bye,
    ClockPing,
    EpochAnswer,
    FileWanted,
    Hello,
    Ready,
    Refusal,
    Report,
    Segment,
    SlotsHeld,
    Spending,
)

NAMES: dict[type, str] = {
    Hello: "hello",
    Ready: "ready",
    Refusal: "refusal",
    Report: "report",
    Segment: "segment",
    Spending: "spending",
    Bye: "bye",
    ClockPing: "clock",
    FileWanted: "file_wanted",
    EpochAnswer: "epoch_answer",
    SlotsHeld: "slots_held",
}
SIGNATURE = b"\xff" + b"\0" * 8 + b"\x7f"


def greeting(mechanism: bytes, *, version: bytes = b"\x03\x01", as_server: bool = False) -> bytes:
    """64 bytes of ZMTP."""
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes([as_server]) + b"\0" * 31


CURVE = greeting(b"CURVE")


@functools.cache
def keys(secret: str, role: bytes) -> tuple[bytes, bytes]:
    raw = hashlib.scrypt(secret.encode(), salt=b"infersiege " + role, n=2**14, r=8, p=1, dklen=32)
    secret_key: bytes = z85.encode(raw)
    return zmq.curve_public(secret_key), secret_key


@dataclass(slots=True)
class Door:
    """The port of one run, and what is known about it."""

    port: int
    secret: str
    worker: str = "worker-1"
    """Name of one of its workers."""
    recorded: list[bytes] = field(default_factory=list)
    """What a worker sent, as it was on the wire; then what the master answered."""
    held: list[socket.socket] = field(default_factory=list)
    """Connections that stay open until the end."""

    # ------------------------------------------------------------------------------------------------- raw bytes

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def say(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """On a connection of its own; that it is cut in between is as good as anything."""
        with contextlib.suppress(OSError), self.connect() as peer:
            for part in parts:
                peer.sendall(part)
                time.sleep(pause_s)
            peer.settimeout(0.05)
            peer.recv(4096)

    def hold(self, count: int, first: bytes = b"") -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                peer = self.connect()
                self.held.append(peer)
                peer.sendall(first)

    def close(self) -> None:
        for peer in self.held:
            peer.close()

    # ------------------------------------------------------------------------------------------------ ZeroMQ peers

    @contextlib.contextmanager
    def peer(self, secret: str | None, *, identity: bytes = b"stranger", kind: int = zmq.DEALER) -> Iterator[Any]:
        """A socket; `secret` None: without keys."""
        with zmq.Context() as context, context.socket(kind) as made:
            made.linger = 500
            if identity:
                made.setsockopt(zmq.IDENTITY, identity)
            if secret is not None:
                made.curve_serverkey, _ = keys(secret, b"master")
                made.curve_publickey, made.curve_secretkey = keys(secret, b"worker")
            made.connect(f"tcp://127.0.0.1:{self.port}")
            yield made

    def send(self, *frames: bytes, times: int = 1, identity: bytes = b"stranger", wait_s: float = 0.1) -> None:
        """Messages of a peer that knows the secret."""
        with self.peer(self.secret, identity=identity) as peer:
            for _ in range(times):
                with contextlib.suppress(zmq.Again):
                    peer.send_multipart(frames, zmq.NOBLOCK)
            time.sleep(wait_s)

    def message(self, kind: str, data: Any, node_id: str = "stranger") -> bytes:
        packed: bytes = msgpack.packb((kind, data, node_id))
        return packed

    def ours(self, *said: msgspec.Struct, identity: str = "stranger", times: int = 1) -> None:
        """Messages of our own, of a node that Locust knows and the run does not."""
        with self.peer(self.secret, identity=identity.encode()) as peer:
            peer.send(self.message("client_ready", "2.47.0", identity))
            for one in said * times:
                name = f"ifs.{NAMES[type(one)]}"
                with contextlib.suppress(zmq.Again):
                    peer.send(self.message(name, msgspec.msgpack.encode(one), identity), zmq.NOBLOCK)
            time.sleep(0.15)

    def hello(self, **changes: Any) -> Hello:
        said = Hello(worker="stranger", host="h", pid=1, boot_id="b", versions={}, spool_dir="/none")
        return msgspec.structs.replace(said, **changes)


class Recorder:
    """A proxy in front of the master that keeps what one worker and the master say to each other."""

    def __init__(self, port: int) -> None:
        self._master = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.sent, self.answered = bytearray(), bytearray()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                self._ends.append(worker)
                try:
                    master = socket.create_connection(("127.0.0.1", self._master), timeout=5)
                except OSError:
                    worker.close()  # it is not up yet
                    continue
                master.settimeout(None)
                self._ends.append(master)
                for source, sink, kept in ((worker, master, self.sent), (master, worker, self.answered)):
                    threading.Thread(target=self._pass, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()


def _drip(door: Door, data: bytes) -> None:
    """A byte each 100 ms, from behind: the run goes on meanwhile."""

    def drip() -> None:
        with contextlib.suppress(OSError), door.connect() as peer:
            for byte in data:
                peer.sendall(bytes([byte]))
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()


def _reset(door: Door, count: int) -> None:
    for _ in range(count):
        with contextlib.suppress(OSError), door.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _as_a_namesake(door: Door) -> None:
    """As a worker does that is started again; it is answered once the one whose name it has spoke meanwhile."""
    for _ in range(3):
        door.ours(door.hello(worker=door.worker))
        time.sleep(1.0)


def _without_key(door: Door, secret: str | None, kind: int = zmq.DEALER, **credentials: bytes) -> None:
    with door.peer(secret, kind=kind) as peer:
        peer.linger = 0
        for name, value in credentials.items():
            setattr(peer, name, value)
        if kind == zmq.DEALER:
            for _ in range(20):
                peer.send(door.message("quit", None))
        time.sleep(0.15)


def _again(door: Door, data: bytes, times: int) -> None:
    for _ in range(times):
        door.say(data)


def _come_and_quit(door: Door) -> None:
    door.send(door.message("client_ready", "2.47.0"))
    door.send(door.message("quit", None))


def _random(count: int) -> bytes:
    return random.Random(5).randbytes(count)


def _row(door: Door) -> bytes:
    """A line that looks like a turn of a worker."""
    return msgspec.json.encode({"session_id": "forged:0", "turn": 0, "worker": door.worker}) + b"\n"


def _bye(door: Door) -> Bye:
    return Bye(
        worker=door.worker,
        records=0,
        planned_turns=0,
        plays={},
        hub_lag_p99_ns=None,
        cpu_share_max=None,
        exit_reason="SIGTERM",
        spool_error=None,
        fault=None,
        clock_offset_ns=0,
    )


def _report(door: Door) -> Report:
    return Report(
        worker=door.worker,
        sequence=10**6,
        windows=(),
        health=None,
        open_turns=(),
        sessions=0,
        in_flight=10**9,
        planned_turns=10**9,
        closed_turns=10**9,
        stopped="a stranger says so",
        finished=True,
    )


_HELLO_BODY = b"\x05HELLO\x01\0" + b"\0" * 72
_ROWS = zlib.compress(b"\0" * (300 << 20), 9)

STRANGERS: dict[str, Callable[[Door], None]] = {
    "nothing at all": lambda door: door.say(),
    "one byte": lambda door: door.say(b"\xc1"),
    "zeros": lambda door: door.say(b"\0" * 4096),
    "noise": lambda door: door.say(_random(100_000)),
    "a hundred times ff": lambda door: door.say(b"\xff" * 100),
    "a browser": lambda door: door.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a web hook": lambda door: door.say(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    "a TLS hello": lambda door: door.say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _random(500)),
    "SSH": lambda door: door.say(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "Redis": lambda door: door.say(b"*1\r\n$4\r\nPING\r\n"),
    "half a signature": lambda door: door.say(SIGNATURE[:5]),
    "a signature and no more": lambda door: door.say(SIGNATURE),
    "ZMTP 1.0": lambda door: door.say(b"\x01\x00\x05\x00quit"),
    "ZMTP 2.0": lambda door: door.say(SIGNATURE + b"\x01\x05\x00\x04node"),
    "ZMTP of the year 3000": lambda door: door.say(greeting(b"CURVE", version=b"\xff\xff")),
    "mechanism NULL": lambda door: door.say(greeting(b"NULL"), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"),
    "mechanism PLAIN": lambda door: door.say(greeting(b"PLAIN"), b"\x04\x0d\x05HELLO\x03you\x02me"),
    "a mechanism that is none": lambda door: door.say(greeting(_random(20))),
    "two servers": lambda door: door.say(greeting(b"CURVE", as_server=True)),
    "CURVE and noise": lambda door: door.say(CURVE, _random(5000)),
    "CURVE with a hello of zeros": lambda door: door.say(CURVE, b"\x04\xc8" + _HELLO_BODY + b"\0" * 120),
    "CURVE with a short hello": lambda door: door.say(CURVE, b"\x04\x06\x05HELLO"),
    "CURVE with READY first": lambda door: door.say(CURVE, b"\x04\x06\x05READY"),
    "a frame that says it has 8 EiB": lambda door: door.say(CURVE, b"\x02" + struct.pack(">Q", 2**63 - 1) + b"x" * 999),
    "a command that says it has 4 GiB": lambda door: door.say(CURVE, b"\x06" + struct.pack(">Q", 2**32) + b"x" * 999),
    "ten MB of zeros behind the greeting": lambda door: door.say(CURVE, b"\0" * 10_000_000),
    "a thousand frames before the handshake": lambda door: door.say(CURVE, b"\x00\x01x" * 1000),
    "a slow loris": lambda door: _drip(door, CURVE),
    "a hundred greetings that go no further": lambda door: door.hold(100, CURVE),
    "a thousand connections": lambda door: door.hold(1000),
    "five hundred connections that are reset": lambda door: _reset(door, 500),
    "a peer without keys": lambda door: _without_key(door, None),
    "a peer without keys that subscribes": lambda door: _without_key(door, None, zmq.SUB),
    "a peer with a password": lambda door: _without_key(door, None, plain_username=b"u", plain_password=b"p"),
    "a peer with another secret": lambda door: _without_key(door, "another one"),
}
"""They don't know the secret."""

TRAITORS: dict[str, Callable[[Door], None]] = {
    "an empty frame": lambda door: door.send(b""),
    "no msgpack": lambda door: door.send(b"\xc1"),
    "wrong arity": lambda door: door.send(msgpack.packb(("quit", None))),
    "three frames": lambda door: door.send(door.message("quit", None), b"", b""),
    "two thousand frames": lambda door: door.send(*[b"x"] * 2000),
    "a type that is no text": lambda door: door.send(msgpack.packb((7, None, "stranger"))),
    "an array that says it has four billion items": lambda door: door.send(b"\x93\xa4quit\xdd\xff\xff\xff\xff\xa1x"),
    "a thousand lists in each other": lambda door: door.send(b"\x91" * 1000 + b"\xc0"),
    "a heartbeat without data": lambda door: door.send(door.message("heartbeat", None)),
    "it speaks for a worker": lambda door: door.send(door.message("quit", None, door.worker)),
    "it stops for a worker": lambda door: door.send(door.message("client_stopped", None, door.worker)),
    "an identity that is no text": lambda door: door.send(door.message("quit", None), identity=b"\x80" * 255),
    "no identity": lambda door: door.send(door.message("client_ready", "2.47.0"), identity=b""),
    "a frame above the limit": lambda door: door.send(b"x" * (17 << 20), wait_s=0.3),
    "frames just below the limit": lambda door: door.send(b"x" * (15 << 20), times=3, wait_s=0.5),
    "five thousand messages": lambda door: door.send(door.message("ifs.nothing", b""), times=5000, wait_s=0.3),
    "it asks for the locustfile": lambda door: door.send(door.message("locustfile", {"version": "2.47.0"})),
    "it comes and quits": _come_and_quit,
    "it wants to join": lambda door: door.ours(door.hello()),
    "it wants to join under a worker's name": _as_a_namesake,
    "it is ready for a worker": lambda door: door.ours(
        Ready(worker=door.worker, plan_hash="", trace_hashes={}, clock_offset_ns=10**18, clock_uncertainty_ns=0)
    ),
    "it refuses for a worker": lambda door: door.ours(
        Refusal(worker=door.worker, message="no", hint=None, exit_code=70)
    ),
    "a row of a worker": lambda door: door.ours(
        Segment(worker=door.worker, sequence=0, rows=1, data=zlib.compress(_row(door)))
    ),
    "a segment that unpacks to 300 MiB": lambda door: door.ours(
        Segment(worker=door.worker, sequence=10**6, rows=1, data=_ROWS)
    ),
    "the farewell of a worker": lambda door: door.ours(_bye(door)),
    "a report of a worker that has finished": lambda door: door.ours(_report(door)),
    "it spends a worker's budget": lambda door: door.ours(Spending(spent=(2**60,), waiting=(1,))),
    "it asks for files": lambda door: door.ours(
        FileWanted(number=0, offset_bytes=0), FileWanted(number=-1, offset_bytes=-1)
    ),
    "it answers for an epoch": lambda door: door.ours(
        EpochAnswer(number=1, accepted=False), SlotsHeld(epoch=0, slots={0: (0, 1)})
    ),
    "two thousand clock messages": lambda door: door.ours(ClockPing(worker=door.worker, sent_ns=0), times=2000),
    "a message that is for workers": lambda door: door.send(
        door.message("ifs.drain", msgspec.msgpack.encode(records.Drain(duration_ns=0, reason=records.Reason.RUN_END)))
    ),
}
"""They know it, and misuse it."""

REPLAYS: dict[str, Callable[[Door], None]] = {
    "all that a worker said": lambda door: door.say(door.recorded[0]),
    "its handshake, twenty times": lambda door: _again(door, door.recorded[0][:600], 20),
    "its last messages behind a new greeting": lambda door: door.say(CURVE, door.recorded[0][-4000:]),
    "what the master itself said": lambda door: door.say(door.recorded[1]),
    "its handshake with a bit changed": lambda door: door.say(
        door.recorded[0][:100] + bytes([door.recorded[0][100] ^ 1]) + door.recorded[0][101:]
    ),
}
"""Of frames on the wire."""


def random_secret() -> str:
    return os.urandom(16).hex()
