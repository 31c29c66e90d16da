"""What a reader or generator gives: a trace whose sessions can be asked for by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Session


class Trace(Protocol):
    """Sessions by index: random access, and the same session for the same index on every worker."""

    @property
    def name(self) -> str:
        """The trace as the plan names it."""

    @property
    def format(self) -> str:
        """Key of READERS, or `builtin`."""

    @property
    def sha256(self) -> str | None:
        """Of the file as it lies on disk; None: generated."""

    @property
    def rows(self) -> int | None:
        """Rows read; None: generated."""

    @property
    def sessions(self) -> int | None:
        """None: without end."""

    @property
    def skipped(self) -> Mapping[str, int]:
        """Rows that gave no session, by reason. Where a row is a session: rows = sessions + skipped."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def arrivals_ns(self) -> Sequence[int] | None:
        """Arrival of each session from the trace's first one, not falling; None: the trace has no times."""

    def session(self, index: int) -> Session:
        """Raises IndexError outside of a finite trace."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What open_trace passes to a reader or generator."""

    name: str
    seed: int = 1
    language: str = "en"
    limit: int | None = None
    length_scale: float = 1.0
    output_scale: float = 1.0
    values: dict[str, bool | int | float | str] = {}
    """Checked options of the format, with defaults filled in."""

    def prompt_tokens(self, tokens: int) -> int:
        """Scaled by length_scale; 0 stays 0 and nothing else becomes 0."""
        return max(1, round(tokens * self.length_scale)) if tokens > 0 else 0

    def output_tokens(self, tokens: int) -> int:
        """Scaled by output_scale; 0 stays 0 and nothing else becomes 0."""
        return max(1, round(tokens * self.output_scale)) if tokens > 0 else 0


class Tally:
    """Counts of rows skipped, by reason, with the first place of each; and of oddities to warn of."""

    def __init__(self) -> None:
        self.skipped: dict[str, int] = {}
        self.first: dict[str, str] = {}
        self.oddities: dict[str, int] = {}

    def skip(self, reason: str, place: str, rows: int = 1) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + rows
        self.first.setdefault(reason, place)

    def odd(self, what: str, count: int = 1) -> None:
        self.oddities[what] = self.oddities.get(what, 0) + count

    def warnings(self) -> tuple[str, ...]:
        odd = tuple(what if count == 1 else f"{what} ({count} times)" for what, count in self.oddities.items())
        rows = tuple(f"{n} rows skipped: {reason} (first: {self.first[reason]})" for reason, n in self.skipped.items())
        return odd + rows

    def require_sessions(self, sessions: int, path: str, rows: int) -> None:
        """Raises TraceError when nothing is left: a run of an empty trace shows nothing."""
        if sessions:
            return
        if not rows:
            raise TraceError(f"{path}: the file has no rows", hint="name a trace file with at least one session")
        reasons = ", ".join(f"{reason} ({n}; first: {self.first[reason]})" for reason, n in self.skipped.items())
        raise TraceError(f"{path}: none of {rows} rows can be sent: {reasons}", hint="`format` may be the wrong one")


LONGEST_NS = 100 * 366 * 86_400 * 1_000_000_000
"""A century: what lies further from a trace's first row, or takes longer, was read in the wrong unit."""


def check_span(place: str, span_ns: int, what: str) -> int:
    """`span_ns` itself. Raises TraceError where it is more than a century."""
    if span_ns > LONGEST_NS:
        raise TraceError(f"{place}: {what} is {span_ns / LONGEST_NS:,.0f} centuries", hint="check its unit")
    return span_ns


MAX_MEAN_RATE = 2_000.0
"""Sessions per second above which a trace's clock is taken to be misread (TR-03): no public trace has a tenth of it."""


def check_rate(path: str, arrivals_ns: Sequence[int], unit_hint: str) -> str | None:
    """Hold the mean rate of a timed trace against what can be.

    Raises TraceError above MAX_MEAN_RATE (seconds read as milliseconds); returns a warning below one session per hour.
    """
    if len(arrivals_ns) < 3:
        return None
    span_ns = arrivals_ns[-1] - arrivals_ns[0]
    if span_ns <= 0:
        return None
    rate = (len(arrivals_ns) - 1) * 1e9 / span_ns
    if rate > MAX_MEAN_RATE:
        raise TraceError(
            f"{path}: {len(arrivals_ns)} arrivals within {span_ns / 1e9:.3g} s are {rate:.0f} per second on average",
            hint=f"the timestamps are probably in another unit: {unit_hint}",
        )
    if rate < 1 / 3600:
        return f"{len(arrivals_ns)} arrivals in {span_ns / 3.6e12:.0f} h: the unit may be wrong ({unit_hint})"
    return None
