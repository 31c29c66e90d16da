"""What people look at: golden tables, and a page whose figures are the summary's, whatever the run was like."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import plotly.offline
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from records_sample import RUN_ID, SECOND, STAGE, START_NS, plan, records, write_run
from rich.cells import cell_len
from rich.console import Console

from infersiege.cli.gate import gate
from infersiege.cli.report import report
from infersiege.errors import RunDirectoryError
from infersiege.metrics.histogram import Histogram
from infersiege.plan.schema import Slo
from infersiege.records import (
    Counts,
    ErrorClass,
    EventRow,
    GroupSummary,
    Outcome,
    Phase,
    Summary,
    TraceAccount,
    TurnRecord,
    Verdict,
)
from infersiege.report import Rebuilt, finish, judged, read, rebuild
from infersiege.report.charts import Bins
from infersiege.report.collect import SLOWEST, collect
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.html import render
from infersiege.report.numbers import ABSENT, figure, number, printable, share, span
from infersiege.report.shapes import bars, ecdf, edges_of, ticks_between
from infersiege.report.tables import conservation, print_summary, to_text, trace_lines
from infersiege.rundir import REPORT, SUMMARY, TURNS, WINDOWS, RunDirectory

DATA = Path(__file__).parent / "data"
UPDATE = "INFERSIEGE_UPDATE_GOLDEN"


@pytest.fixture(scope="module")
def sample() -> list[TurnRecord]:
    return records(24, steady_s=120)


@pytest.fixture(scope="module")
def found(sample: list[TurnRecord], tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    run = write_run(tmp_path_factory.mktemp("runs") / "sample", sample, steady_s=120)
    return judged(read(run), gated=True)


@pytest.fixture(scope="module")
def page(found: Rebuilt) -> str:
    return render(found.summary, found.plan, found.windows, found.collected, found.events, details=found.details)


def rebuilt(tmp_path: Path, rows: list[TurnRecord], **more: Any) -> Rebuilt:
    return judged(read(write_run(tmp_path / "run", rows, **more)), gated=True)


def page_of(found: Rebuilt) -> str:
    return render(found.summary, found.plan, found.windows, found.collected, found.events, details=found.details)


class Page(HTMLParser):
    """Reads a page as a browser would: elements, their attributes, text outside of scripts and styles."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def figures(self) -> dict[str, Any]:
        return json.loads(self.scripts[0], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def check_page(source: str) -> Page:
    """What holds of every report."""
    page = Page(source)
    assert page.open == [], "every element is closed"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids are unique: the script and the links find elements by them"
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = attributes.get(name)
            assert target is None or (target.startswith("#") and target[1:] in ids), f"<{tag} {name}={target}>"
        assert not any(name.startswith("on") for name in attributes), f"a handler on <{tag}>"
    assert len(page.scripts) == 3 and page.scripts[1] == plotly.offline.get_plotlyjs()
    assert not re.search(r"\b(NaN|nan|undefined|Infinity|None|null ms)\b", page.text), page.text
    assert "@import" not in source.replace(page.scripts[1], "") and "url(" not in source.replace(page.scripts[1], "")
    assert set(page.figures) <= {i.removeprefix("plot-") for i in ids if i and i.startswith("plot-")}
    assert {i.removeprefix("plot-") for i in ids if i and i.startswith("plot-")} == set(page.figures), (
        "none stays empty"
    )
    return page


# ---------------------------------------------------------------------------------------------------------- tables


def golden(name: str, text: str) -> None:
    """Compare with tests/data/NAME; INFERSIEGE_UPDATE_GOLDEN=1 writes it (then read the diff)."""
    path = DATA / name
    if os.environ.get(UPDATE) == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"set {UPDATE}=1 to write it anew, and read the diff"


def test_tables_golden(found: Rebuilt) -> None:
    golden("report_tables.txt", to_text(found.summary, width=100, examples=found.examples))


def test_tables_of_a_run_with_gaps_golden(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """Few turns, no usage, no cache figures: each missing figure has its reason."""
    rows = [
        msgspec.structs.replace(row, prompt_tokens=None, cached_tokens=None, output_tokens=None, tokens_from=None)
        for row in sample
        if row.phase is Phase.STEADY
    ][:60]
    slos = (Slo(metric="ttft", stat="p99", at_most=800.0), Slo(metric="cache_share", at_least=0.5, severity="warn"))
    golden("report_tables_gaps.txt", to_text(rebuilt(tmp_path, rows, plan_=plan(slos=slos)).summary, width=80))


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal(found: Rebuilt, width: int) -> None:
    text = to_text(found.summary, width=width, examples=found.examples)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.split("Failed turns")[0], "no figure and no name of this run is cut"


def large(group: GroupSummary) -> GroupSummary:
    """The same figures, as long as figures get."""
    return msgspec.structs.replace(
        group,
        counts=msgspec.structs.replace(group.counts, ok=12_345_678, failed=7),
        rates={name: None if value is None else value + 123_456.0 for name, value in group.rates.items()},
        in_flight_max=1_234_567,
        in_flight_mean=1_234_567.8,
    )


def figures_of(text: str) -> Counter[str]:
    """Every number of the tables, without the box and the names."""
    return Counter(re.findall(r"(?<![\w.])[<>]?\d[\d,.]*(?: %)?", text))


@pytest.mark.parametrize("make_large", [False, True])
@pytest.mark.parametrize("width", [40, 60, 72, 80, 120])
def test_no_digit_is_lost_in_a_narrow_terminal(found: Rebuilt, width: int, make_large: bool) -> None:
    """What one table can't hold goes into several; a wide terminal shows the same figures."""
    summary = found.summary
    if make_large:
        summary = msgspec.structs.replace(summary, groups=tuple(map(large, summary.groups)))
    text = to_text(summary, width=width, examples=found.examples)
    assert max(map(len, text.splitlines())) <= width, text
    head = text.split("Failed turns")[0].split("Latency of ok", 1)[1]
    wide = to_text(summary, width=400, examples=found.examples).split("Failed turns")[0].split("Latency of ok")[1]
    # The stage's name has a figure, and stands in each part of a table.
    assert figures_of(head.replace(STAGE, "")) == figures_of(wide.replace(STAGE, "")), text
    assert "…" not in head
    flowing = " ".join(text.split())
    for rule in summary.rules:
        assert rule.name.replace(" ", "") in text.replace("\n", "").replace(" ", "") or width >= 72
        assert figure(rule.value, rule.unit).removesuffix(" count") in flowing, text
    for turns in (summary.groups[0].errors or {}).values():
        assert f"{turns:,}" in flowing


def test_a_name_that_is_too_long_is_cut_with_a_mark(found: Rebuilt) -> None:
    groups = [msgspec.structs.replace(group, scenario="很长的场景名字" * 9) for group in found.summary.groups]
    text = to_text(msgspec.structs.replace(found.summary, groups=tuple(groups)), width=40)
    head = text.split("Failed turns")[0].split("Latency of ok")[1]
    assert "…" in head and max(cell_len(line) for line in text.splitlines()) <= 40
    assert figures_of(head.split("  – [1]")[0])[f"{groups[0].counts.ok:,}"] >= 1


def test_no_color_and_colour_say_the_same(found: Rebuilt, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        out = io.StringIO()
        print_summary(found.summary, Console(file=out, width=100, force_terminal=True, highlight=False), examples={})
        return out.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown()
    codes = re.compile(r"\x1b\[[0-9;]*m")
    assert codes.sub("", coloured) == codes.sub("", plain)
    assert re.search(r"\x1b\[[0-9;]*3[1-7]", coloured) and not re.search(r"\x1b\[[0-9;]*[34][0-7]", plain)


def test_sp_05_failed_share_stands_beside_percentiles(found: Rebuilt) -> None:
    whole = found.summary.groups[0]
    assert whole.counts.failed > 0
    line = next(line for line in to_text(found.summary).splitlines() if line.startswith(" all"))
    assert share(whole.counts.failed / (whole.counts.ok + whole.counts.failed)) in line


def test_sp_07_n_beside_each_percentile_and_no_p99_of_twenty(tmp_path: Path, sample: list[TurnRecord]) -> None:
    rows = [row for row in sample if row.outcome is Outcome.OK and row.phase is Phase.STEADY][:20]
    found = rebuilt(tmp_path, rows)
    text = to_text(found.summary)
    assert f"{ABSENT} [1] p99 needs 100 turns" in text
    assert "p99 needs 100 turns" in Page(page_of(found)).text


def test_tr_06_rows_in_are_accounted_for(found: Rebuilt) -> None:
    text = to_text(found.summary, width=200)
    for trace in found.summary.traces:
        name, sent = trace.scenario, trace.sessions_started
        assert f"trace: {name}: builtin:{name}: endless: {sent} sessions sent" in text


ACCOUNTS = [
    (
        {"rows": 73, "rows_in_sessions": 70, "skipped": {"no_output": 1, "span_seen_before": 2}, "sessions": 11,
         "sessions_taken": 4, "sessions_started": 4, "not_started": 7, "repeat_factor": 4 / 11},
        "73 rows = 70 in sessions + 1 skipped (no_output) + 2 skipped (span_seen_before) · 11 sessions = 4 sent + 7 "
        "not sent",
        "rows and sessions apart",
    ),
    (
        {"rows": 3, "rows_in_sessions": 3, "sessions": 3, "sessions_taken": 22, "sessions_started": 22,
         "sessions_repeated": 19, "not_started": 0, "repeat_factor": 22 / 3},
        "3 rows = 3 in sessions · 3 sessions = 3 sent + 0 not sent · 19 times sent again: each 7.33 times on average, "
        "also a cache test",
        "a trace that wraps",
    ),
    (
        {"rows": 40, "rows_in_sessions": 40, "sessions": 40, "sessions_taken": 40, "sessions_started": 0,
         "not_started": 40, "repeat_factor": 0.0},
        "40 rows = 40 in sessions · 40 sessions = 0 sent + 40 not sent · no turn was sent of 40 that were begun",
        "every turn was too long",
    ),
    ({"rows": None, "sessions": None, "sessions_taken": 7, "sessions_started": 5, "not_started": None,
      "repeat_factor": None}, "endless: 5 sessions sent · no turn was sent of 2 that were begun", "a generator"),
    ({"rows": 9, "sessions": 9, "sessions_started": 9, "not_started": 0, "repeat_factor": 1.0},
     "9 rows = 9 in sessions · 9 sessions = 9 sent + 0 not sent", "a run of before this was told apart"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "said", "why"), ACCOUNTS, ids=[why for *_, why in ACCOUNTS])
def test_tr_06_rows_and_sessions_add_up(found: Rebuilt, facts: dict[str, Any], said: str, why: str) -> None:
    account = TraceAccount(**{"scenario": "s", "trace": "t", "format": "f", "sha256": None, "skipped": {}, **facts})
    (line,) = trace_lines(msgspec.structs.replace(found.summary, traces=(account,)))
    assert line == f"s: t: {said}"


def test_conservation_line_says_when_it_does_not_hold() -> None:
    good = Counts(planned=10, started=8, ok=5, failed=1, cancelled=1, lost=1, skipped=2)
    assert conservation(good) == (
        "planned 10 = started 8 + skipped 2 · started 8 = ok 5 + failed 1 + cancelled 1 + lost 1"
    )
    assert conservation(msgspec.structs.replace(good, planned=11)).startswith("NOT CONSERVED: planned 11 = ")


def test_a_servers_error_text_cannot_drive_the_terminal(tmp_path: Path, sample: list[TurnRecord]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold]x\r\n\u202e"
    rows = [msgspec.structs.replace(row, error_detail=evil) if row.outcome is Outcome.FAILED else row for row in sample]
    found = rebuilt(tmp_path, rows)
    text = to_text(found.summary, width=200, examples=found.examples)
    assert "[bold]x" in text and not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)


# --------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "expected", "why"),
    [
        (None, ABSENT, "absent is not 0"),
        (0.0, "0", "0 is 0"),
        (12345.6, "12,346", "whole above 100"),
        (99.96, "100", "no 100.0"),
        (9.996, "10.0", "three digits on both sides of 10"),
        (0.9999, "1.00", "three digits on both sides of 1"),
        (0.0312, "0.0312", "small"),
        (0.0000031, "3.1e-06", "very small is not 0"),
    ],
)
def test_number(value: float | None, expected: str, why: str) -> None:
    assert number(value) == expected, why


@pytest.mark.parametrize(
    ("ratio", "expected", "why"),
    [
        (None, ABSENT, "unknown is not 0 %"),
        (0.0, "0.0 %", "none"),
        (1 / 100_000, "<0.01 %", "one in 100,000 is not none"),
        (0.0067, "0.67 %", "two digits below 1 %"),
        (0.99999, ">99.9 %", "one missing is not all"),
        (1.0, "100.0 %", "all"),
        (1.183, "118.3 %", "prompts 18 % longer than asked"),
    ],
)
def test_share(ratio: float | None, expected: str, why: str) -> None:
    assert share(ratio) == expected, why


def test_figures_and_spans() -> None:
    assert [figure(0.812, "s"), figure(812, "ms"), figure(61_000, "ms"), figure(812_000, "ns")] == [
        "812 ms",
        "812 ms",
        "61.0 s",
        "0.812 ms",
    ]
    assert [figure(0.012, "ratio"), figure(43.14, "turns/s"), figure(None, "ms")] == ["1.2 %", "43.1 turns/s", ABSENT]
    assert [span(int(s * SECOND)) for s in (0.84, 59.7, 60, 3599.6, 7500)] == [
        "0.8 s",
        "1 min 00 s",
        "1 min 00 s",
        "1 h 00 min",
        "2 h 05 min",
    ]


@given(st.text())
def test_printable_is_one_line_without_control_characters(text: str) -> None:
    assert all(character.isprintable() for character in printable(text))


# ---------------------------------------------------------------------------------------------------------- charts


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=300))
def test_bars_and_curve_hold_every_value(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    edges = edges_of(histogram)
    assert sum(bars(histogram, edges)) == len(values)
    assert edges[0] <= min(values) and edges[-1] * (1 + 1e-9) >= max(values)
    x, y = ecdf(histogram)
    assert y[-1] == 1 and y == sorted(y) and x == sorted(x)
    assert x[-1] == pytest.approx(max(values) / 1e6, rel=1e-3), "the curve ends at the largest value"
    ticks = ticks_between(edges[0] / 1e6, edges[-1] / 1e6)
    assert len(ticks) <= 10 and all(edges[0] / 1e6 <= tick <= edges[-1] / 1e6 for tick in ticks)


@given(st.integers(0, 400_000), st.lists(st.integers(0, 400_000), max_size=50))
def test_bins_are_few_and_lose_nothing_inside(span_s: int, seconds: list[int]) -> None:
    bins = Bins(1000, 1000 + span_s)
    assert bins.n <= 137 and bins.n * bins.width > span_s
    inside = [second for second in seconds if second <= span_s]
    assert sum(bins.sums((1000 + second, 1) for second in seconds)) >= len(inside)
    assert sum(bins.sums((1000 + second, 1) for second in inside)) == len(inside)


def test_collected_slowest_are_the_slowest(sample: list[TurnRecord]) -> None:
    ok = [row for row in sample if row.outcome is Outcome.OK and row.phase is Phase.STEADY]
    e2e = sorted((row.last_token_ns - row.sent_ns for row in ok if row.last_token_ns and row.sent_ns), reverse=True)
    assert [slow.e2e_ns for slow in collect(sample).slowest] == e2e[:SLOWEST]


def test_tokens_over_time_add_up(sample: list[TurnRecord]) -> None:
    total = sum(row.output_tokens or 0 for row in sample)
    assert sum(collect(sample).tokens_by_second.values()) == pytest.approx(total)


# ------------------------------------------------------------------------------------------------------------ page


def test_the_page_is_whole_and_asks_for_nothing(page: str) -> None:
    seen = check_page(page)
    policy = next(a["content"] for tag, a in seen.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None and "default-src 'none'" in policy
    assert ("html", {"lang": "en"}) in seen.elements
    assert sum(tag == "h1" for tag, _ in seen.elements) == 1
    tables = sum(tag == "table" for tag, _ in seen.elements)
    assert tables >= 8 and tables == sum(tag == "caption" for tag, _ in seen.elements), "each table has a caption"
    plots = [a for _, a in seen.elements if a.get("class") == "plot"]
    assert len(plots) >= 11 and all(a["role"] == "img" and a["aria-label"] for a in plots), "each chart speaks"
    assert len(page.encode()) < 6_000_000


def test_figures_on_the_page_are_the_summarys(found: Rebuilt, page: str) -> None:
    seen = check_page(page)
    whole = found.summary.groups[0]
    for metric in ("ttft", "tpot", "e2e"):
        distribution = whole.distributions[metric]
        for stat in ("p50", "p99"):
            assert f"{number(getattr(distribution, stat))} ms n {distribution.n:,}" in seen.text, (metric, stat)
    assert f"{number(whole.rates['throughput'])} tokens/s" in seen.text
    assert conservation(found.summary.counts) in seen.text
    marks = seen.figures["ttft-shape"]["layout"]["shapes"]
    drawn = [shape["x0"] for shape in marks]
    ttft = whole.distributions["ttft"]
    assert drawn == pytest.approx([ttft.p50, ttft.p95, ttft.p99], rel=1e-3)
    bars = [trace for trace in seen.figures["ttft-shape"]["data"] if trace["type"] == "bar"]
    assert {trace["name"]: sum(trace["y"]) for trace in bars} == {
        group.scenario: group.distributions["ttft"].n for group in found.summary.groups if group.scenario
    }
    errors = sum(sum(trace["y"]) for trace in seen.figures["errors-time"]["data"])
    assert errors == found.summary.counts.failed
    sent = seen.figures["load"]["data"][1]
    width = sent["x"][1] - sent["x"][0]
    ever_sent = found.summary.counts.started
    assert sum(sent["y"]) * width == pytest.approx(ever_sent, rel=1e-3)


def test_the_page_says_what_was_run(found: Rebuilt, page: str) -> None:
    text = Page(page).text
    for fact in (RUN_ID, "http://127.0.0.1:8000/v1/chat/completions", "0.11.0", "7, b7c1", "5f" * 32, "gpu = RTX 4090"):
        assert fact in text, fact
    assert "locust 2.47.1" in text and "EMULATED" in text and "first_token_ns - sent_ns" in text


def test_ig_17_times_are_utc(page: str) -> None:
    assert "2026-09-21 14:13:20 UTC" in Page(page).text


HOSTILE = "</script><img src=x onerror=alert(1)>\u2028<!--<script>"


def test_hostile_names_stay_text(tmp_path: Path, sample: list[TurnRecord]) -> None:
    rows = [
        msgspec.structs.replace(
            row,
            scenario=HOSTILE,
            session_id=HOSTILE,
            request_id=HOSTILE,
            worker=HOSTILE,
            finish_reason=HOSTILE if row.finish_reason else None,
            error_detail=HOSTILE if row.error_detail else None,
            flags=(HOSTILE,),
        )
        for row in sample[:900]
    ]
    run = write_run(tmp_path / "run", rows, plan_=plan(HOSTILE))
    with run:
        run.append_event(EventRow(at_ns=START_NS, kind=HOSTILE, detail=HOSTILE, worker=HOSTILE))
    found = judged(read(run), gated=False)
    seen = check_page(page_of(found))
    assert not any(tag == "img" for tag, _ in seen.elements)
    assert printable(HOSTILE) in seen.text
    assert "<" not in seen.scripts[0] and "\u2028" not in seen.scripts[0]
    names = {trace["name"] for trace in seen.figures["ttft-shape"]["data"]}
    assert escape(printable(HOSTILE), quote=False) in names, "plotly reads tags and entities in labels: none is left"


def test_no_prompt_and_no_key_reaches_the_page(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """TR-15, CL-08: what a record could carry by mistake of a server is scrubbed once more."""
    rows = [
        msgspec.structs.replace(row, error_detail="401: bad key sk-test-000123456") if row.error_class else row
        for row in sample
    ]
    leaky = plan()
    leaky.channels["local"].headers["x-api-key"] = "sk-test-000123456"
    found = rebuilt(tmp_path, rows, plan_=leaky)
    text = to_text(found.summary, examples=found.examples)
    assert "401: bad key" in text and "sk-test" not in text + page_of(found)


# --------------------------------------------------------------------------------------------------- unusual runs


def emptied(rows: list[TurnRecord]) -> list[TurnRecord]:
    return []


def all_failed(rows: list[TurnRecord]) -> list[TurnRecord]:
    return [
        msgspec.structs.replace(
            row,
            outcome=Outcome.FAILED,
            reason=None,
            error_class=ErrorClass.CONNECT,
            error_detail="connection refused",
            attempt_ns=row.due_ns + 1000,
            sent_ns=None,
            first_token_ns=None,
            last_token_ns=None,
            closed_ns=row.due_ns + 200_000,
            chunks=0,
            chunks_by_second={},
            gaps={},
            output_tokens=None,
        )
        for row in rows
    ]


def not_streamed(rows: list[TurnRecord]) -> list[TurnRecord]:
    return [
        msgspec.structs.replace(
            row, first_token_ns=None, last_token_ns=None, first_answer_ns=None, chunks=0, chunks_by_second={}, gaps={}
        )
        for row in rows
    ]


def one_turn(rows: list[TurnRecord]) -> list[TurnRecord]:
    return [row for row in rows if row.outcome is Outcome.OK and row.phase is Phase.STEADY][:1]


@pytest.mark.parametrize(
    ("shape", "says", "verdict"),
    [
        (emptied, "no turn was ok in the steady phase", {Verdict.NO_DATA, Verdict.INVALID}),
        (all_failed, "no turn was ok in the steady phase", {Verdict.FAIL, Verdict.NO_DATA, Verdict.INVALID}),
        (not_streamed, "no ok turn gave a TTFT (not streamed)", {Verdict.NO_DATA, Verdict.INVALID}),
        (one_turn, "p99 needs 100 turns", {Verdict.NO_DATA, Verdict.INVALID}),
    ],
)
def test_unusual_runs_are_shown_and_never_green(
    tmp_path: Path,
    sample: list[TurnRecord],
    shape: Callable[[list[TurnRecord]], list[TurnRecord]],
    says: str,
    verdict: set[Verdict],
) -> None:
    """GT-01, ST-26: nothing measured is not 0 ms and not a pass."""
    found = rebuilt(tmp_path, shape(sample))
    text = " ".join(to_text(found.summary, width=200, examples=found.examples).split())
    page = check_page(page_of(found))
    assert says in text and says in page.text
    assert found.summary.verdict in verdict and found.summary.exit_code != 0
    assert not re.search(r"TTFT p50 0(\.0+)? ms", page.text)


def test_gt_01_all_failed_names_the_error(tmp_path: Path, sample: list[TurnRecord]) -> None:
    found = rebuilt(tmp_path, all_failed(sample))
    assert "connection refused" in to_text(found.summary, examples=found.examples)
    assert "connection refused" in Page(page_of(found)).text
    assert found.summary.groups[0].distributions["ttft"].p50 is None


def test_a_hundred_thousand_turns_stay_small(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """The page's size depends on scenarios and bins, not on turns; the run is read in a stream."""
    begin = time.process_time()
    rows = [
        msgspec.structs.replace(row, session_id=f"{row.session_id}-{copy}", request_id=f"{row.request_id}{copy}")
        for copy in range(100_000 // len(sample) + 1)
        for row in sample
    ]
    assert len(rows) >= 100_000
    run = write_run(tmp_path / "run", rows, steady_s=120)
    finish(run)
    taken = time.process_time() - begin
    small = len(page_of(rebuilt(tmp_path / "small", sample, steady_s=120)).encode())
    large = run.report_path.stat().st_size
    assert large < 6_000_000 and large < small + 60_000
    assert taken < 90, f"{taken:.0f} s of CPU"


# --------------------------------------------------------------------------------------------- rebuild and commands


def test_rebuild_needs_only_turns_and_plan(tmp_path: Path, sample: list[TurnRecord]) -> None:
    run = write_run(tmp_path / "run", sample, steady_s=120)
    first = finish(run)
    kept = {name: (run.path / name).read_bytes() for name in (SUMMARY, REPORT, WINDOWS)}
    for path in run.path.iterdir():
        if path.name not in ("plan.json", TURNS):
            path.unlink()
    assert finish(RunDirectory.open(run.path)) == first == run.read_summary()
    assert {name: (run.path / name).read_bytes() for name in kept} == kept, "to the letter"


def test_order_of_the_turns_does_not_matter(tmp_path: Path, sample: list[TurnRecord]) -> None:
    assert rebuild(write_run(tmp_path / "a", sample)) == rebuild(write_run(tmp_path / "b", sample[::-1]))


def test_a_crashed_run_is_read_and_is_invalid(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """Killed in the middle: no end in plan.json, a torn last line."""
    run = write_run(tmp_path / "run", sample, steady_s=120)
    run.write_plan(msgspec.structs.replace(run.read_plan(), ended_ns=None, workers=(), traces=()))
    with (run.path / TURNS).open("ab") as file:
        file.write(b'{"run_id":"3f9c')
    summary = rebuild(RunDirectory.open(run.path))
    assert any("did not end by itself" in reason for reason in summary.invalid)
    assert any("the last line is torn" in warning for warning in summary.warnings)
    last = max(row.closed_ns or row.due_ns for row in sample)
    assert (summary.started_ns, summary.ended_ns) == (START_NS, last)
    assert summary.verdict is Verdict.INVALID and summary.exit_code == 3


def test_damaged_events_are_a_warning(tmp_path: Path, sample: list[TurnRecord]) -> None:
    run = write_run(tmp_path / "run", sample)
    (run.path / "events.jsonl").write_text("{}\n")
    assert any("events.jsonl:1" in warning for warning in rebuild(run).warnings)


def test_report_command(tmp_path: Path, sample: list[TurnRecord]) -> None:
    run = write_run(tmp_path / "run", sample, steady_s=120)
    done = CliRunner().invoke(report, [str(run.path)], catch_exceptions=False, env={"COLUMNS": "100"})
    assert done.exit_code == 0 and f"report: {run.report_path}" in done.output
    assert "EMULATED" in done.output and "planned" in done.output
    assert run.read_summary().run_id == RUN_ID
    check_page(run.report_path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("slos", "code", "verdict", "why"),
    [
        ((Slo(metric="ttft", stat="p99", at_most=800.0),), 0, "PASS", "holds"),
        ((Slo(metric="ttft", stat="p99", at_most=1.0),), 1, "FAIL", "does not hold"),
        ((Slo(metric="ttft", stat="p99", at_most=1.0, severity="warn"),), 0, "PASS", "only warns"),
        ((Slo(metric="ttft", stat="p99", at_most=9.0, scenario="other"),), 5, "NO DATA", "no such scenario"),
        ((), 0, "PASS", "built-in rules alone"),
    ],
)
def test_gate_command(
    tmp_path: Path, sample: list[TurnRecord], slos: tuple[Slo, ...], code: int, verdict: str, why: str
) -> None:
    run = write_run(tmp_path / "run", sample, plan_=plan(slos=slos), steady_s=120)
    done = CliRunner().invoke(gate, [str(run.path)], catch_exceptions=False, env={"COLUMNS": "100"})
    assert done.exit_code == code, done.output
    assert f"verdict: {verdict}" in done.output
    suite = ET.parse(run.path / "junit.xml").getroot()
    assert suite.iter("testcase")
    summary = run.read_summary()
    assert summary.exit_code == code and summary.verdict is not None
    assert summary.verdict.value.upper() in Page(run.report_path.read_text("utf-8")).text
    assert ("no [[slo]]" in done.output) == (not slos)


def in_the_way(run: RunDirectory) -> None:
    """A directory in the place of each file that is written."""
    for name in (WINDOWS, SUMMARY, REPORT, "junit.xml"):
        (run.path / name).mkdir()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can enter: pytest's own can't be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nobody, not even root, can write into `path`: root becomes another user for that time."""
    path.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(0o755)


SLOW_RULE = (Slo(metric="ttft", stat="p99", at_most=1.0),)


@pytest.mark.parametrize(("slos", "code"), [((), 0), (SLOW_RULE, 1)])
@pytest.mark.parametrize("blocked", ["read-only", "directories"])
def test_a_run_that_cannot_be_written_to_is_judged_all_the_same(
    open_folder: Path, sample: list[TurnRecord], slos: tuple[Slo, ...], code: int, blocked: str
) -> None:
    run = write_run(open_folder / "run", sample, plan_=plan(slos=slos), steady_s=120)
    with contextlib.ExitStack() as stack:
        if blocked == "read-only":
            stack.enter_context(read_only(run.path))
        else:
            in_the_way(run)
        runner = CliRunner()
        judged_, shown = (
            runner.invoke(command, [str(run.path)], catch_exceptions=False, env={"COLUMNS": "100"})
            for command in (gate, report)
        )
    assert judged_.exit_code == code, judged_.output
    assert f"verdict: {'FAIL' if code else 'PASS'}" in judged_.output
    assert "Latency of ok turns" in shown.output
    assert shown.exit_code == 2, "report is there to write them"
    for name in (WINDOWS, SUMMARY, REPORT):
        assert f"{name}: can't be written" in judged_.output and f"{name}: can't be written" in shown.output
    assert "junit.xml: can't be written" in judged_.output and "junit: " not in judged_.output
    assert "--out" not in judged_.output + shown.output
    assert judged_.output.count("hint: ") == shown.output.count("hint: ") == 1


def stopped(run: RunDirectory, after_s: float) -> None:
    """Make it a run that somebody interrupted so long after its start."""
    file, end_ns = run.read_plan(), START_NS + int(after_s * SECOND)
    stage = file.stages[0]
    stage = msgspec.structs.replace(
        stage, steady_started_ns=min(stage.steady_started_ns, end_ns), steady_ended_ns=end_ns
    )
    run.write_plan(msgspec.structs.replace(file, interrupted=True, ended_ns=end_ns, stages=(stage,)))


@pytest.mark.parametrize("slos", [(), SLOW_RULE])
@pytest.mark.parametrize("after_s", [12.0, 90.0])
def test_an_interrupted_run_is_that_before_all_else(
    tmp_path: Path, sample: list[TurnRecord], slos: tuple[Slo, ...], after_s: float
) -> None:
    end_ns = START_NS + int(after_s * SECOND)
    rows = [row for row in sample if (row.closed_ns or row.due_ns) < end_ns]
    run = write_run(tmp_path / "run", rows, plan_=plan(slos=slos), steady_s=120)
    stopped(run, after_s)
    for command in (gate, report):
        done = CliRunner().invoke(command, [str(run.path)], catch_exceptions=False, env={"COLUMNS": "100"})
        assert done.exit_code == (130 if command is gate else 0)
        verdicts = [line for line in done.output.splitlines() if line.startswith("verdict:")]
        assert len(verdicts) == 1 and verdicts[0].startswith("verdict: INTERRUPTED, the run was stopped")
        assert "lengthen" not in done.output and "INVALID:" not in done.output
        assert ("interrupted in its warm-up" in done.output) == (after_s < 30)
    page = Page(run.report_path.read_text("utf-8"))
    banners = [words for words in page.words if words in ("INTERRUPTED", "INVALID", "NOT JUDGED", "FAIL", "PASS")]
    assert banners[0] == "INTERRUPTED"


def test_events_are_shown_in_words_and_documented(tmp_path: Path, sample: list[TurnRecord]) -> None:
    root = Path(__file__).parents[1]
    written = set()
    for path in (root / "infersiege" / "swarm").glob("*.py"):
        written |= set(re.findall(r'\b(?:note\(|StageEvent\([^"]*?)"(\w+)"', path.read_text("utf-8")))
    assert written == set(EVENT_WORDS)
    table = (root / "docs" / "rundir.md").read_text("utf-8").split("## Events")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == written
    run = write_run(tmp_path / "run", sample[:50])
    with run:
        for kind in (*EVENT_WORDS, "a_newer_one"):
            run.append_event(EventRow(at_ns=START_NS, kind=kind, detail="d"))
    words = Page(page_of(judged(read(run), gated=False))).words
    assert {*EVENT_WORDS.values(), "a newer one"} <= set(words)


def test_gate_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no such run directory"):
        CliRunner().invoke(gate, [str(tmp_path / "nowhere")], catch_exceptions=False, standalone_mode=False)


def test_a_run_without_rules_has_no_verdict_until_it_is_gated(tmp_path: Path, sample: list[TurnRecord]) -> None:
    run = write_run(tmp_path / "run", sample, plan_=plan(slos=()), steady_s=120)
    assert finish(run).verdict is None and "NOT JUDGED" in Page(run.report_path.read_text("utf-8")).text
    assert finish(run, gated=True).verdict is Verdict.PASS


def test_summary_survives_its_file(found: Rebuilt) -> None:
    assert msgspec.json.decode(msgspec.json.encode(found.summary), type=Summary) == found.summary
