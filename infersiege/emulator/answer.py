"""From a chat request to the answer that will be generated: length, text, tool call; or a refusal like vLLM's.

Everything follows from the seed and the request's content, never from the order of requests, so concurrent runs repeat.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infersiege.emulator import text
from infersiege.emulator.settings import EmulatorSettings


class RefusedError(Exception):
    """An HTTP error answer; `error` is the object under "error"."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}


@dataclass(frozen=True, slots=True)
class Answer:
    """What will be generated. `pieces` has one entry per token; a tool call's first token is its name."""

    prompt_tokens: int
    pieces: tuple[str, ...]
    tool: str | None
    """Name of the called function; its arguments are pieces[1:]."""
    finish_reason: str
    chain: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    usage_on_every_chunk: bool

    @property
    def output_tokens(self) -> int:
        return len(self.pieces)


def _invalid(param: str, message: str) -> RefusedError:
    return RefusedError(400, "Bad Request", f"1 validation error:\n  {message}", param)


def _whole_number(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _invalid(f"body.{name}", f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def context_error(limit: int) -> RefusedError:
    """vLLM's refusal of a prompt that leaves no room for a token."""
    return RefusedError(
        400,
        "BadRequestError",
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        f"prompt. (parameter=input_tokens, value={limit + 1})",
        "input_tokens",
    )


def _checked_messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = body.get("messages")
    if messages is None:
        raise _invalid("body.messages", "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid("body.messages", "messages must be a list of objects")
    if not messages:
        raise RefusedError(
            400,
            "BadRequestError",
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        )
    return messages


def _room(body: Mapping[str, Any], prompt_tokens: int, limit: int) -> tuple[int, bool]:
    """(most tokens that may be generated, whether the request itself named a number)."""
    asked = _whole_number(body, "max_completion_tokens", 1)
    if asked is None:
        asked = _whole_number(body, "max_tokens", 1)
    if asked is not None and asked > limit:
        raise RefusedError(
            400,
            "BadRequestError",
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if prompt_tokens >= limit:
        raise context_error(limit)
    # Prompt and max_tokens together over the context: clipped without a word, as vLLM does.
    left = limit - prompt_tokens
    return (left, False) if asked is None else (min(asked, left), True)


def _called_tool(body: Mapping[str, Any], rng: random.Random, share: float) -> tuple[Mapping[str, Any] | None, bool]:
    """(the function to call or None, whether the request named it)."""
    tools = body.get("tools")
    functions = [
        tool["function"]
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict) and "name" in tool["function"]
    ]
    choice = body.get("tool_choice")
    lot, index = rng.random(), rng.random()  # always drawn: the text must not depend on the choice
    if not functions or choice == "none":
        return None, False
    if isinstance(choice, dict):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        found = next((function for function in functions if function["name"] == name), None)
        if found is None:
            raise _invalid("body.tool_choice", "tool_choice names a function that is not among the tools")
        return found, True
    if choice == "required" or lot < share:
        return functions[int(index * len(functions))], False
    return None, False


def _source(seeds: tuple[int, Any], prompt: Sequence[str]) -> random.Random:
    """The random source of one answer: the same for the same prompt and seeds, in any process."""
    (whole,) = text.block_chain(prompt, len(prompt))
    return random.Random(whole + repr(seeds).encode("utf-8", "surrogatepass"))


def _drawn_length(settings: EmulatorSettings, rng: random.Random) -> int:
    gauss = rng.gauss(0.0, 1.0)
    if settings.output_tokens is not None:
        return settings.output_tokens
    return max(1, round(settings.output_median * math.exp(settings.output_sigma * gauss)))


def _stream_wishes(body: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    stream = bool(body.get("stream"))
    options = body.get("stream_options")
    options = options if isinstance(options, dict) and stream else {}
    include = bool(options.get("include_usage"))
    return stream, include, include and bool(options.get("continuous_usage_stats"))


def plan_answer(body: Any, settings: EmulatorSettings) -> Answer:
    """The answer to a request body. Raises RefusedError with vLLM's status and wording."""
    if not isinstance(body, dict):
        raise _invalid("body", "the body must be a JSON object")
    if body.get("model", settings.model) != settings.model:
        raise RefusedError(
            404,
            "NotFoundError",
            f"The model `{body['model']}` does not exist. Valid aliases: {settings.model}.",
            "model",
        )
    if _whole_number(body, "n", 1) not in (None, 1):
        raise _invalid("body.n", "the emulator gives one choice")
    messages = _checked_messages(body)
    tools = body.get("tools") if isinstance(body.get("tools"), list) else None
    prompt = text.prompt_tokens(messages, tools)
    most, named_limit = _room(body, len(prompt), settings.spec.max_model_len)

    prompt_chain = text.block_chain(prompt, settings.spec.block_size)
    rng = _source((settings.seed, body.get("seed")), prompt)
    length = _drawn_length(settings, rng)
    function, named_tool = _called_tool(body, rng, settings.tool_share)
    forced = bool(body.get("ignore_eos")) and named_limit
    if function is not None and settings.output_tokens is None:
        length = min(length, 64)  # a call is short
    if forced:
        length = most
    length = min(max(length, _whole_number(body, "min_tokens", 0) or 0), most)

    if function is None:
        chinese = text.is_chinese(text.content_text(messages[-1].get("content")))
        pieces = text.prose(rng, length, chinese=chinese)
        ending = "stop"
    else:
        arguments = text.tokenise(text.call_arguments(function.get("parameters"), rng, max(length - 1, 0)))
        pieces = [str(function["name"]), *arguments][:most]
        ending = "stop" if named_tool else "tool_calls"
    stream, include_usage, on_every_chunk = _stream_wishes(body)
    return Answer(
        prompt_tokens=len(prompt),
        pieces=tuple(pieces),
        tool=None if function is None else str(function["name"]),
        finish_reason="length" if len(pieces) >= most else ending,
        chain=text.block_chain([*prompt, *pieces], settings.spec.block_size, prompt_chain),
        stream=stream,
        include_usage=include_usage,
        usage_on_every_chunk=on_every_chunk,
    )
