"""OpenHands evaluation outputs, JSON Lines: `{"instance_id", "history": [events], "metrics"}` a row.

Events become messages as OpenHands itself makes them: an assistant message for each response (`tool_call_metadata` has
it; several actions can be of one), its tools' results after it, other observations as user messages. A condensation
cuts what it forgot, so that the next request replaces the history. Old files hold pairs [action, observation] and
actions without calls: those become text with the tags that the agent used.

A delay is the time from a response's first action to the next one's, without that response's latency where the file
knows it, else to the last observation before it. Tokens are those of the response, else of `metrics.token_usages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from infersiege.records import Message, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.formats.openhands_texts import SILENT, action_text, observation_text
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.chat_parts import answer, joined_text, tool_call
from infersiege.traces.sessions.trajectory import (
    Found,
    Said,
    cut,
    instant_ns,
    openai_calls,
    read_trajectories,
    seconds_ns,
    shaped,
    usage_tokens,
)
from infersiege.traces.trace import ReadOptions, Tally

NAME = "openhands"

OPTIONS: dict[str, Option] = {}

_Event = dict[str, Any]


class _Metrics(msgspec.Struct):
    response_latencies: list[dict[str, Any]] = []
    token_usages: list[dict[str, Any]] = []


class _Row(msgspec.Struct):
    history: list[_Event | list[_Event]]
    instance_id: str | int | None = None
    metrics: _Metrics | None = None


def sniff(head: Head) -> bool:
    keys = head.outline.keys
    return "history" in keys and bool(keys & {"instance_id", "test_result", "metrics"}) and "trajectory" not in keys


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError with the line of a row that is no such output, or has impossible times."""

    def make(row: Placed, tally: Tally) -> Found:
        output: _Row = row.value
        events = [event for entry in output.history for event in (entry if isinstance(entry, list) else [entry])]
        history = _History(events, output.metrics or _Metrics(), row.place, options, tally)
        ident = f"line-{row.line}" if output.instance_id is None else str(output.instance_id)
        return Found(
            Session(
                session_id=ident,
                turns=history.finish(),
                tools=history.tools,
                arrival_ns=history.arrival_ns,
                source_line=row.line,
            )
        )

    return read_trajectories(source, options, source.rows(), make, format=NAME, decode=shaped(_Row))


class _Item(NamedTuple):
    """Messages that stand or fall together: one, or an answer with the results of its calls."""

    said: tuple[Said, ...]
    events: frozenset[int] = frozenset()
    """Ids of the events that it was made of; none: it is a summary of forgotten ones."""


class _Pending(msgspec.Struct):
    """A response whose calls have not all had their results."""

    said: Said
    idents: list[str]
    results: dict[str, Said] = {}
    events: set[int] = set()


