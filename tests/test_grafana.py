"""The committed dashboards are what grafana/build.py makes, and name only what somebody writes. No database."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import influxql
import pytest
import yaml
from infersiege_agents.measurements import MEASUREMENTS, Column

from infersiege.report import stages

ROOT = Path(__file__).parents[1]
GRAFANA = ROOT / "grafana"
sys.path.append(str(GRAFANA))

from infersiege_grafana import expand, files, measurement_page, shell  # noqa: E402

DASHBOARDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (GRAFANA / "dashboards").glob("*.json")
}
EACH = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
Json = dict[str, Any]


def panels(dashboard: Json) -> list[Json]:
    """Those that show data."""
    return [panel for panel in dashboard["panels"] if panel["type"] not in ("row", "text")]


def test_the_committed_files_are_what_the_generator_makes() -> None:
    made = {name: files.text_of(dashboard) for name, dashboard in files.dashboards().items()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in (GRAFANA / "dashboards").iterdir()}
    assert committed == made, "run: python grafana/build.py"


@pytest.mark.parametrize(
    ("script", "arguments", "lines"),
    [("build.py", (), 4), ("measurement_tables.py", (), 0), ("preview.py", ("-h",), None)],
)
def test_scripts_run_from_anywhere(script: str, arguments: tuple[str, ...], lines: int | None, tmp_path: Path) -> None:
    command = [sys.executable, GRAFANA / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines is None or len(done.stdout.splitlines()) == lines


def test_there_are_four_dashboards_with_ids_of_their_own() -> None:
    assert {one["uid"]: one["title"] for one in DASHBOARDS.values()} == shell.TITLES
    assert set(DASHBOARDS) == set(shell.TITLES)


@EACH
def test_schema_version_and_panel_ids(dashboard: Json) -> None:
    assert dashboard["schemaVersion"] == 41
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert len(set(titles)) == len(titles), "two panels of one title can't be told apart"


@EACH
def test_ig_15_every_query_names_the_provisioned_data_source(dashboard: Json) -> None:
    assert "${DS_" not in json.dumps(dashboard)
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/infersiege.yaml").read_text(encoding="utf-8"))
    (source,) = provisioned["datasources"]
    named = [variable["datasource"] for variable in dashboard["templating"]["list"]]
    named += [annotation["datasource"] for annotation in dashboard["annotations"]["list"]]
    named += [panel["datasource"] for panel in panels(dashboard)]
    named += [target["datasource"] for panel in panels(dashboard) for target in panel["targets"]]
    assert named
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in named)


@EACH
def test_every_panel_says_what_it_shows(dashboard: Json) -> None:
    """Title, one sentence (or two), a unit, thresholds, a query."""
    for panel in panels(dashboard):
        title = panel["title"]
        assert re.fullmatch(r"[A-Z0-9].{20,}[.]", panel["description"], re.DOTALL), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None, title
        assert panel["targets"], title
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), title


@EACH
def test_ig_14_no_interval_below_the_write_interval_and_no_gap_drawn_over(dashboard: Json) -> None:
    for panel in panels(dashboard):
        assert panel["interval"] == "1s", panel["title"]
        connected = panel["fieldConfig"]["defaults"]["custom"].get("spanNulls", False)
        assert connected is False or connected == 10_000, panel["title"]
    for place, query in influxql.queries(dashboard):
        assert "fill(previous)" not in query and "fill(linear)" not in query, place


@EACH
def test_ig_12_no_percentile_is_averaged(dashboard: Json) -> None:
    for place, query in influxql.queries(dashboard):
        averaged = re.findall(r'(?:mean|sum|median|percentile)\("\w*_p\d+\w*"', query)
        assert not averaged, f"{place}: {averaged}"


@EACH
def test_panels_lie_on_the_grid_without_overlap(dashboard: Json) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["w"] > 0 and place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    depth = max(y for _, y in taken) + 1
    assert len(taken) == 24 * depth, "a hole in the grid: Grafana would move panels up"


@EACH
def test_every_measurement_tag_and_field_of_every_query_is_written_by_somebody(dashboard: Json) -> None:
    found = list(influxql.queries(dashboard))
    assert len(found) > 10
    assert {
        place: influxql.faults(query, MEASUREMENTS) for place, query in found if influxql.faults(query, MEASUREMENTS)
    } == {}


def test_a_renamed_field_or_measurement_is_seen() -> None:
    """The check above can fail: every field that a dashboard reads, renamed in the table, is found."""
    queries = [query for dashboard in DASHBOARDS.values() for _, query in influxql.queries(dashboard)]
    read = 0
    for name, measurement in MEASUREMENTS.items():
        for field in measurement.columns:
            used = [query for query in queries if f'"{field.name}"' in query and f'"{name}"' in query]
            if not used:
                continue
            read += 1
            other = tuple(Column("other", *_rest(one)) if one is field else one for one in measurement.columns)
            renamed = {**MEASUREMENTS, name: replace(measurement, columns=other)}
            unseen = [query for query in used if not influxql.faults(query, renamed) and _reads(query, field.name)]
            assert not unseen, f"{name}.{field.name}"
    assert read > 100
    assert influxql.faults('SELECT "x" FROM "gpu"', MEASUREMENTS) == ["column 'x' of gpu"]
    assert influxql.faults('SELECT last("ok") FROM "gpus"', MEASUREMENTS)[0] == "measurement 'gpus'"
    assert influxql.faults('SELECT last(ok) FROM "gpu"', MEASUREMENTS) == ["'ok' without quotes"]
    assert influxql.faults('SELECT spread("ok") FROM "gpu"', MEASUREMENTS) == ["'spread' without quotes"]


def _reads(query: str, field: str) -> bool:
    """Not only as the name of the measurement, or of a column of the answer."""
    return f'"{field}"' in influxql.FROM.sub("", influxql.ALIAS.sub("", query))


def _rest(column: Column) -> tuple[Any, ...]:
    return column.kind, column.unit, column.meaning


@pytest.mark.parametrize(
    "name", ["infersiege_window", "infersiege_live", "infersiege_client", "gpu", "gpu_host", "engine"]
)
def test_what_is_measured_is_shown(name: str) -> None:
    """The fields that no panel shows are few, and known: a new one has to be shown or listed here, and one that is
    shown by now has to leave the list."""
    queries = [query for dashboard in DASHBOARDS.values() for _, query in influxql.queries(dashboard)]
    of_it = [query for query in queries if f'FROM "{name}"' in query]
    assert of_it
    unseen = {field for field in MEASUREMENTS[name].fields if not any(_reads(query, field) for query in of_it)}
    assert unseen == HIDDEN[name]


HIDDEN = {
    "infersiege_window": {"cancelled", "skipped", "chunks", "in_flight", "users", "lateness_n_stage"}
    | {f"lateness_{stat}_stage_ms" for stat in ("p50", "p95", "p99")},
    "infersiege_live": {"started", "closed", "failed", "chunks", "interval"},
    "infersiege_client": set(),
    "gpu": {
        "error", "samples", "sample_duration", "utilization_min", "utilization_max", "memory_utilization_mean",
        "memory_used_min_bytes", "memory_used_mean_bytes", "memory_reserved_bytes", "host_memory_used_bytes",
        "host_memory_total_bytes", "power_min_w", "power_max_w", "power_average_w", "power_instant_w",
        "clock_memory_mhz", "clock_reasons",
    },
    "gpu_host": {"error"},
    "engine": {
        "up", "error", "scrape_duration", "resets", "prefix_hit_share", "prompt_tokens", "ttft_n", "ttft_mean_ms",
        "ttft_p99_ms", "ttft_buckets", "itl_n", "itl_mean_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "itl_buckets",
    },
}  # fmt: skip


@EACH
def test_ig_17_dashboards_lead_to_each_other_with_range_and_variables(dashboard: Json) -> None:
    links = {link["url"]: link for link in dashboard["links"]}
    assert set(links) == {f"/d/{uid}" for uid in DASHBOARDS if uid != dashboard["uid"]}
    assert all(link["keepTime"] and link["includeVars"] for link in links.values())


def test_ig_17_a_link_to_a_run_is_in_epoch_ms_of_the_record() -> None:
    text = (GRAFANA / "dashboards/infersiege-run.json").read_text(encoding="utf-8")
    assert "&from=${__data.fields.started.numeric}&to=${__data.fields.ended.numeric}" in text
    assert '\\"started_ms\\" AS \\"started\\"' in text and '\\"ended_ms\\" AS \\"ended\\"' in text


@EACH
def test_variables_are_asked_again_with_the_time_range_and_scenario_starts_with_all(dashboard: Json) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert {"run", "scenario", "channel"} <= set(variables)
    assert variables["run"]["sort"] == shell.DESCENDING, "newest first: run keys sort by time"
    for name, one in variables.items():
        assert one["refresh"] == shell.ON_TIME_RANGE, name
        assert "$timeFilter" in one["query"] or "${__from}" in one["query"] or "${__to}" in one["query"], name
        assert one["definition"] == one["query"]
    for name in ("scenario", "channel"):
        assert variables[name]["current"]["value"] == "all"


@EACH
def test_every_variable_that_a_query_uses_is_there(dashboard: Json) -> None:
    names = {one["name"] for one in dashboard["templating"]["list"]} | {"__from", "__to"}
    used = {name for _, query in influxql.queries(dashboard) for name, _ in expand.VARIABLE.findall(query)}
    assert used <= names
    assert used | {"scenario", "channel"} == names | {"scenario", "channel", "__from", "__to"}, "a variable nobody uses"


@pytest.mark.parametrize(
    ("value", "escaped", "reason"),
    [
        ("org/model-7b", r"org\/model-7b", "a slash would end the regular expression"),
        ("a.b (c)|d", r"a\.b \(c\)\|d", "characters with a meaning"),
        ('it\'s "odd"', 'it\'s "odd"', "quotes mean nothing inside slashes"),
        ("$x^{1}", r"\$x\^\{1\}", "anchors and counts"),
        (["a", "b/c"], r"(a|b\/c)", "several values"),
        (["a.b"], r"a\.b", "one of several"),
        ("$__all", ".*", "what All stands for is not escaped"),
        (["$__all"], ".*", "the same, as Grafana keeps it"),
    ],
)
def test_expansion_of_values(value: Any, escaped: str, reason: str) -> None:
    view = expand.View(1, 2, 1000, {"run": value}, {"run": ".*"})
    assert expand.expand('"run" =~ /^${run:regex}$/', view) == f'"run" =~ /^{escaped}$/', reason


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        ("1764511331000", "time(10s, 01764511331000ms)", "an instant in ms"),
        ("", "time(10s, 0ms)", "no such run: a valid query, with intervals of the clock"),
    ],
)
def test_expansion_of_a_number(value: str, text: str, reason: str) -> None:
    view = expand.View(1, 2, 1000, {"run_start": value})
    assert expand.expand("time(10s, 0${run_start:raw}ms)", view) == text, reason


@pytest.mark.parametrize("value", ["1.5", "x", "1 OR 1", ["1"]])
def test_only_digits_stand_outside_regular_expressions(value: Any) -> None:
    with pytest.raises(ValueError, match="run_start"):
        expand.expand("0${run_start:raw}ms", expand.View(1, 2, 1000, {"run_start": value}))


def test_expansion_of_time() -> None:
    view = expand.View(1_000, 61_000, 20_000)
    text = expand.expand("WHERE $timeFilter GROUP BY time($__interval) $__interval_ms ${__from} ${__to}", view)
    assert text == "WHERE time >= 1000ms and time <= 61000ms GROUP BY time(20s) 20000 1000 61000"
    assert [expand.duration(ms) for ms in (250, 1000, 90_000, 120_000, 3_600_000)] == ["250ms", "1s", "90s", "2m", "1h"]


@pytest.mark.parametrize("query", ["${run}", "${nobody:regex}", "$interval", "$__rate_interval", "[[run]]"])
def test_what_grafana_would_not_expand_is_an_error(query: str) -> None:
    with pytest.raises(ValueError):
        expand.expand(query, expand.View(1, 2, 1000, {"run": "x"}))


def test_provisioning_is_what_grafana_reads() -> None:
    folder = GRAFANA / "provisioning"
    sources = yaml.safe_load((folder / "datasources/infersiege.yaml").read_text(encoding="utf-8"))
    (source,) = sources["datasources"]
    assert sources["apiVersion"] == 1
    assert source["jsonData"] == {
        "version": "InfluxQL",
        "dbName": "$INFLUX_BUCKET",
        "httpMode": "POST",
        "timeInterval": "1s",
    }
    assert (source["basicAuth"], source["basicAuthUser"]) == (True, "$INFLUX_READ_USER")
    assert source["secureJsonData"] == {"basicAuthPassword": "$INFLUX_READ_PASSWORD"}
    assert (source["access"], source["url"], source["editable"]) == ("proxy", "$INFLUX_URL", False)
    (provider,) = yaml.safe_load((folder / "dashboards/infersiege.yaml").read_text(encoding="utf-8"))["providers"]
    assert provider["type"] == "file"
    assert provider["disableDeletion"] is True
    assert provider["allowUiUpdates"] is False
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_provisioning_expands_only_variables_that_are_meant() -> None:
    """Grafana takes any $X in these files for a variable of its environment; a literal one is $$."""
    for path in (GRAFANA / "provisioning").rglob("*.yaml"):
        text = "\n".join(
            line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
        )
        named = set(re.findall(r"(?<!\$)\$\{?(\w+)", text.replace("$$", "")))
        assert named <= {"INFLUX_URL", "INFLUX_BUCKET", "INFLUX_READ_USER", "INFLUX_READ_PASSWORD"}


def test_the_page_of_measurements_is_current() -> None:
    assert measurement_page.FILE.read_text(encoding="utf-8") == measurement_page.text(), (
        "run: python grafana/measurement_tables.py"
    )


def test_links_of_the_report_lead_to_these_dashboards() -> None:
    assert dict(stages.DASHBOARDS) == shell.TITLES


def test_the_document_shows_every_dashboard() -> None:
    document = (ROOT / "docs/grafana.md").read_text(encoding="utf-8")
    for uid, title in shell.TITLES.items():
        picture = f"grafana-{uid.removeprefix('infersiege-')}.png"
        assert title in document and f"({picture})" in document, uid
        assert 10_000 < (ROOT / "docs" / picture).stat().st_size < 200_000, picture
