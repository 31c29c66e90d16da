"""Spools as a disk, an editor or another user left them: nothing impossible comes into a run, and nobody waits."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crashed import Crash, contents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records_sample import SECOND, START_NS
from siege import Siege

from infersiege.errors import UsageError
from infersiege.rundir import RunDirectory
from infersiege.rundir.rows import LeftOut
from infersiege.swarm.leftovers import damaged, named
from infersiege.swarm.recovery import Recovered, recover
from infersiege.swarm.spool import leftover_segments, read_info
from infersiege.swarm.untrusted import read_own

HUGE = 9_999_999_999_999_999_999_999_999
YEAR = 366 * 86_400 * SECOND


def crashed(folder: Path) -> Crash:
    """Two workers that were killed, with a turn each that ended, one on its way, and one that was not begun."""
    crash = Crash(folder)
    for name in ("a", "b"):
        worker = crash.worker()
        (line,) = worker.take(name, 3)
        worker.play(line)
        worker.start(line)
        worker.kill()
    crash.master_dies()
    return crash


def bring_home(crash: Crash, *, keep: bool = False) -> Recovered:
    with RunDirectory.open(crash.path) as run:
        return recover(run, crash.leftovers(), keep=keep)


def spool_of(crash: Crash, worker: int = 1) -> Path:
    (path,) = (crash.folder / "spools").glob(f"*-worker-{worker}-*")
    return path


def put(path: Path, line: int, place: tuple[str | int, ...], value: object) -> None:
    """Set a value somewhere in a line of a file of JSON."""
    lines = path.read_bytes().splitlines()
    document = msgspec.json.decode(lines[line])
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    lines[line] = encoded(document)
    path.write_bytes(b"".join(one + b"\n" for one in lines))


def encoded(value: object) -> bytes:
    """By `json`: msgspec writes no whole number of more than 64 bits."""
    return json.dumps(value, separators=(",", ":")).encode()


IMPOSSIBLE: list[tuple[str, int, tuple[str | int, ...], object, str]] = [
    ("journal.jsonl", 2, ("attempt_ns",), HUGE, "the end of the run would be an instant that no file can hold"),
    ("journal.jsonl", 2, ("attempt_ns",), START_NS + 2 * YEAR, "the run would have gone on for years"),
    ("journal.jsonl", 2, ("attempt_ns",), -5, "an instant before 1970"),
    ("journal.jsonl", 2, ("started",), HUGE, "more turns than any session has"),
    ("journal.jsonl", 0, ("taken", "turns"), 10**12, "each would become a record"),
    ("journal.jsonl", 0, ("taken", "turns"), -1, "a negative count"),
    ("journal.jsonl", 0, ("taken", "due_ns"), HUGE, "records are made of it"),
    ("journal.jsonl", 0, ("taken", "epoch"), HUGE, "the same"),
    ("segment-0.jsonl", 0, ("closed_ns",), HUGE, "the end of the run, from a record"),
    ("segment-0.jsonl", 0, ("attempt_ns",), 0, "an instant of another year"),
    ("segment-0.jsonl", 0, ("output_tokens",), -7, "a negative count"),
    ("segment-0.jsonl", 0, ("turn",), HUGE, "no turn has such a number"),
]


@pytest.mark.parametrize(("name", "line", "place", "value", "why"), IMPOSSIBLE, ids=[one[-1] for one in IMPOSSIBLE])
def test_what_no_run_can_have_written_is_left_out_and_told(
    tmp_path: Path, name: str, line: int, place: tuple[str | int, ...], value: object, why: str
) -> None:
    """And with the spool as it was before the damage, it is a run like any other."""
    crash = crashed(tmp_path / "damaged")
    shutil.copytree(crash.folder, tmp_path / "sound")
    put(spool_of(crash) / name, line, place, value)
    result = bring_home(crash)
    assert "1 lines of the workers' spools are damaged and left out" in result.remarks, why
    run = RunDirectory.open(crash.path)
    file, left_out = run.read_plan(), LeftOut()
    assert file.ended_ns is not None and START_NS <= file.ended_ns <= START_NS + SECOND
    rows = list(run.read_turns(span=file.span, left_out=left_out))
    assert left_out.rows == 0 and {(row.session_id, row.turn) for row in rows} >= {("b", 0), ("b", 1), ("b", 2)}
    sound = Crash(tmp_path / "sound")
    assert bring_home(sound).remarks == []
    assert len(sound.rows()) == 6


def places_of_numbers(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in places_of_numbers(inner, (*place, key))]
    if isinstance(value, list):
        return [found for key, inner in enumerate(value) for found in places_of_numbers(inner, (*place, key))]
    return [place] if isinstance(value, int) and not isinstance(value, bool) else []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_number_is_damaged_the_run_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any number of any file of a spool becomes any other one: the run is recovered and is one that everybody can read,
    or nothing of it was changed."""
    crash = crashed(tmp_path_factory.mktemp("damage"))
    spool = spool_of(crash)
    name = data.draw(st.sampled_from(["spool.json", "journal.jsonl", "segment-0.jsonl"]))
    lines = (spool / name).read_bytes().splitlines()
    line = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.sampled_from(places_of_numbers(msgspec.json.decode(lines[line])) or [()]))
    if not place:
        return
    number = data.draw(st.one_of(st.integers(), st.sampled_from([HUGE, -HUGE, 2**63, 2**64, -1, 0, START_NS + YEAR])))
    put(spool / name, line, place, number)
    before = contents(crash.path)
    run = RunDirectory.open(crash.path)
    try:
        bring_home(crash)
    except UsageError:
        assert contents(crash.path) == before
        return
    file, left_out = run.read_plan(), LeftOut()
    assert file.ended_ns is not None and len(list(run.read_turns(span=file.span, left_out=left_out)))
    assert left_out.rows == 0, left_out.reasons
    with run, pytest.raises(UsageError, match="is complete"):
        recover(run, [])


