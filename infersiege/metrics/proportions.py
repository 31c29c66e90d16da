"""Shares of turns: how sure one is, and whether one is larger than another."""

from __future__ import annotations

import math

_Z = 1.959963984540054
"""Standard normal quantile of 0.975."""


def wilson(passed: int, n: int) -> tuple[float, float]:
    """The 95 % range of a share: E. B. Wilson, JASA 22 (1927) 209. Unlike p ± 2 s.e. it has a width at 0 and 1.

    Raises ValueError unless 0 <= passed <= n and n >= 1.
    """
    if not 0 <= passed <= n or n < 1:
        raise ValueError(f"{passed} of {n} is no share")
    share, square = passed / n, _Z * _Z
    middle = share + square / (2 * n)
    reach = _Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low, high = (middle - reach) / (1 + square / n), (middle + reach) / (1 + square / n)
    # At the ends the formula is exact but for the last digit.
    return (0.0 if passed == 0 else max(0.0, low)), (1.0 if passed == n else min(1.0, high))


def chance_of_more(first: int, first_n: int, later: int, later_n: int) -> float:
    """How probable so many (or more) `later` of `later_n` are if both shares are one: Fisher's exact test, one-sided.

    R. A. Fisher, Statistical Methods for Research Workers, 5th ed. 1934, section 21.02. Exact for the few cases that
    matter here, where the normal approximation is not. Raises ValueError for counts that are none.
    """
    if not (0 <= first <= first_n and 0 <= later <= later_n):
        raise ValueError(f"{first} of {first_n} and {later} of {later_n} are no shares")
    cases, everything = first + later, first_n + later_n
    most = min(cases, later_n)
    whole = _log_choose(everything, cases)
    chance = 0.0
    for count in range(later, most + 1):
        part = math.exp(_log_choose(later_n, count) + _log_choose(first_n, cases - count) - whole)
        chance += part
        if count > later and part < 1e-12 * chance and count * everything > cases * later_n:
            break  # beyond the peak the rest is smaller still
    return min(1.0, chance)


def _log_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
