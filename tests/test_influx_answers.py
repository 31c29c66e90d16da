"""What an answer means for the points, what a user reads of it, and what the search for bad lines makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.influx import target_of
from infersiege_agents.influx.answers import Verdict, advice, verdict_of, words_of
from infersiege_agents.influx.search import PROBES, search
from infersiege_agents.influx.server import check
from infersiege_agents.influx.transport import Answer, answer_of
from influx_recorder import Recorder, Writers, carry_on, files, point

TOKEN = "S3CRET-token=="
TARGET = target_of("http://db:8086", bucket="perf", token=TOKEN)
NO_ORG = b'{"code":"invalid","message":"Please provide either orgID or org"}'


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Writers]:
    writers = Writers(tmp_path / "spool")
    yield writers
    writers.close()


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (204, b"", Verdict.TAKEN),
        (200, b"<html>Welcome to the hotel</html>", Verdict.REFUSED),  # a captive portal: nothing was written
        (202, b"", Verdict.REFUSED),
        (301, b"", Verdict.REFUSED),
        # InfluxDB 1.8, 2.7, 3 and VictoriaMetrics on lines
        (400, b'{"error":"partial write: field type conflict: input field v dropped=1"}', Verdict.BAD_LINES),
        (400, b'{"error":"unable to parse \'m v=\': missing field value"}', Verdict.BAD_LINES),
        (400, b'{"code":"invalid","message":"failed to parse line protocol: errors encountered"}', Verdict.BAD_LINES),
        (400, b'{"error":"partial write of line protocol occurred","data":[]}', Verdict.BAD_LINES),
        (400, b'{"error":"parsing failed for write_lp endpoint"}', Verdict.BAD_LINES),
        (400, b'cannot parse timestamp for "m v=1 x"', Verdict.BAD_LINES),
        (422, b'{"message":"points beyond retention policy dropped"}', Verdict.BAD_LINES),
        # not on lines
        (400, NO_ORG, Verdict.UNCLEAR),
        (400, b'{"error":"database is required"}', Verdict.UNCLEAR),
        (400, b"<html>400 The plain HTTP request was sent to HTTPS port</html>", Verdict.UNCLEAR),
        (413, b"partial write: whatever", Verdict.UNCLEAR),  # about the size
        (422, b"", Verdict.UNCLEAR),
        (401, b"", Verdict.REFUSED),
        (404, b"", Verdict.REFUSED),
        (408, b"", Verdict.LATER),
        (429, b"", Verdict.LATER),
        (500, b"partial write", Verdict.LATER),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, verdict: Verdict) -> None:
    assert verdict_of(status, words_of(body, TARGET)) is verdict


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f'{{"message":"token {TOKEN} is not valid"}}'.encode(), "token [redacted] is not valid"),
        (f"bad {TOKEN}".encode(), "bad [redacted]"),
        (("x" * 290 + TOKEN).encode(), "x" * 290 + "[redacted]"),  # cut after it was redacted, not before
        (("x" * 295 + TOKEN).encode(), "x" * 295 + "[red…"),
        (b'{"results":[{"error":"database not found: perf"}]}', "database not found: perf"),
        (b'{"results":["text", null]}', '{"results":["text", null]}'),
        (b'["text"]', '["text"]'),
        (b'{"message":7}', '{"message":7}'),
        (b"\xff\n two\tlines ", "\ufffd two lines"),
        (None, ""),
        ("", ""),
        (b"[" * 100_000, "[" * 299 + "…"),  # deeper than any parser
    ],
    ids=str,
)
def test_the_servers_words_are_one_line_without_the_token(body: bytes | str | None, words: str) -> None:
    assert words_of(body, TARGET) == words


def test_a_password_is_redacted_alone_too() -> None:
    target = target_of("http://db", token="admin:Passw0rd")
    assert words_of(b"user admin with Passw0rd is unknown", target) == "user admin with [redacted] is unknown"
    # One of three letters would be found in any word.
    assert words_of(b"unable to parse", target_of("http://db", token="admin:par")) == "unable to parse"


@given(st.text(alphabet='ab{}":message ', max_size=60), st.integers(0, 40))
def test_no_answer_shows_the_token(text: str, place: int) -> None:
    body = (text[:place] + TOKEN + text[place:]).encode()
    for status in (200, 400, 401, 404, 503):
        answer = answer_of(TARGET, status, body, {"Content-Type": "text/html"}, time.time())
        assert TOKEN not in answer.words


def test_a_writer_and_a_check_say_the_same_about_an_answer(recorder: Recorder, make: Writers) -> None:
    """They had a table each: of a missing organisation the writer said that the address is wrong."""
    recorder.always = refusal = (404, {}, b'{"code":"not found","message":"organization name lab not found"}')
    target = target_of(recorder.url, org="lab", token=TOKEN)
    writer = make(target)
    writer.start()
    writer.put(point(1))
    carry_on(writer, lambda: writer.problem)
    said = advice(target, 404, words_of(refusal[2], target), {})
    assert said == "name the organisation in influx_org (--influx-org); `influx org list` shows them"
    assert str(writer.problem) == f"{recorder.url}: 404 organization name lab not found: {said}"
    assert check(target).hint == said
    recorder.always = None


def test_a_token_that_a_server_echoes_is_in_no_file_and_no_line(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    recorder.always = (401, {}, f"token {TOKEN} is not valid".encode())
    writer = make(target_of(recorder.url, token=TOKEN))
    writer.start()
    writer.put(point(1))
    carry_on(writer, lambda: writer.problem)
    assert "401 token [redacted] is not valid" in str(writer.problem)
    recorder.always = (400, {}, f"unable to parse, said {TOKEN}".encode())
    carry_on(writer, lambda: writer.refusal)
    assert TOKEN not in str(writer.refusal)
    recorder.always = None
    writer.close()
    seen = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert any(path.suffix == ".why" for path in seen)
    assert not any(TOKEN.encode() in path.read_bytes() for path in seen)


def test_influxdb_2_without_an_organisation_loses_nothing_and_is_told_what_is_missing(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    """It answers 400, as to bad lines: all of them were set aside."""
    recorder.always = (400, {}, NO_ORG)
    writer = make(recorder.url)
    writer.start()
    for number in range(301):
        writer.put(point(number))
    carry_on(writer, lambda: writer.problem)
    assert "400 Please provide either orgID or org: name the organisation in influx_org" in str(writer.problem)
    assert (writer.counters().rejected, writer.counters().acknowledged) == (0, 0)
    single = [lines for _, _, lines in recorder.requests if len(lines) == 1]
    assert len(single) <= PROBES * (len(recorder.requests) - len(single)), "some lines are tried, not all"
    recorder.always = None
    counters = writer.close()
    assert (counters.written, counters.acknowledged, counters.rejected) == (302, 302, 0)
    assert not files(tmp_path / "spool", "*")


def test_a_refusal_in_unknown_words_is_about_lines_when_another_line_is_taken(
    recorder: Recorder, make: Writers, tmp_path: Path
) -> None:
    recorder.judge = lambda lines: (400, {}, b"no") if any(b"value=7.0" in line for line in lines) else None
    writer = make(recorder.url)
    writer.start()
    for number in range(50):
        writer.put(point(number))
    counters = writer.close()
    assert (counters.rejected, counters.acknowledged) == (1, 50)
    (bad,) = files(tmp_path / "spool", "*.bad")
    assert b"value=7.0" in bad.read_bytes()


class Lines:
    """A database that refuses some lines, with or without words that speak of lines."""

    def __init__(self, bad: set[int], verdict: Verdict) -> None:
        self.bad = bad
        self.verdict = verdict
        self.taken: set[int] = set()
        self.requests = 0

    def __call__(self, content: bytes) -> Answer:
        self.requests += 1
        numbers = {int(line) for line in content.split()}
        if numbers & self.bad:
            return Answer(self.verdict, "no")
        self.taken |= numbers
        return Answer(Verdict.TAKEN)


@given(st.integers(1, 60), st.data())
def test_the_search_delivers_every_good_line_and_sets_aside_every_bad_one(count: int, data: st.DataObject) -> None:
    verdict = data.draw(st.sampled_from([Verdict.BAD_LINES, Verdict.UNCLEAR]))
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    database = Lines(bad, verdict)
    lines = [str(number).encode() for number in range(count)]
    answer, refused = search(lines, Answer(verdict, "no"), database)
    if answer.verdict is Verdict.TAKEN:
        assert {one.number for one in refused} == bad
        assert database.taken == set(range(count)) - bad
    else:  # no word about lines, and of the lines that were tried none was taken
        assert (answer.verdict, refused) == (Verdict.REFUSED, [])
        assert verdict is Verdict.UNCLEAR
        assert database.requests <= PROBES


@pytest.mark.parametrize("first", [Verdict.BAD_LINES, Verdict.UNCLEAR])
@pytest.mark.parametrize("verdict", [Verdict.LATER, Verdict.REFUSED])
def test_a_search_that_meets_another_fault_leaves_all_for_later(verdict: Verdict, first: Verdict) -> None:
    answer, refused = search([b"1", b"2"], Answer(first, "no"), lambda _: Answer(verdict, "another"))
    assert (answer.verdict, answer.words, refused) == (verdict, "another", [])


def test_one_word_about_lines_is_enough_to_look_for_them() -> None:
    """413 for all of them, then of each alone what is wrong with it."""
    answer, refused = search([b"1", b"2"], Answer(Verdict.UNCLEAR, "413"), lambda _: Answer(Verdict.BAD_LINES, "bad"))
    assert (answer.verdict, [one.words for one in refused]) == (Verdict.TAKEN, ["bad", "bad"])
