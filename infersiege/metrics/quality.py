"""Pass shares of checked prompts, and answers that collapsed, by stage; and what of it is worth a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from infersiege.metrics.facts import SteadyWindow
from infersiege.metrics.proportions import chance_of_more, wilson
from infersiege.quality.collapse import COLLAPSE_FLAGS
from infersiege.quality.score import Score, read_score
from infersiege.records import AnswerHealth, ErrorClass, Outcome, QualityShare, TurnRecord

RARE = 0.01
"""A later stage that is worse than the first with a smaller chance than this (divided by the stages) is warned of."""

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
    """Column `quality` -> turns."""
    collapsed: Counter[str] = field(default_factory=Counter)
    """Flag -> turns."""

    def add(self, turn: TurnRecord) -> None:
        if turn.outcome is not Outcome.OK:
            return
        if turn.quality is not None:
            self.scores[turn.quality] += 1
        for flag in turn.flags:
            if flag in COLLAPSE_FLAGS:
                self.collapsed[flag] += 1


@dataclass(frozen=True, slots=True)
class AnswersOf:
    """The answers of one (channel, stage), beside what became of its turns."""

    channel: str
    stage: str
    answers: Answers
    ok: int
    errors: Counter[str]


def pass_share(answers: Sequence[Answers]) -> tuple[int, float | None]:
    """(answers that were checked, share of them that passed; None where there are none)."""
    found = [(score, n) for score, n in _scores(answers)]
    n = sum(count for _, count in found)
    return n, sum(count for score, count in found if score.passed) / n if n else None


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
    """One for each stage, in their order, if any answer of the run collapsed; else none."""
    found = []
    for stage in _in_order({cell.stage for cell in cells}, windows):
        own = [cell for cell in cells if cell.stage == stage]
        flags: Counter[str] = Counter()
        for cell in own:
            flags.update(cell.answers.collapsed)
        found.append(
            AnswerHealth(
                stage=stage,
                ok=sum(cell.ok for cell in own),
                empty=sum(cell.errors[ErrorClass.NO_OUTPUT] for cell in own),
                **{flag: flags[flag] for flag in COLLAPSE_FLAGS},
            )
        )
    return tuple(found) if any(map(_any, found)) else ()


def about_answers(shares: Sequence[QualityShare], answers: Sequence[AnswerHealth]) -> list[str]:
    """Stages in which answers were significantly worse than in the first one; in a run of one stage, any collapse."""
    warnings = []
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
