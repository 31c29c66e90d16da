"""Files that commands write, whole or not at all; what is no file stays what it is; text that no terminal obeys."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infersiege.cli.destination import check_destination, destination
from infersiege.cli.output import escaped
from infersiege.errors import UsageError


def write(out: Path, data: bytes = b"new\n", *, force: bool = False) -> None:
    with destination(out, force=force) as file:
        file.write(data)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_with_the_rights_that_new_files_have(tmp_path: Path) -> None:
    out = tmp_path / ("n" * 251 + ".txt")
    with destination(out, force=False) as file:
        file.write(b"half")
        assert not out.exists()
    (tmp_path / "usual").touch()
    assert out.read_bytes() == b"half"
    assert out.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert names(tmp_path) == [out.name, "usual"], "and out's name may be as long as names can be"


def test_what_is_there_is_kept_unless_forced_and_its_rights_always(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old\n")
    out.chmod(0o600)
    with pytest.raises(UsageError, match="is there already"):
        write(out)
    assert out.read_bytes() == b"old\n"
    write(out, force=True)
    assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (b"new\n", 0o600)


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("force", [True, False])
def test_whatever_ends_it_before_leaves_what_was_there(fault: type[BaseException], force: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if force:
        out.write_bytes(b"old\n")
    with pytest.raises(fault), destination(out, force=force) as file:
        file.write(b"half")
        raise fault
    assert names(tmp_path) == (["out"] if force else [])
    assert not force or out.read_bytes() == b"old\n"


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_one_is_told(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file system knows no links (FAT)."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="is there already"), destination(out, force=False) as slow:
        slow.write(b"slow")
        write(out, b"fast")
    assert out.read_bytes() == b"fast"
    assert names(tmp_path) == ["out"]
    with destination(out, force=True) as slow:
        slow.write(b"slow")
        write(out, b"fast", force=True)
    assert out.read_bytes() == b"slow", "who forces it, overwrites"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_clean_and_those_ignored_stay_ignored(number: signal.Signals, tmp_path: Path) -> None:
    """`nohup infersiege traces convert` goes on when the terminal is gone."""
    out = tmp_path / "out"
    # Whoever runs the tests may ignore SIGHUP (nohup does).
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught, destination(out, force=False) as file:
            file.write(b"half")
            os.kill(os.getpid(), number)
        assert caught.value.code == 128 + number
        assert names(tmp_path) == []
        assert signal.getsignal(number) == signal.SIG_DFL, "afterwards it is as before"
        signal.signal(number, signal.SIG_IGN)
        with destination(out, force=False) as file:
            file.write(b"whole")
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert out.read_bytes() == b"whole"


# --------------------------------------------------------------------------------------------- what is no plain file


def read_by_thread(path: Path) -> Callable[[], bytes]:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()

    def result() -> bytes:
        thread.join(20)
        return found[0]

    return result


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_pipes_are_written_into_and_stay_pipes(force: bool, linked: bool, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    read = read_by_thread(pipe)
    write(link if linked else pipe, b"x" * 200_000, force=force)
    assert read() == b"x" * 200_000
    assert pipe.is_fifo() and link.is_symlink()
    assert names(tmp_path) == ["link", "pipe"]


def test_who_waits_for_a_reader_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Timer(0.5, pipe.read_bytes)
    thread.start()
    write(pipe)
    thread.join(20)
    assert capsys.readouterr().err == f"{pipe}: waiting for somebody to read from this pipe\n"


def test_a_reader_that_goes_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UsageError, match="Broken pipe") as caught, destination(pipe, force=False) as file:
        os.close(descriptor)
        file.write(b"x" * 100_000)
    assert caught.value.hint == "whoever read from there has gone"


def test_devices_are_written_into() -> None:
    device = Path("/dev/full")
    if not device.is_char_device():
        pytest.skip("no /dev/full here")
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write(device)
    assert device.is_char_device()
    assert caught.value.hint == "free some space, or name another place"


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, again = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "again"
    link.symlink_to("far/target")
    again.symlink_to(link)
    write(again)
    with pytest.raises(UsageError, match="is there already"):
        write(again)
    write(again, b"newer", force=True)
    assert target.read_bytes() == b"newer"
    assert link.is_symlink() and again.is_symlink() and not target.is_symlink()
    assert (names(tmp_path), names(tmp_path / "far")) == (["again", "far", "link"], ["target"])


REFUSED = [
    ("", "no file is named", "empty"),
    (".", "no file is named", "this folder"),
    ("folder", "is a folder", "a folder"),
    ("folder/", "is a folder", "with a slash"),
    ("loop", "Too many levels of symbolic links", "a link to itself"),
    ("loop/x", "Too many levels of symbolic links", "and behind it"),
    ("nowhere/x", "No such file or directory", "no folder"),
    ("file/x", "Not a directory", "a file as a folder"),
    ("a\0b", "no file can have this name", "a NUL"),
    ("n" * 300, "File name too long", "a long name"),
]


@pytest.mark.parametrize(("out", "message", "why"), REFUSED, ids=[row[2] for row in REFUSED])
@pytest.mark.parametrize("force", [True, False])
def test_what_can_not_be_written_is_told_before_the_work(
    out: str, message: str, why: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=message) as early:
        check_destination(Path(out), force=force)
    with pytest.raises(UsageError, match=message) as late:
        write(Path(out), force=force)
    assert str(early.value) == str(late.value) and early.value.hint == late.value.hint is not None, why
    assert names(tmp_path) == ["file", "folder", "loop"]


# --------------------------------------------------------------------------------------------------------- terminals


@given(st.text())
@example("name\x1b[31m\n\u202egpj.exe\udcff\x00\x9b2J")
def test_escaped_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    seen = escaped(text)
    assert seen.isprintable()
    assert seen.encode().decode() == seen, "also names that are no text"
    assert seen == text or not text.isprintable()
