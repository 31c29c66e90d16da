"""What limited a stage, as one word and one sentence: rules in order of evidence (docs/metrics.md has the reasons).

Somebody will order hardware because of this sentence. So each rule asks for evidence that the next larger machine of
that kind would have helped, and the sentence says what speaks against it: another engine that had room, GPUs that
stood idle, a batch that was small.

NVML's utilisation is in none of the rules. It is the share of time in which *any* kernel ran, and is near 100 % with
one user already; only that a GPU did nothing at all can be seen from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infersiege.resources.evidence import KV_FULL, EngineLoad, Evidence
from infersiege.resources.gpus import Spread

CLIENT, QUOTA, KV_CACHE, QUEUE, POWER, BANDWIDTH, COMPUTE, NOT_CLEAR = (
    "client", "quota", "KV cache", "queue", "power", "memory bandwidth", "compute", "not clear",
)  # fmt: skip

REFUSED_SHARE = 0.01
REFUSED_TURNS = 3
KV_ROOM = 0.80
"""Below this at its peak, a cache has room for more requests."""
PREEMPTED_SHARE = 0.01
WAITING = 1.0
WAITING_OF_RUNNING = 0.05
WAITED_WHILE_FULL = 0.50
POWER_CAPPED_SHARE = 0.25
CLOCK_LOSS = 0.05
THROTTLED_SHARE = 0.10
DRAM_ACTIVE = 0.70
TENSOR_ACTIVE = 0.50
SM_ACTIVE = 0.95
SMALL_BATCH = 8.0
NEAR = 0.80
"""A figure that is above this share of its threshold is near it."""


_TIME = " of the time"


def percent(ratio: float) -> str:
    """Whole percent; what is not 0 is never written as 0 %, what is not all never as 100 %."""
    if 0 < ratio < 0.01:
        return "<1 %"
    return ">99 %" if 0.995 <= ratio < 1 else f"{100 * ratio:.0f} %"


def amount(value: float) -> str:
    """Whole above 10, else two significant digits."""
    return f"{value:,.0f}" if value >= 9.95 or value == int(value) else f"{value:.2g}"


def reaches(ratio: float | None, threshold: float) -> bool:
    """In whole percent, as it is printed: a limit of 70 % must not stand beside a "70 %" that did not reach it."""
    return ratio is not None and round(ratio, 2) >= threshold


def _on(found: Spread | None, threshold: float) -> bool:
    return found is not None and reaches(found.busiest, threshold)


def _over_cards(found: Spread, of: str = "") -> str:
    """What the rules test, the busiest GPU's: `81 %`, `81 % of the time on the busiest of 8 GPUs (mean 43 %)`."""
    busiest = f"{percent(found.busiest)}{of}"
    if found.cards == 1:
        return busiest
    if percent(found.busiest) == percent(found.mean):
        return f"{busiest} on each of {found.cards} GPUs"
    return f"{busiest} on the busiest of {found.cards} GPUs (mean {percent(found.mean)})"


# ------------------------------------------------------------------------------------------------- client and server


def _client(seen: Evidence) -> str | None:
    return seen.client


def _many(refused: int, seen: Evidence) -> bool:
    return refused >= REFUSED_TURNS and refused >= REFUSED_SHARE * seen.ended


def _quota(seen: Evidence) -> str | None:
    if not _many(seen.rate_limited, seen):
        return None
    return f"{seen.rate_limited:,} of {seen.ended:,} turns were refused by a rate limit"


# ----------------------------------------------------------------------------------------------------------- engines


def _waits(one: EngineLoad) -> bool:
    """More than a request at a time, and more than the scheduler's own hand-over at a large batch."""
    return one.waiting_mean is not None and one.waiting_mean >= max(
        WAITING, WAITING_OF_RUNNING * (one.running_mean or 0.0)
    )


def _kv_is_full(one: EngineLoad, seen: Evidence) -> bool:
    """Requests were thrown out of a cache with little room, or most of the waiting was done while it was full."""
    share_of_turns = PREEMPTED_SHARE * seen.started / len(seen.engines)
    if one.preemptions is not None and one.preemptions >= max(1.0, share_of_turns):
        # Points are a second apart, and a request that is thrown out leaves room behind: the peak itself is not seen.
        return one.kv_use_peak is None or reaches(one.kv_use_peak, KV_ROOM)
    return _waits(one) and reaches(one.waiting_while_full, WAITED_WHILE_FULL)


