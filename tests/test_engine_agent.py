"""The engine agent: right values of each engine's page, counts over intervals, faults of a server, the real command."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import scripted_server
from collected import Collected
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.engine_command import Engine, Watch
from infersiege_agents.engine_histograms import merge, parse
from infersiege_agents.engine_names import COUNTERS, ENGINES, HIGHEST_GAUGES, HISTOGRAMS, SINGLE_GAUGES, SUMMED_GAUGES
from infersiege_agents.engine_scrape import BODY_LIMIT_BYTES, Address, Page, ScrapeError, address_of, fetch
from infersiege_agents.engine_series import EngineSeries, detect, read
from infersiege_agents.errors import AgentError
from infersiege_agents.measurements import ENGINE
from infersiege_agents.points import Point, json_line
from siege import Siege, plan_text

from infersiege.emulator.process import EmulatorProcess

Fields = dict[str, Any]


# --- helpers: pages into points ----------------------------------------------------------------------------------


def series(engine: str | None = None) -> EngineSeries:
    return EngineSeries(host="gpu-1", instance="gpu-1:8000", engine=engine)


def point(of: EngineSeries, page: Page | str, at_s: float = 0.0) -> Fields:
    """The fields of the point that this page makes, as they are written."""
    page = page if isinstance(page, Page) else Page(page)
    made = of.scraped(page, at_ns=int(at_s * 1e9), at_s=at_s, took_s=0.01)
    row = json.loads(json_line(made))
    assert row["measurement"] == "engine"
    fields: Fields = row["fields"]
    return fields


def capture(shared: Path, name: str) -> Page:
    """A captured answer."""
    head, _, text = (shared / "captures" / f"{name}.txt").read_text("utf-8").partition("\n\n")
    lines = [line.partition(":") for line in head.splitlines() if not line.startswith(("#", "HTTP/"))]
    return Page(text, {name.strip().lower(): value.strip() for name, _, value in lines})


GIVEN = {"up", "scrape_duration"}
"""Of each page that came."""
TOLD: dict[str, set[str]] = {
    "vllm": {"running", "waiting", "kv_use", "prefix_queries", "prefix_hits", "prefix_hit_share", "preemptions",
             "prompt_tokens", "generated_tokens", "ttft", "itl"},
    "sglang": {"running", "waiting", "kv_use", "prefix_queries", "prefix_hits", "prefix_hit_share",
               "prompt_tokens", "generated_tokens", "ttft", "itl"},
    "llama.cpp": {"running", "waiting", "prefix_queries", "prefix_hits", "prefix_hit_share", "prompt_tokens",
                  "generated_tokens"},
    "lmdeploy": {"running", "waiting", "kv_use", "prefix_queries", "prefix_hits", "prefix_hit_share",
                 "prompt_tokens", "generated_tokens", "ttft", "itl"},
    "tgi": {"running", "waiting", "prompt_tokens", "generated_tokens"},
    "tensorrt-llm": {"running", "waiting", "kv_use", "prefix_hit_share", "prompt_tokens", "generated_tokens", "ttft"},
}  # fmt: skip
"""What each engine tells under load; nothing else may be written."""


def told(fields: Fields) -> set[str]:
    """The figures that a point has, with those of one histogram as one."""
    names = set(fields) - GIVEN - {"interval", "resets"}
    return {"ttft" if n.startswith("ttft_") else "itl" if n.startswith("itl_") else n for n in names}


# --- captured pages of real engines -------------------------------------------------------------------------------


def test_vllm_page_of_an_idle_engine_has_gauges_only(shared: Path) -> None:
    page = capture(shared, "vllm-metrics-idle")
    assert detect(page.text) == "vllm"
    fields = point(series(), page)
    assert fields == {"up": 1.0, "scrape_duration": 0.01, "running": 0.0, "waiting": 0.0, "kv_use": 0.0}


def test_vllm_counts_between_two_captures_of_one_process(shared: Path) -> None:
    engine = series("vllm")
    point(engine, capture(shared, "vllm-metrics-idle"))
    fields = point(engine, capture(shared, "vllm-metrics"), 4.0)
    assert told(fields) == TOLD["vllm"]
    assert fields["interval"] == 4.0 and fields["resets"] == 0.0
    assert fields["prompt_tokens"] == fields["prefix_queries"] == 145.0
    assert fields["prefix_hits"] == fields["prefix_hit_share"] == fields["preemptions"] == 0.0
    assert fields["generated_tokens"] == 40.0
    assert fields["ttft_n"] == 8.0 and fields["itl_n"] == 32.0
    assert fields["ttft_mean_ms"] == pytest.approx(0.08234596252441406 / 8 * 1000)
    assert fields["itl_mean_ms"] == pytest.approx(0.09419723999985763 / 32 * 1000)
    assert parse(fields["ttft_buckets"]).n == 8


def from_start(shared: Path, name: str, engine: str) -> Fields:
    """Counts from the process's start to the capture: its own page with every value 0 stands before it."""
    text = capture(shared, name).text
    began = re.sub(r"^(?!#)(.*(?:_total|_bucket|_sum|_count)(?:\{.*\})?) \S+$", r"\1 0", text, flags=re.MULTILINE)
    one = series(engine)
    point(one, began)
    return point(one, text, 1.0)


def test_vllm_under_load_has_preemptions_hits_and_percentiles(shared: Path) -> None:
    fields = from_start(shared, "vllm-metrics-under-load", "vllm")
    assert fields["preemptions"] == 2.0
    assert (fields["prefix_queries"], fields["prefix_hits"]) == (758.0, 352.0)
    assert fields["prefix_hit_share"] == pytest.approx(352 / 758)
    assert (fields["prompt_tokens"], fields["generated_tokens"]) == (758.0, 2928.0)
    assert (fields["ttft_n"], fields["itl_n"]) == (8.0, 2920.0)
    assert fields["ttft_buckets"] == "0.005:0 0.01:1 0.02:1 0.04:2 0.06:4"
    # 8 values: rank 4 is the edge at 40 ms; ranks 7.6 and 7.92 lie in (40, 60].
    assert fields["ttft_p50_ms"] == pytest.approx(40.0)
    assert fields["ttft_p95_ms"] == pytest.approx(40 + 20 * 3.6 / 4)
    assert fields["ttft_p99_ms"] == pytest.approx(40 + 20 * 3.92 / 4)
    assert fields["ttft_mean_ms"] == pytest.approx(0.2804703712463379 / 8 * 1000)
    assert fields["itl_mean_ms"] == pytest.approx(5.5077427870000975 / 2920 * 1000)
    assert fields["itl_buckets"] == "0.01:2888 0.025:30 0.2:0 0.3:1 0.5:0 0.75:1"


