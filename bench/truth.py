"""How true our times are, and what an event costs: against a C server that wrote down when it wrote each token.

    python bench/truth.py                    # 500 streams x 50 tokens/s, kernel and user stamps, quiet and disturbed
    python bench/truth.py --streams 64 --runs 3

Each run is a fresh process; the stacks take turns, and the median of the runs is printed, as Markdown. The "busy" rows
have a busy process on every core beside them. The C client (bench/rig/cclient.c) only reads and looks for blank lines.
Exit code 1, with a line for each, when our times with kernel stamps miss a target on an otherwise quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import numpy.typing as npt
from rig.server import Rig, Times, build

from infersiege.channels.answer import Answer
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.wire.exchange import Deadlines, Request
from infersiege.wire.transport import Client, DecoderLoop, Endpoint, StampClock

SECOND_NS = 1_000_000_000
TARGETS = {"ttft_p50_ms": 0.1, "ttft_p99_ms": 0.5, "gap_p99_ms": 0.05, "coalesced": 0.01, "cpu_ratio": 2.0}
"""The most that is allowed, by name of the figure."""
COLUMNS = {
    "ttft_p50_ms": ("TTFT error p50, ms", "{:.3f}"),
    "ttft_p99_ms": ("TTFT error p99, ms", "{:.3f}"),
    "arrival_p50_ms": ("1st token late p50, ms", "{:.3f}"),
    "arrival_p99_ms": ("1st token late p99, ms", "{:.3f}"),
    "gap_p99_ms": ("gap error p99, ms", "{:.4f}"),
    "coalesced": ("coalesced", "{:.2%}"),
    "slack_over_1ms": ("slack > 1 ms", "{:.2%}"),
    "cpu_us": ("CPU per token, µs", "{:.1f}"),
    "cpu_ratio": ("CPU, C = 1", "{:.2f}"),
    "memory_kib": ("memory per stream, KiB", "{:.0f}"),
}
"""Figure -> (heading, format)."""
FLOOR, KERNEL, USER, BUSY = "C client, epoll", "kernel stamps", "user stamps", ", busy"
LIMITS = Deadlines(
    connect_ns=30 * SECOND_NS, first_token_ns=60 * SECOND_NS, idle_ns=60 * SECOND_NS, total_ns=600 * SECOND_NS
)


class Recording(Answer):
    """Keeps the stamps of its chunks (the product keeps only their histogram)."""

    def reads(self) -> tuple[list[int], list[int]]:
        """Stamp and chunks of each read."""
        return list(self._stamps), [self._counts.get(index, 1) for index in range(len(self._stamps))]


def measure(port: int, streams: int, tokens: int, ramp_s: float, kernel: bool) -> None:
    """One run of our client in this process; prints its figures as JSON."""
    clock = StampClock(kernel=kernel)
    loop = DecoderLoop(clock)
    endpoint = Endpoint.from_url(f"http://127.0.0.1:{port}")
    chat = OpenAIChat()
    body = b'{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}' % tokens
    ended: list[tuple[int, int | None, Recording]] = []
    starts = sorted(random.Random(7).uniform(0, ramp_s) for _ in range(streams))

    def one(number: int) -> None:
        gevent.sleep(starts[number])
        client = Client(endpoint, clock, loop)
        answer = Recording(chat.decoder(), epoch_offset_ns=clock.offset_ns)
        headers = (("content-type", "application/json"), ("x-request-id", f"t{number}"))
        result = client.start(Request(path="/v1/chat/completions", headers=headers, body=body), answer, LIMITS).wait()
        client.close()
        if result.fault is not None:
            raise RuntimeError(result.fault.detail)
        ended.append((number, result.sent_ns, answer))

    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    memory = _rss_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF)
    jobs = [gevent.spawn(one, number) for number in range(streams)]
    gevent.sleep(ramp_s + 0.5)
    memory = _rss_bytes() - memory
    gevent.joinall(jobs, raise_error=True)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rows = []
    for number, sent_ns, answer in ended:
        stamps, counts = answer.reads()
        rows.append(
            {"name": f"t{number}", "sent": sent_ns, "first": answer.first_token_ns, "stamps": stamps,
             "slack": answer.first_token_slack_ns, "counts": counts, "chunks": answer.chunks,
             "coalesced": answer.coalesced}
        )  # fmt: skip
    json.dump({"cpu_s": cpu_s, "memory": memory, "rows": rows}, sys.stdout)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def figures(run: dict[str, Any], truth: dict[str, Times]) -> dict[str, float]:
    """One run held against the server's own record.

    `ttft`: |our TTFT - the server's time from request read to first write|, which holds the request's way to the server
    and the server's wake-up too; `arrival`: first token - its write, which does not; `gap`: |our gap - the server's|.
    """
    ttft, arrival, gaps = [], [], []
    rows = run["rows"]
    chunks = sum(row["chunks"] for row in rows)
    for row in rows:
        times = truth[row["name"]]
        written = times.written_ns
        ttft.append(abs((row["first"] - row["sent"]) - int(written[0] - times.received_ns)))
        arrival.append(row["first"] - int(written[0]))
        counts = np.array(row["counts"])
        last = written[np.cumsum(counts) - 1]  # the last chunk of each read is what its stamp is of
        gaps.append(np.abs(np.diff(np.array(row["stamps"], dtype=np.int64)) - np.diff(last))[counts[1:] == 1])
    return {
        **_percentiles(ttft, arrival, np.concatenate(gaps)),
        "coalesced": sum(row["coalesced"] for row in rows) / chunks,
        "slack_over_1ms": float(np.mean([row["slack"] > 1_000_000 for row in rows])),
        "cpu_us": run["cpu_s"] / chunks * 1e6,
        "memory_kib": run["memory"] / len(rows) / 1024,
    }


def _percentiles(ttft: list[int], arrival: list[int], gaps: npt.NDArray[np.int64]) -> dict[str, float]:
    return {
        "ttft_p50_ms": float(np.percentile(ttft, 50)) / 1e6,
        "ttft_p99_ms": float(np.percentile(ttft, 99)) / 1e6,
        "arrival_p50_ms": float(np.percentile(arrival, 50)) / 1e6,
        "arrival_p99_ms": float(np.percentile(arrival, 99)) / 1e6,
        "gap_p99_ms": float(np.percentile(gaps, 99)) / 1e6,
    }


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy processes beside us."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def ours(rig: Rig, args: argparse.Namespace, stamps: str) -> dict[str, float]:
    rig.reset()
    command = [sys.executable, __file__, "--measure", str(rig.port), "--stamps", stamps]
    command += ["--streams", str(args.streams), "--tokens", str(args.tokens), "--ramp", str(args.ramp)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return figures(json.loads(ended.stdout), {times.name: times for times in rig.truth()})


def the_floor(rig: Rig, args: argparse.Namespace) -> dict[str, float]:
    """The same figures of the C client: what the rig and the machine allow."""
    rig.reset()
    run = rig.c_client(args.streams, args.tokens, args.ramp)
    truth = {times.name: times for times in rig.truth()}
    ttft, arrival, gaps = [], [], []
    for name, sent_ns, seen_ns in run.streams:
        written = truth[name].written_ns
        ttft.append(abs(int(seen_ns[0] - sent_ns) - int(written[0] - truth[name].received_ns)))
        arrival.append(int(seen_ns[0] - written[0]))
        gaps.append(np.abs(np.diff(seen_ns) - np.diff(written)))
    cpu_us = run.cpu_s / (args.streams * args.tokens) * 1e6
    return {**_percentiles(ttft, arrival, np.concatenate(gaps)), "cpu_us": cpu_us}


def compare(args: argparse.Namespace) -> bool:
    """Print the tables; return whether the targets are met with kernel stamps on a quiet machine."""
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        with Rig(Path(folder), ttft=200, itl=1000 / args.rate) as rig:
            for number in range(args.runs):
                print(f"run {number + 1} of {args.runs}", file=sys.stderr)
                found.setdefault(KERNEL, []).append(ours(rig, args, "kernel"))
                found.setdefault(FLOOR, []).append(the_floor(rig, args))
                found.setdefault(USER, []).append(ours(rig, args, "user"))
            for number in range(args.disturbed):
                print(f"busy run {number + 1} of {args.disturbed}", file=sys.stderr)
                with neighbours(os.cpu_count() or 1):
                    found.setdefault(KERNEL + BUSY, []).append(ours(rig, args, "kernel"))
                    found.setdefault(USER + BUSY, []).append(ours(rig, args, "user"))
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    for name, row in medians.items():
        if not name.endswith(BUSY):  # the C client ran on the quiet machine
            row["cpu_ratio"] = row["cpu_us"] / medians[FLOOR]["cpu_us"]
    print(f"{args.streams} streams x {args.rate:g} tokens/s, {args.tokens} tokens each; ", end="")
    print(f"median of {args.runs} runs ({args.disturbed} with busy neighbours)\n\n{table(medians)}\n")
    return judge(medians[KERNEL])


def table(medians: dict[str, dict[str, float]]) -> str:
    """Figures down, stacks across."""
    lines = ["| | " + " | ".join(medians) + " |", "|---" * (len(medians) + 1) + "|"]
    for key, (heading, form) in COLUMNS.items():
        cells = [form.format(row[key]) if key in row else "—" for row in medians.values()]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    return "\n".join(lines)


def judge(row: dict[str, float]) -> bool:
    """Print each target with what was measured; return whether all are met."""
    for key, limit in TARGETS.items():
        heading, form = COLUMNS[key]
        verdict = "met" if row[key] <= limit else "MISSED"
        print(f"{verdict:7} {heading}: {form.format(row[key])}, target at most {form.format(limit)}")
    return all(row[key] <= limit for key, limit in TARGETS.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens/s of each stream")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--ramp", type=float, default=1.0, help="seconds over which the streams start")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--disturbed", type=int, default=3, help="runs with a busy process on each core")
    parser.add_argument("--measure", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--stamps", choices=("kernel", "user"), default="kernel", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        measure(args.measure, args.streams, args.tokens, args.ramp, args.stamps == "kernel")
        return 0
    return 0 if compare(args) else 1


if __name__ == "__main__":
    sys.exit(main())
