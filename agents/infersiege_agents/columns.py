"""What the columns of nvidia-smi, rocm-smi and npu-smi mean: name -> field of the measurement `gpu`, units converted.

nvidia-smi's names are those of `nvidia-smi --help-query-gpu`. Those of rocm-smi (`--csv`) and npu-smi (`info -t
usages`, `info -t common`) are from their documentation and from outputs that others published: no AMD or Ascend
hardware was there to try them on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from infersiege_agents.errors import AgentError
from infersiege_agents.gpu_codes import LOST, PERMISSION, REASONS, RESET, UNKNOWN
from infersiege_agents.measurements import GPU

SPREADS: Mapping[str, tuple[str, ...]] = {
    "utilization": ("utilization_min", "utilization_mean", "utilization_max"),
    "memory_used": ("memory_used_min_bytes", "memory_used_mean_bytes", "memory_used_max_bytes"),
    "power": ("power_min_w", "power_mean_w", "power_max_w"),
}
"""A tool gives one sample at a time: least, mean and greatest are the same."""

SHARE = "memory_used_share"
"""Share of memory in use: becomes bytes where the total is known, else nothing."""
CHIP = "chip"
"""Chip of a card: part of the identity, where a card has several."""
TAGS = ("uuid", "pci", "name")
_OWN = ("ok", "error", "interval", "samples", "sample_duration")
TARGETS = (
    *(*TAGS, CHIP, SHARE, *SPREADS),
    *(name for name, one in GPU.fields.items() if one.kind == "number" and name not in _OWN),
)
"""What a column can be mapped to."""

_MIB = float(1 << 20)
_FACTORS: Mapping[str, Mapping[str, float]] = {
    "ratio": {"%": 0.01, "vram%": 0.01, "ratio": 1.0},
    "bytes": {"b": 1.0, "kib": 1024.0, "mib": _MIB, "gib": 1024 * _MIB, "kb": 1e3, "mb": 1e6, "gb": 1e9},
    "W": {"w": 1.0, "mw": 1e-3, "uw": 1e-6},
    "MHz": {"mhz": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6},
    "°C": {"c": 1.0, "°c": 1.0},
    "J": {"j": 1.0, "mj": 1e-3},
    "s": {"s": 1.0, "ms": 1e-3},
}
"""Unit of a field -> written unit (lower case) -> factor."""

_POSSIBLE: Mapping[str, tuple[float, float]] = {
    "ratio": (0.0, 1.0),
    "bytes": (0.0, 1e15),
    "W": (0.0, 1e5),
    "MHz": (0.0, 1e5),
    "°C": (-273.15, 1000.0),
}
"""Unit of a field -> least and greatest value that any device can have. Others: 0 and 64 bits."""


class Meaning(NamedTuple):
    """What one column holds."""

    target: str
    unit: str = ""
    """Unit of values that are written without one."""
    always: bool = False
    """The written unit is not what is meant: npu-smi's MB are MiB."""


