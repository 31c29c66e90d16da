"""ATIF, the Agent Trajectory Interchange Format (Harbor; versions 1.0 to 1.7): one JSON document a file, or one a line.

    {"schema_version": "ATIF-v1.7", "session_id", "agent": {"name", "tool_definitions"}, "steps": [...]}

A step of source `agent` is an answer, its `observation.results` are the results of its calls; results without
`source_call_id` come from agents that write their calls as text, and are user messages. Steps that were copied from an
earlier trajectory (`is_copied_context`) or made without a model (`llm_call_count` 0) are context, not answers.

Embedded `subagent_trajectories` that a step refers to are branches: they begin after that step's answer, and the next
request waits for them. Those that are files of their own are sessions of their own.

A step's timestamp is taken as the moment at which it was there (the format does not say more). The delay before a
request that brings a user's message is the time from the last answer to that message. Between two answers of the agent
the gap holds the tool and the second answer: it is the delay without `completion_tokens / answer_tokens_per_s` where
that option is given, else 0. A request that waits for subagents has no delay before the last answer of theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count, islice
from typing import Annotated, Any

import msgspec

from infersiege.records import Branch, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.files.values import MOST_TOKENS
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.chat_parts import answer, image_part, joined_text, text_part, tool_call
from infersiege.traces.sessions.trajectory import (
    Found,
    Said,
    cut,
    documents,
    instant_ns,
    name_of,
    read_trajectories,
    shaped,
)
from infersiege.traces.trace import ReadOptions, Tally

NAME = "atif"

OPTIONS: dict[str, Option] = {
    "answer_tokens_per_s": Option(
        default=0.0,
        at_least=0.0,
        meaning="how fast the recorded model wrote: the gap between two answers is then the tool's delay and the "
        "second answer's tokens at this rate; 0: not known, no delay is taken from such gaps",
    ),
    "reasoning": Option(
        default=False, meaning="send `reasoning_content` of earlier answers back, for servers that take it"
    ),
}

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] | None
_Content = str | list[dict[str, Any]] | None


class _Call(msgspec.Struct):
    tool_call_id: str
    function_name: str
    arguments: Any = None


class _Reference(msgspec.Struct):
    """To a subagent's trajectory: by `trajectory_id` (1.7), before by `session_id`."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None


class _Result(msgspec.Struct):
    source_call_id: str | None = None
    content: _Content = None
    subagent_trajectory_ref: list[_Reference] | _Reference | None = None


class _Observation(msgspec.Struct):
    results: list[_Result] = []


class _Metrics(msgspec.Struct):
    prompt_tokens: _Tokens = None
    completion_tokens: _Tokens = None


class _Step(msgspec.Struct):
    source: str
    message: _Content = None
    timestamp: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None


class _Agent(msgspec.Struct):
    name: str = ""
    tool_definitions: list[dict[str, Any]] | None = None


class _Trajectory(msgspec.Struct):
    steps: list[_Step]
    agent: _Agent = msgspec.field(default_factory=_Agent)
    session_id: str | None = None
    trajectory_id: str | None = None
    subagent_trajectories: list[_Trajectory] | None = None


