"""When each chunk arrived, from reads and their stamps. Times here are exact: no sockets, no clock."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.answer import Answer
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.metrics.histogram import bucket_of
from infersiege.records import ErrorClass

MS = 1_000_000


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})


ROLE = chunk(role="assistant", content="")
TEXT = chunk(content="a")
DONE = b"data: [DONE]\n\n"


def play(*reads: tuple[float, bytes], earliest_ms: float | None = None, batch: int = 1000) -> Answer:
    """Hand reads of (ms, body) over as the transport does. `earliest_ms` holds for the read of the first token."""
    answer = Answer(OpenAIChat().decoder())
    left = [(round(ms * MS), body) for ms, body in reads]
    while left:
        stamp_ns, body = left.pop(0)
        if answer.first(stamp_ns, stamp_ns if earliest_ms is None else round(earliest_ms * MS), body):
            break
    for at in range(0, len(left), batch):
        answer.more(left[at : at + batch])
    answer.end()
    return answer


def gaps(*milliseconds: float) -> dict[int, int]:
    found: dict[int, int] = {}
    for ms in milliseconds:
        bucket = bucket_of(round(ms * MS))
        found[bucket] = found.get(bucket, 0) + 1
    return found


def test_st_01_role_only_first_chunk_does_not_start_ttft() -> None:
    null = chunk(role="assistant", content=None)
    answer = play((0, ROLE), (1, null), (800, TEXT), (820, DONE))
    assert answer.first_token_ns == 800 * MS
    assert answer.first_answer_ns == 800 * MS
    assert answer.chunks == 1


def test_st_02_thinking_tokens_count_for_ttft_not_for_ttfa() -> None:
    thought = [(10.0 * n, chunk(reasoning="x")) for n in range(1, 51)]
    answer = play(*thought, (510, chunk(finish="length")), (511, usage(50)), (511, DONE))
    assert answer.first_token_ns == 10 * MS
    assert answer.first_answer_ns is None
    assert (answer.chunks, answer.last_token_ns) == (50, 500 * MS)


def test_ttfa_is_the_first_answer_after_thinking() -> None:
    answer = play((10, chunk(reasoning_content="x")), (20, chunk(reasoning_content="y")), (30, TEXT), (40, TEXT))
    assert (answer.first_token_ns, answer.first_answer_ns) == (10 * MS, 30 * MS)
    assert answer.gaps == gaps(10, 10, 10)


def test_st_03_gaps_are_between_chunks_not_tokens() -> None:
    answer = play(*[(40.0 * n, TEXT) for n in range(1, 5)], (160, usage(16) + DONE))
    assert (answer.chunks, answer.coalesced) == (4, 0)
    assert answer.gaps == gaps(40, 40, 40)


def test_st_06_results_do_not_depend_on_cuts() -> None:
    body = ROLE + TEXT + TEXT + chunk(finish="stop") + usage(2) + DONE
    cut = body.index(b"NE]")
    for pieces in ([body], [bytes([byte]) for byte in body], [body[:cut], body[cut:]]):
        answer = play(*[(5, piece) for piece in pieces])
        assert (answer.chunks, answer.done, answer.fault) == (2, True, None)
        assert answer.decoder.decoded().text == "aa"


def test_st_06_frames_of_one_read_give_no_gap_of_zero() -> None:
    answer = play((100, TEXT), (120, TEXT * 3), (140, TEXT))
    assert answer.chunks == 5
    assert answer.coalesced == 3
    assert answer.gaps == gaps(20), "140 - 120; the three that shared a read give none"


def test_st_08_keepalives_neither_start_ttft_nor_count_as_chunks() -> None:
    answer = play((0, b": wait\n\n"), (300, b":\n\n"), (600, b"data:\n\n"), (900, TEXT + DONE))
    assert (answer.first_token_ns, answer.keepalives, answer.chunks) == (900 * MS, 3, 1)


def test_st_23_usage_chunk_stretches_nothing() -> None:
    answer = play((100, TEXT), (200, TEXT), (700, usage(2)), (700, DONE))
    assert (answer.first_token_ns, answer.last_token_ns, answer.done_ns) == (100 * MS, 200 * MS, 700 * MS)


def test_st_25_no_token_is_none_and_never_0() -> None:
    answer = play((100, ROLE), (200, usage(0) + DONE))
    assert answer.first_token_ns is None
    assert answer.first_token_slack_ns is None
    assert answer.last_token_ns is None
    assert (answer.chunks, answer.gaps, answer.chunks_by_second) == (0, {}, {})


def test_st_32_end_of_turn_token_is_a_chunk_like_any_other() -> None:
    answer = play((10, chunk(content="4")), (20, chunk(content=".")), (30, chunk(content="<|im_end|>")), (31, usage(2)))
    assert answer.chunks == 3
    assert answer.decoder.decoded().usage.output_tokens == 2


def test_st_35_gaps_do_not_hold_the_ttft() -> None:
    assert play((1000, TEXT), (1010, TEXT), (1020, TEXT)).gaps == gaps(10, 10)


@pytest.mark.parametrize(
    ("body", "slack_ms", "why"),
    [
        (TEXT, 0, "the read is the token: its stamp is exact"),
        (ROLE + TEXT, 0, "what stands before it doesn't matter: the stamp is that of the read's end, which is its"),
        (TEXT + TEXT, 30, "the second may have come later, so the first may have come earlier"),
        (TEXT + b": ping\n\n", 30, "the same with a comment"),
        (TEXT + b"data: {", 30, "the same with a piece of the next event"),
        (TEXT.replace(b"\n", b"\r\n"), 0, "other line ends"),
    ],
)
def test_slack_of_the_first_token(body: bytes, slack_ms: int, why: str) -> None:
    answer = play((100, body), earliest_ms=70)
    assert answer.first_token_ns == 100 * MS
    assert answer.first_token_slack_ns == slack_ms * MS, why


@pytest.mark.parametrize("cut", [3, 40, len(TEXT) - 2, len(TEXT) - 1])
def test_a_first_token_that_came_in_two_reads_is_there_with_the_second(cut: int) -> None:
    answer = play((50, ROLE + TEXT[:cut]), (100, TEXT[cut:]), earliest_ms=20)
    assert (answer.first_token_ns, answer.first_token_slack_ns) == (100 * MS, 0)


def test_chunks_by_second_on_the_epoch() -> None:
    answer = Answer(OpenAIChat().decoder(), epoch_offset_ns=1_700_000_000_900_000_000)
    answer.first(50 * MS, 50 * MS, TEXT)
    answer.more([(99 * MS, TEXT), (100 * MS, TEXT * 2), (1200 * MS, TEXT)])
    answer.end()
    assert answer.chunks_by_second == {1_700_000_000: 2, 1_700_000_001: 2, 1_700_000_002: 1}


def test_bad_json_is_a_fault_that_quotes_the_payload() -> None:
    answer = play((10, TEXT), (20, b"data: <html>" + b"x" * 200 + b"\n\n"), (30, TEXT), (40, DONE))
    assert answer.fault is not None
    assert answer.fault.error_class is ErrorClass.PARSE
    assert "<html>" in answer.fault.detail
    assert "x" * 81 not in answer.fault.detail
    assert (answer.chunks, answer.done) == (2, True), "the rest is still read"


def test_bad_json_before_the_first_token() -> None:
    answer = play((10, b"data: nonsense\n\n"), (20, TEXT))
    assert answer.fault is not None
    assert answer.first_token_ns == 20 * MS


def test_an_unterminated_done_counts() -> None:
    answer = play((10, TEXT), (20, b"data: [DONE]"))
    assert (answer.done, answer.done_ns, answer.unterminated, answer.fault) == (True, 20 * MS, True, None)


def test_an_event_cut_in_the_middle_is_no_parse_fault() -> None:
    answer = play((10, TEXT), (20, TEXT[:-20]))
    assert (answer.done, answer.unterminated, answer.fault, answer.chunks) == (False, True, None, 1)


def test_nothing_after_done_counts() -> None:
    answer = play((10, TEXT), (20, DONE + TEXT), (30, TEXT))
    assert (answer.chunks, answer.done_ns) == (1, 20 * MS)


def test_chunks_are_counted_while_the_answer_is_open() -> None:
    answer = Answer(OpenAIChat().decoder())
    seen = [answer.chunks_so_far]
    answer.first(1, 1, ROLE)
    seen.append(answer.chunks_so_far)
    answer.first(2, 1, TEXT * 2)
    seen.append(answer.chunks_so_far)
    answer.more([(3, TEXT), (4, TEXT * 3), (5, usage(6) + DONE)])
    seen.append(answer.chunks_so_far)
    assert seen == [0, 0, 2, 6]
    answer.end()
    assert answer.chunks_so_far == answer.chunks == 6


def test_end_may_come_twice() -> None:
    answer = play((10, TEXT), (20, TEXT))
    before = dict(answer.gaps)
    answer.end()
    assert (answer.chunks, answer.gaps) == (2, before)


def test_an_exception_that_is_no_value_error_is_not_hidden() -> None:
    class Broken:
        def feed(self, payload: bytes) -> int:
            raise ZeroDivisionError

        def decoded(self) -> None: ...

    with pytest.raises(ZeroDivisionError):
        Answer(Broken()).first(1, 1, TEXT)  # type: ignore[arg-type]


READS = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 3)), min_size=1, max_size=40)


@given(READS, st.integers(1, 7))
def test_every_chunk_is_counted_once_and_gaps_add_up(reads: list[tuple[int, int]], batch: int) -> None:
    """reads: (ms since the last read, chunks in it)."""
    now_ms, played = 0, []
    for step_ms, count in reads:
        now_ms += step_ms
        played.append((float(now_ms), TEXT * count or b": idle\n\n"))
    answer = play(*played, batch=batch)
    counts = [count for _, count in reads]
    stamps = [ms for (ms, _), count in zip(played, counts, strict=True) if count]
    single = [count == 1 for count in counts if count]
    assert answer.chunks == answer.chunks_so_far == sum(counts) == sum(answer.chunks_by_second.values())
    assert answer.coalesced == sum(count for count in counts if count > 1)
    expected = [b - a for (a, b), alone in zip(pairwise(stamps), single[1:], strict=True) if alone]
    assert answer.gaps == gaps(*expected)
    assert answer.keepalives == counts.count(0)
