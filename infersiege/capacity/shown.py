"""A search and a sweep as tables, Markdown and a page. Pure functions of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from infersiege.capacity.hunt import conclusion, knee_line, workers_lines
from infersiege.capacity.search import Outcome
from infersiege.capacity.state import CapacityState, Probe, SweepState
from infersiege.capacity.sweeping import asked_for
from infersiege.gate import rule_name
from infersiege.metrics.definitions import METRICS
from infersiege.plan import Slo
from infersiege.report.capacity_page import CurvePage, Limit
from infersiege.report.fitting import fitted
from infersiege.report.load_curve import LoadPoint
from infersiege.report.numbers import ABSENT, count, milliseconds, number, printable, share

GIB = 2**30


class Column(NamedTuple):
    title: str
    unit: str
    field: str
    """Of LoadPoint."""
    how: Callable[[float | None], str]


def _gib(value: float | None) -> str:
    return ABSENT if value is None else number(value / GIB)


def _money(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}" if value >= 0.995 else f"{value:.2g}"


PUBLISHED: Sequence[Column] = (
    Column("TTFT mean", "ms", "ttft_mean_ms", number),
    Column("TTFT p99", "ms", "ttft_p99_ms", number),
    Column("TPOT mean", "ms", "tpot_mean_ms", number),
    Column("output", "tok/s", "throughput", number),
    Column("peak GPU memory", "GiB", "gpu_memory_peak_bytes", _gib),
    Column("cache", "share", "cache_share", share),
    Column("cost", "per 1M output tokens", "cost_per_million_output_tokens", _money),
    Column("errors", "share", "error_share", share),
)
"""The table that people publish."""

CURVE: Sequence[Column] = (
    Column("TTFT p50", "ms", "ttft_p50_ms", number),
    Column("TTFT p99", "ms", "ttft_p99_ms", number),
    Column("TPOT p50", "ms", "tpot_p50_ms", number),
    Column("E2E p99", "ms", "e2e_p99_ms", number),
    Column("output", "tok/s", "throughput", number),
    Column("goodput", "turns/s", "goodput", number),
    Column("errors", "share", "error_share", share),
    Column("GPU mem", "GiB", "gpu_memory_peak_bytes", _gib),
    Column("KV use", "peak", "kv_use_peak", share),
)


def points_of(probes: Sequence[Probe], channel: str | None = None) -> list[LoadPoint]:
    return [probe.point for probe in probes if probe.point is not None and probe.channel == channel]


def curve_tables(state: CapacityState, width: int) -> Iterator[Table]:
    """One row for each run, by load; columns that no run knows are left out."""
    points = sorted(points_of(state.probes), key=lambda point: point.load)
    columns = _known(CURVE, points)
    headers = [state.unit, "verdict", "turns\nok", *(f"{one.title}\n{one.unit}" for one in columns)]
    rows = [
        [
            Text(_load(point.load, state.knee is not None and point.load == state.knee.load)),
            Text(point.verdict or ABSENT, style={"pass": "green", "fail": "red"}.get(point.verdict or "", "yellow")),
            Text(count(point.turns)),
            *(Text(one.how(getattr(point, one.field))) for one in columns),
        ]
        for point in points
    ]
    yield from fitted("Load and what came of it", headers, rows, width) if rows else ()


def _load(load: float, at_knee: bool) -> str:
    return f"{load:g}{' knee' if at_knee else ''}"


def _known(columns: Sequence[Column], points: Sequence[LoadPoint]) -> list[Column]:
    return [one for one in columns if any(getattr(point, one.field) is not None for point in points)]


# ------------------------------------------------------------------------------------------------------- a sweep


def _sweep_cells(state: SweepState) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the published table: every channel and load, those without a run too."""
    headers = ["engine", "channel", state.unit, *(f"{one.title} ({one.unit})" for one in PUBLISHED), "note"]
    rows = []
    for probe in asked_for(state):
        engine = printable(state.engines.get(probe.channel or "", ABSENT))
        figures = (ABSENT if probe.point is None else one.how(getattr(probe.point, one.field)) for one in PUBLISHED)
        rows.append([engine, printable(probe.channel or "as planned"), f"{probe.load:g}", *figures, _note(probe)])
    return headers, rows


