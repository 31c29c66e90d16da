"""Bytes to events: WHATWG's grammar, whatever the cuts, on the fast path and beside it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infersiege.wire.sse import EventStream


def read(pieces: list[bytes], *, fast: bool = True) -> tuple[list[bytes], int, int]:
    """(payloads with the unterminated one, keepalives, unterminated)."""
    stream = EventStream(fast=fast)
    payloads = [payload for piece in pieces for payload in stream.feed(piece)]
    payloads += stream.close()
    return payloads, stream.keepalives, stream.unterminated


def by_the_book(body: bytes) -> tuple[list[bytes], int, int]:
    """The standard's algorithm, line by line, with our two departures (empty data; the unterminated event)."""
    body = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    payloads: list[bytes] = []
    data: list[bytes] = []
    keepalives = unterminated = 0
    *lines, rest = body.split(b"\n")
    # What stands without its line end at EOF is a line too; then the event ends as by two blank lines.
    for number, line in enumerate([*lines, *([rest] if rest else []), b""]):
        if not line:
            payload = b"\n".join(data)
            if payload:
                payloads.append(payload)
                unterminated += number >= len(lines)
            else:
                keepalives += bool(data)
            data = []
        elif line.startswith(b":"):
            keepalives += 1
        else:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
    return payloads, keepalives, unterminated


A = b'{"a":1}'
ZHONG = b'{"choices":[{"delta":{"content":"\xe4\xb8\xad"}}]}'


@pytest.mark.parametrize(
    ("body", "payloads", "why"),
    [
        (b"data: x\n\ndata: y\n\n", [b"x", b"y"], "the uniform shape"),
        (b"data:x\n\ndata:[DONE]\n\n", [b"x", b"[DONE]"], "no space after the colon"),
        (b"data:  x\n\n", [b" x"], "only one space goes"),
        (b"data: x\r\n\r\ndata: y\r\n\r\n", [b"x", b"y"], "CRLF"),
        (b"data: x\r\rdata: [DONE]\r\r", [b"x", b"[DONE]"], "CR alone"),
        (b"data: x\n\r\ndata: y\n\r\n", [b"x", b"y"], "mixed ends: sseclient-py alone merges these"),
        (b"data: x\r\r\ndata: y\r\n\r", [b"x", b"y"], "a blank line of CR LF after a CR"),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"], "byte order mark"),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", [], "only one of them is a mark, the second is part of a name"),
        (b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [b"x"], "none in the middle"),
        (b"data: x\ndata: y\n\n", [b"x\ny"], "two data lines are one event"),
        (b"data\ndata: x\n\n", [b"\nx"], "a name without a colon has the empty value"),
        (b"event: error\nid: 7\nretry: 5\ndata: x\n\n", [b"x"], "other fields"),
        (b"event: ping\n\n", [], "no data, no event"),
        (b"data: \xff\xfe\n\n", [b"\xff\xfe"], "bad UTF-8 is the reader's matter"),
        (b"data: a\xe2\x80\xa8b\x85c\x0bd\x1ee\n\n", [b"a\xe2\x80\xa8b\x85c\x0bd\x1ee"], "no other line ends"),
        (b"data: x\x00\n\n", [b"x\x00"], "NUL is a character"),
        (b"Data: x\n\n data: y\n\ndatum: z\n\n", [], "names are exact"),
        (b"\n\n\ndata: x\n\n\n\n\ndata: y\n\n", [b"x", b"y"], "blank lines between"),
        (b"data: x\n\n: c\ndata: y\n\n", [b"x", b"y"], "a comment inside an event"),
        (b"", [], "nothing"),
    ],
)
def test_grammar(body: bytes, payloads: list[bytes], why: str) -> None:
    assert read([body])[0] == payloads, why
    assert read([bytes([byte]) for byte in body])[0] == payloads, f"{why}, byte by byte"
    assert by_the_book(body)[0] == payloads, f"{why}: the reference disagrees"


