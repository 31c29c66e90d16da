"""Token counts by an engine's own tokenize endpoint, which each engine has in a form of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np

from infersiege.channels.profiles import TokenizerEndpoint
from infersiege.doctor.target import Target, json_of
from infersiege.errors import InfersiegeError
from infersiege.tokens.probe import CountError

MOST_REQUESTS: Final = 400
_BATCH_CHARS: Final = 16_384
_LEAST_BATCH_CHARS: Final = 256
_LIST_LENGTH: Final = 500
_PAGE_CHARS: Final = 4_096
_LIST_CHARS: Final = 65_536
_CLAUSE_END: Final = re.compile(r"[.,\n。，]\Z")
_TOO_LONG: Final = (400, 413, 422)


class EndpointCounter:
    """Asks in batches of some KB; smaller ones where the server takes no more."""

    def __init__(self, target: Target, endpoint: TokenizerEndpoint) -> None:
        self._target = target
        self._endpoint = endpoint
        self.url = target.beside(endpoint.path)
        self.requests = 0
        self._batch_chars = _BATCH_CHARS

    def begun(self, text: str, offsets: Sequence[int]) -> list[int]:
        """As `Counter`."""
        if self._endpoint.tells == "counts":
            return self._by_counts(text, offsets)
        found: list[int] = []
        begun_before = start = done = 0
        while done < len(offsets):
            # A batch ends at an offset: between two words, with the space at the beginning of the next one.
            end = int(np.searchsorted(offsets, start + self._batch_chars, side="right"))
            end = max(end, done + 1)
            piece = text[start : offsets[end - 1]]
            answer = self._ask(piece)
            if answer is None:
                self._smaller()
                continue
            starts, size = _STARTS[self._endpoint.tells](answer, piece)
            inside = [_in_bytes(piece, offset - start) for offset in offsets[done:end]] if size else []
            places = inside or [offset - start for offset in offsets[done:end]]
            found += [begun_before + count for count in np.searchsorted(starts, places, side="left").tolist()]
            begun_before += len(starts)
            start, done = offsets[end - 1], end
        return found

    def _smaller(self) -> None:
        if self._batch_chars <= _LEAST_BATCH_CHARS:
            raise CountError(f"{self.url} refuses even a text of {self._batch_chars} characters")
        self._batch_chars //= 4

    def _ask(self, text: str | list[str]) -> Any:
        """The answer; None: the text is too long for the server. Raises CountError."""
        self.requests += 1
        if self.requests > MOST_REQUESTS:
            raise CountError(f"{self.url} takes so little at a time that {MOST_REQUESTS} requests were not enough")
        endpoint = self._endpoint
        body: dict[str, Any] = {endpoint.text_field: text, **endpoint.fields}
        if endpoint.model_field is not None:
            body[endpoint.model_field] = self._target.channel.model
        try:
            reply = self._target.fetch("POST", self.url, msgspec.json.encode(body))
        except InfersiegeError as error:
            raise CountError(str(error)) from None
        if reply.status in _TOO_LONG and len(text) > 1 and self._batch_chars > _LEAST_BATCH_CHARS:
            return None
        if reply.status != 200:
            raise CountError(f"{self.url} answers {reply.status}")
        value = json_of(reply.body)
        if value is None or reply.cut:
            raise CountError(f"{self.url} answers without JSON" if value is None else f"{self.url}: {reply.cut}")
        return value

    # ---------------------------------------------------------------------------------------------------- only counts

    def _by_counts(self, text: str, offsets: Sequence[int]) -> list[int]:
        """Words, clauses and pages are counted by themselves; what is in one is scaled to the count of the whole."""
        pieces = [text[start:end] for start, end in zip((0, *offsets), offsets, strict=False)]
        clauses = list(_clauses(pieces))
        pages = list(_pages(clauses))
        texts = ("".join(clause) for clause in clauses)
        counts = self._counts(list(dict.fromkeys((*pieces, *texts, *map(_joined, pages)))))
        sizes: list[float] = []
        for page in pages:
            clauses_in_all = sum(counts["".join(clause)] for clause in page) or 1
            of_page = counts[_joined(page)] / clauses_in_all
            for clause in page:
                own = [counts[piece] for piece in clause]
                scale = of_page * counts["".join(clause)] / (sum(own) or 1)
                sizes += [count * scale for count in own]
        return [round(reached) for reached in accumulate(sizes)]

    def _counts(self, texts: list[str]) -> dict[str, int]:
        known: dict[str, int] = {"": 0}
        left = [text for text in texts if text]
        most = _LIST_LENGTH
        while left:
            size = chars = 0
            while size < min(most, len(left)) and (size == 0 or chars + len(left[size]) <= _LIST_CHARS):
                chars += len(left[size])
                size += 1
            answer = self._ask(left[:size])
            if answer is None:
                if most == 1:
                    raise CountError(f"{self.url} refuses a list of texts")
                most = max(1, most // 8)
                continue
            key = self._endpoint.count_key
            told = answer.get(key) if isinstance(answer, dict) and key is not None else answer
            if not isinstance(told, list) or len(told) != size or any(type(count) is not int for count in told):
                raise CountError(f"{self.url} gives no list of counts for a list of texts")
            known.update(zip(left[:size], told, strict=True))
            del left[:size]
        return known


def _clauses(pieces: Sequence[str]) -> Iterator[list[str]]:
    """Runs of pieces up to a punctuation mark or line end, across which no tokenizer joins text."""
    clause: list[str] = []
    for piece in pieces:
        clause.append(piece)
        if _CLAUSE_END.search(piece):
            yield clause
            clause = []
    if clause:
        yield clause


def _pages(clauses: Sequence[list[str]]) -> Iterator[list[list[str]]]:
    """Runs of clauses of some KB: so long that what a tokenizer does at their ends is nothing."""
    page: list[list[str]] = []
    size = 0
    for clause in clauses:
        page.append(clause)
        size += sum(map(len, clause))
        if size >= _PAGE_CHARS:
            yield page
            page, size = [], 0
    if page:
        yield page


def _joined(page: list[list[str]]) -> str:
    return "".join("".join(clause) for clause in page)


def _in_bytes(text: str, chars: int) -> int:
    return chars if text.isascii() else len(text[:chars].encode())


# --------------------------------------------------------------------------------------------------- where tokens are

Starts = tuple[list[int], bool]
"""(where each token begins, whether that is in bytes)."""


def _of_pieces(answer: Any, text: str) -> Starts:
    """llama.cpp: `{"tokens": [{"id", "piece"}]}`; a piece that is no whole characters is a list of bytes."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    sizes = []
    for token in tokens if isinstance(tokens, list) else ():
        piece = token.get("piece") if isinstance(token, dict) else None
        if not isinstance(piece, (str, list)):
            raise CountError("its tokens have no pieces: is it an older llama.cpp?")
        sizes.append(len(piece.encode()) if isinstance(piece, str) else len(piece))
    return _starts_of(sizes, text), True


