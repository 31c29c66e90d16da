"""What the emulator tells on /metrics: the names, labels and buckets of the engine that it plays, in Prometheus text.

Times are those of the writes to sockets, not of the model, so that they can be held against a client's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Page:
    """Lines of Prometheus text."""

    def __init__(self, prefix: str, labels: str) -> None:
        self._prefix = prefix
        self._labels = labels
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
        """One family; a sample is (labels beside the usual ones, value)."""
        full = self._prefix + name
        self._lines += (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        for extra, value in samples:
            labels = ",".join(filter(None, (self._labels, extra)))
            self._lines.append(f"{full}{{{labels}}} {float(value)!r}" if labels else f"{full} {_bare(value)}")

    def histogram(self, name: str, text: str, *counts: tuple[str, BucketCounts]) -> None:
        self.family(name, "histogram", text)
        for extra, bucket_counts in counts:
            labels = ",".join(filter(None, (self._labels, extra)))
            self._lines.extend(bucket_counts.lines(self._prefix + name, labels))

    def lateness(self, seconds: float) -> None:
        """The emulator's own figure, on every engine's page."""
        name = "infersiege_emulator:worst_lateness_seconds"
        self._lines += (f"# HELP {name} Worst write behind the model's time.", f"# TYPE {name} gauge")
        self._lines.append(f"{name}{{{self._labels}}} {seconds!r}" if self._labels else f"{name} {seconds!r}")

    def encoded(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _bare(value: float) -> str:
    """llama.cpp's form: counts in full, the rest with six digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def escaped(label: str) -> str:
    """A label's value as the format wants it."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics(ABC):
    """Figures of one emulator process."""

    content_type = CONTENT_TYPE

    def __init__(self) -> None:
        self.worst_lateness_ns = 0
        """How much later than the model's time a token was written, at worst."""
        self.rejected = 0

    @abstractmethod
    def first_token(self, ttft_s: float, queue_s: float, prompt: int, cached: int, *, stream: bool) -> None: ...

    @abstractmethod
    def next_token(self, gap_s: float) -> None: ...

    @abstractmethod
    def answered(self, reason: str, e2e_s: float, prompt: int, cached: int, output: int, *, stream: bool) -> None:
        """`reason`: in chat's words."""

    @abstractmethod
    def render(self, engine: Engine, model: str) -> bytes:
        """The whole page."""


class VllmMetrics(Metrics):
    """vLLM's names."""

    def __init__(self) -> None:
        super().__init__()
        self.ttft = BucketCounts(_TTFT)
        self.itl = BucketCounts(_ITL)
        self.e2e = BucketCounts(_E2E)
        self.queue_time = BucketCounts(_E2E)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)

    def first_token(self, ttft_s: float, queue_s: float, prompt: int, cached: int, *, stream: bool) -> None:
        self.ttft.observe(ttft_s)
        self.queue_time.observe(queue_s)

    def next_token(self, gap_s: float) -> None:
        self.itl.observe(gap_s)

    def answered(self, reason: str, e2e_s: float, prompt: int, cached: int, output: int, *, stream: bool) -> None:
        self.finished["length" if reason == "length" else "stop"] += 1
        self.e2e.observe(e2e_s)

    def render(self, engine: Engine, model: str) -> bytes:
        page = Page("vllm:", f'engine="0",model_name="{escaped(model)}"')
        spec, counters, pool = engine.spec, engine.counters, engine.pool
        running, waiting = len(engine.running), len(engine.waiting)
        page.family("num_requests_running", "gauge", "Number of requests in model execution batches.", ("", running))
        page.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", ("", waiting))
        usage = pool.used / pool.capacity
        page.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", ("", usage))
        config = f'block_size="{spec.block_size}",num_gpu_blocks="{spec.kv_blocks}"'
        page.family("cache_config_info", "gauge", "Information of the cache configuration.", (config, 1))
        for name, text, value in (
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", counters.prefix_queries),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", counters.prefix_hits),
            ("prompt_tokens", "Number of prefill tokens processed.", counters.prompt),
            ("generation_tokens", "Number of generation tokens processed.", counters.generated),
            ("num_preemptions", "Cumulative number of preemptions.", counters.preemptions),
        ):
            page.family(f"{name}_total", "counter", text, ("", value))
        by_reason = [(f'finished_reason="{reason}"', count) for reason, count in self.finished.items()]
        page.family("request_success_total", "counter", "Count of successfully processed requests.", *by_reason)
        rejected = ('reason="queue_full"', self.rejected)
        page.family("admission_rejections_total", "counter", "Admissions rejected by a queue limit.", rejected)
        page.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", ("", self.ttft))
        page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", ("", self.itl))
        page.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", ("", self.e2e))
        page.histogram("request_queue_time_seconds", "Histogram of time spent waiting.", ("", self.queue_time))
        page.lateness(self.worst_lateness_ns / 1e9)
        return page.encoded()
