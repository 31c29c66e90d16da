"""Real databases for tests, each on free ports of loopback: InfluxDB 1.6 as Debian has it, and VictoriaMetrics.

InfluxDB 1.6 has no `/api/v2/write`, which 1.8 and later have and which influxdb-client speaks: `Gateway` stands in
front of it and maps that one path to `/write`, as the later versions do themselves. It can also be slow, or answer with
an error.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from loopback_http import LoopbackHttp

INFLUX_MISSING = "influxd is not installed (Debian: apt-get install influxdb)"
VICTORIA_MISSING = "victoria-metrics is not installed (Debian: apt-get install victoria-metrics)"
PRECISION = {"ns": "n", "us": "u", "ms": "ms", "s": "s"}
"""Of /api/v2/write -> of /write. 1.6 takes `us` silently for ns."""


def influx_missing() -> str | None:
    return None if shutil.which("influxd") else INFLUX_MISSING


def victoria_missing() -> str | None:
    return None if shutil.which("victoria-metrics") else VICTORIA_MISSING


class _Server:
    """One server process that can be killed, frozen and started again on the same data."""

    def __init__(self, command: list[str], health: str, log: Path) -> None:
        self._command = command
        self._health = health
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(self._health, timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        raise AssertionError(f"{self._command[0]} does not answer:\n{self._log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class InfluxDB:
    """InfluxDB 1.6.7 with the database `infersiege`, behind its gateway."""

    def __init__(self, folder: Path, free_port: Callable[[], int], database: str = "infersiege") -> None:
        self.database = database
        self.own_url = f"http://127.0.0.1:{free_port()}"
        """The server itself: /write and /query."""
        config = folder / "influxdb.conf"
        config.write_text(
            f'reporting-disabled = true\nbind-address = "127.0.0.1:{free_port()}"\n'
            f'[meta]\ndir = "{folder}/meta"\n[data]\ndir = "{folder}/data"\nwal-dir = "{folder}/wal"\n'
            f'[http]\nbind-address = "{self.own_url.removeprefix("http://")}"\nlog-enabled = false\n'
            "max-body-size = 25000000\n[monitor]\nstore-enabled = false\n",
            encoding="utf-8",
        )
        self.server = _Server(["influxd", "-config", str(config)], f"{self.own_url}/ping", folder / "influxdb.log")
        self.server.start()
        self.query(f'CREATE DATABASE "{database}"', method="POST")
        self.gateway = Gateway(self.own_url)
        self.url = self.gateway.url
        """What a writer is given: /api/v2/write, /write and /query."""

    def query(self, text: str, *, method: str = "GET") -> list[dict[str, Any]]:
        """The series of all statements: {name, tags, columns, values}; instants in ns. Fails on an InfluxQL error."""
        query = urllib.parse.urlencode({"db": self.database, "q": text, "epoch": "ns"})
        request = urllib.request.Request(f"{self.own_url}/query?{query}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{text}\n{error.code} {error.read().decode(errors='replace')}") from None
        for result in found["results"]:
            assert "error" not in result, f"{text}\n{result['error']}"
        return [series for result in found["results"] for series in result.get("series", [])]

    def count(self, measurement: str, field: str = "value") -> int:
        """Points with that field."""
        series = self.query(f'SELECT count("{field}") FROM "{measurement}"')
        return int(series[0]["values"][0][1]) if series else 0

    def write(self, lines: bytes) -> None:
        """Straight into the database, past any writer of ours."""
        request = urllib.request.Request(f"{self.own_url}/write?db={self.database}&precision=n", data=lines)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 204

    def close(self) -> None:
        self.gateway.close()
        self.server.stop()


class VictoriaMetrics:
    """VictoriaMetrics: takes influxdb-client's writes as they are; no InfluxQL."""

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ["victoria-metrics", f"-storageDataPath={folder}/vm", f"-httpListenAddr=127.0.0.1:{port}"]
        command += ["-retentionPeriod=100y", "-loggerLevel=WARN"]
        self.server = _Server(command, f"{self.url}/health", folder / "victoria.log")
        self.server.start()

    def count(self, metric: str) -> int:
        """Samples of that metric (`measurement_field`) in all series."""
        self._get("/internal/force_flush")
        selector = urllib.parse.quote(f'{{__name__="{metric}"}}')
        rows = [json.loads(row) for row in self._get(f"/api/v1/export?match[]={selector}").splitlines()]
        return sum(len(row["values"]) for row in rows)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            data: bytes = answer.read()
        return data

    def close(self) -> None:
        self.server.stop()


class Gateway(LoopbackHttp):
    """An HTTP server in front of InfluxDB 1.6. `delay_s` and `answer` make it slow or refuse writes."""

    def __init__(self, target: str) -> None:
        self.delay_s = 0.0
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        """(status, headers, body) for every write instead of passing it on."""
        self.writes: list[int] = []
        """Status of each write, in order."""
        outer, host = self, target.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # an answer is one segment: no waiting for delayed acknowledgements

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                self._pass(body)

            def do_GET(self) -> None:
                self._pass(None)

            def _pass(self, body: bytes | None) -> None:
                url = urllib.parse.urlsplit(self.path)
                write = url.path == "/api/v2/write"
                if write:
                    time.sleep(outer.delay_s)
                    if outer.answer is not None:
                        outer.writes.append(outer.answer[0])
                        self._reply(*outer.answer)
                        return
                path = _old_path(url) if write else self.path
                upstream = http.client.HTTPConnection(host, timeout=60)
                try:
                    passed = {
                        name: self.headers[name] for name in ("content-encoding", "content-type") if self.headers[name]
                    }
                    upstream.request(self.command, path, body, passed)
                    answer = upstream.getresponse()
                    data = answer.read()
                except OSError:
                    self.close_connection = True  # as a server that is gone: no answer at all
                    return
                finally:
                    upstream.close()
                if write:
                    outer.writes.append(answer.status)
                kept = {
                    name: value
                    for name, value in answer.getheaders()
                    if name.lower() not in ("content-length", "connection", "transfer-encoding")
                }
                self._reply(answer.status, kept, data)

            def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)


def _old_path(url: urllib.parse.SplitResult) -> str:
    asked = dict(urllib.parse.parse_qsl(url.query))
    precision = PRECISION[asked.get("precision", "ns")]
    return "/write?" + urllib.parse.urlencode({"db": asked["bucket"], "precision": precision})
