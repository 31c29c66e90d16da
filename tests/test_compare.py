"""`infersiege compare`: columns, figures, what is unfair, and what is written; from whole run directories."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_sample import MS, SECOND, plan, records, write_run

from infersiege.compare.columns import columns_of, referred
from infersiege.compare.comparison import Comparison, compared
from infersiege.compare.cuts import By, Shapes
from infersiege.compare.documents import CSV_HEADER
from infersiege.compare.overlays import MARKS, curve
from infersiege.compare.sources import named_runs, source_of
from infersiege.compare.unequal import WHY
from infersiege.errors import RunDirectoryError, UsageError
from infersiege.gate.change import Sample, judge_changes
from infersiege.gate.comparable import WORDS
from infersiege.metrics.batch import Batch
from infersiege.metrics.histogram import Histogram, bucket_of, bucket_value
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Sampling
from infersiege.records import Outcome, Phase, TurnRecord
from infersiege.report import rebuild
from infersiege.rundir import RunDirectory

STEADY_S = 40
BASE = records(steady_s=STEADY_S)
"""About 750 of them ok in steady."""

Change = Callable[[dict[str, Any]], None]


def slower(turn: TurnRecord, factor: float) -> TurnRecord:
    """The same with a first token that took so much longer; everything after it comes later by as much."""
    if turn.first_token_ns is None or turn.sent_ns is None:
        return turn
    more = round((turn.first_token_ns - turn.sent_ns) * (factor - 1))
    times = ("first_token_ns", "first_answer_ns", "last_token_ns", "closed_ns")
    return msgspec.structs.replace(turn, **{name: getattr(turn, name) + more for name in times if getattr(turn, name)})


def make(
    path: Path, *, ttft: float = 1.0, seed: int | None = None, change: Change | None = None, emulated: bool = False,
    turns: list[TurnRecord] | None = None, **given_: Any,
) -> Path:  # fmt: skip
    """A run. `ttft`: its factor; `change`: of plan.json as plain values; `given_`: of the plan."""
    rows = turns if turns is not None else BASE if seed is None else records(seed=seed, steady_s=STEADY_S)
    whole = msgspec.structs.replace(plan(path.name, steady_s=STEADY_S), **given_)
    write_run(path, [slower(row, ttft) for row in rows], whole, emulated=emulated, steady_s=STEADY_S)
    file = json.loads((path / "plan.json").read_text())
    file |= {"run_id": path.name.ljust(16, "0"), "nonce": path.name}
    if change is not None:
        change(file)
    (path / "plan.json").write_text(json.dumps(file))
    return path


def version(text: str) -> Change:
    return lambda file: file["channels"]["local"].update(version=text)


def found_of(*given_: object, by: By | None = None, each: bool = False, reference: str | None = None) -> Comparison:
    sources = [source_of(one, by) for one in named_runs([str(one) for one in given_])]
    columns, notes = columns_of(sources, each=each)
    return compared(referred(columns, reference), by=by, notes=notes)


def cell(found: Comparison, key: str, column: int = 1) -> Any:
    return next(line for line in found.rows if line.key == key).cells[column]


def command(*arguments: object, cwd: Path, columns: int = 80, code: int = 0) -> subprocess.CompletedProcess[str]:
    """As a user calls it."""
    ended = subprocess.run(
        [sys.executable, "-m", "infersiege", "compare", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of a newer engine whose first tokens take 1.5 times as long."""
    folder = tmp_path_factory.mktemp("two")
    return make(folder / "old"), make(folder / "new", ttft=1.5, change=version("0.12.0"))


# ------------------------------------------------------------------------------------------------------- figures


def test_figures_are_those_of_the_turns(two: tuple[Path, Path]) -> None:
    """Against a computation from the turns alone, and the summary of the report."""
    found = found_of(*two)
    for place, path in enumerate(two):
        run = RunDirectory.open(path)
        ok = [turn for turn in run.read_turns() if turn.phase is Phase.STEADY and turn.outcome is Outcome.OK]
        ttft = np.sort([(turn.first_token_ns or 0) - (turn.sent_ns or 0) for turn in ok]) / MS
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert cell(found, f"ttft_{name}", place).value == pytest.approx(ttft[int(np.ceil(q * len(ttft))) - 1])
        assert cell(found, "ttft_mean", place).value == pytest.approx(ttft.mean())
        assert cell(found, "throughput", place).value == rebuild(run).groups[0].rates["throughput"]
        assert cell(found, "error_share", place).value == rebuild(run).groups[0].rates["error_share"]


