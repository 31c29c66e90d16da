"""The table of trace formats."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import msgspec

from infersiege.traces.files.head import Head
from infersiege.traces.files.source import Source
from infersiege.traces.formats import (
    aiperf,
    atif,
    azure,
    bailian,
    burstgpt,
    claude_code,
    codex,
    copilot,
    dynamo,
    full_body,
    mini_swe_agent,
    mooncake,
    mt_bench,
    normal,
    openai_messages,
    openhands,
    otel,
    sharegpt,
    swe_agent,
    tau_bench,
    tracelab_replay,
    tracelab_rounds,
    vllm_multi_turn,
    weka,
    wildchat,
)
from infersiege.traces.options import OptionTable
from infersiege.traces.trace import ReadOptions, Trace


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """One file format."""

    meaning: str
    sniff: Callable[[Head], bool]
    """Whether the first bytes of a file look like this format."""
    read: Callable[[Source, ReadOptions], Trace]
    options: OptionTable = {}


def _reader(module: ModuleType, meaning: str) -> Reader:
    return Reader(meaning=meaning, sniff=module.sniff, read=module.read, options=module.OPTIONS)


READERS: dict[str, Reader] = {
    "infersiege": _reader(normal, "our own normal form, JSON Lines"),
    "openai-messages": _reader(openai_messages, "JSON Lines of OpenAI messages (fine-tune and batch files too)"),
    "full-body": _reader(full_body, "JSON Lines of recorded request bodies with their times"),
    "sharegpt": _reader(sharegpt, "ShareGPT conversations"),
    "wildchat": _reader(wildchat, "WildChat and LMSYS conversations"),
    "vllm-multi-turn": _reader(vllm_multi_turn, "JSON array of conversations that alternate strictly"),
    "mt-bench": _reader(mt_bench, "questions in several turns, without answers"),
    "mooncake": _reader(mooncake, "JSON Lines of lengths, times and block hashes, or of texts, messages, payloads"),
    "azure": _reader(azure, "CSV of times and lengths (2023, 2024, and 2025 with images)"),
    "burstgpt": _reader(burstgpt, "CSV of seconds and lengths, with sessions in its wide form"),
    "qwen-bailian": _reader(bailian, "JSON Lines of chats with block hashes"),
    "weka": _reader(weka, "agent sessions with block hashes and subagents, a file each"),
    "tracelab-replay": _reader(tracelab_replay, "CSV of agent rounds"),
    "tracelab-rounds": _reader(tracelab_rounds, "JSON Lines of agent rounds"),
    "aiperf-multi-turn": _reader(aiperf, "JSON Lines of sessions, with forks and spawns"),
    "dynamo": _reader(dynamo, "JSON Lines of agent events"),
    "copilot-agents": _reader(copilot, "JSON Lines of agent sessions by lengths"),
    "tau-bench": _reader(tau_bench, "JSON array of tool-calling trajectories"),
    "swe-agent": _reader(swe_agent, "SWE-agent trajectories"),
    "mini-swe-agent": _reader(mini_swe_agent, "mini-swe-agent trajectories"),
    "openhands": _reader(openhands, "JSON Lines of event histories"),
    "atif": _reader(atif, "agent trajectories in the interchange format"),
    "claude-code": _reader(claude_code, "sessions of Claude Code"),
    "codex": _reader(codex, "rollouts of Codex"),
    "otel-genai": _reader(otel, "OpenTelemetry GenAI spans"),
}
"""Key: what a plan writes as `format`."""
