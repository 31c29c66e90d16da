"""Rules that are always on: something succeeded, something was generated, and the load was the one that was asked for.

What makes a run invalid (metrics.validity) is judged there; here it gets a row each, so that a reader of the table sees
that it was looked at. Their verdict is `invalid` or `pass`; what nobody could tell is `no data` that only warns.
"""

from __future__ import annotations

import msgspec

from infersiege.metrics.validity import DELIVERED_CEILING, DELIVERED_FLOOR
from infersiege.records import ClientVerdict, GroupSummary, RuleResult, Summary, Verdict

BUILT_IN = (
    "some turn succeeds",
    "some output tokens arrive",
    "the load is delivered",
    "the client keeps up",
    "no worker is lost",
    "every check is carried out",
)
"""Names of the rules of this module."""

BASIC = 2
"""Results of `outcome`: they come before those of `validity`."""


def outcome(summary: Summary) -> tuple[RuleResult, ...]:
    """A run in which nothing succeeded shows nothing, whatever its percentiles (GT-01)."""
    whole = summary.groups[0]
    ended = whole.counts.ok + whole.counts.failed
    return (
        _minimum_of_one("some turn succeeds", "ok", whole.counts.ok, ended, "turns", whole),
        _minimum_of_one("some output tokens arrive", "output_tokens", whole.output_tokens, ended, "tokens", whole),
    )


def validity(summary: Summary) -> tuple[RuleResult, ...]:
    """Delivered load, fitness of the client, lost workers (GT-09)."""
    return _delivered(summary), _client(summary), _workers(summary)


def checks_carried_out(summary: Summary) -> tuple[RuleResult, ...]:
    """Where answers were checked: whether all could be. With one that could not, nobody knows how good they were, which
    is no data and no failure of the server's."""
    checked = summary.quality[0].n if summary.quality else 0
    broken = summary.unscored
    if not checked and broken is None:
        return ()
    name, missed = "every check is carried out", 0 if broken is None else broken.n
    found = _row(name, "unscored", None, f"{checked:,} answers were checked", known=broken is None)
    if broken is not None:
        why = f"{missed:,} of {checked + missed:,} answers could not be checked: {broken.first}"
        found = msgspec.structs.replace(found, detail=why, severity="fail")
    return (msgspec.structs.replace(found, value=float(missed), n=checked + missed, unit="count", at_most=0.0),)


def _delivered(summary: Summary) -> RuleResult:
    """The worst of all loads and stages: the one that is farthest from all of what was asked."""
    told = [one for one in summary.loads if one.share is not None]
    worst = max(told, key=lambda one: abs((one.share or 0.0) - 1.0), default=None)
    name, bad = "the load is delivered", _undelivered(summary)
    if worst is None or worst.share is None:
        why = bad or "what was asked of the load can't be told"
        return _row(name, "delivered_share", bad, why, known=bad is not None)
    where = f" in stage {worst.stage}" if len({one.stage for one in summary.loads}) > 1 else ""
    who = f" of {', '.join(worst.scenarios)}" if worst.scenarios else ""
    good = f"{worst.share:.1%} of what was asked{who}{where}"
    return msgspec.structs.replace(
        _row(name, "delivered_share", bad, good),
        value=worst.share,
        n=len(told),
        unit="ratio",
        at_least=DELIVERED_FLOOR,
        at_most=DELIVERED_CEILING,
    )


def _undelivered(summary: Summary) -> str | None:
    said = ("load not delivered", "more load than asked", "no steady window", "no turn was due in the steady window")
    return next((reason for reason in summary.invalid if reason.startswith(said)), None)


def _client(summary: Summary) -> RuleResult:
    name, verdict = "the client keeps up", summary.client
    bad = next((reason for reason in summary.invalid if reason.startswith("client-bound")), None)
    strained = next((one for one in summary.clients if one.verdict is ClientVerdict.STRAINED), None)
    if strained is not None:
        good = f"strained: {strained.worker}: {', '.join(strained.reasons)}"
    elif verdict is None:
        good = "nobody watched the load generator"
    else:
        good = "the load generator was not the limit"
    return _row(name, "client", bad, good, known=verdict is not None or bad is not None)


def _workers(summary: Summary) -> RuleResult:
    lost = [one for one in summary.workers if one.lost]
    bad = next((reason for reason in summary.invalid if reason.startswith("worker ") and " was lost" in reason), None)
    if bad is None and lost:
        bad = f"worker {lost[0].worker} was lost"
    good = f"all {len(summary.workers)} stayed" if len(summary.workers) > 1 else "it stayed"
    if not summary.workers:
        good = "the workers are not known"
    made = _row("no worker is lost", "lost_workers", bad, good, known=bool(summary.workers) or bad is not None)
    if not summary.workers:
        return made
    return msgspec.structs.replace(made, value=float(len(lost)), n=len(summary.workers), unit="count", at_most=0.0)


def _row(name: str, metric: str, bad: str | None, good: str, *, known: bool = True) -> RuleResult:
    """`bad`: why the run is invalid; None: it is not for this reason. Not `known`: nobody can tell."""
    verdict = Verdict.INVALID if bad is not None else Verdict.PASS if known else Verdict.NO_DATA
    return RuleResult(
        name=name,
        metric=metric,
        stat="",
        scenario=None,
        channel=None,
        stage=None,
        n=None,
        value=None,
        unit="",
        at_most=None,
        at_least=None,
        verdict=verdict,
        detail=bad or good,
        severity="fail" if known else "warn",
        built_in=True,
        remark=good if bad is None and good.startswith("strained") else "",
    )


def _minimum_of_one(
    name: str, metric: str, value: int | None, ended: int, unit: str, whole: GroupSummary
) -> RuleResult:
    if not ended:
        verdict, detail = Verdict.NO_DATA, _why_none_ended(whole)
    elif value:
        verdict, detail = Verdict.PASS, f"{value:,} {unit} in steady"
    else:
        verdict, detail = Verdict.FAIL, f"none in {ended} turns{_worst_errors(whole)}"
    return RuleResult(
        name=name,
        metric=metric,
        stat="total",
        scenario=None,
        channel=None,
        stage=None,
        n=ended,
        value=None if value is None else float(value),
        unit=unit,
        at_most=None,
        at_least=1.0,
        verdict=verdict,
        detail=detail,
        built_in=True,
        window_duration_ns=whole.steady_duration_ns,
    )


def _why_none_ended(whole: GroupSummary) -> str:
    counts = whole.counts
    if not counts.planned:
        return "no turn was due in the steady window"
    ends = (("cancelled", counts.cancelled), ("lost", counts.lost), ("skipped", counts.skipped))
    return f"no turn due in the steady window ended: {', '.join(f'{name} {n}' for name, n in ends if n)}"


def _worst_errors(whole: GroupSummary) -> str:
    worst = sorted(whole.errors.items(), key=lambda item: (-item[1], item[0]))[:3]
    return f": {', '.join(f'{name} {count}' for name, count in worst)}" if worst else ""
