"""Attributes of a GenAI span -> OpenAI messages, tools and request fields.

Three generations of attributes are in use: `gen_ai.input.messages` with parts (semantic conventions 1.37 and later,
docs/gen-ai/gen-ai-input-messages.json), the same with OpenAI's own messages, and OpenLLMetry's numbered
`gen_ai.prompt.0.role`. Lists come as lists or as a JSON string.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from infersiege.records import Message
from infersiege.traces.files.values import decode_json
from infersiege.traces.sessions.chat import ROLES, UnsendableError
from infersiege.traces.sessions.chat_parts import content_of, image_part, text_part
from infersiege.traces.trace import Tally

_ROLES = {"model": "assistant", "ai": "assistant", "human": "user"}
"""What some instrumentations write instead."""
_REASONING = frozenset({"reasoning", "thinking", "redacted_thinking"})
_MEDIA = frozenset({"blob", "uri", "file", "file_data", "image_url", "image-url", "binary"})

_FIELDS = {
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.stop_sequences": "stop",
}


def request_messages(attributes: dict[str, Any], tally: Tally) -> list[Message]:
    """The whole request. Raises UnsendableError: `no_messages` (content was not captured), and what is no message."""
    raw = _listed(attributes.get("gen_ai.input.messages"))
    if raw is None:
        raw = _numbered(attributes, "gen_ai.prompt.")
    messages = _Messages(tally)
    instructions = _listed(attributes.get("gen_ai.system_instructions"))
    if instructions:
        messages.add({"role": "system", "parts": instructions})
    for message in raw:
        messages.add(message)
    if not raw:
        raise UnsendableError("no_messages")
    return messages.found


def answer_messages(attributes: dict[str, Any], tally: Tally) -> list[Message]:
    """The recorded answer (of several choices the first); empty: none was captured. Raises UnsendableError."""
    raw = _listed(attributes.get("gen_ai.output.messages"))
    if raw is None:
        raw = _numbered(attributes, "gen_ai.completion.")
    if not raw and isinstance(attributes.get("gen_ai.output.text"), str):
        raw = [attributes["gen_ai.output.text"]]
    if not raw:
        return []
    if len(raw) > 1:
        tally.odd("an answer has several choices, the first is kept")
    first = raw[0]
    if isinstance(first, dict) and "role" not in first:
        first = {"role": "assistant", **first}
    messages = _Messages(tally)
    messages.add(first if isinstance(first, dict) else {"role": "assistant", "content": first})
    return [message for message in messages.found if message["role"] == "assistant"]


def request_tools(attributes: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """Tool definitions in OpenAI's form; None: the span has none. Raises UnsendableError."""
    raw = _listed(attributes.get("gen_ai.tool.definitions"))
    if raw is None:
        raw = _numbered(attributes, "llm.request.functions.")
    tools = []
    for tool in raw:
        if not isinstance(tool, dict):
            raise UnsendableError("bad_tool_definition")
        if isinstance(tool.get("function"), dict):
            tools.append(tool)
            continue
        if not isinstance(tool.get("name"), str):
            raise UnsendableError("bad_tool_definition")
        function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
        parameters = function.get("parameters")
        if isinstance(parameters, str):
            function["parameters"] = _decoded(parameters, "bad_tool_definition")
        tools.append({"type": "function", "function": function})
    return tuple(tools) or None


def request_fields(attributes: dict[str, Any]) -> dict[str, Any]:
    """Request fields that the span names; what is null was not asked for."""
    return {field: attributes[key] for key, field in _FIELDS.items() if attributes.get(key) is not None}


def _listed(value: Any) -> list[Any] | None:
    """A list, or one as a JSON string; any other text is one text. Raises UnsendableError for a string that was cut."""
    if value is None or isinstance(value, list):
        return value
    if isinstance(value, str):
        if value.lstrip()[:1] not in ("[", "{"):
            return [value] if value else []
        value = _decoded(value, "messages_cut")
    return value if isinstance(value, list) else [value]


def _decoded(text: str, reason: str) -> Any:
    try:
        return decode_json(text)
    except ValueError:
        raise UnsendableError(reason) from None


