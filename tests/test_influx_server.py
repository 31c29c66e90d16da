"""`infersiege-agent check` and InfluxQL queries: real databases, and scripted ones for versions that can't be had."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import databases
import pytest
from infersiege_agents.errors import TARGET, AgentError
from infersiege_agents.influx import target_of
from infersiege_agents.influx.http import UnreachableError
from infersiege_agents.influx.server import TruncatedError, check, identify, literal, query, quoted
from loopback_http import LoopbackHttp

Answer = tuple[int, Mapping[str, str], bytes]
TOKEN = "s3cret-token=="


def said(status: int, body: object = b"", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, data


V2 = {"x_influxdb_version": "v2.7.1", "x_influxdb_build": "OSS"}


class Scripted(LoopbackHttp):
    """A database that answers by path; what it was asked is kept."""

    def __init__(self, routes: Mapping[str, Answer], clock_offset_s: float = 0.0) -> None:
        self.asked: list[tuple[str, dict[str, str], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                url = urllib.parse.urlsplit(self.path)
                outer.asked.append((url.path, dict(urllib.parse.parse_qsl(url.query)), self.headers["authorization"]))
                status, headers, body = routes.get(url.path, (404, {}, b"404 page not found\n"))
                self.send_response_only(status)
                self.send_header("date", formatdate(time.time() - clock_offset_s, usegmt=True))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)


@contextmanager
def scripted(routes: Mapping[str, Answer], clock_offset_s: float = 0.0) -> Iterator[Scripted]:
    server = Scripted(routes, clock_offset_s)
    try:
        yield server
    finally:
        server.close()


# ------------------------------------------------------------------------------------------------------ real databases


def test_ig_08_a_point_comes_back_with_the_time_of_now(influx_server: databases.InfluxDB) -> None:
    found = check(target_of(influx_server.url))
    assert found.ok is True, found
    assert found.seen == (
        f"InfluxDB 1.6.7~rc0 at {influx_server.url}: a point was written to 'infersiege' and read back with its time"
    )
    assert found.server is not None and found.server.kind == "influxdb 1"
    rows = influx_server.query('SELECT "value" FROM "infersiege_check"')[0]["values"]
    assert abs(rows[-1][0] - time.time_ns()) < 60e9


def test_ig_08_another_precision_on_the_way_is_found(influx: databases.InfluxDB) -> None:
    """A relay that writes seconds: the point lands in 1970, where nobody looks."""

    write = influx.write

    def seconds(lines: bytes) -> None:
        head, _, stamp = lines.rstrip().rpartition(b" ")
        write(head + b" " + str(int(stamp) // 10**9).encode() + b"\n")

    with relay(influx, seconds) as url:
        found = check(target_of(url), visible_within_s=0.3)
    assert found.ok is False
    assert "came back as one of 1970-01-01" in found.seen
    assert found.hint is not None and "another precision than ns" in found.hint


@contextmanager
def relay(influx: databases.InfluxDB, write: Callable[[bytes], None]) -> Iterator[str]:
    """Writes go through `write`, everything else to the real database."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            write(self.rfile.read(int(self.headers["content-length"])))
            self.send_response_only(204)
            self.end_headers()

        def do_GET(self) -> None:
            with urllib.request.urlopen(influx.own_url + self.path, timeout=10) as answer:
                body = answer.read()
                self.send_response_only(answer.status)
                self.send_header("x-influxdb-version", answer.headers["x-influxdb-version"])
            if body:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with contextlib.closing(LoopbackHttp(Handler)) as server:
        yield server.url


def test_a_database_that_is_not_there_is_made_by_the_hint(influx: databases.InfluxDB) -> None:
    found = check(target_of(influx.url, bucket="perf"))
    assert (found.ok, found.down) == (False, False)
    assert "database not found" in found.seen
    assert found.hint == "make it: influx -execute 'CREATE DATABASE \"perf\"'"
    influx.query('CREATE DATABASE "perf"', method="POST")
    assert check(target_of(influx.url, bucket="perf")).ok is True


def test_influxdb_before_1_8_has_no_path_for_the_writer(influx_server: databases.InfluxDB) -> None:
    found = check(target_of(influx_server.own_url))
    assert found.ok is False
    assert "has no /api/v2/write: it is InfluxDB 1.6" in found.seen


