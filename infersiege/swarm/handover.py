"""The end of a run's telemetry: agents end, series of other hosts come in, the run's own points go out.

Nothing of it may hold up the end of a run: it has TELEMETRY_ENDS_S in all, and a Ctrl-C ends its patience at once. What
goes wrong is a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import gevent

from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Telemetry
from infersiege.report.rebuild import Rebuilt
from infersiege.rundir import PlanFile, RunDirectory
from infersiege.telemetry.fetch import NoInfluxqlError, await_points, fetch
from infersiege.telemetry.local import LocalAgents
from infersiege.telemetry.publisher import Publisher
from infersiege.telemetry.remarks import not_fetched, settled, silent, told

log = logging.getLogger("infersiege.swarm.handover")

TELEMETRY_ENDS_S = 9.0
"""From the end of the load. What a database does not take by then waits in its spool; a run ends within 15 s."""
AWAIT_WITHIN_S = 2.5
"""Agents elsewhere write once a second, and their senders soon after."""
FETCH_WITHIN_S = 3.0
FETCH_AWAY_S = 1.0
"""The same where points wait already: its database is not worth a long wait."""
LEAST_PATIENCE_S = 1.0
"""For the run's own points, however long the rest took."""
NO_TIME = not_fetched("there was no time")
FINISH_SHARE = 0.6
"""Of the time for the run's own points: to write them down. The rest is for the database to take them."""


class HandOver:
    """Call `stop_agents`, `fetched`, `published` in this order; `hurry` at any time, from another greenlet."""

    def __init__(
        self,
        publisher: Publisher,
        agents: LocalAgents,
        telemetry: Telemetry,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._agents = agents
        self._telemetry = telemetry
        self._clock = clock
        self._ends = clock() + TELEMETRY_ENDS_S
        self._fetching: gevent.Greenlet | None = None
        self.hurried = False

    @property
    def left_s(self) -> float:
        return 0.0 if self.hurried else max(0.0, self._ends - self._clock())

    def hurry(self) -> None:
        """Ctrl-C: no more waiting. What the database has not taken stays in the spool."""
        self.hurried = True
        self._agents.hurry()
        self._publisher.hurry()
        if self._fetching is not None:
            self._fetching.kill(block=False)

    def stop_agents(self) -> list[str]:
        """What became of the agents of this host, where that is worth a warning."""
        self._agents.stop()
        return self._agents.problems()

    def fetched(self, run: RunDirectory, file: PlanFile) -> PlanFile:
        """Series of agents elsewhere come into the run directory; the plan with what is to say of it."""
        most_s = FETCH_AWAY_S if self._publisher.away else AWAIT_WITHIN_S + FETCH_WITHIN_S
        within_s = min(most_s, self.left_s - LEAST_PATIENCE_S)
        if self._publisher.target is None or file.started_ns is None:
            return file
        if within_s <= 0:
            return settled(file, (NO_TIME,))
        self._fetching = gevent.spawn(self._fetch, run, file, within_s)
        # A name that is not resolved, say, knows no deadline of ours.
        self._fetching.join(within_s + 0.5)
        came = self._fetching.successful() and not isinstance(self._fetching.value, gevent.GreenletExit)
        remarks = self._fetching.value if came else (NO_TIME,)
        self._fetching.kill()
        self._fetching = None
        return settled(file, remarks)

    def _fetch(self, run: RunDirectory, file: PlanFile, within_s: float) -> tuple[str, ...]:
        target, hosts = self._publisher.target, self._telemetry.hosts
        assert target is not None
        ends = self._clock() + within_s
        try:
            until_ns = max((stage.steady_ended_ns for stage in file.stages), default=0)
            await_points(run, target, hosts=hosts, until_ns=until_ns, within_s=min(within_s, AWAIT_WITHIN_S))
            left_s = max(0.0, min(FETCH_WITHIN_S, ends - self._clock()))
            came = fetch(run, target, hosts=hosts, within_s=left_s)
        except NoInfluxqlError:
            return ()  # the doctor has told
        except InfersiegeError as error:
            return (not_fetched(error),)
        except Exception as error:  # what a database answers is not worth a run
            log.exception("fetching series")
            return (not_fetched(f"{type(error).__name__}: {error}"),)
        return silent(came.missing_hosts, target.url)

    def published(self, run: RunDirectory, found: Rebuilt) -> Rebuilt:
        """The run's own points go out; the same with what became of them. Unchanged where there is nothing to say."""
        publisher = self._publisher
        left_s = max(self.left_s, 0.0 if self.hurried else LEAST_PATIENCE_S)
        ends = self._clock() + left_s
        turns = partial(run.read_turns, span=found.plan.span)
        publisher.finish(found, turns, within_s=FINISH_SHARE * left_s)
        account = publisher.close(max(0.0, ends - self._clock()))
        return told(found, (*publisher.warnings, *publisher.losses), account)
