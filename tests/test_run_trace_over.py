"""Runs whose traces are over before their time: what was asked for decides whether that is a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import Reply, chat_server
from siege import Siege, check_conserved, check_passed, plan_text

from infersiege.records import Session, Turn
from infersiege.traces.formats.normal import write

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECOND = 1_000_000_000
OVER = "of the trace were played after"


def trace(path: Path, sessions: int) -> str:
    """Questions, ten of them a second."""
    with path.open("wb") as file:
        write(
            file,
            (
                Session(
                    session_id=f"s{n}",
                    turns=(Turn(messages=({"role": "user", "content": f"q{n}"},), asked_output_tokens=4),),
                    arrival_ns=n * SECOND // 10,
                )
                for n in range(sessions)
            ),
        )
    return str(path)


def test_gt_09_a_trace_that_is_over_before_its_time(siege: Siege, tmp_path: Path) -> None:
    """An open load of 10/s for 6 s with 20 sessions is not what was asked for, alone or beside another workload; users,
    a replay, and a number of sessions have had what there was."""
    short, long = trace(tmp_path / "short.jsonl", 20), trace(tmp_path / "long.jsonl", 200)
    rate = 'mode = "open"\nrate = 10.0\narrivals = "constant"'
    beside = f'[[workload]]\nscenario = "long"\ntrace = "{long}"\n'
    plans = {
        "alone": (rate, 'duration = "6s"', ""),
        "beside": (rate, 'duration = "6s"', beside),
        "users": ('mode = "closed"\nusers = 1\nramp = "0s"', 'duration = "6s"', ""),
        "replay": ('mode = "replay"', 'duration = "6s"', ""),
        "sessions": (rate, "stop = {sessions = 20}", ""),
    }
    with chat_server(lambda _: Reply(after_s=0.1)) as server:
        started = {
            name: siege.start(
                plan_text(
                    server.base_url,
                    load=f'{load}\nwarmup = "0s"',
                    run=f"{run}\nseed = 3",
                    workload=f'scenario = "short"\ntrace = "{short}"\nweight = {1.2 if more else 1.0}',
                    more=more,
                ),
                "--skip-doctor",
            )
            for name, (load, run, more) in plans.items()
        }
        ran = {name: running.wait() for name, running in started.items()}
    for one in ran.values():
        check_conserved(one)
    assert ran["alone"].code == 3
    assert any(OVER in reason and "s instead of 6s" in reason for reason in ran["alone"].summary.invalid)
    assert ran["beside"].code == 3
    (reason,) = [line for line in ran["beside"].summary.invalid if "the trace was over" in line]
    assert "arrivals were due where the rate makes 60" in reason, reason
    assert (ran["beside"].summary.loads[0].share or 1) < 0.95
    for name in ("users", "replay"):
        check_passed(ran[name])
        assert any(OVER in warning for warning in ran[name].summary.warnings), ran[name].out
    check_passed(ran["sessions"])
    assert not any(OVER in line for line in (*ran["sessions"].summary.warnings, *ran["sessions"].summary.invalid))
