"""One cut of the run as a GroupSummary: distributions over turns due in steady, rates over the steady windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from infersiege.cost import BY_TOKENS, PER_MILLION, money
from infersiege.metrics.collect import Cell, Collector
from infersiege.metrics.definitions import METRICS, STATS, Metric
from infersiege.metrics.delivery import (
    SECOND_NS,
    Delivered,
    inside,
    instants,
    mean_alive,
    peak_alive,
    users_alive,
)
from infersiege.metrics.facts import Cut, SteadyWindow
from infersiege.metrics.flow import Bill, Flow
from infersiege.metrics.histogram import Histogram, percentiles, rank_of
from infersiege.metrics.orders import range_ranks
from infersiege.metrics.quality import collapsed_share, pass_share
from infersiege.records import Cost, Counts, Distribution, ErrorClass, GroupSummary, Outcome, PromptLengths

Key = TypeVar("Key", str, Outcome)

MOST_REPLICAS = 64
"""Addresses of one channel that have figures of their own."""

LENGTH_TOLERANCE = 0.02
"""Real lengths further than this from the asked ones are worth a note (TK-10)."""


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None when there is no whole."""
    return part / whole if whole else None


def cuts(collector: Collector) -> list[Cut]:
    """The whole run; each scenario, channel and stage where there are several; what rules ask for beside that."""
    scenarios = sorted({scenario for scenario, _, _ in collector.flows})
    channels = sorted({channel for _, channel, _ in collector.flows if channel})
    named = list(dict.fromkeys(window.stage for window in collector.windows))
    stages = named + sorted({stage for _, _, stage, _ in collector.cells} - set(named))
    found = [Cut()]
    found += [Cut(scenario=name) for name in scenarios if len(scenarios) > 1]
    found += [Cut(channel=name) for name in channels if len(channels) > 1]
    found += [Cut(stage=name) for name in stages if len(stages) > 1]
    return list(dict.fromkeys((*found, *collector.facts.cuts)))


def replica_cuts(collector: Collector) -> list[Cut]:
    """Each replica of the channels that were served by several, at most 64 of a channel."""
    replicas: dict[str, set[str]] = {}
    for _, channel, replica in collector.flows:
        if replica:
            replicas.setdefault(channel, set()).add(replica)
    return [
        Cut(channel=channel, replica=replica)
        for channel, names in sorted(replicas.items())
        if len(names) > 1
        for replica in sorted(names)[:MOST_REPLICAS]
    ]


def counts_of(outcomes: Counter[Outcome], planned: int | None = None) -> Counts:
    """Counts by outcome; `planned` is the number of records unless somebody else counted."""
    total, skipped = outcomes.total(), outcomes[Outcome.SKIPPED]
    return Counts(
        planned=total if planned is None else planned,
        started=total - skipped,
        ok=outcomes[Outcome.OK],
        failed=outcomes[Outcome.FAILED],
        cancelled=outcomes[Outcome.CANCELLED],
        lost=outcomes[Outcome.LOST],
        skipped=skipped,
    )


