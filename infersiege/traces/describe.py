"""What is in a trace, before it is run: counts, span, rates, lengths, and what a prefix cache could save at best."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from infersiege.records import BlockText, Session
from infersiege.traces.trace import Trace

SAMPLE_SESSIONS = 200
"""Sessions looked at of a trace without end."""
_SAMPLE_TURNS = 200_000
"""And turns, after which no other session is begun."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens over requests; percentiles interpolate linearly."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """None: the trace does not say (no times, no lengths, no end)."""

    name: str
    format: str
    rows: int | None
    sessions: int | None
    sampled: int
    """Sessions that the figures below are of."""
    turns: int
    skipped: dict[str, int]
    span_s: float | None
    """From the first arrival to the last."""
    mean_rate: float | None
    """Sessions per second over the span."""
    peak_rate: float | None
    """Most sessions that arrive in one second of the trace's clock."""
    ticks: int | None
    """Different arrival times: far fewer than sessions means that the recording's clock is coarse."""
    prompt_tokens: Lengths | None
    output_tokens: Lengths | None
    cache_bound: float | None
    """Share of prompt tokens that an endless prefix cache would serve; None where text is not known by blocks."""

    def line(self) -> str:
        """`12,031 rows, 12,031 sessions, span 58 min 59 s, mean 3.4/s, peak 28/s`: the sanity line of TR-03."""
        parts = [] if self.rows is None else [f"{self.rows:,} rows"]
        parts.append("endless" if self.sessions is None else f"{self.sessions:,} sessions")
        if self.span_s is not None:
            parts.append(f"span {_duration(self.span_s)}")
        if self.mean_rate is not None:
            parts.append(f"mean {self.mean_rate:.2g}/s")
        if self.peak_rate is not None:
            parts.append(f"peak {self.peak_rate:g}/s")
        parts += [f"{count:,} skipped ({reason})" for reason, count in self.skipped.items()]
        return ", ".join(parts)


def describe(trace: Trace, *, sample: int = SAMPLE_SESSIONS) -> Description:
    """Walk a finite trace in full, an endless one for its first `sample` sessions (fewer where they are very long)."""
    count = trace.sessions if trace.sessions is not None else sample
    prompts: list[int] = []
    outputs: list[int] = []
    turns = 0
    cache = _PrefixCache()
    for index in range(count):
        if trace.sessions is None and turns >= _SAMPLE_TURNS:
            count = index
            break
        session = trace.session(index)
        turns += len(session.turns)
        prompts += [turn.asked_prompt_tokens for turn in session.turns if turn.asked_prompt_tokens is not None]
        outputs += [turn.asked_output_tokens for turn in session.turns if turn.asked_output_tokens is not None]
        cache.play(session)
    times = trace.arrivals_ns
    span_s = None if times is None or len(times) < 2 else (times[-1] - times[0]) / 1e9
    return Description(
        name=trace.name,
        format=trace.format,
        rows=trace.rows,
        sessions=trace.sessions,
        sampled=count,
        turns=turns,
        skipped=dict(trace.skipped),
        span_s=span_s,
        mean_rate=(len(times) - 1) / span_s if times is not None and span_s else None,
        peak_rate=None if times is None else _peak(times),
        ticks=None if times is None else len(np.unique(np.asarray(times))),
        prompt_tokens=_lengths(prompts),
        output_tokens=_lengths(outputs),
        cache_bound=cache.share(),
    )


class _PrefixCache:
    """An endless prefix cache, by block: a block is a hit while all blocks before it were."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()
        self._hit = self._all = 0
        self._known = True

    def play(self, session: Session) -> None:
        """Requests of one session in order; a message that is not synthesised makes the whole figure unknown."""
        # What the session's last request held is in the cache, so only what came since is looked up.
        chain = held = 0
        new: list[BlockText] = []
        for turn in session.turns:
            if turn.replaces_history:
                chain = held = 0
                new = []
            if len(turn.texts) != len(turn.messages) or any(text is None for text in turn.texts):
                self._known = False
                return
            new += [text for text in turn.texts if text is not None]
            self._all += held
            self._hit += held
            chain, added = self._look_up(chain, new)
            held += added
            new = [] if turn.answer_text is None else [turn.answer_text]

    def _look_up(self, chain: int, texts: Sequence[BlockText]) -> tuple[int, int]:
        """Count blocks that follow a cached prefix: the prefix with them, and their tokens."""
        hitting = True
        added = 0
        for text in texts:
            for ident, tokens in zip(text.ids, text.tokens, strict=True):
                key = (text.scope, ident, chain)
                chain = hash((chain, text.scope, ident))  # within this process only
                self._all += tokens
                added += tokens
                hitting = hitting and key in self._seen
                if hitting:
                    self._hit += tokens
                else:
                    self._seen.add(key)
        return chain, added

    def share(self) -> float | None:
        return self._hit / self._all if self._known and self._all else None


def _lengths(values: list[int]) -> Lengths | None:
    if not values:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return Lengths(n=len(values), mean=float(np.mean(values)), p50=p50, p90=p90, p99=p99)


def _peak(times: Sequence[int]) -> float:
    seconds = np.asarray(times, dtype=np.int64) // 1_000_000_000
    return float(np.unique(seconds, return_counts=True)[1].max())


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.3g} s"
