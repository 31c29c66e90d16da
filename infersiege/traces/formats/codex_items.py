"""Items of a Codex rollout -> turns.

Facts: `codex-rs/protocol/src/models.rs` (ResponseItem, ContentItem) and `protocol.rs` (RolloutItem, CompactedItem,
TokenCountEvent) of openai/codex.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Turn
from infersiege.traces.files.private_values import token_count, want_string
from infersiege.traces.sessions.chat_parts import answer_of, image_part, text_part, tool_call, user_message
from infersiege.traces.trace import ReadOptions, Tally

_HINT = "docs/traces-formats/codex.md has the format"

_INPUT_ROLES = frozenset({"user", "developer", "system"})
_TEXTS = frozenset({"input_text", "output_text", "text"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
_SERVER_CALLS = frozenset({"web_search_call", "image_generation_call", "tool_search_call", "tool_search_output"})
"""Made and answered by the service itself: the conversation holds no result of them."""
_PASSED_OVER = frozenset({"ghost_snapshot", "compaction", "compaction_summary", "context_compaction", "other"})


class _Answer(msgspec.Struct, kw_only=True):
    """The open model call: what came of it so far."""

    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    end_ns: int
    tokens: tuple[int, int] | None = None
    """(prompt, output)."""


class Rollout:
    """Takes the rows of a session in their order; `finish` gives its turns."""

    def __init__(self, options: ReadOptions, tally: Tally) -> None:
        self.arrival_ns: int | None = None
        self._options = options
        self._tally = tally
        self._turns: list[Turn] = []
        self._system: list[Message] = []
        self._history: list[Message] = []
        """What the model has seen, with its answers."""
        self._replacement: list[Message] | None = None
        """What the next call holds in place of the history."""
        self._new: list[Message] = []
        """What the next call asks."""
        self._asked_ns: int | None = None
        self._answer: _Answer | None = None
        self._answered_ns: int | None = None
        self._seen_total: Any = None
        self._prompts: list[Message] = []
        """Of the history and what is new, those that are a person's."""
        self._last_user: Message | None = None

    def head(self, payload: dict[str, Any]) -> None:
        """The session's own instructions, which newer files hold."""
        instructions = payload.get("base_instructions", payload.get("instructions"))
        if isinstance(instructions, dict):
            instructions = instructions.get("text")
        if isinstance(instructions, str) and instructions:
            self._system = [{"role": "system", "content": instructions}]
            self._new += self._system

    def item(self, payload: dict[str, Any], time_ns: int, place: str) -> None:
        """Raises TraceError for items that lack what their kind needs."""
        kind = want_string(payload, "type", place)
        if kind == "message":
            role = want_string(payload, "role", place)
            if role == "assistant":
                parts = self._parts(payload.get("content"), place)
                self._answering(time_ns).texts += [part["text"] for part in parts if part["type"] == "text"]
            elif role in _INPUT_ROLES:
                self._ask(self._message(payload, role, place), time_ns)
            else:
                self._tally.odd("messages of roles that no request has are not sent")
        elif kind in _CALLS:
            self._answering(time_ns).calls.append(_call(payload, kind, place, self._tally))
        elif kind in _OUTPUTS:
            ident = want_string(payload, "call_id", place)
            self._ask({"role": "tool", "tool_call_id": ident, "content": self._output(payload, place)}, time_ns)
        elif kind == "reasoning":
            self._answering(time_ns)
            self._tally.odd("reasoning of recorded answers is not sent back")
        elif kind in _SERVER_CALLS:
            self._answering(time_ns)
            self._tally.odd("searches and images of the service itself are not sent back")
        elif kind not in _PASSED_OVER:
            self._tally.odd("items of other kinds are not sent")

    def event(self, payload: dict[str, Any], place: str) -> None:
        """Raises TraceError for counts that can't be."""
        kind = payload.get("type")
        if kind == "token_count":
            self._count(payload.get("info"), place)
        elif kind == "user_message":
            self._prompts += [] if self._last_user is None else [self._last_user]
        elif kind == "thread_rolled_back":
            self._roll_back(token_count(payload, "num_turns", place))

    def compacted(self, payload: dict[str, Any], time_ns: int, place: str) -> None:
        """The history is replaced: by what the row holds, in older files by its summary. Raises TraceError."""
        self._close()
        replacement = [*self._system]
        items = payload.get("replacement_history")
        if isinstance(items, list):
            for item in items:
                if isinstance(item, dict) and item.get("type") == "message":
                    role = want_string(item, "role", place)
                    if role in _INPUT_ROLES:
                        replacement.append(self._message(item, role, place))
                        continue
                self._tally.odd("parts of a compacted history that are no messages of users are not sent")
        else:
            replacement.append({"role": "user", "content": want_string(payload, "message", place)})
        self._replacement, self._new = replacement, []
        self._asked_ns = time_ns
        self._prompts.clear()
        self._last_user = None

    def finish(self) -> list[Turn]:
        self._close()
        if self._new and self._turns:
            self._tally.odd("prompts that nothing answered are left out")
        return self._turns

    def _ask(self, message: Message, time_ns: int) -> None:
        self._close()
        if message["role"] == "user":
            self._last_user = message
        self._new.append(message)
        self._asked_ns = time_ns

    def _answering(self, time_ns: int) -> _Answer:
        if self._answer is None:
            self._answer = _Answer(end_ns=time_ns)
        self._answer.end_ns = max(self._answer.end_ns, time_ns)
        return self._answer

    def _count(self, info: Any, place: str) -> None:
        """Of the call that ended last. An event that repeats the total (after a rate limit's change) says nothing."""
        if not isinstance(info, dict):
            return
        usage, total = info.get("last_token_usage"), info.get("total_token_usage")
        if not isinstance(usage, dict) or (total is not None and total == self._seen_total):
            return
        self._seen_total = total
        tokens = (token_count(usage, "input_tokens", place), token_count(usage, "output_tokens", place))
        if self._answer is not None:
            self._answer.tokens = tokens
        elif self._turns and self._turns[-1].asked_prompt_tokens is None:
            self._turns[-1] = self._with_tokens(self._turns[-1], tokens)

    def _with_tokens(self, turn: Turn, tokens: tuple[int, int]) -> Turn:
        return msgspec.structs.replace(
            turn,
            asked_prompt_tokens=tokens[0] or None,
            asked_output_tokens=self._options.output_tokens(tokens[1]) or None,
        )

    def _close(self) -> None:
        """The open call, if any, has all of its answer: it becomes a turn."""
        answer = self._answer
        if answer is None:
            return
        self._answer = None
        first = not self._turns
        if first or self._replacement is not None:
            history = self._replacement or []
            messages = [*history, *self._paired(None)]
        else:
            history = self._history
            messages = self._paired(self._turns[-1])
        if not messages:
            self._tally.odd("answers whose question is not in the file are left out")
            return
        delay_ns = 0
        if first:
            self.arrival_ns = answer.end_ns if self._asked_ns is None else self._asked_ns
        elif self._asked_ns is not None and self._answered_ns is not None:
            delay_ns = max(0, self._asked_ns - self._answered_ns)
        recorded = answer_of(answer.texts, answer.calls)
        begins = first or self._replacement is not None
        turn = Turn(
            messages=tuple(_shaped(messages, begins=begins)),
            replaces_history=begins and not first,
            delay_ns=delay_ns,
            recorded_answer=(recorded,),
        )
        self._turns.append(turn if answer.tokens is None else self._with_tokens(turn, answer.tokens))
        self._history = [*([] if begins else history), *messages, recorded]
        self._replacement, self._new = None, []
        self._answered_ns = answer.end_ns

    def _paired(self, before: Turn | None) -> list[Message]:
        """What is new: first the results of the calls of the turn before, in their order; other results have nothing to
        follow. Calls that nothing answered are taken out of that turn's answer."""
        results = {message["tool_call_id"]: message for message in self._new if message["role"] == "tool"}
        calls: list[dict[str, Any]] = []
        if before is not None:
            (answer,) = before.recorded_answer
            made = answer.get("tool_calls", [])
            calls = [call for call in made if call["id"] in results]
            if len(calls) < len(made):
                self._tally.odd("tool calls without a result are left out of the history")
                answer = answer_of([answer["content"] or ""], calls)
                self._turns[-1] = msgspec.structs.replace(before, recorded_answer=(answer,))
                self._history[-1] = answer
        if len(calls) < len(results):
            self._tally.odd("results without their call are not sent")
        kept = [results[call["id"]] for call in calls]
        return [*kept, *(message for message in self._new if message["role"] != "tool")]

    def _roll_back(self, turns: int) -> None:
        """The user took back the last `turns` prompts, with all that came of them."""
        self._close()
        if not turns or not self._prompts:
            return
        prompt = self._prompts[-min(turns, len(self._prompts))]
        del self._prompts[-turns:]
        whole = [*(self._replacement if self._replacement is not None else self._history), *self._new]
        at = next((number for number, message in enumerate(whole) if message is prompt), None)
        if at is None:
            return
        self._tally.odd("prompts that were taken back are sent, and what followed replaces the history")
        self._replacement, self._new = whole[:at], []
        self._last_user = None

    def _message(self, payload: dict[str, Any], role: str, place: str) -> Message:
        return user_message(self._parts(payload.get("content"), place), "user" if role == "user" else "system")

    def _parts(self, content: Any, place: str) -> list[dict[str, Any]]:
        if isinstance(content, str):
            return [text_part(content)]
        if not isinstance(content, list):
            raise TraceError(f"{place}: content is a {type(content).__name__}, a list of items is wanted", hint=_HINT)
        parts = []
        for part in content:
            if not isinstance(part, dict):
                part = {}
            kind = str(part.get("type"))
            if kind in _TEXTS and isinstance(part.get("text"), str):
                parts.append(text_part(part["text"]))
            elif kind == "input_image" and isinstance(part.get("image_url"), str):
                parts.append(image_part(part["image_url"]))
            else:
                self._tally.odd("content that is no text and no image is not sent")
        return parts

    def _output(self, payload: dict[str, Any], place: str) -> str:
        """A tool's output: a text, items, or (before October 2025) an object or a JSON string around the text."""
        output = payload.get("output")
        if isinstance(output, str):
            return output
        if isinstance(output, list):
            parts = self._parts(output, place)
            if any(part["type"] != "text" for part in parts):
                self._tally.odd("images in outputs of tools are not sent")
            return "\n\n".join(part["text"] for part in parts if part["type"] == "text")
        if isinstance(output, dict) and isinstance(output.get("content"), str):
            return str(output["content"])
        return msgspec.json.encode(output).decode()


