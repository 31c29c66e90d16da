"""Does `infersiege capacity` find a limit that is known, and the knee of a real engine?

    .venv/bin/python bench/capacity.py emulator     # about four minutes
    .venv/bin/python bench/capacity.py llamacpp     # about five minutes; needs `make llamacpp`

emulator: 8 seats, answers of 10 steps of 20 ms. Of constant arrivals it can serve 8 / 0.2 s = 40 a second; of users,
TTFT p50 stays below 110 ms up to 11. llamacpp: 4 slots, where a fifth user waits. Exit code 1 when a limit is missed by
more than 10 %, or llama.cpp's is not from 3 to 6 users. All traffic is on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infersiege.capacity.state import CapacityState, SweepState
from infersiege.emulator.process import EmulatorProcess

ROOT = Path(__file__).parents[1]

PLAN = """
[run]
name = "{name}"
duration = "{seconds}s"
[channel.target]
engine = "{engine}"
base_url = "{url}"
model = "{model}"
ignore_eos = {ignore_eos}
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
length_scale = {lengths}
output_scale = 10
max_tokens = {tokens}
[load]
{load}
drain = "20s"
[[slo]]
metric = "ttft"
stat = "p50"
max = "{most}"
"""

SEATS, STEPS, STEP_MS = 8, 10, 20


def emulator() -> EmulatorProcess:
    options = ["--max-num-seqs", SEATS, "--step-base-ms", STEP_MS, "--step-per-sequence-ms", 0]
    options += ["--output-tokens", STEPS, "--prefill-rate", 1_000_000, "--no-prefix-caching"]
    return EmulatorProcess(*map(str, options))


def infersiege(command: str, plan: str, folder: Path, *options: str) -> int:
    path = folder / "plan.toml"
    path.write_text(plan, encoding="utf-8")
    whole = [sys.executable, "-m", "infersiege", command, str(path), "--out", str(folder / "out"), *options]
    return subprocess.run(whole, check=False).returncode


def known_limits(folder: Path) -> list[str]:
    """What the emulator can do follows from its options."""
    missed = []
    cases = (
        ("users", 'mode = "closed"\nusers = 4\nramp = "500ms"', "110ms", 11.5),
        # Below 40/s nobody waits; above it the queue grows: at 42/s half of the turns of 15 s wait 0.37 s or longer.
        ("rate", 'mode = "open"\nrate = 10\narrivals = "constant"', "250ms", 40.5),
    )
    for name, load, most, limit in cases:
        with emulator() as engine:
            sub = folder / name
            sub.mkdir()
            plan = PLAN.format(
                name=name,
                lengths=1.0,
                seconds=4 if name == "users" else 15,
                engine="vllm",
                url=engine.base_url,
                model=engine.model,
                ignore_eos="false",
                tokens=STEPS,
                load=load,
                most=most,
            )
            code = infersiege("capacity", plan, sub, "--highest", "80")
        state = msgspec.json.decode((sub / "out" / "capacity.json").read_bytes(), type=CapacityState)
        found = None if state.finding is None else state.finding.passes
        print(
            f"{name}: found {found}, computed {limit:g}, {len(state.probes)} probes of {state.most_probes}, code {code}"
        )
        if code or found is None or abs(found - limit) > 0.1 * limit:
            missed.append(f"{name}: {found} instead of {limit:g}, code {code}")
    return missed


def knee_of_llamacpp(folder: Path) -> list[str]:
    """Four slots: from the fifth user on somebody waits until an answer of 64 tokens has ended.

    A small model on one thread generates no more for four than for one: the wait is what tells. The rule is a TTFT of
    at most four times that of a lone user, since four prompts that come at once are read one after the other.
    """
    with llamacpp(folder) as (url, model):

        def plan(most: str) -> str:
            return PLAN.format(
                name="llama.cpp with 4 slots",
                seconds=20,
                engine="llama.cpp",
                url=url,
                model=model,
                ignore_eos="true",
                lengths=0.1,
                tokens=64,
                load='mode = "closed"\nusers = 2\nramp = "1s"',
                most=most,
            )

        (folder / "alone").mkdir()
        infersiege("sweep", plan("100s"), folder / "alone", "--users", "1")
        alone = msgspec.json.decode((folder / "alone" / "out" / "sweep.json").read_bytes(), type=SweepState)
        point = alone.probes[0].point
        assert point is not None and point.ttft_p50_ms is not None
        code = infersiege("capacity", plan(f"{4 * point.ttft_p50_ms:.0f}ms"), folder, "--highest", "16")
    state = msgspec.json.decode((folder / "out" / "capacity.json").read_bytes(), type=CapacityState)
    found = None if state.finding is None else state.finding.passes
    print(f"llama.cpp, 4 slots: {found} users, knee {state.knee}, {len(state.probes)} probes, code {code}")
    return [] if found is not None and 3 <= found <= 6 else [f"{found} users, not near 4"]


@contextlib.contextmanager
def llamacpp(folder: Path) -> Iterator[tuple[str, str]]:
    sys.path.insert(0, str(ROOT / "tests"))
    engines = importlib.import_module("engines")

    if (missing := engines.llamacpp_missing()) is not None:
        sys.exit(missing)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with engines.llamacpp(port, folder / "engine.log", parallel=4) as engine:
        yield engine.base_url, engine.model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("emulator", "llamacpp"))
    parser.add_argument("--keep", type=Path, help="folder for the run directories; default: a temporary one")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        missed = known_limits(folder) if given.what == "emulator" else knee_of_llamacpp(folder)
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
