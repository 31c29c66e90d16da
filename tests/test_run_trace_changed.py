"""A trace file that is edited while a run plays it: the run says so, in its reasons and in its log of events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Reply, chat_server
from siege import Siege, check_conserved, plan_text

from infersiege.records import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def trace(path: Path, sessions: int = 20_000) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number in range(sessions):
            talk = {"session_id": f"s{number}", "messages": [{"role": "user", "content": f"{number}: what was sold?"}]}
            file.write(json.dumps(talk) + "\n")
    return path


def other_words(path: Path) -> None:
    """Text of the same length: each row can still be sent."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b"what was sold?", b"WHAT WAS SOLD?"))


def garbage(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xfe" * size)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("edit", [other_words, garbage, empty])
def test_a_trace_that_is_edited_while_it_plays(edit: Callable[[Path], None], siege: Siege, tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl")
    with chat_server(lambda _: Reply(after_s=0.02)) as server:
        text = plan_text(
            server.base_url,
            engine="generic",
            run='duration = "60s"\nseed = 1',
            workload=f'scenario = "talk"\ntrace = "{path}"',
            load='mode = "closed"\nusers = 4\nramp = "0s"\ndrain = "2s"',
        )
        running = siege.start(text, "--skip-doctor", "--workers", "2")
        running.until('"outcome":"ok"')
        edit(path)
        ran = running.wait()
    assert ran.code == 3, ran.out
    said = f"the trace can't be played on: {path}: was changed while it was read"
    assert ran.summary.invalid[0].startswith(said)
    assert not any("fault of infersiege" in reason or "report it" in reason for reason in ran.summary.invalid), ran.out
    (ended,) = (event for event in ran.events if event.kind == "load_ended")
    assert ended.detail.startswith(said)
    check_conserved(ran)
    assert {turn.outcome for turn in ran.turns} <= {Outcome.OK, Outcome.SKIPPED, Outcome.CANCELLED}
    assert (ran.summary.ended_ns or 0) - ran.summary.started_ns < 30_000_000_000, "the load ends with it"
    assert "Traceback" not in ran.out
    account = ran.summary.traces[0]
    assert account.rows == account.rows_in_sessions == account.sessions == 20_000
    assert account.sessions_started + (account.not_started or 0) == 20_000
    assert f"20,000 sessions = {account.sessions_started:,} sent + {account.not_started:,} not sent" in ran.out
