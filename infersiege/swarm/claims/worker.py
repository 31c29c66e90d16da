"""A worker's side: which session each of its arrivals plays.

Arrivals are everybody's own share of one sequence; the sessions of a trace in Redis are handed out to them as they come
due, so that they are played in the trace's order by whoever is there. What an arrival needs is claimed LEAD_NS before
it is due, in the order of all workers' arrivals, and waits here: a round trip never makes one late.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gevent
import msgspec
from gevent.event import Event

from infersiege.plan.streams import Stream
from infersiege.redis_stream import RedisTrace, address_of
from infersiege.redis_stream.groups import Group
from infersiege.schedule import Ticket
from infersiege.schedule.epochs import TicketWalk
from infersiege.swarm.claims.line import RedisLine, RunOverError
from infersiege.swarm.claims.shelf import Shelf
from infersiege.swarm.control import FAR_NS, RunControl
from infersiege.swarm.source import SessionSource
from infersiege.swarm.tickets_in_play import TicketsInPlay

LEAD_NS = 250_000_000
"""So long before an arrival is due its session is claimed."""
KEEP_S = 1.0
"""Between two signs of life for what is claimed."""
LOOK_S = 0.5
"""Most between two looks whether there is still an arrival for the session that waits for a closed loop's user."""
UNLEASED_S = 0.1
"""Between two looks whether a lease is there again."""


