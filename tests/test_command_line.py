"""The command line as a process: usage errors in one form, outputs that go away, and the exit codes that are left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from records_sample import plan, records, write_run

from infersiege.plan.schema import Slo

INFERSIEGE = [sys.executable, "-m", "infersiege"]
SPARE = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}


def command(*arguments: str, **streams: object) -> subprocess.CompletedProcess[str]:
    kept: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([*INFERSIEGE, *arguments], env=SPARE, text=True, timeout=60, check=False, **kept)  # type: ignore[call-overload,no-any-return]


USAGE = [
    # arguments, the one line, in the hint
    (["wrong"], "error: no such command 'wrong'", "infersiege --help"),
    (["run"], "error: missing argument 'PLAN'", "infersiege run --help"),
    (["report", "a", "b"], "error: got unexpected extra argument (b)", "infersiege report --help"),
    (["run", "p.toml", "--worker", "2"], "error: no such option '--worker'", "infersiege run --help"),
    (["run", "p.toml", "--workers", "x"], "error: invalid value for '--workers': 'x' is not", "infersiege run --help"),
    (["run", "p.toml", "--workers", "9999"], "error: invalid value for '--workers': 9999 is not", "run --help"),
    (["run", "p.toml", "--bind", "here:there"], "error: --bind here:there: not an address", "HOST:PORT"),
    (["run", "p.toml", "--wait-for-target", "nan"], "error: --wait-for-target nan: not a number of seconds", ""),
    (["run", "p.toml", "--wait-for-target", "inf"], "error: --wait-for-target inf: not a number of seconds", ""),
    (["run", "p.toml", "--wait-for-target", "-5"], "error: --wait-for-target -5: not a number of seconds", ""),
    (["run", "p.toml", "--wait-for-target", "1e30"], "error: --wait-for-target 1e+30: not a number of seconds", ""),
    (["demo", "--duration", "5"], 'error: --duration 5: 5 has no unit; write "5s" or "5ms"', "45s"),
    (["demo", "--duration", "nan"], "error: --duration nan: nan is not a finite number", "45s"),
    (["demo", "--duration", "3s"], "error: --duration 3s: the warm-up (5s) takes the whole run (3s)", "45s"),
    (["demo", "--duration="], "error: --duration : the run has no end", "45s"),
    (["emulate", "--noise", "nan"], "error: emulator: --noise is nan; it must be from 0 to 3", "emulate --help"),
    (["emulate", "--port", "x"], "error: invalid value for '--port': 'x' is not", "infersiege emulate --help"),
]


@pytest.mark.parametrize(("arguments", "line", "hint"), USAGE, ids=[" ".join(row[0]) for row in USAGE])
def test_each_usage_error_is_one_line_and_code_2(arguments: list[str], line: str, hint: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first.startswith(line), done.stderr
    assert hint in "".join(rest)
    assert all(other.startswith("hint: ") for other in rest), done.stderr


def test_the_emulators_own_command_says_it_alike() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infersiege.emulator", "--prot", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert re.match(r"error: no such option '--prot'.*\nhint: python -m infersiege\.emulator --help .*\n$", done.stderr)


def test_without_a_command_there_is_help() -> None:
    done = command()
    assert done.returncode == 2 and done.stderr.startswith("Usage: infersiege") and "error:" not in done.stderr


# ---------------------------------------------------------------------------------------------------- outputs


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a rule fails."""
    slos = (Slo(metric="ttft", stat="p99", at_most=1.0),)
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path, records(24, steady_s=120), plan_=plan(slos=slos), steady_s=120)
    return path


@pytest.mark.parametrize(("name", "code"), [("report", 0), ("gate", 1)])
def test_a_closed_pipe_changes_no_code(failing: Path, name: str, code: int) -> None:
    """The reader is gone before the first byte: what `| head -1` is, without its race."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = command(name, str(failing), stdout=theirs)
    os.close(theirs)
    assert (done.returncode, "error:" in done.stderr) == (code, False), done.stderr
    assert (failing / "report.html").exists()
    if name == "gate":
        assert (failing / "junit.xml").exists(), "a gate whose output nobody reads has judged nonetheless"


@pytest.mark.parametrize("arguments", [["report"], ["gate"], ["--help"], ["run", "--help"]])
def test_a_full_disk_below_stdout_is_an_ordinary_error(failing: Path, arguments: list[str]) -> None:
    asked = [*arguments, str(failing)] if arguments in (["report"], ["gate"]) else arguments
    with Path("/dev/full").open("w") as full:
        done = command(*asked, stdout=full)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert errors == [
        "error: standard output can't be written: No space left on device",
        "hint: free some space, or send the output elsewhere",
    ]


def test_an_error_that_nobody_can_read_keeps_its_code(failing: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    assert command("report", str(failing / "nowhere"), stderr=theirs).returncode == 2
    assert command("report", str(failing / "nowhere"), stdout=theirs, stderr=theirs).returncode == 2
    os.close(theirs)
    with Path("/dev/full").open("w") as full:
        assert command("gate", str(failing), stdout=subprocess.DEVNULL, stderr=full).returncode == 1


def test_an_encoding_without_our_letters_is_no_fault(failing: Path) -> None:
    environment = {**SPARE, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*INFERSIEGE, "report", str(failing)], env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