def group(cut: Cut, collector: Collector, loads: Sequence[Delivered]) -> GroupSummary:
    """The figures of one cut. A cut that no turn belongs to has n = 0 everywhere, never zeros as values."""
    cells = [cell for key, cell in sorted(collector.cells.items()) if cut.covers(*key)]
    flows = [
        flow
        for (scenario, channel, replica), flow in sorted(collector.flows.items())
        if cut.scenario in (None, scenario) and cut.channel in (None, channel) and cut.replica in (None, replica)
    ]
    indexes = [index for index, window in enumerate(collector.windows) if cut.stage in (None, window.stage)]
    windows = [collector.windows[index] for index in indexes]
    outcomes = _sum(cell.outcomes for cell in cells)
    tally = _sum(cell.tally for cell in cells)
    start_ns, end_ns = instants(flow.flight_start for flow in flows), instants(flow.flight_end for flow in flows)
    rates = _shares(outcomes, tally) | _per_second(tally, flows, indexes, windows)
    if not any(cell.limits for cell in cells):
        rates["goodput"] = rates["goodput_share"] = None
    cost, rates["cost_per_million_output_tokens"] = cost_of([cell.bill for cell in cells], channel=cut.channel)
    # A user of a hybrid channel is no single channel's, one of a replica may be another's too.
    shared = cut.replica is not None or (cut.channel is not None and any(flow.routed for flow in flows))
    rates["users"] = None if shared else users_alive(flows, windows)
    rates["delivered_share"] = _delivered_share(cut, loads)
    answers = [cell.answers for cell in cells]
    passed = pass_share(answers)
    rates["quality"] = passed.share
    empty = sum(cell.errors[ErrorClass.NO_OUTPUT] for cell in cells)
    rates["collapsed_share"] = collapsed_share(answers, outcomes[Outcome.OK], empty)
    timed = _timed(cut, cells, collector.facts.checked)
    timed_outcomes = outcomes if len(timed) == len(cells) else _sum(cell.outcomes for cell in timed)
    lengths = prompt_lengths(cells)
    return GroupSummary(
        scenario=cut.scenario,
        channel=cut.channel,
        stage=cut.stage,
        replica=cut.replica,
        emulated=any(cell.emulated for cell in cells),
        counts=counts_of(outcomes),
        steady_duration_ns=sum(window.duration_ns for window in windows),
        distributions={
            m.name: _distribution(m, timed, timed_outcomes) for m in METRICS.values() if m.kind == "distribution"
        },
        rates={m.name: rates[m.name] for m in METRICS.values() if m.kind == "rate"},
        prompt_tokens=tally["prompt_tokens"] if tally["prompt_known"] else None,
        output_tokens=tally["output_tokens"] if tally["output_known"] else None,
        errors=dict(sorted(_sum(cell.errors for cell in cells).items())),
        finish_reasons=dict(sorted(_sum(cell.finish_reasons for cell in cells).items())),
        in_flight_mean=mean_alive(start_ns, end_ns, windows),
        in_flight_max=peak_alive(start_ns, end_ns, windows),
        notes=_notes(cells, flows, outcomes, tally)
        + _about_checked(cells, timed)
        + _about_lengths(lengths)
        + _about_cost(cost),
        cost=cost,
        channels=tuple(sorted({cell.key[1] for cell in cells})),
        failed_attempts=dict(sorted(_sum(cell.failed_attempts for cell in cells).items())),
        prompt_lengths=lengths,
        checked=passed.checked,
        unscored=passed.unscored,
    )


def _timed(cut: Cut, cells: list[Cell], checked: frozenset[str]) -> list[Cell]:
    """Cells whose turns are in the distributions: without checked prompts, which are short and would move percentiles
    that are about the load, unless they are asked for by name or all there is."""
    if cut.scenario is not None or not checked:
        return cells
    return [cell for cell in cells if cell.key[0] not in checked] or cells


def _about_checked(cells: list[Cell], timed: list[Cell]) -> tuple[str, ...]:
    left = sum(cell.outcomes.total() for cell in cells) - sum(cell.outcomes.total() for cell in timed)
    return (f"{left:,} turns of checked prompts are in no percentile here, but in all rates",) if left else ()


def costs(collector: Collector) -> tuple[Cost, ...]:
    """What all turns cost by their tokens, all phases, by channel; channels without such a price are left out."""
    bills: dict[str, list[Bill]] = {}
    for (_, channel, _), flow in sorted(collector.flows.items()):
        bills.setdefault(channel, []).append(flow.bill)
    found = (cost_of(own, channel=channel)[0] for channel, own in bills.items())
    return tuple(cost for cost in found if cost is not None)


def cost_of(bills: Sequence[Bill], *, channel: str | None) -> tuple[Cost | None, float | None]:
    """(what the turns of these bills cost, the same per million output tokens). None: no turn has a price."""
    told = [cost for bill in bills for cost in bill.costs]
    guessed = [cost for bill in bills for cost in bill.estimated]
    if not told and not guessed:
        return None, None
    # fsum is exact, so that the order of the turns does not show in the last digit.
    total = math.fsum((*told, *guessed))
    cost = Cost(
        channel=channel,
        basis=BY_TOKENS,
        total=total,
        turns=len(told) + len(guessed),
        estimated_turns=len(guessed),
        estimated=math.fsum(guessed) if guessed else None,
    )
    return cost, ratio(total * PER_MILLION, sum(bill.output_tokens for bill in bills))


