"""Trace readers: what is read, what is skipped and why, what is refused and with which words."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_talks import USER, requests, write

from infersiege.errors import TraceError
from infersiege.traces import READERS, open_trace


def azure(tmp_path: Path, *rows: str, header: str = "TIMESTAMP,ContextTokens,GeneratedTokens") -> str:
    path = tmp_path / "a.csv"
    path.write_bytes("\r\n".join([header, *rows]).encode())
    return str(path)


# ------------------------------------------------------------------------------------------------ all formats


def test_a_first_line_longer_than_the_head_is_still_told(tmp_path):
    path = write(tmp_path / "t.jsonl", {"messages": [{"role": "user", "content": "x" * 400_000}]})
    assert open_trace(str(path)).format == "openai-messages"


def test_formats_that_both_fit_are_named(tmp_path, monkeypatch):
    copy = dict(READERS)
    copy["other"] = READERS["azure"]
    monkeypatch.setattr("infersiege.traces.READERS", copy)
    with pytest.raises(TraceError, match=r"could be azure or other") as caught:
        open_trace(azure(tmp_path, "2023-11-16 18:15:46,1,1"))
    assert "'azure' or 'other'" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file has no rows"),
        (b"\n\n", "the file has no rows"),
        (b"{oops\n", r"t:1: is not JSON \("),
        (b"\n{oops\n", r"t:2: is not JSON \("),
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}\n',
            r"t:1: is not JSON \(it holds half a surrogate pair",
        ),
        (b"[" * 100_000 + b"]" * 100_000 + b"\n", r"t:1: is not JSON \(nested too deeply\)"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", r"t:1: is not JSON \(nested too deeply\)"),
        (b"hello\nworld\n", r"t:1: format can't be told from its first line, which is no JSON object"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n{"mess', r"t:2: is not JSON"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n\xff\xfe\n', r"t:2: is not UTF-8"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n"x"\n', r"t:2: is a str"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n{"a": 1}\n', r"t:2: has no messages \(keys: a\)"),
        (b"\x1f\x8b\x08\x00", "cannot be read"),
    ],
)
def test_broken_files_are_named_by_line(tmp_path, content, message):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.hint or "is a str" in message


def test_byte_order_mark_and_empty_lines_are_passed_over(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": [USER]}).encode() + b"\r\n\r\n")
    assert open_trace(str(path)).sessions == 1


@pytest.mark.parametrize(
    ("spec", "kwargs", "message", "hint"),
    [
        ("none.jsonl", {}, "none.jsonl: no such trace file", "relative to the plan"),
        (".", {}, "no trace file in this folder", "looked for"),
        ("builtin:agnet", {}, "built-in workload 'agnet' is unknown", "did you mean 'agent'?"),
        ("builtin:agent", {"format": "azure"}, "has no format", "leave"),
        ("builtin:agent", {"language": "fr"}, "language 'fr' is unknown", "en, zh"),
        ("x", {"format": "moncake"}, "trace format 'moncake' is unknown", "did you mean 'mooncake'?"),
    ],
)
def test_wrong_names_come_with_the_nearest_right_one(tmp_path, spec, kwargs, message, hint):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(spec, base=tmp_path, **kwargs)
    assert hint in (caught.value.hint or "")


@pytest.mark.timeout(20)
def test_only_regular_files_are_traces(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("none")
    for spec, reason in (
        ("pipe", "pipe: is a pipe, not a file"),
        ("/dev/zero", "/dev/zero: is a device, not a file"),
        ("loop", "loop: cannot be read: Too many levels of symbolic links"),
        ("nowhere", "nowhere: cannot be read: No such file or directory"),
        ("x" * 5000, "x: cannot be read: File name too long"),
    ):
        with pytest.raises(TraceError, match=reason):
            open_trace(spec, base=tmp_path)


def test_lines_end_where_json_lines_end(tmp_path):
    """U+2028, and other line ends of Unicode, are plain characters of a string."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}, ensure_ascii=False) + "\n")
    assert requests(open_trace(str(path)))[0][0]["content"] == "a\u2028b\x85c"


def test_unreadable_file_is_a_trace_error(tmp_path):
    target = tmp_path / "t.jsonl"
    target.write_bytes(gzip.compress(b"x" * 10_000)[:40])
    with pytest.raises(TraceError, match="cannot be read"):
        open_trace(str(target))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = [
    "messages",
    "role",
    "content",
    "tools",
    "tool_calls",
    "timestamp",
    "input_length",
    "hash_ids",
    "session_id",
    "body",
]
ROW = st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON)), max_size=5)


@pytest.mark.parametrize("format", ["openai-messages", "mooncake", "tau-bench", "azure", None])
@settings(deadline=None, max_examples=60)
@given(rows=st.lists(ROW | JSON, max_size=4))
def test_any_json_is_read_or_refused_by_a_trace_error(tmp_path_factory, format, rows):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    write(path, *rows)
    try:
        trace = open_trace(str(path), format=format, options={})
    except TraceError as error:
        assert str(path) in str(error)
    else:
        assert trace.sessions
        for index in range(trace.sessions):
            requests(trace, index)


@pytest.mark.parametrize("format", ["openai-messages", "mooncake", "tau-bench", "azure", None])
@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_by_a_trace_error(tmp_path_factory, format, data):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError):
        open_trace(str(path), format=format)
