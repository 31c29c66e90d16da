"""Mooncake JSON Lines (github.com/kvcache-ai/Mooncake): times, lengths and block hashes, or texts.

A row is of one of these kinds, and a file may mix them: `hash_ids` with `input_length` (the same id is the same text
in every row, so the recording's prefix sharing is kept), `input_length` alone (a text of its own), `text_input`,
`messages` (with `tools`), or `payload`, a whole OpenAI request body. Times are ms, blocks 512 tokens.

Rows of one `session_id` are the turns of a session (TR-01: `rows` says whether each is a whole request or what is new).
The first one's `timestamp` is its arrival; a later row has a `delay` from the end of the previous answer, or a
`timestamp`. The format has no durations of answers, so the whole time between two timestamps is taken for a delay: a
session lasts longer than it did by its answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.row_groups import grouped
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import UNITS_NS, Stamps
from infersiege.traces.files.values import shown_key, want_number
from infersiege.traces.formats.mooncake_rows import MODES, Decoder, HashRow, OddHashRow, TextRow, extra_of, request_of
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError, check_messages
from infersiege.traces.sessions.cumulative import Request, cumulative_turns
from infersiege.traces.sessions.lengths import block_turn, check_blocks
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "mooncake"

OPTIONS = {
    "unit": Option(default="ms", choices=tuple(UNITS_NS), meaning="unit of `timestamp` and `delay`"),
    "block_size": Option(default=512, at_least=1, meaning="tokens of one hash block"),
    "rows": Option(
        default="told",
        choices=("told", "cumulative", "deltas"),
        meaning="what rows of one `session_id` are: whole requests (cumulative), or what is new in each (deltas); "
        "told: the rows say it (`message_mode`, `context_mode`, or by being a `payload`), else it is an error",
    ),
}


def sniff(head: Head) -> bool:
    keys = head.keys()
    # Chats of Bailian, sessions of Weka, and Codex's rows, whose `payload` has a `type`.
    if keys & {"chat_id", "turns", "requests"} or {"payload", "type"} <= keys:
        return False
    if {"input_length", "output_length"} <= keys or {"hash_ids", "input_length"} <= keys:
        return True
    return bool(keys & {"text_input", "messages", "payload"}) and (
        "output_length" in keys or (bool(keys & {"text_input", "payload"}) and "timestamp" in keys)
    )


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows, for times that go back, and where the unit can't be right."""
    reader = _Reader(source, options)
    unit = "s" if options.values["unit"] == "ms" else "ms"
    trace = IndexedTrace(
        source,
        options,
        format=NAME,
        make=reader.session,
        decode=reader.decoder,
        unit_hint=f'set options.unit = "{unit}"',
    )
    if not source.holds(b'"session_id"'):
        trace.read_rows(source.rows())
    else:
        trace.add_sessions(grouped(source.rows(), lambda row: reader.decoder.session_of(source, row)))
        trace.finish()
    reader.opening = False
    return trace


