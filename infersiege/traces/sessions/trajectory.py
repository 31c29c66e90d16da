"""What readers of agent trajectories share: rows of a known shape, messages that servers take, turns with their delays.

A reader makes `Said` messages of a row, in order; `cut` makes turns of them; `read_trajectories` gives sessions their
tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.stamps import DATE_HINT, FARTHEST_NS, stamp_ns
from infersiege.traces.files.values import check_tokens
from infersiege.traces.sessions.chat import UnsendableError, check_messages
from infersiege.traces.sessions.chat_parts import answer, tool_call
from infersiege.traces.sessions.derived_tools import CalledTools
from infersiege.traces.trace import ReadOptions, Tally, check_span

_WRITTEN_AS = frozenset({".gz", ".zst", ".json", ".jsonl", ".traj"})
"""Ends of file names that say how a file is written, not which one it is."""


class Said(NamedTuple):
    """One message and what is known of it."""

    message: Message
    given: bool = False
    """An assistant message that no request of this session made: a demonstration, context copied from another run."""
    at_ns: int | None = None
    """When it was there, on the file's clock; of an answer: its end."""
    took_ns: int | None = None
    """Of an answer: how long the request took."""
    wait_ns: int | None = None
    """Of an answer: how long its tools took, where that is what the file says."""
    prompt_tokens: int | None = None
    """Of an answer: what its whole request held."""
    output_tokens: int | None = None


class Found(NamedTuple):
    """A session of one row."""

    session: Session
    """`tools` None: they are made from the calls of all sessions of this agent."""
    agent: str = ""


def cut(
    said: Sequence[Said],
    options: ReadOptions,
    *,
    before: Said | None = None,
    replaces_history: bool = False,
    place: str,
) -> tuple[Turn, ...]:
    """Turns: each run of answers answers what came before it. What follows the last answer was never sent.

    Checks that tool messages follow their calls. `before`: the answer before the first message; `replaces_history`: the
    first turn's messages are its whole request. Empty user messages are left out, since servers refuse them.
    Raises UnsendableError.
    """
    if not said:
        raise UnsendableError("no_messages")
    checked = check_messages([one.message for one in said])
    turns: list[Turn] = []
    asked: list[Said] = []
    answers: list[Said] = []
    begun = False

    def close() -> None:
        nonlocal before
        messages = tuple(one.message for one in asked if not _is_empty(one.message))
        if not messages:
            raise UnsendableError("empty_user_message")
        first = not turns
        turns.append(
            Turn(
                messages=messages,
                replaces_history=first and replaces_history,
                delay_ns=0 if before is None else check_span(place, _delay_ns(before, asked, answers[0]), "a delay"),
                recorded_answer=tuple(one.message for one in answers),
                asked_prompt_tokens=answers[0].prompt_tokens or None,
                asked_output_tokens=_output_tokens(answers, options),
            )
        )
        before = answers[-1]
        asked.clear()
        answers.clear()

    for one, message in zip(said, checked, strict=True):
        one = one._replace(message=message)
        if begun and message["role"] == "assistant" and not one.given:
            answers.append(one)
            continue
        if answers:
            close()
        begun = begun or message["role"] == "user"
        asked.append(one)
    if not begun:
        raise UnsendableError("no_user_message")
    if answers:
        close()
    if not turns:
        raise UnsendableError("no_answer")
    return tuple(turns)


def _delay_ns(before: Said, asked: Sequence[Said], answer: Said) -> int:
    """From the end of the answer before to this request: as the file says it, else from when the answer came and how
    long it took, else until the last new message was there; 0 where nothing is known."""
    if before.wait_ns is not None:
        return before.wait_ns
    if before.at_ns is None:
        return 0
    if answer.at_ns is not None and answer.took_ns is not None:
        return max(0, answer.at_ns - answer.took_ns - before.at_ns)
    times = [one.at_ns for one in asked if one.at_ns is not None]
    return max(0, max(times) - before.at_ns) if times else 0


def _output_tokens(answers: Sequence[Said], options: ReadOptions) -> int | None:
    counts = [one.output_tokens for one in answers]
    known = [count for count in counts if count]
    return options.output_tokens(sum(known)) if len(known) == len(counts) else None


def _is_empty(message: Message) -> bool:
    content = message["content"]
    return message["role"] == "user" and (not content.strip() if isinstance(content, str) else not content)


