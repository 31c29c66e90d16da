"""OpenAI messages, tools and fields as a request of Anthropic's Messages API. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from infersiege.channels.leniency import lenient_json
from infersiege.channels.request import encoded, given, refuse
from infersiege.channels.transcript import (
    Call,
    Said,
    image_url,
    parts_of,
    text_of_content,
    text_of_part,
    transcript,
)
from infersiege.records import Message

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")

Block = dict[str, Any]


def body(
    *,
    model: str,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    max_tokens: int,
    stream: bool,
    sampling: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> bytes:
    """The request as UTF-8 JSON; `extra` wins. Raises UsageError for `n > 1` and the like."""
    refuse(extra)
    system, turns = conversation(messages)
    request: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    if system:
        request["system"] = system
    request["messages"] = turns
    if tools:
        request["tools"] = [_tool(tool) for tool in tools]
    request["stream"] = stream
    return encoded(request | fields(given(sampling)) | dict(extra))


def conversation(messages: list[Message]) -> tuple[str | list[Block], list[Message]]:
    """(system, messages): messages of user and assistant in turn, the user first.

    Neighbours of one role are merged, tool results are the user's. A system message between others is the user's, too:
    moved to the front it would change the beginning of every request, and so break each prefix cache.
    """
    said = transcript(messages)
    first = next((place for place, one in enumerate(said) if one.role != "system"), len(said))
    system = _system([one.content for one in said[:first]])
    turns: list[tuple[str, list[Block]]] = []
    for one in said[first:]:
        role = "assistant" if one.role == "assistant" else "user"
        blocks = _blocks(one)
        if not blocks:
            continue  # empty text is refused
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    if not turns or turns[0][0] != "user":
        turns.insert(0, ("user", [{"type": "text", "text": "."}]))  # it must begin, and must say something
    return system, [{"role": role, "content": _content(blocks)} for role, blocks in turns]


def _system(contents: list[Any]) -> str | list[Block]:
    """Text, or blocks where the trace has parts, whose cache marks are kept."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if content.strip())
    return [block for content in contents for block in map(_block, parts_of(content)) if _says_something(block)]


def _content(blocks: list[Block]) -> str | list[Block]:
    """One plain text is written as such."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def _blocks(said: Said) -> list[Block]:
    if said.role == "tool":
        return [{"type": "tool_result", "tool_use_id": _id(said.call_id), "content": _result(said.content)}]
    blocks = [block for block in map(_block, parts_of(said.content)) if _says_something(block)]
    return blocks + [_tool_use(call) for call in said.calls]


def _result(content: Any) -> str | list[Block]:
    """A result is text, unless it shows something."""
    if not isinstance(content, list) or all(image_url(part) is None for part in parts_of(content)):
        return text_of_content(content)
    return [block for block in map(_block, parts_of(content)) if _says_something(block)]


def _says_something(block: Block) -> bool:
    return block["type"] != "text" or bool(block["text"].strip())


def _block(part: dict[str, Any]) -> Block:
    url = image_url(part)
    block: Block = {"type": "text", "text": text_of_part(part)}
    if url is not None:
        data = _DATA_URL.fullmatch(url)
        source = {"type": "url", "url": url}
        if data is not None:
            source = {"type": "base64", "media_type": data[1], "data": data[2]}
        block = {"type": "image", "source": source}
    if isinstance(mark := part.get("cache_control"), dict):
        block["cache_control"] = mark
    return block


def _tool_use(call: Call) -> Block:
    try:
        arguments = lenient_json(call.arguments.encode("utf-8", "surrogatepass")) if call.arguments.strip() else {}
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):  # what the model wrote was no object; the input must be one
        arguments = {"arguments": call.arguments}
    return {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": arguments}


def _id(call_id: str) -> str:
    """Other servers' ids hold characters that are refused here (`functions.f:0`)."""
    return _NOT_IN_ID.sub("_", call_id) or "_"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool  # in Anthropic's form already
    told = {"name": function.get("name"), "description": function.get("description")}
    schema = function.get("parameters")
    schema = schema if isinstance(schema, dict) else {}
    return given(told) | {"input_schema": schema if "type" in schema else {"type": "object", **schema}}


_SAME = ("temperature", "top_p", "top_k")


def fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's request fields in Anthropic's words; it refuses what it doesn't know, so the rest is left out."""
    result = {name: extra[name] for name in _SAME if extra.get(name) is not None}
    if stop := extra.get("stop"):
        result["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    choice = _tool_choice(extra.get("tool_choice"))
    if extra.get("parallel_tool_calls") is False:
        choice = {"type": "auto"} if choice is None else choice
        if choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
    if choice is not None:
        result["tool_choice"] = choice
    return result


def _tool_choice(choice: object) -> dict[str, Any] | None:
    if isinstance(choice, dict):
        function = choice.get("function")
        return {"type": "tool", "name": function.get("name")} if isinstance(function, dict) else None
    kind = {"auto": "auto", "required": "any", "none": "none"}.get(str(choice))
    return None if kind is None else {"type": kind}
