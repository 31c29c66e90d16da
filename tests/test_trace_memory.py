"""Opening a trace whose rows belong together keeps places and marks, not rows: the peak of each grouped reader is held.

`RssAnon` is what is not the mapped file's. The bound is 45 MB (the interpreter with our modules takes some 25) and 72
bytes a row: 48 while rows are put in order (`row_groups.grouped`), and what arrays hold in reserve while they grow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

FILE_MB = 20
BASE_MB = 45
BYTES_A_ROW = 72

OPEN = """
import sys, threading, time
from pathlib import Path
from infersiege.traces import open_trace

def anon_kib():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))

peak, done = 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anon_kib())
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
try:
    trace = open_trace(sys.argv[1], format=sys.argv[2] or None, options=eval(sys.argv[3]))
finally:
    done = True
    watcher.join()
peak = max(peak, anon_kib())
print(peak // 1024, trace.rows, trace.sessions)
"""
HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def tracelab_replay() -> Iterator[str]:
    yield HEADER
    for number in count():
        for at in range(5):
            yield f"{number},{number * 50},{at},{300 * at},200,100,30\n"


def tracelab_rounds() -> Iterator[str]:
    for number in count():
        for at in range(4):
            yield json.dumps(
                {
                    "session_id": f"c:{number}", "round_index": at, "provider": "c", "model": "m",
                    "input_tokens_total": 900 + 400 * at, "prefix_tokens": 600, "output_tokens": 50,
                    "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20Z"}],
                }
            ) + "\n"  # fmt: skip


def mooncake() -> Iterator[str]:
    for number in count():
        row = {"timestamp": number * 10, "session_id": f"s{number}", "input_length": 1024, "output_length": 20}
        yield json.dumps({**row, "hash_ids": [number, number + 1]}) + "\n"


def aiperf() -> Iterator[str]:
    for number in count():
        turns = [{"text": f"Hi {number}", "output_length": 20}, {"texts": ["And?"], "delay": 500}]
        yield json.dumps({"session_id": f"a{number}", "turns": turns}) + "\n"


def span(number: int) -> str:
    parts = [{"role": "user", "parts": [{"type": "text", "content": f"hi {number}"}]}]
    return json.dumps(
        {
            "span_id": f"{number:016x}", "trace_id": f"{number // 5:032x}", "name": "chat",
            "parent_span_id": f"{number - 1:016x}" if number % 5 else None,
            "start_time": (1_700_000_000 + number) * 10**9, "end_time": (1_700_000_001 + number) * 10**9,
            "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(parts)},
        }
    ) + "\n"  # fmt: skip


def otel() -> Iterator[str]:
    yield from map(span, count())


def dynamo() -> Iterator[str]:
    for number in count():
        at = 1_700_000_000_000 + number * 10
        request = {"input_tokens": 96, "output_tokens": 8, "cached_tokens": 64, "request_received_ms": at}
        context = {"session_id": f"r{number // 4}"}
        event = {
            "event_type": "request_end",
            "event_time_unix_ms": at + 500,
            "agent_context": context,
            "request": request,
        }
        yield json.dumps({"timestamp": 1, "event": event}) + "\n"


def claude() -> Iterator[str]:
    for number in count():
        session, at = f"s{number // 50}", f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
        asked = {"role": "user", "content": f"hello {number}"}
        parent = None if number % 50 == 0 else f"b{number - 1}"
        said = {"id": f"m{number}", "role": "assistant", "content": [{"type": "text", "text": "ok" * 50}]}
        for kind, uuid, before, stamp, message in (
            ("user", f"u{number}", parent, f"{at}.000Z", asked),
            ("assistant", f"b{number}", f"u{number}", f"{at}.500Z", said),
        ):
            row = {"type": kind, "uuid": uuid, "parentUuid": before, "sessionId": session, "timestamp": stamp}
            yield json.dumps({**row, "message": message}) + "\n"


def messages() -> Iterator[str]:
    for number in count():
        yield (
            json.dumps({"session_id": f"s{number}", "messages": [{"role": "user", "content": f"hello {number}"}]})
            + "\n"
        )


def bodies() -> Iterator[str]:
    for number in count():
        body = {"model": "m", "user": f"u{number // 3}", "messages": [{"role": "user", "content": f"hello {number}"}]}
        yield json.dumps({"timestamp": 1_700_000_000 + number / 100, "body": body}) + "\n"


READERS: dict[str, tuple[Callable[[], Iterator[str]], dict[str, object]]] = {
    "tracelab-replay": (tracelab_replay, {}),
    "tracelab-rounds": (tracelab_rounds, {}),
    "mooncake": (mooncake, {}),
    "aiperf-multi-turn": (aiperf, {}),
    "otel-genai": (otel, {}),
    "dynamo": (dynamo, {}),
    "claude-code": (claude, {}),
    "openai-messages": (messages, {"rows": "cumulative"}),
    "full-body": (bodies, {"session": "user"}),
}


def peak_mb(path: Path, format: str, options: dict[str, object]) -> tuple[int, int, int]:
    """(peak of RssAnon, rows, sessions) of opening it in a process of its own."""
    command = [sys.executable, "-c", OPEN, str(path), format, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    peak, rows, sessions = map(int, done.stdout.split())
    return peak, rows, sessions


def write(path: Path, lines: Iterator[str], megabytes: int = FILE_MB) -> None:
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line)
            size += len(line)
            if size > megabytes << 20:
                break


@pytest.mark.slow
@pytest.mark.parametrize("format", READERS)
def test_the_peak_of_opening_is_by_the_row(tmp_path, format):
    lines, options = READERS[format]
    path = tmp_path / "trace"
    write(path, lines())
    start = time.monotonic()
    peak, rows, sessions = peak_mb(path, format, options)
    print(f"{format}: {rows:,} rows, {sessions:,} sessions, {peak} MB, {time.monotonic() - start:.1f} s")
    assert sessions
    assert peak < BASE_MB + rows * BYTES_A_ROW / (1 << 20)


def test_many_small_rows_are_kept_as_places(tmp_path):
    """As above, with a file that is small enough for every run of the tests; rows as objects took 90 MB."""
    path = tmp_path / "trace"
    write(path, tracelab_replay(), megabytes=8)
    peak, rows, _ = peak_mb(path, "tracelab-replay", {})
    assert peak < BASE_MB + rows * BYTES_A_ROW / (1 << 20)


@pytest.mark.slow
def test_a_document_of_one_long_line_is_not_decoded_to_tell_its_format(tmp_path):
    """A whole file as one array: only its beginning is looked at, and what is read of it are places."""
    path = tmp_path / "talks.json"
    one = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "y" * 150}]}
    lines = (f"{', ' if number else '['}{json.dumps({'id': f't{number}', **one})}" for number in count())
    write(path, lines, 30)
    with path.open("a", encoding="utf-8") as file:
        file.write("]")
    peak, _, sessions = peak_mb(path, "", {})
    assert sessions > 100_000
    assert peak < 75
