"""Arrival processes: when, by a seed, one session comes after the other.

Random numbers are the raw output of PCG64, which numpy keeps the same over its releases; its distributions it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infersiege.errors import InternalError, UsageError

SECOND_NS = 1_000_000_000
FAR_NS = 1 << 62
"""146 years: an arrival that is later counts as that far away, so that no offset leaves 64 bits."""
_BLOCK = 4096
_SMALLEST, _LARGEST = 1e-9, 1e9
"""Of rates, speeds and shapes: beyond them arrivals are at one instant, or never."""

Floats = NDArray[np.float64]


class Process(Protocol):
    """One seeded sequence of arrivals, without end; each call begins it anew."""

    def offsets_ns(self, rate: float) -> Iterator[list[int]]:
        """Blocks of offsets (ns) at `rate` per second, not falling, at most `FAR_NS`."""
        ...

    def counts(self) -> Iterator[tuple[int, Floats]]:
        """The same sequence at a mean of one arrival per unit: blocks of arrivals at whole + parts.

        Whole units are kept apart so that the parts are as exact after a billion arrivals as at the first.
        """
        ...


def check_factor(name: str, value: float) -> None:
    """Raises InternalError for what no process can have as rate, speed or shape (0, negative, NaN, infinite, …)."""
    if not _SMALLEST <= value <= _LARGEST:
        raise InternalError(f"{name} is {value}, it must be from {_SMALLEST:g} to {_LARGEST:g}")


def stream_seed(seed: int, stream: int) -> int:
    """The seed of one of several streams of arrivals in a run; stream 0 has the run's own."""
    if stream < 0:
        raise InternalError(f"stream is {stream}, it must be 0 or above")
    return seed if stream == 0 else _word(seed, f"stream {stream}", 8)


def generator(seed: int, what: str) -> np.random.PCG64:
    return np.random.PCG64(_word(seed, what, 16))


def _word(seed: int, what: str, size: int) -> int:
    return int.from_bytes(blake2b(f"{seed}\0{what}".encode(), digest_size=size).digest(), "little")


def _uniform(source: np.random.PCG64, size: int) -> Floats:
    """Even over (0, 1), neither end included: its logarithm is a number."""
    return ((source.random_raw(size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


@dataclass(frozen=True, slots=True)
class _Constant:
    """Arrival k at k / rate, the first at 0."""

    def offsets_ns(self, rate: float) -> Iterator[list[int]]:
        gap_ns = SECOND_NS / Fraction(rate)  # exact: no drift however long it runs
        for first in count(0, _BLOCK):
            yield [min(round(k * gap_ns), FAR_NS) for k in range(first, first + _BLOCK)]

    def counts(self) -> Iterator[tuple[int, Floats]]:
        parts = np.arange(_BLOCK, dtype=np.float64)
        for first in count(0, _BLOCK):
            yield first, parts


@dataclass(frozen=True, slots=True)
class _Renewal:
    """Independent gaps, the first one before the first arrival."""

    gaps: Callable[[], Iterator[Floats]]
    """Blocks of gaps with a mean of 1."""

    def offsets_ns(self, rate: float) -> Iterator[list[int]]:
        at_ns = 0.0  # exact to a nanosecond for 104 days
        for gaps in self.gaps():
            offsets = np.minimum(at_ns + np.cumsum(gaps * (SECOND_NS / rate)), FAR_NS)
            at_ns = float(offsets[-1])
            yield np.rint(offsets).astype(np.int64).tolist()

    def counts(self) -> Iterator[tuple[int, Floats]]:
        whole, part = 0, 0.0
        for gaps in self.gaps():
            parts = part + np.cumsum(gaps)
            yield whole, parts
            last = float(parts[-1])
            whole, part = whole + int(last), last - int(last)


def _exponential_gaps(seed: int) -> Iterator[Floats]:
    source = generator(seed, "poisson")
    while True:
        yield -np.log(_uniform(source, _BLOCK))


def _gamma_gaps(seed: int, shape: float) -> Iterator[Floats]:
    """Gaps of a gamma distribution with mean 1 and coefficient of variation 1 / sqrt(shape).

    The first gap is what is left, at a random instant, of the gap that is under way (a length-biased gap, which has
    shape + 1, times an even share; D. R. Cox, Renewal Theory, 1962, chapter 5). So the mean count over seeds is the
    asked one from the first instant on, however bursty the process is, and no burst is bound to the start.
    """
    source = generator(seed, "gamma")
    started = (_gamma(source, shape + 1, 1) * _uniform(source, 1)) / shape
    while True:
        gaps = _gamma(source, shape, _BLOCK) / shape
        if started.size:
            gaps[0] = started[0]
            started = started[:0]
        yield gaps


def _gamma(source: np.random.PCG64, shape: float, size: int) -> Floats:
    """Samples of the gamma distribution with scale 1.

    G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, ACM TOMS 26(3), 2000; a shape below 1
    by their remark that a sample of shape + 1 times U ** (1 / shape) has it.
    """
    if shape < 1:
        return _gamma(source, shape + 1, size) * _uniform(source, size) ** (1 / shape)
    d = shape - 1 / 3
    c = 1 / (9 * d) ** 0.5
    samples = np.empty(size)
    left = np.arange(size)
    while left.size:
        normal = _normal(source, left.size)
        cube = (1 + c * normal) ** 3
        inside = cube > 0
        cube = np.where(inside, cube, 1.0)
        kept = np.log(_uniform(source, left.size)) < 0.5 * normal * normal + d * (1 - cube + np.log(cube))
        kept &= inside
        samples[left[kept]] = d * cube[kept]
        left = left[~kept]
    return samples


def _normal(source: np.random.PCG64, size: int) -> Floats:
    """Samples of the standard normal distribution: G. E. P. Box and M. E. Muller, 1958, the cosine half."""
    radius: Floats = np.sqrt(-2 * np.log(_uniform(source, size)))
    return radius * np.cos(2 * np.pi * _uniform(source, size))


def _constant(seed: int, burstiness: float | None) -> Process:
    return _Constant()


def _poisson(seed: int, burstiness: float | None) -> Process:
    return _Renewal(lambda: _exponential_gaps(seed))


def _bursty(seed: int, burstiness: float | None) -> Process:
    if burstiness is None:
        raise UsageError(
            'arrivals "gamma" need a burstiness', hint="1 is Poisson, below is burstier, above is steadier"
        )
    check_factor("burstiness", burstiness)
    if burstiness == 1:
        return _poisson(seed, None)  # not only the same distribution: the same arrivals
    return _Renewal(lambda: _gamma_gaps(seed, burstiness))


ARRIVALS: dict[str, Callable[[int, float | None], Process]] = {
    "constant": _constant,
    "poisson": _poisson,
    "gamma": _bursty,
}
"""(seed, burstiness: shape of the gaps, which only gamma has) -> the process."""


def arrival_process(name: str, seed: int, burstiness: float | None = None) -> Process:
    """The process of that name. Raises UsageError for an unknown one, and for gamma without a burstiness."""
    process = ARRIVALS.get(name)
    if process is not None:
        return process(seed, burstiness)
    if name == "trace":
        raise UsageError('arrivals "trace" are the mode "replay"', hint='set load mode = "replay"')
    raise UsageError(f"arrival process {name!r} is unknown", hint="processes: " + ", ".join(ARRIVALS))
