"""What limited a stage, as one word and one sentence: rules in order of evidence (docs/metrics.md has the reasons).

NVML's utilisation is in none of them. It is the share of time in which *any* kernel ran, and is near 100 % with one
user already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infersiege.resources.gpus import Spread

CLIENT, QUOTA, KV_CACHE, QUEUE, POWER, BANDWIDTH, COMPUTE, NOT_CLEAR = (
    "client", "quota", "KV cache", "queue", "power", "memory bandwidth", "compute", "not clear",
)  # fmt: skip

QUOTA_SHARE = 0.01
QUOTA_TURNS = 3
KV_FULL = 0.95
KV_MOSTLY_FULL = 0.80
PREEMPTED_SHARE = 0.01
WAITING = 1.0
WAITING_OF_RUNNING = 0.05
POWER_CAPPED_SHARE = 0.25
THROTTLED_SHARE = 0.10
DRAM_ACTIVE = 0.70
TENSOR_ACTIVE = 0.50
SM_ACTIVE = 0.95
SMALL_BATCH = 8.0
READ_ENOUGH = 0.80
"""Figures from a smaller share of the steady phase carry a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the rules look at, of the steady phase of one stage. None: not known."""

    client: str | None = None
    """Why the run is client-bound."""
    started: int = 0
    """Turns."""
    ended: int = 0
    """Turns, ok or failed."""
    refused: int = 0
    """Of these, those that failed by rate limit or overload."""
    in_flight_mean: float | None = None
    kv_use_mean: float | None = None
    kv_use_peak: float | None = None
    running_mean: float | None = None
    running_peak: float | None = None
    waiting_mean: float | None = None
    waiting_peak: float | None = None
    preemptions: float | None = None
    power_capped: Spread | None = None
    throttled: Spread | None = None
    dram_active: Spread | None = None
    tensor_active: Spread | None = None
    sm_active: Spread | None = None
    utilization: Spread | None = None
    thin: tuple[str, ...] = ()
    """Series that were read for less than READ_ENOUGH of the steady phase: `engine 127.0.0.1:8000: 45 %`."""

    @property
    def batch(self) -> float | None:
        """Requests that share one step: the engine's own figure, else the client's."""
        return self.in_flight_mean if self.running_mean is None else self.running_mean


def percent(ratio: float) -> str:
    """Whole percent; what is not 0 is never written as 0 %, what is not all never as 100 %."""
    if 0 < ratio < 0.01:
        return "<1 %"
    return ">99 %" if 0.995 <= ratio < 1 else f"{100 * ratio:.0f} %"


def amount(value: float) -> str:
    """Whole above 10, else two significant digits."""
    return f"{value:,.0f}" if value >= 9.95 or value == int(value) else f"{value:.2g}"


def _over_cards(found: Spread) -> str:
    """`81 %`; with several GPUs that differ, `81 % on the busiest of 8 GPUs (mean 43 %)`."""
    if found.cards == 1:
        return percent(found.busiest)
    if found.busiest - found.mean < 0.05:
        return f"{percent(found.mean)} (mean of {found.cards} GPUs)"
    return f"{percent(found.busiest)} on the busiest of {found.cards} GPUs (mean {percent(found.mean)})"


def _client(seen: Evidence) -> str | None:
    return seen.client


def _quota(seen: Evidence) -> str | None:
    if seen.refused < QUOTA_TURNS or seen.refused < QUOTA_SHARE * seen.ended:
        return None
    return f"{seen.refused:,} of {seen.ended:,} turns were refused by a rate limit or as overload"


def _waits(seen: Evidence) -> bool:
    """More than a request at a time, and more than the scheduler's own hand-over at a large batch."""
    return seen.waiting_mean is not None and seen.waiting_mean >= max(
        WAITING, WAITING_OF_RUNNING * (seen.running_mean or 0.0)
    )


def _kv_words(seen: Evidence) -> str:
    if seen.kv_use_peak is None or seen.kv_use_mean is None:
        return "how full the KV cache was is not known"
    return f"the KV cache was {percent(seen.kv_use_mean)} full on average, {percent(seen.kv_use_peak)} at most"


def _waiting_words(seen: Evidence) -> str:
    if seen.waiting_mean is None:
        return "how many requests waited is not known"
    if not seen.waiting_peak:
        return "no request waited in the engine"
    return f"{amount(seen.waiting_mean)} requests waited on average, {amount(seen.waiting_peak)} at most"


def _preempts(seen: Evidence) -> bool:
    return seen.preemptions is not None and seen.preemptions >= max(1.0, PREEMPTED_SHARE * seen.started)


def _kv_is_full(seen: Evidence) -> bool:
    full = seen.kv_use_peak is not None and seen.kv_use_peak >= KV_FULL
    mostly = seen.kv_use_mean is not None and seen.kv_use_mean >= KV_MOSTLY_FULL
    if _preempts(seen) and (full or seen.kv_use_peak is None):
        return True
    return full and mostly and _waits(seen)


def _kv_cache(seen: Evidence) -> str | None:
    if not _kv_is_full(seen):
        return None
    words = f"{_kv_words(seen)}, {_waiting_words(seen)}"
    return f"{words}, {amount(seen.preemptions)} requests were preempted" if seen.preemptions else words