def test_sglang_idle_and_under_load_are_one_process_and_streams_and_others_add_up(shared: Path) -> None:
    engine = series()
    assert point(engine, capture(shared, "sglang-metrics-idle"))["kv_use"] == 0.0
    fields = point(engine, capture(shared, "sglang-metrics-under-load"), 10.0)
    assert engine.engine == "sglang"
    assert told(fields) == TOLD["sglang"], "num_retracted_reqs is a gauge of one batch: no preemptions from it"
    assert (fields["running"], fields["waiting"], fields["kv_use"]) == (4.0, 4.0, 0.57)
    assert fields["resets"] == 0.0
    # input 203 (6 of them at the idle page) and device_hit 124
    assert (fields["prefix_queries"], fields["prefix_hits"]) == (203 - 6 + 124, 124.0)
    # is_streaming true and false; neither was on the idle page: labels appear when they are first used
    assert (fields["prompt_tokens"], fields["generated_tokens"]) == (136 + 25, 30 + 6)
    assert fields["ttft_n"] == 12 + 1
    assert fields["ttft_mean_ms"] == pytest.approx((0.2685536030003277 + 0.006017747091391357) / 13 * 1000)
    assert fields["ttft_buckets"] == "0.1:13"
    assert fields["itl_n"] == 2398.0
    assert fields["itl_buckets"] == "0.002:121 0.004:2248 0.006:17 0.008:4 0.015:0 0.02:8"


def test_llama_cpp_counts_cached_prompt_tokens_too_and_has_no_kv_use(shared: Path) -> None:
    engine = series()
    point(engine, capture(shared, "llamacpp-metrics-idle"))
    fields = point(engine, capture(shared, "llamacpp-metrics"), 1.0)
    assert engine.engine == "llama.cpp"
    assert told(fields) == TOLD["llama.cpp"]
    assert fields["prompt_tokens"] == fields["prefix_queries"] == 47 + 73
    assert fields["prefix_hits"] == 73.0 and fields["prefix_hit_share"] == pytest.approx(73 / 120)
    assert fields["generated_tokens"] == 443.0
    # Another process, which only a header tells.
    fields = point(engine, capture(shared, "llamacpp-metrics-under-load"), 2.0)
    assert (fields["running"], fields["waiting"], fields["resets"]) == (2.0, 3.0, 1.0)
    assert "prompt_tokens" not in fields, "it rose from 120 to 664, but in another process"


# --- engines that can't run here: names from source, not seen running ---------------------------------------------


def histogram(name: str, labels: str, *counts: tuple[str, int], total_s: float) -> str:
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in counts]
    return "\n".join([*lines, f"{name}_count{{{labels}}} {counts[-1][1]}", f"{name}_sum{{{labels}}} {total_s}", ""])


LMDEPLOY = 'model_name="m",engine="0"'
TRTLLM = 'model_name="m",engine_type="trtllm"'
FROM_SOURCE: dict[str, tuple[str, Fields]] = {
    "lmdeploy": (
        f"""
lmdeploy:num_requests_running{{{LMDEPLOY}}} 3
lmdeploy:num_requests_waiting{{{LMDEPLOY}}} 2
lmdeploy:num_api_requests_waiting{{{LMDEPLOY}}} 4
lmdeploy:gpu_cache_usage_perc{{{LMDEPLOY}}} 0.5
lmdeploy:prefix_cache_hit_rate{{{LMDEPLOY}}} 0.9
lmdeploy:cached_tokens_total{{{LMDEPLOY}}} 64
lmdeploy:prompt_tokens_total{{{LMDEPLOY}}} 256
lmdeploy:generation_tokens_total{{{LMDEPLOY}}} 100
"""
        + histogram("lmdeploy:time_to_first_token_seconds", LMDEPLOY, ("0.1", 1), ("+Inf", 2), total_s=0.5)
        + histogram("lmdeploy:time_per_output_token_seconds", LMDEPLOY, ("0.1", 9), ("+Inf", 9), total_s=9)
        + histogram("lmdeploy:iter_token_latency", LMDEPLOY, ("0.005", 3), ("0.01", 4), ("+Inf", 4), total_s=0.02),
        {
            "running": 3.0,
            "waiting": 6.0,  # both queues
            "kv_use": 0.5,
            "prefix_queries": 256.0,
            "prefix_hits": 64.0,
            "prefix_hit_share": 0.25,  # of the interval, not the gauge's 0.9
            "prompt_tokens": 256.0,
            "generated_tokens": 100.0,
            "ttft_n": 2.0,
            "ttft_mean_ms": 250.0,
            "ttft_buckets": "0.1:1 +Inf:1",
            "itl_n": 4.0,
            "itl_mean_ms": 5.0,
            "itl_buckets": "0.005:3 0.01:1",
        },
    ),
    "tgi": (
        """
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 5
# TYPE tgi_queue_size gauge
tgi_queue_size 7
# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="100"} 3
tgi_request_input_length_bucket{le="+Inf"} 4
tgi_request_input_length_sum 300
tgi_request_input_length_count 4
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_sum 80
tgi_request_generated_tokens_count 4
# TYPE tgi_request_mean_time_per_token_duration histogram
tgi_request_mean_time_per_token_duration_bucket{le="0.1"} 4
tgi_request_mean_time_per_token_duration_bucket{le="+Inf"} 4
tgi_request_mean_time_per_token_duration_sum 0.2
tgi_request_mean_time_per_token_duration_count 4
""",
        {"running": 5.0, "waiting": 7.0, "prompt_tokens": 300.0, "generated_tokens": 80.0},
    ),
    "tensorrt-llm": (
        f"""
trtllm_num_requests_running{{{TRTLLM}}} 8
trtllm_num_requests_waiting{{{TRTLLM}}} 1
trtllm_kv_cache_utilization{{{TRTLLM}}} 0.75
trtllm_kv_cache_hit_rate{{{TRTLLM}}} 0.4
trtllm_kv_cache_reused_blocks_total{{{TRTLLM}}} 12
trtllm_prompt_tokens_total{{{TRTLLM}}} 500
trtllm_generation_tokens_total{{{TRTLLM}}} 60
"""
        + histogram("trtllm_time_per_output_token_seconds", TRTLLM, ("0.01", 2), ("+Inf", 2), total_s=0.01)
        + histogram("trtllm_time_to_first_token_seconds", TRTLLM, ("0.5", 0), ("0.75", 2), ("+Inf", 2), total_s=1.2),
        {
            "running": 8.0,
            "waiting": 1.0,
            "kv_use": 0.75,
            "prefix_hit_share": 0.4,  # its gauge: blocks are no tokens
            "prompt_tokens": 500.0,
            "generated_tokens": 60.0,
            "ttft_n": 2.0,
            "ttft_mean_ms": 600.0,
            "ttft_buckets": "0.5:0 0.75:2",
        },
    ),
}


