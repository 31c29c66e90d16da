"""How fast are trace files opened, and how much memory does it take?

    .venv/bin/python bench/traces.py
    .venv/bin/python bench/traces.py --megabytes 500 --format sharegpt

Files are made from the examples, repeated until they have the size; opening checks every session. Each format is opened
in a process of its own, so that its memory is its own: the peak of `RssAnon`, since pages of the mapped file can be
dropped at any time. Exit code 1 when a target is missed: 100,000 rows/s for traces of lengths, 30 MB/s for messages;
agent rounds of lengths, whose requests are worked out one from the other, have none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from infersiege.traces import open_trace

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
TARGET_ROWS_PER_S = 100_000
TARGET_MB_PER_S = 30


class Case(msgspec.Struct, frozen=True):
    """A format, and how a file of it is made: `rows(n)` gives the n-th row."""

    head: str
    row: Callable[[int], str]
    lengths: bool | None
    """A trace of lengths, whose rows count; one of messages, whose bytes do; None: no target."""
    between: str = "\n"
    tail: str = "\n"


class Result(msgspec.Struct, frozen=True):
    rows: int
    sessions: int
    megabytes: float
    seconds: float
    anon_mb: float
    """Peak of the process's memory that is not the file's."""


def azure(number: int) -> str:
    second, part = divmod(number, 20)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_700_000_000 + second))
    return f"{stamp}.{part * 500_000:07d},{100 + number % 4000},{10 + number % 500}"


def mooncake(number: int) -> str:
    ids = ",".join(str(number // 8 + place) for place in range(24))
    return f'{{"timestamp": {number * 50}, "input_length": {24 * 512 - 7}, "output_length": 340, "hash_ids": [{ids}]}}'


def burstgpt(number: int) -> str:
    return f"{5 + number // 10},ChatGPT,{100 + number % 900},{20 + number % 300},{120 + number % 900},Conversation log"


def text(number: int) -> str:
    """About 1,200 characters, as an answer has."""
    return f"Answer {number}: " + "the pump of the third basin takes water from the river when it stands high. " * 15


def talk(number: int) -> list[dict[str, str]]:
    return [{"role": "user" if place % 2 == 0 else "assistant", "content": text(number + place)} for place in range(6)]


def openai(number: int) -> str:
    return json.dumps({"messages": talk(number)})


def sharegpt(number: int) -> str:
    said = [{"from": "human" if place % 2 == 0 else "gpt", "value": text(number + place)} for place in range(6)]
    return json.dumps({"id": f"talk-{number}", "conversations": said})


def full_body(number: int) -> str:
    return json.dumps({"timestamp": 1_700_000_000 + number / 10, "body": {"model": "m", "messages": talk(number)[:5]}})


def trajectory(number: int) -> str:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "pump"}'}}
    messages: list[dict[str, object]] = [{"role": "system", "content": text(number)}]
    for place in range(5):
        messages += [
            {"role": "user", "content": text(place)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": text(place)},
            {"role": "assistant", "content": text(number)},
        ]
    return json.dumps({"task_id": number, "reward": 1.0, "traj": messages, "trial": 0})


def mooncake_sessions(number: int) -> str:
    row = {"timestamp": number * 10, "session_id": f"s{number}", "input_length": 1024, "output_length": 20}
    return json.dumps({**row, "hash_ids": [number, number + 1]})


def tracelab_replay(number: int) -> str:
    session, at = divmod(number, 5)
    return f"{session},{session * 50},{at},{300 * at},200,100,30"


def aiperf(number: int) -> str:
    turns = [{"text": text(number), "output_length": 20}, {"texts": [text(number + 1)], "delay": 500}]
    return json.dumps({"session_id": f"a{number}", "turns": turns})


def otel(number: int) -> str:
    span = {
        "span_id": f"{number:016x}",
        "trace_id": f"{number // 5:032x}",
        "name": "chat",
        "start_time": (1_700_000_000 + number) * 10**9,
        "end_time": (1_700_000_001 + number) * 10**9,
    }
    asked = json.dumps([{"role": "user", "parts": [{"type": "text", "content": text(number)}]}])
    return json.dumps({**span, "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked}})


CASES = {
    "azure": Case("TIMESTAMP,ContextTokens,GeneratedTokens\n", azure, lengths=True),
    "mooncake": Case("", mooncake, lengths=True),
    "burstgpt": Case("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", burstgpt, lengths=True),
    "mooncake sessions": Case("", mooncake_sessions, lengths=None),
    "tracelab-replay": Case(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n",
        tracelab_replay,
        lengths=None,
    ),
    "openai-messages": Case("", openai, lengths=False),
    "full-body": Case("", full_body, lengths=False),
    "sharegpt": Case("[", sharegpt, lengths=False, between=",\n", tail="]\n"),
    "aiperf-multi-turn": Case("", aiperf, lengths=False),
    "otel-genai": Case("", otel, lengths=False),
    "tau-bench": Case("[", trajectory, lengths=False, between=",\n", tail="]\n"),
}


def pieces(case: Case, size: int) -> Iterator[str]:
    yield case.head
    written, number = 0, 0
    while written < size:
        row = (case.between if number else "") + case.row(number)
        yield row
        written += len(row)
        number += 1
    yield case.tail


def open_once(path: Path, format: str) -> Result:
    """In this process."""
    with Peak() as peak:
        start = time.perf_counter()
        trace = open_trace(str(path), format=format)
        seconds = time.perf_counter() - start
    return Result(trace.rows or 0, trace.sessions or 0, path.stat().st_size / 1e6, seconds, peak.anon_kib / 1024)


class Peak:
    """The most anonymous memory that this process had, looked at every 5 ms."""

    def __init__(self) -> None:
        self.anon_kib = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            now_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
            self.anon_kib = max(self.anon_kib, now_kib)
            if self._done.wait(0.005):
                return


def measure(name: str, megabytes: int) -> Result:
    """In a process of its own; the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces(CASES[name], megabytes * 1_000_000))
        results = []
        for _ in range(3):
            command = [sys.executable, __file__, "--open", str(path), "--format", name.split()[0]]
            done = subprocess.run(command, capture_output=True, check=True)
            results.append(msgspec.json.decode(done.stdout, type=Result))
    return min(results, key=lambda result: result.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=50, help="size of each file")
    parser.add_argument("--format", choices=[*CASES], help="only this one")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open is not None:
        print(msgspec.json.encode(open_once(asked.open, asked.format)).decode())
        return 0
    print(f"{'format':<18} {'MB':>6} {'rows':>9} {'s':>6} {'rows/s':>9} {'MB/s':>6} {'memory MB':>9}")
    missed = []
    for name in [asked.format] if asked.format else CASES:
        result = measure(name, asked.megabytes)
        rows_per_s, mb_per_s = result.rows / result.seconds, result.megabytes / result.seconds
        print(
            f"{name:<18} {result.megabytes:>6.0f} {result.rows:>9,} {result.seconds:>6.2f} {rows_per_s:>9,.0f} "
            f"{mb_per_s:>6.0f} {result.anon_mb:>9.0f}"
        )
        if CASES[name].lengths is True and rows_per_s < TARGET_ROWS_PER_S:
            missed.append(f"{name}: {rows_per_s:,.0f} rows/s, {TARGET_ROWS_PER_S:,} are wanted")
        if CASES[name].lengths is False and mb_per_s < TARGET_MB_PER_S:
            missed.append(f"{name}: {mb_per_s:.0f} MB/s, {TARGET_MB_PER_S} are wanted")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