def _call(payload: dict[str, Any], kind: str, place: str, tally: Tally) -> dict[str, Any]:
    """Raises TraceError for a call without id or name."""
    if kind == "local_shell_call":
        ident = payload.get("call_id") or payload.get("id")
        action = payload.get("action")
        arguments = {"command": action.get("command")} if isinstance(action, dict) else {}
        return tool_call(want_string({"call_id": ident}, "call_id", place), "local_shell", arguments, tally)
    ident = want_string(payload, "call_id", place)
    name = want_string(payload, "name", place)
    if kind == "function_call":
        return tool_call(ident, name, payload.get("arguments"), tally)
    # Chat completions know JSON arguments only: a free text becomes the one argument.
    return tool_call(ident, name, {"input": payload.get("input")}, tally)


def _shaped(messages: list[Message], *, begins: bool) -> list[Message]:
    """Messages as chat templates want them: one system message, at the front; what one role says in a row as one."""
    found: list[Message] = []
    for message in messages:
        role = message["role"]
        if role == "system" and (found or not begins) and not (found and found[-1]["role"] == "system"):
            role = "user"
        if found and found[-1]["role"] == role and role in ("system", "user"):
            found[-1] = user_message([*_content(found[-1]), *_content(message)], role)
        else:
            found.append(message if role == message["role"] else {**message, "role": role})
    return found


def _content(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return [text_part(content)] if isinstance(content, str) else list(content)
