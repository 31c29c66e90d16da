"""windows.jsonl rebuilt from the turns: one row per second and (scenario, channel, stage, phase)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infersiege.metrics import turn as of
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.goodput import TurnLimits
from infersiege.metrics.histogram import bucket_of
from infersiege.records import Outcome, Phase, Reason, TurnRecord, WindowRow

SECOND_NS = 1_000_000_000

LONGEST_QUIET_S = 86_400
"""No turn is open for longer than a day: what says so is a damaged row, and not to be filled with seconds."""

Key = tuple[str, str, str, Phase]


@dataclass(slots=True)
class _Second:
    """What happened in one second of one key."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the name of a WindowRow field."""
    errors: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)

    def value(self, name: str, duration_ns: float | None) -> None:
        if duration_ns is not None:
            # A worker's clock may put an attempt some nanoseconds before its due time.
            counts = self.histograms.get(name)
            if counts is None:
                counts = self.histograms[name] = {}
            bucket = bucket_of(max(round(duration_ns), 0))
            counts[bucket] = counts.get(bucket, 0) + 1


class _Series:
    """Seconds of one key, and the changes of its gauges."""

    def __init__(self, key: Key, limits: TurnLimits) -> None:
        self.key = key
        self.limits = limits
        self.seconds: dict[int, _Second] = {}
        self.in_flight: Counter[int] = Counter()
        """Second -> change of the turns in flight at its end."""
        self.users: Counter[int] = Counter()

    def at(self, ns: int) -> _Second:
        found = self.seconds.get(ns // SECOND_NS)
        if found is None:
            found = self.seconds[ns // SECOND_NS] = _Second()
        return found

    def add(self, turn: TurnRecord) -> None:
        if of.was_asked(turn):
            self.at(turn.due_ns).counts["due"] += 1
        if turn.sent_ns is not None:
            self.at(turn.sent_ns).counts["sent"] += 1
        if turn.outcome is Outcome.OK:
            self._durations(turn)
        self._arrivals(turn)
        if turn.sent_ns is not None and turn.closed_ns is not None and turn.closed_ns >= turn.sent_ns:
            self.in_flight[turn.sent_ns // SECOND_NS] += 1
            self.in_flight[turn.closed_ns // SECOND_NS] -= 1
        self._end(turn)

    def _durations(self, turn: TurnRecord) -> None:
        """Those of ok turns, as in every distribution of the summary."""
        if turn.attempt_ns is not None:
            self.at(turn.attempt_ns).value("lateness", of.lateness(turn))
        if turn.first_token_ns is not None:
            first = self.at(turn.first_token_ns)
            first.value("ttft", of.ttft(turn))
            first.value("ttft_from_due", of.ttft_from_due(turn))
        ended = self.at(turn.due_ns if turn.closed_ns is None else turn.closed_ns)
        ended.value("tpot", of.tpot(turn))
        ended.value("e2e", of.e2e(turn))
        ended.value("e2e_from_due", of.e2e_from_due(turn))

    def _arrivals(self, turn: TurnRecord) -> None:
        """Chunks, and the turn's tokens spread over them; tokens at the answer's end where there were no chunks.

        Tokens stay whole: by the last second all of them were given out, so that seconds add up exactly. A turn
        without a count is credited one token per chunk, as in throughput.
        """
        chunks = sum(turn.chunks_by_second.values())
        tokens = turn.chunks if turn.output_tokens is None else turn.output_tokens
        seen = 0
        for second, count in sorted(turn.chunks_by_second.items()):
            counts = self.at(second * SECOND_NS).counts
            counts["chunks"] += count
            if chunks > 0:
                counts["tokens"] += tokens * (seen + count) // chunks - tokens * seen // chunks
            seen += count
        arrived_ns = turn.last_token_ns if turn.last_token_ns is not None else turn.closed_ns
        if tokens and chunks <= 0 and arrived_ns is not None:
            self.at(arrived_ns).counts["tokens"] += tokens

    def _end(self, turn: TurnRecord) -> None:
        ended = self.at(turn.due_ns if turn.closed_ns is None else turn.closed_ns)
        if turn.outcome is not Outcome.LOST:
            ended.counts[turn.outcome.value] += 1
        if turn.output_tokens is not None:
            ended.counts["output_tokens"] += turn.output_tokens
        if turn.outcome is Outcome.FAILED:
            ended.errors[str(turn.error_class) if turn.error_class is not None else "unknown"] += 1
        if self.limits and self.limits.judged(turn) == "good":
            ended.counts["good"] += 1

    def rows(self) -> Iterator[WindowRow]:
        in_flight = users = 0
        known = sorted({*self.seconds, *self.in_flight, *self.users})
        for place, second in enumerate(known):
            in_flight += self.in_flight.get(second, 0)
            users += self.users.get(second, 0)
            yield self._row(second, in_flight, users)
            if in_flight or users:
                # A second in which nothing happened still had turns open.
                until = known[place + 1] if place + 1 < len(known) else second + 1
                for quiet in range(second + 1, min(until, second + LONGEST_QUIET_S)):
                    yield self._row(quiet, in_flight, users)

    def _row(self, second: int, in_flight: int, users: int) -> WindowRow:
        scenario, channel, stage, phase = self.key
        one = self.seconds.get(second) or _Second()
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
    streams = streamed or {}
    series: dict[Key, _Series] = {}
    sessions: dict[tuple[str, str, str], list[tuple[int, int, Key]]] = {}
    thinking: dict[tuple[str, str, str], int] = {}
    last_ns = 0
    for turn in turns:
        key = (turn.scenario, turn.channel, turn.stage, turn.phase)
        if key not in series:
            series[key] = _Series(key, TurnLimits(limits, key[:3], streamed=streams.get(turn.channel, True)))
        series[key].add(turn)
        session = (turn.scenario, turn.channel, turn.session_id)
        if turn.attempt_ns is not None and turn.closed_ns is not None:
            sessions.setdefault(session, []).append((turn.due_ns, turn.closed_ns, key))
            last_ns = max(last_ns, turn.closed_ns)
        elif turn.reason in (Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET):
            thinking[session] = max(turn.due_ns, thinking.get(session, turn.due_ns))
    for session, parts in sessions.items():
        # One that the end of the load met in its think time was alive until then.
        _alive(sorted(parts), series, until_ns=min(thinking.get(session, 0), last_ns))
    rows = [row for one in series.values() for row in one.rows()]
    return sorted(rows, key=lambda row: (row.second, row.scenario, row.channel, row.stage, row.phase))


def _alive(parts: list[tuple[int, int, Key]], series: dict[Key, _Series], *, until_ns: int) -> None:
    """Count one session as a user of each turn's key from its due time to the next turn's, think time included."""
    for index, (due_ns, closed_ns, key) in enumerate(parts):
        end_ns = parts[index + 1][0] if index + 1 < len(parts) else max(closed_ns, due_ns, until_ns)
        series[key].users[due_ns // SECOND_NS] += 1
        series[key].users[end_ns // SECOND_NS] -= 1
