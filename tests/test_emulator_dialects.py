"""What the emulator sends on each path as each engine: order of events, shape of each, token counts.

Read by a small reader of its own, and held against captures of the real engines where those are at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated import PATHS, Event, Said, ask, body_for, read_events
from hypothesis import given
from hypothesis import strategies as st

from infersiege.emulator.answer import plan_answer
from infersiege.emulator.frames import Counts, Script
from infersiege.emulator.process import EmulatorProcess
from infersiege.emulator.profile import PROFILES, Api
from infersiege.emulator.refusal import RefusedError
from infersiege.emulator.reply import FRAMES
from infersiege.emulator.settings import EmulatorSettings

TOKENS = 3
OPTIONS = ("--model", "tiny", "--output-tokens", str(TOKENS), "--step-base-ms", "1")


@pytest.fixture(scope="module")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EmulatorProcess]]:
    """One of each profile."""
    folder = tmp_path_factory.mktemp("emulators")
    started: dict[str, EmulatorProcess] = {}
    try:
        for name in PROFILES:
            # vLLM was captured without --enable-prompt-tokens-details.
            told = ("--no-cached-tokens",) if name == "vllm" else ()
            started[name] = EmulatorProcess(*OPTIONS, *told, "--profile", name, log=folder / f"{name}.jsonl").start()
        yield started
    finally:
        for process in started.values():
            process.stop()


def chat_label(data: Any) -> str:
    """What a chunk of chat or completions is, in a word or two."""
    if data == "[DONE]":
        return "done"
    if not data["choices"]:
        return "usage" if "usage" in data else "nothing"
    (choice,) = data["choices"]
    delta = choice.get("delta", choice)
    words = [
        word
        for word, is_there in (
            ("role", bool(delta.get("role"))),
            ("text", bool(delta.get("content") or delta.get("text"))),
            ("think", bool(delta.get("reasoning") or delta.get("reasoning_content"))),
            ("call", bool(delta.get("tool_calls")) and "name" in delta["tool_calls"][0]["function"]),
            ("args", bool(delta.get("tool_calls")) and bool(delta["tool_calls"][0]["function"].get("arguments"))),
            (str(choice["finish_reason"]), choice["finish_reason"] is not None),
            ("usage", bool(data.get("usage"))),
        )
        if is_there
    ]
    return "+".join(words)


def label(event: Event) -> str:
    if event.name is None:
        return chat_label(event.data)
    assert event.data["type"] == event.name, "the name and the type are one"
    short = event.name.removeprefix("response.")
    inner = event.data.get("delta") or event.data.get("content_block") or event.data.get("item") or {}
    kind = inner.get("type") if isinstance(inner, dict) else None
    return f"{short}:{kind}" if kind else short


OWN_FINISH = ["role", "text", "text", "text", "stop", "usage", "done"]
CALLED = ["role", "call", "args", "args", "tool_calls", "usage", "done"]
THOUGHT = ["role", "think", "text", "text", "stop", "usage", "done"]
TEXTS = ["text", "text", "text", "stop", "usage", "done"]
BLOCK = ["content_block_start:text", *["content_block_delta:text_delta"] * 3, "content_block_stop"]
MESSAGE = ["message_start", *BLOCK, "message_delta", "message_stop"]
THINKING = ["content_block_start:thinking", "content_block_delta:thinking_delta"]
TWO_BLOCKS = [
    *("message_start", *THINKING, "content_block_stop"),
    *("content_block_start:text", *["content_block_delta:text_delta"] * 2, "content_block_stop"),
    *("message_delta", "message_stop"),
]
TOOL_BLOCK = ["content_block_start:tool_use", *["content_block_delta:input_json_delta"] * 3, "content_block_stop"]
CALL_MESSAGE = ["message_start", *TOOL_BLOCK, "message_delta", "message_stop"]
RESPONSE = [
    *("created", "in_progress", "output_item.added:message", "content_part.added"),
    *["output_text.delta"] * 3,
    *("output_text.done", "content_part.done", "output_item.done:message", "completed"),
]
CALL_RESPONSE = [
    *("created", "in_progress", "output_item.added:function_call"),
    *["function_call_arguments.delta"] * 2,
    *("function_call_arguments.done", "output_item.done:function_call", "completed"),
]


def thought_response(kind: str) -> list[str]:
    return [
        *("created", "in_progress", "output_item.added:reasoning", f"{kind}.delta", f"{kind}.done"),
        *("output_item.done:reasoning", "output_item.added:message", "content_part.added"),
        *["output_text.delta"] * 2,
        *("output_text.done", "content_part.done", "output_item.done:message", "completed"),
    ]


def pinged(events: list[str], after: int) -> list[str]:
    return [*events[:after], "ping", *events[after:]]


SEQUENCES: list[tuple[str, str, str, list[str], str]] = [
    ("vllm", "chat", "text", ["role", "text", "text", "text+stop", "usage", "done"], "the finish has the last text"),
    ("vllm", "chat", "thought", ["role", "think", "text", "text+stop", "usage", "done"], "delta.reasoning"),
    ("vllm", "chat", "called", CALLED, "after a call the finish is alone"),
    ("vllm", "chat", "named", [*CALLED[:4], "stop", *CALLED[5:]], "a named function ends with stop"),
    ("vllm", "completions", "text", ["text", "text", "text+stop", "usage", "done"], "no role"),
    ("vllm", "messages", "text", MESSAGE, "no ping"),
    ("vllm", "messages", "thought", TWO_BLOCKS, "two blocks"),
    ("vllm", "messages", "called", CALL_MESSAGE, "the name is in the block's start"),
    ("vllm", "responses", "text", RESPONSE, "OpenAI's order"),
    ("vllm", "responses", "thought", thought_response("reasoning_text"), "two items"),
    ("vllm", "responses", "called", CALL_RESPONSE, "the name is in the item"),
    ("sglang", "chat", "text", OWN_FINISH, "the finish is alone"),
    ("sglang", "chat", "thought", THOUGHT, "reasoning_content"),
    ("sglang", "chat", "called", CALLED, "a call"),
    ("sglang", "completions", "text", ["text", "text", "text+stop", "usage", "done"], "here it has the last text"),
    ("sglang", "messages", "text", MESSAGE, "no ping"),
    ("sglang", "responses", "text", RESPONSE, "OpenAI's order"),
    ("llama.cpp", "chat", "text", OWN_FINISH, "the finish is alone"),
    ("llama.cpp", "chat", "thought", THOUGHT, "reasoning_content"),
    ("llama.cpp", "chat", "called", CALLED, "a call"),
    ("llama.cpp", "completions", "text", ["text", "text", "text", "stop+usage", "done"], "usage on the finish chunk"),
    ("llama.cpp", "messages", "text", MESSAGE, "as Anthropic"),
    ("llama.cpp", "responses", "text", RESPONSE, "OpenAI's order"),
    ("anthropic", "chat", "text", OWN_FINISH, "its OpenAI-compatible address"),
    ("anthropic", "messages", "text", pinged(MESSAGE, 2), "a ping after the block began (ST-29)"),
    ("anthropic", "messages", "called", pinged(CALL_MESSAGE, 1), "a call"),
    (
        "anthropic",
        "messages",
        "thought",
        pinged([*TWO_BLOCKS[:3], "content_block_delta:signature_delta", *TWO_BLOCKS[3:]], 2),
        "a signature, which is no token (ST-29)",
    ),
    ("openai", "chat", "text", OWN_FINISH, "the finish is alone"),
    ("openai", "chat", "called", ["role+call", "args", "args", "tool_calls", "usage", "done"], "ST-28: no role chunk"),
    (
        "openai",
        "chat",
        "named",
        ["role+call", "args", "args", "stop", "usage", "done"],
        "a named function ends with stop",
    ),
    ("openai", "completions", "text", TEXTS, "the finish is alone"),
    ("openai", "responses", "text", RESPONSE, "OpenAI's order"),
    ("openai", "responses", "thought", thought_response("reasoning_summary_text"), "a summary of it"),
    ("openai", "responses", "called", CALL_RESPONSE, "a call"),
]


def stream_of(process: EmulatorProcess, api: str, kind: str = "text", **changes: Any) -> Said:
    tool = {"called": "any", "named": "named"}.get(kind)
    said = ask(
        process.port,
        PATHS[api],
        body_for(api, tool=tool, **changes),
        emulate="reasoning=1" if kind == "thought" else "",
    )
    assert said.status == 200 and said.headers["content-type"].startswith("text/event-stream"), said
    return said


@pytest.mark.parametrize(("profile", "api", "kind", "events", "reason"), SEQUENCES)
def test_the_order_of_events(
    emulators: dict[str, EmulatorProcess], profile: str, api: str, kind: str, events: list[str], reason: str
) -> None:
    said = stream_of(emulators[profile], api, kind)
    assert [label(event) for event in said.events] == events, reason


def test_every_path_of_every_profile_is_in_the_table() -> None:
    offered = {(name, api.value) for name, profile in PROFILES.items() for api in profile.apis}
    assert {row[:2] for row in SEQUENCES} == offered


@pytest.mark.parametrize("profile", PROFILES)
def test_a_protocol_that_is_not_there_is_not_found(emulators: dict[str, EmulatorProcess], profile: str) -> None:
    for api in Api:
        said = ask(emulators[profile].port, PATHS[api.value], body_for(api.value))
        assert (said.status == 200) is (api in PROFILES[profile].apis) and said.status in (200, 404)


def text_of(api: str, answer: Any) -> tuple[str, str]:
    """(reasoning, text) of a whole answer."""
    if api == "chat":
        message = answer["choices"][0]["message"]
        return message.get("reasoning") or message.get("reasoning_content") or "", message["content"]
    if api == "completions":
        return "", answer["choices"][0]["text"]
    if api == "messages":
        blocks = {block["type"]: block for block in answer["content"]}
        return blocks.get("thinking", {}).get("thinking", ""), blocks["text"]["text"]
    items = {item["type"]: item for item in answer["output"]}
    thought = items.get("reasoning", {})
    parts = thought.get("content") or thought.get("summary") or [{"text": ""}]
    return parts[0]["text"], items["message"]["content"][0]["text"]


def streamed_text(api: str, events: list[Event]) -> tuple[str, str]:
    """(reasoning, text) of a stream."""
    thought, text = [], []
    for event in events:
        data = event.data
        if api in ("chat", "completions"):
            for choice in data["choices"] if data != "[DONE]" else []:
                delta = choice.get("delta", choice)
                text.append(delta.get("content") or delta.get("text") or "")
                thought.append(delta.get("reasoning") or delta.get("reasoning_content") or "")
        elif event.name == "content_block_delta":
            text.append(data["delta"].get("text", ""))
            thought.append(data["delta"].get("thinking", ""))
        elif event.name == "response.output_text.delta":
            text.append(data["delta"])
        elif event.name in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            thought.append(data["delta"])
    return "".join(thought), "".join(text)


@pytest.mark.parametrize("kind", ["text", "thought"])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_whole_answer_says_what_the_stream_said(
    emulators: dict[str, EmulatorProcess], profile: str, kind: str
) -> None:
    process = emulators[profile]
    texts = set()
    for api in PROFILES[profile].apis:
        if kind == "thought" and api is Api.COMPLETIONS:
            continue
        fault = "reasoning=1" if kind == "thought" else ""
        whole = ask(process.port, PATHS[api.value], body_for(api.value, stream=False), emulate=fault).json
        thought, text = text_of(api.value, whole)
        assert (thought, text) == streamed_text(api.value, stream_of(process, api.value, kind).events)
        assert bool(thought) is (kind == "thought") and text
        if api is not Api.COMPLETIONS:
            texts.add(thought + text)
    assert len(texts) == 1, "the same conversation gets the same tokens on every path"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_whole_call_has_the_arguments_of_the_stream(emulators: dict[str, EmulatorProcess], profile: str) -> None:
    process = emulators[profile]
    for api in PROFILES[profile].apis:
        if api is Api.COMPLETIONS:
            continue
        whole = ask(process.port, PATHS[api.value], body_for(api.value, tool="any", stream=False)).json
        events = stream_of(process, api.value, "called").events
        if api is Api.CHAT:
            function = whole["choices"][0]["message"]["tool_calls"][0]["function"]
            deltas = [
                call["function"].get("arguments", "")
                for event in events[:-1]
                for choice in event.data["choices"]
                for call in choice["delta"].get("tool_calls") or []
            ]
            assert whole["choices"][0]["finish_reason"] == "tool_calls"
        elif api is Api.RESPONSES:
            (function,) = whole["output"]
            deltas = [event.data["delta"] for event in events if event.name == "response.function_call_arguments.delta"]
        else:
            (block,) = whole["content"]
            function = {"name": block["name"], "arguments": json.dumps(block["input"])}
            deltas = [event.data["delta"]["partial_json"] for event in events if event.name == "content_block_delta"]
            assert whole["stop_reason"] == "tool_use"
        assert function["name"] == "f" and json.loads(function["arguments"]) == json.loads("".join(deltas))


# --- usage ----------------------------------------------------------------------------------------------------------


def usage_told(api: str, said: Said) -> dict[str, int | None]:
    """input (all of it), output and cached tokens as the last word of a stream, by each protocol's own rules."""
    if api == "messages":
        usage: dict[str, Any] = {}
        for event in said.events:
            if event.name == "message_start":
                usage |= event.data["message"]["usage"]
            elif event.name == "message_delta":
                usage |= event.data["usage"]
        caches = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
        return {
            "input": usage["input_tokens"] + caches,
            "output": usage["output_tokens"],
            "cached": usage.get("cache_read_input_tokens"),
        }
    if api == "responses":
        usage = said.events[-1].data["response"]["usage"]
        details = usage.get("input_tokens_details") or {}
        return {
            "input": usage["input_tokens"],
            "output": usage["output_tokens"],
            "cached": details.get("cached_tokens"),
        }
    (usage,) = [event.data["usage"] for event in said.events if event.data != "[DONE]" and event.data.get("usage")]
    details = usage.get("prompt_tokens_details") or {}
    return {
        "input": usage["prompt_tokens"],
        "output": usage["completion_tokens"],
        "cached": details.get("cached_tokens"),
    }


