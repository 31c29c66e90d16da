"""What the result files of load tools say, in one shape and in ms.

A figure that a tool does not report is None, never 0. Each reader takes the file's text and raises `UnreadableError`
with what was missing when the file is not what its tool writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec


class UnreadableError(Exception):
    """The file is not what its tool writes."""


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool says of one run; times in ms."""

    requests: int
    """That succeeded."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    """(last - first token) / (tokens - 1) or, the same here, (E2E - TTFT) / (tokens - 1), of each request."""
    tpot_p99_ms: float | None
    gap_p99_ms: float | None = None
    """Of all gaps between two chunks. None: the tool has no such figure."""
    doubts: tuple[str, ...] = ()
    """Why the tool itself says that its figures are not to be trusted."""


Reader = Callable[[str], Reported]


def _reader(read: Callable[[Any], Reported]) -> Reader:
    """`read` of parsed JSON as a reader of text, with one kind of fault for every unexpected file."""

    def from_text(text: str) -> Reported:
        try:
            return read(json.loads(text))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error

    return from_text


def _infersiege(found: Any) -> Reported:
    """summary.json: the cut over everything comes with no scenario, channel and stage."""
    keys = ("scenario", "channel", "stage")
    (whole,) = [group for group in found["groups"] if not any(group[key] for key in keys)]
    metrics = whole["distributions"]
    if {metrics[name]["unit"] for name in ("ttft", "tpot", "gap")} != {"ms"}:
        raise ValueError("times are not in ms")
    return Reported(
        requests=whole["counts"]["ok"],
        ttft_p50_ms=metrics["ttft"]["p50"],
        ttft_p99_ms=metrics["ttft"]["p99"],
        tpot_p50_ms=metrics["tpot"]["p50"],
        tpot_p99_ms=metrics["tpot"]["p99"],
        gap_p99_ms=metrics["gap"]["p99"],
        doubts=tuple(found["invalid"]),
    )


def _aiperf(found: Any) -> Reported:
    """profile_export_aiperf.json: TPOT is called inter_token_latency, all gaps are inter_chunk_latency."""
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency")
    ttft, tpot, gap = (found[name] for name in names)
    if {ttft["unit"], tpot["unit"], gap["unit"]} != {"ms"}:
        raise ValueError("times are not in ms")
    return Reported(
        requests=round(found["request_count"]["avg"]),
        ttft_p50_ms=ttft["p50"],
        ttft_p99_ms=ttft["p99"],
        tpot_p50_ms=tpot["p50"],
        tpot_p99_ms=tpot["p99"],
        gap_p99_ms=gap["p99"],
    )


def _guidellm(found: Any) -> Reported:
    """--output kind=json: its inter_token_latency is each request's mean without the first token, hence our TPOT.

    Its time_per_output_token holds the TTFT and is another thing.
    """
    (benchmark,) = found["benchmarks"]
    metrics = benchmark["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    tpot = metrics["inter_token_latency_ms"]["successful"]["percentiles"]
    return Reported(
        requests=metrics["request_totals"]["successful"],
        ttft_p50_ms=ttft["p50"],
        ttft_p99_ms=ttft["p99"],
        tpot_p50_ms=tpot["p50"],
        tpot_p99_ms=tpot["p99"],
    )


def _evalscope(found: Any) -> Reported:
    """[benchmark_percentile.json, benchmark_summary.json]: rows by percentile; ITL is of all gaps."""
    percentiles, summary = found
    rows = {row["Percentiles"]: row for row in percentiles}
    return Reported(
        requests=summary["Success Requests"],
        ttft_p50_ms=rows["50%"]["TTFT (ms)"],
        ttft_p99_ms=rows["99%"]["TTFT (ms)"],
        tpot_p50_ms=rows["50%"]["TPOT (ms)"],
        tpot_p99_ms=rows["99%"]["TPOT (ms)"],
        gap_p99_ms=rows["99%"]["ITL (ms)"],
    )


def _serving(found: Any) -> Reported:
    """vllm bench serve and sglang.bench_serving: the same names, since the one came from the other."""
    return Reported(
        requests=found["completed"],
        ttft_p50_ms=found["median_ttft_ms"],
        ttft_p99_ms=found["p99_ttft_ms"],
        tpot_p50_ms=found["median_tpot_ms"],
        tpot_p99_ms=found["p99_tpot_ms"],
        gap_p99_ms=found["p99_itl_ms"],
    )


infersiege = _reader(_infersiege)
aiperf = _reader(_aiperf)
guidellm = _reader(_guidellm)
evalscope = _reader(_evalscope)
serving = _reader(_serving)
