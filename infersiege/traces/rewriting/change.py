"""Traces made of traces: redacted, sampled, stretched, thinned, multiplied. Sessions in, sessions out."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

import msgspec

from infersiege.channels.redaction import REDACTED, scrub
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.formats.normal import VERSION, Header
from infersiege.traces.play.conversation import salted
from infersiege.traces.trace import Trace

_LATIN = "A-Za-z0-9À-ӿ"  # and Greek and Cyrillic
_CJK = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,20}"
"""Such letters have no spaces between words: no more of them than an address would have."""
_MAIL = re.compile(
    rf"(?:[{_LATIN}._%+'-]{{1,64}}|{_CJK})(?:[@\uff20]|%40|\\+u0040|&#64;|&commat;)"
    rf"(?:[{_LATIN}-]+|{_CJK})(?:[.\uff0e](?:[{_LATIN}-]+|{_CJK}))+"
)
"""Also with the sign as URLs, JSON and HTML write it."""
_MAIL_SIGNS = ("@", "\uff20", "%40", "u0040", "&#64;", "&commat;")
_KEYS = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[a-z]-[A-Za-z0-9-]{10,}"
    r"|\b(?:github_pat|gh[ousr]|npm|dop_v1|pypi)[-_][A-Za-z0-9_\-]{16,}"
    r"|\bya29\.[A-Za-z0-9_\-]{16,}"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""Of clouds, chats, package registries, and private keys: what people paste, and servers of models never echo."""
_KEY_SIGNS = (
    "AKIA",
    "ASIA",
    "xox",
    "github_pat",
    "gho",
    "ghu",
    "ghs",
    "ghr",
    "npm",
    "dop_v1",
    "pypi",
    "ya29.",
    "PRIVATE KEY",
)
"""One of them is in every such text: looking for a plain string takes no time."""
_SHORT_KEY = re.compile(r"(?<![A-Za-z0-9])(?:sk|pk|rk)-[A-Za-z0-9_\-]{3,}")
"""Shorter ones than `scrub` takes: here a word too many is better than a key too many."""


def every_session(trace: Trace, count: int | None = None) -> Iterator[Session]:
    """All sessions of a finite trace; of an endless one the first `count`."""
    for index in range(trace.sessions if trace.sessions is not None else count or 0):
        yield trace.session(index)


def redacted_text(text: str) -> str:
    """Keys and mail addresses replaced; everything else as it was."""
    if any(sign in text for sign in _KEY_SIGNS):
        text = _KEYS.sub(REDACTED, text)
    text = _SHORT_KEY.sub(REDACTED, scrub(text))
    return _MAIL.sub("user@example.com", text) if any(sign in text for sign in _MAIL_SIGNS) else text


