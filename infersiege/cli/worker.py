"""`infersiege worker`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

import click

from infersiege.cli.address import MASTER_PORT, address_of
from infersiege.errors import ExitCode, UsageError
from infersiege.plan.values import parse_duration
from infersiege.swarm.exposure import check_secret
from infersiege.swarm.lifeline import tied_to
from infersiege.swarm.secret import SECRET_VARIABLE

_PAUSE_S = 2.0
"""Between two runs, and after one that this worker could not take part in."""
_MINE_TO_MEND = (ExitCode.USAGE, ExitCode.INTERRUPTED)
"""A worker that ends with one of these would end with it again."""


@click.command(epilog="Example: INFERSIEGE_SECRET=… infersiege worker --master 10.0.0.5")
@click.option(
    "--master",
    required=True,
    metavar="HOST[:PORT]",
    help=f"Where `infersiege run --bind` listens; default port {MASTER_PORT}.",
)
@click.option("--name", help="Name of this worker in records; default: host name and process id.")
@click.option(
    "--wait", default="10m", show_default=True, metavar="DURATION", help="How long to wait for a master that is not up."
)
@click.option("--forever", is_flag=True, help="Serve one run after the other, until told to end.")
def worker(master: str, name: str | None, wait: str, forever: bool) -> None:
    """Join a run that a master on another host offers.

    The master's secret comes from the environment variable INFERSIEGE_SECRET. The plan and its files come from the
    master; API keys do not: they are set on this host.

    Ctrl-C and SIGTERM: a worker in a run lets its open turns end for up to 3 s, hands its records over and leaves;
    again: it cuts them.
    """
    host, port = address_of("--master", master, default_port=MASTER_PORT)
    try:
        wait_ns = parse_duration(wait)
    except ValueError as error:
        raise UsageError(f"--wait {error}") from None
    secret = os.environ.get(SECRET_VARIABLE)
    if not secret:
        raise UsageError(
            f"the environment variable {SECRET_VARIABLE} is not set",
            hint=f"set it to what the master has: {SECRET_VARIABLE}=… infersiege run …",
        )
    check_secret(host, port, secret, option="--master")
    if forever:
        sys.exit(_serve(master, name, wait))
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.swarm.rpc import install
    from infersiege.swarm.worker import run_worker

    install(secret.encode())
    sys.exit(run_worker(name, host, port, wait_s=wait_ns / 1e9))


def _serve(master: str, name: str | None, wait: str) -> int:
    """A process for each run: nothing of one is left in the next. Returns the exit code, of a signal or a mistake."""
    command = [sys.executable, "-m", "infersiege", "worker", "--master", master, "--wait", wait]
    if name is not None:
        command += ["--name", name]
    ended: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ended.append(number)
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    while True:
        child = _started(command)
        children[:] = [child]
        if ended:
            child.send_signal(ended[0])
        code = child.wait()
        children.clear()
        if ended:
            return _ended(ended[0], told=code >= 0)
        if code in _MINE_TO_MEND:
            return code
        until = time.monotonic() + _PAUSE_S
        while time.monotonic() < until and not ended:
            time.sleep(0.1)
        if ended:
            return _ended(ended[0], told=False)


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    """It ends with this process, however that does."""
    # A SIGINT that comes before it listens would be a KeyboardInterrupt in the midst of its imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # one Ctrl-C reaches it once, from here
            preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - this process has no threads
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended(number: int, *, told: bool) -> int:
    """Exit code of a signal. `told`: the worker was up, and has said what it does."""
    if not told:
        click.echo("interrupted: no more runs are waited for", err=True)
    return 128 + number
