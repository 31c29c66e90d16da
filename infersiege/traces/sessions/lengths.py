"""Traces that know lengths and times but no text: rows in flat arrays, and turns that are written as blocks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces.files.source import Source
from infersiege.traces.trace import ReadOptions, Tally, check_rate

LEAST_BLOCK_TOKENS = 12
"""Blocks that `length_scale` makes shorter are put together: the first words of a text, by which it differs from
others, take up to so many tokens, so that requests of shorter blocks would be longer than asked."""


def scaled_blocks(
    ids: Sequence[int], tokens: int, block: int, options: ReadOptions
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Blocks of `tokens` tokens as they are sent: (ids, tokens of each). The last one may be part full.

    Where scaled blocks would be too short, so many in a row as are long enough become one, counted from the request's
    beginning. Its id is a hash of theirs: requests share it that begin with the same ids up to its end.
    """
    together = together_blocks(block, options)
    if together > 1:
        ids = [_id_of(ids[at : at + together]) for at in range(0, len(ids), together)]
        block *= together
    full = options.prompt_tokens(block)
    last = options.prompt_tokens(tokens - block * (len(ids) - 1))
    return tuple(ids), (full,) * (len(ids) - 1) + (last,)


def together_blocks(block: int, options: ReadOptions) -> int:
    """How many blocks become one. Those of the trace's own size, or longer, stay as they are."""
    if options.length_scale >= 1:
        return 1
    return math.ceil(min(1.0, LEAST_BLOCK_TOKENS / block) / options.length_scale)


def _id_of(ids: Sequence[int]) -> int:
    """63 bits."""
    return int.from_bytes(blake2b(",".join(map(str, ids)).encode(), digest_size=8).digest(), "little") >> 1


def block_turn(
    scope: str, ids: Sequence[int], prompt: int, block: int, output: int, options: ReadOptions, delay_ns: int = 0
) -> Turn:
    """A whole request of `prompt` tokens that is known by the ids of its blocks, the last of which may be part full."""
    found, sizes = scaled_blocks(ids, prompt, block, options)
    return Turn(
        messages=({"role": "user", "content": ""},),
        texts=(BlockText(scope=scope, ids=found, tokens=sizes, language=options.language),),
        replaces_history=True,
        delay_ns=delay_ns,
        asked_prompt_tokens=sum(sizes),
        asked_output_tokens=options.output_tokens(output),
    )


