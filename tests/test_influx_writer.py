"""The durable writer against real databases, and against a server that answers what a test wants."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import databases
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from infersiege_agents.influx import Counters, DurableWriter, Target, set_aside, spool, target_of
from infersiege_agents.influx.answers import Verdict
from infersiege_agents.influx.orders import Settings, Status
from infersiege_agents.influx.search import SPLIT_REQUESTS
from infersiege_agents.influx.transport import answer_of
from infersiege_agents.influx.writer import SEGMENT_LINES
from infersiege_agents.measurements import WRITER
from infersiege_agents.points import Point
from influx_recorder import NOW_NS, Recorder, Writers, carry_on, files, leave, point, until


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Writers]:
    writers = Writers(tmp_path / "spool")
    yield writers
    writers.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


def test_points_arrive_as_they_were_put_and_nothing_is_left_behind(
    influx: databases.InfluxDB, make: Writers, tmp_path: Path
) -> None:
    writer = make(influx.url)
    writer.start()
    awkward = {"value": 1, "text": 'he said "a,b=c" \\ über\nline 2', "absent": None}
    writer.put(Point("odd, name", {"model": "Qwen/Qwen3 8B,x=y", "empty": ""}, awkward, NOW_NS))
    for number in range(2500):
        writer.put(point(number))
    counters = writer.close()
    assert counters == Counters(2502, 2502, 0, 0, 0, 0, 0), writer.problem
    assert influx.count("stream") == 2500
    (series,) = influx.query('SELECT "value", "text", "model" FROM "odd, name"')
    assert series["values"] == [[NOW_NS, 1, 'he said "a,b=c" \\ über line 2', "Qwen/Qwen3 8B,x=y"]]
    assert writer.problem is None
    assert not list((tmp_path / "spool").iterdir())
    assert writer.close() == counters, "may be repeated"
    writer.put(point(1))
    writer.tick()


def test_victoria_metrics_takes_every_point(victoria: databases.VictoriaMetrics, make: Writers) -> None:
    writer = make(victoria.url)
    writer.start()
    for number in range(3000):  # it cuts instants to ms
        writer.put(Point("stream", {"worker": "w1"}, {"value": number}, (NOW_NS // 10**6 - number) * 10**6))
    counters = writer.close()
    assert (counters.written, counters.acknowledged) == (3001, 3001), writer.problem
    # What it has taken can be read a moment later, also after its force_flush.
    until(lambda: victoria.count("stream_value") == 3000)
    until(lambda: victoria.count("infersiege_writer_written") == 1)


def test_victoria_metrics_that_was_killed_gets_what_waited(victoria: databases.VictoriaMetrics, make: Writers) -> None:
    writer = make(victoria.url)
    writer.start()
    victoria.server.kill()
    for number in range(500):
        writer.put(Point("stream", {"worker": "w1"}, {"value": number}, (NOW_NS // 10**6 - number) * 10**6))
    carry_on(writer, lambda: writer.problem == f"{victoria.url}: Connection refused")
    assert writer.counters().spooled > 0
    victoria.server.start()
    assert writer.close().acknowledged == 501
    until(lambda: victoria.count("stream_value") == 500)
    assert writer.problem is None


def test_ig_03_workers_with_one_stamp_keep_a_row_each(influx: databases.InfluxDB, make: Writers) -> None:
    writers = [make(influx.url, source=f"w{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        writer.start()
        for turn in range(10):
            writer.put(Point("turns", {"worker": f"w{number}"}, {"value": turn}, NOW_NS + turn))
    for writer in writers:
        writer.close()
    assert influx.count("turns") == 30


def test_ig_05_many_writers_are_one_series_per_source(make: Writers, influx: databases.InfluxDB) -> None:
    writers = [make(influx.url, source="gpu" if number % 2 else "engine") for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.close()
    (series,) = influx.query('SHOW SERIES FROM "infersiege_writer"')
    assert len(series["values"]) == 2, "neither process id nor start nor run is a tag"
    assert influx.count("infersiege_writer", "written") == 4


def test_ig_07_what_is_no_finite_number_is_left_out_and_counted(recorder: Recorder, make: Writers) -> None:
    writer = make(recorder.url)
    writer.start()
    fields = {"tpot": float("nan"), "gap": float("inf"), "ttft": 5, "absent": None}
    writer.put(Point("stream", {}, fields, NOW_NS))
    writer.put(Point("stream", {}, {"tpot": float("-inf")}, NOW_NS))  # no value: no point
    writer.put(Point("stream", {}, {"absent": None}, NOW_NS))
    writer.put(Point("stream", {"worker": 7}, {"value": 1}, NOW_NS))  # type: ignore[dict-item]
    writer.put(Point("stream", {}, {"value": 10**400}, NOW_NS))
    counters = writer.close()
    assert recorder.lines() == [f"stream ttft=5.0 {NOW_NS}".encode()]
    # None is how a caller says "not measured": nothing was lost, nothing is counted.
    assert (counters.written, counters.acknowledged, counters.left_out) == (2, 2, 5)


def test_ig_08_every_write_says_that_its_instants_are_nanoseconds(recorder: Recorder, make: Writers) -> None:
    writer = make(target_of(recorder.url, bucket="perf", org="acme", token="secret"))
    writer.start()
    writer.put(point(0))
    writer.close()
    assert recorder.requests
    for query, headers, _ in recorder.requests:
        assert query == {"bucket": "perf", "org": "acme", "precision": "ns"}
        assert headers["Authorization"] == "Token secret"
        assert headers["Content-Encoding"] == "gzip"


def test_ig_02_nothing_listens_and_the_run_ends_in_time_with_all_points_on_disk(
    free_port: Callable[[], int], make: Writers, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    writer = make(url)
    writer.start()
    for number in range(1000):
        writer.put(point(number))
    began = time.monotonic()
    counters = writer.close(within_s=1)
    assert time.monotonic() - began < 3
    assert (counters.written, counters.spooled, counters.in_memory) == (1001, 1001, 0)
    assert writer.problem == f"{url}: Connection refused"
    assert sum(path.read_bytes().count(b"\n") for path in files(tmp_path / "spool", "*.lp")) == 1001


def test_ig_01_a_process_that_never_closes_its_writer_loses_nothing(recorder: Recorder, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from infersiege_agents.influx import DurableWriter, target_of\n"
        "from infersiege_agents.points import Point\n"
        "writer = DurableWriter(target_of(sys.argv[1]), pathlib.Path(sys.argv[2]), source='run')\n"
        "writer.start()\n"
        "for number in range(500):\n    writer.put(Point('stream', {}, {'value': number}, 10**18 + number))\n"
    )
    subprocess.run([sys.executable, "-c", program, recorder.url, str(tmp_path / "spool")], check=True, timeout=30)
    until(lambda: len(recorder.lines()) == 500)
    until(lambda: not list((tmp_path / "spool").iterdir()))  # and its sender cleans up, and ends


BODY_1X = b'{"error":"database not found: \\"infersiege\\""}'
BODY_2X = b'{"code":"not found","message":"bucket \\"infersiege\\" not found"}'


TRANSIENT: list[tuple[int, dict[str, str], bytes, str]] = [
    (
        401,
        {},
        b'{"code":"unauthorized","message":"unauthorized access"}',
        "401 unauthorized access: is the token right?",
    ),
    (403, {}, b'{"error":"forbidden"}', "403 forbidden: the token needs read and write on 'infersiege'"),
    (404, {}, BODY_1X, "make it: influx -execute 'CREATE DATABASE \"infersiege\"'"),
    (404, {}, BODY_2X, "make it: influx bucket create --name infersiege"),
    (
        404,
        {},
        b"404 page not found",
        "no /api/v2/write there: is influx_url the address of InfluxDB 1.8, 2.x, 3.x or VictoriaMetrics?",
    ),
    (405, {}, b"<html>\nnot here</html>", "405 <html> not here</html>: no /api/v2/write there"),
    (302, {"Location": "/login"}, b"", "302: it points to /login: put that address into influx_url"),
    (302, {}, b"", "302: is influx_url its address?"),
    # A captive portal, a web server, a proxy: only 204 says that points were taken.
    (
        200,
        {"Content-Type": "text/html; charset=utf-8"},
        b"<p>Log in</p>",
        "200 <p>Log in</p>: it answers with text/html",
    ),
    (200, {}, b"", "200: it answers with nothing, as no database does"),
    (202, {"Content-Type": "application/json"}, b"{}", "202 {}: it answers with application/json"),
    # InfluxDB 2 without `org`; 1 without `bucket`; a proxy that takes no body at all.
    (
        400,
        {},
        b'{"code":"invalid","message":"Please provide either orgID or org"}',
        "name the organisation in influx_org",
    ),
    (400, {}, b'{"error":"database is required"}', "400 database is required: its log tells more"),
    (413, {}, b"<h1>413 Request Entity Too Large</h1>", "413 <h1>413 Request Entity Too Large</h1>"),
    (422, {}, b"no", "422 no: its log tells more"),
    (408, {}, b"", "408"),
    (429, {}, b"slow down", "429 slow down"),
    (500, {}, b'{"error":"timeout"}', "500 timeout"),
    (502, {}, b"\xff\xfe not text", "its answer is no text"),
    (503, {}, b"", "503"),
    (507, {}, b"disk full", "507 disk full"),
]
"""Status, headers and body of an answer, and what a user reads."""


def said(writer: DurableWriter, words: str) -> bool:
    return words in str(writer.problem)


def test_an_answer_that_may_change_throws_nothing_away(influx_server: databases.InfluxDB, make: Writers) -> None:
    gateway = influx_server.gateway
    writer = make(influx_server.url)
    writer.start()
    try:
        for row, (status, headers, body, says) in enumerate(TRANSIENT):
            gateway.answer = (status, headers, body)
            for number in range(100):
                writer.put(Point("statuses", {"row": str(row)}, {"value": number}, NOW_NS + number))
            carry_on(writer, partial(said, writer, says))
            assert str(writer.problem).startswith(influx_server.url)
            assert "\n" not in str(writer.problem)
            assert "secret" not in str(writer.problem)
            counters = writer.counters()
            assert (counters.acknowledged, counters.rejected) == (100 * row, 0), says
            assert counters.spooled >= 100
            gateway.answer = None
            carry_on(writer, lambda: writer.counters().spooled == 0 and writer.problem is None)
    finally:
        gateway.answer = None
    counters = writer.close()
    assert counters.acknowledged == counters.written
    assert (writer.problem, writer.refusal) == (None, None)


@pytest.mark.parametrize("status", [400, 422])
def test_what_is_refused_for_good_is_set_aside_with_the_servers_words(
    status: int, recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    refusal = (status, {}, b'{"code":"invalid","message":"beyond retention"}')
    recorder.script = [refusal] * 3  # both lines together, then one by one
    writer = make(recorder.url, flush_every_s=60)
    writer.start()
    writer.put(point(1))
    writer.put(point(2))
    writer._flush(0, seal=True)
    carry_on(writer, lambda: writer.counters().rejected)
    counters = writer.close()
    assert (counters.rejected, counters.acknowledged, counters.spooled) == (2, counters.written - 2, 0)
    (bad,) = files(tmp_path / "spool", "*.bad")
    assert bad.read_bytes().count(b"\n") == 2
    assert bad.with_suffix(".why").read_text() == f"{recorder.url}: {status} beyond retention\n"
    assert writer.refusal == f"{recorder.url}: {status} beyond retention: set aside in {bad.parent}"
    assert writer.problem is None, "nothing waits"


def test_only_the_lines_that_a_real_influxdb_refuses_are_set_aside(
    influx: databases.InfluxDB, make: Writers, tmp_path: Path
) -> None:
    influx.write(f"stream,worker=w1 value=1.0 {NOW_NS - 1}\n".encode())
    writer = make(influx.url)
    writer.start()
    bad = {17, 1800, 4999}
    for number in range(6000):
        value = "text" if number in bad else number
        writer.put(Point("stream", {"worker": "w1"}, {"value": value}, NOW_NS + number))
    counters = writer.close()
    assert (counters.rejected, counters.acknowledged, counters.spooled) == (3, 5998, 0)
    (series,) = influx.query('SELECT "value" FROM "stream"')
    assert {int(value) for at, value in series["values"] if at >= NOW_NS} == set(range(6000)) - bad
    set_aside = b"".join(path.read_bytes() for path in files(tmp_path / "spool", "*.bad"))
    assert set_aside.count(b"\n") == 3
    assert all(f'value="text" {NOW_NS + number}\n'.encode() in set_aside for number in bad)
    assert "field type conflict" in str(writer.refusal)
    assert writer.problem is None
    # The next writer leaves them where they are, and has nothing to do with them.
    again = make(influx.url)
    again.start()
    assert again.close() == Counters(1, 1, 0, 0, 0, 0, 0)
    assert len(files(tmp_path / "spool", "*.bad")) > 0


def test_when_influxdb_says_that_it_dropped_all_nobody_looks_for_good_lines(
    influx_server: databases.InfluxDB, make: Writers
) -> None:
    influx_server.write(f"typed value=1.0 {NOW_NS}\n".encode())
    writer = make(influx_server.url)
    writer.start()
    before = len(influx_server.gateway.writes)
    for number in range(4000):
        writer.put(Point("typed", {}, {"value": "text"}, NOW_NS + number))
    counters = writer.close()
    assert (counters.rejected, counters.acknowledged) == (4000, 1)
    assert len(influx_server.gateway.writes) - before < 100


def test_the_search_for_bad_lines_is_bounded(recorder: Recorder, make: Writers) -> None:
    recorder.script = [(400, {}, b"unable to parse")] * 1_000
    writer = make(recorder.url, flush_every_s=60)
    writer.start()
    for number in range(SEGMENT_LINES):
        writer.put(point(number))
    carry_on(writer, lambda: writer.counters().rejected)
    assert writer.counters().rejected == SEGMENT_LINES
    assert len(recorder.requests) <= SPLIT_REQUESTS + 2, "not 10,000"


def test_retry_after_is_heeded_at_the_end_too(recorder: Recorder, make: Writers) -> None:
    recorder.script = [(503, {"Retry-After": "1"}, b"")]
    writer = make(recorder.url)
    writer.start()
    writer.put(point(1))
    carry_on(writer, lambda: len(recorder.requests) == 1)
    began = time.monotonic()
    assert writer.close(10).acknowledged == 2
    assert time.monotonic() - began > 0.7
    assert len(recorder.requests) == 2


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        ((401, {}, b""), "nobody will correct the token within seconds"),
        ((503, {"Retry-After": "60"}, b""), "the server does not want to be asked again in time"),
    ],
)
def test_the_end_is_not_held_up_for_what_cannot_succeed(
    refusal: tuple[int, dict[str, str], bytes], why: str, recorder: Recorder, make: Writers
) -> None:
    recorder.script = [refusal] * 1000
    writer = make(recorder.url)
    writer.start()
    writer.put(point(1))
    carry_on(writer, lambda: writer.problem is not None)
    began = time.monotonic()
    assert writer.close(60).spooled == 2
    assert time.monotonic() - began < 20, why


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("99999999", 300), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("soon", None), ("-3", None), ("", None)],
)
def test_retry_after_is_read_and_bounded(header: str, seconds: float | None) -> None:
    answer = answer_of(Target("http://db"), 503, "", {"Retry-After": header}, time.time())
    assert (answer.verdict, answer.retry_after_s) == (Verdict.LATER, seconds)


@pytest.mark.parametrize("how", ["silent", "trickles"])
def test_a_server_that_holds_a_request_for_ever_is_given_up(how: str, recorder: Recorder, make: Writers) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(5)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}" if how == "silent" else recorder.url
        recorder.script = [(400, {"content-length": "1000000"}, b"")] * 1000
        recorder.trickle = True
        writer = make(url, settings=Settings(deadline_s=0.4, backoff_most_s=0.1))
        writer.start()
        for number in range(100):
            writer.put(point(number))
        carry_on(writer, lambda: writer.problem == f"{url}: no answer within 0.4 s")
        began = time.monotonic()
        counters = writer.close(0.5)
        assert time.monotonic() - began < 2.5
        assert (counters.spooled, counters.written) == (101, 101)


def test_after_an_outage_few_requests_catch_up_and_the_newest_points_are_among_the_first(
    recorder: Recorder, make: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infersiege_agents.influx.writer.SEGMENT_LINES", 20)
    recorder.script = [(503, {"Retry-After": "1"}, b"")]
    writer = make(recorder.url, flush_every_s=0.0, settings=Settings(request_lines=50))
    writer.start()
    writer.put(point(0))
    carry_on(writer, lambda: len(recorder.requests) == 1)
    for number in range(1, 501):
        writer.put(point(number))
    assert len(recorder.requests) == 1
    carry_on(writer, lambda: len(recorder.lines()) >= 501)
    first_two = [line for _, _, lines in recorder.requests[1:3] for line in lines]
    values = {int(line.split(b"value=")[1].split(b".")[0]) for line in first_two}
    assert min(values) == 0
    assert max(values) > 450, "every other request takes the newest"
    assert len(recorder.requests) <= 16, "single points were sent together"
    assert writer.close().acknowledged == 502


def test_the_clock_is_held_against_the_servers(recorder: Recorder, make: Writers) -> None:
    behind = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 7200))
    recorder.script = [(204, {"Date": behind}, b"")] * 2
    writer = make(recorder.url)
    writer.start()
    writer.put(point(1))
    carry_on(writer, lambda: writer._status.clock_offset_s is not None)
    writer.close()
    (line,) = recorder.lines(b"infersiege_writer")
    offset = float(line.split(b"clock_offset=")[1].split()[0].split(b",")[0])
    assert offset == pytest.approx(7200, abs=1)


def test_its_own_counters_are_what_the_table_of_measurements_says(recorder: Recorder, make: Writers) -> None:
    now = [0.0]
    writer = make(recorder.url, clock=lambda: now[0])
    writer.start()
    for second in range(21):
        now[0] = float(second)
        writer.put(point(second))
        writer.tick()
    writer.close()
    lines = recorder.lines(b"infersiege_writer")
    assert len(lines) == 3, "at 10 s, at 20 s and at the end"
    tags, values, _ = lines[-1].decode().split(" ")
    assert [tag.split("=")[0] for tag in tags.split(",")[1:]] == sorted(WRITER.tags)
    written = dict(pair.split("=") for pair in values.split(","))
    assert set(written) <= set(WRITER.fields)
    assert set(WRITER.fields) - set(written) <= {"clock_offset"}
    assert written["written"] == "23.0"


@pytest.mark.parametrize(
    ("points", "seconds", "segments"),
    [
        (4999, 0.9, 0),  # neither time nor size
        (5000, 0.0, 1),
        (10001, 0.0, 2),
        (10, 1.0, 1),
    ],
)
def test_memory_goes_to_disk_by_time_and_by_size(
    points: int, seconds: float, segments: int, free_port: Callable[[], int], make: Writers
) -> None:
    now = [100.0]
    writer = make(f"http://127.0.0.1:{free_port()}", clock=lambda: now[0], flush_every_s=1.0)
    writer.start()
    for number in range(points):
        writer.put(point(number))
    now[0] += seconds
    writer.tick()
    assert writer.directory is not None
    assert len(list(writer.directory.glob("*.lp"))) == segments


def test_a_full_spool_drops_what_is_new_and_counts_it(
    free_port: Callable[[], int], make: Writers, tmp_path: Path
) -> None:
    writer = make(f"http://127.0.0.1:{free_port()}", flush_every_s=0.0, memory_points=50, spool_bytes=40_960)
    writer.start()
    for number in range(500):
        writer.put(point(number))
    counters = writer.counters()
    assert counters.spooled > 0
    assert counters.in_memory == 50
    assert counters.dropped == 500 - counters.spooled - 50
    assert f"telemetry spool {tmp_path / 'spool'}: full (0 MiB); points are kept in memory" in str(writer.problem)
    assert f"{counters.dropped} points dropped since " in str(writer.problem)
    counters = writer.close(0)
    assert (counters.in_memory, counters.written) == (0, 501)
    values = b"".join(path.read_bytes() for path in files(tmp_path / "spool", "*.lp"))
    assert values.count(b"\n") == counters.spooled
    assert b" value=0.0" in values, "what is old is kept"


def test_a_full_disk_keeps_points_in_memory_until_there_is_room(
    small_disk: Path, recorder: Recorder, make: Writers
) -> None:
    writer = make(recorder.url, spool=small_disk / "spool")
    writer.start()
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"x" * 200_000)
    for number in range(100):
        writer.put(point(number))
    carry_on(writer, lambda: writer.problem is not None)
    assert "No space left on device; points are kept in memory" in str(writer.problem)
    assert writer.counters().in_memory == 100
    ballast.unlink()
    carry_on(writer, lambda: len(recorder.lines()) == 100)
    assert writer.problem is None
    assert writer.close().dropped == 0


def test_the_token_is_in_no_file_no_command_line_and_no_environment(
    recorder: Recorder, make: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is any other secret of ours: the sender has no use for them."""
    monkeypatch.setenv("INFLUX_TOKEN", "secret")
    monkeypatch.setenv("SOME_API_KEY", "sk-also-secret")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    writer = make(recorder.url)
    writer.start()
    writer.put(point(1))
    carry_on(writer, recorder.lines)
    assert writer._sender is not None
    process = Path(f"/proc/{writer._sender.pid}")
    assert b"influx.sender" in (process / "cmdline").read_bytes()
    assert b"SSL_CERT_FILE=" in (process / "environ").read_bytes()
    seen = [process / "cmdline", process / "environ", *(path for path in tmp_path.rglob("*") if path.is_file())]
    assert len(seen) >= 4
    assert not any(b"secret" in path.read_bytes() for path in seen)
    assert "secret" not in repr(writer.target)


