"""How a worker finds its master: waits until it is up, gets in, and notices when it is gone before the load began."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import socket

from infersiege.errors import InfersiegeError, TargetError, UsageError
from infersiege.plan.values import format_duration
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.rpc import shown_address
from infersiege.swarm.secret import SECRET_VARIABLE

EVERY_S = 0.5
"""Between two looks for a master that is not up."""
SAY_EVERY_S = 30.0
ANSWER_S = 3.0
"""For a connect, and for the first bytes behind it."""
ADMISSION_S = 15.0
"""A master that listens lets a worker in at once; it may be busy with its traces for some seconds."""
GONE_AFTER = 15
"""Heartbeats of the master in a row, one a second, that did not come."""

_GREETING_BYTES = 64
_MECHANISM = slice(12, 32)
_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01"
"""Signature and version of ZMTP 3.1 (rfc.zeromq.org/spec/37). Behind it come the mechanism and a filler; a listener
sends its own as soon as it has read so far, whatever our mechanism would be."""


class _NotYetError(Exception):
    """Why there is no master so far, for people."""


def master_address(
    host: str, port: int, *, wait_s: float, say: Callable[[str], None], say_every_s: float = SAY_EVERY_S
) -> str:
    """The numeric address at which a master of ours listens, waited for.

    A name that does not resolve is waited for as well: in Kubernetes it comes with the master's pod. Raises
    TargetError when `wait_s` is over, UsageError where something else listens.
    """
    begun = said = time.monotonic()
    limit = format_duration(round(wait_s * 1e9))
    while True:
        try:
            return _find(host, port)
        except _NotYetError as why:
            now = time.monotonic()
            reason = str(why)
        if now - begun >= wait_s:
            raise TargetError(
                f"no master at {shown_address(host, port)} within {limit}: {reason}",
                hint="is `infersiege run` there, with --bind and this port, and does a firewall let it through? "
                "--wait sets the limit",
            )
        if said == begun or now - said >= say_every_s:
            said = now
            say(f"waiting for a master at {shown_address(host, port)}: {reason} ({now - begun:.0f} s of {limit})")
        gevent.sleep(min(EVERY_S, max(0.0, begun + wait_s - now)))


def _find(host: str, port: int) -> str:
    """Raises _NotYetError, UsageError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise UsageError(f"--master {host}: is no host name") from None
    except OSError as error:
        raise _NotYetError(f"the name does not resolve ({error.strerror or error})") from None
    reason = "no address"
    for _, _, _, _, address in found:
        try:
            _greet(str(address[0]), port)
            return str(address[0])
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
    raise _NotYetError(reason)


def _greet(address: str, port: int) -> None:
    """See that a socket of ZeroMQ with CURVE listens. Raises OSError where nothing does, UsageError for another one."""
    greeting = b""
    with socket.create_connection((address, port), timeout=ANSWER_S) as peer:
        peer.settimeout(ANSWER_S)
        peer.sendall(_GREETING)
        while len(greeting) < _GREETING_BYTES:
            part = peer.recv(_GREETING_BYTES - len(greeting))
            if not part:
                break
            greeting += part
            if greeting[:1] != b"\xff":
                break
    ours_so_far = greeting[:1] in (b"", b"\xff")
    if ours_so_far and len(greeting) < _GREETING_BYTES:
        # A proxy in front of a master that is not up yet, or a master that just ends.
        raise ConnectionResetError(0, "the connection was closed at once")
    if not ours_so_far or greeting[_MECHANISM].rstrip(b"\0") != b"CURVE":
        raise UsageError(
            f"--master {shown_address(address, port)}: what listens there is no master of infersiege",
            hint="name the address that `infersiege run` prints, or its --bind",
        )


def joined(environment: SiegeEnvironment, host: str, port: int, *, wait_s: float, say: Callable[[str], None]) -> Any:
    """Locust's runner of a worker that its master has let in.

    Raises TargetError and UsageError as `master_address`, TargetError where the master ends meanwhile, and UsageError
    where it does not let us in.
    """
    address = master_address(host, port, wait_s=wait_s, say=say)
    runner = None
    # Locust tries in its constructor, for 300 s.
    with gevent.Timeout(ADMISSION_S, False):
        runner = environment.create_worker_runner(address, port)
    if runner is None:
        raise _not_let_in(host, port)
    return runner


def _not_let_in(host: str, port: int) -> InfersiegeError:
    try:
        _find(host, port)
    except _NotYetError as why:
        return TargetError(
            f"the master at {shown_address(host, port)} was gone before it let this worker in: {why}",
            hint="see what `infersiege run` says on its host; with --forever a worker waits for the next run",
        )
    return UsageError(
        f"the master at {shown_address(host, port)} does not let this worker in: it has another secret",
        hint=f"{SECRET_VARIABLE} must be the same on both hosts",
    )


def watch_master(runner: Any, gone: Callable[[InfersiegeError], None]) -> None:
    """Call `gone` once, when GONE_AFTER of the master's answers to Locust's heartbeats are missing.

    They are counted, not timed: a process that was stopped, or a clock that was set, is no dead master.
    """
    missing = 0

    def heard(**_: object) -> None:
        nonlocal missing
        missing = 0

    runner.environment.events.heartbeat_received.add_listener(heard)

    def count() -> None:
        nonlocal missing
        while missing < GONE_AFTER:
            gevent.sleep(1.0)
            missing += 1
        gone(TargetError("the master is gone", hint="see what `infersiege run` says on its host"))

    with suppress(AttributeError):  # a runner that has ended already
        runner.greenlet.spawn(count)
