"""The built-in workload `agent`: a long shared prefix of tools and system prompt, then calls that append a little each.

Figures: docs/traces.md. Every answer but a session's last and those before a user's turn calls one tool.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.builtin import SECOND_NS, Draw, Generated
from infersiege.traces.options import Option, OptionTable
from infersiege.traces.text import CHARS_PER_TOKEN, Synthesizer
from infersiege.traces.trace import ReadOptions
from infersiege.traces.words import QUESTIONS, TOOL_NAMES, WORDS

AGENT_OPTIONS: OptionTable = {
    "calls": Option(default=45, at_least=1, meaning="requests of a session, median"),
    "calls_sigma": Option(default=0.96, at_least=0, at_most=3, meaning="requests of a session, sigma of the lognormal"),
    "calls_max": Option(default=200, at_least=1, at_most=10_000, meaning="most requests of a session"),
    "prefix_tokens": Option(
        default=15_000, at_least=0, meaning="tokens of tools and system prompt that all sessions share"
    ),
    "tools_share": Option(default=0.82, at_least=0, at_most=1, meaning="part of the prefix that is tool definitions"),
    "task_p50": Option(default=9_000, at_least=1, meaning="tokens of the first user message, median"),
    "task_sigma": Option(default=0.8, at_least=0, at_most=3, meaning="the same, sigma of the lognormal"),
    "append_p50": Option(default=650, at_least=1, meaning="tokens that a tool result or user message appends, median"),
    "append_sigma": Option(default=1.3, at_least=0, at_most=3, meaning="the same, sigma of the lognormal"),
    "big_share": Option(
        default=0.015, at_least=0, at_most=1, meaning="share of appends that hold big_p50 tokens instead"
    ),
    "big_p50": Option(default=16_000, at_least=1, meaning="tokens of a big append, median (sigma 0.4)"),
    "output_p50": Option(default=216, at_least=1, meaning="answer tokens, median"),
    "output_sigma": Option(default=0.9, at_least=0, at_most=3, meaning="answer tokens, sigma of the lognormal"),
    "tool_share": Option(
        default=0.85, at_least=0, at_most=1, meaning="share of later turns that follow a tool, not a user"
    ),
    "tool_delay_p50_s": Option(default=9.0, at_least=0, meaning="seconds that a tool takes, median"),
    "tool_delay_sigma": Option(default=1.64, at_least=0, at_most=3, meaning="the same, sigma of the lognormal"),
    "user_delay_p50_s": Option(default=100.0, at_least=0, meaning="seconds that a user takes, median"),
    "user_delay_sigma": Option(default=1.2, at_least=0, at_most=3, meaning="the same, sigma of the lognormal"),
}

_BIG_SIGMA = 0.4
_CALL_TOKENS = 24
"""About what a tool call with its one argument costs, beside the answer's text."""
_TOOL_FRAME_TOKENS = 60
"""About what a tool definition costs without its description."""
_LARGEST_PREFIX = 10_000_000
"""It is made and held as text when the trace is opened."""
_MIN_TOOLS = 2
_TOKENS_PER_TOOL = 600


