"""Every figure of summary.json and windows.jsonl against a slow calculation from single records, turn by turn.

The runs are small, made from a seed and spoiled at random: whatever a record may leave out is left out somewhere. They
are read in blocks of a few turns, so that sessions, seconds and groups go across blocks.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_turns import facts, streamed
from metrics_turns import turn as turn_of
from metrics_turns import turns as any_turn
from records_sample import SECOND, START_NS, plan, records, write_run

from infersiege import gate
from infersiege.metrics import turn as of
from infersiege.metrics.batch import BATCH, batches, known
from infersiege.metrics.client import ClientWatch
from infersiege.metrics.columns import applying, asked, contradicting, values_of
from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.goodput import JUDGEMENTS, TurnLimits
from infersiege.metrics.histogram import Histogram, bucket_of
from infersiege.metrics.summary import summarise
from infersiege.metrics.windows import windows
from infersiege.records import (
    EarlierAttempt,
    ErrorClass,
    GroupSummary,
    Outcome,
    Phase,
    Reason,
    Summary,
    TokensFrom,
    TurnRecord,
    WindowRow,
)
from infersiege.report import finish
from infersiege.report.collect import Collected, collect
from infersiege.rundir import rows as reading

STEADY_S = 40
STEADY = (START_NS + 30 * SECOND, START_NS + (30 + STEADY_S) * SECOND)
CUT_SHORT = (Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET)
SPOILED: Sequence[dict[str, Any]] = (
    {"first_token_ns": None},
    {"last_token_ns": None},
    {"closed_ns": None},
    {"attempt_ns": None},
    {"output_tokens": None},
    {"output_tokens": 1},
    {"prompt_tokens": None},
    {"cached_tokens": None},
    {"first_chunk_tokens": 3},
    {"chunks_by_second": {}},
    {"chunks_by_second": {}, "chunks": 0},
    {"gaps": {}},
    {"gaps": {3: 90}},
    {"outcome": Outcome.CANCELLED, "reason": Reason.RUN_END},
    {"outcome": Outcome.CANCELLED, "reason": Reason.RUN_END, "closed_ns": None},
    {"outcome": Outcome.LOST, "reason": Reason.WORKER_LOST, "closed_ns": None},
    {"outcome": Outcome.SKIPPED, "reason": Reason.STAGE_END, "attempt_ns": None, "sent_ns": None, "closed_ns": None},
    {"outcome": Outcome.SKIPPED, "reason": Reason.TOO_LONG, "attempt_ns": None, "sent_ns": None, "closed_ns": None},
    {"outcome": Outcome.FAILED, "error_class": ErrorClass.TIMEOUT_IDLE, "retry_after_ns": SECOND},
    {"outcome": Outcome.FAILED, "error_class": None},
    {"first_token_ns": START_NS},
    {"replica": "127.0.0.1:8001"},
    {"replica": None},
    {"worker": "w2", "coalesced": 4, "first_token_slack_ns": 3_000_000},
    {"tokens_from": TokensFrom.ESTIMATE, "flags": ("odd_usage", "burst")},
    {"routed_by": "both", "earlier": (EarlierAttempt(channel="cloud", error_class=ErrorClass.CONNECT, cost=0.5),)},
    {"cost": 0.125, "cost_from": TokensFrom.USAGE},
    {"finish_reason": None, "clock_step": True, "reused_connection": False, "connect_duration_ns": None},
    {"server_ttft_ns": 90_000_000, "tls_duration_ns": 5_000_000, "quota_left": {"requests": 0}},
)


def spoiled(seed: int) -> list[TurnRecord]:
    """Some 250 turns; one in three has something odd."""
    random_ = random.Random(seed)
    made = records(5, seed=seed, steady_s=STEADY_S)
    for place, turn in enumerate(made):
        changes: dict[str, Any] = {"channel": random_.choice(["local", "local", "cloud"])}
        if random_.random() < 0.35:
            changes |= random_.choice(SPOILED)
        made[place] = msgspec.structs.replace(turn, **changes)
    random_.shuffle(made)
    return made


@pytest.fixture(scope="module", params=[3, 17, 92])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TurnRecord], Path]:
    """(turns, run directory with everything that `finish` made of them, read 20 kB at a time)."""
    turns = spoiled(request.param)
    made = write_run(tmp_path_factory.mktemp("brute") / "run", turns, plan(steady_s=STEADY_S), steady_s=STEADY_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infersiege.rundir.directory.decoded", partial(reading.decoded, size=20_000))
        finish(made)
    return turns, made.path


def summary_of(path: Path) -> Summary:
    return msgspec.json.decode((path / "summary.json").read_bytes(), type=Summary)


def members(turns: Iterable[TurnRecord], group: GroupSummary) -> list[TurnRecord]:
    return [
        turn
        for turn in turns
        if group.scenario in (None, turn.scenario)
        and group.channel in (None, turn.channel)
        and group.replica in (None, turn.replica)
    ]


def groups_of(path: Path) -> list[GroupSummary]:
    summary = summary_of(path)
    return [*summary.groups, *summary.replicas]


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-12)


# ------------------------------------------------------------------------------------------------------ summary.json


def test_distributions(run: tuple[list[TurnRecord], Path]) -> None:
    turns, path = run
    assert len(groups_of(path)) > 4
    for group in groups_of(path):
        own = [turn for turn in members(turns, group) if turn.phase is Phase.STEADY]
        ok, cut = (sum(turn.outcome is one for turn in own) for one in (Outcome.OK, Outcome.CANCELLED))
        for name, metric in METRICS.items():
            if metric.kind != "distribution":
                continue
            found = group.distributions[name]
            values, missing = gaps_of(own) if metric.per_turn is None else values_by_turn(own, name)
            expected = statistics(values, name, exact=metric.per_turn is not None)
            for stat in STATS.values():
                hidden = stat.q is not None and metric.censored and cut / max(ok + cut, 1) > 1 - stat.q + 1e-12
                if len(values) < stat.floor or hidden:
                    expected[stat.name] = None
            assert (found.n, found.missing) == (len(values), missing), (group.scenario, name)
            assert {one: getattr(found, one) for one in STATS} == {one: near(expected[one]) for one in STATS}, name


def values_by_turn(own: Sequence[TurnRecord], name: str) -> tuple[list[float], int]:
    metric = METRICS[name]
    assert metric.per_turn is not None
    found = [
        metric.per_turn(turn)
        for turn in own
        if turn.outcome is metric.outcome and (metric.applies is None or metric.applies(turn))
    ]
    return sorted(value for value in found if value is not None), sum(value is None for value in found)


def gaps_of(own: Sequence[TurnRecord]) -> tuple[list[float], int]:
    ok = [turn for turn in own if turn.outcome is Outcome.OK]
    counts: Counter[int] = Counter()
    for turn in ok:
        counts.update(turn.gaps)
    middles = {bucket: Histogram.from_sparse({bucket: 1}).min for bucket in counts}
    return sorted(middles[bucket] or 0 for bucket in counts.elements()), sum(not turn.gaps for turn in ok)


def statistics(values: Sequence[float], name: str, *, exact: bool) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(STATS)
    unit = METRICS[name].per_unit
    made: dict[str, float | None] = {
        "mean": math.fsum(values) / len(values) / unit,
        "min": values[0] / unit,
        "max": values[-1] / unit,
    }
    for stat in STATS.values():
        if stat.q is not None:
            made[stat.name] = values[max(math.ceil(round(stat.q * len(values), 6)), 1) - 1] / unit
    return made


def test_counts_rates_and_tokens(run: tuple[list[TurnRecord], Path]) -> None:
    turns, path = run
    for group in groups_of(path):
        everything = members(turns, group)
        own = [turn for turn in everything if turn.phase is Phase.STEADY]
        outcomes = Counter(turn.outcome.value for turn in own)
        assert outcomes == {name: n for name in Outcome if (n := getattr(group.counts, name.value))}
        ok = [turn for turn in own if turn.outcome is Outcome.OK]
        failed = outcomes["failed"]
        seconds = (STEADY[1] - STEADY[0]) / SECOND
        cached = [t for t in ok if t.prompt_tokens is not None and t.cached_tokens is not None]
        whole = sum(turn.prompt_tokens or 0 for turn in cached)
        good = Counter(judged(turn) for turn in own)
        expected = {
            "asked_rate": sum(map(of.was_asked, own)) / seconds,
            "sent_rate": sum(inside(turn.sent_ns) for turn in everything) / seconds,
            "finished_rate": sum(inside(t.closed_ns) for t in everything if t.outcome is Outcome.OK) / seconds,
            "throughput": math.fsum(map(tokens_inside, everything)) / seconds,
            "error_share": ratio(failed, len(ok) + failed),
            "cancelled_share": ratio(outcomes["cancelled"], len(ok) + outcomes["cancelled"]),
            "cache_share": ratio(sum(turn.cached_tokens or 0 for turn in cached), whole),
            "goodput": good["good"] / seconds if own else None,
            "goodput_share": ratio(good["good"], good["good"] + good["violating"]),
        }
        assert {name: group.rates[name] for name in expected} == {name: near(one) for name, one in expected.items()}
        assert group.output_tokens == total(turn.output_tokens for turn in ok)
        assert group.prompt_tokens == total(turn.prompt_tokens for turn in ok)
        assert group.errors == Counter(turn.error_class or "unknown" for turn in own if turn.outcome is Outcome.FAILED)
        assert group.finish_reasons == Counter(turn.finish_reason or "unknown" for turn in ok)
        mean, most = concurrency(everything)
        assert (group.in_flight_mean, group.in_flight_max) == (near(mean), most)
        if group.channel is None and group.replica is None:
            assert group.rates["users"] == near(users_of(everything))


def ratio(part: float, of_: float) -> float | None:
    return part / of_ if of_ else None


def total(counts: Iterable[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def inside(at_ns: int | None) -> bool:
    return at_ns is not None and STEADY[0] <= at_ns < STEADY[1]


LIMITS = gate.request_limits(plan(steady_s=STEADY_S).slos)


def judged(turn: TurnRecord) -> str:
    return TurnLimits(LIMITS, (turn.scenario, turn.channel, turn.stage), streamed=True).judged(turn)


def tokens_inside(turn: TurnRecord) -> float:
    """Spread evenly over the chunks, and those of a second over the part of it between first and last token."""
    tokens = turn.chunks if turn.output_tokens is None else turn.output_tokens
    if not turn.chunks_by_second:
        return tokens * inside(turn.closed_ns if turn.last_token_ns is None else turn.last_token_ns)
    got, each = 0.0, tokens / sum(turn.chunks_by_second.values())
    for second, chunks in turn.chunks_by_second.items():
        start, end = second * SECOND, (second + 1) * SECOND
        start = start if turn.first_token_ns is None else max(start, turn.first_token_ns)
        end = end if turn.last_token_ns is None else min(end, turn.last_token_ns)
        if end <= start:
            got += each * chunks * inside(start)
        else:
            got += each * chunks * max(0, min(end, STEADY[1]) - max(start, STEADY[0])) / (end - start)
    return got


def overlap(start: int, end: int) -> int:
    return max(0, min(end, STEADY[1]) - max(start, STEADY[0]))


def concurrency(turns: Iterable[TurnRecord]) -> tuple[float, int]:
    """(mean, most) turns in flight in steady."""
    spans = [(t.sent_ns, t.closed_ns) for t in turns if t.sent_ns is not None and t.closed_ns is not None]
    mean = sum(overlap(start, end) for start, end in spans) / (STEADY[1] - STEADY[0])
    looks = [STEADY[0], *(start for start, end in spans if inside(start) and end > start)]
    return mean, max(sum(start <= at < end for start, end in spans) for at in looks)


def users_of(turns: Iterable[TurnRecord]) -> float:
    """Sessions alive, mean: from the first due time to the last end; whom the end met while thinking, until then."""
    starts: dict[tuple[str, ...], int] = {}
    ends: dict[tuple[str, ...], int] = {}
    for turn in turns:
        if turn.attempt_ns is not None:
            key = (turn.scenario, turn.channel if turn.routed_by is None else "", turn.session_id)
            starts[key] = min(starts.get(key, turn.due_ns), turn.due_ns)
            end = turn.due_ns if turn.closed_ns is None else turn.closed_ns
            ends[key] = max(ends.get(key, end), end)
    for turn in turns:
        key = (turn.scenario, turn.channel if turn.routed_by is None else "", turn.session_id)
        if turn.attempt_ns is None and turn.reason in CUT_SHORT and key in ends:
            ends[key] = max(ends[key], turn.due_ns)
    return sum(overlap(starts[key], ends[key]) for key in starts) / (STEADY[1] - STEADY[0])


def test_counts_of_the_whole_run(run: tuple[list[TurnRecord], Path]) -> None:
    turns, path = run
    found = summary_of(path)
    assert found.counts.ok == sum(turn.outcome is Outcome.OK for turn in turns)
    assert found.counts.planned == len(turns)
    assert found.tokens_from == Counter(turn.tokens_from.value for turn in turns if turn.tokens_from is not None)
    assert found.stamp_source == Counter(turn.stamp_source.value for turn in turns if turn.stamp_source is not None)
    paid = [turn.cost for turn in turns] + [one.cost for turn in turns for one in turn.earlier]
    assert found.cost == near(math.fsum(cost for cost in paid if cost is not None))
    clients = {one.worker: one for one in found.clients}
    for worker in ("w1", "w2"):
        own = [turn for turn in turns if turn.worker == worker and turn.phase is Phase.STEADY]
        slack = [t for t in own if t.first_token_slack_ns is not None and t.first_token_ns is not None]
        late = sorted(max(turn.attempt_ns - turn.due_ns, 0) for turn in own if turn.attempt_ns is not None)
        one = clients[worker]
        assert one.turns == len(late) and one.first_tokens == len(slack)
        assert one.chunks == sum(turn.chunks for turn in own) and one.coalesced == sum(t.coalesced for t in own)
        assert one.wide_slack == sum((turn.first_token_slack_ns or 0) > 1_000_000 for turn in slack)
        if late:
            assert one.lateness_p99_ms == pytest.approx(late[math.ceil(0.99 * len(late)) - 1] / 1e6, rel=0.01)


# ---------------------------------------------------------------------------------------------------- windows.jsonl


def test_windows(run: tuple[list[TurnRecord], Path]) -> None:
    turns, path = run
    found = msgspec.json.Decoder(WindowRow).decode_lines((path / "windows.jsonl").read_bytes())
    assert {key_of(row): counts_of(row) for row in found if any(counts_of(row).values())} == expected_windows(turns)
    assert [key_of(row) for row in found] == sorted({key_of(row) for row in found}), "one row each, in order"
    for key in {key_of(row)[1:] for row in found}:
        rows = [row for row in found if key_of(row)[1:] == key]
        own = [t for t in turns if (t.scenario, t.channel, t.stage, t.phase) == key]
        open_ = [(t.sent_ns, t.closed_ns) for t in own if t.sent_ns and t.closed_ns and t.closed_ns >= t.sent_ns]
        for row in rows:
            end_ns = (row.second + 1) * SECOND
            assert row.in_flight == sum(start < end_ns <= end for start, end in open_)
        assert rows[-1].users == 0 and all(row.users >= 0 for row in rows)


def key_of(row: WindowRow) -> tuple[int, str, str, str, Phase]:
    return row.second, row.scenario, row.channel, row.stage, row.phase


GAUGES = ("second", "scenario", "channel", "stage", "phase", "in_flight", "users")


def counts_of(row: WindowRow) -> dict[str, Any]:
    """What a row counts, without what is 0, empty or a gauge."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if value and name not in GAUGES}


