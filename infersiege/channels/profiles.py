"""What one engine adds to its dialect: ports, paths, metric names, request fields, quirks, launch flags. Data only.

Facts come from runs of the real engines (vLLM 0.32, SGLang 0.5.23, llama.cpp) and, for the rest, from their sources.
docs/engines.md has the same tables; `tests/test_engines_docs.py` holds them to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infersiege.channels.dialect import Dialect
from infersiege.channels.server_facts import FactsPage

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "openai-chat", "openai-completions", "openai-responses", "anthropic-messages"
EVERY_DIALECT = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

BEARER = ("authorization", "Bearer ")
X_API_KEY = ("x-api-key", "")

Source = Literal["runs", "source", "documents", "nothing"]


def _eos_and_least(max_tokens: int) -> dict[str, Any]:
    # min_tokens too: ignore_eos alone still ends at a stop string.
    return {"ignore_eos": True, "min_tokens": max_tokens}


def _ignore_eos(max_tokens: int) -> dict[str, Any]:
    return {"ignore_eos": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerEndpoint:
    """A POST that counts the tokens of a text by the served model's own tokenizer, without any chat template."""

    path: str
    """Beside the API root."""
    text_field: str
    """Field of the request body that holds the text."""
    model_field: str | None
    """Field that holds the model's name; None: there is none."""
    count_key: str | None
    """Key of the answer: a number, or a list that is as long. None: the answer itself is the list."""
    tells: Literal["pieces", "token_strs", "offsets", "counts"]
    """How it tells where each token is: `pieces` (each token's `piece`: text or bytes), `token_strs` (a list beside it,
    in the tokenizer's own spelling), `offsets` (each token's `start` and `stop`), or `counts`: not at all, but it takes
    a list of texts and gives a list of counts."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the request body: no special tokens, and what makes it tell more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine or cloud. None: it has no such thing, or nobody has seen it.

    No prices: they change, and are the plan's to say.
    """

    name: str
    """As in `engine = "…"`."""
    title: str
    """As in a report."""
    known_from: Source
    """Where these facts come from: runs of the engine, its source, its vendor's documents, or there are none."""
    default_port: int | None
    default_dialect: str
    dialects: tuple[str, ...]
    """Names of the dialects that it has a path for."""
    note: str | None = None
    """What whoever chooses it should know first."""
    health_path: str | None = None
    """Beside the API root; 200 means ready."""
    models_path: str | None = "/models"
    """Below the API root."""
    metrics_path: str | None = None
    """Prometheus text, beside the API root."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Our word for a figure -> its newest name on that page; several are added up. The agent's table
    (`infersiege_agents.engine_names`) has the older names, too."""
    version_path: str | None = None
    """JSON that holds the server's version, beside the API root."""
    version_key: str | None = None
    """Its key in that JSON."""
    facts_paths: tuple[FactsPage, ...] = ()
    """Where it tells how it was started; `server_facts.facts_of` reads them."""
    tokenizer: TokenizerEndpoint | None = None
    ignore_eos_fields: Callable[[int], dict[str, Any]] | None = None
    """max_tokens -> extra body fields that fix the output length."""
    cached_tokens_hint: str | None = None
    """What to do when `cached_tokens` is unknown."""
    server_ttft: str | None = None
    """When its answers tell its own TTFT; None: never."""
    messages_key: tuple[tuple[str, str], ...] | None = None
    """(header, what stands before the key) for `anthropic-messages`; None: as that dialect says."""
    checks_model: bool = True
    """False: it answers to any model name, so a wrong one is found only by asking for the list."""
    launch_hint: str | None = None
    """How to start it so that a run shows the most."""


