"""GPU and engine on the page and in the terminal: on the load's axis, holes as holes, and nothing where nothing was."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from infersiege_agents.measurements import MEASUREMENTS, RESOURCES
from records_sample import RUN_ID, SECOND, START_NS, plan, records, write_run
from series_sample import engine_row, engine_rows, gpu_row, gpu_rows
from test_report import Page, check_page, golden, page_of

from infersiege.records import SeriesRow, StageResources, TelemetryAccount, TurnRecord
from infersiege.report import Rebuilt, judged, read, write
from infersiege.report.page import POLICY
from infersiege.report.stages import DASHBOARDS, ENGINE_FIGURES, GPU_FIGURES, SHORT, account_line
from infersiege.report.tables import to_text
from infersiege.report.watched import LINES_AT_MOST, gpu_names
from infersiege.resources import gather
from infersiege.rundir import RunDirectory

STEADY_S = 120
SECONDS = 30 + STEADY_S + 5


@pytest.fixture(scope="module")
def sample() -> list[TurnRecord]:
    return records(24, steady_s=STEADY_S)


def run_with(path: Path, rows: list[TurnRecord], gpu: Any = (), engine: Any = (), **telemetry: Any) -> RunDirectory:
    made = plan()
    made = msgspec.structs.replace(made, telemetry=msgspec.structs.replace(made.telemetry, **telemetry))
    run = write_run(path, rows, made, steady_s=STEADY_S)
    for name, points in (("gpu.jsonl", gpu), ("engine.jsonl", engine)):
        if points:
            run.write_series(name, points)
    return run


@pytest.fixture(scope="module")
def found(sample: list[TurnRecord], tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """Two GPUs, one of which is lost for 40 s, and an engine."""
    run = run_with(
        tmp_path_factory.mktemp("runs") / "run", sample, list(gpu_rows(2, seconds=SECONDS, lost=(1, 60, 100))),
        list(engine_rows(seconds=SECONDS)), grafana_url="http://127.0.0.1:3000/",
    )  # fmt: skip
    return judged(read(run), gated=True)


def page_with(found: Rebuilt) -> Page:
    return Page(page_of_watched(found))


def page_of_watched(found: Rebuilt) -> str:
    from infersiege.report.html import render

    parts = (found.summary, found.plan, found.windows, found.collected, found.events, found.watched, found.details)
    return render(*parts)


@pytest.fixture(scope="module")
def page(found: Rebuilt) -> Page:
    return page_with(found)


HARDWARE = {
    "gpu-activity", "gpu-parts", "gpu-power", "gpu-memory", "engine-requests", "engine-kv", "engine-preemptions",
    "engine-ttft", "engine-itl",
}  # fmt: skip


def test_tables_with_resources_golden(found: Rebuilt) -> None:
    golden("report_tables_resources.txt", to_text(found.summary, examples=found.examples))


@pytest.mark.parametrize("width", [40, 72, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(found: Rebuilt, width: int) -> None:
    text = to_text(found.summary, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert f"limit: {found.summary.resources[0].limit}" in " ".join(text.split())


def test_every_chart_is_there_on_the_axis_of_the_load(page: Page) -> None:
    assert set(page.figures) >= HARDWARE
    load = page.figures["load"]["layout"]
    for key in HARDWARE:
        layout = page.figures[key]["layout"]
        assert layout["xaxis"]["range"] == load["xaxis"]["range"], key
        assert layout["shapes"] == load["shapes"], f"{key}: the phases are marked as under the load"
    assert page.figures["gpu-power"]["data"][0]["x"] == page.figures["load"]["data"][0]["x"]


def test_the_section_comes_right_under_the_load(page: Page) -> None:
    ids = [attributes["id"] for tag, attributes in page.elements if tag == "section"]
    assert ids.index("resources") == ids.index("load") + 1


def test_gp_03_a_lost_card_is_a_hole_and_is_marked(page: Page) -> None:
    data = {trace["name"]: trace for trace in page.figures["gpu-power"]["data"]}
    lost, there = data["GPU 1"], data["GPU 0"]
    for x, y, other in zip(lost["x"], lost["y"], there["y"], strict=True):
        assert (y is None) == (60 <= x < 100), (x, y)
        assert other is not None
    assert lost["connectgaps"] is False
    marks = next(trace for trace in page.figures["gpu-activity"]["data"] if trace["mode"] == "markers")
    assert marks["name"] == "GPU 1 not readable" and min(marks["x"]) >= 60 and max(marks["x"]) <= 100
    assert "bench-1 GPU-1: GPU is lost" in page.text


def test_figures_on_the_page_and_in_the_terminal_are_the_summarys(found: Rebuilt, page: Page) -> None:
    (stage,) = found.summary.resources
    text = to_text(found.summary, width=200)
    for figures, shown in ((ENGINE_FIGURES, page.text), (GPU_FIGURES, page.text), (SHORT, text)):
        for title, unit, of in figures:
            if unit == "J/token":
                assert of(stage) is None and "no energy per token" in page.text, "a card was lost for a third of it"
                continue
            written = of(stage)
            assert written is not None and written in shown, (title, unit, written)
    assert stage.limit_reason in page.text


def test_every_figure_of_a_stage_is_shown_somewhere() -> None:
    """A new field of StageResources that no table shows fails here."""
    values = dict.fromkeys(StageResources.__struct_fields__)
    shown = set()
    for name in values:
        number = 0.1234567
        stage = StageResources(stage="s", limit="", limit_reason="")
        try:
            stage = msgspec.structs.replace(stage, **{name: 3 if name == "gpus" else number})
        except TypeError:  # pragma: no cover
            continue
        if any(of(stage) is not None for *_, of in (*ENGINE_FIGURES, *GPU_FIGURES)):
            shown.add(name)
    elsewhere = {"stage", "gpus_lost", "xids", "coverage", "limit", "limit_reason"}
    assert shown == set(values) - elsewhere


def test_figures_for_influxdb_are_those_of_a_stage() -> None:
    """infersiege_run and StageResources name the same things."""
    names = set(StageResources.__struct_fields__)
    assert {column.name for column in RESOURCES} - names == set()
    assert "utilization_mean" in MEASUREMENTS["gpu"].fields


def test_the_page_says_the_limit_at_its_top(found: Rebuilt, page: Page) -> None:
    limit = found.summary.resources[0].limit
    assert page.text.index(f"Limit: {limit}") < page.text.index("Figures")


# ---------------------------------------------------------------------------------------------- without GPM, MIG, many


def test_gp_09_utilisation_is_never_called_load(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """Without GPM the chart shows utilisation under a title that says what it is."""
    run = run_with(tmp_path / "run", sample, list(gpu_rows(2, seconds=SECONDS, gpm=False)))
    found = judged(read(run), gated=False)
    page = page_with(found)
    assert "GPU utilisation: some kernel ran" in page.text and "does not say how full" in page.text
    assert not re.search(r"\b(gpu load|saturat)", page.text, re.I)
    assert found.summary.resources[0].limit == "not clear"
    assert "engine-kv" not in page.figures and "gpu-parts" not in page.figures


def test_many_cards_are_a_band(tmp_path: Path, sample: list[TurnRecord]) -> None:
    run = run_with(tmp_path / "run", sample, list(gpu_rows(LINES_AT_MOST + 4, seconds=SECONDS)))
    data = {trace["name"]: trace for trace in page_with(read(run)).figures["gpu-power"]["data"]}
    assert set(data) == {"least", "greatest", "mean of 20", "limit"}
    for low, mean, high in zip(data["least"]["y"], data["mean of 20"]["y"], data["greatest"]["y"], strict=True):
        assert low <= mean <= high


@pytest.mark.parametrize(("engines", "names"), [
    (1, {"running", "waiting"}),
    (2, {"127.0.0.1:8000 running", "127.0.0.1:8000 waiting", "127.0.0.1:8001 running", "127.0.0.1:8001 waiting"}),
    (9, {f"{what}, {stat}" for what in ("running", "waiting") for stat in ("least", "greatest", "mean of 9")}),
])  # fmt: skip
def test_no_engine_is_left_out_of_the_chart(
    tmp_path: Path, sample: list[TurnRecord], engines: int, names: set[str]
) -> None:
    """Of nine, the ninth alone has a queue: it must be seen."""
    rows = [
        engine_row(START_NS + second * SECOND, f"127.0.0.1:{8000 + place}", running=4.0,
                   waiting=25.0 if place == engines - 1 else 0.0)
        for second in range(1, SECONDS) for place in range(engines)
    ]  # fmt: skip
    made = plan()
    local = made.channels["local"]
    channels = {
        f"c{place}": msgspec.structs.replace(local, base_url=f"http://127.0.0.1:{8000 + place}")
        for place in range(engines)
    }
    run = write_run(tmp_path / "run", sample, msgspec.structs.replace(made, channels=channels), steady_s=STEADY_S)
    file = run.read_plan()
    facts = {name: msgspec.structs.replace(next(iter(file.channels.values())), url=f"{channel.base_url}/v1")
             for name, channel in channels.items()}  # fmt: skip
    run.write_plan(msgspec.structs.replace(file, channels=facts))
    run.write_series("engine.jsonl", rows)
    data = page_with(read(run)).figures["engine-requests"]["data"]
    assert {trace["name"] for trace in data} == names
    assert max(max(y for y in trace["y"] if y is not None) for trace in data) == 25.0


@pytest.mark.parametrize("database", [False, True])
def test_a_run_with_a_database_and_no_series_says_how_to_fetch_them(
    tmp_path: Path, sample: list[TurnRecord], database: bool
) -> None:
    telemetry = {"influx_url": "http://127.0.0.1:8086"} if database else {}
    run = run_with(tmp_path / "run", sample[:200], **telemetry)
    if database:
        run.write_plan(msgspec.structs.replace(run.read_plan(), telemetry=account()))
    found = read(run)
    hint = "infersiege report RUN --with-telemetry"
    assert (hint in Page(page_of(found)).text) is database
    assert (hint in " ".join(to_text(found.summary).split())) is database


@pytest.mark.parametrize(
    ("rows", "names", "why"),
    [
        ([("h", "GPU-aaaa1111", 0.0), ("h", "GPU-bbbb2222", 1.0)], ["GPU 0", "GPU 1"], "one host"),
        ([("a", "GPU-1", 0.0), ("b", "GPU-2", 0.0)], ["a GPU 0", "b GPU 0"], "GP-11: two hosts with index 0"),
        ([("h", "GPU-aaaa1111", 0.0), ("h", "GPU-bbbb2222", 0.0)], ["GPU 0 aaaa1111", "GPU 0 bbbb2222"], "GP-04"),
        ([("h", "GPU-aaaa1111-2", None)], ["GPU GPU-aaaa1111"], "no index: the UUID"),
    ],
)
def test_names_of_cards(rows: list[tuple[str, str, float | None]], names: list[str], why: str) -> None:
    points = [
        gpu_row(START_NS, uuid, host=host, **({} if index is None else {"index": index})) for host, uuid, index in rows
    ]
    assert gpu_names(gather(points, span_ns=(0, 1 << 62)).gpus) == names, why


def test_hostile_tags_stay_text(tmp_path: Path, sample: list[TurnRecord]) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"

    def rows() -> Iterator[SeriesRow]:
        for second in range(1, SECONDS):
            at_ns = START_NS + second * SECOND
            yield gpu_row(at_ns, hostile, host=hostile, power_mean_w=100.0)
            yield SeriesRow(
                at_ns=at_ns, measurement="gpu_host", tags={"host": hostile},
                fields={"ok": 0.0, "error_text": hostile},
            )  # fmt: skip
            yield engine_row(at_ns, hostile, running=1.0)

    run = run_with(tmp_path / "run", sample, list(rows()))
    seen = check_page(page_of_watched(judged(read(run), gated=False)))
    assert not any(tag == "img" for tag, _ in seen.elements)


# ------------------------------------------------------------------------------------------------ links and account


def test_ig_17_links_to_grafana_are_absolute_ms_of_the_run(found: Rebuilt, page: Page) -> None:
    links = [str(a["href"]) for tag, a in page.elements if tag == "a" and str(a.get("href")).startswith("http")]
    assert len(links) == len(DASHBOARDS)
    for link, (uid, _) in zip(links, DASHBOARDS, strict=True):
        parts = urlsplit(link)
        assert (parts.netloc, parts.path) == ("127.0.0.1:3000", f"/d/{uid}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert int(query["from"]) == found.summary.started_ns // 1_000_000 - 10_000
        assert int(query["to"]) >= found.summary.ended_ns // 1_000_000 + 10_000
        assert query["var-run"] == found.plan.run_key and RUN_ID in query["var-run"]


def test_links_change_no_policy_and_no_other_run(found: Rebuilt, tmp_path: Path, sample: list[TurnRecord]) -> None:
    policy = "default-src 'none'"
    assert POLICY.startswith(policy) and "http" not in POLICY
    plain = read(run_with(tmp_path / "run", sample))
    assert plain.summary.resources == ()
    seen = check_page(page_of(plain))
    assert not set(seen.figures) & HARDWARE and "resources" not in [a.get("id") for _, a in seen.elements]
    assert page_of(plain) == page_of_watched(plain)


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "", 7])
def test_only_web_addresses_become_links(tmp_path: Path, sample: list[TurnRecord], url: Any) -> None:
    run = run_with(tmp_path / "run", sample[:200])
    file = run.read_plan()
    file.plan["telemetry"]["grafana_url"] = url
    found = read(run)
    page = Page(page_of(msgspec.structs.replace(found, plan=file)))
    assert not any(tag == "a" and not str(a.get("href")).startswith("#") for tag, a in page.elements)


def account(**changes: Any) -> TelemetryAccount:
    values: dict[str, Any] = {
        "url": "http://127.0.0.1:8086", "written": 60_000, "acknowledged": 59_990, "rejected": 0, "spooled": 10,
        "dropped": 0, "left_out": 0, "spool": "/spool/x", "problem": "connection refused", **changes,
    }  # fmt: skip
    return TelemetryAccount(**values)


def test_what_became_of_the_points_is_told(tmp_path: Path, sample: list[TurnRecord]) -> None:
    line = account_line(account())
    assert "60,000 = acknowledged 59,990 + rejected 0 + spooled 10 + dropped 0; in /spool/x; connection refused" in line
    assert "spool/x" not in account_line(account(acknowledged=60_000, spooled=0, problem=None))
    run = run_with(tmp_path / "run", sample[:200])
    run.write_plan(msgspec.structs.replace(run.read_plan(), telemetry=account()))
    found = read(run)
    assert found.summary.telemetry == account()
    assert "acknowledged 59,990" in Page(page_of(found)).text


# --------------------------------------------------------------------------------------------------------- quickness


def test_eight_cards_for_an_hour_do_not_slow_the_page(tmp_path: Path, sample: list[TurnRecord]) -> None:
    """The page's size depends on bins, not on points."""
    bare = run_with(tmp_path / "bare", sample)
    run = run_with(tmp_path / "run", sample, list(gpu_rows(8, seconds=SECONDS)), list(engine_rows(seconds=SECONDS)))
    sizes, taken = [], []
    for one in (bare, run):
        begin = time.process_time()
        write(one, judged(read(one), gated=False))
        taken.append(time.process_time() - begin)
        sizes.append(one.report_path.stat().st_size)
    assert sizes[1] < sizes[0] + 120_000
    assert taken[1] < 2 * taken[0] + 1.0
