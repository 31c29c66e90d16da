"""The intake of the master: each segment once, in order, acknowledged when it is on disk; a full disk loses nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_rows import Key, keys, record, run_in

from infersiege.errors import UnwrittenRowsError
from infersiege.records import Segment
from infersiege.rundir import RunDirectory
from infersiege.swarm.intake import Intake

encode = msgspec.json.Encoder().encode


def lines_of(rows: list[Key], worker: str = "w") -> bytes:
    return b"".join(encode(record(name, turn, worker=worker)) + b"\n" for name, turn in rows)


def segment(sequence: int, rows: list[Key], worker: str = "w") -> Segment:
    return Segment(worker=worker, sequence=sequence, rows=len(rows), data=zlib.compress(lines_of(rows, worker)))


def written(run: RunDirectory) -> list[Key]:
    return keys(list(run.read_turns()))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with run_in(tmp_path / "run") as made:
        yield made


class Acks:
    """Which sequences were acknowledged, and what was on disk at that moment."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.seen: list[int] = []

    def of(self, sent: Segment) -> Callable[[], None]:
        def acknowledge() -> None:
            on_disk = set(written(self.run))
            rows = msgspec.json.Decoder(dict).decode_lines(zlib.decompress(sent.data))
            assert {(row["session_id"], row["turn"]) for row in rows} <= on_disk, "acknowledged before it was written"
            self.seen.append(sent.sequence)

        return acknowledge


def test_a_segment_is_acknowledged_after_it_is_on_disk(run: RunDirectory) -> None:
    intake, acks = Intake(run), Acks(run)
    sent = segment(0, [("a", 0), ("a", 1)])
    intake.take(sent, acks.of(sent))
    assert acks.seen == [0]
    assert written(run) == [("a", 0), ("a", 1)]
    assert intake.rows_of == {"w": 2}
    assert intake.unwritten_rows == 0


