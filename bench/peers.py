"""How many streamed events does a CPU second read, with our client and with others? How late do they see a first token?

    make bench
    .venv/bin/python bench/peers.py --streams 64 --rounds 5

One server (bench/rig), the same paced streams, each client alone in a process of its own, the order rotating from round
to round. Needs gcc, and the dependency group `bench`. Exit code 2 when a client did not read every event.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from peer_clients import CLIENTS, Load, Reading
from rig.server import Rig, build

BENCH = Path(__file__).parent
OURS = "infersiege"


class Round(msgspec.Struct, frozen=True):
    """One client in one round."""

    us_per_event: float
    late_p50_ms: float
    late_p99_ms: float
    """First text as the client has it, minus the server's time of writing it."""


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
    truth = {times.name: int(times.written_ns[0]) for times in rig.truth() if len(times.written_ns)}
    late_ms = [(at_ns - truth[request]) / 1e6 for request, at_ns in reading.first_token_ns.items()]
    p50, p99 = np.percentile(late_ms, [50, 99])
    return Round(reading.cpu_s / reading.events * 1e6, float(p50), float(p99)), reading.version


def measure(
    names: list[str], load: Load, rounds: int, event_rate: float
) -> tuple[dict[str, list[Round]], dict[str, str]]:
    """Every client in every round; the order rotates, so that none always runs on a warmer or busier machine."""
    results: dict[str, list[Round]] = {name: [] for name in names}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        with Rig(Path(folder), ttft=50, ttft_j=0.5, itl=1000 / event_rate, itl_j=0.3) as rig:
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
        "| client | events per CPU second | µs per event (min to max) | CPU, ours = 1 | 1st token late, p50 / p99 ms |",
        "|---|---|---|---|---|",
    ]
    for name, rounds in results.items():
        costs = [one.us_per_event for one in rounds]
        cost = statistics.median(costs)
        late = [statistics.median(getattr(one, key) for one in rounds) for key in ("late_p50_ms", "late_p99_ms")]
        lines.append(
            f"| {name} ({versions[name]}) | {1e6 / cost:,.0f} | {cost:.1f} ({min(costs):.1f} to {max(costs):.1f}) "
            f"| {'—' if ours is None else f'{cost / ours:.2f}'} | {late[0]:.2f} / {late[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per streamed event, ours and others.")
    parser.add_argument("--streams", type=int, default=64, help="read at the same time")
    parser.add_argument("--requests", type=int, default=2, help="per stream, one after the other")
    parser.add_argument("--tokens", type=int, default=100, help="events per request")
    parser.add_argument("--rate", type=float, default=50, help="events per second and stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="append", choices=list(CLIENTS), help="only these (may be repeated)")
    options = parser.parse_args()
    load = Load(port=0, streams=options.streams, requests=options.requests, tokens=options.tokens)
    results, versions = measure(options.client or list(CLIENTS), load, options.rounds, options.rate)
    print(
        f"{load.streams} streams of {options.rate:.0f} events/s, {load.requests} × {load.tokens} events each, ", end=""
    )
    print(f"median of {options.rounds} rounds\n\n{table(results, versions)}")


if __name__ == "__main__":
    main()