def test_a_slower_first_token_is_found_and_nothing_else(two: tuple[Path, Path]) -> None:
    found = found_of(*two)
    for key in ("ttft_mean", "ttft_p50", "ttft_p95"):
        one = cell(found, key)
        assert one.says == "worse" and one.basis == "turns"
        assert one.change_low < 0.5 < one.change_high
        assert one.change == pytest.approx(0.5, abs=0.01)
    assert {line.key for line in found.rows if line.cells[1].says in ("better", "worse")} <= {
        "ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "e2e_mean", "e2e_p50", "goodput_share",
    }  # fmt: skip
    assert cell(found, "tpot_p50").change == pytest.approx(0)
    assert cell(found, "ttft_p50", 0).change is None, "the reference differs from nothing"


def test_the_reference_can_be_another_one(two: tuple[Path, Path]) -> None:
    there, back = found_of(*two), found_of(*two, reference="new")
    assert [column.name for column in back.columns] == ["new", "old"]
    assert (1 + cell(there, "ttft_p50").change) * (1 + cell(back, "ttft_p50").change) == pytest.approx(1)
    assert cell(back, "ttft_p50").says == "better"


def test_five_runs_of_each_side_give_ranges_between_runs(tmp_path: Path) -> None:
    factors = (1.0, 1.04, 0.97, 1.02, 0.99)
    for number, factor in enumerate(factors, 1):
        make(tmp_path / "series" / f"run-{number}", ttft=factor)
        make(tmp_path / "series" / "against" / f"run-{number}", ttft=factor * 1.2, change=version("0.12.0"))
    for path in (tmp_path / "series").rglob("plan.json"):
        file = json.loads(path.read_text())
        file["name"] = "a plan"
        file["plan"]["run"]["name"] = "a plan"
        path.write_text(json.dumps(file))
    found = found_of(tmp_path / "series")
    assert [len(column.runs) for column in found.columns] == [5, 5]
    one = cell(found, "ttft_p50")
    first = cell(found, "ttft_p50", 0)
    (judged,) = judge_changes([Sample(name="x", baseline=first.values, candidate=one.values, better="lower")])
    assert (one.change, one.change_low, one.change_high) == (judged.change, judged.low, judged.high)
    assert one.basis == "runs" and one.says == "worse"
    assert one.change == pytest.approx(0.2, abs=1e-6) and 0.1 < one.change_low < 0.2 < one.change_high < 0.3


def test_a_few_runs_tell_only_what_their_turns_do(tmp_path: Path) -> None:
    old = [make(tmp_path / f"old-{number}", seed=number) for number in range(2)]
    new = [make(tmp_path / f"new-{number}", seed=10 + number) for number in range(2)]
    found = found_of(*(f"old={path}" for path in old), *(f"new={path}" for path in new))
    assert [(column.name, len(column.runs)) for column in found.columns] == [("old", 2), ("new", 2)]
    pooled, single = cell(found, "ttft_p50"), cell(found_of(old[0], new[0]), "ttft_p50")
    assert pooled.basis == "turns"
    assert pooled.change_high - pooled.change_low < single.change_high - single.change_low, (
        "two runs tell more than one"
    )


# ------------------------------------------------------------------------------------------------------- columns


def test_runs_of_the_same_thing_are_one_column_and_others_are_not(tmp_path: Path) -> None:
    def named(file: dict[str, Any]) -> None:
        file["name"] = file["plan"]["run"]["name"] = "nightly"

    def newer(file: dict[str, Any]) -> None:
        named(file)
        version("0.12.0")(file)

    def elsewhere(file: dict[str, Any]) -> None:
        named(file)
        file["channels"]["local"]["url"] = "http://127.0.0.2:8000/v1/chat/completions"

    runs = [make(tmp_path / f"a{number}", change=named) for number in range(2)]
    runs += [make(tmp_path / "b", change=newer), make(tmp_path / "c", change=elsewhere)]
    found = found_of(*runs)
    assert [[Path(run.path).name for run in column.runs] for column in found.columns] == [["a0", "a1"], ["b"], ["c"]]
    assert [len(column.runs) for column in found_of(*runs, each=True).columns] == [1, 1, 1, 1]
    alone = found_of(*runs[:2])
    assert [len(column.runs) for column in alone.columns] == [1, 1], "named one by one, they are to be compared"
    assert any("the same in everything that is known" in note for note in alone.notes)