def redacted(session: Session) -> Session:
    """The same session with keys and mail addresses replaced in every text that it holds, wherever it stands."""
    clean = _clean(msgspec.to_builtins(session))
    return msgspec.convert(clean, Session)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, dict):
        return {
            redacted_text(key): REDACTED if isinstance(item, str) and item and _names_key(key) else _clean(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _names_key(name: str) -> bool:
    """Whether a text `name: value` would lose its value."""
    return scrub(f"{name}: x") != f"{name}: x"


def _clean_text(text: str) -> str:
    """JSON is looked at as what it says, too: `\\u0040` in it is an @, and its keys name values. It is written anew
    only where that finds something that stood there unseen."""
    text = redacted_text(text)
    if text[:1] not in ("{", "["):
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text
    clean = _clean(value)
    return text if clean == value else msgspec.json.encode(clean).decode()


def drawn(session_id: str, index: int, seed: int) -> float:
    """A number in [0, 1) of one session: the same for the same seed, whatever else is in the trace."""
    digest = blake2b(f"{seed}\0{index}\0{session_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def stretched(session: Session, factor: float, *, delays: bool) -> Session:
    """Arrivals (and, if wanted, delays inside sessions) multiplied by `factor`."""
    arrival_ns = None if session.arrival_ns is None else round(session.arrival_ns * factor)
    if delays:
        session = _with_turns(
            session, lambda turn: msgspec.structs.replace(turn, delay_ns=round(turn.delay_ns * factor))
        )
    return msgspec.structs.replace(session, arrival_ns=arrival_ns)


def copy_of(session: Session, number: int, *, later_ns: int) -> Session:
    """Copy `number` (from 1) that shares nothing with the original: its blocks are other texts, and its recorded
    requests begin with another line. `later_ns` is added to its arrival."""
    salt = f"copy {number}"

    def other(text: BlockText | None) -> BlockText | None:
        return None if text is None else msgspec.structs.replace(text, scope=f"{text.scope}/{salt}")

    def fresh(turn: Turn, *, first: bool) -> Turn:
        messages = turn.messages
        texts = turn.texts or (None,) * len(messages)
        if messages and first and texts[0] is None:
            # What is synthesised differs from its first word on; what is recorded needs a mark of its own.
            messages = (_marked(messages[0], salt), *messages[1:])
        return msgspec.structs.replace(
            turn,
            messages=messages,
            texts=tuple(other(text) for text in turn.texts),
            answer_text=other(turn.answer_text),
        )

    def line(turns: tuple[Turn, ...], *, inherits: bool = False) -> tuple[Turn, ...]:
        return tuple(
            fresh(turn, first=(place == 0 and not inherits) or turn.replaces_history)
            for place, turn in enumerate(turns)
        )

    return msgspec.structs.replace(
        session,
        session_id=f"{session.session_id}+{number}",
        turns=line(session.turns),
        branches=tuple(
            msgspec.structs.replace(branch, turns=line(branch.turns, inherits=branch.inherits))
            for branch in session.branches
        ),
        arrival_ns=None if session.arrival_ns is None else session.arrival_ns + later_ns,
    )


def _marked(message: Message, salt: str) -> Message:
    return salted(message, f"[{salt}]")


def _with_turns(session: Session, change: Any) -> Session:
    return msgspec.structs.replace(
        session,
        turns=tuple(map(change, session.turns)),
        branches=tuple(
            msgspec.structs.replace(branch, turns=tuple(map(change, branch.turns))) for branch in session.branches
        ),
    )


def multiplied(sessions: Iterable[Session], times: int, *, spread_ns: int, seed: int) -> Iterator[Session]:
    """Each session `times` times, in order of arrival; copies come up to `spread_ns` later, drawn by the seed.

    A trace in order stays in order, and is not held: only copies that are not due yet are.
    """
    waiting: list[tuple[int, int, Session]] = []
    number = 0
    for index, session in enumerate(sessions):
        timed = session.arrival_ns is not None
        while waiting and (not timed or waiting[0][0] <= (session.arrival_ns or 0)):
            yield heapq.heappop(waiting)[2]
        yield session
        for copy in range(1, times):
            later_ns = int(drawn(f"{session.session_id}+{copy}", index, seed) * spread_ns)
            made = copy_of(session, copy, later_ns=later_ns)
            if not timed:
                yield made
                continue
            number += 1
            heapq.heappush(waiting, (made.arrival_ns or 0, number, made))
    while waiting:
        yield heapq.heappop(waiting)[2]


def evenly(sessions: Callable[[], Iterable[Session]], count: int) -> Iterator[Session]:
    """`count` sessions, evenly over all: every n-th, not the first ones. All of them where there are fewer.

    `sessions` is called twice: they are counted, then taken, so that none has to be held.
    """
    total = sum(1 for _ in sessions())
    wanted = {place * total // count for place in range(count)} if total > count else None
    for place, session in enumerate(sessions()):
        if wanted is None or place in wanted:
            yield session


def rebased(sessions: Iterable[Session]) -> Iterator[Session]:
    """Arrivals counted from the first session's."""
    first_ns: int | None = None
    for session in sessions:
        if session.arrival_ns is not None:
            first_ns = session.arrival_ns if first_ns is None else first_ns
            session = msgspec.structs.replace(session, arrival_ns=session.arrival_ns - first_ns)
        yield session


def redacted_header(header: Header) -> Header:
    """The name of a file is a text, too."""
    return msgspec.convert(_clean(msgspec.to_builtins(header)), Header)


def header_of(trace: Trace, changes: Sequence[str]) -> Header:
    """The first line of what is made of a trace: the file's name without its folders, and what was done before."""
    before: tuple[str, ...] = getattr(trace, "changes", ())
    return Header(
        infersiege_trace=VERSION,
        made_from=f"{PurePath(trace.name).name} ({trace.format})",
        sha256=trace.sha256,
        changes=(*before, *changes),
    )