PROFILES: dict[str, Profile] = {
    "vllm": Profile(
        name="vllm",
        title="vLLM",
        known_from="runs",
        default_port=8000,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        health_path="/health",
        metrics_path="/metrics",
        metrics={
            "running": "vllm:num_requests_running",
            "waiting": "vllm:num_requests_waiting",
            "kv_use": "vllm:kv_cache_usage_perc",
            "prefix_queries": "vllm:prefix_cache_queries_total",
            "prefix_hits": "vllm:prefix_cache_hits_total",
            "preemptions": "vllm:num_preemptions_total",
            "prompt_tokens": "vllm:prompt_tokens_total",
            "generated_tokens": "vllm:generation_tokens_total",
            "ttft": "vllm:time_to_first_token_seconds",
            "itl": "vllm:inter_token_latency_seconds",
        },
        version_path="/version",
        version_key="version",
        # /server_info exists only in its development mode; the cache's settings are labels of a metric.
        facts_paths=(
            FactsPage(
                path="/metrics",
                metric="vllm:cache_config_info",
                keys=(
                    *("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
                    *("num_gpu_blocks", "num_gpu_blocks_override", "sliding_window"),
                ),
            ),
        ),
        tokenizer=TokenizerEndpoint(
            path="/tokenize",
            text_field="prompt",
            model_field="model",
            count_key="count",
            tells="token_strs",
            fields={"add_special_tokens": False, "return_token_strs": True},
        ),
        ignore_eos_fields=_eos_and_least,
        cached_tokens_hint="start vLLM with --enable-prompt-tokens-details",
        server_ttft="with --enable-per-request-metrics",
        messages_key=(BEARER,),
        launch_hint="vllm serve MODEL --enable-prompt-tokens-details --enable-auto-tool-choice --tool-call-parser NAME",
    ),
    "sglang": Profile(
        name="sglang",
        title="SGLang",
        known_from="runs",
        default_port=30000,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        health_path="/health",
        metrics_path="/metrics",
        metrics={
            "running": "sglang:num_running_reqs",
            "waiting": "sglang:num_queue_reqs",
            "kv_use": "sglang:token_usage",
            "prefix_queries": "sglang:prefill_effective_tokens_total",
            "prefix_hits": "sglang:prefill_effective_tokens_total{mode=…_hit}",
            "preemptions": "sglang:num_retracted_requests_total",
            "prompt_tokens": "sglang:prompt_tokens_total",
            "generated_tokens": "sglang:generation_tokens_total",
            "ttft": "sglang:time_to_first_token_seconds",
            "itl": "sglang:inter_token_latency_seconds",
        },
        version_path="/server_info",
        version_key="version",
        facts_paths=(
            FactsPage(
                path="/server_info",
                keys=(
                    *("model_path", "dtype", "quantization", "kv_cache_dtype", "context_length", "mem_fraction_static"),
                    *("max_running_requests", "max_total_num_tokens", "max_queued_requests", "chunked_prefill_size"),
                    *("schedule_policy", "attention_backend", "disable_radix_cache", "disable_cuda_graph"),
                    *("speculative_algorithm", "tp_size", "pp_size", "dp_size", "enable_cache_report"),
                ),
            ),
        ),
        tokenizer=TokenizerEndpoint(
            path="/tokenize",
            text_field="prompt",
            model_field="model",
            count_key="count",
            tells="counts",
            fields={"add_special_tokens": False},
        ),
        ignore_eos_fields=_ignore_eos,
        cached_tokens_hint="start SGLang with --enable-cache-report",
        checks_model=False,
        messages_key=(BEARER,),
        launch_hint="python -m sglang.launch_server --model-path MODEL --enable-metrics --enable-cache-report",
    ),
    "llama.cpp": Profile(
        name="llama.cpp",
        title="llama.cpp",
        known_from="runs",
        default_port=8080,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        health_path="/health",
        metrics_path="/metrics",
        metrics={
            "running": "llamacpp:requests_processing",
            "waiting": "llamacpp:requests_deferred",
            "prefix_queries": "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",
            "prefix_hits": "llamacpp:prompt_tokens_cached_total",
            "prompt_tokens": "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",
            "generated_tokens": "llamacpp:tokens_predicted_total",
        },
        # `b0-unknown` in builds without git, such as those of packages.
        version_path="/props",
        version_key="build_info",
        facts_paths=(
            FactsPage(
                path="/props", keys=("model_path", "model_ftype", "total_slots", "default_generation_settings.n_ctx")
            ),
        ),
        tokenizer=TokenizerEndpoint(
            path="/tokenize",
            text_field="content",
            model_field=None,
            count_key="tokens",
            tells="pieces",
            fields={"with_pieces": True},
        ),
        ignore_eos_fields=_ignore_eos,
        cached_tokens_hint="llama.cpp always tells it: something between us drops it",
        server_ttft="always",
        checks_model=False,
        messages_key=(BEARER,),
        launch_hint="llama-server -m MODEL.gguf --metrics --slots --parallel N",
    ),
    "lmdeploy": Profile(
        name="lmdeploy",
        title="LMDeploy",
        known_from="source",
        default_port=23333,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        health_path="/health",
        metrics_path="/metrics",
        metrics={
            "running": "lmdeploy:num_requests_running",
            "waiting": "lmdeploy:num_requests_waiting + lmdeploy:num_api_requests_waiting",
            "kv_use": "lmdeploy:gpu_cache_usage_perc",
            "prefix_queries": "lmdeploy:prompt_tokens_total",
            "prefix_hits": "lmdeploy:cached_tokens_total",
            "prefix_hit_share": "lmdeploy:prefix_cache_hit_rate",
            "prompt_tokens": "lmdeploy:prompt_tokens_total",
            "generated_tokens": "lmdeploy:generation_tokens_total",
            "ttft": "lmdeploy:time_to_first_token_seconds",
            "itl": "lmdeploy:iter_token_latency",
        },
        tokenizer=TokenizerEndpoint(
            path="/v1/encode",
            text_field="input",
            model_field=None,
            count_key="length",
            tells="counts",
            fields={"do_preprocess": False, "add_bos": False},
        ),
        ignore_eos_fields=_ignore_eos,
        cached_tokens_hint="only new versions of LMDeploy tell it, started with --enable-prefix-caching",
        messages_key=(BEARER,),
        launch_hint="lmdeploy serve api_server MODEL --enable-metrics (with --api-keys, /metrics needs the key too)",
    ),
    "tgi": Profile(
        name="tgi",
        title="Text Generation Inference",
        known_from="source",
        note="in maintenance: its makers take only small fixes and point to vLLM and SGLang",
        default_port=3000,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS),
        health_path="/health",
        metrics_path="/metrics",
        metrics={
            "running": "tgi_batch_current_size",
            "waiting": "tgi_queue_size",
            "prompt_tokens": "tgi_request_input_length_sum",
            "generated_tokens": "tgi_request_generated_tokens_sum",
        },
        version_path="/info",
        version_key="version",
        facts_paths=(
            FactsPage(
                path="/info",
                keys=("model_id", "max_concurrent_requests", "max_input_tokens", "max_total_tokens", "sha"),
            ),
        ),
        tokenizer=TokenizerEndpoint(
            path="/tokenize", text_field="inputs", model_field=None, count_key=None, tells="offsets"
        ),
        cached_tokens_hint="TGI does not tell it",
        checks_model=False,
        launch_hint="text-generation-launcher --model-id MODEL --max-concurrent-requests N",
    ),
    "tensorrt-llm": Profile(
        name="tensorrt-llm",
        title="TensorRT-LLM",
        known_from="source",
        default_port=8000,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS, RESPONSES),
        health_path="/health",
        metrics_path="/prometheus/metrics",
        metrics={
            "running": "trtllm_num_requests_running",
            "waiting": "trtllm_num_requests_waiting",
            "kv_use": "trtllm_kv_cache_utilization",
            "prefix_queries": "trtllm_prompt_tokens_total",
            "prefix_hits": "trtllm_prompt_cached_tokens_total",
            "prefix_hit_share": "trtllm_kv_cache_hit_rate",
            "prompt_tokens": "trtllm_prompt_tokens_total",
            "generated_tokens": "trtllm_generation_tokens_total",
            "ttft": "trtllm_time_to_first_token_seconds",
        },
        version_path="/version",
        version_key="version",
        ignore_eos_fields=_eos_and_least,
        cached_tokens_hint="only new versions of TensorRT-LLM tell it, and only with block reuse",
        launch_hint="trtllm-serve MODEL with return_perf_metrics: true in its options, for /prometheus/metrics",
    ),
    "openai": Profile(
        name="openai",
        title="OpenAI",
        known_from="documents",
        default_port=None,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS, RESPONSES),
        cached_tokens_hint="OpenAI tells it for most models, from prompts of 1,024 tokens on",
    ),
    "taotoken": Profile(
        name="taotoken",
        title="TaoToken",
        known_from="documents",
        default_port=None,
        default_dialect=CHAT,
        dialects=(CHAT, MESSAGES),
        cached_tokens_hint="it depends on the service behind the model",
        messages_key=(X_API_KEY, BEARER),
    ),
    "anthropic": Profile(
        # Chat is its OpenAI-compatible address.
        name="anthropic",
        title="Anthropic",
        known_from="documents",
        default_port=None,
        default_dialect=MESSAGES,
        dialects=(MESSAGES, CHAT),
        cached_tokens_hint='only its own protocol tells it: take dialect = "anthropic-messages"',
    ),
    "generic": Profile(
        name="generic",
        title="OpenAI-compatible server",
        known_from="nothing",
        default_port=None,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        messages_key=(X_API_KEY, BEARER),
    ),
}
"""Engine name of a plan -> profile."""


def key_headers(profile: Profile, dialect: Dialect, key: str) -> dict[str, str]:
    """The headers, in lower case, that carry the key: of a request, and of a look at the list of models.

    Engines take `x-api-key` or don't (vLLM answers 401 to it); a server of which nothing is known gets both forms.
    """
    forms: tuple[tuple[str, str], ...] = ((dialect.key_header, dialect.key_prefix),)
    if dialect.name == MESSAGES and profile.messages_key is not None:
        forms = profile.messages_key
    return {header: prefix + key for header, prefix in forms}
