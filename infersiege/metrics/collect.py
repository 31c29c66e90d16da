"""One pass over the turns of a run: columns and counts by cell, from which every group is put together.

A cell is one (scenario, channel, stage, replica) and takes the turns that were due in steady. A flow is one (scenario,
channel, replica) and takes all turns, since what happens inside a window is a matter of time and not of when a turn was
due; sessions are in the flow without a replica, since one may see several (a name with more addresses than one), and
those of a hybrid channel in the one without a channel. Order and split of the turns do not matter: counts are whole
numbers and columns are sorted before use.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from infersiege.cost import billed_output_tokens
from infersiege.metrics.definitions import METRICS, Metric
from infersiege.metrics.facts import RunFacts, SteadyWindow
from infersiege.metrics.goodput import TurnLimits
from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.turn import BURST_NS, contradicts_itself, was_asked
from infersiege.records import EarlierAttempt, ErrorClass, Outcome, Phase, Reason, TokensFrom, TurnRecord

SECOND_NS = 1_000_000_000

CellKey = tuple[str, str, str, str]
"""Scenario, channel, stage, replica; the last is empty for turns that reached none."""
FlowKey = tuple[str, str, str]
"""Scenario, channel, replica; the last two may be empty."""

WIDE_SLACK_NS = 1_000_000
"""A first token whose arrival is in doubt by more than this counts against the client."""

ODD_USAGE = "odd_usage"
"""Flag of a turn whose server told a token count that can be none."""

BURST_CHUNKS = 8
"""Shorter streams are not judged for bursts."""

GRACE_NS = SECOND_NS
GRACE_SHARE = 0.05
"""An arrival due in steady is delivered when it begins before the window's end plus the smaller of the two."""

PAUSE_NS = 2 * SECOND_NS
LONGEST_RETRY_NS = 60 * SECOND_NS
"""A user whose request failed pauses before its next session: so long, and what the server asked for (Retry-After)."""

_BURST_BUCKET = bucket_of(BURST_NS)


def end_of(turn: TurnRecord) -> str:
    """How a turn ended that did not succeed: `failed: context_length`, `skipped: too_long`."""
    why = turn.error_class if turn.outcome is Outcome.FAILED else turn.reason
    return f"{turn.outcome.value}: {'unknown' if why is None else why.value}"


def _class_of(failed: TurnRecord | EarlierAttempt) -> str:
    return "unknown" if failed.error_class is None else failed.error_class.value


class Bill:
    """What priced turns cost, whatever became of them."""

    __slots__ = ("costs", "estimated", "output_tokens")

    def __init__(self) -> None:
        self.costs: array[float] = array("d")
        """Of single turns whose token counts the server told."""
        self.estimated: array[float] = array("d")
        """Of the others."""
        self.output_tokens = 0

    def add(self, turn: TurnRecord) -> None:
        if turn.cost is None:
            return
        (self.costs if turn.cost_from is TokensFrom.USAGE else self.estimated).append(turn.cost)
        self.output_tokens += billed_output_tokens(turn)

    def add_attempt(self, attempt: EarlierAttempt) -> None:
        if attempt.cost is None:
            return
        (self.costs if attempt.cost_from is TokensFrom.USAGE else self.estimated).append(attempt.cost)
        self.output_tokens += attempt.output_tokens


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
            self.errors[_class_of(turn)] += 1
        else:
            self.unplayed[end_of(turn)] += 1
        if self.limits:
            tally[self.limits.judged(turn)] += 1

    def add_attempt(self, attempt: EarlierAttempt) -> None:
        """One that failed here, of a turn that is counted where it ended."""
        self.bill.add_attempt(attempt)
        self.failed_attempts[_class_of(attempt)] += 1

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


_CUT_SHORT = (Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET)


