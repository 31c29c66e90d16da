"""Whether an engine is idle when a stage begins after a pause: asked of all at once, and what is not known is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from isolated import isolated
from loopback_http import LoopbackHttp

PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {running}\n"
OTHER = "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 3\n"


@contextmanager
def engine(text: str, after_s: float = 0.0) -> Iterator[str]:
    """URL of an engine whose metrics page takes so long."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(after_s)
            body = text.encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # Nobody waits for it any more.

        def log_message(self, *_: object) -> None:
            pass

    server = LoopbackHttp(Handler)
    try:
        yield f"{server.url}/v1"
    finally:
        server.close()


def test_ls_12_slow_engines_are_asked_at_once() -> None:
    """Five pages of 0.2 s each do not fit in half a second one after the other; the last one tells of a request."""
    idle, busy = PAGE.format(running=0), PAGE.format(running=2)
    with engine(idle, 0.2) as first, engine(busy, 0.2) as last:
        found = isolated("side_idle:look", {"many": [first] * 4, "one": [last]})
    assert found["dirty"] == ["2: 1 users"]
    ((kind, detail, before),) = found["events"]
    assert (kind, before) == ("started_dirty", True) and "one still had 2 running" in detail


def test_ls_12_an_engine_that_does_not_tell_in_time_is_not_known_to_be_idle() -> None:
    """One that answers too late, one without such figures, and one that is not there; a busy one is seen."""
    busy = PAGE.format(running=1)
    with engine(busy, 1.0) as slow, engine(OTHER) as other, engine(busy) as quick:
        found = isolated(
            "side_idle:look",
            {"slow": [slow, slow], "other": [other], "gone": ["http://127.0.0.1:9/v1"], "q": [quick]},
        )
    assert found["dirty"] == ["2: 1 users"]
    (dirty, before), (unknown, _) = ((detail, before) for _, detail, before in found["events"])
    assert "q still had 1 running" in dirty and before
    assert unknown.endswith(": slow (2), other, gone"), unknown
    assert [kind for kind, *_ in found["events"]] == ["started_dirty", "idle_unknown"]