@given(st.data())
def test_repeats_and_disorder_write_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Workers ship again what was not acknowledged in time; two workers count their sequences apart."""
    sent = [
        segment(number, [(f"{worker}-{number}", turn) for turn in range(2)], worker)
        for worker in ("w1", "w2")
        for number in range(3)
    ]
    arrivals = data.draw(st.lists(st.sampled_from(sent), max_size=15))
    with run_in(tmp_path_factory.mktemp("run") / "run") as run:
        intake, acks = Intake(run), Acks(run)
        for arrived in arrivals:
            intake.take(arrived, acks.of(arrived))
        first = list(dict.fromkeys((arrived.worker, arrived.sequence) for arrived in arrivals))
        assert written(run) == [(f"{worker}-{number}", turn) for worker, number in first for turn in range(2)]
        assert len(acks.seen) == len(arrivals), "a repeat is acknowledged again: the first acknowledgement may be lost"
        assert sum(intake.rows_of.values()) == 2 * len(first)
        assert intake.closed_turns(("w1", "w3")) == {
            "w1": {row for row in written(run) if row[0].startswith("w1")},
            "w3": set(),
        }


ROW = lines_of([("a", 0)])
BROKEN = [
    (b"", 1, "incomplete|cut", "nothing"),
    (b"\x78\x9c garbage", 1, "Error -3", "not deflate"),
    (zlib.compress(b"x" * 1000)[:-3], 1, "cut", "cut"),
    (zlib.compress(bytes(257 << 20), 1), 1, "too large", "a bomb: 257 MiB of zeros"),
    (zlib.compress(ROW[:-1]), 1, "its last row has no end", "a row without its end: it would be glued to the next one"),
    (zlib.compress(ROW + ROW[:9]), 1, "its last row has no end", "as many ends as it says, and half a row"),
    (zlib.compress(ROW), 2, "it says 2 rows and has 1", "fewer rows than it says: some would be missed in the balance"),
    (zlib.compress(ROW), 0, "it says 0 rows and has 1", "more rows than it says"),
    (zlib.compress(b""), 0, "its last row has no end", "no row at all"),
]


@pytest.mark.parametrize(("data", "rows", "why", "reason"), BROKEN, ids=[row[-1] for row in BROKEN])
def test_a_broken_segment_is_neither_written_nor_acknowledged(
    run: RunDirectory, data: bytes, rows: int, why: str, reason: str
) -> None:
    """It is told once, and the whole one, sent again, is taken."""
    said: list[tuple[str, str]] = []
    intake, acks = Intake(run, lambda worker, why: said.append((worker, why))), Acks(run)
    whole = segment(0, [("a", 0)])
    for sequence in (0, 0, 1):
        intake.take(Segment(worker="w", sequence=sequence, rows=rows, data=data), acks.of(whole))
    assert (acks.seen, intake.rows_of, written(run)) == ([], {}, []), reason
    assert len(said) == 1 and said[0][0] == "w" and re.search(f"^segment 0 of its records is none: .*{why}", said[0][1])
    intake.take(whole, acks.of(whole))
    assert (acks.seen, written(run)) == ([0], [("a", 0)])
    assert intake.refused["w"].missing == {1}
    intake.take_leftover("w", 1, lines_of([("a", 1)]))
    assert intake.refused["w"].missing == set(), "its spool had it whole: nothing is missing"


@given(st.lists(st.sampled_from([b"{}\n", b"\n", b"{", ROW, ROW[:-1]]), max_size=4), st.integers(0, 5))
def test_rows_of_two_segments_are_never_glued(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], rows: int
) -> None:
    """Whatever an authenticated worker calls a segment, the next one's rows are read as they were written."""
    with run_in(tmp_path_factory.mktemp("run") / "run") as run:
        intake, data = Intake(run), b"".join(parts)
        intake.take(Segment(worker="w", sequence=0, rows=rows, data=zlib.compress(data)), lambda: None)
        intake.take(segment(1, [("b", 0), ("b", 1)]), lambda: None)
        assert [row for row in written(run) if row[0] == "b"] == [("b", 0), ("b", 1)]
        assert intake.rows_of["w"] == 2 + (rows if "w" not in intake.refused else 0)


NO_TURNS = [
    b"{}",
    b"\xff",
    encode(msgspec.structs.replace(record("a", 2), due_ns=4_000_000_000 * 10**9)),
    encode(msgspec.structs.replace(record("a", 3), output_tokens=-1)),
]
"""What is no row, and rows that a report leaves out: of another century, and with what no turn can have."""


def with_damage() -> Segment:
    """Two turns, and between them what is none."""
    rows = [*lines_of([("a", 0)]).splitlines(), *NO_TURNS, *lines_of([("a", 1)]).splitlines()]
    data = b"".join(row + b"\n" for row in rows)
    return Segment(worker="w", sequence=0, rows=len(rows), data=zlib.compress(data))


def test_rows_that_are_none_are_no_closed_turns(run: RunDirectory) -> None:
    """Else the turn would have no record: no figure has these, and nobody would write another one."""
    intake = Intake(run)
    intake.take(with_damage(), lambda: None)
    assert intake.closed_turns(["w"]) == {"w": {("a", 0), ("a", 1)}}
    assert len(list(run.read_turns())) == 4 and len(list(run.read_turns(span=run.read_plan().span))) == 2


def test_a_leftover_that_came_by_message_is_not_written_again(run: RunDirectory) -> None:
    """The acknowledgement did not reach the worker before it died, so the segment is still in its spool."""
    intake, acks = Intake(run), Acks(run)
    sent = segment(0, [("a", 0)])
    intake.take(sent, acks.of(sent))
    intake.take_leftover("w", 0, lines_of([("a", 0)]))
    intake.take_leftover("w", 1, lines_of([("a", 1)]))
    intake.take_leftover("w", 2, b"")
    assert written(run) == [("a", 0), ("a", 1)]
    assert intake.rows_of == {"w": 2}


