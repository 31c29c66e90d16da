"""Weka agent sessions: one JSON file a session, block hashes local to the file, subagents beside their parent.

    {"id": "s1", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 0.0, "type": "n", "in": 150, "out": 20, "hash_ids": [1, 2], "api_time": 3.0},
      {"t": 4.0, "type": "subagent", "duration_ms": 9000, "requests": [{"t": 0.0, "type": "n", ...}]}]}

Times are seconds. Each request's ids are the whole request: `floor(in / block_size)` of them; what is over is text of
its own that no other request has. (Files with an id for the cut last block as well are read, too.)

A turn's delay is from the end of the answer before it, `t + api_time`, to its own `t`. Where that answer has no
`api_time`, the turn's `think_time` is taken, and without that the whole distance of the two starts.

A subagent is a branch after the parent's request before it, and joined by the first later request of the parent that
starts when the subagent has ended. `t` inside of a subagent counts from its start; some publishers write it from the
session's start, which is told by its first request (option `nested_times`). A request that starts more than a second
before the answer to the one before it had ended (`t` is often rounded to seconds) is a branch of its own, too.

Facts: docs/trace_replay_tester.md of callanjfox/kv-cache-tester, and the files themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import shown, want_int, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.lengths import scaled_blocks
from infersiege.traces.sessions.lines import RecordedLine, RecordedRequest, parts
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "weka"

_HINT = "docs/traces-formats/weka.md has the format"

OPTIONS = {
    "nested_times": Option(
        default="auto",
        choices=("auto", "subagent", "session"),
        meaning="what `t` inside of a subagent counts from; auto: the session's start if its first is not before it",
    ),
}

_ROUNDING_NS = 1_000_000_000
"""`t` is rounded to whole seconds in the published files, `api_time` is not."""

_DEEPEST = 64
"""Of subagents inside of subagents: more is a broken file."""


def sniff(head: Head) -> bool:
    keys = head.outline.keys
    # Long sessions: the head may end before the requests, so what stands before them has to do.
    return {"id", "block_size"} <= keys and bool({"hash_id_scope", "requests"} & keys) and not head.outline.array


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """A file with one session, a folder of such files, or JSON Lines of sessions. Raises TraceError."""
    seen: dict[str, str] = {}
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        reader = _Reader(rows[0], scope, options, tally)
        if seen.setdefault(reader.ident, reader.place) != reader.place:
            raise TraceError(
                f"{reader.place}: session {reader.ident[:40]!r} was at {seen[reader.ident]} already",
                hint="ids of sessions must differ: take one of the two files away",
            )
        return reader.session()

    return IndexedTrace(source, options, format=NAME, make=make).read_rows(_documents(source))


def _documents(source: Source) -> Iterator[Row]:
    """Each file is one document, or a document a line."""
    rows = source.rows()
    row = next(rows, None)
    for document in source.documents():
        lines = []
        if row is not None and row.start < document.end:
            first = row
            row = next(rows, None)
            if row is not None and row.start < document.end and _is_whole(source, first):
                yield first
                while row is not None and row.start < document.end:
                    yield row
                    row = next(rows, None)
                continue
            lines = [first]
            while row is not None and row.start < document.end:
                row = next(rows, None)
        if lines:
            yield Row(lines[0].line, lines[0].start, document.end)


def _is_whole(source: Source, row: Row) -> bool:
    try:
        source.json(row)
    except TraceError:
        return False
    return True


class _Reader:
    """One document, made into a session."""

    def __init__(self, row: Placed, scope: str, options: ReadOptions, tally: Tally) -> None:
        self.place = row.place
        self._document = want_object(row)
        ident = self._document.get("id")
        if not isinstance(ident, str) or not ident:
            raise TraceError(f"{row.place}: id is {_kind(ident)}, the session's name is wanted", hint=_HINT)
        self.ident = ident
        self._line = row.line
        self._options = options
        self._tally = tally
        self._nested = str(options.values.get("nested_times", "auto"))
        self._block = want_int(self._document, "block_size", self.place)
        if self._block == 0:
            raise TraceError(f"{self.place}: block_size is 0, tokens of a block are wanted", hint=_HINT)
        self._scope = scope if _scope_of(self._document, self.place) == "global" else f"{scope}:{ident}"
        self._answers = f"{scope}:{ident}/answer"
        # Ids of text that no other request has are negative. In the local scope the request's number is enough.
        self._own = 0 if self._scope != scope else int.from_bytes(blake2b(ident.encode(), digest_size=5).digest()) << 22
        self._number = 0
        self._left_out = 0
        self._lines: list[RecordedLine] = []

    def session(self) -> Session:
        """Raises TraceError, and UnsendableError where no request is left."""
        self._read(self._document.get("requests"), "requests", base_ns=0, parent=None, depth=0)
        if not any(line.requests for line in self._lines):
            raise UnsendableError("no_output" if self._left_out else "no_requests")
        if self._left_out:
            self._tally.odd("requests without input or output tokens are left out", self._left_out)
        turns, branches = parts(self._lines, rounding_ns=_ROUNDING_NS)
        return Session(session_id=self.ident, turns=turns, branches=branches, source_line=self._line)

    def _read(self, raw: object, where: str, *, base_ns: int, parent: RecordedLine | None, depth: int) -> RecordedLine:
        """A line and, after it, the lines inside of it."""
        if not isinstance(raw, list):
            raise TraceError(f"{self.place}: {where} is {_kind(raw)}, a list is wanted", hint=_HINT)
        if depth > _DEEPEST:
            raise TraceError(f"{self.place}: subagents are nested more than {_DEEPEST} deep", hint=_HINT)
        line = RecordedLine(requests=[], parent=parent)
        self._lines.append(line)
        before_ns: int | None = None
        for index, request in enumerate(raw):
            here = f"{where}[{index}]"
            if not isinstance(request, dict):
                raise TraceError(f"{self.place}: {here} is {_kind(request)}, an object is wanted", hint=_HINT)
            start_ns = check_span(
                f"{self.place}: {here}", base_ns + _seconds_ns(request, "t", f"{self.place}: {here}"), "t"
            )
            if before_ns is not None and start_ns < before_ns:
                raise TraceError(
                    f"{self.place}: {here}: t went back from {(before_ns - base_ns) / 1e9:g} s to "
                    f"{(start_ns - base_ns) / 1e9:g} s",
                    hint="requests stand in the order of t",
                )
            before_ns = start_ns
            kind = request.get("type")
            if kind == "subagent":
                self._subagent(line, request, here, start_ns, depth)
            elif kind in ("n", "s"):
                self._add(line, request, here, start_ns)
            else:
                raise TraceError(f"{self.place}: {here}: type is {shown(kind)}, n, s or subagent is wanted", hint=_HINT)
        return line

    def _subagent(self, parent: RecordedLine, request: dict[str, Any], here: str, start_ns: int, depth: int) -> None:
        inner = request.get("requests")
        base_ns = start_ns
        if self._nested != "subagent" and isinstance(inner, list) and inner and isinstance(inner[0], dict):
            first_ns = _seconds_ns(inner[0], "t", f"{self.place}: {here}.requests[0]")
            # From the session's start: `t` of the subagent itself stands in the same clock only at the outermost level.
            if self._nested == "session" or (first_ns > 0 and first_ns >= _seconds_ns(request, "t", self.place)):
                base_ns = 0
        line = self._read(inner, f"{here}.requests", base_ns=base_ns, parent=parent, depth=depth + 1)
        ends = [start_ns, *(inner.ended_ns for inner in line.requests)]
        if request.get("duration_ms") is not None:
            milliseconds = want_number(request, "duration_ms", f"{self.place}: {here}")
            ends.append(start_ns + round(milliseconds * 1_000_000))
        line.ends_ns = max(ends)

    def _add(self, line: RecordedLine, request: dict[str, Any], here: str, start_ns: int) -> None:
        place = f"{self.place}: {here}"
        prompt, output = want_int(request, "in", place), want_int(request, "out", place)
        ids = _hash_ids(request, place)
        self._number += 1
        if prompt == 0 or output == 0:
            self._left_out += 1
            return
        text = self._text(prompt, ids, place)
        asked = self._options.output_tokens(output)
        api_ns = _optional_ns(request, "api_time", place)
        made = RecordedRequest(
            turn=Turn(
                messages=({"role": "user", "content": ""},),
                texts=(text,),
                replaces_history=True,
                asked_prompt_tokens=sum(text.tokens),
                asked_output_tokens=asked,
                answer_text=BlockText(
                    scope=self._answers, ids=(self._number,), tokens=(asked,), language=self._options.language
                ),
            ),
            start_ns=start_ns,
            end_ns=None if api_ns is None else start_ns + api_ns,
            think_ns=_optional_ns(request, "think_time", place),
        )
        if line.requests and line.requests[-1].ended_ns > start_ns + _ROUNDING_NS:
            self._tally.odd("requests that started while the one before was out run beside it")
            self._lines.append(RecordedLine(requests=[made], parent=line))
        else:
            line.requests.append(made)

    def _text(self, prompt: int, ids: list[int] | None, place: str) -> BlockText:
        if ids is None:
            self._tally.odd("requests without hash_ids share no text")
            return BlockText(
                scope=self._scope,
                ids=(-self._own - self._number,),
                tokens=(self._options.prompt_tokens(prompt),),
                language=self._options.language,
            )
        full, rest = divmod(prompt, self._block)
        if len(ids) == full and rest:
            ids = [*ids, -self._own - self._number]
        elif len(ids) != full + (rest > 0):
            raise TraceError(
                f"{place}: {len(ids)} hash_ids for {prompt} tokens, {full} whole blocks of {self._block} are wanted",
                hint="is block_size the recording's own?",
            )
        found, sizes = scaled_blocks(ids, prompt, self._block, self._options)
        return BlockText(
            scope=self._scope,
            ids=found,
            tokens=sizes,
            language=self._options.language,
            shared=not rest,  # a whole block may be what other requests go on from
        )


def _scope_of(document: dict[str, Any], place: str) -> str:
    scope = document.get("hash_id_scope", "local")  # older files don't have it
    if scope not in ("local", "global"):
        raise TraceError(f"{place}: hash_id_scope is {shown(scope)}, local or global is wanted", hint=_HINT)
    return str(scope)


def _hash_ids(request: dict[str, Any], place: str) -> list[int] | None:
    ids = request.get("hash_ids")
    if ids is None:
        return None
    if (
        not isinstance(ids, list)
        or not set(map(type, ids)) <= {int}
        or (ids and not (0 <= min(ids) <= max(ids) < 1 << 63))
    ):
        raise TraceError(f"{place}: hash_ids is no list of whole numbers from 0 to 2^63", hint=_HINT)
    return ids


def _seconds_ns(request: dict[str, Any], key: str, place: str) -> int:
    value = want_number(request, key, place)
    if value < 0:
        raise TraceError(f"{place}: {key} is {value:g} s, a time of at least 0 is wanted", hint=_HINT)
    return check_span(place, round(value * 1_000_000_000), key)


def _optional_ns(request: dict[str, Any], key: str, place: str) -> int | None:
    return None if request.get(key) is None else _seconds_ns(request, key, place)


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
