"""The spool on disk: what is there after a kill at any moment can be read, counted and sent."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents import outlet
from infersiege_agents.errors import AgentError
from infersiege_agents.influx import DurableWriter, losses, set_aside, spool, spool_directory, target_of
from infersiege_agents.points import Point
from influx_recorder import Recorder, carry_on, until

TARGET = target_of("http://127.0.0.1:8086", bucket="perf", org="acme", token="secret")


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"INFERSIEGE_TELEMETRY_SPOOL": "/data/spool", "XDG_STATE_HOME": "/s"}, "/data/spool"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/infersiege/telemetry"),
        ({"HOME": "/h"}, "/h/.local/state/infersiege/telemetry"),
        # The XDG specification: a relative path is invalid and ignored; empty is as good as unset.
        ({"XDG_STATE_HOME": "state", "HOME": "/h"}, "/h/.local/state/infersiege/telemetry"),
        (
            {"XDG_STATE_HOME": "", "INFERSIEGE_TELEMETRY_SPOOL": "", "HOME": "/h"},
            "/h/.local/state/infersiege/telemetry",
        ),
    ],
)
def test_where_points_wait(environ: dict[str, str], directory: str) -> None:
    assert spool_directory(environ) == Path(directory)


def test_a_writers_directory_is_private_locked_and_knows_its_database_but_not_the_token(tmp_path: Path) -> None:
    directory, lock = spool.create(tmp_path / "spool", "gpu agent/1", TARGET, 7)
    assert directory.name == f"gpu_agent_1-{os.getpid()}-7"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert spool.claim(directory) is None, "it is ours"
    owner = spool.owner(directory)
    assert owner is not None
    assert owner.identity == TARGET.identity
    assert not any(b"secret" in path.read_bytes() for path in directory.iterdir())
    os.close(lock)
    taken = spool.claim(directory)
    assert taken is not None, "free when its owner is dead"
    os.close(taken)


@pytest.mark.parametrize("named_by", [None, "--spool"])
@pytest.mark.parametrize(("what", "seen"), [("a file", "is a file"), ("a file as parent", "Not a directory")])
def test_a_spool_that_cannot_be_is_one_clear_error_that_names_what_to_change(
    what: str, seen: str, named_by: str | None, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" if what == "a file" else tmp_path / "file" / "spool"
    with pytest.raises(AgentError) as caught:
        DurableWriter(TARGET, place, source="run", named_by=named_by).start()
    assert str(caught.value) == f"telemetry spool {place}: {seen}"
    assert f"set {named_by or 'INFERSIEGE_TELEMETRY_SPOOL'} to a directory" in (caught.value.hint or "")


def test_a_directory_that_was_removed_meanwhile_cannot_be_claimed(tmp_path: Path) -> None:
    assert spool.claim(tmp_path / "gone") is None
    (tmp_path / "file").write_text("")
    assert spool.claim(tmp_path / "file") is None


def test_an_abandoned_draft_is_removed_and_a_fresh_one_is_not(tmp_path: Path) -> None:
    for name in (".run-1-1", ".run-2-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json.tmp").write_text("{")
    os.utime(tmp_path / ".run-1-1", (1, 1))
    spool.remove_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".run-2-2"]


@pytest.mark.parametrize(
    ("names", "waiting", "rejected"),
    [
        ([], [], 0),
        (["000000000002-5.lp", "000000000010-3.lp", "000000000001-1.lp"], [1, 5, 3], 0),  # by sequence, not by name
        (["000000000001-2.bad", "000000000001-2.why"], [], 2),
        # Killed between setting lines aside and deleting the segment: it will be sent again, so it waits as a whole.
        (["000000000001-9.lp", "000000000001-2.bad"], [9], 0),
        (["000000000003.open", "meta.json", "lock", "status.json.tmp", "1-2.lp", "x.lp"], [], 0),
    ],
)
def test_the_names_of_the_files_are_the_accounts(
    names: list[str], waiting: list[int], rejected: int, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    found = spool.listing(tmp_path)
    assert [segment.points for segment in found.waiting] == waiting
    assert (found.spooled, found.rejected) == (sum(waiting), rejected)


LINES = st.lists(st.binary(min_size=1, max_size=12).map(lambda line: line.replace(b"\n", b"_") + b"\n"), max_size=6)


@given(LINES, st.data())
def test_whatever_a_killed_writer_left_open_its_whole_lines_are_recovered(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    content = b"".join(lines)
    cut = content[: data.draw(st.integers(0, len(content)))]
    (directory / "000000000004.open").write_bytes(cut)
    spool.recover(directory)
    spool.recover(directory)
    whole = cut.count(b"\n")
    found = spool.listing(directory).waiting
    assert [(segment.sequence, segment.points) for segment in found] == ([(4, whole)] if whole else [])
    assert b"".join(segment.path.read_bytes() for segment in found) == b"".join(lines[:whole])
    assert not list(directory.glob("*.open"))


def test_a_full_disk_takes_all_of_an_append_or_nothing(small_disk: Path) -> None:
    segment = spool.SegmentFile(small_disk, 0)
    line = b"x" * 999 + b"\n"
    appended = 0
    with pytest.raises(OSError, match="No space left") as caught:
        while appended < 1000:
            segment.append(line * 7, 7)
            appended += 7
    assert caught.value.errno == errno.ENOSPC
    assert 0 < segment.points == appended
    sealed = segment.seal()
    assert sealed is not None
    assert sealed.path.read_bytes() == line * appended


def test_lines_that_were_set_aside_twice_are_counted_once(tmp_path: Path) -> None:
    segment = spool.Segment(tmp_path, 3, 9)
    segment.path.write_bytes(b"")
    set_aside.set_aside(segment, [b"bad 1", b"bad 2", b"bad 3"], "first words")
    set_aside.set_aside(segment, [b"bad 1"], "field type conflict")
    segment.path.unlink()
    found = spool.listing(tmp_path)
    assert (found.waiting, found.rejected, found.set_aside_bytes) == ([], 1, 2 * spool.BLOCK_BYTES)
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / "000000000003-1.bad").read_bytes() == b"bad 1\n"
    assert (tmp_path / "000000000003-1.why").read_text() == "field type conflict\n"


@pytest.mark.parametrize("left", ["000000000001-2.lp", "000000000001-2.bad", "000000000001.open"])
def test_a_directory_with_points_is_not_removed(left: str, tmp_path: Path) -> None:
    directory, lock = spool.create(tmp_path, "run", TARGET, 1)
    (directory / left).write_text("")
    assert not spool.remove_finished(directory)
    (directory / left).unlink()
    (directory / "status.json").write_text(json.dumps({}))
    assert spool.remove_finished(directory)
    assert not list(tmp_path.iterdir())
    os.close(lock)


def test_the_disk_that_a_spool_takes_counts_blocks_of_all_others(tmp_path: Path) -> None:
    own, lock = spool.create(tmp_path, "run", TARGET, 1)
    other, other_lock = spool.create(tmp_path, "gpu", TARGET, 2)
    (own / "000000000000-1.lp").write_bytes(b"x" * 100_000)
    before = spool.disk_use(tmp_path, own)
    (other / "000000000000-1.lp").write_bytes(b"x")
    assert spool.disk_use(tmp_path, own) == before + spool.BLOCK_BYTES
    assert spool.disk_use(tmp_path / "nowhere", own) == 0
    os.close(lock)
    os.close(other_lock)


@pytest.mark.parametrize(
    ("name", "file", "why"),
    [
        ("other-1-2", "data.txt", "the name of a writer's directory, but no meta.json: not a writer's"),
        ("run-1-2", "notes.txt", "a writer's, but somebody put a file of theirs into it"),
        (".draft-1-2", "data.txt", "the name of a draft, with a file that no writer makes"),
        ("worker-spool", "journal.jsonl", "anything else that shares the directory"),
    ],
)
def test_what_others_keep_in_the_spool_is_left_alone(name: str, file: str, why: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / file).write_text("precious")
    if name == "run-1-2":
        (folder / "meta.json").write_text('{"url": "http://127.0.0.1:1", "org": "", "bucket": "infersiege"}')
    os.utime(folder, (0, 0))
    target = target_of("http://127.0.0.1:1")
    writer = DurableWriter(target, tmp_path, source="test")
    writer.start()
    writer.put(Point("m", {}, {"value": 1.0}, 1))
    writer.close(0.2)
    spool.remove_abandoned(tmp_path)
    for directory in spool.writers(tmp_path):
        spool.remove_finished(directory)
    assert (folder / file).read_text() == "precious", why
    assert name == "run-1-2" or not (folder / "lock").exists(), "nothing is put there either"


KILLED = (
    "import os, pathlib, sys\n"
    "from infersiege_agents.influx import DurableWriter, target_of\n"
    "from infersiege_agents.points import Point\n"
    "writer = DurableWriter(target_of(sys.argv[1]), pathlib.Path(sys.argv[2]), source='gpu', flush_every_s=3600)\n"
    "writer.start()\n"
    "for number in range(30):\n"
    "    writer.put(Point('stream', {}, {'value': number}, 10**18 + number))\n"
    "    if number == 19:\n        writer._flush(writer._clock())\n"
    "os.kill(os.getpid(), 9)\n"
)


def test_ig_01_what_a_killed_writer_had_in_memory_is_counted_by_the_next_one_once(tmp_path: Path) -> None:
    recorder = Recorder()
    try:
        killed = subprocess.run([sys.executable, "-c", KILLED, recorder.url, str(tmp_path)], check=False, timeout=30)
        assert killed.returncode == -9
        losses_told = []
        for _ in range(2):
            until(lambda: not any(spool.living(directory) for directory in spool.writers(tmp_path)))
            writer = DurableWriter(target_of(recorder.url), tmp_path, source="gpu", host="node-7")
            writer.start()
            counters = writer.close()
            losses_told.append((counters.lost_before, [line for line in writer.notices if "were lost" in line]))
            assert counters.written == counters.acknowledged == 1, "losses of others are not among its own points"
        lost = "10 points were lost when an earlier writer was killed: they were not on disk yet "
        assert losses_told == [(10, [lost + "(counted as lost_before in infersiege_writer)"]), (0, [])]
        told = [line for line in recorder.lines(b"infersiege_writer") if b"lost_before=10.0" in line]
        assert len(told) == 1
        assert told[0].startswith(b"infersiege_writer,host=node-7,source=gpu ")
        assert len(set(recorder.lines())) == 20
        assert not list(tmp_path.iterdir())
    finally:
        recorder.close()


def test_a_loss_in_a_directory_that_was_still_in_use_is_found_by_the_sender(tmp_path: Path) -> None:
    recorder = Recorder()
    target = target_of(recorder.url)
    directory, lock = spool.create(tmp_path, "gpu", target, 1)
    losses.CountsFile(directory).keep(written=9, dropped=2, sealed=3, opened=0)
    writer = DurableWriter(target, tmp_path, source="gpu", flush_every_s=0.05)
    try:
        writer.start()
        assert writer.counters().lost_before == 0
        assert directory.exists()
        os.close(lock)
        carry_on(writer, lambda: writer.counters().lost_before == 4)
        assert [line[:20] for line in writer.notices] == ["4 points were lost w"]
        assert not directory.exists()
    finally:
        writer.close()
        recorder.close()


@pytest.mark.parametrize(
    ("counts", "content", "expected", "why"),
    [
        ((10, 0, 4, 3, 0), b"a\nb\nc\n", 3, "what was in memory"),
        ((10, 0, 4, 1, 2), b"a\nb\nc\nd", 3, "killed in a write that had come to an end: the file says so"),
        ((10, 0, 4, 1, 2), b"a\nb", 5, "killed in a write that had not"),
        ((10, 6, 4, 0, 0), b"", 0, "dropped ones were counted by the writer itself"),
        ((10, 6, 7, 0, 0), b"", 0, "never less than none"),
    ],
)
def test_losses_by_the_moment_of_the_kill(
    tmp_path: Path, counts: tuple[int, int, int, int, int], content: bytes, expected: int, why: str
) -> None:
    file = losses.CountsFile(tmp_path)
    file.keep(*counts)
    file.close()
    (tmp_path / "000000000004.open").write_bytes(content)
    assert losses.lost(tmp_path) == expected, why
    (tmp_path / "000000000004.open").unlink()
    assert spool.remove_finished(tmp_path) is (losses.lost(tmp_path) == 0), "a loss that nobody told of stays"


def test_an_agents_writer_has_its_host_and_a_spool_that_cannot_be_is_told_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    outlet.add_options(parser)
    recorder = Recorder()
    try:
        directory, lock = spool.create(tmp_path / "spool", "gpu", target_of(recorder.url, bucket="infersiege"), 1)
        losses.CountsFile(directory).keep(written=9, dropped=2, sealed=3, opened=0)
        os.close(lock)
        words = ["--host", "node-7", "--influx-url", recorder.url]
        args = parser.parse_args([*words, "--spool", str(tmp_path / "spool")])
        outlet.open_outlet(args, source="gpu", environ={}).close(5)
        assert all(b",host=node-7," in line for line in recorder.lines(b"infersiege_writer"))
        assert "note: 4 points were lost when an earlier writer was killed" in capsys.readouterr().err
        (tmp_path / "file").write_text("")
        args = parser.parse_args([*words, "--spool", str(tmp_path / "file")])
        with pytest.raises(AgentError, match="is a file") as caught:
            outlet.open_outlet(args, source="gpu", environ={})
        assert "set --spool to" in (caught.value.hint or "")
    finally:
        recorder.close()
