"""Which metric of which engine is which of our figures. Data, and nothing else.

Names were taken from pages that ran (vLLM 0.32, SGLang 0.5.23, llama.cpp) and from source (LMDeploy 0.18, TGI,
TensorRT-LLM). What an engine doesn't tell is not listed, and never written: no 0 for "unknown".

How series of one metric become one figure:

* Series that differ in a rank only (`tp_rank`, `pp_rank`, `moe_ep_rank` of SGLang with
  `--enable-metrics-for-all-schedulers`) are one replica seen several times: the lowest rank counts.
* All other series add up: replicas (`engine`, `dp_rank`), and labels that split a count (`is_streaming`, `mode`).
* `kv_use` is that of the fullest replica, which is the one that preempts; a mean would hide it.
* A hit rate as a gauge can't be added up: with several series it is left out.
* `prefix_queries` and `prefix_hits` are written together or not at all. Where they are there, the share is their
  ratio, and the engine's own gauge is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels that tell copies of one replica apart."""

SUMMED_GAUGES = ("running", "waiting")
HIGHEST_GAUGES = ("kv_use",)
SINGLE_GAUGES = ("prefix_hit_share",)
COUNTERS = ("prefix_queries", "prefix_hits", "preemptions", "prompt_tokens", "generated_tokens")
HISTOGRAMS = ("ttft", "itl")

START_METRIC = "process_start_time_seconds"
"""prometheus_client's own; another value is another process. llama.cpp has it as a header instead."""
START_HEADER = "process-start-time-unix"


@dataclass(frozen=True, slots=True)
class Term:
    """The series of one metric, or those of them whose `label` ends with `ending`."""

    metric: str
    """As in the page: counters with `_total`, histograms without `_bucket`. `:` or `_` after the prefix is the same."""
    label: str = ""
    ending: str = ""
    optional: bool = False
    """Its absence does not make the whole sum unknown."""


Sources = tuple[tuple[Term, ...], ...]
"""Alternatives, the newest first: the first one whose terms are all there is taken, and its terms are added up."""


@dataclass(frozen=True, slots=True)
class EngineNames:
    """What one engine tells, and where."""

    prefix: str
    """What its metrics' names begin with, in front of `:` or `_`."""
    path: str
    """Where its Prometheus page is."""
    enable: str
    """What to do when there is no such page: a hint after "HTTP 404"."""
    fields: Mapping[str, Sources]
    """Field of measurements.ENGINE -> where it comes from."""


def _any_of(*metrics: str) -> Sources:
    return tuple((Term(metric),) for metric in metrics)


