"""What makes a comparison unfair: facts that differ, other lengths of prompts and answers, runs not to be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from infersiege.compare.columns import Column
from infersiege.gate.comparable import NOT_KNOWN, NOT_SET, differences
from infersiege.metrics.definitions import METRICS
from infersiege.records import ClientVerdict
from infersiege.report.numbers import number, share

LENGTH_TOLERANCE = 0.05
"""Medians of lengths that are further apart are no longer the same work."""
SHARE_TOLERANCE = 0.01
"""Failed or cut turns that are further apart leave percentiles of other turns."""
CACHE_TOLERANCE = 0.05
DURATION_TOLERANCE = 0.1
DELIVERED = 0.95
ESTIMATED = 0.01
"""Share of the turns whose tokens nobody counted."""

COMPARED = ("engine", "engine_version", "engine_arguments", "label")
"""What people compare runs for: it is told, and is no warning."""

WHY: Mapping[str, str] = {
    "model": "other weights are other work",
    "model_answered": "another model answered",
    "engine": "compared",
    "engine_version": "compared",
    "engine_arguments": "compared",
    "emulated": "the emulator is no engine",
    "gpu": "other hardware",
    "host": "the load came from another kind of machine",
    "client": "times were taken by another version",
    "workers": "the load came from other workers",
    "trace": "other prompts",
    "plan": "something else was sent, or in another way",
    "load": "another load",
    "sampling": "other sampling: other lengths and other work for each token",
    "label": "compared",
    "limits": "goodput is held to other limits",
    "price": "cost is by other prices",
}
"""Word of a fact -> why a difference matters."""


class Unequal(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that is not the same everywhere."""

    name: str
    values: tuple[str, ...]
    """By column."""
    expected: bool
    """It is what people compare runs for."""
    why: str


def unequal_facts(columns: Sequence[Column]) -> tuple[Unequal, ...]:
    """Facts that differ between or within columns; warnings first."""
    facts = [member.facts for column in columns for member in column.members]
    found = []
    for name in (one.name for one in differences(facts, [], metrics=METRICS)):
        word = name.partition(".")[0]
        found.append(
            Unequal(
                name=name,
                values=tuple(_value(name, column) for column in columns),
                expected=word in COMPARED,
                why=WHY[word],
            )
        )
    return tuple(sorted(found, key=lambda one: one.expected))


def _value(name: str, column: Column) -> str:
    written = name.partition(".")[0] in ("plan", "load", "sampling", "label", "limits", "price")
    absent = NOT_SET if written else NOT_KNOWN
    return " and ".join(sorted({member.facts.get(name, absent) for member in column.members}))


def warnings_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """What the runs themselves show, one line each."""
    return tuple(
        dict.fromkeys(
            (
                *_untrusted(columns),
                *_lengths(columns),
                *_asked(columns),
                *_shares(columns),
                *_delivered(columns),
                *_durations(columns),
                *_counted(columns),
                *_salts(columns),
            )
        )
    )


def _untrusted(columns: Sequence[Column]) -> Iterator[str]:
    for column in columns:
        for member in column.members:
            which = f"{column.name}: run {member.cut.summary.run_id}"
            yield from (f"{which} is invalid: {reason}" for reason in member.unusable)
            if member.dirty:
                yield f"{which} began while the engine was busy (stage {', '.join(member.dirty)})"
            client = member.cut.summary.client
            if client is ClientVerdict.STRAINED:
                yield f"{which}: the load generator was half way to its limit ({client.value})"


def _median(column: Column, metric: str) -> float | None:
    """The mean of its runs' medians."""
    found = [member.cut.group.distributions.get(metric) for member in column.members]
    known = [one.p50 for one in found if one is not None and one.p50 is not None]
    return sum(known) / len(known) if known else None


