"""How the load generator did, second by second, on the axis of the load: a line per worker, events as marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infersiege.metrics.client import HELD_MS, Second
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.limits import SHARE
from infersiege.records import EventRow
from infersiege.report.charts import PALETTE, RED, Chart, Figure, Series, legend_name, line_of, ms_of, short
from infersiege.report.details import Details, HealthSecond
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.numbers import SECOND_NS, number, printable, share

WORKERS_AT_MOST = 12
"""More workers than this are drawn as the worst and the middle one of each bin."""
MARKS_AT_MOST = 100

_EXPECTED_EVENTS = frozenset({"stage_started", "steady_started", "stage_ended", "load_ended", "epoch"})
"""Every run has them, and the phases show them: no marks."""

Values = Sequence[float | None]
_LEAST_AXIS = 0.02
_ROOM: Figure = {"rangemode": "tozero", "zeroline": False, "tickformat": ".1%"}


class HealthSeries:
    """Charts of the workers in bins of the report's time axis."""

    def __init__(self, details: Details, axis: Series, events: Sequence[EventRow] = ()) -> None:
        self.axis = axis
        self.say = axis.say
        self.details = details
        watched = details.clients.workers if details.clients is not None else ()
        self.workers = sorted({*details.health, *watched})
        self.marks = [event for event in events if event.kind not in _EXPECTED_EVENTS][:MARKS_AT_MOST]

    def charts(self) -> list[Chart]:
        """Those for which there is something to draw."""
        made = (self.lag(), self.cpu(), self.lateness(), self.slack(), self.coalesced())
        return [chart for chart in made if chart is not None]

    # ------------------------------------------------------------------------------------------ a value by bin

    def _own(self, worker: str, value: Callable[[HealthSecond], float], of: Callable[[list[float]], float]) -> Values:
        """Of the worker's own rows."""
        bins: list[list[float]] = [[] for _ in range(self.axis.bins.n)]
        for second, row in self.details.health.get(worker, {}).items():
            place = self.axis.bins.of(second)
            if place is not None:
                bins[place].append(value(row))
        return [short(of(values)) if values else None for values in bins]

    def _seconds(self, worker: str) -> Mapping[int, Second]:
        return {} if self.details.clients is None else self.details.clients.seconds(worker)

    def _ratio(self, worker: str, parts: Callable[[Second], tuple[int, int]]) -> Values:
        """Of what its turns tell: the first sum over the second."""
        bins = self.axis.bins
        rows = [(second, parts(row)) for second, row in self._seconds(worker).items()]
        tops, wholes = bins.sums((at, top) for at, (top, _) in rows), bins.sums((at, whole) for at, (_, whole) in rows)
        return [short(top / whole) if whole else None for top, whole in zip(tops, wholes, strict=True)]

    def _late(self, worker: str) -> Values:
        bins = [Histogram() for _ in range(self.axis.bins.n)]
        for second, row in self._seconds(worker).items():
            place = self.axis.bins.of(second)
            if place is not None:
                bins[place].merge(row.lateness)
        return [ms_of(part.percentile(0.99)) for part in bins]

    # --------------------------------------------------------------------------------------------------- charts

    def _chart(
        self,
        key: str,
        title: str,
        caption: str,
        unit: str,
        of: Callable[[str], Values],
        written: Callable[[float | None], str],
        limit: float | None = None,
        **more: object,
    ) -> Chart | None:
        lines = {worker: of(worker) for worker in self.workers}
        lines = {worker: values for worker, values in lines.items() if any(value is not None for value in values)}
        if not lines:
            return None
        worst = [_highest(column) for column in zip(*lines.values(), strict=True)]
        data = self._lines(lines, worst)
        top = _highest(worst)
        if limit is not None and top is not None and top > limit / 2:
            ends = [0, self.axis.bins.n * self.axis.bins.width]
            data.append(line_of(self.say("limit"), ends, [limit] * 2, RED, line={"dash": "dot", "width": 1.2}))
        data += self._events()
        who = next((worker for worker, values in lines.items() if top is not None and top in values), "")
        words = self.say("Highest of a bin: {top}, {worker}.", top=written(top), worker=printable(who))
        layout = self.axis.over_time(unit, **more)
        if "yaxis" in more and top is not None:
            # A line of zeros would be drawn on an axis up to 100 %.
            layout["yaxis"]["range"] = [0, short(max(1.1 * top, _LEAST_AXIS))]
        return Chart(key=key, title=title, caption=caption, words=words, figure={"data": data, "layout": layout})

    def _lines(self, lines: Mapping[str, Values], worst: Values) -> list[Figure]:
        x = self.axis.x
        if len(lines) > WORKERS_AT_MOST:
            middle = [_middle(column) for column in zip(*lines.values(), strict=True)]
            return [
                line_of(self.say("worst of {n}", n=len(lines)), x, worst, PALETTE[1]),
                line_of(self.say("middle one"), x, middle, PALETTE[0]),
            ]
        return [
            line_of(legend_name(worker), x, values, PALETTE[place % len(PALETTE)], mode="lines+markers",
                    marker={"size": 3}, line={"dash": "solid" if place < len(PALETTE) else "dash"})
            for place, (worker, values) in enumerate(lines.items())
        ]  # fmt: skip

    def _events(self) -> list[Figure]:
        """A mark on the axis for each event that not every run has."""
        if not self.marks:
            return []
        labels = [f"{self.say(EVENT_WORDS.get(one.kind, one.kind))}: {one.worker or one.detail}" for one in self.marks]
        return [
            {
                "type": "scatter", "mode": "markers", "name": self.say("events"),
                "x": [short((one.at_ns - self.axis.start_ns) / SECOND_NS) for one in self.marks],
                "y": [0] * len(self.marks), "text": [legend_name(label[:120]) for label in labels],
                "marker": {"color": RED, "symbol": "triangle-up", "size": 9}, "cliponaxis": False,
                "hovertemplate": "%{text}<extra></extra>",
            }
        ]  # fmt: skip

    def lag(self) -> Chart | None:
        """Longest stall of the event loop."""
        say = self.say
        return self._chart(
            "client-lag",
            say("Event loop held up"),
            say(
                "Longest time in each bin in which a worker's event loop did not run. What is sent is late by as much."
            ),
            "ms",
            lambda worker: self._own(worker, lambda row: row.hub_lag_max_ns / 1e6, max),
            lambda top: f"{number(top)} ms",
            HELD_MS,
        )

    def cpu(self) -> Chart | None:
        say = self.say
        return self._chart(
            "client-cpu",
            say("CPU of the workers"),
            say("Mean of each bin, of one core: a worker can use no more than one."),
            say("of one core"),
            lambda worker: self._own(worker, lambda row: row.cpu_share, lambda values: sum(values) / len(values)),
            share,
            1.0,
            yaxis={**_ROOM, "title": {"text": say("of one core")}, "tickformat": ".0%"},
        )

    def lateness(self) -> Chart | None:
        say = self.say
        return self._chart(
            "client-lateness",
            say("Lateness p99"),
            say("How late turns began that were due in each bin, by worker: the load generator's own fault."),
            "ms",
            self._late,
            lambda top: f"{number(top)} ms",
        )

    def slack(self) -> Chart | None:
        say = self.say
        return self._chart(
            "client-slack",
            say("First tokens in doubt"),
            say("Share of the turns whose first token may have come more than 1 ms before its stamp. Limit: 1 %."),
            say("share"),
            lambda worker: self._ratio(worker, lambda row: (row.wide_slack, row.first_tokens)),
            share,
            SHARE,
            yaxis={**_ROOM, "title": {"text": say("share")}},
        )

    def coalesced(self) -> Chart | None:
        say = self.say
        return self._chart(
            "client-coalesced",
            say("Chunks that shared a read"),
            say("Share of the chunks that came in one read with another and so give no gap: a slow reader, or a server "
                "that sends several at once."),
            say("share"),
            lambda worker: self._ratio(worker, lambda row: (row.coalesced, row.chunks)),
            share,
            yaxis={**_ROOM, "title": {"text": say("share")}},
        )  # fmt: skip


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _middle(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
