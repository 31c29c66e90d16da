"""Whether the load generator was the limit: the rule, its figures, and how many workers would have done. Pure.

docs/client.md has the rule in words, with the experiment behind its numbers. Nothing of it looks at what a slow server
spoils: only at what a worker itself must do in time (its event loop, its CPU, the reading of first tokens).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from infersiege.metrics.batch import Batch, Ints, Mask, known
from infersiege.metrics.columns import in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.facts import SteadyWindow
from infersiege.metrics.histogram import Histogram, bucket_value
from infersiege.metrics.limits import FEW, SHARE, WIDE_SLACK_NS, too_many
from infersiege.metrics.merging import add_counts
from infersiege.metrics.parts import Part, parts
from infersiege.metrics.turn import NS_PER_MS
from infersiege.records import Calibration, ClientHealth, ClientSummary, ClientVerdict

SECOND_NS = 1_000_000_000

HELD_MS = 50
"""An event loop that lets one of a hundred instants wait for longer than this.

Stamps are the kernel's, so that a shorter stall shifts no first token; it delays what is sent, by as much."""

STALLED_SHARE = 0.05
STALLED_S = 0.5
"""An event loop that was held up for longer than `HELD_MS` at so many instants, and for so long in all, is bound,
however few seconds that was in. One stall of a tenth of a second is not."""

BUSY = 0.95
"""CPU used and waited for, of one core: a worker has no more."""
BUSY_SHARE = 0.10
BUSY_LATE_MS = 25
"""A busy worker is bound when its loop is later than this (p99; half of HELD_MS): it then has more than it can do. Its
requests may be late for other reasons (`max_in_flight`, requests per minute, a budget), which are none of its own."""

ROOM = 0.7
"""How much of its ceiling a worker should be given."""

HALF = 0.5
WAITED = 0.1
"""More waiting for a CPU than this, per second, is what delays a worker that is not busy."""


@dataclass(slots=True)
class Second:
    """One second of one worker, from its turns: for a time axis."""

    lateness: Histogram = field(default_factory=Histogram)
    """Of turns that were due in it, in ns."""
    first_tokens: int = 0
    wide_slack: int = 0
    chunks: int = 0
    """Of turns that ended in it, as `coalesced`."""
    coalesced: int = 0

    def merge(self, other: Second) -> None:
        """Add all that `other` has."""
        self.lateness.merge(other.lateness)
        self.first_tokens += other.first_tokens
        self.wide_slack += other.wide_slack
        self.chunks += other.chunks
        self.coalesced += other.coalesced


class _Turns:
    """Turns of one worker that were due in steady."""

    def __init__(self) -> None:
        self.lateness = Histogram()
        self.counts: Counter[str] = Counter()
        self.seconds: dict[int, Second] = {}

    def at(self, second: int) -> Second:
        found = self.seconds.get(second)
        if found is None:
            found = self.seconds[second] = Second()
        return found

    def merge(self, other: _Turns) -> None:
        """Add all that `other` has, which is used up."""
        self.lateness.merge(other.lateness)
        self.counts.update(other.counts)
        for second, one in other.seconds.items():
            mine = self.seconds.setdefault(second, one)
            if mine is not one:
                mine.merge(one)


class ClientWatch:
    """Filled with all turns of a run; keeps what they tell about their workers. Grows with seconds, not with turns."""

    def __init__(self) -> None:
        self.workers: dict[str, _Turns] = {}

    def add_batch(self, batch: Batch) -> None:
        for worker, part in parts(batch, lambda kind: kind.worker):
            found = self.workers.get(worker)
            if found is None:
                found = self.workers[worker] = _Turns()
            _add(found, part)

    def merge(self, other: ClientWatch) -> None:
        """Add all that `other` has, which is used up."""
        for worker, one in other.workers.items():
            mine = self.workers.setdefault(worker, one)
            if mine is not one:
                mine.merge(one)

    def seconds(self, worker: str) -> Mapping[int, Second]:
        """Unix second -> what its turns tell; empty for a worker without turns."""
        found = self.workers.get(worker)
        return {} if found is None else found.seconds


