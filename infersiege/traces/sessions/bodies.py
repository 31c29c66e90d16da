"""Recorded request bodies of the OpenAI endpoints -> bodies in the chat form.

Chat bodies are taken as they are. A prompt of the completions endpoint becomes one user message; `input` of the
responses endpoint becomes messages. Endpoints that generate no text are left out by reason.
"""

from __future__ import annotations

from typing import Any

from infersiege.records import Message
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.chat_parts import answer, content_of, image_part, text_part, tool_call
from infersiege.traces.trace import Tally

_SILENT = frozenset({"embeddings", "moderations", "rerank", "score", "tokenize"})
"""Last parts of paths whose answers are no text."""

_SERVER_STATE = ("previous_response_id", "conversation")
"""Fields that say that the history lies on the server."""


def chat_body(body: dict[str, Any], url: object, tally: Tally) -> dict[str, Any]:
    """The body with `messages` (not checked yet). `url`: of the row, where it has one.

    Raises UnsendableError.
    """
    endpoint = _endpoint(body, url)
    if endpoint == "completions":
        tally.odd("a prompt of the completions endpoint is sent as one user message")
        return _of_completion(body, tally)
    if endpoint == "responses":
        return _of_response(body, tally)
    if endpoint in _SILENT:
        raise UnsendableError(endpoint)
    if endpoint == "other":
        raise UnsendableError("other_endpoint")
    return body


def is_body(body: dict[str, Any], url: object) -> bool:
    """Whether it looks like a body of any endpoint."""
    return not body.keys().isdisjoint(("messages", "prompt", "input")) or _last(url) != ""


def tools_of(raw: object) -> tuple[dict[str, Any], ...] | None:
    """Tool definitions, verbatim; None where there are none. Raises UnsendableError."""
    if not raw:
        return None
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise UnsendableError("bad_tools")
    return tuple(raw)


def _last(url: object) -> str:
    """The last part of its path; empty: none."""
    if not isinstance(url, str):
        return ""
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


def _endpoint(body: dict[str, Any], url: object) -> str:
    last = _last(url)
    if last == "completions":
        return "chat" if str(url).partition("?")[0].rstrip("/").endswith("chat/completions") else "completions"
    if last == "responses" or last in _SILENT:
        return last
    if last == "messages":  # Anthropic's: its content blocks and its system prompt are of another form
        return "other"
    if "messages" in body:
        return "chat"
    if last:
        return "other"
    if "prompt" in body:
        return "completions"
    if "input" in body:
        return "embeddings" if {"encoding_format", "dimensions"} & body.keys() else "responses"
    return "chat"


def _of_completion(body: dict[str, Any], tally: Tally) -> dict[str, Any]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str)
        raise UnsendableError("several_prompts" if several else "prompt_is_no_text")
    # `logprobs` is a count there, and true or false in the chat form.
    rest = {key: value for key, value in body.items() if key not in ("prompt", "logprobs")}
    if body.get("logprobs") is not None:
        tally.odd("key 'logprobs' of the completions endpoint is not sent")
    return {**rest, "messages": [{"role": "user", "content": prompt}]}


_RESPONSE_ONLY = frozenset(
    {"input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "reasoning", "include", "truncation"}
)


def _of_response(body: dict[str, Any], tally: Tally) -> dict[str, Any]:
    if any(body.get(key) is not None for key in _SERVER_STATE):
        raise UnsendableError("history_on_the_server")
    chat = {key: value for key, value in body.items() if key not in _RESPONSE_ONLY and key not in _SERVER_STATE}
    messages: list[Message] = []
    if isinstance(body.get("instructions"), str):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            _add_item(messages, item, tally)
    chat["messages"] = messages if given else []
    if isinstance(body.get("max_output_tokens"), int):
        chat["max_completion_tokens"] = body["max_output_tokens"]
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    chat.update(_tool_fields(body, tally))
    chat.update(_format(body.get("text")))
    return chat


def _add_item(messages: list[Message], item: object, tally: Tally) -> None:
    if not isinstance(item, dict):
        raise UnsendableError("not_a_message")
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
    elif kind == "function_call":
        ident, name = item.get("call_id"), item.get("name")
        if not isinstance(ident, str) or not isinstance(name, str):
            raise UnsendableError("bad_tool_call")
        call = tool_call(ident, name, item.get("arguments"), tally)
        # Calls of one answer are items of their own, after its text.
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append(answer(None, [call]))
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else _content(output)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "reasoning":
        tally.odd("a reasoning item of the responses endpoint is not sent")
    else:
        raise UnsendableError("history_on_the_server" if kind == "item_reference" else "unknown_item")


def _content(raw: object) -> object:
    """Parts in the chat form; what is none is checked with its message."""
    return content_of([_part(part) for part in raw]) if isinstance(raw, list) else raw


def _part(part: object) -> dict[str, Any]:
    if isinstance(part, dict):
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
            return text_part(part["text"])
        if kind == "input_image" and isinstance(part.get("image_url"), str):
            return image_part(part["image_url"], **{key: part[key] for key in ("detail",) if part.get(key) is not None})
    raise UnsendableError("unknown_part")


def _tool_fields(body: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """Functions of the flat form, nested again; tools that the server itself has are left out."""
    fields: dict[str, Any] = {}
    tools = []
    for tool in tools_of(body.get("tools")) or ():
        if tool.get("type") != "function":
            tally.odd("a tool of the server is not sent")
            continue
        tools.append({"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}})
    if tools:
        fields["tools"] = tools
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(choice, str) and tools:
        fields["tool_choice"] = choice
    return fields


def _format(text: object) -> dict[str, Any]:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") in (None, "text"):
        return {}
    if wanted["type"] != "json_schema":
        return {"response_format": wanted}
    schema = {key: value for key, value in wanted.items() if key != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
