"""Plain TOML values -> schema structs: types, units, bounds, choices, unknown and missing keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from infersiege.plan.bounds import LARGEST
from infersiege.plan.faults import Faults, dotted
from infersiege.plan.hybrid_schema import HYBRIDS, Hybrid
from infersiege.plan.keys import Key, keys_of, sub_table
from infersiege.plan.locate import KeyPath
from infersiege.plan.registries import names
from infersiege.plan.schema import Plan
from infersiege.plan.values import finite, format_duration, kind_of, parse_duration, parse_limit, shortened

T = TypeVar("T", bound=msgspec.Struct)

SECRET_KEYS = frozenset({"api_key", "apikey", "key", "token", "secret", "password", "authorization", "bearer"})
"""Keys with which people try to write a secret into a plan."""


def convert(raw: dict[str, Any], faults: Faults) -> Plan:
    """Build the plan from what TOML gave. Faults go to `faults`.

    Keys with a fault have their default, required ones None: the result may only be looked at key by key, with
    `faults.ok`, until there is no fault.
    """
    channels = raw.get("channel")
    if not isinstance(channels, dict):
        return _Converter(faults).table(Plan, raw, ())
    hybrids = {
        name: table for name, table in channels.items() if isinstance(table, dict) and table.get("engine") == "hybrid"
    }
    plain = {name: table for name, table in channels.items() if name not in hybrids}
    converter = _Converter(faults)
    plan = converter.table(Plan, raw | {"channel": plain}, ())
    made = {name: converter.table(Hybrid, table, ("channel", name)) for name, table in hybrids.items()}
    return msgspec.structs.replace(plan, hybrids=made)


class _Converter:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def table(self, cls: type[T], raw: object, path: KeyPath) -> T:
        keys = keys_of(cls)
        if not isinstance(raw, dict):
            self.faults.add(path, f"{kind_of(raw)} where a table is needed")
            raw = {}
        for name in raw:
            if name not in keys or name == HYBRIDS:
                self._unknown(cls, path, name)
        values: dict[str, Any] = {}
        for key in keys.values():
            values[key.attribute] = _blank(key)
            here = (*path, key.name)
            if key.name not in raw:
                if key.required and self.faults.ok(*here):
                    self._missing(key, here)
            elif key.later is not None:
                self.faults.add(here, f"is not there yet (planned: {key.later})")
            else:
                values[key.attribute] = self._key(key, raw[key.name], here, raw)
        return cls(**values)

    def _missing(self, key: Key, path: KeyPath) -> None:
        if sub_table(key.type) is not None:
            written, _, meaning = key.description.removeprefix("Written ").partition(": ")
            self.faults.add(path, f"is missing; write {written}: {meaning}")
        else:
            self.faults.add(path, f"is missing; {_lower(key.description)}")

    def _unknown(self, cls: type[msgspec.Struct], path: KeyPath, name: str) -> None:
        here = (*path, name)
        if name.lower().replace("-", "_") in SECRET_KEYS:
            self.faults.add(
                here, "keys never stand in a plan; name the variable that holds it in api_key_env (or use api_key_file)"
            )
            return
        legal = [key.name for key in keys_of(cls).values() if key.name != HYBRIDS]
        elsewhere = [other for other in _plain_paths() if other[-1] == name]
        near = get_close_matches(name.removesuffix("_ns"), legal, n=1, cutoff=0.6)
        if not elsewhere and not near:
            self.faults.add(here, f"unknown key; here are: {', '.join(legal)}")
            return
        # A forgotten plural is more likely than the key of another table.
        plural = {f"{name}s", name.removesuffix("s")}.intersection(legal)
        meant = elsewhere[0] if elsewhere and not plural else (*path, near[0])
        self.faults.add(here, f"unknown key; did you mean {dotted(meant)}?")
        self.faults.mark(meant)

    def _key(self, key: Key, raw: object, path: KeyPath, siblings: dict[str, Any]) -> Any:
        """The value of one key, or its default and a fault."""
        if key.choices == "STATS" and isinstance(raw, str):
            raw = raw.replace(".", "_")  # p99.9 is p99_9, as in summary.json
        try:
            value = self._value(key, key.type, raw, path, siblings)
            _within(key, value)
        except ValueError as error:
            self.faults.add(path, str(error))
            return _blank(key)
        return value

    def _value(self, key: Key, kind: inspect.Type, raw: object, path: KeyPath, siblings: dict[str, Any]) -> Any:
        if isinstance(kind, inspect.StructType):
            return self.table(kind.cls, raw, path)
        if isinstance(kind, inspect.DictType):
            if not isinstance(raw, dict):
                raise ValueError(f"{kind_of(raw)} where a table is needed")
            return {name: self._item(key, kind.value_type, raw[name], (*path, name)) for name in raw}
        if isinstance(kind, inspect.VarTupleType):
            if not isinstance(raw, list):
                raise ValueError(self._no_array(key, raw))
            return tuple(self._item(key, kind.item_type, item, (*path, index)) for index, item in enumerate(raw))
        if isinstance(kind, inspect.AnyType):
            _json_only(raw)
            return raw
        if key.unit == "metric":
            return self._limit(raw, path, siblings)
        override = self.faults.override(path)
        if override is not None and isinstance(kind, inspect.StrType):
            raw = override.text if not isinstance(raw, str) else raw
        return _scalar(key, kind, raw)

    def _item(self, key: Key, kind: inspect.Type, raw: object, path: KeyPath) -> Any:
        """One member of a table of values or of an array: its faults have its own path."""
        try:
            return self._value(msgspec.structs.replace(key, choices=None, unit=None), kind, raw, path, {})
        except ValueError as error:
            self.faults.add(path, str(error))
            return None

    def _no_array(self, key: Key, raw: object) -> str:
        if isinstance(raw, dict) and sub_table(key.type) is not None:
            return f"one table where an array of tables is needed; write [[{key.name}]]"
        return f"{kind_of(raw)} where an array is needed"

    def _limit(self, raw: object, path: KeyPath, siblings: dict[str, Any]) -> float | None:
        metric = siblings.get("metric")
        if not isinstance(metric, str) or metric not in names("METRICS").now:
            self.faults.mark(path)
            return None
        from infersiege.metrics.definitions import METRICS

        return parse_limit(raw, METRICS[metric].unit)


def _blank(key: Key) -> Any:
    """What stands for a key that is not there or has a fault, so that other keys can still be checked."""
    if key.required and isinstance(key.type, inspect.DictType):
        return {}
    if key.required and isinstance(key.type, inspect.VarTupleType):
        return ()
    return key.default


def _scalar(key: Key, kind: inspect.Type, raw: object) -> Any:
    if isinstance(kind, inspect.BoolType):
        if not isinstance(raw, bool):
            raise ValueError(f"{kind_of(raw)} where true or false is needed")
        return raw
    if key.unit == "duration":
        return _duration(raw)
    if isinstance(kind, inspect.IntType):
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError(f"{kind_of(raw)} where an integer is needed")
        return raw
    if isinstance(kind, inspect.FloatType):
        return _float(key, raw)
    if not isinstance(raw, str):
        raise ValueError(f"{kind_of(raw)} where a string is needed")
    return raw


def _duration(raw: object) -> int:
    if isinstance(raw, str):
        return parse_duration(raw)
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        shown = _plain(finite(raw))
        raise ValueError(f'{shown} has no unit; write "{shown}s" or "{shown}ms"')
    raise ValueError(f'{kind_of(raw)} where a duration is needed, such as "5m" or "800ms"')


def _float(key: Key, raw: object) -> float:
    if key.unit == "ratio" and isinstance(raw, str):
        return parse_limit(raw, "ratio")
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"{kind_of(raw)} where a number is needed")
    return float(finite(raw))


def _within(key: Key, value: Any) -> None:
    """Bounds and choices. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = _duration_text if key.unit == "duration" else _plain
        if key.at_least is not None and value < key.at_least:
            raise ValueError(f"{shown(value)} is too small; the least is {shown(key.at_least)}")
        if key.above is not None and value <= key.above:
            raise ValueError(f"{shown(value)} is too small; it must be above {shown(key.above)}")
        if key.at_most is not None and value > key.at_most:
            raise ValueError(f"{shown(value)} is too large; the most is {shown(key.at_most)}")
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be empty; leave the key out instead")
    if key.longest is not None and isinstance(value, str) and not (value.isprintable() and len(value) <= key.longest):
        raise ValueError(f"must be at most {key.longest} printable characters, without line ends")
    if key.choices is not None and isinstance(value, str):
        _among(key.choices, value)


