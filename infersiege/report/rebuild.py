"""From a run directory to its summary and report: every figure comes from turns.jsonl and plan.json alone.

Series of GPUs and engines (telemetry/*.jsonl) add what they saw, where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

import msgspec

from infersiege import gate, resources
from infersiege.cost import settle
from infersiege.errors import InfersiegeError, RunDirectoryError
from infersiege.metrics import client
from infersiege.metrics.batch import Batch, Observer
from infersiege.metrics.collect import Collector
from infersiege.metrics.facts import AskedLoad, RunFacts, SteadyWindow
from infersiege.metrics.lives import Sessions
from infersiege.metrics.served import RequestTally, disagreements
from infersiege.metrics.summary import summary_of
from infersiege.metrics.windows import Windows
from infersiege.plan.schema import Plan
from infersiege.plan.streams import Stream, streams_of
from infersiege.quality.items import FORMAT
from infersiege.records import ClientHealth, EventRow, SeriesRow, Summary, Verdict, WindowRow
from infersiege.report.collect import Collected
from infersiege.report.details import Details
from infersiege.report.html import render
from infersiege.report.numbers import span
from infersiege.report.pieces import observe, observe_in_pieces
from infersiege.report.words import ENGLISH, Words
from infersiege.rundir import SERIES, TURNS, LeftOut, PlanFile, RunDirectory, StageFacts, StreamFacts
from infersiege.schedule import SECOND_NS, expected

SERIES_AROUND_NS = 30 * 1_000_000_000
"""Points of GPUs and engines so long before the start and after the end still show how the run began and ended."""

NOT_ENDED = "the run did not end by itself (crash or kill): what its workers still held is missing; run it again"


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one pass over the turns gives."""

    summary: Summary
    plan: PlanFile
    windows: tuple[WindowRow, ...]
    collected: Collected
    events: tuple[EventRow, ...]
    watched: resources.Watched = resources.Watched()
    """GPUs and engines of telemetry/*.jsonl."""
    details: Details = msgspec.field(default_factory=Details)

    @property
    def examples(self) -> Mapping[str, str]:
        """error_class -> one detail, for `tables.print_summary`."""
        return self.collected.examples


class _Span:
    """First and last instant that any turn knows: when a run without an end began and ended."""

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def add_batch(self, batch: Batch) -> None:
        if not batch.turns:
            return
        due_ns = batch.ints("due_ns")
        # An absent instant is the smallest number of all.
        last_ns = max(int(batch.ints(name).max()) for name in ("due_ns", "sent_ns", "closed_ns"))
        first_ns = int(due_ns.min())
        self._see(first_ns, last_ns)

    def merge(self, other: _Span) -> None:
        """Add what `other` knows."""
        if other.first_ns is not None and other.last_ns is not None:
            self._see(other.first_ns, other.last_ns)

    def _see(self, first_ns: int, last_ns: int) -> None:
        self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)


def _loads(plan: Plan, stages: Sequence[StageFacts]) -> Iterator[AskedLoad]:
    """What the plan asked for, by stage and load."""
    # A run that ends after so many sessions runs out of them before its last users are done: what was asked is the
    # sessions, not the users.
    counted = _is_counted(plan)
    if not stages:
        yield AskedLoad(mode=plan.load.mode, users=None if counted else plan.load.users, rate=plan.load.rate)
    streams = streams_of(plan) if stages else ()
    for place, facts in enumerate(stages):
        one_or_more: Sequence[StageFacts | StreamFacts] = facts.streams or (facts,)
        for stream, told in zip(streams, one_or_more, strict=False):
            yield AskedLoad(
                mode=stream.load.mode,
                stage=facts.name if len(stages) > 1 else None,
                scenarios=stream.scenarios if len(streams) > 1 else (),
                users=None if counted else told.users,
                rate=_mean_rate(stream, place, facts, stages[0].started_ns) if stream.rates else told.rate,
                arrivals=told.arrivals,
            )


def _is_counted(plan: Plan) -> bool:
    return plan.run.stop is not None and plan.run.stop.sessions is not None


def _settling(plan: Plan, stages: Sequence[StageFacts]) -> str | None:
    """As RunFacts has it: the longer one of warm-up and ramp."""
    settling_ns = stages[0].steady_started_ns - stages[0].started_ns if stages else 0
    if settling_ns <= 0:
        return None
    own = plan.load.stages[0].warmup_ns if plan.load.stages else None
    warmup_ns, where = plan.load.warmup_ns if own is None else own, "stage" if plan.load.stages else "load"
    ramp = settling_ns > warmup_ns
    return f"{'ramp' if ramp else 'warm-up'} of {span(settling_ns)} ({where}.{'ramp' if ramp else 'warmup'})"


