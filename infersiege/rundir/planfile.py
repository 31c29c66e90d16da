"""plan.json: what was run, and every fact of the run that is in no turn."""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.errors import RunDirectoryError
from infersiege.plan.bounds import DEEPEST, deeper_than
from infersiege.plan.schema import Plan
from infersiege.records import (
    SCHEMA_VERSION,
    BudgetUse,
    Calibration,
    RateUse,
    ServedRequests,
    StoppedEarly,
    TelemetryAccount,
    TextLengths,
    TraceAccount,
    WorkerSummary,
    WrittenPrompts,
)
from infersiege.rundir.damage import Span, span_of_run
from infersiege.rundir.names import PLAN, run_stem


class ChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one channel's target, without secrets."""

    url: str
    """The final URL that requests went to, redacted."""
    engine: str
    dialect: str
    model: str
    emulated: bool = False
    """The target said that it is infersiege's own emulator."""
    version: str | None = None
    """Version of the engine, where it tells."""
    insecure: bool = False
    """The server's certificate was not verified."""
    streamed: bool = True
    dropped_fields: tuple[str, ...] = ()
    """Request fields that the server refuses, so that requests are sent without them (CL-04)."""
    cache_hint: str | None = None
    """Which flag of the server would make it tell cached tokens."""
    details: dict[str, str] = {}
    """Anything else that the preflight saw (context length, parallel slots …)."""


class StreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One of several loads side by side, in one stage."""

    mode: str
    """`closed`, `open` or `replay`."""
    scenarios: tuple[str, ...]
    """That it plays."""
    users: int | None = None
    rate: float | None = None
    arrivals: int | None = None
    """As in StageFacts."""


class StageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One stage on the time axis. Instants in ns since the Unix epoch on the master's clock."""

    name: str
    started_ns: int
    steady_started_ns: int
    """End of the warm-up."""
    steady_ended_ns: int
    """End of the offered load. When a run ended early, its true end."""
    users: int | None = None
    """Closed loop: sessions asked for, over all workers; of loads side by side, together (also below)."""
    rate: float | None = None
    """Open loop and replay: sessions per second asked for."""
    arrivals: int | None = None
    """Open loop and replay: arrivals that the schedule has in the steady phase, also those for which the trace had no
    session left; None while the run goes on."""
    started_dirty: bool = False
    """The engine was not idle when it began."""
    streams: tuple[StreamFacts, ...] = ()
    """What each load asked for, where there are several side by side."""


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """plan.json: what was run, and every fact of the run that is in no turn.

    Written once before the first turn, and again at the end, when `ended_ns`, `traces` and `workers` are known. With
    turns.jsonl it is all that a rebuild needs.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    name: str
    created_ns: int
    started_ns: int | None = None
    """First arrival due; None: the run did not get that far."""
    ended_ns: int | None = None
    """None: the run did not end by itself (crash, kill)."""
    interrupted: bool = False
    stopped_early: StoppedEarly | None = None
    """By a rule with `abort`; None: it was not."""
    nonce: str
    """Salt of the prompts; set it in the plan to repeat the run to the letter."""
    plan_hash: str | None = None
    plan: dict[str, Any]
    """The resolved plan (infersiege.plan.schema.Plan as plain values), redacted."""
    versions: dict[str, str] = {}
    """infersiege, python, locust, gevent …"""
    host: dict[str, str] = {}
    """The master's machine: cpu, cores, memory, kernel."""
    calibration: Calibration | None = None
    """What a worker of it can do; None: it was never measured (`infersiege calibrate`)."""
    channels: dict[str, ChannelFacts] = {}
    trace_hashes: dict[str, str] = {}
    """scenario -> SHA-256 of its trace."""
    stages: tuple[StageFacts, ...] = ()
    traces: tuple[TraceAccount, ...] = ()
    workers: tuple[WorkerSummary, ...] = ()
    workers_asked: int | None = None
    missing_workers: tuple[str, ...] = ()
    """Of which not all records are here (`recover --partial`): how much of the load was there can't be told."""
    text_lengths: dict[str, dict[str, TextLengths]] = {}
    """Channel -> language -> how synthesised text got its lengths; what is missing went by the usual ratio."""
    written_prompts: dict[str, WrittenPrompts] = {}
    """Scenario -> how its prompts got their lengths; only of scenarios without recorded messages and tools."""
    planned_turns: int | None = None
    """Turns of all started sessions, as the workers' farewells say; None: only the turns tell."""
    budgets: tuple[BudgetUse, ...] = ()
    """What was used of the plan's budgets, as the workers counted it; empty before the end, and without a budget."""
    rate_limits: tuple[RateUse, ...] = ()
    """What its rate limits did; the same."""
    invalid: tuple[str, ...] = ()
    """Reasons that only the master could see."""
    warnings: tuple[str, ...] = ()
    served: tuple[ServedRequests, ...] = ()
    """What the engines counted themselves; `answered` and `sent` are for the summary to fill in."""
    telemetry: TelemetryAccount | None = None
    """None: the plan names no InfluxDB, or the run did not end by itself."""

    @property
    def run_key(self) -> str:
        """The run in InfluxDB: UTC start, name, id. Sorts by time, and is told apart from any other run."""
        return f"{run_stem(self.name, self.created_ns)}-{self.run_id}"

    @property
    def span(self) -> Span:
        """When its rows may be, for `RunDirectory.read_turns`: others were damaged."""
        return span_of_run(self.created_ns, self.ended_ns)

    @property
    def emulated(self) -> bool:
        """Some target was infersiege's own emulator."""
        return any(channel.emulated for channel in self.channels.values())

    def typed_plan(self) -> Plan:
        """The plan as the schema's type.

        Raises RunDirectoryError when it is not one of this version's plans.
        """
        try:
            return msgspec.convert(self.plan, Plan)
        except msgspec.ValidationError as error:
            raise RunDirectoryError(
                f"{PLAN}: the plan of run {self.run_id} can't be read: {error}",
                hint="read it with the version of infersiege that made it (versions.infersiege in the file)",
            ) from None


LARGEST = 2**63
"""Instants, counts and seeds are below it; what is computed of them fits."""


def impossible(file: PlanFile) -> str | None:
    """What a run can't have written into plan.json, as one sentence; None: nothing that this looks at."""
    try:
        values = msgspec.to_builtins(file)
    except RecursionError:
        return _TOO_DEEP
    # The plan is a few tables below the top of the file.
    if deeper_than(DEEPEST + 10, values):
        return _TOO_DEEP
    place = first_too_large(values)
    return None if place is None else f"{place}: no run has a number of that size"


_TOO_DEEP = "nested too deeply: no plan is"


def first_too_large(value: object, place: str = "$") -> str | None:
    """Where plain values (dicts, lists, numbers) hold a number beyond LARGEST: `$.stages[0].users`; None: nowhere."""
    if isinstance(value, dict):
        parts = [(f"{place}.{key}", one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{number}]", one) for number, one in enumerate(value)]
    else:
        return place if isinstance(value, int | float) and not -LARGEST <= value < LARGEST else None
    return next((found for name, one in parts if (found := first_too_large(one, name)) is not None), None)