# ----------------------------------------------------------------------------------------------- what is no plain file


def a_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"secret")
    path.symlink_to("elsewhere")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


STANDING: list[tuple[Callable[[Path], object], str, str]] = [
    (os.mkfifo, "is a named pipe", "a reader waits for a writer, for ever"),
    (a_link, "is a symbolic link", "the file of somebody else under a name of ours"),
    (Path.mkdir, "is a directory", "read() would say so, in other words"),
    (a_socket, "is no file", "it can't be opened"),
]


@pytest.mark.parametrize(("make", "said", "why"), STANDING, ids=[one[-1] for one in STANDING])
def test_only_plain_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], said: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    make(tmp_path / "x")
    with pytest.raises(OSError, match=said):
        read_own(tmp_path / "x")


def test_a_file_of_another_user_is_not_read(tmp_path: Path, needs: Callable[[str | None], None]) -> None:
    needs(None if os.geteuid() == 0 else "files can be given to another user by root only")
    path = tmp_path / "x"
    path.write_bytes(b"not ours")
    os.chown(path, 12_345, -1)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        read_own(path)
    os.chown(path, 0, -1)
    assert read_own(path) == b"not ours"


FILES = ("spool.json", "journal.jsonl", "segment-0.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_spool_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    crash = crashed(tmp_path)
    pipe = spool_of(crash) / name
    pipe.unlink()
    os.mkfifo(pipe)
    before = (crash.path / "plan.json").read_bytes()
    with pytest.raises(UsageError, match=re.escape(f"{pipe}: can't be read: is a named pipe")):
        bring_home(crash)
    assert (crash.path / "plan.json").read_bytes() == before


def test_the_list_names_what_it_could_not_look_into(siege: Siege) -> None:
    for name in FILES:
        folder = siege.folder / "spool" / f"infersiege-spool-1-{name}"
        folder.mkdir()
        os.mkfifo(folder / name)
    code, out = siege.command("recover", within_s=30)
    assert code == 0, out
    for name in FILES:
        assert f"infersiege-spool-1-{name}/{name}: can't be read: is a named pipe, no file" in out


# ----------------------------------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("started_ns",), HUGE, "the start of the run would be it"),
        (("stopped_ns",), START_NS + 2 * YEAR, "the end of the run would be it"),
        (("members",), 0, "arrivals are dealt by it"),
        (("place",), -1, "no seat"),
        (("pid",), HUGE, "no process"),
    ],
)
def test_a_spool_that_says_what_no_worker_says_does_not_say_whose_it_is(
    tmp_path: Path, place: tuple[str, ...], value: int, why: str
) -> None:
    spool = spool_of(crashed(tmp_path))
    assert read_info(spool) is not None
    put(spool / "spool.json", 0, place, value)
    assert read_info(spool) is None, why


def test_a_spool_with_a_torn_spool_json_is_named(siege: Siege) -> None:
    """Its records are whole: nobody shall give them up unawares."""
    crash = crashed(siege.folder / "x")
    for number in (1, 2):
        shutil.move(spool_of(crash, number), siege.folder / "spool")
    (spool,) = (siege.folder / "spool").glob("*-worker-1-*")
    sound = (spool / "spool.json").read_bytes()
    (spool / "spool.json").write_bytes(sound[:-5])
    code, out = siege.command("recover", str(crash.path))
    assert code == 2 and "no spool of 1 more of 2 workers" in out
    assert f"spool.json can't be read in {spool}, which may be it" in out
    copy = shutil.copytree(crash.path, siege.folder / "copy")
    code, out = siege.command("recover", str(copy), "--partial", "--keep")
    assert code == 3 and f"warning: spool.json can't be read in {spool}: if that is of this run" in out
    (spool / "spool.json").write_bytes(sound)
    code, out = siege.command("recover", str(crash.path))
    assert code == 3 and len(crash.rows()) == 6 and "spool.json" not in out, out


def test_only_spools_that_may_be_of_the_run_are_named(tmp_path: Path) -> None:
    crash = crashed(tmp_path / "x")
    (info,) = {one.info.run_id for one in named([spool_of(crash)])}
    spools = tmp_path / "x" / "spools"
    for spool in spools.iterdir():
        (spool / "spool.json").write_bytes(b"{")
    put(spool_of(crash, 2) / "segment-0.jsonl", 0, ("run_id",), "another")
    (spools / "infersiege-spool-1-idle").mkdir()
    assert damaged([spools], info) == [spool_of(crash, 1)]
    assert damaged([spools], "another") == [spool_of(crash, 2)]


def test_segments_are_told_by_their_whole_name(tmp_path: Path) -> None:
    for name in ("segment-.jsonl", "segment-x.jsonl", "segment-1.jsonl.part", "segment-١.jsonl"):
        (tmp_path / name).write_bytes(b"{}\n")
    (tmp_path / "segment-7.jsonl").write_bytes(b"{}\n")
    assert list(leftover_segments(tmp_path)) == [(7, b"{}\n")]