class _History:
    """The events of one row on their way to turns."""

    def __init__(
        self, events: Sequence[_Event], metrics: _Metrics, place: str, options: ReadOptions, tally: Tally
    ) -> None:
        self.tools: tuple[dict[str, Any], ...] | None = None
        self.arrival_ns: int | None = None
        """When the first user message was there."""
        self._tally = tally
        self._place = place
        self._options = options
        responses = list(dict.fromkeys(_response(event) for event in events if _is_answer(event)))
        self._latencies = _by_response(metrics.response_latencies, responses)
        self._usages = _by_response(metrics.token_usages, responses)
        self._turns: list[Turn] = []
        self._items: list[_Item] = []
        """What is in the history, after a condensation what that one left and what followed."""
        self._replaces = False
        """The next request is the first one after a condensation."""
        self._pending: dict[str, _Pending] = {}
        self._answered: Said | None = None
        for event in events:
            self._add(event)

    def finish(self) -> tuple[Turn, ...]:
        """Raises UnsendableError where no request can be made."""
        if self._pending:
            # The last answer needs no results; those of earlier ones were never in a request.
            *lost, last = self._pending.values()
            if lost:
                self._tally.odd("answers whose calls have no result are left out", len(lost))
            self._items.append(_Item((last.said,), frozenset(last.events)))
        self._cut()
        if not self._turns:
            raise UnsendableError("no_answer")
        return tuple(self._turns)

    def _add(self, event: _Event) -> None:
        if "kind" in event and "action" not in event and "observation" not in event:
            raise UnsendableError("sdk_events")  # of the agent SDK, which has a format of its own
        at_ns = instant_ns(event.get("timestamp"), "timestamp of an event", self._place)
        if isinstance(event.get("observation"), str):
            self._observe(event, at_ns)
        elif isinstance(event.get("action"), str):
            self._act(event, _args(event), at_ns)
        for response, pending in list(self._pending.items()):
            if len(pending.results) == len(pending.idents):
                results = (pending.results[ident] for ident in pending.idents)
                self._items.append(_Item((pending.said, *results), frozenset(pending.events)))
                del self._pending[response]

    def _act(self, event: _Event, args: dict[str, Any], at_ns: int | None) -> None:
        action = event["action"]
        if action == "system":
            self.tools = _tools(args.get("tools"))
            self._say("system", _text(args.get("content")), event, at_ns)
        elif action == "condensation":
            self._condense(args)
        elif event.get("source") == "user":
            if action == "message":
                self.arrival_ns = at_ns if self.arrival_ns is None else self.arrival_ns
                self._say("user", _text(args.get("content")), event, at_ns)
            elif action == "run":
                self._say("user", f"User executed the command:\n{_text(args.get('command'))}", event, at_ns)
        elif event.get("tool_call_metadata"):
            self._call(event, args, at_ns)
        elif action not in SILENT:
            said = self._answer(answer(action_text(action, args)), at_ns, _response(event), None)
            self._items.append(_Item((said,), frozenset({_ident(event)})))

    def _call(self, event: _Event, args: dict[str, Any], at_ns: int | None) -> None:
        """An action that is a call of a response, or the whole of it."""
        metadata = event["tool_call_metadata"]
        if not isinstance(metadata, dict) or not isinstance(metadata.get("tool_call_id"), str):
            raise UnsendableError("bad_tool_call")
        key = _response(event)
        stored = _object(metadata.get("model_response"))
        message = _message(stored)
        content = joined_text(message.get("content")) or _text(args.get("thought"))
        if event["action"] == "finish":
            # It is carried out at once and has no result: to later requests it is a text.
            text = content or _text(args.get("final_thought")) or _text(event.get("message"))
            said = self._answer(answer(text), at_ns, key, stored.get("usage"))
            self._items.append(_Item((said,), frozenset({_ident(event)})))
            return
        if key not in self._pending:
            calls = openai_calls(message.get("tool_calls"), self._tally)
            if not calls:  # the response was not stored
                given = {name: value for name, value in args.items() if name not in {"thought", "security_risk"}}
                name = _text(metadata.get("function_name")) or event["action"]
                calls = [tool_call(metadata["tool_call_id"], name, given, self._tally)]
            said = self._answer(answer(content, calls), at_ns, key, stored.get("usage"))
            self._pending[key] = _Pending(said, [call["id"] for call in calls])
        self._pending[key].events.add(_ident(event))

    def _observe(self, event: _Event, at_ns: int | None) -> None:
        text = observation_text(event)
        if text is None:
            return
        call = _object(event.get("tool_call_metadata")).get("tool_call_id")
        if call is None:
            self._say("user", text, event, at_ns)
            return
        for pending in self._pending.values():
            if call in pending.idents:
                pending.results[call] = Said({"role": "tool", "tool_call_id": call, "content": text}, at_ns=at_ns)
                pending.events.add(_ident(event))
                return
        self._tally.odd("results without a call are left out")

    def _say(self, role: str, text: str, event: _Event, at_ns: int | None) -> None:
        if text.strip():
            said = Said({"role": role, "content": text}, at_ns=at_ns)
            self._items.append(_Item((said,), frozenset({_ident(event)})))

    def _answer(self, message: Message, at_ns: int | None, response: str, usage: object) -> Said:
        took_ns = seconds_ns(self._latencies.get(response, {}).get("latency"), "latency", self._place)
        prompt, output = usage_tokens(usage or self._usages.get(response), self._place)
        return Said(message, at_ns=at_ns, took_ns=took_ns, prompt_tokens=prompt, output_tokens=output)

    def _condense(self, args: dict[str, Any]) -> None:
        """What was forgotten leaves the history; a summary may take its place."""
        self._cut()
        forgotten = _forgotten(args)
        kept = [item for item in self._items if item.events and not item.events & forgotten]
        summary, offset = _text(args.get("summary")), args.get("summary_offset")
        if summary:
            at = offset if isinstance(offset, int) and 0 <= offset < len(kept) else len(kept)
            kept.insert(at, _Item((Said({"role": "user", "content": summary}),)))
        self._items = [_Item(tuple(one._replace(given=True) for one in item.said), item.events) for item in kept]
        self._replaces = bool(self._turns)

    def _cut(self) -> None:
        """Make turns of what was said up to the last answer."""
        answers = [item.said[0] for item in self._items if _answers(item)]
        if not answers:
            return
        said = [one for item in self._items for one in item.said]
        self._turns += cut(
            said, self._options, before=self._answered, replaces_history=self._replaces, place=self._place
        )
        self._answered = answers[-1]
        self._replaces = False


def _answers(item: _Item) -> bool:
    return item.said[0].message["role"] == "assistant" and not item.said[0].given


def _is_answer(event: _Event) -> bool:
    """An action of the agent that came from the model."""
    action = event.get("action")
    if not isinstance(action, str) or event.get("source") == "user":
        return False
    return action not in SILENT and action not in {"system", "condensation"}


def _response(event: _Event) -> str:
    """What names the response that an action came from."""
    metadata = _object(event.get("tool_call_metadata"))
    ident = _object(metadata.get("model_response")).get("id")
    return str(ident or metadata.get("tool_call_id") or f"event {event.get('id')}")


def _by_response(entries: Sequence[_Event], responses: Sequence[str]) -> dict[str, _Event]:
    """Entries of `metrics` by their response: as they say it, or in order where there is one for each."""
    named = {str(entry["response_id"]): entry for entry in entries if entry.get("response_id")}
    if named:
        return named
    return dict(zip(responses, entries, strict=True)) if len(responses) == len(entries) else {}


def _forgotten(args: dict[str, Any]) -> frozenset[int]:
    idents = args.get("forgotten_event_ids")
    if isinstance(idents, list):
        return frozenset(ident for ident in idents if isinstance(ident, int))
    first, last = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
    if not isinstance(first, int) or not isinstance(last, int):
        return frozenset()
    return frozenset(range(first, min(last, first + _MOST_EVENTS) + 1))


_MOST_EVENTS = 1_000_000
"""Of one history: what a range of forgotten events may hold."""


def _message(response: dict[str, Any]) -> dict[str, Any]:
    """The assistant message of a stored response; empty where it was not stored."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return _object(_object(first).get("message"))


def _tools(raw: object) -> tuple[dict[str, Any], ...] | None:
    tools = tuple(tool for tool in raw if isinstance(tool, dict)) if isinstance(raw, list) else ()
    return tools or None


def _args(event: _Event) -> dict[str, Any]:
    return _object(event.get("args"))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ident(event: _Event) -> int:
    ident = event.get("id")
    return ident if isinstance(ident, int) else -1


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
