"""What one emulator process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from infersiege.emulator.faults import Fault
from infersiege.emulator.model import EngineSpec
from infersiege.errors import UsageError


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """Frozen; raises UsageError for values that make no sense."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: the system chooses a free one."""
    model: str = "emulated-model"
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
    overload_in_stream: bool = True
    """A full queue answers a stream with 200 and an error event, as vLLM does in a burst; else with 503."""
    keepalive_interval_s: float | None = None
    """Comment lines on streams that were silent so long."""
    idle_timeout_s: float | None = None
    """Idle connections are closed after so long."""
    ignore_disconnects: bool = False
    """A sequence whose client went away runs to its end."""
    fault: Fault | None = None
    fault_every: int = 1
    fault_first: int | None = None
    """Only that many requests, from the start, get the fault."""
    log: Path | None = None
    log_tokens: bool = False

    def __post_init__(self) -> None:
        faults = {
            "tokens per chunk": self.tokens_per_chunk < 1,
            "output tokens": self.output_tokens is not None and self.output_tokens < 1,
            "output median": self.output_median < 1,
            "output sigma": self.output_sigma < 0,
            "tool share": not 0 <= self.tool_share <= 1,
            "keep-alive interval": self.keepalive_interval_s is not None and self.keepalive_interval_s <= 0,
            "idle timeout": self.idle_timeout_s is not None and self.idle_timeout_s <= 0,
            "fault every": self.fault_every < 1,
            "port": not 0 <= self.port <= 65_535,
            "model": not self.model,
        }
        wrong = [name for name, is_wrong in faults.items() if is_wrong]
        if wrong:
            raise UsageError(f"emulator: out of range: {', '.join(wrong)}", hint="see infersiege emulate --help")

    def fault_of(self, number: int) -> Fault | None:
        """The fault that the command line gives to the chat request with this number, counted from 1."""
        if self.fault is None or number % self.fault_every:
            return None
        if self.fault_first is not None and number > self.fault_first:
            return None
        return self.fault
