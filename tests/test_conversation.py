"""Conversations: what each request holds, in recorded and live history, with salt, caps, delays and failures."""

from __future__ import annotations

import copy
import random

import msgspec
import pytest

from infersiege.errors import InternalError
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces import Conversation, Synthesizer, open_trace, prompt_salt

SYNTHESIZER = Synthesizer(1)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def call(ident: str, name: str = "look", arguments: str = "{}") -> dict[str, object]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(ident: str, text: str = "done") -> Message:
    return {"role": "tool", "tool_call_id": ident, "content": text}


def calls(*items: dict[str, object]) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(items)}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def talk(*turns: Turn, **options: object) -> Conversation:
    session = Session(session_id="s", turns=turns)
    return Conversation(session, synthesizer=SYNTHESIZER, **options)


THREE_TURNS = (
    Turn(messages=({"role": "system", "content": "be brief"}, user("a")), recorded_answer=(says("A"),)),
    Turn(messages=(user("b"),), recorded_answer=(says("B"),), delay_ns=200_000_000),
    Turn(messages=(user("c"),), delay_ns=3_000_000_000),
)

TOOL_TURNS = (
    Turn(
        messages=(user("weather in Oslo and Bergen?"),),
        recorded_answer=(calls(call("r1", "oslo"), call("r2", "bergen")),),
    ),
    Turn(messages=(result("r1", "4 C"), result("r2", "6 C")), recorded_answer=(says("4 and 6"),)),
)


def play(conversation: Conversation, answers: list[str] | None = None) -> list[list[Message]]:
    requests = []
    while (turn := conversation.next_turn()) is not None:
        requests.append(copy.deepcopy(turn.messages))
        conversation.answered(answers[turn.index] if answers else "live")
    return requests


def test_tr_08_recorded_history_holds_the_traces_answers():
    """TR-08: recorded by default, the same for every engine."""
    requests = play(talk(*THREE_TURNS), ["x", "a much longer answer", "z"])
    assert [m["content"] for m in requests[2]] == ["be brief", "a", "A", "b", "B", "c"]


def test_tr_08_live_history_holds_the_engines_answers():
    requests = play(talk(*THREE_TURNS, history="live"), ["x", "y", "z"])
    assert [m["content"] for m in requests[2]] == ["be brief", "a", "x", "b", "y", "c"]


def test_tr_08_requests_are_the_same_to_the_byte_whatever_is_answered():
    """TR-08: answers of random length; the requests of two runs with the same seed and salt are equal."""
    trace = open_trace("builtin:agent", seed=3, length_scale=0.02, options={"calls": 6})
    runs = []
    for attempt in range(2):
        rng = random.Random(attempt)
        synthesizer = Synthesizer(3, cache_bytes=attempt * 10_000)
        bodies = []
        for index in range(3):
            conversation = Conversation(trace.session(index), synthesizer=synthesizer, salt=prompt_salt("n", 0))
            while (turn := conversation.next_turn()) is not None:
                bodies.append(msgspec.json.encode([turn.messages, turn.tools, turn.max_tokens]))
                conversation.answered("word " * rng.randrange(50))
        runs.append(bodies)
    assert len(runs[0]) > 6
    assert runs[0] == runs[1]


def test_recorded_history_falls_back_to_the_engines_answer_where_nothing_was_recorded():
    requests = play(talk(Turn(messages=(user("a"),)), Turn(messages=(user("b"),))), ["x", "y"])
    assert [m["content"] for m in requests[1]] == ["a", "x", "b"]


def test_tr_01_compaction_is_sent_as_given():
    """TR-01: message counts 2, 4, 6, 3 (compacted), 5 stay so."""
    turns = (
        *THREE_TURNS[:2],
        Turn(messages=(user("c"),), recorded_answer=(says("C"),)),
        Turn(
            messages=({"role": "system", "content": "be brief"}, user("summary"), user("d")),
            replaces_history=True,
            recorded_answer=(says("D"),),
        ),
        Turn(messages=(user("e"),)),
    )
    for history in ("recorded", "live"):
        requests = play(talk(*turns, history=history))
        assert [len(request) for request in requests] == [2, 4, 6, 3, 5]
        assert requests[3][1]["content"] == "summary"


