"""Token counts and times that servers tell inside an OpenAI-style answer. Pure."""

from __future__ import annotations

from infersiege.channels.dialect import Usage

_MOST_TOKENS = 10**12
"""More is no token count but garbage, and would not fit the integers of what reads our files."""


class Counters:
    """Usage of one answer. Counters are cumulative: the last present value of each wins, nothing is added up.

    A 0 never replaces a real count: gateways send zeroes before or after the engine's own figures.
    """

    __slots__ = ("_timed", "_usage", "odd", "server_ttft_ns")

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._timed: Usage | None = None
        self.server_ttft_ns: int | None = None
        """Prefill time as the engine saw it."""
        self.odd = False
        """A count was no whole number from 0 up; it was left out."""

    def take_usage(self, usage: object) -> int | None:
        """The `usage` of one chunk. Returns its output tokens so far."""
        if not isinstance(usage, dict):
            self.odd = True
            return None
        prompt_details, output_details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        cached = _first_told(
            prompt_details.get("cached_tokens") if isinstance(prompt_details, dict) else None,
            usage.get("prompt_cache_hit_tokens"),  # DeepSeek
            usage.get("cached_tokens"),  # Moonshot
        )
        written = prompt_details.get("cache_write_tokens") if isinstance(prompt_details, dict) else None
        reasoning = output_details.get("reasoning_tokens") if isinstance(output_details, dict) else None
        if reasoning is None:  # SGLang
            reasoning = usage.get("reasoning_tokens")
        before = self._usage or Usage()
        self._usage = Usage(
            prompt_tokens=self._newer(usage.get("prompt_tokens"), before.prompt_tokens),
            cached_tokens=self._newer(cached, before.cached_tokens),
            cache_write_tokens=self._newer(written, before.cache_write_tokens),
            output_tokens=self._newer(usage.get("completion_tokens"), before.output_tokens),
            reasoning_tokens=self._newer(reasoning, before.reasoning_tokens),
        )
        return self._usage.output_tokens

    def take_timings(self, timings: object) -> int | None:
        """llama.cpp's `timings`: prefill time, and counts for want of usage. Returns its output tokens so far."""
        if not isinstance(timings, dict):
            return None
        before = self._timed or Usage()
        fresh, cached = timings.get("prompt_n"), timings.get("cache_n")
        whole = fresh + cached if type(fresh) is int and type(cached) is int else None
        self._timed = Usage(
            prompt_tokens=self._newer(whole, before.prompt_tokens),
            cached_tokens=self._newer(cached, before.cached_tokens),
            output_tokens=self._newer(timings.get("predicted_n"), before.output_tokens),
        )
        self.server_ttft_ns = milliseconds_to_ns(timings.get("prompt_ms")) or self.server_ttft_ns
        return self._timed.output_tokens

    def take_metrics(self, metrics: object) -> None:
        """vLLM's `metrics` of one request (`--enable-per-request-metrics`)."""
        if isinstance(metrics, dict):
            told = milliseconds_to_ns(metrics.get("time_to_first_token_ms"))
            self.server_ttft_ns = told or self.server_ttft_ns

    def usage(self) -> Usage | None:
        """What `usage` said, else what `timings` said."""
        if self._timed is not None and (self._usage is None or self._usage.output_tokens is None):
            return self._timed
        return self._usage

    def _newer(self, value: object, before: int | None) -> int | None:
        if value is None:
            return before
        count = token_count(value)
        if count is None:
            self.odd = True
            return before
        return count or before or 0


def _first_told(*values: object) -> object:
    """One count that servers put in several places, where gateways leave null or 0 in those that they don't fill."""
    told = [value for value in values if value is not None]
    return next((value for value in told if token_count(value) != 0), told[0] if told else None)


def token_count(value: object) -> int | None:
    """A whole number of tokens, also where it is written as a float; None: it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def milliseconds_to_ns(value: object) -> int | None:
    """Whole ns of a number of milliseconds; None for what can't be a time (0 among it: no server takes none)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12:
        return round(value * 1e6)
    return None
