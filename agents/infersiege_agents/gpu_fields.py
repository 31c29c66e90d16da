"""What is asked of one GPU: each call of NVML with the fields that it gives, in tables.

A reading asks NVML once and puts what it learned into a dict of raw values. Fields of the table of measurements have
their names there; names that end in `_total` are counters since the driver was loaded (gpu_card makes differences of
them).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pynvml

from infersiege_agents.nvml import FUNCTION_NOT_FOUND, NEVER, NEVER_OF_MANY, OK, TOO_MANY, Function, Handle, Nvml

Values = dict[str, float]

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field: the sum over all links."""


class Reading(Protocol):
    """One question to one GPU."""

    call: str
    """NVML's function, for error texts."""

    @property
    def names(self) -> tuple[str, ...]:
        """The values that it gives; empty for one that tells by itself which of them a card lacks."""
        ...

    @property
    def failed(self) -> Sequence[tuple[str, int]]:
        """Values that the last reading, which succeeded as a whole, could not give, with NVML's codes."""
        ...

    def read(self, values: Values) -> int:
        """Ask, put what was learned into `values`; NVML's return code."""
        ...


class Scalar(NamedTuple):
    """A call that gives one number."""

    name: str
    call: str
    arguments: tuple[int, ...]
    kind: type[Any]
    scale: float


