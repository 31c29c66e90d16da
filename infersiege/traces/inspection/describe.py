"""What is in a trace, before it is run: counts, span, rates, lengths, and what a prefix cache could save at best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from infersiege.traces.inspection.context_fit import ContextFit, fit, share_of
from infersiege.traces.inspection.measured import UNKNOWN, Integers, Mark, Measured, measure
from infersiege.traces.trace import Trace

SAMPLE_SESSIONS = 200
"""Sessions looked at of a trace without end."""
CONTEXT_LIMITS = (8_192, 32_768, 131_072)
DELAY_CAP_NS = 60_000_000_000
"""The plan's `delay_cap`, unless it has another."""
FEW_SESSIONS = 100
"""Below that a run of any length plays the same sessions again and again (TR-12)."""
_SECOND_NS = 1_000_000_000


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution; percentiles interpolate linearly."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """Think and tool times in seconds, each from the end of the answer before; None: there is none of that kind."""

    all: Lengths
    tool: Lengths | None
    """Before turns that bring a tool's result."""
    user: Lengths | None
    """Before turns of a user. Traces of lengths don't tell who came before: those are in `all` only."""
    cap_s: float
    capped_turns: int
    """Delays above the cap, which a run would shorten."""
    capped_share: float
    removed_share: float
    """Part of all waiting that the cap takes away."""


class Longest(msgspec.Struct, frozen=True, kw_only=True):
    """The request that needs the largest context."""

    source_line: int | None
    """Of its session in the file."""
    turn: int
    input_tokens: int
    output_tokens: int | None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """None: the trace does not say (no times, no lengths, no end).

    docs/traces-inspect.md defines each figure. Three have other names in JSON, which are those that users know.
    """

    name: str
    format: str
    estimated: bool
    """Lengths that the trace does not tell were estimated from the characters of its messages."""
    rows: int | None
    sessions: int | None
    sampled: int
    """Sessions that the figures below are of."""
    turns: int
    branches: int
    skipped: dict[str, int]
    """Rows by reason."""
    span_s: float | None
    """From the first arrival to the last."""
    mean_rate: float | None
    """Sessions per second: arrivals after the first, over the span."""
    peak_rate: float | None
    """Most sessions that arrive in one second of the trace's clock."""
    ticks: int | None = msgspec.field(name="distinct_arrivals")
    """Different arrival times: far fewer than sessions means that the recording's clock is coarse."""
    interarrival_cv: float | None
    """Standard deviation of the gaps between successive arrivals, over their mean."""
    prompt_tokens: Lengths | None = msgspec.field(name="input_tokens")
    output_tokens: Lengths | None
    turns_per_session: float | None
    """In the mean."""
    session_turns: Lengths | None
    growth_tokens: Lengths | None
    """Prompt tokens of later turns that no earlier request of their session held."""
    shrinking_turns: int
    """Turns with a shorter prompt than the one before on their line (compaction)."""
    delays: Delays | None
    prefix_share: float | None
    """Of prompt tokens, what the same session's earlier requests held; None also where only lengths are told."""
    cache_bound: float | None = msgspec.field(name="prefix_hit_bound")
    """Share of prompt tokens that an endless prefix cache would serve; None also where only lengths are told."""
    longest: Longest | None
    context: tuple[ContextFit, ...]
    warnings: tuple[str, ...]

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
    return describe_measured(trace, measure(trace, sample))


