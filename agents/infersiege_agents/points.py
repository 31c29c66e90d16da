"""One point of a series, and InfluxDB's line protocol for it.

Everything that infersiege measures beside single turns is such a point: the agents make them, the durable writer sends
them, and the run directory keeps them as JSON lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

Value = float | str


class Point(NamedTuple):
    """Values of one series at one instant.

    A field's type is fixed by its first write in InfluxDB: numbers are always written as floats. A value that is
    None was not measured and is left out; NaN and infinite ones are left out, too, and counted by the writer.
    """

    measurement: str
    tags: Mapping[str, str]
    """Part of the series' identity. Same measurement, tags and instant: the later point replaces the earlier fields."""
    fields: Mapping[str, float | int | str | None]
    at_ns: int
    """ns since the Unix epoch."""


class Sink(Protocol):
    """Where points go. `put` and `tick` never raise and never wait for a network."""

    def put(self, point: Point) -> None: ...

    def tick(self) -> None:
        """Called about once a second: a chance to move on what waits."""
        ...


def measured(fields: Mapping[str, float | int | str | None]) -> dict[str, Value]:
    """The fields that have a value: numbers as finite floats, texts as they are."""
    kept: dict[str, Value] = {}
    for name, value in fields.items():
        if isinstance(value, str):
            kept[name] = value
        elif value is not None and math.isfinite(value):
            kept[name] = float(value)
    return kept


def line_of(point: Point) -> bytes:
    """The point in line protocol with its newline, nanoseconds; b"" when no field has a value.

    Tags are sorted (the server need not) and empty ones are left out, as the protocol has no empty tag.
    """
    fields = measured(point.fields)
    if not fields:
        return b""
    tags = "".join(f",{_key(name)}={_key(value)}" for name, value in sorted(point.tags.items()) if value)
    values = ",".join(
        f"{_key(name)}={_text(value) if isinstance(value, str) else repr(value)}" for name, value in fields.items()
    )
    return f"{_name(point.measurement)}{tags} {values} {point.at_ns}\n".encode("utf-8", "replace")


def json_line(point: Point) -> bytes:
    """The point as a JSON object on a line: a row of telemetry/*.jsonl (records.SeriesRow); b"" without a value."""
    fields = measured(point.fields)
    if not fields:
        return b""
    row = {"at_ns": point.at_ns, "measurement": point.measurement, "tags": dict(point.tags), "fields": fields}
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


_NAME = str.maketrans({",": r"\,", " ": r"\ ", "\n": r"\ ", "\r": r"\ "})
_KEY = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ ", "\n": r"\ ", "\r": r"\ "})
_TEXT = str.maketrans({'"': r"\"", "\\": r"\\", "\n": " ", "\r": " "})


def _name(text: str) -> str:
    return _open_ended(text).translate(_NAME)


def _key(text: str) -> str:
    """A tag's key or value, or a field's key. The protocol can't hold a line end there: it becomes a space."""
    return _open_ended(text).translate(_KEY)


def _open_ended(text: str) -> str:
    """A backslash at the end would escape what follows."""
    return text + " " if text.endswith("\\") else text


def _text(text: str) -> str:
    return f'"{text.translate(_TEXT)}"'
