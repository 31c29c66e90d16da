"""Fields that a server refuses (CL-04): found before the load, not sent in it, told. And a run that asks nothing."""

from __future__ import annotations

import re

import pytest
from siege import Siege, check_conserved, plan_text

from infersiege.doctor import SKIPPED
from infersiege.emulator.process import EmulatorProcess

pytestmark = pytest.mark.alone
SHORT = "stop = {sessions = 4}"


def test_cl_04_a_field_that_the_preflight_found_refused_is_not_sent_in_the_run(siege: Siege) -> None:
    with EmulatorProcess("--fault", "refuse_field=stream_options") as emulator:
        ran = siege.run(plan_text(emulator.base_url, run=SHORT))
    check_conserved(ran)
    assert {turn.outcome.value for turn in ran.turns} == {"ok"}
    assert {turn.tokens_from for turn in ran.turns} == {"estimate"}, "the effect that the doctor states"
    assert ran.plan.channels["target"].dropped_fields == ("stream_options",)
    assert ran.plan.typed_plan().channels["target"].drop_fields == ("stream_options",)
    said = re.sub(r"\s+", " ", ran.out)
    assert "target: the server refuses stream_options: not sent" in said


def test_skip_doctor_asks_nothing_and_says_so(siege: Siege) -> None:
    log = siege.folder / "truth.jsonl"
    with EmulatorProcess(log=log) as emulator:
        ran = siege.run(plan_text(emulator.base_url, run=SHORT), "--skip-doctor")
        rows = emulator.truth()
    assert ran.plan.channels["target"].details == {"doctor": SKIPPED}
    assert len(rows) == len(ran.turns) == 4, "no request but the turns"
