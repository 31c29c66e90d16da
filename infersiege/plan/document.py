"""Writes docs/plan.md from the schema: `python -m infersiege.plan.document > docs/plan.md`."""

from __future__ import annotations

import json
import sys

import msgspec
from msgspec import inspect

from infersiege.plan.bounds import LARGEST
from infersiege.plan.hybrid_schema import HYBRIDS
from infersiege.plan.keys import Key, keys_of, sub_table
from infersiege.plan.registries import names
from infersiege.plan.schema import Plan
from infersiege.plan.values import format_duration

_TITLES = {
    "channel": "[channel.NAME]",
    HYBRIDS: '[channel.NAME], engine = "hybrid"',
    "workload": "[[workload]]",
    "slo": "[[slo]]",
}

_HEAD = """\
# The plan file

<!-- Written by `python -m infersiege.plan.document` from infersiege/plan/schema.py. Do not edit. -->

A plan is one TOML file: where requests go, what is sent, how much of it, and which rules the result must keep.
[examples/plans](../examples/plans) has one for each engine. A plan is strict: unknown keys, wrong types and impossible
values are all reported at once, each with its line, and nothing runs.

```toml
{example}```

* **Durations** carry their unit: `"800ms"`, `"90s"`, `"5m"`, `"1h30m"`. A bare number is a fault. Units: {units}.
  None may be longer than 30 days.
* **Limits** of rules have the unit of their metric: `max = "800ms"` for times, `"1%"` or `0.01` for shares, numbers for
  rates (docs/metrics.md has each metric's unit).
* **Keys never stand in a plan.** `api_key_env` names the environment variable that holds one, `api_key_file` a file.
  Anything in a plan that looks like a key is a fault.
* **Paths** are relative to the plan file.
* **Overrides**: `--set load.users=64`, `--set channel.local.model=x`, `--set workload.0.trace=a.jsonl`. The value
  is TOML, or else a string; an empty value takes the key out (`--set load.users=`).
* Keys marked *planned* are known but not built yet: setting one is a fault that says so.

The plan's hash, which `compare` and the workers look at, is taken over everything but the run's nonce and the folders
of local files.
"""


def document(example: str) -> str:
    """docs/plan.md as text. `example` is a whole plan file."""
    units = ", ".join(f"`{unit}`" for unit in ("ns", "us", "ms", "s", "m", "h"))
    parts = [_HEAD.format(example=example, units=units)]
    for key in keys_of(Plan).values():
        title = _TITLES.get(key.name, f"[{key.name}]")
        table = sub_table(key.type)
        parts.append(f"\n## {title}\n\n{_sentence(key)}\n")
        if table is not None:
            parts.append(_table(table))
            parts += _inner(table, title.partition(",")[0].strip("[]"))
    return "".join(parts)


def _sentence(key: Key) -> str:
    text = key.description
    if text.startswith("Written "):
        text = text.split(": ", 1)[1]
    text = text[:1].upper() + text[1:] + "."
    return f"*Planned: {key.later}.* {text}" if key.later else text


def _inner(table: type[msgspec.Struct], title: str) -> list[str]:
    """Sections of the tables inside a table, but not of those that have a section of their own."""
    parts = []
    for key in keys_of(table).values():
        inner = sub_table(key.type)
        if inner is None or inner.__name__ == "Load":
            continue
        name = f"{title}.{key.name}"
        shown = f"[[{name}]]" if isinstance(key.type, inspect.VarTupleType) else f"[{name}]"
        parts.append(f"\n### {shown}\n\n{_sentence(key)}\n" + _table(inner))
        parts += _inner(inner, name)
    return parts


def _table(table: type[msgspec.Struct]) -> str:
    rows = ["\n| key | type | default | meaning |\n|---|---|---|---|\n"]
    for key in keys_of(table).values():
        meaning = key.description + _limits(key)
        if key.later:
            meaning = f"*Planned: {key.later}.* {meaning}"
        cells = (f"`{key.name}`", type_of(key), _default(key), meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(rows)


def type_of(key: Key) -> str:
    """The type of a key as the documentation names it, with its unit."""
    if key.unit == "duration":
        return "duration"
    if key.unit == "metric":
        return "limit"
    unit = f", {key.unit}" if key.unit else ""
    return _plain_type(key.type) + unit


def _plain_type(kind: inspect.Type) -> str:
    plain = {
        inspect.StrType: "string",
        inspect.IntType: "integer",
        inspect.FloatType: "number",
        inspect.BoolType: "boolean",
    }
    if isinstance(kind, inspect.StructType):
        return "table"
    if isinstance(kind, inspect.DictType):
        return "table of " + ("strings" if isinstance(kind.value_type, inspect.StrType) else "values")
    if isinstance(kind, inspect.VarTupleType):
        return "array of " + _plain_type(kind.item_type) + "s"
    return plain[type(kind)]


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default is None or isinstance(key.default, msgspec.Struct):
        return ""
    if key.unit == "duration":
        return f"`{json.dumps(format_duration(key.default))}`"
    if isinstance(key.default, tuple):
        return "`[]`"
    return f"`{json.dumps(key.default)}`"


def _limits(key: Key) -> str:
    parts = []
    if key.at_least is not None:
        parts.append(f"at least {_number(key.at_least)}")
    if key.above is not None:
        parts.append(f"above {_number(key.above)}")
    if key.at_most is not None and key.unit != "duration":
        parts.append(f"at most {_number(key.at_most)}")
    if key.longest is not None:
        parts.append(f"at most {key.longest} printable characters")
    if isinstance(key.choices, tuple):
        parts.append("one of " + ", ".join(f"`{name}`" for name in key.choices))
    elif key.choices == "METRICS":
        parts.append("any of docs/metrics.md")
    elif key.choices is not None:
        known = names(key.choices)
        parts.append("one of " + ", ".join(f"`{name}`" for name in known.now))
        if known.later:
            parts.append("planned: " + ", ".join(f"`{name}`" for name in known.later))
    return f" ({'; '.join(parts)})" if parts else ""


def _number(value: float) -> str:
    if abs(value) == LARGEST:
        return "2⁶³ − 1" if value > 0 else "−2⁶³ + 1"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def main() -> None:
    from pathlib import Path

    example = Path(__file__).parents[2] / "examples" / "plans" / "vllm.toml"
    sys.stdout.write(document(example.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
