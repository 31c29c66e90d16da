"""OpenAI messages, read once for the dialects that say the same in other words. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from infersiege.channels.leniency import encodable
from infersiege.channels.request import encoded
from infersiege.records import Message


class Call(NamedTuple):
    """One tool call of an assistant message."""

    call_id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class Said(NamedTuple):
    """One message."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: Any
    """As the message has it: text, a list of parts, or None."""
    calls: tuple[Call, ...]
    call_id: str
    """Of a tool message: the call that it answers."""


def transcript(messages: list[Message]) -> list[Said]:
    """The messages in order. `developer` is `system`; the old `function_call` and `function` get ids of their place."""
    result: list[Said] = []
    unnamed = 0
    for message in messages:
        role = str(message.get("role"))
        calls = [_call(call, len(result)) for call in message.get("tool_calls") or () if isinstance(call, dict)]
        if isinstance(old := message.get("function_call"), dict):
            unnamed += 1
            calls.append(_call({"id": f"call_{unnamed}", "function": old}, unnamed))
        call_id = f"call_{unnamed}" if role == "function" else str(message.get("tool_call_id") or "")
        role = {"developer": "system", "function": "tool"}.get(role, role)
        result.append(Said(role, message.get("content"), tuple(calls), call_id))
    return result


def _call(call: dict[str, Any], place: int) -> Call:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else encoded(encodable(arguments)).decode()
    return Call(str(call.get("id") or f"call_{place}"), str(function.get("name") or ""), arguments)


def parts_of(content: Any) -> list[dict[str, Any]]:
    """Content as a list of parts; bare text is a part of type `text`, nothing is no part."""
    if isinstance(content, list):
        return [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def text_of_part(part: dict[str, Any]) -> str:
    """Its text; for what is none (an image, a sound) its kind in brackets, so that it is seen to be missing."""
    for key in ("text", "refusal"):
        if isinstance(part.get(key), str):
            return str(part[key])
    return f"[{part.get('type') or 'part'}]"


def text_of_content(content: Any) -> str:
    return content if isinstance(content, str) else "".join(map(text_of_part, parts_of(content)))


def image_url(part: dict[str, Any]) -> str | None:
    """The URL of an image part, `data:` URLs among them."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) and url else None
