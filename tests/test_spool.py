"""The spool: a closed record is on disk or acknowledged, whatever kills its writer; a full disk stops nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolated import isolated
from journals import read_journal
from swarm_rows import keys, open_turn, record

from infersiege.records import Segment, TurnRecord
from infersiege.swarm.spool import JournalLine, Spool, leftover_segments, remove_spool

decode_lines = msgspec.json.Decoder(TurnRecord).decode_lines


def rows_of(segment: Segment) -> list[TurnRecord]:
    return decode_lines(zlib.decompress(segment.data))


def left_in(directory: Path) -> list[TurnRecord]:
    return [row for _, lines in leftover_segments(directory) for row in decode_lines(lines)]


def test_segments_are_numbered_in_order_and_hold_every_row_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", "w")
    for turn in range(7):
        spool.add(record("a", turn))
        if turn % 3 == 2:
            spool.cut()
    spool.cut()
    segments = spool.unacknowledged()
    assert [segment.sequence for segment in segments] == [0, 1, 2]
    assert [segment.rows for segment in segments] == [3, 3, 1]
    assert {segment.worker for segment in segments} == {"w"}
    shipped = [row for segment in segments for row in rows_of(segment)]
    assert keys(shipped) == [("a", turn) for turn in range(7)]
    assert left_in(spool.directory) == shipped, "what is shipped is what a dead worker would have left"
    spool.close(remove=False)


def test_a_row_with_what_is_no_text_is_kept_as_text(tmp_path: Path) -> None:
    """Whoever let it in: a worker that raised here would lose the turn, and all that it held."""
    spool = Spool(tmp_path / "s", "w")
    odd = msgspec.structs.replace(record("a", detail="a\ud83d"), flags=("\udcff", "plain \U0001f600"))
    spool.add(odd)
    spool.add(record("a", 1))
    spool.journal(JournalLine(session_id="s\ud83d"))
    kept, whole = left_in(spool.directory)
    assert kept == msgspec.structs.replace(odd, error_detail="a\ufffd", flags=("\ufffd", "plain \U0001f600"))
    assert (whole, spool.rows_written, spool.disk_error) == (record("a", 1), 2, None)
    assert [line.session_id for line in read_journal(spool.directory)] == ["s\ufffd"]
    spool.close(remove=False)


def test_a_cut_without_rows_makes_no_segment(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", "w")
    spool.cut()
    spool.add(record("a"))
    spool.cut()
    spool.cut()
    assert [segment.sequence for segment in spool.unacknowledged()] == [0]
    spool.close(remove=False)


def test_more_than_ten_segments_come_back_in_order_of_number(tmp_path: Path) -> None:
    """segment-10 sorts before segment-2 by name."""
    spool = Spool(tmp_path / "s", "w")
    for turn in range(12):
        spool.add(record("a", turn))
        spool.cut()
    spool.close(remove=False)
    assert [sequence for sequence, _ in leftover_segments(spool.directory)] == list(range(12))
    assert keys(left_in(spool.directory)) == [("a", turn) for turn in range(12)]


@given(
    st.lists(st.sampled_from(("add", "cut", "acknowledge", "acknowledge again", "acknowledge unknown")), max_size=40)
)
def test_each_row_is_acknowledged_or_on_disk(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool") / "s", "w")
    added: list[tuple[str, int]] = []
    home: list[tuple[str, int]] = []
    acknowledged: list[int] = []
    for step in steps:
        match step:
            case "add":
                spool.add(record("a", len(added)))
                added.append(("a", len(added)))
            case "cut":
                spool.cut()
            case "acknowledge" if spool.unacknowledged():
                segment = spool.unacknowledged()[0]
                home += keys(rows_of(segment))
                acknowledged.append(segment.sequence)
                spool.acknowledge(segment.sequence)
            case "acknowledge again" if acknowledged:
                spool.acknowledge(acknowledged[-1])
            case "acknowledge unknown":
                spool.acknowledge(1000)
        assert home + keys(left_in(spool.directory)) == added
        assert spool.rows_written == len(added)
        assert spool.empty() == (home == added)
    spool.close(remove=False)


def test_an_empty_spool_is_removed_at_the_end_and_another_one_is_kept(tmp_path: Path) -> None:
    done, kept = Spool(tmp_path / "done", "w"), Spool(tmp_path / "kept", "w")
    for spool in (done, kept):
        spool.journal(JournalLine(session_id="a", taken=open_turn("a")))
        spool.add(record("a"))
        spool.cut()
    done.acknowledge(0)
    for spool in (done, kept):
        spool.close(remove=True)
    assert not done.directory.exists()
    assert keys(left_in(kept.directory)) == [("a", 0)]


def test_remove_spool_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    """It is called by the master about another process's directory: a surprise in it must not end the run."""
    (tmp_path / "segment-0.jsonl").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    remove_spool(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    remove_spool(tmp_path / "never there")


TORN = [
    (b"", 2, "killed between two rows"),
    (b'{"run_id":"r","wor', 2, "killed inside a row"),
    (b'{"run_id":"\xe4\xb8', 2, "killed inside a character"),
]


@pytest.mark.parametrize(("tail", "rows", "why"), TORN, ids=[why for *_, why in TORN])
def test_a_torn_last_line_is_left_out(tmp_path: Path, tail: bytes, rows: int, why: str) -> None:
    spool = Spool(tmp_path / "s", "w")
    spool.journal(JournalLine(session_id="a", taken=open_turn("a", 2)))
    for turn in range(2):
        spool.journal(JournalLine(session_id="a", started=turn))
        spool.add(record("a", turn))
    spool.close(remove=False)
    for name in ("segment-0.jsonl", "journal.jsonl"):
        with (spool.directory / name).open("ab") as file:
            file.write(tail)
    assert len(left_in(spool.directory)) == rows, why
    assert len(list(read_journal(spool.directory))) == 3


def test_a_file_that_is_only_a_torn_line_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "segment-4.jsonl").write_bytes(b'{"run_id"')
    assert list(leftover_segments(tmp_path)) == [(4, b"")]
    assert list(read_journal(tmp_path)) == []


