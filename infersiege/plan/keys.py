"""The keys of a plan file, read from the schema: one table for loading and for docs/plan.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of one table."""

    name: str
    """As written in the plan file."""
    attribute: str
    """Of the struct."""
    type: inspect.Type
    """Without None."""
    optional: bool
    """None is a legal value (never written: TOML has no null)."""
    required: bool
    default: Any
    """What the attribute is when the key is not written; None for required keys."""
    description: str
    unit: str | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    longest: int | None = None
    """Characters of a name that is shown: printable, so that it can't break a table or a terminal."""
    choices: tuple[str, ...] | str | None = None
    """Legal values, or the name of the registry that has them."""
    later: str | None = None
    """What has to be built before the key may be set."""


_EXTRAS = ("unit", "at_least", "above", "at_most", "longest", "choices", "later")


@cache
def keys_of(table: type[msgspec.Struct]) -> Mapping[str, Key]:
    """Keys of one table by their written name, in the schema's order."""
    info = inspect.type_info(table)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{table!r} is no Struct")
    return {key.name: key for key in map(_key, info.fields)}


def _key(field: inspect.Field) -> Key:
    kind = field.type
    extra: dict[str, Any] = {}
    description = ""
    if isinstance(kind, inspect.Metadata):
        extra = kind.extra or {}
        description = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    optional = False
    if isinstance(kind, inspect.UnionType):
        optional = True
        (kind,) = (part for part in kind.types if not isinstance(part, inspect.NoneType))
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    else:
        default = None if field.required else field.default
    return Key(
        name=extra.get("key", field.name.removesuffix("_ns") if extra.get("unit") == "duration" else field.name),
        attribute=field.name,
        type=kind,
        optional=optional,
        required=field.required,
        default=default,
        description=description,
        **{name: extra[name] for name in _EXTRAS if name in extra},
    )


def sub_table(kind: inspect.Type) -> type[msgspec.Struct] | None:
    """The struct inside a key's type: a table, a named table or an array of tables; None for plain values."""
    if isinstance(kind, inspect.StructType):
        return kind.cls
    if isinstance(kind, inspect.DictType):
        return sub_table(kind.value_type)
    if isinstance(kind, inspect.VarTupleType):
        return sub_table(kind.item_type)
    return None
