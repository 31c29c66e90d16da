"""What one engine adds to its dialect: ports, paths, metric names, request fields, quirks, launch flags. Data only.

Facts come from runs of the real engines (vLLM 0.32, SGLang 0.5.23, llama.cpp) and, for the rest, from their sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infersiege.channels.dialect import Dialect

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "openai-chat", "openai-completions", "openai-responses", "anthropic-messages"
EVERY_DIALECT = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

BEARER = ("authorization", "Bearer ")
X_API_KEY = ("x-api-key", "")


def _vllm_fixed_length(max_tokens: int) -> dict[str, Any]:
    # min_tokens too: ignore_eos alone still ends at a stop string.
    return {"ignore_eos": True, "min_tokens": max_tokens}


def _ignore_eos(max_tokens: int) -> dict[str, Any]:
    return {"ignore_eos": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine or cloud. None: it has no such thing, or nobody has seen it."""

    name: str
    """As in `engine = "…"`."""
    title: str
    """As in a report."""
    default_port: int | None
    default_dialect: str
    dialects: tuple[str, ...]
    """Names of the dialects that it has a path for."""
    ready: bool
    """Its own dialect is built and its facts were seen on a running server. False: usable with `default_dialect`, but
    its facts are read from source only, or its own dialect comes later."""
    health_path: str | None = None
    """Beside the API root; 200 means ready."""
    models_path: str | None = "/models"
    """Below the API root."""
    metrics_path: str | None = None
    """Prometheus text, beside the API root."""
    version_path: str | None = None
    """JSON that holds the server's version, beside the API root."""
    version_key: str | None = None
    """Its key in that JSON."""
    ignore_eos_fields: Callable[[int], dict[str, Any]] | None = None
    """max_tokens -> extra body fields that fix the output length."""
    cached_tokens_hint: str | None = None
    """What to do when `cached_tokens` is unknown."""
    messages_key: tuple[tuple[str, str], ...] | None = None
    """(header, what stands before the key) for `anthropic-messages`; None: as that dialect says."""
    checks_model: bool = True
    """False: it answers to any model name, so a wrong one is found only by asking for the list."""
    running_metric: str | None = None
    """Gauge of requests being worked on; 0 means idle."""
    waiting_metric: str | None = None
    """Gauge of requests that wait; 0 means idle."""
    launch_hint: str | None = None
    """How to start it so that a run shows the most."""


PROFILES: dict[str, Profile] = {
    "vllm": Profile(
        name="vllm",
        title="vLLM",
        default_port=8000,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        ready=True,
        health_path="/health",
        metrics_path="/metrics",
        version_path="/version",
        version_key="version",
        ignore_eos_fields=_vllm_fixed_length,
        cached_tokens_hint="start vLLM with --enable-prompt-tokens-details",
        messages_key=(BEARER,),
        running_metric="vllm:num_requests_running",
        waiting_metric="vllm:num_requests_waiting",
        launch_hint="vllm serve MODEL --enable-prompt-tokens-details",
    ),
    "sglang": Profile(
        name="sglang",
        title="SGLang",
        default_port=30000,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        ready=True,
        health_path="/health",
        metrics_path="/metrics",
        version_path="/server_info",
        version_key="version",
        ignore_eos_fields=_ignore_eos,
        cached_tokens_hint="start SGLang with --enable-cache-report",
        checks_model=False,
        messages_key=(BEARER,),
        running_metric="sglang:num_running_reqs",
        waiting_metric="sglang:num_queue_reqs",
        launch_hint="python -m sglang.launch_server --model-path MODEL --enable-metrics --enable-cache-report",
    ),
    "llama.cpp": Profile(
        name="llama.cpp",
        title="llama.cpp",
        default_port=8080,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        ready=True,
        health_path="/health",
        metrics_path="/metrics",
        ignore_eos_fields=_ignore_eos,
        cached_tokens_hint="llama.cpp always tells it: something between us drops it",
        checks_model=False,
        messages_key=(BEARER,),
        running_metric="llamacpp:requests_processing",
        waiting_metric="llamacpp:requests_deferred",
        launch_hint="llama-server -m MODEL.gguf --metrics --slots --parallel N",
    ),
    "lmdeploy": Profile(
        name="lmdeploy",
        title="LMDeploy",
        default_port=23333,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        ready=False,
        health_path="/health",
        metrics_path="/metrics",
        messages_key=(BEARER,),
        running_metric="lmdeploy:num_requests_running",
        waiting_metric="lmdeploy:num_requests_waiting",
        launch_hint="lmdeploy serve api_server MODEL --enable-metrics (with --api-keys, /metrics needs the key too)",
    ),
    "tgi": Profile(
        name="tgi",
        title="Text Generation Inference",
        default_port=3000,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS),
        ready=False,
        health_path="/health",
        metrics_path="/metrics",
        version_path="/info",
        version_key="version",
        running_metric="tgi_batch_current_size",
        waiting_metric="tgi_queue_size",
        launch_hint="text-generation-launcher --model-id MODEL --max-concurrent-requests N",
    ),
    "tensorrt-llm": Profile(
        name="tensorrt-llm",
        title="TensorRT-LLM",
        default_port=8000,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS, RESPONSES),
        ready=False,
        health_path="/health",
        metrics_path="/prometheus/metrics",
        version_path="/version",
        version_key="version",
        running_metric="trtllm_num_requests_running",
        waiting_metric="trtllm_num_requests_waiting",
        launch_hint="trtllm-serve MODEL with return_perf_metrics: true in its options, for /prometheus/metrics",
    ),
    "openai": Profile(
        name="openai",
        title="OpenAI",
        default_port=None,
        default_dialect=CHAT,
        dialects=(CHAT, COMPLETIONS, RESPONSES),
        ready=True,
    ),
    "taotoken": Profile(
        name="taotoken",
        title="TaoToken",
        default_port=None,
        default_dialect=CHAT,
        dialects=(CHAT, MESSAGES),
        ready=False,
        messages_key=(X_API_KEY, BEARER),
    ),
    "anthropic": Profile(
        # Chat is its OpenAI-compatible address.
        name="anthropic",
        title="Anthropic",
        default_port=None,
        default_dialect=MESSAGES,
        dialects=(MESSAGES, CHAT),
        ready=False,
    ),
    "generic": Profile(
        name="generic",
        title="OpenAI-compatible server",
        default_port=None,
        default_dialect=CHAT,
        dialects=EVERY_DIALECT,
        ready=True,
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
