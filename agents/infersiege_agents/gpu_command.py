"""`infersiege-agent gpu`: sample this host's GPUs until told to end."""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from infersiege_agents import loop, options, outlet
from infersiege_agents.console import say
from infersiege_agents.errors import NO_GPU, AgentError
from infersiege_agents.twin import noticed

if TYPE_CHECKING:
    from infersiege_agents.gpu_sampler import GpuSampler
    from infersiege_agents.nvml import Fault

EXAMPLES = """\
examples:
  infersiege-agent gpu --influx-url http://10.0.0.5:8086
  infersiege-agent gpu --out gpu.jsonl --seconds 60
  infersiege-agent gpu --expect 8 --wait --processes --influx-url http://10.0.0.5:8086

Each interval gives one point per GPU and MIG slice (measurement gpu) and one of the host (gpu_host). A GPU that can't
be read has ok = 0 and the reason; the others go on. Without a driver: exit code 6, or --wait.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-parser."""
    parser = commands.add_parser(
        "gpu",
        help="Sample the GPUs of this host with NVML.",
        description="Sample the GPUs and MIG slices of this host with NVML.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--interval", type=options.seconds(0.5, 60), default=1.0, metavar="S", help="time of one point  [default: 1]"
    )
    parser.add_argument(
        "--fast",
        type=options.seconds(0.05, 60),
        default=0.2,
        metavar="S",
        help="utilisation, memory and power are read this often, for min, mean and max  [default: 0.2]",
    )
    parser.add_argument(
        "--expect", type=options.count(1024), metavar="N", help="GPUs there should be  [default: the most seen so far]"
    )
    parser.add_argument("--processes", action="store_true", help="count compute processes too, each 10 s")
    parser.add_argument("--wait", action="store_true", help="without a driver: keep trying, in place of exit code 6")
    parser.add_argument("--host", metavar="NAME", help="the points' tag host  [default: this host's name]")
    parser.add_argument("--seconds", type=options.seconds(0.5, 1e9), metavar="S", help="end after this time")
    options.add_with_parent(parser)
    outlet.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sample until a signal or the given time ends it; 4 when points were lost.

    Raises AgentError: options, outlet, or no GPU without --wait.
    """
    from infersiege_agents.gpu_sampler import GpuSampler, Settings
    from infersiege_agents.gpu_watchdog import Watchdog
    from infersiege_agents.nvml import Nvml

    fast_s = _fast(args.interval, args.fast)
    settings = Settings(
        host=(args.host or socket.gethostname()).strip() or "unknown",
        interval_s=args.interval,
        fast_s=fast_s,
        expect=args.expect,
        processes=args.processes,
    )
    nvml = Nvml()
    sampler = GpuSampler(nvml, time, settings, tell=say)
    sink = _Opened(args)
    dog = Watchdog(
        nvml, sink, host=settings.host, interval_s=args.interval, seconds=args.seconds,
        with_parent=args.with_parent, expect=args.expect,
    )  # fmt: skip
    with loop.signals() as heard:
        dog.start()
        try:
            fault = sampler.start()
            if fault is not None and not args.wait:
                raise _no_gpu(fault)
            return _sample(sampler, fast_s, settings.host, args, sink(), heard)
        finally:
            sink.end()
            sampler.close()
            dog.stop()


class _Opened:
    """The outlet, opened when it is first needed: an agent without a GPU leaves no file and no spool."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._lock = threading.Lock()
        self._outlet: outlet.Outlet | None = None

    def __call__(self) -> outlet.Outlet:
        """Raises AgentError. Threads may call it."""
        with self._lock:
            if self._outlet is None:
                self._outlet = outlet.open_outlet(self._args, source="gpu", environ=os.environ)
            return self._outlet

    def end(self) -> None:
        """Close it where that was not done: the watchdog had opened it, and then there was no GPU after all."""
        if self._outlet is not None and not self._outlet.closed:
            say(self._outlet.close())


def _sample(
    sampler: GpuSampler, fast_s: float, host: str, args: argparse.Namespace, sink: outlet.Outlet, heard: loop.Heard
) -> int:
    since_tick = 0.0

    def step() -> None:
        nonlocal since_tick
        points = sampler.step()
        for point in points:
            sink.put(point)
        since_tick += fast_s
        if points or since_tick >= 1.0:
            since_tick = 0.0
            sink.tick()

    try:
        with noticed(f"gpu of {host}", say):
            loop.run_every(fast_s, step, seconds=args.seconds, with_parent=args.with_parent, heard=heard)
        step()  # the interval that ends now
    finally:
        say(sink.close())
    return sink.exit_code


def _no_gpu(fault: Fault) -> AgentError:
    from infersiege_agents.gpu_sampler import NO_CARD
    from infersiege_agents.nvml import INIT, hint

    if fault == NO_CARD:
        what = "the NVIDIA driver answers, but it has no GPU for this process"
    elif fault.call != INIT:
        what = f"the NVIDIA driver answers, but its GPUs can't be read: {fault.text}, code {fault.code}"
    else:
        what = f"NVML can't be used: {fault.text}, code {fault.code}"
    return AgentError(what, hint=f"{hint(fault.code)}; --wait keeps trying", exit_code=NO_GPU)


def _fast(interval_s: float, fast_s: float) -> float:
    """Time between quick samples: a whole part of the interval, near what was asked for."""
    return interval_s / max(round(interval_s / fast_s), 1)
