"""Points of GPUs and engines that look like a real run's: for report tests, and to look at the page.

No clock and no global random state: the same arguments give the same points, to the letter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from records_sample import SECOND, START_NS

from infersiege.records import SeriesRow

GIB = 1 << 30


def gpu_row(
    at_ns: int, uuid: str = "GPU-0", *, host: str = "bench-1", parent: str = "none", **fields: float | str
) -> SeriesRow:
    """One point of a GPU; `fields` beside ok, error and an interval of 1 s."""
    tags = {"host": host, "uuid": uuid, "pci": f"00000000:{uuid[-1]}:00.0", "name": "H100", "mig_parent": parent}
    base: dict[str, float | str] = {"ok": 1.0, "error": 0.0, "interval": 1.0}
    return SeriesRow(at_ns=at_ns, measurement="gpu", tags=tags, fields={**base, **fields})


def lost_row(at_ns: int, uuid: str = "GPU-0", *, host: str = "bench-1", text: str = "GPU is lost (15)") -> SeriesRow:
    """A card that can't be read has no value beside its error."""
    row = gpu_row(at_ns, uuid, host=host)
    return SeriesRow(
        at_ns=at_ns,
        measurement="gpu",
        tags=row.tags,
        fields={"ok": 0.0, "error": 15.0, "error_text": text, "interval": 1.0},
    )


def engine_row(
    at_ns: int, instance: str = "127.0.0.1:8000", *, host: str = "bench-1", **fields: float | str
) -> SeriesRow:
    """One point of an engine; `fields` beside up and an interval of 1 s."""
    tags = {"host": host, "engine": "vllm", "instance": instance}
    base: dict[str, float | str] = {"up": 1.0, "interval": 1.0}
    return SeriesRow(at_ns=at_ns, measurement="engine", tags=tags, fields={**base, **fields})


def gpu_rows(
    gpus: int = 2, *, seconds: int = 285, seed: int = 3, gpm: bool = True, lost: tuple[int, int, int] | None = None
) -> Iterator[SeriesRow]:
    """Each second of each GPU, from 5 s before the run on. `lost`: (GPU, from second, to second)."""
    random_ = random.Random(seed)
    for second in range(-5, seconds):
        for gpu in range(gpus):
            at_ns = START_NS + second * SECOND + 30_000_000 + gpu * 2_000_000
            if lost is not None and lost[0] == gpu and lost[1] <= second < lost[2]:
                yield lost_row(at_ns, f"GPU-{gpu}", text="GPU is lost (nvmlDeviceGetUtilizationRates)")
                continue
            yield gpu_row(at_ns, f"GPU-{gpu}", **gpu_fields(random_, gpu, load_at(second, seconds), gpm=gpm))


def load_at(second: int, seconds: int) -> float:
    """0 to 1: up in 30 s, a peak at 62 % of the time."""
    ramp = min(1.0, max(0.0, second / 30))
    return ramp * (0.62 + 0.36 * math.exp(-(((second / max(seconds, 1) - 0.62) / 0.1) ** 2)))


def gpu_fields(random_: random.Random, gpu: int, load: float, *, gpm: bool = True) -> dict[str, float | str]:
    power = 120 + 520 * load * (1 - 0.04 * gpu) + random_.gauss(0, 9)
    fields: dict[str, float | str] = {
        "index": float(gpu), "samples": 10.0, "utilization_mean": 0.99 if load else 0.0,
        "memory_used_mean_bytes": 71.5 * GIB, "memory_used_max_bytes": 71.6 * GIB, "memory_total_bytes": 80.0 * GIB,
        "power_mean_w": power, "power_max_w": power + 20, "power_limit_w": 700.0, "energy_j": power,
        "power_capped": 1.0 if power > 600 else 0.0, "thermal_throttled": 0.0, "hardware_slowdown": 0.0,
    }  # fmt: skip
    if gpm:
        fields |= {"sm_active": min(1.0, 0.9 * load + random_.uniform(0, 0.05)), "tensor_active": 0.35 * load,
                   "dram_active": min(1.0, 0.75 * load + random_.uniform(0, 0.04))}  # fmt: skip
    return fields


def engine_rows(*, seconds: int = 285, seed: int = 5, instance: str = "127.0.0.1:8000") -> Iterator[SeriesRow]:
    """Each second of one engine, whose KV cache is full at the peak."""
    random_ = random.Random(seed)
    for second in range(-5, seconds):
        load = load_at(second, seconds)
        kv = min(0.995, 1.03 * load + random_.uniform(0, 0.03))
        first = random_.randint(3, 9) if load else 0
        fields: dict[str, float | str] = {
            "running": float(round(22 * load)), "waiting": float(round(30 * max(0.0, load - 0.9) * 10) / 10),
            "kv_use": kv, "prefix_queries": 900.0 * load, "prefix_hits": 560.0 * load,
            "preemptions": float(kv > 0.97 and random_.random() < 0.6), "generated_tokens": 1200 * load,
        }  # fmt: skip
        if first:
            mean = 90 + 120 * load
            fields |= {"ttft_n": float(first), "ttft_mean_ms": mean, "ttft_p95_ms": 2 * mean}
            fields |= {"itl_n": 1200.0 * load, "itl_mean_ms": 11 + 6 * load}
            fields["ttft_buckets"] = f"0.08:0 0.1:1 0.25:{first - 2} 0.5:1"
        yield engine_row(START_NS + second * SECOND + 55_000_000, instance, **fields)
