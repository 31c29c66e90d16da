"""The built-in workload `agent`: a long shared prefix of tools and system prompt, then calls that append a little each.

Figures: docs/traces.md. Every answer but a session's last and those before a user's turn calls one tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import BlockText, Branch, Message, Session, Turn
from infersiege.traces.options import Option, OptionTable
from infersiege.traces.synthesis.text import Synthesizer
from infersiege.traces.synthesis.words import QUESTIONS, TOOL_NAMES, WORDS
from infersiege.traces.trace import ReadOptions
from infersiege.traces.workloads.builtin import SECOND_NS, Draw, Generated

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
    "agents": Option(
        default=1, at_least=1, at_most=1_000, meaning="different agents, each with tools and a system prompt of its own"
    ),
    "subagent_share": Option(
        default=0.0, at_least=0, at_most=1, meaning="share of tool turns beside whose tool a subagent works"
    ),
    "subagent_calls": Option(default=8, at_least=1, at_most=200, meaning="requests of a subagent, median (sigma 0.7)"),
    "subagent_prefix_tokens": Option(
        default=8_400,
        at_least=0,
        meaning="tokens of tools (half of the agent's) and system prompt that all subagents share",
    ),
    "subagent_task_p50": Option(default=700, at_least=1, meaning="tokens of a subagent's task, median (sigma 0.8)"),
}

_BIG_SIGMA = 0.4
_SUBAGENT_CALLS_SIGMA = 0.7
_SUBAGENT_TASK_SIGMA = 0.8
_CALL_TOKENS = 24
"""About what a tool call with its one argument costs, beside the answer's text."""
_TOOL_FRAME_TOKENS = 60
"""About what a tool definition costs without its description."""
_LARGEST_PREFIX = 10_000_000
"""It is made and held as text when the trace is opened."""
_MOST_SUBAGENT_CALLS = 200
_MIN_TOOLS = 2
_TOKENS_PER_TOOL = 600


@dataclass(slots=True)
class _Line:
    """What one line of calls goes by: an agent's or a subagent's."""

    scope: str
    """Of its texts."""
    name: str
    """Part of its call ids."""
    draw: Draw
    tools: tuple[dict[str, Any], ...]
    held: int
    """Tokens that the next request begins with."""
    system: BlockText
    task: tuple[float, float]
    """Tokens of its first user message: median and sigma."""


