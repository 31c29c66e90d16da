"""The readers against complete public files, where those are at hand: figures must be those of the published tables."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from infersiege.errors import TraceError
from infersiege.traces import describe, open_trace

SHARED = Path(__file__).parents[1].parent / "shared" / "traces"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the sample traces are not beside this checkout")


@pytest.mark.parametrize(
    ("path", "rows", "prompts", "outputs", "rate"),
    [
        ("azure/AzureLLMInferenceTrace_conv.csv", 19_366, (1155, 1020, 2734, 4142), (211, 129, 424, 601), 5.5),
        ("azure/AzureLLMInferenceTrace_code.csv", 8_819, (2048, 1469, 5188, 7436), (28, 13, 55, 251), 2.6),
        ("mooncake/conversation_trace.jsonl", 12_031, (12035, 6909, 27370, 85400), (343, 350, 597, 1119), 3.4),
    ],
)
def test_lengths_are_those_published(path, rows, prompts, outputs, rate):
    described = describe(open_trace(path, base=SHARED))
    assert (described.rows, described.sessions, described.skipped) == (rows, rows, {})
    for lengths, wanted in ((described.prompt_tokens, prompts), (described.output_tokens, outputs)):
        assert lengths is not None
        assert lengths.n == rows
        found = (lengths.mean, lengths.p50, lengths.p90, lengths.p99)
        assert found == pytest.approx(wanted, rel=2e-3, abs=0.51)
    assert described.mean_rate == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize(
    ("path", "bound"),
    [("mooncake/conversation_trace.jsonl", 0.374), ("mooncake/synthetic_trace.jsonl", 0.651)],
)
def test_cache_bound_is_the_one_published(path, bound):
    assert describe(open_trace(path, base=SHARED)).cache_bound == pytest.approx(bound, abs=5e-4)


def test_mooncake_arrives_in_ticks():
    described = describe(open_trace("mooncake/conversation_trace.jsonl", base=SHARED))
    assert described.ticks == 1180
    assert described.peak_rate == 28
    assert described.line().startswith("12,031 rows, 12,031 sessions, span 58 min 57 s, mean 3.4/s, peak 28/s")


def test_azure_code_has_its_gap_of_217_seconds():
    arrivals = open_trace("azure/AzureLLMInferenceTrace_code.csv", base=SHARED).arrivals_ns
    assert arrivals is not None
    assert max(after - before for before, after in pairwise(arrivals)) // 10**9 == 217


@pytest.mark.parametrize(("name", "turns"), [("batch_input", 2), ("finetune_messages", 3)])
def test_openai_files(name, turns):
    trace = open_trace(f"openai-jsonl/{name}.hand-made.jsonl", base=SHARED)
    assert (trace.format, trace.sessions, trace.skipped, trace.warnings) == ("openai-messages", 2, {}, ())
    assert describe(trace).turns == turns


KNOWN = {"azure", "mooncake", "tau-bench", "openai-jsonl", "swe-agent", "mini-swe-agent"}


def test_files_of_other_formats_are_refused_and_never_misread():
    others = [path for path in sorted(SHARED.glob("*/*")) if path.parent.name not in KNOWN]
    assert len(others) > 20
    for path in others:
        with pytest.raises(TraceError, match="format can't be told"):
            open_trace(str(path))