def sniff(head: Head) -> bool:
    outline = head.outline
    version = outline.values.get("schema_version", "")
    return not outline.array and (version.startswith("ATIF") or {"schema_version", "steps", "agent"} <= outline.keys)


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError with the place of what is no such document."""

    def make(row: Placed, tally: Tally) -> Found:
        trajectory: _Trajectory = row.value
        lines = _Lines(row.place, options, tally)
        lines.add(trajectory, after=None, joined_by=None)
        turns, branches = lines.played()
        own = (step for step in trajectory.steps if not step.is_copied_context)
        times = (instant_ns(step.timestamp, "timestamp", row.place) for step in own)
        return Found(
            Session(
                session_id=trajectory.session_id or trajectory.trajectory_id or name_of(source, row.place),
                turns=turns,
                branches=branches,
                tools=_tools(trajectory.agent),
                arrival_ns=next((at for at in times if at is not None), None),
                source_line=row.line,
            ),
            trajectory.agent.name,
        )

    rows = documents(source, source.head())
    return read_trajectories(source, options, rows, make, format=NAME, decode=shaped(_Trajectory))


class _Lines:
    """The main line and its branches, as they are numbered."""

    def __init__(self, place: str, options: ReadOptions, tally: Tally) -> None:
        self.turns: list[tuple[Turn, ...]] = []
        self._spans: list[tuple[int | None, int | None]] = []
        """After which turn each line begins, and which one waits for it."""
        self._ended_ns: list[int | None] = []
        """When the answer of each turn was there."""
        self._place = place
        self._options = options
        self._tally = tally

    def add(self, trajectory: _Trajectory, *, after: int | None, joined_by: int | None) -> None:
        """Raises UnsendableError."""
        said, references = _said(trajectory, self._place, self._options, self._tally)
        turns = cut(said, self._options, place=self._place)
        self._ended_ns += _ends_ns(said, turns)
        if self.turns and (tools := _tools(trajectory.agent)) is not None:
            turns = tuple(msgspec.structs.replace(turn, tools=tools) for turn in turns)
        first = sum(map(len, self.turns))
        self.turns.append(turns)
        self._spans.append((after, joined_by))
        embedded = _by_name(trajectory.subagent_trajectories or ())
        for answers, reference in references:
            child = embedded.pop(reference.trajectory_id or reference.session_id or "", None)
            if child is None:
                self._tally.odd("subagents that are in other files are not branches")
                continue
            last = _turn_of(turns, answers)
            following = 0 if last is None else last + 1
            try:
                self.add(
                    child,
                    after=after if last is None else first + last,
                    joined_by=first + following if following < len(turns) else joined_by,
                )
            except UnsendableError as reason:
                self._tally.odd(f"subagents of which no request can be made are not played ({reason})")
        if embedded:
            self._tally.odd("subagents that no step refers to are not played", len(embedded))

    def played(self) -> tuple[tuple[Turn, ...], tuple[Branch, ...]]:
        """The main line's turns, and the branches."""
        joined: dict[int, list[int]] = {}
        ends = accumulate(map(len, self.turns))
        for end, (_, joined_by) in zip(ends, self._spans, strict=True):
            if joined_by is not None and (ended_ns := self._ended_ns[end - 1]) is not None:
                joined.setdefault(joined_by, []).append(ended_ns)
        numbers = count()
        main, *beside = (tuple(self._joining(turn, next(numbers), joined) for turn in turns) for turns in self.turns)
        return main, tuple(
            Branch(turns=turns, after=after, joined_by=joined_by)
            for turns, (after, joined_by) in zip(beside, self._spans[1:], strict=True)
        )

    def _joining(self, turn: Turn, number: int, joined: Mapping[int, Sequence[int]]) -> Turn:
        """The delay counts from the last of what the turn waits for, so the time of its subagents is not in it."""
        before_ns = self._ended_ns[number - 1] if number else None
        if before_ns is None or number not in joined:
            return turn
        return msgspec.structs.replace(turn, delay_ns=max(0, turn.delay_ns - max(0, max(joined[number]) - before_ns)))


def _ends_ns(said: Sequence[Said], turns: Sequence[Turn]) -> Iterator[int | None]:
    """When the last answer of each turn was there."""
    answers = (one.at_ns for one in said if one.message["role"] == "assistant" and not one.given)
    for turn in turns:
        yield from deque(islice(answers, len(turn.recorded_answer)), maxlen=1)


def _turn_of(turns: Sequence[Turn], answers: int) -> int | None:
    """The turn that gave this many-th answer; None: there was none yet."""
    seen = 0
    for number, turn in enumerate(turns):
        seen += len(turn.recorded_answer)
        if seen >= answers > 0:
            return number
    return None


def _by_name(trajectories: Sequence[_Trajectory]) -> dict[str, _Trajectory]:
    return {one.trajectory_id or one.session_id or f"\0{number}": one for number, one in enumerate(trajectories)}