def test_victoriametrics_takes_points_and_the_note_says_what_is_missing(victoria: databases.VictoriaMetrics) -> None:
    found = check(target_of(victoria.url))
    assert found.ok is None, found
    assert found.seen == f"VictoriaMetrics at {victoria.url}: a point was written and read back"
    assert found.hint is not None and "InfluxQL is missing" in found.hint and "--with-telemetry" in found.hint
    deadline = time.monotonic() + 10
    while victoria.count("infersiege_check_value") != 1:  # its "now", the end of an export, lags by up to a second
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_instants_are_exact_nanoseconds_and_tags_are_apart(influx_server: databases.InfluxDB) -> None:
    influx_server.write(b'exact,host=a\\ b,name=x value=1.5,text="it\'s" 1796047200123456789\n')
    (series,) = query(target_of(influx_server.url), 'SELECT * FROM "exact" GROUP BY *')
    assert series.tags == {"host": "a b", "name": "x"}
    row = dict(zip(series.columns, series.values[0], strict=True))
    assert row == {"time": 1796047200123456789, "value": 1.5, "text": "it's"}
    where = f"{quoted('host')} = {literal('a b')} AND {quoted('text')} = {literal(chr(39).join(('it', 's')))}"
    assert query(target_of(influx_server.url), f'SELECT "value" FROM "exact" WHERE {where}')
    assert query(target_of(influx_server.url), 'SELECT * FROM "nothing"') == []


def test_a_fault_in_a_query_is_told_in_the_server_s_words(influx_server: databases.InfluxDB) -> None:
    with pytest.raises(AgentError, match="error parsing query") as caught:
        query(target_of(influx_server.url), "SELEC nothing")
    assert caught.value.exit_code == TARGET


def test_a_frozen_database_is_left_within_the_deadline(influx: databases.InfluxDB) -> None:
    influx.server.freeze()
    try:
        started = time.monotonic()
        found = check(target_of(influx.own_url), timeout_s=0.5)
        assert time.monotonic() - started < 10
    finally:
        influx.server.thaw()
    assert (found.ok, found.down) == (False, True)
    assert "no answer within 0.5 s" in found.seen


# ----------------------------------------------------------------------------------------------------- nobody, or other


def test_what_is_not_there_is_down_and_says_why(
    free_port: Callable[[], int], influx_server: databases.InfluxDB
) -> None:
    cases = (
        (f"http://127.0.0.1:{free_port()}", "nobody listens there"),
        ("http://no-such-host.invalid:8086", "the name is not known"),
        (influx_server.own_url.replace("http:", "https:"), "TLS fails"),
    )
    for url, seen in cases:
        found = check(target_of(url))
        assert (found.ok, found.down) == (False, True), url
        assert found.seen.startswith(f"{url}: {seen}")
        assert found.hint