_NVIDIA = {
    "index": Meaning("index"),
    "uuid": Meaning("uuid"),
    "gpu_uuid": Meaning("uuid"),
    "pci.bus_id": Meaning("pci"),
    "gpu_bus_id": Meaning("pci"),
    "name": Meaning("name"),
    "gpu_name": Meaning("name"),
    "utilization.gpu": Meaning("utilization", "%"),
    "utilization.memory": Meaning("memory_utilization_mean", "%"),
    "memory.used": Meaning("memory_used", "MiB"),
    "memory.reserved": Meaning("memory_reserved_bytes", "MiB"),
    "memory.total": Meaning("memory_total_bytes", "MiB"),
    "power.draw": Meaning("power", "W"),
    "power.draw.average": Meaning("power_average_w", "W"),
    "power.draw.instant": Meaning("power_instant_w", "W"),
    "enforced.power.limit": Meaning("power_limit_w", "W"),
    "power.limit": Meaning("power_limit_w", "W"),
    "clocks.current.sm": Meaning("clock_sm_mhz", "MHz"),
    "clocks.sm": Meaning("clock_sm_mhz", "MHz"),
    "clocks.max.sm": Meaning("clock_sm_max_mhz", "MHz"),
    "clocks.current.memory": Meaning("clock_memory_mhz", "MHz"),
    "clocks.mem": Meaning("clock_memory_mhz", "MHz"),
    "clocks_event_reasons.active": Meaning("clock_reasons"),
    "clocks_throttle_reasons.active": Meaning("clock_reasons"),
    "temperature.gpu": Meaning("temperature_c", "C"),
    "temperature.memory": Meaning("temperature_memory_c", "C"),
}
_ROCM = {
    "device": Meaning("index"),
    "unique id": Meaning("uuid"),
    "pci bus": Meaning("pci"),
    "card series": Meaning("name"),
    "card model": Meaning("name"),
    "gpu use": Meaning("utilization", "%"),
    "gpu memory allocated": Meaning(SHARE, "%"),
    "gpu memory read/write activity": Meaning("memory_utilization_mean", "%"),
    "vram total used memory": Meaning("memory_used", "B"),
    "vram total memory": Meaning("memory_total_bytes", "B"),
    "average graphics package power": Meaning("power", "W"),
    "current socket graphics package power": Meaning("power", "W"),
    "max graphics package power": Meaning("power_limit_w", "W"),
    "temperature (sensor edge)": Meaning("temperature_c", "C"),
    "temperature (sensor junction)": Meaning("temperature_c", "C"),
    "temperature (sensor memory)": Meaning("temperature_memory_c", "C"),
    "sclk clock speed:": Meaning("clock_sm_mhz", "MHz"),
    "mclk clock speed:": Meaning("clock_memory_mhz", "MHz"),
}
_NPU = {
    "npu id": Meaning("index"),
    "chip id": Meaning(CHIP),
    "hbm capacity": Meaning("memory_total_bytes", "MiB", always=True),
    "hbm usage rate": Meaning(SHARE, "%"),
    "hbm bandwidth usage rate": Meaning("dram_active", "%"),
    "aicore usage rate": Meaning("utilization", "%"),
    "npu real-time power": Meaning("power", "W"),
    "temperature": Meaning("temperature_c", "C"),
    "aicore curfreq": Meaning("clock_sm_mhz", "MHz"),
    "aicore freq": Meaning("clock_sm_max_mhz", "MHz"),
}
COLUMNS: Mapping[str, Meaning] = {**_NVIDIA, **_ROCM, **_NPU}
"""Column, in lower case and without its unit -> meaning. Where several columns have one target, the first wins."""

_WITH_UNIT = re.compile(r"(.*\S)\s*[\[(]([^\[\]()]*)[\])]")
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?")
_ABSENT = frozenset({"", "-", "n/a", "na", "none", "null", "unsupported", "not supported", "nan"})
_FAULT = re.compile(r"ERR!|\[?(?:[\w ]*\b(?:error|lost|reset|failed)\b[\w ]*)\]?", re.IGNORECASE)

_CODES = (("lost", LOST), ("permission", PERMISSION), ("reset", RESET))
"""Codes of the words that nvidia-smi writes in a value's place."""


class Header(NamedTuple):
    """One column of a table."""

    name: str
    """Lower case, single spaces, no unit: the key of COLUMNS."""
    unit: str


class Reading(NamedTuple):
    """One device at one instant."""

    tags: dict[str, str]
    """uuid, pci, name, mig_parent."""
    fields: dict[str, float | str | None]
    faults: list[str]
    """Values that could not be read, in words."""


def header_of(cell: str) -> Header:
    """`memory.used [MiB]`, `GPU use (%)`, `HBM Capacity(MB)` -> name and unit."""
    text = " ".join(cell.split())
    found = _WITH_UNIT.fullmatch(text)
    # `Temperature (Sensor edge)` alone: what is in the brackets is no unit.
    if found and (found[2].lower() in _ALL_UNITS or not found[2]):
        return Header(found[1].lower(), found[2])
    return Header(text.lower(), "")


_ALL_UNITS = frozenset(unit for units in _FACTORS.values() for unit in units)


def mapping_of(options: Sequence[str]) -> dict[str, Meaning]:
    """COLUMNS with the user's `COLUMN=TARGET` in front. Raises AgentError."""
    own: dict[str, Meaning] = {}
    for option in options:
        column, equals, target = option.rpartition("=")
        if not equals or not column.strip():
            raise AgentError(f"--map {option!r}: not COLUMN=TARGET", hint="such as --map 'HBM Usage(%)=utilization'")
        if target.strip() not in TARGETS:
            raise AgentError(f"--map {option!r}: there is no target {target!r}", hint=f"targets: {', '.join(TARGETS)}")
        header = header_of(column)
        own[header.name] = Meaning(target.strip(), header.unit)
    return {**own, **{name: one for name, one in COLUMNS.items() if name not in own}}


