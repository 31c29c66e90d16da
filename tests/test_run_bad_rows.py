"""One worker's bad rows cost those rows: everybody else's are in the report, and the run says what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from siege import Siege, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome

pytestmark = [pytest.mark.slow]

TRAITOR = Path(__file__).parent / "side_traitor.py"


def test_rows_that_are_none_do_not_cost_the_report(siege: Siege, free_port: Callable[[], int]) -> None:
    """A segment without an end is not taken, a line that is no turn is left out; `report` and `gate` say the same."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "s3cret-s3cret-s3cret-s3cret-s3cret"
    load = 'mode = "open"\nrate = 20\narrivals = "constant"\ndrain = "1s"'
    command = [sys.executable, "-P", str(TRAITOR), "--master", address, "--name", "traitor"]
    with EmulatorProcess("--output-tokens", "10") as emulator:
        text = plan_text(emulator.base_url, load=load, run='duration = "3s"')
        running = siege.start(text, "--workers", "1", "--expect-workers", "2", "--bind", address)
        with subprocess.Popen(command, env=siege.environment, stderr=subprocess.PIPE) as traitor:
            try:
                ran = running.wait()
                traitor.communicate(timeout=30)
            finally:
                traitor.kill()
    assert (ran.code, "Traceback" in ran.out) == (3, False), ran.out
    (refused,) = [event for event in ran.events if event.kind == "segment_refused"]
    assert refused.worker == "traitor" and "its last row has no end" in refused.detail
    others = [turn for turn in ran.turns if turn.worker == "worker-1"]
    (honest,) = [worker for worker in ran.summary.workers if worker.worker == "worker-1"]
    assert len(others) == honest.records_promised and {turn.outcome for turn in others} == {Outcome.OK}
    reasons = ran.summary.invalid
    assert any(one.startswith("1 segment of traitor's records was refused") for one in reasons), reasons
    assert any("of turns.jsonl could not be read and " in one and "left out (line " in one for one in reasons), reasons
    assert f"run directory: {ran.path}" in ran.out, "nothing was moved: the disk had no part in it"
    assert (ran.path / "report.html").stat().st_size > 100_000
    for name, code in (("report", 0), ("gate", 3)):
        found, out = siege.command(name, str(ran.path))
        assert (found, "Traceback" in out) == (code, False), out
        assert "of turns.jsonl could not be read" in " ".join(out.split())
        assert ran.directory.read_summary().invalid == reasons, "what was refused stands in plan.json"
