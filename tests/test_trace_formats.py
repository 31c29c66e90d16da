"""What holds for every trace format: told from its content, however it is packed, and kept whole by the normal form."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import jsonschema
import pytest
import zstandard

from infersiege.traces import READERS, Trace, open_trace
from infersiege.traces.formats import normal

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
NAMES = sorted(path.name for path in EXAMPLES.iterdir())
"""`FORMAT.suffix` or `FORMAT.VARIANT.suffix`."""
OPTIONS: dict[str, dict[str, object]] = {"openai-messages.cumulative.jsonl": {"rows": "cumulative"}}


def opened(name: str, *, limit: int | None = None) -> Trace:
    return open_trace(name, base=EXAMPLES, options=OPTIONS.get(name), limit=limit)


def sessions(trace: Trace) -> list[object]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def test_every_format_has_an_example():
    assert {name.split(".")[0] for name in NAMES} == set(READERS)


@pytest.mark.parametrize("name", NAMES)
def test_format_is_told_from_the_content_of_examples(name, tmp_path):
    trace = opened(name)
    assert trace.format == name.split(".")[0]
    assert trace.skipped == {}
    data = (EXAMPLES / name).read_bytes()
    for packing, packed in {"gz": gzip.compress(data), "zst": zstandard.compress(data)}.items():
        path = tmp_path / f"no_suffix_{packing}"
        path.write_bytes(packed)
        again = open_trace(str(path), options=OPTIONS.get(name))
        assert (again.format, again.sessions) == (trace.format, trace.sessions), packing
        assert again.sha256 != trace.sha256, "the hash is of the file as it lies there"


@pytest.mark.parametrize("name", NAMES)
def test_sessions_are_the_same_however_they_are_asked_for(name):
    trace, other = opened(name), opened(name)
    assert trace.sessions is not None
    forward = sessions(trace)
    assert forward == [other.session(index) for index in reversed(range(trace.sessions))][::-1]
    for index in (-1, trace.sessions):
        with pytest.raises(IndexError):
            trace.session(index)


@pytest.mark.parametrize("name", NAMES)
def test_limit_takes_sessions_from_the_front(name):
    limited = opened(name, limit=1)
    assert limited.sessions == 1
    assert limited.session(0).turns == opened(name).session(0).turns


@pytest.mark.parametrize("name", NAMES)
def test_normal_form_keeps_everything(name, tmp_path):
    trace = opened(name)
    buffer = io.BytesIO()
    assert normal.write(buffer, sessions(trace)) == trace.sessions
    path = tmp_path / "normal.jsonl"
    path.write_bytes(buffer.getvalue())
    again = open_trace(str(path))
    assert again.format == normal.NAME
    assert sessions(again) == sessions(trace)
    assert (
        again.arrivals_ns is None if trace.arrivals_ns is None else list(again.arrivals_ns) == list(trace.arrivals_ns)
    )


SCHEMA = Path(__file__).parents[1] / "docs" / "schema" / "session.schema.json"


@pytest.mark.parametrize("name", NAMES)
def test_sessions_fit_the_published_schema(name):
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for line in list(normal.lines(sessions(opened(name))))[1:]:
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"session_id": "a"})
