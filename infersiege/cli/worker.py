"""`infersiege worker`."""

from __future__ import annotations

import os
import sys

import click

from infersiege.errors import UsageError


@click.command(epilog="Example: INFERSIEGE_SECRET=… infersiege worker --master 10.0.0.5:5557")
@click.option("--master", required=True, metavar="HOST:PORT", help="Where `infersiege run` listens.")
@click.option("--name", help="Name of this worker in records; default: host name and process id.")
def worker(master: str, name: str | None) -> None:
    """Join a run that a master on another host offers.

    The master's secret comes from the environment variable INFERSIEGE_SECRET.
    """
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.swarm.rpc import SECRET_VARIABLE, install
    from infersiege.swarm.worker import run_worker

    host, _, port = master.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--master {master}: not an address", hint="write it as HOST:PORT, such as 10.0.0.5:5557")
    secret = os.environ.get(SECRET_VARIABLE)
    if not secret:
        raise UsageError(
            f"the environment variable {SECRET_VARIABLE} is not set",
            hint=f"set it to what the master has: {SECRET_VARIABLE}=… infersiege run …",
        )
    install(secret.encode())
    sys.exit(run_worker(name, host.strip("[]"), int(port)))