class Claims:
    """The sessions of all workloads whose traces lie in Redis; without any it does nothing."""

    def __init__(
        self,
        source: SessionSource,
        control: RunControl,
        *,
        run_id: str,
        worker: str,
        failed: Callable[[Exception], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`failed`: told once, with the error that ends this worker's load. Raises what an address raises."""
        self._source, self._control, self._failed = source, control, failed
        plan = source.plan
        self._lines: dict[str, RedisLine] = {}
        self._shelves: dict[int, Shelf] = {}
        for place, (workload, trace) in enumerate(zip(plan.workloads, source.traces, strict=True)):
            if workload.source is None or not isinstance(trace, RedisTrace):
                continue
            line = self._lines.get(workload.source)
            if line is None:
                address = address_of(plan, workload.source, environ)
                line = self._lines[workload.source] = RedisLine(address, plan.redis.patience_ns, control)
            groups: dict[int, Group] = {}
            group_of = partial(_group_of, groups, trace.name, run_id, place, worker)
            self._shelves[place] = Shelf(trace, line, control, group_of, wrap=workload.wrap)
        self._asked: dict[int, Any] = {stream.number: Event() for stream in source.streams}
        """Set when an arrival of a stream asked for its session."""

    def begin(self, start_ns: int, in_play: TicketsInPlay) -> None:
        """The load begins then (monotonic). `in_play`: what of it is this worker's, as far as is known at any time."""
        if not self._shelves:
            return
        gevent.spawn(self._safely, self._keep)
        for stream in self._source.streams:
            if any(place in self._shelves for place in stream.workloads):
                ahead = self._ahead_closed if stream.load.mode == "closed" else self._ahead_timed
                gevent.spawn(self._safely, partial(ahead, stream, in_play, start_ns))

    def session_of(self, ticket: Ticket, due_ns: int) -> Ticket | None:
        """The same arrival (due then, monotonic) with the session that it is to play; waits for Redis if need be.

        None: there is none, since the trace was used up, or the load is over. Raises TraceError when Redis gives none
        for longer than the plan's patience.
        """
        shelf = self._shelves.get(ticket.workload)
        self._asked[ticket.stream].set()
        if shelf is None:
            return ticket
        session = shelf.next(due_ns)
        return None if session is None else msgspec.structs.replace(ticket, session_index=session)

    def why_none(self, ticket: Ticket) -> str | None:
        """Why an arrival has no session: its Redis gives no answer. None: that is not why."""
        source = self._source.plan.workloads[ticket.workload].source
        return None if source is None else self._lines[source].trouble

    @property
    def away_ns(self) -> int | None:
        """Longest that a Redis gave no answer; None: none is asked."""
        return max((line.longest_away_ns for line in self._lines.values()), default=None)

    # ------------------------------------------------------------------------------------------------------ beforehand

    def _ahead_timed(self, stream: Stream, in_play: TicketsInPlay, start_ns: int) -> None:
        """Claim for arrivals that are due soon; those that are due by then at once."""
        control, expected = self._control, deque[Ticket]()
        # A walk of its own: it is LEAD_NS ahead of the arrivals that are taken.
        walk = TicketWalk(
            self._source.of_fleet(1).of_place(0).tickets(stream.number), in_play.me, lambda: gevent.sleep(0)
        )
        table = None
        while True:
            changes = control.changes
            if in_play.table is not None and in_play.table is not table:
                table = in_play.table
                walk.use(table)
                taken = in_play.walks[stream.number].next_index
                gone = [ticket for ticket in expected if ticket.index >= taken and not in_play.is_mine(ticket)]
                expected = deque(ticket for ticket in expected if ticket not in gone)
                self._by_shelf(gone, start_ns, Shelf.forgo)
            ticket = walk.peek()
            claim_ns = FAR_NS if ticket is None else start_ns + (ticket.offset_ns or 0) - LEAD_NS
            if time.monotonic_ns() < claim_ns:
                if not control.wait_until(claim_ns, changes):
                    return
                continue
            if not self._leased():
                return
            if in_play.table is not table:
                continue  # It was without a lease for a while.
            until_ns, soon = time.monotonic_ns() + LEAD_NS, []
            while ticket is not None and start_ns + (ticket.offset_ns or 0) <= until_ns:
                walk.take(ticket)
                soon.append(ticket)
                ticket = walk.peek()
            expected.extend(soon)
            while expected and expected[0].index < in_play.walks[stream.number].next_index:
                expected.popleft()
            self._by_shelf(soon, start_ns, Shelf.expect)

    def _by_shelf(self, tickets: Iterable[Ticket], start_ns: int, tell: Callable[[Shelf, Iterable[int]], None]) -> None:
        """Tell each shelf of the instants at which those of its workload are due."""
        due_ns: dict[int, list[int]] = {}
        for ticket in tickets:
            if ticket.workload in self._shelves:
                due_ns.setdefault(ticket.workload, []).append(start_ns + (ticket.offset_ns or 0))
        for place, times_ns in due_ns.items():
            tell(self._shelves[place], times_ns)

    def _ahead_closed(self, stream: Stream, in_play: TicketsInPlay, start_ns: int) -> None:
        """Have one session here for whoever is free next, as long as there is an arrival for it, and a user."""
        if not self._control.wait_until(start_ns - LEAD_NS):
            return
        asked, walk = self._asked[stream.number], in_play.walks[stream.number]
        while self._leased():
            asked.clear()
            following = walk.peek() if in_play.slots.get(stream.number) else None
            for place in stream.workloads:
                if place not in self._shelves:
                    continue
                if following is not None and following.workload == place:
                    self._shelves[place].have_one()
                else:
                    self._shelves[place].have_none()
            asked.wait(LOOK_S)

    def _keep(self) -> None:
        """What is claimed stays ours while the master lets us play it."""
        while not self._control.closing.wait(KEEP_S):
            if self._control.leased():
                for shelf in self._shelves.values():
                    shelf.keep()

    def _leased(self) -> bool:
        """Wait for leave to start something. False: the load is over."""
        while not self._control.leased():
            if self._control.closing.wait(UNLEASED_S):
                return False
        return not self._control.closing.is_set()

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RunOverError:
            return
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            self._failed(error)


def _group_of(groups: dict[int, Group], name: str, run_id: str, place: int, worker: str, repeat: int) -> Group:
    group = groups.get(repeat)
    if group is None:
        group = groups[repeat] = Group(name, run_id, place, repeat, worker)
    return group