class Flow:
    """What happened when, on one (scenario, channel, replica): turns of all phases."""

    def __init__(self, key: FlowKey, windows: tuple[SteadyWindow, ...]) -> None:
        self.key = key
        self._windows = windows
        self._starts = [window.start_ns for window in windows]
        self.sent: array[int] = array("q")
        """sent_ns of every turn that was sent."""
        self.finished: array[int] = array("q")
        """closed_ns of every ok turn."""
        self.flight_start: array[int] = array("q")
        self.flight_end: array[int] = array("q")
        """sent_ns and closed_ns, for turns that have both."""
        self.session_start: array[int] = array("q")
        self.session_end: array[int] = array("q")
        """First due_ns and last closed_ns of each session that began."""
        self.session_pause: array[int] = array("q")
        """How long its user may wait before the next one without being gone: 0 unless the session ended in failure."""
        self._sessions: dict[str, int] = {}
        self._thinking: dict[str, int] = {}
        """Sessions that the end of the load met between two turns -> when their next turn was due."""
        self.tokens: list[int] = [0] * len(windows)
        """By window: tokens of turns whose answer lies wholly inside one."""
        self.token_parts: tuple[array[float], ...] = tuple(array("d") for _ in windows)
        """By window: what cut turns and turns over its edges brought."""
        self.by_chunk = 0
        """Turns without a count, credited one token per chunk."""
        self.bill = Bill()
        self.routed = False
        """Some of its sessions are a hybrid channel's, which may have sent them elsewhere too."""

    def add_session(self, turn: TurnRecord) -> None:
        """Its part in the life of its session."""
        if turn.attempt_ns is not None:
            self._session(turn)
        elif turn.reason in _CUT_SHORT:
            self._thought(turn)

    def add(self, turn: TurnRecord) -> None:
        """What it sent, brought and cost."""
        self.bill.add(turn)
        self.routed = self.routed or turn.routed_by is not None
        if turn.sent_ns is not None:
            self.sent.append(turn.sent_ns)
            if turn.closed_ns is not None:
                self.flight_start.append(turn.sent_ns)
                self.flight_end.append(turn.closed_ns)
        if turn.outcome is Outcome.OK and turn.closed_ns is not None:
            self.finished.append(turn.closed_ns)
        tokens = turn.output_tokens
        if tokens is None and turn.chunks:
            tokens = turn.chunks
            self.by_chunk += 1
        if tokens and self._windows:
            self._credit(turn, tokens)

    def _session(self, turn: TurnRecord) -> None:
        end_ns = turn.due_ns if turn.closed_ns is None else turn.closed_ns
        pause_ns = 0
        if turn.outcome is Outcome.FAILED:
            pause_ns = PAUSE_NS + min(max(turn.retry_after_ns or 0, 0), LONGEST_RETRY_NS)
        index = self._sessions.setdefault(turn.session_id, len(self.session_start))
        if index == len(self.session_start):
            self.session_start.append(turn.due_ns)
            self.session_end.append(max(end_ns, self._thinking.pop(turn.session_id, end_ns)))
            self.session_pause.append(pause_ns)
            return
        self.session_pause[index] = max(self.session_pause[index], pause_ns)
        self.session_start[index] = min(self.session_start[index], turn.due_ns)
        self.session_end[index] = max(self.session_end[index], end_ns)

    def _thought(self, turn: TurnRecord) -> None:
        """Its user was alive, and thinking, when the load ended: up to then it was load that was asked for."""
        index = self._sessions.get(turn.session_id)
        if index is None:
            known = self._thinking.get(turn.session_id, turn.due_ns)
            self._thinking[turn.session_id] = max(known, turn.due_ns)
        else:
            self.session_end[index] = max(self.session_end[index], turn.due_ns)

    def _credit(self, turn: TurnRecord, tokens: int) -> None:
        """Give a turn's tokens to the windows in which they arrived.

        They are spread evenly over its chunks, and those of one second evenly over the part of that second between
        its first and its last token. Without chunks they arrive at once, at the end.
        """
        first_ns, last_ns = turn.first_token_ns, turn.last_token_ns
        if not turn.chunks_by_second:
            at_ns = last_ns if last_ns is not None else turn.closed_ns
            inside = None if at_ns is None else self._window_at(at_ns)
            if inside is not None:
                self.tokens[inside] += tokens
            return
        if first_ns is not None and last_ns is not None:
            inside = self._window_at(first_ns)
            if inside is not None and inside == self._window_at(last_ns):
                self.tokens[inside] += tokens
                return
        per_chunk = tokens / sum(turn.chunks_by_second.values())
        for second, count in turn.chunks_by_second.items():
            start_ns, end_ns = second * SECOND_NS, (second + 1) * SECOND_NS
            if first_ns is not None:
                start_ns = max(start_ns, first_ns)
            if last_ns is not None:
                end_ns = min(end_ns, last_ns)
            for index, window in enumerate(self._windows):
                share = _share_inside(start_ns, end_ns, window)
                if share:
                    self.token_parts[index].append(per_chunk * count * share)

    def _window_at(self, at_ns: int) -> int | None:
        index = bisect_right(self._starts, at_ns) - 1
        return index if index >= 0 and at_ns < self._windows[index].end_ns else None


def _share_inside(start_ns: int, end_ns: int, window: SteadyWindow) -> float:
    """Share of [start, end) inside a window; of an instant (end <= start): 1 or 0."""
    if end_ns <= start_ns:
        return 1.0 if window.start_ns <= start_ns < window.end_ns else 0.0
    return max(0, min(end_ns, window.end_ns) - max(start_ns, window.start_ns)) / (end_ns - start_ns)


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