@pytest.fixture
def disk(tmp_path: Path, needs: Callable[[str | None], None]) -> Iterator[Path]:
    """A file system of 256 KB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    needs("a small tmpfs can't be mounted (needs root)" if mounted.returncode else None)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """No byte of room inside the block."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert "No space left" in str(error)
    yield
    filler.unlink()


def test_a_full_disk_makes_rows_wait_and_room_writes_them_once_in_order(disk: Path) -> None:
    with run_in(disk / "run") as run:
        intake, acks = Intake(run), Acks(run)
        sent = [segment(number, [(f"s{number}", turn) for turn in range(20)]) for number in range(4)]
        intake.take(sent[0], acks.of(sent[0]))
        before = written(run)
        with full(disk):
            for later in sent[1:]:
                intake.take(later, acks.of(later))
            intake.write([record("lost", 0)])
            intake.take(sent[1], acks.of(sent[1]))
            intake.retry()
            assert isinstance(intake.disk_error, UnwrittenRowsError)
            assert "no space left" in str(intake.disk_error)
            assert acks.seen == [0], "a row that waits in memory is not acknowledged, also when it comes again"
            # What the last block still took was taken back.
            assert written(run) == before
            assert intake.unwritten_rows == 61
            assert len(intake.closed_turns(["w"])["w"]) == 81, "rows that wait are closed all the same"
        intake.retry()
        assert acks.seen == [0, 1, 2, 3]
        assert written(run) == [(f"s{number}", turn) for number in range(4) for turn in range(20)] + [("lost", 0)]
        assert intake.unwritten_rows == 0
        assert intake.disk_error is not None, "the first failure is kept: the run says that it happened"
        intake.take(sent[2], acks.of(sent[2]))
        assert acks.seen[-1] == 2 and len(written(run)) == 81
        assert intake.rows_of == {"w": 80}


def test_rows_that_are_none_are_no_closed_turns_while_they_wait(disk: Path) -> None:
    with run_in(disk / "run") as run:
        intake = Intake(run)
        with full(disk):
            intake.take(with_damage(), lambda: None)
            assert intake.unwritten_rows == 6
            assert intake.closed_turns(["w"]) == {"w": {("a", 0), ("a", 1)}}


def test_the_next_segment_brings_what_waited_along(disk: Path) -> None:
    """Nobody has to call `retry`: room is noticed by the next append, and order is kept."""
    with run_in(disk / "run") as run:
        intake, acks = Intake(run), Acks(run)
        sent = [segment(number, [(f"s{number}", turn) for turn in range(20)]) for number in range(2)]
        with full(disk):
            intake.take(sent[0], acks.of(sent[0]))
        intake.take(sent[1], acks.of(sent[1]))
        assert acks.seen == [0, 1]
        assert [name for name, _ in written(run)] == ["s0"] * 20 + ["s1"] * 20


def test_rescue_moves_the_run_with_all_rows_to_where_there_is_room(disk: Path, tmp_path: Path) -> None:
    with run_in(disk / "run") as run:
        intake, acks = Intake(run), Acks(run)
        sent = [segment(number, [(f"s{number}", turn) for turn in range(20)]) for number in range(3)]
        intake.take(sent[0], acks.of(sent[0]))
        with full(disk):
            for later in sent[1:]:
                intake.take(later, acks.of(later))
            moved = intake.rescue()
        try:
            assert moved.path != run.path and moved.path.name == run.path.name
            assert written(moved) == [(f"s{number}", turn) for number in range(3) for turn in range(20)]
            assert moved.read_plan() == run.read_plan()
            assert intake.unwritten_rows == 0
            assert written(run) == [("s0", turn) for turn in range(20)], "the old directory is left as it is"
        finally:
            moved.close()
            shutil.rmtree(moved.path.parent)