def _of_token_strs(answer: Any, text: str) -> Starts:
    """vLLM: `token_strs`, in the spelling of byte-level BPE (one letter a byte) or of SentencePiece (▁, <0xE4>)."""
    told = answer.get("token_strs") if isinstance(answer, dict) else None
    if not isinstance(told, list) or not all(isinstance(token, str) for token in told):
        raise CountError("it does not tell its tokens: is it an older vLLM?")
    by_letter = [len(token) for token in told]
    if sum(by_letter) == len(text.encode()):
        return _starts_of(by_letter, text), True
    return _starts_of([_sentencepiece_bytes(token) for token in told], text), True


def _sentencepiece_bytes(token: str) -> int:
    return 1 if re.fullmatch(r"<0x[0-9A-F]{2}>", token) else len(token.replace("▁", " ").encode())


def _of_offsets(answer: Any, text: str) -> Starts:
    """TGI: a list of `{"id", "text", "start", "stop"}`; special tokens have no length."""
    tokens = answer if isinstance(answer, list) else []
    places = [(token.get("start"), token.get("stop")) for token in tokens if isinstance(token, dict)]
    spans = [(start, stop) for start, stop in places if type(start) is int and type(stop) is int and stop > start]
    if not spans:
        raise CountError("it does not tell where its tokens are")
    in_bytes = spans[-1][1] != len(text)
    if in_bytes and spans[-1][1] != len(text.encode()):
        raise CountError("its tokens end elsewhere than the text")
    return [start for start, _ in spans], in_bytes


def _starts_of(sizes: list[int], text: str) -> list[int]:
    """Where tokens of these sizes in bytes begin. SentencePiece puts a space before the text that it has not."""
    over = sum(sizes) - len(text.encode())
    if over not in (0, 1):
        raise CountError(f"its tokens are not the text: they have {sum(sizes)} bytes of {len(text.encode())}")
    starts, at = [], -over
    for size in sizes:
        starts.append(max(0, at))
        at += size
    return starts


_STARTS: Final[dict[str, Callable[[Any, str], Starts]]] = {
    "pieces": _of_pieces,
    "token_strs": _of_token_strs,
    "offsets": _of_offsets,
}