@pytest.mark.parametrize("engine", FROM_SOURCE)
def test_engines_known_from_source_only(engine: str) -> None:
    text, expected = FROM_SOURCE[engine]
    assert detect(text) == engine
    one = series()
    point(one, re.sub(r" \S+$", " 0", text, flags=re.MULTILINE))
    fields = point(one, text, 1.0)
    assert told(fields) == TOLD[engine], "what it does not tell is absent"
    assert {name: value for name, value in fields.items() if name in expected} == pytest.approx(expected)


def test_trt_llm_after_1_2_tells_cached_tokens_and_then_the_gauge_is_not_asked() -> None:
    def text(prompt: int, cached: int) -> str:
        return (
            f"trtllm_num_requests_running 1\ntrtllm_kv_cache_hit_rate 0.4\ntrtllm_prompt_tokens_total {prompt}\n"
            f"trtllm_prompt_cached_tokens_total {cached}\n"
        )

    one = series()
    assert "prefix_hit_share" not in point(one, text(0, 0))
    fields = point(one, text(100, 25), 1.0)
    assert (fields["prefix_queries"], fields["prefix_hits"], fields["prefix_hit_share"]) == (100.0, 25.0, 0.25)


# --- names, labels, replicas, ranks -------------------------------------------------------------------------------

RUNNING = "vllm:num_requests_running"


@pytest.mark.parametrize(
    ("text", "expected", "why"),
    [
        ('vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3', {"running": 5.0},
         "replicas add up"),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9', {"kv_use": 0.9},
         "the fullest replica is the one that preempts"),
        ("vllm:gpu_cache_usage_perc 0.5", {"kv_use": 0.5}, "the name before 0.10"),
        ("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.6", {"kv_use": 0.6}, "both: the newer one"),
        ("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 1", {"running": 1.0}, "NaN is no value"),
        ("vllm:gpu_prefix_cache_hit_rate -1\nvllm:num_requests_running 1", {"running": 1.0}, "-1 says: none"),
        ("vllm:gpu_prefix_cache_hit_rate 0.5", {"prefix_hit_share": 0.5}, "V0 had a gauge only"),
        ('vllm:gpu_prefix_cache_hit_rate{e="0"} 0.5\nvllm:gpu_prefix_cache_hit_rate{e="1"} 0\n'
         "vllm:num_requests_running 1", {"running": 1.0}, "a rate of two replicas needs their weights"),
        ("vllm_num_requests_running 4", {"running": 4.0}, "exporters on the way write _ for :"),
        ("  vllm:num_requests_running\t4", {"running": 4.0}, "blanks that the format allows"),
        ("vllm:num_requests_running 4 1764500000000", {"running": 4.0}, "a timestamp behind the value"),
        ('vllm:num_requests_running{m="a } b",n="c\\"d"} 4', {"running": 4.0}, "a model's name with braces, quotes"),
        ('# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 4\n# EOF', {"running": 4.0}, "OpenMetrics"),
        ("garbage {{{ \nother_metric{a=} x\nvllm:num_requests_running 4", {"running": 4.0},
         "what others write there is no concern of ours"),
        ('sglang:num_running_reqs{tp_rank="0"} 4\nsglang:num_running_reqs{tp_rank="1"} 4', {"running": 4.0},
         "--enable-metrics-for-all-schedulers: each rank tells the same requests"),
        ('sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 4\nsglang:num_running_reqs{dp_rank="0",tp_rank="1"} 4\n'
         'sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 3\nsglang:num_running_reqs{dp_rank="1",tp_rank="3"} 3',
         {"running": 7.0}, "DP attention: replicas add up, their ranks don't"),
        ('sglang:num_running_reqs{tp_rank="10"} 9\nsglang:num_running_reqs{tp_rank="2"} 4', {"running": 4.0},
         "ranks are numbers: 2 is below 10"),
        ('sglang:num_running_reqs{pp_rank="0"} 4\nsglang:num_running_reqs{pp_rank="1"} 5', {"running": 4.0},
         "stages of a pipeline hold the same requests"),
    ],
)  # fmt: skip
def test_gauges_of_many_series_become_one(text: str, expected: Fields, why: str) -> None:
    fields = point(series(), text)
    assert {name: value for name, value in fields.items() if name not in GIVEN} == expected, why


def test_counters_and_histograms_of_ranks_are_not_counted_twice() -> None:
    def text(count: int) -> str:
        lines = []
        for rank in (0, 1):
            labels = f'tp_rank="{rank}"'
            lines.append(f"sglang:generation_tokens_total{{{labels}}} {count}")
            buckets = (("0.1", count), ("+Inf", count))
            lines.append(histogram("sglang:time_to_first_token_seconds", labels, *buckets, total_s=count * 0.05))
        return "\n".join(lines)

    one = series("sglang")
    point(one, text(0))
    fields = point(one, text(6), 1.0)
    assert (fields["generated_tokens"], fields["ttft_n"], fields["ttft_buckets"]) == (6.0, 6.0, "0.1:6")
    assert fields["ttft_mean_ms"] == pytest.approx(50.0)


def test_openmetrics_with_exemplars_and_created_is_read_like_text() -> None:
    def text(n: int) -> str:
        return f"""# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0"}} {n} # {{trace_id="a b"}} 1.0 1764500000.1
vllm:prompt_tokens_created{{engine="0"}} 1764500000.5
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {n} # {{trace_id="x"}} 0.05
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {n}
vllm:time_to_first_token_seconds_count{{engine="0"}} {n}
vllm:time_to_first_token_seconds_sum{{engine="0"}} {n * 0.05}
# EOF
"""

    one = series()
    point(one, text(3))
    fields = point(one, text(5), 1.0)
    assert (fields["prompt_tokens"], fields["ttft_n"], fields["resets"]) == (2.0, 2.0, 0.0)
    assert fields["ttft_mean_ms"] == pytest.approx(50.0)


