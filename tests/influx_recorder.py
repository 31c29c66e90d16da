"""What tests of the durable writer share: a database that answers by a script, writers, and what dead ones leave."""

from __future__ import annotations

import gzip
import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from infersiege_agents.influx import DurableWriter, Target, spool, target_of
from infersiege_agents.influx.orders import Settings
from infersiege_agents.points import Point

NOW_NS = time.time_ns()
QUICK = Settings(backoff_s=0.02, backoff_most_s=0.1, deadline_s=5)


def point(number: int, **tags: str) -> Point:
    return Point("stream", {"worker": "w1", **tags}, {"value": number}, NOW_NS + number)


def until(holds: Callable[[], object], within_s: float = 15.0) -> None:
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, "did not happen in time"
        time.sleep(0.02)


def carry_on(writer: DurableWriter, holds: Callable[[], object]) -> None:
    """Ticks, as an agent's loop does, until it holds."""

    def step() -> object:
        writer.tick()
        return holds()

    until(step)


class Writers:
    """Makes writers with the test's own spool; whatever is still open is closed at the end."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: list[DurableWriter] = []

    def __call__(self, target: Target | str, **options: Any) -> DurableWriter:
        given = {"source": "run", "flush_every_s": 0.05, "settings": QUICK, **options}
        target = target if isinstance(target, Target) else target_of(target, token="secret")
        writer = DurableWriter(target, given.pop("spool", self._place), **given)
        self._made.append(writer)
        return writer

    def close(self) -> None:
        for writer in self._made:
            writer.close(0)


Reply = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


class Recorder:
    """Keeps what was written, and answers what `script` says: a status, or (status, headers, body)."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        """Answers of the next requests, in order; then 204."""
        self.requests: list[tuple[dict[str, str], dict[str, str], list[bytes]]] = []
        """(query, headers, lines) of each."""
        self.always: Reply | None = None
        """The answer to everything, before the script."""
        self.judge: Callable[[list[bytes]], Reply | None] = lambda lines: None
        """An answer by the lines of the request, before the script."""
        self.trickle = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # an answer is one segment: no waiting for delayed acknowledgements

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
                outer.requests.append((query, dict(self.headers), body.split(b"\n")[:-1]))
                given = outer.always or outer.judge(body.split(b"\n")[:-1])
                status, headers, answer = given or (outer.script.pop(0) if outer.script else (204, {}, b""))
                self.send_response_only(status)
                for name, value in {"content-length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)
                while outer.trickle:  # more than content-length promised: never the end of the answer
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.05)

            def do_GET(self) -> None:
                self.send_response_only(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def lines(self, measurement: bytes = b"stream") -> list[bytes]:
        return [line for _, _, lines in self.requests for line in lines if line.startswith(measurement)]

    def close(self) -> None:
        self.trickle = False
        self._server.shutdown()
        self._server.server_close()


def files(place: Path, pattern: str) -> list[Path]:
    return sorted(place.glob(f"*/{pattern}"))


def leave(spool_place: Path, target: Target, points: int, source: str = "gpu", started: int = 1) -> Path:
    """What a dead writer leaves: a sealed segment, and one with half a line at its end."""
    directory, lock = spool.create(spool_place, source, target, started)
    lines = [f"left,writer={started} value={number}.0 {NOW_NS + number}\n".encode() for number in range(points + 1)]
    sealed = spool.SegmentFile(directory, 0)
    sealed.append(b"".join(lines[: points - 1]), points - 1)
    sealed.seal()
    (directory / "000000000001.open").write_bytes(lines[points - 1] + lines[points][:9])
    os.close(lock)
    return directory
