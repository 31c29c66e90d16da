"""What a request asks for, read out of the body of any of the four protocols.

Conversations of `/v1/messages` and `/v1/responses` are brought into the form of chat messages, so that one template
makes tokens of them and prefixes are found again whatever they were sent in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infersiege.emulator import text
from infersiege.emulator.profile import Api, Profile
from infersiege.emulator.refusal import Reason, RefusedError, invalid, missing, no_model

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """One request. None: not said."""

    api: Api
    model: Any
    prompt: tuple[str, ...]
    """Tokens."""
    question: str
    """The text that is answered, for its language."""
    functions: tuple[Json, ...]
    """Each with `name` and `parameters`."""
    choice: str | None
    """`auto`, `required`, `none`, or `named`."""
    named: Any
    """The function that `named` names."""
    max_tokens: int | None
    min_tokens: int | None
    ignore_eos: bool
    seed: Any
    stream: bool
    include_usage: bool
    usage_on_every_chunk: bool
    marks_cache: bool
    """It asks for the prompt to be written to the cache (`cache_control`)."""


def read_wish(body: Any, api: Api, profile: Profile, model: str) -> Wish:
    """The request in one form for all protocols. Raises RefusedError; `model` is the one that is served."""
    if not isinstance(body, dict):
        raise invalid("body", "the body must be a JSON object")
    for name in profile.refused_fields:
        if name in body:
            raise RefusedError(Reason.INVALID, f"{name}: Extra inputs are not permitted", name)
    asked = body.get("model", model)
    if asked != model and profile.checks_model:
        raise no_model(asked, model)
    if whole_number(body, "n", 1) not in (None, 1):
        raise invalid("body.n", "the emulator gives one choice")
    limit = _limit(body, api)
    if limit is None and api in profile.needs_max_tokens:
        raise missing("max_tokens")
    prompt, question = _prompt(body, api, profile)
    choice, named = _choice(body.get("tool_choice"), api)
    stream = bool(body.get("stream"))
    options = body.get("stream_options")
    options = options if isinstance(options, dict) and stream else {}
    include = bool(options.get("include_usage"))
    return Wish(
        api=api,
        model=asked if isinstance(asked, str) else model,
        prompt=tuple(prompt),
        question=question,
        functions=() if api is Api.COMPLETIONS else _functions(body.get("tools"), api),
        choice=choice,
        named=named,
        max_tokens=limit,
        min_tokens=whole_number(body, "min_tokens", 0),
        ignore_eos=bool(body.get("ignore_eos")),
        seed=body.get("seed"),
        stream=stream,
        include_usage=include,
        usage_on_every_chunk=include and bool(options.get("continuous_usage_stats")),
        marks_cache=api is Api.MESSAGES and '"cache_control"' in json.dumps(body),
    )


def whole_number(body: Json, name: str, least: int) -> int | None:
    """A field of the body. Raises RefusedError for what is no whole number from `least` up."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise invalid(f"body.{name}", f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def _limit(body: Json, api: Api) -> int | None:
    names = {Api.CHAT: ("max_completion_tokens", "max_tokens"), Api.RESPONSES: ("max_output_tokens",)}
    limits = (whole_number(body, name, 1) for name in names.get(api, ("max_tokens",)))
    return next((limit for limit in limits if limit is not None), None)


def _prompt(body: Json, api: Api, profile: Profile) -> tuple[list[str], str]:
    """(tokens, the text that is answered)."""
    if api is Api.COMPLETIONS:
        return _plain_prompt(body.get("prompt"))
    messages = _conversation(body, api)
    if not messages and profile.name != "llama.cpp":  # which generates all the same
        raise RefusedError(
            Reason.EMPTY, "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    tools = body.get("tools") if isinstance(body.get("tools"), list) else None
    question = text.content_text(messages[-1].get("content")) if messages else ""
    return text.prompt_tokens(messages, tools), question


def _plain_prompt(prompt: Any) -> tuple[list[str], str]:
    """A text, token numbers, or a list that holds one of them; at least one token."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return text.tokenise(prompt) or ["<|im_start|>"], prompt
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return [str(token) for token in prompt], ""
    if prompt is None:
        raise missing("prompt")
    raise invalid("body.prompt", "prompt must be one text or one list of token numbers")


def _conversation(body: Json, api: Api) -> list[Json]:
    """The messages in chat's form."""
    field = "input" if api is Api.RESPONSES else "messages"
    said = body.get(field)
    if said is None:
        raise missing(field)
    if api is Api.RESPONSES and isinstance(said, str):
        said = [{"role": "user", "content": said}]
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise invalid(f"body.{field}", f"{field} must be a list of objects")
    if api is Api.CHAT:
        return said
    system = body.get("system" if api is Api.MESSAGES else "instructions")
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for one in said:
        messages += _from_messages(one) if api is Api.MESSAGES else _from_item(one)
    return messages


def _from_messages(message: Json) -> list[Json]:
    """One Anthropic message: results of tools are messages of their own in chat's form."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    spoken: list[Any] = []
    calls: list[Any] = []
    results: list[Json] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            results.append({"role": "tool", "content": block.get("content")})
        elif kind == "tool_use":
            calls.append({"id": block.get("id"), "name": block.get("name"), "input": block.get("input")})
        else:
            spoken.append(block)
    if spoken or calls or not results:
        plain = len(spoken) == 1 and isinstance(spoken[0], dict) and spoken[0].get("type") == "text"
        told = spoken[0].get("text") if plain else spoken
        results.append({"role": message.get("role"), "content": told, "tool_calls": calls or None})
    return results


def _from_item(item: Json) -> list[Json]:
    """One input item of a Responses request."""
    kind = item.get("type")
    if kind == "function_call":
        call = {"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": item.get("output")}]
    return [{"role": item.get("role"), "content": item.get("content")}]


def _functions(tools: Any, api: Api) -> tuple[Json, ...]:
    found: list[Json] = []
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if api is Api.CHAT and isinstance(tool, dict) else tool
        if isinstance(function, dict) and "name" in function:
            schema = function.get("input_schema" if api is Api.MESSAGES else "parameters")
            found.append({"name": function["name"], "parameters": schema})
    return tuple(found)


def _choice(choice: Any, api: Api) -> tuple[str | None, Any]:
    """(kind, name of the function). Unknown words are left to the model."""
    if isinstance(choice, str):
        return (choice if choice in ("auto", "required", "none") else None), None
    if not isinstance(choice, dict):
        return None, None
    if api is Api.CHAT:
        function = choice.get("function")
        return "named", function.get("name") if isinstance(function, dict) else None
    kind = choice.get("type")
    if kind in ("tool", "function"):
        return "named", choice.get("name")
    words = {"any": "required", "none": "none", "auto": "auto"}
    return (words.get(kind) if isinstance(kind, str) else None), None