def _lengths(columns: Sequence[Column]) -> Iterator[str]:
    means = {
        "prompt_tokens": "prompts have other lengths, as the servers counted them",
        "output_tokens": "answers have other lengths, so E2E, throughput and cost are of other work",
    }
    for metric, words in means.items():
        first = _median(columns[0], metric)
        for column in columns[1:]:
            other = _median(column, metric)
            if first and other is not None and abs(other / first - 1) > LENGTH_TOLERANCE:
                yield (
                    f"{words}: a median of {number(first)} tokens in {columns[0].name}, {number(other)} in "
                    f"{column.name}"
                )


def _asked(columns: Sequence[Column]) -> Iterator[str]:
    for column in columns:
        asked = sum(member.cut.shape.asked_tokens for member in column.members)
        got = sum(member.cut.shape.got_tokens for member in column.members)
        turns = sum(member.cut.shape.asked_turns for member in column.members)
        if asked and abs(got / asked - 1) > LENGTH_TOLERANCE:
            yield (
                f"{column.name} gave {number(got / turns)} output tokens a turn where {number(asked / turns)} were "
                "asked for"
            )


def _rate(column: Column, rate: str) -> float | None:
    known = [value for member in column.members if (value := member.cut.group.rates.get(rate)) is not None]
    return sum(known) / len(known) if known else None


def _shares(columns: Sequence[Column]) -> Iterator[str]:
    tolerances = {
        "error_share": (SHARE_TOLERANCE, "failed turns", "latencies are of those that succeeded"),
        "cancelled_share": (SHARE_TOLERANCE, "turns that we cut", "the slowest may be among them"),
        "cache_share": (CACHE_TOLERANCE, "prompt tokens from the cache", "a warm cache makes TTFT short"),
    }
    for rate, (tolerance, what, why) in tolerances.items():
        first = _rate(columns[0], rate)
        for column in columns[1:]:
            other = _rate(column, rate)
            if first is not None and other is not None and abs(other - first) > tolerance:
                yield f"{what}: {share(first)} in {columns[0].name}, {share(other)} in {column.name}: {why}"
            elif rate == "cache_share" and (first is None) is not (other is None):
                silent = columns[0] if first is None else column
                yield f"{silent.name} does not tell cached tokens: whether its cache helped is not known"


def _delivered(columns: Sequence[Column]) -> Iterator[str]:
    for column in columns:
        delivered = _rate(column, "delivered_share")
        if delivered is not None and delivered < DELIVERED:
            yield f"{column.name} got only {share(delivered)} of the load that was asked for"
        staged = max((len(member.cut.summary.loads) for member in column.members), default=0)
        if staged > 1 and all(member.cut.group.stage is None for member in column.members):
            stages = {load.stage for member in column.members for load in member.cut.summary.loads}
            if len(stages) > 1 and column.members[0].cut.name is None:
                yield f"{column.name} mixes {len(stages)} stages in each figure: --by stage tells them apart"


def _durations(columns: Sequence[Column]) -> Iterator[str]:
    def seconds(column: Column) -> float:
        return sum(member.cut.group.steady_duration_ns for member in column.members) / len(column.members) / 1e9

    first = seconds(columns[0])
    for column in columns[1:]:
        if first and abs(seconds(column) / first - 1) > DURATION_TOLERANCE:
            yield (
                f"steady phases of other lengths: {first:.0f} s in {columns[0].name}, {seconds(column):.0f} s in "
                f"{column.name}: what grows with time (queues, caches) had more of it in one"
            )


def _counted(columns: Sequence[Column]) -> Iterator[str]:
    for column in columns:
        told: Counter[str] = Counter()
        for member in column.members:
            told.update(member.cut.summary.tokens_from)
        if told.total() and 1 - told["usage"] / told.total() > ESTIMATED:
            yield (
                f"{column.name}: tokens of {told.total() - told['usage']:,} of {told.total():,} turns were not counted "
                "by its server: TPOT, throughput and cost rest on estimates"
            )


def _salts(columns: Sequence[Column]) -> Iterator[str]:
    salts = Counter(
        {member.cut.summary.run_id: member.nonce for column in columns for member in column.members}.values()
    )
    if any(count > 1 for count in salts.values()):
        yield (
            "several runs have the same salt (run.nonce is set): a prefix cache that outlived the first of them helps "
            "the others"
        )
