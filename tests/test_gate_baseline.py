"""The gate against a baseline: what may be compared, what is found, and what is not."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from baseline_runs import RELATIVE, side, summary_of, the_file, the_plan
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import ExitCode, UsageError
from infersiege.gate import judge
from infersiege.gate.baseline import LEAST, MOST, MOST_COUNTED, WIDEST, Baseline, damage, with_floors
from infersiege.gate.change import Floor
from infersiege.gate.comparable import FREE, WORDS, allowed_words, differences, facts_of
from infersiege.gate.relative import COMPARABLE, against, with_baseline, without_baseline_rules
from infersiege.plan.quality_schema import Quality
from infersiege.plan.schema import Plan, Slo
from infersiege.records import RuleResult, Verdict
from infersiege.report.schema import schemas
from infersiege.rundir import PlanFile

PASS, FAIL, NO_DATA = Verdict.PASS, Verdict.FAIL, Verdict.NO_DATA


def verdicts(rules: tuple[RuleResult, ...]) -> dict[str, Verdict]:
    return {f"{rule.metric} {rule.stat}".strip(): rule.verdict for rule in rules}


# ------------------------------------------------------------------------------------------------------ comparable


def plan_with(change: Any) -> PlanFile:
    return the_file("other", change(the_plan()))


def channel_with(**changes: Any) -> PlanFile:
    plan = the_plan()
    changed = msgspec.structs.replace(plan.channels["local"], **changes)
    return plan_with(lambda plan: msgspec.structs.replace(plan, channels={"local": changed}))


def facts_with(**changes: Any) -> PlanFile:
    """Of the channel, as the preflight saw it."""
    file = the_file("other")
    return msgspec.structs.replace(file, channels={"local": msgspec.structs.replace(file.channels["local"], **changes)})


def part(table: str, /, **changes: Any) -> PlanFile:
    """Another [run], [load], [sampling] …"""
    return plan_with(
        lambda plan: msgspec.structs.replace(plan, **{table: msgspec.structs.replace(getattr(plan, table), **changes)})
    )


def workload_with(**changes: Any) -> PlanFile:
    return plan_with(
        lambda plan: msgspec.structs.replace(
            plan, workloads=(msgspec.structs.replace(plan.workloads[0], **changes), *plan.workloads[1:])
        )
    )


@dataclass(frozen=True)
class Differs:
    """One run that is not like those of the baseline."""

    file: PlanFile
    fact: str
    says: str
    reason: str
    gpus: tuple[str, ...] = ("H100",)
    metrics: tuple[str, ...] = field(default=("ttft",))


WORKER = the_file("any").workers[0]
DIFFERENT = [
    Differs(the_file("other"), "gpu", "1 x H100 in the baseline, 1 x A100 here", "GT-06: another GPU", gpus=("A100",)),
    Differs(the_file("other"), "gpu", "1 x H100 in the baseline, 2 x H100 here", "one more", gpus=("H100", "H100")),
    Differs(the_file("other"), "gpu", "not known here", "nobody watched it", gpus=()),
    Differs(
        the_file("other", trace_hashes={"agent": "00" * 32, "short-qa": "a1" * 32}),
        "trace.agent",
        "5f5f",
        "GT-06: another trace",
    ),
    Differs(workload_with(trace="builtin:long-document"), "trace.agent.local.builtin", "long-document", "another one"),
    Differs(facts_with(model="qwen3-32b"), "model.local", "qwen3-8b in the baseline, qwen3-32b here", "asked"),
    Differs(facts_with(engine="sglang"), "engine.local", "sglang", "another engine is for `compare`"),
    Differs(the_file("other", host={"cpu": "Slow 1", "cores": "16"}), "host.cpu", "Slow 1", "a laptop's client"),
    Differs(the_file("other", host={"cpu": "Fast 9000", "cores": "4"}), "host.cores", "16 in", "fewer cores"),
    Differs(the_file("other", versions={"infersiege": "0.2.0", "python": "3.12.4"}), "client.infersiege", "0.2", "us"),
    Differs(the_file("other", workers=(WORKER, WORKER)), "workers", "1 in the baseline, 2 here", "more workers"),
    Differs(
        the_file("other", workers=(msgspec.structs.replace(WORKER, host="b"), WORKER)), "workers.hosts", "2", "hosts"
    ),
    Differs(part("sampling", temperature=0.7), "sampling.temperature", "0.0 in the baseline, 0.7 here", "sampling"),
    Differs(part("load", users=48), "load.users", "6 in the baseline, 48 here", "twice the load"),
    Differs(part("load", warmup_ns=0), "load.warmup", "30s in the baseline, 0s here", "durations as people write them"),
    Differs(part("run", duration_ns=10**9), "plan.run.duration", "50s in the baseline, 1s here", "shorter: colder"),
    Differs(part("run", seed=8), "plan.run.seed", "7 in the baseline, 8 here", "other sessions"),
    Differs(workload_with(weight=2.0), "plan.workload.agent.local.weight", "1.0 in the baseline, 2.0", "another mix"),
    Differs(workload_with(history="live"), "plan.workload.agent.local.history", "live", "other prompts"),
    Differs(channel_with(stream=False), "plan.channel.local.stream", "true in the baseline, false here", "no stream"),
    Differs(
        channel_with(base_url=None, base_urls=("http://a", "http://b")), "plan.channel.local.replicas", "2", "replicas"
    ),
    Differs(plan_with(lambda plan: msgspec.structs.replace(plan, labels={"gpu": "L4"})), "label.gpu", "L4", "labels"),
    Differs(
        plan_with(lambda plan: msgspec.structs.replace(plan, slos=(Slo(metric="ttft", stat="p99", at_most=9.0),))),
        "limits",
        "not set in the baseline",
        "goodput by other limits is another figure",
        metrics=("goodput_share",),
    ),
]


@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: f"{row.fact}: {row.reason}")
def test_what_makes_runs_not_comparable(row: Differs) -> None:
    """And `--allow` with the whole name, or with its word, lets it be; another word does not."""
    here = facts_of(row.file, summary_of(1.0), row.gpus)
    before = facts_of(the_file("base"), summary_of(1.0), ("H100",))
    look = partial(differences, [before], [here], metrics=row.metrics)
    found = {one.name: str(one) for one in look() if not one.passes}
    assert row.says in found[row.fact], found
    word = row.fact.partition(".")[0]
    for allowed in ((row.fact,), (word,)):
        assert row.fact not in [one.name for one in look(allowed=allowed) if not one.passes]
    others = [one for one in WORDS if one != word]
    assert row.fact in [one.name for one in look(allowed=others) if not one.passes]


MAY_DIFFER = [
    (the_file("other", name="a run at night"), "a name"),
    (the_file("other", nonce="new"), "GT-06: each run has a salt of its own"),
    (part("run", name="x", nonce="y", repeats=5, workers=7, wait_for_workers_ns=1), "keys of [run] that send nothing"),
    (part("telemetry", influx_url="http://db:8086", gpu=True), "where series go"),
    (part("redis", user="me"), "how to reach it"),
    (channel_with(base_url="http://127.0.0.1:9999/v1", api_key_env="K", ca="x.pem", insecure=True), "where it is"),
    (workload_with(trace="/elsewhere/agent.jsonl", format="mooncake"), "the file is told by its hash"),
    (plan_with(lambda plan: msgspec.structs.replace(plan, slos=())), "rules of the baseline's own plan"),
    (the_file("other", versions={"infersiege": "0.1.0", "python": "3.12.9", "gevent": "1"}), "a patch of Python"),
    (facts_with(details={"model_answered": "m", "usage": "yes"}), "only one side was told who answered"),
]


@pytest.mark.parametrize(("file", "reason"), MAY_DIFFER, ids=[reason for _, reason in MAY_DIFFER])
def test_what_may_differ(file: PlanFile, reason: str) -> None:
    base = the_file("base")
    if "hash" in reason:  # of two local files
        base = workload_with(trace="/here/agent.jsonl")
    sides = [facts_of(one, summary_of(1.0), ("H100",)) for one in (base, file)]
    assert differences(sides[:1], sides[1:], metrics=("ttft",)) == ()


def test_free_keys_are_keys_of_the_plan() -> None:
    """A key that was renamed would stay in the list for ever."""
    known = msgspec.to_builtins(the_plan())
    tables = {"channel": known["channels"]["local"], "workload": known["workloads"][0], "run": known["run"]}
    tables["quality"] = msgspec.to_builtins(Quality())
    for name in FREE:
        table, _, key = name.replace(".*.", ".").partition(".")
        if key:
            assert {key, f"{key}_ns"} & set(tables[table]), name
        else:
            assert {table, f"{table}s"} & set(Plan.__struct_fields__), name


def test_the_document_has_every_word_and_every_key_that_may_differ() -> None:
    text = (Path(__file__).parents[1] / "docs" / "gate.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {word.meaning} |" for name, word in WORDS.items()]
    rows += [f"| `{name}` | {why} |" for name, why in FREE.items()]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"version": "0.12.0"}, "engine_version.local"),
        ({"details": {"launch.max_num_seqs": "64"}}, "engine_arguments.local.max_num_seqs"),
        ({"details": {"context_length": "4096"}}, "engine_arguments.local.context_length"),
    ],
)
def test_what_runs_are_compared_for_passes_and_is_told(changes: dict[str, Any], fact: str) -> None:
    new, base = side("new", file=facts_with(**changes)), side("base")
    compared = against(RELATIVE, new, base)
    assert compared.reasons == () and verdicts(compared.rules) == {
        "comparable": PASS,
        "ttft p50": PASS,
        "e2e p50": PASS,
    }
    assert any(fact in note for note in compared.notes) and fact in compared.rules[0].detail
    strict = against(RELATIVE, new, base, strict=True)
    assert fact in strict.reasons[0] and set(verdicts(strict.rules).values()) == {NO_DATA}


@pytest.mark.parametrize(
    ("texts", "words"),
    [((), ()), (("gpu",), ("gpu",)), (("gpu, label.commit", "gpu"), ("gpu", "label.commit")), (("gpu,",), ("gpu",))],
)
def test_words_of_allow(texts: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert allowed_words(texts) == words


@pytest.mark.parametrize(("word", "hint"), [("gpus", "did you mean gpu?"), ("everything", "no such word")])
def test_unknown_words_of_allow(word: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint.replace("?", r"\?")):
        allowed_words((word,))


NAMES = st.sampled_from(["gpu", "model.local", "label.commit", "plan.run.seed", "engine_version.local", "host.cores"])
FACTS = st.dictionaries(NAMES, st.sampled_from(["1", "2", "3"]), max_size=5)
SIDE = st.lists(FACTS, min_size=1, max_size=3)


@given(SIDE, SIDE, st.sets(st.sampled_from(list(WORDS)), max_size=4))
def test_differences_hold_for_both_sides_alike(one: Any, other: Any, allowed: set[str]) -> None:
    there = differences(one, other, allowed=allowed)
    back = differences(other, one, allowed=allowed)
    assert [(d.name, d.baseline, d.candidate, d.passes) for d in there] == [
        (d.name, d.candidate, d.baseline, d.passes) for d in back
    ]
    same = {
        name for name in {n for run in (*one, *other) for n in run} if len({r.get(name) for r in (*one, *other)}) == 1
    }
    assert {d.name for d in there} == {n for run in (*one, *other) for n in run} - same
    assert all(d.passes for d in differences(one, other, allowed=WORDS))


def test_gt_06_baseline_of_another_gpu_is_not_comparable_and_not_a_pass() -> None:
    compared = against(RELATIVE, side("new", 0.97), side("base", gpus=("RTX 4090",)))
    assert compared.reasons == ("gpu: 1 x RTX 4090 in the baseline, 1 x H100 here",)
    assert set(verdicts(compared.rules).values()) == {NO_DATA}
    gated = with_baseline(summary_of(1.0), compared)
    assert (gated.verdict, gated.exit_code) == (NO_DATA, ExitCode.NO_DATA)
    allowed = against(RELATIVE, side("new", 0.97), side("base", gpus=("RTX 4090",)), allowed=("gpu",))
    assert verdicts(allowed.rules) == {"comparable": PASS, "ttft p50": PASS, "e2e p50": PASS}


@pytest.mark.parametrize("which", ["new", "base"])
def test_an_invalid_run_on_either_side_is_not_comparable(which: str) -> None:
    sides = {name: side(name) for name in ("new", "base")}
    spoilt = msgspec.structs.replace(sides[which].runs[2], unusable=("client-bound: hub lag p99 40 ms",))
    runs = (*sides[which].runs[:2], spoilt, *sides[which].runs[3:])
    sides[which] = msgspec.structs.replace(sides[which], runs=runs)
    compared = against(RELATIVE, sides["new"], sides["base"])
    assert "client-bound" in compared.reasons[0] and ("of the baseline" in compared.reasons[0]) == (which == "base")
    assert set(verdicts(compared.rules).values()) == {NO_DATA}


def test_a_run_counts_once() -> None:
    base = side("base")
    assert "each counts once" in against(RELATIVE, base, base).reasons[0]


def test_salts_that_are_the_same_are_told() -> None:
    new, base = side("new"), side("base")
    assert not any("salt" in note for note in against(RELATIVE, new, base).notes)
    repeated = tuple(msgspec.structs.replace(run, nonce="fixed") for run in new.runs)
    compared = against(RELATIVE, msgspec.structs.replace(new, runs=repeated), base)
    assert any("salt" in note for note in compared.notes) and compared.reasons == ()


# ----------------------------------------------------------------------------------------------------------- verdicts


def test_gt_06_runs_of_the_same_thing_pass_and_a_tenth_slower_fails() -> None:
    same = against(RELATIVE, side("new", 1.004), side("base"))
    assert verdicts(same.rules) == {"comparable": PASS, "ttft p50": PASS, "e2e p50": PASS}
    slower = against(RELATIVE, side("new", 1.1), side("base"))
    assert verdicts(slower.rules) == {"comparable": PASS, "ttft p50": FAIL, "e2e p50": FAIL}
    ttft = slower.rules[1]
    assert ttft.value and ttft.baseline and ttft.change and ttft.change_low and ttft.change_high and ttft.p is not None
    assert ttft.value / ttft.baseline == pytest.approx(1 + ttft.change, rel=1e-6)
    assert ttft.change_low < ttft.change < ttft.change_high and ttft.change == pytest.approx(0.1, abs=0.01)
    assert ttft.p < 0.05 and "worse by" in ttft.detail and "5 against 5 runs" in ttft.detail
    assert (ttft.name, ttft.unit) == ("ttft p50 at most 5 % worse than the baseline", "ms")


def test_without_a_relative_rule_the_usual_figures_are_compared() -> None:
    compared = against((Slo(metric="ttft", stat="p99", at_most=1e6),), side("new", 1.1), side("base"))
    found = verdicts(compared.rules)
    latencies = ["ttft p50", "ttft p95", "tpot p50", "tpot p95", "e2e p50"]
    assert list(found) == ["comparable", *latencies, "throughput", "error_share", "cache_share", "collapsed_share"]
    assert [name for name, verdict in found.items() if verdict is FAIL] == latencies
    share = next(rule for rule in compared.rules if rule.metric == "error_share")
    assert share.name == "error_share at most 2 points worse than the baseline" and share.change == 0.0


@pytest.mark.parametrize(
    ("metric", "of_baseline", "verdict", "reason"),
    [
        ("collapsed_share", True, None, "saved before it was measured: what passed yesterday has to pass today"),
        ("cache_share", True, None, "saved before the server told"),
        ("collapsed_share", False, NO_DATA, "the baseline has it, and these runs do not: something went missing"),
        ("cache_share", False, NO_DATA, "the server stopped to tell"),
        ("ttft", True, NO_DATA, "a latency that only one side has is never passed over"),
        ("throughput", False, NO_DATA, "nor is a rate"),
    ],
)
def test_usual_figures_that_one_side_lacks(
    metric: str, of_baseline: bool, verdict: Verdict | None, reason: str
) -> None:
    whole = side("base" if of_baseline else "new")
    lacking = msgspec.structs.replace(whole, figures=tuple(one for one in whole.figures if one.metric != metric))
    new, base = (side("new"), lacking) if of_baseline else (lacking, side("base"))
    found = {rule.metric: rule.verdict for rule in against((), new, base).rules}
    assert found.pop(metric, None) is verdict, reason
    assert set(found.values()) == {PASS} and len(found) >= 5


def test_a_metric_that_some_runs_lack_is_no_data_of_that_rule_alone() -> None:
    base = side("base")
    figures = tuple(
        msgspec.structs.replace(one, values=(None, *one.values[1:])) if one.metric == "ttft" else one
        for one in base.figures
    )
    compared = against(RELATIVE, side("new", 1.1), msgspec.structs.replace(base, figures=figures))
    assert verdicts(compared.rules) == {"comparable": PASS, "ttft p50": NO_DATA, "e2e p50": FAIL}
    assert "not measured in 1 of 5 runs of the baseline" in compared.rules[1].detail
    assert compared.rules[1].baseline is None and compared.rules[1].change is None


@pytest.mark.parametrize(
    ("slo", "verdict", "reason"),
    [
        (Slo(metric="ttft", stat="p50", scenario="short-qa", relative_max=0.05), FAIL, "a cut of its own"),
        (Slo(metric="ttft", stat="p50", scenario="absent", relative_max=0.05), NO_DATA, "no such cut in any run"),
        (Slo(metric="ttft", stat="p99_9", relative_max=0.05), NO_DATA, "too few turns for it"),
        (Slo(metric="ttft", stat="p50", min_samples=10**6, relative_max=0.05), NO_DATA, "fewer than the rule wants"),
        (Slo(metric="ttft", stat="p50", relative_max=0.3), PASS, "the rule allows more"),
        (Slo(metric="cache_share", relative_max=0.01), PASS, "a share, in points"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cuts_and_samples_are_those_of_the_rule(slo: Slo, verdict: Verdict, reason: str) -> None:
    compared = against((slo,), side("new", 1.1), side("base"))
    assert compared.rules[-1].verdict is verdict, compared.rules[-1].detail


@pytest.mark.parametrize(
    ("new", "base", "floor", "verdict", "reason"),
    [
        (1, 1, False, NO_DATA, "one run a side tells nothing"),
        (1, 5, False, FAIL, "five runs of the baseline tell how much runs differ"),
        (4, 4, False, NO_DATA, "four are not five"),
        (1, 1, True, FAIL, "an A/A floor of other runs tells it"),
        (5, 5, False, FAIL, "the usual"),
    ],
)
def test_how_many_runs_are_needed(new: int, base: int, floor: bool, verdict: Verdict, reason: str) -> None:
    baseline = side("base", runs=base)
    if floor:
        baseline = with_floors(baseline, side("earlier"))
    compared = against(RELATIVE[:1], side("new", 1.1, runs=new), baseline)
    assert compared.rules[1].verdict is verdict, compared.rules[1].detail


def test_rules_that_only_hold_against_a_baseline_are_no_data_without_one() -> None:
    slos = (*RELATIVE, Slo(metric="ttft", stat="p50", at_most=1e6, relative_max=0.05))
    alone = judge(slos, summary_of(1.0))
    relative = [rule for rule in alone if rule.relative_max is not None]
    assert [rule.verdict for rule in relative] == [NO_DATA] * 2 and all("--baseline" in one.detail for one in relative)
    assert sum(rule.name == "ttft p50 <= 1000000 ms" for rule in alone) == 1
    gated = with_baseline(
        msgspec.structs.replace(summary_of(1.0), rules=alone), against(slos, side("new", 1.1), side("base"))
    )
    names = [rule.name for rule in gated.rules]
    assert names.count("ttft p50 at most 5 % worse than the baseline") == 2, "both rules, and no placeholder"
    assert "ttft p50 <= 1000000 ms" in names and COMPARABLE in names and gated.exit_code == ExitCode.RULE_FAILED
    own = without_baseline_rules(gated)
    assert not any(rule.relative_max for rule in own.rules) and COMPARABLE not in [rule.name for rule in own.rules]


def test_a_warning_fails_nothing() -> None:
    slo = Slo(metric="ttft", stat="p50", relative_max=0.05, severity="warn")
    compared = against((slo,), side("new", 1.1), side("base"))
    assert compared.rules[1].verdict is FAIL
    assert with_baseline(summary_of(1.0), compared).exit_code == ExitCode.PASS


# --------------------------------------------------------------------------------------------------------------- file


def test_a_baseline_is_small_fits_its_schema_and_comes_back_the_same() -> None:
    base = with_floors(side("base"), side("earlier"))
    data = msgspec.json.encode(base)
    assert len(data) < 100_000
    assert msgspec.json.decode(data, type=Baseline) == base
    jsonschema.validate(msgspec.json.decode(data), schemas()["baseline.schema.json"])


BASE = side("base")
FIGURES = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from((0.0, LEAST, MOST, -MOST, 1.0)))


@given(
    st.lists(FIGURES, min_size=5, max_size=5),
    st.lists(st.integers(0, MOST_COUNTED), min_size=5, max_size=5),
    st.none() | st.builds(Floor, deviation=st.floats(0, WIDEST), runs=st.integers(1, 40)),
    st.sampled_from((1, 5)),
)
def test_figures_that_are_no_damage_can_be_judged_whatever_they_are(
    values: list[float], n: list[int], floor: Floor | None, runs: int
) -> None:
    """Of one run and of five: no overflow, no figure that is none."""
    changes = {"values": tuple(values), "n": tuple(n), "floor": floor}
    figures = tuple(
        msgspec.structs.replace(one, **changes) if one.metric in ("ttft", "error_share") else one
        for one in BASE.figures
    )
    odd = msgspec.structs.replace(BASE, figures=figures)
    if any(value and not LEAST <= abs(value) <= MOST for value in values):
        assert re.search("is no (ttft|error_share)", damage(odd) or "")
        return
    assert damage(odd) is None
    shares = Slo(metric="error_share", relative_max=0.01)
    for rule in against((*RELATIVE, shares), side("new", runs=runs), odd).rules:
        for value in (rule.baseline, rule.value, rule.change, rule.change_low, rule.change_high):
            assert value is None or math.isfinite(value), rule


def test_a_baseline_holds_no_address_no_place_and_no_long_text() -> None:
    plan = the_plan()
    channel = msgspec.structs.replace(
        plan.channels["local"],
        base_url="http://inner.example:8000/v1",
        api_key_env="SECRET_NAME",
        extra_body={"system": "you are a bank's assistant " * 20},
        ca="/etc/private/ca.pem",
        tokenizer="/etc/private/tokenizer.json",
        proxy="http://inner.example:3128",
    )
    workload = msgspec.structs.replace(plan.workloads[0], trace="/data/private/agent.jsonl")
    changed = msgspec.structs.replace(
        plan,
        channels={"local": channel},
        workloads=(workload, *plan.workloads[1:]),
        quality=Quality(file="/etc/private/checks.jsonl"),
    )
    text = msgspec.json.encode(side("base", file=the_file("x", changed))).decode()
    for private in ("inner.example", "SECRET_NAME", "/etc/private", "/data/private", "bench-1"):
        assert private not in text
    assert "SHA-256" in text and text.count("bank's assistant") <= 2 * 5
