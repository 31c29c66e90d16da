"""Traces that know lengths and times but no text: one single-turn session per row, held in flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from infersiege.records import BlockText, Session, Turn
from infersiege.traces.trace import ReadOptions, Tally


class LengthTrace:
    """Rows of (arrival, prompt tokens, output tokens, block ids).

    `scope` is that of the block ids: the hash of the file, so that ids of two files are never the same text. Without
    ids each row is one block of its own.
    """

    def __init__(self, options: ReadOptions, *, format: str, sha256: str, block_tokens: int | None) -> None:
        self.name = options.name
        self.format = format
        self.sha256: str | None = sha256
        self.rows: int | None = 0
        self.skipped: Mapping[str, int] = {}
        self.warnings: tuple[str, ...] = ()
        self._options = options
        self._block_tokens = block_tokens
        self._scope = f"{format}:{sha256[:16]}"
        self._arrivals = array("q")
        self._prompts = array("q")
        self._outputs = array("q")
        self._lines = array("q")
        self._ids = array("q")
        self._ends = array("q")

    def add(self, *, line: int, arrival_ns: int, prompt: int, output: int, ids: Sequence[int] = ()) -> None:
        self._lines.append(line)
        self._arrivals.append(arrival_ns)
        self._prompts.append(prompt)
        self._outputs.append(output)
        self._ids.extend(ids)
        self._ends.append(len(self._ids))

    def finish(self, *, rows: int, tally: Tally, warnings: Sequence[str] = ()) -> None:
        self.rows = rows
        self.skipped = dict(tally.skipped)
        self.warnings = (*tally.warnings(), *warnings)

    @property
    def sessions(self) -> int | None:
        return len(self._lines)

    @property
    def arrivals_ns(self) -> Sequence[int] | None:
        return self._arrivals

    def session(self, index: int) -> Session:
        if index < 0:
            raise IndexError(index)
        line = self._lines[index]
        text = self._text(index, line)
        output = self._options.output_tokens(self._outputs[index])
        return Session(
            session_id=f"line-{line}",
            turns=(
                Turn(
                    messages=({"role": "user", "content": ""},),
                    texts=(text,),
                    asked_prompt_tokens=sum(text.tokens),
                    asked_output_tokens=output,
                    answer_text=BlockText(
                        scope=f"{self._scope}/answer", ids=(line,), tokens=(output,), language=self._options.language
                    ),
                ),
            ),
            arrival_ns=self._arrivals[index],
            source_line=line,
        )

    def _text(self, index: int, line: int) -> BlockText:
        prompt = self._prompts[index]
        if self._block_tokens is None:
            ids: tuple[int, ...] = (line,)
            sizes: tuple[int, ...] = (self._options.prompt_tokens(prompt),)
        else:
            ids = tuple(self._ids[self._ends[index - 1] if index else 0 : self._ends[index]])
            full = self._options.prompt_tokens(self._block_tokens)
            last = self._options.prompt_tokens(prompt - self._block_tokens * (len(ids) - 1))
            sizes = (full,) * (len(ids) - 1) + (last,)
        return BlockText(scope=self._scope, ids=ids, tokens=sizes, language=self._options.language)