def test_tr_06_every_turn_is_played_or_countable():
    """TR-06: planned turns and played turns are both known when a session is cut in the middle."""
    conversation = talk(*THREE_TURNS)
    assert conversation.next_turn() is not None
    assert conversation.turns == 3
    conversation.answered("x")
    assert talk(*THREE_TURNS, max_turns=2).turns == 2
    assert len(play(talk(*THREE_TURNS, max_turns=2))) == 2


def test_tr_07_live_session_ends_after_a_failure():
    """TR-07: no user, user roles and no placeholder text: the rest of the session is not sent."""
    conversation = talk(*THREE_TURNS, history="live")
    conversation.next_turn()
    conversation.answered("x")
    conversation.next_turn()
    assert conversation.failed() is False
    assert conversation.next_turn() is None


def test_tr_07_recorded_session_goes_on_with_the_recorded_text():
    conversation = talk(*THREE_TURNS)
    conversation.next_turn()
    conversation.answered("x")
    conversation.next_turn()
    assert conversation.failed() is True
    third = conversation.next_turn()
    assert third is not None
    assert [m["role"] for m in third.messages] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_tr_07_recorded_session_ends_where_the_trace_has_no_answer_to_go_on_with():
    conversation = talk(Turn(messages=(user("a"),)), Turn(messages=(user("b"),)))
    conversation.next_turn()
    assert conversation.failed() is False
    assert conversation.next_turn() is None


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_tr_07_a_turn_that_replaces_the_history_needs_no_earlier_answer(history):
    conversation = talk(
        Turn(messages=(user("a"),)), Turn(messages=(user("b"),), replaces_history=True), history=history
    )
    conversation.next_turn()
    assert conversation.failed() is True
    second = conversation.next_turn()
    assert second is not None
    assert second.messages == [user("b")]


@pytest.mark.parametrize(
    ("delay_ns", "scale", "cap_ns", "expected", "capped", "why"),
    [
        (200_000_000, 1.0, None, 200_000_000, False, "as recorded, from the end of the previous answer"),
        (200_000_000, 0.5, None, 100_000_000, False, "scaled"),
        (200_000_000, 0.0, None, 0, False, "no think time at all"),
        (90_000_000_000, 1.0, 60_000_000_000, 60_000_000_000, True, "capped, and said so"),
        (90_000_000_000, 0.5, 60_000_000_000, 45_000_000_000, False, "scaled first, then capped"),
    ],
)
def test_tr_09_delays_are_scaled_then_capped(delay_ns, scale, cap_ns, expected, capped, why):
    """TR-09: a delay counts from the end of the previous answer, so it is a duration and never a time of day."""
    turns = (Turn(messages=(user("a"),), delay_ns=77), Turn(messages=(user("b"),), delay_ns=delay_ns))
    conversation = talk(*turns, delay_scale=scale, delay_cap_ns=cap_ns)
    first = conversation.next_turn()
    assert first is not None
    assert first.delay_ns == 0, "a first turn has its arrival"
    conversation.answered("x")
    second = conversation.next_turn()
    assert second is not None
    assert (second.delay_ns, second.delay_capped) == (expected, capped), why


@pytest.mark.parametrize(
    ("asked", "extra", "cap", "expected", "why"),
    [
        (50, {}, None, (50, 50), "the recorded length"),
        (50, {"max_tokens": 9}, None, (50, 50), "what was answered says more than what was allowed"),
        (500, {}, 100, (100, 100), "the cap shortens what is asked for, so that asked and sent agree"),
        (None, {"max_tokens": 16}, None, (16, None), "the row's own limit"),
        (None, {"max_completion_tokens": 16, "max_tokens": 8}, None, (16, None), "the newer name wins"),
        (None, {"max_tokens": 999}, 100, (100, None), "and is capped too"),
        (None, {}, None, (256, None), "the plan's default"),
        (None, {}, 100, (100, None), "the default is capped too"),
    ],
)
def test_max_tokens(asked, extra, cap, expected, why):
    turn = talk(
        Turn(messages=(user("a"),), asked_output_tokens=asked, extra={**extra, "seed": 4}), max_tokens=cap
    ).next_turn()
    assert turn is not None
    assert (turn.max_tokens, turn.asked_output_tokens) == expected, why
    assert turn.extra == {"seed": 4}, "a length is given once"


