"""What the report shows beside the Summary: one pass over the turns, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from infersiege.metrics.batch import Batch, Ints, Mask, batches, grouped, known
from infersiege.metrics.columns import in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.merging import add_counts
from infersiege.metrics.parts import Part, parts
from infersiege.records import Outcome, TurnRecord
from infersiege.redact import scrub
from infersiege.report.numbers import SECOND_NS
from infersiege.report.slowest import candidates, keep

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

    def merge(self, other: ByTurn) -> None:
        """Add all that `other` has."""
        self.n += other.n
        self.ttft.merge(other.ttft)
        self.prompt += other.prompt
        self.prompt_n += other.prompt_n
        self.cached += other.cached
        self.known_cache_prompt += other.known_cache_prompt

    @property
    def cache_share(self) -> float | None:
        """Over turns where it is known; None: known of none."""
        return self.cached / self.known_cache_prompt if self.known_cache_prompt else None

    @property
    def prompt_mean(self) -> float | None:
        return self.prompt / self.prompt_n if self.prompt_n else None


class Collected(msgspec.Struct, kw_only=True):
    """Filled with `add_batch`; nothing in it grows with the number of turns."""

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

    def add_batch(self, batch: Batch) -> None:
        """Take some turns; they are not kept."""
        _tokens(self, batch)
        for kind, count in batch.counted():
            if kind.outcome not in (Outcome.OK, Outcome.FAILED):
                why = f"{kind.outcome.value}: {'no reason given' if kind.reason is None else kind.reason.value}"
                self.reasons[why] = self.reasons.get(why, 0) + count
        for turn in batch.turns:
            for flag in turn.flags:
                self.flags[flag] = self.flags.get(flag, 0) + 1
        for place in batch.places(batch.where(lambda kind: kind.outcome is Outcome.FAILED)):
            _failed(self, batch.turns[place])
        shown = batch.ok & batch.steady
        for scenario, part in parts(batch, lambda kind: kind.scenario):
            _shapes(self, scenario, part, part.of(shown))
            _by_turn(self, scenario, part, part.of(shown))
        _keep_slowest(self._heap, batch, shown)

    def merge(self, other: Collected) -> None:
        """Add all that `other` has, of later turns; it is used up."""
        for key, shape in other.shapes.items():
            self.shapes.setdefault(key, Histogram()).merge(shape)
        for scenario, gaps in other.gaps.items():
            add_counts(self.gaps.setdefault(scenario, {}), gaps)
        for second, tokens in other.tokens_by_second.items():
            self.tokens_by_second[second] = self.tokens_by_second.get(second, 0.0) + tokens
        for name, seconds in other.errors_by_second.items():
            add_counts(self.errors_by_second.setdefault(name, {}), seconds)
        self.examples = other.examples | self.examples
        for mine, theirs in ((self.errors, other.errors), (self.reasons, other.reasons), (self.flags, other.flags)):
            add_counts(mine, theirs)
        for place, row in other.by_turn.items():
            self.by_turn.setdefault(place, ByTurn()).merge(row)
        for slow in other._heap:
            keep(self._heap, slow, SLOWEST)


_TOKEN_STEPS = 1 << 20
_PER_TURN = tuple(METRICS[name] for name in ("ttft", "tpot", "e2e", "lateness"))


def collect(turns: Iterable[TurnRecord]) -> Collected:
    """All turns in one go."""
    made = Collected()
    for batch in batches(turns):
        made.add_batch(batch)
    return made


def _tokens(made: Collected, batch: Batch) -> None:
    chunks, output = batch.ints("chunks"), batch.ints("output_tokens")
    told = (chunks > 0) & known(output)
    # In steps of 2**-20 of a token: sums of these are exact, and so the same in whatever order turns are added.
    each = np.rint(np.where(told, output, 0) / np.where(told, chunks, 1) * _TOKEN_STEPS) / _TOKEN_STEPS
    found = batch.sparse("chunks_by_second")
    entries = told[found.turn]
    seconds, inverse = np.unique(found.key[entries], return_inverse=True)
    tokens = np.bincount(inverse, weights=found.count[entries] * each[found.turn[entries]], minlength=seconds.size)
    for second, count in zip(seconds.tolist(), tokens.tolist(), strict=True):
        made.tokens_by_second[second] = made.tokens_by_second.get(second, 0.0) + count


def _failed(made: Collected, turn: TurnRecord) -> None:
    name = "unknown" if turn.error_class is None else turn.error_class.value
    made.errors[name] = made.errors.get(name, 0) + 1
    if name not in made.examples:
        # Records are redacted where they are made; a report is passed on further than a run directory.
        made.examples[name] = scrub(turn.error_detail or f"HTTP {turn.http_status}")
    ended = turn.closed_ns or turn.sent_ns or turn.due_ns
    seconds = made.errors_by_second.setdefault(name, {})
    seconds[ended // SECOND_NS] = seconds.get(ended // SECOND_NS, 0) + 1


def _shape(made: Collected, scenario: str, metric: str, values_ns: Ints) -> None:
    if values_ns.size:
        made.shapes.setdefault((scenario, metric), Histogram()).add_many(values_ns)


def _shapes(made: Collected, scenario: str, part: Part, shown: Mask) -> None:
    """Whole distributions of what is shown of a scenario."""
    for metric in _PER_TURN:
        found = values_of(part.batch, metric)
        values_ns = part.of(in_whole_ns(found))
        _shape(made, scenario, metric.name, values_ns[shown & part.of(found.given) & (values_ns >= 0)])
    slack_ns = part.of(part.batch.ints("first_token_slack_ns"))
    _shape(made, scenario, "slack", slack_ns[shown & known(slack_ns)])
    entries = part.sparse("gaps")
    counted = shown[entries.turn]
    if counted.any():
        gaps = made.gaps.setdefault(scenario, {})
        for bucket, count in zip(*grouped(entries.key[counted], entries.count[counted]), strict=True):
            gaps[bucket] = gaps.get(bucket, 0) + count


def _by_turn(made: Collected, scenario: str, part: Part, shown: Mask) -> None:
    batch = part.batch
    numbers = np.minimum(part.of(batch.ints("turn")), TURN_NUMBERS)
    ttft = values_of(batch, METRICS["ttft"])
    given, ttft_ns = part.of(ttft.given), part.of(in_whole_ns(ttft))
    prompt, cached = part.of(batch.ints("prompt_tokens")), part.of(batch.ints("cached_tokens"))
    for number in np.unique(numbers[shown]).tolist():
        row = made.by_turn.setdefault((scenario, number), ByTurn())
        mask = shown & (numbers == number)
        row.n += int(mask.sum())
        row.ttft.add_many(ttft_ns[mask & given])
        told = mask & known(prompt)
        row.prompt += int(prompt[told].sum())
        row.prompt_n += int(told.sum())
        both = told & known(cached)
        row.cached += int(cached[both].sum())
        row.known_cache_prompt += int(prompt[both].sum())


def _keep_slowest(heap: list[Slow], batch: Batch, shown: Mask) -> None:
    found = values_of(batch, METRICS["e2e"])
    e2e_ns = in_whole_ns(found)
    ttft = values_of(batch, METRICS["ttft"])
    for place in candidates(e2e_ns, shown & found.given, SLOWEST).tolist():
        turn = batch.turns[place]
        slow = Slow(
            int(e2e_ns[place]),
            turn.request_id,
            turn.session_id,
            turn.turn,
            turn.scenario,
            turn.channel,
            turn.due_ns,
            int(ttft.values[place]) if ttft.given[place] else None,
            turn.prompt_tokens,
            turn.output_tokens,
            turn.finish_reason,
        )
        keep(heap, slow, SLOWEST)