def test_a_folder_is_no_reason_to_be_apart_but_two_folders_are(tmp_path: Path) -> None:
    def same(file: dict[str, Any]) -> None:
        file["name"] = file["plan"]["run"]["name"] = "nightly"
        # A test server has another port each time.
        file["channels"]["local"]["url"] = f"http://127.0.0.1:{sum(file['run_id'].encode())}/v1/chat/completions"

    for name in ("before/run-1", "before/run-2", "after/run-1", "after/run-2"):
        make(tmp_path / name, change=same)
    found = found_of(tmp_path / "before", tmp_path / "after")
    assert [(column.name, len(column.runs)) for column in found.columns] == [("before", 2), ("after", 2)]


def test_by_scenario_the_parts_of_one_run_are_columns(two: tuple[Path, Path]) -> None:
    found = found_of(two[0], by="scenario")
    assert [column.name for column in found.columns] == ["agent", "short-qa"]
    groups = {group.scenario: group for group in rebuild(RunDirectory.open(two[0])).groups}
    for place, name in enumerate(("agent", "short-qa")):
        assert cell(found, "ttft_p95", place).value == groups[name].distributions["ttft"].p95
    both = found_of(*two, by="scenario")
    assert [column.name for column in both.columns] == ["old: agent", "old: short-qa", "new: agent", "new: short-qa"]


def test_by_channel_a_run_with_one_is_that_channel(two: tuple[Path, Path]) -> None:
    found = found_of(*two, by="channel")
    assert [column.name for column in found.columns] == ["old: local", "new: local"]
    assert cell(found, "ttft_p50").value == cell(found_of(*two), "ttft_p50").value


def test_channels_of_other_names_are_the_same_facts(tmp_path: Path) -> None:
    """Plans of two engines name their channels after them; what is compared is what they are."""

    def renamed(file: dict[str, Any]) -> None:
        file["channels"]["other"] = file["channels"].pop("local")
        file["plan"]["channels"]["other"] = file["plan"]["channels"].pop("local")
        for workload in file["plan"]["workloads"]:
            workload["channel"] = "other"

    turns = [msgspec.structs.replace(turn, channel="other") for turn in BASE]
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b", turns=turns, change=renamed))
    assert [fact.name for fact in found.unequal] == []


@pytest.mark.parametrize(
    ("texts", "error", "says", "reason"),
    [
        (["nowhere"], RunDirectoryError, "there is no such run directory", "a path that is not there"),
        (["a=nowhere"], RunDirectoryError, "there is no such run directory", "nor with a name"),
        (["=old"], UsageError, "a name and a run belong together", "no name"),
        (["a="], UsageError, "a name and a run belong together", "no run"),
        (["a=old", "b=old"], UsageError, "has two names, a and b", "one run can't stand in two columns"),
        (["old", "b=old"], UsageError, "has two names, none and b", "nor with and without a name"),
        (["."], RunDirectoryError, "is not a run directory", "a folder without runs"),
    ],
)
def test_what_is_no_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], error: type[Exception], says: str, reason: str
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plan.json").write_text('{"schema_version": 1}')
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path if texts != ["."] else tmp_path / "empty")
    with pytest.raises(error, match=re.escape(says)):
        named_runs(texts)
        pytest.fail(reason)


def test_a_directory_with_an_equals_sign_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "users=8")
    monkeypatch.chdir(tmp_path)
    (one,) = named_runs(["users=8"])
    assert one.name is None and one.path.name == "users=8"
    assert len(named_runs(["users=8", str(tmp_path / "users=8")])) == 1, "named twice it is there once"


def test_an_unknown_reference_is_told_with_the_nearest_name(two: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="did you mean 'old'") as raised:
        found_of(*two, reference="odl")
    assert raised.value.hint == "there are: old, new"


# -------------------------------------------------------------------------------------------------- what is unfair


def test_every_word_of_a_fact_has_a_reason() -> None:
    assert set(WHY) == set(WORDS)


def trace(file: dict[str, Any]) -> None:
    file["trace_hashes"]["agent"] = "00" * 32


def label(file: dict[str, Any]) -> None:
    file["plan"]["labels"]["gpu"] = "H100"


def model(file: dict[str, Any]) -> None:
    file["channels"]["local"]["model"] = "qwen3-14b"