# ------------------------------------------------------------------------------------------------------------ kill -9

WRITER = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from swarm_rows import open_turn, record
    from infersiege.swarm.spool import JournalLine, Spool
    spool = Spool(Path(sys.argv[2]), "w")
    turn = 0
    acknowledged = 0
    while True:
        spool.journal(JournalLine(session_id="a", started=turn))
        spool.add(record("a", turn, detail="x" * 2000))
        turn += 1
        os.write(1, b"closed %d\\n" % turn)
        if turn % 5 == 0:
            spool.cut()
        if turn % 20 == 0:
            rows = acknowledged + spool.unacknowledged()[0].rows
            os.write(1, b"home %d\\n" % rows)
            spool.acknowledge(spool.unacknowledged()[0].sequence)
            acknowledged = rows
""")


def told(lines: list[bytes], word: bytes) -> int:
    return max((int(line.split()[1]) for line in lines if line.startswith(word) and line.endswith(b"\n")), default=0)


def test_di_01_kill_minus_nine_loses_no_closed_row(tmp_path: Path) -> None:
    """What the writer said to have closed is acknowledged or on disk, whole, in order and once; six kills at random."""
    pick = random.Random(5)
    for number in range(6):
        directory = tmp_path / f"spool-{number}"
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(Path(__file__).parent), str(directory)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        said = [process.stdout.readline()]  # it has begun
        time.sleep(pick.uniform(0, 0.05))
        process.kill()
        said += process.stdout.read().splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        closed, home = told(said, b"closed"), told(said, b"home")
        on_disk = [turn for _, turn in keys(left_in(directory))]
        assert on_disk == list(range(on_disk[0], on_disk[0] + len(on_disk)))
        # Killed between two system calls it may have closed one more, or acknowledged without removing.
        assert set(range(home, closed)) <= set(on_disk), (home, closed, on_disk)
        assert on_disk[-1] <= closed
        started = [line.started for line in read_journal(directory)]
        assert started[:closed] == list(range(closed)) and len(started) <= closed + 1


# ---------------------------------------------------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(tmp_path: Path, needs: Callable[[str | None], None]) -> Iterator[Path]:
    """A file system of 16 KB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    needs("a small tmpfs can't be mounted (needs root)" if mounted.returncode else None)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk_keeps_every_row_in_memory(small_disk: Path) -> None:
    spool = Spool(small_disk / "s", "w")
    for turn in range(100):
        spool.journal(JournalLine(session_id="a", started=turn))
        spool.add(record("a", turn))
        if turn % 9 == 0:
            spool.cut()
    spool.cut()
    assert spool.disk_error is not None and "No space left" in spool.disk_error
    shipped = [row for segment in spool.unacknowledged() for row in rows_of(segment)]
    assert keys(shipped) == [("a", turn) for turn in range(100)]
    on_disk = keys(left_in(small_disk / "s"))
    assert on_disk and on_disk == keys(shipped)[: len(on_disk)], "what the disk took is whole rows"
    for segment in spool.unacknowledged():
        spool.acknowledge(segment.sequence)
    assert spool.empty()
    spool.close(remove=True)
    assert not spool.directory.exists()


