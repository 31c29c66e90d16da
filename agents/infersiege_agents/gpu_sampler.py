"""Samples all GPUs and MIG slices of this host: quick samples often, a point of each per interval, faults per card.

One thread, no waiting of its own: `step` is called each `fast_s` seconds (loop.run_every) and returns the points of an
interval when it is over. The points' time is the end of their interval on the wall clock, as in every series of ours;
its length comes from the monotonic clock, so that a step of the wall clock moves points and changes no figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infersiege_agents.gpu_card import Card, Clock
from infersiege_agents.gpu_events import XidEvents
from infersiege_agents.gpu_inventory import take_inventory
from infersiege_agents.measurements import GPU_HOST
from infersiege_agents.nvml import NOT_FOUND, OK, Fault, Nvml, hint
from infersiege_agents.points import Point

_S = 10**9
_INVENTORY_NS = 10 * _S
"""Slices come and go while NVML runs: they are listed again this often."""
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0
"""NVML is initialised again after 1, 2, 4 … 30 s while something is wrong."""

_NVML = "NVML"

NO_CARD = Fault(NOT_FOUND, "nvmlDeviceGetCount")
"""The driver answers and counts no GPU."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked of the sampler."""

    host: str
    interval_s: float = 1.0
    fast_s: float = 0.2
    expect: int | None = None
    """GPUs that should be there; None: the most seen so far."""
    processes: bool = False
    meminfo: Path = Path("/proc/meminfo")