def _said(
    trajectory: _Trajectory, place: str, options: ReadOptions, tally: Tally
) -> tuple[list[Said], list[tuple[int, _Reference]]]:
    """(what was said, references to subagents with the number of answers before them)."""
    said: list[Said] = []
    references: list[tuple[int, _Reference]] = []
    answers = 0
    begun = False
    for number, step in enumerate(trajectory.steps):
        at_ns = instant_ns(step.timestamp, f"timestamp of step {number}", place)
        results = step.observation.results if step.observation is not None else []
        if step.source == "agent":
            made = begun and not step.is_copied_context and step.llm_call_count != 0
            answers += made
            said += _answered(step, results, at_ns, given=not made, options=options, tally=tally)
            if number + 1 < len(trajectory.steps):
                _count_unanswered(step, results, tally)
        elif step.source == "user":
            begun = True
            said.append(Said({"role": "user", "content": _content(step.message, tally)}, at_ns=at_ns))
        elif step.source == "system":
            if any(one.message["role"] == "assistant" for one in said):
                # Notes on what the agent's machinery did; chat templates refuse them here, too.
                tally.odd("system steps after the first answer are not sent")
            elif content := _content(step.message, tally):
                said.append(Said({"role": "system", "content": content}, at_ns=at_ns))
        else:
            raise UnsendableError("unknown_source")
        if not step.is_copied_context:
            references += [(answers, one) for result in results for one in _references(result)]
    return said, references


def _references(result: _Result) -> list[_Reference]:
    found = result.subagent_trajectory_ref
    return [found] if isinstance(found, _Reference) else found or []


def _answered(
    step: _Step, results: Sequence[_Result], at_ns: int | None, *, given: bool, options: ReadOptions, tally: Tally
) -> Iterator[Said]:
    """An agent's step: its answer, then what its calls gave."""
    calls = step.tool_calls or []
    content = _content(step.message, tally)
    by_call = {result.source_call_id: result for result in results if result.source_call_id is not None}
    if not by_call.keys() <= {call.tool_call_id for call in calls}:
        raise UnsendableError("tool_result_without_call")
    texts = [result for result in results if result.source_call_id is None]
    if calls and texts and not by_call:
        # The agent wrote its calls into its answer, which the file has only in parts.
        written = [{"name": call.function_name, "arguments": call.arguments} for call in calls]
        content = f"{joined_text(content)}\n{msgspec.json.encode(written).decode()}".lstrip()
        calls = []
    message = answer(content, [tool_call(one.tool_call_id, one.function_name, one.arguments, tally) for one in calls])
    if step.reasoning_content and options.values["reasoning"]:
        message["reasoning_content"] = step.reasoning_content
    metrics = step.metrics or _Metrics()
    rate = float(options.values["answer_tokens_per_s"])
    tokens = metrics.completion_tokens
    yield Said(
        message,
        given=given,
        at_ns=at_ns,
        took_ns=round(tokens / rate * 1e9) if rate and tokens else None,
        prompt_tokens=metrics.prompt_tokens,
        output_tokens=tokens,
    )
    for call in calls:
        result = by_call.get(call.tool_call_id, _Result())
        yield Said({"role": "tool", "tool_call_id": call.tool_call_id, "content": _content(result.content, tally)})
    for result in texts:
        yield Said({"role": "user", "content": _content(result.content, tally)})


def _count_unanswered(step: _Step, results: Sequence[_Result], tally: Tally) -> None:
    calls = {call.tool_call_id for call in step.tool_calls or ()}
    known = {result.source_call_id for result in results}
    if calls and (known != {None} or not results):
        missing = len(calls - known)
        if missing:
            tally.odd("calls without a result are sent with an empty one", missing)


def _content(content: _Content, tally: Tally) -> str | list[dict[str, Any]]:
    """Text, or parts in OpenAI's form; images that are files of the recording's machine are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in content:
        source = part.get("source")
        path = source.get("path") if isinstance(source, dict) else None
        if isinstance(part.get("text"), str):
            parts.append(text_part(part["text"]))
        elif isinstance(path, str) and path.startswith(("http://", "https://", "data:")):
            parts.append(image_part(path))
        else:
            tally.odd("parts of messages that are files are not sent")
    return parts


def _tools(agent: _Agent) -> tuple[dict[str, Any], ...] | None:
    """In OpenAI's form; None: the file has none. Raises UnsendableError."""
    if not agent.tool_definitions:
        return None
    return tuple(map(_tool, agent.tool_definitions))


def _tool(raw: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(raw.get("function"), dict):
        return {"type": "function", **raw}
    if not isinstance(raw.get("name"), str):
        raise UnsendableError("bad_tools")
    function = {key: raw[key] for key in ("name", "description") if key in raw}
    parameters = raw.get("parameters", raw.get("input_schema"))
    return {"type": "function", "function": {**function, **({} if parameters is None else {"parameters": parameters})}}