def _has_room(one: EngineLoad) -> bool:
    """It could have taken more, as far as it tells."""
    empty = one.kv_use_peak is None or not reaches(one.kv_use_peak, KV_ROOM)
    return empty and one.waiting_peak is not None and one.waiting_peak < WAITING


def _kv_words(one: EngineLoad) -> str:
    if one.kv_use_peak is None or one.kv_use_mean is None:
        return "how full the KV cache was is not known"
    return f"the KV cache was {percent(one.kv_use_mean)} full on average, {percent(one.kv_use_peak)} at most"


def _waiting_words(one: EngineLoad) -> str:
    if one.waiting_mean is None:
        return "how many requests waited is not known"
    if not one.waiting_peak:
        return "no request waited in the engine"
    return f"{amount(one.waiting_mean)} requests waited on average, {amount(one.waiting_peak)} at most"


def _worst(engines: Sequence[EngineLoad]) -> EngineLoad:
    return max(engines, key=lambda one: (one.waiting_mean or 0.0, one.preemptions or 0.0, one.kv_use_peak or 0.0))


def _of(one: EngineLoad, words: str, seen: Evidence) -> str:
    """The words of one engine, with its name and what the others could have taken where there are several."""
    if len(seen.engines) == 1:
        return words
    roomy = [other.name for other in seen.engines if other is not one and _has_room(other)]
    words = f"on engine {one.name}, the worst of {len(seen.engines)}, {words}"
    if not roomy:
        return words
    others = ", ".join(roomy[:3]) + (f" and {len(roomy) - 3} more" if len(roomy) > 3 else "")
    return f"{words}, while {others} had room: spread the load evenly before adding hardware"


def _kv_cache(seen: Evidence) -> str | None:
    full = [one for one in seen.engines if _kv_is_full(one, seen)]
    if not full:
        return None
    one = _worst(full)
    words = f"{_kv_words(one)}, {_waiting_words(one)}"
    if _waits(one) and one.waiting_while_full is not None:
        words += f" ({percent(one.waiting_while_full)} of it while the cache was {percent(KV_FULL)} full or more)"
    if one.preemptions:
        words += f", {amount(one.preemptions)} requests were preempted"
    return _of(one, words, seen)


def _queue(seen: Evidence) -> str | None:
    parts = []
    queued = [one for one in seen.engines if _waits(one) and not _kv_is_full(one, seen)]
    if queued:
        parts.append(_queue_words(_worst(queued), seen))
    if _many(seen.overloaded, seen):
        refused = f"{seen.overloaded:,} of {seen.ended:,} turns were refused as overloaded"
        parts.append(refused if queued else f"{refused}: the server's own limit of requests that it admits")
    return "; ".join(parts) or None


def _queue_words(one: EngineLoad, seen: Evidence) -> str:
    words = f"{_waiting_words(one)}, while {_kv_words(one)}"
    if one.running_peak is not None:
        words += f" and {amount(one.running_peak)} requests ran at most"
    words += ": the engine's own limit of running requests or tokens per step"
    if one.kv_use_mean is None or one.waiting_while_full is None:
        words += ", or its KV cache"
    elif reaches(one.kv_use_mean, KV_ROOM):
        words += ", or its KV cache, if the next prompts are longer than what was free"
    return _of(one, words, seen)


# -------------------------------------------------------------------------------------------------------------- GPUs


def _heat(seen: Evidence) -> str | None:
    if seen.throttled is None or not _on(seen.throttled, THROTTLED_SHARE):
        return None
    return (
        f"GPUs were slowed by heat or hardware for {_over_cards(seen.throttled, _TIME)}: look at cooling and "
        "power supply first"
    )


def _power_cap(seen: Evidence) -> str | None:
    if seen.power_capped is None or not _on(seen.power_capped, POWER_CAPPED_SHARE):
        return None
    words = f"GPUs were slowed by the power limit for {_over_cards(seen.power_capped, _TIME)}"
    if seen.clock_loss is None:
        return words
    if not reaches(seen.clock_loss.busiest, CLOCK_LOSS):
        return None
    return f"{words}, with SM clocks {percent(seen.clock_loss.busiest)} below the highest"


