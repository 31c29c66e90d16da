"""Which load to probe next, and what was found: a pure function of the probes so far.

From the start the load is doubled until it fails (or halved until it passes), then the gap between the highest load
that passes and the lowest that fails is halved, geometrically, until it is no wider than the resolution. Loads are
probed once on the way; the two at the limit are repeated until one verdict has the majority of `repeats`. A verdict
that the repeats turn over moves the limit, and the search goes on from there. No history makes it probe for ever:
there are `most_probes` at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

import msgspec

LENGTHENED_MOST = 6
"""Probes of one search that may be made again, longer, because a rule had no data."""

INVALID_MOST = 2
"""Invalid probes at one load after which the search ends: one may be an accident of a busy host."""

REVISIONS = 2
"""Verdicts near the limit that repeats may turn over before the search ends with what it has."""

NEAR = 1e-9

MOST_USERS = 100_000
LEAST_RATE, MOST_RATE = 1e-6, 1e5
"""What a plan may ask for (plan.load_schema)."""


class Judged(StrEnum):
    """What one probe showed."""

    PASS = "pass"
    """Every rule held."""
    FAIL = "fail"
    """A rule was measured and did not hold."""
    NO_DATA = "no data"
    """Too few turns for a rule: says nothing about the load, and is made again, longer."""
    INVALID = "invalid"
    """The client, not the server: says nothing about the load."""


class Outcome(StrEnum):
    """How a search ended."""

    FOUND = "found"
    BELOW = "below"
    """Not even the lowest load passes."""
    AT_LEAST = "at least"
    """The highest load that may be probed passes."""
    INVALID = "invalid"
    """A load could not be offered properly."""
    NO_DATA = "no data"
    UNCONFIRMED = "unconfirmed"
    """All probes are used up, and the loads at the limit have no majority yet."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched. Loads are users (whole) or sessions per second."""

    start: float
    lowest: float
    highest: float
    whole: bool
    """Users."""
    resolution: float = 0.1
    """The limit is known when the lowest load that fails is at most this share above the highest that passes (or,
    of users, one more)."""
    repeats: int = 3
    """The two loads at the limit: the verdict of most of so many probes, an odd number."""

    def faults(self) -> list[str]:
        """Why this is no range to search, one line each; empty: it is one."""
        if not self.start > 0:  # NaN is not either; what was not given follows from the start
            return [f"the start ({self.start:g}) must be above 0"]
        found = []
        least, most, unit = (1, MOST_USERS, "users") if self.whole else (LEAST_RATE, MOST_RATE, "sessions/s")
        if not 0 < self.lowest <= self.start <= self.highest < math.inf:
            found.append(f"the start ({self.start:g}) must lie between {self.lowest:g} and {self.highest:g}")
        found += [
            f"{name} ({load:g}) must lie between {least:g} and {most:,.0f} {unit}"
            for name, load in (("the lowest load", self.lowest), ("the highest load", self.highest))
            if load > 0 and math.isfinite(load) and not least <= load <= most
        ]
        if not 0.005 <= self.resolution <= 1:  # NaN is not either
            found.append(f"the resolution ({self.resolution:g}) must lie between 0.005 and 1")
        if self.repeats < 1 or self.repeats % 2 == 0 or self.repeats > 99:
            found.append(f"repeats ({self.repeats}) must be an odd number from 1 to 99, so that there is a majority")
        if self.whole and any(load % 1 != 0 for load in (self.start, self.lowest, self.highest)):
            found.append("users are whole numbers")
        return found


class Shown(msgspec.Struct, frozen=True):
    """One probe, as far as the search looks at it."""

    load: float
    judged: Judged
    hopeless: bool = False
    """No data, and a longer probe would have none either."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found."""

    outcome: Outcome
    passes: float | None
    """The highest load that passes, below every load that fails; None: no load passed."""
    fails: float | None
    """The lowest load that fails; None: none did."""
    passed_of: tuple[int, int] | None
    """At `passes`: probes that passed, and all that showed something."""
    failed_of: tuple[int, int] | None
    """At `fails`: probes that failed, and all that showed something."""
    stopped_at: float | None = None
    """The load whose probes were invalid or had no data."""
    contradictions: tuple[tuple[float, float], ...] = ()
    """(load that failed once, higher load that passed once): single probes against the rule that more load is worse."""


def next_load(search: Range, shown: Sequence[Shown], *, before: int = 0) -> float | Finding:
    """The load of the next probe, or what was found. `search` has no faults.

    `before`: how many of the probes were made by earlier calls: each call may make `most_probes`.
    """
    stopped = _stopped(search, shown)
    if stopped is not None:
        return stopped
    tallies = tally(shown)
    wanted = search.start if not tallies else _wanted(search, tallies)
    if wanted is None:
        return _finding(_ending(search, tallies), tallies, shown)
    if len(shown) - before - _lengthened(shown) >= most_probes(search):
        return _finding(Outcome.UNCONFIRMED, tallies, shown)
    return wanted


Tallies = dict[float, Counter[Judged]]


def tally(shown: Sequence[Shown]) -> Tallies:
    """Passes and fails by load, in rising order."""
    tallies: Tallies = {}
    for one in sorted(shown, key=lambda one: one.load):
        if one.judged in (Judged.PASS, Judged.FAIL):
            tallies.setdefault(one.load, Counter())[one.judged] += 1
    return tallies


