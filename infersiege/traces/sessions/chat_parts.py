"""Messages in OpenAI's form and what they are made of: texts, images, tool calls, as servers take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from infersiege.records import Message
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.trace import Tally


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(url: str, **more: Any) -> dict[str, Any]:
    """`url`: an address or a data URL. `more`: `detail`."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def content_of(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A text where there is nothing but one, else the parts."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return list(parts) if parts else ""


def joined_text(content: object) -> str:
    """The text of a content, which may be parts: they are lines of it then, and what is no text is left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def user_message(parts: Sequence[dict[str, Any]], role: str = "user") -> Message:
    """Parts that stood in one request as one message: a text where all are texts, content parts where images are."""
    if all(part["type"] == "text" for part in parts):
        return {"role": role, "content": "\n\n".join(part["text"] for part in parts)}
    return {"role": role, "content": list(parts)}


def answer(content: object, calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An assistant message: its content is null only where it calls tools. Raises UnsendableError."""
    if content is not None and not isinstance(content, str | list):
        raise UnsendableError("message_without_content")
    message: Message = {"role": "assistant", "content": content or (None if calls else "")}
    if calls:
        message["tool_calls"] = list(calls)
    return message


def answer_of(texts: Sequence[str], calls: Sequence[dict[str, Any]]) -> Message:
    """One assistant message of several texts. `calls`: those that a result follows (servers refuse a history with open
    calls)."""
    return answer("\n\n".join(text for text in texts if text), calls)


def tool_call(ident: str, name: str, arguments: object, tally: Tally) -> dict[str, Any]:
    """A call in OpenAI's form. Its arguments are the text of a JSON object, as servers want it: what a model wrote that
    is none is put into one, so that it stays in the history."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    if not text.strip() or arguments is None:
        text = "{}"
    else:
        try:
            whole = isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            whole = False
        if not whole:
            tally.odd("arguments of a tool call are no JSON object and are sent as the only member of one")
            text = msgspec.json.encode({"arguments": text}).decode()
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": text}}
