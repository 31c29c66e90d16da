"""Figures of the report as plain plotly dicts: aggregated, rounded, strict JSON; colours of the page come from its CSS.

Every chart also has its message in words (`Chart.words`), for screen readers and for pages without JavaScript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec

from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.merging import add_counts
from infersiege.records import WindowRow
from infersiege.report.collect import Collected
from infersiege.report.numbers import SECOND_NS, count, number, printable
from infersiege.report.words import ENGLISH, Words
from infersiege.rundir import StageFacts

Figure = dict[str, Any]

PALETTE: Sequence[str] = ("#4c8fd6", "#e0913d", "#2fa58d", "#9a78d0", "#d9647c", "#8a9a3b", "#4aa7c4", "#b5835a")
"""Told apart by people with colour blindness, and readable on white and on near-black."""
RED = "#d9534f"

BINS_AT_MOST = 135
_NICE_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
P95_FLOOR = 20
"""Fewer turns in a bin give no p95 over time."""
_CURVE_POINTS = 240


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the page. `figure` None: nothing to draw, `words` says why."""

    key: str
    """Of the element in the page."""
    title: str
    caption: str
    words: str
    figure: Figure | None
    wide: bool = False


class Bins:
    """The time axis of all charts: equal bins of whole seconds, counted from the start of the run."""

    def __init__(self, start_second: int, end_second: int) -> None:
        """The seconds from `start_second` up to and with `end_second`."""
        span = max(end_second - start_second + 1, 1)
        self.width = next((width for width in _NICE_SECONDS if span <= width * BINS_AT_MOST), span // BINS_AT_MOST + 1)
        self.start = start_second
        self.n = (span - 1) // self.width + 1

    def of(self, second: int) -> int | None:
        """Index of the bin; None outside of the axis."""
        index = (second - self.start) // self.width
        return index if 0 <= index < self.n else None

    @property
    def middles(self) -> list[float]:
        """Seconds from the start of the run."""
        return [(index + 0.5) * self.width for index in range(self.n)]

    def sums(self, pairs: Iterable[tuple[int, float]]) -> list[float]:
        """Sum by bin of (second, value)."""
        made = [0.0] * self.n
        for second, value in pairs:
            index = self.of(second)
            if index is not None:
                made[index] += value
        return made

    def rates(self, pairs: Iterable[tuple[int, float]]) -> list[float]:
        """Per second."""
        return [short(value / self.width) for value in self.sums(pairs)]

    def means(self, gauge: Mapping[int, int]) -> list[float | None]:
        """Mean over the bin's seconds that have a value; None without one."""
        values, seconds = self.sums(gauge.items()), self.sums((second, 1) for second in gauge)
        return [short(value / n) if n else None for value, n in zip(values, seconds, strict=True)]

    def histograms(self, pairs: Iterable[tuple[int, Mapping[int, int]]]) -> list[Histogram]:
        """One per bin, merged from (second, sparse histogram)."""
        made: list[dict[int, int]] = [{} for _ in range(self.n)]
        for second, sparse in pairs:
            index = self.of(second)
            if index is not None and sparse:
                add_counts(made[index], sparse)
        return [Histogram.from_sparse(counts) for counts in made]


class Ranged(NamedTuple):
    """A bar and the range that its value is in: shares, or changes as such."""

    label: str
    value: float
    low: float | None
    high: float | None


def ranged_bars(series: str, bars: Sequence[Ranged], y_title: str, *, color: str, **axes: Figure) -> Figure:
    """A bar in percent for each, with its range; an end that is not known is not drawn. `axes`: of `layout_of`."""
    # Rounded: what a chart can show.
    above = [round(0.0 if bar.high is None else 100 * (bar.high - bar.value), 3) for bar in bars]
    below = [round(0.0 if bar.low is None else 100 * (bar.value - bar.low), 3) for bar in bars]
    drawn = {
        "type": "bar",
        "name": series,
        "x": [legend_name(bar.label) for bar in bars],
        "y": [round(100 * bar.value, 3) for bar in bars],
        "marker": {"color": color},
        # In a colour that is seen on a bar and on a page of either theme.
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "color": "#d08a2e",
            "thickness": 2.2,
            "width": 7,
        },
    }
    # Few bars on a wide chart are no wider than many: share of the axis that stays free.
    gap = round(max(0.25, 1.0 - 0.08 * len(bars)), 2)
    return {"data": [drawn], "layout": layout_of(y_title, showlegend=False, bargap=gap, **axes)}


