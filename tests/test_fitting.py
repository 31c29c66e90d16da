"""Prompts cut to a context limit: what goes, what stays, and that nothing is torn apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces import Conversation, Synthesizer
from infersiege.traces.play.fitting import LEAST_TOKENS, Part, clipped, guessed_tokens

SYNTHESIZER = Synthesizer(1)


def message(role: str, name: str, tokens: int = 100, **more: object) -> Part:
    return {"role": role, "content": name + "." * (4 * tokens - len(name)), **more}, None


def call(name: str) -> Part:
    return message(
        "assistant", f"call {name}", 99, tool_calls=[{"id": name, "function": {"name": "f", "arguments": "{}"}}]
    )


def result(name: str) -> Part:
    return message("tool", f"result {name}", tool_call_id=name)


def text(tokens: tuple[int, ...], scope: str = "s") -> Part:
    return {"role": "user", "content": ""}, BlockText(scope=scope, ids=tuple(range(len(tokens))), tokens=tokens)


def names(parts: list[Part]) -> list[str]:
    return [str(one["content"]).partition(".")[0] for one, _ in parts]


SYSTEM, ASK, AGAIN, LAST = (
    message("system", "rules"),
    message("user", "q1"),
    message("user", "q2"),
    message("user", "q3"),
)
FIRST_SAID, SECOND_SAID = message("assistant", "a1"), message("assistant", "a2")
TALK = [SYSTEM, ASK, FIRST_SAID, AGAIN, SECOND_SAID, LAST]
AGENT = [SYSTEM, ASK, call("x"), result("x"), call("y"), result("y"), call("z"), result("z")]


@pytest.mark.parametrize(
    ("parts", "room", "left", "why"),
    [
        (TALK, 600, "rules q1 a1 q2 a2 q3", "it fits"),
        (TALK, 599, "rules q2 a2 q3", "a question goes with its answer"),
        (TALK, 400, "rules q2 a2 q3", "no more than has to"),
        (TALK, 399, "rules q3", "the last question stays"),
        (TALK, 199, None, "and is not sent without the system message"),
        (AGENT, 799, "rules|q1|call y|result y|call z|result z", "calls go with their results; the question stays"),
        (AGENT, 599, "rules|q1|call z|result z", "the oldest first"),
        (AGENT, 399, None, "what the model is to look at now stays"),
        ([ASK], 50, None, "never to nothing"),
        ([SYSTEM, ASK, call("x"), result("x"), AGAIN, call("y"), result("y"), LAST], 500,
         "rules|q2|call y|result y|q3", "an exchange goes with all of its calls"),
        ([SYSTEM, message("user", "doc"), ASK, FIRST_SAID, LAST], 300, "rules q3", "two questions in a row are one"),
    ],
)  # fmt: skip
def test_recorded_messages_go_in_whole_exchanges(parts: list[Part], room: int, left: str | None, why: str) -> None:
    assert guessed_tokens(parts) == 100 * len(parts)
    found = clipped(parts, 100 * len(parts), room)
    if left is None:
        assert found is None, why
        return
    assert found is not None
    assert names(found[0]) == (left.split("|") if "|" in left else left.split()), why
    assert found[1] == 100 * len(found[0]) <= room


@pytest.mark.parametrize(
    ("parts", "room", "left", "why"),
    [
        ([text((100, 100, 50))], 250, [(100, 100, 50)], "it fits"),
        ([text((100, 100, 50))], 249, [(100, 100, 49)], "from the end"),
        ([text((100, 100, 50))], 150, [(100, 50)], "whole blocks"),
        ([text((100, 100, 50))], 16, [(16,)], "down to a first word"),
        ([text((100,)), text((300,)), text((200,))], 400, [(100,), (100,), (200,)], "the largest one"),
        ([text((100,)), text((300,)), text((200,))], 200, [(100,), (LEAST_TOKENS,), (84,)], "then the next largest"),
    ],
)
def test_synthesised_texts_lose_their_ends(parts: list[Part], room: int, left: list[tuple[int, ...]], why: str) -> None:
    tokens = sum(sum(block.tokens) for _, block in parts if block is not None)
    found = clipped(parts, tokens, room)
    assert found is not None
    assert [block.tokens for _, block in found[0] if block is not None] == left, why
    assert all(len(block.ids) == len(block.tokens) for _, block in found[0] if block is not None)
    assert found[1] == sum(map(sum, left))


def test_a_cut_text_is_a_prefix_of_the_whole_one() -> None:
    """So that what two rows share is still shared."""
    whole = text((100, 100, 50))
    found = clipped([whole], 250, 130)
    assert found is not None and whole[1] is not None
    ((_, block),) = found[0]
    assert block is not None
    short = SYNTHESIZER.text(block)
    assert len(short) > 400 and SYNTHESIZER.text(whole[1]).startswith(short)


ROLES = st.lists(st.sampled_from(("user", "assistant", "call", "system")), min_size=1, max_size=12)


@given(roles=ROLES, scale=st.floats(0.3, 3), share=st.floats(0.01, 1.2))
def test_whatever_is_cut_fits_and_no_call_is_parted_from_its_results(
    roles: list[str], scale: float, share: float
) -> None:
    parts: list[Part] = []
    for number, role in enumerate(roles):
        parts += [call(str(number)), result(str(number))] if role == "call" else [message(role, str(number))]
    tokens = max(1, int(guessed_tokens(parts) * scale))
    room = int(tokens * share)
    found = clipped(parts, tokens, room)
    if share >= 1:
        assert found == (parts, tokens)
    if found is None:
        return
    left, held = found
    assert 0 < held <= room and left
    assert left[-1] is parts[-1] or parts[-1][0]["role"] == "system", "what is asked now stays"
    places = [next(at for at, part in enumerate(parts) if part is one) for one in left]
    assert places == sorted(places)
    assert [one for one in left if one[0]["role"] == "system"] == [one for one in parts if one[0]["role"] == "system"]
    calls = {made["id"] for one, _ in left for made in one.get("tool_calls", ())}
    assert calls == {one["tool_call_id"] for one, _ in left if one["role"] == "tool"}


def talk(*turns: Turn, **playing: object) -> Conversation:
    return Conversation(Session(session_id="s", turns=turns), synthesizer=SYNTHESIZER, **playing)


def hashed(*tokens: int, output: int = 50) -> Turn:
    made = text(tokens)
    return Turn(
        messages=(made[0],),
        texts=(made[1],),
        replaces_history=True,
        asked_prompt_tokens=sum(tokens),
        asked_output_tokens=output,
    )


@pytest.mark.parametrize(
    ("clip", "limit", "expected", "why"),
    [
        (False, None, (500, 0, False), "no limit"),
        (False, 550, (500, 0, False), "prompt and output together fit"),
        (False, 549, (500, 0, True), "they don't"),
        (True, 549, (499, 1, False), "the prompt is cut, and what is asked for follows"),
        (True, 66, (16, 484, False), "down to its first word"),
        (True, 60, (500, 0, True), "there is no room for one"),
        (True, 20, (500, 0, True), "nor for the answer"),
    ],
)
def test_tr_11_a_prompt_over_the_limit_is_clipped_or_too_long(
    clip: bool, limit: int | None, expected: tuple[int, int, bool], why: str
) -> None:
    turn = talk(hashed(200, 200, 100), context_limit=limit, clip=clip).next_turn()
    assert turn is not None
    assert (turn.asked_prompt_tokens, turn.clipped_tokens, turn.too_long) == expected, why
    assert bool(turn.messages) is not turn.too_long, "no text is made of what is not sent"


def test_tr_11_prompts_that_nobody_counted_go_by_their_size() -> None:
    said: Message = {"role": "user", "content": "word " * 2000}
    turn = talk(Turn(messages=(said,)), context_limit=2596, default_max_tokens=96).next_turn()
    assert turn is not None
    assert (turn.prompt_tokens, turn.too_long, turn.asked_prompt_tokens) == (2500, False, None)
    over = talk(Turn(messages=(said,)), context_limit=2595, default_max_tokens=96).next_turn()
    assert over is not None and over.too_long


def test_a_clipped_turn_leaves_the_history_whole() -> None:
    """Each request is cut by itself: a later, shorter limit of the output must find everything again."""
    turns = [Turn(messages=({"role": "user", "content": f"{n}" * 400},), asked_output_tokens=10) for n in range(3)]
    conversation = talk(*turns, context_limit=250, clip=True)
    lengths = []
    while (turn := conversation.next_turn()) is not None:
        lengths.append((len(turn.messages), turn.clipped_tokens))
        conversation.answered("ok")
    assert lengths == [(1, 0), (3, 0), (3, 101)]