@pytest.mark.parametrize(
    ("turn", "tools", "plain"),
    [
        (Turn(messages=(user("a"),)), None, True),
        (Turn(messages=(user("a"),)), ({"type": "function"},), False),
        (Turn(messages=(user("a"),), tools=({"type": "function"},)), None, False),
        (Turn(messages=(user("a"),), tools=()), ({"type": "function"},), True),
        (Turn(messages=(user("a"),), extra={"response_format": {"type": "json_object"}}), None, False),
        (Turn(messages=(user("a"),), extra={"temperature": 1}), None, True),
    ],
)
def test_plain_text_says_where_ignore_eos_is_safe(turn, tools, plain):
    prepared = Conversation(Session(session_id="s", turns=(turn,), tools=tools), synthesizer=SYNTHESIZER).next_turn()
    assert prepared is not None
    assert prepared.plain_text is plain


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("content", "expected", "why"),
    [
        ("hello", "SALT\nhello", "text"),
        ("", "SALT\n", "empty text"),
        (None, "SALT\n", "no text"),
        (
            [{"type": "text", "text": "look"}, IMAGE],
            [{"type": "text", "text": "SALT\nlook"}, IMAGE],
            "the first part is text",
        ),
        ([IMAGE], [{"type": "text", "text": "SALT\n"}, IMAGE], "the first part is an image, carried verbatim"),
        ([], [{"type": "text", "text": "SALT\n"}], "no parts"),
    ],
)
def test_ls_11_salt_stands_at_the_start_of_the_first_message(content, expected, why):
    """LS-11: a salt anywhere else would leave the start of the prompt in the cache of the run before."""
    message = {"role": "user", "content": content}
    before = copy.deepcopy(message)
    turn = talk(Turn(messages=(message, user("b"))), salt="SALT").next_turn()
    assert turn is not None
    assert turn.messages[0]["content"] == expected, why
    assert turn.messages[1] == user("b")
    assert message == before, "the trace is shared by all users and must not change"


def test_salt_is_the_same_in_every_request_of_a_session_and_never_doubled():
    requests = play(talk(*THREE_TURNS, salt="SALT"))
    assert {request[0]["content"] for request in requests} == {"SALT\nbe brief"}


def test_without_salt_messages_are_the_traces_own():
    turn = talk(*THREE_TURNS).next_turn()
    assert turn is not None
    assert turn.messages == list(THREE_TURNS[0].messages)


def test_prompt_salts_differ_by_nonce_stage_and_repeat():
    salts = {prompt_salt(nonce, stage, repeat) for nonce in "ab" for stage in range(3) for repeat in range(3)}
    assert len(salts) == 18
    assert prompt_salt("a", 1, 11) != prompt_salt("a", 11, 1)
    assert prompt_salt("a", 1) == prompt_salt("a", 1)


def block(ident: int, tokens: int = 40) -> BlockText:
    return BlockText(scope="t", ids=(ident,), tokens=(tokens,))


def test_synthesised_text_comes_before_what_the_message_says_itself():
    turn = talk(Turn(messages=(user("What is it about?"),), texts=(block(1),))).next_turn()
    assert turn is not None
    text = SYNTHESIZER.block("t", 1, 40)
    assert turn.messages[0]["content"] == f"{text}\n\nWhat is it about?"


def test_synthesised_answers_are_history():
    turns = (
        Turn(messages=(user(""),), texts=(block(1),), answer_text=block(2)),
        Turn(messages=(user("next"),)),
    )
    requests = play(talk(*turns))
    assert requests[1][1] == {"role": "assistant", "content": SYNTHESIZER.block("t", 2, 40)}
    assert requests[1][0] == requests[0][0], "the first request is a prefix of the second"


