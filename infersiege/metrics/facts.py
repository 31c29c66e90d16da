"""What a summary needs beside the turns: plain values, so that metrics depend on no plan and no run directory."""

from __future__ import annotations

import msgspec

from infersiege.records import Calibration, ClientSummary, RateUse, TraceAccount, WorkerSummary, WrittenPrompts


class SteadyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The steady phase of one stage, [start_ns, end_ns) on the master's clock. Those of two stages never overlap."""

    stage: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return max(self.end_ns - self.start_ns, 0)


class AskedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load that the plan asked for in one stage."""

    mode: str
    """`closed`, `open` or `replay`."""
    stage: str | None = None
    """None: every stage."""
    scenarios: tuple[str, ...] = ()
    """That it plays; empty: all of them."""
    users: int | None = None
    """Closed: sessions at a time, over all workers."""
    rate: float | None = None
    """Open: sessions per second, over all workers."""
    arrivals: int | None = None
    """Open: arrivals that the process has in the steady window, also those for which no trace had a session; replay: of
    the trace; None: not counted."""

    def plays(self, scenario: str) -> bool:
        return not self.scenarios or scenario in self.scenarios


class RequestLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that each single turn is held to (goodput), in the metric's unit."""

    metric: str
    at_most: float
    scenario: str | None = None
    channel: str | None = None
    stage: str | None = None

    def covers(self, scenario: str, channel: str, stage: str) -> bool:
        return Cut(scenario=self.scenario, channel=self.channel, stage=self.stage).covers(scenario, channel, stage)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the run; None: all."""

    scenario: str | None = None
    channel: str | None = None
    stage: str | None = None
    replica: str | None = None

    def covers(self, scenario: str, channel: str, stage: str, replica: str | None = None) -> bool:
        return (
            self.scenario in (None, scenario)
            and self.channel in (None, channel)
            and self.stage in (None, stage)
            and self.replica in (None, replica)
        )


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one run that are in no turn. Instants in ns since the Unix epoch on the master's clock."""

    run_id: str
    name: str
    started_ns: int
    ended_ns: int
    interrupted: bool = False
    emulated: tuple[str, ...] = ()
    """Channels whose target said that it is our own emulator (turns with the flag `emulated` say so as well)."""
    steady: tuple[SteadyWindow, ...] = ()
    settling: str | None = None
    """What of the first stage is in no figure, and by which key: `ramp of 1 s (load.ramp)`; None: nothing is, or it is
    not known."""
    counted: bool = False
    """It was to end with so many sessions."""
    loads: tuple[AskedLoad, ...] = ()
    limits: tuple[RequestLimit, ...] = ()
    """Per-request limits behind goodput (gate.request_limits)."""
    cuts: tuple[Cut, ...] = ()
    """Groups that rules need beside the usual ones (gate.cuts)."""
    streamed: dict[str, bool] = {}
    """Channel -> a stream was asked for; channels that are not named were streamed."""
    checked: frozenset[str] = frozenset()
    """Scenarios of checked prompts: only a group of their own has their latencies."""
    cache_hints: dict[str, str] = {}
    """Channel -> which flag of the server would make it tell cached tokens."""
    written_prompts: dict[str, WrittenPrompts] = {}
    """Scenario -> how its prompts got their lengths; only of those whose prompts we wrote ourselves."""
    planned_turns: int | None = None
    """Turns of all started sessions, as the workers planned them; None: only the records tell."""
    traces: tuple[TraceAccount, ...] = ()
    workers: tuple[WorkerSummary, ...] = ()
    clients: tuple[ClientSummary, ...] = ()
    """How fit each worker was in steady (metrics.client); empty: nothing tells."""
    calibration: Calibration | None = None
    """What a worker of the master's host can do; None: it was not measured."""
    rate_limits: tuple[RateUse, ...] = ()
    """What rate limits of channels did to the load."""
    invalid: tuple[str, ...] = ()
    """Reasons that only the master could see."""
    warnings: tuple[str, ...] = ()
