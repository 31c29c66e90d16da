"""`infersiege run --repeats` and `--against`: the order of runs, what is kept, and whole series on an emulator."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from siege import Siege, plan_text

from infersiege.cli.run import asked_repeats
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import UsageError
from infersiege.plan import load_plan
from infersiege.report.sides import runs_in
from infersiege.rundir import RunDirectory
from infersiege.series.state import AGAINST, OneRun, SeriesState, begun, check_same, order

# ------------------------------------------------------------------------------------------------------------- order


@given(st.integers(1, 60))
def test_two_plans_take_turns(repeats: int) -> None:
    """Each run once; a drift in a straight line (load, heat, a filling disk) has the same mean on both sides, as
    nearly as can be; and no plan has more than two runs one after the other."""
    runs = order(repeats, 2)
    sides = [name.startswith(AGAINST) for name in runs]
    assert len(runs) == len(set(runs)) == 2 * repeats and sum(sides) == repeats
    means = [sum(place for place, side in enumerate(sides) if side is of) / repeats for of in (False, True)]
    assert abs(means[0] - means[1]) <= 1 / repeats + 1e-9
    assert not any(a == b == c for (a, b), (_, c) in pairwise(pairwise(sides)))


@given(st.integers(1, 60))
def test_one_plan_runs_in_order(repeats: int) -> None:
    assert order(repeats, 1) == [f"run-{number}" for number in range(1, repeats + 1)]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 2))
def test_a_longer_series_begins_like_the_shorter_one(one: int, other: int, sides: int) -> None:
    """So that --repeats can be raised later."""
    short, long = sorted((order(one, sides), order(other, sides)), key=len)
    assert long[: len(short)] == short


@pytest.mark.parametrize(
    ("run", "kept", "reason"),
    [
        (OneRun(directory="run-1", ended=True, exit_code=0), True, "a run"),
        (OneRun(directory="run-1", ended=True, exit_code=1), True, "every turn failed: that is a result"),
        (OneRun(directory="run-1", ended=True, exit_code=5), True, "no turn ended: so is that"),
        (OneRun(directory="run-1", ended=True, exit_code=3), False, "invalid"),
        (OneRun(directory="run-1", ended=True, exit_code=130), False, "cut"),
        (OneRun(directory="run-1"), False, "nothing is known of its end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_runs_are_not_made_again(run: OneRun, kept: bool, reason: str) -> None:
    assert run.kept is kept


@pytest.mark.parametrize(
    ("text", "overrides", "repeats", "reason"),
    [
        ("[run]\nrepeats = 3", (), 3, "the plan says it"),
        ("", (), 1, "it does not"),
        ("[run]\nrepeats = 3", ("run.repeats=5",), 5, "set"),
        ("[run]\nrepeats = 3", ("run.repeats=",), 1, "taken out, as in each run of a series"),
        ("[run]\nrepeats = 'x'", (), 1, "a fault, which loading tells"),
        ("[run]\nrepeats = 0", (), 1, "the same"),
        ("run = 3", (), 1, "the same"),
        ("[run", (), 1, "the same"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_how_many_runs_are_asked_for(
    tmp_path: Path, text: str, overrides: tuple[str, ...], repeats: int, reason: str
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    assert asked_repeats(plan, overrides) == repeats


@pytest.mark.timeout(20)
def test_a_pipe_is_not_asked_how_many_runs_it_wants(tmp_path: Path) -> None:
    """Nor is what comes through it taken away from who loads the plan, and says that it is no file."""
    pipe, text = tmp_path / "pipe", b"[run]\nrepeats = 3"
    os.mkfifo(pipe)
    assert asked_repeats(pipe, ()) == 1, "nobody writes into it: whoever opens it waits"
    both_ends = os.open(pipe, os.O_RDWR)
    try:
        os.write(both_ends, text)
        assert asked_repeats(pipe, ()) == 1
        assert os.read(both_ends, 100) == text
    finally:
        os.close(both_ends)


def test_runs_in_a_folder_are_in_order_of_number(tmp_path: Path) -> None:
    for name in ("run-10", "run-2", "run-1", "discarded/1-run-3", "against/run-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "plan.json").write_text('{"schema_version": 1}', encoding="utf-8")
    assert [path.name for path in runs_in(tmp_path)] == ["run-1", "run-2", "run-10"]
    assert [path.name for path in runs_in(tmp_path / "run-2")] == ["run-2"]


def test_a_series_goes_on_only_with_its_own_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text("http://127.0.0.1:9/v1"), encoding="utf-8")
    first = begun("x", (load_plan(plan),))
    check_same(tmp_path, first, begun("x", (load_plan(plan, ("run.repeats=9", "run.nonce=n")),)))
    with pytest.raises(UsageError, match="another plan"):
        check_same(tmp_path, first, begun("x", (load_plan(plan, ("load.users=9",)),)))
    with pytest.raises(UsageError, match="another plan"):
        check_same(tmp_path, first, begun("x", (load_plan(plan), load_plan(plan))))
    older = msgspec.structs.replace(first, versions={**first.versions, "numpy": "1"})
    with pytest.raises(UsageError, match="numpy 1"):
        check_same(tmp_path, older, first)


def test_a_dry_run_shows_both_plans_or_the_faults_of_either(siege: Siege, tmp_path: Path) -> None:
    for name, sessions in (("new", 3), ("old", 5)):
        text = plan_text("http://127.0.0.1:9/v1", run=f"stop = {{sessions = {sessions}}}")
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[run]\nspeed = 1\n", encoding="utf-8")
    new, old, broken = (str(tmp_path / f"{name}.toml") for name in ("new", "old", "broken"))
    code, out = siege.command("run", new, "--against", old, "--dry-run")
    assert code == 0 and "sessions in all: 3" in out and "sessions in all: 5" in out, out
    assert out.index("new.toml:") < out.index("sessions in all: 3") < out.index("old.toml:")
    code, out = siege.command("run", new, "--against", broken, "--dry-run")
    assert code == 2 and "broken.toml" in out and "sessions in all" not in out, "nothing is shown of half the question"


# ------------------------------------------------------------------------------------------------------ whole series


def state_of(folder: Path) -> SeriesState:
    return msgspec.json.decode((folder / "series.json").read_bytes(), type=SeriesState)


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--step-base-ms", "10", "--output-tokens", "8") as process:
        yield process


def short(emulator: EmulatorProcess, repeats: int, *, more: str = "", seconds: str = "1s") -> str:
    run = f'duration = "{seconds}"\nnonce = "fixed"\nrepeats = {repeats}'
    return plan_text(emulator.base_url, run=run, load='users = 2\nramp = "100ms"\ndrain = "5s"', more=more)


RELATIVE = '[[slo]]\nmetric = "e2e"\nstat = "p50"\nrelative_max = "80%"'


@pytest.mark.slow
@pytest.mark.alone
def test_a_series_that_was_cut_goes_on(siege: Siege, emulator: EmulatorProcess, tmp_path: Path) -> None:
    """Runs that were made stay; the one that was cut is made again; each has a salt of its own."""
    out, plan = tmp_path / "series", short(emulator, 3, seconds="3s")
    running = siege.start(plan, out=out)
    deadline = time.monotonic() + 60
    turns = out / "run-2" / "turns.jsonl"
    while not (turns.exists() and turns.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [one.directory for one in state_of(out).runs] == ["run-1", "run-2"]
    os.kill(running.process.pid, signal.SIGINT)
    cut = running.wait(60)
    assert cut.code == 130 and f"the same command with --out {out} goes on" in cut.out, cut.out
    kept = RunDirectory.open(out / "run-1").read_plan().run_id
    ran = siege.run(plan, out=out, within_s=120)
    assert ran.code in (0, 3) and "going on with" in ran.out and "run.nonce of the plan is not used" in ran.out, ran.out
    files = [RunDirectory.open(path).read_plan() for path in runs_in(out)]
    assert [path.name for path in runs_in(out)] == ["run-1", "run-2", "run-3"]
    assert len({file.nonce for file in files}) == 3 and "fixed" not in {file.nonce for file in files}
    if "made again, since they were invalid: run-1" not in ran.out:
        assert files[0].run_id == kept
    assert any(path.name.endswith("run-2") for path in (out / "discarded").iterdir()), list(out.rglob("*run-2*"))
    code, said = siege.command("run", str(tmp_path / "plan-1.toml"), "--out", str(out), "--set", "load.users=3")
    assert code == 2 and "was begun with another plan" in said, said


@pytest.mark.slow
@pytest.mark.alone
def test_two_plans_in_turn_and_the_gate_on_both(siege: Siege, emulator: EmulatorProcess, tmp_path: Path) -> None:
    """Without their difference allowed there is no verdict; with it there is one, from the same runs."""
    other = tmp_path / "other.toml"
    other.write_text(short(emulator, 1).replace("[load]", "[sampling]\ntemperature = 0.5\n[load]"), encoding="utf-8")
    out = tmp_path / "both"
    words = ("--against", str(other), "--repeats", "2")
    ran = siege.run(short(emulator, 1, more=RELATIVE), *words, "--gate", out=out, within_s=150)
    assert ran.code in (5, 3), ran.out
    assert "not comparable: sampling.temperature: 0.5 in the baseline, 0.0 here" in ran.out, ran.out
    made = [one.directory for one in state_of(out).runs]
    assert sorted(made) == ["against/run-1", "against/run-2", "run-1", "run-2"]
    if "made again" not in ran.out:
        assert made == ["run-1", "against/run-1", "against/run-2", "run-2"]
    code, said = siege.command("gate", str(out), "--baseline", str(out / "against"), "--allow", "sampling")
    assert (code in (5, 3) and "runs tell nothing of how much runs differ" in said.replace("\n", " ")) or code == 3, (
        said
    )


@pytest.mark.slow
def test_what_keeps_a_run_from_beginning_ends_the_series(siege: Siege, tmp_path: Path, free_port: object) -> None:
    port = free_port() if callable(free_port) else 0
    out = tmp_path / "gone"
    ran = siege.run(plan_text(f"http://127.0.0.1:{port}/v1"), "--repeats", "2", out=out)
    assert ran.code == 4 and "error: run-1: " in ran.out and "run 2 of 2" not in ran.out, ran.out
    ran = siege.run(plan_text(f"http://127.0.0.1:{port}/v1"), "--repeats", "2", "--allow", "gpu", out=out)
    assert ran.code == 2 and "--allow means nothing without --against" in ran.out
    ran = siege.run(plan_text(f"http://127.0.0.1:{port}/v1"), "--repeats", "2", "--against", "absent.toml", out=out)
    assert ran.code == 2 and "absent.toml: the plan cannot be read" in ran.out
