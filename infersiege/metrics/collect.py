"""One pass over the turns of a run: columns and counts by cell, from which every group is put together.

A cell is one (scenario, channel, stage, replica) and takes the turns that were due in steady. A flow is one (scenario,
channel, replica) and takes all turns, since what happens inside a window is a matter of time and not of when a turn was
due; sessions are in the flow without a replica, since one may see several (a name with more addresses than one), and
those of a hybrid channel in the one without a channel. Order and split of the turns do not matter: counts are whole
numbers and columns are sorted before use.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np

from infersiege.metrics.batch import Batch, Ints, Kind, Mask, batches, grouped, known, sums
from infersiege.metrics.columns import applying, asked, contradicting, values_of
from infersiege.metrics.definitions import METRICS, Metric
from infersiege.metrics.facts import RunFacts, SteadyWindow
from infersiege.metrics.flow import Bill, Flow, FlowKey, class_of
from infersiege.metrics.goodput import JUDGEMENTS, TurnLimits
from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.limits import WIDE_SLACK_NS
from infersiege.metrics.lives import Sessions, ints_of
from infersiege.metrics.merging import add_counts
from infersiege.metrics.parts import Part, parts
from infersiege.metrics.quality import Answers
from infersiege.metrics.turn import BURST_NS
from infersiege.records import EarlierAttempt, ErrorClass, Outcome, Phase, Reason, TokensFrom, TurnRecord

SECOND_NS = 1_000_000_000

CellKey = tuple[str, str, str, str]
"""Scenario, channel, stage, replica; the last is empty for turns that reached none."""

ODD_USAGE = "odd_usage"
"""Flag of a turn whose server told a token count that can be none."""

BURST_CHUNKS = 8
"""Shorter streams are not judged for bursts."""

GRACE_NS = SECOND_NS
GRACE_SHARE = 0.05
"""An arrival due in steady is delivered when it begins before the window's end plus the smaller of the two."""

_BURST_BUCKET = bucket_of(BURST_NS)


def end_of(turn: TurnRecord | Kind) -> str:
    """How a turn ended that did not succeed: `failed: context_length`, `skipped: too_long`."""
    why = turn.error_class if turn.outcome is Outcome.FAILED else turn.reason
    return f"{turn.outcome.value}: {'unknown' if why is None else why.value}"


def _flow_of(kind: Kind) -> FlowKey:
    return kind.scenario, kind.channel, kind.replica or ""


def _session_flow_of(kind: Kind) -> FlowKey:
    return kind.scenario, kind.channel if kind.routed_by is None else "", ""


def _cell_of(kind: Kind) -> CellKey | None:
    """None: not due in steady."""
    return (kind.scenario, kind.channel, kind.stage, kind.replica or "") if kind.phase is Phase.STEADY else None


