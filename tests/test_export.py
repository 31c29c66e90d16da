"""`infersiege export`: the same rows come back from Parquet and CSV, typed, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from metrics_turns import turns as some_turns
from pyarrow import parquet
from records_sample import plan, plan_file, records, write_run

from infersiege import export as exporting
from infersiege.cli.export import export
from infersiege.errors import ExitCode
from infersiege.export import columns, write_csv, write_parquet
from infersiege.metrics.batch import Batch, batches
from infersiege.records import EarlierAttempt, KeptAnswer, TurnRecord
from infersiege.rundir import INSTANTS

NAMES = TurnRecord.__struct_fields__

ODD = {
    "error_detail": 'a "quoted" text, with\r\nlines, 逗号 and =1+1',
    "finish_reason": "",
    "flags": ("retried", "clipped"),
    "quota_left": {"requests": 3, "tokens": 10**16 - 1},
    "earlier": (EarlierAttempt(channel="cloud", cost=0.25, tokens=7), EarlierAttempt(channel="cloud")),
    "answer": KeptAnswer(asked=('{"json": "object"}',), text='{"a":\r\n"x"', text_chars=9, tool_calls=("",), calls=1),
    "cost": 0.1 + 0.2,
    "due_ns": 1_790_000_000_123_456_789,
}
"""What tables lose easily: quotes, ends of lines, nothing beside empty, nanoseconds, digits of a float."""


@pytest.fixture(scope="module")
def turns() -> list[TurnRecord]:
    sample = records(8, steady_s=120)[:300]
    return [*sample, msgspec.structs.replace(sample[0], **ODD)]


@pytest.fixture
def run(tmp_path: Path, turns: list[TurnRecord]) -> Path:
    return write_run(tmp_path / "run", turns).path


def rows_of(table: pyarrow.Table) -> list[TurnRecord]:
    """Records made of nothing but the table; maps come back as lists of pairs, instants as their integers."""
    for name in INSTANTS:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(pyarrow.int64()))
    return [
        msgspec.convert({k: dict(v) if k in MAPS else v for k, v in row.items()}, TurnRecord)
        for row in table.to_pylist()
    ]


MAPS = [name for name, kind in columns().items() if kind.startswith("map")]


def test_parquet_gives_the_same_rows(run: Path, turns: list[TurnRecord], tmp_path: Path) -> None:
    done = CliRunner().invoke(export, [str(run), "--parquet", str(tmp_path / "turns.parquet")])
    assert done.exit_code == 0 and f"{len(turns)} turns" in done.output
    table = parquet.read_table(tmp_path / "turns.parquet")
    assert rows_of(table) == turns
    assert table.schema.metadata[b"infersiege.run_id"] == plan_file(plan(), turns=1).run_id.encode()


def test_csv_gives_the_same_rows(run: Path, turns: list[TurnRecord], tmp_path: Path) -> None:
    done = CliRunner().invoke(export, [str(run), "--csv", str(tmp_path / "turns.csv")])
    assert done.exit_code == 0
    assert rows_of_csv((tmp_path / "turns.csv").read_bytes()) == turns


def rows_of_csv(data: bytes) -> list[TurnRecord]:
    head, *rows = cells_of(data.decode())
    return [
        msgspec.convert(
            {name: value_of(name, cell) for name, cell in zip(head, row, strict=True)}, TurnRecord, str_keys=True
        )
        for row in rows
    ]


def cells_of(text: str) -> Iterator[list[str | None]]:
    """As the csv module reads it, with None for nothing between two commas (it takes "" for the same)."""
    for row in csv.reader(io.StringIO(text.replace(',"",', ',"\0",'), newline="")):
        yield [None if cell == "" else cell.replace("\0", "") for cell in row]


def value_of(name: str, cell: str | None) -> Any:
    kind = columns()[name]
    if cell is None or kind == "string":
        return cell
    return json.loads(cell)


@given(st.lists(some_turns(), max_size=30), st.integers(1, 40))
def test_both_forms_keep_any_turns(made: list[TurnRecord], size: int) -> None:
    table, text = io.BytesIO(), io.BytesIO()
    file = plan_file(plan(), turns=len(made))
    assert write_parquet(batches(made, size), table, file) == write_csv(batches(made, size), text) == len(made)
    assert rows_of(parquet.read_table(io.BytesIO(table.getvalue()))) == made
    assert rows_of_csv(text.getvalue()) == made


def test_instants_are_timestamps_and_the_rest_is_what_it_is() -> None:
    """A field of a new type must be given a type here: `string` is for texts and words of closed sets only."""
    hints = get_type_hints(TurnRecord)
    texts = {name for name, kind in columns().items() if kind == "string"}
    words = {
        name
        for name in NAMES
        if any(isinstance(one, type) and issubclass(one, str | StrEnum) for one in of(hints[name]))
    }
    assert texts == words
    assert {name for name, kind in columns().items() if kind.startswith("timestamp")} == set(INSTANTS)
    assert tuple(columns()) == NAMES


def of(hint: Any) -> tuple[Any, ...]:
    return (
        getattr(hint, "__args__", ())
        if hint.__class__.__name__ in ("UnionType", "Union", "_UnionGenericAlias")
        else (hint,)
    )


def test_row_groups_bound_the_memory(turns: list[TurnRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ROWS_PER_GROUP", 64)
    file = io.BytesIO()
    assert (
        write_parquet((Batch(turns[at : at + 50]) for at in range(0, 300, 50)), file, plan_file(plan(), turns=1)) == 300
    )
    made = parquet.ParquetFile(io.BytesIO(file.getvalue())).metadata
    assert [made.row_group(place).num_rows for place in range(made.num_row_groups)] == [100, 100, 100]


REFUSED = [
    ([], "add --parquet FILE or --csv FILE", "nothing is asked for"),
    (["--parquet", "-"], "use --csv -", "no terminal takes it"),
    (["--csv", "there.csv"], "is there already", "nothing is lost unasked"),
    (["--csv", "no/such/turns.csv"], "can't be written", "told before the work"),
]


@pytest.mark.parametrize(("options", "said", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("mine")
    done = command("export", str(run), *options)
    assert (done.returncode, said in done.stderr) == (ExitCode.USAGE, True), done.stderr
    assert Path("there.csv").read_text() == "mine"


def command(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infersiege", *arguments], capture_output=True, text=True, check=False, **more
    )


def test_without_pyarrow_it_says_what_to_install(run: Path, tmp_path: Path) -> None:
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "pyarrow.py").write_text("raise ImportError('not here')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'absent')!r}); from infersiege.cli import main; "
        f"sys.exit(main(['export', {str(run)!r}, '--parquet', {str(tmp_path / 'x.parquet')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert "infersiege[parquet]" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_a_damaged_row_is_left_out_and_said(run: Path, turns: list[TurnRecord], tmp_path: Path) -> None:
    with (run / "turns.jsonl").open("ab") as file:
        file.write(b"{}\n")
    for form in ("parquet", "csv"):
        done = command("export", str(run), f"--{form}", str(tmp_path / f"turns.{form}"))
        assert done.returncode == 0 and f"{len(turns):,} turns" in done.stderr
        assert "warning: 1 row of turns.jsonl could not be read and is left out (line 302: " in done.stderr


def test_a_torn_last_line_is_left_out_and_said(run: Path, turns: list[TurnRecord], tmp_path: Path) -> None:
    with (run / "turns.jsonl").open("ab") as file:
        file.write(b'{"run_id":"a')
    done = command("export", str(run), "--csv", "-")
    assert done.returncode == 0 and "is torn" in done.stderr
    assert len(rows_of_csv(done.stdout.encode())) == len(turns)