def _note(probe: Probe) -> str:
    """What must be read with the row."""
    if not probe.ended:
        return "not ended"
    notes = ["EMULATED"] if probe.emulated else []
    if probe.point is None:
        notes.append("no run")
    elif probe.judged is not None and probe.judged.value != "pass":
        notes.append(probe.judged.value)
    notes += [f"{len(probe.warnings)} warning{'s' if len(probe.warnings) > 1 else ''}"] if probe.warnings else []
    notes += ["started dirty"] if probe.idle is not None and probe.idle.dirty else []
    return ", ".join(notes)


def sweep_tables(state: SweepState, width: int) -> Iterator[Table]:
    headers, rows = _sweep_cells(state)
    short = [header.replace(" (", "\n(") for header in headers]
    yield from fitted("Sweep", short, [[Text(cell) for cell in row] for row in rows], width) if rows else ()


def sweep_markdown(state: SweepState) -> str:
    """The same as a table of Markdown, whatever names hold."""
    headers, rows = _sweep_cells(state)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    numeric = {2 + place for place in range(len(PUBLISHED) + 1)}
    rule = "|" + "|".join("---:" if place in numeric else "---" for place in range(len(headers))) + "|"
    return "\n".join([line(headers), rule, *map(line, rows)]) + "\n"


# -------------------------------------------------------------------------------------------------------- the page


_BANNERS = {
    Outcome.FOUND: "pass",
    Outcome.AT_LEAST: "pass",
    Outcome.BELOW: "fail",
    Outcome.INVALID: "invalid",
    Outcome.NO_DATA: "nodata",
    Outcome.UNCONFIRMED: "nodata",
}


def capacity_page(state: CapacityState, slos: Sequence[Slo]) -> CurvePage:
    found = state.finding
    probes = [probe for probe in state.probes if probe.point is not None]
    return CurvePage(
        kind="infersiege capacity",
        name=state.name,
        unit=state.unit,
        curves={"": points_of(state.probes)},
        runs={"": [probe.directory for probe in probes]},
        lines=[*conclusion(state), *state.notes],
        banner="none" if found is None else _BANNERS[found.outcome],
        passes=None if found is None else found.passes,
        fails=None if found is None else found.fails,
        knees={} if state.knee is None else {"": state.knee.load},
        limits=limits_of(slos),
        emulated=any(probe.emulated for probe in state.probes),
    )


def knee_lines(state: SweepState) -> list[str]:
    """One for each channel."""
    names = state.channels or ("",)
    return [f"{name}: " * bool(name) + knee_line(state.knees.get(name), state.unit) for name in names]


def sweep_lines(state: SweepState) -> list[str]:
    """What must be read with the table, on the terminal and the page."""
    probes = asked_for(state)
    others = [probe.directory for probe in state.probes if probe.point is not None and probe not in probes]
    more = [f"also there, and not asked for now: {', '.join(others)}"] if others else []
    return [*knee_lines(state), *workers_lines(probes), *more]


def sweep_page(state: SweepState) -> CurvePage:
    names = state.channels or ("",)
    wanted = {name: name or None for name in names}
    probes = asked_for(state)
    done = [probe for probe in probes if probe.point is not None]
    return CurvePage(
        kind="infersiege sweep",
        name=state.name,
        unit=state.unit,
        curves={name: points_of(probes, channel) for name, channel in wanted.items()},
        runs={name: [one.directory for one in done if one.channel == channel] for name, channel in wanted.items()},
        lines=[
            f"{len(done)} of {len(names) * len(state.loads)} runs",
            *sweep_lines(state),
            *(f"{probe.directory}: {note}" for probe in probes if (note := _note(probe))),
            *(f"{probe.directory}: warning: {text}" for probe in probes for text in probe.warnings),
        ],
        knees={name: knee.load for name, knee in state.knees.items()},
        emulated=any(probe.emulated for probe in probes),
    )


def limits_of(slos: Sequence[Slo]) -> list[Limit]:
    """Rules on what a chart shows, of the whole run."""
    found = []
    for slo in slos:
        if slo.at_most is None or (slo.scenario, slo.channel, slo.stage) != (None, None, None):
            continue
        unit = METRICS[slo.metric].unit
        field = f"{slo.metric}_{slo.stat}_ms" if unit == "ms" else slo.metric
        value = milliseconds(slo.at_most, unit) if unit == "ms" else slo.at_most
        if field in LoadPoint.__struct_fields__ and value is not None:
            found.append(Limit(field, value, rule_name(slo)))
    return found
