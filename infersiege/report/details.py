"""What the report's details rest on, beside `collect`: one pass over the turns, in memory that does not grow with them.

The slowest turns with their timeline, latency by prompt length, the server's own TTFT beside the client's, examples of
errors, and what each worker told about itself second by second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from infersiege.metrics.batch import Batch, Mask, known
from infersiege.metrics.client import ClientWatch
from infersiege.metrics.columns import in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.parts import parts
from infersiege.quality.collapse import COLLAPSE_FLAGS
from infersiege.records import ClientHealth, Outcome, Phase, TurnRecord
from infersiege.redact import scrub
from infersiege.report.numbers import SECOND_NS
from infersiege.report.slowest import candidates, keep

SLOWEST = 20
"""Turns that are shown with their timeline, by each of `RANKED`."""
RANKED = ("ttft", "e2e")
EXAMPLES = 3
"""Different details that are shown of one class of error."""
SHORTEST = 64
"""Tokens: shorter prompts share the first bin; each next one is twice as wide."""


class SlowTurn(NamedTuple):
    """One turn of the slowest. Ordered by its first two fields; instants as in TurnRecord."""

    value_ns: int
    request_id: str
    session_id: str
    turn: int
    scenario: str
    channel: str
    replica: str | None
    worker: str
    ttft_ns: int | None
    e2e_ns: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    instants_ns: tuple[int | None, ...]
    """due, attempt, sent, last byte written, first byte, first token, last token, closed."""
    connect_ns: int | None
    """Name look-up, connect and TLS, part of attempt → sent; None: the connection was reused."""


class ErrorExample(NamedTuple):
    """One failed turn of a class, redacted; or one whose answer was none any more, and how it ended."""

    detail: str
    at_ns: int
    request_id: str
    channel: str
    replica: str | None
    http_status: int | None
    scenario: str
    turn: int


class ByLength:
    """Ok turns of the steady phase of one scenario whose prompts are about as long."""

    __slots__ = ("e2e", "n", "output", "output_n", "tpot", "ttft")

    def __init__(self) -> None:
        self.n = 0
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.e2e = Histogram()
        self.output = 0
        self.output_n = 0

    def merge(self, other: ByLength) -> None:
        """Add all that `other` has."""
        self.n += other.n
        for mine, theirs in ((self.ttft, other.ttft), (self.tpot, other.tpot), (self.e2e, other.e2e)):
            mine.merge(theirs)
        self.output += other.output
        self.output_n += other.output_n

    @property
    def output_mean(self) -> float | None:
        return self.output / self.output_n if self.output_n else None


class HealthSecond(NamedTuple):
    """What a worker told about one second of itself."""

    cpu_share: float
    hub_lag_max_ns: int


class Details(msgspec.Struct, kw_only=True):
    """Filled with `add_batch`, and with the workers' own rows by `watching`. Grows with seconds, not with turns."""

    by_length: dict[tuple[str, int], ByLength] = {}
    """(scenario, place of the bin: `length_bounds`) over ok turns of phase steady whose prompt's length is known."""
    server_ttft: dict[int, Histogram] = {}
    """Unix second of the first token -> the server's own TTFT in ns, of ok turns in which it told one."""
    client_ttft: dict[int, Histogram] = {}
    """The same seconds and turns, as the client measured it."""
    examples: dict[str, list[ErrorExample]] = {}
    """error_class -> its first turns with different details, all phases."""
    collapsed: dict[str, list[ErrorExample]] = {}
    """Flag of COLLAPSE_FLAGS -> the first turns of phase steady that have it."""
    health: dict[str, dict[int, HealthSecond]] = {}
    """worker -> Unix second -> its own row of telemetry/clients.jsonl."""
    clients: ClientWatch | None = None
    """What the turns tell about the workers; None: nobody looked."""
    _heaps: dict[str, list[SlowTurn]] = {}

    def slowest(self, metric: str) -> list[SlowTurn]:
        """Ok turns of phase steady by a metric of `RANKED`, slowest first."""
        return sorted(self._heaps.get(metric, ()), reverse=True)

    def watching(self, rows: Iterable[ClientHealth]) -> Iterator[ClientHealth]:
        """The same rows, seen on their way."""
        for row in rows:
            seconds = self.health.setdefault(row.worker, {})
            before = seconds.get(row.second)
            lag_ns = row.hub_lag_max_ns if before is None else max(row.hub_lag_max_ns, before.hub_lag_max_ns)
            seconds[row.second] = HealthSecond(row.cpu_share, lag_ns)
            yield row

    def add_batch(self, batch: Batch) -> None:
        """Take some turns; they are not kept."""
        shown = batch.ok & batch.steady
        _by_length(self, batch, shown)
        _server(self, batch)
        for place in batch.places(batch.where(lambda kind: kind.outcome is Outcome.FAILED)):
            _example(self, batch.turns[place])
        for turn in batch.turns:
            if turn.flags:
                _collapsed(self, turn)
        for metric in RANKED:
            _keep_slowest(self._heaps.setdefault(metric, []), batch, shown, metric)

    def merge(self, other: Details) -> None:
        """Add what `other` saw of later turns; it is used up. `clients` and `health` are not of turns."""
        for place, row in other.by_length.items():
            self.by_length.setdefault(place, ByLength()).merge(row)
        for mine, theirs in ((self.server_ttft, other.server_ttft), (self.client_ttft, other.client_ttft)):
            for second, shape in theirs.items():
                mine.setdefault(second, Histogram()).merge(shape)
        for name, examples in other.examples.items():
            for example in examples:
                _keep_example(self.examples.setdefault(name, []), example)
        for flag, collapsed in other.collapsed.items():
            mine_of = self.collapsed.setdefault(flag, [])
            mine_of += collapsed[: EXAMPLES - len(mine_of)]
        for metric, slow in other._heaps.items():
            for one in slow:
                keep(self._heaps.setdefault(metric, []), one, SLOWEST)