def host(file: dict[str, Any]) -> None:
    file["host"] = {**file["host"], "cpu": "another one"}


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({"change": trace}, "trace.agent", False),
        ({"change": model}, "model", False),
        ({"change": host}, "host.cpu", False),
        ({"change": label}, "label.gpu", True),
        ({"change": version("0.12.0")}, "engine_version", True),
        ({"emulated": True}, "emulated", False),
        ({"sampling": Sampling(temperature=0.7)}, "sampling.temperature", False),
        ({"load": Load(mode="closed", users=48, warmup_ns=30 * SECOND, drain_ns=30 * SECOND)}, "load.users", False),
    ],
)
def test_facts_that_differ_are_told(tmp_path: Path, changes: dict[str, Any], name: str, expected: bool) -> None:
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b", **changes))
    assert [(fact.name, fact.expected) for fact in found.unequal] == [(name, expected)]
    assert len(set(found.unequal[0].values)) == 2


def test_runs_of_the_same_thing_are_not_unequal(tmp_path: Path) -> None:
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b"))
    assert (found.unequal, found.warnings) == ((), ())


def longer(turn: TurnRecord) -> TurnRecord:
    known = turn.output_tokens
    return turn if known is None else msgspec.structs.replace(turn, output_tokens=round(known * 1.3))


def test_tk_13_answers_of_other_lengths_are_told(tmp_path: Path) -> None:
    """Medians that differ by more than 5 %, and what was asked for beside what came."""
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b", turns=[longer(turn) for turn in BASE]))
    (lengths,) = [line for line in found.warnings if line.startswith("answers have other lengths")]
    assert "tokens in a" in lengths and lengths.endswith("in b")
    (asked,) = [line for line in found.warnings if "were asked for" in line]
    assert asked.startswith("b gave")
    assert cell(found, "output_tokens_p50").change == pytest.approx(0.3, abs=0.02)


def damaged(file: dict[str, Any]) -> None:
    file["invalid"] = ["the load was not delivered"]


def cut(file: dict[str, Any]) -> None:
    file["interrupted"] = True


@pytest.mark.parametrize(
    ("change", "says"), [(damaged, "is invalid: the load was not delivered"), (cut, "is invalid: it was interrupted")]
)
def test_runs_that_cannot_be_trusted_are_shown_and_marked(tmp_path: Path, change: Change, says: str) -> None:
    runs = make(tmp_path / "a"), make(tmp_path / "b", change=change)
    found = found_of(*runs)
    assert any(says in line for line in found.warnings)
    assert cell(found, "ttft_p50").value is not None
    out = command(*runs, cwd=tmp_path).stdout
    assert out.count("INVALID") >= 2, "beside its name, and above its figures"
    assert "INVALID</strong>" in (tmp_path / "compare.html").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda turn: msgspec.structs.replace(turn, cached_tokens=None), "does not tell cached tokens"),
        (lambda turn: msgspec.structs.replace(turn, cached_tokens=0 if turn.prompt_tokens else None), "from the cache"),
        (
            lambda turn: msgspec.structs.replace(turn, prompt_tokens=round((turn.prompt_tokens or 0) * 1.2) or None),
            "prompts have other lengths",
        ),
    ],
)
def test_what_the_turns_themselves_show(tmp_path: Path, change: Callable[[TurnRecord], TurnRecord], says: str) -> None:
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b", turns=[change(turn) for turn in BASE]))
    assert any(says in line for line in found.warnings), found.warnings


def test_more_failed_turns_are_told(tmp_path: Path) -> None:
    worse = records(steady_s=STEADY_S, fail_share=0.2)
    found = found_of(make(tmp_path / "a"), make(tmp_path / "b", turns=worse))
    assert any(line.startswith("failed turns:") for line in found.warnings)
    assert cell(found, "error_share").says == "worse"


def test_one_salt_for_two_runs_is_told(tmp_path: Path) -> None:
    def salted(file: dict[str, Any]) -> None:
        file["nonce"] = "fixed"

    found = found_of(make(tmp_path / "a", change=salted), make(tmp_path / "b", change=salted))
    assert any("the same salt" in line for line in found.warnings)


# --------------------------------------------------------------------------------------------------------- shapes


SOME = BASE[500:900]


