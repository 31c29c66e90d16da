"""windows.jsonl rebuilt from the turns: one row per second and (scenario, channel, stage, phase)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from infersiege.metrics.batch import Batch, Ints, Kind, Mask, batches, grouped, known, sums
from infersiege.metrics.columns import asked, in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.goodput import GOOD, TurnLimits
from infersiege.metrics.histogram import buckets_of
from infersiege.metrics.lives import Sessions, ints_of
from infersiege.metrics.merging import add_counts
from infersiege.metrics.spread import Spread
from infersiege.records import Outcome, Phase, Reason, TurnRecord, WindowRow

SECOND_NS = 1_000_000_000

LONGEST_QUIET_S = 86_400
"""No turn is open for longer than a day: what says so is a damaged row, and not to be filled with seconds."""

_SECONDS: Final = 1 << 35
"""More than int64 nanoseconds have, before and after 1970."""

Key = tuple[str, str, str, Phase]

_DURATIONS: Final = (
    ("attempt_ns", ("lateness",)),
    ("first_token_ns", ("ttft", "ttft_from_due")),
    ("ended", ("tpot", "e2e", "e2e_from_due")),
)
"""Instant in whose second a duration of an ok turn stands, and the durations."""


@dataclass(slots=True)
class _Second:
    """What happened in one second of one key."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the name of a WindowRow field."""
    errors: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)
    """Once all turns were seen, by rising bucket."""

    def merge(self, other: _Second) -> None:
        add_counts(self.counts, other.counts)
        add_counts(self.errors, other.errors)


class _Series:
    """Seconds of one key, and the changes of its gauges."""

    def __init__(self, key: Key, limits: TurnLimits) -> None:
        self.key = key
        self.limits = limits
        self.seconds: dict[int, _Second] = {}
        self.in_flight: Counter[int] = Counter()
        """Second -> change of the turns in flight at its end."""
        self.users: Counter[int] = Counter()

    def at(self, second: int) -> _Second:
        found = self.seconds.get(second)
        if found is None:
            found = self.seconds[second] = _Second()
        return found

    def merge(self, other: _Series) -> None:
        """Add all that `other` has, which is used up."""
        for second, one in other.seconds.items():
            mine = self.seconds.setdefault(second, one)
            if mine is not one:
                mine.merge(one)
        self.in_flight.update(other.in_flight)
        self.users.update(other.users)

    def take_rows(self) -> Iterator[WindowRow]:
        in_flight = users = 0
        known_seconds = sorted({*self.seconds, *self.in_flight, *self.users})
        for place, second in enumerate(known_seconds):
            in_flight += self.in_flight.get(second, 0)
            users += self.users.get(second, 0)
            yield self._row(second, in_flight, users)
            if in_flight or users:
                # A second in which nothing happened still had turns open.
                until = known_seconds[place + 1] if place + 1 < len(known_seconds) else second + 1
                for quiet in range(second + 1, min(until, second + LONGEST_QUIET_S)):
                    yield self._row(quiet, in_flight, users)

    def _row(self, second: int, in_flight: int, users: int) -> WindowRow:
        scenario, channel, stage, phase = self.key
        one = self.seconds.pop(second, None) or _Second()
        values: dict[str, Any] = ({"good": 0} if self.limits else {}) | dict(one.counts) | one.histograms
        return WindowRow(
            second=second,
            scenario=scenario,
            channel=channel,
            stage=stage,
            phase=phase,
            in_flight=in_flight,
            users=users,
            errors=dict(sorted(one.errors.items())),
            **values,
        )