class Agent(Generated):
    """Sessions of one agent (or a few): the same tools and system prompt, each with a task of its own."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        prefix = options.prompt_tokens(int(self._number("prefix_tokens")))
        agents = int(self._number("agents"))
        if prefix * agents > _LARGEST_PREFIX:
            raise TraceError(
                f"{options.name}: tools and system prompts of {prefix * agents:,} tokens, the most is "
                f"{_LARGEST_PREFIX:,}",
                hint="lower options.prefix_tokens, options.agents or length_scale",
            )
        tools = round(prefix * self._number("tools_share"))
        self._tools = [_tool_definitions(tools, options, agent) for agent in range(agents)]
        self._tool_tokens = [self._tokens_of(definitions) for definitions in self._tools]
        self._prefix = prefix

    def _tokens_of(self, tools: Sequence[Mapping[str, Any]]) -> int:
        return sum(self._estimate(msgspec.json.encode(tool).decode()) for tool in tools)

    def session(self, index: int) -> Session:
        self._check_index(index)
        draw = Draw(self._options.seed, "agent", index)
        agent = draw.below(len(self._tools)) if len(self._tools) > 1 else 0
        line = _Line(
            scope=f"agent/{index}",
            name=str(index),
            draw=draw,
            tools=self._tools[agent],
            held=self._tool_tokens[agent],
            system=self._block("agent/system", agent, max(0, self._prefix - self._tool_tokens[agent]), shared=True),
            task=(self._number("task_p50"), self._number("task_sigma")),
        )
        calls = min(draw.tokens(self._number("calls"), self._number("calls_sigma")), int(self._number("calls_max")))
        turns = self._line(line, calls)
        return Session(
            session_id=f"agent-{index}",
            turns=tuple(turns),
            tools=line.tools or None,
            branches=self._subagents(index, turns, line.tools),
        )

    def _subagents(self, index: int, turns: Sequence[Turn], tools: tuple[dict[str, Any], ...]) -> tuple[Branch, ...]:
        """One beside some of the tools: it starts with the call, and the turn with the tool's result waits for it."""
        share = self._number("subagent_share")
        if not share:
            return ()
        draw = Draw(self._options.seed, "agent/subagents", index)
        # A subagent is offered fewer tools than its parent.
        offered = tools[: (len(tools) + 1) // 2]
        held = self._tokens_of(offered)
        prefix = self._options.prompt_tokens(int(self._number("subagent_prefix_tokens")))
        branches: list[Branch] = []
        for number, turn in enumerate(turns[1:], 1):
            if turn.messages[0]["role"] != "tool" or not draw.chance(share):
                continue
            line = _Line(
                scope=f"agent/{index}/sub/{number}",
                name=f"{index}_{number}",
                draw=draw,
                tools=offered,
                held=held,
                system=self._block("agent/subagent", 0, max(0, prefix - held), shared=True),
                task=(self._number("subagent_task_p50"), _SUBAGENT_TASK_SIGMA),
            )
            calls = min(draw.tokens(self._number("subagent_calls"), _SUBAGENT_CALLS_SIGMA), _MOST_SUBAGENT_CALLS)
            own = [msgspec.structs.replace(one, tools=offered) for one in self._line(line, calls, asks_user=False)]
            branches.append(Branch(turns=tuple(own), after=number - 1, joined_by=number))
        return tuple(branches)

    def _line(self, line: _Line, calls: int, *, asks_user: bool = True) -> list[Turn]:
        by_tool = [False]
        by_tool += [not asks_user or line.draw.chance(self._number("tool_share")) for _ in range(calls - 1)]
        turns: list[Turn] = []
        call: Message | None = None
        for number in range(calls):
            turn, call = self._turn(line, number, call, number + 1 < calls and by_tool[number + 1])
            turns.append(turn)
        return turns

    def _turn(self, line: _Line, number: int, call: Message | None, calls_tool: bool) -> tuple[Turn, Message | None]:
        """One turn, and the tool call that its answer ends with; `line.held` becomes what is held after the answer."""
        draw = line.draw
        messages: list[Message] = []
        texts: list[BlockText | None] = []
        if number == 0 and line.system.tokens[0]:
            messages.append({"role": "system", "content": ""})
            texts.append(line.system)
            line.held += line.system.tokens[0]
        appended = self._appended(draw, line.task if number == 0 else None)
        texts.append(self._block(line.scope, 2 * number, appended))
        if call is not None:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ""})
        else:
            question = self._question(draw, QUESTIONS)
            messages.append({"role": "user", "content": question})
            appended += self._estimate(question)
        output = self._options.output_tokens(draw.tokens(self._number("output_p50"), self._number("output_sigma")))
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        next_call = self._call(line, number) if calls_tool else None
        if next_call is not None:
            answer["tool_calls"] = [next_call]
        text = max(1, output - _CALL_TOKENS) if calls_tool else output
        turn = Turn(
            messages=tuple(messages),
            texts=tuple(texts),
            delay_ns=self._delay_ns(draw, number, call is not None),
            recorded_answer=(answer,),
            answer_text=self._block(line.scope, 2 * number + 1, text),
            asked_prompt_tokens=line.held + appended,
            asked_output_tokens=output,
        )
        line.held += appended + output
        return turn, next_call

    def _appended(self, draw: Draw, task: tuple[float, float] | None) -> int:
        if task is not None:
            tokens = draw.tokens(*task)
        elif draw.chance(self._number("big_share")):
            tokens = draw.tokens(self._number("big_p50"), _BIG_SIGMA)
        else:
            tokens = draw.tokens(self._number("append_p50"), self._number("append_sigma"))
        return self._options.prompt_tokens(tokens)

    def _delay_ns(self, draw: Draw, number: int, tool: bool) -> int:
        kind = "tool" if tool else "user"
        seconds = draw.lognormal(self._number(f"{kind}_delay_p50_s"), self._number(f"{kind}_delay_sigma"))
        return round(seconds * SECOND_NS) if number else 0

    def _call(self, line: _Line, number: int) -> dict[str, Any]:
        draw = line.draw
        name = line.tools[draw.below(len(line.tools))]["function"]["name"] if line.tools else draw.pick(TOOL_NAMES)
        words = WORDS["en"]
        target = f"src/{draw.pick(words)}/{draw.pick(words)}_{draw.below(1000)}.py"
        return {
            "id": f"call_{line.name}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": msgspec.json.encode({"target": target}).decode()},
        }


def _tool_definitions(tokens: int, options: ReadOptions, agent: int) -> tuple[dict[str, Any], ...]:
    """Definitions of about so many tokens in all, by the usual ratio; none for 0."""
    if tokens == 0:
        return ()
    count = max(_MIN_TOOLS, min(len(TOOL_NAMES), tokens // _TOKENS_PER_TOOL))
    each = max(0, tokens // count - _TOOL_FRAME_TOKENS)
    synthesizer = Synthesizer(options.seed, cache_bytes=0)
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": synthesizer.block(
                    "agent/tools", agent * len(TOOL_NAMES) + place, each, options.language
                ).strip()
                or name.replace("_", " "),
                "parameters": {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]},
            },
        }
        for place, name in enumerate(TOOL_NAMES[:count])
    )
