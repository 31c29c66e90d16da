"""Writes a run to InfluxDB while it goes on, and exactly when it is over. Nothing here stops or delays a run.

Points go through the durable writer: memory, disk, a sender process of its own. What is wrong is a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from infersiege_agents.errors import AgentError
from infersiege_agents.influx.spool import spool_directory
from infersiege_agents.influx.target import Target
from infersiege_agents.influx.writer import DurableWriter
from infersiege_agents.points import Point

from infersiege.errors import UsageError
from infersiege.metrics.merging import WindowSums
from infersiege.plan.schema import Plan
from infersiege.plan.streams import streams_of
from infersiege.records import EventRow, Report, TelemetryAccount, TurnRecord, WindowRow
from infersiege.report.rebuild import Rebuilt
from infersiege.rundir import PlanFile
from infersiege.telemetry.crossed import groups_of, pairs_of, uncounted
from infersiege.telemetry.database import database_of
from infersiege.telemetry.live import LiveGauges, WindowPoints, exact_points
from infersiege.telemetry.points import client_point, cut_points, event_point, run_points, start_point

EVERY_NS = 1_000_000_000
"""Between two rows of live figures."""

LOOK_AFTER_S = 2.0
"""From the start of a run: a database that is there has taken points by then."""
PATIENCE_S = 8.0
"""Time for the database to take what waits when the run is over; the rest stays in the spool."""
PATIENCE_AWAY_S = 3.0
"""The same for one that was not there already: it is not worth a long wait."""
EARLY_EVENTS = 100
"""Events before the load begins are kept for when it does; a run that never begins is not in the database."""

_POINTS_AT_A_TIME = 100
_TURNS_AT_A_TIME = 500
"""Some 20 ms of work; then signals and the status page have their turn."""
_BREATH_S = 0.001


class _TimeOverError(Exception):
    """What was begun can't be ended in time."""


