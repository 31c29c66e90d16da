"""TraceLab replay CSV: agent rounds by prefix, new and output tokens, with tool waits.

    session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
    0,117,0,0,2318,200,300
    0,117,1,2518,348,131,154

Times are milliseconds; `arrival_time` is the session's. A round's request is `prefix_len` tokens of what was there and
`input_len` new ones; `tool_wait_after_ms` is the delay of the round after it. `prefix_len` is what the session held
(everything asked and answered before). A smaller one is a cut history: the first `prefix_len` tokens of what was held
stay, as the messages they were in, and the request replaces the history. A larger one: the tokens that are missing are
new text of this round, and counted.

Facts: the files of uw-syfi/TraceLab.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infersiege.errors import TraceError
from infersiege.records import Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.row_groups import grouped
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import check_tokens, shown, shown_key
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.growth import Growth, Resent, settled
from infersiege.traces.trace import LONGEST_NS, ReadOptions, Tally

NAME = "tracelab-replay"

OPTIONS: dict[str, Option] = {}

_COLUMNS = ("session_id", "arrival_time", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")

_HINT = "is this the right column?"

_LONGEST_MS = LONGEST_NS / 1_000_000
"""Of a time or a wait: a century."""

Fields = Sequence[str]
"""A row's values in the order of _COLUMNS."""


def sniff(head: Head) -> bool:
    return {"session_id", "round_idx", "prefix_len", "input_len"} <= _names(head.first_line)


def _names(header: str) -> set[str]:
    return {name.strip() for name in header.split(",")}


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for a wrong header or row, and for rounds that are not in order."""
    rows = source.rows()
    decode, column, extra = _header(source, next(rows, None))
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows, tally, options, scope)

    trace = IndexedTrace(
        source, options, format=NAME, make=make, decode=decode, unit_hint="arrival_time is in milliseconds"
    )
    for name in extra:
        trace.odd(f"column {shown_key(name)} is not sent")

    def session_id(row: Row) -> str:
        """Whatever stands there: each row is looked at when its session is made."""
        fields = source.raw(row).split(b",", column + 1)
        return fields[min(column, len(fields) - 1)].decode("utf-8", "replace").strip()

    trace.add_sessions(grouped(rows, session_id))
    return trace.finish()


def _header(source: Source, row: Row | None) -> tuple[Callable[[Source, Row], Fields], int, list[str]]:
    """What splits a row into _COLUMNS, where the session's id stands, and the columns that are not read."""
    if row is None:
        raise TraceError(f"{source.path}: the file has no rows", hint="its first line names the columns")
    names = [name.strip() for name in source.raw(row).decode("utf-8", "replace").split(",")]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise TraceError(
            f"{source.place(row)}: column {missing[0]!r} is missing in the header",
            hint=f"{','.join(_COLUMNS)} are wanted",
        )
    at = [names.index(name) for name in _COLUMNS]
    straight = at == list(range(len(names)))

    def decode(source: Source, row: Row) -> Fields:
        try:
            fields = source.raw(row).decode().split(",")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{source.place(row)}: is not UTF-8 ({error.reason})", hint="convert the file to UTF-8"
            ) from None
        if len(fields) != len(names):
            raise TraceError(
                f"{source.place(row)}: has {len(fields)} columns, {len(names)} are wanted",
                hint="a cut last line means a file copied in part",
            )
        return fields if straight else [fields[column] for column in at]

    return decode, at[0], [name for name in names if name not in _COLUMNS]


def _session(rows: Sequence[Placed], tally: Tally, options: ReadOptions, scope: str) -> Session:
    ident = rows[0].value[0].strip()
    resent: Resent = set()
    growth = Growth(options, f"{scope}:{ident}", resent)
    turns: list[Turn] = []
    skipped: list[str] = []
    before_round = -1
    delay_ns = longer = cut = 0
    for row in rows:
        fields = row.value
        try:
            number, prefix, new, output = int(fields[2]), int(fields[3]), int(fields[4]), int(fields[5])
            wait_ms = float(fields[6])
        except ValueError:
            raise _wrong_value(row) from None
        _check(row, number, prefix, new, output, wait_ms)
        if number <= before_round:
            raise TraceError(
                f"{row.place}: round_idx {number} of session {ident[:40]!r} comes after {before_round}",
                hint="a session's rounds stand in their order",
            )
        before_round = number
        if new == 0 or output == 0:
            growth.wait(new)
            skipped.append("no_input" if new == 0 else "no_output")
            delay_ns += round(wait_ms * 1_000_000)
            continue
        longer += prefix > growth.held and not skipped
        cut += prefix < growth.held
        turns.append(growth.turn(prefix=prefix, new=new, output=output, delay_ns=delay_ns if turns else 0))
        delay_ns = round(wait_ms * 1_000_000)
    if not turns:
        raise UnsendableError(skipped[0])
    for reason in skipped:
        tally.skip(reason, f"session {ident[:40]!r}")
    if longer:
        tally.odd("rounds whose prefix_len is more than their session held: the rest is new text", longer)
    if cut:
        tally.odd("rounds whose prefix_len is less than their session held: the history is cut", cut)
    return Session(
        session_id=ident,
        turns=settled(tuple(turns), resent),
        arrival_ns=_arrival_ns(rows[0]),
        source_line=rows[0].line,
    )


def _arrival_ns(row: Placed) -> int:
    try:
        milliseconds = float(row.value[1])
    except ValueError:
        raise _wrong_value(row) from None
    if not 0 <= milliseconds <= _LONGEST_MS:
        raise TraceError(
            f"{row.place}: arrival_time is {milliseconds:g}, milliseconds from 0 to a century are wanted",
            hint="check its unit",
        )
    return round(milliseconds * 1_000_000)


def _check(row: Placed, number: int, prefix: int, new: int, output: int, wait_ms: float) -> None:
    if number < 0 or prefix < 0 or new < 0 or output < 0:
        values = zip(_COLUMNS[2:], (number, prefix, new, output), strict=False)
        name, value = next(one for one in values if one[1] < 0)
        raise TraceError(f"{row.place}: {name} is {value}, a number of at least 0 is wanted", hint=_HINT)
    if not 0 <= wait_ms <= _LONGEST_MS:  # nan, too
        raise TraceError(
            f"{row.place}: {_COLUMNS[6]} is {wait_ms:g}, milliseconds from 0 to a century are wanted",
            hint="check its unit",
        )
    for value, name in ((prefix, "prefix_len"), (new, "input_len"), (output, "output_len")):
        check_tokens(value, name, row.place)


def _wrong_value(row: Placed) -> TraceError:
    """The first column that is no number."""
    for name, text in zip(_COLUMNS[1:], row.value[1:], strict=True):
        kind: Callable[[str], float] = float if name in ("arrival_time", "tool_wait_after_ms") else int
        try:
            kind(text)
        except ValueError:
            wanted = "a number" if kind is float else "a whole number"
            return TraceError(f"{row.place}: {name} is {shown(text)}, {wanted} is wanted", hint=_HINT)
    raise AssertionError("every column is a number")
