"""`infersiege run` with a real InfluxDB: what it says is what the run directory says, and no outage reaches the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import databases
import fake_nvml
import pytest
from infersiege_agents import measurements
from siege import START_S, Ran, Running, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Phase
from infersiege.rundir import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.alone]

END_S = 15.0
"""From the end of the load to the end of the process, whatever the database does."""
LOAD = 'mode = "closed"\nusers = 4\nramp = "0s"\nwarmup = "1s"\ndrain = "2s"'
TWO = """
[[workload]]
scenario = "chat"
trace = "builtin:short-qa"
language = "zh"
"""
SLO = '[[slo]]\nmetric = "ttft"\nstat = "p95"\nmax = "2s"\n'


@pytest.fixture
def emulator() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "20") as process:
        yield process


@pytest.fixture
def watched(siege: Siege, tmp_path: Path) -> Siege:
    """Runs whose spool is the test's own."""
    siege.environment["INFERSIEGE_TELEMETRY_SPOOL"] = str(tmp_path / "points")
    return siege


def telemetry(url: str, more: str = "") -> str:
    return f'[telemetry]\ninflux_url = "{url}"\n{more}\n'


def plan(emulator: EmulatorProcess, url: str, *, run: str = 'duration = "3s"', more: str = "") -> str:
    return plan_text(emulator.base_url, load=LOAD, run=run, more=telemetry(url, more) + SLO)


def rows(influx: databases.InfluxDB, measurement: str, where: str = "") -> list[dict[str, Any]]:
    """Every point: columns that are not null."""
    found = influx.query(f'SELECT * FROM "{measurement}" {where}')
    return [
        {name: value for name, value in zip(series["columns"], values, strict=True) if value is not None}
        for series in found
        for values in series["values"]
    ]


def of_run(influx: databases.InfluxDB, ran: Ran, measurement: str, more: str = "") -> list[dict[str, Any]]:
    return rows(influx, measurement, f"WHERE \"run\" = '{ran.plan.run_key}' {more}")


def whole(influx: databases.InfluxDB, ran: Ran) -> dict[str, Any]:
    """The row of the whole run."""
    (row,) = of_run(influx, ran, "infersiege_run", "AND \"scenario\" = 'all' AND \"channel\" = 'all' AND stage = 'all'")
    return row


def seconds_after_load(ran: Ran, ended_at: float) -> float:
    """From the end of the load (its event) to `ended_at` (wall clock)."""
    (event,) = [event for event in ran.events if event.kind == "load_ended"]
    return ended_at - event.at_ns / 1e9


def wait(running: Running, within_s: float = 60.0) -> tuple[Ran, float]:
    """(the run, seconds from the end of its load to its own)."""
    ran = running.wait(within_s)
    return ran, seconds_after_load(ran, time.time())


