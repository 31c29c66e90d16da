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

from infersiege.metrics.definitions import METRICS, Metric
from infersiege.metrics.facts import RunFacts, SteadyWindow
from infersiege.metrics.flow import Bill, Flow, FlowKey, class_of
from infersiege.metrics.goodput import TurnLimits
from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.limits import WIDE_SLACK_NS
from infersiege.metrics.turn import BURST_NS, contradicts_itself, was_asked
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


def end_of(turn: TurnRecord) -> str:
    """How a turn ended that did not succeed: `failed: context_length`, `skipped: too_long`."""
    why = turn.error_class if turn.outcome is Outcome.FAILED else turn.reason
    return f"{turn.outcome.value}: {'unknown' if why is None else why.value}"


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
        self.written = facts.written_prompts.get(scenario)
        self.length_errors = array("d")
        self.emulated = channel in facts.emulated

    def add(self, turn: TurnRecord) -> None:
        tally = self.tally
        self.bill.add(turn)
        self.outcomes[turn.outcome] += 1
        tally["asked"] += was_asked(turn)
        tally["clock_step"] += turn.clock_step
        tally["contradicting"] += contradicts_itself(turn)
        tally["quota_gone"] += 0 in turn.quota_left.values()
        if turn.flags:
            tally["odd_usage"] += ODD_USAGE in turn.flags
            self.emulated = self.emulated or "emulated" in turn.flags
        if turn.turn == 0 and was_asked(turn):
            tally["arrivals"] += 1
            tally["arrivals_begun"] += turn.attempt_ns is not None and turn.attempt_ns < self._begin_by_ns
        if turn.first_token_slack_ns is not None:
            tally["slack"] += 1
            tally["slack_wide"] += turn.first_token_slack_ns > WIDE_SLACK_NS
        if turn.outcome is Outcome.OK:
            self._ok(turn)
        elif turn.outcome is Outcome.FAILED:
            self._enter(self._of_failed, turn)
            self.errors[class_of(turn)] += 1
        else:
            self.unplayed[end_of(turn)] += 1
        if self.limits:
            tally[self.limits.judged(turn)] += 1

    def add_attempt(self, attempt: EarlierAttempt) -> None:
        """One that failed here, of a turn that is counted where it ended."""
        self.bill.add_attempt(attempt)
        self.failed_attempts[class_of(attempt)] += 1

    def _ok(self, turn: TurnRecord) -> None:
        tally = self.tally
        self._enter(self._of_ok, turn)
        self.finish_reasons["unknown" if turn.finish_reason is None else turn.finish_reason] += 1
        if self.streamed:
            self.missing["gap"] += not turn.gaps
            gaps, apart = self.gaps, 0
            for bucket, count in turn.gaps.items():
                gaps[bucket] = gaps.get(bucket, 0) + count
                if bucket >= _BURST_BUCKET:
                    apart += count
            if turn.chunks >= BURST_CHUNKS:
                tally["burst_judged"] += 1
                # Most chunks came within 1 ms of the one before (ST-24).
                tally["bursty"] += apart < (turn.chunks - 1) / 2
        if turn.prompt_tokens is not None:
            tally["prompt_known"] += 1
            tally["prompt_tokens"] += turn.prompt_tokens
            if turn.cached_tokens is not None:
                tally["cached_known"] += 1
                tally["cached_tokens"] += turn.cached_tokens
                tally["cached_of"] += turn.prompt_tokens
            if turn.asked_prompt_tokens is not None:
                tally["prompt_compared"] += turn.prompt_tokens
                tally["prompt_asked"] += turn.asked_prompt_tokens
                if self.written and turn.asked_prompt_tokens >= self.written.least_tokens:
                    self.length_errors.append(abs(turn.prompt_tokens / turn.asked_prompt_tokens - 1))
                tally["prompt_written"] += self.written is not None
        if turn.output_tokens is not None:
            tally["output_known"] += 1
            tally["output_tokens"] += turn.output_tokens
            if turn.tokens_from is not TokensFrom.USAGE:
                tally["estimated"] += 1
                tally["estimated_odd"] += ODD_USAGE in turn.flags
            if turn.asked_output_tokens is not None:
                tally["output_compared"] += turn.output_tokens
                tally["output_asked"] += turn.asked_output_tokens

    def _enter(self, metrics: tuple[Metric, ...], turn: TurnRecord) -> None:
        for metric in metrics:
            if metric.applies is not None and not metric.applies(turn):
                continue
            value = metric.per_turn(turn) if metric.per_turn is not None else None
            if value is None:
                self.missing[metric.name] += 1
            else:
                self.columns[metric.name].append(value)


def _begin_by(steady: tuple[SteadyWindow, ...], stage: str) -> int:
    ends = [w.end_ns + min(GRACE_NS, int(w.duration_ns * GRACE_SHARE)) for w in steady if w.stage == stage]
    return max(ends, default=0)


class Collector:
    """All cells and flows of a run, and the counts over all phases."""

    def __init__(self, facts: RunFacts) -> None:
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
        self.repeated = 0
        """Records of a turn that had one already."""
        self.emulated = bool(facts.emulated)
        self._seen: set[int] = set()

    def add_all(self, turns: Iterable[TurnRecord]) -> None:
        for turn in turns:
            self.add(turn)

    def add(self, turn: TurnRecord) -> None:
        self.outcomes[turn.outcome] += 1
        if turn.outcome is not Outcome.OK:
            self.ends[end_of(turn)] += 1
        if turn.tokens_from is not None:
            self.tokens_from[turn.tokens_from.value] += 1
        if turn.stamp_source is not None:
            self.stamp_source[turn.stamp_source.value] += 1
        self.client_resource += turn.error_class is ErrorClass.CLIENT_RESOURCE
        if turn.reason is Reason.INTERNAL:
            self.internal += 1
            self.internal_detail = self.internal_detail or turn.error_detail or "no detail"
        self.emulated = self.emulated or "emulated" in turn.flags
        identity = hash((turn.scenario, turn.channel, turn.session_id, turn.turn))
        before = len(self._seen)
        self._seen.add(identity)
        self.repeated += len(self._seen) == before
        self._flow(turn.scenario, turn.channel if turn.routed_by is None else "", "").add_session(turn)
        self._flow(turn.scenario, turn.channel, turn.replica or "").add(turn)
        if turn.phase is Phase.STEADY:
            self._cell(turn, turn.channel, turn.replica).add(turn)
        for attempt in turn.earlier:
            self._add_attempt(turn, attempt)

    def _add_attempt(self, turn: TurnRecord, attempt: EarlierAttempt) -> None:
        """Its cost and its failure are its own channel's, whichever served the turn."""
        flow = self._flow(turn.scenario, attempt.channel, attempt.replica or "")
        flow.bill.add_attempt(attempt)
        flow.routed = flow.routed or turn.routed_by is not None
        if turn.phase is Phase.STEADY:
            self._cell(turn, attempt.channel, attempt.replica).add_attempt(attempt)

    def _cell(self, turn: TurnRecord, channel: str, replica: str | None) -> Cell:
        key = (turn.scenario, channel, turn.stage, replica or "")
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
