"""windows.jsonl rebuilt from the turns: one row per second and (scenario, channel, stage, phase)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from infersiege.metrics.batch import Batch, Ints, Kind, Mask, batches, grouped, known, sums
from infersiege.metrics.columns import asked, in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.goodput import GOOD, TurnLimits
from infersiege.metrics.histogram import buckets_of
from infersiege.metrics.lives import Sessions
from infersiege.metrics.merging import add_counts
from infersiege.records import Outcome, Phase, Reason, TurnRecord, WindowRow

SECOND_NS = 1_000_000_000

LONGEST_QUIET_S = 86_400
"""No turn is open for longer than a day: what says so is a damaged row, and not to be filled with seconds."""

_BUCKETS: Final = 1 << 13
"""More than a histogram of int64 has."""
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

    def merge(self, other: _Second) -> None:
        add_counts(self.counts, other.counts)
        add_counts(self.errors, other.errors)
        for name, counts in other.histograms.items():
            add_counts(self.histograms.setdefault(name, {}), counts)


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
        values: dict[str, Any] = ({"good": 0} if self.limits else {}) | dict(one.counts)
        values |= {name: dict(sorted(counts.items())) for name, counts in one.histograms.items()}
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
        self._lives = _Lives(Sessions() if sessions is None else sessions)

    def add_batch(self, batch: Batch) -> None:
        if not batch.turns:
            return
        own = batch.numbered(self._number)
        at_ns = {name: batch.ints(name) for name in ("due_ns", "sent_ns", "attempt_ns", "first_token_ns", "closed_ns")}
        closed_ns = at_ns["closed_ns"]
        at_ns["ended"] = np.where(known(closed_ns), closed_ns, at_ns["due_ns"])
        self._count("due", own, at_ns["due_ns"], asked(batch))
        self._count("sent", own, at_ns["sent_ns"], known(at_ns["sent_ns"]))
        for instant, names in _DURATIONS:
            self._durations(batch, own, at_ns[instant], names)
        self._arrivals(batch, own)
        self._in_flight(own, at_ns["sent_ns"], closed_ns)
        self._ends(batch, own, at_ns["ended"])
        self._lives.add_batch(batch, own)

    def merge(self, other: Windows) -> None:
        """Add all that `other` has of the same run: its turns are later ones. `other` is used up."""
        numbers = [self._number_of(theirs.key) for theirs in other._list]
        for number, theirs in zip(numbers, other._list, strict=True):
            self._list[number].merge(theirs)
        self._lives.merge(other._lives, np.array(numbers, dtype=np.int64))

    def take_rows(self) -> list[WindowRow]:
        """As `windows`. What was counted is given away, so that it is not in memory twice: nothing is left here."""
        self._lives.count(self._list)
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

    def _count(self, name: str, own: Ints, at_ns: Ints, mask: Mask, weights: Ints | None = None) -> None:
        """Add turns, or their weights, to a count in the seconds of these instants."""
        codes = _codes(own[mask], at_ns[mask] // SECOND_NS)
        for code, count in zip(*grouped(codes, None if weights is None else weights[mask]), strict=True):
            self._at(code).counts[name] += count

    def _durations(self, batch: Batch, own: Ints, at_ns: Ints, names: Sequence[str]) -> None:
        """Those of ok turns, as in every distribution of the summary."""
        happened = batch.ok & known(at_ns)
        codes, places = np.unique(_codes(own[happened], at_ns[happened] // SECOND_NS), return_inverse=True)
        seconds = [self._at(code) for code in codes.tolist()]
        for name in names:
            found = values_of(batch, METRICS[name])
            given = found.given[happened]
            # A worker's clock may put an attempt some nanoseconds before its due time.
            buckets = buckets_of(np.maximum(in_whole_ns(found)[happened][given], 0))
            for place, count in zip(*grouped(places[given] * _BUCKETS + buckets), strict=True):
                second, bucket = divmod(place, _BUCKETS)
                counts = seconds[second].histograms.setdefault(name, {})
                counts[bucket] = counts.get(bucket, 0) + count

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
        series, all_ = own[turn], np.ones(turn.size, dtype=np.bool_)
        self._count("chunks", series, second * SECOND_NS, all_, count)
        self._count("tokens", series, second * SECOND_NS, chunks[turn] > 0, spread)
        last_ns, closed_ns = batch.ints("last_token_ns"), batch.ints("closed_ns")
        arrived_ns = np.where(known(last_ns), last_ns, closed_ns)
        self._count("tokens", own, arrived_ns, (tokens != 0) & (chunks <= 0) & known(arrived_ns), tokens)

    def _in_flight(self, own: Ints, sent_ns: Ints, closed_ns: Ints) -> None:
        open_ = known(sent_ns) & known(closed_ns) & (closed_ns >= sent_ns)
        for at_ns, change in ((sent_ns, 1), (closed_ns, -1)):
            for code, count in zip(*grouped(_codes(own[open_], at_ns[open_] // SECOND_NS)), strict=True):
                number, second = divmod(code, _SECONDS)
                self._list[number].in_flight[second - _SECONDS // 2] += change * count

    def _ends(self, batch: Batch, own: Ints, ended_ns: Ints) -> None:
        for outcome in Outcome:
            mask = batch.where(lambda kind, outcome=outcome: kind.outcome is outcome)  # type: ignore[misc]
            if outcome is not Outcome.LOST:
                self._count(outcome.value, own, ended_ns, mask)
                continue
            for code in grouped(_codes(own[mask], ended_ns[mask] // SECOND_NS))[0]:
                self._at(code)  # nothing is counted of a lost turn, but its second is there
        output = batch.ints("output_tokens")
        self._count("output_tokens", own, ended_ns, known(output), output)
        for place in batch.places(batch.where(lambda kind: kind.outcome is Outcome.FAILED)):
            failed = batch.turns[place]
            errors = self._list[own[place]].at(int(ended_ns[place]) // SECOND_NS).errors
            errors[str(failed.error_class) if failed.error_class is not None else "unknown"] += 1
        for number in np.unique(own).tolist():
            limits = self._list[number].limits
            if limits:
                mask = own == number
                self._count("good", own, ended_ns, mask & (limits.judged_all(batch) == GOOD))


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
            (self._session, sessions[_ints(other._session)]),
            (self._due_ns, _ints(other._due_ns)),
            (self._closed_ns, _ints(other._closed_ns)),
            (self._series, series[_ints(other._series)]),
            (self._thinking, sessions[_ints(other._thinking)]),
            (self._thought_ns, _ints(other._thought_ns)),
        ):
            column.frombytes(values.tobytes())

    def count(self, series: Sequence[_Series]) -> None:
        """Count each session as a user of each turn's key from its due time to the next turn's."""
        if not self._session:
            return
        columns = (self._session, self._due_ns, self._closed_ns, self._series)
        session, due_ns, closed_ns, of = map(_ints, columns)
        last_ns = int(closed_ns.max())
        # One that the end of the load met in its think time was alive until then.
        until_ns = np.zeros(len(self._sessions), dtype=np.int64)
        np.maximum.at(until_ns, _ints(self._thinking), np.minimum(_ints(self._thought_ns), last_ns))
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


def _ints(column: array[int]) -> Ints:
    return np.frombuffer(column, dtype=np.int64) if column else np.empty(0, dtype=np.int64)


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