def _mean_rate(stream: Stream, place: int, facts: StageFacts, started_ns: int) -> float | None:
    """Of a rate that changes over time, over the steady phase; None: there is none."""
    if place >= len(stream.rates) or facts.steady_ended_ns <= facts.steady_started_ns:
        return None
    first_ns, last_ns = facts.steady_started_ns - started_ns, facts.steady_ended_ns - started_ns
    return expected(stream.rates[place], first_ns, last_ns) * SECOND_NS / (last_ns - first_ns)


def run_facts(file: PlanFile, *, started_ns: int, ended_ns: int, noticed: Sequence[str] = ()) -> RunFacts:
    """The facts of plan.json in the form that metrics take. `noticed`: what was wrong with the files.

    Raises RunDirectoryError when the plan inside can't be read.
    """
    plan = file.typed_plan()
    return RunFacts(
        run_id=file.run_id,
        name=file.name,
        started_ns=started_ns,
        ended_ns=ended_ns,
        interrupted=file.interrupted,
        emulated=tuple(name for name, channel in file.channels.items() if channel.emulated),
        steady=tuple(
            SteadyWindow(
                stage=stage.name, start_ns=stage.steady_started_ns, end_ns=min(stage.steady_ended_ns, ended_ns)
            )
            for stage in file.stages
        ),
        settling=_settling(plan, file.stages),
        counted=_is_counted(plan),
        # Against half of the records every load looks undelivered.
        loads=() if file.missing_workers else tuple(_loads(plan, file.stages)),
        limits=gate.request_limits(plan.slos),
        cuts=gate.cuts(plan.slos),
        streamed={name: channel.stream for name, channel in plan.channels.items()},
        checked=frozenset(workload.scenario for workload in plan.workloads if workload.format == FORMAT),
        cache_hints={name: channel.cache_hint for name, channel in file.channels.items() if channel.cache_hint},
        written_prompts=file.written_prompts,
        planned_turns=file.planned_turns,
        traces=file.traces,
        workers=file.workers,
        calibration=file.calibration,
        rate_limits=file.rate_limits,
        invalid=(*file.invalid, *((NOT_ENDED,) if file.ended_ns is None else ())),
        warnings=(*file.warnings, *noticed),
    )


def read(run: RunDirectory, also: Sequence[Observer] = (), *, processes: int | None = None) -> Rebuilt:
    """Read the run and put its figures together; writes nothing.

    One pass over the turns, none of which is kept; a run that did not end by itself takes one more before it, to learn
    when it did. `also`: who else wants to see them. Raises RunDirectoryError: a file is missing, damaged or of a newer
    schema.
    """
    file = run.read_plan()
    noticed: list[str] = []
    damage: list[str] = []
    """Of the series: told after everything else."""
    left_out = LeftOut()
    started_ns, ended_ns = _when(run, file)
    facts = run_facts(file, started_ns=started_ns, ended_ns=ended_ns)
    sessions = Sessions()
    rows, collector = Windows(facts.limits, facts.streamed, sessions), Collector(facts, sessions)
    collected, clients, requests = Collected(), client.ClientWatch(), RequestTally()
    details = Details(clients=clients)
    observers: tuple[Observer, ...] = (rows, collector, collected, clients, requests, details, *also)
    _observe(run, file, observers, noticed.append, left_out, processes=processes)
    events = _events(run, noticed)
    collector.facts = msgspec.structs.replace(
        facts,
        invalid=(*facts.invalid, *left_out.reasons),
        warnings=(*facts.warnings, *noticed),
        clients=client.summaries(details.watching(_health(run, damage)), clients, facts.steady),
    )
    summary = summary_of(collector)
    plan = file.typed_plan()
    watched = _gathered(run, file, plan, (started_ns, ended_ns), damage)
    found = resources.stages(watched, summary, facts.steady)
    served = requests.compared(file.served)
    summary = msgspec.structs.replace(
        summary,
        resources=found,
        telemetry=file.telemetry,
        stopped_early=file.stopped_early,
        budgets=file.budgets,
        rate_limits=file.rate_limits,
        served=served,
        warnings=tuple(
            dict.fromkeys((*summary.warnings, *disagreements(served), *resources.warnings(found, watched), *damage))
        ),
    )
    summary = settle(summary, {name: channel.price for name, channel in plan.channels.items()})
    return Rebuilt(
        summary=summary,
        plan=file,
        windows=tuple(rows.take_rows()),
        collected=collected,
        events=events,
        watched=watched,
        details=details,
    )


def _observe(
    run: RunDirectory,
    file: PlanFile,
    observers: Sequence[Observer],
    on_torn: Callable[[str], None] | None = None,
    left_out: LeftOut | None = None,
    *,
    processes: int | None = None,
) -> None:
    """Show all turns to observers that have seen none. Arguments and errors as those of `read_turn_batches`."""
    if not observe_in_pieces(run.path / TURNS, file.span, observers, processes=processes):
        observe(run.read_turn_batches(on_torn, span=file.span, left_out=left_out), observers)


