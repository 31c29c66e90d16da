"""JSON Schema as far as checks of answers need it: a validator of a dozen keywords, which refuses all others.

A keyword that it does not know would be one that it does not check, so a schema with such a one is a fault of its
author. What it takes means what draft 2020-12 says (tests hold it to the package `jsonschema`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 32


def faults_of_schema(schema: object, deeper: int = _DEEPEST) -> list[str]:
    """What is wrong with a schema; empty: `fits` can be asked."""
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return ["a schema is an object"]
    if not deeper:
        return ["the schema is nested too deeply"]
    faults = []
    for name, value in schema.items():
        if name in _SILENT:
            continue
        good = _FORMS.get(name)
        if good is None:
            known = ", ".join(_FORMS)
            faults.append(f"schema keyword {name!r} is not known here; known are {known}")
        elif not good(value):
            faults.append(f"schema keyword {name!r} can't be {value!r:.60}")
        elif name == "properties":
            faults += [fault for inner in value.values() for fault in faults_of_schema(inner, deeper - 1)]
        elif name in ("items", "additionalProperties"):
            faults += faults_of_schema(value, deeper - 1)
    return faults


def fits(value: object, schema: Mapping[str, Any] | bool) -> bool:
    """Whether a JSON value fits a schema without faults."""
    if isinstance(schema, bool):
        return schema
    kinds = schema.get("type")
    if kinds is not None and not any(_TYPES[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if "enum" in schema and not any(_equal(value, one) for one in schema["enum"]):
        return False
    if "const" in schema and not _equal(value, schema["const"]):
        return False
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return _number_fits(value, schema)
    if isinstance(value, str):
        pattern = schema.get("pattern")
        return _size_fits(len(value), schema, "Length") and (pattern is None or re.search(pattern, value) is not None)
    if isinstance(value, list):
        inner = schema.get("items", True)
        return _size_fits(len(value), schema, "Items") and all(fits(one, inner) for one in value)
    return not isinstance(value, dict) or _object_fits(value, schema)


def _number_fits(value: float, schema: Mapping[str, Any]) -> bool:
    return bool(
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


def _size_fits(size: int, schema: Mapping[str, Any], what: str) -> bool:
    return bool(schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size))


def _object_fits(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(name in value for name in schema.get("required", ())) and all(
        fits(inner, properties.get(name, others)) for name, inner in value.items()
    )


def _equal(one: object, other: object) -> bool:
    """As JSON: 1 and 1.0 are one number, true is none."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return one == other


def _is_integer(value: object) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except (re.error, OverflowError, RecursionError):
        return False


_SILENT = frozenset({"title", "description", "$schema", "examples", "default"})
"""Say nothing about which values fit."""

_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "properties": lambda value: isinstance(value, dict),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "additionalProperties": lambda value: isinstance(value, bool | dict),
    "items": lambda value: isinstance(value, bool | dict),
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": lambda value: True,
    "minimum": _is_number,
    "maximum": _is_number,
    "exclusiveMinimum": _is_number,
    "exclusiveMaximum": _is_number,
    "minLength": _is_size,
    "maxLength": _is_size,
    "minItems": _is_size,
    "maxItems": _is_size,
    "pattern": _is_pattern,
}
"""Keyword -> whether its value is one."""