def _batched(seen: Evidence) -> bool:
    """Enough requests share a step for memory traffic to say something of the load; not known: let it."""
    return seen.batch is None or seen.batch >= SMALL_BATCH


def _at_a_time(seen: Evidence) -> str:
    return "" if seen.batch is None else f" with {amount(seen.batch)} requests at a time"


def _bandwidth(seen: Evidence) -> str | None:
    found = seen.dram_active
    if found is None or not _on(found, DRAM_ACTIVE) or not _batched(seen):
        return None
    words = f"DRAM bandwidth was in use for {_over_cards(found)}{_at_a_time(seen)}"
    if seen.kv_peak is not None and not reaches(seen.kv_peak, KV_ROOM):
        words += (
            f". It sets the time per token; the KV cache has room ({percent(seen.kv_peak)} full at most), and more "
            "requests at a time would share each reading of the weights"
        )
    return words


def _compute(seen: Evidence) -> str | None:
    tensor, sms, dram = seen.tensor_active, seen.sm_active, seen.dram_active
    if tensor is not None and _on(tensor, TENSOR_ACTIVE):
        return f"tensor cores were busy for {_over_cards(tensor, _TIME)}"
    if sms is None or dram is None or not _on(sms, SM_ACTIVE) or _on(dram, DRAM_ACTIVE) or not _batched(seen):
        return None
    if sms.cards > 1:
        return None  # see _looked_at: kernels that wait for another GPU hold their SMs, too
    return (
        f"SMs had work for {percent(sms.busiest)} of the time, while DRAM bandwidth was in use for {_over_cards(dram)}"
    )


Rule = Callable[[Evidence], str | None]
RULES: tuple[tuple[str, Rule], ...] = (
    (CLIENT, _client),
    (QUOTA, _quota),
    (KV_CACHE, _kv_cache),
    (QUEUE, _queue),
    (POWER, _heat),
    (BANDWIDTH, _bandwidth),
    (POWER, _power_cap),
    (COMPUTE, _compute),
)
"""(limit, rule) in order: a rule gives its reason when it holds, and the first that holds names the limit.

What is nearer to the user comes first, since it hides what lies behind it: a client that can't send shows no queue, and
requests that wait for memory leave the arithmetic idle. The power limit comes after memory bandwidth: it lowers the
clock of the SMs, not that of the memory, for which they then wait anyway."""

_HARDWARE = (POWER, BANDWIDTH, COMPUTE)


def limit_of(seen: Evidence) -> tuple[str, str]:
    """(limit, reason). The reason has the figures that it rests on."""
    held = [(name, reason) for name, rule in RULES if (reason := rule(seen)) is not None]
    if not held:
        return NOT_CLEAR, _sentence(f"{_nothing_reached(seen)}{_beside(seen)}")
    name, reason = held[0]
    others = list(dict.fromkeys(other for other, _ in held[1:] if other != name))
    also = f"; also at a limit: {', '.join(others)}" if others else ""
    if name in (KV_CACHE, QUEUE) and any(other in _HARDWARE for other in others):
        also += ", so that to lift the first alone may not raise throughput"
    return name, _sentence(f"{reason}{also}{_beside(seen)}")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _beside(seen: Evidence) -> str:
    """What must be known before anybody acts on the limit."""
    words = ""
    if seen.idle and seen.idle == seen.gpus:
        words += "; no GPU that was watched did any work: they may not be those of the engines"
    elif seen.idle:
        words += f"; {seen.idle} of the {seen.gpus} GPUs did no work: use them before adding any"
    if seen.restarts:
        words += f"; an engine was restarted {'once' if seen.restarts == 1 else f'{seen.restarts} times'}"
    return words + (f"; only part of the steady phase was read ({', '.join(seen.thin)})" if seen.thin else "")


# --------------------------------------------------------------------------------------------------------- not clear


def _nothing_reached(seen: Evidence) -> str:
    if not seen.started:
        return "no turn was started"
    looked, missing = _looked_at(seen)
    lacking = f"; not measured: {', '.join(missing)}" if missing else ""
    if not looked:
        return f"nothing was measured that could show a limit{lacking}"
    if _is_near(seen):
        # With SMs that wait for other GPUs, more load shows more of the same.
        more = "" if _on(seen.sm_active, SM_ACTIVE) else ": more load would show which"
        more = lacking or more
        return f"no figure was at its limit for long, but not all are far from it: {', '.join(looked)}{more}"
    if missing:
        return f"no figure that was measured is near its limit: {', '.join(looked)}{lacking}: the limit may lie there"
    return f"no figure is near its limit: {', '.join(looked)}: more load would show it"


