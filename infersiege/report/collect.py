"""What the report shows beside the Summary: one pass over the turns, in memory that does not grow with them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram
from infersiege.records import Outcome, Phase, TurnRecord
from infersiege.redact import scrub
from infersiege.report.numbers import SECOND_NS

SLOWEST = 12
TURN_NUMBERS = 24
"""Rows of the table by turn number; later turns share the last row."""

SHAPES = ("ttft", "tpot", "e2e", "gap", "lateness", "slack")
"""Metrics whose whole distribution is kept, by scenario."""


class Slow(NamedTuple):
    """One turn of the slowest, by E2E. Ordered by its first two fields."""

    e2e_ns: int
    request_id: str
    session_id: str
    turn: int
    scenario: str
    channel: str
    due_ns: int
    ttft_ns: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None


class ByTurn:
    """Turns of one scenario with one place in their session."""

    __slots__ = ("cached", "known_cache_prompt", "n", "prompt", "prompt_n", "ttft")

    def __init__(self) -> None:
        self.n = 0
        self.ttft = Histogram()
        self.prompt = 0
        self.prompt_n = 0
        self.cached = 0
        self.known_cache_prompt = 0

    @property
    def cache_share(self) -> float | None:
        """Over turns where it is known; None: known of none."""
        return self.cached / self.known_cache_prompt if self.known_cache_prompt else None

    @property
    def prompt_mean(self) -> float | None:
        return self.prompt / self.prompt_n if self.prompt_n else None


class Collected(msgspec.Struct, kw_only=True):
    """Filled turn by turn with `add`; nothing in it grows with the number of turns."""

    shapes: dict[tuple[str, str], Histogram] = {}
    """(scenario, metric) -> distribution in ns over ok turns of phase steady, gaps apart."""
    gaps: dict[str, dict[int, int]] = {}
    """scenario -> sparse histogram of the inter-chunk gaps of the same turns."""
    tokens_by_second: dict[int, float] = {}
    """Unix second -> output tokens that arrived in it: a turn's tokens are spread over its chunks."""
    errors_by_second: dict[str, dict[int, int]] = {}
    """error_class -> Unix second in which the turn ended -> turns, all phases."""
    examples: dict[str, str] = {}
    """error_class -> detail of its first turn."""
    errors: dict[str, int] = {}
    """error_class -> failed turns, all phases."""
    reasons: dict[str, int] = {}
    """`outcome: reason` -> turns that were cancelled, lost or skipped."""
    by_turn: dict[tuple[str, int], ByTurn] = {}
    """(scenario, turn number) over ok turns of phase steady."""
    flags: dict[str, int] = {}
    """Oddities of turns -> turns."""
    _heap: list[Slow] = []

    @property
    def slowest(self) -> list[Slow]:
        """Ok turns of phase steady by E2E, slowest first."""
        return sorted(self._heap, reverse=True)

    def add(self, turn: TurnRecord) -> None:
        """Take one turn; it is not kept."""
        _tokens(self, turn)
        for flag in turn.flags:
            self.flags[flag] = self.flags.get(flag, 0) + 1
        if turn.outcome is Outcome.OK:
            if turn.phase is Phase.STEADY:
                _ok(self, self._heap, turn)
        elif turn.outcome is Outcome.FAILED:
            _failed(self, turn)
        else:
            why = f"{turn.outcome.value}: {'no reason given' if turn.reason is None else turn.reason.value}"
            self.reasons[why] = self.reasons.get(why, 0) + 1


_PER_TURN = tuple((name, METRICS[name].per_turn) for name in ("ttft", "tpot", "e2e", "lateness"))


def durations(turn: TurnRecord) -> Iterator[tuple[str, int]]:
    """(metric, ns) of one turn for the metrics of `SHAPES` that it gives, gaps apart."""
    for name, value_of in _PER_TURN:
        value = None if value_of is None else value_of(turn)
        if value is not None and value >= 0:
            yield name, round(value)
    if turn.first_token_slack_ns is not None:
        yield "slack", turn.first_token_slack_ns


def collect(turns: Iterable[TurnRecord]) -> Collected:
    """All turns in one go."""
    made = Collected()
    for turn in turns:
        made.add(turn)
    return made


def _tokens(made: Collected, turn: TurnRecord) -> None:
    if turn.chunks <= 0 or turn.output_tokens is None:
        return
    each = turn.output_tokens / turn.chunks
    for second, chunks in turn.chunks_by_second.items():
        made.tokens_by_second[second] = made.tokens_by_second.get(second, 0.0) + chunks * each


def _failed(made: Collected, turn: TurnRecord) -> None:
    name = "unknown" if turn.error_class is None else turn.error_class.value
    made.errors[name] = made.errors.get(name, 0) + 1
    if name not in made.examples:
        # Records are redacted where they are made; a report is passed on further than a run directory.
        made.examples[name] = scrub(turn.error_detail or f"HTTP {turn.http_status}")
    ended = turn.closed_ns or turn.sent_ns or turn.due_ns
    seconds = made.errors_by_second.setdefault(name, {})
    seconds[ended // SECOND_NS] = seconds.get(ended // SECOND_NS, 0) + 1


def _shape(made: Collected, scenario: str, metric: str) -> Histogram:
    key = (scenario, metric)
    found = made.shapes.get(key)
    if found is None:
        found = made.shapes[key] = Histogram()
    return found


def _ok(made: Collected, heap: list[Slow], turn: TurnRecord) -> None:
    values = dict(durations(turn))
    for metric, ns in values.items():
        _shape(made, turn.scenario, metric).add(ns)
    if turn.gaps:
        gaps = made.gaps.setdefault(turn.scenario, {})
        for bucket, count in turn.gaps.items():
            gaps[bucket] = gaps.get(bucket, 0) + count
    if "e2e" in values:
        _keep_slowest(heap, turn, values)
    key = (turn.scenario, min(turn.turn, TURN_NUMBERS))
    row = made.by_turn.get(key)
    if row is None:
        row = made.by_turn[key] = ByTurn()
    row.n += 1
    if "ttft" in values:
        row.ttft.add(values["ttft"])
    if turn.prompt_tokens is not None:
        row.prompt += turn.prompt_tokens
        row.prompt_n += 1
        if turn.cached_tokens is not None:
            row.cached += turn.cached_tokens
            row.known_cache_prompt += turn.prompt_tokens


def _keep_slowest(heap: list[Slow], turn: TurnRecord, values: dict[str, int]) -> None:
    slow = Slow(
        values["e2e"],
        turn.request_id,
        turn.session_id,
        turn.turn,
        turn.scenario,
        turn.channel,
        turn.due_ns,
        values.get("ttft"),
        turn.prompt_tokens,
        turn.output_tokens,
        turn.finish_reason,
    )
    if len(heap) < SLOWEST:
        heapq.heappush(heap, slow)
    elif slow > heap[0]:
        heapq.heapreplace(heap, slow)