def reading_of(cells: Iterable[tuple[Header, str]], mapping: Mapping[str, Meaning], *, device: str | None) -> Reading:
    """One row as tags and fields. `device`: the identity, when no column has one.

    A value that is not there (`[N/A]`) is absent. One that says that the device failed gives ok = 0 with its words.
    """
    found: dict[str, tuple[int, float | str]] = {}
    faults: list[str] = []
    broken: list[str] = []
    rank = {name: place for place, name in enumerate(mapping)}
    for header, text in cells:
        meaning = mapping.get(header.name)
        if meaning is None:
            continue
        try:
            value = _value(text, meaning, header.unit)
        except DeviceFault as fault:
            broken.append(f"{header.name}: {fault}")
            continue
        except ValueError as error:
            faults.append(f"{header.name}: {error}")
            continue
        if value is not None and (meaning.target not in found or rank[header.name] < found[meaning.target][0]):
            found[meaning.target] = (rank[header.name], value)
    values = {target: value for target, (_, value) in found.items()}
    return Reading(_tags(values, device), _fields(values, broken), faults)


class DeviceFault(Exception):  # noqa: N818 - not our error: what the tool says of the device
    """The tool wrote an error in a value's place."""


def _value(text: str, meaning: Meaning, unit: str) -> float | str | None:
    """The value in the unit of its field; None: absent. Raises ValueError, DeviceFault."""
    text = text.strip()
    if text.strip("[]").strip().lower() in _ABSENT:
        return None
    if meaning.target in TAGS:
        return text
    if _FAULT.fullmatch(text):
        raise DeviceFault(text.strip("[]"))
    if text.startswith("[") and text.endswith("]"):
        return None
    if meaning.target in (CHIP, "index"):
        digits = re.fullmatch(r"(?:card|gpu|npu)?\s*(\d{1,6})", text, re.IGNORECASE)
        if digits is None:
            raise ValueError(f"{text!r} is no number of a device")
        return float(digits[1])
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        return float(int(text, 16))
    number = _NUMBER.fullmatch(text.strip("()"))
    if number is None:
        raise ValueError(f"{text!r} is no number")
    written = meaning.unit if meaning.always else (number[2] or unit or meaning.unit)
    value = float(number[1]) * _factor(meaning.target, written.strip())
    least, most = _POSSIBLE.get(_unit(meaning.target), (0.0, 2.0**64))
    if not least <= value <= most:
        raise ValueError(f"{text!r} can't be: the value is left out")
    return value


def _unit(target: str) -> str:
    return "ratio" if target == SHARE else GPU.fields[SPREADS[target][0] if target in SPREADS else target].unit


def _factor(target: str, written: str) -> float:
    unit = _unit(target)
    if not written:
        return 1.0
    factors = _FACTORS.get(unit, {})
    if written.lower() not in factors:
        raise ValueError(f"unit {written!r} is none of {unit or 'a plain number'}")
    return factors[written.lower()]


def _tags(values: Mapping[str, float | str], device: str | None) -> dict[str, str]:
    index, chip = values.get("index"), values.get(CHIP)
    uuid, pci = str(values.get("uuid", "")), str(values.get("pci", ""))
    if not uuid:
        numbers = [f"{number:.0f}" for number in (index, chip) if isinstance(number, float)]
        uuid = device or pci or ("-".join(["gpu", *numbers]) if numbers else "")
    name = str(values.get("name", ""))
    return {"uuid": uuid, "pci": pci or "unknown", "name": name or "unknown", "mig_parent": "none"}


def _fields(values: Mapping[str, float | str], broken: list[str]) -> dict[str, float | str | None]:
    fields: dict[str, float | str | None] = {"ok": 1.0, "error": 0.0, "samples": 1.0}
    numbers = {target: value for target, value in values.items() if isinstance(value, float)}
    total = numbers.get("memory_total_bytes")
    share = numbers.pop(SHARE, None)
    if share is not None and total is not None:
        numbers.setdefault("memory_used", share * total)
    for target, value in numbers.items():
        if target != CHIP:
            fields |= dict.fromkeys(SPREADS.get(target, (target,)), value)
    reasons = numbers.get("clock_reasons")
    if reasons is not None:
        bits = int(reasons)
        fields |= {name: float(bool(bits & mask)) for name, mask in REASONS}
    if broken:
        words = broken[0].lower()
        code = next((code for word, code in _CODES if word in words), UNKNOWN)
        if not any(target not in ("index", CHIP) for target in numbers):
            fields = {"index": numbers.get("index"), "ok": 0.0, "samples": 0.0}
        fields |= {"error": float(code), "error_text": "; ".join(broken)[:300]}
    return fields
