"""What messages are made of, and times of rows: one function for each, whichever format they come from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.traces import open_trace
from infersiege.traces.files.stamps import date_ns, stamp_ns
from infersiege.traces.sessions.chat import UnsendableError, check_messages
from infersiege.traces.sessions.chat_parts import (
    answer,
    answer_of,
    content_of,
    image_part,
    joined_text,
    text_part,
    tool_call,
    user_message,
)
from infersiege.traces.trace import Tally

WRAPPED = ("arguments of a tool call are no JSON object and are sent as the only member of one",)


@pytest.mark.parametrize(
    ("arguments", "sent", "warnings", "why"),
    [
        ('{"a": 1}', '{"a": 1}', (), "as it was written"),
        ({"a": [1]}, '{"a":[1]}', (), "decoded by an exporter"),
        ("", "{}", (), "no arguments"),
        (None, "{}", (), "none either"),
        ("ls -la", '{"arguments":"ls -la"}', WRAPPED, "a text"),
        ('{"a": 1', '{"arguments":"{\\"a\\": 1"}', WRAPPED, "JSON that was cut"),
        ("[1]", '{"arguments":"[1]"}', WRAPPED, "JSON, but no object"),
        ([1], '{"arguments":"[1]"}', WRAPPED, "the same, decoded"),
    ],
)
def test_arguments_of_calls_are_json_objects(arguments, sent, warnings, why):
    tally = Tally()
    call = tool_call("c1", "f", arguments, tally)
    assert call == {"id": "c1", "type": "function", "function": {"name": "f", "arguments": sent}}, why
    assert tally.warnings() == warnings


@given(
    arguments=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
)
def test_any_arguments_become_an_object(arguments):
    call = tool_call("c1", "f", arguments, Tally())
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    asked = [
        {"role": "user", "content": "hi"},
        answer(None, [call]),
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    assert check_messages(asked) == asked


IMAGE = image_part("data:image/png;base64,AA", detail="low")


def test_parts_become_contents():
    assert IMAGE == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    assert content_of([text_part("a")]) == "a"
    assert content_of([text_part("a"), text_part("b")]) == [text_part("a"), text_part("b")]
    assert content_of([IMAGE]) == [IMAGE]
    assert content_of([]) == ""
    assert user_message([text_part("a"), text_part("b")]) == {"role": "user", "content": "a\n\nb"}
    assert user_message([text_part("a"), IMAGE]) == {"role": "user", "content": [text_part("a"), IMAGE]}


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), ([text_part("a"), IMAGE, text_part("b"), "odd", {"text": 5}], "a\nb"), (None, ""), (5, "")],
)
def test_contents_as_one_text(content, text):
    assert joined_text(content) == text


def test_answers_are_null_only_where_they_call():
    call = tool_call("c1", "f", {}, Tally())
    assert answer_of(["a", "", "b"], []) == {"role": "assistant", "content": "a\n\nb"}
    assert answer_of([], []) == {"role": "assistant", "content": ""}
    assert answer_of([], [call]) == {"role": "assistant", "content": None, "tool_calls": [call]}
    with pytest.raises(UnsendableError, match="message_without_content"):
        answer({"no": "text"})


def test_codex_arguments_that_are_no_json_are_sent_as_an_object(tmp_path):
    """Servers refuse a request whose history has other arguments: one of them would end every later turn."""

    def item(second: int, kind: str, **more: object) -> dict[str, object]:
        stamp = f"2026-03-04T07:00:{second:02d}.000Z"
        return {"timestamp": stamp, "type": "response_item", "payload": {"type": kind, **more}}

    def said(second: int, role: str, kind: str, text: str) -> dict[str, object]:
        return item(second, "message", role=role, content=[{"type": kind, "text": text}])

    rows = [
        {"timestamp": "2026-03-04T07:00:00.000Z", "type": "session_meta", "payload": {"id": "c1"}},
        said(1, "user", "input_text", "list it"),
        item(2, "function_call", name="shell", arguments="ls -la", call_id="x"),
        item(3, "function_call_output", call_id="x", output="a b"),
        said(4, "assistant", "output_text", "a and b"),
    ]
    path = tmp_path / "rollout.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    trace = open_trace(str(path), format="codex")
    (answered,) = trace.session(0).turns[0].recorded_answer
    assert json.loads(answered["tool_calls"][0]["function"]["arguments"]) == {"arguments": "ls -la"}


# ----------------------------------------------------------------------------------------------------------- dates


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("2026-06-01T05:40:20.123456789Z", 1_780_292_420_123_456_789),
        ("2026-06-01T07:40:20.1+02:00", 1_780_292_420_100_000_000),
        ("2026-06-01T07:40:20.1+0200", 1_780_292_420_100_000_000),
        ("2026-06-01 05:40:20", 1_780_292_420_000_000_000),
        ("1969-12-31T23:59:59.5Z", -500_000_000),
        ("0001-01-01T00:00:00+14:00", -62_135_647_200 * 10**9),
    ],
)
def test_dates_are_read_to_the_nanosecond(text, at_ns):
    assert stamp_ns(text) == at_ns


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("call me at 555-0100", r"^p:1: sent is a string of 19 characters that is no date$"),
        ("2026-02-30T00:00:00Z", r"^p:1: sent is no date of the calendar$"),
        ("2026-02-03T00:00:00+99:99", r"^p:1: sent is no date of the calendar$"),
        ("٢٠٢٦-02-03T00:00:00Z", r"^p:1: sent is a string of 20 characters that is no date$"),
        (None, r"^p:1: sent is no string, a date and time is wanted$"),
        (5, r"^p:1: sent is no string, a date and time is wanted$"),
        ("1815-06-18T11:35:00Z", r"^p:1: sent, counted from 1970, is .* centuries$"),
    ],
)
def test_what_is_no_date_is_refused_without_its_words(value, message):
    with pytest.raises(TraceError, match=message) as caught:
        date_ns(value, "sent", "p:1")
    assert caught.value.hint