class Agent(Generated):
    """Sessions of one agent: the same tools and system prompt, each with a task of its own."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        prefix = options.prompt_tokens(int(self._number("prefix_tokens")))
        if prefix > _LARGEST_PREFIX:
            raise TraceError(
                f"{options.name}: tools and system prompt of {prefix:,} tokens, the most is {_LARGEST_PREFIX:,}",
                hint="lower options.prefix_tokens or length_scale",
            )
        tools = round(prefix * self._number("tools_share"))
        self._tools = _tool_definitions(tools, options)
        self._tool_tokens = sum(self._estimate(msgspec.json.encode(tool).decode()) for tool in self._tools)
        self._system = max(0, prefix - self._tool_tokens)

    def session(self, index: int) -> Session:
        self._check_index(index)
        draw = Draw(self._options.seed, "agent", index)
        calls = min(draw.tokens(self._number("calls"), self._number("calls_sigma")), int(self._number("calls_max")))
        by_tool = [False] + [draw.chance(self._number("tool_share")) for _ in range(calls - 1)]
        turns: list[Turn] = []
        held = self._tool_tokens
        call: Message | None = None
        for number in range(calls):
            turn, held, call = self._turn(draw, index, number, held, call, number + 1 < calls and by_tool[number + 1])
            turns.append(turn)
        return Session(session_id=f"agent-{index}", turns=tuple(turns), tools=self._tools or None)

    def _turn(
        self, draw: Draw, index: int, number: int, held: int, call: Message | None, calls_tool: bool
    ) -> tuple[Turn, int, Message | None]:
        """One turn, the tokens held after its answer, and the tool call that the answer ends with."""
        scope = f"agent/{index}"
        messages: list[Message] = []
        texts: list[BlockText | None] = []
        if number == 0 and self._system:
            messages.append({"role": "system", "content": ""})
            texts.append(self._block("agent/system", 0, self._system))
            held += self._system
        appended = self._appended(draw, first=number == 0)
        texts.append(self._block(scope, 2 * number, appended))
        if call is not None:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ""})
        else:
            question = self._question(draw, QUESTIONS)
            messages.append({"role": "user", "content": question})
            appended += self._estimate(question)
        output = self._options.output_tokens(draw.tokens(self._number("output_p50"), self._number("output_sigma")))
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        next_call = self._call(draw, index, number) if calls_tool else None
        if next_call is not None:
            answer["tool_calls"] = [next_call]
        text = max(1, output - _CALL_TOKENS) if calls_tool else output
        turn = Turn(
            messages=tuple(messages),
            texts=tuple(texts),
            delay_ns=self._delay_ns(draw, number, call is not None),
            recorded_answer=(answer,),
            answer_text=self._block(scope, 2 * number + 1, text),
            asked_prompt_tokens=held + appended,
            asked_output_tokens=output,
        )
        return turn, held + appended + output, next_call

    def _appended(self, draw: Draw, *, first: bool) -> int:
        if first:
            tokens = draw.tokens(self._number("task_p50"), self._number("task_sigma"))
        elif draw.chance(self._number("big_share")):
            tokens = draw.tokens(self._number("big_p50"), _BIG_SIGMA)
        else:
            tokens = draw.tokens(self._number("append_p50"), self._number("append_sigma"))
        return self._options.prompt_tokens(tokens)

    def _delay_ns(self, draw: Draw, number: int, tool: bool) -> int:
        kind = "tool" if tool else "user"
        seconds = draw.lognormal(self._number(f"{kind}_delay_p50_s"), self._number(f"{kind}_delay_sigma"))
        return round(seconds * SECOND_NS) if number else 0

    def _call(self, draw: Draw, index: int, number: int) -> dict[str, Any]:
        name = self._tools[draw.below(len(self._tools))]["function"]["name"] if self._tools else draw.pick(TOOL_NAMES)
        words = WORDS["en"]
        target = f"src/{draw.pick(words)}/{draw.pick(words)}_{draw.below(1000)}.py"
        return {
            "id": f"call_{index}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": msgspec.json.encode({"target": target}).decode()},
        }


def _tool_definitions(tokens: int, options: ReadOptions) -> tuple[dict[str, Any], ...]:
    """Definitions of about so many tokens in all, by the usual ratio; none for 0."""
    if tokens == 0:
        return ()
    count = max(_MIN_TOOLS, min(len(TOOL_NAMES), tokens // _TOKENS_PER_TOOL))
    each = max(0, tokens // count - _TOOL_FRAME_TOKENS)
    synthesizer = Synthesizer(options.seed, chars_per_token=CHARS_PER_TOKEN, cache_bytes=0)
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": synthesizer.block("agent/tools", place, each, options.language).strip()
                or name.replace("_", " "),
                "parameters": {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]},
            },
        }
        for place, name in enumerate(TOOL_NAMES[:count])
    )
