"""Pass shares of checked prompts, and answers that collapsed, by stage; and what of it is worth a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import NamedTuple

from infersiege.metrics.facts import SteadyWindow
from infersiege.metrics.proportions import chance_of_more, wilson
from infersiege.quality.collapse import COLLAPSE_FLAGS
from infersiege.quality.foreign import LONGEST_KEPT, fit
from infersiege.quality.kept import received
from infersiege.quality.score import UNSCORED, Score, read_score
from infersiege.records import (
    AnswerExample,
    AnswerHealth,
    ErrorClass,
    KeptAnswer,
    Outcome,
    QualityShare,
    TurnRecord,
    Unscored,
    WrongAnswers,
)

RARE = 0.01
"""A later stage that is worse than the first with a smaller chance than this (divided by the stages) is warned of."""

EXAMPLES = 3
"""Different answers of one prompt that are shown."""
MOST_PROMPTS = 20
"""Prompts of which answers are shown."""

_CASES = {
    "repeated": "ended in a loop",
    "garbled": "were garbled",
    "blank": "were blank",
    "cut_short": "ended before the length that was asked for",
    "empty": "held no token",
}
"""Field of AnswerHealth -> what the warning says."""


@dataclass(slots=True)
class Answers:
    """What is known of the answers of one cell."""

    scores: Counter[str] = field(default_factory=Counter)
    """Column `quality` -> turns, of those that have a score."""
    collapsed: Counter[str] = field(default_factory=Counter)
    """Flag -> turns."""
    collapsed_turns: int = 0
    """With any of them: a turn may have two."""
    unscored: Counter[str] = field(default_factory=Counter)
    """`SET/ITEM` -> turns whose checks could not be carried out. What was said is no key: it may differ every time."""
    first_unscored: tuple[int, str] | None = None
    """(due_ns, column `quality`) of the first of them."""
    kept: dict[str, dict[KeptAnswer, tuple[int, str, bool]]] = field(default_factory=dict)
    """`SET/ITEM` -> answers that were kept -> (due_ns, request id, scored) of its first turn; the first EXAMPLES."""

    def add(self, turn: TurnRecord) -> None:
        if turn.outcome is not Outcome.OK:
            return
        if turn.quality is not None:
            self._score(turn.due_ns, turn.quality)
            if turn.answer is not None:
                self._keep(turn, turn.quality, turn.answer)
        found = [flag for flag in turn.flags if flag in COLLAPSE_FLAGS]
        self.collapsed.update(found)
        self.collapsed_turns += bool(found)

    def _score(self, due_ns: int, written: str) -> None:
        score = read_score(written) if written.startswith(UNSCORED) else None
        if score is None:
            self.scores[written] += 1
            return
        self.unscored[score.name] += 1
        seen = (due_ns, written)
        self.first_unscored = seen if self.first_unscored is None else min(self.first_unscored, seen)

    def _keep(self, turn: TurnRecord, written: str, answer: KeptAnswer) -> None:
        score = read_score(written)
        if score is not None:
            found = self.kept.setdefault(score.name, {})
            _first(found, received(answer), (turn.due_ns, turn.request_id, score.broken is None))

    def merge(self, other: Answers) -> None:
        """Add all that `other` has."""
        self.scores.update(other.scores)
        self.collapsed.update(other.collapsed)
        self.collapsed_turns += other.collapsed_turns
        self.unscored.update(other.unscored)
        firsts = [one for one in (self.first_unscored, other.first_unscored) if one is not None]
        self.first_unscored = min(firsts, default=None)
        for prompt, answers in other.kept.items():
            found = self.kept.setdefault(prompt, {})
            for answer, seen in answers.items():
                _first(found, answer, seen)


def _first(found: dict[KeptAnswer, tuple[int, str, bool]], answer: KeptAnswer, seen: tuple[int, str, bool]) -> None:
    """Take an answer if it is among the first that differ: the same ones in whatever order turns are added, since what
    falls out was later than EXAMPLES others, which only get earlier."""
    found[answer] = min(found.get(answer, seen), seen)
    if len(found) > EXAMPLES:
        del found[max(found.items(), key=itemgetter(1))[0]]


@dataclass(frozen=True, slots=True)
class AnswersOf:
    """The answers of one (scenario, channel, stage), beside what became of its turns."""

    scenario: str
    channel: str
    stage: str
    answers: Answers
    ok: int
    errors: Counter[str]


class PassShare(NamedTuple):
    """How many answers were checked, and what came of it."""

    checked: int
    unscored: int
    """Further ones, whose checks could not be carried out."""
    share: float | None
    """That passed; None: none was checked, or not all could be, and nobody knows what the others were."""


def pass_share(answers: Sequence[Answers]) -> PassShare:
    """Over some cells."""
    found = list(_scores(answers))
    n, unscored = sum(count for _, count in found), sum(one.unscored.total() for one in answers)
    passed = sum(count for score, count in found if score.passed)
    return PassShare(n, unscored, passed / n if n and not unscored else None)


def collapsed_share(answers: Sequence[Answers], ok: int, empty: int) -> float | None:
    """Share of answers that were none any more: of turns that succeeded, and of those that failed as `no_output`."""
    return (sum(one.collapsed_turns for one in answers) + empty) / (ok + empty) if ok + empty else None


def unscored_answers(cells: Sequence[AnswersOf]) -> Unscored | None:
    """Answers whose checks could not be carried out; None: there was none."""
    prompts: Counter[str] = Counter()
    for cell in cells:
        prompts.update(cell.answers.unscored)
    first = min((cell.answers.first_unscored for cell in cells if cell.answers.first_unscored), default=None)
    if first is None:
        return None
    ordered = sorted(prompts.items(), key=lambda item: (-item[1], item[0]))
    return Unscored(
        n=prompts.total(), prompts=dict(ordered), first=fit(first[1].removeprefix(UNSCORED), LONGEST_KEPT, str)
    )


def wrong_answers(cells: Sequence[AnswersOf]) -> tuple[WrongAnswers, ...]:
    """What was said that was not right, by prompt, most first; empty: no answer was kept."""
    whole = Answers()
    for cell in cells:
        whole.merge(cell.answers)
    counted = Counter(whole.unscored)
    for score, n in _scores([whole]):
        counted[score.name] += 0 if score.passed else n
    made = [
        WrongAnswers(
            prompt=prompt,
            n=counted[prompt],
            examples=tuple(
                AnswerExample(request_id=request_id, scored=scored, answer=answer)
                for answer, (_, request_id, scored) in sorted(answers.items(), key=itemgetter(1))
            ),
        )
        for prompt, answers in whole.kept.items()
    ]
    return tuple(nsmallest(MOST_PROMPTS, made, key=lambda one: (-one.n, one.prompt)))


def quality_shares(cells: Sequence[AnswersOf], windows: Sequence[SteadyWindow]) -> tuple[QualityShare, ...]:
    """All of a run; then by stage, by channel, where there are several; by set; and by stage and set, or channel.

    Empty: no answer was checked.
    """
    scores: Counter[tuple[str, str, Score]] = Counter()
    for cell in cells:
        for score, n in _scores([cell.answers]):
            scores[(cell.stage, cell.channel, score)] += n
    if not scores:
        return ()
    stages = _in_order({stage for stage, _, _ in scores}, windows)
    channels = sorted({channel for _, channel, _ in scores})
    sets = sorted({score.set for _, _, score in scores})
    found = [_share(scores)]
    found += [_share(scores, stage=stage) for stage in stages if len(stages) > 1]
    found += [_share(scores, channel=channel) for channel in channels if len(channels) > 1]
    found += [_share(scores, set=name) for name in sets]
    if len(stages) > 1:
        found += [_share(scores, stage=stage, set=name) for name in sets for stage in stages]
        found += [
            _share(scores, stage=stage, channel=channel)
            for channel in channels
            for stage in stages
            if len(channels) > 1
        ]
    return tuple(one for one in found if one is not None)


def answers_of_stages(cells: Sequence[AnswersOf], windows: Sequence[SteadyWindow]) -> tuple[AnswerHealth, ...]:
    """One for each stage, in their order, then one for each scenario of it where there are several; none at all if no
    answer of the run collapsed."""
    found = []
    scenarios = sorted({cell.scenario for cell in cells})
    for stage in _in_order({cell.stage for cell in cells}, windows):
        own = [cell for cell in cells if cell.stage == stage]
        found.append(_health(stage, None, own))
        parts = [(name, [cell for cell in own if cell.scenario == name]) for name in scenarios if len(scenarios) > 1]
        found += [_health(stage, name, its) for name, its in parts if its]
    return tuple(found) if any(map(_any, found)) else ()


def _health(stage: str, scenario: str | None, cells: Sequence[AnswersOf]) -> AnswerHealth:
    flags: Counter[str] = Counter()
    for cell in cells:
        flags.update(cell.answers.collapsed)
    ok, empty = sum(cell.ok for cell in cells), sum(cell.errors[ErrorClass.NO_OUTPUT] for cell in cells)
    return AnswerHealth(
        stage=stage,
        scenario=scenario,
        ok=ok,
        empty=empty,
        share=collapsed_share([cell.answers for cell in cells], ok, empty),
        **{flag: flags[flag] for flag in COLLAPSE_FLAGS},
    )


def about_answers(
    shares: Sequence[QualityShare], answers: Sequence[AnswerHealth], unscored: Unscored | None = None
) -> list[str]:
    """Checks that could not be carried out; stages in which answers were significantly worse than in the first one; in
    a run of one stage, any collapse."""
    warnings = []
    if unscored is not None:
        checked = unscored.n + (shares[0].n if shares else 0)
        warnings.append(
            f"{unscored.n:,} of {checked:,} answers could not be checked, so the run has no quality: {unscored.first}"
        )
    answers = [one for one in answers if one.scenario is None]
    for name, what in _CASES.items():
        counted = [(one.stage, getattr(one, name), one.ok + (one.empty if name == "empty" else 0)) for one in answers]
        if len(counted) == 1 and counted[0][1]:
            warnings.append(f"{counted[0][1]:,} of {counted[0][2]:,} answers {what} (docs/quality.md)")
        warnings += [
            f"stage {stage}: {count:,} of {n:,} answers {what}, where it were {first:,} of {first_n:,} in stage "
            f"{counted[0][0]}: the engine does not answer well under this load"
            for stage, count, n, first, first_n in _worse(counted)
        ]
    staged = [one for one in shares if one.stage is not None and one.channel is None and one.set is None]
    warnings += [
        f"stage {stage}: {count:,} of {n:,} checked answers were wrong, where it were {first:,} of {first_n:,} in "
        f"stage {staged[0].stage}: quality falls under load"
        for stage, count, n, first, first_n in _worse([(one.stage or "", one.n - one.passed, one.n) for one in staged])
    ]
    return warnings


def _worse(counted: Sequence[tuple[str, int, int]]) -> Iterator[tuple[str, int, int, int, int]]:
    """(stage, cases, n, those of the first stage) of stages that have more than the first one, and not by chance."""
    if len(counted) < 2:
        return
    _, first, first_n = counted[0]
    for stage, count, n in counted[1:]:
        if first_n and n and chance_of_more(first, first_n, count, n) < RARE / (len(counted) - 1):
            yield stage, count, n, first, first_n


def _any(one: AnswerHealth) -> bool:
    return any(getattr(one, name) for name in _CASES)


def _scores(answers: Sequence[Answers]) -> Iterator[tuple[Score, int]]:
    for one in answers:
        for written, n in one.scores.items():
            score = read_score(written)
            if score is not None:
                yield score, n


def _in_order(stages: set[str], windows: Sequence[SteadyWindow]) -> list[str]:
    named = dict.fromkeys(window.stage for window in windows if window.stage in stages)
    return [*named, *sorted(stages - named.keys())]


def _share(
    scores: Counter[tuple[str, str, Score]],
    *,
    stage: str | None = None,
    channel: str | None = None,
    set: str | None = None,
) -> QualityShare | None:
    """None: nothing of it was checked."""
    n = passed = 0
    failed: Counter[str] = Counter()
    for (its_stage, its_channel, score), count in scores.items():
        if stage in (None, its_stage) and channel in (None, its_channel) and set in (None, score.set):
            n += count
            passed += count * score.passed
            if not score.passed:
                failed[str(score).removeprefix("fail ")] += count
    if not n:
        return None
    low, high = wilson(passed, n)
    whole = stage is None and channel is None and set is None
    return QualityShare(
        stage=stage,
        channel=channel,
        set=set,
        n=n,
        passed=passed,
        share=passed / n,
        low=low,
        high=high,
        failed=dict(sorted(failed.items(), key=lambda item: (-item[1], item[0]))) if whole else {},
    )
