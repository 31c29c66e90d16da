"""Tells what the stages of a run do as its time goes by, and looks whether the engines are idle when one begins."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.pool import Group

from infersiege.plan.schema import Plan
from infersiege.plan.streams import streams_of
from infersiege.swarm.timeline import Timeline
from infersiege.telemetry.idle import EnginePage, ask, engine_pages

LOOK_SHARE = 0.15
LONGEST_LOOK_NS = 500_000_000
"""So long before a pause ends (the smaller of the two) the engines are looked at: after what was still open was
cancelled, before the next stage sends anything."""
SHORTEST_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class StageEvent:
    """A row of events.jsonl to be."""

    at_ns: int
    """Monotonic."""
    kind: str
    stage: str
    detail: str


class StageWatch:
    """The master's look at the time axis. Nothing here blocks: engines are asked in greenlets of their own."""

    def __init__(self, plan: Plan, timeline: Timeline, environ: Mapping[str, str]) -> None:
        self._timeline = timeline
        self._environ = environ
        self._engines = engine_pages(plan)
        modes = dict.fromkeys(stream.load.mode for stream in streams_of(plan))
        self._load = f"{' and '.join(modes)} load"
        self._told = self._looked = 0
        self._ahead = list(self._events())
        self._looks: list[Any] = []
        self._found: list[StageEvent] = []
        self.dirty: set[str] = set()
        """Stages at whose start an engine was not idle."""

    def _events(self) -> Iterator[StageEvent]:
        start_ns, spans = self._timeline.start_ns, self._timeline.spans
        for number, span in enumerate(spans):
            if number:
                yield StageEvent(start_ns + span.start_ns, "stage_started", span.name, f"{span.name}: {self._load}")
            steady = f"{span.name}: figures are of turns due from here on"
            yield StageEvent(start_ns + span.steady_ns, "steady_started", span.name, steady)
            if span.load_end_ns is not None and number + 1 < len(spans):
                pause = f", {(span.end_ns or 0) / 1e9 - span.load_end_ns / 1e9:g} s of pause" * span.paused_after
                yield StageEvent(start_ns + span.load_end_ns, "stage_ended", span.name, f"{span.name}: is over{pause}")

    @property
    def first(self) -> StageEvent:
        """The start of the first stage, which everybody waits for."""
        name = self._timeline.spans[0].name
        return StageEvent(self._timeline.start_ns, "stage_started", name, f"{name}: {self._load}")

    def passed(self, now_ns: int) -> Iterator[StageEvent]:
        """What has happened since the last call."""
        self._look_ahead(now_ns)
        while self._told < len(self._ahead) and self._ahead[self._told].at_ns <= now_ns:
            yield self._ahead[self._told]
            self._told += 1
        found, self._found = self._found, []
        yield from found

    def _look_ahead(self, now_ns: int) -> None:
        spans = self._timeline.spans
        while self._looked + 1 < len(spans):
            span, following = spans[self._looked], spans[self._looked + 1]
            pause_ns = following.start_ns - (span.load_end_ns or 0)
            early_ns = min(round(pause_ns * LOOK_SHARE), LONGEST_LOOK_NS)
            starts_ns = self._timeline.start_ns + following.start_ns
            if now_ns < starts_ns - early_ns:
                return
            self._looked += 1
            if span.paused_after and self._engines:
                self._looks.append(gevent.spawn(self._look, following.name, starts_ns))

    def _look(self, stage: str, starts_ns: int) -> None:
        """Ask all engines at once: one after the other, the last ones would tell of the next stage's own turns."""
        asked = Group()
        answers = [(page, asked.spawn(self._ask, page, stage, starts_ns)) for page in self._engines]
        asked.join(timeout=max(0.0, (starts_ns - time.monotonic_ns()) / 1e9))
        silent = Counter(page.name for page, answer in answers if not answer.value)
        if silent:
            names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in silent.items())
            unknown = f"{stage}: not known whether idle, no figures before the stage began: {names}"
            self._found.append(StageEvent(time.monotonic_ns(), "idle_unknown", stage, unknown))

    def _ask(self, page: EnginePage, stage: str, starts_ns: int) -> bool:
        """Whether an engine told in time: an answer that comes when the stage has begun would count its own turns."""
        told = ask(page, self._environ, max(SHORTEST_LOOK_S, (starts_ns - time.monotonic_ns()) / 1e9))
        if told is None or time.monotonic_ns() >= starts_ns:
            return False
        if told.running or told.waiting:
            self.dirty.add(stage)
            still = f"{stage}: {page.name} still had {told.running:.0f} running and {told.waiting:.0f} waiting requests"
            self._found.append(StageEvent(time.monotonic_ns(), "started_dirty", stage, still))
        return True