class Cell:
    """Turns due in steady of one (scenario, channel, stage, replica)."""

    def __init__(self, key: CellKey, facts: RunFacts) -> None:
        self.key = key
        scenario, channel, stage, _ = key
        self.streamed = facts.streamed.get(channel, True)
        metrics = [m for m in METRICS.values() if m.per_turn and (self.streamed or not m.needs_stream)]
        self.columns: dict[str, array[float]] = {metric.name: array("d") for metric in metrics}
        """Metric -> values of single turns, in ns, tokens or money."""
        self.missing: Counter[str] = Counter()
        self._of_ok = tuple(metric for metric in metrics if metric.outcome is Outcome.OK)
        self._of_failed = tuple(metric for metric in metrics if metric.outcome is Outcome.FAILED)
        self.limits = TurnLimits(facts.limits, (scenario, channel, stage), streamed=self.streamed)
        self._begin_by_ns = _begin_by(facts.steady, stage)
        self.outcomes: Counter[Outcome] = Counter()
        self.errors: Counter[str] = Counter()
        self.failed_attempts: Counter[str] = Counter()
        """By error class: of turns that went on, maybe elsewhere."""
        self.unplayed: Counter[str] = Counter()
        """Turns that neither succeeded nor failed, by `outcome: reason`."""
        self.finish_reasons: Counter[str] = Counter()
        self.gaps: dict[int, int] = {}
        """Inter-chunk gaps by bucket."""
        self.tally: Counter[str] = Counter()
        """Whole-number counts by name; the names are in the code below."""
        self.bill = Bill()
        self.answers = Answers()
        self.written = facts.written_prompts.get(scenario)
        self.length_errors = array("d")
        self.emulated = channel in facts.emulated

    def add(self, part: Part) -> None:
        """Turns of this cell, all due in steady."""
        batch, tally = part.batch, self.tally
        self.bill.add_all(part)
        tally["asked"] += part.count(asked(batch))
        tally["contradicting"] += part.count(contradicting(batch))
        arrivals = part.of(asked(batch) & (batch.ints("turn") == 0))
        attempt_ns = part.of(batch.ints("attempt_ns"))
        tally["arrivals"] += int(arrivals.sum())
        tally["arrivals_begun"] += int((arrivals & known(attempt_ns) & (attempt_ns < self._begin_by_ns)).sum())
        slack_ns = part.of(batch.ints("first_token_slack_ns"))
        tally["slack"] += int(known(slack_ns).sum())
        tally["slack_wide"] += int((slack_ns > WIDE_SLACK_NS).sum())
        self._kinds(part)
        self._ok(part)
        self._enter(self._of_failed, part, Outcome.FAILED)
        if self.limits:
            counts = np.bincount(part.of(self.limits.judged_all(batch)), minlength=len(JUDGEMENTS))
            tally.update(dict(zip(JUDGEMENTS, counts.tolist(), strict=True)))

    def add_odd(self, turn: TurnRecord) -> None:
        """What few turns have: flags, scores of checked prompts, and counts of what is left of a quota."""
        self.answers.add(turn)
        self.tally["quota_gone"] += 0 in turn.quota_left.values()
        self.tally["odd_usage"] += ODD_USAGE in turn.flags
        self.emulated = self.emulated or "emulated" in turn.flags
        if turn.outcome is Outcome.OK and turn.output_tokens is not None and turn.tokens_from is not TokensFrom.USAGE:
            self.tally["estimated_odd"] += ODD_USAGE in turn.flags

    def _kinds(self, part: Part) -> None:
        """Counts of turns that only depend on what they were."""
        for kind, count in part.counted():
            self.outcomes[kind.outcome] += count
            self.tally["clock_step"] += count * kind.clock_step
            if kind.outcome is Outcome.OK:
                self.finish_reasons["unknown" if kind.finish_reason is None else kind.finish_reason] += count
            elif kind.outcome is Outcome.FAILED:
                self.errors[class_of(kind)] += count
            else:
                self.unplayed[end_of(kind)] += count

    def add_attempt(self, attempt: EarlierAttempt) -> None:
        """One that failed here, of a turn that is counted where it ended."""
        self.bill.add_attempt(attempt)
        self.failed_attempts[class_of(attempt)] += 1

    def _ok(self, part: Part) -> None:
        batch, ok = part.batch, part.of(part.batch.ok)
        self._enter(self._of_ok, part, Outcome.OK)
        if self.streamed:
            self._chunks(part, ok)
        prompt, cached = part.of(batch.ints("prompt_tokens")), part.of(batch.ints("cached_tokens"))
        output = part.of(batch.ints("output_tokens"))
        told = ok & known(prompt)
        self._sum("prompt_known", told, prompt_tokens=prompt)
        self._sum("cached_known", told & known(cached), cached_tokens=cached, cached_of=prompt)
        asked_prompt = part.of(batch.ints("asked_prompt_tokens"))
        compared = told & known(asked_prompt)
        self._sum("", compared, prompt_compared=prompt, prompt_asked=asked_prompt)
        if self.written is not None:
            self.tally["prompt_written"] += int(compared.sum())
            judged = compared & (asked_prompt >= self.written.least_tokens)
            errors = np.abs(prompt[judged] / asked_prompt[judged] - 1)
            self.length_errors.frombytes(errors.astype(np.float64).tobytes())
        told = ok & known(output)
        self._sum("output_known", told, output_tokens=output)
        self._sum("estimated", told & part.of(batch.where(lambda kind: kind.tokens_from is not TokensFrom.USAGE)))
        asked_output = part.of(batch.ints("asked_output_tokens"))
        self._sum("", told & known(asked_output), output_compared=output, output_asked=asked_output)

    def _sum(self, name: str, mask: Mask, **columns: Ints) -> None:
        """Count the turns of a mask, and add up columns of theirs."""
        if name:
            self.tally[name] += int(mask.sum())
        for column, values in columns.items():
            self.tally[column] += int(values[mask].sum())

    def _chunks(self, part: Part, ok: Mask) -> None:
        gaps = part.sparse("gaps")
        counted = ok[gaps.turn]
        turn, bucket, count = gaps.turn[counted], gaps.key[counted], gaps.count[counted]
        self.missing["gap"] += int(ok.sum()) - int(np.unique(turn).size)
        for index, many in zip(*grouped(bucket, count), strict=True):
            self.gaps[index] = self.gaps.get(index, 0) + many
        chunks = part.of(part.batch.ints("chunks"))
        judged = ok & (chunks >= BURST_CHUNKS)
        far = bucket >= _BURST_BUCKET
        apart = sums(turn[far], count[far], chunks.size)
        # Most chunks came within 1 ms of the one before (ST-24).
        self._sum("burst_judged", judged)
        self._sum("bursty", judged & (apart < (chunks - 1) / 2))

    def merge(self, other: Cell) -> None:
        """Add all that `other` has, of the same key."""
        for name, column in self.columns.items():
            column.extend(other.columns[name])
        for mine, theirs in (
            (self.missing, other.missing),
            (self.outcomes, other.outcomes),
            (self.errors, other.errors),
            (self.failed_attempts, other.failed_attempts),
            (self.unplayed, other.unplayed),
            (self.finish_reasons, other.finish_reasons),
            (self.gaps, other.gaps),
            (self.tally, other.tally),
        ):
            add_counts(mine, theirs)  # type: ignore[misc]
        self.bill.merge(other.bill)
        self.answers.merge(other.answers)
        self.length_errors.extend(other.length_errors)
        self.emulated = self.emulated or other.emulated

    def _enter(self, metrics: tuple[Metric, ...], part: Part, outcome: Outcome) -> None:
        mask = part.of(part.batch.where(lambda kind: kind.outcome is outcome))
        if not mask.any():
            return
        for metric in metrics:
            rule = applying(part.batch, metric)
            asked_of = mask if rule is None else mask & part.of(rule)
            found = values_of(part.batch, metric)
            given = asked_of & part.of(found.given)
            self.columns[metric.name].frombytes(part.of(found.values)[given].astype(np.float64).tobytes())
            self.missing[metric.name] += int(asked_of.sum()) - int(given.sum())


