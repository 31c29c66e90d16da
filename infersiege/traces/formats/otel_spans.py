"""OpenTelemetry spans, however a file carries them: places of the spans, and one shape for all of them.

Told apart, a file at a time: a document (`{"spans": […]}`, OTLP's `{"resourceSpans": […]}`, or an array of spans or
documents), and JSON Lines of spans or of documents. Facts of OTLP's JSON: opentelemetry-proto `examples/trace.json` and
the protocol's section on its JSON encoding (64-bit integers may be strings, attributes are lists of key and value).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from infersiege.errors import TraceError
from infersiege.traces.files.private_values import moment_ns, want_string
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import decode_json

_HINT = "docs/traces-formats/otel-genai.md has the format"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader needs of one span."""

    span_id: str
    trace_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class _Scope(msgspec.Struct):
    spans: list[msgspec.Raw] = []


class _Resource(msgspec.Struct):
    scopes: list[_Scope] = msgspec.field(default=[], name="scopeSpans")
    older: list[_Scope] = msgspec.field(default=[], name="instrumentationLibrarySpans")
    """The name before OTLP 0.15."""


class _Document(msgspec.Struct):
    spans: list[msgspec.Raw] | None = None
    resources: list[_Resource] | None = msgspec.field(default=None, name="resourceSpans")


_documents = msgspec.json.Decoder(_Document)
_elements = msgspec.json.Decoder(list[msgspec.Raw])


def span_rows(source: Source) -> Iterator[Row]:
    """A row for each span. `line`: of JSON Lines the line, of a document the span's index in it.

    Raises TraceError where a file is neither.
    """
    view = memoryview(source.data())
    rows = source.rows()
    row, following = next(rows, None), next(rows, None)
    for whole in source.documents():
        if row is None or row.start >= whole.end:
            continue
        lines = following is not None and following.start < whole.end and _is_json(view[row.start : row.end])
        if not lines:
            yield from _spans_in(source, view, Row(1, row.start, whole.end), numbered=True)
        while row is not None and row.start < whole.end:
            if lines:
                yield from _spans_in(source, view, row, numbered=False)
            row, following = following, next(rows, None)


def _is_json(line: memoryview) -> bool:
    if len(line) < 2:
        return False
    try:
        decode_json(bytes(line))
    except ValueError:
        return False
    return True


def _spans_in(source: Source, view: memoryview, row: Row, *, numbered: bool) -> Iterator[Row]:
    """The spans of a document or of an array, or the row itself, where it is a span."""
    raws = _inner(source, view[row.start : row.end], row)
    if raws is None:
        yield row
        return
    array = _is_array(view[row.start : row.end])
    origin = _address(view)
    for index, raw in enumerate(raws):
        part = memoryview(raw)
        start = _address(part) - origin
        found = Row(index if numbered else row.line, start, start + len(part))
        if array:
            yield from _spans_in(source, view, found, numbered=False)
        else:
            yield found


def _is_array(data: memoryview) -> bool:
    return bytes(data[:256]).lstrip()[:1] == b"["


def _inner(source: Source, data: memoryview, row: Row) -> list[msgspec.Raw] | None:
    """Elements of an array, spans of a document; None: it is neither."""
    try:
        if _is_array(data):
            return _elements.decode(data)
        document = _documents.decode(data)
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{source.place(row)}: is no document of spans ({error})",
            hint="docs/traces-formats/otel-genai.md",
        ) from None
    except (msgspec.DecodeError, RecursionError):
        source.json(row)  # says with its place why it is no JSON
        raise
    if document.spans is None and document.resources is None:
        return None
    found = list(document.spans or ())
    for resource in document.resources or ():
        for scope in (*resource.scopes, *resource.older):
            found += scope.spans
    return found


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


_KEYS = {
    "span_id": ("span_id", "spanId"),
    "trace_id": ("trace_id", "traceId"),
    "parent_id": ("parent_span_id", "parentSpanId", "parent_id"),
    "start": ("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime"),
    "end": ("end_time", "endTimeUnixNano", "end_time_unix_nano", "endTime"),
}
"""Of each fact, the keys that exporters write it under."""


def span_of(value: Any, place: str) -> Span:
    """Raises TraceError for what is no span, and for a span without its times."""
    if not isinstance(value, dict):
        raise TraceError(f"{place}: is a {type(value).__name__}, not a span", hint=_HINT)
    context = value.get("context")
    facts = {**context, **value} if isinstance(context, dict) else value  # the SDK's own `to_json`
    start, end = (_time(facts, name, place) for name in ("start", "end"))
    if end < start:
        raise TraceError(f"{place}: the span ends {(start - end) / 1e9:.3f} s before it starts", hint="which clock?")
    return Span(
        span_id=_ident(facts, "span_id", place),
        trace_id=_ident(facts, "trace_id", place),
        parent_id=_ident(facts, "parent_id", place) if _key(facts, "parent_id") else None,
        start_ns=start,
        end_ns=end,
        attributes=_attributes(value.get("attributes"), place),
    )


def _key(facts: dict[str, Any], name: str) -> str | None:
    return next((key for key in _KEYS[name] if facts.get(key) not in (None, "")), None)


def _ident(facts: dict[str, Any], name: str, place: str) -> str:
    key = _key(facts, name)
    if key is None:
        raise TraceError(f"{place}: the span has no {_KEYS[name][0]}", hint="docs/traces-formats/otel-genai.md")
    return want_string(facts, key, place)


def _time(facts: dict[str, Any], name: str, place: str) -> int:
    key = _key(facts, name)
    if key is None:
        raise TraceError(f"{place}: the span has no {_KEYS[name][0]}", hint="a span that never ended is not exported")
    return moment_ns(facts, key, place)


def _attributes(raw: object, place: str) -> dict[str, Any]:
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, list):
        raise TraceError(f"{place}: attributes is a {type(raw).__name__}, an object or a list is wanted", hint=_HINT)
    return _key_values(raw, place)


def _key_values(pairs: list[Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        if not isinstance(pair, dict) or not isinstance(pair.get("key"), str):
            raise TraceError(f"{place}: an attribute has no key", hint='attributes are like {"key": …, "value": …}')
        found[pair["key"]] = _value(pair.get("value"), place)
    return found


def _value(value: Any, place: str) -> Any:
    """OTLP's AnyValue; other values are taken as they are."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "intValue" and isinstance(inner, str):
        return int(inner) if inner.removeprefix("-").isdecimal() else inner
    if kind in ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue"):
        return inner
    members = inner.get("values") or [] if isinstance(inner, dict) else []
    if kind == "arrayValue":
        return [_value(member, place) for member in members]
    if kind == "kvlistValue":
        return _key_values(members, place)
    return value
