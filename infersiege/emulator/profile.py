"""Which engine the emulator plays: what each does its own way on the wire. Data only.

Facts come from runs of vLLM 0.32, SGLang 0.5.23 and llama.cpp, and for the two clouds from their API references.
docs/emulator.md has the same as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Api(StrEnum):
    """One wire protocol that answers are written in."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


PATHS: dict[str, Api] = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
}

ENGINE_ONLY = frozenset({"ignore_eos", "min_tokens", "repetition_penalty", "chat_template_kwargs", "guided_json"})
"""Request fields that engines add to the protocols and clouds refuse (CL-04)."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a server treats connections and what it puts into the head of each answer."""

    idle_timeout_s: float | None = None
    most_requests: int | None = None
    """Requests on one connection; the answer to the last says `connection: close`."""
    closes_after_error: bool = False
    fields: tuple[tuple[str, str], ...] = ()
    """In every answer."""
    open_fields: tuple[tuple[str, str], ...] = ()
    """In every answer after which the connection stays open."""
    stream_fields: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream; charset=utf-8"),)
    json_type: str = "application/json"
    dated: bool = True
    """With a Date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine or cloud."""

    name: str
    apis: tuple[Api, ...] = tuple(Api)
    checks_model: bool = True
    """False: any model name is answered with 200."""
    echoes_model: bool = False
    """The answer names the model that was asked, not the one that is there."""
    reasoning_key: str = "reasoning_content"
    finish_with_text: tuple[Api, ...] = ()
    """Where the last text and the finish reason share a chunk; elsewhere a chunk of its own ends the answer."""
    usage_on_finish: tuple[Api, ...] = ()
    """Where usage comes, asked or not, on the chunk with the finish reason."""
    messages_tell_cache: bool = True
    """`/v1/messages` tells `cache_read_input_tokens` apart; False: `input_tokens` is all of the input."""
    takes_x_api_key: tuple[Api, ...] = ()
    takes_bearer: tuple[Api, ...] = tuple(Api)
    open_paths: tuple[str, ...] = ("/health",)
    """Paths that need no key."""
    guards: str = "/"
    """Only paths that begin with this need one."""
    keepalive_comment: bytes = b": keep-alive\n\n"
    keepalive_interval_s: float | None = None
    overload_in_stream: bool = False
    """A full queue answers a stream with 200 and an error event."""
    error_then_done: bool = False
    """An error event is followed by `[DONE]`."""
    messages_refuse_in_stream: bool = False
    """A stream of `/v1/messages` that is refused is a 200 with an error event."""
    overload_status: int = 503
    refused_fields: frozenset[str] = frozenset()
    clips_max_tokens: bool = False
    """A `max_tokens` above the context is cut to it; False: refused."""
    needs_max_tokens: tuple[Api, ...] = ()
    rate_limit_headers: str | None = None
    """`openai` or `anthropic`: the form of the rate-limit headers; None: there are none."""
    has_metrics: bool = True
    manner: Manner = Manner()


_CLOUD = Manner(fields=(("strict-transport-security", "max-age=31536000"),))

PROFILES: dict[str, Profile] = {
    "vllm": Profile(
        name="vllm",
        reasoning_key="reasoning",
        finish_with_text=(Api.CHAT, Api.COMPLETIONS),
        messages_tell_cache=False,
        guards="/v1",
        overload_in_stream=True,
        error_then_done=True,
    ),
    "sglang": Profile(
        name="sglang",
        checks_model=False,
        echoes_model=True,
        finish_with_text=(Api.COMPLETIONS,),
        open_paths=("/health", "/health_generate", "/metrics"),
        overload_in_stream=True,
        error_then_done=True,
        messages_refuse_in_stream=True,
        clips_max_tokens=True,
    ),
    "llama.cpp": Profile(
        name="llama.cpp",
        checks_model=False,
        usage_on_finish=(Api.COMPLETIONS,),
        takes_x_api_key=tuple(Api),
        open_paths=("/health", "/v1/health"),
        keepalive_comment=b":\n\n",
        keepalive_interval_s=30.0,
        clips_max_tokens=True,
        manner=Manner(
            idle_timeout_s=5.0,
            most_requests=100,
            closes_after_error=True,
            fields=(("access-control-allow-origin", ""),),
            open_fields=(("keep-alive", "timeout=5, max=100"),),
            stream_fields=(("x-accel-buffering", "no"), ("content-type", "text/event-stream")),
            json_type="application/json; charset=utf-8",
            dated=False,
        ),
    ),
    "anthropic": Profile(
        name="anthropic",
        apis=(Api.MESSAGES, Api.CHAT),
        takes_x_api_key=(Api.MESSAGES,),
        takes_bearer=(Api.CHAT,),
        open_paths=(),
        overload_status=529,
        refused_fields=ENGINE_ONLY,
        needs_max_tokens=(Api.MESSAGES,),
        rate_limit_headers="anthropic",
        has_metrics=False,
        manner=_CLOUD,
    ),
    "openai": Profile(
        name="openai",
        apis=(Api.CHAT, Api.COMPLETIONS, Api.RESPONSES),
        open_paths=(),
        refused_fields=ENGINE_ONLY | {"top_k"},
        rate_limit_headers="openai",
        has_metrics=False,
        manner=_CLOUD,
    ),
}
"""Value of `--profile` -> profile."""