@pytest.mark.parametrize("profile", ["sglang", "llama.cpp", "anthropic", "openai"])
def test_the_cache_is_shared_by_all_paths_and_told_in_each_layout(
    emulators: dict[str, EmulatorProcess], profile: str
) -> None:
    """The same conversation twice on each path: the second time all full blocks are cached, whoever put them there."""
    process = emulators[profile]
    long = [{"role": "user", "content": f"{profile} " + "0123456789" * 40}]
    first = None
    for api in PROFILES[profile].apis:
        if api is Api.COMPLETIONS:
            continue
        changes = {"input": long, "messages": None} if api is Api.RESPONSES else {"messages": long}
        told = usage_told(api.value, ask(process.port, PATHS[api.value], body_for(api.value, **changes)))
        assert told["output"] == TOKENS
        first = first or told
        assert told["input"] == first["input"], "the same template on every path"
        assert first["input"] is not None
        assert told["cached"] == (0 if told is first else (first["input"] - 1) // 16 * 16)


def test_tk_12_anthropic_usage_is_cumulative_and_leaves_the_cache_out(emulators: dict[str, EmulatorProcess]) -> None:
    content = [{"type": "text", "text": "abcde" * 40, "cache_control": {"type": "ephemeral"}}]
    asked = body_for("messages", messages=[{"role": "user", "content": content}])
    path = PATHS["messages"]
    first, second = (ask(emulators["anthropic"].port, path, asked).events for _ in range(2))
    starts = [events[0].data["message"]["usage"] for events in (first, second)]
    ends = [events[-2].data["usage"] for events in (first, second)]
    # 40 tokens of text and 8 of frame are three full blocks.
    assert [usage["cache_creation_input_tokens"] for usage in ends] == [48, 16]
    assert [usage["cache_read_input_tokens"] for usage in ends] == [0, 32], "one token at least is computed"
    assert [usage["input_tokens"] for usage in ends] == [0, 0]
    assert [usage["output_tokens"] for usage in starts] == [1, 1], "a first figure, which is no count"
    assert [usage["output_tokens"] for usage in ends] == [TOKENS, TOKENS]


def test_usage_comes_unasked_only_where_the_engine_does_so(emulators: dict[str, EmulatorProcess]) -> None:
    for name, profile in PROFILES.items():
        for api in (Api.CHAT, Api.COMPLETIONS):
            if api not in profile.apis:
                continue
            events = ask(emulators[name].port, PATHS[api.value], body_for(api.value, stream_options=None)).events
            told = any(event.data != "[DONE]" and event.data.get("usage") for event in events)
            assert told is (name == "llama.cpp" and api is Api.COMPLETIONS), name
            timed = [index for index, event in enumerate(events[:-1]) if "timings" in event.data]
            assert timed == ([len(events) - 2] if name == "llama.cpp" else []), "on the finish chunk then"


def test_openai_writes_null_usage_on_the_other_chunks(emulators: dict[str, EmulatorProcess]) -> None:
    *chunks, usage, _ = stream_of(emulators["openai"], "chat").events
    assert [chunk.data["usage"] for chunk in chunks] == [None] * len(chunks) and usage.data["usage"]


@pytest.mark.parametrize(
    ("api", "layout", "usages", "reason"),
    [
        ("chat", "missing", [], "TK-03"),
        ("chat", "zero", [0], "a gateway that counts nothing"),
        ("chat", "cumulative", [0, 1, 2, 3, 3], "TK-05: each counts all so far"),
        ("chat", "merged", [3], "on the chunk with the finish reason"),
        ("chat", "late", [3], "on a chunk of its own"),
        ("completions", "cumulative", [1, 2, 3, 3], "TK-05"),
        ("completions", "missing", [], "TK-03"),
        ("messages", "missing", [], "TK-03"),
        ("messages", "zero", [0, 0], "zeroes in both events"),
        ("messages", "cumulative", [0, 1, 2, 3, 3], "a message_delta after each delta"),
        ("messages", "late", [0, 3], "TK-12: zeroes first, the truth at the end"),
        ("responses", "missing", [], "TK-03"),
        ("responses", "zero", [0], "zeroes"),
    ],
)
def test_usage_layouts(
    emulators: dict[str, EmulatorProcess], api: str, layout: str, usages: list[int], reason: str
) -> None:
    said = ask(emulators["vllm"].port, PATHS[api], body_for(api), emulate=f"usage={layout}")
    found = []
    for event in said.events:
        if event.data == "[DONE]":
            continue
        holder = event.data.get("message") or event.data.get("response") or event.data
        if holder.get("usage"):
            found.append(holder["usage"].get("output_tokens", holder["usage"].get("completion_tokens")))
    assert found == usages, reason
    if layout == "merged":
        assert [label(event) for event in said.events][-2:] == ["text+stop+usage", "done"]
    if layout == "late" and api == "messages":
        start, end = said.events[0].data["message"]["usage"], said.events[-2].data["usage"]
        assert start["input_tokens"] == 0 < end["input_tokens"]


# --- against captures -----------------------------------------------------------------------------------------------


def shape(value: Any) -> Any:
    """Keys and kinds without the values: what a client's parser depends on."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"


def shapes(events: list[Event]) -> list[Any]:
    """Shapes in order, repeats in a row once: a capture may have more tokens."""
    found: list[Any] = []
    for event in events:
        one = (event.name, event.data if event.data == "[DONE]" else shape(event.data))
        if not found or found[-1] != one:
            found.append(one)
    return found


def captured(shared: Path, name: str) -> Said:
    raw = (shared / "captures" / name).read_bytes()
    raw = raw.partition(b"\n")[2]  # the command
    head, _, body = raw.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = head.decode().split("\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
    return Said(int(lines[0].split(" ")[1]), headers, body)


@pytest.mark.parametrize(
    ("profile", "api", "capture", "asked"),
    [
        ("vllm", "chat", "vllm-chat-stream-usage.txt", {}),
        ("vllm", "chat", "vllm-chat-stream.txt", {"stream_options": None}),
        ("vllm", "completions", "vllm-completions-stream.txt", {}),
        ("vllm", "messages", "vllm-anthropic-stream.txt", {}),
        ("sglang", "chat", "sglang-chat-stream-usage.txt", {}),
        ("sglang", "chat", "sglang-chat-stream.txt", {"stream_options": None}),
        ("sglang", "completions", "sglang-completions-stream.txt", {}),
        ("llama.cpp", "chat", "llamacpp-chat-stream-usage.txt", {}),
        ("llama.cpp", "chat", "llamacpp-chat-stream.txt", {"stream_options": None}),
        ("llama.cpp", "completions", "llamacpp-completions-stream.txt", {}),
        ("llama.cpp", "messages", "llamacpp-anthropic-stream.txt", {}),
    ],
)
def test_a_stream_has_the_shape_of_the_captured_one(
    emulators: dict[str, EmulatorProcess], shared: Path, profile: str, api: str, capture: str, asked: dict[str, Any]
) -> None:
    ours = ask(emulators[profile].port, PATHS[api], body_for(api, **asked))
    assert shapes(ours.events) == shapes(captured(shared, capture).events)


@pytest.mark.parametrize("choice", ["named", "any"])
def test_a_call_has_the_shape_of_vllms(emulators: dict[str, EmulatorProcess], shared: Path, choice: str) -> None:
    ours = ask(emulators["vllm"].port, PATHS["chat"], body_for("chat", tool=choice, stream_options=None))
    name = "vllm-tools-named-stream.txt" if choice == "named" else "vllm-tools-required-stream.txt"
    assert shapes(ours.events) == shapes(captured(shared, name).events)


def test_responses_have_the_order_and_no_key_that_vllms_have_not(
    emulators: dict[str, EmulatorProcess], shared: Path
) -> None:
    ours, theirs = (
        stream_of(emulators["vllm"], "responses").events,
        captured(shared, "vllm-responses-stream.txt").events,
    )
    assert [event.name for event in ours if "delta" not in str(event.name)] == [
        event.name for event in theirs if "delta" not in str(event.name)
    ]
    by_name = {event.name: event.data for event in theirs}
    for event in ours:
        assert event.data.keys() <= by_name[event.name].keys()
        for key in ("response", "item", "part"):
            # `error` of a response is OpenAI's; vLLM leaves it out.
            assert event.data.get(key, {}).keys() - {"error"} <= by_name[event.name].get(key, {}).keys()
    assert [event.data["sequence_number"] for event in ours] == list(range(len(ours)))


# --- requests -------------------------------------------------------------------------------------------------------


def test_an_answer_sent_back_on_another_path_is_found_in_the_cache(emulators: dict[str, EmulatorProcess]) -> None:
    process = emulators["sglang"]
    question = "cross " + "0123456789" * 20
    first = ask(process.port, PATHS["chat"], body_for("chat", messages=[{"role": "user", "content": question}]))
    answer = streamed_text("chat", first.events)[1]
    told = usage_told("chat", first)
    assert told["input"] is not None
    full = (told["input"] + TOKENS - 1) // 16 * 16
    history = [
        {"role": "user", "content": [{"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        {"role": "user", "content": "Go on"},
    ]
    second = ask(process.port, PATHS["messages"], body_for("messages", messages=history))
    cached = usage_told("messages", second)["cached"]
    assert cached is not None and cached >= full - 16 > 0
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": question}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]},
        {"role": "user", "content": "Go on"},
    ]
    third = ask(process.port, PATHS["responses"], body_for("responses", input=items))
    again = usage_told("messages", second)["input"]
    assert again is not None
    assert usage_told("responses", third)["cached"] == (again - 1) // 16 * 16


def test_results_of_tools_count_on_every_path() -> None:
    settings = EmulatorSettings(model="tiny", profile="sglang")
    long = "result " * 50
    for api, body in (
        (Api.MESSAGES, [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": long}]}]),
        (Api.RESPONSES, [{"type": "function_call_output", "call_id": "c", "output": long}]),
        (Api.CHAT, [{"role": "tool", "tool_call_id": "c", "content": long}]),
    ):
        field = "input" if api is Api.RESPONSES else "messages"
        assert plan_answer({field: body}, settings, api).prompt_tokens == 70 + 5 + 3, api


@pytest.mark.parametrize(
    ("prompt", "tokens", "reason"),
    [
        ("abcdefghij", 2, "a text, without a frame"),
        (["abcdefghij"], 2, "a list of one"),
        ([1, 2, 3], 3, "token numbers"),
        ([[1, 2, 3, 4]], 4, "a list of one list"),
        ("", 1, "nothing is one token"),
    ],
)
def test_prompts_of_completions(prompt: Any, tokens: int, reason: str) -> None:
    assert plan_answer({"prompt": prompt}, EmulatorSettings(), Api.COMPLETIONS).prompt_tokens == tokens, reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "id", "input"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(list(Api)),
    st.sampled_from(list(PROFILES)),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("messages", "input", "prompt", "system", "instructions", "tools", "tool_choice", "max_tokens"), JSON
        ),
    ),
)
def test_any_json_is_answered_or_refused_on_every_path(api: Api, profile: str, body: dict[str, Any]) -> None:
    """Property: no body raises anything but a refusal."""
    try:
        answer = plan_answer(body, EmulatorSettings(profile=profile), api)
    except RefusedError:
        return
    assert answer.output_tokens >= 1 and answer.prompt_tokens >= 1


@given(
    st.sampled_from(list(Api)),
    st.sampled_from(list(PROFILES)),
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=10),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_the_events_hold_the_text_however_it_is_cut(
    api: Api, profile: str, pieces: list[str], width: int, reasoning: int
) -> None:
    """Property: whatever the text, the chunk size and where reasoning ends, the stream says all of it, in order."""
    frames = FRAMES[api](Script(7, 1, "m", pieces, reasoning=reasoning, profile=PROFILES[profile]))
    counts = Counts(5, len(pieces))
    data = frames.opening(counts)
    for start in range(0, len(pieces), width):
        stop = min(start + width, len(pieces))
        data += frames.tokens(start, stop, "stop" if stop == len(pieces) else None, None)
    data += frames.finishing("stop", counts) + frames.tail("stop", counts) + frames.end("stop", counts)
    thought, text = streamed_text(api.value, list(read_events(data.decode())))
    wanted = "".join(pieces).encode("utf-8", "replace").decode()
    assert thought + text == wanted
    if api is not Api.COMPLETIONS:
        assert thought == "".join(pieces[:reasoning]).encode("utf-8", "replace").decode()
