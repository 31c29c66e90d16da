"""Live figures of the whole fleet, from the workers' reports. For the eye, and to see that a run is without hope:
results come from the records.

What a report costs depends on its own size, and what a look at the figures costs on neither the number of workers nor
that of requests: sums are kept, and histograms are merged as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from infersiege.gate import rule_name
from infersiege.gate.abort import AbortWatch
from infersiege.metrics.histogram import percentiles
from infersiege.metrics.merging import add_counts
from infersiege.plan.schema import Slo
from infersiege.records import Phase, Report, StoppedEarly
from infersiege.report.live import LiveState
from infersiege.swarm.ending import Ending
from infersiege.swarm.fleet import Fleet
from infersiege.swarm.timeline import Timeline

OVER_NS = 10_000_000_000
"""Rates and percentiles are over so much of the last time."""

SLOT_NS = 1_000_000_000
"""Histograms that come within one second are one from then on."""

GAUGES = ("sessions", "in_flight", "planned_turns", "closed_turns", "chunks")
"""Of a report: where its worker is by then, and not what came since the last one."""


class LiveFigures:
    """Merges reports: counts add up, histograms merge, gauges are the last of each worker."""

    def __init__(self, slos: Sequence[Slo] = ()) -> None:
        """`slos`: rules of the plan, of which those with `abort` may stop the run."""
        self._slos = slos
        self._abort = AbortWatch(slos)
        self.stopped_early: StoppedEarly | None = None
        self.ok = 0
        self.failed = 0
        self.errors: dict[str, int] = {}
        self._latest: dict[str, Report] = {}
        self._sums = dict.fromkeys(GAUGES, 0)
        """Of the latest reports."""
        self._marks: deque[tuple[int, int, int]] = deque()
        self._ttft: deque[tuple[int, dict[int, int]]] = deque()
        """Of each second in which some came: its number, and all of them."""

    def add(self, report: Report, now_ns: int) -> None:
        self._count(self._latest.get(report.worker), report)
        self._latest[report.worker] = report
        self._abort.add(report.windows)
        for row in report.windows:
            self.ok += row.ok
            self.failed += row.failed
            if row.errors:
                add_counts(self.errors, row.errors)
            if row.ttft:
                self._add_ttft(row.ttft, now_ns // SLOT_NS)

    def _add_ttft(self, counts: Mapping[int, int], slot: int) -> None:
        if not self._ttft or self._ttft[-1][0] != slot:
            self._ttft.append((slot, {}))
        add_counts(self._ttft[-1][1], counts)

    def hopeless(self, now_ns: int, *, at_ns: int) -> str | None:
        """Why the run should stop: a rule with `abort` can't pass any more; None: go on. `at_ns`: now, in epoch ns."""
        self.stopped_early = found = self._abort.look(now_ns, at_ns=at_ns)
        return None if found is None else f"{rule_name(self._slos[found.place])}: {found.words}"

    def drop(self, worker: str) -> None:
        """A lost worker plays nothing any more."""
        self._count(self._latest.pop(worker, None), None)

    def _count(self, before: Report | None, now: Report | None) -> None:
        for name in GAUGES:
            self._sums[name] += getattr(now, name, 0) - getattr(before, name, 0)

    @property
    def sessions(self) -> int:
        return self._sums["sessions"]

    @property
    def in_flight(self) -> int:
        return self._sums["in_flight"]

    @property
    def planned_turns(self) -> int:
        return self._sums["planned_turns"]

    @property
    def closed_turns(self) -> int:
        return self._sums["closed_turns"]

    @property
    def error_share(self) -> float | None:
        ended = self.ok + self.failed
        return self.failed / ended if ended else None

    @property
    def held(self) -> int:
        """Buckets and marks in memory: bounded by the time that figures are over, not by the length of the run."""
        return len(self._marks) + sum(len(counts) for _, counts in self._ttft)

    def ttft_percentiles(self, now_ns: int) -> tuple[int | None, int | None]:
        """(p50, p99) in ns of the answers that ended in the last seconds."""
        while self._ttft and (now_ns - OVER_NS) // SLOT_NS > self._ttft[0][0]:
            self._ttft.popleft()
        merged: dict[int, int] = {}
        for _, counts in self._ttft:
            add_counts(merged, counts)
        p50, p99 = percentiles(merged, (0.5, 0.99))
        return p50, p99

    def rates(self, now_ns: int) -> tuple[float | None, float | None]:
        """(successful turns/s, content chunks/s) over the last seconds; None before there are two looks."""
        chunks = self._sums["chunks"]
        self._marks.append((now_ns, self.ok, chunks))
        while now_ns - self._marks[0][0] > OVER_NS:
            self._marks.popleft()
        then_ns, ok, then_chunks = self._marks[0]
        if now_ns <= then_ns:
            return None, None
        seconds = (now_ns - then_ns) / 1e9
        return max(0, self.ok - ok) / seconds, max(0, chunks - then_chunks) / seconds

    def state(
        self, now_ns: int, timeline: Timeline, ending: Ending | None, fleet: Fleet, note: str | None = None
    ) -> LiveState:
        """What the view shows at this moment (monotonic). `note`: what else there is to say while load is offered."""
        left_ns = None
        if ending is not None:
            left_ns = max(0, ending.at_ns + ending.drain_ns - now_ns)
        elif timeline.load_end_ns is not None:
            left_ns = max(0, timeline.load_end_ns - now_ns)
        place = timeline.place_of(now_ns)
        turns_rate, chunk_rate = self.rates(now_ns)
        p50, p99 = self.ttft_percentiles(now_ns)
        return LiveState(
            now_ns=now_ns,
            stage=place.stage,
            phase=Phase.DRAIN if ending else place.phase,
            elapsed_ns=max(0, now_ns - timeline.start_ns),
            left_ns=left_ns,
            users=self.sessions,
            in_flight=self.in_flight,
            over_ns=OVER_NS,
            turns_per_second=turns_rate,
            tokens_per_second=chunk_rate,
            ttft_p50_ns=p50,
            ttft_p99_ns=p99,
            planned=self.planned_turns,
            closed=self.closed_turns,
            failed=self.failed,
            error_share=self.error_share,
            workers_alive=len(fleet.alive()),
            workers=fleet.expected,
            note="waiting for open turns" if ending else note,
        )