def _when(run: RunDirectory, file: PlanFile) -> tuple[int, int]:
    """(start, end) of the run in ns, from its turns where the plan does not tell."""
    seen = _Span()
    if file.started_ns is None or file.ended_ns is None:
        _observe(run, file, (seen,))
    started_ns = next((at for at in (file.started_ns, seen.first_ns) if at is not None), file.created_ns)
    return started_ns, next((at for at in (file.ended_ns, seen.last_ns) if at is not None), started_ns)


def _health(run: RunDirectory, damage: list[str]) -> Iterator[ClientHealth]:
    """How the workers did; damage there is a warning, and what came before it counts."""
    try:
        yield from run.read_health(damage.append)
    except RunDirectoryError as error:
        damage.append(f"{error}; the rest of the workers' health is left out")


def _gathered(
    run: RunDirectory, file: PlanFile, plan: Plan, span_ns: tuple[int, int], damage: list[str]
) -> resources.Watched:
    """Series of GPUs and engines. They only tell more: damage there is a warning, and what came before it counts."""

    def rows() -> Iterator[SeriesRow]:
        for name in SERIES:
            try:
                yield from run.read_series(name, damage.append)
            except RunDirectoryError as error:
                damage.append(f"{error}; the rest of these series is left out")

    started_ns, ended_ns = span_ns
    return resources.gather(
        rows(),
        span_ns=(started_ns - SERIES_AROUND_NS, ended_ns + SERIES_AROUND_NS),
        hosts=plan.telemetry.hosts,
        instances=[instance for channel in file.channels.values() if (instance := instance_of(channel.url))],
        here=(file.host.get("name", ""), *(worker.host for worker in file.workers)),
    )


def instance_of(url: str) -> str | None:
    """host:port of a URL, as an engine's series name it; None: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    host = parts.hostname
    if not host or port is None:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _events(run: RunDirectory, noticed: list[str]) -> tuple[EventRow, ...]:
    """Events only tell more: without them the run is as good, and damage there is a warning."""
    events: list[EventRow] = []
    if not run.has_events():
        return ()
    try:
        events.extend(run.read_events())
    except RunDirectoryError as error:
        noticed.append(f"{error}; events are left out")
    return tuple(events)


def judged(found: Rebuilt, *, gated: bool) -> Rebuilt:
    """The same with rules, verdict and exit code in its summary.

    `gated`: broken rules count in the exit code. Otherwise they are shown, and only an invalid, an interrupted or an
    all-failed run has a code other than 0. A plan without rules gets no verdict from the built-in ones alone, unless
    they fail.
    """
    slos = found.plan.typed_plan().slos
    summary = found.summary
    rules = gate.judge(slos, summary)
    verdict = gate.overall(summary, rules)
    summary = msgspec.structs.replace(
        summary,
        rules=rules,
        verdict=verdict if gated or slos or verdict is not Verdict.PASS else None,
        exit_code=int(gate.exit_code(summary, rules, gated=gated)),
    )
    return msgspec.structs.replace(found, summary=summary)


def rebuild(run: RunDirectory) -> Summary:
    """The summary of a run, rules judged, from its turns and its plan; writes nothing. Raises as `read`."""
    return judged(read(run), gated=False).summary


def finish(run: RunDirectory, *, gated: bool = False) -> Summary:
    """`read`, `judged` and `write`: the same for a run that ends, for `report` and for `gate`.

    Raises as `read`, and UsageError when a file can't be written.
    """
    return write(run, judged(read(run), gated=gated))


def write(
    run: RunDirectory,
    found: Rebuilt,
    on_unwritten: Callable[[InfersiegeError], None] | None = None,
    say: Words = ENGLISH,
) -> Summary:
    """Write windows.jsonl, summary.json and report.html (in the language of `say`); returns the summary.

    A file that can't be written is told to `on_unwritten`, and the others are written all the same; without it,
    UsageError is raised.
    """
    for step in (_write_windows, _write_summary, partial(write_page, say=say)):
        try:
            step(run, found)
        except InfersiegeError as error:
            if on_unwritten is None:
                raise
            on_unwritten(error)
    return found.summary


def write_figures(run: RunDirectory, found: Rebuilt) -> None:
    """windows.jsonl and summary.json. Raises UsageError when one can't be written."""
    _write_windows(run, found)
    _write_summary(run, found)


def write_page(run: RunDirectory, found: Rebuilt, say: Words = ENGLISH) -> None:
    """report.html. Raises UsageError when it can't be written; it can be made at any time from the other files."""
    parts = (found.summary, found.plan, found.windows, found.collected, found.events, found.watched, found.details)
    run.write_report(render(*parts, say))


def _write_windows(run: RunDirectory, found: Rebuilt) -> None:
    run.write_windows(found.windows)


def _write_summary(run: RunDirectory, found: Rebuilt) -> None:
    run.write_summary(found.summary)
