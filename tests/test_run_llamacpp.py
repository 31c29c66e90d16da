"""Real sessions on a real engine: llama.cpp's own counters and per-request timings are the judge."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import engines
import pytest
from siege import Ran, Siege, check_conserved, plan_text

from infersiege.records import Outcome, TokensFrom

pytestmark = [pytest.mark.llamacpp, pytest.mark.slow]

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,60,12
2023-11-16 18:15:47.1000000,90,16
2023-11-16 18:15:47.2224670,40,8
2023-11-16 18:15:47.9910170,120,10
2023-11-16 18:15:48.3000000,30,20
2023-11-16 18:15:48.9000000,75,9
"""

PREFLIGHT_TOKENS = 4 + 3
"""Most output of the request with which the preflight asks whether the model answers, and of three for text lengths."""


def tool_session(city: str) -> str:
    """Two turns: a call of a tool, then its result."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": json.dumps({"city": city})},
    }
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return json.dumps(
        {
            "messages": [
                {"role": "system", "content": "You look things up before you answer."},
                {"role": "user", "content": f"How is the weather in {city}?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 4}'},
                {"role": "assistant", "content": "It is 4 degrees."},
            ],
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
        }
    )


class Counters:
    """Growth of the engine's own counters since it was made."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self._engine.host}:{self._engine.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}

    def grown(self, name: str) -> float:
        return self._read()[name] - self._before[name]


def check_against_engine(ran: Ran, counters: Counters) -> None:
    turns = ran.turns
    assert {turn.outcome for turn in turns} == {Outcome.OK}, ran.out
    assert {turn.tokens_from for turn in turns} == {TokensFrom.USAGE}
    generated = sum(turn.output_tokens or 0 for turn in turns)
    assert 0 < counters.grown("tokens_predicted_total") - generated <= PREFLIGHT_TOKENS
    prompts = sum(turn.prompt_tokens or 0 for turn in turns)
    seen = counters.grown("prompt_tokens_total") + counters.grown("prompt_tokens_cached_total")
    assert 0 < seen - prompts < 250, "all prompt tokens but those before the load are ours"
    # The engine's time from a request's first token to its last, summed, is what the client saw, summed.
    streaming_s = sum((turn.last_token_ns or 0) - (turn.first_token_ns or 0) for turn in turns) / 1e9
    assert streaming_s == pytest.approx(counters.grown("tokens_predicted_seconds_total"), rel=0.15, abs=0.5)
    for turn in turns:
        assert turn.first_token_ns is not None and turn.sent_ns is not None and turn.server_ttft_ns is not None
        assert turn.first_token_ns - turn.sent_ns >= turn.server_ttft_ns * 0.95, "no token before the prompt was read"


@pytest.mark.parametrize("load", ['mode = "closed"\nusers = 3\nramp = "0s"', 'mode = "open"\nrate = 2'])
def test_lengths_and_times_of_a_csv_trace(llamacpp: engines.Engine, tmp_path: Path, load: str) -> None:
    trace = tmp_path / "rows.csv"
    trace.write_bytes(AZURE.replace("\n", "\r\n").rstrip().encode())
    counters = Counters(llamacpp)
    text = plan_text(
        llamacpp.base_url,
        model=llamacpp.model,
        engine="llama.cpp",
        run="stop = {sessions = 6}",
        channel="ignore_eos = true",
        workload=f'scenario = "azure"\ntrace = "{trace}"',
        load=load,
    )
    ran = Siege(tmp_path).run(text)
    check_conserved(ran)
    check_against_engine(ran, counters)
    asked = sorted([12, 16, 8, 10, 20, 9])
    assert sorted(turn.output_tokens or 0 for turn in ran.turns) == asked, "ignore_eos fixes the output lengths"


def test_tool_calling_sessions(llamacpp: engines.Engine, tmp_path: Path) -> None:
    trace = tmp_path / "talks.jsonl"
    trace.write_text("\n".join(tool_session(city) for city in ("Oslo", "Rome", "Bern")), encoding="utf-8")
    counters = Counters(llamacpp)
    text = plan_text(
        llamacpp.base_url,
        model=llamacpp.model,
        engine="llama.cpp",
        run="stop = {sessions = 3}",
        workload=f'scenario = "tools"\ntrace = "{trace}"\nmax_tokens = 12',
        load='mode = "closed"\nusers = 3\nramp = "0s"',
        more="[sampling]\nmax_tokens = 12",
    )
    ran = Siege(tmp_path).run(text, "--workers", "2")
    check_conserved(ran)
    check_against_engine(ran, counters)
    assert len(ran.turns) == 6
    second = [turn for turn in ran.turns if turn.turn == 1]
    first = {turn.session_id: turn for turn in ran.turns if turn.turn == 0}
    for turn in second:
        before = first[turn.session_id]
        assert (turn.prompt_tokens or 0) > (before.prompt_tokens or 0), "the history grew"
        assert before.closed_ns is not None and turn.due_ns >= before.closed_ns


def test_the_same_sessions_in_every_dialect(llamacpp: engines.Engine, tmp_path: Path) -> None:
    """Only the channel changes. Tokens are the engine's own count in each, and none of them sees the answer late."""
    dialects = ("openai-completions", "openai-responses", "anthropic-messages")
    trace = tmp_path / "talks.jsonl"
    rows = ([f"Tell me of {city}.", "Nice.", "And its people?", "Nice, too."] for city in ("Oslo", "Rome", "Bern"))
    roles = ("user", "assistant", "user", "assistant")
    talks = [[{"role": role, "content": text} for role, text in zip(roles, row, strict=True)] for row in rows]
    trace.write_text("\n".join(json.dumps({"messages": talk}) for talk in talks), encoding="utf-8")
    channels = "\n".join(
        f'[channel.{name}]\nengine = "llama.cpp"\nbase_url = "{llamacpp.base_url}"\nmodel = "{llamacpp.model}"\n'
        f'dialect = "{name}"\nstream = {"false" if name == "openai-responses" else "true"}'
        for name in dialects
    )
    workloads = "\n".join(
        f'[[workload]]\nscenario = "{name}"\ntrace = "{trace}"\nchannel = "{name}"\nmax_tokens = 12'
        for name in dialects
    )
    load = '[load]\nmode = "closed"\nusers = 3\nramp = "0s"'
    ran = Siege(tmp_path).run(f"[run]\nstop = {{sessions = 9}}\n{channels}\n{workloads}\n{load}\n")
    check_conserved(ran)
    turns = ran.turns
    assert {turn.outcome for turn in turns} == {Outcome.OK}, ran.out
    assert {turn.tokens_from for turn in turns} == {TokensFrom.USAGE}
    for name in dialects:
        of = [turn for turn in turns if turn.channel == name]
        assert of and {turn.dialect for turn in of} == {name}
        assert all(0 < (turn.output_tokens or 0) <= 12 and (turn.prompt_tokens or 0) > 0 for turn in of), name
        later = [turn for turn in of if turn.turn == 1]
        assert later and all((turn.cached_tokens or 0) > 0 for turn in later), f"{name}: a history is in the cache"
        streamed = name != "openai-responses"
        assert all((turn.first_token_ns is not None) == streamed for turn in of), name