def test_iteration_tokens_total_is_a_histogram_and_not_ours() -> None:
    text = "# TYPE vllm:iteration_tokens_total histogram\nvllm:iteration_tokens_total_count 3\n" + f"{RUNNING} 1\n"
    assert point(series(), text) == {"up": 1.0, "scrape_duration": 0.01, "running": 1.0}


@pytest.mark.parametrize(
    ("engine", "text", "reason"),
    [
        ("vllm", "sglang:num_running_reqs 1", "no metric of vllm on this page; it looks like sglang"),
        ("vllm", "", "no metric of vllm on this page"),
        (None, "go_goroutines 12", "a page without metrics of an engine that is known"),
        ("vllm", f"{RUNNING} many", "its metrics can't be read"),
        ("vllm", f"{RUNNING}{{a=1}} 1", "its metrics can't be read"),
        (
            "vllm",
            'vllm:time_to_first_token_seconds_bucket{e="0"} 1',
            "a bucket of vllm:time_to_first_token_seconds has",
        ),
    ],
)
def test_a_page_that_says_nothing_is_a_failed_scrape(engine: str | None, text: str, reason: str) -> None:
    fields = point(series(engine), text)
    assert set(fields) == {"up", "error"} and fields["up"] == 0.0
    assert reason in fields["error"]


@given(st.text(alphabet=st.sampled_from(list('vllm:num_requests_running{}="\\,# 0123NaInf\n\te+-.')), max_size=80))
def test_no_page_breaks_the_agent(tail: str) -> None:
    for text in (RUNNING + tail, f"{RUNNING} 1\n{tail}"):
        fields = point(series("vllm"), text)
        assert fields["up"] in (0.0, 1.0)
        assert ("error" in fields) == (fields["up"] == 0.0)


def test_each_field_that_is_written_is_in_the_table_and_each_of_the_table_is_written() -> None:
    one, written = series(), set()
    for engine in ENGINES:
        every = {
            term.metric: (term.metric, name)
            for name, sources in ENGINES[engine].fields.items()
            for terms in sources
            for term in terms
        }
        for number in (1, 2):
            lines = []
            for metric, name in every.values():
                if name in HISTOGRAMS:
                    lines.append(histogram(metric, 'a="b"', ("0.1", number), ("+Inf", number), total_s=number))
                else:
                    lines.append(f"{metric} {number}")
            written |= set(point(one, "\n".join(lines), float(number)))
    written |= set(point(one, "", 9.0))
    assert written == set(ENGINE.fields), "fields of the table measurements.ENGINE"
    made = one.failed("gone", at_ns=0)
    assert (made.measurement, set(made.tags)) == (ENGINE.name, set(ENGINE.tags))
    kinds = {*SUMMED_GAUGES, *HIGHEST_GAUGES, *SINGLE_GAUGES, *COUNTERS, *HISTOGRAMS}
    assert {name for names in ENGINES.values() for name in names.fields} == kinds


def test_tags_are_always_all_there() -> None:
    one = series()
    assert one.failed("gone", at_ns=0).tags == {"host": "gpu-1", "engine": "unknown", "instance": "gpu-1:8000"}
    point(one, f"{RUNNING} 1")
    assert one.failed("gone", at_ns=0).tags["engine"] == "vllm"


# --- counts over intervals ----------------------------------------------------------------------------------------


def totals(tokens: float, *, started: float | None = None, ttft: int = 0) -> str:
    text = f"{RUNNING} 1\nvllm:generation_tokens_total {tokens}\n"
    text += histogram("vllm:time_to_first_token_seconds", 'e="0"', ("0.1", ttft), ("+Inf", ttft), total_s=ttft * 0.04)
    return text + (f"process_start_time_seconds {started}\n" if started else "")


def test_the_first_page_gives_no_counts() -> None:
    fields = point(series(), totals(5000))
    assert "generated_tokens" not in fields and "interval" not in fields and "resets" not in fields


def test_ig_13_a_restarted_engine_gives_no_negative_count_and_no_spike() -> None:
    one = series()
    point(one, totals(5000, ttft=50), 0.0)
    assert point(one, totals(5100, ttft=51), 1.0)["generated_tokens"] == 100.0
    anew = point(one, totals(70, ttft=1), 2.0)
    assert anew["resets"] == 1.0 and "generated_tokens" not in anew and "ttft_n" not in anew
    assert (anew["up"], anew["running"], anew["interval"]) == (1.0, 1.0, 1.0)
    after = point(one, totals(170, ttft=2), 3.0)
    assert (after["generated_tokens"], after["ttft_n"], after["resets"]) == (100.0, 1.0, 0.0)


def test_ig_13_a_restart_after_which_more_was_counted_than_before_is_seen_by_the_start_time() -> None:
    one = series()
    point(one, totals(100, started=1e9), 0.0)
    anew = point(one, totals(900, started=1e9 + 60), 100.0)
    assert anew["resets"] == 1.0 and "generated_tokens" not in anew


def test_a_histogram_that_fell_is_a_restart_too() -> None:
    one = series()
    point(one, totals(100, ttft=5))
    assert point(one, totals(100, ttft=4), 1.0)["resets"] == 1.0


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans(), st.booleans()), max_size=30))
def test_ig_13_counts_are_never_negative_and_add_up(steps: list[tuple[int, bool, bool]]) -> None:
    """Steps of (tokens, the engine is restarted first, the scrape fails): the sum is what was counted between pages."""
    one = series("vllm")
    total, pid, base, expected, written = 0, 1, None, 0.0, 0.0
    for number, (tokens, restarted, fails) in enumerate(steps):
        if restarted:
            total, pid, base = 0, pid + 1, None
        total += tokens
        if fails:
            assert one.failed("refused", at_ns=number).fields.keys() == {"up", "error"}
            continue
        expected += 0 if base is None else total - base
        base = total
        count = point(one, totals(total, started=float(pid)), float(number)).get("generated_tokens", 0.0)
        assert count >= 0
        written += count
    assert written == expected


def test_counts_after_failed_scrapes_are_over_the_true_interval() -> None:
    one = series()
    point(one, totals(1000), 10.0)
    for _ in range(3):
        fields = json.loads(json_line(one.failed("connection\nrefused", at_ns=1)))["fields"]
        assert fields == {"up": 0.0, "error": "connection refused"}
    fields = point(one, totals(1600), 16.0)
    assert (fields["generated_tokens"], fields["interval"]) == (600.0, 6.0)


