"""vLLM multi-turn JSON: an array of conversations that alternate strictly."""

from __future__ import annotations

from infersiege.errors import TraceError
from infersiege.traces.head import Head
from infersiege.traces.options import Option
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, Trace

NAME = "vllm-multi-turn"

OPTIONS: dict[str, Option] = {}


def sniff(head: Head) -> bool:
    return False


def read(source: Source, options: ReadOptions) -> Trace:
    raise TraceError(f"{source.path}: format {NAME!r} is not read yet")
