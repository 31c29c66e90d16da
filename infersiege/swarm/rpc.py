"""Locust's sockets, guarded: CURVE keys from one shared secret, bounds, no frame that can end the master, no dead line.

Locust 2.47 lets a peer speak for another one's node id, and one msgpack value of the wrong shape ends its receiver for
good. Workers prove that they know the secret (environment variable INFERSIEGE_SECRET; `infersiege run` makes a new
one for the workers that it starts itself).

Who knows the secret is trusted with the run: such a peer can take part in it, and ZeroMQ holds a message of endlessly
many parts for it until the last one. Who does not know it gets no further than the handshake.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from typing import Any, TypedDict

import gevent
import msgspec
import zmq.green as zmq
from locust.exception import RPCError, RPCReceiveError, RPCSendError
from locust.rpc import protocol, zmqrpc
from zmq.error import Again, ZMQError
from zmq.utils import z85

from infersiege.swarm.messages import KNOWN, PREFIX
from infersiege.swarm.secret import SECRET_VARIABLE as SECRET_VARIABLE

log = logging.getLogger("infersiege.swarm.rpc")

MAX_FRAME_BYTES = 16 << 20
"""The largest messages are segments (a second of a busy worker: some 100 KB packed) and reports of many open turns
(10,000 of them: 3 MB). ZeroMQ cuts whoever announces more, before it takes the memory."""

HEARTBEAT_MS = 1_000
DEAD_LINE_MS = 3_000
"""A connection on which nothing came for so long is given up and made anew, by ZeroMQ's own thread: a busy Python is no
dead line. TCP alone notices a cut after minutes, and resends at ever longer intervals."""
RECONNECT_MS = (100, 1_000)
"""First and longest pause. Beyond a second a worker would waste the time that its lease has left."""
CONNECT_MS = 2_000
"""A connect that is lost in a cut is begun again; the kernel would wait 1, 2, 4, 8 s before it asks again."""
HANDSHAKE_MS = 5_000
"""Who is not through with the handshake by then is cut: a slow loris holds a descriptor for so long, and no more."""
QUEUED_MESSAGES = 1_000
"""For each peer and direction; beyond it messages are dropped, and whoever sends never waits. A worker sends some ten
in a second, and ends by itself after 15 s without its master; what must not be lost is sent again until it is
acknowledged."""
BACKLOG = 1_024
"""Connections that wait to be accepted: a fleet begins at once."""
LINGER_MS = 1_000
"""At the end a dead peer is not waited for."""
LONGEST_TURN_NS = 50_000_000
"""The receiver of a master lets others run after so long, however many messages wait."""

COMPLAINTS = 5
"""Lines about bad messages; whoever sends more of them must not fill the terminal."""

UNUSED = frozenset({"stats", "logs", "exception"})
"""Messages of Locust's workers that nothing here reads: records come by messages of our own. They stay at home."""


class _Heartbeat(TypedDict):
    state: str
    current_cpu_usage: float


class _Spawned(TypedDict):
    user_classes_count: dict[str, int]


class _Failure(TypedDict):
    msg: str
    traceback: str


class _Logs(TypedDict):
    worker_id: str
    logs: list[str]


_SHAPES: dict[str, Any] = {
    "client_ready": str,
    "client_stopped": Any,
    "exception": _Failure,
    "heartbeat": _Heartbeat,
    "logs": _Logs,
    "quit": Any,
    "spawning": Any,
    "spawning_complete": _Spawned,
    "stats": dict[str, Any],
}
"""Locust's own messages that its worker sends, and what the master's handler reads of their data without looking.

That handler runs unguarded in the receiver: `("heartbeat", None, …)` would end it. Locust's other messages to a master
("locustfile" hands out files) have no use here.
"""

_rpc: Any = zmqrpc
_message: Any = protocol.Message


def derive_keys(secret: bytes, role: bytes) -> tuple[bytes, bytes]:
    """CURVE key pair (public, secret; z85) of one role, the same wherever the secret is known."""
    raw = hashlib.scrypt(secret, salt=b"infersiege " + role, n=2**14, r=8, p=1, dklen=32)
    key: bytes = z85.encode(raw)
    return zmq.curve_public(key), key


def parse_frames(frames: list[bytes]) -> tuple[str, Any]:
    """(node id, message) of one multipart frame. Raises RPCReceiveError on anything else, and nothing but that."""
    try:
        if len(frames) != 2:
            raise ValueError("a message has an address and one frame")
        address = frames[0].decode()
        message = _message.unserialize(frames[1])
        if not isinstance(message.type, str):
            raise TypeError(message.type)
        if not message.type.startswith(PREFIX):
            msgspec.convert(message.data, _SHAPES[message.type])
        elif message.type not in KNOWN:  # the others are checked where they are decoded
            raise KeyError(message.type)
    except Exception as error:
        raise RPCReceiveError(f"bad frame: {type(error).__name__}", addr=None) from error
    if message.node_id != address:
        raise RPCReceiveError(f"{address[:80]!r} speaks for {str(message.node_id)[:80]!r}", addr=None)
    return address, message


def shown_address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric(host: str) -> str:
    """The first address of a name, as ZeroMQ binds to it (it takes no names there). Raises OSError."""
    if host == "*":
        return host
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _bounded(endpoint: Any, keys: tuple[bytes, bytes]) -> None:
    """What both ends have in common; to be set before bind or connect."""
    endpoint.curve_publickey, endpoint.curve_secretkey = keys
    endpoint.maxmsgsize = MAX_FRAME_BYTES
    for option, value in (
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, DEAD_LINE_MS),
        (zmq.HEARTBEAT_TTL, DEAD_LINE_MS),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.SNDHWM, QUEUED_MESSAGES),
        (zmq.RCVHWM, QUEUED_MESSAGES),
        (zmq.LINGER, LINGER_MS),
    ):
        endpoint.setsockopt(option, value)


