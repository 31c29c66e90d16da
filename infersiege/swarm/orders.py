"""What a master says to a worker about epochs, users and leases, and what the worker says to that."""

from __future__ import annotations

from typing import Any

import gevent

from infersiege.records import Drain, Epoch, EpochTable, Lease, SlotsHeld, UserSlots
from infersiege.swarm import messages
from infersiege.swarm.clock import ClockExchange
from infersiege.swarm.control import RunControl
from infersiege.swarm.share import WorkerShare


class Orders:
    """Hands the master's words to a worker's share."""

    def __init__(self, runner: Any, control: RunControl) -> None:
        self._runner = runner
        self._control = control
        self._share: WorkerShare | None = None
        self._clock: ClockExchange | None = None
        messages.on(runner, Epoch, self._on_epoch)
        messages.on(runner, EpochTable, self._on_table)
        messages.on(runner, UserSlots, self._on_slots)
        messages.on(runner, Lease, self._on_lease)

    def follow(self, share: WorkerShare, clock: ClockExchange) -> None:
        """From now on there is a share that they are about."""
        self._share, self._clock = share, clock
        for event, tell in ((share.asking, self._tell_position), (share.letting_go, self._tell_held)):
            self._runner.greenlet.spawn(self._each_time, event, tell)

    def drain(self, drain: Drain) -> None:
        """The load is over: arrivals that were due are accounted for by those whose they are."""
        share = self._share
        if share is not None and drain.epoch <= share.in_play.number:
            share.in_play.accepted = None
            self._control.renew(1)
        offset_ns = 0 if self._clock is None else self._clock.offset_ns
        ended_ns = None if drain.ended_ns is None else drain.ended_ns - offset_ns
        self._control.close(drain.reason, drain.duration_ns, ended_ns)

    def tell_held(self) -> None:
        """Again, now and then: a message may be lost."""
        if self._share is not None and self._share.in_play.slots_epoch > 0:
            self._tell_held(self._share)

    def _on_epoch(self, _: str, offer: Epoch) -> None:
        if self._share is not None:
            messages.send(self._runner, self._share.in_play.answer(offer))

    def _on_table(self, _: str, table: EpochTable) -> None:
        if self._share is not None:
            self._share.enforce(table)

    def _on_slots(self, _: str, slots: UserSlots) -> None:
        if self._share is not None:
            self._share.give_slots(slots)

    def _on_lease(self, _: str, lease: Lease) -> None:
        if self._share is not None:
            # By the clocks as they are now: a host that stood still for a while has another offset since then.
            known = None if self._clock is None else self._clock.reading()
            offset_ns = 0 if self._clock is None else self._clock.offset_ns
            self._share.renew(lease, offset_ns if known is None else known.offset_ns)

    def _each_time(self, event: Any, tell: Any) -> None:
        while True:
            event.wait()
            event.clear()
            if self._share is not None:
                tell(self._share)
            gevent.sleep(0.001)  # Several in one go are told once.

    def _tell_position(self, share: WorkerShare) -> None:
        messages.send(self._runner, share.in_play.position(share.in_play.number))

    def _tell_held(self, share: WorkerShare) -> None:
        held: SlotsHeld = share.slots_held()
        messages.send(self._runner, held)