def test_a_series_that_appears_counts_from_0_and_one_that_comes_back_from_where_it_was() -> None:
    one = series("vllm")
    a, b = 'vllm:generation_tokens_total{engine="0"}', 'vllm:generation_tokens_total{engine="1"}'
    point(one, f"{RUNNING} 0", 0.0)
    assert point(one, f"{a} 10", 1.0)["generated_tokens"] == 10.0
    assert point(one, f"{a} 12\n{b} 5", 2.0)["generated_tokens"] == 7.0
    assert point(one, f"{b} 6", 3.0)["generated_tokens"] == 1.0
    assert "generated_tokens" not in point(one, f"{RUNNING} 0", 4.0)
    assert point(one, f"{a} 13\n{b} 6", 5.0)["generated_tokens"] == 1.0


def test_percentiles_are_over_the_last_60_s_and_absent_without_values() -> None:
    one = series()
    point(one, totals(0, ttft=0), 0.0)
    assert point(one, totals(0, ttft=10), 1.0)["ttft_p50_ms"] == pytest.approx(50.0)
    quiet = point(one, totals(0, ttft=10), 60.5)
    assert quiet["ttft_n"] == 0.0 and quiet["ttft_p50_ms"] == pytest.approx(50.0)
    assert "ttft_mean_ms" not in quiet and "ttft_buckets" not in quiet
    later = point(one, totals(0, ttft=10), 61.5)
    assert later["ttft_n"] == 0.0 and "ttft_p50_ms" not in later


def test_a_share_of_hits_above_1_is_none() -> None:
    one = series()
    page = f"{RUNNING} 0\nvllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\n"
    point(one, page % (0, 0))
    assert point(one, page % (100, 40), 1.0)["prefix_hit_share"] == 0.4
    fields = point(one, page % (110, 60), 2.0)
    assert fields["prefix_hits"] == 20.0 and "prefix_hit_share" not in fields
    assert "prefix_hit_share" not in point(one, page % (110, 60), 3.0), "nothing was looked up"


def test_another_engine_at_the_same_address_begins_anew() -> None:
    one = series()
    point(one, totals(100))
    fields = point(one, "sglang:num_running_reqs 2\nsglang:generation_tokens_total 900", 1.0)
    assert one.engine == "sglang" and "generated_tokens" not in fields and fields["running"] == 2.0


# --- a server that does not do what it should ----------------------------------------------------------------------

PAGE = f"# TYPE {RUNNING} gauge\n{RUNNING} 1\n".encode()


def raw(*pieces: bytes, pause: float = 0.0) -> Callable[[scripted_server.Peer], None]:
    """A script: read the request, send these bytes."""

    def script(peer: scripted_server.Peer) -> None:
        peer.read_some()
        peer.send(*pieces, pause=pause)

    return script


def reset(peer: scripted_server.Peer) -> None:
    peer.read_some()
    peer.reset()


def text(body: bytes, status: str = "200 OK", kind: str = "text/plain; version=0.0.4", extra: str = "") -> bytes:
    return scripted_server.whole(body, status, kind, extra)


def scrape_of(port: int, engine: str | None = "vllm", *, path: str = "/metrics", deadline_s: float = 2.0) -> Point:
    address = Address("http", "127.0.0.1", port, path)
    return Engine(address, "gpu-1:8000", series(engine), None).scrape(deadline_s)


BOMB = gzip.compress(b"x" * (BODY_LIMIT_BYTES + 10))
FAULTS: list[tuple[str, Callable[[scripted_server.Peer], None], str]] = [
    ("404", raw(text(b"{}", "404 Not Found")), "HTTP 404 Not Found at /metrics (start llama-server with --metrics)"),
    ("llama.cpp without --metrics", raw(text(b"{}", "501 Not Implemented")),
     "HTTP 501 Not Implemented at /metrics (start llama-server with --metrics)"),
    ("401", raw(text(b"", "401 Unauthorized")), "HTTP 401 Unauthorized: it wants a key (--api-key-env)"),
    ("403", raw(text(b"", "403 Forbidden")), "HTTP 403 Forbidden: it wants a key (--api-key-env)"),
    ("500", raw(text(b"Traceback", "500 Internal Server Error")), "HTTP 500 Internal Server Error"),
    ("HTML by type", raw(text(b"llamacpp:requests_processing 1", kind="text/html")), "a web page (HTML)"),
    ("HTML by content", raw(text(b"\n <!doctype html><title>Grafana</title>")), "a web page (HTML)"),
    ("JSON", raw(text(b"[]", kind="application/json")), "answered with JSON, not with Prometheus metrics"),
    ("other metrics", raw(text(b"go_goroutines 3\n")), "no metric of llama.cpp on this page"),
    ("an empty page", raw(text(b"")), "no metric of llama.cpp on this page"),
    ("no HTTP", raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "no HTTP answer"),
    ("closed at once", lambda peer: None, "connection failed|no HTTP answer"),  # whichever end was quicker
    ("closed after the request", raw(), "no HTTP answer: Remote end closed connection without response"),
    ("reset", reset, "connection failed: Connection reset by peer"),
    ("cut by length", raw(text(PAGE)[:-5]), "ended in the middle of the page"),
    ("cut chunks", raw(scripted_server.STREAM_HEAD + scripted_server.chunked(PAGE)), "ended in the middle of the page"),
    ("enormous", raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b"#" * 65536] * (BODY_LIMIT_BYTES // 65536 + 1)),
     "longer than 16 MiB"),
    ("a gzip bomb", raw(text(BOMB, extra="content-encoding: gzip\r\n")), "longer than 16 MiB"),
    ("no gzip at all", raw(text(b"plain text", extra="content-encoding: gzip\r\n")), "can't be unpacked"),
    ("half a gzip", raw(text(gzip.compress(PAGE * 99)[:-20], extra="content-encoding: gzip\r\n")), "ends too early"),
    ("brotli", raw(text(b"x", extra="content-encoding: br\r\n")), "encoding 'br', which nobody asked for"),
    ("redirect elsewhere", raw(text(b"", "302 Found", extra="location: http://u:secret@10.1.2.3/metrics\r\n")),
     "redirects to 10.1.2.3: name that address"),
    ("redirect to what is no address", raw(text(b"", "302 Found", extra="location: http://[::1/x\r\n")),
     "redirects to what is no address"),
    ("redirect to a path that can't be asked for",
     raw(text(b"", "302 Found", extra="location: /caf\xe9\r\n".encode("latin-1").decode("latin-1"))), "no HTTP answer"),
    ("redirects for ever", raw(text(b"", "307 Temporary Redirect", extra="location: /metrics/\r\n")),
     "more than 3 redirects"),
    ("a head without end", raw(b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n"] * 200), "got more than 100 headers"),
    ("nothing", lambda peer: peer.wait_for_end(), "no answer within 0.3 s"),
    ("a head drop by drop", raw(*[bytes([c]) for c in text(PAGE)], pause=0.1), "no answer within 0.3 s"),
    ("a body drop by drop", raw(text(PAGE)[:-20], *[b"x"] * 20, pause=0.1), "no answer within 0.3 s"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "reason"), [pytest.param(s, r, id=name) for name, s, r in FAULTS])
def test_a_failed_scrape_says_why_in_one_line(script: Callable[[scripted_server.Peer], None], reason: str) -> None:
    with scripted_server.Server(script) as server:
        began = time.monotonic()
        slow = "within" in reason
        made = scrape_of(server.port, "llama.cpp", deadline_s=0.3 if slow else 10.0)
        took_s = time.monotonic() - began
    assert made.fields["up"] == 0.0 and set(made.fields) == {"up", "error"}
    error = str(made.fields["error"])
    assert any(one in error for one in reason.split("|"))
    assert "\n" not in error and "secret" not in error and len(error) <= 200
    assert took_s < (1.5 if slow else 10.0)


def test_nobody_listens() -> None:
    with scripted_server.dead_port() as port:
        made = scrape_of(port)
    assert made.fields["error"] == f"connection refused: nothing listens on 127.0.0.1:{port}"


def test_a_host_that_does_not_answer_at_all() -> None:
    with scripted_server.black_hole() as port:
        began = time.monotonic()
        made = scrape_of(port, deadline_s=0.3)
    assert made.fields["error"] == "no answer within 0.3 s"
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (text(PAGE), "with a length"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, "until the end of the connection, and no content type"),
        (scripted_server.stream(PAGE[:20], PAGE[20:]), "in chunks (and another content type), as SGLang does"),
        (text(gzip.compress(PAGE), extra="content-encoding: gzip\r\n"), "gzip, although nobody asked"),
        (text(PAGE + b"# EOF\n", kind="application/openmetrics-text; version=1.0.0"), "OpenMetrics"),
        (text(PAGE.replace(b"1\n", b'{m="\xff\xfe"} 1\n'.replace(b" 1", b" 1"))), "bytes that are no UTF-8"),
    ],
)
def test_pages_that_are_right_in_any_framing(response: bytes, why: str) -> None:
    with scripted_server.Server(raw(response)) as server:
        made = scrape_of(server.port)
    assert made.fields["up"] == 1.0, (why, made.fields)


