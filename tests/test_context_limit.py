"""Which context limit a workload has: the plan's, else what its servers tell of themselves (TR-11)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from infersiege.doctor import adapted, told_limits, unexamined
from infersiege.doctor.lengths import longest_rows
from infersiege.plan.load import load_plan
from infersiege.plan.schema import Plan
from infersiege.records import Branch, Session, Turn
from infersiege.rundir import ChannelFacts
from infersiege.traces.formats.normal import write

TEXT = """
[run]
duration = "5s"
[channel.small]
engine = "vllm"
base_url = "http://127.0.0.1:1/v1"
model = "m"
[channel.large]
engine = "vllm"
base_url = "http://127.0.0.1:2/v1"
model = "m"
[channel.both]
engine = "hybrid"
policy = "overflow"
part = [{channel = "large", max_in_flight = 1}, {channel = "small"}]
[[workload]]
scenario = "talk"
trace = "TRACE"
WORKLOAD
[load]
users = 1
"""


def asked(length: int) -> Turn:
    return Turn(messages=({"role": "user", "content": "a"},), asked_prompt_tokens=length, asked_output_tokens=10)


def plan_of(folder: Path, workload: str) -> Plan:
    session = Session(
        session_id="s", turns=(asked(100), asked(900)), branches=(Branch(turns=(asked(300), asked(700)), after=0),)
    )
    with (folder / "t.jsonl").open("wb") as file:
        write(file, [session])
    path = folder / "plan.toml"
    path.write_text(TEXT.replace("TRACE", "t.jsonl").replace("WORKLOAD", workload), encoding="utf-8")
    return load_plan(path)


def facts(plan: Plan, **lengths: str) -> dict[str, ChannelFacts]:
    return {
        name: msgspec.structs.replace(one, details={"context_length": lengths[name]} if name in lengths else {})
        for name, one in unexamined(plan).items()
    }


@pytest.mark.parametrize(
    ("workload", "lengths", "limit", "why"),
    [
        ('channel = "small"', {"small": "4096", "large": "8192"}, 4096, "its own server's"),
        ('channel = "small"\ncontext_limit = 5000', {"small": "4096"}, 5000, "the plan's goes first"),
        ('channel = "both"', {"small": "4096", "large": "8192"}, 4096, "requests are the same on all parts"),
        ('channel = "both"', {"large": "8192"}, 8192, "what is known of one part"),
        ('channel = "small"', {"large": "8192"}, None, "it does not tell"),
        ('channel = "small"', {"small": "many"}, None, "that is no number"),
    ],
)
def test_tr_11_the_limit_of_a_workload(
    tmp_path: Path, workload: str, lengths: dict[str, str], limit: int | None, why: str
) -> None:
    plan = plan_of(tmp_path, workload)
    played = adapted(plan, facts(plan, **lengths))
    assert played.workloads[0].context_limit == limit, why
    said = told_limits(plan, played)
    if "context_limit" in workload or limit is None:
        assert said == [], "nothing was filled in"
    else:
        assert said == [f"talk: the server takes {limit:,} tokens; turns over it are skipped"]


def test_the_longest_row_may_be_a_branchs(tmp_path: Path) -> None:
    for workload, tokens, turn in (("", 900, 1), ("max_turns = 1", 700, 2), ("context_limit = 500", 300, 2)):
        (longest,) = longest_rows(plan_of(tmp_path, f'channel = "small"\n{workload}'), "small")
        assert (longest.prompt_tokens, longest.turn) == (tokens, f"session s, turn {turn}"), workload