ENGINES: dict[str, EngineNames] = {
    "vllm": EngineNames(
        prefix="vllm",
        path="/metrics",
        enable="vLLM has /metrics unless it was started with --disable-log-stats",
        fields={
            "running": _any_of("vllm:num_requests_running"),
            "waiting": _any_of("vllm:num_requests_waiting"),
            "kv_use": _any_of("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "prefix_queries": _any_of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            "prefix_hits": _any_of("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "prefix_hit_share": _any_of("vllm:gpu_prefix_cache_hit_rate"),
            "preemptions": _any_of("vllm:num_preemptions_total"),
            "prompt_tokens": _any_of("vllm:prompt_tokens_total"),
            "generated_tokens": _any_of("vllm:generation_tokens_total"),
            "ttft": _any_of("vllm:time_to_first_token_seconds"),
            # Before 0.11 the time between tokens had the name of TPOT; it was one value per token then, too.
            "itl": _any_of("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        },
    ),
    "sglang": EngineNames(
        prefix="sglang",
        path="/metrics",
        enable="start SGLang with --enable-metrics",
        fields={
            "running": _any_of("sglang:num_running_reqs"),
            "waiting": _any_of("sglang:num_queue_reqs"),
            "kv_use": _any_of("sglang:token_usage"),
            # Live, and without what a retraction counts again. Before it: counted when a request ends.
            "prefix_queries": _any_of("sglang:prefill_effective_tokens_total", "sglang:prompt_tokens_total"),
            "prefix_hits": (
                (Term("sglang:prefill_effective_tokens_total", "mode", "_hit"),),
                (Term("sglang:cached_tokens_total"),),
            ),
            # Not the gauge num_retracted_reqs: that is of the last batch, and a sum over it means nothing.
            "preemptions": _any_of("sglang:num_retracted_requests_total"),
            # Both are counted when a request ends: long answers come in lumps.
            "prompt_tokens": _any_of("sglang:prompt_tokens_total"),
            "generated_tokens": _any_of("sglang:generation_tokens_total"),
            "ttft": _any_of("sglang:time_to_first_token_seconds"),
            "itl": _any_of("sglang:inter_token_latency_seconds"),
        },
    ),
    "llama.cpp": EngineNames(
        prefix="llamacpp",
        path="/metrics",
        enable="start llama-server with --metrics",
        # No kv_use: /metrics has none, and /slots can't give it. An idle slot keeps its tokens in the cache without
        # telling how many, and n_prompt_tokens holds the generated ones in some builds and not in others.
        # The rate gauges (prompt_tokens_seconds …) begin anew at every scrape, so that two readers disturb each other.
        fields={
            "running": _any_of("llamacpp:requests_processing"),
            "waiting": _any_of("llamacpp:requests_deferred"),
            # Its prompt_tokens_total leaves cached tokens out; everybody else's has them.
            "prefix_queries": ((Term("llamacpp:prompt_tokens_total"), Term("llamacpp:prompt_tokens_cached_total")),),
            "prefix_hits": _any_of("llamacpp:prompt_tokens_cached_total"),
            "prompt_tokens": ((Term("llamacpp:prompt_tokens_total"), Term("llamacpp:prompt_tokens_cached_total")),),
            "generated_tokens": _any_of("llamacpp:tokens_predicted_total"),
        },
    ),
    "lmdeploy": EngineNames(
        prefix="lmdeploy",
        path="/metrics",
        enable="start LMDeploy with --enable-metrics",
        fields={
            "running": _any_of("lmdeploy:num_requests_running"),
            # Two queues, one behind the other; the outer one is newer.
            "waiting": (
                (Term("lmdeploy:num_requests_waiting"), Term("lmdeploy:num_api_requests_waiting", optional=True)),
            ),
            "kv_use": _any_of("lmdeploy:gpu_cache_usage_perc"),
            "prefix_queries": _any_of("lmdeploy:prompt_tokens_total"),
            "prefix_hits": _any_of("lmdeploy:cached_tokens_total"),
            "prefix_hit_share": _any_of("lmdeploy:prefix_cache_hit_rate"),
            "prompt_tokens": _any_of("lmdeploy:prompt_tokens_total"),
            "generated_tokens": _any_of("lmdeploy:generation_tokens_total"),
            "ttft": _any_of("lmdeploy:time_to_first_token_seconds"),
            "itl": _any_of("lmdeploy:iter_token_latency"),
        },
    ),
    "tgi": EngineNames(
        prefix="tgi",
        path="/metrics",
        enable="TGI's router has /metrics on its own port, unless --prometheus-port moved it",
        # No TTFT, and no inter-token latency: tgi_request_mean_time_per_token_duration is one mean per request.
        fields={
            "running": _any_of("tgi_batch_current_size"),
            "waiting": _any_of("tgi_queue_size"),
            # Sums of histograms over requests that ended well.
            "prompt_tokens": _any_of("tgi_request_input_length_sum"),
            "generated_tokens": _any_of("tgi_request_generated_tokens_sum"),
        },
    ),
    "tensorrt-llm": EngineNames(
        prefix="trtllm",
        path="/prometheus/metrics",
        enable="start trtllm-serve with return_perf_metrics: true in its options; the page is /prometheus/metrics",
        # No inter-token latency: trtllm_time_per_output_token_seconds is one mean per request.
        fields={
            "running": _any_of("trtllm_num_requests_running"),
            "waiting": _any_of("trtllm_num_requests_waiting"),
            "kv_use": _any_of("trtllm_kv_cache_utilization"),
            # Newer than 1.2; the rate beside it is over blocks, since the start.
            "prefix_queries": _any_of("trtllm_prompt_tokens_total"),
            "prefix_hits": _any_of("trtllm_prompt_cached_tokens_total"),
            "prefix_hit_share": _any_of("trtllm_kv_cache_hit_rate"),
            "prompt_tokens": _any_of("trtllm_prompt_tokens_total"),
            "generated_tokens": _any_of("trtllm_generation_tokens_total"),
            "ttft": _any_of("trtllm_time_to_first_token_seconds"),
        },
    ),
}
"""Engine profile, as in a plan -> its names."""
