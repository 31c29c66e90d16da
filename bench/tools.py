"""Load tools for LLM servers as their users run them, against a server whose times are known. `make bench-peers`.

    .venv/bin/python bench/tools.py                              # all tools, 64, 256 and 1,000 streams
    .venv/bin/python bench/tools.py --tool aiperf --streams 64   # one of them; ours comes always first
    .venv/bin/python bench/tools.py --write                      # the table goes into docs/performance.md, too

Each tool is installed once into .venv-peers/TOOL (vLLM: .venv-vllm, by `make vllm`), and then runs alone with all its
processes on one core, the server on another one. Nothing leaves loopback. Needs gcc. A tool that can't be installed, or
that doesn't finish, is a row that says so; exit code 1 when ours didn't do all of its work.

Before each run it waits until nothing else is busy here, and a run that was disturbed is made again; a row that was
disturbed all the same says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from generated import where_and_when, write_block
from loadtools.catalogue import OURS, TOOLS, LoadTool, Work, environment, figures, our_python
from loadtools.environments import NotInstalledError, python_of
from loadtools.meter import Order, Used
from loadtools.neighbours import QUIET, Neighbours, wait_for_quiet
from loadtools.outputs import Reported, UnreadableError
from loadtools.prompts import write_tokenizer
from rig.server import Rig, Times, build

METER = Path(__file__).parent / "loadtools" / "meter.py"
TTFT_MS, TOKENS_PER_S = 200.0, 50.0
START_UP, START_UPS = (2, 2, 2), 2
"""Streams, requests and tokens of the runs whose mean CPU is taken off, and how many there are."""
TIMES = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p99_ms", "gap_p99_ms")


class Installed(msgspec.Struct, frozen=True):
    python: Path
    version: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One tool in one round."""

    used: Used
    events: int
    """That the server wrote."""
    requests: int
    """Of the work."""
    truth: dict[str, float]
    """By the names of `Reported`, in ms; empty when no request came to the server."""
    reported: Reported | None
    """None: its figures could not be read; `fault` has the reason."""
    fault: str | None = None
    others: float
    """Share of the machine that other processes took meanwhile."""

    @property
    def finished(self) -> bool:
        return self.reported is not None and self.reported.requests == self.requests and not self.used.timed_out


def true_times(rows: list[Times], tokens: int) -> dict[str, float]:
    """What a tool should say of these requests. Those with another number of tokens are probes, and left out."""
    rows = [row for row in rows if len(row.written_ns) == tokens and row.written_ns[-1] > 0]
    if not rows:
        return {}
    ttft = np.array([row.written_ns[0] - row.received_ns for row in rows]) / 1e6
    tpot = np.array([(row.written_ns[-1] - row.written_ns[0]) / (tokens - 1) for row in rows]) / 1e6
    gaps = np.concatenate([np.diff(row.written_ns) for row in rows]) / 1e6
    return {
        "ttft_p50_ms": float(np.percentile(ttft, 50)),
        "ttft_p99_ms": float(np.percentile(ttft, 99)),
        "tpot_p99_ms": float(np.percentile(tpot, 99)),
        "gap_p99_ms": float(np.percentile(gaps, 99)),
    }


def run_undisturbed(
    tool: LoadTool, python: Path, rig: Rig, load: tuple[int, int, int], options: argparse.Namespace
) -> Result:
    """Again where others were busy meanwhile: the least disturbed of the tries."""
    found: list[Result] = []
    for _ in range(options.tries):
        wait_for_quiet(options.patience)
        found.append(run_once(tool, python, rig, load, options))
        if found[-1].others <= QUIET:
            break
        print(f"disturbed: others took {found[-1].others:.0%} of the machine", file=sys.stderr)
    return min(found, key=lambda one: one.others)