class _Reader:
    """Rows -> sessions."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self.decoder = Decoder()
        self.opening = True
        """Sessions are made for the first time, in the file's order."""
        self._options = options
        self._unit_ns = UNITS_NS[str(options.values["unit"])]
        self._stamps = Stamps(str(options.values["unit"]))
        self._block = int(options.values["block_size"])
        self._rows = str(options.values["rows"])
        self._scope = f"{NAME}:{source.sha256()[:16]}"
        self._timed: bool | None = None
        """Whether the first session of the file has a time: then each must have one."""
        self._before_ns: int | None = None

    def session(self, placed: Sequence[Placed], tally: Tally) -> Session:
        first = placed[0]
        row = first.value
        arrival_ns = self._arrival_ns(first, tally)
        plain = type(row) is HashRow and row.extra is None and row.message_mode is None and row.context_mode is None
        if plain and len(placed) == 1:
            if not row.input_length or not row.output_length:
                raise UnsendableError("no_output" if row.input_length else "no_input")
            turns: Sequence[Turn] = (self._block_turn(first, 0),)
        else:
            turns = _with_tools_of_first(_Turns(self, tally).of(placed, self._waits_ns(placed, tally)))
        return Session(
            session_id=f"line-{first.line}" if row.session_id is None else str(row.session_id),
            turns=tuple(turns),
            arrival_ns=arrival_ns,
            tools=turns[0].tools,
            source_line=first.line,
        )

    def _arrival_ns(self, first: Placed, tally: Tally) -> int | None:
        """Of the session. Raises TraceError where rows that are sessions are not in order."""
        row = first.value
        if row.delay:
            if row.timestamp is not None:
                raise _both(first)
            tally.odd("the delay of a session's first row has nothing to count from and is not kept")
        if row.timestamp is None:
            if self._timed:
                raise TraceError(f"{first.place}: timestamp is missing", hint="sessions before this one have theirs")
            self._timed = False
            return None
        at_ns = self._stamps.ns({"timestamp": row.timestamp}, "timestamp", first.place)
        if self.opening:
            if self._timed is False:
                raise TraceError(f"{first.place}: has a timestamp", hint="sessions before this one have none")
            self._timed = True
            if row.session_id is None:
                if self._before_ns is not None and at_ns < self._before_ns:
                    raise _went_back(first, self._before_ns, at_ns, self._unit_ns, str(self._options.values["unit"]))
                self._before_ns = at_ns
        return at_ns

    def _waits_ns(self, placed: Sequence[Placed], tally: Tally) -> list[int]:
        """The delay of each row of a session."""
        before_ns = None
        waits: list[int] = []
        by_stamps = False
        for each in placed:
            row, at_ns = each.value, None
            if row.timestamp is not None:
                at_ns = self._stamps.ns({"timestamp": row.timestamp}, "timestamp", each.place)
            if not waits:
                waits.append(0)
            elif row.delay is not None:
                if at_ns is not None:
                    raise _both(each)
                waits.append(self._delay_ns(each))
            elif at_ns is not None:
                waits.append(self._since_ns(each, before_ns, at_ns))
                by_stamps = True
            else:
                tally.odd(
                    "a later row of a session has neither delay nor timestamp: sent at the end of the answer before"
                )
                waits.append(0)
            before_ns = at_ns
        if by_stamps:
            tally.odd("a session's delays are the times between its requests, answers included: no durations are known")
        return waits

    def _delay_ns(self, each: Placed) -> int:
        delay_ns = round(want_number({"delay": each.value.delay}, "delay", each.place) * self._unit_ns)
        if delay_ns < 0:
            raise TraceError(
                f"{each.place}: delay is {each.value.delay:g}, at least 0 is wanted",
                hint="counted from the end of the answer before",
            )
        return check_span(each.place, delay_ns, "the delay")

    def _since_ns(self, each: Placed, before_ns: int | None, at_ns: int) -> int:
        if before_ns is None:
            raise TraceError(
                f"{each.place}: has a timestamp, the row before it in its session has none",
                hint="time the later rows of a session all by `delay`, or all by `timestamp`",
            )
        if at_ns < before_ns:
            raise _went_back(each, before_ns, at_ns, self._unit_ns, str(self._options.values["unit"]))
        return check_span(each.place, at_ns - before_ns, "the time since the session's previous row")

    def is_delta(self, each: Placed, several: bool) -> bool:
        """Whether the row holds only what is new. Raises TraceError where nobody says it."""
        row = each.value
        said = row.message_mode or row.context_mode
        if said is not None:
            if said not in MODES:
                raise TraceError(
                    f"{each.place}: message_mode or context_mode is {said[:40]!r}", hint=f"known: {', '.join(MODES)}"
                )
            return MODES[said]
        if not several or (isinstance(row, TextRow) and row.whole):
            return False
        if self._rows == "told":
            raise TraceError(
                f"{each.place}: rows of session_id {str(row.session_id)[:80]!r} do not say what they are",
                hint='set options.rows to "cumulative" (each is a whole request) or "deltas" (what is new in each)',
            )
        return self._rows == "deltas"

    def _block_turn(self, each: Placed, delay_ns: int) -> Turn:
        row = each.value
        scope, ids, prompt = self._scope, row.hash_ids, row.input_length
        if ids is None:
            return block_turn(f"{scope}/line", (each.line,), prompt, prompt, row.output_length, self._options, delay_ns)
        check_blocks(len(ids), prompt, self._block, each.place)
        return block_turn(scope, ids, prompt, self._block, row.output_length, self._options, delay_ns)

    def block_turn(self, each: Placed, delay_ns: int) -> Turn:
        """A whole request by hashes or length. Raises UnsendableError."""
        row: HashRow = each.value
        if not row.input_length or not row.output_length:
            raise UnsendableError("no_output" if row.input_length else "no_input")
        turn = self._block_turn(each, delay_ns)
        return turn if row.extra is None else msgspec.structs.replace(turn, extra=extra_of(row.extra))

    def delta_turn(self, each: Placed, delay_ns: int, held: int | None) -> Turn:
        """What is new by hashes or length, with its answer, after `held` tokens (None: not known)."""
        turn = self.block_turn(each, delay_ns)
        assert turn.asked_prompt_tokens is not None
        assert turn.asked_output_tokens is not None
        answer = BlockText(
            scope=f"{self._scope}/answer",
            ids=(each.line,),
            tokens=(turn.asked_output_tokens,),
            language=self._options.language,
        )
        asked = None if held is None else held + turn.asked_prompt_tokens
        return msgspec.structs.replace(turn, replaces_history=False, asked_prompt_tokens=asked, answer_text=answer)

    def output_tokens(self, row: TextRow) -> int | None:
        """What the row asks for, scaled."""
        return None if row.output_length is None else self._options.output_tokens(row.output_length) or None