PARTS = st.sampled_from(
    [b"data: ", b"data:", b"data", b": ping", b"event: x", b"{",
     b'{"a":1}', b"[DONE]", b"x", b" ", b":", b"\xef\xbb\xbf",
     b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"\n\ndata: ", b"\xe4\xb8\xad", b"\xff", b"\x85", b"\xe2\x80\xa8"]
)  # fmt: skip
STREAMS = st.one_of(
    st.lists(PARTS, max_size=30).map(b"".join),
    # Mostly uniform, with now and then something else: what the fast path must not take for its own.
    st.lists(st.one_of(st.just(b'data: {"a":1}\n\n'), st.just(b'data: {"a":1}\n\n'), PARTS), max_size=12).map(b"".join),
)


@given(STREAMS, st.lists(st.integers(0, 200), max_size=12))
@example(b"data: x\r\r\ndata: y\n\n", [8, 9])
@example(b"\xef\xbb\xbfdata: x\n\n", [1, 2])
@example(b"data: \n\ndata: y\n\n", [])
def test_cuts_and_the_fast_path_change_nothing(body: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    expected = by_the_book(body)
    assert read(pieces) == expected
    assert read(pieces, fast=False) == expected


@given(st.lists(st.binary(min_size=1).filter(lambda b: not {10, 13} & set(b)), min_size=1), st.data())
def test_any_one_line_payload_comes_back(payloads: list[bytes], data: st.DataObject) -> None:
    body = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    cut = data.draw(st.integers(0, len(body)))
    assert read([body[:cut], body[cut:]]) == (payloads, 0, 0)


def test_st_05_utf8_character_split_between_reads() -> None:
    whole = b"data: " + ZHONG + b"\n\n"
    assert read([whole[:-8], whole[-8:]])[0] == [ZHONG]
    assert read([whole[: whole.index(b"\xad")], whole[whole.index(b"\xad") :]])[0] == [ZHONG]


def test_st_06_frame_split_over_reads_and_several_in_one() -> None:
    body = b"data: " + A + b"\n\ndata: " + ZHONG + b"\n\ndata: [DONE]\n\n"
    expected = [A, ZHONG, b"[DONE]"]
    cut = body.index(b"NE]")
    for pieces in ([body], [bytes([byte]) for byte in body], [body[:cut], body[cut:]]):
        assert read(pieces) == (expected, 0, 0)


def test_st_08_comments_and_empty_events_are_keepalives() -> None:
    pieces = [b": wait\n\n", b":\n\n", b"data:\n\n", b"data: " + A + b"\n\ndata: [DONE]\n\n"]
    assert read(pieces) == ([A, b"[DONE]"], 3, 0)


def test_st_09_data_without_the_space() -> None:
    assert read([b"data:" + A + b"\n\ndata:[DONE]\n\n"])[0] == [A, b"[DONE]"]


def test_st_10_crlf_and_cr_in_different_reads() -> None:
    assert read([b"data: " + A + b"\r", b"\n\r\ndata: [DONE]\r\n\r\n"])[0] == [A, b"[DONE]"]
    assert read([b"data: x\r\rdata: [DONE]\r\r"])[0] == [b"x", b"[DONE]"]


def test_a_lone_cr_ends_the_event_at_once() -> None:
    stream = EventStream()
    assert stream.feed(b"data: x\r\r") == [b"x"], "holding it until the next read would shift its time"
    assert stream.feed(b"\ndata: y\r\n\r") == [b"y"]


@pytest.mark.parametrize("rest", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n", b"data: [DONE]\r"])
def test_an_unterminated_event_is_kept_and_flagged(rest: bytes) -> None:
    stream = EventStream()
    assert stream.feed(b"data: " + A + b"\n\n" + rest) == [A]
    assert stream.unterminated == 0
    assert stream.close() == [b"[DONE]"]
    assert stream.unterminated == 1


def test_a_long_event_in_small_reads_takes_linear_time() -> None:
    payload = b"x" * 4_000_000
    body = b"data: " + payload + b"\n\n"
    stream = EventStream()
    found = [p for at in range(0, len(body), 1000) for p in stream.feed(body[at : at + 1000])]
    assert found == [payload]  # quadratic copying would run into the test's time limit
