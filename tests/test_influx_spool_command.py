"""`infersiege-agent spool list|send|drop`: the real command, over what dead and living writers left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import databases
import pytest
from infersiege_agents.influx import set_aside, spool, target_of
from influx_recorder import NOW_NS, Recorder, leave

GONE = "http://10.0.0.9:8086"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


def agent(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`infersiege-agent spool …` with its options in `words`."""
    command = [sys.executable, "-m", "infersiege_agents.cli", "spool", *words, "--spool", str(place)]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("INFERSIEGE_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def refused(directory: Path) -> None:
    set_aside.set_aside(spool.Segment(directory, 9, 3), [b"x"] * 3, "unable to parse")


def test_the_list_names_every_database_and_writer(tmp_path: Path) -> None:
    place = tmp_path / "spool"
    empty = agent(place, "list")
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, f"nothing waits in {place}\n", "")
    at = 1_764_500_000_000_000_000
    refused(leave(place, target_of(GONE, bucket="perf", org="lab"), 1200, started=at))
    lost = leave(place, target_of(GONE), 7, source="run", started=at + 1)
    (lost / "meta.json").write_text("")
    living, lock = spool.create(place, "engine", target_of(GONE, bucket="perf", org="lab"), at + 2)
    shown = agent(place, "list")
    os.close(lock)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        f"{GONE} (bucket perf, org lab)",
        f"      1,200 points wait, 3 refused  gpu-{os.getpid()}-{at}  (since 2025-11-30 10:53:20Z)",
        f"          0 points wait  {living.name}  (since 2025-11-30 10:53:20Z, in use)",
        "a database that nobody knows any more (meta.json can't be read)",
        f"          7 points wait  {lost.name}  (since 2025-11-30 10:53:20Z)",
        f"in {place}",
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["its address was wrong", "its address was lost"])
def test_points_for_a_wrong_address_are_sent_to_the_right_one(
    lost: bool, influx_server: databases.InfluxDB, tmp_path: Path
) -> None:
    place = tmp_path / "spool"
    left = leave(place, target_of(GONE, org="typo"), 4000, started=NOW_NS + 10 * lost)
    if lost:
        (left / "meta.json").write_text("")
    before = influx_server.count("left")
    done = agent(place, "send", "--influx-url", influx_server.url)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout == f"{influx_server.url}: 4,000 points sent\n"
    assert influx_server.count("left") - before == 4000
    assert not list(place.iterdir())


def test_of_several_databases_one_has_to_be_named(recorder: Recorder, tmp_path: Path) -> None:
    place = tmp_path / "spool"
    leave(place, target_of(GONE), 5, started=1)
    leave(place, target_of(GONE, bucket="other"), 6, started=2)
    leave(place, target_of("http://10.0.0.8:8086"), 7, started=3)
    vague = agent(place, "send", "--influx-url", recorder.url)
    assert vague.returncode == 2
    assert vague.stderr.startswith(f"error: points for 3 other databases wait: {GONE} (bucket infersiege); {GONE} (")
    wrong = agent(place, "send", "--influx-url", recorder.url, "http://10.0.0.7:8086")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (
        2, "error: http://10.0.0.7:8086: nothing waits under that name",
    )  # fmt: skip
    assert not recorder.lines(b"left")


def test_a_database_that_does_not_answer_changes_nothing(free_port: Callable[[], int], tmp_path: Path) -> None:
    place = tmp_path / "spool"
    left = leave(place, target_of(GONE), 5)
    meta = (left / "meta.json").read_bytes()
    failed = agent(place, "send", "--influx-url", f"http://127.0.0.1:{free_port()}")
    assert failed.returncode == 4
    assert "nobody listens there; nothing was changed" in failed.stderr
    assert (left / "meta.json").read_bytes() == meta


def test_points_of_a_living_writer_stay_for_its_database(influx_server: databases.InfluxDB, tmp_path: Path) -> None:
    place = tmp_path / "spool"
    living, lock = spool.create(place, "run", target_of(GONE), NOW_NS)
    segment = spool.SegmentFile(living, 0)
    segment.append(b"left,writer=living value=1.0 1\n", 1)
    segment.seal()
    dead = leave(place, target_of(GONE), 5, started=NOW_NS + 1)
    done = agent(place, "send", "--influx-url", influx_server.url, GONE + "/")
    kept = agent(place, "drop", "--yes")
    os.close(lock)
    assert done.returncode == 0
    assert done.stdout == f"{influx_server.url}: 5 points sent\n"
    assert f"note: {living.name} is in use: its 1 points are left for {GONE}" in done.stderr
    assert not dead.exists()
    assert kept.stdout == f"nothing to delete in {place}\n"
    assert spool.listing(living).spooled == 1


def test_what_the_database_refuses_is_told_and_no_success(influx_server: databases.InfluxDB, tmp_path: Path) -> None:
    place = tmp_path / "spool"
    influx_server.write(b"left,writer=7 value=1.0 7\n")
    directory, lock = spool.create(place, "run", target_of(GONE), 7)
    segment = spool.SegmentFile(directory, 0)
    segment.append(b'left,writer=7 value="text" 8\nleft,writer=7 value=2.0 9\n', 2)
    segment.seal()
    os.close(lock)
    done = agent(place, "send", "--influx-url", influx_server.url)
    assert done.returncode == 4
    assert done.stdout == f"{influx_server.url}: 1 points sent, 1 rejected (set aside in {place})\n"
    assert "field type conflict" in done.stderr


def test_nothing_is_dropped_without_yes_and_only_what_was_named(tmp_path: Path) -> None:
    place = tmp_path / "spool"
    one = leave(place, target_of(GONE), 5, started=1)
    other = leave(place, target_of("http://10.0.0.8:8086"), 7, started=2)
    refused(one)
    asked = agent(place, "drop", GONE)
    assert asked.returncode == 2
    assert asked.stderr == (
        f"error: 5 points that wait and 3 refused ones in 1 directories of {place} would be deleted\n"
        "hint: --yes does it\n"
    )
    done = agent(place, "drop", "--refused", "--yes")
    assert (done.returncode, done.stdout) == (0, "3 refused ones deleted\n")
    assert spool.listing(one).spooled == 4, "what waits is still there"
    done = agent(place, "drop", one.name, "--yes")
    assert (done.returncode, done.stdout) == (0, "5 points that wait deleted\n")
    assert not one.exists()
    assert other.exists()


def test_a_spool_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = agent(tmp_path / "file", "list")
    assert failed.returncode != 0
    assert failed.stderr.startswith(f"error: telemetry spool {tmp_path / 'file'}: Not a directory\nhint: ")