def _is_near(seen: Evidence) -> bool:
    """A full cache for a moment, or a short queue, is no limit; but then "not near" would be a lie."""
    for one in seen.engines:
        queue = (one.waiting_peak or 0.0) > max(WAITING, WAITING_OF_RUNNING * (one.running_peak or 0.0))
        if queue or reaches(one.kv_use_peak, KV_ROOM) or (one.preemptions or 0.0) >= 1:
            return True
    return (
        bool(seen.rate_limited or seen.overloaded)
        or _on(seen.power_capped, NEAR * POWER_CAPPED_SHARE)
        or _on(seen.throttled, NEAR * THROTTLED_SHARE)
        or _on(seen.dram_active, NEAR * DRAM_ACTIVE)
        or _on(seen.tensor_active, NEAR * TENSOR_ACTIVE)
        or _on(seen.sm_active, SM_ACTIVE)
    )


def _looked_at(seen: Evidence) -> tuple[list[str], list[str]]:
    """Figures in words, and names of those that are missing."""
    engines, engine_lacks = _engines_looked_at(seen)
    gpus, gpu_lacks = _gpus_looked_at(seen)
    refused = [
        f"{turns:,} of {seen.ended:,} turns refused {how}"
        for turns, how in ((seen.rate_limited, "by a rate limit"), (seen.overloaded, "as overloaded"))
        if turns
    ]
    looked = [*refused, *engines, *gpus]
    if looked and seen.batch is not None and not _batched(seen):
        looked.append(f"only {amount(seen.batch)} request{'' if seen.batch <= 1 else 's'} at a time")
    return looked, [*engine_lacks, *gpu_lacks]


def _engines_looked_at(seen: Evidence) -> tuple[list[str], list[str]]:
    """Of the fullest engine, and of the one with the longest queue."""
    looked, missing = [], []
    several = len(seen.engines) > 1
    full = [one for one in seen.engines if one.kv_use_peak is not None]
    if full:
        one = max(full, key=lambda one: one.kv_use_peak or 0.0)
        looked.append(
            _kv_words(one) + (f" on {one.name}, the fullest of {len(seen.engines)} engines" if several else "")
        )
    else:
        missing.append("KV-cache use")
    queued = [one for one in seen.engines if one.waiting_mean is not None]
    if queued:
        one = _worst(queued)
        looked.append(_waiting_words(one) + (f" on {one.name}" if several and one.waiting_peak else ""))
    else:
        missing.append("waiting requests")
    if seen.preemptions:
        looked.append(f"{amount(seen.preemptions)} requests were preempted")
    return looked, missing


def _gpus_looked_at(seen: Evidence) -> tuple[list[str], list[str]]:
    looked, missing = [], []
    for found, label, name in (
        (seen.power_capped, "power-capped time", "power cap"),
        (seen.dram_active, "DRAM bandwidth", "DRAM bandwidth (needs GPM: Hopper or later)"),
        (seen.tensor_active, "tensor cores", "tensor cores (GPM)"),
    ):
        looked += [f"{label} {_over_cards(found)}"] if found is not None else []
        missing += [name] if found is None else []
    if _on(seen.power_capped, POWER_CAPPED_SHARE) and seen.clock_loss is not None:
        looked.append(f"SM clocks {percent(max(0.0, seen.clock_loss.busiest))} below the highest")
    if _on(seen.throttled, NEAR * THROTTLED_SHARE) and seen.throttled is not None:
        looked.append(f"slowed by heat or hardware for {_over_cards(seen.throttled, _TIME)}")
    if seen.sm_active is not None and _on(seen.sm_active, SM_ACTIVE):
        more = " (kernels that wait for another GPU count as work)" if seen.sm_active.cards > 1 else ""
        looked.append(f"SMs with work {_over_cards(seen.sm_active)}{more}")
    if seen.utilization is not None and seen.sm_active is None:
        missing.append(
            f"how full the GPU is (utilisation of {percent(seen.utilization.mean)} only says that some kernel ran)"
        )
    return looked, missing
