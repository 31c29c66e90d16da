"""OpenAI chat messages, tools and fields as a request of the Responses API. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infersiege.channels.request import encoded, given, refuse
from infersiege.channels.transcript import Said, image_url, parts_of, text_of_content, text_of_part, transcript
from infersiege.records import Message

Item = dict[str, Any]


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
    """The request as UTF-8 JSON; `extra` wins. Raises UsageError for `background` and the like.

    Nothing is stored at the server: a load test would leave its answers there.
    """
    refuse(extra)
    request: dict[str, Any] = {"model": model, "input": items(messages), "max_output_tokens": max_tokens}
    if tools:
        request["tools"] = [_tool(tool) for tool in tools]
    request |= {"stream": stream, "store": False}
    return encoded(request | fields(given(sampling)) | dict(extra))


def items(messages: list[Message]) -> list[Item]:
    """Input items in order: messages, calls, results of calls."""
    result: list[Item] = []
    for said in transcript(messages):
        if said.role == "tool":
            output = text_of_content(said.content)
            result.append({"type": "function_call_output", "call_id": said.call_id, "output": output})
            continue
        if said.role != "assistant":
            result.append({"role": said.role, "content": _content(said.content)})
        elif text := text_of_content(said.content):
            result.append(_answer(text, len(result)))
        result += _calls(said)
    return result


def _answer(text: str, place: int) -> Item:
    """An answer in full: llama.cpp takes no shorter form, vLLM none without id and status."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{place}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _calls(said: Said) -> list[Item]:
    return [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in said.calls
    ]


def _content(content: Any) -> str | list[Item]:
    return [_part(part) for part in parts_of(content)] if isinstance(content, list) else text_of_content(content)


def _part(part: dict[str, Any]) -> Item:
    url = image_url(part)
    if url is None:
        return {"type": "input_text", "text": text_of_part(part)}
    image = part.get("image_url")
    detail = image.get("detail") if isinstance(image, dict) else None
    return {"type": "input_image", "image_url": url, "detail": detail or "auto"}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function stands one level higher here."""
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else tool


_SAME = ("temperature", "top_p", "top_logprobs", "parallel_tool_calls", "prompt_cache_key", "service_tier", "reasoning")


def fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Chat's request fields in the words of Responses; it refuses what it doesn't know, so the rest is left out."""
    result = {name: extra[name] for name in _SAME if extra.get(name) is not None}
    choice = extra.get("tool_choice")
    if isinstance(choice, dict) and isinstance(function := choice.get("function"), dict):
        result["tool_choice"] = {"type": "function", "name": function.get("name")}
    elif isinstance(choice, str):
        result["tool_choice"] = choice
    if isinstance(effort := extra.get("reasoning_effort"), str):
        result["reasoning"] = {"effort": effort}
    text: dict[str, Any] = {}
    if isinstance(form := extra.get("response_format"), dict):
        schema = form.get("json_schema")
        text["format"] = {"type": form.get("type"), **schema} if isinstance(schema, dict) else form
    if isinstance(verbosity := extra.get("verbosity"), str):
        text["verbosity"] = verbosity
    if text:
        result["text"] = text
    return result