def expected_windows(turns: Iterable[TurnRecord]) -> dict[tuple[Any, ...], dict[str, Any]]:
    made: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)

    def count(turn: TurnRecord, at_ns: int, name: str, many: int = 1) -> None:
        row = made[at_ns // SECOND, turn.scenario, turn.channel, turn.stage, turn.phase]
        row[name] = row.get(name, 0) + many

    def value(turn: TurnRecord, at_ns: int, name: str, ns: float | None) -> None:
        if ns is not None:
            row = made[at_ns // SECOND, turn.scenario, turn.channel, turn.stage, turn.phase]
            bucket = bucket_of(max(round(ns), 0))
            row.setdefault(name, {})[bucket] = row.setdefault(name, {}).get(bucket, 0) + 1

    for turn in turns:
        ended = turn.due_ns if turn.closed_ns is None else turn.closed_ns
        if of.was_asked(turn):
            count(turn, turn.due_ns, "due")
        if turn.sent_ns is not None:
            count(turn, turn.sent_ns, "sent")
        if turn.outcome is not Outcome.LOST:
            count(turn, ended, turn.outcome.value)
        count(turn, ended, "output_tokens", turn.output_tokens or 0)
        count(turn, ended, "good", int(judged(turn) == "good"))
        if turn.outcome is Outcome.FAILED:
            row = made[ended // SECOND, turn.scenario, turn.channel, turn.stage, turn.phase].setdefault("errors", {})
            row[turn.error_class or "unknown"] = row.get(turn.error_class or "unknown", 0) + 1
        if turn.outcome is Outcome.OK:
            if turn.attempt_ns is not None:
                value(turn, turn.attempt_ns, "lateness", of.lateness(turn))
            if turn.first_token_ns is not None:
                value(turn, turn.first_token_ns, "ttft", of.ttft(turn))
                value(turn, turn.first_token_ns, "ttft_from_due", of.ttft_from_due(turn))
            for name in ("tpot", "e2e", "e2e_from_due"):
                value(turn, ended, name, getattr(of, name)(turn))
        for second, chunks, tokens in arrivals(turn):
            count(turn, second * SECOND, "chunks", chunks)
            count(turn, second * SECOND, "tokens", tokens)
    full = {key: {name: many for name, many in row.items() if many} for key, row in made.items()}
    return {key: row for key, row in full.items() if row}


def arrivals(turn: TurnRecord) -> Iterable[tuple[int, int, int]]:
    """(second, chunks, whole tokens) of one turn; tokens add up to all that it has."""
    tokens = turn.chunks if turn.output_tokens is None else turn.output_tokens
    chunks, seen, given = sum(turn.chunks_by_second.values()), 0, 0
    for second, count in sorted(turn.chunks_by_second.items()):
        seen += count
        yield second, count, tokens * seen // chunks - given
        given = tokens * seen // chunks
    at_ns = turn.closed_ns if turn.last_token_ns is None else turn.last_token_ns
    if not chunks and at_ns is not None:
        yield at_ns // SECOND, 0, tokens


# ------------------------------------------------------------------------------------------- columns and batches


@given(st.lists(any_turn(), min_size=1, max_size=12))
def test_columns_say_what_single_turns_say(turns: list[TurnRecord]) -> None:
    bursts = [streamed(0, [10, 10 + last_ms], tokens=tokens) for last_ms in (0, 0.999999, 1) for tokens in (1, 2, 9)]
    turns = [*turns, *bursts, streamed(0, [10, 90], tokens=4, first_chunk_tokens=4), turn_of(sent_ns=None)]
    (batch,) = batches(turns)
    for metric in METRICS.values():
        if metric.per_turn is None:
            continue
        found, mask = values_of(batch, metric), applying(batch, metric)
        expected = [metric.per_turn(turn) for turn in turns]
        assert [v if g else None for v, g in zip(found.values.tolist(), found.given.tolist(), strict=True)] == expected
        assert mask is None or mask.tolist() == [metric.applies is not None and metric.applies(turn) for turn in turns]
    assert asked(batch).tolist() == [of.was_asked(turn) for turn in turns]
    assert contradicting(batch).tolist() == [of.contradicts_itself(turn) for turn in turns]
    assert known(batch.ints("closed_ns")).tolist() == [turn.closed_ns is not None for turn in turns]
    limits = TurnLimits(
        [RequestLimit(metric=name, at_most=at_most) for name, at_most in (("ttft", 200.0), ("tpot", 300.0))],
        ("chat", "local", "s1"),
        streamed=True,
    )
    assert [JUDGEMENTS[place] for place in limits.judged_all(batch).tolist()] == [limits.judged(turn) for turn in turns]


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("seed", [5, 6])
def test_how_turns_are_cut_into_batches_does_not_matter(seed: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = spoiled(seed)

    def seen() -> list[Any]:
        watch = ClientWatch()
        for batch in batches(turns, size_now[0]):
            watch.add_batch(batch)
        collected = collect(turns)
        return [summarise(turns, facts()), windows(turns), shown(collected), looks_of(watch)]

    size_now = [BATCH]
    whole = seen()
    size_now[0] = size
    for module in ("collect", "windows"):
        monkeypatch.setattr(f"infersiege.metrics.{module}.batches", partial(batches, size=size))
    monkeypatch.setattr("infersiege.report.collect.batches", partial(batches, size=size))
    assert seen() == whole


def shown(collected: Collected) -> dict[str, Any]:
    """Everything that is collected for the report, in a form that can be compared."""
    tokens = {second: pytest.approx(count) for second, count in sorted(collected.tokens_by_second.items())}
    by_turn = {key: [getattr(row, name) for name in row.__slots__] for key, row in collected.by_turn.items()}
    names = ("shapes", "gaps", "errors_by_second", "examples", "errors", "reasons", "flags", "slowest")
    return {name: getattr(collected, name) for name in names} | {"tokens": tokens, "by_turn": by_turn}


def looks_of(watch: ClientWatch) -> dict[str, Any]:
    return {name: (one.lateness, one.counts, one.seconds) for name, one in watch.workers.items()}
