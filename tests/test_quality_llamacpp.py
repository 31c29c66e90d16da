"""The set that ships, asked of a real engine: the same answers pass each time, alone and beside other load."""

from __future__ import annotations

import engines
import pytest
from siege import Ran, Siege, check_conserved

from infersiege.quality import read_score
from infersiege.records import Outcome

pytestmark = [pytest.mark.llamacpp, pytest.mark.slow]

ALONE = 'mode = "closed"\nusers = 1\nramp = "0s"'
LOADED = 'mode = "closed"\nusers = 8\nramp = "0s"'


def passing(ran: Ran) -> set[str]:
    scores = [read_score(turn.quality) for turn in ran.turns]
    return {f"{score.set}/{score.item}" for score in scores if score is not None and score.passed}


def test_the_set_gives_the_same_twice_and_under_load(siege: Siege, llamacpp: engines.Engine) -> None:
    """A model of 135M parameters gets a fourth of it right, and that fourth again and again."""
    found = []
    for load in (ALONE, LOADED):
        plan = (
            f'[run]\nstop = {{sessions = 42}}\n[channel.t]\nengine = "llama.cpp"\nmodel = "smollm2-135m"\n'
            f'base_url = "http://{llamacpp.host}:{llamacpp.port}/v1"\n[load]\n{load}\n[quality]\nshare = 1\n'
        )
        ran = siege.run(plan)
        check_conserved(ran)
        assert {turn.outcome for turn in ran.turns} == {Outcome.OK}, ran.out
        assert ran.summary.quality[0].n == 42, ran.out
        found.append(passing(ran))
    alone, loaded = found
    assert 5 <= len(alone) <= 25, sorted(alone)
    assert len(alone ^ loaded) <= 3, "batches may round otherwise, but not for many prompts"