def prompt_lengths(cells: Sequence[Cell]) -> PromptLengths | None:
    """How near the prompts that we wrote came to what was asked; None: there was none, or nobody counted."""
    columns = [cell.length_errors for cell in cells if cell.length_errors]
    errors = np.sort(np.concatenate([np.frombuffer(column, dtype=np.float64) for column in columns] or [np.empty(0)]))
    n, written = int(errors.size), sum(cell.tally["prompt_written"] for cell in cells)
    if not written:
        return None
    return PromptLengths(
        method=", ".join(sorted({cell.written.method for cell in cells if cell.written is not None})),
        n=n,
        error_p50=float(errors[rank_of(0.5, n) - 1]) if n else None,
        error_p95=float(errors[rank_of(0.95, n) - 1]) if n else None,
        too_short=written - n,
    )


def _about_lengths(lengths: PromptLengths | None) -> tuple[str, ...]:
    if lengths is None:
        return ()
    notes = []
    if lengths.n:
        notes.append(
            f"prompt lengths by {lengths.method}: {lengths.error_p50:.1%} (p50) and {lengths.error_p95:.1%} (p95) off "
            f"the asked ones, over {lengths.n:,} turns"
        )
    if lengths.too_short:
        notes.append(
            f"{lengths.too_short:,} turns ask for fewer prompt tokens than chat template, salt and the shortest text "
            "take: they have more, and are in no percentile of prompt lengths"
        )
    return tuple(notes)


def _about_cost(cost: Cost | None) -> tuple[str, ...]:
    if cost is None or cost.estimated is None or cost.total is None:
        return ()
    return (
        f"the cost of {cost.estimated_turns:,} of {cost.turns:,} requests is estimated ({money(cost.estimated)} of "
        f"{money(cost.total)}): the server did not tell every count that has a price, or the answer was cut",
    )


