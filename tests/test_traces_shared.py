"""The readers against complete public files, where those are at hand: figures must be those of the published tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from infersiege.errors import TraceError
from infersiege.traces import describe, detect_format, open_trace
from infersiege.traces.files.source import Source

SHARED = Path(__file__).parents[1].parent / "shared" / "traces"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the sample traces are not beside this checkout")


@pytest.mark.parametrize(("name", "turns"), [("batch_input", 2), ("finetune_messages", 3)])
def test_openai_files(name, turns):
    trace = open_trace(f"openai-jsonl/{name}.hand-made.jsonl", base=SHARED)
    assert (trace.format, trace.sessions, trace.skipped, trace.warnings) == ("openai-messages", 2, {}, ())
    assert describe(trace).turns == turns


FORMATS = {
    "azure": {"azure"},
    "burstgpt": {"burstgpt"},
    "mini-swe-agent": {"mini-swe-agent"},
    "mooncake": {"mooncake"},
    "mtbench": {"mt-bench"},
    "openai-jsonl": {"openai-messages"},
    "otel": {"otel-genai"},
    "sharegpt": {"sharegpt"},
    "swe-agent": {"swe-agent"},
    "tau-bench": {"tau-bench"},
    "tracelab": {"tracelab-replay", "tracelab-rounds"},
    "weka": {"weka"},
}
"""Of the files in each folder; files of other folders, and licences, are no traces."""


def test_every_file_is_told_as_what_it_is_and_no_other_is_misread():
    paths = [path for path in sorted(SHARED.glob("*/*")) if path.is_file()]
    assert len(paths) > 30
    for path in paths:
        formats = FORMATS.get(path.parent.name, set()) if path.suffix not in {".md", ".txt"} else set()
        if formats:
            assert detect_format(Source(path)) in formats, path
        else:
            with pytest.raises(TraceError, match="format can't be told"):
                detect_format(Source(path))