def test_a_redirect_on_the_same_origin_is_followed() -> None:
    def script(peer: scripted_server.Peer) -> None:
        asked = peer.read_some()
        there = asked.startswith(b"GET /metrics/ ")
        peer.send(text(PAGE) if there else text(b"", "307 Temporary Redirect", extra="location: /metrics/\r\n"))

    with scripted_server.Server(script) as server:
        assert scrape_of(server.port).fields["running"] == 1.0


def test_the_key_is_sent_and_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def script(peer: scripted_server.Peer) -> None:
        seen.append(peer.read_some())
        peer.send(text(PAGE))

    with scripted_server.dead_port() as dead, scripted_server.Server(script) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{dead}")
        fetch(Address("http", "127.0.0.1", server.port, ""), "/metrics", api_key="sk-1", deadline_s=5)
    (request,) = seen
    assert b"\r\nauthorization: bearer sk-1\r\n" in request.lower()
    assert b"\r\naccept-encoding: identity\r\n" in request.lower()


def test_auto_finds_trt_llm_at_its_own_path() -> None:
    def script(peer: scripted_server.Peer) -> None:
        there = peer.read_some().startswith(b"GET /prometheus/metrics ")
        peer.send(text(b"trtllm_num_requests_running 2\n") if there else text(b"[]", kind="application/json"))

    with scripted_server.Server(script) as server:
        engine = Engine(Address("http", "127.0.0.1", server.port, ""), "i", series(None), None)
        for _ in range(2):
            made = engine.scrape(5.0)
            assert (made.tags["engine"], made.fields["running"]) == ("tensorrt-llm", 2.0)
        assert server.connections == 3, "the path that has the page is asked first from then on"


def test_a_wrong_path_of_trt_llm_gets_the_right_hint() -> None:
    with scripted_server.Server(raw(text(b"[]", kind="application/json"))) as server:
        made = scrape_of(server.port, "tensorrt-llm")
    assert "the page is /prometheus/metrics" in str(made.fields["error"])


def test_a_slow_server_stops_no_other() -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(scripted_server.Server(lambda peer: peer.wait_for_end())) for _ in range(4)]
        good = stack.enter_context(scripted_server.Server(raw(text(PAGE))))
        engines = [
            Engine(
                Address("http", "127.0.0.1", server.port, "/metrics"),
                str(server.port),
                EngineSeries(host="h", instance=str(server.port), engine="vllm"),
                None,
            )
            for server in (*slow, good)
        ]
        sink, lines = Collected(), list[str]()
        watch = Watch(engines, sink, deadline_s=0.3, tell=lines.append)
        began = time.monotonic()
        for _ in range(2):
            watch.step()
        took_s = time.monotonic() - began
    assert took_s < 2.0, "four deadlines one after the other, twice, would be 2.4 s"
    assert sink.ticks == 2
    up = [(point.tags["instance"], point.fields["up"]) for point in sink.points]
    assert sorted(up) == sorted([(str(s.port), 0.0) for s in slow] * 2 + [(str(good.port), 1.0)] * 2)
    assert len(lines) == 5, "one line per engine, not one per scrape"
    assert "2 pages read, 0 not" in watch.summary() and "0 pages read, 2 not" in watch.summary()


class LookingUp(Engine):
    """An engine whose host's name is looked up until the test says so: the one thing without a deadline."""

    found, read = threading.Event(), threading.Event()

    def scrape(self, deadline_s: float) -> Point:
        self.found.wait(20)
        try:
            return super().scrape(5.0)
        finally:
            self.read.set()