SCALARS: tuple[Scalar, ...] = (
    Scalar("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), ctypes.c_uint, 1e-3),
    Scalar("clock_sm_mhz", "nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_SM,), ctypes.c_uint, 1.0),
    Scalar("clock_memory_mhz", "nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_MEM,), ctypes.c_uint, 1.0),
    Scalar("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", (pynvml.NVML_CLOCK_SM,), ctypes.c_uint, 1.0),
    Scalar("temperature_c", "nvmlDeviceGetTemperature", (pynvml.NVML_TEMPERATURE_GPU,), ctypes.c_uint, 1.0),
    Scalar("ecc_corrected_total", "nvmlDeviceGetTotalEccErrors", (0, 0), ctypes.c_ulonglong, 1.0),
    Scalar("ecc_uncorrected_total", "nvmlDeviceGetTotalEccErrors", (1, 0), ctypes.c_ulonglong, 1.0),
)
"""Read once per interval. ECC: volatile counters, which count from the loading of the driver."""

POWER_USAGE = Scalar("power_w", "nvmlDeviceGetPowerUsage", (), ctypes.c_uint, 1e-3)
TOTAL_ENERGY = Scalar("energy_j_total", "nvmlDeviceGetTotalEnergyConsumption", (), ctypes.c_ulonglong, 1e-3)
EVENT_REASONS = Scalar("clock_reasons", "nvmlDeviceGetCurrentClocksEventReasons", (), ctypes.c_ulonglong, 1.0)
THROTTLE_REASONS = Scalar("clock_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", (), ctypes.c_ulonglong, 1.0)
"""The name of EVENT_REASONS in drivers before 535."""


class Field(NamedTuple):
    """A field of nvmlDeviceGetFieldValues."""

    name: str
    number: int
    scope: int
    scale: float


POWER_INSTANT = Field("power_instant_w", pynvml.NVML_FI_DEV_POWER_INSTANT, 0, 1e-3)
FIELDS: tuple[Field, ...] = (
    Field("power_average_w", pynvml.NVML_FI_DEV_POWER_AVERAGE, 0, 1e-3),
    Field("temperature_memory_c", pynvml.NVML_FI_DEV_MEMORY_TEMP, 0, 1.0),
    Field("energy_j_total", pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0, 1e-3),
    Field("nvlink_tx_bytes_total", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, 1024.0),
    Field("nvlink_rx_bytes_total", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, 1024.0),
    Field("pcie_tx_bytes_total", pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1.0),
    Field("pcie_rx_bytes_total", pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1.0),
)
"""Read once per interval, in one call. NVLink counts KiB."""

OLDER_CALLS: dict[str, Scalar] = {POWER_INSTANT.name: POWER_USAGE, TOTAL_ENERGY.name: TOTAL_ENERGY}
"""Field that a card or driver may lack -> the call that was there before it."""

PCIE_CALL = "nvmlDeviceGetPcieThroughput"
PCIE_RATES: dict[str, Scalar] = {
    "pcie_tx_bytes_total": Scalar("pcie_tx_bytes_rate", PCIE_CALL, (0,), ctypes.c_uint, 1000.0),
    "pcie_rx_bytes_total": Scalar("pcie_rx_bytes_rate", PCIE_CALL, (1,), ctypes.c_uint, 1000.0),
}
"""The same for PCIe: KB/s over 20 ms, in which the call blocks. So it is only made without the counters, and seldom."""

GPM_METRICS: tuple[tuple[str, int], ...] = (
    ("sm_active", pynvml.NVML_GPM_METRIC_SM_UTIL),
    ("sm_occupancy", pynvml.NVML_GPM_METRIC_SM_OCCUPANCY),
    ("tensor_active", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    ("dram_active", pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
)

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union, by value type."""
_WIDE = frozenset({"dVal", "ulVal", "ullVal", "sllVal"})


class ScalarReading:
    """A row of the tables above, for one GPU."""

    __slots__ = ("_arguments", "_buffer", "_function", "_name", "_scale", "call", "names")
    failed: Sequence[tuple[str, int]] = ()

    def __init__(self, nvml: Nvml, handle: Handle, row: Scalar) -> None:
        self.call = row.call
        self.names = (row.name,)
        self._name = row.name
        self._scale = row.scale
        self._buffer = row.kind()
        self._function = nvml.function(row.call)
        self._arguments = (handle, *row.arguments, ctypes.byref(self._buffer))

    def read(self, values: Values) -> int:
        code = self._function(*self._arguments)
        if code == OK:
            values[self._name] = self._buffer.value * self._scale
        return code


class UtilizationReading:
    """`utilization` and `memory_utilization`, ratios."""

    __slots__ = ("_buffer", "_function", "_handle", "_reference", "call")
    names = ("utilization", "memory_utilization")
    failed: Sequence[tuple[str, int]] = ()

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self.call = "nvmlDeviceGetUtilizationRates"
        self._function = nvml.function(self.call)
        self._handle = handle
        self._buffer = pynvml.c_nvmlUtilization_t()
        self._reference = ctypes.byref(self._buffer)

    def read(self, values: Values) -> int:
        code = self._function(self._handle, self._reference)
        if code == OK:
            values["utilization"] = self._buffer.gpu / 100
            values["memory_utilization"] = self._buffer.memory / 100
        return code


class MemoryReading:
    """`memory_used`, `memory_reserved` and `memory_total`, bytes; before driver 510 `used` holds the reserved part."""

    __slots__ = ("_buffer", "_function", "_handle", "_reference", "_tells_reserved", "call")
    names = ("memory_used", "memory_total")
    failed: Sequence[tuple[str, int]] = ()

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self._handle = handle
        self.call = "nvmlDeviceGetMemoryInfo_v2"
        self._function = nvml.function(self.call)
        self._buffer = pynvml.c_nvmlMemory_v2_t()
        self._buffer.version = pynvml.nvmlMemory_v2
        # An old driver lacks the function; some cards have only the old one.
        probe = self._function(handle, ctypes.byref(self._buffer))
        self._tells_reserved = probe not in NEVER
        if not self._tells_reserved:
            self.call = "nvmlDeviceGetMemoryInfo"
            self._function = nvml.function(self.call)
            self._buffer = pynvml.c_nvmlMemory_t()
        self._reference = ctypes.byref(self._buffer)

    def read(self, values: Values) -> int:
        code = self._function(self._handle, self._reference)
        if code == OK:
            values["memory_used"] = self._buffer.used
            values["memory_total"] = self._buffer.total
            if self._tells_reserved:
                values["memory_reserved"] = self._buffer.reserved
        return code


class FieldsReading:
    """Several fields in one call. A field that the card does not have is left out from then on."""

    __slots__ = ("_buffer", "_count", "_function", "_handle", "_rows", "call", "failed", "lacking")
    names: tuple[str, ...] = ()

    def __init__(self, nvml: Nvml, handle: Handle, rows: Sequence[Field]) -> None:
        self.call = "nvmlDeviceGetFieldValues"
        self._function = nvml.function(self.call)
        self._handle = handle
        self.lacking: list[Field] = []
        """Fields that the card does not have, as far as is known."""
        self.failed: list[tuple[str, int]] = []
        self._rows: tuple[Field, ...] = ()
        self._keep(rows)

    def _keep(self, rows: Sequence[Field]) -> None:
        self._rows = tuple(rows)
        self._count = ctypes.c_int(len(rows))
        self._buffer = (pynvml.c_nvmlFieldValue_t * len(rows))()
        for entry, row in zip(self._buffer, rows, strict=True):
            entry.fieldId = row.number
            entry.scopeId = row.scope

    def read(self, values: Values) -> int:
        if not self._rows:
            return NEVER_AT_ALL
        if self.failed:
            self.failed = []
        code = self._function(self._handle, self._count, self._buffer)
        if code in NEVER:
            self._drop(self._rows)
        if code != OK:
            return code
        without = []
        for entry, row in zip(self._buffer, self._rows, strict=True):
            if entry.nvmlReturn in NEVER_OF_MANY:
                without.append(row)
            elif entry.nvmlReturn == OK and 0 <= entry.valueType < len(_MEMBERS):
                member = _MEMBERS[entry.valueType]
                if row.name.endswith("bytes_total") and member not in _WIDE:
                    without.append(row)  # 32 bits of bytes wrap several times a second: no figure can be made of them
                else:
                    values[row.name] = getattr(entry.value, member) * row.scale
            elif entry.nvmlReturn != OK:
                self.failed.append((row.name, entry.nvmlReturn))
        if without:
            self._drop(without)
        return code

    def _drop(self, rows: Sequence[Field]) -> None:
        self.lacking.extend(rows)
        self._keep([row for row in self._rows if row not in rows])


NEVER_AT_ALL = FUNCTION_NOT_FOUND
"""Code of a reading that has nothing left to ask."""


class GpmReading:
    """GPM's shares over the time between two readings (at least 100 ms): `sm_active` and others, ratios.

    For a MIG slice it is asked of the card, with the slice's GPU instance. Frees its samples by `close`.
    """

    __slots__ = ("_arguments", "_begun", "_get", "_metrics", "_newer", "_nvml", "_older", "call", "failed")
    names = tuple(name for name, _ in GPM_METRICS)

    def __init__(self, nvml: Nvml, card: Handle, instance: int | None) -> None:
        """Raises nvml.CallError where there is no GPM."""
        self._nvml = nvml
        self.call = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        self._get: Function = nvml.function(self.call)
        self._arguments = (card,) if instance is None else (card, instance)
        self._metrics = pynvml.c_nvmlGpmMetricsGet_t()
        self._metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._metrics.numMetrics = len(GPM_METRICS)
        for entry, (_, number) in zip(self._metrics.metrics, GPM_METRICS, strict=False):
            entry.metricId = number
        self._begun = False
        self.failed: list[tuple[str, int]] = []
        self._older: Any = nvml.call("nvmlGpmSampleAlloc")
        self._newer: Any = nvml.call("nvmlGpmSampleAlloc")

    def read(self, values: Values) -> int:
        """The first reading only begins the interval, and so does the first one after a failure."""
        if self.failed:
            self.failed = []
        code = self._get(*self._arguments, self._newer)
        if code != OK:
            self._begun = False
            return code
        if self._begun:
            self._metrics.sample1, self._metrics.sample2 = self._older, self._newer
            code = self._nvml.function("nvmlGpmMetricsGet")(ctypes.byref(self._metrics))
            if code == OK:
                for (name, _), entry in zip(GPM_METRICS, self._metrics.metrics, strict=False):
                    if entry.nvmlReturn == OK:
                        values[name] = entry.value / 100
                    else:
                        self.failed.append((name, entry.nvmlReturn))
        self._begun = True
        self._older, self._newer = self._newer, self._older
        return code

    def close(self) -> None:
        for sample in (self._older, self._newer):
            if sample is not None:
                self._nvml.function("nvmlGpmSampleFree")(sample)
        self._older = self._newer = None


class ProcessesReading:
    """`processes`: how many compute processes use the GPU. Which ones is not asked: a container sees other ids."""

    __slots__ = ("_count", "_function", "_handle", "_list", "call")
    names = ("processes",)
    failed: Sequence[tuple[str, int]] = ()

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self.call = "nvmlDeviceGetComputeRunningProcesses_v3"
        self._function = nvml.function(self.call)
        self._handle = handle
        self._count = ctypes.c_uint(0)
        self._list = (pynvml.c_nvmlProcessInfo_v3_t * 256)()

    def read(self, values: Values) -> int:
        self._count.value = len(self._list)
        code = self._function(self._handle, ctypes.byref(self._count), self._list)
        if code == TOO_MANY:  # it still tells how many there are
            code = OK
        if code == OK:
            values["processes"] = self._count.value
        return code


def supports_gpm(nvml: Nvml, card: Handle) -> bool:
    """Whether the card has GPM at all (Hopper and later)."""
    support = pynvml.c_nvmlGpmSupport_t()
    support.version = pynvml.NVML_GPM_SUPPORT_VERSION
    code = nvml.function("nvmlGpmQueryDeviceSupport")(card, ctypes.byref(support))
    return code == OK and bool(support.isSupportedDevice)
