"""The built-in workloads `short-qa` and `long-document`: endless, drawn per session from hashed seeds.

Lengths follow published traces (docs/traces.md has the figures and the options).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.options import Option, OptionTable
from infersiege.traces.synthesis.text import CHARS_PER_TOKEN
from infersiege.traces.synthesis.words import DOCUMENT_QUESTIONS, QUESTIONS, TOPICS
from infersiege.traces.trace import ReadOptions

SECOND_NS = 1_000_000_000
_TAIL_SIGMAS = 3.5
"""Lengths are cut there, so that one draw in 4,000 can't be a prompt that no model takes."""


class Draw:
    """Random choices of one session: they depend on (seed, what, index), not on process or earlier sessions."""

    def __init__(self, seed: int, what: str, index: int) -> None:
        digest = blake2b(f"{seed}\0{what}\0{index}".encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "little"))

    def lognormal(self, p50: float, sigma: float) -> float:
        """p50 * exp(sigma * z), z standard normal within 3.5 sigma."""
        z = self._random.normalvariate(0.0, 1.0)
        return p50 * math.exp(sigma * max(-_TAIL_SIGMAS, min(_TAIL_SIGMAS, z)))

    def tokens(self, p50: float, sigma: float) -> int:
        return max(1, round(self.lognormal(p50, sigma)))

    def share(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def below(self, end: int) -> int:
        return int(self._random.random() * end)

    def pick(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]


class Generated:
    """What all built-in traces have in common; a subclass adds `session`."""

    format = "builtin"
    sha256: str | None = None
    rows: int | None = None
    skipped: Mapping[str, int] = {}
    arrivals_ns: Sequence[int] | None = None

    def __init__(self, options: ReadOptions) -> None:
        self.name = options.name
        self.sessions: int | None = options.limit
        self.warnings: tuple[str, ...] = ()
        self._options = options
        self._language = options.language

    def _check_index(self, index: int) -> None:
        if index < 0 or (self.sessions is not None and index >= self.sessions):
            raise IndexError(index)

    def _number(self, name: str) -> float:
        value = self._options.values[name]
        assert isinstance(value, int | float)
        return value

    def _block(self, scope: str, ident: int, tokens: int, *, shared: bool = False) -> BlockText:
        return BlockText(scope=scope, ids=(ident,), tokens=(tokens,), language=self._language, shared=shared)

    def _question(self, draw: Draw, templates: Mapping[str, Sequence[str]]) -> str:
        template = draw.pick(templates[self._language])
        return template.format(topic=draw.pick(TOPICS[self._language]), number=2 + draw.below(9_998))

    def _estimate(self, text: str) -> int:
        """Tokens of a fixed text, by the usual ratio."""
        return math.ceil(len(text) / CHARS_PER_TOKEN[self._language])


SHORT_QA_OPTIONS: OptionTable = {
    "input_p50": Option(default=100, at_least=1, meaning="prompt tokens, median (system prompt included)"),
    "input_sigma": Option(default=0.8, at_least=0, at_most=3, meaning="prompt tokens, sigma of the lognormal"),
    "output_p50": Option(default=130, at_least=1, meaning="answer tokens, median"),
    "output_sigma": Option(default=0.86, at_least=0, at_most=3, meaning="answer tokens, sigma of the lognormal"),
    "system_tokens": Option(default=30, at_least=0, meaning="tokens of the system prompt that all sessions share"),
}

_MIN_CONTEXT_TOKENS = 8
"""Below that a context would be hardly more than its first word."""


class ShortQa(Generated):
    """One question per session, after a system prompt that all share and a context that none shares."""

    def session(self, index: int) -> Session:
        self._check_index(index)
        draw = Draw(self._options.seed, "short-qa", index)
        scale = self._options.prompt_tokens
        question = self._question(draw, QUESTIONS)
        wanted = scale(draw.tokens(self._number("input_p50"), self._number("input_sigma")))
        output = self._options.output_tokens(draw.tokens(self._number("output_p50"), self._number("output_sigma")))
        messages: list[Message] = []
        texts: list[BlockText | None] = []
        system = scale(int(self._number("system_tokens")))
        if system:
            messages.append({"role": "system", "content": ""})
            texts.append(self._block("short-qa/system", 0, system, shared=True))
        asked = self._estimate(question)
        context = wanted - system - asked
        messages.append({"role": "user", "content": question})
        texts.append(self._block("short-qa/context", index, context) if context >= _MIN_CONTEXT_TOKENS else None)
        return Session(
            session_id=f"short-qa-{index}",
            turns=(
                Turn(
                    messages=tuple(messages),
                    texts=tuple(texts),
                    answer_text=self._block("short-qa/answer", index, output),
                    asked_prompt_tokens=max(wanted, system + asked),
                    asked_output_tokens=output,
                ),
            ),
        )


LONG_DOCUMENT_OPTIONS: OptionTable = {
    "input_p50": Option(default=8_000, at_least=1, meaning="document tokens, median"),
    "input_sigma": Option(default=0.6, at_least=0, at_most=3, meaning="document tokens, sigma of the lognormal"),
    "output_p50": Option(default=170, at_least=1, meaning="answer tokens, median"),
    "output_sigma": Option(default=0.8, at_least=0, at_most=3, meaning="answer tokens, sigma of the lognormal"),
    "questions": Option(default=4, at_least=1, at_most=1000, meaning="questions about each document"),
    "questions_as": Option(
        default="turns",
        choices=("turns", "sessions"),
        meaning="one session with a turn per question, or a session per question, all with the document as prefix",
    ),
    "position": Option(
        default="before",
        choices=("before", "after", "system"),
        meaning="where the document stands: before the first question, after it (so that no two first questions share "
        "it in a prefix cache), or as the system prompt",
    ),
    "documents": Option(
        default=0,
        at_least=0,
        at_most=1_000_000,
        meaning="different documents, which sessions then come back to; 0: a new one for each session (each set of "
        "questions, with sessions per question)",
    ),
    "reuse_skew": Option(
        default=0.0,
        at_least=0,
        at_most=5,
        meaning="with `documents`: the n-th document is asked about 1 / n^skew times as often as the first (Zipf); "
        "0: all alike",
    ),
    "think_p50_s": Option(default=10.0, at_least=0, meaning="seconds from an answer to the next question, median"),
    "think_sigma": Option(default=0.7, at_least=0, at_most=3, meaning="the same, sigma of the lognormal"),
}


class LongDocument(Generated):
    """Several questions about one synthesised document."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._popularity = _zipf(int(self._number("documents")), self._number("reuse_skew"))

    def session(self, index: int) -> Session:
        self._check_index(index)
        questions = int(self._number("questions"))
        apart = self._options.values["questions_as"] == "sessions"
        asker, number = divmod(index, questions) if apart else (index, 0)
        # Whoever comes back to a document asks questions of his own.
        draw = Draw(self._options.seed, "long-document", asker)
        document, own = asker, draw
        if self._options.values["documents"]:
            document = int(np.searchsorted(self._popularity, draw.share(), side="right"))
            own = Draw(self._options.seed, "long-document/document", document)
        length = self._options.prompt_tokens(own.tokens(self._number("input_p50"), self._number("input_sigma")))
        turns = self._turns(draw, asker, document, length, questions, apart)
        return Session(
            session_id=f"long-document-{asker}" + (f"-{number}" if apart else ""),
            turns=(turns[number],) if apart else tuple(turns),
        )

    def _turns(self, draw: Draw, asker: int, document: int, length: int, questions: int, apart: bool) -> list[Turn]:
        turns: list[Turn] = []
        held = 0
        for number in range(questions):
            question = self._question(draw, DOCUMENT_QUESTIONS)
            output = self._options.output_tokens(draw.tokens(self._number("output_p50"), self._number("output_sigma")))
            think_ns = round(draw.lognormal(self._number("think_p50_s"), self._number("think_sigma")) * SECOND_NS)
            whole = apart or number == 0
            prompt = (length if whole else held) + self._estimate(question)
            messages: tuple[Message, ...] = ({"role": "user", "content": question},)
            texts: tuple[BlockText | None, ...] = ()
            if whole:
                messages, texts = self._asked(question, document, length)
            turns.append(
                Turn(
                    messages=messages,
                    texts=texts,
                    answer_text=self._block("long-document/answer", asker * questions + number, output),
                    delay_ns=0 if whole else think_ns,
                    asked_prompt_tokens=prompt,
                    asked_output_tokens=output,
                )
            )
            held = prompt + output
        return turns

    def _asked(
        self, question: str, document: int, length: int
    ) -> tuple[tuple[Message, ...], tuple[BlockText | None, ...]]:
        """The first question with its document: (messages, texts)."""
        position = self._options.values["position"]
        shared = self._options.values["questions_as"] == "sessions" or bool(self._number("documents"))
        text = self._block("long-document/document", document, length, shared=shared)
        asked: Message = {"role": "user", "content": question}
        if position == "system":
            return ({"role": "system", "content": ""}, asked), (text, None)
        return (asked,), (msgspec.structs.replace(text, last=position == "after"),)


def _zipf(count: int, skew: float) -> npt.NDArray[np.float64]:
    """Cumulative shares of all but the last of `count` items, whose n-th is 1 / n^skew as frequent as the first."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    return (np.cumsum(weights) / weights.sum())[:-1] if count else weights
