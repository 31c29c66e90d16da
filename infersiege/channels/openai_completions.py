"""The dialect `openai-completions`: `/completions`, a text in and its continuation out.

Its chunks are those of `/chat/completions` but for `text` in the place of `delta`, so one decoder reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infersiege.channels.dialect import Decoded, Dialect
from infersiege.channels.openai_chat import OpenAIChatDecoder, whole_answer
from infersiege.channels.request import encoded, given, refuse
from infersiege.channels.transcript import Said, text_of_content, transcript
from infersiege.records import Message

_CHAT_ONLY = frozenset(
    {"tool_choice", "parallel_tool_calls", "functions", "function_call", "modalities", "prediction", "verbosity"}
    | {"reasoning_effort", "reasoning", "chat_template_kwargs", "top_logprobs"}
)


def prompt_text(messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
    """The messages as one text.

    `Role: text` paragraphs with an empty line between them, and `Assistant:` at the end; the first message stands
    without its role, so a request of one user message is its text alone, and each request of a session begins with
    the whole of the one before it (prefix caches need that). Tool definitions go first, as one line of JSON; calls are
    written `name(arguments)`. A conversation that ends with the assistant is left open there.
    """
    said = transcript(messages)
    if not tools and len(said) == 1 and said[0].role == "user":
        return text_of_content(said[0].content)
    paragraphs = [f"Tools: {encoded({'tools': tools}).decode()}"] if tools else []
    for one in said:
        text = _text(one)
        paragraphs.append(f"{one.role.capitalize()}: {text}" if paragraphs else text)
    if not said or said[-1].role != "assistant":
        paragraphs.append("Assistant:")
    return "\n\n".join(paragraphs)


def _text(said: Said) -> str:
    calls = (f"{call.name}({call.arguments})" for call in said.calls)
    return "\n".join(filter(None, (text_of_content(said.content), *calls)))


class OpenAICompletions(Dialect):
    """The dialect: request bodies in, decoders out. Holds no state."""

    name = "openai-completions"
    path = "/completions"
    prompt_fields = ("prompt",)

    def request_fields(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Without what only a chat has; `logprobs` is a number here."""
        fields = {name: value for name, value in extra.items() if name not in _CHAT_ONLY}
        if isinstance(fields.get("logprobs"), bool):
            told = fields.pop("logprobs")
            if told:
                fields["logprobs"] = extra.get("top_logprobs") or 1
        return fields

    def request_body(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        max_tokens: int,
        stream: bool,
        include_usage: bool,
        sampling: dict[str, Any],
        extra: dict[str, Any],
    ) -> bytes:
        """As `Dialect` says; the prompt is `prompt_text(messages, tools)`."""
        refuse(extra)
        body: dict[str, Any] = {"model": model, "prompt": prompt_text(messages, tools), "max_tokens": max_tokens}
        body["stream"] = stream
        if stream and include_usage:
            body["stream_options"] = {"include_usage": True}
        return encoded(body | given(sampling) | extra)

    def decoder(self) -> OpenAIChatDecoder:
        return OpenAIChatDecoder()

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer. Raises ValueError on what is neither an answer nor an error."""
        return whole_answer(body)