class GpuSampler:
    """`start`, then `step` each `fast_s` seconds, then `close`. None of them raises for what is wrong with a GPU."""

    def __init__(
        self, nvml: Nvml, clock: Clock, settings: Settings, *, tell: Callable[[str], None] | None = None
    ) -> None:
        """`tell` gets a line for the user when something changes: a card is lost, or back."""
        self._nvml = nvml
        self._clock = clock
        self._settings = settings
        self._tell = tell or (lambda _line: None)
        self._events = XidEvents(nvml)
        self._cards: dict[str, Card] = {}
        self._fault: Fault | None = NO_CARD
        """Why NVML can't be used; None: it is initialised."""
        self._unlisted: Fault | None = None
        """A card could not be identified, or not even counted."""
        self._driver: str | None = None
        self._most = 0
        self._initialised = 0
        self._back_off_s = _FIRST_RETRY_S
        self._retry_ns: int | None = None
        self._well_from_ns: int | None = None
        self._first_ns = self._due_ns = self._inventory_ns = 0
        self._busy_ns = 0
        self._told: dict[str, int] = {}
        """Who can't be read, as far as it was told -> with which code."""
        self._told_slow: set[str] = set()
        self._told_failing: set[Fault] = set()
        self._told_lacking: set[tuple[str, frozenset[str]]] = set()

    def start(self) -> Fault | None:
        """Initialise NVML and take the first readings. The fault when there is no GPU to sample: `step` tries again."""
        self._first_ns = self._clock.monotonic_ns()
        self._due_ns = self._first_ns + self._ns(self._settings.interval_s)
        self._initialise()
        if self._fault is None and not self._cards:
            return self._unlisted or NO_CARD
        return self._fault

    def step(self) -> list[Point]:
        """Sample; when the interval is over, the points of all GPUs and of the host, else an empty list."""
        started = self._clock.monotonic_ns()
        if started < self._due_ns - self._ns(self._settings.fast_s) // 2:
            for card in self._cards.values():
                card.sample()
            self._busy_ns += self._clock.monotonic_ns() - started
            return []
        points = self._points(started)
        self._mend(started)
        # The times are those of one row. An interval that ends late shortens the next one, at most by half.
        interval = self._ns(self._settings.interval_s)
        self._due_ns = self._first_ns + ((started - self._first_ns + interval // 2) // interval + 1) * interval
        return points

    def close(self) -> None:
        """Give everything back to NVML."""
        self._events.close()
        for card in self._cards.values():
            card.detach()
        self._nvml.stop()

    def _points(self, started: int) -> list[Point]:
        """Close the interval."""
        at_ns = self._clock.time_ns()
        xids = self._events.take() if self._fault is None else {}
        points = {uuid: self._point(card, xids.get(uuid, [])) for uuid, card in self._cards.items()}
        if any(card.fault is not None and card.identity.mig_parent for card in self._cards.values()):
            self._list(fresh=False)  # a slice that was taken away is no fault
        self._busy_ns += self._clock.monotonic_ns() - started
        self._tell_changes()
        self._tell_values()
        return [*(point for uuid, point in points.items() if uuid in self._cards), self._host_point(at_ns)]

    def _point(self, card: Card, xids: list[int]) -> Point:
        more: dict[str, float | None] = {}
        if xids or self._events.watches(card.identity.uuid):
            more = {"xid": xids[-1] if xids else None, "xid_count": len(xids)}
        note = f"; Xid {', '.join(map(str, xids))}" if xids else ""
        return card.point(self._settings.host, self._settings.meminfo, more, note)

    def _host_point(self, at_ns: int) -> Point:
        whole = [card for card in self._cards.values() if card.identity.mig_parent is None]
        read = sum(card.fault is None for card in whole) if self._fault is None else 0
        fault = self._fault
        if fault is None and not read:
            fault = take_inventory(self._nvml).fault if whole else self._unlisted or NO_CARD
        ok = fault is None
        fault = fault or self._unlisted
        fields: dict[str, float | int | str | None] = {
            "ok": int(ok),
            "error": OK if fault is None else fault.code,
            "error_text": None if fault is None else f"{fault.text}: {hint(fault.code)}",
            "driver": self._driver,
            "gpus": read,
            "gpus_expected": self._settings.expect if self._settings.expect is not None else self._most,
            "sample_duration": self._busy_ns / _S,
            "restarts": max(self._initialised - 1, 0),
        }
        self._busy_ns = 0
        return Point(GPU_HOST.name, {"host": self._settings.host}, fields, at_ns)

    def _mend(self, now: int) -> None:
        """After the points: initialise again with back-off while something is wrong, look for new cards and slices."""
        if self._well():
            self._retry_ns = None
            if self._well_from_ns is None:
                self._well_from_ns = now
            if now - self._well_from_ns >= self._ns(self._back_off_s):  # a card that flaps waits longer each time
                self._back_off_s = _FIRST_RETRY_S
            if now >= self._inventory_ns:
                self._list(fresh=False)
            return
        self._well_from_ns = None
        if self._retry_ns is None:
            self._retry_ns = now + self._ns(self._back_off_s)
        elif now >= self._retry_ns:
            self._retry_ns = None
            self._back_off_s = min(2 * self._back_off_s, _LAST_RETRY_S)
            self._initialise()
            self._tell_changes()
        elif self._fault is None:
            self._list(fresh=False)  # a card without a handle may have come back

    def _well(self) -> bool:
        whole = [card for card in self._cards.values() if card.identity.mig_parent is None]
        enough = len(whole) >= (self._settings.expect or 1)
        return self._fault is None and self._unlisted is None and enough and all(card.fault is None for card in whole)

    def _initialise(self) -> None:
        """Initialise NVML, again if need be, and take the handles of all cards anew."""
        self._events.close()
        for card in self._cards.values():
            card.release()
        self._nvml.stop()
        self._fault = self._nvml.start()
        if self._fault is not None:
            for card in self._cards.values():
                card.detach(self._fault)
            return
        self._initialised += 1
        self._driver = self._nvml.text("nvmlSystemGetDriverVersion")
        self._events.open()
        self._list(fresh=True)

    def _list(self, *, fresh: bool) -> None:
        """Match what NVML has with the known cards, by UUID. `fresh`: after an initialisation; old handles are void."""
        self._inventory_ns = self._clock.monotonic_ns() + _INVENTORY_NS
        inventory = take_inventory(self._nvml)
        self._unlisted = inventory.fault
        self._most = max(self._most, inventory.cards)
        there = set()
        for identity, place in inventory.found:
            there.add(identity.uuid)
            card = self._cards.get(identity.uuid)
            if card is None:
                card = Card(self._nvml, self._clock, identity, processes=self._settings.processes, slow=self._tell_slow)
                self._cards[identity.uuid] = card
            card.identity = identity
            if fresh or not card.is_at(place):
                card.attach(place)
            if identity.mig_parent is None:
                self._events.watch(identity.uuid, place.handle)
        for uuid in [uuid for uuid in self._cards if uuid not in there]:
            self._miss(uuid, inventory.listed, inventory.fault, fresh=fresh)

    def _miss(self, uuid: str, listed: frozenset[str], fault: Fault | None, *, fresh: bool) -> None:
        """A known card or slice is not in the list."""
        card = self._cards[uuid]
        if card.identity.mig_parent in listed:
            card.detach()
            del self._cards[uuid]
        elif fresh or fault is None:
            card.detach(fault or Fault(NOT_FOUND, "nvmlDeviceGetHandleByUUID"))

    def _tell_changes(self) -> None:
        """Tell what is wrong, and what is well again, when that changes."""
        now: dict[str, Fault] = {}
        if self._fault is not None:
            now[_NVML] = self._fault
        else:
            now = {uuid: card.fault for uuid, card in self._cards.items() if card.fault is not None}
        for who, fault in now.items():
            if self._told.get(who) != fault.code:
                more = f"; hint: {hint(fault.code)}" if who == _NVML else ""
                self._tell(f"warning: {self._name(who)} can't be read: {fault.text}; trying again{more}")
        if self._fault is None:
            for who in self._told:
                if who not in now and (who == _NVML or who in self._cards):
                    self._tell(f"{self._name(who)} can be read again")
            self._told = {}
        self._told |= {who: fault.code for who, fault in now.items()}

    def _tell_values(self) -> None:
        """Values that cards do not have, and calls that fail although their card can be read: once each."""
        without: dict[tuple[str, frozenset[str]], list[str]] = {}
        for uuid, card in self._cards.items():
            for failure in card.failures:
                if failure not in self._told_failing:
                    self._told_failing.add(failure)
                    self._tell(f"warning: {self._name(uuid)}: {failure.text}; that value is left out (told once)")
            key = card.identity.name, card.take_lacking()
            if key[1] and key not in self._told_lacking:
                without.setdefault(key, []).append(uuid)
        for key, uuids in without.items():
            self._told_lacking.add(key)
            more = f" and {len(uuids) - 1} more" if len(uuids) > 1 else ""
            names = ", ".join(sorted(key[1]))
            self._tell(f"note: {self._name(uuids[0])}{more} ({key[0]}): not supported, so not written: {names}")

    def _name(self, who: str) -> str:
        return who if who == _NVML else f"{who} at {self._cards[who].identity.pci}"

    def _tell_slow(self, call: str, duration_ns: int) -> None:
        if call not in self._told_slow:
            self._told_slow.add(call)
            self._tell(f"warning: {call} took {duration_ns / 1e6:.0f} ms: points come late and have fewer samples")

    @staticmethod
    def _ns(seconds: float) -> int:
        return round(seconds * _S)
