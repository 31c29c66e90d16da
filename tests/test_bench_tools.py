"""The load tools' result files are read as what they say; a meter counts a whole process tree; blocks are replaced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import generated  # noqa: E402
import tools  # noqa: E402
from loadtools import catalogue, meter, neighbours, outputs  # noqa: E402
from rig.server import Times  # noqa: E402


def percentiles(p50: float, p99: float) -> dict[str, float]:
    return {"p50": p50, "p99": p99}


def summary_of(unit: str = "ms") -> dict[str, Any]:
    """summary.json, as far as it is read: a cut by stage comes first and is not the one."""
    metrics = {
        "ttft": {"unit": unit, **percentiles(201.5, 240.25)},
        "tpot": {"unit": unit, **percentiles(20.0, 20.5)},
        "gap": {"unit": unit, **percentiles(20.0, 23.0)},
    }
    whole = {"scenario": None, "channel": None, "stage": None, "distributions": metrics, "counts": {"ok": 8}}
    return {"groups": [whole | {"stage": "main", "counts": {"ok": 1}}, whole], "invalid": []}


AIPERF = {
    "time_to_first_token": {"unit": "ms", **percentiles(201.5, 240.25)},
    "inter_token_latency": {"unit": "ms", **percentiles(20.0, 20.5)},
    "inter_chunk_latency": {"unit": "ms", **percentiles(20.0, 23.0)},
    "request_count": {"unit": "requests", "avg": 8.0},
}
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "time_to_first_token_ms": {"successful": {"percentiles": percentiles(201.5, 240.25)}},
                "inter_token_latency_ms": {"successful": {"percentiles": percentiles(20.0, 20.5)}},
                "time_per_output_token_ms": {"successful": {"percentiles": percentiles(31.0, 33.0)}},
                "request_totals": {"successful": 8, "errored": 1},
            }
        }
    ]
}
EVALSCOPE = [
    [
        {"Percentiles": "50%", "TTFT (ms)": 201.5, "TPOT (ms)": 20.0, "ITL (ms)": 20.0},
        {"Percentiles": "99%", "TTFT (ms)": 240.25, "TPOT (ms)": 20.5, "ITL (ms)": 23.0},
    ],
    {"Success Requests": 8, "Failed Requests": 1},
]
SERVING = {
    "completed": 8,
    "median_ttft_ms": 201.5,
    "p99_ttft_ms": 240.25,
    "median_tpot_ms": 20.0,
    "p99_tpot_ms": 20.5,
    "median_itl_ms": 20.0,
    "p99_itl_ms": 23.0,
}
FILES: dict[str, tuple[outputs.Reader, Any, float | None]] = {
    "infersiege": (outputs.infersiege, summary_of(), 23.0),
    "aiperf": (outputs.aiperf, AIPERF, 23.0),
    "guidellm": (outputs.guidellm, GUIDELLM, None),  # it has no percentiles of all gaps
    "evalscope": (outputs.evalscope, EVALSCOPE, 23.0),
    "vllm and sglang": (outputs.serving, SERVING, 23.0),
}
"""Reader, a file of its tool's shape (they all say the same), and the p99 of its gaps."""


@pytest.mark.parametrize("name", FILES)
def test_each_tools_file_is_read_in_one_shape(name: str) -> None:
    read, file, gap = FILES[name]
    assert read(json.dumps(file)) == outputs.Reported(
        requests=8, ttft_p50_ms=201.5, ttft_p99_ms=240.25, tpot_p50_ms=20.0, tpot_p99_ms=20.5, gap_p99_ms=gap
    )


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"groups": [], "benchmarks": []}', "[[], {}]", "not JSON"])
def test_a_file_of_another_shape_is_unreadable_and_no_zero(name: str, text: str) -> None:
    with pytest.raises(outputs.UnreadableError):
        FILES[name][0](text)


def test_what_our_run_says_against_itself_stands_in_its_row() -> None:
    said = summary_of() | {"invalid": ["client-bound: worker-1 was held up"]}
    doubted = msgspec.structs.replace(result_of(6.0), reported=outputs.infersiege(json.dumps(said)))
    installed = {"infersiege": tools.Installed(Path("python"), "1")}
    (*_, row) = tools.rows_of(installed, {}, {"infersiege": 2.0}, {"infersiege": [doubted]}, 300)
    assert row.endswith("| 6 s; says itself: client-bound |")