@given(st.lists(st.integers(1, len(SOME) - 1), max_size=6))
def test_shapes_do_not_depend_on_how_the_turns_were_cut(cuts: list[int]) -> None:
    whole, parts, by = Shapes(None), Shapes(None), Shapes("scenario")
    whole.add_batch(Batch(SOME))
    ends = [0, *sorted(cuts), len(SOME)]
    for first, last in pairwise(ends):
        if last > first:
            parts.add_batch(Batch(SOME[first:last]))
            by.add_batch(Batch(SOME[first:last]))
    assert parts.of(None).by_metric == whole.of(None).by_metric
    for metric, shape in whole.of(None).by_metric.items():
        merged = Histogram.merged(part.by_metric[metric] for part in by.found.values())
        assert merged.counts == shape.counts
    assert whole.of(None).asked_tokens == sum(part.asked_tokens for part in by.found.values()) > 0


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=300))
def test_a_curve_is_the_share_at_or_below(values_ns: list[int]) -> None:
    shape = Histogram()
    shape.add_many(np.array(values_ns, dtype=np.int64))
    x, y = curve(shape)
    assert len(x) == len(y) <= len(MARKS) + 1
    assert y == sorted(y) and x == sorted(x)
    assert y[-1] == 1 and x[-1] == pytest.approx(max(values_ns) / 1e6, rel=1e-3)
    for at, share in zip(x, y, strict=True):
        # To the width of a bucket and the four digits of the page.
        assert sum(value <= at * 1e6 * 0.985 for value in values_ns) / len(values_ns) <= share + 1e-6
        assert sum(value <= at * 1e6 * 1.015 + 1 for value in values_ns) / len(values_ns) >= share - 1e-6
    assert bucket_value(bucket_of(values_ns[0])) == pytest.approx(values_ns[0], rel=0.005)


# --------------------------------------------------------------------------------------------------- what is written


def test_the_command_prints_a_table_of_80_columns_and_a_page(two: tuple[Path, Path], tmp_path: Path) -> None:
    ended = command(*two, cwd=tmp_path)
    table = ended.stdout[ended.stdout.index("Compared") : ended.stdout.index("note:")]
    assert max(map(len, table.splitlines())) <= 80
    assert re.search(r"^ ?TTFT p50 ms +[\d.]+ +[\d.]+ +\+50\.\d % \(\+\d.*\)\* worse *$", table, re.MULTILINE), table
    assert "differs: engine_version: 0.11.0 in old; 0.12.0 in new" in ended.stdout
    assert ended.stdout.endswith("written: compare.html\n")
    again = command(*two, cwd=tmp_path)
    assert again.stdout == ended.stdout, "a page of its own is written again"


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
def test_tables_fit_any_terminal(two: tuple[Path, Path], tmp_path: Path, columns: int) -> None:
    table = command(*two, "--no-html", cwd=tmp_path, columns=columns).stdout
    table = table[table.index("Compared") : table.index("note:")]
    # One cell with value, difference and range is the least that a table holds.
    assert max(len(line.rstrip()) for line in table.splitlines()) <= max(columns, 56)
    assert not list(tmp_path.iterdir())