def openai_calls(raw: object, tally: Tally) -> list[dict[str, Any]]:
    """Calls that are in OpenAI's form already, cleaned of what exporters add. Raises UnsendableError."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise UnsendableError("bad_tool_call")
    calls = []
    for call in raw:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise UnsendableError("bad_tool_call")
        ident, name = call.get("id"), function.get("name")
        if not isinstance(ident, str) or not isinstance(name, str) or not name:
            raise UnsendableError("bad_tool_call")
        calls.append(tool_call(ident, name, function.get("arguments"), tally))
    return calls


def openai_message(raw: dict[str, Any], tally: Tally) -> Message:
    """A message of OpenAI's form with the keys that servers know, and nothing that exporters add. Raises
    UnsendableError."""
    if raw.get("role") == "assistant":
        return answer(raw.get("content"), openai_calls(raw.get("tool_calls"), tally))
    kept = {key: raw[key] for key in ("role", "content", "name", "tool_call_id") if raw.get(key) is not None}
    if kept.get("role") == "tool":
        kept.setdefault("content", "")
    return kept


def usage_tokens(usage: object, place: str) -> tuple[int | None, int | None]:
    """(prompt, completion) of a `usage` object, None where it does not say. Raises TraceError for what is no count."""
    if not isinstance(usage, dict):
        return None, None
    found: list[int | None] = []
    for keys in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        key = next((key for key in keys if usage.get(key) is not None), keys[0])
        value = usage.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise TraceError(
                    f"{place}: {key} is a {type(value).__name__}, a whole number of at least 0 is wanted",
                    hint="is the `format` the right one?",
                )
            check_tokens(value, key, place)
        found.append(value)
    return found[0], found[1]


def seconds_ns(value: object, key: str, place: str) -> int | None:
    """Seconds -> ns; None stays None. Raises TraceError for what is no duration or instant."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 9e9:
        raise TraceError(f"{place}: {key} is no number of seconds from 0 to 9e9", hint="check its unit")
    return int(value) * 1_000_000_000 + round(value % 1 * 1e9)  # a float holds no ns of our time


def instant_ns(value: object, key: str, place: str) -> int | None:
    """An ISO date (UTC where it has no offset) or seconds since the epoch -> ns; None stays None. Raises TraceError."""
    if not isinstance(value, str):
        return seconds_ns(value, key, place)
    try:
        at_ns = stamp_ns(value)
        if not 0 <= at_ns < FARTHEST_NS:
            raise ValueError
        return at_ns
    except ValueError:
        raise TraceError(
            f"{place}: {key} is a string of {len(value)} characters that is no date of our time",
            hint=DATE_HINT,
        ) from None


def shaped(shape: Any) -> Callable[[Source, Row], Any]:
    """A `decode` for IndexedTrace that checks the row against a type. What that does not name is passed over."""
    decoder = msgspec.json.Decoder(shape)

    def decode(source: Source, row: Row) -> Any:
        raw = source.raw(row)
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise TraceError(f"{source.place(row)}: {error}", hint="name the trace's `format`") from None
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            source.json(row)  # which says why it is no JSON
            raise

    return decode


def documents(source: Source, head: Head) -> Iterable[Row]:
    """One document a file, or one a line where the first line is a whole one."""
    return source.rows() if isinstance(head.row, dict) else source.documents()


def name_of(source: Source, place: str) -> str:
    """A name for the only session of a file: its path in the folder that was opened, without suffixes."""
    path = Path(place.rpartition(":")[0])
    path = path.relative_to(source.path) if path != source.path else Path(path.name)
    while path.suffix in _WRITTEN_AS and path.stem:
        path = path.with_suffix("")
    return path.as_posix()


def read_trajectories(
    source: Source,
    options: ReadOptions,
    rows: Iterable[Row],
    make: Callable[[Placed, Tally], Found],
    *,
    format: str,
    decode: Callable[[Source, Row], Any] = Source.json,
) -> IndexedTrace:
    """A session a row. Sessions without tools get schemas of what their agent calls anywhere in the file, also beyond
    `limit`: one agent's sessions share their tools, and so the beginning of their prompts. Raises TraceError."""
    called: dict[str, CalledTools] = {}
    schemas: dict[str, tuple[dict[str, Any], ...]] = {}

    def session(rows: Sequence[Placed], tally: Tally) -> Session:
        found = make(rows[0], tally)
        if found.session.tools is not None:
            return found.session
        if not schemas:  # the file is being read
            calls = called.setdefault(found.agent, CalledTools())
            for turn in found.session.all_turns():
                calls.add(turn.messages)
                calls.add(turn.recorded_answer)
        return msgspec.structs.replace(found.session, tools=schemas.get(found.agent) or None)

    trace = IndexedTrace(source, options, format=format, make=session, decode=decode)
    added = 0
    for row in rows:
        if options.limit is None or added < options.limit:
            added += trace.add((row,))
            continue
        try:
            session((Placed(source.place(row), row.line, decode(source, row)),), Tally())
        except (TraceError, UnsendableError):
            continue  # not one of the sessions that were asked for
    schemas.update({agent: calls.schemas() for agent, calls in called.items()})
    made = sum(map(len, schemas.values()))
    if made:
        trace.odd(f"{made} tool schemas were made from the calls, since the file has none")
    return trace.finish()