def _numbered(attributes: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """`prefix` + `0.role`, `0.tool_calls.1.name` … as a list of objects, in the order of their numbers."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, field = key[len(prefix) :].partition(".")
        if not number.isdecimal() or not field:
            continue
        entry = found.setdefault(int(number), {})
        group, _, rest = field.partition(".")
        if group == "tool_calls" and rest:
            index, _, field = rest.partition(".")
            if index.isdecimal():
                entry.setdefault("tool_calls", {}).setdefault(int(index), {})[field] = value
        else:
            entry[field] = value
    for entry in found.values():
        calls = entry.get("tool_calls")
        if isinstance(calls, dict):
            entry["tool_calls"] = [calls[index] for index in sorted(calls)]
    return [found[number] for number in sorted(found)]


class _Messages:
    """Messages one after the other; ids are given to calls without one, and to the results that follow them."""

    def __init__(self, tally: Tally) -> None:
        self.found: list[Message] = []
        self._tally = tally
        self._open: list[str] = []
        """Ids of calls without a result."""
        self._given = 0

    def add(self, message: Any) -> None:
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        if not isinstance(message, dict):
            raise UnsendableError("not_a_message")
        role = message.get("role")
        role = _ROLES.get(role, role) if isinstance(role, str) else None
        if role not in ROLES:
            raise UnsendableError("not_a_message")
        texts, calls = self._parts(message)
        calls += [self._call(call) for call in message.get("tool_calls") or ()]
        if role == "tool":
            self._tool(message, texts)
        elif role == "assistant":
            self._assistant(texts, calls)
        elif texts:
            self.found.append({"role": role, "content": _content(texts)})

    def _parts(self, message: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Texts and other content parts; calls. Results become messages of their own at once."""
        texts: list[Any] = []
        calls: list[dict[str, Any]] = []
        for part in _raw_parts(message):
            kind = str(part.get("type"))
            if kind in ("text", "input_text", "output_text"):
                texts.append(str(part.get("content", part.get("text", ""))))
            elif kind == "tool_call":
                calls.append(self._call(part))
            elif kind == "tool_call_response":
                result = part.get("response", part.get("result"))
                self._result(part.get("id"), result)
            elif kind in _MEDIA and (image := _image(part)) is not None:
                texts.append(image)
            elif kind in _REASONING:
                self._tally.odd("reasoning of recorded answers is not sent back")
            else:
                self._tally.odd("a message part that is no text, image or tool call is not sent")
        return texts, calls

    def _assistant(self, texts: list[Any], calls: list[dict[str, Any]]) -> None:
        message: Message = {"role": "assistant", "content": _content(texts) if texts or not calls else None}
        if calls:
            message["tool_calls"] = calls
        self._open = [call["id"] for call in calls]
        self.found.append(message)

    def _tool(self, message: dict[str, Any], texts: list[Any]) -> None:
        ident = message.get("tool_call_id", message.get("id"))
        if texts or "parts" not in message:
            self._result(ident, _content(texts))

    def _result(self, ident: Any, result: Any) -> None:
        if not isinstance(ident, str) or (ident not in self._open and len(self._open) == 1):
            if not self._open:
                raise UnsendableError("tool_result_without_call")
            ident = self._open[0]
        if ident in self._open:
            self._open.remove(ident)
        content = result if isinstance(result, str) else msgspec.json.encode(result).decode()
        self.found.append({"role": "tool", "tool_call_id": ident, "content": content})

    def _call(self, call: Any) -> dict[str, Any]:
        """Of OpenAI's form, or flat: `{id, name, arguments}`."""
        if not isinstance(call, dict):
            raise UnsendableError("bad_tool_call")
        function = call["function"] if isinstance(call.get("function"), dict) else call
        if not isinstance(function.get("name"), str):
            raise UnsendableError("bad_tool_call")
        ident = call.get("id")
        if not isinstance(ident, str) or not ident:
            ident = f"call_{self._given}"
            self._given += 1
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "{}" if arguments is None else msgspec.json.encode(arguments).decode()
        return {"id": ident, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _raw_parts(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a message, or its content as parts."""
    content = message.get("parts", message.get("content"))
    if isinstance(content, str) and "parts" not in message:
        content = _content_list(content) or [{"type": "text", "content": content}]
    if content is None:
        return
    if not isinstance(content, list):
        raise UnsendableError("message_without_content")
    for part in content:
        if isinstance(part, str):
            yield {"type": "text", "content": part}
        elif isinstance(part, dict):
            yield part
        else:
            raise UnsendableError("message_without_content")


def _content_list(content: str) -> list[Any] | None:
    """OpenLLMetry writes a content of parts as a JSON string; a text that happens to be a list stays a text."""
    if not content.startswith('[{"'):
        return None
    try:
        parts = decode_json(content)
    except ValueError:
        return None
    known = {"text", "image_url", "input_text", "tool_call", "tool_call_response"}
    if isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") in known for part in parts):
        return parts
    return None


def _content(texts: list[Any]) -> Any:
    """One text stays a text; several, and images, are content parts."""
    return content_of([text_part(text) if isinstance(text, str) else text for text in texts])


def _image(part: dict[str, Any]) -> dict[str, Any] | None:
    """An image as OpenAI's part, verbatim; None: it is none, or its bytes are not here."""
    if isinstance(part.get("image_url"), dict | str):
        url = part["image_url"]
        return {"type": "image_url", "image_url": url if isinstance(url, dict) else {"url": url}}
    kind = part.get("mime_type", part.get("media_type"))
    if part.get("modality") == "image" or part["type"] == "image-url" or str(kind).startswith("image/"):
        found = part.get("uri", part.get("url"))
        content = part.get("content")
        if isinstance(content, str) and content:
            found = f"data:{kind or 'image/png'};base64,{content}"
        if isinstance(found, str):
            return image_part(found)
    return None
