"""A run that somebody still writes: who reads it is told so in a line, and nothing is written beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from baseline_runs import write_side
from crashed import contents

from infersiege.cli import main
from infersiege.errors import RunDirectoryError
from infersiege.rundir.living import is_written, open_finished

Call = Callable[..., tuple[int, str]]

HOLDS = """
import sys
from pathlib import Path
from infersiege.rundir import RunDirectory
with RunDirectory.open(Path(sys.argv[1])) as run:
    print(run.claim(), flush=True)
    sys.stdin.read()
"""


def call(capfd: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """A command in this process: (exit code, output)."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, "".join(capfd.readouterr())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_side(tmp_path_factory.mktemp("living") / "series", runs=2)


@contextlib.contextmanager
def writing(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the lock of a run, as its master does."""
    command = [sys.executable, "-c", HOLDS, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n"
        yield process
        process.kill()


@pytest.fixture(scope="module")
def writer(runs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Of the second run."""
    with writing(runs / "run-2") as process:
        yield process


COMMANDS = [
    (["gate", "RUN"], "a verdict on half a run would outlive it"),
    (["gate", "SERIES"], "one of a folder"),
    (["gate", "OTHER", "--baseline", "RUN"], "as a baseline"),
    (["gate", "OTHER", "--baseline", "SERIES"], "among the runs of a baseline"),
    (["report", "RUN"], "its files are the master's until then"),
    (["compare", "OTHER", "RUN"], "half a run is invalid in every comparison"),
    (["compare", "SERIES", "--json", "NEW"], "one of a folder"),
    (["export", "RUN", "--csv", "NEW"], "a table of half a run looks like a whole one"),
    (["baseline", "save", "RUN", "--out", "NEW"], "a baseline of half a run"),
]


@pytest.mark.parametrize(("words", "why"), COMMANDS, ids=[f"{words[0]}: {why}" for words, why in COMMANDS])
def test_whoever_reads_a_run_that_goes_on_is_told_so_in_a_line(
    runs: Path,
    writer: subprocess.Popen[bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # where compare.html would go
    places = {"RUN": runs / "run-2", "OTHER": runs / "run-1", "SERIES": runs, "NEW": tmp_path / "new"}
    before = contents(runs)
    code, said = call(capfd, *(places.get(word, word) for word in words))
    going = f"error: {runs / 'run-2'}: the run is still going (pid {writer.pid} on {platform.node()})\n"
    assert (code, said) == (2, f"{going}hint: wait for its end\n"), why
    assert contents(runs) == before and not any(tmp_path.iterdir())


def test_a_writer_that_was_killed_blocks_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = write_side(tmp_path / "series", runs=1) / "run-1"
    with writing(run) as process:
        assert is_written(run)
        process.kill()
        process.wait()
        code, said = call(capfd, "gate", run)
    assert code != 2 and "still going" not in said
    assert (run / "gate.json").exists()


def test_who_recovers_a_run_is_told_apart(runs: Path, writer: subprocess.Popen[bytes]) -> None:
    note = runs / "run-2" / "recovery.json"
    note.write_text('{"spools": []}', encoding="utf-8")
    try:
        with pytest.raises(RunDirectoryError, match=rf"just brought home \(pid {writer.pid} on ") as told:
            open_finished(runs / "run-2")
        assert told.value.hint == "wait until `recover` has ended"
    finally:
        note.unlink()


def test_two_who_only_look_never_meet(runs: Path) -> None:
    descriptor = os.open(runs / "run-1" / "turns.jsonl", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        assert open_finished(runs / "run-1").path == runs / "run-1"
    finally:
        os.close(descriptor)


UNKNOWN = [
    (None, "no turns at all"),
    (os.mkdir, "a folder"),
]


@pytest.mark.parametrize(("make", "why"), UNKNOWN, ids=[why for _, why in UNKNOWN])
def test_what_can_not_be_told_refuses_nobody(tmp_path: Path, make: Callable[[Path], None] | None, why: str) -> None:
    run = write_side(tmp_path / "series", runs=1) / "run-1"
    (run / "turns.jsonl").unlink()
    if make is not None:
        make(run / "turns.jsonl")
    assert not is_written(run) and open_finished(run).path == run, why


def test_nobody_waits_at_a_pipe(tmp_path: Path) -> None:
    run = write_side(tmp_path / "series", runs=1) / "run-1"
    (run / "turns.jsonl").unlink()
    os.mkfifo(run / "turns.jsonl")
    assert not is_written(run)
    with pytest.raises(RunDirectoryError, match=r"turns\.jsonl: is a named pipe, no file"):
        open_finished(run)