class Windows:
    """Filled with the turns of a run, batch by batch; `take_rows` gives what `windows` promises."""

    def __init__(
        self,
        limits: Sequence[RequestLimit] = (),
        streamed: Mapping[str, bool] | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        """`sessions`: numbers that others use as well, to have them once."""
        self._limits = limits
        self._streamed = streamed or {}
        self._series: dict[Key, int] = {}
        self._list: list[_Series] = []
        self._spread = Spread([name for _, names in _DURATIONS for name in names])
        self._lives = _Lives(Sessions() if sessions is None else sessions)

    def add_batch(self, batch: Batch) -> None:
        if not batch.turns:
            return
        own = batch.numbered(self._number)
        at_ns = {name: batch.ints(name) for name in ("due_ns", "sent_ns", "attempt_ns", "first_token_ns", "closed_ns")}
        closed_ns = at_ns["closed_ns"]
        at_ns["ended"] = np.where(known(closed_ns), closed_ns, at_ns["due_ns"])
        ended = _Places.of(own, at_ns["ended"])
        self._count("due", _Places.of(own, at_ns["due_ns"]), asked(batch))
        self._count("sent", _Places.of(own, at_ns["sent_ns"]), known(at_ns["sent_ns"]))
        for instant, names in _DURATIONS:
            at = ended if instant == "ended" else _Places.of(own, at_ns[instant])
            self._durations(batch, at, known(at_ns[instant]), names)
        self._arrivals(batch, own)
        self._in_flight(own, at_ns["sent_ns"], closed_ns)
        self._ends(batch, own, ended)
        self._lives.add_batch(batch, own)

    def merge(self, other: Windows) -> None:
        """Add all that `other` has of the same run: its turns are later ones. `other` is used up."""
        numbers = [self._number_of(theirs.key) for theirs in other._list]
        for number, theirs in zip(numbers, other._list, strict=True):
            self._list[number].merge(theirs)
        series = np.array(numbers, dtype=np.int64)
        places = np.array(other._spread.places, dtype=np.int64)
        moved = series[places // _SECONDS] * _SECONDS + places % _SECONDS
        self._spread.merge(other._spread, moved.tolist())
        self._lives.merge(other._lives, series)

    def take_rows(self) -> list[WindowRow]:
        """As `windows`. What was counted is given away, so that it is not in memory twice: nothing is left here."""
        self._lives.count(self._list)
        for code, name, counts in self._spread.take():
            self._at(code).histograms[name] = counts
        rows: list[WindowRow] = []
        while self._list:
            rows += self._list.pop().take_rows()
        return sorted(rows, key=lambda row: (row.second, row.scenario, row.channel, row.stage, row.phase))

    def _number(self, kind: Kind) -> int:
        return self._number_of((kind.scenario, kind.channel, kind.stage, kind.phase))

    def _number_of(self, key: Key) -> int:
        number = self._series.get(key)
        if number is None:
            number = self._series[key] = len(self._list)
            streamed = self._streamed.get(key[1], True)
            self._list.append(_Series(key, TurnLimits(self._limits, key[:3], streamed=streamed)))
        return number

    def _at(self, code: int) -> _Second:
        number, second = divmod(code, _SECONDS)
        return self._list[number].at(second - _SECONDS // 2)

    def _count(self, name: str, places: _Places, mask: Mask, weights: Ints | None = None) -> None:
        """Add turns, or their weights, to a count at their places."""
        mine = places.of_each[mask]
        turns = np.bincount(mine, minlength=len(places.codes))
        counts = turns if weights is None else sums(mine, weights[mask], turns.size)
        for place in np.flatnonzero(turns).tolist():
            self._at(places.codes[place]).counts[name] += int(counts[place])

    def _durations(self, batch: Batch, places: _Places, happened: Mask, names: Sequence[str]) -> None:
        """Those of ok turns, as in every distribution of the summary."""
        happened = batch.ok & happened
        for place in np.flatnonzero(np.bincount(places.of_each[happened], minlength=len(places.codes))).tolist():
            self._at(places.codes[place])  # its second is there, whatever its turns give
        for name in names:
            found = values_of(batch, METRICS[name])
            given = happened & found.given
            # A worker's clock may put an attempt some nanoseconds before its due time.
            buckets = buckets_of(np.maximum(in_whole_ns(found)[given], 0))
            self._spread.add(name, places.codes, places.of_each[given], buckets)

    def _arrivals(self, batch: Batch, own: Ints) -> None:
        """Chunks, and the turn's tokens spread over them; tokens at the answer's end where there were no chunks.

        Tokens stay whole: by the last second all of them were given out, so that seconds add up exactly. A turn
        without a count is credited one token per chunk, as in throughput.
        """
        found = batch.sparse("chunks_by_second")
        turn, second, count = found.turn, found.key, found.count
        if np.any((turn[1:] == turn[:-1]) & (second[1:] < second[:-1])):
            order = np.lexsort((second, turn))
            turn, second, count = turn[order], second[order], count[order]
        output = batch.ints("output_tokens")
        tokens = np.where(known(output), output, batch.ints("chunks"))
        chunks = sums(turn, count, len(batch))
        # Chunks of the same turn in earlier seconds: those of all before, less those of the turns before.
        seen = np.cumsum(count) - count - (np.cumsum(chunks) - chunks)[turn]
        of_turn = np.maximum(chunks, 1)[turn]
        spread = tokens[turn] * (seen + count) // of_turn - tokens[turn] * seen // of_turn
        arrived = _Places.in_second(own[turn], second)
        self._count("chunks", arrived, np.ones(turn.size, dtype=np.bool_), count)
        self._count("tokens", arrived, chunks[turn] > 0, spread)
        last_ns, closed_ns = batch.ints("last_token_ns"), batch.ints("closed_ns")
        arrived_ns = np.where(known(last_ns), last_ns, closed_ns)
        at_once = (tokens != 0) & (chunks <= 0) & known(arrived_ns)
        self._count("tokens", _Places.of(own, arrived_ns), at_once, tokens)

    def _in_flight(self, own: Ints, sent_ns: Ints, closed_ns: Ints) -> None:
        open_ = known(sent_ns) & known(closed_ns) & (closed_ns >= sent_ns)
        for at_ns, change in ((sent_ns, 1), (closed_ns, -1)):
            for code, count in zip(*grouped(_codes(own[open_], at_ns[open_] // SECOND_NS)), strict=True):
                number, second = divmod(code, _SECONDS)
                self._list[number].in_flight[second - _SECONDS // 2] += change * count

    def _ends(self, batch: Batch, own: Ints, ended: _Places) -> None:
        for outcome in Outcome:
            mask = batch.where(lambda kind, outcome=outcome: kind.outcome is outcome)  # type: ignore[misc]
            if outcome is not Outcome.LOST:
                self._count(outcome.value, ended, mask)
                continue
            for place in np.unique(ended.of_each[mask]).tolist():
                self._at(ended.codes[place])  # nothing is counted of a lost turn, but its second is there
        output = batch.ints("output_tokens")
        self._count("output_tokens", ended, known(output), output)
        for place in batch.places(batch.where(lambda kind: kind.outcome is Outcome.FAILED)):
            failed = batch.turns[place]
            errors = self._at(ended.codes[ended.of_each[place]]).errors
            errors[str(failed.error_class) if failed.error_class is not None else "unknown"] += 1
        for number in np.unique(own).tolist():
            limits = self._list[number].limits
            if limits:
                mask = own == number
                self._count("good", ended, mask & (limits.judged_all(batch) == GOOD))


_CUT_SHORT: Final = frozenset(
    {Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET, Reason.STOPPED_EARLY}
)


class _Lives:
    """When each session was alive: from its first due time to its last end, think time included."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._session, self._due_ns, self._closed_ns, self._series = (array("q") for _ in range(4))
        """Of each turn that was begun and ended."""
        self._thinking, self._thought_ns = array("q"), array("q")
        """Of each turn that the end of the load kept from beginning: its session, when it was due."""

    def add_batch(self, batch: Batch, own: Ints) -> None:
        """`own`: the series of each turn."""
        begun = known(batch.ints("attempt_ns")) & known(batch.ints("closed_ns"))
        thinking = ~begun & batch.where(lambda kind: kind.reason in _CUT_SHORT)
        session, due_ns = self._sessions.of(batch), batch.ints("due_ns")
        for column, values in (
            (self._session, session[begun]),
            (self._due_ns, due_ns[begun]),
            (self._closed_ns, batch.ints("closed_ns")[begun]),
            (self._series, own[begun]),
            (self._thinking, session[thinking]),
            (self._thought_ns, due_ns[thinking]),
        ):
            column.frombytes(values.tobytes())

    def merge(self, other: _Lives, series: Ints) -> None:
        """Add those of `other`. `series`: what the numbers of its series are here."""
        sessions = self._sessions.merge(other._sessions)
        for column, values in (
            (self._session, sessions[ints_of(other._session)]),
            (self._due_ns, ints_of(other._due_ns)),
            (self._closed_ns, ints_of(other._closed_ns)),
            (self._series, series[ints_of(other._series)]),
            (self._thinking, sessions[ints_of(other._thinking)]),
            (self._thought_ns, ints_of(other._thought_ns)),
        ):
            column.frombytes(values.tobytes())

    def count(self, series: Sequence[_Series]) -> None:
        """Count each session as a user of each turn's key from its due time to the next turn's."""
        if not self._session:
            return
        columns = (self._session, self._due_ns, self._closed_ns, self._series)
        session, due_ns, closed_ns, of = map(ints_of, columns)
        last_ns = int(closed_ns.max())
        # One that the end of the load met in its think time was alive until then.
        until_ns = np.zeros(len(self._sessions), dtype=np.int64)
        np.maximum.at(until_ns, ints_of(self._thinking), np.minimum(ints_of(self._thought_ns), last_ns))
        order = np.lexsort((_ranks(series)[of], closed_ns, due_ns, session))
        session, due_ns, closed_ns, of = session[order], due_ns[order], closed_ns[order], of[order]
        end_ns = np.maximum(np.maximum(closed_ns, due_ns), until_ns[session])
        follows = session[1:] == session[:-1]
        end_ns[:-1][follows] = due_ns[1:][follows]
        for at_ns, change in ((due_ns, 1), (end_ns, -1)):
            for code, count in zip(*grouped(_codes(of, at_ns // SECOND_NS)), strict=True):
                number, second = divmod(code, _SECONDS)
                series[number].users[second - _SECONDS // 2] += change * count


def _ranks(series: Sequence[_Series]) -> Ints:
    """Place of each series in the order of their keys."""
    order = sorted(range(len(series)), key=lambda number: series[number].key)
    ranks = np.empty(len(series), dtype=np.int64)
    ranks[order] = np.arange(len(series))
    return ranks


class _Places(NamedTuple):
    """In which second of its series each of many things happened."""

    codes: list[int]
    """Each series and second that there is, as `_codes` has it."""
    of_each: Ints
    """Place in `codes`, by thing."""

    @classmethod
    def of(cls, series: Ints, at_ns: Ints) -> _Places:
        return cls.in_second(series, at_ns // SECOND_NS)

    @classmethod
    def in_second(cls, series: Ints, seconds: Ints) -> _Places:
        codes, of_each = np.unique(_codes(series, seconds), return_inverse=True)
        return cls(codes.tolist(), of_each)


def _codes(series: Ints, seconds: Ints) -> Ints:
    """One number for a series and a second."""
    return series * _SECONDS + (seconds + _SECONDS // 2)


def windows(
    turns: Iterable[TurnRecord],
    *,
    limits: Sequence[RequestLimit] = (),
    streamed: Mapping[str, bool] | None = None,
) -> list[WindowRow]:
    """One row per second and key in which something happened or was open, sorted by second, then key.

    A count stands in the second in which the thing happened: due, sent, chunks and tokens as they arrived, the rest
    when the turn ended (when it was due, if it was never closed). Lost turns are only in `due` and `sent`. A session
    counts for the key of its latest turn. Durations are of ok turns.
    `limits` are the plan's per-request limits (`gate.request_limits`), behind `good`; `streamed` says of each channel
    whether it was asked for streams (one that is not named was).
    """
    made = Windows(limits, streamed)
    for batch in batches(turns):
        made.add_batch(batch)
    return made.take_rows()
