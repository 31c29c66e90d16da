"""What a spool and its sender may take: disk, descriptors, the size of a request, the time of a call."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.influx import set_aside, spool, target_of
from infersiege_agents.influx.orders import Settings
from infersiege_agents.influx.pieces import read_piece
from infersiege_agents.influx.sender import MOST_TAKEN_UP
from infersiege_agents.influx.writer import SEGMENT_LINES, SET_ASIDE_SHARE
from infersiege_agents.points import Point
from influx_recorder import NOW_NS, Recorder, Writers, carry_on, files, leave, point


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Writers]:
    writers = Writers(tmp_path / "spool")
    yield writers
    writers.close()


def kept_aside(place: Path, *, started: int, segments: int = 1, size_bytes: int = 4096) -> Path:
    """A dead writer's directory with nothing but refused lines."""
    directory, lock = spool.create(place, "old", target_of("http://10.0.0.9:8086"), started)
    for sequence in range(segments):
        segment = spool.Segment(directory, sequence, 3)
        set_aside.set_aside(segment, [b"x" * (size_bytes // 2)] * 2, "unable to parse", durable=False)
    os.close(lock)
    return directory


# -------------------------------------------------------------------------------------------------------- refused lines


def test_refused_lines_have_an_eighth_of_the_spool_and_never_crowd_out_points(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    """They had no bound, and with 9.8 MB of them the next writer found its spool of 64 KiB full."""
    place = tmp_path / "spool"
    for started in range(1, 6):
        kept_aside(place, started=started, segments=10, size_bytes=40_000)
    recorder.always = (503, {}, b"")
    writer = make(recorder.url, spool_bytes=512 << 10)
    writer.start()
    carry_on(writer, lambda: len(files(place, "*.bad")) <= 1)
    for number in range(3000):
        writer.put(point(number))
    carry_on(writer, lambda: writer.counters().in_memory == 0)
    assert writer.counters().dropped == 0
    carry_on(writer, lambda: writer.problem == f"{recorder.url}: 503")
    use = sum(path.stat().st_blocks * 512 for pattern in ("*.bad", "*.why") for path in files(place, pattern))
    assert use <= (512 << 10) // SET_ASIDE_SHARE
    assert not (place / f"old-{os.getpid()}-1").exists(), "the oldest went first"


def test_a_writer_keeps_the_newest_of_its_own_refused_lines_and_counts_all(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    recorder.judge = lambda lines: (400, {}, b"unable to parse") if b"bad" in b"".join(lines) else None
    writer = make(recorder.url, flush_every_s=0.0, spool_bytes=8 * 20_000)
    writer.start()
    for number in range(12):
        writer.put(Point("bad", {"filler": "x" * 4000}, {"value": number}, NOW_NS + number))
        carry_on(writer, lambda number=number: writer.counters().rejected == number + 1)
    place = tmp_path / "spool"
    kept = b"".join(path.read_bytes() for path in files(place, "*.bad"))
    assert b"value=11.0" in kept and b"value=0.0" not in kept
    assert sum(path.stat().st_size for path in files(place, "*.bad")) <= 20_000
    assert len(files(place, "*.why")) == len(files(place, "*.bad"))
    counters = writer.close()
    assert (counters.rejected, counters.acknowledged, counters.dropped) == (12, counters.written - 12, 0)


def test_refused_lines_are_part_of_what_a_spool_may_take(recorder: Recorder, make: Writers) -> None:
    recorder.always = (503, {}, b"")
    writer = make(recorder.url, flush_every_s=0.0, memory_points=10, spool_bytes=80_000)
    writer.start()
    assert writer.directory is not None
    (writer.directory / "000000000999-2.bad").write_bytes(b"x" * 50_000)
    for number in range(1000):
        writer.put(point(number))
    assert writer.counters().dropped > 0
    assert spool.disk_use(writer.directory.parent, Path()) <= 80_000 + 4 * spool.BLOCK_BYTES  # lock, meta, status, log


@pytest.mark.parametrize("dies_at", ["forgotten.json", "000000000000-2.bad", "000000000001-2.why", None])
def test_a_kill_while_refused_lines_are_removed_miscounts_nothing(
    dies_at: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about to go is written down first, so that each line is in one account at every moment."""
    directory = kept_aside(tmp_path, started=1, segments=5)

    class KilledError(BaseException):
        pass

    unlink, replace = Path.unlink, Path.replace

    def killed_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == dies_at:
            raise KilledError
        unlink(path, missing_ok=missing_ok)

    def killed_replace(path: Path, to: Path) -> Path:
        if to.name == dies_at:
            raise KilledError
        return replace(path, to)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", killed_unlink)
        broken.setattr(Path, "replace", killed_replace)
        try:
            set_aside.forget_oldest(directory, 1 << 30, most_files=2)
        except KilledError:
            assert dies_at is not None
    assert spool.listing(directory).rejected == 10
    set_aside.forget_oldest(directory, 1 << 30, most_files=1)
    assert spool.listing(directory).rejected == 10
    assert [path.name for path in files(tmp_path, "*.bad")] == ["000000000004-2.bad"]


def test_refused_lines_and_a_directory_without_its_database_are_told_at_the_start(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    place = tmp_path / "spool"
    kept_aside(place, started=1)
    lost = leave(place, target_of(recorder.url), 9, started=2)
    (lost / "meta.json").write_text("")  # a power cut, before it was on the disk for good
    writer = make(recorder.url)
    writer.start()
    assert writer.notices == [
        f"9 points for a database that nobody knows any more (meta.json can't be read) wait in {place}: "
        "`infersiege-agent spool send` sends them to one that is named",
        f"2 points that a database refused for good lie in {place} (*.bad, with its words in *.why); `infersiege-agent "
        "spool drop --refused` deletes them",
    ]


@pytest.mark.parametrize(("fsync", "durable"), [("waiting", True), ("never", False)])
def test_refused_lines_are_on_the_disk_before_their_segment_is_deleted(
    fsync: str, durable: bool, recorder: Recorder, tmp_path: Path
) -> None:
    recorder.always = (400, {}, b"unable to parse")
    directory, lock = spool.create(tmp_path, "run", target_of(recorder.url), 1)
    segment = spool.SegmentFile(directory, 0)
    segment.append(b"stream value=1.0 1\n", 1)
    segment.seal()
    seen = subprocess.run(
        [sys.executable, "-c", SEEN, str(directory)],
        input=json.dumps({"fsync": fsync}) + "\nfinish 10\n",
        capture_output=True, text=True, timeout=30, check=True, pass_fds=(lock,),
    ).stdout.split()  # fmt: skip
    os.close(lock)
    synced = ["sync:000000000000-1.why.tmp", f"sync:{directory.name}", "sync:000000000000-1.bad.tmp"]
    assert [event for event in seen if event in synced] == (
        [synced[0], synced[1], synced[2], synced[1]] if durable else []
    )
    assert seen[-1 if not durable else 4] == "unlink:000000000000-1.lp"


SEEN = """
import os, sys
from pathlib import Path
fsync, unlink = os.fsync, Path.unlink
def synced(descriptor):
    print("sync:" + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), flush=True)
    fsync(descriptor)
def unlinked(path, missing_ok=False):
    print("unlink:" + path.name, flush=True)
    unlink(path, missing_ok=missing_ok)
os.fsync, Path.unlink = synced, unlinked
from infersiege_agents.influx.sender import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_new_directory_and_its_database_are_on_the_disk_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    directory, lock = spool.create(tmp_path / "spool", "run", target_of("http://10.0.0.9:8086"), 1)
    os.close(lock)
    assert synced == ["meta.json.tmp", f".{directory.name}", "spool"]


# ---------------------------------------------------------------------------------------------------------- descriptors


def test_more_dead_writers_than_a_process_has_descriptors_are_taken_up_the_oldest_first(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    """Each is a lock, which is a descriptor: with 1,100 of them the sender died of EMFILE, again and again."""
    place, target = tmp_path / "spool", target_of(recorder.url, token="secret")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    dead = 3 * MOST_TAKEN_UP
    for started in range(1, dead + 1):
        leave(place, target, 2, source=f"z{dead - started}", started=started)  # by name, the youngest comes first
    writer = make(target, settings=Settings(request_lines=60))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_TAKEN_UP + 40, hard))
    try:
        writer.start()
        carry_on(writer, lambda: len(set(recorder.lines(b"left"))) == 2 * dead)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    first = recorder.lines(b"left")[0]
    assert int(first.split(b"writer=")[1].split()[0]) <= MOST_TAKEN_UP
    counters = writer.close()
    assert (counters.taken_up, counters.inherited) == (2 * dead, 0)
    assert writer.problem is None
    assert not list(place.iterdir())


# ------------------------------------------------------------------------------------------------ requests and segments


class SlowLink:
    """A relay that passes on so many bytes per second to a database; one connection after the other."""

    def __init__(self, url: str, bytes_per_s: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._port)) as far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            threading.Thread(target=_copy, args=(far, near), daemon=True).start()
            step = max(1, self._bytes_per_s // 50)
            try:
                while data := near.recv(step):
                    far.sendall(data)
                    time.sleep(len(data) / self._bytes_per_s)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, to: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            to.sendall(data)
    except OSError:
        return


def test_a_link_too_slow_for_a_whole_segment_gets_it_in_parts(recorder: Recorder, make: Writers) -> None:
    """A request that is late was sent again as a whole, for ever, and nothing behind it was sent."""
    link = SlowLink(recorder.url, 20_000)
    rows = [os.urandom(40).hex() for _ in range(600)]  # does not compress well: about 30 kB, 1.5 s of this link
    writer = make(link.url, flush_every_s=60.0, settings=Settings(deadline_s=0.6, backoff_s=0.02, backoff_most_s=0.05))
    writer.start()
    for number, row in enumerate(rows):
        writer.put(Point("stream", {}, {"value": number, "text": row}, NOW_NS + number))
    writer._flush(0, seal=True)
    carry_on(writer, lambda: writer.counters().acknowledged >= 600)
    assert {int(line.split(b"value=")[1].split(b".")[0]) for line in recorder.lines()} == set(range(600))
    assert len(recorder.requests) >= 3
    assert writer.problem is None
    writer.close()
    link.close()


def test_a_server_that_takes_small_requests_only_is_given_small_ones(recorder: Recorder, make: Writers) -> None:
    """413 of a proxy: nothing is set aside, and it is asked for too much a few times only."""
    recorder.judge = lambda lines: (413, {}, b"<h1>413</h1>") if sum(map(len, lines)) > 20_000 else None
    writer = make(recorder.url, flush_every_s=60.0)
    writer.start()
    for number in range(3 * SEGMENT_LINES):
        writer.put(point(number))
    counters = writer.close()
    assert (counters.acknowledged, counters.rejected) == (3 * SEGMENT_LINES + 1, 0)
    too_large = [lines for _, _, lines in recorder.requests if sum(map(len, lines)) > 20_000]
    assert 1 <= len(too_large) <= 8


LINES = st.lists(st.binary(min_size=1, max_size=30).map(lambda line: line.replace(b"\n", b"_") + b"\n"), min_size=1)


@given(LINES, st.integers(1, 5), st.integers(1, 50))
def test_the_pieces_of_a_segment_are_the_segment(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], most_lines: int, most_bytes: int
) -> None:
    segment = spool.Segment(tmp_path_factory.mktemp("pieces"), 0, len(lines))
    segment.path.write_bytes(b"".join(lines))
    pieces = [read_piece(segment, 0, most_lines, most_bytes)]
    while not pieces[-1].last:
        pieces.append(read_piece(segment, pieces[-1].ends, most_lines, most_bytes))
    assert b"".join(piece.content for piece in pieces) == b"".join(lines)
    for piece in pieces:
        assert 1 <= piece.lines <= most_lines
        assert piece.content.endswith(b"\n")
        assert piece.lines == 1 or len(piece.content) <= most_bytes


def test_what_waited_for_a_full_disk_goes_there_in_segments_one_at_each_call(
    small_disk: Path, recorder: Recorder, make: Writers
) -> None:
    """All of memory was joined each second, and became one segment of 54 MB when there was room again."""
    recorder.always = (503, {}, b"")
    writer = make(recorder.url, spool=small_disk / "spool", flush_every_s=0.05)
    writer.start()
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"x" * 200_000)
    for number in range(3 * SEGMENT_LINES):
        writer.put(Point("s", {}, {"v": 1}, number))
    assert writer.counters().in_memory >= 2 * SEGMENT_LINES
    assert "No space left" in str(writer.problem)
    recorder.always = None
    ballast.unlink()
    before = writer.counters().in_memory
    time.sleep(0.1)
    writer.tick()
    assert 0 < before - writer.counters().in_memory <= SEGMENT_LINES
    carry_on(writer, lambda: len(recorder.lines(b"s ")) >= 3 * SEGMENT_LINES)
    assert writer.close().dropped == 0


def test_a_flush_onto_a_full_spool_takes_no_time_however_much_waits(recorder: Recorder, make: Writers) -> None:
    recorder.always = (503, {}, b"")
    now = [0.0]
    writer = make(recorder.url, spool_bytes=40_960, memory_points=100_000, clock=lambda: now[0], flush_every_s=1.0)
    writer.start()
    for number in range(100_000):
        writer.put(point(number))
    took = []
    for _ in range(20):
        now[0] += 1.0
        began = time.perf_counter()
        writer.tick()
        took.append(time.perf_counter() - began)
    assert writer.counters().in_memory > 90_000
    assert sorted(took)[10] < 0.01, "it joined 100,000 lines each time: 30 ms"
