"""How true our times are, and what an event costs: against a C server that wrote down when it wrote each token.

    python bench/truth.py                    # 500 streams x 50 tokens/s, kernel and user stamps, quiet and disturbed
    python bench/truth.py --streams 64 --runs 3

Each run is a fresh process; the stacks take turns, and the median of the runs is printed. `--neighbour` runs also have
a busy process on every core. The C client (bench/rig/cclient.c) only reads and looks for blank lines.
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

import gevent
import numpy as np
from rig.server import Rig, Times, build

from infersiege.channels.answer import Answer
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.wire.exchange import Deadlines, Request
from infersiege.wire.transport import Client, DecoderLoop, Endpoint, StampClock

SECOND_NS = 1_000_000_000
TARGETS = {"ttft_p50_ms": 0.1, "ttft_p99_ms": 0.5, "gap_p99_ms": 0.05, "coalesced": 0.01, "cpu_ratio": 2.0}
LIMITS = Deadlines(
    connect_ns=30 * SECOND_NS, first_token_ns=60 * SECOND_NS, idle_ns=60 * SECOND_NS, total_ns=600 * SECOND_NS
)


class Recording(Answer):
    """Keeps the stamps of its chunks (the product keeps only their histogram)."""

    stamps: list[int]
    counts: list[int]
    """Chunks of each read."""

    def end(self) -> None:
        if not self.ended:
            self.stamps = list(self._stamps)
            self.counts = [self._counts.get(index, 1) for index in range(len(self._stamps))]
        super().end()


def measure(port: int, streams: int, tokens: int, ramp_s: float, kernel: bool) -> None:
    """One run of our client in this process; prints its figures as JSON."""
    clock = StampClock(kernel=kernel)
    loop = DecoderLoop(clock)
    endpoint = Endpoint.from_url(f"http://127.0.0.1:{port}")
    chat = OpenAIChat()
    body = b'{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}' % tokens
    rows: list[dict[str, object]] = []
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
        rows.append(
            {"name": f"t{number}", "sent": result.sent_ns, "first": answer.first_token_ns, "stamps": answer.stamps,
             "slack": answer.first_token_slack_ns, "counts": answer.counts, "chunks": answer.chunks,
             "coalesced": answer.coalesced}
        )  # fmt: skip

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
    json.dump({"cpu_s": cpu_s, "memory": memory, "rows": rows}, sys.stdout)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def figures(run: dict[str, object], truth: dict[str, Times]) -> dict[str, float]:
    """One run held against the server's own record.

    `ttft`: |our TTFT - the server's time from request read to first write|, which on a busy machine holds the server's
    own delays too; `arrival`: first token - its write, which does not; `gap`: |our gap - the server's|.
    """
    ttft, arrival, gaps, slack = [], [], [], []
    rows: list[dict[str, object]] = run["rows"]  # type: ignore[assignment]
    chunks = sum(int(row["chunks"]) for row in rows)  # type: ignore[call-overload]
    for row in rows:
        times = truth[str(row["name"])]
        written = times.written_ns
        ttft.append(abs((row["first"] - row["sent"]) - int(written[0] - times.received_ns)))  # type: ignore[operator]
        slack.append(row["slack"])
        arrival.append(int(row["first"]) - int(written[0]))  # type: ignore[call-overload]
        counts = np.array(row["counts"])
        last = written[np.cumsum(counts) - 1]  # the last chunk of each read is what its stamp is of
        gaps.append(np.abs(np.diff(np.array(row["stamps"], dtype=np.int64)) - np.diff(last))[counts[1:] == 1])
    return {
        "ttft_p50_ms": float(np.percentile(ttft, 50)) / 1e6,
        "ttft_p99_ms": float(np.percentile(ttft, 99)) / 1e6,
        "arrival_p99_ms": float(np.percentile(arrival, 99)) / 1e6,
        "gap_p99_ms": float(np.percentile(np.concatenate(gaps), 99)) / 1e6,
        "coalesced": sum(int(row["coalesced"]) for row in rows) / chunks,  # type: ignore[call-overload]
        "slack_over_1ms": float(np.mean(np.array(slack) > 1_000_000)),
        "cpu_us": float(run["cpu_s"]) / chunks * 1e6,  # type: ignore[arg-type]
        "memory_kib": float(run["memory"]) / len(rows) / 1024,  # type: ignore[arg-type]
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
    run = rig.c_client(args.streams, args.tokens, args.ramp)
    return {"cpu_us": (run["user"] + run["sys"]) / run["events"] * 1e6}


def compare(args: argparse.Namespace) -> bool:
    """Print the table; return whether the targets are met with kernel stamps on a quiet machine."""
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        with Rig(Path(folder), ttft=200, itl=1000 / args.rate) as rig:
            for _ in range(args.runs):
                found.setdefault("kernel", []).append(ours(rig, args, "kernel"))
                found.setdefault("C epoll", []).append(the_floor(rig, args))
                found.setdefault("user", []).append(ours(rig, args, "user"))
            for _ in range(args.disturbed):
                with neighbours(os.cpu_count() or 1):
                    found.setdefault("kernel, busy", []).append(ours(rig, args, "kernel"))
                    found.setdefault("user, busy", []).append(ours(rig, args, "user"))
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    floor = medians["C epoll"]["cpu_us"]
    print(f"{args.streams} streams x {args.rate:g} tokens/s, {args.tokens} tokens each; median of {args.runs} runs")
    keys = [
        "ttft_p50_ms",
        "ttft_p99_ms",
        "arrival_p99_ms",
        "gap_p99_ms",
        "coalesced",
        "slack_over_1ms",
        "cpu_us",
        "memory_kib",
    ]
    print(f"{'stamps':14}" + "".join(f"{key:>16}" for key in keys) + f"{'cpu_ratio':>12}")
    for name, row in medians.items():
        row["cpu_ratio"] = row["cpu_us"] / floor
        cells = "".join(f"{row[key]:16.4f}" if key in row else f"{'-':>16}" for key in keys)
        print(f"{name:14}{cells}{row['cpu_ratio']:12.2f}")
    missed = [key for key, limit in TARGETS.items() if medians["kernel"][key] > limit]
    print("targets met" if not missed else f"targets missed: {', '.join(f'{k} <= {TARGETS[k]:g}' for k in missed)}")
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens/s of each stream")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--ramp", type=float, default=1.0, help="seconds over which the streams start")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--disturbed", type=int, default=1, help="runs with a busy process on each core")
    parser.add_argument("--measure", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--stamps", choices=("kernel", "user"), default="kernel", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        measure(args.measure, args.streams, args.tokens, args.ramp, args.stamps == "kernel")
        return 0
    return 0 if compare(args) else 1


if __name__ == "__main__":
    sys.exit(main())
