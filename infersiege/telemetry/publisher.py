"""Writes a run to InfluxDB while it goes on, and exactly when it is over. Nothing here stops or delays a run.

Points go through the durable writer: memory, disk, a sender process of its own. What is wrong is a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from infersiege_agents.errors import AgentError
from infersiege_agents.influx.spool import spool_directory
from infersiege_agents.influx.target import Target, target_of
from infersiege_agents.influx.writer import DurableWriter
from infersiege_agents.points import Point

from infersiege.plan.schema import Plan
from infersiege.records import EventRow, Report, Summary, TelemetryAccount, WindowRow
from infersiege.rundir import PlanFile
from infersiege.telemetry.live import LiveGauges, WindowPoints, exact_points
from infersiege.telemetry.points import client_point, event_point, run_points, start_point

EVERY_NS = 1_000_000_000
"""Between two rows of live figures."""

EXACT_WITHIN_S = 4.0
EXACT_SHARE = 0.01
"""Time to write every second of a run again: so long, and in a long run this share of its own time (a second of ten
scenarios and channels takes about 0.3 % of one). What does not fit stays as it was known while the run went on."""
PATIENCE_S = 8.0
"""Time for the database to take what waits when the run is over; the rest stays in the spool."""
PATIENCE_AWAY_S = 3.0
"""The same for one that was not there already: it is not worth a long wait."""
EARLY_EVENTS = 100
"""Events before the load begins are kept for when it does; a run that never begins is not in the database."""

_BATCH = 2_000


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
    ) -> None:
        """`titles`: kind of event -> its words."""
        self._plan = plan
        self._titles = titles
        self._clock = clock
        self.warnings: list[str] = []
        """What is worth a line in the summary."""
        self._target: Target | None = None
        self._spool = Path(plan.telemetry.spool) if plan.telemetry.spool else spool_directory(environ)
        self._writer: DurableWriter | None = None
        self._account: TelemetryAccount | None = None
        self._taken_up = 0
        self._run = ""
        self._live: WindowPoints | None = None
        self._gauges: LiveGauges | None = None
        self._early: list[EventRow] = []
        self._at_ns = 0
        self._workers = (0, 0)
        """Alive and expected, as last told."""
        if plan.telemetry.influx_url is not None:
            self._target = self._target_of_plan(environ)

    def _target_of_plan(self, environ: Mapping[str, str]) -> Target | None:
        wanted = self._plan.telemetry
        variable = wanted.influx_token_env
        try:
            return target_of(
                wanted.influx_url or "",
                bucket=wanted.influx_bucket,
                org=wanted.influx_org or "",
                token=environ.get(variable, "") if variable is not None else "",
            )
        except AgentError as error:
            self.warnings.append(f"nothing is written to InfluxDB: {error}")
            return None

    # ------------------------------------------------------------------------------------------------- while it runs

    def open(self) -> None:
        """Start the writer, before the load: it may take a moment."""
        if self._target is None or self._writer is not None:
            return
        writer = DurableWriter(self._target, self._spool, source="run")
        try:
            writer.start()
        except (AgentError, OSError) as error:
            self.warnings.append(f"nothing is written to InfluxDB: {error}")
            self._target = None
            return
        self.warnings += writer.notices
        self._writer = writer

    def begin(self, file: PlanFile) -> None:
        """The time axis is fixed: the run appears in the database."""
        if self._writer is None or file.started_ns is None:
            return
        self._run = file.run_key
        steady_ns = file.stages[0].steady_started_ns if file.stages else file.started_ns
        self._live = WindowPoints(self._run, started_ns=file.started_ns, steady_ns=steady_ns)
        self._gauges = LiveGauges(self._run, self._plan.load)
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
        self._live.add(report.windows)
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
        self._put(self._live.tick())
        self._put([self._gauges.point(at_ns, elapsed_ns=elapsed_ns, alive=alive, expected=expected)])
        self._writer.tick()

    # ------------------------------------------------------------------------------------------------ when it is over

    def finish(self, file: PlanFile, summary: Summary, windows: Iterable[WindowRow]) -> None:
        """The exact figures, and every second again from its turns; `close` sends them.

        Called again (the run had to move, and its summary says so), it writes the figures again.
        """
        if self._live is None or self._gauges is None or file.started_ns is None:
            return
        self.open()
        self._put(run_points(file, summary))
        if self._account is None:
            # What the last reports told, so that sums over the run are whole and gauges end where the run did.
            alive, expected = self._workers
            at_ns = max(summary.ended_ns, self._at_ns + 1)
            self._put([self._gauges.point(at_ns, elapsed_ns=None, alive=alive, expected=expected)])
            self._put_exact(file, windows, within_s=(summary.ended_ns - file.started_ns) / 1e9 * EXACT_SHARE)

    def _put_exact(self, file: PlanFile, windows: Iterable[WindowRow], *, within_s: float) -> None:
        if self._live is None or file.started_ns is None or self._writer is None:
            return
        steady_ns = file.stages[0].steady_started_ns if file.stages else file.started_ns
        points = exact_points(
            self._run, windows, started_ns=file.started_ns, steady_ns=steady_ns, written=self._live.written
        )
        ends = self._clock() + max(EXACT_WITHIN_S, within_s)
        while batch := list(islice(points, _BATCH)):
            self._put(batch)
            self._writer.tick()
            if self._clock() > ends and len(batch) == _BATCH:
                until = time.strftime("%H:%M:%SZ", time.gmtime(batch[-1].at_ns / 1e9))
                self.warnings.append(
                    f"InfluxDB has exact seconds up to {until}; later ones are as they were known while the run went on"
                )
                return

    def close(self, within_s: float = PATIENCE_S) -> TelemetryAccount | None:
        """Give the database so long to take what waits. None: the plan names no database, or it can't be written to.

        Bounded, whatever the database does. What it has not taken stays in the spool.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return self._account
        away = writer.problem is not None and not writer.counters().rejected  # what refuses is there
        counters = writer.close(min(within_s, PATIENCE_AWAY_S) if away else within_s)
        self._taken_up += counters.taken_up
        before = self._account
        self._account = TelemetryAccount(
            url=writer.target.url,
            written=counters.written + (before.written if before else 0),
            acknowledged=counters.acknowledged + (before.acknowledged if before else 0),
            rejected=counters.rejected + (before.rejected if before else 0),
            spooled=counters.spooled + (before.spooled if before else 0),
            dropped=counters.dropped + (before.dropped if before else 0),
            left_out=counters.left_out + (before.left_out if before else 0),
            spool=str(writer.spool),
            problem=_without(writer.target.token, writer.problem),
        )
        return self._account

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings about points that the database will never have."""
        account = self._account
        if account is None:
            return ()
        found = []
        if account.rejected:
            why = f" ({account.problem})" if account.problem else ""
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