class _Server(_rpc.Server):  # type: ignore[misc]
    """The master's end."""

    keys = (b"", b"")
    """Public and secret; `install` makes classes that have them."""

    def __init__(self, host: str, port: int) -> None:
        try:
            address = numeric(host)
        except OSError as error:
            raise RPCError(f"{error.strerror or error}") from error
        _rpc.BaseSocket.__init__(self, zmq.ROUTER, ":" not in address and address != "*")
        _bounded(self.socket, self.keys)
        self._refused = self._gave_way_ns = 0
        self._waits, self._caught_up_ns = False, time.monotonic_ns()
        self.socket.curve_server = True
        self.socket.setsockopt(zmq.BACKLOG, BACKLOG)
        # A worker whose line was cut comes back before the master has given the old connection up, which would
        # keep the new one out for good. Nobody else can take its place: node ids are 128 random bits that only
        # their worker and this end of an encrypted line know.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            if port == 0:
                self.port = self.socket.bind_to_random_port(
                    f"tcp://[{address}]" if ":" in address else f"tcp://{address}"
                )
            else:
                self.socket.bind(f"tcp://{shown_address(address, port)}")
                self.port = port
        except ZMQError as error:
            self.socket.close(linger=0)
            raise RPCError(f"Socket bind failure: {error}") from error

    def recv_from_client(self) -> tuple[str, Any]:
        while True:
            self._give_way()
            try:
                return parse_frames(self._frames())
            except RPCReceiveError as error:
                self._refused += 1
                if self._refused <= COMPLAINTS:
                    log.warning("dropped a message at the master's port: %s", error)

    def _give_way(self) -> None:
        """Messages that wait are taken without a pause: under a flood nothing else would run, no lease go out."""
        if time.monotonic_ns() - self._gave_way_ns > LONGEST_TURN_NS:
            gevent.sleep(1e-6)  # 0 would be one more round of the same pass, in which timers wait
            self._gave_way_ns = time.monotonic_ns()

    @property
    def heard_until_ns(self) -> int:
        """Whatever had come by this instant (monotonic) was handled: who said nothing until then was silent."""
        return time.monotonic_ns() if self._waits else self._caught_up_ns

    def _first_frame(self) -> bytes:
        try:
            first: bytes = self.socket.recv(zmq.NOBLOCK)
        except Again:
            self._waits = True
            first = self.socket.recv()
            self._waits, self._caught_up_ns = False, time.monotonic_ns()
        return first

    def _frames(self) -> list[bytes]:
        try:
            frames = [self._first_frame()]
            while self.socket.getsockopt(zmq.RCVMORE):
                frame = self.socket.recv()
                if len(frames) < 3:  # one too many tells that it is none of ours; the rest is not kept
                    frames.append(frame)
        except ZMQError as error:
            raise RPCError("ZMQ network broken") from error
        return frames

    def send_to_client(self, msg: Any) -> None:
        """Never waits: what a peer does not take is dropped, as for one that is gone."""
        try:
            self.socket.send_multipart([msg.node_id.encode(), msg.serialize()], zmq.NOBLOCK)
        except Again:
            log.warning("dropped %s to %s: its queue is full", msg.type, msg.node_id)
        except ZMQError as error:
            raise RPCSendError("ZMQ sent failure") from error


class _Client(_rpc.Client):  # type: ignore[misc]
    """A worker's end."""

    keys = (b"", b"")
    server_public = b""

    def __init__(self, host: str, port: int, identity: str) -> None:
        _rpc.BaseSocket.__init__(self, zmq.DEALER, ":" not in host)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.curve_serverkey = self.server_public
        _bounded(self.socket, self.keys)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        # Messages wait for a line that is not there yet, or not any more: reports are differences, and a worker
        # that was away tells what it has done meanwhile.
        self.socket.setsockopt(zmq.IMMEDIATE, 0)
        self._full = False
        self.socket.connect(f"tcp://{shown_address(host, port)}")

    def send(self, msg: Any) -> None:
        """Never waits. Locust's own would hold the sender up for 9 s once the queue is full, and then raise."""
        if msg.type in UNUSED:
            return
        try:
            self.socket.send(msg.serialize(), zmq.NOBLOCK)
            self._full = False
        except Again:
            if not self._full:
                log.warning("the master takes nothing: messages are dropped from %s on", msg.type)
            self._full = True
        except ZMQError as error:
            raise RPCSendError("ZMQ sent failure") from error

    def recv(self) -> Any:
        try:
            return _message.unserialize(self.socket.recv())
        except ZMQError as error:
            raise RPCError("ZMQ network broken") from error
        except Exception as error:
            raise RPCReceiveError(f"bad frame: {type(error).__name__}") from error


def install(secret: bytes) -> None:
    """Make runners that are created from now on in this process use the guarded sockets."""
    server_keys, client_keys = derive_keys(secret, b"master"), derive_keys(secret, b"worker")
    _rpc.Server = type("GuardedServer", (_Server,), {"keys": server_keys})
    _rpc.Client = type("GuardedClient", (_Client,), {"keys": client_keys, "server_public": server_keys[0]})
