"""How sure a percentile is, from order statistics: no assumption about the distribution of the values.

Of n independent values, the number of those at or below the true p_q is binomial (n, q). So the l-th smallest is above
p_q with probability P(B <= l - 1), and the u-th smallest is below it with P(B >= u), at most: H. A. David and H. N.
Nagaraja, Order Statistics, 3rd ed. 2003, section 7.1. Turns that share a queue are not independent: the true range is
then wider, and only several runs tell by how much (docs/gate.md).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

CONFIDENCE = 0.95

_EXACT_BELOW = 10_000.0
"""Variance of the binomial from which on the normal distribution gives the ranks, rounded outwards."""

_Z_TAIL = 1.959963984540054
"""Standard normal quantile of 0.975."""


def enough(q: float) -> int:
    """The smallest number of values for which a 95 % upper bound of p_q exists (for q < 0.5 a lower one).

    The largest of n values is below p_q with probability q**n, so n >= ln(0.05) / ln(q): 5 for p50, 29 for p90, 59 for
    p95, 299 for p99, 2,995 for p99.9. Raises ValueError unless 0 < q < 1.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"a percentile is a share between 0 and 1, not {q}")
    return math.ceil(math.log(1.0 - CONFIDENCE) / math.log(max(q, 1.0 - q)))


@lru_cache(maxsize=4096)
def range_ranks(q: float, n: int) -> tuple[int | None, int | None]:
    """(rank of the lower end, rank of the upper end), 1 to n, of the 95 % range of p_q among n sorted values.

    2.5 % may lie beyond each end. Where n is too small for one end (fewer than 368 values of a p99 for the upper), it
    is the extreme value if that leaves the other end something of the 5 %, else None, and the other has all of it.
    Raises ValueError unless 0 < q < 1 and n >= 0.
    """
    if not 0.0 < q < 1.0 or n < 0:
        raise ValueError(f"no range of p_{q} among {n} values")
    if not n:
        return None, None
    if n * q * (1.0 - q) >= _EXACT_BELOW:
        spread = _Z_TAIL * math.sqrt(n * q * (1.0 - q))
        return max(1, math.floor(n * q - spread)), min(n, math.ceil(n * q + spread) + 1)
    error, half = 1.0 - CONFIDENCE, (1.0 - CONFIDENCE) / 2.0
    above, below = q**n, (1.0 - q) ** n
    """Chance that even the largest value is below p_q, and that even the smallest is above."""
    if above > half:
        upper = n if above <= error else None
        return _lower_rank(q, n, error - above if upper else error), upper
    if below > half:
        lower = 1 if below <= error else None
        return lower, _upper_rank(q, n, error - below if lower else error)
    return _lower_rank(q, n, half), _upper_rank(q, n, half)


def _lower_rank(q: float, n: int, tail: float) -> int | None:
    """The largest l with P(B <= l - 1) <= tail; None: even l = 1 is not one."""
    first, chances = _binomial(q, n)
    inside = int(np.searchsorted(np.cumsum(chances), tail, side="right"))
    return first + inside if first + inside >= 1 else None


def _upper_rank(q: float, n: int, tail: float) -> int | None:
    """The smallest u with P(B >= u) <= tail; None: even u = n is not one."""
    lower = _lower_rank(1.0 - q, n, tail)  # the same, counted from the top
    return None if lower is None else n + 1 - lower


def _binomial(q: float, n: int) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """(first k, P(B = k) from there on), without what is beyond 12 standard deviations: far below 1e-15."""
    reach = 12.0 * math.sqrt(n * q * (1.0 - q)) + 30.0
    first, last = max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))
    start = math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1)
    start += first * math.log(q) + (n - first) * math.log1p(-q)
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log((n - k) / (k + 1.0)) + math.log(q) - math.log1p(-q)
    return first, np.exp(start + np.concatenate(([0.0], np.cumsum(steps))))