def passing(counts: Counter[Judged]) -> bool:
    """The verdict so far on one load. A tie is no pass: what half of the probes fail can't be promised."""
    return counts[Judged.PASS] > counts[Judged.FAIL]


def settled(counts: Counter[Judged], repeats: int) -> bool:
    """No further probe of `repeats` could turn the verdict over."""
    return max(counts.values(), default=0) > repeats // 2


def bracket(tallies: Tallies) -> tuple[float | None, float | None]:
    """(highest load that passes below every one that fails, lowest that fails)."""
    fails = next((load for load, counts in tallies.items() if not passing(counts)), None)
    passes = [load for load, counts in tallies.items() if passing(counts) and (fails is None or load < fails)]
    return max(passes, default=None), fails


def _wanted(search: Range, tallies: Tallies) -> float | None:
    """The next load; None: the limit is known."""
    passes, fails = bracket(tallies)
    if passes is not None and fails is not None:
        middle = _middle(search, passes, fails)
        if middle is not None:
            return middle
    elif passes is not None and passes < search.highest:
        return min(2 * passes, search.highest)
    elif fails is not None and fails > search.lowest:
        return _half(search, fails)
    at_limit = (load for load in (passes, fails) if load is not None)
    return next((load for load in at_limit if not settled(tallies[load], search.repeats)), None)


def _middle(search: Range, passes: float, fails: float) -> float | None:
    """A load between the two; None: they are as near as asked."""
    if fails <= passes * (1 + search.resolution) * (1 + NEAR) or (search.whole and fails - passes <= 1):
        return None
    middle = math.sqrt(passes * fails)
    return min(max(float(round(middle)), passes + 1), fails - 1) if search.whole else _short(middle)


def _half(search: Range, load: float) -> float:
    return max(float(math.floor(load / 2)) if search.whole else _short(load / 2), search.lowest)


def _short(rate: float) -> float:
    """Six digits, so that it is the same in a file and on a command line."""
    return float(f"{rate:.6g}")


def _ending(search: Range, tallies: Tallies) -> Outcome:
    passes, fails = bracket(tallies)
    if passes is None:
        return Outcome.BELOW
    return Outcome.AT_LEAST if fails is None else Outcome.FOUND


def _stopped(search: Range, shown: Sequence[Shown]) -> Finding | None:
    """A load that can't be judged ends the search: neither verdict may be made up for it."""
    invalid = Counter(one.load for one in shown if one.judged is Judged.INVALID)
    at = next((load for load, n in invalid.items() if n >= INVALID_MOST), None)
    if at is not None:
        return _finding(Outcome.INVALID, tally(shown), shown, at)
    if _lengthened(shown) > LENGTHENED_MOST or (shown and shown[-1].hopeless):
        return _finding(Outcome.NO_DATA, tally(shown), shown, shown[-1].load)
    return None


def _lengthened(shown: Sequence[Shown]) -> int:
    return sum(one.judged is Judged.NO_DATA for one in shown)


def _finding(outcome: Outcome, tallies: Tallies, shown: Sequence[Shown], stopped_at: float | None = None) -> Finding:
    passes, fails = bracket(tallies)
    return Finding(
        outcome=outcome,
        passes=passes,
        fails=fails,
        passed_of=None if passes is None else (tallies[passes][Judged.PASS], tallies[passes].total()),
        failed_of=None if fails is None else (tallies[fails][Judged.FAIL], tallies[fails].total()),
        stopped_at=stopped_at,
        contradictions=contradictions(shown),
    )


def contradictions(shown: Sequence[Shown]) -> tuple[tuple[float, float], ...]:
    """For each load that failed once, the highest load above it that passed once."""
    failed = sorted({one.load for one in shown if one.judged is Judged.FAIL})
    passed = [one.load for one in shown if one.judged is Judged.PASS]
    return tuple((low, max(above)) for low in failed if (above := [load for load in passed if load > low]))


# ------------------------------------------------------------------------------------------- how many, beforehand


def usual_probes(search: Range) -> int:
    """The most probes that a search takes whose probes never contradict each other, at whatever load its limit is."""
    return max(_bracketing(search, up=True), _bracketing(search, up=False)) + 2 * (search.repeats // 2)


def most_probes(search: Range) -> int:
    """Probes after which a search ends, whatever they showed (those that were made again for want of data apart)."""
    gap = max(_halvings(search, search.lowest, 2 * search.lowest), _halvings(search, search.start, 2 * search.start))
    return usual_probes(search) + REVISIONS * (gap + search.repeats) + INVALID_MOST


def _bracketing(search: Range, *, up: bool) -> int:
    """Doubling (or halving) to the worst place, and the halvings of the gap there."""
    worst = probes = 1
    load, end = search.start, search.highest if up else search.lowest
    while load != end:
        far = min(2 * load, end) if up else _half(search, load)
        probes += 1
        worst = max(worst, probes + _halvings(search, min(load, far), max(load, far)))
        load = far
    return max(worst, probes)


def _halvings(search: Range, passes: float, fails: float) -> int:
    @cache
    def needed(low: float, high: float) -> int:
        middle = _middle(search, low, high)
        return 0 if middle is None else 1 + max(needed(low, middle), needed(middle, high))

    return needed(passes, fails)