def test_times_in_another_unit_are_not_taken_for_milliseconds() -> None:
    with pytest.raises(outputs.UnreadableError, match="not in ms"):
        outputs.infersiege(json.dumps(summary_of("s")))
    with pytest.raises(outputs.UnreadableError, match="not in ms"):
        outputs.aiperf(json.dumps(AIPERF | {"time_to_first_token": {"unit": "s", **percentiles(0.2, 0.3)}}))


def test_files_are_found_where_a_tool_leaves_them(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "model" / "parallel_4"
    folder.mkdir(parents=True)
    tool = catalogue.TOOLS["evalscope"]
    with pytest.raises(outputs.UnreadableError, match="0 files"):
        catalogue.figures(tool, tmp_path)
    for name, content in zip(("percentile", "summary"), EVALSCOPE, strict=True):
        (folder / f"benchmark_{name}.json").write_text(json.dumps(content))
    assert catalogue.figures(tool, tmp_path).requests == 8


def test_of_lines_the_last_one_counts(tmp_path: Path) -> None:
    rows = [SERVING | {"completed": 3}, SERVING]
    (tmp_path / "out.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert catalogue.figures(catalogue.TOOLS["sglang"], tmp_path).requests == 8


@pytest.mark.parametrize("name", catalogue.TOOLS)
def test_every_tool_is_asked_for_the_same_work(name: str, tmp_path: Path) -> None:
    work = catalogue.Work(
        url="http://127.0.0.1:8123", folder=tmp_path, tokenizer=tmp_path / "t", streams=7, requests=21, tokens=99
    )
    asked = " ".join(catalogue.TOOLS[name].command(Path("/env/bin/python"), work))
    if name == catalogue.OURS:  # it has its plan and trace in files
        asked += (tmp_path / "plan.toml").read_text() + (tmp_path / "fixed.csv").read_text()
    assert work.url in asked
    rest = asked.replace(work.url, "").replace("openai_http", "")
    assert {"7", "21", "99", "32"} <= set(re.findall(r"\d+", rest)), "streams, requests, tokens, prompt"
    assert "http" not in rest, "no other address"


def test_no_proxy_and_no_hub_for_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    for name, tool in catalogue.TOOLS.items():
        found = catalogue.environment(tool, tmp_path)
        assert "HTTPS_PROXY" not in found
        assert (found.get("HF_HUB_OFFLINE") == "1") == (name != "aiperf")


def test_true_times_leave_probes_and_cut_answers_out() -> None:
    ms = 1_000_000

    def row(name: str, ttft: int, tokens: int, cut: bool = False) -> Times:
        written = np.array([5000 + ttft + 20 * at for at in range(tokens)], dtype=np.int64) * ms
        if cut:
            written[-1] = 0
        return Times(name, 5000 * ms, written)

    rows = [row("a", 200, 10), row("probe", 900, 1), row("cut", 900, 10, cut=True), row("b", 210, 10)]
    found = tools.true_times(rows, 10)
    assert found["ttft_p50_ms"] == pytest.approx(205)
    assert found["tpot_p99_ms"] == found["gap_p99_ms"] == pytest.approx(20)
    assert tools.true_times(rows[1:2], 10) == {}


def result_of(cpu_s: float, requests: int = 8, others: float = 0.0, **used: Any) -> tools.Result:
    whole = {"exit_code": 0, "timed_out": False, "wall_s": 6.0, "peak_bytes": 50_000_000, "processes": 2} | used
    reported = outputs.serving(json.dumps(SERVING | {"completed": requests}))
    truth = {"ttft_p50_ms": 200.0, "ttft_p99_ms": 200.25, "tpot_p99_ms": 20.0, "gap_p99_ms": 21.0}
    return tools.Result(
        used=meter.Used(cpu_s=cpu_s, **whole), events=8000, requests=8, truth=truth, reported=reported, others=others
    )


def test_a_row_has_the_error_beside_each_figure_and_leaves_the_start_out() -> None:
    installed = {"vllm": tools.Installed(Path("python"), "1.2")}
    (*_, row) = tools.rows_of(installed, {}, {"vllm": 2.0}, {"vllm": [result_of(cpu_s=6.0)]}, 300)
    assert row == ("| vllm 1.2 | 201.5 (+1.5) | 240.2 (+40.0) | 20.5 (+0.5) | 23.0 (+2.0) | 2,000 | 50 | 6 s |"), (
        "8,000 events in 6 - 2 CPU s"
    )


def test_a_row_that_was_disturbed_says_so() -> None:
    installed = {"vllm": tools.Installed(Path("python"), "1.2")}
    (*_, row) = tools.rows_of(installed, {}, {"vllm": 2.0}, {"vllm": [result_of(6.0, others=0.3)]}, 300)
    assert row.endswith("| 6 s, others took 30% of the machine |")


def test_what_others_take_of_the_machine_is_seen() -> None:
    seen = neighbours.Neighbours()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert seen.share(0.0) * (os.cpu_count() or 1) > 0.1, "0.4 CPU seconds in about 1.3 s"
    assert seen.share(1e9) == 0.0


def test_what_did_not_finish_or_is_not_there_has_a_row_that_says_so() -> None:
    installed = {name: tools.Installed(Path("python"), "1") for name in ("slow", "short")}
    results = {"slow": [result_of(9.0, timed_out=True, exit_code=-9)], "short": [result_of(9.0, requests=7)]}
    found = tools.rows_of(installed, {"gone": "no such version"}, {"slow": 1.0, "short": 1.0}, results, 300)
    assert "no, stopped after 300 s" in found[2]
    assert "no, 7 of 8 requests" in found[3]
    assert "| gone | not installed: no such version |" in found[4]
    assert len({line.count("|") for line in found}) == 1, "each row has all cells"


BURN = """
import time
block = bytearray(30_000_000)
end = time.process_time() + 0.4
while time.process_time() < end:
    pass
time.sleep(0.8)
"""
TREE = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BURN!r}], start_new_session=True)  # an orphan: nobody waits for it
subprocess.run([sys.executable, "-c", {BURN!r}])
"""


def test_the_meter_counts_orphans_and_their_memory(tmp_path: Path) -> None:
    used = measured(tmp_path, [sys.executable, "-c", TREE], limit_s=30)
    assert (used.exit_code, used.timed_out) == (0, False)
    assert 0.8 <= used.cpu_s < 3
    assert used.processes == 3
    assert used.peak_bytes > 60_000_000


def test_the_meter_ends_a_tree_that_does_not_end(tmp_path: Path) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    began = time.monotonic()
    used = measured(tmp_path, [sys.executable, "-c", code], limit_s=1)
    assert used.timed_out and used.exit_code < 0
    assert time.monotonic() - began < 20


def measured(folder: Path, command: list[str], limit_s: float) -> meter.Used:
    """In a process of its own, as the benchmark runs it: it adopts orphans."""
    order = meter.Order(command, 0, limit_s, str(folder / "log"))
    whole = [sys.executable, str(BENCH / "loadtools" / "meter.py"), msgspec.json.encode(order).decode()]
    ended = subprocess.run(whole, capture_output=True, text=True, timeout=60, check=True)
    return msgspec.json.decode(ended.stdout, type=meter.Used)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb", "x", "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb"),
        ("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb", "y", None),
        ("<!-- x: begin --><!-- x: end --><!-- x: begin --><!-- x: end -->", "x", None),
    ],
)
def test_a_block_is_replaced_where_it_is_and_nowhere_else(text: str, name: str, expected: str | None) -> None:
    replace: Callable[[str, str, str], str] = generated.replace_block
    if expected is None:
        with pytest.raises(ValueError, match="blocks"):
            replace(text, name, "new\n")
    else:
        assert replace(text, name, "new\n") == expected


def test_the_page_has_the_blocks_that_are_written() -> None:
    page = generated.PAGE.read_text(encoding="utf-8")
    for name in ("bench-tools", "bench-peers", "bench-ceiling"):
        assert generated.replace_block(page, name, "new") != page
