"""Whether a channel's workloads send tools: servers that take no tools refuse every turn of such a run."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from infersiege.doctor.lengths import served_by
from infersiege.plan.defaults import BUILTIN
from infersiege.plan.schema import Plan, Workload
from infersiege.quality.items import FORMAT

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Keep a note. Not needed for counting.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
"""The one that the small request carries."""

HINT: Final = (
    "does it take tools? vLLM needs --enable-auto-tool-choice and --tool-call-parser, SGLang --tool-call-parser, "
    "llama.cpp --jinja; checked prompts go without tools with quality.tools = false"
)
ABOUT_TOOLS: Final = re.compile(r"\btools?\b|tool[ _-](call|choice|use)|--jinja|function[ _-]call", re.IGNORECASE)
"""In the words of a refusal."""

_HEAD_BYTES = 1 << 20
_IN_A_TRACE = re.compile(rb'"(tools|tool_calls)"\s*:\s*\[\s*[^\]\s]')


def sends_tools(plan: Plan, channel: str) -> bool:
    """Whether a workload of this channel, alone or as part of a hybrid, has tools. Of a file, its start tells."""
    first = next(iter(plan.channels), "")
    return any(
        channel in served_by(plan, workload.channel or first, workload.scenario) and _has_tools(workload)
        for workload in plan.workloads
    )


def _has_tools(workload: Workload) -> bool:
    if workload.format == FORMAT and (workload.options.get("tools") is False or workload.trace.startswith(BUILTIN)):
        return workload.options.get("tools") is not False
    if workload.trace.startswith(BUILTIN):
        return workload.trace == f"{BUILTIN}agent" and workload.options.get("tools_share") != 0
    with suppress(OSError), Path(workload.trace).expanduser().open("rb") as file:  # the trace's reader tells the reason
        return _IN_A_TRACE.search(file.read(_HEAD_BYTES)) is not None
    return False