def test_a_server_that_drips_is_cut_at_the_deadline() -> None:
    """Each read is quick; a timeout per read would wait for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not stop.wait(0.1):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    started = time.monotonic()
    with pytest.raises(UnreachableError, match=r"no answer within 0\.6 s"):
        query(target_of(f"http://127.0.0.1:{listener.getsockname()[1]}"), "SHOW DATABASES", timeout_s=0.6)
    assert time.monotonic() - started < 5
    stop.set()
    thread.join(5)
    listener.close()


@pytest.mark.parametrize(
    ("answer", "kind", "name"),
    [
        (said(204, x_influxdb_version="1.8.10"), "influxdb 1", "InfluxDB 1.8.10"),
        (said(204, x_influxdb_version="v2.7.1", x_influxdb_build="OSS"), "influxdb 2", "InfluxDB 2.7.1"),
        (said(204, x_influxdb_build="Cloud"), "influxdb 3", "InfluxDB 3"),
        (said(200, {"version": "3.2.1", "revision": "a"}, x_influxdb_build="Core"), "influxdb 3", "InfluxDB 3.2.1"),
        (said(401, {"error": "the request was not authenticated"}), "influxdb 3", "InfluxDB 3"),
        (said(200, b"<html>hello</html>"), "other", "something else"),
    ],
    ids=["1.8", "2.7", "cloud", "3 core", "3 without its token", "a web server"],
)
def test_versions_are_told_apart_by_their_ping(answer: Answer, kind: str, name: str) -> None:
    with scripted({"/ping": answer}) as server:
        found = identify(target_of(server.url))
    assert (found.kind, found.name) == (kind, name)


def test_a_redirect_is_not_followed_with_the_token() -> None:
    with scripted({"/ping": said(301, location="https://influx.example/ping")}) as server:
        found = check(target_of(server.url, token=TOKEN))
    assert "points to https://influx.example/ping" in found.seen
    assert found.hint == "put that address into influx_url"


REFUSALS: list[tuple[str, dict[str, Answer], str, str]] = [
    (
        "wrong token",
        {"/api/v2/write": said(401, {"code": "unauthorized", "message": "unauthorized access"})},
        "unauthorized access",
        "is the token right?",
    ),
    (
        "token without rights",
        {"/api/v2/write": said(403, {"code": "forbidden", "message": "insufficient permissions for write"})},
        "insufficient permissions",
        "the token needs read and write on 'perf'",
    ),
    (
        "wrong organisation",
        {"/api/v2/write": said(404, {"code": "not found", "message": 'organization name "lab" not found'})},
        "organization name",
        "influx org list",
    ),
    (
        "no bucket",
        {"/api/v2/write": said(404, {"code": "not found", "message": 'bucket "perf" not found'})},
        'bucket "perf" not found',
        "influx bucket create --name perf --org lab",
    ),
    (
        "retention",
        {"/api/v2/write": said(422, {"code": "unprocessable entity", "message": "points beyond retention policy"})},
        "points beyond retention policy",
        "are both clocks right?",
    ),
    (
        "overload",
        {"/api/v2/write": said(503, {"code": "unavailable", "message": "busy"})},
        "answers 503 to a write: busy",
        "try again",
    ),
    (
        "a token that is echoed",
        {"/api/v2/write": said(400, f"bad token {TOKEN}".encode())},
        "bad token [redacted]",
        "its log tells more",
    ),
    (
        "ig_16: no dbrp mapping",
        {"/api/v2/write": said(204), "/query": said(404, {"code": "not found", "message": "database not found: perf"})},
        "answers 404 to a query: database not found: perf",
        "influx v1 dbrp create --db perf --rp autogen --default --org lab --bucket-id "
        "$(influx bucket list --name perf --org lab --hide-headers | cut -f1)",
    ),
    (
        "ig_16: no mapping, told inside the result",
        {"/api/v2/write": said(204), "/query": said(200, {"results": [{"error": "database not found: perf"}]})},
        "database not found: perf",
        "influx v1 dbrp create --db perf",
    ),
    (
        "no InfluxQL",
        {"/api/v2/write": said(204), "/query": said(200, b"<html>")},
        "no result of InfluxQL",
        "is it an InfluxDB?",
    ),
]


@pytest.mark.parametrize(
    ("routes", "seen", "hint"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_ig_16_a_refusal_has_its_remedy(routes: dict[str, Answer], seen: str, hint: str) -> None:
    with scripted({"/ping": said(204, **V2), **routes}) as server:
        found = check(target_of(server.url, bucket="perf", org="lab", token=TOKEN))
    assert (found.ok, found.down) == (False, False), found
    assert seen in found.seen
    assert found.hint is not None and hint in found.hint
    assert TOKEN not in f"{found}"


def test_a_point_that_is_not_found_again_is_no_success() -> None:
    routes = {"/ping": said(204, **V2), "/api/v2/write": said(204), "/query": said(200, {"results": [{}]})}
    with scripted(routes) as server:
        found = check(target_of(server.url), visible_within_s=0.3)
    assert found.ok is False
    assert "does not find it again" in found.seen


def test_the_token_is_sent_as_2_x_wants_it_and_bucket_org_and_precision_with_it() -> None:
    routes = {"/ping": said(204, **V2), "/api/v2/write": said(204), "/query": said(200, {"results": [{}]})}
    with scripted(routes) as server:
        query(target_of(server.url, bucket="b", org="o", token=TOKEN), "SHOW DATABASES")
        check(target_of(server.url, bucket="b", org="o", token=TOKEN), visible_within_s=0.0)
    assert {asked[2] for asked in server.asked} == {f"Token {TOKEN}"}
    assert server.asked[0][1] == {"db": "b", "q": "SHOW DATABASES", "epoch": "ns", "org": "o"}
    written = next(asked for asked in server.asked if asked[0] == "/api/v2/write")
    assert written[1] == {"org": "o", "bucket": "b", "precision": "ns"}


@pytest.mark.parametrize(("offset_s", "side"), [(-7200.0, "behind"), (7200.0, "ahead of"), (0.0, None), (1.5, None)])
def test_ig_17_a_clock_that_is_off_is_noted(offset_s: float, side: str | None) -> None:
    """The scripted server finds every point again: only the clock is wrong."""

    class Echo(dict[str, Answer]):
        def get(self, path: str, default: Any = None) -> Any:
            if path != "/query":
                return super().get(path, default)
            text = server.asked[-1][1]["q"]
            return said(200, {"results": [{"series": [{"name": "x", "columns": ["time", "value"], "values": [
                [int(text.rsplit("= ", 1)[1]), int(text.rsplit("= ", 1)[1]) // 1000 % 10**12]
            ]}]}]})  # fmt: skip

    with scripted(Echo({"/ping": said(204, **V2), "/api/v2/write": said(204)}), offset_s) as server:
        found = check(target_of(server.url))
    if side is None:
        assert found.ok is True, found
    else:
        assert found.ok is None
        assert f"this host's clock is 7200 s {side} the database's" in found.seen.replace("7199", "7200")
        assert found.hint is not None and "synchronise" in found.hint


def test_an_answer_that_was_cut_is_not_taken_for_whole() -> None:
    body = {"results": [{"series": [{"name": "x", "columns": ["time"], "values": [[1]], "partial": True}]}]}
    with scripted({"/query": said(200, body)}) as server, pytest.raises(TruncatedError, match="cut its answer"):
        query(target_of(server.url), "SELECT * FROM x")


def test_proxies_of_the_environment_are_not_used(
    influx_server: databases.InfluxDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert check(target_of(influx_server.url)).ok is True