def _among(choices: tuple[str, ...] | str, value: str) -> None:
    legal = choices
    if isinstance(legal, str):
        known = names(legal)
        if value in known.later and value not in known.now:
            raise ValueError(f"{value!r} is not built yet; there are: {', '.join(known.now)}")
        legal = known.now
    if value not in legal:
        near = get_close_matches(value, legal, n=1, cutoff=0.6)
        raise ValueError(f"unknown value {value!r}; " + (f"did you mean {near[0]!r}? " if near else "") + _list(legal))


def _list(legal: tuple[str, ...]) -> str:
    return f"there are: {', '.join(legal)}"


def _duration_text(value: float) -> str:
    return format_duration(int(value))


def _plain(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else shortened(str(value))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _json_only(raw: object) -> None:
    """TOML has dates, NaN and whole numbers of any size, JSON as others read it has not. Raises ValueError."""
    if isinstance(raw, dict | list):
        for item in raw.values() if isinstance(raw, dict) else raw:
            _json_only(item)
    elif not isinstance(raw, str | int | float) or (isinstance(raw, float) and not math.isfinite(raw)):
        raise ValueError(f"{raw} has no form in JSON")
    elif isinstance(raw, int) and abs(raw) > LARGEST:
        raise ValueError(f"{shortened(str(raw))} is beyond 64 bits")


def _plain_paths() -> Iterator[KeyPath]:
    """Keys of the tables that exist once, for a key written into the wrong table."""
    for key in keys_of(Plan).values():
        if isinstance(key.type, inspect.StructType):
            yield from ((key.name, inner) for inner in keys_of(key.type.cls))