def _add(found: _Turns, part: Part) -> None:
    """Turns of one worker."""
    batch, counts = part.batch, found.counts
    steady, late = part.of(batch.steady), values_of(batch, METRICS["lateness"])
    given, due_ns = part.of(late.given), part.of(batch.ints("due_ns"))
    late_ns = np.maximum(part.of(in_whole_ns(late)), 0)
    found.lateness.add_many(late_ns[steady & given])
    for second, mask in _by_second(due_ns, given):
        found.at(second).lateness.add_many(late_ns[mask])
    slack_ns, first_ns = part.of(batch.ints("first_token_slack_ns")), part.of(batch.ints("first_token_ns"))
    seen, wide = known(slack_ns) & known(first_ns), slack_ns > WIDE_SLACK_NS
    for second, mask in _by_second(first_ns, seen):
        found.at(second).first_tokens += int(mask.size)
        found.at(second).wide_slack += int(wide[mask].sum())
    chunks, closed_ns = part.of(batch.ints("chunks")), part.of(batch.ints("closed_ns"))
    coalesced, output = part.of(batch.ints("coalesced")), part.of(batch.ints("output_tokens"))
    for second, mask in _by_second(closed_ns, (chunks != 0) & known(closed_ns)):
        found.at(second).chunks += int(chunks[mask].sum())
        found.at(second).coalesced += int(coalesced[mask].sum())
    counts["first_tokens"] += int((seen & steady).sum())
    counts["wide_slack"] += int((seen & steady & wide).sum())
    counts["turns"] += int((steady & given).sum())
    counts["chunks"] += int(chunks[steady].sum())
    counts["coalesced"] += int(coalesced[steady].sum())
    counts["tokens"] += int(np.where(known(output), output, chunks)[steady].sum())


