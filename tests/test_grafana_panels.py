"""Single panels on a real InfluxDB that holds points made for them: what real runs of a test never show."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databases
import pytest
from infersiege_agents import measurements
from infersiege_agents.measurements import Measurement
from infersiege_agents.points import Point, line_of

sys.path.append(str(Path(__file__).parents[1] / "grafana"))

from infersiege_grafana import files, queries
from infersiege_grafana.expand import Value
from infersiege_grafana.frames import Frame
from infersiege_grafana.look import Look, look_at

DASHBOARDS = {dashboard["uid"]: dashboard for dashboard in files.dashboards().values()}
SECOND_NS = 10**9
YEARS_AGO_S = 1_600_000_000
APART_S = 100 * 86_400
"""Between the times of two tests: further than any panel looks back."""
_places = itertools.count()


@dataclass(frozen=True)
class Past:
    """A stretch of time in the database that belongs to one test."""

    influx: databases.InfluxDB
    began_s: int

    def put(
        self, measurement: Measurement, tags: Mapping[str, str], at_s: float, fields: Mapping[str, float | str]
    ) -> None:
        """A point, `at_s` after the beginning. Tags that are not given are `all` (scenario, channel, stage) or `x`."""
        every = {name: "all" if name in ("scenario", "channel", "stage") else "x" for name in measurement.tags}
        assert set(tags) <= set(every) and set(fields) <= set(measurement.fields)
        point = Point(measurement.name, {**every, **tags}, fields, round((self.began_s + at_s) * SECOND_NS))
        self.influx.write(line_of(point))

    def look(self, uid: str, *, to_s: float, interval_ms: int = 1000, **chosen: Value) -> Look:
        """From the beginning to `to_s` after it."""
        from_ms, to_ms = self.began_s * 1000, round((self.began_s + to_s) * 1000)
        return look_at(
            DASHBOARDS[uid],
            self.influx.query,
            from_ms=from_ms,
            to_ms=to_ms,
            interval_ms=interval_ms,
            chosen={"run": "none", **chosen},
        )


@pytest.fixture
def past(influx_server: databases.InfluxDB) -> Iterator[Past]:
    yield Past(influx_server, YEARS_AGO_S + next(_places) * APART_S)


def values(frames: Iterable[Frame]) -> dict[str, list[Any]]:
    """Name of a series -> its values, without those that are absent."""
    return {
        name: [cell for cell in cells if cell is not None]
        for frame in frames
        for name, cells in frame.columns.items()
        if name != "Time"
    }


def rows(look: Look, title: str) -> list[dict[str, Any]]:
    """Rows of a table."""
    return [
        dict(zip(frame.columns, row, strict=True))
        for frame in look.shown(look.panel(title))
        for row in zip(*frame.columns.values(), strict=True)
    ]


# ------------------------------------------------------------------------------------------- engines of two hosts


def _two_engines(past: Past) -> None:
    for second in range(5):
        for host, waiting in (("rack-a", 0.0), ("rack-b", 30.0)):
            tags = {"host": host, "engine": "vllm", "instance": "127.0.0.1:8000"}
            fields = {
                "waiting": waiting, "running": 5.0, "kv_use": waiting / 100, "interval": 1.0, "preemptions": 0.0,
                "prefix_hits": 1.0, "prefix_queries": 2.0, "generated_tokens": 100.0 + waiting, "ttft_p50_ms": 20.0,
                "ttft_p95_ms": 50.0 + waiting,
            }  # fmt: skip
            past.put(measurements.ENGINE, tags, second, fields)


def test_two_hosts_with_one_instance_are_two_engines(past: Past) -> None:
    """Every host may have an engine at 127.0.0.1:8000: an idle one must not hide a full one."""
    _two_engines(past)
    look = past.look("infersiege-capacity", to_s=10)
    assert look.options["engine_host"] == ("rack-a", "rack-b")
    assert look.options["engine"] == ("127.0.0.1:8000",)
    queue = values(look.shown(look.panel("Queue in the engine")))
    assert set(queue["waiting rack-a 127.0.0.1:8000"]) == {0}
    assert set(queue["waiting rack-b 127.0.0.1:8000"]) == {30}
    cache = values(look.shown(look.panel("KV cache and prefix cache")))
    assert set(cache["KV use rack-b 127.0.0.1:8000"]) == {0.3}
    assert set(cache["prefix hits rack-a 127.0.0.1:8000"]) == {0.5}
    tokens = values(look.shown(look.panel("Output tokens, and time per token")))
    assert set(tokens["engine rack-a 127.0.0.1:8000"]) == {100}
    assert set(tokens["engine rack-b 127.0.0.1:8000"]) == {130}
    ttft = values(look.shown(look.panel("TTFT: what users feel, and what the server says")))
    assert set(ttft["server p95 (buckets) rack-a 127.0.0.1:8000"]) == {50}
    assert set(ttft["server p95 (buckets) rack-b 127.0.0.1:8000"]) == {80}


def test_one_of_two_engines_of_one_instance(past: Past) -> None:
    _two_engines(past)
    look = past.look("infersiege-capacity", to_s=10, engine_host=["rack-b"])
    for title in ("Queue in the engine", "KV cache and prefix cache"):
        names = set(values(look.shown(look.panel(title))))
        assert names and all("rack-b" in name for name in names), title


# ----------------------------------------------------------------------------------------------------- silent hosts


def _hosts(past: Past, *, silent_from_s: Mapping[str, int], to_s: int) -> None:
    for host, end_s in silent_from_s.items():
        for second in range(min(end_s, to_s)):
            fields: dict[str, float | str] = {"ok": 1.0, "gpus": 8.0, "gpus_expected": 8.0, "driver": "580.1"}
            past.put(measurements.GPU_HOST, {"host": host}, second, fields)


@pytest.mark.parametrize(
    ("silent_from_s", "seen", "reason"),
    [
        ({"rack-a": 60, "rack-b": 60}, 16, "both write to the end"),
        ({"rack-a": 60, "rack-b": 30}, 8, "one fell silent half a minute ago: its last word was that all is well"),
        ({"rack-a": 30, "rack-b": 20}, 0, "nobody is left, and that is 0, not an empty panel"),
        ({"rack-a": 60, "rack-b": 52}, 16, "8 s of silence are a slow agent"),
    ],
)
def test_gp_11_a_silent_host_is_not_counted_as_there(
    past: Past, silent_from_s: Mapping[str, int], seen: int, reason: str
) -> None:
    _hosts(past, silent_from_s=silent_from_s, to_s=60)
    look = past.look("infersiege-gpu", to_s=60)
    shown = values(look.shown(look.panel("Seen / expected")))
    assert shown["seen"][-1] == seen, reason
    assert shown["expected"][-1] == 16, reason


def test_gp_11_a_card_that_was_lost_at_the_end_is_not_seen(past: Past) -> None:
    _hosts(past, silent_from_s={"rack-a": 60}, to_s=59)
    past.put(measurements.GPU_HOST, {"host": "rack-a"}, 59, {"ok": 1.0, "gpus": 7.0, "gpus_expected": 8.0})
    look = past.look("infersiege-gpu", to_s=60)
    assert values(look.shown(look.panel("Seen / expected")))["seen"][-1] == 7


def test_gp_03_tables_of_latest_points_tell_their_age_and_no_older_value(past: Past) -> None:
    _hosts(past, silent_from_s={"rack-a": 60, "rack-b": 20}, to_s=60)
    card = {"host": "rack-a", "uuid": "GPU-1"}
    past.put(measurements.GPU, card, 10, {"ok": 1.0, "index": 3.0, "memory_total_bytes": 8e10})
    past.put(measurements.GPU, card, 11, {"ok": 0.0, "error_text": "GPU is lost"})
    look = past.look("infersiege-gpu", to_s=60)
    ages = {row["host"]: row["last point"] / 1e9 - past.began_s for row in rows(look, "Hosts, latest")}
    assert ages == {"rack-a": 59, "rack-b": 19}
    (lost,) = rows(look, "Cards, latest")
    assert (lost["read"], lost["error"], lost["memory"]) == (0, "GPU is lost", None)
    assert lost["last point"] / 1e9 - past.began_s == 11


# ------------------------------------------------------------------------------------------------------- compare


STEADY = {"run": 3.7, "baseline": 41.25}
"""Run -> when its steady phase begins, after the beginning. Intervals of the clock would be 10 s apart in phase."""


def _two_runs(past: Past, *, active: Mapping[str, range]) -> dict[str, str]:
    """Runs that send 6 turns in each active second since the steady start (rounded up to a whole one), and have no row
    for the others."""
    keys = {name: f"20200101T000000Z-{name}-{past.began_s}" for name in STEADY}
    for name, steady_s in STEADY.items():
        start: dict[str, float | str] = {
            "run_key": keys[name],
            "steady_started_ms": (past.began_s + steady_s) * 1000.0,
            "state": 1.0,
        }
        past.put(measurements.RUN, {"run": keys[name]}, 0, start)
        for second in active[name]:
            at_s = int(steady_s) + 1 + second
            fields = {"sent": 6.0, "ok": 6.0, "output_tokens": 60.0, "since_steady": at_s - steady_s}
            past.put(measurements.WINDOW, {"run": keys[name], "phase": "steady"}, at_s, fields)
    return keys


def _overlaid(past: Past, keys: Mapping[str, str], title: str) -> dict[str, list[tuple[float, float]]]:
    """Run -> (seconds since the steady start, rate)."""
    look = past.look("infersiege-compare", to_s=120, run=keys["run"], baseline=keys["baseline"], third="none")
    found = {}
    for frames in look.answers(look.panel(title)).values():
        for frame in frames:
            (name,) = set(frame.columns) - {"Time", "since steady start"}
            found[name] = list(zip(frame.columns["since steady start"], frame.columns[name], strict=True))
    return found


@pytest.mark.parametrize(("title", "rate"), [("Turns sent", 6), ("Turns that ended well", 6), ("Output tokens", 60)])
@pytest.mark.parametrize("length_s", [42, 45, 49, 50])
def test_ig_18_intervals_begin_at_each_runs_own_steady_start(past: Past, title: str, rate: int, length_s: int) -> None:
    """Wherever the clock stood: two equal runs give the same points. The 10 s in which the load ends are not drawn:
    they would look like a fall."""
    found = _overlaid(past, _two_runs(past, active=dict.fromkeys(STEADY, range(length_s))), title)
    assert set(found) == {"run", "baseline"}
    for points in found.values():
        assert [value for _, value in points] == [rate] * 4
    for (one, _), (other, _) in zip(found["run"], found["baseline"], strict=True):
        assert abs(one - other) < 1, "rows are at whole seconds, a steady start is not"


def test_ig_13_seconds_without_a_row_count_in_a_rate(past: Past) -> None:
    """A run that sends 6 turns each 5 s sends 1.2/s, not 6/s."""
    keys = _two_runs(past, active={"run": range(0, 50, 5), "baseline": range(50)})
    assert [value for _, value in _overlaid(past, keys, "Turns sent")["run"]] == [1.2] * 4


def test_a_run_that_goes_on_is_compared_as_far_as_it_came(past: Past) -> None:
    """And turns that end in the drain, or are due in it, do not make the load longer."""
    keys = _two_runs(past, active={"run": range(23), "baseline": range(50)})
    for phase, fields in (("steady", {"sent": 0.0, "ok": 6.0}), ("drain", {"sent": 6.0})):
        since = {"since_steady": 31.3}
        past.put(measurements.WINDOW, {"run": keys["run"], "phase": phase}, 35, {**fields, **since})
    found = _overlaid(past, keys, "Turns sent")
    assert [len(found[name]) for name in ("run", "baseline")] == [2, 4]


# ------------------------------------------------------------------------------------------------- shares and counts


def test_failed_share_is_of_turns_that_ended_by_themselves_and_of_the_scenario(past: Past) -> None:
    counts = {
        "all": {"ok": 70.0, "failed": 10.0, "cancelled": 100.0, "skipped": 50.0},
        "chat": {"ok": 70.0, "failed": 0.0, "cancelled": 100.0, "skipped": 50.0},
        "agent": {"ok": 0.0, "failed": 10.0, "cancelled": 0.0, "skipped": 0.0},
    }
    for scenario, fields in counts.items():
        past.put(measurements.WINDOW, {"run": "r", "phase": "steady", "scenario": scenario}, 1, fields)

    def share(scenario: str) -> list[Any]:
        look = past.look("infersiege-run", to_s=10, run="r", scenario=scenario)
        (found,) = values(look.shown(look.panel("Failed share"))).values()
        return found

    assert {name: share(name) for name in counts} == {"all": [0.125], "chat": [0], "agent": [1]}


def test_ig_01_points_that_were_refused_are_missing_too_and_each_host_has_its_own(past: Past) -> None:
    nothing = {"written": 100.0, "acknowledged": 100.0, "spooled": 0.0, "rejected": 0.0, "dropped": 0.0}
    masters = {"load-1": nothing, "load-2": {**nothing, "spooled": 20.0, "rejected": 3.0, "dropped": 1.0}}
    for host, fields in masters.items():
        past.put(measurements.WRITER, {"host": host, "source": "run"}, 1, fields)
    past.put(measurements.WRITER, {"host": "load-1", "source": "gpu"}, 1, {**nothing, "dropped": 7.0})
    look = past.look("infersiege-run", to_s=10)
    assert values(look.shown(look.panel("Points missing"))) == {"load-1": [0], "load-2": [24]}
    assert look.panel("Points missing")["options"]["textMode"] == "value_and_name"
    assert {(row["host"], row["source"], row["dropped"]) for row in rows(look, "Writers")} == {
        ("load-1", "run", 0), ("load-2", "run", 1), ("load-1", "gpu", 7),
    }  # fmt: skip


def test_energy_per_token_is_of_the_tokens_that_arrived(past: Past) -> None:
    """Long answers end all at once: their tokens belong to the seconds in which they came."""
    for second in range(10):
        past.put(measurements.GPU, {"host": "h", "uuid": "GPU-1"}, second, {"energy_j": 400.0, "ok": 1.0})
        ended = 4000.0 if second == 9 else 0.0
        fields = {"tokens": 200.0, "output_tokens": ended}
        past.put(measurements.WINDOW, {"run": "r", "phase": "steady"}, second, fields)
        past.put(measurements.GPU, {"host": "h", "uuid": "GPU-1"}, 10 + second, {"energy_j": 400.0, "ok": 1.0})
        past.put(measurements.WINDOW, {"run": "r", "phase": "steady"}, 10 + second, {"tokens": 100.0})
    look = past.look("infersiege-gpu", to_s=20, run="r")
    assert values(look.shown(look.panel("Energy per output token"))) == {"energy per output token": [2, 4]}


@pytest.mark.parametrize("interval_ms", [1_000, 10_000, 60_000])
def test_faults_are_counted_and_not_a_rate(past: Past, interval_ms: int) -> None:
    """Each event is in one bar, whatever the width of the bars, and the panel's words say so."""
    for second in (3, 4, 14):
        past.put(measurements.GPU, {"host": "h", "uuid": "GPU-1"}, second, {"ok": 1.0, "xid_count": 1.0})
    look = past.look("infersiege-gpu", to_s=20, interval_ms=interval_ms)
    panel = look.panel("Faults")
    assert sum(values(look.shown(panel))["Xid h GPU-1"]) == 3
    assert "per bar" in panel["description"] and "per second" not in panel["description"]


def test_a_silent_agent_is_silent_after_as_long_as_the_words_say() -> None:
    (panel,) = [one for one in DASHBOARDS["infersiege-gpu"]["panels"] if one["title"] == "Seen / expected"]
    assert f"last {queries.LAST_S} s" in panel["description"]