def describe_measured(
    trace: Trace,
    measured: Measured,
    *,
    context_limits: Sequence[int] = CONTEXT_LIMITS,
    clip: bool = False,
    delay_cap_ns: int = DELAY_CAP_NS,
    wanted: int | None = None,
) -> Description:
    """The figures of what `measure` found. `clip`: what is over a limit is cut, not skipped. `wanted`: sessions that a
    run is to have, for a warning where the trace has fewer."""
    arrivals = measured.arrivals_ns
    span_s = None if arrivals is None or len(arrivals) < 2 else float(arrivals[-1] - arrivals[0]) / _SECOND_NS
    counts = measured.turn_counts
    estimated = measured.marked(Mark.PROMPT_ESTIMATED | Mark.OUTPUT_ESTIMATED)
    later = ~measured.marked(Mark.FIRST) & (measured.own != UNKNOWN)
    return Description(
        name=trace.name,
        format=trace.format,
        estimated=bool(estimated.any()),
        rows=trace.rows,
        sessions=trace.sessions,
        sampled=measured.sessions,
        turns=len(measured.prompt),
        branches=measured.branches,
        skipped=dict(trace.skipped),
        span_s=span_s,
        mean_rate=(len(arrivals) - 1) / span_s if arrivals is not None and span_s else None,
        peak_rate=None if arrivals is None else _peak(arrivals),
        ticks=None if arrivals is None else len(np.unique(arrivals)),
        interarrival_cv=None if arrivals is None else _variation(np.diff(arrivals)),
        prompt_tokens=_lengths(measured.prompt),
        output_tokens=_lengths(measured.output),
        turns_per_session=float(counts.mean()) if len(counts) else None,
        session_turns=_lengths(counts),
        growth_tokens=_lengths((measured.prompt - measured.own)[later]),
        shrinking_turns=int(measured.marked(Mark.SHRANK).sum()),
        delays=_delays(measured, delay_cap_ns),
        prefix_share=share_of(measured.own, measured.prompt) if measured.sharing_told else None,
        cache_bound=share_of(measured.cached, measured.prompt) if measured.sharing_told else None,
        longest=_longest(trace, measured),
        context=tuple(fit(measured, limit, clip=clip) for limit in context_limits)
        if (measured.prompt != UNKNOWN).any()
        else (),
        warnings=(*trace.warnings, *_warnings(trace, measured, wanted)),
    )


def _lengths(values: Integers, unit: float = 1.0) -> Lengths | None:
    known = values[values != UNKNOWN] / unit
    if not len(known):
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(known, (50, 90, 99)))
    return Lengths(n=len(known), mean=float(known.mean()), p50=p50, p90=p90, p99=p99, max=float(known.max()))


def _peak(arrivals: Integers) -> float:
    return float(np.unique(arrivals // _SECOND_NS, return_counts=True)[1].max())


def _variation(gaps: Integers) -> float | None:
    """None below two gaps, and where all arrive at once."""
    mean = float(gaps.mean()) if len(gaps) >= 2 else 0.0
    return float(gaps.std()) / mean if mean else None


def _delays(measured: Measured, cap_ns: int) -> Delays | None:
    """None also where all are 0: then the trace has no times within sessions."""
    known = measured.delay_ns[measured.delay_ns != UNKNOWN]
    everything = _lengths(measured.delay_ns, _SECOND_NS)
    if everything is None or not known.any():
        return None
    over = known[known > cap_ns]
    return Delays(
        all=everything,
        tool=_lengths(measured.delay_ns[measured.marked(Mark.AFTER_TOOL)], _SECOND_NS),
        user=_lengths(measured.delay_ns[measured.marked(Mark.AFTER_USER)], _SECOND_NS),
        cap_s=cap_ns / _SECOND_NS,
        capped_turns=len(over),
        capped_share=len(over) / len(known),
        removed_share=float((over - cap_ns).sum()) / float(known.sum()),
    )


def _longest(trace: Trace, measured: Measured) -> Longest | None:
    known = measured.prompt != UNKNOWN
    if not known.any():
        return None
    total = np.where(known, measured.prompt + np.maximum(measured.output, 0), UNKNOWN)
    place = int(total.argmax())
    output = int(measured.output[place])
    return Longest(
        source_line=trace.session(int(measured.session[place])).source_line,
        turn=int(measured.number[place]),
        input_tokens=int(measured.prompt[place]),
        output_tokens=None if output == UNKNOWN else output,
    )


def _warnings(trace: Trace, measured: Measured, wanted: int | None) -> Iterator[str]:
    have = trace.sessions
    if have is not None and wanted is not None and wanted > have:
        yield (
            f"{wanted:,} sessions take each of the {have:,} {wanted / have:.3g} times: with one salt for all repeats "
            "that measures the prefix cache"
        )
    elif have is not None and have < FEW_SESSIONS:
        yield f"{have:,} sessions are few: a run that starts again at the end finds their prefixes in the cache"
    if measured.unanswered:
        yield (
            f"{measured.unanswered:,} turns follow an answer that the trace does not have: their prompts are of "
            "unknown length where it is not recorded"
        )
    if measured.other_parts:
        yield f"{measured.other_parts:,} images or other parts without text count as no tokens in estimated lengths"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.3g} s"
