"""A stream of points while the database, the sender, the writer or all of them fail: every point arrives in the end.

Several streams run at once, each with a database of its own and another fault. CI runs streams of 6 s with faults of
2 s. With INFERSIEGE_OUTAGE_STREAM_S=60 it is the real thing: 60,000 points, faults of 20 s, some two minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import databases
import pytest
import side_influx
from infersiege_agents.influx import DurableWriter, target_of

STREAM_S = int(os.environ.get("INFERSIEGE_OUTAGE_STREAM_S", "6"))
RATE = 1000
POINTS = STREAM_S * RATE
FAULT_S = STREAM_S / 3

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(STREAM_S + 110)]


class Producer:
    """A process that writes a stream of values."""

    def __init__(self, database_url: str, spool: Path, **orders: Any) -> None:
        self._progress = spool.parent / "progress"
        given = {
            "url": database_url, "spool": str(spool), "source": "run", "first": 0, "points": POINTS, "rate": RATE,
            "close_within_s": 10.0, "progress": str(self._progress), **orders,
        }  # fmt: skip
        command = [sys.executable, side_influx.__file__, json.dumps(given)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._spool = spool

    def result(self) -> dict[str, Any]:
        """What it says at its end. Printed, for the record of a full run."""
        said, errors = self.process.communicate(timeout=STREAM_S + 60)
        assert self.process.returncode == 0, errors
        assert errors == "", "the writer or its sender wrote to the user's terminal"
        found: dict[str, Any] = json.loads(said)
        print(self._spool.parent.name, found)
        return found

    def kill(self) -> int:
        """kill -9. The last value that it had put."""
        self.process.kill()
        self.process.communicate()
        return int(self._progress.read_bytes())

    def sender_pid(self) -> int | None:
        """Its sender, which is its only child; None while there is none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if children and "zombie" not in Path(f"/proc/{children[0]}/status").read_text():
            return int(children[0])
        return None


def arrived(influx: databases.InfluxDB) -> set[int]:
    """The distinct values in the database, checked against their instants."""
    series = influx.query('SELECT "value" FROM "stream"')
    rows = series[0]["values"] if series else []
    assert all(at_ns == side_influx.EPOCH_NS + value * 1000 for at_ns, value in rows), "an instant was changed"
    return {int(value) for _, value in rows}


def holds(result: dict[str, Any]) -> dict[str, int]:
    """The counters, once they are known to add up, and the caller known never to have waited."""
    counters: dict[str, int] = result["counters"]
    parts = sum(counters[name] for name in ("acknowledged", "rejected", "spooled", "dropped"))
    assert counters["written"] == parts
    assert result["in_memory"] == 0
    assert result["put_p99_us"] < 1000, "put waited for something"
    assert result["put_max_ms"] < 500
    assert result["lasted_s"] < STREAM_S + 2, "the stream was held up"
    assert result["close_s"] < 11.5
    return counters


def rest(database_url: str, spool: Path, within_s: float = 30.0) -> int:
    """Starts another writer until everything that waits is delivered. How many points that were."""
    writer = DurableWriter(target_of(database_url, token="secret"), spool, source="run")
    writer.start()
    ends = time.monotonic() + within_s
    while time.monotonic() < ends and any(spool.glob("*/*.lp")):
        writer.tick()
        time.sleep(0.1)
    counters = writer.close(10)
    assert counters.inherited == counters.spooled == 0, writer.problem
    return counters.taken_up


# ---------------------------------------------------------------------------------------------------- all at one moment

Story = Callable[[databases.InfluxDB, Path], None]


def at_once(stories: Sequence[Story], folder: Path, free_port: Callable[[], int]) -> None:
    """Each with a database and a folder of its own, in threads. Fails with the fault of each that fails."""
    servers: list[databases.InfluxDB] = []
    try:
        for story in stories:
            (folder / story.__name__).mkdir()
            servers.append(databases.InfluxDB(folder / story.__name__, free_port))
        with ThreadPoolExecutor(len(stories)) as threads:
            running = [
                threads.submit(story, server, folder / story.__name__)
                for story, server in zip(stories, servers, strict=True)
            ]
        for story, future in zip(stories, running, strict=True):
            if (error := future.exception()) is not None:
                error.add_note(f"in {story.__name__}")
        if failed := [error for future in running if isinstance(error := future.exception(), Exception)]:
            raise ExceptionGroup("streams that did not come through", failed)
    finally:
        for server in servers:
            server.close()


