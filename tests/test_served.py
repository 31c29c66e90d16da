"""The records against the server's own counter: a difference that nothing explains is told, any other is not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from crashed import CLOSED, plan_of
from swarm_rows import record

from infersiege.metrics.batch import Batch
from infersiege.metrics.served import RequestTally, disagreements
from infersiege.plan.schema import Plan
from infersiege.records import EarlierAttempt, Outcome, ServedRequests
from infersiege.telemetry.served import ServedWatch

ROWS: Sequence[tuple[Outcome, int]] = [
    (Outcome.OK, 5),
    (Outcome.FAILED, 2),
    (Outcome.CANCELLED, 1),
    (Outcome.LOST, 2),
    (Outcome.SKIPPED, 9),
]
"""5 answers, 10 requests that may have reached the server."""

COUNTED = [
    (4, "4 finished requests", "fewer than were answered"),
    (5, None, "what was cut, failed or lost never ended there"),
    (8, None, "some of it ended there"),
    (11, None, "all of it, and the attempt that was followed by another one"),
    (12, "somebody else used the server", "more than were sent"),
]


@pytest.mark.parametrize(("counted", "told", "why"), COUNTED, ids=[why for *_, why in COUNTED])
def test_di_03_the_records_and_the_servers_counter(counted: int, told: str | None, why: str) -> None:
    tally = RequestTally()
    tally.add_batch(
        Batch([record(outcome, turn, outcome=outcome) for outcome, number in ROWS for turn in range(number)])
    )
    earlier = (EarlierAttempt(channel="target"),)
    tally.add_batch(Batch([msgspec.structs.replace(record("retried", outcome=Outcome.SKIPPED), earlier=earlier)]))
    (one,) = tally.compared([ServedRequests(channel="target", metric="vllm:request_success_total", counted=counted)])
    assert (one.answered, one.sent) == (5, 11)
    warnings = list(disagreements([one]))
    assert (warnings == []) if told is None else (len(warnings) == 1 and told in warnings[0]), why


class Engine:
    """A metrics page on a real socket."""

    def __init__(self) -> None:
        self.page: str | None = ""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = (engine.page or "").encode()
                self.send_response(200 if engine.page is not None else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def plan(self, engine: str) -> Plan:
        plan = plan_of(CLOSED)
        ((name, channel),) = plan.channels.items()
        url = f"http://127.0.0.1:{self.server.server_port}/v1"
        channel = msgspec.structs.replace(channel, engine=engine, base_url=url, api_key_env=None)
        return msgspec.structs.replace(plan, channels={name: channel})


VLLM = (
    'vllm:request_success_total{{finished_reason="stop"}} {}\n'
    'vllm:request_success_total{{finished_reason="length"}} 1\n'
)
RANKS = 'sglang:num_requests_total{{tp_rank="0"}} {0}\nsglang:num_requests_total{{tp_rank="1"}} {0}\n'

PAGES = [
    ("vllm", VLLM.format(3), VLLM.format(10), 7, "all reasons together"),
    ("vllm", VLLM.replace(":", "_", 1).format(3), VLLM.format(4), 1, "an exporter on the way writes _ for :"),
    ("sglang", RANKS.format(2), RANKS.format(6), 4, "ranks are copies of one replica"),
    ("vllm", VLLM.format(9), VLLM.format(2), None, "it was started again"),
    ("vllm", None, VLLM.format(2), None, "it did not tell before the load"),
    ("vllm", VLLM.format(2), None, None, "it does not tell any more"),
    ("vllm", "vllm:num_requests_running 1\n", "vllm:num_requests_running 1\n", None, "it has no such counter"),
    ("vllm", VLLM.format(2), "vllm:request_success_total{ 7\n", None, "its page is damaged"),
    (
        "llama.cpp",
        "llamacpp:requests_processing 1\n",
        "llamacpp:requests_processing 1\n",
        None,
        "it counts none",
    ),
]


@pytest.mark.parametrize(("profile", "before", "after", "counted", "why"), PAGES, ids=[why for *_, why in PAGES])
def test_what_a_server_counted(
    profile: str, before: str | None, after: str | None, counted: int | None, why: str
) -> None:
    engine = Engine()
    try:
        engine.page = before
        watch = ServedWatch(engine.plan(profile), {})
        engine.page = after
        assert [one.counted for one in watch.counted()] == ([] if counted is None else [counted]), why
    finally:
        engine.server.shutdown()
        engine.server.server_close()