def run_once(tool: LoadTool, python: Path, rig: Rig, load: tuple[int, int, int], options: argparse.Namespace) -> Result:
    """One tool with so many streams, requests and tokens."""
    streams, requests, tokens = load
    rig.reset()
    with tempfile.TemporaryDirectory() as name:
        folder, tokenizer = Path(name) / "work", Path(name) / "tokenizer"
        folder.mkdir()
        write_tokenizer(tokenizer)
        url = f"http://127.0.0.1:{rig.port}"
        work = Work(url=url, folder=folder, tokenizer=tokenizer, streams=streams, requests=requests, tokens=tokens)
        log = Path(name) / "log.txt"
        order = Order(tool.command(python, work), options.client_core, options.limit, str(log))
        neighbours, ours_s = Neighbours(), our_cpu_s(rig)
        ended = subprocess.run(
            [sys.executable, str(METER), msgspec.json.encode(order).decode()],
            cwd=folder,
            env=environment(tool, Path(name)),
            capture_output=True,
            text=True,
            check=True,
        )
        used = msgspec.json.decode(ended.stdout, type=Used)
        others = neighbours.share(our_cpu_s(rig) - ours_s)
        reported, fault = None, None
        try:
            reported = figures(tool, folder)
        except UnreadableError as error:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            fault = f"{error}; it said: {tail[0][:200] if tail else 'nothing'}"
            if options.keep_log:
                shutil.copy(log, options.keep_log)
    truth = rig.truth()
    events = sum(int(np.count_nonzero(row.written_ns)) for row in truth)
    return Result(
        used=used,
        events=events,
        requests=requests,
        truth=true_times(truth, tokens),
        reported=reported,
        fault=fault,
        others=others,
    )


def our_cpu_s(rig: Rig) -> float:
    """Of the server and of all that this process has started and waited for."""
    server = json.loads(rig.get("/stats"))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    total: float = server["user"] + server["sys"] + children.ru_utime + children.ru_stime
    return total


def install(names: list[str]) -> tuple[dict[str, Installed], dict[str, str]]:
    """Environments of the tools, and why there is none."""
    from importlib import metadata

    installed, missing = {OURS: Installed(our_python(), metadata.version("infersiege"))}, {}
    for name in names:
        if name == OURS:
            continue
        try:
            installed[name] = Installed(*python_of(name))
        except NotInstalledError as reason:
            missing[name] = str(reason)
            print(f"{name}: not installed: {reason}", file=sys.stderr)
    return installed, missing


def measure(
    installed: dict[str, Installed], options: argparse.Namespace
) -> tuple[dict[str, float], dict[int, dict[str, list[Result]]]]:
    """CPU seconds of each start, and all rounds by streams and tool; the order rotates from round to round."""
    starts: dict[str, float] = {}
    found: dict[int, dict[str, list[Result]]] = {streams: {} for streams in options.streams}
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        timing = {"ttft": TTFT_MS, "itl": 1000 / TOKENS_PER_S}
        with Rig(Path(folder), core=options.server_core, **timing) as rig:
            for name, one in installed.items():
                tries = [run_undisturbed(TOOLS[name], one.python, rig, START_UP, options) for _ in range(START_UPS)]
                starts[name] = statistics.mean(start.used.cpu_s for start in tries)
                said = " and ".join(f"{start.used.cpu_s:.1f}" for start in tries)
                print(f"{name} {one.version}: start {said} CPU s {tries[-1].fault or ''}", file=sys.stderr)
            for streams in options.streams:
                load = (streams, streams * rounds_of_requests(streams, options), options.tokens)
                for number in range(options.rounds):
                    first = number % len(installed)
                    names = list(installed)
                    for name in names[first:] + names[:first]:
                        result = run_undisturbed(TOOLS[name], installed[name].python, rig, load, options)
                        found[streams].setdefault(name, []).append(result)
                        told(name, streams, result)
    return starts, found


def rounds_of_requests(streams: int, options: argparse.Namespace) -> int:
    """Requests of each stream: so many that the CPU of the load stands out from that of the start."""
    least: int = math.ceil(options.events / (streams * options.tokens))
    return max(2, least)


def told(name: str, streams: int, result: Result) -> None:
    used = result.used
    print(
        f"{streams} streams, {name}: {used.wall_s:.1f} s, {used.cpu_s:.1f} CPU s, {used.peak_bytes / 1e6:.0f} MB in "
        f"{used.processes} processes, {result.events} events; {result.reported} true {result.truth} "
        f"{result.fault or ''}",
        file=sys.stderr,
    )


def _time(results: list[Result], key: str) -> str:
    """`273.1 (+72.9)`: what it reports and the difference to the truth, as medians over the rounds."""
    pairs = [
        (value, value - one.truth[key])
        for one in results
        if one.reported is not None and one.truth and (value := getattr(one.reported, key)) is not None
    ]
    if not pairs:
        return "—"
    value, error = (statistics.median(column) for column in zip(*pairs, strict=True))
    return f"{value:.1f} ({error:+.1f})"