class _Turns:
    """The rows of one session -> its turns."""

    def __init__(self, reader: _Reader, tally: Tally) -> None:
        self._reader = reader
        self._tally = tally
        self._turns: list[Turn] = []
        self._run: list[Request] = []
        """Whole requests with messages, one after the other."""
        self._prompts: list[int | None] = []
        """Of each of these, what its row says that it holds."""
        self._held: int | None = 0
        """Tokens of the history, where it is known by lengths."""
        self._ids: Sequence[int] = ()
        """Of the row before."""

    def of(self, placed: Sequence[Placed], waits_ns: Sequence[int]) -> list[Turn]:
        """Raises TraceError, and UnsendableError where nothing is left or what is left would have a hole."""
        deltas = [self._reader.is_delta(each, len(placed) > 1) for each in placed]
        messages = self._checked_deltas(placed, deltas)
        left_out: list[tuple[str, str]] = []
        waited_ns = 0
        for each, delta, wait_ns in zip(placed, deltas, waits_ns, strict=True):
            try:
                self._add(each, delta, waited_ns + wait_ns, messages)
            except UnsendableError as reason:
                if delta:
                    raise
                left_out.append((str(reason), f"line {each.line}"))
                waited_ns += wait_ns
            else:
                waited_ns = 0
        self._flush()
        if not self._turns:
            raise UnsendableError(left_out[0][0])
        for why, where in left_out:
            self._tally.skip(why, where)
        return self._turns

    def _checked_deltas(self, placed: Sequence[Placed], deltas: Sequence[bool]) -> dict[int, list[dict[str, object]]]:
        """Checked messages of the rows that hold what is new, by line: results may answer calls of rows before."""
        given = {
            each.line: request_of(each.value, self._tally).given
            for each, delta in zip(placed, deltas, strict=True)
            if delta and isinstance(each.value, TextRow)
        }
        if not given:
            return {}
        checked = iter(check_messages([message for messages in given.values() for message in messages]))
        return {line: [next(checked) for _ in messages] for line, messages in given.items()}

    def _add(self, each: Placed, delta: bool, wait_ns: int, messages: dict[int, list[dict[str, object]]]) -> None:
        row = each.value
        if isinstance(row, HashRow):
            self._flush()
            for key in row.others if isinstance(row, OddHashRow) else ():
                self._tally.odd(f"key {shown_key(key)} is no request field and is not sent")
            self._look_at_ids(row.hash_ids or (), delta)
            turn = (
                self._reader.delta_turn(each, wait_ns, self._held) if delta else self._reader.block_turn(each, wait_ns)
            )
            self._turns.append(turn)
            if turn.asked_prompt_tokens is not None and turn.asked_output_tokens is not None:
                self._held = turn.asked_prompt_tokens + turn.asked_output_tokens
            return
        self._held, self._ids = None, ()
        found = request_of(row, self._tally)
        checked = messages[each.line] if delta else check_messages(found.given)
        lead = 0
        while delta and lead < len(checked) and checked[lead]["role"] == "assistant":
            lead += 1
        end = len(checked)
        while end and checked[end - 1]["role"] == "assistant":
            end -= 1
        if lead >= end or (not delta and all(message["role"] != "user" for message in checked)):
            raise UnsendableError("no_new_messages" if delta else "no_user_message")
        request = Request(
            messages=checked[lead:end],
            answer=checked[end:],
            delay_ns=wait_ns,
            tools=found.tools,
            extra=found.extra,
            asked_output_tokens=self._reader.output_tokens(row),
        )
        if delta:
            self._flush()
            self._append_delta(request, checked[:lead])
        else:
            self._run.append(request)
            self._prompts.append(row.input_length)

    def _append_delta(self, request: Request, lead: list[dict[str, object]]) -> None:
        """`lead`: what the row says was answered before it."""
        before = self._turns[-1] if self._turns else None
        if lead and before is not None and not before.recorded_answer:
            self._turns[-1] = msgspec.structs.replace(before, recorded_answer=tuple(lead), answer_text=None)
            lead = []
        tools = request.tools if request.tools is not None or before is None else before.tools
        self._turns.append(
            Turn(
                messages=(*lead, *request.messages),
                delay_ns=request.delay_ns,
                recorded_answer=tuple(request.answer),
                asked_output_tokens=request.asked_output_tokens,
                tools=tools,
                extra=request.extra,
            )
        )

    def _flush(self) -> None:
        """Whole requests with messages become turns that hold what is new in them."""
        for turn, prompt in zip(cumulative_turns(self._run, self._tally), self._prompts, strict=True):
            self._turns.append(turn if prompt is None else msgspec.structs.replace(turn, asked_prompt_tokens=prompt))
        self._run, self._prompts = [], []

    def _look_at_ids(self, ids: Sequence[int], delta: bool) -> None:
        """Whether rows by hashes are what they are read as (TR-01)."""
        whole = len(self._ids) - 1
        if whole >= 1 and ids:
            extends = tuple(ids[:whole]) == tuple(self._ids[:whole])
            if delta and extends:
                self._tally.odd("a row read as what is new begins with the blocks of the row before: is it cumulative?")
            elif not delta and not extends:
                self._tally.odd("compaction: a request does not start with the one before it and is sent as given")
        self._ids = ids


def _with_tools_of_first(turns: list[Turn]) -> list[Turn]:
    """The first request's tools are the session's; others say only what differs."""
    base = turns[0].tools
    if base is None and all(turn.tools is None for turn in turns):
        return turns
    changed = [
        turn if turn.tools == base else msgspec.structs.replace(turn, tools=turn.tools or ()) for turn in turns[1:]
    ]
    same = [msgspec.structs.replace(turn, tools=None) if turn.tools == base else turn for turn in changed]
    return [turns[0], *same]


def _both(each: Placed) -> TraceError:
    return TraceError(
        f"{each.place}: has delay and timestamp, which say different things",
        hint="a turn is timed by its delay from the end of the previous answer, or by a timestamp, not by both",
    )


def _went_back(each: Placed, before_ns: int, at_ns: int, unit_ns: int, unit: str) -> TraceError:
    return TraceError(
        f"{each.place}: timestamp went back from {before_ns / unit_ns:g} {unit} to {at_ns / unit_ns:g} {unit}",
        hint="sort the file by timestamp",
    )
