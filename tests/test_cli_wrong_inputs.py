"""Command lines and files that make no sense: a line that says where and what, a hint, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from baseline_runs import write_side
from crashed import contents

from infersiege.cli import main, report_fault_of_ours

Made = Callable[[Path], object]


def without(name: str) -> Made:
    return lambda run: (run / name).unlink()


def holding(name: str, data: bytes) -> Made:
    return lambda run: (run / name).write_bytes(data)


def folder_for(name: str) -> Made:
    def change(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return change


def pipe_for(name: str) -> Made:
    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return change


def with_fact(**facts: Any) -> Made:
    """Of plan.json."""
    return lambda run: (run / "plan.json").write_text(
        json.dumps({**json.loads((run / "plan.json").read_text()), **facts})
    )


def nested(deep: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(deep - 1):
        made = [made]
    return made


def with_stage(**facts: Any) -> Made:
    def change(run: Path) -> None:
        stages = json.loads((run / "plan.json").read_text())["stages"]
        with_fact(stages=[{**stages[0], **facts}, *stages[1:]])(run)

    return change


DAMAGED: list[tuple[Made, str, str]] = [
    (without("plan.json"), "RUN: is not a run directory: it has no plan.json", "no plan"),
    (without("turns.jsonl"), "RUN/turns.jsonl: is missing", "no turns"),
    (holding("plan.json", b""), "RUN/plan.json: Input data was truncated", "an empty plan"),
    (holding("plan.json", bytes(range(256))), "RUN/plan.json: JSON is malformed", "a binary plan"),
    (holding("plan.json", b"[]"), "RUN/plan.json: Expected `object`, got `array`", "another JSON"),
    (folder_for("plan.json"), "RUN/plan.json: can not be read: is a directory", "a folder for the plan"),
    (folder_for("turns.jsonl"), "RUN/turns.jsonl: can not be read: is a directory", "a folder for the turns"),
    (pipe_for("plan.json"), "RUN/plan.json: is a named pipe, no file", "a pipe that nobody would ever write into"),
    (pipe_for("turns.jsonl"), "RUN/turns.jsonl: is a named pipe, no file", "for the turns"),
    (pipe_for("events.jsonl"), "RUN/events.jsonl: is a named pipe, no file", "for the events"),
    (pipe_for("telemetry/clients.jsonl"), "clients.jsonl: is a named pipe, no file", "for the load generator's rows"),
    (lambda run: (run / "summary.json").symlink_to("/dev/zero"), "RUN/summary.json: is a device, no file", "no end"),
    (with_fact(schema_version=None), "RUN/plan.json: Expected `int`, got `null`", "no version"),
    (with_fact(schema_version=99), "RUN/plan.json: schema 99 is newer", "a later version"),
    (with_fact(plan={}), "Object missing required field `channels`", "no plan in it"),
    (with_fact(created_ns=10**400), "RUN/plan.json: $.created_ns: no run has a number of that size", "10**400 ns"),
    (with_fact(started_ns=10**30), "RUN/plan.json: $.started_ns: no run has a number of that size", "no calendar"),
    (with_stage(steady_ended_ns=2**63), "$.stages[0].steady_ended_ns: no run has a number", "more than 64 bits"),
    (with_stage(users=10**400), "$.stages[0].users: no run has a number of that size", "users beyond any float"),
    (with_stage(rate=1e300), "$.stages[0].rate: no run has a number of that size", "a rate beyond any count"),
    (with_fact(plan={"labels": nested(150)}), "RUN/plan.json: nested too deeply", "deeper than any plan"),
    (with_fact(plan={"labels": nested(500)}), "RUN/plan.json: nested too deeply", "deeper than Python looks"),
    (
        holding("plan.json", b'{"schema_version": 1, "plan": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "RUN/plan.json: maximum recursion depth exceeded",
        "deeper than a decoder goes",
    ),
]
READERS: list[list[str]] = [
    ["gate", "RUN"],
    ["gate", "GOOD", "--baseline", "RUN"],
    ["report", "RUN"],
    ["compare", "GOOD", "RUN", "--no-html"],
    ["baseline", "save", "RUN", "--out", "new.json"],
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_side(tmp_path_factory.mktemp("wrong") / "side", runs=1) / "run-1"


@pytest.fixture
def call(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """A command in this process and in `tmp_path`: (exit code, what it says on standard error)."""
    monkeypatch.chdir(tmp_path)

    def called(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    return called


def check_told(code: int, said: str, says: str) -> None:
    """An error of one line, and a hint of one line, where there is anything to hint at."""
    lines = said.splitlines()
    assert code == 2 and lines and lines[0].startswith("error: ") and says in lines[0], said
    assert len(lines) == 2 and lines[1].startswith("hint: ") and len(lines[1]) > len("hint: "), said


@pytest.mark.parametrize("words", READERS, ids=" ".join)
@pytest.mark.parametrize(("change", "says", "why"), DAMAGED, ids=[why for *_, why in DAMAGED])
def test_damaged_runs_are_told_by_whoever_reads_them(
    good: Path,
    tmp_path: Path,
    call: Callable[..., tuple[int, str]],
    words: list[str],
    change: Made,
    says: str,
    why: str,
) -> None:
    shutil.copytree(good, tmp_path / "run")
    change(tmp_path / "run")
    before = contents(tmp_path)
    places = {"RUN": "run", "GOOD": str(good)}
    code, said = call(*(places.get(word, word) for word in words))
    check_told(code, said, says.replace("RUN", "run"))
    assert contents(tmp_path) == before, why


LONG = "n" * 300
PLANNED = (["run", "--repeats", "2"], ["doctor"], ["capacity"], ["sweep"])
CONFUSED: list[tuple[list[str], str, str]] = [
    # Names: of nothing, of something else, of what no file can have.
    *(
        ([*words, "missing"], "missing: there is no such run directory", "nothing there")
        for words in (["gate"], ["report"])
    ),
    *(([*words, "plan.toml"], "plan.toml: is a file", "a plan for a run") for words in (["gate"], ["recover"])),
    *(
        ([*words, LONG], f"{LONG}: can't be read: file name too long", "a long name")
        for words in (["gate"], ["report"])
    ),
    (["export", LONG, "--csv", "new"], f"{LONG}: can't be read: file name too long", "of a run to export"),
    (["compare", LONG], f"{LONG}: can't be read: file name too long", "of a run to compare"),
    (["compare", f"a={LONG}"], f"{LONG}: can't be read: file name too long", "behind a name"),
    (["recover", LONG], f"{LONG}: can't be read: file name too long", "of a run to recover"),
    (["gate", "RUN", "--baseline", LONG], "there is no such run directory, and no baseline file", "of a baseline"),
    (["gate", "loop"], "loop: can't be read: too many levels of symbolic links", "a link to itself"),
    (["report", "empty"], "empty: is a file", "an empty file"),
    # An empty text is what a variable that is not set makes; a path of it would be this folder.
    (["gate", ""], "the name is empty: is a variable not set?", "gate this folder"),
    (["gate", "RUN", "--baseline", ""], "the name is empty", "the baseline of this folder"),
    (["gate", "RUN", "--markdown", ""], "the name is empty", "the verdict's"),
    (["report", ""], "the name is empty", "report this folder"),
    (["compare", ""], "the name of a run is empty", "compare this folder"),
    (["compare", "RUN", "--json", ""], "the name is empty", "its file"),
    (["export", "", "--csv", "new"], "the name is empty", "export this folder"),
    (["recover", ""], "the name is empty", "recover this folder"),
    (["recover", "--out", "", "RUN"], "the name is empty", "recover into this folder"),
    (["baseline", "save", "RUN", "--out", ""], "the name is empty", "save as this folder"),
    (["baseline", "show", ""], "the name is empty", "show this folder"),
    (["run", ""], "the name is empty", "run this folder"),
    (["run", "plan.toml", "--out", ""], "the name is empty", "run into this folder"),
    # Plans that come from nowhere. A pipe is refused at once, also by whoever looks for its `repeats` first.
    *(([*words, "pipe"], "pipe: the plan is a pipe, not a file", "a pipe") for words in PLANNED),
    *(([*words, "-"], "-: the plan cannot be read: No such file or directory", "standard input") for words in PLANNED),
    # Options that mean nothing without others, or exclude each other.
    (["run", "plan.toml", "--allow", "gpu"], "--allow means nothing without --against and --gate", "alone"),
    (["run", "plan.toml", "--allow", "gpu", "--gate"], "--allow means nothing without --against", "nothing to differ"),
    (["run", "plan.toml", "--allow", "gpu", "--against", "plan.toml"], "--allow means nothing without", "no gate"),
    (["run", "plan.toml", "--markdown", "new"], "--markdown means nothing without --gate", "no verdict"),
    (["gate", "RUN", "--baseline", "RUN", "--allow", ""], "--allow: no word is named: is a variable not set?", "none"),
    (["gate", "RUN", "--baseline", "RUN", "--allow", "gpu", "--allow", ","], "--allow: no word is named", "nor here"),
    (["gate", "RUN", "--strict"], "--allow and --strict mean nothing without --baseline", "nothing to be strict with"),
    (
        ["report", "RUN", "--influx-url", "http://h"],
        "--influx-url means nothing without --with-telemetry",
        "no fetching",
    ),
    (["report", "RUN", "--with-telemetry"], "RUN: its plan names no InfluxDB", "nowhere to fetch from"),
    (["export", "RUN"], "what is to be written is not named", "no output"),
    (["export", "RUN", "--csv", "new", "--parquet", "./new"], "--parquet and --csv both name new", "one file for two"),
    (["export", "RUN", "--csv", "new", "--parquet", "new", "--force"], "both name new", "also when forced"),
    (["recover", "--keep"], "no run directory is named", "nothing to keep"),
    (["recover", "--out", "new"], "--out needs the spools of the run", "no spools"),
    (["recover", "RUN", "--out", "new"], "RUN: is a run directory, and --out makes another one", "which of both"),
    (["recover", "--out", "new", "missing"], "missing: there is no such spool", "no such spool"),
    # Files in the way of an output.
    (["gate", "RUN", "--markdown", "plan.toml"], "plan.toml: is there already, and is no verdict", "a plan"),
    (["gate", "RUN", "--markdown", "folder"], "folder: is a folder", "a folder"),
    (["gate", "RUN", "--markdown", "no/v.md"], "no/v.md: can't be written: No such file or directory", "no folder"),
    (["export", "RUN", "--csv", "plan.toml"], "plan.toml: is there already", "a plan"),
    (["baseline", "save", "RUN", "--out", "plan.toml"], "plan.toml: is there already, and is no baseline", "a plan"),
    (["baseline", "save", "RUN", "--out", "no/b.json"], "no/b.json: can't be written: No such file", "no folder"),
    # A baseline that is none. A pipe is refused at once: nobody would ever write into it.
    (["baseline", "show", "pipe"], "pipe: is a named pipe, no file", "a pipe"),
    (["baseline", "save", "RUN", "--out", "new", "--floor", "pipe"], "pipe: is a named pipe, no file", "of a floor"),
    (["baseline", "show", "/dev/zero"], "/dev/zero: is a device, no file", "without an end"),
    (["baseline", "show", "folder"], "folder: can't be read: is a directory", "a folder"),
    (["baseline", "show", "missing"], "missing: can't be read: no such file or directory", "nothing there"),
    (["baseline", "show", "empty"], "empty: is no baseline: Input data was truncated", "an empty file"),
    (["baseline", "save", "RUN", "--out", "new", "--floor", "RUN"], "RUN: can't be read: is a directory", "a run"),
]


@pytest.mark.parametrize(
    ("words", "says", "why"), CONFUSED, ids=[f"{' '.join(words)[:30]}: {why}" for words, _, why in CONFUSED]
)
def test_command_lines_that_make_no_sense_are_told_before_anything_is_written(
    good: Path, tmp_path: Path, call: Callable[..., tuple[int, str]], words: list[str], says: str, why: str
) -> None:
    (tmp_path / "plan.toml").write_text("[run]\n", encoding="utf-8")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before, runs = contents(tmp_path), contents(good)
    code, said = call(*(str(good) if word == "RUN" else word for word in words))
    check_told(code, said, says.replace("RUN", str(good)))
    assert contents(tmp_path) == before and contents(good) == runs, why
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "folder", "loop", "pipe", "plan.toml"]


def test_a_complete_run_without_its_turns_gets_none_from_recover(
    good: Path, tmp_path: Path, call: Callable[..., tuple[int, str]]
) -> None:
    """An empty file in their place would make a run without turns of one that lacks them."""
    shutil.copytree(good, tmp_path / "run")
    (tmp_path / "run" / "turns.jsonl").unlink()
    code, said = call("recover", "run")
    assert (code, said) == (2, "error: run: this run is complete: nothing to recover\n")
    assert not (tmp_path / "run" / "turns.jsonl").exists()


def test_a_baseline_goes_to_standard_output_alone(good: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["baseline", "save", str(good), "--out", "-"])
    out, err = capfdbinary.readouterr()
    assert ended.value.code == 0 and json.loads(out)["kind"] == "infersiege baseline"
    assert err.startswith(b"baseline: -: 1 run, ")


def test_a_fault_of_ours_is_one_line_and_a_file_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in no UTF-8 may be the very fault."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report_fault_of_ours(ValueError("half a pair: \ud83d"))
    (file,) = tmp_path.iterdir()
    assert "ValueError: half a pair: \\ud83d" in file.read_text(encoding="utf-8")
    said = capsys.readouterr().err
    assert said.startswith("error: a fault of infersiege: ValueError: half a pair: ") and str(file) in said
    assert said.count("\n") == 2