def every_point_arrives(influx: databases.InfluxDB, folder: Path, fault: Callable[[Producer], None]) -> None:
    producer = Producer(influx.url, folder / "spool")
    time.sleep(STREAM_S / 6)
    fault(producer)
    result = producer.result()
    counters = holds(result)
    assert counters["acknowledged"] == counters["written"], result
    assert arrived(influx) == set(range(POINTS))
    assert not any((folder / "spool").iterdir()), "nothing is left behind"
    assert result["problem"] is None


def killed_database(influx: databases.InfluxDB, folder: Path) -> None:
    def fault(_: Producer) -> None:
        influx.server.kill()
        time.sleep(FAULT_S)
        influx.server.start()

    every_point_arrives(influx, folder, fault)


def hung_database(influx: databases.InfluxDB, folder: Path) -> None:
    def fault(_: Producer) -> None:
        influx.server.freeze()
        time.sleep(FAULT_S)
        influx.server.thaw()

    every_point_arrives(influx, folder, fault)


def slow_database(influx: databases.InfluxDB, folder: Path) -> None:
    def fault(_: Producer) -> None:
        influx.gateway.delay_s = 1.0

    every_point_arrives(influx, folder, fault)


def killed_sender(influx: databases.InfluxDB, folder: Path) -> None:
    def fault(producer: Producer) -> None:
        """Whenever there is one, until half of the stream: the last one is to deliver."""
        ends = time.monotonic() + STREAM_S / 2
        while time.monotonic() < ends:
            if (pid := producer.sender_pid()) is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(STREAM_S / 40)

    killed: list[int] = []

    every_point_arrives(influx, folder, fault)
    assert killed
    print(f"{len(set(killed))} senders were killed")


def killed_writer(influx: databases.InfluxDB, folder: Path) -> None:
    """It loses its last second at most."""
    spool = folder / "spool"
    producer = Producer(influx.url, spool)
    time.sleep(STREAM_S / 6)
    influx.server.kill()  # so that the killed writer leaves a spool
    time.sleep(FAULT_S)
    last = producer.kill()
    influx.server.start()
    second = Producer(influx.url, spool, first=last + 1, points=POINTS - last - 1)
    result = second.result()
    holds(result)
    rest(influx.url, spool)
    missing = set(range(POINTS)) - arrived(influx)
    print(f"killed after value {last}: {len(missing)} of {POINTS} missing")
    assert missing == set(range(last + 1 - len(missing), last + 1)), "only the end of the killed stream is missing"
    assert len(missing) <= 1.5 * RATE
    assert result["counters"]["dropped"] == result["counters"]["rejected"] == 0
    assert not any(spool.iterdir())


def ended_in_an_outage(influx: databases.InfluxDB, folder: Path, *, patched: bool = False) -> None:
    """It says what waits, and the next start delivers it."""
    points = POINTS if not patched else 3 * RATE
    producer = Producer(influx.url, folder / "spool", close_within_s=3.0, gevent=patched, points=points)
    time.sleep(points / RATE * 2 / 3)
    influx.server.kill()
    result = producer.result()
    counters = holds({**result, "lasted_s": min(result["lasted_s"], STREAM_S)})
    assert result["close_s"] < 4
    assert counters["spooled"] > 0
    assert result["problem"] == f"{influx.url}: Remote end closed connection without response"
    influx.server.start()
    assert rest(influx.url, folder / "spool") == counters["spooled"]
    assert arrived(influx) == set(range(points))
    assert not any((folder / "spool").iterdir())


def ended_in_an_outage_under_gevent(influx: databases.InfluxDB, folder: Path) -> None:
    ended_in_an_outage(influx, folder, patched=True)


def test_ig_02_every_point_arrives_in_spite_of_faults(
    needs: Callable[[str | None], None], free_port: Callable[[], int], tmp_path: Path
) -> None:
    needs(databases.influx_missing())
    at_once([killed_database, hung_database, slow_database, killed_sender], tmp_path, free_port)


def test_ig_01_a_run_that_ends_in_an_outage_or_is_killed_leaves_its_points_to_the_next(
    needs: Callable[[str | None], None], free_port: Callable[[], int], tmp_path: Path
) -> None:
    needs(databases.influx_missing())
    at_once([ended_in_an_outage, ended_in_an_outage_under_gevent, killed_writer], tmp_path, free_port)