def test_the_sender_runs_nothing_that_lies_in_the_current_folder(
    recorder: Recorder, make: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` puts it first on sys.path: whoever calls a file random.py would have it run."""
    for name in ("random", "json", "infersiege_agents"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    writer = make(recorder.url)
    writer.start()
    writer.put(point(1))
    assert writer.close().acknowledged == 2
    assert not (tmp_path / "executed").exists()


def test_a_sender_that_cannot_start_says_why_and_loses_nothing(
    recorder: Recorder, make: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/such/python")
        writer = make(recorder.url)
        writer.start()
        for number in range(10):
            writer.put(point(number))
        writer.tick()
        assert writer.problem == "the sender died and is started again: No such file or directory"
    counters = writer.close()
    assert counters.acknowledged == counters.written


def test_the_next_writer_takes_up_what_dead_ones_left_and_leaves_other_databases_alone(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    place = tmp_path / "spool"
    own = target_of(recorder.url, token="a new token")
    leave(place, target_of(recorder.url, token="an old token"), 40)
    other = leave(place, target_of("http://10.0.0.9:8086", bucket="perf"), 7, started=2)
    empty, lock = spool.create(place, "run", own, 3)
    os.close(lock)
    living, living_lock = spool.create(place, "run", own, 4)
    writer = make(own)
    writer.start()
    counters = writer.close()
    assert (counters.taken_up, counters.inherited, counters.written, counters.acknowledged) == (40, 0, 1, 1)
    assert len(set(recorder.lines(b"left"))) == 40
    assert not empty.exists()
    assert living.exists(), "its writer lives"
    assert len(list(other.iterdir())) == 4, "not even sealed"
    assert writer.notices == [
        f"7 points for http://10.0.0.9:8086 (bucket perf) wait in {place}: the next writer to that database sends "
        "them; `infersiege-agent spool send` sends them to another one"
    ]
    os.close(living_lock)


def test_writers_that_start_at_once_take_up_every_directory_once(
    influx: databases.InfluxDB, make: Writers, tmp_path: Path
) -> None:
    target = target_of(influx.url, token="secret")
    for number in range(12):
        leave(tmp_path / "spool", target, 30, started=number)
    writers = [make(target, source=f"w{number}") for number in range(4)]
    for writer in writers:
        writer.start()
    carry_on(writers[0], lambda: influx.count("left") == 12 * 30)
    counters = [writer.close() for writer in writers]
    assert sum(one.taken_up for one in counters) == 12 * 30
    assert not list((tmp_path / "spool").iterdir())


def test_a_sender_whose_writer_was_killed_delivers_and_ends(recorder: Recorder, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, os\n"
        "from infersiege_agents.influx import DurableWriter, target_of\n"
        "from infersiege_agents.points import Point\n"
        "writer = DurableWriter(target_of(sys.argv[1]), pathlib.Path(sys.argv[2]), source='run', flush_every_s=0)\n"
        "writer.start()\n"
        "for number in range(20):\n    writer.put(Point('stream', {}, {'value': number}, 10**18 + number))\n"
        "print(writer._sender.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, recorder.url, str(tmp_path / "spool")],
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    until(lambda: len(recorder.lines()) == 20)
    until(lambda: not Path(f"/proc/{int(done.stdout)}").exists())
    assert not list((tmp_path / "spool").iterdir())


SYNC_SEEN = """
import os, sys
real = os.fsync
def seen(descriptor):
    print(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), flush=True)
    real(descriptor)
os.fsync = seen
from infersiege_agents.influx.sender import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("policy", "first_try", "synced"),
    [
        ("never", 503, 0),
        ("waiting", 503, 2),  # the segment and its directory, once, however often it is tried
        ("waiting", 204, 0),  # what is taken at once needs no disk that can stand a power cut
        ("always", 204, 2),
    ],
)
def test_what_waits_is_put_onto_the_disk_for_good(
    policy: str, first_try: int, synced: int, recorder: Recorder, tmp_path: Path
) -> None:
    recorder.script = [(first_try, {}, b"")] * 3
    directory, lock = spool.create(tmp_path, "run", target_of(recorder.url), 1)
    segment = spool.SegmentFile(directory, 0)
    segment.append(b"stream value=1.0 1\n", 1)
    segment.seal()
    done = subprocess.run(
        [sys.executable, "-c", SYNC_SEEN, str(directory)],
        input=json.dumps({"fsync": policy, "backoff_s": 0.01}) + "\nfinish 10\n",
        capture_output=True, text=True, timeout=30, check=True, pass_fds=(lock,),
    )  # fmt: skip
    os.close(lock)
    assert done.stdout.split() == ["000000000000-1.lp", directory.name][:synced]
    assert len(recorder.requests) == (4 if first_try == 503 else 1)
    assert not segment_files(directory)


def segment_files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix in (".lp", ".open", ".bad")]


class Accounts(RuleBasedStateMachine):
    """Whatever happens, in whatever order, each point is in exactly one place. The test is the sender."""

    place: Path
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.writer = DurableWriter(
            target_of(self.url), self.place, source="run", memory_points=40, spool_bytes=14 * spool.BLOCK_BYTES,
            settings=Settings(backoff_s=60, backoff_most_s=60), clock=lambda: self.now,
        )  # fmt: skip
        self.writer.start()
        assert self.writer.directory is not None
        self.directory = self.writer.directory
        self.put = self.taken = self.refused = 0

    @rule(count=st.integers(1, 60))
    def put_points(self, count: int) -> None:
        for _ in range(count):
            self.writer.put(point(self.put))
            self.put += 1

    @rule(seconds=st.sampled_from([0.3, 1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        before = self.writer._written
        self.now += seconds
        self.writer.tick()
        self.put += self.writer._written - before

    @rule(problem=st.sampled_from([None, "http://db: Connection refused"]))
    def sender_says(self, problem: str | None) -> None:
        """While points wait, segments grow over several flushes."""
        status = json.dumps(asdict(Status(problem=problem)))
        spool.write_atomically(self.directory / "status.json", status.encode())

    @precondition(lambda self: bool(list(self.directory.glob("*.lp"))))
    @rule(bad=st.integers(0, 5))
    def oldest_segment_is_sent(self, bad: int) -> None:
        segment = spool.listing(self.directory).waiting[0]
        bad = min(bad, segment.points)
        if bad:
            set_aside.set_aside(segment, [b"line"] * bad, "refused", durable=False)
        segment.path.unlink()
        self.taken += segment.points - bad
        self.refused += bad

    @invariant()
    def every_point_is_in_one_place(self) -> None:
        counters = self.writer.counters()
        assert counters.written == self.put
        assert counters.acknowledged == self.taken
        assert counters.rejected == self.refused
        assert 0 <= counters.in_memory <= 40
        on_disk = b"".join(
            path.read_bytes() for path in self.directory.iterdir() if path.suffix in (".lp", ".open")
        ).count(b"\n")
        assert counters.spooled == on_disk

    def teardown(self) -> None:
        counters = self.writer.close(0)
        assert counters.in_memory == 0
        assert counters.written == self.put + 1
        assert counters.acknowledged == self.taken


def test_written_is_acknowledged_rejected_spooled_and_dropped_whatever_happens(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    class Here(Accounts):
        place = tmp_path / "spool"
        url = f"http://127.0.0.1:{free_port()}"

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Here, settings=settings(max_examples=20, stateful_step_count=20, deadline=None))  # type: ignore[no-untyped-call]


def test_the_sender_is_not_for_people(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infersiege_agents.influx.sender", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is started by a writer" in done.stderr
    assert json.dumps("Traceback")[1:-1] not in done.stderr
