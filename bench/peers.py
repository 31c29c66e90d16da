"""How many streamed events does a CPU second read, with our client and with others? How true are their times?

    make bench
    .venv/bin/python bench/peers.py --streams 64 --streams 256 --rounds 3

One server (bench/rig) on one core, the same paced streams, each client alone in a process of its own on another core,
the order rotating from round to round. Needs gcc, and the dependency group `bench`. Exit code 2 when a client did not
read every event.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from generated import where_and_when, write_block
from peer_clients import CLIENTS, Load, Reading
from rig.server import Rig, Times, build

BENCH = Path(__file__).parent
OURS = "infersiege"


class Round(msgspec.Struct, frozen=True):
    """One client in one round."""

    us_per_event: float
    late_p50_ms: float
    late_p99_ms: float
    """First text as the client has it, minus the server's time of writing it."""
    ttft_error_ms: float
    """|The client's TTFT - the server's|, p99."""
    gap_error_ms: float
    """|The client's gap between two texts - the server's|, p99."""
    peak_mb: float


def read_once(name: str, load: Load, rig: Rig) -> tuple[Round, str]:
    """Run one client; its figures and its version. SystemExit when it failed or missed events."""
    rig.reset()
    load = msgspec.structs.replace(load, port=rig.port)
    command = [sys.executable, str(BENCH / "peer_clients.py"), name, msgspec.json.encode(load).decode()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode:
        raise SystemExit(f"error: {name} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    reading = msgspec.json.decode(ended.stdout.splitlines()[-1], type=Reading)
    expected = load.streams * load.requests * load.tokens
    if reading.events != expected:
        print(f"error: {name} read {reading.events} of {expected} events", file=sys.stderr)
        raise SystemExit(2)
    return compare(reading, {times.name: times for times in rig.truth()}), reading.version


def compare(reading: Reading, truth: dict[str, Times]) -> Round:
    """A client's times held against the server's."""
    late, ttft, gaps = [], [], []
    for request, seen in reading.token_ns.items():
        written, seen_ns = truth[request].written_ns, np.array(seen, dtype=np.int64)
        late.append(int(seen_ns[0] - written[0]))
        ttft.append(abs(int(seen_ns[0]) - reading.sent_ns[request] - truth[request].ttft_ns))
        gaps.append(np.abs(np.diff(seen_ns) - np.diff(written)))
    return Round(
        us_per_event=reading.cpu_s / reading.events * 1e6,
        late_p50_ms=float(np.percentile(late, 50)) / 1e6,
        late_p99_ms=float(np.percentile(late, 99)) / 1e6,
        ttft_error_ms=float(np.percentile(ttft, 99)) / 1e6,
        gap_error_ms=float(np.percentile(np.concatenate(gaps), 99)) / 1e6,
        peak_mb=reading.peak_bytes / 1e6,
    )


def measure(
    names: list[str], load: Load, rounds: int, event_rate: float
) -> tuple[dict[str, list[Round]], dict[str, str]]:
    """Every client in every round; the order rotates, so that none always runs on a warmer or busier machine."""
    results: dict[str, list[Round]] = {name: [] for name in names}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        server_core, client_core = max(os.sched_getaffinity(0)), min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {client_core})  # what is started inherits it
        with Rig(Path(folder), core=server_core, ttft=50, ttft_j=0.5, itl=1000 / event_rate, itl_j=0.3) as rig:
            for number in range(rounds):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    result, versions[name] = read_once(name, load, rig)
                    results[name].append(result)
                    print(f"round {number + 1}: {name}: {result.us_per_event:.1f} µs per event", file=sys.stderr)
    return results, versions


def table(results: dict[str, list[Round]], versions: dict[str, str]) -> str:
    """Medians over the rounds as a Markdown table, with the spread of what it is about."""
    ours = statistics.median(one.us_per_event for one in results[OURS]) if OURS in results else None
    lines = [
        "| client | events per CPU second | µs per event (min to max) | CPU, ours = 1 | 1st token late, p50 / p99 ms "
        "| TTFT error p99, ms | gap error p99, ms | memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rounds in results.items():
        costs = [one.us_per_event for one in rounds]
        cost = statistics.median(costs)
        p50, p99, ttft, gap, memory = (
            statistics.median(getattr(one, key) for one in rounds)
            for key in ("late_p50_ms", "late_p99_ms", "ttft_error_ms", "gap_error_ms", "peak_mb")
        )
        lines.append(
            f"| {name} ({versions[name]}) | {1e6 / cost:,.0f} | {cost:.1f} ({min(costs):.1f} to {max(costs):.1f}) "
            f"| {'—' if ours is None else f'{cost / ours:.2f}'} | {p50:.2f} / {p99:.2f} "
            f"| {ttft:.2f} | {gap:.2f} | {memory:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per streamed event, ours and others.")
    parser.add_argument("--streams", type=int, action="append", help="read at the same time (may be repeated): 64")
    parser.add_argument("--requests", type=int, default=2, help="per stream, one after the other")
    parser.add_argument("--tokens", type=int, default=100, help="events per request")
    parser.add_argument("--rate", type=float, default=50, help="events per second and stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="append", choices=list(CLIENTS), help="only these (may be repeated)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args()
    parts = [f"{where_and_when()}, median of {options.rounds} round{'s' * (options.rounds > 1)}."]
    for streams in options.streams or [64]:
        load = Load(port=0, streams=streams, requests=options.requests, tokens=options.tokens)
        results, versions = measure(options.client or list(CLIENTS), load, options.rounds, options.rate)
        parts.append(
            f"{streams:,} streams of {options.rate:.0f} events/s, {load.requests} × {load.tokens} events each:"
        )
        parts.append(table(results, versions))
    print("\n\n".join(parts))
    if options.write:
        write_block("bench-peers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
