"""What OpenHands writes into messages of its events, where the event has more than a text."""

from __future__ import annotations

from typing import Any

import msgspec

SILENT = frozenset(
    {"null", "recall", "change_agent_state", "pause", "resume", "stop", "reject", "condensation_request", "push"}
    | {"send_pr", "loop_recovery", "start_task"}
)
"""Actions that are no message to or from the model."""

_TAGS = {"run": ("execute_bash", "command"), "run_ipython": ("execute_ipython", "code")}
"""Action -> (tag, argument) of agents that wrote their calls as text."""

_STATES = frozenset({"agent_state_changed", "null", "agent_ready", "server_ready"})
"""Observations that are no message."""


def action_text(action: str, args: dict[str, Any]) -> str | None:
    """What an agent without tool calls wrote to have this done; None: nothing."""
    if action in SILENT:
        return None
    thought = _text(args.get("thought"))
    if action == "message":
        return _text(args.get("content"))
    if action in _TAGS:
        tag, key = _TAGS[action]
        return f"{thought}\n<{tag}>\n{_text(args.get(key))}\n</{tag}>".lstrip()
    if action in {"finish", "think"}:
        return thought or _text(args.get("final_thought"))
    given = {name: value for name, value in args.items() if name != "thought"}
    tag = f"execute_{action}"
    return f"{thought}\n<{tag}>\n{msgspec.json.encode(given).decode()}\n</{tag}>".lstrip()


def observation_text(event: dict[str, Any]) -> str | None:
    """What the model is told of an observation; None: nothing."""
    kind = event["observation"]
    if kind in _STATES:
        return None
    extras = event.get("extras")
    extras = extras if isinstance(extras, dict) else {}
    content = _text(event.get("content"))
    if kind == "recall":
        return _recalled(extras) or None
    if kind == "run":
        return content + _command_end(extras.get("metadata"))
    if kind == "error":
        return f"{content}\n[Error occurred in processing last action]"
    if kind == "user_rejected":
        return f"OBSERVATION:\n{content}\n[Last action has been rejected by the user]"
    return content


def _command_end(metadata: object) -> str:
    """Directory, interpreter and exit code, which follow the output of a command."""
    if not isinstance(metadata, dict):
        return ""
    lines = [_text(metadata.get("suffix"))]
    if metadata.get("working_dir"):
        lines.append(f"[Current working directory: {metadata['working_dir']}]")
    if metadata.get("py_interpreter_path"):
        lines.append(f"[Python interpreter: {metadata['py_interpreter_path']}]")
    if isinstance(metadata.get("exit_code"), int) and metadata["exit_code"] != -1:
        lines.append(f"[Command finished with exit code {metadata['exit_code']}]")
    return "\n".join(lines)


def _recalled(extras: dict[str, Any]) -> str:
    """Instructions and knowledge that were put beside the user's message; their template is not in the file."""
    knowledge = extras.get("microagent_knowledge")
    agents = knowledge if isinstance(knowledge, list) else []
    texts = [_text(extras.get(key)) for key in ("repo_instructions", "additional_agent_instructions")]
    texts += [_text(agent.get("content")) for agent in agents if isinstance(agent, dict)]
    return "\n\n".join(text for text in texts if text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