def bound_ids(conversation: Conversation, text: str, live: list[dict[str, object]]) -> list[Message]:
    conversation.next_turn()
    conversation.answered(text, live)
    second = conversation.next_turn()
    assert second is not None
    return second.messages[1:]


def test_live_tool_results_go_to_the_engines_calls_by_name():
    messages = bound_ids(talk(*TOOL_TURNS, history="live"), "", [call("L1", "bergen"), call("L2", "oslo")])
    assert [m.get("tool_call_id") for m in messages] == [None, "L2", "L1"]
    assert [m["content"] for m in messages] == [None, "4 C", "6 C"]


def test_live_tool_results_go_by_order_where_names_differ():
    messages = bound_ids(talk(*TOOL_TURNS, history="live"), "", [call("L1", "x"), call("L2", "oslo")])
    assert [m.get("tool_call_id") for m in messages[1:]] == ["L2", "L1"]


def test_live_calls_without_a_result_are_left_out():
    live = [call("L1", "oslo"), call("L2", "extra"), call("L3", "bergen")]
    messages = bound_ids(talk(*TOOL_TURNS, history="live"), "hm", live)
    assert [c["id"] for c in messages[0]["tool_calls"]] == ["L1", "L3"]
    assert messages[0]["content"] == "hm"


@pytest.mark.parametrize(
    ("text", "live", "why"),
    [
        ("I don't know", [], "no call at all"),
        ("", [call("L1", "oslo")], "one call for two results"),
    ],
)
def test_live_recorded_answer_stands_in_where_a_result_finds_no_call(text, live, why):
    conversation = talk(*TOOL_TURNS, history="live")
    messages = bound_ids(conversation, text, live)
    assert messages[0] == TOOL_TURNS[0].recorded_answer[0], why
    assert [m.get("tool_call_id") for m in messages[1:]] == ["r1", "r2"], why
    assert conversation.substituted == 1, why


def test_live_calls_before_a_user_message_are_left_out():
    conversation = talk(*THREE_TURNS, history="live")
    conversation.next_turn()
    conversation.answered("text", [call("L1")])
    second = conversation.next_turn()
    assert second is not None
    assert second.messages[2] == says("text")
    assert conversation.substituted == 0


def test_live_empty_answer_is_not_put_into_the_history():
    conversation = talk(*THREE_TURNS, history="live")
    conversation.next_turn()
    conversation.answered("")
    second = conversation.next_turn()
    assert second is not None
    assert second.messages[2] == says("A")
    assert conversation.substituted == 1


def test_rebinding_does_not_change_the_trace():
    before = copy.deepcopy(TOOL_TURNS)
    bound_ids(talk(*TOOL_TURNS, history="live", salt="S"), "", [call("L1", "oslo"), call("L2", "bergen")])
    assert before == TOOL_TURNS


def test_every_history_has_its_tool_results_after_their_calls():
    """Live histories of a whole agent session, with an engine that calls at random, are always well formed."""
    trace = open_trace("builtin:agent", seed=5, length_scale=0.01, options={"calls": 12, "tool_share": 0.7})
    rng = random.Random(1)
    for index in range(20):
        conversation = Conversation(trace.session(index), synthesizer=SYNTHESIZER, history="live")
        while (turn := conversation.next_turn()) is not None:
            pending: set[str] = set()
            for message in turn.messages:
                if message["role"] == "tool":
                    assert message["tool_call_id"] in pending
                    pending.remove(message["tool_call_id"])
                else:
                    assert not pending
                    pending = {c["id"] for c in message.get("tool_calls") or ()}
            made = [call(f"L{turn.index}-{k}", rng.choice(["read_file", "x"])) for k in range(rng.randrange(3))]
            conversation.answered(rng.choice(["", "text"]), made)


def test_turns_must_end_before_the_next_begins():
    conversation = talk(*THREE_TURNS)
    with pytest.raises(InternalError, match="no turn is open"):
        conversation.answered("x")
    conversation.next_turn()
    with pytest.raises(InternalError, match="turn 0 has not ended"):
        conversation.next_turn()


def test_unknown_history_mode_is_refused():
    with pytest.raises(InternalError, match="replayed"):
        talk(*THREE_TURNS, history="replayed")
