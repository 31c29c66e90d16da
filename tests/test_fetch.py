"""`infersiege report --with-telemetry`: series of all hosts come from a real InfluxDB, exactly, for ever."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import databases
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.influx import target_of
from infersiege_agents.influx.server import Series
from infersiege_agents.measurements import ENGINE, GPU
from infersiege_agents.points import Point, line_of
from records_sample import SECOND, STAGE, START_NS, plan, records, write_run
from series_sample import engine_row, engine_rows, gpu_row, gpu_rows
from test_influx_server import said, scripted

from infersiege.cli.report import report
from infersiege.errors import ExitCode, RunDirectoryError, TargetError, UsageError
from infersiege.records import SeriesRow, TurnRecord
from infersiege.rundir import ENGINE_SERIES, GPU_SERIES, RunDirectory
from infersiege.telemetry import fetch as fetching
from infersiege.telemetry.fetch import MARGIN_NS, await_points, fetch, rows_of

STEADY_S = 30
END_NS = START_NS + (STEADY_S + 45) * SECOND


def put(influx: databases.InfluxDB, rows: Iterable[SeriesRow]) -> None:
    """As an agent's writer does."""
    influx.write(b"".join(line_of(Point(row.measurement, row.tags, row.fields, row.at_ns)) for row in rows))


@pytest.fixture(scope="module")
def turns() -> list[TurnRecord]:
    return records(4, steady_s=STEADY_S)


@pytest.fixture
def run(tmp_path: Path, turns: list[TurnRecord]) -> RunDirectory:
    return write_run(tmp_path / "run", turns, steady_s=STEADY_S)


@pytest.fixture
def database(influx_server: databases.InfluxDB) -> Iterator[databases.InfluxDB]:
    """The session's server, with the database emptied of these measurements."""
    yield influx_server
    for name in ("gpu", "gpu_host", "engine", "infersiege_run"):
        influx_server.query(f'DROP MEASUREMENT "{name}"', method="POST")


def read(run: RunDirectory, name: str = GPU_SERIES) -> list[SeriesRow]:
    return list(run.read_series(name))


def invoke(run: RunDirectory, *words: str) -> Result:
    environ = {"COLUMNS": "200", "INFERSIEGE_TELEMETRY_SPOOL": str(run.path.parent / "points")}
    return CliRunner(env=environ).invoke(report, [str(run.path), *words])


def host_row(at_ns: int, host: str, **fields: float | str) -> SeriesRow:
    """One point of `gpu_host`; by default a host whose driver answers and whose card is there."""
    base: dict[str, float | str] = {"ok": 1.0, "error": 0.0, "interval": 1.0, "gpus": 1.0, "gpus_expected": 1.0}
    return SeriesRow(at_ns=at_ns, measurement="gpu_host", tags={"host": host}, fields={**base, **fields})


def planned(run: RunDirectory, **telemetry: Any) -> None:
    """Change [telemetry] of the run's plan."""
    file = run.read_plan()
    changed = {**file.plan, "telemetry": {**file.plan["telemetry"], **telemetry}}
    run.write_plan(msgspec.structs.replace(file, plan=changed))


# ------------------------------------------------------------------------------------------------------------- fetching


def test_every_point_of_the_run_comes_back_as_it_was_written(run: RunDirectory, database: databases.InfluxDB) -> None:
    gpus = list(gpu_rows(2, seconds=STEADY_S + 45, lost=(1, 10, 20)))
    engines = list(engine_rows(seconds=STEADY_S + 45))
    put(database, [*gpus, *engines])
    got = fetch(run, target_of(database.url))
    assert read(run) == gpus, "whole numbers are floats again, texts are texts, nothing is null"
    assert read(run, ENGINE_SERIES) == engines
    assert (got.files[GPU_SERIES].rows, got.files[GPU_SERIES].added) == (len(gpus), len(gpus))
    assert got.files[GPU_SERIES].hosts == (gpus[0].tags["host"],)
    assert msgspec.json.decode((run.path / "telemetry" / GPU_SERIES).read_bytes().splitlines()[0])["fields"]["ok"] == 1