def test_a_name_server_that_hangs_stops_no_other_and_loses_no_point() -> None:
    with scripted_server.Server(raw(text(PAGE))) as server:
        address = Address("http", "127.0.0.1", server.port, "/metrics")
        engines = [
            kind(address, name, EngineSeries(host="h", instance=name, engine="vllm"), None)
            for kind, name in ((LookingUp, "hangs"), (Engine, "works"))
        ]
        sink = Collected()
        watch = Watch(engines, sink, deadline_s=0.2, tell=lambda line: None)
        watch.step()
        watch.step()
        LookingUp.found.set()
        assert LookingUp.read.wait(20)
        time.sleep(0.05)  # its thread ends
        watch.step()
    by_name = {name: [p.fields for p in sink.points if p.tags["instance"] == name] for name in ("hangs", "works")}
    assert [fields["up"] for fields in by_name["works"]] == [1.0, 1.0, 1.0]
    assert [fields["up"] for fields in by_name["hangs"]] == [0.0, 1.0, 1.0], "nothing yet, late, and in time"
    assert by_name["hangs"][0]["error"] == "still waiting for the address of its host"


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
def test_a_host_that_can_t_be_one_is_told(host: str) -> None:
    made = Engine(Address("http", host, 8000, "/metrics"), "i", series("vllm"), None).scrape(5.0)
    assert made.fields["error"] == f"the host {host} has no address: it is no name of a host"


class Broken(Engine):
    """An engine in whose code something happens that nobody foresaw."""

    def scrape(self, deadline_s: float) -> Point:
        raise KeyError("nobody\nforesaw")


def test_what_nobody_foresaw_is_a_failed_point_and_stops_no_other() -> None:
    with scripted_server.Server(raw(text(PAGE))) as server:
        address = Address("http", "127.0.0.1", server.port, "/metrics")
        engines = [
            kind(address, name, EngineSeries(host="h", instance=name, engine="vllm"), None)
            for kind, name in ((Broken, "broken"), (Engine, "works"))
        ]
        sink, lines = Collected(), list[str]()
        watch = Watch(engines, sink, deadline_s=5.0, tell=lines.append)
        for _ in range(3):
            watch.step()
    by_name = {name: [p.fields for p in sink.points if p.tags["instance"] == name] for name in ("broken", "works")}
    assert [fields["up"] for fields in by_name["works"]] == [1.0] * 3
    error = "a fault of infersiege-agent, please report it: KeyError: 'nobody\\nforesaw'"
    assert by_name["broken"] == [{"up": 0.0, "error": error}] * 3
    assert sum(error in line for line in lines) == 1


def test_servers_that_alternate_behind_one_address_are_told_once() -> None:
    def script(peer: scripted_server.Peer) -> None:
        peer.read_some()
        peer.send(text(totals(1000 if peer.number % 2 else 10, started=1 + peer.number % 2).encode()))

    with scripted_server.Server(script) as server:
        engine = Engine(Address("http", "127.0.0.1", server.port, "/metrics"), "i", series("vllm"), None)
        sink, lines = Collected(), list[str]()
        watch = Watch([engine], sink, deadline_s=5.0, tell=lines.append)
        for _ in range(9):
            watch.step()
    assert all("generated_tokens" not in point.fields for point in sink.points), "no spikes"
    assert sum("several servers behind one address" in line for line in lines) == 1


# --- addresses and the command line --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "netloc", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/", "127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000", ""),  # a plan's base_url
        ("http://engine.example/metrics", "engine.example:80", "/metrics"),
        ("https://engine.example/a/metrics?x=1", "engine.example:443", "/a/metrics?x=1"),
        ("http://[::1]:8000/metrics", "[::1]:8000", "/metrics"),
    ],
)
def test_addresses(given: str, netloc: str, path: str) -> None:
    address = address_of(given)
    assert (address.netloc, address.path) == (netloc, path)


