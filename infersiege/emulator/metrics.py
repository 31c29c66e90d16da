"""What the emulator tells on /metrics: vLLM's names, labels and buckets, in Prometheus text.

Times are those of the writes to sockets, not of the model, so that they can be held against a client's.
"""

from __future__ import annotations

from bisect import bisect_left

from infersiege.emulator.model import Engine

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

# fmt: off
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)
# fmt: on

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
"""vLLM's labels of request_success_total; a tool call counts as stop, and disconnects are not counted as abort."""


class BucketCounts:
    """One Prometheus histogram: counts per upper bound, sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        total = 0
        lines = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}.0')
        lines.append(f"{name}_count{{{labels}}} {total}.0")
        lines.append(f"{name}_sum{{{labels}}} {self.sum!r}")
        return lines


class Metrics:
    """Figures of one emulator process."""

    def __init__(self) -> None:
        self.ttft = BucketCounts(_TTFT)
        self.itl = BucketCounts(_ITL)
        self.e2e = BucketCounts(_E2E)
        self.queue_time = BucketCounts(_E2E)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.rejected = 0
        self.worst_lateness_ns = 0
        """How much later than the model's time a token was written, at worst."""

    def render(self, engine: Engine, model: str) -> bytes:
        """The whole page. The model's name is escaped as the format wants."""
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{escaped}"'
        spec, counters, pool = engine.spec, engine.counters, engine.pool
        lines: list[str] = []

        def family(name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{{{labels}{extra}}} {float(value)!r}" for extra, value in samples)

        def histogram(name: str, text: str, counts: BucketCounts) -> None:
            family(name, "histogram", text)
            lines.extend(counts.lines(name, labels))

        running, waiting = len(engine.running), len(engine.waiting)
        family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", ("", running))
        family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", ("", waiting))
        usage = pool.used / pool.capacity
        family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", ("", usage))
        config = f',block_size="{spec.block_size}",num_gpu_blocks="{spec.kv_blocks}"'
        family("vllm:cache_config_info", "gauge", "Information of the cache configuration.", (config, 1))
        for name, text, value in (
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", counters.prefix_queries),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", counters.prefix_hits),
            ("prompt_tokens", "Number of prefill tokens processed.", counters.prompt),
            ("generation_tokens", "Number of generation tokens processed.", counters.generated),
            ("num_preemptions", "Cumulative number of preemptions.", counters.preemptions),
        ):
            family(f"vllm:{name}_total", "counter", text, ("", value))
        by_reason = [(f',finished_reason="{reason}"', count) for reason, count in self.finished.items()]
        family("vllm:request_success_total", "counter", "Count of successfully processed requests.", *by_reason)
        rejected = (',reason="queue_full"', self.rejected)
        family("vllm:admission_rejections_total", "counter", "Admissions rejected by a queue limit.", rejected)
        histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", self.ttft)
        histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", self.itl)
        histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", self.e2e)
        histogram("vllm:request_queue_time_seconds", "Histogram of time spent waiting.", self.queue_time)
        late = ("", self.worst_lateness_ns / 1e9)
        family("infersiege_emulator:worst_lateness_seconds", "gauge", "Worst write behind the model's time.", late)
        return ("\n".join(lines) + "\n").encode()
