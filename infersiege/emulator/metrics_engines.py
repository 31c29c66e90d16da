"""/metrics of the other engines, and which profile has which."""

from __future__ import annotations

from infersiege.emulator.metrics import BucketCounts, Metrics, Page, VllmMetrics, escaped
from infersiege.emulator.model import Engine

# fmt: off
_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_ITL = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
)
_QUEUE = (0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 100.0)
# fmt: on


class _Split:
    """Figures that SGLang tells apart by `is_streaming`."""

    def __init__(self) -> None:
        self.ttft = BucketCounts(_TTFT)
        self.e2e = BucketCounts((*_TTFT, 600.0, 1200.0, 1800.0, 2400.0))
        self.prompt = 0
        self.generated = 0
        self.requests = 0


class SglangMetrics(Metrics):
    """SGLang's names. Its token counters move when a request ends, not before."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.itl = BucketCounts(_ITL)
        self.queue_time = BucketCounts(_QUEUE)
        self.cached = 0
        self._split = {True: _Split(), False: _Split()}
        self._hits = 0
        self._fresh = 0

    def first_token(self, ttft_s: float, queue_s: float, prompt: int, cached: int, *, stream: bool) -> None:
        self._split[stream].ttft.observe(ttft_s)
        self.queue_time.observe(queue_s)
        self._hits += cached
        self._fresh += prompt - cached

    def next_token(self, gap_s: float) -> None:
        self.itl.observe(gap_s)

    def answered(self, reason: str, e2e_s: float, prompt: int, cached: int, output: int, *, stream: bool) -> None:
        split = self._split[stream]
        split.e2e.observe(e2e_s)
        split.prompt += prompt
        split.generated += output
        split.requests += 1
        self.cached += cached

    def render(self, engine: Engine, model: str) -> bytes:
        base = f'engine_type="unified",model_name="{escaped(model)}"'
        page = Page("sglang:", base)
        spec, pool = engine.spec, engine.pool
        ranks = 'pp_rank="0",tp_rank="0"'
        capacity = spec.kv_blocks * spec.block_size
        queries = self._hits + self._fresh
        for name, text, value in (
            ("num_running_reqs", "The number of running requests.", len(engine.running)),
            ("num_queue_reqs", "The number of requests in the waiting queue.", len(engine.waiting)),
            ("token_usage", "The token usage.", pool.used / pool.capacity),
            ("num_used_tokens", "The number of used tokens.", pool.used * spec.block_size),
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", capacity),
            ("cache_hit_rate", "The prefix cache hit rate.", self._hits / queries if queries else 0.0),
            ("num_retracted_reqs", "The number of retracted requests.", 0),
            ("utilization", "The utilization.", len(engine.running) / spec.max_num_seqs),
        ):
            page.family(name, "gauge", text, (ranks, value))
        retracted = (ranks, engine.counters.preemptions)
        page.family("num_retracted_requests_total", "counter", "Total number of retracted requests.", retracted)
        modes = [(f'mode="input",{ranks}', self._fresh), (f'mode="device_hit",{ranks}', self._hits)]
        page.family("prefill_effective_tokens_total", "counter", "Prompt tokens by where they came from.", *modes)
        streaming = {stream: f'is_streaming="{str(stream).lower()}"' for stream in self._split}
        for name, text, field in (
            ("prompt_tokens_total", "Number of prefill tokens processed.", "prompt"),
            ("generation_tokens_total", "Number of generation tokens processed.", "generated"),
            ("num_requests_total", "Number of requests processed.", "requests"),
        ):
            samples = [(streaming[stream], getattr(split, field)) for stream, split in self._split.items()]
            page.family(name, "counter", text, *samples)
        cached = ('cache_source="device"', self.cached)
        page.family("cached_tokens_total", "counter", "Number of cached prompt tokens.", cached)
        for name, text, field in (
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "ttft"),
            ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", "e2e"),
        ):
            histograms = [(streaming[stream], getattr(split, field)) for stream, split in self._split.items()]
            page.histogram(name, text, *histograms)
        page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", ("", self.itl))
        page.histogram("queue_time_seconds", "Histogram of queueing time in seconds.", (ranks, self.queue_time))
        page.lateness(self.worst_lateness_ns / 1e9)
        return page.encoded()


class LlamaCppMetrics(Metrics):
    """llama.cpp's names: no labels, no histograms. The rate gauges tell what happened since the last scrape."""

    content_type = "text/plain; version=0.0.4"

    def __init__(self) -> None:
        super().__init__()
        self.fresh = 0
        self.cached = 0
        self.longest = 0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._decoded = 0
        self._scraped = (0, 0.0, 0, 0.0)

    def first_token(self, ttft_s: float, queue_s: float, prompt: int, cached: int, *, stream: bool) -> None:
        self.fresh += prompt - cached
        self.cached += cached
        self._prefill_s += ttft_s - queue_s

    def next_token(self, gap_s: float) -> None:
        self._decode_s += gap_s
        self._decoded += 1

    def answered(self, reason: str, e2e_s: float, prompt: int, cached: int, output: int, *, stream: bool) -> None:
        self.longest = max(self.longest, prompt + output)

    def render(self, engine: Engine, model: str) -> bytes:
        page = Page("llamacpp:", "")
        counters = engine.counters
        now = (self.fresh, self._prefill_s, self._decoded, self._decode_s)
        fresh, prefill_s, decoded, decode_s = (new - old for new, old in zip(now, self._scraped, strict=True))
        self._scraped = now
        for name, kind, text, value in (
            ("prompt_tokens_total", "counter", "Prompt tokens processed, without cached ones", self.fresh),
            ("prompt_tokens_cached_total", "counter", "Prompt tokens reused from the cache", self.cached),
            ("prompt_seconds_total", "counter", "Total time spent processing prompts", self._prefill_s),
            ("tokens_predicted_total", "counter", "Number of generation tokens processed", counters.generated),
            ("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens", self._decode_s),
            ("n_decode_total", "counter", "Total number of llama_decode() calls", counters.steps),
            ("n_tokens_max", "counter", "Largest observed sequence length", self.longest),
            ("prompt_tokens_seconds", "gauge", "Prompt tokens/s", fresh / prefill_s if prefill_s else 0),
            ("predicted_tokens_seconds", "gauge", "Generated tokens/s", decoded / decode_s if decode_s else 0),
            ("requests_processing", "gauge", "Number of requests processing", len(engine.running)),
            ("requests_deferred", "gauge", "Number of requests deferred", len(engine.waiting)),
            ("n_busy_slots_per_decode", "gauge", "Busy slots per decode", counters.generated / max(counters.steps, 1)),
        ):
            page.family(name, kind, text, ("", value))
        page.lateness(self.worst_lateness_ns / 1e9)
        return page.encoded()


METRICS: dict[str, type[Metrics]] = {"vllm": VllmMetrics, "sglang": SglangMetrics, "llama.cpp": LlamaCppMetrics}
"""Profile -> its page; a cloud has none, and then vLLM's figures are kept for nobody."""