def _queue(seen: Evidence) -> str | None:
    if not _waits(seen) or _kv_is_full(seen):
        return None
    words = f"{_waiting_words(seen)}, while {_kv_words(seen)}"
    if seen.running_peak is not None:
        words += f" and {amount(seen.running_peak)} requests ran at most"
    words += ": the engine's own limit of running requests or tokens per step"
    return words if seen.kv_use_mean is not None else f"{words}, or its KV cache"


def _power(seen: Evidence) -> str | None:
    parts = []
    if seen.power_capped is not None and seen.power_capped.busiest >= POWER_CAPPED_SHARE:
        parts.append(f"slowed by the power limit for {_over_cards(seen.power_capped)} of the time")
    if seen.throttled is not None and seen.throttled.busiest >= THROTTLED_SHARE:
        parts.append(f"slowed by heat or hardware for {_over_cards(seen.throttled)} of the time")
    return f"GPUs were {' and '.join(parts)}" if parts else None


def _batched(seen: Evidence) -> bool:
    """Enough requests share a step for memory traffic to say something of the load; not known: let it."""
    return seen.batch is None or seen.batch >= SMALL_BATCH


def _bandwidth(seen: Evidence) -> str | None:
    found = seen.dram_active
    if found is None or found.busiest < DRAM_ACTIVE or not _batched(seen):
        return None
    return f"DRAM bandwidth was in use for {_over_cards(found)}"


def _compute(seen: Evidence) -> str | None:
    tensor, sms = seen.tensor_active, seen.sm_active
    if tensor is not None and tensor.busiest >= TENSOR_ACTIVE:
        return f"tensor cores were busy for {_over_cards(tensor)} of the time"
    if sms is None or sms.busiest < SM_ACTIVE or not _batched(seen):
        return None
    if seen.dram_active is not None and seen.dram_active.busiest < DRAM_ACTIVE:
        return (
            f"SMs had work for {_over_cards(sms)} of the time, while DRAM bandwidth was in use for "
            f"{_over_cards(seen.dram_active)}"
        )
    return None


Rule = Callable[[Evidence], str | None]
RULES: tuple[tuple[str, Rule], ...] = (
    (CLIENT, _client),
    (QUOTA, _quota),
    (KV_CACHE, _kv_cache),
    (QUEUE, _queue),
    (POWER, _power),
    (BANDWIDTH, _bandwidth),
    (COMPUTE, _compute),
)
"""(limit, rule) in order: a rule gives its reason when it holds, and the first that holds names the limit.

What is nearer to the user comes first, since it hides what lies behind it: a client that can't send shows no queue, and
requests that wait for memory leave the arithmetic idle."""


def limit_of(seen: Evidence) -> tuple[str, str]:
    """(limit, reason). The reason is one sentence with the figures that it rests on."""
    held = [(name, reason) for name, rule in RULES if (reason := rule(seen)) is not None]
    if held:
        name, reason = held[0]
        others = [other for other, _ in held[1:]]
        also = f"; also at a limit: {', '.join(others)}" if others else ""
        return name, _sentence(f"{reason}{also}{_thin(seen)}")
    return NOT_CLEAR, _sentence(f"{_nothing_near(seen)}{_thin(seen)}")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _thin(seen: Evidence) -> str:
    return f"; only part of the steady phase was read ({', '.join(seen.thin)})" if seen.thin else ""


def _nothing_near(seen: Evidence) -> str:
    if not seen.started:
        return "no turn was started"
    looked, missing = _looked_at(seen)
    lacking = f"; not measured: {', '.join(missing)}" if missing else ""
    if not looked:
        return f"nothing was measured that could show a limit{lacking}"
    # A full cache for a moment, or one short wait, is no limit; but then "near" would be a lie.
    most = max(WAITING, WAITING_OF_RUNNING * (seen.running_peak or 0))
    touched = (seen.kv_use_peak or 0) >= KV_FULL or (seen.waiting_peak or 0) > most
    near = "at its limit for long" if touched else "near its limit"
    return f"no figure is {near}: {', '.join(looked)}: more load would show it{lacking}"


def _looked_at(seen: Evidence) -> tuple[list[str], list[str]]:
    """Figures in words, and names of those that are missing."""
    looked, missing = [], []
    if seen.kv_use_peak is None:
        missing.append("KV-cache use")
    else:
        looked.append(_kv_words(seen))
    if seen.waiting_mean is None:
        missing.append("waiting requests")
    else:
        looked.append(_waiting_words(seen))
    for found, label, name in (
        (seen.power_capped, "power-capped time", "power cap"),
        (seen.dram_active, "DRAM bandwidth", "DRAM bandwidth (needs GPM: Hopper or later)"),
        (seen.tensor_active, "tensor cores", "tensor cores (GPM)"),
    ):
        looked += [f"{label} {_over_cards(found)}"] if found is not None else []
        missing += [name] if found is None else []
    if looked and seen.batch is not None and not _batched(seen):
        looked.append(f"only {amount(seen.batch)} request{'' if seen.batch <= 1 else 's'} at a time")
    if seen.utilization is not None and seen.sm_active is None:
        missing.append(
            f"how full the GPU is (utilisation of {percent(seen.utilization.mean)} only says that some kernel ran)"
        )
    return looked, missing