def _begin_by(steady: tuple[SteadyWindow, ...], stage: str) -> int:
    ends = [w.end_ns + min(GRACE_NS, int(w.duration_ns * GRACE_SHARE)) for w in steady if w.stage == stage]
    return max(ends, default=0)


class Collector:
    """All cells and flows of a run, and the counts over all phases."""

    def __init__(self, facts: RunFacts, sessions: Sessions | None = None) -> None:
        """`sessions`: numbers that others use as well, to have them once."""
        self.facts = facts
        self.windows = tuple(sorted((w for w in facts.steady if w.duration_ns), key=lambda w: w.start_ns))
        self.cells: dict[CellKey, Cell] = {}
        self.flows: dict[FlowKey, Flow] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self.ends: Counter[str] = Counter()
        """Turns of all phases that did not succeed, by `end_of`."""
        self.tokens_from: Counter[str] = Counter()
        self.stamp_source: Counter[str] = Counter()
        self.client_resource = 0
        self.internal = 0
        self.internal_detail = ""
        """Of the first one."""
        self.emulated = bool(facts.emulated)
        self._sessions = Sessions() if sessions is None else sessions
        self._of_flows = Sessions()
        """Those of flows without a channel: what several channels served is one session there."""
        self._session: array[int] = array("q")
        self._turn: array[int] = array("q")
        """Of each turn: the number of its session, and its own in it."""

    @property
    def repeated(self) -> int:
        """Records of a turn that had one already."""
        session, turn = ints_of(self._session), ints_of(self._turn)
        order = np.lexsort((turn, session))
        session, turn = session[order], turn[order]
        return int(((session[1:] == session[:-1]) & (turn[1:] == turn[:-1])).sum())

    def add_all(self, turns: Iterable[TurnRecord]) -> None:
        for batch in batches(turns):
            self.add_batch(batch)

    def add_batch(self, batch: Batch) -> None:
        for kind, count in batch.counted():
            self._kind(kind, count)
        sessions = self._sessions.of(batch)
        self._session.frombytes(sessions.tobytes())
        self._turn.frombytes(batch.ints("turn").tobytes())
        for flow, part in parts(batch, _flow_of):
            self._flow(*flow).add(part)
        for flow, part in parts(batch, _session_flow_of):
            own = sessions if flow[1] else self._shared(batch)
            self._flow(*flow).add_sessions(part, part.of(own))
        for cell, part in parts(batch, _cell_of):
            if cell is not None:
                self._cell(*cell).add(part)
        for turn in batch.turns:
            if turn.flags or turn.quota_left or turn.earlier or turn.quality or turn.reason is Reason.INTERNAL:
                self._odd(turn)

    def merge(self, other: Collector) -> None:
        """Add all that `other` has of the same run: its turns are later ones. `other` is used up."""
        sessions, of_flows = self._sessions.merge(other._sessions), self._of_flows.merge(other._of_flows)
        self._session.frombytes(sessions[ints_of(other._session)].tobytes())
        self._turn.extend(other._turn)
        # Given away one by one, so that nothing is in memory twice for long.
        for key in list(other.flows):
            self._flow(*key).merge(other.flows.pop(key), sessions if key[1] else of_flows)
        for cell in list(other.cells):
            self._cell(*cell).merge(other.cells.pop(cell))
        self.outcomes.update(other.outcomes)
        self.ends.update(other.ends)
        self.tokens_from.update(other.tokens_from)
        self.stamp_source.update(other.stamp_source)
        self.client_resource += other.client_resource
        self.internal += other.internal
        self.internal_detail = self.internal_detail or other.internal_detail
        self.emulated = self.emulated or other.emulated

    def _shared(self, batch: Batch) -> Ints:
        """The number of each turn's session, whichever channel served it."""
        names = self._of_flows.number((scenario, "", session) for scenario, _, session in batch.sessions)
        return names[batch.session]

    def _kind(self, kind: Kind, count: int) -> None:
        self.outcomes[kind.outcome] += count
        if kind.outcome is not Outcome.OK:
            self.ends[end_of(kind)] += count
        if kind.tokens_from is not None:
            self.tokens_from[kind.tokens_from.value] += count
        if kind.stamp_source is not None:
            self.stamp_source[kind.stamp_source.value] += count
        self.client_resource += count * (kind.error_class is ErrorClass.CLIENT_RESOURCE)

    def _odd(self, turn: TurnRecord) -> None:
        """What few turns have."""
        if turn.reason is Reason.INTERNAL:
            self.internal += 1
            self.internal_detail = self.internal_detail or turn.error_detail or "no detail"
        self.emulated = self.emulated or "emulated" in turn.flags
        if turn.phase is Phase.STEADY:
            self._cell(turn.scenario, turn.channel, turn.stage, turn.replica or "").add_odd(turn)
        for attempt in turn.earlier:
            self._add_attempt(turn, attempt)

    def _add_attempt(self, turn: TurnRecord, attempt: EarlierAttempt) -> None:
        """Its cost and its failure are its own channel's, whichever served the turn."""
        flow = self._flow(turn.scenario, attempt.channel, attempt.replica or "")
        flow.bill.add_attempt(attempt)
        flow.routed = flow.routed or turn.routed_by is not None
        if turn.phase is Phase.STEADY:
            self._cell(turn.scenario, attempt.channel, turn.stage, attempt.replica or "").add_attempt(attempt)

    def _cell(self, scenario: str, channel: str, stage: str, replica: str) -> Cell:
        key = (scenario, channel, stage, replica)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(key, self.facts)
        return cell

    def _flow(self, scenario: str, channel: str, replica: str) -> Flow:
        key = (scenario, channel, replica)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = Flow(key, self.windows)
        return flow