def test_only_the_time_of_the_run_is_fetched(run: RunDirectory, database: databases.InfluxDB) -> None:
    instants = [START_NS - MARGIN_NS - 1, START_NS - MARGIN_NS, END_NS + MARGIN_NS - 1, END_NS + MARGIN_NS]
    put(database, [gpu_row(at_ns) for at_ns in instants])
    fetch(run, target_of(database.url))
    assert [row.at_ns for row in read(run)] == instants[1:3], "5 s before the first arrival to 5 s after the end"


def test_a_run_that_crashed_is_fetched_to_its_last_turn(
    run: RunDirectory, turns: list[TurnRecord], database: databases.InfluxDB
) -> None:
    run.write_plan(msgspec.structs.replace(run.read_plan(), ended_ns=None))
    last = max(turn.closed_ns for turn in turns if turn.closed_ns is not None)
    put(database, [gpu_row(START_NS), gpu_row(last + SECOND), gpu_row(last + 6 * SECOND)])
    fetch(run, target_of(database.url))
    assert [row.at_ns for row in read(run)] == [START_NS, last + SECOND]


def test_a_run_without_a_request_has_no_time(run: RunDirectory, database: databases.InfluxDB) -> None:
    run.write_plan(msgspec.structs.replace(run.read_plan(), started_ns=None))
    with pytest.raises(UsageError, match="before its first request"):
        fetch(run, target_of(database.url))


def test_local_rows_stay_and_nothing_is_doubled(run: RunDirectory, database: databases.InfluxDB) -> None:
    """The master's own host wrote to both; another host only to the database; a third only to the file."""
    both = [gpu_row(START_NS + second * SECOND, host="master", power_mean_w=100.0 + second) for second in range(5)]
    remote = [gpu_row(START_NS + second * SECOND, host="far", index=0.0) for second in range(5)]
    local = [gpu_row(START_NS + second * SECOND, host="offline") for second in range(-9, 5)]
    run.write_series(GPU_SERIES, [*reversed(local), *both])
    put(database, [*both, *remote])
    got = fetch(run, target_of(database.url)).files[GPU_SERIES]
    assert (got.rows, got.added, got.hosts) == (10, 5, ("far", "master"))
    rows = read(run)
    assert sorted(rows, key=str) == sorted([*both, *remote, *local], key=str)
    assert [row.at_ns for row in rows] == sorted(row.at_ns for row in rows)
    again = fetch(run, target_of(database.url)).files[GPU_SERIES]
    assert (again.rows, again.added) == (10, 0)
    assert read(run) == rows, "fetching again changes nothing"


def test_a_point_that_only_half_is_in_the_file_is_made_whole(run: RunDirectory, database: databases.InfluxDB) -> None:
    run.write_series(GPU_SERIES, [gpu_row(START_NS, power_mean_w=1.0)])
    put(database, [gpu_row(START_NS, power_mean_w=2.0, temperature_c=60.0)])
    fetch(run, target_of(database.url))
    (row,) = read(run)
    assert (row.fields["power_mean_w"], row.fields["temperature_c"]) == (1.0, 60.0), "what is here is believed"


def test_hosts_of_other_runs_are_left_out(run: RunDirectory, database: databases.InfluxDB) -> None:
    put(database, [gpu_row(START_NS, host=host) for host in ("gpu-1", "o'hara", "other")])
    got = fetch(run, target_of(database.url), hosts=("gpu-1", "o'hara", "absent"))
    assert [row.tags["host"] for row in read(run)] == ["gpu-1", "o'hara"]
    assert got.missing_hosts == ("absent",)


def test_hosts_choose_gpus_and_not_engines(run: RunDirectory, database: databases.InfluxDB) -> None:
    """An engine's host is that of its address: 10.0.0.9 may well be gpu-1."""
    engine = engine_row(START_NS, "10.0.0.9:8000", host="10.0.0.9", running=3.0)
    mine = [gpu_row(START_NS, host="gpu-1"), host_row(START_NS, "gpu-1")]
    put(database, [*mine, gpu_row(START_NS, host="other"), host_row(START_NS, "other"), engine])
    got = fetch(run, target_of(database.url), hosts=("gpu-1",))
    assert read(run) == mine
    assert read(run, ENGINE_SERIES) == [engine]
    assert got.missing_hosts == ()


