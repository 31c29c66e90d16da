"""`infersiege baseline` and `gate --baseline`, as they are typed: run directories, folders, files, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from baseline_runs import write_side

from infersiege.cli import main
from infersiege.records import Verdict
from infersiege.rundir import GPU_SERIES, RunDirectory

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def infersiege(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command in this process, which saves a second each time: (exit code, output)."""
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said and "a fault of infersiege" not in said
        assert isinstance(ended.value.code, int)
        return ended.value.code, said

    return call


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of five runs: the same thing twice, a slower one, and one on another GPU."""
    folder = tmp_path_factory.mktemp("sides")
    return {
        "base": write_side(folder / "base"),
        "same": write_side(folder / "same", 1.003),
        "slow": write_side(folder / "slow", 1.1),
        "gpu": write_side(folder / "gpu", gpu="RTX 4090"),
    }


@pytest.fixture(scope="module")
def saved(sides: dict[str, Path]) -> Path:
    file = sides["base"].parent / "baseline.json"
    with pytest.raises(SystemExit) as ended:
        main(["baseline", "save", str(sides["base"]), "--out", str(file)])
    assert ended.value.code == 0
    return file


@pytest.mark.parametrize(
    ("name", "code", "verdict", "as_file"),
    [("same", 0, "pass", True), ("slow", 1, "fail", True), ("slow", 1, "fail", False), ("gpu", 5, "no data", True)],
)
def test_gt_06_gate_against_a_baseline(
    infersiege: Call, sides: dict[str, Path], saved: Path, name: str, code: int, verdict: str, as_file: bool
) -> None:
    found, said = infersiege("gate", sides[name], "--baseline", saved if as_file else sides["base"])
    assert found == code, said
    for run in sorted(sides[name].glob("run-*")):
        summary = RunDirectory.open(run).read_summary()
        relative = [rule for rule in summary.rules if rule.relative_max is not None]
        assert [rule.verdict for rule in relative] == [Verdict(verdict)] * 2
        assert (relative[0].p is not None) == (code != 5)
        failures = ET.parse(run / "junit.xml").getroot().attrib
        assert int(failures["failures"]) == (2 if code == 1 else 0)
    if name == "gpu":
        assert "not comparable: gpu: 1 x H100 in the baseline, 1 x RTX 4090 here" in said
        assert "add --allow gpu" in said
        assert infersiege("gate", sides[name], "--baseline", saved, "--allow", "gpu")[0] == 0


def test_a_shell_s_many_directories_after_baseline(infersiege: Call, sides: dict[str, Path]) -> None:
    """`--baseline runs/base-*`: all of them are the baseline, and none a run to judge."""
    runs = sorted(sides["base"].glob("run-*"))
    code, said = infersiege("gate", sides["slow"] / "run-1", sides["slow"] / "run-2", "--baseline", *runs)
    assert code == 1 and "5 against 2 runs" in said, said
    code, said = infersiege("gate", sides["slow"] / "run-1", "--baseline", *runs[:2], "--allow", "gpu")
    assert code == 5 and "2 against 1 runs" in said, said


def test_a_floor_of_other_runs_stands_in_for_many(
    infersiege: Call, sides: dict[str, Path], saved: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one.json"
    code, said = infersiege("baseline", "save", sides["same"] / "run-1", "--out", one)
    assert code == 0 and "fewer than 5 runs" in said, said
    assert infersiege("gate", sides["slow"] / "run-1", "--baseline", one)[0] == 5
    code, said = infersiege("baseline", "save", sides["same"] / "run-1", "--out", one, "--floor", saved)
    assert code == 0, said
    code, said = infersiege("gate", sides["slow"] / "run-1", "--baseline", one)
    assert code == 1 and "1 against 1 runs" in said, said
    code, said = infersiege("baseline", "save", sides["base"] / "run-1", "--out", one, "--floor", saved)
    assert code == 5 and "must be of other runs" in said, said


def test_runs_that_differ_are_no_baseline(infersiege: Call, sides: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    code, said = infersiege("baseline", "save", sides["base"] / "run-1", sides["gpu"] / "run-1", "--out", out)
    assert code == 5 and "gpu: 1 x H100 and 1 x RTX 4090 in these runs" in said, said
    assert not out.exists()
    assert (
        infersiege("baseline", "save", sides["base"] / "run-1", sides["gpu"] / "run-1", "--out", out, "--allow", "gpu")[
            0
        ]
        == 0
    )


def test_show(infersiege: Call, saved: Path) -> None:
    code, said = infersiege("baseline", "show", saved)
    assert code == 0
    for word in ("gpu: 1 x H100", "ttft p50", "throughput", "host.cpu: Fast 9000", "model.local: qwen3-8b"):
        assert word in said, said
    assert "short-qa: ttft p50" not in said
    assert "short-qa: ttft p50" in infersiege("baseline", "show", saved, "--all")[1]


def with_ttft(baseline: dict[str, Any], **changes: Any) -> str:
    """The file with other facts of ttft p50, over all of a run."""
    figures = [
        {**one, **changes} if (one["metric"], one.get("stat")) == ("ttft", "p50") else one
        for one in baseline["figures"]
    ]
    return json.dumps({**baseline, "figures": figures})


@pytest.mark.parametrize(
    ("words", "says", "reason"),
    [
        (["gate", "RUN", "--allow", "gpu"], "mean nothing without --baseline", "nothing to allow"),
        (["gate", "RUN", "--baseline"], "requires an argument", "the value was forgotten"),
        (
            ["gate", "RUN", "--baseline", "absent"],
            "absent: there is no such run directory, and no baseline",
            "no such baseline",
        ),
        (["gate", "RUN", "--baseline", "FILE", "--allow", "gpux"], "no such word", "a typing error"),
        (["gate", "RUN", "--baseline", "FILE", "RUN"], "stands for a whole baseline", "a file and something else"),
        (["gate", "RUN", "--baseline", "OTHER"], "other.json: is no baseline", "another JSON file"),
        (["gate", "RUN", "--baseline", "NEWER"], "schema 99 is newer", "of a later version"),
        (["gate", "RUN", "--baseline", "TORN"], "torn.json: is no baseline", "half a file"),
        (["gate", "RUN", "--baseline", "SHORT"], "was damaged", "a value was taken out"),
        (["gate", "RUN", "--baseline", "WRONG"], "is no baseline: Expected", "edited by hand"),
        (["gate", "RUN", "--baseline", "HUGE"], "1e+308 ms is no ttft p50 of a run", "what is computed would overflow"),
        (["gate", "RUN", "--baseline", "HUGE-INT"], "is no baseline: Number out of range", "10**400"),
        (["gate", "RUN", "--baseline", "NAN"], "is no baseline: JSON is malformed", "NaN is no JSON"),
        (["gate", "RUN", "--baseline", "WIDE"], "runs can't differ so in ttft p50", "a floor of nonsense"),
        (["gate", "RUN", "--baseline", "MANY"], "runs can't differ so in ttft p50", "runs that nobody can count to"),
        (["baseline", "show", "LATE"], "a time in it is in no calendar", "10**400 ns since 1970"),
        (["baseline", "show", "EARLY"], "a time in it is in no calendar", "before 1970"),
        (["baseline", "show", "NONE"], "it holds no runs", "nothing to hold anything against"),
        (["baseline", "show", "COUNTED"], "no run has so many values of ttft p50", "10**400 turns"),
        (["baseline", "save", "RUN", "--floor", "HUGE", "--out", "new.json"], "is no ttft p50 of a run", "as a floor"),
        (["baseline", "save", "RUN", "--out", "OTHER"], "is no baseline", "another file would be lost"),
        (["baseline", "save", "RUN", "--out", "FOLDER"], "is a folder", "no place for it"),
        (["baseline", "show", "RUN"], "can't be read", "a directory"),
        (["baseline", "save", "FOLDER", "--out", "new.json"], "is not a run directory", "no runs in it"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_what_is_wrong_is_said_in_one_line(
    infersiege: Call, sides: dict[str, Path], saved: Path, tmp_path: Path, words: list[str], says: str, reason: str
) -> None:
    good = json.loads(saved.read_text())
    short = json.loads(saved.read_text())
    short["figures"][0]["values"].pop()
    texts = {
        "OTHER": '{"kind": "something else"}',
        "NEWER": json.dumps({**good, "schema_version": 99, "runs": "another form"}),
        "TORN": saved.read_text()[:500],
        "SHORT": json.dumps(short),
        "WRONG": json.dumps({**good, "runs": [1]}),
        "HUGE": with_ttft(good, values=[1e308] * 5),
        "HUGE-INT": with_ttft(good, values=[10**400] * 5),
        "NAN": with_ttft(good, values=[float("nan")] * 5),
        "WIDE": with_ttft(good, floor={"deviation": 1e9, "runs": 5}),
        "MANY": with_ttft(good, floor={"deviation": 0.1, "runs": 10**18}),
        "COUNTED": with_ttft(good, n=[10**400] * 5),
        "LATE": json.dumps({**good, "saved_ns": 10**400}),
        "EARLY": json.dumps({**good, "runs": [{**good["runs"][0], "created_ns": -1}, *good["runs"][1:]]}),
        "NONE": json.dumps({**good, "runs": [], "figures": []}),
    }
    places = {"RUN": sides["base"] / "run-1", "FILE": saved, "FOLDER": tmp_path}
    for name, text in texts.items():
        places[name] = tmp_path / f"{name.lower()}.json"
        places[name].write_text(text, encoding="utf-8")
    code, said = infersiege(*(places.get(word, word) for word in words))
    assert code == 2 and says in said, said
    assert places["OTHER"].read_text() == texts["OTHER"], "another file was written over"


def test_gpus_of_the_samples_are_watched(sides: dict[str, Path]) -> None:
    """Else the test of another GPU would show nothing."""
    assert (sides["base"] / "run-1" / "telemetry" / GPU_SERIES).exists()