class Publisher:
    """The run's own points. Every method is safe to call when the plan names no database, and none raises.

    In this order: `open`, `begin`, then `report`, `event`, `lost` and `tick` as it goes on, `finish`, `close`.
    """

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str],
        *,
        titles: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`titles`: kind of event -> its words. `sleep` lets others run while much is written."""
        self._plan = plan
        self._titles = titles
        self._clock = clock
        self._sleep = sleep
        self._hurried = False
        self.warnings: list[str] = []
        """What is worth a line in the summary."""
        self.target: Target | None = None
        """Where points go; None: nowhere."""
        self.say: Callable[[str], None] = lambda _line: None
        """Shows a line while the run goes on."""
        self._told = False
        self._began_s = 0.0
        self._spool = Path(plan.telemetry.spool) if plan.telemetry.spool else spool_directory(environ)
        self._writer: DurableWriter | None = None
        self._account: TelemetryAccount | None = None
        self._refusal: str | None = None
        self._taken_up = 0
        self._run = ""
        self._sums = WindowSums()
        """What the workers told since the last tick: each second of the run costs the same, however many they are."""
        self._live: WindowPoints | None = None
        self._gauges: LiveGauges | None = None
        self._early: list[EventRow] = []
        self._at_ns = 0
        self._workers = (0, 0)
        """Alive and expected, as last told."""
        try:
            self.target = database_of(plan.telemetry, environ)
        except UsageError as error:
            self.warnings.append(_nothing_written(error))

    # ------------------------------------------------------------------------------------------------- while it runs

    def open(self) -> None:
        """Start the writer, before the load: it may take a moment."""
        if self.target is None or self._writer is not None:
            return
        writer = DurableWriter(
            self.target, self._spool, source="run", named_by="[telemetry] spool" if self._plan.telemetry.spool else None
        )
        try:
            writer.start()
        except (AgentError, OSError) as error:
            self.warnings.append(_nothing_written(error))
            self.target = None
            return
        self.warnings += writer.notices
        self._writer = writer

    def begin(self, file: PlanFile) -> None:
        """The time axis is fixed: the run appears in the database."""
        if self._writer is None or file.started_ns is None:
            return
        self._run = file.run_key
        self._began_s = self._clock()
        steady_ns = file.stages[0].steady_started_ns if file.stages else file.started_ns
        self._live = WindowPoints(self._run, started_ns=file.started_ns, steady_ns=steady_ns)
        self._gauges = LiveGauges(self._run, streams_of(self._plan))
        self._put([start_point(file)])
        early, self._early = self._early, []
        for event in early:
            self.event(event)

    def event(self, event: EventRow) -> None:
        if self._writer is None:
            return
        if self._live is not None:
            self._put([event_point(self._run, event, self._titles)])
        elif len(self._early) < EARLY_EVENTS:
            self._early.append(event)

    def report(self, report: Report) -> None:
        """What a worker tells, once a second."""
        if self._live is None or self._gauges is None:
            return
        self._sums.add(report.windows)
        self._gauges.add(report)
        if report.health is not None:
            self._put([client_point(self._run, report.health)])

    def lost(self, worker: str) -> None:
        """A worker died: it has no gauges any more."""
        if self._gauges is not None:
            self._gauges.drop(worker)

    def tick(self, at_ns: int, *, elapsed_ns: int | None, alive: int, expected: int) -> None:
        """To be called often; writes once a second. As `LiveGauges.point`; `at_ns` on the master's clock."""
        if self._writer is None or self._live is None or self._gauges is None or at_ns - self._at_ns < EVERY_NS:
            return
        self._at_ns = at_ns
        self._workers = alive, expected
        self._live.add(self._sums.take())
        self._put(self._live.tick())
        self._put([self._gauges.point(at_ns, elapsed_ns=elapsed_ns, alive=alive, expected=expected)])
        self._writer.tick()
        self._tell_trouble(self._writer)

    def _tell_trouble(self, writer: DurableWriter) -> None:
        """Once in a run: its end is late to hear that nothing arrives."""
        if self._told or self._clock() - self._began_s < LOOK_AFTER_S:
            return
        why = _without(writer.target.token, writer.problem or writer.refusal)
        if why is not None:
            self._told = True
            url = writer.target.url
            self.say(f"warning: InfluxDB {url} does not take points: {why.removeprefix(f'{url}: ')}; the run goes on")

    # ------------------------------------------------------------------------------------------------ when it is over

    @property
    def away(self) -> bool:
        """The database does not take points now. One that refuses some is there."""
        return self._writer is not None and self._writer.problem is not None

    def finish(self, found: Rebuilt, turns: Callable[[], Iterable[TurnRecord]], *, within_s: float) -> None:
        """The exact figures, and every second again from its turns, as far as the time goes; `close` sends them.

        `turns` is called where figures are needed that the summary has no group for. Others run in between.
        """
        file, summary = found.plan, found.summary
        if self._live is None or self._gauges is None or file.started_ns is None or self._writer is None:
            return
        began = self._clock()
        pairs = pairs_of(found.windows)
        self._put(run_points(file, summary, pairs=pairs))
        # What the last reports told, so that sums over the run are whole and gauges end where the run did.
        alive, expected = self._workers
        at_ns = max(summary.ended_ns, self._at_ns + 1)
        self._put([self._gauges.point(at_ns, elapsed_ns=None, alive=alive, expected=expected)])
        if cuts := uncounted(summary, pairs):
            try:
                groups = groups_of(self._paced(turns(), began + within_s / 2), found, cuts)
            except _TimeOverError:
                self.warnings.append("InfluxDB has no figures by scenario and channel together: there was no time")
            else:
                self._put(cut_points(file, summary, groups))
        self._put_exact(file, found.windows, ends=began + within_s)

    def _paced(self, turns: Iterable[TurnRecord], ends: float) -> Iterator[TurnRecord]:
        """Raises _TimeOverError."""
        for number, turn in enumerate(turns, 1):
            yield turn
            if number % _TURNS_AT_A_TIME == 0 and not self._breathe(ends):
                raise _TimeOverError

    def _breathe(self, ends: float) -> bool:
        """Whether there is time left. Others run meanwhile."""
        self._sleep(_BREATH_S)
        return not self._hurried and self._clock() < ends

    def _put_exact(self, file: PlanFile, windows: Iterable[WindowRow], *, ends: float) -> None:
        if self._live is None or file.started_ns is None or self._writer is None:
            return
        steady_ns = file.stages[0].steady_started_ns if file.stages else file.started_ns
        points = exact_points(
            self._run, windows, started_ns=file.started_ns, steady_ns=steady_ns, written=self._live.written
        )
        while batch := list(islice(points, _POINTS_AT_A_TIME)):
            self._put(batch)
            self._writer.tick()
            if not self._breathe(ends) and len(batch) == _POINTS_AT_A_TIME:
                until = time.strftime("%H:%M:%SZ", time.gmtime(batch[-1].at_ns / 1e9))
                self.warnings.append(
                    f"InfluxDB has exact seconds up to {until}; later ones are as they were known while the run went on"
                )
                return

    def hurry(self) -> None:
        """Called by a signal: what `finish` and `close` do, or will do, shall not take any longer."""
        self._hurried = True
        if self._writer is not None:
            self._writer.hurry()

    def close(self, within_s: float = PATIENCE_S) -> TelemetryAccount | None:
        """Give the database so long to take what waits. None: the plan names no database, or it can't be written to.

        Bounded, whatever the database does. What it has not taken stays in the spool.
        """
        writer = self._writer
        if writer is None:
            return self._account
        if self.away:
            within_s = min(within_s, PATIENCE_AWAY_S)
        counters = writer.close(0.0 if self._hurried else within_s)
        self._writer = None
        self._taken_up = counters.taken_up
        self._account = TelemetryAccount(
            url=writer.target.url,
            written=counters.written,
            acknowledged=counters.acknowledged,
            rejected=counters.rejected,
            spooled=counters.spooled,
            dropped=counters.dropped,
            left_out=counters.left_out,
            spool=str(writer.spool),
            problem=_without(writer.target.token, writer.problem or writer.refusal),
        )
        self._refusal = _without(writer.target.token, writer.refusal)
        return self._account

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings about points that the database will never have."""
        account = self._account
        if account is None:
            return ()
        found = []
        if account.rejected:
            why = f" ({self._refusal})" if self._refusal else ""
            found.append(
                f"InfluxDB refused {account.rejected:,} of {account.written:,} points{why}; they are set aside in "
                f"{account.spool}"
            )
        if account.dropped:
            found.append(
                f"{account.dropped:,} of {account.written:,} points for InfluxDB were dropped: the spool "
                f"{account.spool} took no more; charts have gaps, the run directory is complete"
            )
        return tuple(found)

    @property
    def line(self) -> str | None:
        """What became of the points, for the end of the run's output. None: there is no account."""
        return None if self._account is None else account_line(self._account, taken_up=self._taken_up)

    def _put(self, points: Iterable[Point]) -> None:
        writer = self._writer
        if writer is not None:
            for point in points:
                writer.put(point)


def _nothing_written(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    return f"nothing is written to InfluxDB: {error}{f' ({hint})' if hint else ''}"


def _without(token: str, said: str | None) -> str | None:
    """What a database said, in case that it repeats the token."""
    return said.replace(token, "[token]") if said is not None and token else said


def account_line(account: TelemetryAccount, *, taken_up: int = 0) -> str:
    """One line: written, acknowledged, and where the rest is. `taken_up`: points of earlier runs that were sent."""
    parts = [f"{account.written:,} points written", f"{account.acknowledged:,} acknowledged"]
    if account.rejected:
        parts.append(f"{account.rejected:,} refused (set aside in {account.spool})")
    if account.dropped:
        parts.append(f"{account.dropped:,} dropped")
    if taken_up:
        parts.append(f"{taken_up:,} of earlier runs delivered")
    text = f"influxdb {account.url}: {', '.join(parts)}"
    if account.spooled:
        why = f" ({account.problem})" if account.problem else ""
        text += (
            f"; {account.spooled:,} wait in {account.spool}{why}: the next run or agent on this host that writes there "
            "sends them"
        )
    return text