@pytest.mark.parametrize("given", ["127.0.0.1:8000", "ftp://h/metrics", "http://", "http://h:x/", "http://a b/", ""])
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(AgentError, match="--url"):
        address_of(given)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(AgentError) as caught:
        address_of("http://user:secret@h/metrics")
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def agent(*arguments: str, environ: dict[str, str] | None = None, within_s: float = 60) -> tuple[int, str, str]:
    """The real command: exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "infersiege_agents.cli", "engine", *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        env={"PATH": "/usr/bin:/bin", **(environ or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--url"),
        (["--url", "http://127.0.0.1:1"], "where should the points go?"),
        (["--url", "127.0.0.1:1", "--out", "OUT"], "is no http or https address"),
        (["--url", "http://127.0.0.1:1", "--engine", "ollama", "--out", "OUT"], "invalid choice: 'ollama'"),
        (["--url", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH", "--out", "OUT"], "NO_SUCH is not set"),
        (["--url", "http://127.0.0.1:1", "--interval", "0", "--out", "OUT"], "--interval: '0' is no number of seconds"),
        (["--url", "http://h:1", "--url", "http://h:1/x", "--out", "OUT"], "there are two of h:1"),
    ],
)
def test_what_the_command_line_refuses(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, _, err = agent(*(word.replace("OUT", str(tmp_path / "o.jsonl")) for word in arguments))
    assert code == 2
    assert message in err and "hint: " in err


def test_options_belong_to_the_url_before_them_and_a_dead_engine_is_exit_code_4(tmp_path: Path) -> None:
    out = tmp_path / "engines.jsonl"
    asked: list[bytes] = []

    def script(peer: scripted_server.Peer) -> None:
        asked.append(peer.read_some())
        peer.send(text(b"lmdeploy:num_requests_running 1\n"))

    with scripted_server.Server(script) as server, scripted_server.dead_port() as dead:
        code, said, err = agent(
            *("--engine", "vllm", "--url", f"http://127.0.0.1:{dead}", "--instance", "dead"),
            *("--url", f"{server.url}/metrics", "--engine", "lmdeploy", "--api-key-env", "LM_KEY"),
            *("--seconds", "0.6", "--interval", "0.3", "--out", str(out), "--host", "gpu-7"),
            environ={"LM_KEY": "sk-secret"},
        )
        assert code == 0, err
        tags = {(row["tags"]["engine"], row["tags"]["instance"], row["tags"]["host"]) for row in rows(out)}
        assert tags == {("vllm", "dead", "gpu-7"), ("lmdeploy", f"127.0.0.1:{server.port}", "gpu-7")}
        assert len(asked) == 2 and all(b"Bearer sk-secret" in request for request in asked)
        assert "sk-secret" not in said + err + out.read_text("utf-8")
        assert "vllm at dead: 0 pages read, 2 not" in said
        code, _, err = agent(
            "--url", f"http://127.0.0.1:{dead}", "--seconds", "0.5", "--interval", "0.2", "--out", str(out)
        )
    assert code == 4
    assert "no engine answered" in err and "connection refused" in err


def test_points_that_the_database_refuses_are_exit_code_4(tmp_path: Path) -> None:
    refusal = scripted_server.answering(scripted_server.whole(b'{"message": "unable to parse"}', "400 Bad Request"))
    with scripted_server.Server(raw(text(PAGE))) as engine, scripted_server.Server(refusal) as database:
        code, said, err = agent(
            *("--url", engine.url, "--seconds", "0.2", "--interval", "0.1"),
            *("--influx-url", database.url, "--spool", str(tmp_path / "spool")),
        )
    assert code == 4, err
    assert "rejected" in said and "unable to parse" in said


def test_help_has_an_example() -> None:
    code, said, _ = agent("--help")
    assert code == 0 and "infersiege-agent engine --url http://127.0.0.1:8000" in said


# --- the real command against the emulator under a real run --------------------------------------------------------


def between(port: int, name: str) -> float:
    page = fetch(Address("http", "127.0.0.1", port, ""), "/metrics", api_key=None, deadline_s=10)
    (value,) = re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", page.text, re.MULTILINE)
    return float(value)


def sums(points: list[Fields]) -> dict[str, float]:
    return {name: sum(one.get(name, 0.0) for one in points) for name in (*COUNTERS, "ttft_n", "itl_n", "interval")}


@pytest.mark.slow
def test_under_a_run_the_emulators_totals_come_out_whole_and_gauges_move(tmp_path: Path) -> None:
    out = tmp_path / "engine.jsonl"
    with EmulatorProcess(
        "--max-num-seqs", "2", "--kv-blocks", "400", "--max-model-len", "4096", "--output-tokens", "24"
    ) as emulator:
        command = [sys.executable, "-m", "infersiege_agents.cli", "engine", "--url", emulator.base_url]
        with (tmp_path / "agent.log").open("wb") as log:
            watching = subprocess.Popen([*command, "--interval", "0.25", "--out", str(out)], stdout=log, stderr=log)
        try:
            wait_for(lambda: out.exists() and len(rows(out)) >= 2)
            ran = Siege(tmp_path).run(plan_text(emulator.base_url))
            wait_for(lambda: rows(out)[-1]["fields"].get("running") == 0.0)
            time.sleep(0.6)
        finally:
            watching.send_signal(signal.SIGTERM)
            assert watching.wait(20) == 0, (tmp_path / "agent.log").read_text()
        totals = {
            field: between(emulator.port, f"vllm:{name}")
            for field, name in (
                ("prompt_tokens", "prompt_tokens_total"),
                ("generated_tokens", "generation_tokens_total"),
                ("prefix_queries", "prefix_cache_queries_total"),
                ("prefix_hits", "prefix_cache_hits_total"),
                ("preemptions", "num_preemptions_total"),
                ("ttft_n", "time_to_first_token_seconds_count"),
                ("itl_n", "inter_token_latency_seconds_count"),
            )
        }
        ttft_s = between(emulator.port, "vllm:time_to_first_token_seconds_sum")
    points = [row["fields"] for row in rows(out)]
    assert all(row["tags"]["engine"] == "vllm" for row in rows(out))
    assert all(one["up"] == 1.0 for one in points)
    found = sums(points)
    assert {name: found[name] for name in totals} == totals, "counts per interval add up to the engine's totals"
    assert found["interval"] == pytest.approx((rows(out)[-1]["at_ns"] - rows(out)[0]["at_ns"]) / 1e9, abs=0.1)
    ok = [turn for turn in ran.turns if turn.output_tokens]
    assert totals["generated_tokens"] >= sum(turn.output_tokens or 0 for turn in ok) > 0
    assert max(one["running"] for one in points) == 2.0, "--max-num-seqs 2"
    assert 1.0 <= max(one["waiting"] for one in points) <= 2.0, "4 users, 2 of them run"
    assert 0.0 < max(one["kv_use"] for one in points) <= 1.0
    whole = merge(parse(one["ttft_buckets"]) for one in points if "ttft_buckets" in one)
    assert whole.n == totals["ttft_n"]
    mean_ms = sum(one["ttft_mean_ms"] * one["ttft_n"] for one in points if "ttft_mean_ms" in one) / whole.n
    assert mean_ms == pytest.approx(ttft_s / whole.n * 1000)


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.05)


def test_gaps_are_gaps_and_a_restart_of_the_engine_is_seen(tmp_path: Path, free_port: Callable[[], int]) -> None:
    out, port = tmp_path / "engine.jsonl", free_port()
    with EmulatorProcess(port=port) as emulator:
        chat(emulator)
        command = [sys.executable, "-m", "infersiege_agents.cli", "engine", "--url", f"http://127.0.0.1:{port}"]
        with (tmp_path / "agent.log").open("wb") as log:
            watching = subprocess.Popen([*command, "--interval", "0.1", "--out", str(out)], stdout=log, stderr=log)
        try:
            wait_for(lambda: out.exists() and len(rows(out)) >= 3)
            emulator.kill()
            wait_for(lambda: sum(row["fields"]["up"] == 0.0 for row in rows(out)) >= 3)
            with EmulatorProcess(port=port):
                wait_for(lambda: rows(out)[-1]["fields"].get("resets") == 0.0)
        finally:
            watching.send_signal(signal.SIGTERM)
            assert watching.wait(20) == 0
    made = [row["fields"] for row in rows(out)]
    down = [fields for fields in made if fields["up"] == 0.0]
    assert all(set(fields) == {"up", "error"} and "connection refused" in fields["error"] for fields in down)
    (again,) = [fields for fields in made if fields.get("resets") == 1.0]
    assert again["interval"] > 0.3, "back to the last good page"
    assert "generated_tokens" not in again
    said = (tmp_path / "agent.log").read_text("utf-8")
    assert said.count("connection refused") == 1 and "reading its metrics again" in said
    assert "1 restart(s) seen" in said


def chat(emulator: EmulatorProcess) -> None:
    """One request, so that its counters are not at 0."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", emulator.port, timeout=20)
    body = {"model": emulator.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    assert connection.getresponse().read()
    connection.close()


def test_reading_a_page_never_raises_anything_but_a_scrape_error() -> None:
    with pytest.raises(ScrapeError):
        read(Page("", {}), "vllm")
