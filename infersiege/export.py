"""The turns of a run as a table for other tools: Parquet with typed columns, or CSV (docs/export.md).

One column for each field of TurnRecord, under its name and in its order. Rows go through memory by the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import IO, Any, Final

import msgspec
import numpy as np

from infersiege.errors import RunDirectoryError, UsageError
from infersiege.metrics.batch import ABSENT, Batch
from infersiege.records import EarlierAttempt, KeptAnswer, TurnRecord
from infersiege.rundir import INSTANTS, PlanFile

ROWS_PER_GROUP: Final = 65_536
"""Of a Parquet file: so many are in memory at a time, as columns (some 50 MB)."""

_QUOTED: Final = frozenset(',"\r\n')

_TYPES: Final[Mapping[str, str]] = {
    "str": "string",
    "int": "int64",
    "float": "float64",
    "bool": "bool",
    "dict[int, int]": "map<int64, int64>",
    "dict[str, int]": "map<string, int64>",
    "tuple[str, ...]": "list<string>",
    "tuple[EarlierAttempt, ...]": "list<struct>",
    "KeptAnswer": "struct",
}
"""Type of a field (words of a closed set are strings) -> type of its column."""


def columns() -> dict[str, str]:
    """Column -> its type, as docs/export.md names it. Instants are `timestamp[ns, UTC]`."""
    return {name: "timestamp[ns, UTC]" if name in INSTANTS else _type_of(TurnRecord, name) for name in _NAMES}


_NAMES: Final = TurnRecord.__struct_fields__


def _type_of(kind: type[msgspec.Struct], name: str) -> str:
    annotation = str(kind.__annotations__[name]).removesuffix(" | None")
    return _TYPES.get(annotation, "string")


# ----------------------------------------------------------------------------------------------------------- Parquet


def write_parquet(batches: Iterable[Batch], file: IO[bytes], plan: PlanFile) -> int:
    """Write all turns; returns how many. `plan` is told in the file's metadata (`infersiege.run_id` …).

    Raises UsageError where pyarrow is missing, and what `batches` raises; OSError.
    """
    pyarrow, parquet = _arrow()
    schema = _schema(pyarrow).with_metadata(_about(plan))
    written = waiting = 0
    tables: list[Any] = []
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            tables.append(_table(pyarrow, schema, batch))  # columns take a quarter of the memory of rows
            waiting += len(batch)
            if waiting >= ROWS_PER_GROUP:
                writer.write_table(pyarrow.concat_tables(tables), row_group_size=waiting)
                written, waiting, tables = written + waiting, 0, []
        if tables:
            writer.write_table(pyarrow.concat_tables(tables), row_group_size=max(waiting, 1))
    return written + waiting


def check_parquet() -> None:
    """Raises UsageError where pyarrow is missing: told before any work."""
    _arrow()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "a Parquet file needs the package pyarrow, which is not installed",
            hint="pip install 'infersiege[parquet]', or write a CSV file with --csv",
        ) from None
    return pyarrow, parquet


def _about(plan: PlanFile) -> dict[str, str]:
    return {
        "infersiege.schema_version": str(plan.schema_version),
        "infersiege.run_id": plan.run_id,
        "infersiege.name": plan.name,
    }


def _schema(pyarrow: Any) -> Any:
    return pyarrow.schema([(name, _arrow_type(pyarrow, text)) for name, text in columns().items()])


def _arrow_type(pyarrow: Any, text: str) -> Any:

    def struct_of(kind: type[msgspec.Struct]) -> Any:
        fields = [(name, _arrow_type(pyarrow, _type_of(kind, name))) for name in kind.__struct_fields__]
        return pyarrow.struct(fields)

    made = {
        "timestamp[ns, UTC]": lambda: pyarrow.timestamp("ns", tz="UTC"),
        "string": pyarrow.string,
        "int64": pyarrow.int64,
        "float64": pyarrow.float64,
        "bool": pyarrow.bool_,
        "map<int64, int64>": lambda: pyarrow.map_(pyarrow.int64(), pyarrow.int64()),
        "map<string, int64>": lambda: pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        "list<string>": lambda: pyarrow.list_(pyarrow.string()),
        "list<struct>": lambda: pyarrow.list_(struct_of(EarlierAttempt)),
        "struct": lambda: struct_of(KeptAnswer),
    }
    return made[text]()


def _table(pyarrow: Any, schema: Any, batch: Batch) -> Any:
    arrays = [_array(pyarrow, batch, name, text, schema.field(name).type) for name, text in columns().items()]
    return pyarrow.table(arrays, schema=schema)


def _array(pyarrow: Any, batch: Batch, name: str, text: str, kind: Any) -> Any:
    if text in ("int64", "timestamp[ns, UTC]"):
        try:
            values = batch.ints(name)
        except OverflowError:
            raise RunDirectoryError(
                f"{name} of a turn is a number of more than 63 bits", hint="--csv writes it as it is"
            ) from None
        return pyarrow.array(values, mask=values == ABSENT, type=kind)
    if text == "map<int64, int64>":
        found = batch.sparse(name)
        offsets = np.concatenate(([0], np.cumsum(found.sizes))).astype(np.int32)
        return pyarrow.MapArray.from_arrays(offsets, found.key, found.count)
    rows = map(attrgetter(name), batch.turns)
    if text in ("list<struct>", "struct"):
        return pyarrow.array([msgspec.to_builtins(row) for row in rows], type=kind)
    if text == "map<string, int64>":
        return pyarrow.array([list(row.items()) for row in rows], type=kind)
    return pyarrow.array(list(rows), type=kind)


# --------------------------------------------------------------------------------------------------------------- CSV


def write_csv(batches: Iterable[Batch], file: IO[bytes]) -> int:
    """Write all turns with a line of names before them (RFC 4180, UTF-8); returns how many.

    Instants are ns since the Unix epoch, what holds several values is JSON; None is nothing, and an empty text is "".
    Raises what `batches` raises; OSError.
    """
    file.write((",".join(_NAMES) + "\r\n").encode())
    encode = msgspec.json.Encoder().encode
    plain = [text not in ("string", "int64", "float64", "bool", "timestamp[ns, UTC]") for text in columns().values()]
    written = 0
    for batch in batches:
        file.write("".join(_lines(batch, plain, encode)).encode())
        written += len(batch)
    return written


def _lines(batch: Batch, nested: list[bool], encode: Any) -> Iterator[str]:
    row_of = attrgetter(*_NAMES)
    for turn in batch.turns:
        row = zip(row_of(turn), nested, strict=True)
        cells = (_cell(encode(value).decode() if inside and value is not None else value) for value, inside in row)
        yield ",".join(cells) + "\r\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text or not _QUOTED.isdisjoint(text):
        return '"' + text.replace('"', '""') + '"'
    return text
