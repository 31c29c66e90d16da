"""The folder of a worker's files: its own from the first moment, and gone when its worker is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from infersiege.errors import UsageError
from infersiege.records import NeededFile, NeededPath
from infersiege.swarm import luggage
from infersiege.swarm.luggage import Luggage

CRASHES = """
import os, sys
from infersiege.swarm import luggage
from infersiege.records import NeededPath
one = luggage.Luggage.__new__(luggage.Luggage)
one._folder = one._lock = None
place = one._new_place(0, NeededPath(path="/m/t.jsonl", what="trace", files=()))
place.parent.mkdir(parents=True)
place.write_bytes(b"private")
print(one._folder, oct(one._folder.stat().st_mode & 0o777), flush=True)
sys.stdin.read()
os._exit(9)
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def made_long_ago(folder: Path) -> None:
    then = time.time() - 3600
    os.utime(folder, (then, then))


def test_the_next_worker_removes_what_a_killed_one_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CRASHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdin is not None
        name, mode = worker.stdout.readline().decode().split()
        folder = Path(name)
        assert folder.parent == tmp_path and mode == "0o700"
        made_long_ago(folder)
        luggage.sweep()
        assert (folder / "0" / "t.jsonl").read_bytes() == b"private", "its worker lives"
        worker.stdin.close()
        worker.wait(10)
    made_long_ago(folder)
    luggage.sweep()
    assert not folder.exists()


KEPT = [
    (lambda tmp: Path(tempfile.mkdtemp(prefix="infersiege-files-")), "young: its worker is about to lock it"),
    (lambda tmp: _old(Path(tempfile.mkdtemp(prefix="infersiege-other-"))), "not one of ours"),
    (lambda tmp: _old(_file(tmp / "infersiege-files-x")), "no folder"),
    (lambda tmp: _link(tmp / "infersiege-files-y", _old(_folder(tmp / "elsewhere"))), "a link to somewhere else"),
]


@pytest.mark.parametrize(("made", "why"), KEPT, ids=[row[1] for row in KEPT])
def test_what_is_not_surely_left_behind_stays(tmp_path: Path, made: Callable[[Path], Path], why: str) -> None:
    place = made(tmp_path)
    inside = sorted(place.iterdir()) if place.is_dir() else []
    luggage.sweep()
    assert place.exists(), why
    assert (sorted(place.iterdir()) if place.is_dir() else []) == inside, why


def _old(path: Path) -> Path:
    made_long_ago(path)
    return path


def _file(path: Path) -> Path:
    path.write_bytes(b"x")
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _link(path: Path, to: Path) -> Path:
    path.symlink_to(to)
    return path


# ------------------------------------------------------------------------------- somebody tidies up at the wrong moment


class Tidy:
    """`tempfile.mkdtemp`, and somebody who is at the new folder first, as often as is said."""

    def __init__(self, times: int, how: str) -> None:
        self._real, self._left, self._how = tempfile.mkdtemp, times, how
        self.made: list[Path] = []
        self.held: list[int] = []

    def __call__(self, *, prefix: str) -> str:
        folder = Path(self._real(prefix=prefix))
        self.made.append(folder)
        if self._left > 0:
            self._left -= 1
            if self._how == "removed":
                folder.rmdir()
            else:
                self.held.append(luggage._locked(folder))
        return str(folder)


@pytest.mark.parametrize("how", ["removed", "locked"])
def test_a_folder_that_somebody_tidies_away_is_made_once_more(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tidy = Tidy(1, how)
    monkeypatch.setattr(tempfile, "mkdtemp", tidy)
    one = Luggage.__new__(Luggage)
    one._folder = one._lock = None
    try:
        place = one._new_place(0, NeededPath(path="/m/t.jsonl", what="trace", files=()))
        assert place.parent.parent == tidy.made[1]
        with pytest.raises(BlockingIOError):
            luggage._locked(tidy.made[1])
    finally:
        one.discard()
        for descriptor in tidy.held:
            os.close(descriptor)
    assert len(tidy.made) == 2 and not any(folder.exists() for folder in tidy.made)


def test_a_folder_that_is_never_ours_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", Tidy(2, "removed"))
    runner = SimpleNamespace(register_message=lambda *_: None)
    said: list[str] = []
    one = Luggage(runner, "here", said.append)
    wanted = NeededPath(path="/m/t.jsonl", what="trace", files=(NeededFile(name="", size_bytes=5, sha256="0" * 64),))
    with pytest.raises(UsageError, match=r"^/m/t\.jsonl: can't be kept in \S+ on here: ") as caught:
        one.fetch([wanted])
    assert "TMPDIR" in (caught.value.hint or "") and said
