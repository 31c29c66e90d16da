"""A stream of points while the database, the sender, the writer or all of them fail: every point arrives in the end.

CI runs streams of 9 s with faults of 3 s. With INFERSIEGE_OUTAGE_STREAM_S=60 it is the real thing: 60,000 points,
faults of 20 s, some eight minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import databases
import pytest
import side_influx
from infersiege_agents.influx import DurableWriter, target_of

STREAM_S = int(os.environ.get("INFERSIEGE_OUTAGE_STREAM_S", "9"))
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
        print(found)
        return found

    def kill(self) -> int:
        """kill -9. The last value that it had put."""
        self.process.kill()
        self.process.communicate()
        return int(self._progress.read_bytes())

    def sender_pid(self) -> int:
        """Its sender, which is its only child; waits for one that is about to be started again."""
        for _ in range(200):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and "zombie" not in Path(f"/proc/{children[0]}/status").read_text():
                return int(children[0])
            time.sleep(0.05)
        raise AssertionError("no sender for 10 s")


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


def killed_database(influx: databases.InfluxDB, _: Producer) -> None:
    influx.server.kill()
    time.sleep(FAULT_S)
    influx.server.start()


def hung_database(influx: databases.InfluxDB, _: Producer) -> None:
    influx.server.freeze()
    time.sleep(FAULT_S)
    influx.server.thaw()


def slow_database(influx: databases.InfluxDB, _: Producer) -> None:
    influx.gateway.delay_s = 1.0


def killed_sender(_: databases.InfluxDB, producer: Producer) -> None:
    for _round in range(3):
        os.kill(producer.sender_pid(), signal.SIGKILL)
        time.sleep(FAULT_S / 6)


Fault = Callable[[databases.InfluxDB, Producer], None]


@pytest.mark.parametrize("fault", [killed_database, hung_database, slow_database, killed_sender])
def test_ig_02_every_point_arrives_in_spite_of_a(fault: Fault, influx: databases.InfluxDB, tmp_path: Path) -> None:
    producer = Producer(influx.url, tmp_path / "spool")
    time.sleep(STREAM_S / 6)
    fault(influx, producer)
    result = producer.result()
    counters = holds(result)
    assert counters["acknowledged"] == counters["written"], result
    assert arrived(influx) == set(range(POINTS))
    assert not any((tmp_path / "spool").iterdir()), "nothing is left behind"
    assert result["problem"] is None


def test_ig_02_a_killed_writer_loses_its_last_second_at_most(influx: databases.InfluxDB, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
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


@pytest.mark.parametrize("patched", [False, True], ids=["plain", "gevent"])
def test_ig_01_a_run_that_ends_in_an_outage_says_what_waits_and_the_next_start_delivers_it(
    patched: bool, influx: databases.InfluxDB, tmp_path: Path
) -> None:
    points = POINTS if not patched else 3 * RATE
    producer = Producer(influx.url, tmp_path / "spool", close_within_s=3.0, gevent=patched, points=points)
    time.sleep(points / RATE * 2 / 3)
    influx.server.kill()
    result = producer.result()
    counters = holds({**result, "lasted_s": min(result["lasted_s"], STREAM_S)})
    assert result["close_s"] < 4
    assert counters["spooled"] > 0
    assert result["problem"] == f"{influx.url}: Remote end closed connection without response"
    influx.server.start()
    assert rest(influx.url, tmp_path / "spool") == counters["spooled"]
    assert arrived(influx) == set(range(points))
    assert not any((tmp_path / "spool").iterdir())
