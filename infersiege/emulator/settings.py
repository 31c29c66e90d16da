"""What one emulator process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from infersiege.emulator.bounds import require
from infersiege.emulator.faults import Fault
from infersiege.emulator.model import EngineSpec
from infersiege.emulator.profile import PROFILES
from infersiege.errors import UsageError


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """Frozen; raises UsageError for values that make no sense."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: the system chooses a free one."""
    model: str = "emulated-model"
    profile: str = "vllm"
    """The engine that it plays: a key of PROFILES."""
    spec: EngineSpec = field(default_factory=EngineSpec)
    seed: int = 0
    """Of the answers: their text, length and tool calls."""
    api_key: str | None = None
    tokens_per_chunk: int = 1
    """Content chunks hold so many tokens, except the first, which is sent at once."""
    output_tokens: int | None = None
    """Length of every answer that is not told to ignore its end; None: drawn."""
    output_median: int = 128
    output_sigma: float = 0.6
    """Drawn lengths are log-normal with this median and this deviation of the logarithm."""
    tool_share: float = 0.5
    """Share of the requests with tools, and a choice left to the model, that are answered by a call."""
    cached_tokens_in_usage: bool = True
    overload_in_stream: bool | None = None
    """A full queue answers a stream with 200 and an error event, as vLLM does in a burst; else with a status. None: as
    the profile does."""
    keepalive_interval_s: float | None = None
    """Comment lines on streams that were silent so long; None: as the profile does."""
    idle_timeout_s: float | None = None
    """Idle connections are closed after so long; None: as the profile does."""
    requests_per_minute: int | None = None
    """Above that 429; None: a cloud's usual limit, or none."""
    tokens_per_minute: int | None = None
    ignore_disconnects: bool = False
    """A sequence whose client went away runs to its end."""
    fault: Fault | None = None
    fault_every: int = 1
    fault_first: int | None = None
    """Only that many requests, from the start, get the fault."""
    log: Path | None = None
    log_tokens: bool = False

    def __post_init__(self) -> None:
        for option, value, least, most in (
            ("--port", self.port, 0, 65_535),
            ("--tokens-per-chunk", self.tokens_per_chunk, 1, 1_000_000),
            ("--output-tokens", self.output_tokens, 1, 1_000_000_000),
            ("--output-median", self.output_median, 1, 1_000_000_000),
            ("output_sigma", self.output_sigma, 0, 3),
            ("--tool-share", self.tool_share, 0, 1),
            ("--keepalive-interval", self.keepalive_interval_s, 0.001, 86_400),
            ("--idle-timeout", self.idle_timeout_s, 0.001, 86_400),
            ("--fault-every", self.fault_every, 1, 1_000_000_000),
            ("--requests-per-minute", self.requests_per_minute, 1, 1_000_000_000),
            ("--tokens-per-minute", self.tokens_per_minute, 1, 1_000_000_000_000),
        ):
            require(option, value, least, most)
        if self.profile not in PROFILES:
            raise UsageError(f"emulator: no profile {self.profile!r}", hint=f"known are {', '.join(PROFILES)}")
        if not self.model:
            raise UsageError("emulator: --model is empty", hint="see infersiege emulate --help")

    def fault_of(self, number: int) -> Fault | None:
        """The fault that the command line gives to the request with this number, counted from 1."""
        if self.fault is None or number % self.fault_every:
            return None
        if self.fault_first is not None and number > self.fault_first:
            return None
        return self.fault
