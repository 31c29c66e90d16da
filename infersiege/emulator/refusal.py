"""Requests that are refused: why, and the words, status and body of each engine for it.

Bodies differ in shape (object, flat, bare text, Anthropic's `type: error`), which is what clients trip over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from infersiege.emulator.profile import Api, Profile


class Reason(StrEnum):
    """Why."""

    INVALID = "invalid"
    MISSING = "missing"
    """A field that must be there."""
    EMPTY = "empty"
    CONTEXT = "context"
    MODEL = "model"
    KEY = "key"
    RATE = "rate"
    OVERLOAD = "overload"
    FAILED = "failed"


_STATUS: dict[Reason, int] = {
    Reason.INVALID: 400,
    Reason.MISSING: 400,
    Reason.EMPTY: 400,
    Reason.CONTEXT: 400,
    Reason.MODEL: 404,
    Reason.KEY: 401,
    Reason.RATE: 429,
    Reason.OVERLOAD: 503,
    Reason.FAILED: 500,
}

_BY_STATUS: dict[int, Reason] = {
    400: Reason.INVALID,
    401: Reason.KEY,
    404: Reason.MODEL,
    422: Reason.INVALID,
    429: Reason.RATE,
    503: Reason.OVERLOAD,
    529: Reason.OVERLOAD,
}


@dataclass(slots=True)
class RefusedError(Exception):
    """A request that gets an error answer. Engines word the same reason each in its own way."""

    reason: Reason
    message: str
    """vLLM's words; `worded` has those of the others where they differ."""
    param: str | None = None
    status: int = 0
    """0: the usual one of the reason."""
    prompt_tokens: int = 0
    limit: int = 0
    """Of the context, with Reason.CONTEXT."""
    code: str | None = None
    """Anthropic's words, with Reason.MODEL."""
    literal: bool = False
    """The message is to be sent as it stands, whatever this engine says as a rule."""

    def __post_init__(self) -> None:
        self.status = self.status or _STATUS[self.reason]

    def __str__(self) -> str:
        return self.message


def invalid(param: str, message: str) -> RefusedError:
    return RefusedError(Reason.INVALID, f"1 validation error:\n  {message}", param)


def missing(field: str) -> RefusedError:
    message = f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required'}}"
    return RefusedError(Reason.MISSING, message, f"body.{field}")


def of_status(status: int, message: str) -> RefusedError:
    """The refusal that usually has this status."""
    reason = _BY_STATUS.get(status, Reason.FAILED if status >= 500 else Reason.INVALID)
    return RefusedError(reason, message, status=status, code=message)


def no_model(asked: object, there: str) -> RefusedError:
    message = f"The model `{asked}` does not exist. Valid aliases: {there}."
    return RefusedError(Reason.MODEL, message, "model", code=f"model: {asked}")