def test_files_for_documents_and_programs(two: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--markdown", "t.md", "--csv", "t.csv", "--json", "t.json", "--html", "page.html")
    command(*two, *options, cwd=tmp_path)
    found = msgspec.json.decode((tmp_path / "t.json").read_bytes(), type=Comparison)
    assert found == found_of(*two)
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert list(rows[0]) == list(CSV_HEADER)
    assert len(rows) == 2 * len(found.rows)
    (one,) = [row for row in rows if row["metric"] == "ttft_p50" and row["column"] == "new"]
    assert float(one["value"]) == pytest.approx(cell(found, "ttft_p50").value)
    assert float(one["change"]) == pytest.approx(cell(found, "ttft_p50").change)
    assert (one["reference"], one["change_unit"], one["range_of"], one["says"]) == ("old", "ratio", "turns", "worse")
    lines = (tmp_path / "t.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {4}
    titles = [line.split("|")[1].strip() for line in table[2:]]
    assert len(titles) == len(set(titles)) and titles[-3:] == ["Verdict", "Turns ok", "Runs"]
    assert "TTFT p50 ms" in titles
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "t.csv", "t.json", "t.md"]
    command(two[1], *options, cwd=tmp_path)  # its own files are written over, also those of another comparison
    again = csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    assert len({row["column"] for row in again}) == 1


HOSTILE = "=cmd|<script>alert(1)</script>&\"'`*_[x](y)\x1b[31m"


class Tags(HTMLParser):
    """Names of elements, and addresses that a browser would ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]


def test_names_are_only_ever_text(two: tuple[Path, Path], tmp_path: Path) -> None:
    def hostile(file: dict[str, Any]) -> None:
        file["channels"]["local"]["version"] = HOSTILE
        file["plan"]["labels"]["note"] = HOSTILE

    bad = make(tmp_path / "bad", change=hostile)
    options = ("--markdown", "t.md", "--csv", "t.csv", "--json", "t.json")
    named = HOSTILE.replace("=", "", 1).replace("/", "")
    ended = command(f"{named}={bad}", two[0], *options, cwd=tmp_path)
    assert "\x1b" not in ended.stdout + ended.stderr
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.names.count("script") == 3, "the data, plotly and ours"
    assert all(address.startswith("#") for address in tags.addresses)
    assert "default-src 'none'" in page
    markdown = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert "<script" not in markdown.replace("\\<", "") and "\x1b" not in markdown
    assert all(line[:1] != "=" for line in (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())


def test_a_name_that_is_a_formula_is_text_in_a_spreadsheet(two: tuple[Path, Path], tmp_path: Path) -> None:
    command(f"+1+cmd={two[0]}", two[1], "--csv", "t.csv", "--no-html", cwd=tmp_path)
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["column"] for row in rows} == {"'+1+cmd", "new"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--html", "x.html", "--no-html"), "--html and --no-html exclude each other"),
        (("--reference", "nobody", "--no-html"), "--reference nobody: there is no such column"),
        (("--csv", "nowhere/t.csv", "--no-html"), "nowhere/t.csv: can't be written: No such file or directory"),
        (("--by", "weekday"), "invalid value for '--by'"),
        ((), "compare.html: is there already, and is no page of `infersiege compare`"),
        (("--html", "compare.html"), "compare.html: is there already, and is no page of `infersiege compare`"),
        (
            ("--markdown", "plan.toml", "--no-html"),
            "plan.toml: is there already, and is no Markdown of `infersiege com",
        ),
        (("--csv", "plan.toml", "--no-html"), "plan.toml: is there already, and is no CSV of `infersiege compare`"),
        (("--json", "plan.toml", "--no-html"), "plan.toml: is there already, and is no JSON of `infersiege compare`"),
        (("--markdown", "t", "--csv", "./t", "--no-html"), "--markdown and --csv both name t"),
        (("--csv", "-", "--json", "/dev/stdout", "--no-html"), "--csv and --json both name /dev/stdout"),
    ],
)
def test_what_cannot_be_done_is_told(
    two: tuple[Path, Path], tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "compare.html").write_text("<html>mine</html>")
    (tmp_path / "plan.toml").write_text("[run]\n")
    ended = command(*two, *arguments, cwd=tmp_path, code=2)
    assert says in ended.stderr.lower() if "invalid" in says else says in ended.stderr
    assert "hint: " in ended.stderr
    assert (tmp_path / "compare.html").read_text() == "<html>mine</html>"
    assert (tmp_path / "plan.toml").read_text() == "[run]\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_run_directories_are_only_read(two: tuple[Path, Path], tmp_path: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for run in two for path in run.rglob("*"))
    command(*two, cwd=tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for run in two for path in run.rglob("*")) == before


def test_ten_runs_fit_a_page_of_5_mb(tmp_path: Path) -> None:
    for number in range(10):
        make(tmp_path / "runs" / f"engine-{number}", seed=number, change=version(f"0.{number}"))
    command(tmp_path / "runs", "--each", cwd=tmp_path)
    assert (tmp_path / "compare.html").stat().st_size < 5_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium: the page's script was not run")
    yield found


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_draws_every_chart_inside_its_card(
    two: tuple[Path, Path], tmp_path: Path, browser: str, width: int
) -> None:
    command(*two, cwd=tmp_path)
    page = tmp_path / "compare.html"
    probe = """<script>document.title = JSON.stringify([document.documentElement.scrollWidth - innerWidth,
      ...[...document.querySelectorAll(".plot .main-svg")].map(
      one => one.getBoundingClientRect().right - one.closest("figure").getBoundingClientRect().right)])
      </script></body></html>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body></html>", probe), encoding="utf-8")
    ended = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
         f"--window-size={width},900", page.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    wider, *over = json.loads(re.findall(r"<title>(.*?)</title>", ended.stdout)[0])
    assert wider <= 0, "the page itself does not scroll sideways"
    assert len(over) >= 10 and max(over) <= 0
