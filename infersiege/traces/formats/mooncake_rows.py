"""Rows of Mooncake files: decoded fast where they are as most are, else checked key by key."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message
from infersiege.traces.files.indexed import Placed, want_object
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import MOST_TOKENS, want_int, want_number
from infersiege.traces.sessions.bodies import chat_body, tools_of
from infersiege.traces.sessions.chat import CHANNEL_FIELDS, UnsendableError, request_extra
from infersiege.traces.trace import Tally

MODES = {
    "history": False,
    "delta": True,
    "message_array_with_responses": False,
    "deltas_with_responses": True,
    "deltas_without_responses": True,
}
"""What a row may say of itself (AIPerf's words): whether it holds only what is new."""

_TEXT_KINDS = ("payload", "messages", "text_input")
_STRUCTURAL = frozenset(
    {"timestamp", "delay", "session_id", "input_length", "output_length", "hash_ids", "type", "extra"}
    | {"message_mode", "context_mode", "tools", *_TEXT_KINDS}
)
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Timed(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: int | float | str | None = None
    delay: int | float | None = None
    session_id: str | _Int64 | None = None
    message_mode: str | None = None
    context_mode: str | None = None
    extra: dict[str, Any] | None = None
    """Fields that the trace wants in the request's body."""


class HashRow(_Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request by lengths, with block ids or without."""

    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_Int64, ...] | None = None


class OddHashRow(HashRow, frozen=True, kw_only=True):
    """One with keys that mean nothing here."""

    others: tuple[str, ...]


class TextRow(_Timed, frozen=True, kw_only=True):
    """A request by what it says."""

    body: dict[str, Any]
    whole: bool
    """A payload, which is a whole request by its nature."""
    has_ids: bool
    """It has block hashes as well."""
    input_length: int | None
    output_length: int | None


class _Named(msgspec.Struct, frozen=True):
    session_id: str | _Int64 | None = None


class Found(NamedTuple):
    """The request of a row with texts."""

    given: list[Message]
    """Not checked yet."""
    tools: tuple[dict[str, Any], ...] | None
    extra: dict[str, Any]


class Decoder:
    """Bytes of a row -> HashRow or TextRow."""

    def __init__(self) -> None:
        self._hashes = msgspec.json.Decoder(HashRow)
        self._named = msgspec.json.Decoder(_Named)

    def __call__(self, source: Source, row: Row) -> HashRow | TextRow:
        """Raises TraceError."""
        try:
            return self._hashes.decode(source.raw(row))
        except (msgspec.DecodeError, RecursionError):
            return _checked(Placed(source.place(row), row.line, source.json(row)))

    def session_of(self, source: Source, row: Row) -> str | None:
        """Raises TraceError."""
        try:
            found = self._named.decode(source.raw(row)).session_id
        except (msgspec.DecodeError, RecursionError):
            found = self(source, row).session_id
        return None if found is None else str(found)


def _checked(row: Placed) -> HashRow | TextRow:
    place = row.place
    value = {key: item for key, item in want_object(row).items() if item is not None}
    texts = [kind for kind in _TEXT_KINDS if kind in value]
    if len(texts) > 1:
        raise TraceError(f"{place}: has {' and '.join(texts)}", hint="a row has one of them")
    if not texts and "input_length" not in value and "hash_ids" not in value:
        keys = ", ".join(sorted(value)[:6])
        raise TraceError(
            f"{place}: has none of input_length, hash_ids, {', '.join(reversed(_TEXT_KINDS))} (keys: {keys[:120]})",
            hint="name the trace's `format`",
        )
    shared = _shared(value, place)
    if texts:
        lengths = {key: want_int(value, key, place) for key in ("input_length", "output_length") if key in value}
        return TextRow(
            **shared,
            body=_body(value, texts[0], place),
            whole=texts[0] == "payload",
            has_ids="hash_ids" in value,
            input_length=lengths.get("input_length"),
            output_length=lengths.get("output_length"),
        )
    ids = value.get("hash_ids")
    if ids is not None and not (
        isinstance(ids, list) and all(type(ident) is int and -(2**63) <= ident < 2**64 for ident in ids)
    ):
        raise TraceError(f"{place}: hash_ids is no list of 64-bit whole numbers", hint="is the format the right one?")
    found = HashRow(
        **shared,
        input_length=want_int(value, "input_length", place),
        output_length=want_int(value, "output_length", place),
        hash_ids=None if ids is None else tuple(ids),
    )
    others = tuple(key for key in value if key not in _STRUCTURAL)
    return OddHashRow(**msgspec.structs.asdict(found), others=others) if others else found


def _shared(value: dict[str, Any], place: str) -> dict[str, Any]:
    """Keys that rows of all kinds have, checked."""
    shared: dict[str, Any] = {}
    if "timestamp" in value:
        stamp = value["timestamp"]
        shared["timestamp"] = stamp if isinstance(stamp, str) else want_number(value, "timestamp", place)
    if "delay" in value:
        shared["delay"] = want_number(value, "delay", place)
    for key, kinds, wanted in (
        ("session_id", (str, int), "a string or a 64-bit whole number"),
        ("message_mode", (str,), "a string"),
        ("context_mode", (str,), "a string"),
        ("extra", (dict,), "an object"),
    ):
        if key not in value:
            continue
        found = value[key]
        if not isinstance(found, kinds) or isinstance(found, bool) or (isinstance(found, int) and abs(found) >= 2**63):
            kind = type(found).__name__
            raise TraceError(f"{place}: {key} is a {kind}, {wanted} is wanted", hint="is the format the right one?")
        shared[key] = found
    return shared


def _body(value: dict[str, Any], kind: str, place: str) -> dict[str, Any]:
    """A request body of the row; fields that stand in the row itself are part of it."""
    if kind == "payload":
        if not isinstance(value["payload"], dict):
            raise TraceError(
                f"{place}: payload is a {type(value['payload']).__name__}, an object is wanted",
                hint="it is a whole request body",
            )
        payload: dict[str, Any] = value["payload"]
        return payload
    own = {key: item for key, item in value.items() if key not in _STRUCTURAL}
    if kind == "text_input":
        if not isinstance(value["text_input"], str):
            raise TraceError(
                f"{place}: text_input is a {type(value['text_input']).__name__}, a string is wanted",
                hint="messages go into `messages`",
            )
        return {"messages": [{"role": "user", "content": value["text_input"]}], **own}
    tools = {"tools": value["tools"]} if "tools" in value else {}
    return {"messages": value["messages"], **tools, **own}


def request_of(row: TextRow, tally: Tally) -> Found:
    """Raises UnsendableError."""
    if row.has_ids:
        tally.odd("a row has hash_ids beside its text: the text is sent")
    body = chat_body(row.body, None, tally)
    given = body.get("messages")
    if not isinstance(given, list):
        raise UnsendableError("no_messages")
    extra = request_extra(body, frozenset({"messages", "tools"}), tally)
    return Found(given, tools_of(body.get("tools")), {**extra, **extra_of(row.extra)})


def extra_of(extra: dict[str, Any] | None) -> dict[str, Any]:
    """What a row's `extra` adds to its request."""
    return {key: item for key, item in (extra or {}).items() if key not in CHANNEL_FIELDS and key not in _STRUCTURAL}
