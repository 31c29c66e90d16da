"""Locust's sockets, guarded: CURVE keys from one shared secret, a size cap, and no frame that can end the master.

Locust 2.47 lets a peer speak for another one's node id, and one msgpack value of the wrong shape ends its receiver for
good. Workers prove that they know the secret (environment variable INFERSIEGE_SECRET; `infersiege run` makes a new
one for the workers that it starts itself).
"""

from __future__ import annotations

import hashlib
from typing import Any, TypedDict

import msgspec
import zmq.green as zmq
from locust.exception import RPCError, RPCReceiveError
from locust.rpc import protocol, zmqrpc
from zmq.error import ZMQError
from zmq.utils import z85

from infersiege.swarm.messages import PREFIX
from infersiege.swarm.secret import SECRET_VARIABLE as SECRET_VARIABLE

MAX_FRAME_BYTES = 64 << 20


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
        address = frames[0].decode()
        message = _message.unserialize(frames[1])
        if not isinstance(message.type, str):
            raise TypeError(message.type)
        if not message.type.startswith(PREFIX):  # ours are checked where they are decoded
            msgspec.convert(message.data, _SHAPES[message.type])
    except Exception as error:
        raise RPCReceiveError(f"bad frame: {type(error).__name__}", addr=None) from error
    if message.node_id != address:
        raise RPCReceiveError(f"{address} speaks for {message.node_id!r}", addr=None)
    return address, message


def install(secret: bytes) -> None:
    """Make runners that are created from now on in this process use the guarded sockets."""
    server_public, server_secret = derive_keys(secret, b"master")
    client_public, client_secret = derive_keys(secret, b"worker")

    class GuardedServer(_rpc.Server):  # type: ignore[misc]
        def __init__(self, host: str, port: int) -> None:
            _rpc.BaseSocket.__init__(self, zmq.ROUTER, self.ipv4_only(host, port))
            self.socket.curve_secretkey = server_secret
            self.socket.curve_publickey = server_public
            self.socket.curve_server = True
            self.socket.maxmsgsize = MAX_FRAME_BYTES
            try:
                if port == 0:
                    self.port = self.socket.bind_to_random_port(f"tcp://{host}")
                else:
                    self.socket.bind(f"tcp://{host}:{port}")
                    self.port = port
            except ZMQError as error:
                raise RPCError(f"Socket bind failure: {error}") from error

        def recv_from_client(self) -> tuple[str, Any]:
            try:
                frames = self.socket.recv_multipart()
            except ZMQError as error:
                raise RPCError("ZMQ network broken") from error
            return parse_frames(frames)

    class GuardedClient(_rpc.Client):  # type: ignore[misc]
        def __init__(self, host: str, port: int, identity: str) -> None:
            _rpc.BaseSocket.__init__(self, zmq.DEALER, self.ipv4_only(host, port))
            self.socket.setsockopt(zmq.IDENTITY, identity.encode())
            self.socket.curve_serverkey = server_public
            self.socket.curve_publickey = client_public
            self.socket.curve_secretkey = client_secret
            self.socket.maxmsgsize = MAX_FRAME_BYTES
            self.socket.connect(f"tcp://{host}:{port}")

    _rpc.Server, _rpc.Client = GuardedServer, GuardedClient
