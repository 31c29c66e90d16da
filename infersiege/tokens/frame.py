"""What a server counts for small known prompts: chat template, salt, and where nothing else counts, the words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from infersiege.channels.request import without
from infersiege.doctor.target import Target
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Sampling
from infersiege.records import Message, TextLengths
from infersiege.tokens.probe import CountError, salt_lines
from infersiege.traces.synthesis.material import DECKS, Material, key_of
from infersiege.traces.synthesis.text import costs_of
from infersiege.wire.sse import EventStream

ONE_TOKEN: Final = "a"
"""A text that is one token wherever it stands."""
_SHORT, _LONG = 4, 8
"""Letters of a word that is short, and of one that is long."""
_WORDS_OF_A_KIND: Final = 120
_SALTS: Final = 6
_USUAL_SALT_TOKENS: Final = 15.5

Messages = list[Message]


class Counts(Protocol):
    """Whoever tells how many tokens a prompt has."""

    def prompt_tokens(self, messages: Messages) -> int:
        """Chat template and all. Raises CountError."""


class Asker:
    """Asks a channel's server for one token of an answer, and reads what it counted in the prompt."""

    def __init__(self, target: Target, sampling: Sampling, dropped: Sequence[str]) -> None:
        self._target = target
        self._sampling = sampling
        self._dropped = tuple(dropped)
        self.requests = 0
        self.tokens = 0
        """Prompt tokens of all requests so far."""

    def prompt_tokens(self, messages: Messages) -> int:
        """Raises CountError for a refusal, and for an answer without usage."""
        target, channel = self._target, self._target.channel
        self.requests += 1
        extra = without(dict(channel.extra_body), self._dropped)
        sampling = {"temperature": self._sampling.temperature, "top_p": self._sampling.top_p}
        try:
            body = target.dialect.request_body(
                model=channel.model,
                messages=messages,
                tools=None,
                max_tokens=target.dialect.least_output_tokens,
                stream=channel.stream,
                include_usage=channel.include_usage and "stream_options" not in self._dropped,
                sampling=without(sampling, self._dropped),
                extra=extra,
            )
            reply = target.fetch("POST", target.url, body)
        except InfersiegeError as error:
            raise CountError(str(error)) from None
        if reply.status != 200:
            raise CountError(f"{target.url} answers {reply.status} to a small prompt")
        told = self._usage(reply.body, channel.stream)
        if not told:
            raise CountError(f"{target.url} does not tell how many tokens a prompt has")
        self.tokens += told
        return told

    def _usage(self, body: bytes, stream: bool) -> int | None:
        try:
            if not stream:
                usage = self._target.dialect.decode_whole(body).usage
            else:
                decoder, events = self._target.dialect.decoder(), EventStream()
                for event in (*events.feed(body), *events.close()):
                    decoder.feed(event)
                usage = decoder.decoded().usage
        except ValueError:
            return None
        return None if usage is None else usage.prompt_tokens


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def framed(lengths: TextLengths, ask: Counts) -> TextLengths:
    """The same with what the chat template costs: of one message, of each further one, and after a system message.

    What a template refuses (system messages) counts as nothing more. Raises CountError.
    """
    request = max(0.0, ask.prompt_tokens([_user(ONE_TOKEN)]) - 1.0)
    found = msgspec.structs.replace(lengths, request_tokens=request)
    three = _told(ask, [_user(ONE_TOKEN), {"role": "assistant", "content": ONE_TOKEN}, _user(ONE_TOKEN)])
    if three is not None:
        found = msgspec.structs.replace(found, message_tokens=max(0.0, (three - 3 - request) / 2))
    begun = _told(ask, [{"role": "system", "content": ONE_TOKEN}, _user(ONE_TOKEN)])
    if begun is not None:
        system = max(0.0, begun - 2 - found.message_tokens)
        found = msgspec.structs.replace(found, system_request_tokens=system)
    return found


def _told(ask: Counts, messages: Messages) -> int | None:
    """None: the template takes no such messages."""
    try:
        return ask.prompt_tokens(messages)
    except CountError:
        return None


def calibrated(language: str, seed: int, ask: Counts, salt: str | None = None) -> TextLengths:
    """Lengths by what the server counts in some ten small prompts of known words, 1,500 to 4,000 tokens in all.

    Each deck of words is counted as a whole. What of it is a word's, however long, and what its letters', short and
    long words tell (Chinese: all is the characters'). Punctuation marks are a token each.
    `salt`: the run's own. Raises CountError.
    """
    material = Material(key_of(seed), language)
    frame = framed(TextLengths(method="calibrated", chars_per_token=1.0), ask)
    request = frame.request_tokens
    decks = []
    for deck in range(DECKS):
        first, end = material.first_of(deck)
        counted = ask.prompt_tokens([_user(material.slice(first, end))])
        decks.append(counted - request - sum(material.marked[first:end]))
    if min(decks) <= 0:
        raise CountError("the server counts as many tokens in a long prompt as in a short one")
    per_word, per_letter = _kinds(material, request, ask) if material.space else (0.0, 1.0)
    # Not at the beginning, or a cache would hold what the run's prompts begin with.
    lines = salt_lines(_SALTS) if salt is None else f"{salt}\n" * _SALTS
    salts = _told(ask, [_user(f"{ONE_TOKEN}\n{lines}")])
    head = _told(ask, [_user((material.space or "，").join(material.head.items))])
    items = len(material.head.items)
    commas = 0 if material.space else items - 1
    lengths = msgspec.structs.replace(
        frame,
        word_tokens=per_word,
        letter_tokens=per_letter,
        deck_tokens=tuple(decks),
        head_tokens=0.0 if head is None else max(0.1, (head - request - commas) / items),
        separator_tokens=1.0,
        salt_tokens=_USUAL_SALT_TOKENS if salts is None else max(1.0, (salts - request - 2) / _SALTS),
    )
    tokens = costs_of(material, lengths).before[-1]
    return msgspec.structs.replace(lengths, chars_per_token=len(material.text) / tokens)


def _kinds(material: Material, request: float, ask: Counts) -> tuple[float, float]:
    """(tokens of a word, of each of its letters), of which decks then scale the sum; (1, 0) where it can't be told."""
    short = [word for word in material.words if len(word) <= _SHORT][:_WORDS_OF_A_KIND]
    long = [word for word in material.words if len(word) >= _LONG][:_WORDS_OF_A_KIND]
    each = []
    for kind in (short, long):
        told = _told(ask, [_user(" ".join(kind))])
        if told is None:
            return 1.0, 0.0
        each.append((told - request) / len(kind))
    letters = [sum(map(len, kind)) / len(kind) for kind in (short, long)]
    per_letter = max(0.0, (each[1] - each[0]) / (letters[1] - letters[0]))
    # A vocabulary with every word has no cost by letters, one of bytes none by words.
    per_word = each[0] - per_letter * letters[0]
    return (per_word, per_letter) if per_word > 0 else (0.0, 1.0)
