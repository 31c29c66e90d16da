"""Tokenizer, chat template, answers, chunk bytes and faults in their written form: everything before a socket."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.emulator import text
from infersiege.emulator.answer import Answer, plan_answer
from infersiege.emulator.command import emulate
from infersiege.emulator.faults import Fault, parse_fault
from infersiege.emulator.frames import Counts, Script
from infersiege.emulator.frames_chat import ChatFrames
from infersiege.emulator.model import EngineSpec
from infersiege.emulator.refusal import RefusedError
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.truthlog import RequestTruth
from infersiege.errors import UsageError

SETTINGS = EmulatorSettings(model="m", spec=EngineSpec(max_model_len=1_024))
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer"},
            },
        },
    },
}


def ask(settings: EmulatorSettings = SETTINGS, content: str = "What is the capital of France?", **body: Any) -> Answer:
    return plan_answer({"model": "m", "messages": [{"role": "user", "content": content}], **body}, settings)


@pytest.mark.parametrize(
    ("given_text", "tokens", "reason"),
    [
        ("", [], "nothing"),
        ("abcdefghij", ["abcde", "fghij"], "five ASCII characters"),
        ("abcdef", ["abcde", "f"], "and a rest"),
        ("北京", ["北", "京"], "one CJK character"),
        ("ab北", ["ab", "北"], "kinds don't mix"),
        ("Привет", ["Пр", "ив", "ет"], "two of other alphabets"),
        ("a\n\n\n\nb", ["a\n\n\n\n", "b"], "line ends are characters"),
        ("😀\x00", ["😀", "\x00"], "beyond the BMP, and a NUL"),
    ],
)
def test_tokens_of_a_text(given_text: str, tokens: list[str], reason: str) -> None:
    assert text.tokenise(given_text) == tokens, reason


@given(st.text())
def test_tokens_joined_are_the_text(value: str) -> None:
    assert "".join(text.tokenise(value)) == value


@given(st.text(), st.text())
def test_a_prefix_keeps_its_tokens_but_the_last(start: str, end: str) -> None:
    tokens = text.tokenise(start)
    assert text.tokenise(start + end)[: max(0, len(tokens) - 1)] == tokens[:-1]


@given(st.lists(st.text(min_size=1, max_size=4), max_size=80), st.integers(0, 5))
def test_the_chain_goes_on_from_known_blocks(tokens: list[str], known: int) -> None:
    chain = text.block_chain(tokens, 16)
    assert len(chain) == len(tokens) // 16
    assert text.block_chain(tokens, 16, chain[:known]) == chain


def test_the_chain_tells_where_two_prompts_part() -> None:
    shared = ["a"] * 32
    one, two = text.block_chain([*shared, *["b"] * 32], 16), text.block_chain([*shared, *["c"] * 16, *["b"] * 16], 16)
    assert one[:2] == two[:2] and not set(one[2:]) & set(two[2:])


def test_prompt_tokens_count_frames_tools_and_parts() -> None:
    user = {"role": "user", "content": "abcdefgh"}
    assert len(text.prompt_tokens([user], None)) == 3 + 2 + 2 + 3
    parts = {"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "text", "text": "efgh"}]}
    assert text.prompt_tokens([parts], None) == text.prompt_tokens([user], None)
    nothing = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    assert len(text.prompt_tokens([nothing], None)) > len(text.prompt_tokens([{"role": "assistant"}], None))
    assert len(text.prompt_tokens([user], [WEATHER])) > len(text.prompt_tokens([user], None)) + 20


def test_an_answer_sent_back_as_history_has_the_tokens_it_was_generated_from() -> None:
    for question in ("Tell me more", "请说明一下"):
        first = ask(content=question, ignore_eos=True, max_tokens=100)
        history = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "".join(first.pieces)},
            {"role": "user", "content": "Go on."},
        ]
        second = plan_answer({"model": "m", "messages": history}, SETTINGS)
        full = (first.prompt_tokens + first.output_tokens) // 16
        assert full >= 6 and second.chain[:full] == first.chain[:full]


def test_the_same_request_gets_the_same_answer_and_the_seed_changes_it() -> None:
    assert ask() == ask()
    assert ask().pieces != ask(EmulatorSettings(model="m", seed=1)).pieces
    assert ask().pieces != ask(seed=5).pieces
    assert ask().pieces != ask(content="And of Italy?").pieces


def test_chinese_questions_get_chinese_answers() -> None:
    answer = ask(content="法国的首都是哪里？", ignore_eos=True, max_tokens=40)
    assert answer.output_tokens == 40
    assert len("".join(answer.pieces)) == 40 and not "".join(answer.pieces).isascii()


@pytest.mark.parametrize(
    ("body", "tokens", "finish", "reason"),
    [
        ({"max_tokens": 20, "ignore_eos": True}, 20, "length", "asked length"),
        ({"max_completion_tokens": 20, "max_tokens": 30, "ignore_eos": True}, 20, "length", "the newer name wins"),
        ({"max_tokens": 1, "ignore_eos": True}, 1, "length", "a single token"),
        ({"max_tokens": 1_024, "ignore_eos": True}, 1_024 - 14, "length", "clipped to the context without a word"),
        ({"max_tokens": 1_000, "min_tokens": 900}, 900, "stop", "min_tokens holds"),
    ],
)
def test_output_length(body: dict[str, Any], tokens: int, finish: str, reason: str) -> None:
    answer = ask(**body)
    assert answer.prompt_tokens == 14
    assert (answer.output_tokens, answer.finish_reason) == (tokens, finish), reason


def test_drawn_lengths_are_log_normal_and_never_above_the_limit() -> None:
    lengths = sorted(ask(content=f"question {index}").output_tokens for index in range(400))
    assert 100 < lengths[200] < 160 and lengths[0] > 5
    capped = [ask(content=f"question {index}", max_tokens=100) for index in range(100)]
    assert max(answer.output_tokens for answer in capped) == 100
    assert {answer.finish_reason for answer in capped} == {"stop", "length"}
    fixed = EmulatorSettings(model="m", output_tokens=33)
    assert {ask(fixed, content=str(index)).output_tokens for index in range(9)} == {33}


@pytest.mark.parametrize(
    ("choice", "called", "finish"),
    [
        ("required", True, "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, True, "stop"),  # vLLM says stop when it was named
        ("none", False, None),
    ],
)
def test_tool_choice(choice: Any, called: bool, finish: str | None) -> None:
    answer = ask(tools=[WEATHER], tool_choice=choice)
    assert (answer.tool == "get_weather") is called
    if called:
        arguments = json.loads("".join(answer.pieces[1:]))
        assert set(arguments) == {"city", "unit", "days"} and arguments["unit"] in ("C", "F")
        assert isinstance(arguments["days"], int) and arguments["city"]
        assert answer.finish_reason == finish and answer.output_tokens <= 64


def test_the_tool_share_decides_where_the_choice_is_left_open() -> None:
    for share, low, high in ((0.0, 0, 0), (0.5, 60, 140), (1.0, 200, 200)):
        settings = EmulatorSettings(model="m", tool_share=share)
        calls = sum(ask(settings, content=str(index), tools=[WEATHER]).tool is not None for index in range(200))
        assert low <= calls <= high
    assert ask(EmulatorSettings(model="m", tool_share=1.0)).tool is None, "no tools, no call"


@pytest.mark.parametrize("tokens", [1, 2, 5, 12, 40, 400])
def test_a_forced_length_holds_for_calls_too(tokens: int) -> None:
    for tool in (WEATHER, {"type": "function", "function": {"name": "f"}}):
        answer = ask(tools=[tool], tool_choice="required", max_tokens=tokens, ignore_eos=True)
        assert answer.output_tokens == tokens
        if tokens >= 40:
            assert isinstance(json.loads("".join(answer.pieces[1:])), dict)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "nope"}, 404, "The model `nope` does not exist"),
        ({"messages": []}, 400, "empty conversation"),
        ({"messages": None}, 400, "Field required"),
        ({"messages": "hi"}, 400, "list of objects"),
        ({"max_tokens": 5_000}, 400, "max_tokens=5000 cannot be greater than max_model_len=1024"),
        ({"max_tokens": 0}, 400, "at least 1"),
        ({"max_tokens": "many"}, 400, "whole number"),
        ({"max_tokens": True}, 400, "whole number"),
        ({"n": 2}, 400, "one choice"),
        ({"messages": [{"role": "user", "content": "x" * 6_000}]}, 400, "at least 1025 input tokens"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "other"}}}, 400, "not among the tools"),
    ],
)
def test_refusals_are_worded_like_vllm(body: dict[str, Any], status: int, says: str) -> None:
    with pytest.raises(RefusedError, match=says.replace("`", ".")) as caught:
        ask(**body)
    assert caught.value.status == status


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
BODY = st.fixed_dictionaries(
    {
        "messages": st.lists(st.fixed_dictionaries({"role": JSON, "content": JSON, "tool_calls": JSON}), max_size=3)
        | JSON
    },
    optional={
        "model": st.just("m") | JSON,
        "tools": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "parameters": JSON})})
        ),
        "tool_choice": st.sampled_from(["auto", "required", "none"]) | JSON,
        "max_tokens": JSON,
        "seed": JSON,
        "stream_options": JSON,
    },
)


@given(BODY)
def test_any_json_is_answered_or_refused(body: dict[str, Any]) -> None:
    """Property: nothing in a request raises anything but a refusal, and what is answered can be sent."""
    try:
        answer = plan_answer(body, SETTINGS)
    except RefusedError:
        return
    assert 1 <= answer.output_tokens <= 1_024 - answer.prompt_tokens
    frames = ChatFrames(Script(1, 1, "m", answer.pieces, answer.tool))
    json.loads(frames.tokens(0, answer.output_tokens, answer.finish_reason, None)[6:])


def test_a_body_that_is_no_object_is_refused() -> None:
    bodies: tuple[Any, ...] = ([], None, 3, "x")
    for body in bodies:
        with pytest.raises(RefusedError):
            plan_answer(body, SETTINGS)


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 4), st.booleans())
def test_chunks_hold_the_text_whatever_is_in_it(pieces: list[str], width: int, tool: bool) -> None:
    """Property: JSON of every chunk is valid and the joined text is the answer's."""
    frames = ChatFrames(Script(1, 1, "m", pieces, "f" if tool else None))
    got: list[str] = []
    for start in range(0, len(pieces), width):
        stop = min(start + width, len(pieces))
        data = frames.tokens(start, stop, "stop" if stop == len(pieces) else None, None)
        assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
        choice = json.loads(data[6:])["choices"][0]
        assert choice["finish_reason"] == ("stop" if stop == len(pieces) and not tool else None)
        delta = choice["delta"]
        if tool:
            got.append(delta["tool_calls"][0]["function"].get("arguments", ""))
        else:
            got.append(delta["content"])
    wanted = "".join(pieces[1:] if tool else pieces).encode("utf-8", "replace").decode()
    assert "".join(got) == wanted
    # vLLM: the finish reason stands with the last text, but after a call in a chunk of its own.
    assert bool(frames.finishing("stop", Counts(1, len(pieces)))) is tool


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("", Fault()),
        ("reset_after=3", Fault(reset_after=3)),
        (" status=429 , retry_after=2 ", Fault(status=429, retry_after="2")),
        ("no_done,no_usage=1", Fault(no_done=True, no_usage=True)),
        ("finish=abort", Fault(finish="abort")),
    ],
)
def test_faults_are_read_and_written(written: str, fault: Fault) -> None:
    assert parse_fault(written) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("explode", "there is no 'explode'"),
        ("reset_after", "whole number"),
        ("reset_after=-1", "whole number"),
        ("reset_after=²", "whole number"),
        ("html=2", "takes no value"),
        ("status=99", "200 to 599"),
        ("finish=", "needs a value"),
    ],
)
def test_a_fault_that_makes_no_sense_is_named(written: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_fault(written)
    assert repr(written) in str(caught.value)


def test_which_requests_get_the_fault() -> None:
    settings = EmulatorSettings(fault=Fault(html=True), fault_every=3, fault_first=6)
    assert [number for number in range(1, 13) if settings.fault_of(number)] == [3, 6]
    assert EmulatorSettings().fault_of(1) is None


def test_the_page_in_docs_names_every_option_fault_and_field() -> None:
    page = (Path(__file__).parents[1] / "docs" / "emulator.md").read_text()
    options = [
        name
        for option in emulate.params
        if isinstance(option, click.Option) and not option.hidden
        for name in (*option.opts, *option.secondary_opts)
    ]
    names = [entry.name for entry in (*fields(Fault), *fields(RequestTruth))]
    assert len(options) > 25 and len(names) > 35
    missing = [name for name in (*options, *names) if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page)]
    assert missing == []
