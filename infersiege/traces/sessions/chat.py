"""OpenAI messages -> turns: what every format that carries whole conversations shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from infersiege.records import Message, Turn
from infersiege.traces.files.values import shown_key
from infersiege.traces.trace import Tally

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

REQUEST_FIELDS = frozenset(
    {
        "tool_choice", "parallel_tool_calls", "response_format", "stop", "temperature", "top_p", "seed",
        "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens",
        "max_completion_tokens", "reasoning_effort", "reasoning", "verbosity", "modalities", "service_tier",
        "functions", "function_call", "prediction", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos",
        "stop_token_ids", "chat_template_kwargs", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "json_schema", "regex", "ebnf", "grammar", "skip_special_tokens", "prompt_cache_key",
    }
)  # fmt: skip
"""Fields of a row that are part of its request and are sent verbatim. Any other key of a row is the data set's own
(ids, sources, scores): servers refuse unknown fields, so those are left out and named in the warnings."""

CHANNEL_FIELDS = frozenset({"model", "stream", "stream_options", "n", "user", "store", "metadata"})
"""Fields of a request that are the channel's to set, or that make an answer unlike the others: never sent."""


class UnsendableError(Exception):
    """The row is well formed, yet no request can be made of it; the text is the reason of the skip."""


def request_extra(row: dict[str, Any], structural: frozenset[str], tally: Tally) -> dict[str, Any]:
    """The request fields of a row besides messages and tools."""
    extra = {}
    for key, value in row.items():
        if key in REQUEST_FIELDS:
            extra[key] = value
        elif key not in structural and key not in CHANNEL_FIELDS:
            tally.odd(f"key {shown_key(key)} is no request field and is not sent")
    return extra


def check_messages(raw: object) -> list[Message]:
    """Messages that a server can take, verbatim but for `weight` (a training mark) and arguments given as objects.

    Raises UnsendableError.
    """
    if not isinstance(raw, list) or not raw:
        raise UnsendableError("no_messages")
    messages: list[Message] = []
    open_calls: set[str] = set()
    # The hot path of opening a trace: most messages are text of a user or an assistant, and need nothing but the tests.
    for message in raw:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise UnsendableError("not_a_message")
        if "weight" in message:
            message = {key: value for key, value in message.items() if key != "weight"}
        if role == "tool":
            ident = message.get("tool_call_id")
            if not isinstance(ident, str) or ident not in open_calls:
                raise UnsendableError("tool_result_without_call")
            open_calls.discard(ident)
        elif open_calls:
            raise UnsendableError("tool_call_without_result")
        if role == "assistant":
            if message.get("tool_calls"):
                message, open_calls = _check_calls(message)
        elif not isinstance(message.get("content"), _CONTENT):
            raise UnsendableError("message_without_content")
        messages.append(message)
    return messages


_CONTENT = (str, list)


def _check_calls(message: Message) -> tuple[Message, set[str]]:
    """The message with all arguments as JSON strings, and the ids of its calls."""
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise UnsendableError("bad_tool_call")
    fixed, ids = [], set()
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UnsendableError("bad_tool_call")
        ident, arguments = call.get("id"), function.get("arguments", "")
        if not isinstance(ident, str) or ident in ids:
            raise UnsendableError("bad_tool_call")
        ids.add(ident)
        if not isinstance(arguments, str):
            # The wire format is a JSON string; some exporters decode it.
            call = {**call, "function": {**function, "arguments": msgspec.json.encode(arguments).decode()}}
        fixed.append(call)
    return {**message, "tool_calls": fixed}, ids


def turns_of(
    messages: Sequence[Message], *, extra: dict[str, Any] | None = None, keep_unanswered: bool = True
) -> list[Turn]:
    """Cut a conversation into turns: each run of assistant messages answers what came before it.

    What stands before the first user message (a system message, an assistant's greeting) belongs to the first request.
    Messages after the last answer are a turn without a recorded answer, or are left out (`keep_unanswered=False`).
    Raises UnsendableError.
    """
    turns: list[Turn] = []
    asked: list[Message] = []
    answered: list[Message] = []
    begun = False

    def close() -> None:
        turns.append(Turn(messages=tuple(asked), recorded_answer=tuple(answered), extra=extra or {}))
        asked.clear()
        answered.clear()

    for message in messages:
        if message["role"] == "assistant" and begun:
            answered.append(message)
            continue
        if answered:
            close()
        begun = begun or message["role"] == "user"
        asked.append(message)
    if not begun:
        raise UnsendableError("no_user_message")
    if answered or (keep_unanswered and asked):
        close()
    if not turns:
        raise UnsendableError("no_answer")
    return turns