def length_bounds(place: int) -> tuple[int, int]:
    """Tokens from (with) and to (without) of a bin of prompt lengths."""
    return (0, SHORTEST) if place == 0 else (SHORTEST << (place - 1), SHORTEST << place)


def _by_length(made: Details, batch: Batch, shown: Mask) -> None:
    prompt, output = batch.ints("prompt_tokens"), batch.ints("output_tokens")
    counted = shown & known(prompt)
    if not counted.any():
        return
    length = np.where(counted, np.maximum(prompt, 1), 1)
    # Exact up to 2**53 tokens: frexp gives the power of two without rounding.
    bins = np.maximum(np.frexp(length.astype(np.float64))[1] - SHORTEST.bit_length() + 1, 0)
    found = {name: values_of(batch, METRICS[name]) for name in ("ttft", "tpot", "e2e")}
    columns = {name: (in_whole_ns(values), values.given) for name, values in found.items()}
    for scenario, part in parts(batch, lambda kind: kind.scenario):
        mine, own = part.of(counted), part.of(bins)
        for place in np.unique(own[mine]).tolist():
            mask = mine & (own == place)
            row = made.by_length.setdefault((scenario, place), ByLength())
            row.n += int(mask.sum())
            for name, (values_ns, given) in columns.items():
                taken = part.of(values_ns)[mask & part.of(given)]
                getattr(row, name).add_many(taken[taken >= 0])
            told = mask & part.of(known(output))
            row.output += int(part.of(output)[told].sum())
            row.output_n += int(told.sum())


def _server(made: Details, batch: Batch) -> None:
    server_ns, first_ns = batch.ints("server_ttft_ns"), batch.ints("first_token_ns")
    ttft = values_of(batch, METRICS["ttft"])
    told = batch.ok & known(server_ns) & (server_ns >= 0) & known(first_ns) & ttft.given
    if not told.any():
        return
    client_ns = in_whole_ns(ttft)
    seconds = first_ns // SECOND_NS
    for second in np.unique(seconds[told]).tolist():
        mask = told & (seconds == second)
        made.server_ttft.setdefault(second, Histogram()).add_many(server_ns[mask])
        made.client_ttft.setdefault(second, Histogram()).add_many(client_ns[mask])


def _example(made: Details, turn: TurnRecord) -> None:
    name = "no class" if turn.error_class is None else turn.error_class.value
    found = made.examples.setdefault(name, [])
    if len(found) >= EXAMPLES:
        return
    detail = scrub(turn.error_detail or "")
    at_ns = next((at for at in (turn.closed_ns, turn.attempt_ns) if at is not None), turn.due_ns)
    where = (turn.request_id, turn.channel, turn.replica, turn.http_status, turn.scenario, turn.turn)
    _keep_example(found, ErrorExample(detail, at_ns, *where))


def _keep_example(found: list[ErrorExample], example: ErrorExample) -> None:
    if len(found) < EXAMPLES and all(one.detail != example.detail for one in found):
        found.append(example)


def _collapsed(made: Details, turn: TurnRecord) -> None:
    if turn.phase is not Phase.STEADY or turn.outcome is not Outcome.OK:
        return
    for flag in turn.flags:
        if flag in COLLAPSE_FLAGS and len(found := made.collapsed.setdefault(flag, [])) < EXAMPLES:
            said = "tokens unknown" if turn.output_tokens is None else f"{turn.output_tokens:,} tokens"
            at_ns = turn.due_ns if turn.closed_ns is None else turn.closed_ns
            where = (turn.request_id, turn.channel, turn.replica, turn.http_status, turn.scenario, turn.turn)
            found.append(ErrorExample(f"{said}, {turn.finish_reason or 'no finish reason'}", at_ns, *where))


def _keep_slowest(heap: list[SlowTurn], batch: Batch, shown: Mask, metric: str) -> None:
    found = {name: values_of(batch, METRICS[name]) for name in RANKED}
    whole = {name: in_whole_ns(values) for name, values in found.items()}
    by = whole[metric]
    places = candidates(by, shown & found[metric].given, SLOWEST)
    if len(heap) == SLOWEST:
        places = places[by[places] >= heap[0].value_ns]
    for place in places.tolist():
        ttft_ns, e2e_ns = (int(whole[name][place]) if found[name].given[place] else None for name in RANKED)
        slow = _slow_turn(int(by[place]), batch.turns[place], ttft_ns, e2e_ns)
        keep(heap, slow, SLOWEST)


def _slow_turn(value_ns: int, turn: TurnRecord, ttft_ns: int | None, e2e_ns: int | None) -> SlowTurn:
    instants_ns = (
        turn.due_ns, turn.attempt_ns, turn.sent_ns, turn.sent_end_ns, turn.first_byte_ns, turn.first_token_ns,
        turn.last_token_ns, turn.closed_ns,
    )  # fmt: skip
    connects = [one for one in (turn.connect_duration_ns, turn.tls_duration_ns) if one is not None]
    return SlowTurn(
        value_ns,
        turn.request_id,
        turn.session_id,
        turn.turn,
        turn.scenario,
        turn.channel,
        turn.replica,
        turn.worker,
        ttft_ns,
        e2e_ns,
        turn.prompt_tokens,
        turn.cached_tokens,
        turn.output_tokens,
        instants_ns,
        sum(connects) if connects else None,
    )