def test_a_disk_that_has_room_again_is_not_written_after_half_a_line(small_disk: Path) -> None:
    """The filler goes away in the middle of a segment: a row glued to half a row would spoil the whole run for its
    reader."""
    filler = small_disk / "filler"
    spool = Spool(small_disk / "s", "w")
    spool.add(record("a", 0))
    spool.journal(JournalLine(session_id="a", started=0))
    try:
        filler.write_bytes(bytes(1 << 20))
    except OSError:
        assert filler.exists()
    for turn in range(1, 20):
        spool.journal(JournalLine(session_id="a", started=turn))
        spool.add(record("a", turn, detail="x" * 300))
    assert spool.disk_error is not None
    filler.unlink()
    for turn in range(20, 25):
        spool.journal(JournalLine(session_id="a", started=turn))
        spool.add(record("a", turn))
    on_disk = keys(left_in(spool.directory))
    assert on_disk == [("a", turn) for turn in range(len(on_disk))] and on_disk
    started = [line.started for line in read_journal(spool.directory)]
    assert started == list(range(len(started))) and started
    spool.cut()
    assert keys(rows_of(spool.unacknowledged()[0])) == [("a", turn) for turn in range(25)]
    spool.close(remove=False)


def test_a_file_size_limit_is_a_disk_error_like_any_other(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the kernel takes half a line, then says EFBIG (Python ignores SIGXFSZ)."""
    found = isolated("side_spool:write_under_a_file_size_limit", str(tmp_path / "s"), 10_000, 40)
    assert "File too large" in found["disk_error"]
    assert found["shipped"] == 40
    on_disk = keys(left_in(tmp_path / "s"))
    assert 0 < len(on_disk) < 40
    assert on_disk == [("a", turn) for turn in range(len(on_disk))]


def test_a_spool_without_descriptors_lives_in_memory(tmp_path: Path) -> None:
    """EMFILE: load with many sockets is when it happens."""
    found = isolated("side_spool:write_without_descriptors", str(tmp_path / "s"), 10)
    assert "Too many open files" in found["disk_error"]
    assert found["shipped"] == 10


def test_the_spool_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """It lies in a temporary directory that everybody can list, and error details quote servers."""
    spool = Spool(tmp_path / "s", "w")
    spool.add(record("a"))
    spool.close(remove=False)
    paths = list(spool.directory.iterdir())
    assert len(paths) == 2
    assert [path.name for path in paths if path.stat().st_mode & 0o077] == []