def check_blocks(count: int, prompt: int, block: int, place: str) -> None:
    """Raises TraceError where so many ids are not those of `prompt` tokens; the hint says which size would fit."""
    wanted = -(-prompt // block)
    if count == wanted:
        return
    fitting = [size for size in (8, 16, 32, 64, 128, 256, 512, 1024, 2048) if count and -(-prompt // size) == count]
    example = f", {fitting[0]} would fit this row" if fitting else ""
    raise TraceError(
        f"{place}: {count} hash_ids for {prompt} tokens, {wanted} blocks of {block} are wanted",
        hint=f"set options.block_size to the trace's own{example}",
    )


class LengthTrace:
    """Rows of (arrival, prompt tokens, output tokens), each a request of its own or a turn of a session.

    Four numbers a row are kept (20 bytes, 36 where there are sessions). A later turn of a session carries what came
    before it: its recorded prompt is the whole request, so what is new is the rest. Where a recorded prompt is not
    longer than what came before it (the history was cut, or another talk begun), the turn is a text of its own.
    """

    def __init__(self, options: ReadOptions, *, format: str, sha256: str, cumulative: bool = True) -> None:
        """`cumulative=False`: recorded prompts of later turns count only what is new."""
        self.name = options.name
        self.format = format
        self.sha256: str | None = sha256
        self.rows: int | None = 0
        self.sessions: int | None = 0
        self.skipped: Mapping[str, int] = {}
        self.warnings: tuple[str, ...] = ()
        self.arrivals_ns: Sequence[int] | None = None
        self._options = options
        self._cumulative = cumulative
        self._scope = f"{format}:{sha256[:16]}"
        self._arrivals = array("q")
        self._prompts = array("I")
        self._outputs = array("I")
        self._lines = array("I")
        self._durations = array("q")
        self._following = array("q")
        """Of each row, the number of its session's next one; 0: it is the last."""
        self._firsts = array("q")
        """Of each session, the number of its first row. Empty while every row is a session."""
        self._last_of: dict[str, int] = {}
        """Of each named session, the number of its last row so far."""

    def add(self, *, line: int, arrival_ns: int, prompt: int, output: int) -> None:
        """A row that is a request of its own."""
        if self._firsts:
            self._firsts.append(len(self._lines))
            self._following.append(0)
            self._durations.append(0)
        self._append(line, arrival_ns, prompt, output)

    def add_turn(
        self, session_id: str, *, line: int, arrival_ns: int, prompt: int, output: int, duration_ns: int
    ) -> None:
        """A row of a session; `duration_ns`: how long its answer took."""
        number = len(self._lines)
        if not self._firsts:
            # Until the first session each row was one; they keep their places.
            self._firsts.extend(range(number))
            self._following.extend([0] * number)
            self._durations.extend([0] * number)
        last = self._last_of.get(session_id)
        if last is None:
            self._firsts.append(number)
        else:
            self._following[last] = number
        self._last_of[session_id] = number
        self._following.append(0)
        self._durations.append(duration_ns)
        self._append(line, arrival_ns, prompt, output)

    def _append(self, line: int, arrival_ns: int, prompt: int, output: int) -> None:
        self._lines.append(line)
        self._arrivals.append(arrival_ns)
        self._prompts.append(prompt)
        self._outputs.append(output)

    def has_session(self, session_id: str) -> bool:
        return session_id in self._last_of

    def __len__(self) -> int:
        """Sessions so far."""
        return len(self._firsts) or len(self._lines)

    def finish(self, source: Source, *, rows: int, tally: Tally, unit_hint: str) -> None:
        """Raises TraceError for a trace without sessions, and for a rate that can't be."""
        path = str(source.path)
        tally.require_sessions(len(self), path, rows)
        self._last_of.clear()
        arrivals = array("q", (self._arrivals[first] for first in self._firsts)) if self._firsts else self._arrivals
        first_ns = arrivals[0]
        self.arrivals_ns = array("q", (time - first_ns for time in arrivals)) if first_ns else arrivals
        warning = check_rate(path, self.arrivals_ns, unit_hint)
        self.rows, self.sessions, self.skipped = rows, len(self), dict(tally.skipped)
        self.warnings = tally.warnings() + (() if warning is None else (warning,))

    def session(self, index: int) -> Session:
        if index < 0 or self.arrivals_ns is None:
            raise IndexError(index)
        number = self._firsts[index] if self._firsts else index
        line = self._lines[number]
        return Session(
            session_id=f"line-{line}",
            turns=tuple(self._turns(number)),
            arrival_ns=self.arrivals_ns[index],
            source_line=line,
        )

    def restarts(self) -> int:
        """Turns whose recorded prompt is no longer than what came before them."""
        count = 0
        for number, following in enumerate(self._following):
            if following and self._cumulative:
                count += self._prompts[following] <= self._prompts[number] + self._outputs[number]
        return count

    def _turns(self, number: int) -> Iterator[Turn]:
        options = self._options
        held = 0
        """Tokens of the history, as they are sent."""
        before: int | None = None
        while True:
            prompt = self._prompts[number]
            fresh, restart = prompt, False
            if before is not None and self._cumulative:
                fresh = prompt - self._prompts[before] - self._outputs[before]
                restart = fresh <= 0
            if restart:
                fresh, held = prompt, 0
            new, output = options.prompt_tokens(fresh), options.output_tokens(self._outputs[number])
            held += new
            yield Turn(
                messages=({"role": "user", "content": ""},),
                texts=(self._text("", number, new),),
                replaces_history=restart,
                delay_ns=0 if before is None else self._delay_ns(before, number),
                answer_text=self._text("/answer", number, output),
                asked_prompt_tokens=held,
                asked_output_tokens=output,
            )
            held += output
            before = number
            number = self._following[number] if self._following else 0
            if not number:
                return

    def _text(self, kind: str, number: int, tokens: int) -> BlockText:
        return BlockText(
            scope=self._scope + kind, ids=(self._lines[number],), tokens=(tokens,), language=self._options.language
        )

    def _delay_ns(self, before: int, number: int) -> int:
        return max(0, self._arrivals[number] - self._arrivals[before] - self._durations[before])
