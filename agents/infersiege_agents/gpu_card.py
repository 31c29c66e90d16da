"""One GPU or MIG slice: its readings, what one interval gathered, and the point that comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from infersiege_agents.gpu_fields import (
    EVENT_REASONS,
    FIELDS,
    GPM_METRICS,
    OLDER_CALLS,
    PCIE_CALL,
    PCIE_RATES,
    POWER_INSTANT,
    SCALARS,
    THROTTLE_REASONS,
    FieldsReading,
    GpmReading,
    MemoryReading,
    ProcessesReading,
    Reading,
    Scalar,
    ScalarReading,
    UtilizationReading,
    Values,
    supports_gpm,
)
from infersiege_agents.gpu_interval import Interval, host_memory
from infersiege_agents.measurements import GPU
from infersiege_agents.nvml import (
    GONE,
    NEVER,
    NEVER_OF_MANY,
    NOT_SUPPORTED,
    OK,
    CallError,
    Fault,
    Handle,
    Nvml,
    address,
)
from infersiege_agents.points import Point

SELDOM_NS = 10 * 10**9
"""Processes and PCIe rates are read at most this often: they take milliseconds."""

SLOW_NS = 20 * 10**6
"""A call that takes this long is told, once."""

_SHARE_OF_TIME = 10
"""Quick samples may take a tenth of the time: where calls are slow, there are fewer of them."""


class Clock(Protocol):
    """The module `time` is one."""

    def monotonic_ns(self) -> int: ...

    def time_ns(self) -> int: ...


class Counter(NamedTuple):
    """A counter since the driver was loaded, and the field that its difference is."""

    total: str
    field: str
    most_per_s: float
    """A greater difference is not a measurement: the counter began anew above its old value, or is broken."""


COUNTERS: tuple[Counter, ...] = (
    Counter("energy_j_total", "energy_j", 10_000.0),
    Counter("pcie_rx_bytes_total", "pcie_rx_bytes", 1e12),
    Counter("pcie_tx_bytes_total", "pcie_tx_bytes", 1e12),
    Counter("nvlink_rx_bytes_total", "nvlink_rx_bytes", 1e13),
    Counter("nvlink_tx_bytes_total", "nvlink_tx_bytes", 1e13),
    Counter("ecc_corrected_total", "ecc_corrected", 1e9),
    Counter("ecc_uncorrected_total", "ecc_uncorrected", 1e9),
)

_LATEST = (
    "power_limit_w", "power_average_w", "power_instant_w", "temperature_c", "temperature_memory_c",
    "clock_sm_mhz", "clock_sm_max_mhz", "clock_memory_mhz",
    "sm_active", "sm_occupancy", "tensor_active", "dram_active", "processes",
)  # fmt: skip
"""Fields that are the last reading of the interval as it is."""


@dataclass(slots=True)
class Identity:
    """Who a GPU or slice is: the tags of its points. The index may change when NVML is initialised again."""

    uuid: str
    pci: str
    name: str
    mig_parent: str | None
    """UUID of the card; None for a whole GPU."""
    index: int

    def tags(self, host: str) -> dict[str, str]:
        return {
            "host": host, "uuid": self.uuid, "pci": self.pci, "name": self.name,
            "mig_parent": self.mig_parent or "none",
        }  # fmt: skip


class Place(NamedTuple):
    """Where NVML has a GPU or slice at present."""

    handle: Handle
    card: Handle
    """Handle of the card; the same for a whole GPU."""
    instance: int | None
    """GPU instance of a MIG slice."""


class Slow(Protocol):
    def __call__(self, call: str, duration_ns: int) -> None: ...


class Card:
    """One GPU or MIG slice.

    `sample` reads what changes quickly, `point` the rest, and closes the interval. A call that the card doesn't know is
    not made again before `attach`; any other failure costs one value, and the first of an interval is in its point. A
    failure that says the card is gone, or all calls failing, is a fault: the point then has that and no reading, and
    counters begin anew afterwards.
    """

    def __init__(self, nvml: Nvml, clock: Clock, identity: Identity, *, processes: bool, slow: Slow) -> None:
        self.identity = identity
        self.fault: Fault | None = None
        """Why it can't be read at present."""
        self.failures: list[Fault] = []
        """Calls that failed in the last interval although the card can be read."""
        self._failing: dict[Fault, None] = {}
        self._lacking: set[str] | None = None
        self._nvml = nvml
        self._clock = clock
        self._processes = processes
        self._slow = slow
        self._quick: list[Reading] = []
        self._full: list[Reading] = []
        self._seldom: list[Reading] = []
        self._gpm: GpmReading | None = None
        self._place: Place | None = None
        self._new = True
        self._no_memory_figures = False
        self._totals: dict[str, float] = {}
        self._interval = Interval()
        self._began_ns = clock.monotonic_ns()
        self._quick_from_ns = 0
        self._seldom_from_ns = 0
        self._seldom_last_ns: int | None = None

    def attach(self, place: Place) -> None:
        """Take its handle from NVML's present list: everything may be asked again.

        A card that could be read goes on with its counters; any other takes its first readings now.
        """
        self.release()
        self._place = place
        nvml, handle = self._nvml, place.handle
        self._lacking = set()
        self._quick = [MemoryReading(nvml, handle)]
        if place.instance is None:
            self._quick += [
                UtilizationReading(nvml, handle),
                FieldsReading(nvml, handle, (POWER_INSTANT,)),
                *self._scalars([EVENT_REASONS]),
            ]
            self._full = [FieldsReading(nvml, handle, FIELDS), *self._scalars(SCALARS)]
        try:
            self._gpm = GpmReading(nvml, place.card, place.instance) if supports_gpm(nvml, place.card) else None
        except CallError:
            self._gpm = None
        if self._gpm is not None:
            self._full.append(self._gpm)
        else:
            self._lacking.update(name for name, _ in GPM_METRICS)
        if self._processes:
            self._seldom.append(ProcessesReading(nvml, handle))
        self._no_memory_figures = False
        if self._new or self.fault is not None:
            self._begin()
        elif self._gpm is not None:
            self._gpm.read({})
        self._new = False

    def is_at(self, place: Place) -> bool:
        """Whether its readings use this handle."""
        known = self._place
        return known is not None and address(known.handle) == address(place.handle) and known.instance == place.instance

    def release(self) -> None:
        """Give back what was taken from NVML, before NVML is given back."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None
        self._quick, self._full, self._seldom = [], [], []
        self._place = None

    def detach(self, fault: Fault | None = None) -> None:
        """Its handle is no good any more; with a fault: and it can't be read until `attach`."""
        self.release()
        if fault is not None:
            self._lose(fault)

    def _begin(self) -> None:
        """The first reading, from which counters count. No point comes of it."""
        self.fault = None
        self._began_ns = self._clock.monotonic_ns()
        values: Values = {}
        self._read_all(values, (self._quick, self._full))
        self._differences(values, 0)

    def sample(self) -> None:
        """A quick sample for the interval's least, mean and greatest."""
        started = self._clock.monotonic_ns()
        if self.fault is None and self._place is not None and started >= self._quick_from_ns:
            self._sample(started, {})

    def _sample(self, started: int, values: Values) -> None:
        self._read_all(values, (self._quick,))
        ended = self._clock.monotonic_ns()
        self._interval.busy_ns += ended - started
        self._quick_from_ns = ended + (_SHARE_OF_TIME - 1) * (ended - started)
        if self.fault is None:
            power = values.get("power_instant_w", values.get("power_w"))
            if power is not None:
                values["power"] = power
            self._interval.add(values)

    def point(self, host: str, meminfo: Path, more: Mapping[str, float | None], note: str = "") -> Point:
        """Read everything, close the interval, and give its point, stamped with the interval's end.

        `more` are fields known from elsewhere (Xid events): a card that can't be read has them all the same, since
        they may be the reason. `note` is added to the text of its error.
        """
        started = self._clock.monotonic_ns()
        duration_ns, self._began_ns = max(started - self._began_ns, 0), started
        at_ns = self._clock.time_ns()
        values = self._read_now(started) if self._place is not None else {}
        interval, self._interval = self._interval, Interval()
        self.failures, self._failing = list(self._failing), {}
        tags = self.identity.tags(host)
        if self.fault is not None:
            text = self.fault.text + note
            known = {name: value for name, value in more.items() if value is not None}
            return Point(GPU.name, tags, {"ok": 0, "error": self.fault.code, "error_text": text, **known}, at_ns)
        interval.busy_ns += self._clock.monotonic_ns() - started
        fields: dict[str, float | int | str | None] = {
            "ok": 1,
            "error": self.failures[0].code if self.failures else OK,
            "error_text": self.failures[0].text if self.failures else None,
            "index": self.identity.index,
            "interval": duration_ns / 1e9,
            "sample_duration": interval.busy_ns / 1e9,
        }
        fields.update(interval.fields())
        fields["memory_total_bytes"] = values.get("memory_total")
        fields["memory_reserved_bytes"] = values.get("memory_reserved")
        fields.update((name, values[name]) for name in _LATEST if name in values)
        fields.update(self._differences(values, duration_ns))
        fields.update((name, values[name]) for name in ("pcie_rx_bytes", "pcie_tx_bytes") if name in values)
        if self._no_memory_figures and self.identity.mig_parent is None:
            fields.update(host_memory(meminfo))
        fields.update(more)
        measured = {name: value for name, value in fields.items() if value is not None}
        return Point(GPU.name, tags, measured, at_ns)

    def take_lacking(self) -> frozenset[str]:
        """Values that it has been found not to have, once after each `attach` and its first point; else empty."""
        if self._lacking is None or self.fault is not None:
            return frozenset()
        lacking, self._lacking = frozenset(self._lacking), None
        return lacking

    def _read_now(self, started: int) -> Values:
        """All values of this moment; the quick ones count as a sample. A card that was lost is asked again."""
        self.fault = None
        values: Values = {}
        busy_before = self._interval.busy_ns
        self._sample(started, values)
        self._interval.busy_ns = busy_before  # the caller counts this sample with the rest
        if self.fault is None:
            groups = [self._full]
            seldom = started >= self._seldom_from_ns and bool(self._seldom)
            if seldom:
                self._seldom_from_ns = started + SELDOM_NS
                groups.append(self._seldom)
            self._read_all(values, groups, vital=False)
            if seldom:
                self._spread_rates(values, started)
        return values

    def _spread_rates(self, values: Values, now_ns: int) -> None:
        """A PCIe rate, seldom read, stands for all the time since it was read before: sums over time come out right."""
        if self._seldom_last_ns is not None:
            for name in ("pcie_rx_bytes", "pcie_tx_bytes"):
                if f"{name}_rate" in values:
                    values[name] = values[f"{name}_rate"] * (now_ns - self._seldom_last_ns) / 1e9
        self._seldom_last_ns = now_ns

    def _read_all(self, values: Values, groups: Iterable[list[Reading]], *, vital: bool = True) -> None:
        """Ask all readings of the groups. Sets `fault` when a call says that the card is gone, or when none of
        `vital` readings got an answer."""
        first: Fault | None = None
        answered = False
        now = self._clock.monotonic_ns()
        for group in groups:
            asked = list(group)
            for reading in asked:  # grows by what takes the place of others
                code = reading.read(values)
                before, now = now, self._clock.monotonic_ns()
                if now - before >= SLOW_NS and reading.call != PCIE_CALL:
                    self._slow(reading.call, now - before)
                if code in GONE:
                    self._lose(Fault(code, reading.call))
                    return
                if code == OK or code in NEVER:  # either way, the driver does answer for this card
                    answered = True
                else:
                    fault = Fault(code, reading.call)
                    first = first or fault
                    self._failing[fault] = None
                for name, failure in reading.failed:
                    if failure in NEVER_OF_MANY:
                        self._lack((name,))
                    else:
                        self._failing[Fault(failure, f"{reading.call}, {_plain(name)}")] = None
                if code in NEVER:
                    group.remove(reading)
                if code in NEVER or isinstance(reading, FieldsReading):
                    others = self._instead(reading, code)
                    asked += others
                    group += others
        if vital and first is not None and not answered:
            self._lose(first)

    def _lose(self, fault: Fault) -> None:
        """Nothing of this interval is believed, and no difference is made across it."""
        self.fault = fault
        self._totals.clear()
        self._failing.clear()
        self._interval = Interval()
        self._seldom_last_ns = None

    def _lack(self, names: Iterable[str]) -> None:
        if self._lacking is not None:
            self._lacking.update(map(_plain, names))

    def _instead(self, reading: Reading, code: int) -> list[Reading]:
        """Older calls in place of what this driver or card does not have; what has none is lacking."""
        rows: list[Scalar] = []
        seldom: list[Scalar] = []
        lacking = {*reading.names} if code in NEVER else set()
        if reading.call == EVENT_REASONS.call:
            rows.append(THROTTLE_REASONS)
        elif isinstance(reading, MemoryReading):
            self._no_memory_figures = code == NOT_SUPPORTED
        elif isinstance(reading, FieldsReading):
            lacking = {row.name for row in reading.lacking}
            reading.lacking.clear()
            rows += [row for name, row in OLDER_CALLS.items() if name in lacking]
            seldom = [row for name, row in PCIE_RATES.items() if name in lacking]
        older = {_plain(row.name) for row in (*rows, *seldom)}
        self._lack(name for name in lacking if _plain(name) not in older)
        self._seldom += self._scalars(seldom)
        return self._scalars(rows)

    def _scalars(self, rows: Iterable[Scalar]) -> list[Reading]:
        handle = None if self._place is None else self._place.handle
        return [ScalarReading(self._nvml, handle, row) for row in rows]

    def _differences(self, values: Values, duration_ns: int) -> dict[str, float]:
        """What counters gained since the last point. A counter that was not read then, or began anew: no value."""
        gained: dict[str, float] = {}
        totals: dict[str, float] = {}
        for counter in COUNTERS:
            total = values.get(counter.total)
            if total is None:
                continue
            totals[counter.total] = total
            before = self._totals.get(counter.total)
            if before is not None and 0 <= total - before <= counter.most_per_s * max(duration_ns / 1e9, 1e-3):
                gained[counter.field] = total - before
        self._totals = totals
        return gained


def _plain(name: str) -> str:
    """`energy_j_total`, `pcie_rx_bytes_rate`: the field that is made of it."""
    return name.removesuffix("_total").removesuffix("_rate")
