"""The command `infersiege emulate`, which is also `python -m infersiege.emulator`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from infersiege.emulator.bounds import require
from infersiege.emulator.faults import Fault, parse_fault
from infersiege.emulator.model import LONGEST_STEP_MS, PRESETS, EngineSpec
from infersiege.emulator.profile import PROFILES
from infersiege.emulator.server import EmulatorServer, new_event_loop
from infersiege.emulator.settings import EmulatorSettings

_MS = 1_000_000


async def serve(
    settings: EmulatorSettings, announce: Callable[[str], None], *, until_stdin_closes: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM (or the end of standard input). Raises UsageError when it can't start."""
    server = EmulatorServer(settings)
    port = await server.start()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stopped.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, stopped)
    # What was made so far stays; a collection of it in the middle of a step would delay tokens.
    gc.freeze()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"listening on http://{host}:{port}/v1 (model {settings.model})")
    await stopped.wait()
    if until_stdin_closes:
        loop.remove_reader(sys.stdin.fileno())
    await server.stop()


def _stop_at_end_of_input(stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stopped.set()


def _spec(preset: str, values: dict[str, Any]) -> EngineSpec:
    """The preset with what the command line changes."""
    changes: dict[str, Any] = {}
    for option, name in (
        ("prefill_rate", "prefill_tokens_per_s"),
        ("max_num_seqs", "max_num_seqs"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("kv_blocks", "kv_blocks"),
        ("max_model_len", "max_model_len"),
        ("max_queue", "max_queue"),
        ("noise", "noise"),
    ):
        if values[option] is not None:
            changes[name] = values[option]
    for option, name in (("step_base_ms", "step_base_ns"), ("step_per_sequence_ms", "step_per_sequence_ns")):
        if values[option] is not None:
            require("--" + option.replace("_", "-"), values[option], 0, LONGEST_STEP_MS)
            changes[name] = round(values[option] * _MS)
    return replace(PRESETS[preset], seed=values["seed"], prefix_caching=values["prefix_caching"], **changes)


def _settings(values: dict[str, Any]) -> EmulatorSettings:
    fault: Fault | None = None
    for text in values["fault"]:
        fault = parse_fault(text, fault)
    return EmulatorSettings(
        host=values["host"],
        port=values["port"],
        model=values["model"],
        profile=values["profile"],
        spec=_spec(values["preset"], values),
        seed=values["seed"],
        api_key=values["api_key"] or None,
        tokens_per_chunk=values["tokens_per_chunk"],
        output_tokens=values["output_tokens"],
        output_median=values["output_median"],
        tool_share=values["tool_share"],
        cached_tokens_in_usage=values["cached_tokens"],
        overload_in_stream=None if values["overload"] is None else values["overload"] == "in-stream",
        keepalive_interval_s=values["keepalive_interval"],
        idle_timeout_s=values["idle_timeout"],
        requests_per_minute=values["requests_per_minute"],
        tokens_per_minute=values["tokens_per_minute"],
        ignore_disconnects=values["ignore_disconnects"],
        fault=fault,
        fault_every=values["fault_every"],
        fault_first=values["fault_first"],
        log=values["log"],
        log_tokens=values["log_tokens"],
    )


@click.command(
    name="emulate",
    epilog="Example: infersiege emulate --port 8000 --model demo --preset h100-8b --log truth.jsonl",
    context_settings={"show_default": True},
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, help="0: a free one, printed.")
@click.option(
    "--model",
    default="emulated-model",
    metavar="NAME",
    help="The model's name; others get 404, where the profile looks at it.",
)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="vllm", help="The engine or cloud that it plays.")
@click.option("--api-key", envvar="INFERSIEGE_EMULATOR_API_KEY", help="Ask for this key (better: the variable).")
@click.option("--preset", type=click.Choice(sorted(PRESETS)), default="small", help="Constants of the engine.")
@click.option("--prefill-rate", type=float, metavar="TOKENS/S", help="Prompt tokens computed per second.")
@click.option("--step-base-ms", type=float, help="Duration of a step, whatever is in it.")
@click.option("--step-per-sequence-ms", type=float, help="And for each sequence in it.")
@click.option("--max-num-seqs", type=int, help="Sequences that run together.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens that one step may compute (chunked prefill).")
@click.option("--kv-blocks", type=int, help="KV cache in blocks of 16 tokens.")
@click.option("--max-model-len", type=int, help="Longest prompt and answer together, in tokens.")
@click.option("--max-queue", type=int, help="Requests that may wait; more are refused. [default: no limit]")
@click.option(
    "--overload",
    type=click.Choice(["in-stream", "status"]),
    help="How they are refused. [default: as the profile does]",
)
@click.option("--requests-per-minute", type=int, help="More get 429. [default: no limit; clouds 60,000]")
@click.option("--tokens-per-minute", type=int, help="More get 429. [default: no limit; clouds 100,000,000]")
@click.option("--noise", type=float, help="Deviation of the logarithm of step durations, such as 0.05.")
@click.option("--prefix-caching/--no-prefix-caching", default=True, help="Share KV blocks by content.")
@click.option("--seed", type=int, default=0, help="Of answers and noise; the same request gets the same answer.")
@click.option("--output-tokens", type=int, help="Fixed length of answers. [default: drawn]")
@click.option("--output-median", type=int, default=128, help="Median of drawn lengths (log-normal, sigma 0.6).")
@click.option("--tokens-per-chunk", type=int, default=1, help="Tokens per content chunk; the first is sent at once.")
@click.option("--tool-share", type=float, default=0.5, help="Share of requests with tools answered by a call.")
@click.option("--cached-tokens/--no-cached-tokens", default=True, help="Tell cached_tokens in the usage.")
@click.option("--keepalive-interval", type=float, metavar="SECONDS", help="Comment lines (or pings) on silent streams.")
@click.option("--idle-timeout", type=float, metavar="SECONDS", help="Close connections that were idle so long.")
@click.option("--ignore-disconnects", is_flag=True, help="Go on generating for clients that left.")
@click.option(
    "--fault", multiple=True, metavar="NAME=VALUE", help="Do this wrong, such as reset_after=3 (docs/emulator.md)."
)
@click.option("--fault-every", type=click.IntRange(1), default=1, help="Only at each n-th request.")
@click.option("--fault-first", type=click.IntRange(1), help="Only at the first n requests.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Truth log: a JSON line per request.")
@click.option("--log-tokens", is_flag=True, help="With the instant of each content write.")
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
def emulate(until_stdin_closes: bool, **values: Any) -> None:
    """Serve a fake engine with a stated model of continuous batching.

    It speaks chat, completions, Responses and Anthropic's Messages as vLLM, SGLang, llama.cpp or a cloud do, on a real
    socket; no model runs, and every answer says so in the header
    x-infersiege-emulated. Expected TTFT and TPOT follow from the options by the equations of docs/emulator.md. Ctrl-C
    ends it.
    """
    settings = _settings(values)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(settings, _announce, until_stdin_closes=until_stdin_closes))


def _announce(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
