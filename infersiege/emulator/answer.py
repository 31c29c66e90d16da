"""From a request to the answer that will be generated: length, text, tool call; or a refusal.

Everything follows from the seed and the request's content, never from the order of requests, so concurrent runs repeat.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infersiege.emulator import text
from infersiege.emulator.faults import Fault
from infersiege.emulator.profile import PROFILES, Api, Profile
from infersiege.emulator.refusal import Reason, RefusedError, invalid, over_context
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.wish import Wish, read_wish


@dataclass(frozen=True, slots=True)
class Answer:
    """What will be generated. `pieces` has one entry per token; a tool call's first token is its name."""

    api: Api
    model: str
    """The name that the answer gives."""
    prompt_tokens: int
    pieces: tuple[str, ...]
    tool: str | None
    """Name of the called function; its arguments are pieces[1:]."""
    finish_reason: str
    """In chat's words."""
    chain: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    usage_on_every_chunk: bool
    marks_cache: bool

    @property
    def output_tokens(self) -> int:
        return len(self.pieces)


_LOOP = ("and ", "so ", "on ", "it ", "goes ")
_GARBLE = ("\ufffd\ufffd", "th\ufffd", " a\ufffd")


def collapsed(answer: Answer, fault: Fault) -> Answer:
    """The answer as its fault wants it: as long as it was, and none any more. Calls of tools stay."""
    words = _LOOP if fault.loop else _GARBLE if fault.garble else ()
    if not words or answer.tool is not None:
        return answer
    return replace(answer, pieces=tuple(words[place % len(words)] for place in range(len(answer.pieces))))


def _room(wish: Wish, profile: Profile, limit: int) -> tuple[int, bool]:
    """(most tokens that may be generated, whether the request itself named a number)."""
    asked = wish.max_tokens
    if asked is not None and asked > limit and not profile.clips_max_tokens:
        raise RefusedError(
            Reason.INVALID if profile.name != "vllm" else Reason.EMPTY,
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if len(wish.prompt) >= limit:
        raise over_context(len(wish.prompt), limit)
    # Prompt and max_tokens together over the context: clipped without a word, as engines do.
    left = limit - len(wish.prompt)
    return (left, False) if asked is None else (min(asked, left), True)


def _called_tool(wish: Wish, rng: random.Random, share: float) -> Mapping[str, Any] | None:
    """The function to call."""
    lot, index = rng.random(), rng.random()  # always drawn: the text must not depend on the choice
    if not wish.functions or wish.choice == "none":
        return None
    if wish.choice == "named":
        found = next((function for function in wish.functions if function["name"] == wish.named), None)
        if found is None:
            raise invalid("body.tool_choice", "tool_choice names a function that is not among the tools")
        return found
    if wish.choice == "required" or lot < share:
        return wish.functions[int(index * len(wish.functions))]
    return None


def _source(seeds: tuple[int, Any], prompt: Sequence[str]) -> random.Random:
    """The random source of one answer: the same for the same prompt and seeds, in any process."""
    (whole,) = text.block_chain(prompt, len(prompt))
    return random.Random(whole + repr(seeds).encode("utf-8", "surrogatepass"))


def _drawn_length(settings: EmulatorSettings, rng: random.Random) -> int:
    gauss = rng.gauss(0.0, 1.0)
    if settings.output_tokens is not None:
        return settings.output_tokens
    return max(1, round(settings.output_median * math.exp(settings.output_sigma * gauss)))


def plan_answer(body: Any, settings: EmulatorSettings, api: Api = Api.CHAT) -> Answer:
    """The answer to a request body. Raises RefusedError."""
    profile = PROFILES[settings.profile]
    return answer_of(read_wish(body, api, profile, settings.model), settings)


def answer_of(wish: Wish, settings: EmulatorSettings) -> Answer:
    """The answer to what a request asks for. Raises RefusedError."""
    profile = PROFILES[settings.profile]
    most, named_limit = _room(wish, profile, settings.spec.max_model_len)
    prompt_chain = text.block_chain(wish.prompt, settings.spec.block_size)
    rng = _source((settings.seed, wish.seed), wish.prompt)
    length = _drawn_length(settings, rng)
    function = _called_tool(wish, rng, settings.tool_share)
    if function is not None and settings.output_tokens is None:
        length = min(length, 64)  # a call is short
    if wish.ignore_eos and named_limit:
        length = most
    length = min(max(length, wish.min_tokens or 0), most)

    if function is None:
        pieces = text.prose(rng, length, chinese=text.is_chinese(wish.question))
        ending = "stop"
    else:
        arguments = text.tokenise(text.call_arguments(function.get("parameters"), rng, max(length - 1, 0)))
        pieces = [str(function["name"]), *arguments][:most]
        # vLLM and OpenAI say `stop` when the request named the function.
        named = wish.choice == "named" and wish.api is Api.CHAT and profile.name in ("vllm", "openai")
        ending = "stop" if named else "tool_calls"
    return Answer(
        api=wish.api,
        model=wish.model if profile.echoes_model else settings.model,
        prompt_tokens=len(wish.prompt),
        pieces=tuple(pieces),
        tool=None if function is None else str(function["name"]),
        finish_reason="length" if len(pieces) >= most else ending,
        chain=text.block_chain([*wish.prompt, *pieces], settings.spec.block_size, prompt_chain),
        stream=wish.stream,
        include_usage=wish.include_usage,
        usage_on_every_chunk=wish.usage_on_every_chunk,
        marks_cache=wish.marks_cache,
    )