def until_event(running: Running, kind: str, within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    path = running.path / "events.jsonl"
    while time.monotonic() < deadline:
        if path.exists() and f'"{kind}"' in path.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise AssertionError(f"no {kind} within {within_s} s:\n{running.output()}")


def until(running: Running, holds: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert running.process.poll() is None and time.monotonic() < deadline, running.output()
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------- the same figures


def test_the_database_has_the_figures_of_the_run_directory(watched: Siege, influx_server: databases.InfluxDB) -> None:
    """Two scenarios, two workers, failures: `infersiege_run` to the last digit, seconds to the last turn."""
    influx = influx_server
    with EmulatorProcess("--output-tokens", "20", "--fault", "reset_after=3", "--fault-every", "9") as emulator:
        text = plan_text(emulator.base_url, load=LOAD, run='duration = "5s"', more=TWO + telemetry(influx.url) + SLO)
        ran = watched.run(text, "--workers", "2")
    check_conserved(ran)
    summary, key = ran.summary, ran.plan.run_key
    assert len(summary.groups) == 3
    for group in summary.groups:
        scenario = group.scenario or "all"
        where = f"AND \"scenario\" = '{scenario}' AND stage = 'all'"
        row, of_channel = sorted(of_run(influx, ran, "infersiege_run", where), key=lambda one: str(one["channel"]))
        assert of_channel == row | {"channel": "target"}, "the only channel is all of them, whatever is chosen"
        for metric in measurements.RUN_METRICS:
            for stat in measurements.RUN_STATS:
                assert row.get(f"{metric}_{stat}_ms") == getattr(group.distributions[metric], stat)
            assert row[f"{metric}_n"] == group.distributions[metric].n
        for name in measurements.RUN_RATES:
            assert row.get(name) == group.rates[name]
        for name in ("started", "ok", "failed", "cancelled", "lost", "skipped"):
            assert row[f"turns_{name}"] == getattr(group.counts, name)
        assert row["verdict"] == (summary.verdict and summary.verdict.value)
        assert row["exit_code"] == summary.exit_code == ran.code
    turns = ran.turns
    assert sum(turn.outcome.value == "failed" for turn in turns) > 0
    for scenario in ("all", "short-qa", "chat"):
        where = f"AND \"scenario\" = '{scenario}' AND \"channel\" = 'all'"
        mine = [turn for turn in turns if scenario in ("all", turn.scenario)]
        seconds = of_run(influx, ran, "infersiege_window", where)
        for name in ("ok", "failed", "cancelled"):
            assert sum(row[name] for row in seconds) == sum(turn.outcome.value == name for turn in mine)
        assert sum(row["chunks"] for row in seconds) == sum(turn.chunks for turn in mine)
        assert {row["phase"] for row in seconds} <= {phase.value for phase in Phase}
        steady = [row for row in seconds if row["phase"] == "steady"]
        (group,) = [one for one in summary.groups if one.scenario == (None if scenario == "all" else scenario)]
        good = group.rates["goodput"]
        assert good is not None
        assert sum(row["good"] for row in steady) == round(good * group.steady_duration_ns / 1e9)
        last = max(steady, key=lambda row: int(row["time"]))
        for metric in ("ttft", "tpot", "e2e"):
            found = group.distributions[metric]
            assert last[f"{metric}_n_stage"] == found.n
            assert last[f"{metric}_p95_stage_ms"] == pytest.approx(found.p95, rel=0.01)
    errors = of_run(influx, ran, "infersiege_error", "AND \"scenario\" = 'all' AND \"channel\" = 'all'")
    assert sum(row["count"] for row in errors) == summary.counts.failed
    kinds = [(row["time"], row["kind"], row["detail"]) for row in of_run(influx, ran, "infersiege_event")]
    assert kinds == [(event.at_ns, event.kind, event.detail) for event in sorted(ran.events, key=lambda e: e.at_ns)]
    assert [kind for _, kind, _ in kinds] == ["stage_started", "steady_started", "load_ended"]
    live = of_run(influx, ran, "infersiege_live")
    assert sum(row["started"] for row in live) == summary.counts.started
    assert sum(row["closed"] for row in live) == summary.counts.planned
    assert (live[-1]["sessions"], live[-1]["users_asked"], live[-1]["workers_expected"]) == (0, 0, 2)
    assert {row["worker"] for row in of_run(influx, ran, "infersiege_client")} == {"worker-1", "worker-2"}
    check_table(influx, key)


def check_table(influx: databases.InfluxDB, key: str) -> None:
    """Nothing is in the database that the one table does not name, and ids are in no tag."""
    for name in ("infersiege_window", "infersiege_error", "infersiege_live", "infersiege_client", "infersiege_run"):
        table = measurements.MEASUREMENTS[name]
        for row in rows(influx, name, f"WHERE \"run\" = '{key}'"):
            assert row.keys() - {"time"} <= {*table.tags, *table.fields}
            assert set(table.tags) <= row.keys()


@contextmanager
def agents_elsewhere(
    influx: databases.InfluxDB, emulator: EmulatorProcess, folder: Path, library: Path
) -> Iterator[None]:
    """A GPU and an engine agent that nobody but the database tells the run of."""
    environ = fake_nvml.Control(folder / "nvml.conf").environ(library)
    base = [sys.executable, "-m", "infersiege_agents.cli"]
    write = ["--influx-url", influx.url, "--spool", str(folder / "agents")]
    commands = [
        [*base, "gpu", "--host", "gpu-box", *write],
        [*base, "engine", "--url", f"http://127.0.0.1:{emulator.port}/metrics", *write],
    ]
    running = [subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def test_ig_01_what_became_of_the_points_is_kept_and_agents_elsewhere_are_in_the_summary(
    watched: Siege,
    emulator: EmulatorProcess,
    influx_server: databases.InfluxDB,
    needs: Callable[[str | None], None],
    tmp_path: Path,
) -> None:
    """Everything is acknowledged before the process ends. The run itself samples nothing: what limited it comes out of
    the database, into the run directory and into its rows, now and after a rebuild. The token ends in a new line."""
    needs(fake_nvml.compiler_missing())
    influx = influx_server
    watched.environment["THE_TOKEN"] = "geheim-4711\n"
    text = plan(emulator, influx.url, more='influx_token_env = "THE_TOKEN"\nhosts = ["gpu-box"]')
    with agents_elsewhere(influx, emulator, tmp_path, fake_nvml.compile_library(tmp_path / "nvml")):
        ran = watched.run(text)
    check_passed(ran)
    account = ran.summary.telemetry
    assert account is not None and account == ran.plan.telemetry
    assert account.written == account.acknowledged > 50
    assert (account.rejected, account.spooled, account.dropped, account.problem) == (0, 0, 0, None)
    assert f"influxdb {influx.url}: {account.written:,} points written, {account.written:,} ack" in ran.out
    assert list(Path(account.spool).iterdir()) == []

    (stage,) = ran.summary.resources
    assert (stage.gpus, stage.gpus_lost) == (2, ())
    assert stage.energy_j is not None and stage.kv_use_peak is not None
    assert not [warning for warning in ran.summary.warnings if "series" in warning]
    row = whole(influx, ran)
    for column in measurements.RESOURCES:
        assert row.get(column.name) == getattr(stage, column.name), column.name

    before = (ran.path / "summary.json").read_bytes()
    assert watched.command("report", str(ran.path))[0] == 0
    assert (ran.path / "summary.json").read_bytes() == before
    influx.query(f"DELETE FROM infersiege_run WHERE \"run\" = '{ran.plan.run_key}'", method="POST")
    code, said = watched.command("report", str(ran.path), "--with-telemetry")
    assert code == 0 and "rows of infersiege_run written again" in said, said
    assert (ran.path / "summary.json").read_bytes() == before
    assert whole(influx, ran) == row

    assert "geheim" not in ran.out + said
    for file in (*ran.path.rglob("*"), *(tmp_path / "points").rglob("*")):
        assert file.is_dir() or b"geheim" not in file.read_bytes(), file


# ---------------------------------------------------------------------------------------------------------- outages


def test_ig_02_nothing_listens_and_the_run_does_not_notice(
    watched: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    ran, after_s = wait(watched.start(plan(emulator, f"http://127.0.0.1:{free_port()}")))
    check_passed(ran)
    check_conserved(ran)
    assert after_s < END_S
    account = ran.summary.telemetry
    assert account is not None and account.problem is not None
    assert (account.acknowledged, account.dropped) == (0, 0)
    assert account.spooled == account.written > 50
    (early,) = [number for number, line in enumerate(ran.out.splitlines()) if "does not take points: " in line]
    (late,) = [number for number, line in enumerate(ran.out.splitlines()) if line.startswith("run directory: ")]
    assert early < late, "it is told while the run goes on"
    (line,) = [line for line in ran.out.splitlines() if line.startswith("influxdb ")]
    assert f"{account.spooled:,} wait in {account.spool}" in line and "the next run" in line
    assert "Traceback" not in ran.out


def test_what_an_outage_kept_is_delivered_by_the_next_run(
    watched: Siege, emulator: EmulatorProcess, influx: databases.InfluxDB
) -> None:
    influx.server.kill()
    first, after_s = wait(watched.start(plan(emulator, influx.url)))
    check_passed(first)
    assert after_s < END_S
    account = first.summary.telemetry
    assert account is not None and account.spooled == account.written
    influx.server.start()
    second = watched.run(plan(emulator, influx.url, run='duration = "2s"'))
    check_passed(second)
    assert f"{account.spooled:,} of earlier runs delivered" in second.out
    for ran in (first, second):
        row = whole(influx, ran)
        assert (row["state"], row["ttft_p50_ms"]) == (1, ran.summary.groups[0].distributions["ttft"].p50)
        seconds = of_run(influx, ran, "infersiege_window", "AND \"scenario\" = 'all' AND \"channel\" = 'all'")
        assert sum(row["ok"] for row in seconds) == ran.summary.counts.ok


@pytest.mark.truth
def test_a_database_that_hangs_makes_no_turn_late(
    watched: Siege, emulator: EmulatorProcess, influx: databases.InfluxDB
) -> None:
    """SIGSTOP for the whole second half of a run, its end included."""
    load = 'mode = "open"\nrate = 40\narrivals = "constant"\nwarmup = "1s"\ndrain = "2s"'
    without = watched.run(plan_text(emulator.base_url, load=load, run='duration = "5s"'))
    assert "influxdb" not in without.out and without.summary.telemetry is None, "its plan says nothing of it"
    text = plan_text(emulator.base_url, load=load, run='duration = "5s"', more=telemetry(influx.url))
    running = watched.start(text)
    until_event(running, "steady_started")
    influx.server.freeze()
    ran, after_s = wait(running)
    influx.server.thaw()
    assert after_s < END_S
    check_passed(ran)
    check_conserved(ran)
    calm, hung = (one.summary.groups[0].distributions["lateness"].p99 for one in (without, ran))
    assert calm is not None and hung is not None
    assert hung <= 1.2 * calm + 1.0, "ms"
    account = ran.summary.telemetry
    assert account is not None and account.spooled > 0
    assert account.written == account.acknowledged + account.spooled


def test_a_master_that_is_killed_while_it_hands_over_leaves_a_whole_run(
    watched: Siege, emulator: EmulatorProcess, influx: databases.InfluxDB
) -> None:
    """Summary and report are there before anybody waits for the database."""
    running = watched.start(plan(emulator, influx.url, run='duration = "2s"'))
    until_event(running, "load_ended")
    influx.server.freeze()
    until(running, (running.path / "report.html").exists)
    time.sleep(0.5)
    assert running.process.poll() is None, "it waits for the database"
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    influx.server.thaw()
    run = RunDirectory.open(running.path)
    summary, before = run.read_summary(), (running.path / "summary.json").read_bytes()
    assert summary.invalid == () and summary.counts.ok > 0 and run.read_plan().ended_ns is not None
    assert run.report_path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert watched.command("report", str(running.path))[0] == 0
    assert (running.path / "summary.json").read_bytes() == before


def test_a_database_that_refuses_is_told_but_is_no_failure(
    watched: Siege, emulator: EmulatorProcess, influx: databases.InfluxDB
) -> None:
    """A wrong type, a point out of retention: those points are set aside, and the summary warns."""
    body = b'{"code":"unprocessable entity","message":"field type conflict"}'
    influx.gateway.answer = (422, {"content-type": "application/json"}, body)
    ran, after_s = wait(watched.start(plan(emulator, influx.url)))
    check_passed(ran)
    assert after_s < END_S
    account = ran.summary.telemetry
    assert account is not None and account.rejected > 0
    assert account.written == account.rejected + account.spooled, "it may still be looking for the point that is wrong"
    (warning,) = [warning for warning in ran.summary.warnings if "refused" in warning]
    assert f"{account.rejected:,} of {account.written:,} points" in warning and account.spool in warning
    assert warning in ran.plan.warnings


def test_a_spool_that_cannot_be_used_is_a_warning(
    siege: Siege, emulator: EmulatorProcess, influx_server: databases.InfluxDB, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    siege.environment["INFERSIEGE_TELEMETRY_SPOOL"] = str(tmp_path / "file")
    ran = siege.run(plan(emulator, influx_server.url))
    check_passed(ran)
    (warning,) = [warning for warning in ran.summary.warnings if "InfluxDB" in warning]
    assert str(tmp_path / "file") in warning
    assert ran.out.index(f"warning: {warning}") < ran.out.index("run directory: "), "told before the load"
    assert ran.summary.telemetry is None


# -------------------------------------------------------------------------------------------------------- odd ends


def test_ctrl_c_ends_the_run_in_the_database_too(
    watched: Siege, emulator: EmulatorProcess, influx_server: databases.InfluxDB
) -> None:
    running = watched.start(plan(emulator, influx_server.url, run='duration = "60s"'))
    running.until('"phase":"steady"')
    running.interrupt()
    ran, after_s = wait(running)
    assert ran.code == 130
    assert after_s < END_S
    row = whole(influx_server, ran)
    assert (row["state"], row["exit_code"]) == (1, 130)
    assert row["turns_ok"] == ran.summary.groups[0].counts.ok
    assert [event["kind"] for event in of_run(influx_server, ran, "infersiege_event")][-1] == "load_ended"


def test_a_run_that_had_to_move_has_its_last_word_in_the_database(
    watched: Siege, emulator: EmulatorProcess, influx_server: databases.InfluxDB, small_disk: Path
) -> None:
    """The run directory is full: the summary that says so is written elsewhere, and again to the database."""
    text = plan(emulator, influx_server.url, run='duration = "10s"')
    ran = watched.run(text, out=small_disk / "run")
    assert ran.code == 3, ran.out
    (moved,) = [line.rpartition(" ")[2] for line in ran.out.splitlines() if line.startswith("run directory: ")]
    kept = RunDirectory.open(Path(moved))
    summary, key = kept.read_summary(), kept.read_plan().run_key
    where = f"WHERE \"run\" = '{key}' AND \"scenario\" = 'all' AND \"channel\" = 'all' AND stage = 'all'"
    (row,) = rows(influx_server, "infersiege_run", where)
    assert row["invalid"] == "; ".join(summary.invalid)
    assert row["exit_code"] == 3
    account = summary.telemetry
    assert account is not None and account.written == account.acknowledged


def test_a_master_that_is_killed_leaves_a_run_that_goes_on(
    watched: Siege, emulator: EmulatorProcess, influx_server: databases.InfluxDB, tmp_path: Path
) -> None:
    """Its last state is what was true; what it held is taken up by the next run, and no sender stays behind."""
    running = watched.start(plan(emulator, influx_server.url, run='duration = "60s"'))
    running.until('"phase":"steady"')
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    key = RunDirectory.open(running.path).read_plan().run_key
    after = watched.run(plan(emulator, influx_server.url, run='duration = "2s"'))
    check_passed(after)
    (row,) = rows(influx_server, "infersiege_run", f"WHERE \"run\" = '{key}'")
    assert row["state"] == 0
    deadline = time.monotonic() + START_S
    while list((tmp_path / "points").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert list((tmp_path / "points").iterdir()) == []


def test_the_status_page_follows_the_run_and_ctrl_c_ends_the_hand_over(
    watched: Siege, emulator: EmulatorProcess, influx: databases.InfluxDB
) -> None:
    """The database hangs from the middle of the run on: nobody has to wait for it, and the run is as good."""
    running = watched.start(plan(emulator, influx.url, run='duration = "4s"'), "--web", "127.0.0.1:0")
    until_event(running, "steady_started")
    (url,) = [line.rpartition(" ")[2] for line in running.output().splitlines() if line.startswith("status page: ")]

    def status() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}status.json", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    time.sleep(1.5)
    seen = status()
    assert seen["run"] == "test" and seen["emulated"] is True
    assert seen["live"]["workers"] == 1 and seen["live"]["closed"] > 0 and seen["live"]["note"] is None
    influx.server.freeze()
    until_event(running, "load_ended")
    until(running, lambda: status()["live"]["note"] == "handing over points")
    until(running, (running.path / "report.html").exists)
    assert running.process.poll() is None, "it waits for the database"
    began = time.monotonic()
    running.interrupt()
    ran = running.wait()
    influx.server.thaw()
    assert time.monotonic() - began < 4.0
    check_passed(ran)
    assert "interrupted: not waiting any longer" in ran.out and not ran.summary.interrupted
    account = ran.summary.telemetry
    assert account is not None and account == ran.plan.telemetry
    assert account.acknowledged > 0 and account.spooled > 0, "what was known while it went on, and what came at the end"
    assert account.written == account.acknowledged + account.spooled
    (warning,) = [warning for warning in ran.summary.warnings if warning.startswith("series of other hosts: ")]
    assert "not fetched" in warning and "report RUN --with-telemetry" in warning