def legend_name(label: str) -> str:
    """A name for a legend: plotly takes tags and entities in labels, names of a plan are to be read as they are."""
    return escape(printable(label), quote=False)


def short(value: float) -> float:
    """Four significant digits: what a chart can show."""
    return float(f"{value:.4g}")


def ms_of(ns: float | None) -> float | None:
    return None if ns is None else short(ns / 1e6)


# ------------------------------------------------------------------------------------------------------ over time


def layout_of(y_title: str, **more: Any) -> Figure:
    return {
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "height": 300,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "xaxis": {"title": {"text": "seconds since start"}, "zeroline": False},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero", "zeroline": False},
        **more,
    }


def line_of(name: str, x: Sequence[float], y: Sequence[float | None], color: str, **more: Any) -> Figure:
    line = {"color": color, "width": 1.8, **more.pop("line", {})}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": line,
        "connectgaps": False,
        **more,
    }


def vertical(x: float, dash: str) -> Figure:
    """A line over the whole height at `x`."""
    line = {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": dash}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def phase_shapes(stages: Sequence[StageFacts], start_ns: int) -> list[Figure]:
    """Grey where figures are not counted: each stage's warm-up, and a line at each end of load (drain begins)."""
    shapes: list[Figure] = []
    for stage in stages:
        begin = (stage.started_ns - start_ns) / SECOND_NS
        steady = (stage.steady_started_ns - start_ns) / SECOND_NS
        end = (stage.steady_ended_ns - start_ns) / SECOND_NS
        if steady > begin:
            shapes.append(_band(begin, steady))
        shapes.append(vertical(end, "dot"))
    return shapes


def _band(begin: float, end: float) -> Figure:
    fill = "rgba(128,128,128,0.14)"
    where = {"xref": "x", "yref": "paper", "x0": begin, "x1": end, "y0": 0, "y1": 1}
    return {"type": "rect", **where, "fillcolor": fill, "line": {"width": 0}, "layer": "below"}


class Series:
    """Everything over time, from windows.jsonl's rows."""

    def __init__(
        self,
        windows: Sequence[WindowRow],
        collected: Collected,
        stages: Sequence[StageFacts],
        start_ns: int,
        say: Words = ENGLISH,
    ) -> None:
        self.say = say
        self.start_ns = start_ns
        seconds = [row.second for row in windows] + list(collected.tokens_by_second)
        start = start_ns // SECOND_NS
        self.bins = Bins(start, max(seconds, default=start))
        self.windows = windows
        self.collected = collected
        self.shapes = phase_shapes(stages, start_ns)
        self.x = self.bins.middles
        self._until = self.bins.n * self.bins.width

    def over_time(self, y_title: str, **more: Any) -> Figure:
        """Layout of a chart on the time axis that all of them share, with the run's phases: they zoom together."""
        made = layout_of(y_title, shapes=self.shapes, meta="time", **more)
        made["xaxis"]["range"] = [0, self._until]
        made["xaxis"]["title"]["text"] = self.say("seconds since start")
        return made

    def _count(self, what: Callable[[WindowRow], int]) -> list[float]:
        return self.bins.rates((row.second, what(row)) for row in self.windows)

    def _gauge(self, what: Callable[[WindowRow], int]) -> list[float | None]:
        by_second: dict[int, int] = {}
        for row in self.windows:
            by_second[row.second] = by_second.get(row.second, 0) + what(row)
        return self.bins.means(by_second)

    def load(self) -> Chart:
        """Due, sent, finished and failed turns per second."""
        say = self.say
        due, sent = self._count(lambda row: row.due), self._count(lambda row: row.sent)
        done, failed = self._count(lambda row: row.ok), self._count(lambda row: row.failed)
        data = [
            line_of(say("due"), self.x, due, PALETTE[1], line={"dash": "dot"}),
            line_of(say("sent"), self.x, sent, PALETTE[0]),
            line_of(say("finished ok"), self.x, done, PALETTE[2]),
        ]
        if any(failed):
            data.append(line_of(say("failed"), self.x, failed, RED))
        return Chart(
            key="load",
            title=say("Asked and delivered load"),
            caption=say(
                "Turns per second, in bins of {width} s. Where sent leaves due, the load was not what was asked for.",
                width=self.bins.width,
            ),
            words=say(
                "Highest rates: due {due}, sent {sent}, finished {done} turns/s.",
                due=number(max(due, default=0)),
                sent=number(max(sent, default=0)),
                done=number(max(done, default=0)),
            ),
            figure={"data": data, "layout": self.over_time("turns/s")},
            wide=True,
        )

    def latency(self, name: str) -> Chart:
        """p50, p95 and maximum of `ttft`, `tpot` or `e2e` by the second in which they were measured, p50 from due."""
        say = self.say
        parts = self.bins.histograms((row.second, getattr(row, name)) for row in self.windows)
        p50 = [ms_of(part.percentile(0.50)) for part in parts]
        p95 = [ms_of(part.percentile(0.95)) if part.n >= P95_FLOOR else None for part in parts]
        top = [ms_of(part.max) for part in parts]
        title = METRICS[name].title
        data = [
            line_of(say("max"), self.x, top, PALETTE[1], line={"width": 1, "dash": "dot"}),
            line_of("p95", self.x, p95, PALETTE[3], mode="lines+markers", marker={"size": 3}),
            line_of("p50", self.x, p50, PALETTE[0], mode="lines+markers", marker={"size": 3}),
        ]
        if name != "tpot":
            from_due = self.bins.histograms((row.second, getattr(row, f"{name}_from_due")) for row in self.windows)
            due = [ms_of(part.percentile(0.50)) for part in from_due]
            data.append(line_of(say("p50 from due"), self.x, due, PALETTE[2], line={"width": 1, "dash": "dash"}))
        worst = max((value for value in p50 if value is not None), default=None)
        return Chart(
            key=f"{name}-time",
            title=say("{metric} over time", metric=title),
            caption=say(
                "Of the turns in each bin of {width} s; p95 where a bin has {floor} turns or more.",
                width=self.bins.width,
                floor=P95_FLOOR,
            ),
            words=say("No turn gave one.")
            if worst is None
            else say("Highest median of a bin: {worst} ms.", worst=number(worst)),
            figure=None if worst is None else {"data": data, "layout": self.over_time("ms")},
        )

    def throughput(self) -> Chart:
        say = self.say
        tokens = self.bins.rates(self.collected.tokens_by_second.items())
        fill = {"fill": "tozeroy", "fillcolor": "rgba(47,165,141,0.15)"}
        data = [line_of(say("output tokens"), self.x, tokens, PALETTE[2], **fill)]
        known = bool(self.collected.tokens_by_second)
        return Chart(
            key="throughput",
            title=say("Throughput over time"),
            caption=say(
                "Output tokens by the second in which they arrived; a turn's tokens are spread over its chunks."
            ),
            words=say("Highest: {top} tokens/s.", top=number(max(tokens)))
            if known
            else say("Token counts are not known."),
            figure={"data": data, "layout": self.over_time("tokens/s")} if known else None,
        )

    def in_flight(self) -> Chart:
        say = self.say
        flying, users = self._gauge(lambda row: row.in_flight), self._gauge(lambda row: row.users)
        data = [
            line_of(say("sessions alive"), self.x, users, PALETTE[1], line={"dash": "dot"}),
            line_of(say("turns in flight"), self.x, flying, PALETTE[0]),
        ]
        known = [value for value in flying if value is not None]
        return Chart(
            key="in-flight",
            title=say("In flight"),
            caption=say("Sessions alive include think and tool time; turns in flight are what the server sees."),
            words=say("Highest mean of a bin: {top} turns in flight.", top=number(max(known)))
            if known
            else say("Nothing was in flight."),
            figure={"data": data, "layout": self.over_time(say("count"))} if known else None,
        )

    def errors(self) -> Chart:
        """Failed turns by class, stacked."""
        say = self.say
        classes = sorted(self.collected.errors_by_second, key=lambda name: -self.collected.errors[name])
        data: list[Figure] = []
        for place, name in enumerate(classes):
            y = self.bins.sums(self.collected.errors_by_second[name].items())
            color = RED if place == 0 else PALETTE[place % len(PALETTE)]
            data.append({"type": "bar", "name": legend_name(name), "x": self.x, "y": y, "marker": {"color": color}})
        words = ", ".join(f"{name} {count(self.collected.errors[name])}" for name in classes)
        y_title = say("turns in {width} s", width=self.bins.width)
        layout = self.over_time(y_title, barmode="stack", bargap=0)
        return Chart(
            key="errors-time",
            title=say("Errors over time"),
            caption=say("Failed turns by the second in which they ended, all phases."),
            words=words or say("No turn failed."),
            figure={"data": data, "layout": layout} if data else None,
            wide=True,
        )
