"""A worker on its own in the midst of a run: it says where its records are, and does not end as if all were well."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from siege import Siege, plan_text

from infersiege.emulator.process import EmulatorProcess

IMPATIENT_WORKER = """
import sys
from infersiege.swarm import control
control.ORPHANED_NS = 3_000_000_000
from infersiege.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_worker_that_lost_its_master_ends_with_3_and_says_who_takes_its_records(
    siege: Siege, free_port: Callable[[], int]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"
    with EmulatorProcess("--output-tokens", "10") as emulator:
        text = plan_text(emulator.base_url, run='duration = "60s"')
        running = siege.start(text, "--workers", "0", "--expect-workers", "1", "--bind", address)
        worker = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT_WORKER, "worker", "--master", address, "--name", "far"],
            env=siege.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            running.until('"worker":"far"')
            os.kill(running.process.pid, signal.SIGKILL)
            said, _ = worker.communicate(timeout=30)
        finally:
            worker.kill()
            worker.wait()
        running.process.wait(20)
    assert worker.returncode == 3, said
    (spool,) = (siege.folder / "spool").glob("infersiege-spool-*-far-*")
    assert f"with its records in {spool}; a master on this host that still lives takes them" in said
    assert said.rstrip().endswith(f"infersiege recover RUN_DIRECTORY {shlex.quote(str(spool))}")
    code, out = siege.command("recover", str(running.path), str(spool))
    assert code == 3 and "1 spools: " in out, out