def _by_second(at_ns: Ints, mask: Mask) -> Iterator[tuple[int, Ints]]:
    """Each second in which some of the masked turns are, with their places."""
    places = np.flatnonzero(mask)
    seconds, inverse, sizes = np.unique(at_ns[places] // SECOND_NS, return_inverse=True, return_counts=True)
    of_second = np.split(places[np.argsort(inverse, kind="stable")], np.cumsum(sizes)[:-1])
    yield from zip(seconds.tolist(), of_second, strict=False)


def in_steady(row: ClientHealth, steady: Sequence[SteadyWindow]) -> bool:
    """Whether the middle of what a row tells of lies in a steady phase."""
    if row.begun_ns is None or row.ended_ns is None:
        middle_ns = row.second * SECOND_NS  # it was written within the second, and is of the one before
    else:
        middle_ns = (row.begun_ns + row.ended_ns) // 2
    return any(window.start_ns <= middle_ns < window.end_ns for window in steady)


def summaries(
    rows: Iterable[ClientHealth], watch: ClientWatch, steady: Sequence[SteadyWindow]
) -> tuple[ClientSummary, ...]:
    """One per worker that has rows or turns, by name, judged. `rows`: of telemetry/clients.jsonl, in any order."""
    health: dict[str, list[ClientHealth]] = {worker: [] for worker in watch.workers}
    for row in rows:
        of_worker = health.setdefault(row.worker, [])
        if in_steady(row, steady):
            of_worker.append(row)
    seconds = sum(window.duration_ns for window in steady) / SECOND_NS
    return tuple(
        judged(_figures(worker, health[worker], watch.workers.get(worker), seconds)) for worker in sorted(health)
    )


def _figures(worker: str, rows: Sequence[ClientHealth], turns: _Turns | None, seconds: float) -> ClientSummary:
    """What was seen of one worker, not yet judged."""
    looks: dict[int, int] = {}
    for row in rows:
        add_counts(looks, row.hub_lag)
    lag = Histogram.from_sparse(looks)
    waits = [row.cpu_wait_share for row in rows if row.cpu_wait_share is not None]
    files = [row.open_files for row in rows if row.open_files is not None]
    counts = Counter[str]() if turns is None else turns.counts
    late_ns = None if turns is None else turns.lateness.percentile(0.99)
    return ClientSummary(
        worker=worker,
        verdict=ClientVerdict.OK if rows else None,
        seconds=len(rows),
        hub_lag_p99_ms=lag.percentile(0.99),
        hub_lag_max_ms=max((row.hub_lag_max_ns // NS_PER_MS for row in rows), default=None),
        stalled_share=_beyond(lag, HELD_MS),
        held_seconds=sum(row.hub_lag_max_ns > HALF * HELD_MS * NS_PER_MS for row in rows),
        cpu_share_mean=sum(row.cpu_share for row in rows) / len(rows) if rows else None,
        cpu_share_max=max((row.cpu_share for row in rows), default=None),
        cpu_wait_share_mean=sum(waits) / len(waits) if waits else None,
        busy_seconds=sum(row.cpu_share + (row.cpu_wait_share or 0.0) > BUSY for row in rows),
        gc_pause_max_ms=max((row.gc_pause_max_ns / NS_PER_MS for row in rows), default=None),
        open_files_max=max(files, default=None),
        turns=counts["turns"],
        lateness_p99_ms=None if late_ns is None else late_ns / NS_PER_MS,
        first_tokens=counts["first_tokens"],
        wide_slack=counts["wide_slack"],
        chunks=counts["chunks"],
        coalesced=counts["coalesced"],
        tokens_per_s=counts["tokens"] / seconds if turns is not None and seconds else None,
        turns_per_s=counts["turns"] / seconds if turns is not None and seconds else None,
    )


def _beyond(lag: Histogram, limit_ms: int) -> float | None:
    """Share of the looks at an event loop that found it later than this; None: there were no looks."""
    return sum(n for index, n in lag.counts.items() if bucket_value(index) > limit_ms) / lag.n if lag.n else None


def judged(seen: ClientSummary) -> ClientSummary:
    """The same with verdict and reasons: the rule, and half of it.

    A worker without rows is judged by its turns alone, which can show that it is bound and not that it is fit: its
    verdict is then None.
    """
    bound = _over(seen, 1.0)
    if bound:
        return replace(seen, verdict=ClientVerdict.CLIENT_BOUND, reasons=tuple(bound))
    strained = _over(seen, HALF)
    if strained:
        return replace(seen, verdict=ClientVerdict.STRAINED, reasons=tuple(strained))
    return replace(seen, verdict=ClientVerdict.OK if seen.seconds else None)


def _over(seen: ClientSummary, part: float) -> list[str]:
    """What is over this part of the limits."""
    found = []
    if too_many(seen.wide_slack, seen.first_tokens, part * SHARE):
        found.append(
            f"the first token of {seen.wide_slack} of {seen.first_tokens} turns is in doubt by more than "
            f"{WIDE_SLACK_NS / NS_PER_MS:.0f} ms"
        )
    lag_ms = seen.hub_lag_p99_ms or 0
    stalled_share = seen.stalled_share or 0.0
    # One stall, such as all users of a closed loop beginning at once, is not how a worker was all the time.
    if lag_ms > part * HELD_MS and seen.held_seconds >= min(FEW, seen.seconds):
        found.append(f"its event loop was held up by {lag_ms} ms (p99)")
    elif stalled_share > part * STALLED_SHARE and stalled_share * seen.seconds > part * STALLED_S:
        found.append(
            f"its event loop was held up for {stalled_share:.1%} of the time, by up to {seen.hub_lag_max_ms or 0} ms"
        )
    busy = seen.busy_seconds >= 2 and seen.busy_seconds > part * BUSY_SHARE * seen.seconds
    if busy and lag_ms > part * BUSY_LATE_MS:
        found.append(
            f"it needed a whole core in {seen.busy_seconds} of {seen.seconds} s, with its event loop {lag_ms} ms late "
            "(p99)"
        )
    return found


_WEIGHT = {ClientVerdict.OK: 0, ClientVerdict.STRAINED: 1, ClientVerdict.CLIENT_BOUND: 2}


def worst(clients: Sequence[ClientSummary]) -> ClientVerdict | None:
    """Of all workers: each has its share of the turns, and a bound one spoils them.

    None: nothing was seen, or those that were seen are fit and others were not watched.
    """
    known = [one.verdict for one in clients if one.verdict is not None]
    found = max(known, key=_WEIGHT.__getitem__, default=None)
    return None if found is ClientVerdict.OK and len(known) < len(clients) else found


def ceiling_share(tokens_per_s: float, turns_per_s: float, calibration: Calibration) -> float:
    """What share of one worker's ceiling a load is (2.0: that of two workers).

    Turns cost as well: those beyond the ones that were in the measured streams are counted as short requests.
    """
    share = tokens_per_s / calibration.tokens_per_s if calibration.tokens_per_s else 0.0
    beyond = turns_per_s - tokens_per_s / calibration.answer_tokens
    if calibration.requests_per_s:
        share += max(0.0, beyond) / calibration.requests_per_s
    return share


def workers_for(tokens_per_s: float, turns_per_s: float, calibration: Calibration) -> int:
    """So many workers as leave each of them room: load / (0.7 x ceiling), rounded up."""
    return max(1, math.ceil(ceiling_share(tokens_per_s, turns_per_s, calibration) / ROOM))


def advice(clients: Sequence[ClientSummary], calibration: Calibration | None) -> str:
    """What would have done, in one sentence: more workers, or a host that lets them run."""
    used = sum(one.cpu_share_mean or 0.0 for one in clients)
    waited = sum(one.cpu_wait_share_mean or 0.0 for one in clients)
    here = len(clients)
    needed = math.ceil((used + waited) / ROOM)
    if calibration is not None:
        tokens = sum(one.tokens_per_s or 0.0 for one in clients)
        turns = sum(one.turns_per_s or 0.0 for one in clients)
        needed = max(needed, workers_for(tokens, turns, calibration))
    if needed > here:
        more = f"{needed} workers would have done"
        # A worker that has no more CPU does not show how much it would have used.
        more = f"at least {more}" if any(one.busy_seconds for one in clients) else more
        if waited > used:
            return f"{more}, on hosts with free cores: they waited for a CPU longer than they had one"
        return more
    if not used:
        return "add workers or hosts, or lower the load"
    share = used / max(here, 1)
    if waited > WAITED * here:
        return (
            f"workers used {share:.0%} of a core each and waited for one for {waited / here:.0%} of the time: give "
            "them free cores, or other hosts"
        )
    return (
        f"workers used {share:.0%} of a core each: something kept them from running (a CPU limit, other processes, a "
        "stopped machine); move them to free cores or other hosts"
    )
