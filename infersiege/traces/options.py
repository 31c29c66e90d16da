"""Options of trace formats and built-in workloads: one table each, checked with all faults at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import msgspec

from infersiege.errors import TraceError

Value = bool | int | float | str

_MOST = 1e9
"""Of numbers without a bound of their own."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option. Its type is that of its default; an integer is taken where a number is wanted."""

    default: Value
    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()


OptionTable = Mapping[str, Option]


def check_options(place: str, table: OptionTable, given: Mapping[str, object]) -> dict[str, Value]:
    """Every option of the table with the given value or its default.

    Raises TraceError that names every fault: unknown names with the nearest legal one, wrong types, impossible values.
    """
    faults = []
    values: dict[str, Value] = {name: option.default for name, option in table.items()}
    for name, value in given.items():
        option = table.get(name)
        if option is None:
            near = difflib.get_close_matches(name, table, n=1)
            guess = f", did you mean {near[0]!r}?" if near else ""
            faults.append(f"option {name!r} is unknown{guess}")
            continue
        fault, checked = _check(option, value)
        if fault is not None:
            faults.append(f"option {name!r} {fault}, not {_short(value)}")
        else:
            values[name] = checked
    if faults:
        known = ", ".join(table) or "none"
        raise TraceError(f"{place}: {'; '.join(faults)}", hint=f"options: {known} (docs/traces.md)")
    return values


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:39]}…"


def _check(option: Option, value: object) -> tuple[str | None, Value]:
    default = option.default
    if isinstance(default, bool):
        return (None, value) if isinstance(value, bool) else ("is true or false", default)
    if isinstance(default, str):
        if not isinstance(value, str) or (option.choices and value not in option.choices):
            return "is one of " + ", ".join(option.choices), default
        return None, value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is a number", default
    if isinstance(default, int) and not isinstance(value, int):
        return "is a whole number", default
    if isinstance(value, float) and not math.isfinite(value):
        return "is a finite number", default
    if option.at_least is not None and value < option.at_least:
        return f"is at least {option.at_least:g}", default
    most = _MOST if option.at_most is None else option.at_most
    if value > most:
        return f"is at most {most:g}", default
    return None, (value if isinstance(default, int) else float(value))
