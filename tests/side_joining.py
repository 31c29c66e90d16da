"""How a worker finds its master, in a process of its own (see test_joining.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import gevent.server
import zmq.green as zmq

from infersiege.errors import InfersiegeError
from infersiege.swarm import joining, rpc
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.session_users import Director

SECRET = b"right"


def _told(work: Callable[[], Any]) -> dict[str, Any]:
    """What it gives, or the error that it raises; and the time that it took."""
    begun = time.monotonic()
    try:
        found = {"found": work()}
    except InfersiegeError as error:
        found = {"error": f"{type(error).__name__}: {error}", "hint": error.hint}
    return found | {"seconds": time.monotonic() - begun}


def _look(host: str, port: int, *, wait_s: float = 1.0, say_every_s: float = 30.0) -> dict[str, Any]:
    said: list[str] = []
    found = _told(lambda: joining.master_address(host, port, wait_s=wait_s, say=said.append, say_every_s=say_every_s))
    return found | {"said": said}


def _serve(answer: Callable[[Any], None], host: str = "127.0.0.1") -> gevent.server.StreamServer:
    server = gevent.server.StreamServer((host, 0), lambda peer, _: answer(peer))
    server.start()
    return server


def _master(host: str = "127.0.0.1", port: int = 0) -> Any:
    rpc.install(SECRET)
    return SiegeEnvironment([Director]).create_master_runner(host, port)


def listeners() -> dict[str, Any]:
    """Who listens there -> what a worker makes of it."""
    joining.ANSWER_S = 0.3
    found = {}

    def http(peer: Any) -> None:
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100)

    for name, answer in {
        "closes at once": lambda peer: peer.close(),
        "says nothing": lambda peer: gevent.sleep(60),
        "HTTP": http,
        "half a greeting": lambda peer: peer.sendall(joining._GREETING),
    }.items():
        server = _serve(answer)
        found[name] = _look("127.0.0.1", server.server_port)
        server.stop(timeout=0)
    plain = zmq.Context.instance().socket(zmq.ROUTER)
    found["ZeroMQ without keys"] = _look("127.0.0.1", plain.bind_to_random_port("tcp://127.0.0.1"))
    found["a master"] = _look("127.0.0.1", _master().server.port)
    found["a master on IPv6"] = _look("::1", _master("::1").server.port)
    found["a master on all addresses"] = _look("127.0.0.1", _master("*").server.port)
    return found


def nobody(port: int) -> dict[str, Any]:
    return {
        "nobody": _look("127.0.0.1", port, wait_s=2.0, say_every_s=0.6),
        "no such name": _look("no-such-host.invalid", port),
        "no name at all": _look("a..b", port),
        "not waited": _look("127.0.0.1", port, wait_s=0),
    }


def late(port: int) -> dict[str, Any]:
    """A master that comes up a while after its worker."""
    started: list[Any] = []
    gevent.spawn_later(1.5, lambda: started.append(_master(port=port)))
    return _look("localhost", port, wait_s=20)


def secrets() -> dict[str, Any]:
    """A worker with the right secret, one with another, and one whose master ends while it knocks."""
    joining.ADMISSION_S = 2.0
    master = _master()
    port = master.server.port
    found = {}
    for name, secret in (("right", SECRET), ("wrong", b"wrong"), ("ended", b"wrong")):
        if name == "ended":
            gevent.spawn_later(1.0, master.server.close, linger=0)
        rpc.install(secret)
        environment = SiegeEnvironment([Director])
        found[name] = _told(
            lambda: joining.joined(environment, "127.0.0.1", port, wait_s=1, say=print).worker_index  # noqa: B023
        )
    return found


def gone() -> dict[str, Any]:
    """A master that is there, then is not: when its worker notices."""
    joining.GONE_AFTER = 3
    master = _master()
    runner = joining.joined(SiegeEnvironment([Director]), "127.0.0.1", master.server.port, wait_s=5, say=print)
    errors: list[str] = []
    joining.watch_master(runner, lambda error: errors.append(str(error)))
    gevent.sleep(5)
    before = list(errors)
    master.greenlet.kill()  # its receiver
    begun = time.monotonic()
    with gevent.Timeout(15, False):
        while not errors:
            gevent.sleep(0.05)
    return {"before": before, "after": errors, "seconds": time.monotonic() - begun}