def _finished(results: list[Result], limit_s: float) -> str:
    bad = [one for one in results if not one.finished]
    if not bad:
        others = max(one.others for one in results)
        disturbed = f", others took {others:.0%} of the machine" if others > QUIET else ""
        doubts = sorted({doubt.partition(":")[0] for one in results if one.reported for doubt in one.reported.doubts})
        said = f"; says itself: {', '.join(doubts)}" if doubts else ""
        return f"{statistics.median(one.used.wall_s for one in results):.0f} s{disturbed}{said}"
    one = bad[0]
    if one.used.timed_out:
        return f"no, stopped after {limit_s:.0f} s"
    if one.reported is None:
        return f"no, exit code {one.used.exit_code}, no figures"
    return f"no, {one.reported.requests:,} of {one.requests:,} requests, exit code {one.used.exit_code}"


def rows_of(
    installed: dict[str, Installed],
    missing: dict[str, str],
    starts: dict[str, float],
    results: dict[str, list[Result]],
    limit_s: float,
) -> list[str]:
    """One row for each tool, also for those that aren't there."""
    lines = [
        "| tool | TTFT p50, ms | TTFT p99, ms | TPOT p99, ms | gap p99, ms | events per CPU second "
        "| memory, MB | done in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rounds in results.items():
        costs = [one.events / cpu_s for one in rounds if (cpu_s := one.used.cpu_s - starts[name]) > 0]
        rate = f"{statistics.median(costs):,.0f}" if costs else "—"
        memory = statistics.median(one.used.peak_bytes for one in rounds) / 1e6
        times = " | ".join(_time(rounds, key) for key in TIMES)
        label = f"{name} {installed[name].version}"
        lines.append(f"| {label} | {times} | {rate} | {memory:,.0f} | {_finished(rounds, limit_s)} |")
    lines += [f"| {name} | not installed: {reason} {'| ' * 6}|" for name, reason in missing.items()]
    return lines


def report(
    installed: dict[str, Installed],
    missing: dict[str, str],
    starts: dict[str, float],
    found: dict[int, dict[str, list[Result]]],
    options: argparse.Namespace,
) -> str:
    """The Markdown that is printed, and written into docs/performance.md."""
    parts = [
        f"{where_and_when()}. Answers of {options.tokens} events, {TOKENS_PER_S:.0f} events/s each, true TTFT "
        f"{TTFT_MS:.0f} ms; {'one round' if options.rounds == 1 else f'medians of {options.rounds} rounds'}."
    ]
    for streams, results in found.items():
        requests = rounds_of_requests(streams, options)
        least_s = requests * (TTFT_MS / 1000 + (options.tokens - 1) / TOKENS_PER_S)
        parts.append(
            f"{streams:,} streams, {streams * TOKENS_PER_S:,.0f} events/s, {streams * requests:,} requests, of which "
            f"the answers alone take {least_s:.0f} s:"
        )
        parts.append("\n".join(rows_of(installed, missing, starts, results, options.limit)))
    lines = [f"* {name} ({starts[name]:.1f} CPU s to start): {TOOLS[name].includes}." for name in installed]
    return "\n\n".join([*parts, "\n".join(["What each does in that time:", "", *lines])])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="only these (may be repeated) and ours")
    parser.add_argument("--streams", action="append", type=int, help="at a time (may be repeated): 64, 256, 1000")
    parser.add_argument("--events", type=int, default=100_000, help="at least so many for each tool and load")
    parser.add_argument("--tokens", type=int, default=128, help="events per request")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a tool is stopped")
    parser.add_argument("--tries", type=int, default=3, help="for each run, as long as others disturb it")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for others before each run")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--keep-log", type=Path, help="file for the output of the last tool that left no figures")
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--client-core", type=int, default=cores[0])
    parser.add_argument("--server-core", type=int, default=cores[-1])
    options = parser.parse_args()
    options.streams = options.streams or [64, 256, 1000]
    return options


def main() -> int:
    options = arguments()
    installed, missing = install(options.tool or list(TOOLS))
    os.sched_setaffinity(0, {options.server_core})  # the meter, too
    starts, found = measure(installed, options)
    text = report(installed, missing, starts, found, options)
    print(text)
    if options.write:
        write_block("bench-tools", text)
    return 0 if all(one.finished for rounds in found.values() for one in rounds[OURS]) else 1


if __name__ == "__main__":
    sys.exit(main())