def test_a_host_without_a_gpu_that_answers_is_no_silent_host(run: RunDirectory, database: databases.InfluxDB) -> None:
    """Its driver is away: no point of a card, and one a second that says so."""
    dark = [
        host_row(START_NS + second * SECOND, "dark", ok=0.0, error=9.0, error_text="driver not loaded", gpus=0.0)
        for second in range(STEADY_S + 45)
    ]
    put(database, [*dark, *gpu_rows(1, seconds=STEADY_S + 45)])
    planned(run, hosts=("bench-1", "dark"))
    got = fetch(run, target_of(database.url), hosts=("bench-1", "dark"))
    assert [row for row in read(run) if row.measurement == "gpu_host"] == dark
    assert got.missing_hosts == ()
    assert invoke(run).exit_code == ExitCode.PASS
    assert any("dark" in warning for warning in run.read_summary().warnings)


def test_a_database_that_takes_its_time_is_given_up(run: RunDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        with pytest.raises(TargetError, match="no answer within"):
            fetch(run, target_of(f"http://127.0.0.1:{deaf.getsockname()[1]}"), within_s=0.3)
    assert time.monotonic() - began < 3


def test_the_time_is_for_all_requests_together(run: RunDirectory) -> None:
    """Each answer comes soon, and there are many."""
    ticks = iter(range(1000))
    answer = {"/ping": said(204, x_influxdb_version="1.8.10"), "/query": said(200, {"results": [{}]})}
    with scripted(answer) as server:
        with pytest.raises(TargetError, match="did not give all series within 2 s"):
            fetch(run, target_of(server.url), within_s=2.0, clock=lambda: float(next(ticks)))
        assert len(server.asked) == 1
    assert not (run.path / "telemetry" / GPU_SERIES).exists()


def test_agents_elsewhere_may_write_what_they_saw_up_to_the_end(
    run: RunDirectory, database: databases.InfluxDB
) -> None:
    """A fetch right at the end would miss their last second. Those of this host have ended, a dead one stays dead."""
    own, dead = gpu_row(END_NS - SECOND, host="here"), gpu_row(END_NS - 9 * SECOND, host="dead")
    run.write_series(GPU_SERIES, [own])
    put(database, [own, dead, gpu_row(END_NS - SECOND, host="far"), engine_row(END_NS, host="far")])
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            put(database, [gpu_row(END_NS + SECOND // 2, host="far")])

    await_points(run, target_of(database.url), until_ns=END_NS, within_s=20.0, sleep=sleep)
    assert len(waits) == 3
    await_points(run, target_of(database.url), hosts=("here",), until_ns=END_NS, within_s=20.0, sleep=sleep)
    assert len(waits) == 3
    put(database, [host_row(END_NS - SECOND, "dark", ok=0.0)])
    ticks = iter(range(1000))
    await_points(
        run, target_of(database.url), until_ns=END_NS, within_s=20.0, clock=lambda: float(next(ticks)), sleep=sleep
    )
    assert 3 < len(waits) < 13, "for a while"


def test_a_torn_last_line_is_left_out_and_told(run: RunDirectory, database: databases.InfluxDB) -> None:
    run.write_series(GPU_SERIES, [gpu_row(START_NS)])
    with (run.path / "telemetry" / GPU_SERIES).open("ab") as file:
        file.write(b'{"at_ns": 17')
    put(database, [gpu_row(START_NS + SECOND)])
    got = fetch(run, target_of(database.url))
    assert len(read(run)) == 2
    assert "the last line is torn" in got.notes[0]


def test_a_damaged_line_is_no_reason_to_throw_the_file_away(run: RunDirectory, database: databases.InfluxDB) -> None:
    file = run.telemetry / GPU_SERIES
    file.write_bytes(b"nonsense\n")
    put(database, [gpu_row(START_NS)])
    with pytest.raises(RunDirectoryError, match=r"gpu\.jsonl:1"):
        fetch(run, target_of(database.url))
    assert file.read_bytes() == b"nonsense\n"


def test_a_long_run_comes_in_slices(
    run: RunDirectory, database: databases.InfluxDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [gpu_row(START_NS + second * SECOND, f"GPU-{gpu}") for second in range(60) for gpu in range(3)]
    put(database, rows)
    monkeypatch.setattr(fetching, "SLICE_NS", 7 * SECOND + 1)
    fetch(run, target_of(database.url))
    assert read(run) == rows, "each point once, whatever slice it is in"


def test_a_server_that_cuts_its_answers_is_asked_for_less(run: RunDirectory) -> None:
    """InfluxDB with max-row-limit: `partial` is no whole answer. It gives up at a second."""
    body = {"results": [{"series": [{"name": "gpu", "columns": ["time", "ok"], "values": [[1, 1]], "partial": True}]}]}
    with scripted({"/ping": said(204, x_influxdb_version="1.8.10"), "/query": said(200, body)}) as server:
        with pytest.raises(TargetError, match="cut its answer"):
            fetch(run, target_of(server.url))
        asked = [query["q"] for path, query, _ in server.asked if path == "/query"]
    spans = [int(text.split("time < ")[1].split()[0]) - int(text.split("time >= ")[1].split()[0]) for text in asked]
    assert spans[0] == END_NS - START_NS + 2 * MARGIN_NS
    assert spans[-1] <= SECOND
    assert all(math.isclose(after, before / 2, abs_tol=1) for before, after in itertools.pairwise(spans))


def test_victoriametrics_is_refused_since_it_answers_any_query(
    run: RunDirectory, victoria: databases.VictoriaMetrics
) -> None:
    with pytest.raises(TargetError, match="has no InfluxQL"):
        fetch(run, target_of(victoria.url))


VALUES = st.one_of(st.none(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text())


@given(st.dictionaries(st.sampled_from([*GPU.fields, "new_field"]), VALUES), st.integers(0, 2**62))
def test_values_get_the_type_of_their_column(fields: dict[str, object], at_ns: int) -> None:
    series = Series("gpu", {"host": "h", "uuid": "u", "pci": ""}, ("time", *fields), [[at_ns, *fields.values()]])
    rows = list(rows_of(series, GPU))
    assert bool(rows) == any(value is not None for value in fields.values())
    for row in rows:
        assert (row.at_ns, row.tags) == (at_ns, {"host": "h", "uuid": "u"}), "an empty tag is no tag"
        assert row == msgspec.json.decode(msgspec.json.encode(row), type=SeriesRow)
        for name, value in row.fields.items():
            assert isinstance(value, str if name == "error_text" or isinstance(fields[name], str) else float)


def test_tags_among_the_columns_are_tags() -> None:
    """InfluxDB 3 gives columns of its own, and tags as columns where a query doesn't group by them."""
    columns = ("time", "host", "engine", "instance", "iox::measurement", "running")
    series = Series("engine", {}, columns, [[5, "h", "vllm", "a:1", "engine", 3]])
    (row,) = rows_of(series, ENGINE)
    assert row.tags == {"host": "h", "engine": "vllm", "instance": "a:1"}
    assert row.fields == {"running": 3.0}


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_report_holds_the_series_of_hosts_that_the_master_never_saw(
    run: RunDirectory, database: databases.InfluxDB
) -> None:
    put(database, gpu_rows(2, seconds=STEADY_S + 45))
    put(database, engine_rows(seconds=STEADY_S + 45))
    page = run.path / "report.html"
    assert invoke(run).exit_code == ExitCode.PASS
    assert run.read_summary().resources == ()
    assert "GPU 1" not in page.read_text(encoding="utf-8")
    ended = invoke(run, "--with-telemetry", "--influx-url", database.url)
    assert ended.exit_code == ExitCode.PASS, ended.output
    assert f"telemetry: gpu.jsonl: 160 points of bench-1 in {database.url}, 160 of them new here" in ended.stderr
    (stage,) = run.read_summary().resources
    assert stage.gpus == 2
    assert stage.energy_j is not None and stage.kv_use_peak is not None
    assert "GPU 1" in page.read_text(encoding="utf-8")
    database.query('DROP MEASUREMENT "gpu"', method="POST")
    assert invoke(run).exit_code == ExitCode.PASS
    assert run.read_summary().resources == (stage,), "whole for ever, without the database"


def test_url_bucket_and_hosts_are_those_of_the_plan(
    tmp_path: Path, turns: list[TurnRecord], influx: databases.InfluxDB
) -> None:
    influx.query('CREATE DATABASE "perf"', method="POST")
    influx.database = "perf"
    put(influx, [gpu_row(START_NS, host=host) for host in ("gpu-1", "other")])
    made = plan()
    telemetry = msgspec.structs.replace(
        made.telemetry, influx_url=influx.url, influx_bucket="perf", hosts=("gpu-1", "gpu-2")
    )
    run = write_run(tmp_path / "run", turns, msgspec.structs.replace(made, telemetry=telemetry), steady_s=STEADY_S)
    ended = invoke(run, "--with-telemetry")
    assert ended.exit_code == ExitCode.PASS, ended.output
    assert [row.tags["host"] for row in read(run)] == ["gpu-1"]
    assert "warning: host gpu-2 has no series of this run's time" in ended.stderr


def test_the_runs_rows_are_written_again_so_that_dashboards_show_the_same(
    run: RunDirectory, database: databases.InfluxDB
) -> None:
    put(database, [*gpu_rows(2, seconds=STEADY_S + 45), *engine_rows(seconds=STEADY_S + 45)])
    planned(run, influx_url=database.url)
    ended = invoke(run, "--with-telemetry")
    assert ended.exit_code == ExitCode.PASS, ended.output
    assert f"rows of infersiege_run written again to {database.url}" in ended.stderr
    (stage,) = run.read_summary().resources
    found = database.query('SELECT * FROM "infersiege_run" GROUP BY "scenario", "channel", "stage"')
    rows = {tuple(one["tags"].values()): dict(zip(one["columns"], one["values"][0], strict=True)) for one in found}
    assert {tags for tags in rows if rows[tags]["energy_j"] is not None} == {
        ("all", "all", "all"),
        ("local", "all", "all"),
        ("all", "all", STAGE),
    }, "channel, scenario, stage: the only channel is the whole run, a scenario is not"
    for row in (rows["all", "all", "all"], rows["all", "all", STAGE]):
        assert (row["energy_j"], row["limit"]) == (stage.energy_j, stage.limit)
    assert ("local", "agent", "all") in rows and ("all", "agent", "all") in rows
    assert list((run.path.parent / "points").iterdir()) == [], "nothing waits"


def test_strangers_hardware_is_told_until_the_plan_names_its_own(
    run: RunDirectory, database: databases.InfluxDB
) -> None:
    """A shared database: what counts is said, in the summary and in a rebuild, and no longer once it was chosen."""
    seconds = [START_NS + second * SECOND for second in range(STEADY_S + 45)]
    put(database, [gpu_row(at_ns, host=host) for at_ns in seconds for host in ("gpu-1", "theirs")])
    far = {"local": msgspec.structs.replace(run.read_plan().channels["local"], url="http://10.0.0.7:8000/v1")}
    run.write_plan(msgspec.structs.replace(run.read_plan(), channels=far))

    def warned() -> list[str]:
        assert invoke(run, "--with-telemetry", "--influx-url", database.url).exit_code == ExitCode.PASS
        return [warning for warning in run.read_summary().warnings if warning.startswith("series of other hosts: ")]

    (warning,) = warned()
    assert "GPUs of 2 hosts count" in warning and "gpu-1, theirs" in warning and "[telemetry] hosts" in warning
    before = (run.path / "summary.json").read_bytes()
    assert warning in run.read_plan().warnings
    assert invoke(run).exit_code == ExitCode.PASS
    assert (run.path / "summary.json").read_bytes() == before, "a rebuild says the same"
    assert warned() == [warning], "once"

    planned(run, hosts=("gpu-1", "theirs"))
    assert warned() == []
    planned(run, hosts=("gpu-1", "absent"))
    (warning,) = warned()
    assert "absent has none of this run's time" in warning


def test_engines_behind_a_gateway_are_told(run: RunDirectory, database: databases.InfluxDB) -> None:
    far = {"local": msgspec.structs.replace(run.read_plan().channels["local"], url="http://gateway:80/v1")}
    run.write_plan(msgspec.structs.replace(run.read_plan(), channels=far))
    put(database, [engine_row(START_NS, f"10.0.0.{number}:8000", host=f"10.0.0.{number}") for number in (1, 2)])
    assert invoke(run, "--with-telemetry", "--influx-url", database.url).exit_code == ExitCode.PASS
    (warning,) = [one for one in run.read_summary().warnings if one.startswith("series of other hosts: ")]
    assert "2 engines count" in warning and "10.0.0.1:8000, 10.0.0.2:8000" in warning


def test_a_database_that_is_away_changes_nothing(run: RunDirectory, free_port: Callable[[], int]) -> None:
    """Exit code 4, as for any target that is not there (the group prints the error)."""
    run.write_series(GPU_SERIES, [gpu_row(START_NS)])
    before = (run.path / "telemetry" / GPU_SERIES).read_bytes()
    ended = invoke(run, "--with-telemetry", "--influx-url", f"http://127.0.0.1:{free_port()}")
    assert isinstance(ended.exception, TargetError)
    assert ended.exception.exit_code == ExitCode.TARGET
    assert "nobody listens there" in str(ended.exception)
    assert (run.path / "telemetry" / GPU_SERIES).read_bytes() == before
    assert not (run.path / "report.html").exists()


def test_no_series_at_all_is_no_data_and_no_file(run: RunDirectory, influx_server: databases.InfluxDB) -> None:
    ended = invoke(run, "--with-telemetry", "--influx-url", influx_server.url)
    assert ended.exit_code == ExitCode.NO_DATA, ended.output
    assert "has no GPU or engine series of this run's time" in ended.stderr
    assert not (run.path / "telemetry" / GPU_SERIES).exists()
    assert (run.path / "report.html").exists(), "the report is made all the same"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--with-telemetry"], "its plan names no InfluxDB"),
        (["--influx-url", "http://127.0.0.1:1"], "means nothing without --with-telemetry"),
        (["--with-telemetry", "--influx-url", "127.0.0.1"], "not an address of a database"),
    ],
)
def test_a_usage_error_says_what_to_name(run: RunDirectory, words: list[str], text: str) -> None:
    ended = invoke(run, *words)
    assert isinstance(ended.exception, UsageError)
    assert text in str(ended.exception)
    assert ended.exception.hint


def test_a_token_that_is_not_set_is_asked_for(tmp_path: Path, turns: list[TurnRecord]) -> None:
    made = plan()
    telemetry = msgspec.structs.replace(
        made.telemetry, influx_url="http://127.0.0.1:1", influx_token_env="NO_SUCH_TOKEN"
    )
    run = write_run(tmp_path / "run", turns, msgspec.structs.replace(made, telemetry=telemetry), steady_s=STEADY_S)
    ended = invoke(run, "--with-telemetry")
    assert isinstance(ended.exception, UsageError)
    assert "NO_SUCH_TOKEN is not set" in str(ended.exception)


def test_an_engine_of_another_host_is_fetched_too(run: RunDirectory, database: databases.InfluxDB) -> None:
    rows = [engine_row(START_NS + second * SECOND, "10.0.0.9:8000", host="far", running=2.0) for second in range(3)]
    put(database, rows)
    got = fetch(run, target_of(database.url))
    assert read(run, ENGINE_SERIES) == rows
    assert got.files[GPU_SERIES].rows == 0
    assert not (run.path / "telemetry" / GPU_SERIES).exists()
