"""Traces made of traces: shape only, redacted, sampled, stretched, multiplied, and loaded into Redis."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import redis
import redis_server
from hypothesis import given
from hypothesis import strategies as st

from infersiege import redis_stream
from infersiege.errors import UsageError
from infersiege.records import BlockText, Branch, Session, Turn
from infersiege.traces import Conversation, Synthesizer, describe, open_trace
from infersiege.traces.formats import normal
from infersiege.traces.rewriting.change import (
    copy_of,
    drawn,
    evenly,
    every_session,
    header_of,
    multiplied,
    rebased,
    redacted,
    redacted_header,
    redacted_text,
    stretched,
)
from infersiege.traces.rewriting.shape import IMAGE_TOKENS, Shaper, shape_header
from infersiege.traces.sessions.chat import REQUEST_FIELDS, check_messages
from infersiege.traces.sessions.session_checks import check_branches

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
KEY = b"only for tests"

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"secret": "launch code"}'}}
TOOLS = ({"type": "function", "function": {"name": "look_up", "description": "Looks up private things. " * 20}},)
TALK = Session(
    session_id="jane.doe@corp.example",
    tools=TOOLS,
    arrival_ns=5_000_000_000,
    turns=(
        Turn(
            messages=(
                {"role": "system", "content": "You serve Jane Doe. " * 60},
                {"role": "user", "content": "My key is sk-test-000, mail jane.doe@corp.example"},
            ),
            recorded_answer=({"role": "assistant", "content": None, "tool_calls": [CALL]},),
            extra={"temperature": 0.5, "stop": ["Jane"]},
        ),
        Turn(
            messages=(
                {"role": "tool", "tool_call_id": "c1", "content": "Bearer abcdefghij-0123456789"},
                {"role": "user", "content": "Thanks, Jane here"},
            ),
            recorded_answer=({"role": "assistant", "content": "You are welcome, Jane"},),
            delay_ns=2_000_000_000,
            asked_prompt_tokens=900,
        ),
    ),
    branches=(Branch(turns=(Turn(messages=({"role": "user", "content": "Scout for Jane"},)),), after=0, joined_by=1),),
)
PRIVATE = ("Jane", "sk-test", "jane.doe", "abcdefghij", "launch", "look_up", "private", "Scout", "welcome")


def requests(session: Session) -> list[list[dict[str, object]]]:
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    found = []
    while (turn := conversation.next_turn()) is not None:
        found.append(turn.messages)
        conversation.answered("live")
    return found


# ------------------------------------------------------------------------------------------------------ shape only


def test_tr_15_shape_only_keeps_no_word():
    written = b"\n".join(normal.lines([Shaper(KEY).session(TALK)])).decode()
    assert [word for word in PRIVATE if word.lower() in written.lower()] == []


EVERYWHERE = Session(
    session_id="jane",
    tools=({"type": "function", "function": {"name": "jane_tool"}},),
    turns=(
        Turn(
            messages=(
                {"role": "developer", "content": "jane"},
                {
                    "role": "user",
                    "name": "jane",
                    "content": [
                        {"type": "text", "text": "jane"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,jane"}},
                        {"type": "file", "file": {"filename": "jane.pdf", "file_data": "jane"}},
                        {"type": "input_audio", "input_audio": {"data": "jane", "format": "wav"}},
                    ],
                },
            ),
            texts=(BlockText(scope="jane", ids=(1,), tokens=(5,), language="jane"), None),
            tools=({"type": "function", "function": {"name": "jane_other_tool"}},),
            recorded_answer=(
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "jane",
                    "refusal": "jane",
                    "annotations": [{"url": "jane"}],
                    "tool_calls": [{"id": "jane", "type": "function", "function": {"name": "jane", "arguments": "{}"}}],
                },
            ),
            answer_text=BlockText(scope="jane/answer", ids=(2,), tokens=(3,)),
            extra={
                "jane": 1,
                "temperature": 0.5,
                "tool_choice": {"type": "function", "function": {"name": "jane_tool"}},
                "logit_bias": {"jane": 1},
                "prompt_cache_key": "jane",
                "metadata": {"user": "jane"},
            },
        ),
        Turn(
            messages=({"role": "tool", "tool_call_id": "jane", "name": "jane", "content": "jane"},),
            tools=({"type": "function", "function": {"name": "jane_late_tool"}},),
        ),
    ),
)


def test_tr_15_shape_only_keeps_no_word_from_any_place():
    shaped = Shaper(KEY).session(EVERYWHERE)
    assert "jane" not in msgspec.json.encode(shaped).decode()
    assert shaped.turns[0].extra == {"temperature": 0.5}
    assert [message["role"] for message in shaped.turns[0].messages] == ["system", "user"]


def strings_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_of(item)


OURS = {
    *(field for struct in (Session, Turn, Branch, BlockText) for field in struct.__struct_fields__),
    *REQUEST_FIELDS,
    *("role", "content", "system", "user", "assistant", "", "shape", "en", "zh"),
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.is_file()))
def test_tr_15_a_shape_of_any_format_has_only_our_own_words(name):
    trace = open_trace(name, base=EXAMPLES, options={"rows": "cumulative"} if "cumulative" in name else {})
    shaper = Shaper(KEY)
    for session in every_session(trace):
        shaped = msgspec.json.decode(msgspec.json.encode(shaper.session(session)))
        assert re.fullmatch("[0-9a-f]{16}", shaped.pop("session_id"))
        assert set(strings_of(shaped)) <= OURS


def test_tr_15_a_shapes_header_names_neither_file_nor_its_hash():
    changes = ("sample from 10m to the end", "stretch 1e-05 with delays", "multiply 3", "for jane", "redact\njane")
    header = normal.Header(infersiege_trace=1, made_from="jane_doe.jsonl (sharegpt)", sha256="ab", changes=changes)
    known = (*changes[:3], "another change", "another change")
    assert shape_header(header, "sharegpt") == normal.Header(
        infersiege_trace=1, made_from="sharegpt", sha256=None, changes=known
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_shape_keeps_language_and_what_says_how_a_text_may_be_cut(language):
    block = BlockText(scope="s", ids=(1, 2), tokens=(16, 4), language=language, shared=True, last=True)
    told = Turn(
        messages=({"role": "user", "content": ""}, {"role": "user", "content": "recorded"}),
        texts=(block, None),
        answer_text=msgspec.structs.replace(block, shared=False, last=False),
    )
    turn = Shaper(KEY).session(Session(session_id="s", turns=(told,))).turns[0]
    (text,) = turn.texts
    assert text is not None
    assert turn.answer_text is not None
    assert (text.language, text.shared, text.last) == (language, True, True)
    assert (turn.answer_text.language, turn.answer_text.shared, turn.answer_text.last) == (language, False, False)
    recorded = Turn(messages=({"role": "user", "content": "recorded"},))
    both = Shaper(KEY).session(Session(session_id="s", turns=(recorded, told)))
    assert {text.language for turn in both.turns for text in turn.texts if text is not None} == {language}
    plain = Session(session_id="s", turns=(recorded,))
    (text,) = Shaper(KEY, language=language).session(plain).turns[0].texts
    assert text is not None
    assert text.language == language, "recorded texts have the language that was asked for"


def test_shape_keeps_the_order_of_own_words_and_made_up_text():
    def first_of(last: bool) -> tuple[int, ...]:
        block = BlockText(scope="s", ids=(1,), tokens=(16,), last=last)
        messages = ({"role": "user", "content": "own"},)
        answer = ({"role": "assistant", "content": "before"}, {"role": "assistant", "content": "own"})
        turn = Turn(messages=messages, texts=(block,), recorded_answer=answer, answer_text=block)
        shaped = Shaper(KEY).session(Session(session_id="s", turns=(turn,))).turns[0]
        assert shaped.texts[0] is not None
        assert shaped.answer_text is not None
        assert shaped.answer_text.ids[1:] == shaped.texts[0].ids, "the text is the last message's of an answer, too"
        return shaped.texts[0].ids

    assert first_of(False) == first_of(True)[::-1]


def test_shape_puts_tools_at_the_front_once_also_where_a_branch_inherits_them():
    turn = Turn(messages=({"role": "user", "content": "hi"},))
    branches = tuple(Branch(turns=(turn,), after=0, inherits=inherits) for inherits in (True, False))
    session = Session(session_id="s", turns=(turn,), branches=branches, tools=TOOLS)
    sizes = [
        sum(turn.texts[0].tokens) for turn in Shaper(KEY).session(session).all_turns() if turn.texts[0] is not None
    ]
    assert sizes == [sizes[0], 1, sizes[0]]
    assert sizes[0] > 100


def test_shape_tells_one_image_from_another():
    def of(url: str) -> tuple[int, ...]:
        part = {"type": "image_url", "image_url": {"url": url}}
        turn = Turn(messages=({"role": "user", "content": [part]},))
        (text,) = Shaper(KEY).session(Session(session_id="s", turns=(turn,))).turns[0].texts
        assert text is not None
        assert text.tokens == (IMAGE_TOKENS,)
        return text.ids

    assert of("data:a") == of("data:a") != of("data:b")


def test_shape_keeps_turns_times_and_lengths():
    shaped = Shaper(KEY).session(TALK)
    check_branches(shaped, "shaped")
    assert len(shaped.turns) == 2
    assert (shaped.arrival_ns, shaped.turns[1].delay_ns) == (TALK.arrival_ns, TALK.turns[1].delay_ns)
    assert [(branch.after, branch.joined_by) for branch in shaped.branches] == [(0, 1)]
    assert shaped.turns[1].asked_prompt_tokens == 900
    assert shaped.turns[0].extra == {"temperature": 0.5}, "numbers stay, texts go"
    system, user = shaped.turns[0].texts
    assert system is not None
    assert user is not None
    characters = len(str(TOOLS)) + len(str(TALK.turns[0].messages[0]["content"]))
    assert sum(system.tokens) == pytest.approx(characters / 4, rel=0.05), "tools and system prompt, at the front"
    assert [message["role"] for message in shaped.turns[1].messages] == ["user"], "results and thanks are one message"


def test_shape_sends_messages_that_servers_take():
    for messages in requests(Shaper(KEY).session(TALK)):
        assert check_messages(messages) == messages


def test_shape_keeps_what_texts_share_up_to_the_first_difference():
    def of(text: str) -> BlockText:
        turn = Turn(messages=({"role": "user", "content": text},))
        (found,) = Shaper(KEY).session(Session(session_id="s", turns=(turn,))).turns[0].texts
        assert found is not None
        return found

    first, second = of("a" * 1000 + "x"), of("a" * 1000 + "y")
    assert first.ids[:3] == second.ids[:3]
    assert first.ids[3:] != second.ids[3:]
    assert of("a" * 300) == of("a" * 300)


def test_a_shape_can_not_be_told_without_its_key():
    ours, theirs = (Shaper(key).session(TALK).turns[0].texts[0] for key in (b"ours", b"theirs"))
    assert ours is not None
    assert theirs is not None
    assert not set(ours.ids) & set(theirs.ids)
    assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("name", ["mooncake.jsonl", "tau-bench.json", "infersiege.jsonl"])
def test_shape_has_the_prefix_sharing_of_its_original(name, tmp_path):
    trace = open_trace(name, base=EXAMPLES)
    path = tmp_path / "shape.jsonl"
    shaper = Shaper(KEY)
    with path.open("wb") as file:
        normal.write(file, map(shaper.session, every_session(trace)))
    before, after = describe(trace), describe(open_trace(str(path)))
    assert (after.sessions, after.turns, after.span_s) == (before.sessions, before.turns, before.span_s)
    if before.cache_bound is not None:
        assert after.cache_bound == pytest.approx(before.cache_bound, abs=0.08)


# ---------------------------------------------------------------------------------------------------------- redact


@pytest.mark.parametrize(
    ("text", "gone", "why"),
    [
        ("sk-test-000", "sk-test-000", "an OpenAI key, shorter than real ones"),
        ("Authorization: Bearer abc.def-123456", "abc.def-123456", "a header in a log"),
        ("hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst", "a Hugging Face token"),
        ("write to jane.doe+x@mail.corp.example.", "jane.doe+x@mail.corp.example", "a mail address"),
        ("https://user:pw@host/x", "user:pw", "a URL with a password"),
        ("jane.doe%40corp.example", "jane.doe", "an address in a URL"),
        (r"jane.doe\u0040corp.example", "jane.doe", "an address in JSON in a text"),
        ("jane.doe&#64;corp.example", "jane.doe", "an address in HTML"),
        ("jürgen@müller.example", "rgen@m", "letters that are not ASCII"),
        ("请联系 张三@公司.中国 谢谢", "张三", "letters that have no spaces between"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSF", "a cloud's access key"),
        ("xoxb-123456789012-abcdef", "123456789012", "a chat's token"),
        ("github_pat_11ABCDEFG0abcdefghijkl", "11ABCDEFG0", "a token of GitHub, fine-grained"),
        ("gho_abcdefghijklmnop1234", "abcdefghijklmnop", "and an OAuth one"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE", "a private key"),
    ],
)
def test_tr_15_redact_takes_keys_and_addresses_wherever_they_stand(text, gone, why):
    message = {"role": "user", "content": [{"type": "text", "text": f"before {text} after"}]}
    tool = {"type": "function", "function": {"name": "f", "description": text}}
    session = Session(session_id="s", turns=(Turn(messages=(message,), extra={"stop": [text]}),), tools=(tool,))
    clean = redacted(session)
    written = msgspec.json.encode(clean).decode()
    assert gone not in written, why
    assert written.count("before ") == 1
    assert " after" in written, "what is no secret stays"


@pytest.mark.parametrize(
    ("arguments", "gone", "why"),
    [
        ('{"to": "jane\\u0040corp.example", "n": 1}', "jane", "escaped as JSON may be"),
        ('{"api_key": "hunter2 and more", "n": 1}', "and more", "a key's name, and a value with spaces"),
        ('[{"headers": {"Cookie": "a=b c=d"}, "n": 1}]', "c=d", "deeper"),
        ('{"to": "jane\\u0040corp.example", "n": 1', "jane", "JSON that was cut"),
    ],
)
def test_tr_15_redact_reads_json_in_texts(arguments, gone, why):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turn = Turn(messages=({"role": "assistant", "content": None, "tool_calls": [call]},), extra={"password": "hunter2"})
    written = msgspec.json.encode(redacted(Session(session_id="s", turns=(turn,)))).decode()
    assert gone not in written, why
    assert "hunter2" not in written
    assert r"\"n\"" in written, "what is no secret stays"


def test_redact_writes_json_anew_only_where_it_must():
    text = '{ "to":  "jane@corp.example",\n "n": 1 }'
    turn = Turn(messages=({"role": "tool", "tool_call_id": "c", "content": text},))
    clean = redacted(Session(session_id="s", turns=(turn,))).turns[0].messages[0]["content"]
    assert clean == text.replace("jane@corp.example", "user@example.com")


def test_tr_15_redact_looks_at_the_files_name_too():
    header = normal.Header(
        infersiege_trace=1, made_from="jane@corp.example.jsonl (sharegpt)", sha256="ab", changes=("x",)
    )
    clean = redacted_header(header)
    assert clean == normal.Header(
        infersiege_trace=1, made_from="user@example.com (sharegpt)", sha256="ab", changes=("x",)
    )


def test_redact_takes_time_by_the_length_of_a_text():
    """A megabyte without a space: what looks for addresses must not begin anew at each of its letters."""
    text = "0123456789abcdef" * 65_536 + " @"
    begun = time.perf_counter()
    assert redacted_text(text) == text
    assert time.perf_counter() - begun < 10


def test_redact_leaves_a_trace_without_secrets_as_it_is():
    for name in ("mooncake.jsonl", "tau-bench.json", "infersiege.jsonl", "openai-messages.jsonl"):
        for session in every_session(open_trace(name, base=EXAMPLES)):
            assert redacted(session) == session


# -------------------------------------------------------------------------------------------- sample, stretch, copy


def timed(*arrivals_s: float) -> list[Session]:
    turn = Turn(messages=({"role": "user", "content": "hi"},), delay_ns=4)
    return [
        Session(session_id=f"s{index}", turns=(turn,), arrival_ns=round(at * 1e9))
        for index, at in enumerate(arrivals_s)
    ]


def test_a_share_is_drawn_by_the_session_and_not_by_its_neighbours():
    shares = [drawn(f"s{index}", index, 1) for index in range(5_000)]
    assert sum(share < 0.1 for share in shares) == pytest.approx(500, rel=0.15)
    assert all(0 <= share < 1 for share in shares)
    assert shares != [drawn(f"s{index}", index, 2) for index in range(5_000)]


@given(total=st.integers(1, 60), count=st.integers(1, 80))
def test_evenly_takes_so_many_over_the_whole(total, count):
    sessions = timed(*range(total))
    taken = list(evenly(lambda: sessions, count))
    assert len(taken) == min(total, count)
    places = [sessions.index(session) for session in taken]
    assert places == sorted(set(places))
    gaps = {later - earlier for earlier, later in pairwise(places)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_stretch_multiplies_times_and_delays_if_asked():
    (session,) = timed(3)
    assert stretched(session, 2.5, delays=False).arrival_ns == 7_500_000_000
    assert stretched(session, 2.5, delays=False).turns[0].delay_ns == 4
    assert stretched(session, 2.5, delays=True).turns[0].delay_ns == 10


def test_rebased_counts_from_the_first_session():
    assert [session.arrival_ns for session in rebased(timed(5, 5, 8))] == [0, 0, 3_000_000_000]
    untimed = [msgspec.structs.replace(session, arrival_ns=None) for session in timed(1)]
    assert list(rebased(untimed)) == untimed


@given(
    gaps_s=st.lists(st.floats(0, 20), min_size=1, max_size=30),
    times=st.integers(2, 5),
    spread_s=st.floats(0, 60),
)
def test_copies_come_in_order_and_each_session_so_many_times(gaps_s, times, spread_s):
    arrivals = [sum(gaps_s[: place + 1]) for place in range(len(gaps_s))]
    found = list(multiplied(timed(*arrivals), times, spread_ns=round(spread_s * 1e9), seed=3))
    assert len(found) == times * len(arrivals)
    assert len({session.session_id for session in found}) == len(found)
    at = [session.arrival_ns or 0 for session in found]
    assert at == sorted(at)
    originals = Counter(session.session_id.partition("+")[0] for session in found)
    assert set(originals.values()) == {times}


@pytest.mark.parametrize("name", ["mooncake.jsonl", "tau-bench.json", "infersiege.jsonl"])
def test_tr_12_a_copy_shares_no_first_word_with_its_original(name):
    for session in every_session(open_trace(name, base=EXAMPLES)):
        other = copy_of(session, 1, later_ns=0)
        check_branches(other, "copy")
        for mine, its in zip(requests(session), requests(other), strict=True):
            first, second = str(mine[0]["content"]), str(its[0]["content"])
            assert first.split()[0] != second.split()[0]
            assert len(its) == len(mine)


# ------------------------------------------------------------------------------------------------------------ Redis


@pytest.fixture
def server(tmp_path, free_port, needs):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")

    def start(*settings: str):
        return redis_server.redis_server(tmp_path, free_port(), *settings)

    return start


def test_redis_holds_the_whole_trace_in_order(server):
    trace = open_trace("infersiege.jsonl", base=EXAMPLES)
    with server() as url:
        loaded = redis_stream.load(url, "mine", every_session(trace), header_of(trace, ["thin 0.5"]))
        assert (loaded.sessions, loaded.turns) == (3, 6)
        with redis.Redis.from_url(url, decode_responses=True) as client:
            entries = client.xrange(loaded.key)
            facts = client.hgetall("infersiege:mine:trace")
            assert sorted(client.keys()) == ["infersiege:mine:sessions", "infersiege:mine:trace"]
    assert [int(fields["index"]) for _, fields in entries] == [0, 1, 2]
    kept = [msgspec.json.decode(fields["session"], type=Session) for _, fields in entries]
    assert kept == list(every_session(trace))
    assert facts["sessions"] == "3"
    assert facts["sha256"] == trace.sha256
    assert facts["made_from"] == "infersiege.jsonl (infersiege)"
    assert facts["changes"] == '["thin 0.5"]'


def test_redis_a_trace_that_is_there_is_replaced_only_when_asked(server):
    trace = open_trace("infersiege.jsonl", base=EXAMPLES)
    header = header_of(trace, ())
    with server() as url:
        redis_stream.load(url, "mine", every_session(trace), header)
        with pytest.raises(UsageError, match="there is a trace 'mine' already"):
            redis_stream.load(url, "mine", timed(1), header)
        assert redis_stream.load(url, "mine", timed(1), header, replace=True).sessions == 1
        with redis.Redis.from_url(url) as client:
            assert client.xlen("infersiege:mine:sessions") == 1


def unfinished_of(client: redis.Redis) -> list[str]:
    return client.keys("*unfinished*")


@pytest.mark.parametrize("error", [RuntimeError("the file ended early"), ValueError("a row"), KeyboardInterrupt()])
def test_redis_a_load_that_fails_leaves_what_was_there(server, error):
    """And what it raises stays what it is: a ValueError of a row says nothing of the URL."""
    trace = open_trace("infersiege.jsonl", base=EXAMPLES)
    header = header_of(trace, ())
    seen = []

    def breaking():
        yield from timed(*range(700))
        seen.extend(unfinished_of(client))
        raise error

    with server() as url, redis.Redis.from_url(url, decode_responses=True) as client:
        redis_stream.load(url, "mine", every_session(trace), header)
        with pytest.raises(type(error)) as caught:
            redis_stream.load(url, "mine", breaking(), header, replace=True)
        assert caught.value is error
        assert len(seen) == 1, "some of it was there already"
        assert client.xlen("infersiege:mine:sessions") == 3
        assert not unfinished_of(client)


def test_redis_batches_are_of_so_many_bytes(server):
    """Sessions of agents have megabytes: 500 of them at once would not fit the memory."""
    text = "x" * (redis_stream.BATCH_BYTES // 2)
    turn = Turn(messages=({"role": "user", "content": text},))
    there = []

    def large():
        for number in range(5):
            there.append(sum(client.xlen(key) for key in unfinished_of(client)))
            yield Session(session_id=f"s{number}", turns=(turn,))

    with server() as url, redis.Redis.from_url(url, decode_responses=True) as client:
        loaded = redis_stream.load(url, "mine", large(), normal.Header(infersiege_trace=1))
        assert client.xlen(loaded.key) == 5
    assert there == [0, 0, 2, 2, 4], "two fill a batch"


def test_redis_two_loads_of_one_name_do_not_mix(server):
    header = normal.Header(infersiege_trace=1)

    def slow():
        yield from timed(*range(600))
        redis_stream.load(url, "mine", timed(*range(550)), header)
        yield from timed(9)

    with server() as url, redis.Redis.from_url(url, decode_responses=True) as client:
        with pytest.raises(UsageError, match="there is a trace 'mine' already"):
            redis_stream.load(url, "mine", slow(), header)
        assert client.xlen("infersiege:mine:sessions") == 550, "the one that was whole first"
        client.delete(*redis_stream.keys("mine"))
        assert redis_stream.load(url, "mine", slow(), header, replace=True).sessions == 601
        assert client.xlen("infersiege:mine:sessions") == 601
        assert client.ttl("infersiege:mine:sessions") == -1, "it stays"
        assert not unfinished_of(client)


def test_redis_forgets_what_a_killed_load_has_left(server):
    left = []

    def watched():
        yield from timed(*range(600))
        left.extend(client.ttl(key) for key in unfinished_of(client))
        yield from timed(1)

    with server() as url, redis.Redis.from_url(url, decode_responses=True) as client:
        redis_stream.load(url, "mine", watched(), normal.Header(infersiege_trace=1))
    assert len(left) == 1
    assert 0 < left[0] <= 3_600


def test_redis_that_loses_entries_is_told(server):
    def losing():
        yield from timed(*range(600))
        client.delete(*unfinished_of(client))
        yield from timed(1)

    with server() as url, redis.Redis.from_url(url, decode_responses=True) as client:
        with pytest.raises(UsageError, match="has lost what was written"):
            redis_stream.load(url, "mine", losing(), normal.Header(infersiege_trace=1))
        assert not client.keys("*")


@pytest.mark.parametrize(
    ("settings", "user", "message", "why"),
    [
        (("--requirepass", "hunter2"), "", "another user or password", "a password is wanted"),
        (("--requirepass", "hunter2"), ":wrong@", "another user or password", "another one was given"),
        (("--maxmemory", "1mb"), "", "OOM|memory", "it is full"),
    ],
)
def test_redis_refusals_are_one_line_without_the_password(server, settings, user, message, why):
    with server(*settings) as url, pytest.raises(UsageError, match=message) as caught:
        redis_stream.load(
            url.replace("//", f"//{user}"), "mine", timed(*range(20_000)), normal.Header(infersiege_trace=1)
        )
    assert "wrong@" not in str(caught.value), why
    assert "XADD" not in str(caught.value), "the client repeats the command, which has a session's words"
    assert caught.value.hint


PLACE = "the address of --redis"


@pytest.mark.parametrize(
    ("url", "message", "why"),
    [
        ("redis://user:hunter2@127.0.0.1:{port}/0", r"^redis://127\.0\.0\.1:\d+/0: .*refused", "nobody is there"),
        ("redis://127.0.0.1:{port}/0?password=hunter2", r"^redis://127\.0\.0\.1:\d+/0: .*refused", "a query"),
        ("redis://u:hunter2@[::1]:{port}", r"^redis://\[::1\]:\d+: ", "an address with colons"),
        ("unix:///nowhere/hunt.sock?password=hunter2", r"^unix:///nowhere/hunt.sock: ", "a socket's path is no secret"),
        ("http://127.0.0.1:{port}", r"^http://127\.0\.0\.1:\d+: is no Redis URL", "another scheme"),
        ("redis://127.0.0.1:x/0", f"^{PLACE}: is no Redis URL", "a port that is none"),
        ("redis://user:hun/ter2@127.0.0.1", f"^{PLACE}: is no Redis URL", "a slash ends the host"),
        ("redis://:hunter2#x@127.0.0.1", f"^{PLACE}: is no Redis URL", "a hash mark, too"),
        ("redis://u:hun?ter2@127.0.0.1", f"^{PLACE}: is no Redis URL", "and a question mark"),
        ("redis://127.0.0.1:{port}/ter2@127.0.0.1", f"^{PLACE}: ConnectionError", "a host by its looks"),
        ("user:hunter2@127.0.0.1:6379", f"^{PLACE}: is no Redis URL", "no scheme"),
        ("redis://127.0.0.1/0?db=hunter2", r"^redis://127.0.0.1/0: is no Redis URL", "a value that the client refuses"),
        ("redis://127.0.0.1/0?hunter2=1", r"^redis://127.0.0.1/0: is no Redis URL", "a field that it does not know"),
        ("redis://[::1/hunter2", f"^{PLACE}: is no Redis URL", "half a bracket"),
        ("hunter2", f"^{PLACE}: is no Redis URL", "a password in the wrong place"),
    ],
)
def test_redis_addresses_are_shown_without_what_may_be_secret(url, message, why, free_port):
    with pytest.raises(UsageError, match=message) as caught:
        redis_stream.load(url.format(port=free_port()), "mine", timed(1), normal.Header(infersiege_trace=1))
    said = f"{caught.value}{caught.value.hint}"
    assert "hunter2" not in said, why
    assert "ter2" not in said, why
    assert "hun/" not in said


@given(password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=20))
def test_redis_addresses_show_no_password_however_it_is_written(password):
    secret = f"pw{password}pw"
    for url in (f"redis://:{secret}@host:6379/0", f"redis://u:{secret}@host", f"redis://host/0?password={secret}"):
        assert secret not in redis_stream.shown(url)
        assert "pw" not in redis_stream.shown(url)


# ------------------------------------------------------------------------------------------------------ our own form


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"infersiege_trace": 2}'], r":1: version 2 .* is not known"),
        (['{"session_id": "a", "turns": []}'], r":1: is no header"),
        (['{"infersiege_trace": 1}'], "has no rows"),
        (['{"infersiege_trace": 1}', '{"session_id": "a"}'], r":2: .*turns"),
        (['{"infersiege_trace": 1}', "", '{"session_id": "a", "turns": []}'], r":3: .*no turns"),
        (['{"infersiege_trace": 1}', '{"session_id": "a", "turns": [{"messages": [], "delay": 3}]}'], r":2: .*delay"),
        (['{"infersiege_trace": 1}', '{"session_id": "a", "turns": [{"messages": []'], r":2: "),
    ],
)
def test_own_form_faults_have_their_line(tmp_path, lines, message):
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(Exception, match=message):
        open_trace(str(path), format="infersiege")


ONE = (Turn(messages=({"role": "user", "content": "x"},)),)


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        ([Branch(turns=())], "branch 0 of session 's' has no turns"),
        ([Branch(turns=ONE, after=7)], "starts after turn 7, there are 3"),
        ([Branch(turns=ONE, joined_by=9)], "is joined by turn 9"),
        ([Branch(turns=ONE, inherits=True)], "inherits a history, but starts after no turn"),
        ([Branch(turns=ONE, after=1, joined_by=1)], "wait for each other"),
        ([Branch(turns=ONE, after=1, joined_by=0)], "wait for each other"),
        ([Branch(turns=ONE, after=2)], "wait for each other"),
        (
            [Branch(turns=ONE * 2, joined_by=4), Branch(turns=ONE * 2, joined_by=3)],
            "wait for each other",
        ),
    ],
)
def test_branches_that_could_not_be_played_are_refused(branches, message):
    with pytest.raises(Exception, match=message):
        check_branches(Session(session_id="s", turns=ONE * 2, branches=tuple(branches)), "t:2")


@given(data=st.data())
def test_own_form_is_read_as_it_was_written(data, tmp_path_factory):
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    block = st.builds(
        lambda scope, pairs, last: BlockText(
            scope=scope, ids=tuple(i for i, _ in pairs), tokens=tuple(t for _, t in pairs), last=last
        ),
        text,
        st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 10**6)), max_size=4),
        st.booleans(),
    )
    message = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": text})
    turn = st.builds(
        Turn,
        messages=st.lists(message, min_size=1, max_size=3).map(tuple),
        replaces_history=st.booleans(),
        delay_ns=st.integers(0, 2**60),
        answer_text=st.none() | block,
        asked_prompt_tokens=st.none() | st.integers(0, 10**9),
        extra=st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False) | text, max_size=2),
    )
    turns = st.lists(turn, min_size=1, max_size=3).map(tuple)
    sessions = data.draw(
        st.lists(
            st.builds(
                Session,
                session_id=text,
                turns=turns,
                branches=st.lists(st.builds(Branch, turns=turns, after=st.none() | st.just(0)), max_size=2).map(tuple),
                arrival_ns=st.integers(0, 10**4).map(lambda seconds: seconds * 10**9),
            ),
            min_size=1,
            max_size=5,
        )
    )
    buffer = io.BytesIO()
    normal.write(buffer, sessions)
    path = tmp_path_factory.mktemp("own") / "t.jsonl"
    path.write_bytes(buffer.getvalue())
    again = list(every_session(open_trace(str(path), format="infersiege")))
    seen: set[str] = set()
    for place, session in enumerate(sessions):
        if session.session_id in seen:
            sessions[place] = msgspec.structs.replace(session, session_id=f"{session.session_id}.line-{place + 2}")
        seen.add(session.session_id)
    first_ns = min(session.arrival_ns or 0 for session in sessions)
    in_order = sorted(sessions, key=lambda session: session.arrival_ns or 0)
    assert again == [
        msgspec.structs.replace(session, arrival_ns=(session.arrival_ns or 0) - first_ns) for session in in_order
    ]
