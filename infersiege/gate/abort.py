"""When a rule can't pass any more: a test that may be looked at after every turn, for `abort = true`.

A rule on a percentile says how many turns may be past its limit: at most a share p0 = 1 - q of them. (So do `max` of
error_share and `min` of goodput_share.) While the true share is p or less than p0, the betting martingale

    M_n = mean over j of (p_j / p0)**past * ((1 - p_j) / (1 - p0))**(n - past),     each p_j > p0,

is a nonnegative supermartingale that begins at 1, whatever p_j are tried: it is what a gambler has who bet on more
turns past the limit than p0, at fair odds, with a part of the money on each p_j. By Ville's inequality (J. Ville, Étude
critique de la notion de collectif, 1939; H. Robbins, Statistical methods related to the law of the iterated logarithm,
Ann. Math. Statist. 41, 1970) it ever reaches 1 / ERROR with probability ERROR at most, however often somebody looks. So
a run that would pass is stopped in 1 % of cases at most, over all looks together and for each rule.

This holds where each turn is past the limit with probability p0 at most whatever became of those before it. A burst at
the start (a cold cache, a compilation) breaks that, which is why the evidence must stand for HOLD_NS as well.

Pure: counts come from the workers' reports, instants are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from infersiege.gate.rules import cut_of, request_limits
from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.histogram import bucket_bounds
from infersiege.plan.quality_checks import SCENARIO as CHECKED
from infersiege.plan.schema import Slo
from infersiege.records import Phase, StoppedEarly, WindowRow

ERROR = 0.01
"""Chance at most that a rule stops a run whose true share is the one that may be, over all looks."""

HOLD_NS = 5_000_000_000
"""So long the evidence must stand at every look. More waiting can only make an error rarer."""

_ODDS = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""The p_j, as multiples of the odds p0 / (1 - p0): from a share just above what may be to a run without hope."""

COUNTED = ("ttft", "ttft_from_due", "tpot", "e2e", "e2e_from_due", "lateness")
"""Metrics of which workers report a histogram each second (WindowRow)."""


def allowed_share(slo: Slo) -> float | None:
    """The share of turns that may be past the limit of a rule; None: the rule is not about a share of turns."""
    stat = STATS.get(slo.stat or "")
    if slo.metric in COUNTED and slo.at_most is not None and stat is not None:
        if stat.name == "max":
            return 0.0
        return None if stat.q is None else round(1.0 - stat.q, 9)
    if slo.metric == "error_share" and slo.at_most is not None:
        return slo.at_most
    if slo.metric == "goodput_share" and slo.at_least is not None:
        return round(1.0 - slo.at_least, 9)
    return None


def log_evidence(past: int, of: int, allowed: float) -> float:
    """ln(M_n): that more than a share `allowed` of turns are past the limit, `past` of `of` having been.

    `allowed` 0: one turn proves it (infinite). At 1 nothing ever does.
    """
    if allowed <= 0.0:
        return math.inf if past else 0.0
    if allowed >= 1.0:
        return -math.inf
    logs = []
    for odds in _ODDS:
        grown = 1.0 - allowed + odds * allowed
        # p_j / p0 is odds / grown, and (1 - p_j) / (1 - p0) is 1 / grown.
        logs.append(past * math.log(odds) - of * math.log(grown))
    best = max(logs)
    return best + math.log(math.fsum(math.exp(one - best) for one in logs) / len(logs))


class Count:
    """Turns past the limit of one rule, as reports come in. What the reports leave open is counted as within it."""

    def __init__(self, place: int, slo: Slo, limits: Sequence[RequestLimit]) -> None:
        """`limits`: of single turns, behind goodput."""
        self.place = place
        allowed = allowed_share(slo)
        assert allowed is not None, f"rule {place} is not about a share of turns: the plan's checks refuse abort there"
        self.allowed = allowed
        self.past = 0
        self.of = 0
        self.since_ns: int | None = None
        """Since when the evidence stands."""
        self._slo = slo
        self._cut = cut_of(slo)
        self._limits = limits

    def add(self, row: WindowRow) -> None:
        """Turns of one second that were due in steady and are the rule's."""
        if row.phase is not Phase.STEADY or not self._cut.covers(row.scenario, row.channel, row.stage):
            return
        metric = self._slo.metric
        if metric == "error_share":
            past, within = row.failed, row.ok
        elif metric == "goodput_share":
            if row.good is None:
                return
            past, within = row.failed + self._violating(row), row.good
        elif row.scenario == CHECKED and self._cut.scenario is None:
            return  # in no percentile of the summary either, unless they are named
        else:
            counts = _histogram(row, metric)
            past = _above(counts, (self._slo.at_most or 0.0) * METRICS[metric].per_unit)
            within = sum(counts.values()) - past
        self.past += past
        self.of += past + within

    def _violating(self, row: WindowRow) -> int:
        """At least so many successful turns were past a limit of single turns: those of the limit that most broke.

        Fewer than there were makes the evidence smaller: for the same number of good turns it grows with the others.
        """
        covering = (one for one in self._limits if one.covers(row.scenario, row.channel, row.stage))
        return max(
            (
                _above(_histogram(row, one.metric), one.at_most * METRICS[one.metric].per_unit)
                for one in covering
                if one.metric in COUNTED
            ),
            default=0,
        )

    def proven(self, now_ns: int) -> bool:
        """Whether the rule can't pass any more, and could not for some time."""
        if log_evidence(self.past, self.of, self.allowed) < math.log(1.0 / ERROR):
            self.since_ns = None
            return False
        if self.since_ns is None:
            self.since_ns = now_ns
        return self.allowed <= 0.0 or now_ns - self.since_ns >= HOLD_NS


def _histogram(row: WindowRow, metric: str) -> Mapping[int, int]:
    counts: dict[int, int] = getattr(row, metric)
    return counts


def _above(counts: Mapping[int, int], limit_ns: float) -> int:
    """Values above the limit. Of the bucket that holds the limit none: which of them are is not known."""
    return sum(count for bucket, count in counts.items() if bucket_bounds(bucket)[0] > limit_ns)


class AbortWatch:
    """All rules of a plan that may stop its run."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        limits = request_limits(slos)
        self._counts = [Count(place, slo, limits) for place, slo in enumerate(slos) if slo.abort]

    def add(self, rows: Iterable[WindowRow]) -> None:
        """What a worker reported of its last second."""
        if self._counts:
            for row in rows:
                for count in self._counts:
                    count.add(row)

    def look(self, now_ns: int, *, at_ns: int) -> StoppedEarly | None:
        """The first rule that can't pass any more; None: go on. `now_ns` is monotonic, `at_ns` the same as written."""
        for count in self._counts:
            if count.proven(now_ns):
                return StoppedEarly(
                    place=count.place, at_ns=at_ns, past=count.past, of=count.of, allowed_share=count.allowed
                )
        return None


__all__ = ["COUNTED", "ERROR", "HOLD_NS", "AbortWatch", "Count", "allowed_share", "log_evidence"]