def over_context(prompt_tokens: int, limit: int) -> RefusedError:
    """A prompt that leaves no room for a token."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        f"prompt. (parameter=input_tokens, value={limit + 1})"
    )
    return RefusedError(Reason.CONTEXT, message, "input_tokens", prompt_tokens=prompt_tokens, limit=limit)


def busy() -> RefusedError:
    return RefusedError(
        Reason.OVERLOAD,
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different "
        "instance.",
    )


_WORDS: dict[tuple[str, Reason], str] = {
    ("sglang", Reason.CONTEXT): "The input ({prompt_tokens} tokens) is longer than the model's context length "
    "({limit} tokens).",
    ("sglang", Reason.EMPTY): "Messages cannot be empty.",
    ("llama.cpp", Reason.MISSING): "'{field}' is required",
    ("openai", Reason.MISSING): "Missing required parameter: '{field}'.",
    ("anthropic", Reason.MISSING): "{field}: Field required",
    ("llama.cpp", Reason.CONTEXT): "request ({prompt_tokens} tokens) exceeds the available context size ({limit} "
    "tokens), try increasing it",
    ("llama.cpp", Reason.KEY): "Invalid API Key",
    ("openai", Reason.CONTEXT): "This model's maximum context length is {limit} tokens. However, your messages "
    "resulted in {prompt_tokens} tokens. Please reduce the length of the messages.",
    ("openai", Reason.KEY): "Incorrect API key provided.",
    ("anthropic", Reason.CONTEXT): "prompt is too long: {prompt_tokens} tokens > {limit} maximum",
    ("anthropic", Reason.KEY): "invalid x-api-key",
    ("anthropic", Reason.MODEL): "{code}",
    ("anthropic", Reason.OVERLOAD): "Overloaded",
}

_KINDS: dict[str, dict[Reason, str]] = {
    "vllm": {
        Reason.OVERLOAD: "Service Unavailable",
        Reason.INVALID: "Bad Request",
        Reason.MISSING: "Bad Request",
        Reason.EMPTY: "BadRequestError",
        Reason.CONTEXT: "BadRequestError",
        Reason.MODEL: "NotFoundError",
        Reason.FAILED: "InternalServerError",
    },
    "sglang": {
        Reason.INVALID: "Bad Request",
        Reason.MISSING: "Bad Request",
        Reason.EMPTY: "BadRequestError",
        Reason.CONTEXT: "BadRequestError",
        Reason.FAILED: "InternalServerError",
    },
    "llama.cpp": {
        Reason.INVALID: "invalid_request_error",
        Reason.MISSING: "invalid_request_error",
        Reason.EMPTY: "invalid_request_error",
        Reason.CONTEXT: "exceed_context_size_error",
        Reason.MODEL: "not_found_error",
        Reason.KEY: "authentication_error",
        Reason.RATE: "rate_limit_error",
        Reason.OVERLOAD: "unavailable_error",
        Reason.FAILED: "server_error",
    },
    "openai": {Reason.RATE: "requests", Reason.OVERLOAD: "server_error", Reason.FAILED: "server_error"},
    "anthropic": {
        Reason.MODEL: "not_found_error",
        Reason.KEY: "authentication_error",
        Reason.RATE: "rate_limit_error",
        Reason.OVERLOAD: "overloaded_error",
        Reason.FAILED: "api_error",
    },
}

_CLOUD_CODES: dict[Reason, str] = {
    Reason.CONTEXT: "context_length_exceeded",
    Reason.MODEL: "model_not_found",
    Reason.KEY: "invalid_api_key",
    Reason.RATE: "rate_limit_exceeded",
}


def worded(profile: Profile, error: RefusedError) -> str:
    """The message in the engine's own words."""
    words = _WORDS.get((profile.name, error.reason))
    if words is None or error.literal:
        return error.message
    field = (error.param or "").removeprefix("body.")
    return words.format(prompt_tokens=error.prompt_tokens, limit=error.limit, code=error.code, field=field)


def kind_of(profile: Profile, error: RefusedError) -> str:
    """The `type` in the body."""
    kind = _KINDS[profile.name].get(error.reason)
    if kind is not None:
        return kind
    return phrase(error.status) if profile.name in ("vllm", "sglang") else "invalid_request_error"


def status_of(profile: Profile, error: RefusedError) -> int:
    """503 is 529 at Anthropic; the rest is the same everywhere."""
    return profile.overload_status if error.reason is Reason.OVERLOAD and error.status == 503 else error.status


def error_object(profile: Profile, error: RefusedError, *, streamed: bool = False) -> dict[str, Any]:
    """The object under `error`, in the form of OpenAI's protocols."""
    message, kind, status = worded(profile, error), kind_of(profile, error), status_of(profile, error)
    if profile.name == "llama.cpp":
        value: dict[str, Any] = {"code": status, "message": message, "type": kind}
        if error.reason is Reason.CONTEXT:
            value |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.limit}
        return value
    if profile.name in ("openai", "anthropic"):
        param = None if error.param is None else error.param.removeprefix("body.")
        return {"message": message, "type": kind, "param": param, "code": _CLOUD_CODES.get(error.reason)}
    if profile.name == "sglang":
        if error.reason is Reason.OVERLOAD:
            message, kind = "The request queue is full.", "SERVICE_UNAVAILABLE" if streamed else str(status)
        return {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return {"message": message, "type": kind, "param": error.param, "code": status}


def anthropic_error(profile: Profile, error: RefusedError, *, streamed: bool = False) -> dict[str, Any]:
    """The whole body or event of `/v1/messages`."""
    kind = kind_of(profile, error)
    if streamed and profile.name == "vllm":
        kind = "internal_error"
    if profile.name == "sglang":
        kind = _KINDS["anthropic"].get(error.reason, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": worded(profile, error)}}


def body_of(profile: Profile, api: Api | None, error: RefusedError) -> dict[str, Any]:
    """The JSON body of an error answer. `api` None: of a path that is none of the four."""
    if error.reason is Reason.KEY and profile.name in ("vllm", "sglang") and not error.literal:
        return {"error": "Unauthorized"}
    if profile.name == "anthropic" and api is not Api.CHAT:
        return {**anthropic_error(profile, error), "request_id": "req_emulated"}
    if api is Api.MESSAGES and profile.name in ("vllm", "sglang"):
        return anthropic_error(profile, error)
    value = error_object(profile, error)
    return value if profile.name == "sglang" else {"error": value}


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Emulated"