def _sum(counters: Iterable[Counter[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _shares(outcomes: Counter[Outcome], tally: Counter[str]) -> dict[str, float | None]:
    ok, failed, cancelled = outcomes[Outcome.OK], outcomes[Outcome.FAILED], outcomes[Outcome.CANCELLED]
    return {
        "error_share": ratio(failed, ok + failed),
        "cancelled_share": ratio(cancelled, ok + cancelled),
        "cache_share": ratio(tally["cached_tokens"], tally["cached_of"]),
        "goodput_share": ratio(tally["good"], tally["good"] + tally["violating"]),
    }


def _per_second(
    tally: Counter[str], flows: list[Flow], indexes: list[int], windows: list[SteadyWindow]
) -> dict[str, float | None]:
    seconds = sum(window.duration_ns for window in windows) / SECOND_NS
    # fsum is exact, so that the order of the turns does not show in the last digit.
    tokens = math.fsum(part for flow in flows for index in indexes for part in flow.token_parts[index])
    tokens += sum(flow.tokens[index] for flow in flows for index in indexes)
    return {
        "asked_rate": ratio(tally["asked"], seconds),
        "sent_rate": ratio(inside(instants(flow.sent for flow in flows), windows), seconds),
        "finished_rate": ratio(inside(instants(flow.finished for flow in flows), windows), seconds),
        "throughput": ratio(tokens, seconds),
        "goodput": ratio(tally["good"], seconds),
    }


def _delivered_share(cut: Cut, loads: Sequence[Delivered]) -> float | None:
    """The worst of the loads that this cut is about; None where the plan asks nothing of the cut as such."""
    shares = [
        one.share
        for one in loads
        if cut.channel is None
        and cut.stage in (None, one.window.stage)
        and (cut.scenario is None or one.load.scenarios == (cut.scenario,))
        and one.share is not None
    ]
    return min(shares, default=None)


def _distribution(metric: Metric, cells: list[Cell], outcomes: Counter[Outcome]) -> Distribution:
    ok, failed, cancelled = outcomes[Outcome.OK], outcomes[Outcome.FAILED], outcomes[Outcome.CANCELLED]
    cut_share = ratio(cancelled, ok + cancelled)
    n, stats, ranges = _gap_stats(cells) if metric.per_turn is None else _turn_stats(metric, cells)
    for stat in STATS.values():
        # A cut turn might have been slower than every other: with more than 1 - q of them, p_q is not known any more.
        hidden = stat.q is not None and metric.censored and cut_share is not None and cut_share > 1 - stat.q + 1e-12
        if n < stat.floor or hidden:
            stats[stat.name] = None
    return Distribution(
        unit=metric.unit,
        n=n,
        missing=sum(cell.missing[metric.name] for cell in cells),
        failed_share=ratio(failed, ok + failed),
        cancelled_share=cut_share,
        ranges={name: ends for name, ends in ranges.items() if stats[name] is not None},
        **stats,
    )


Ranges = dict[str, tuple[float | None, float | None]]


def _turn_stats(metric: Metric, cells: list[Cell]) -> tuple[int, dict[str, float | None], Ranges]:
    columns = [cell.columns[metric.name] for cell in cells if cell.columns.get(metric.name)]
    if not columns:
        return 0, dict.fromkeys(STATS), {}
    # Sorted, so that the sum behind the mean does not depend on the order of the turns either.
    values = np.sort(np.concatenate([np.frombuffer(column, dtype=np.float64) for column in columns]))
    n = int(values.size)
    low, high = float(values[0]), float(values[-1])
    # A mean of equal values must not come out above them by a rounding.
    mean = min(max(float(values.sum()) / n, low), high)
    stats: dict[str, float | None] = {
        "mean": mean / metric.per_unit,
        "min": low / metric.per_unit,
        "max": high / metric.per_unit,
    }
    for stat in STATS.values():
        if stat.q is not None:
            stats[stat.name] = float(values[rank_of(stat.q, n) - 1]) / metric.per_unit
    return n, stats, _ranges(n, lambda rank: float(values[rank - 1]) / metric.per_unit)


def _ranges(n: int, value_of: Callable[[int], float | None]) -> Ranges:
    """The 95 % range of each percentile; `value_of` gives the value of a rank."""
    found: Ranges = {}
    for stat in STATS.values():
        if stat.q is not None and n:
            low, high = range_ranks(stat.q, n)
            found[stat.name] = (None if low is None else value_of(low), None if high is None else value_of(high))
    return found


def _gap_stats(cells: list[Cell]) -> tuple[int, dict[str, float | None], Ranges]:
    gaps = Histogram.merged(Histogram.from_sparse(cell.gaps) for cell in cells)
    per_unit = METRICS["gap"].per_unit
    raw: dict[str, float | None] = {"mean": gaps.mean, "min": gaps.min, "max": gaps.max}
    raw |= {stat.name: gaps.percentile(stat.q) for stat in STATS.values() if stat.q is not None}
    ranks = [rank for stat in STATS.values() if stat.q and gaps.n for rank in range_ranks(stat.q, gaps.n) if rank]
    values = dict(zip(ranks, percentiles(gaps.counts, [rank / gaps.n for rank in ranks]), strict=True))
    ranges = _ranges(gaps.n, lambda rank: None if (value := values[rank]) is None else value / per_unit)
    return gaps.n, {name: None if value is None else value / per_unit for name, value in raw.items()}, ranges


def _notes(cells: list[Cell], flows: list[Flow], outcomes: Counter[Outcome], tally: Counter[str]) -> tuple[str, ...]:
    notes = []
    whole = sum(cell.outcomes[Outcome.OK] for cell in cells if not cell.streamed)
    if whole:
        notes.append(f"{whole} turns were not streamed: they have no TTFT and no TPOT")
    if outcomes[Outcome.CANCELLED]:
        cancelled = outcomes[Outcome.CANCELLED]
        notes.append(f"{cancelled} turns were cut by us and are in no percentile; those above their share are left out")
    by_chunk = sum(flow.by_chunk for flow in flows)
    if by_chunk:
        notes.append(f"{by_chunk} turns without a token count are in throughput with one token per chunk")
    if tally["cancelled"] or tally["unmeasured"]:
        notes.append(f"goodput leaves out {tally['cancelled']} cut and {tally['unmeasured']} unmeasurable turns")
    unknown = tally["prompt_known"] - tally["cached_known"]
    if tally["cached_known"] and unknown:
        notes.append(f"cache share is over {tally['cached_known']} turns; {unknown} did not tell cached tokens")
    again = _sum(cell.failed_attempts for cell in cells)
    if again:
        classes = ", ".join(f"{name} {count:,}" for name, count in sorted(again.items()))
        notes.append(
            f"{again.total():,} attempts failed before their turn was sent again ({classes}): in no error share"
        )
    for side, title in (("prompt", "prompt"), ("output", "output")):
        asked, real = tally[f"{side}_asked"], tally[f"{side}_compared"]
        if asked and abs(real / asked - 1) > LENGTH_TOLERANCE:
            notes.append(f"{title} tokens were {real:,} where {asked:,} were asked for ({real / asked - 1:+.0%})")
    return tuple(notes)
