"""GPUs and engines over time, on the axis of the load: a line per card, holes where nothing was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from infersiege_agents.engine_histograms import merge, parse, percentile

from infersiege.metrics.histogram import Histogram
from infersiege.report.charts import PALETTE, RED, Chart, Figure, Series, legend_name, line_of, ms_of, short
from infersiege.report.numbers import SECOND_NS, count, number, share
from infersiege.resources import Series as Source
from infersiege.resources import Watched
from infersiege.resources.gpus import cards, power_column
from infersiege.resources.series import Floats, Instants
from infersiege.resources.watched import engine_names

LINES_AT_MOST = 16
"""More lines than this are drawn as a band from the least to the greatest, with their mean."""

GIB = 1 << 30

Values = Callable[[Source], Floats]


class WatchedSeries:
    """Charts of everything that was watched, in bins of the report's time axis."""

    def __init__(self, watched: Watched, axis: Series) -> None:
        self.watched = watched
        self.axis = axis
        self.say = axis.say
        bins = axis.bins
        self.edges_ns: Instants = (np.arange(bins.n + 1, dtype=np.int64) * bins.width + bins.start) * SECOND_NS
        self.gpus = tuple(zip(gpu_names(watched.gpus), watched.gpus, strict=True))
        parents = {card.own for card in cards(watched.gpus) if card.own is not None and card.slices}
        self.units = tuple((name, one) for name, one in self.gpus if one not in parents)
        """What work runs on: cards without slices, and slices."""
        self.boards = tuple((name, one) for name, one in self.gpus if one.tags.get("mig_parent", "none") == "none")
        """What draws power."""

    def charts(self) -> list[Chart]:
        """Those for which there is something to draw."""
        made = (
            self.activity(),
            self.parts(),
            self.power(),
            self.memory(),
            self.requests(),
            self.kv_cache(),
            self.preemptions(),
            self.server_time("ttft"),
            self.server_time("itl"),
        )
        return [chart for chart in made if chart is not None]

    # ------------------------------------------------------------------------------------------------------ lines

    def _lines(self, sources: Sequence[tuple[str, Source]], values: Values) -> tuple[list[Figure], list[Floats]]:
        """A line per source that has such values, or a band of all; and their binned values."""
        found = [(name, one.bin_means(values(one), self.edges_ns)) for name, one in sources]
        found = [(name, binned) for name, binned in found if np.isfinite(binned).any()]
        rows = [binned for _, binned in found]
        if len(found) <= LINES_AT_MOST:
            lines = [
                line_of(legend_name(name), self.axis.x, shown(binned), PALETTE[place % len(PALETTE)],
                        line={"dash": "solid" if place < len(PALETTE) else "dash"})
                for place, (name, binned) in enumerate(found)
            ]  # fmt: skip
            return lines, rows
        return self._band("{what}", rows, 0), rows

    def _band(self, of: str, rows: Sequence[Floats], place: int) -> list[Figure]:
        """Least, greatest and mean of many lines, for which a chart has no room; `of` has a field `what` for these."""
        table = np.vstack(rows)
        empty = ~np.isfinite(table).any(axis=0)
        low, high = np.where(np.isfinite(table), table, np.inf).min(axis=0), np.fmax.reduce(table, axis=0)
        n = np.isfinite(table).sum(axis=0)
        mean = np.where(empty, np.nan, np.nansum(table, axis=0) / np.maximum(n, 1))
        low = np.where(empty, np.nan, low)
        edge = PALETTE[place % len(PALETTE)]
        fill = f"rgba({', '.join(str(int(edge[at : at + 2], 16)) for at in (1, 3, 5))},0.18)"
        least, greatest = of.format(what=self.say("least")), of.format(what=self.say("greatest"))
        middle = of.format(what=self.say("mean of {n}", n=len(rows)))
        return [
            line_of(least, self.axis.x, shown(low), edge, line={"width": 0.8}),
            line_of(greatest, self.axis.x, shown(high), edge, line={"width": 0.8}, fill="tonexty", fillcolor=fill),
            line_of(middle, self.axis.x, shown(mean), PALETTE[(place + 1) % len(PALETTE)]),
        ]

    def _holes(self, sources: Iterable[tuple[str, Source]]) -> Iterator[Figure]:
        """A red mark on the axis in each bin in which a source told that it could not be read."""
        for name, one in sources:
            at = sorted(
                {index for at_ns, _ in one.errors if (index := self.axis.bins.of(at_ns // SECOND_NS)) is not None}
            )
            if at:
                words = Counter(text for _, text in one.errors).most_common(1)[0][0]
                yield {
                    "type": "scatter", "mode": "markers",
                    "name": legend_name(self.say("{name} not readable", name=name)),
                    "x": [self.axis.x[index] for index in at], "y": [0] * len(at),
                    "marker": {"color": RED, "symbol": "x", "size": 7}, "cliponaxis": False,
                    "hovertemplate": legend_name(words),
                }  # fmt: skip

    def _chart(
        self, key: str, title: str, caption: str, unit: str, data: list[Figure], words: str, **more: object
    ) -> Chart | None:
        if not data:
            return None
        layout = self.axis.over_time(unit, **more)
        return Chart(key=key, title=title, caption=caption, words=words, figure={"data": data, "layout": layout})

    # -------------------------------------------------------------------------------------------------------- GPU

    def activity(self) -> Chart | None:
        """SM activity by card; NVML's utilisation where no card has GPM, and then under its own name."""
        lines, rows = self._lines(self.units, lambda one: one.column("sm_active"))
        title, caption = self.say("SM active"), self.say("Share of time in which an SM had a warp to run, by GPU.")
        if not lines:
            lines, rows = self._lines(self.units, lambda one: one.column("utilization_mean"))
            title = self.say("GPU utilisation: some kernel ran")
            caption = self.say(
                "Share of time in which any kernel ran. It is near 100 % with one user already and does not say how "
                "full a GPU is; no limit rests on it. These GPUs don't tell SM activity (GPM: Hopper and later)."
            )
        words = self.say("Highest mean of a bin: {top}.", top=share(_highest(rows))) + self._lost_words()
        data = [*lines, *(self._holes(self.gpus) if lines else ())]
        return self._chart("gpu-activity", title, caption, self.say("share of time"), data, words, yaxis=self._shares())

    def _lost_words(self) -> str:
        lost = [name for name, one in self.gpus if one.errors]
        return " " + self.say("Not readable for some of the time: {lost}.", lost=", ".join(lost)) if lost else ""

    def _shares(self) -> Figure:
        """The axis of a share."""
        return {
            "title": {"text": self.say("share")}, "rangemode": "tozero", "zeroline": False, "tickformat": ".0%",
            "range": [0, 1.05],
        }  # fmt: skip

    def parts(self) -> Chart | None:
        """Tensor cores and DRAM bandwidth, mean over the cards that tell."""
        data, words = [], []
        parts = (("dram_active", self.say("DRAM bandwidth")), ("tensor_active", self.say("tensor cores")))
        for place, (name, label) in enumerate(parts):
            rows = [one.bin_means(one.column(name), self.edges_ns) for _, one in self.units if one.has(name)]
            if rows:
                table = np.vstack(rows)
                n = np.isfinite(table).sum(axis=0)
                mean = np.where(n > 0, np.nansum(table, axis=0) / np.maximum(n, 1), np.nan)
                data.append(line_of(label, self.axis.x, shown(mean), PALETTE[place]))
                words.append(f"{label} {share(_highest([mean]))}")
        return self._chart(
            "gpu-parts",
            self.say("DRAM bandwidth and tensor cores"),
            self.say(
                "Share of DRAM bandwidth in use, and of time in which tensor cores were busy; mean over the GPUs. "
                "Decoding is limited by the first, prefill by the second."
            ),
            self.say("share"),
            data,
            self.say("Highest means of a bin: {tops}.", tops=", ".join(words)),
            yaxis=self._shares(),
        )

    def power(self) -> Chart | None:
        lines, rows = self._lines(self.boards, lambda one: one.column(power_column(one)))
        limits = [one.peak_of("power_limit_w") for _, one in self.boards]
        limit = max((one for one in limits if one is not None), default=None)
        data = list(lines)
        if lines and limit is not None:
            ends = [0, self.axis.bins.n * self.axis.bins.width]
            data.append(line_of(self.say("limit"), ends, [short(limit)] * 2, RED, line={"dash": "dot", "width": 1.2}))
        told = self.say(", limit {limit} W", limit=number(limit)) if limit is not None else ""
        return self._chart(
            "gpu-power",
            self.say("Power"),
            self.say("By GPU. A GPU at its limit lowers its clocks."),
            "W",
            data,
            self.say("Highest mean of a bin: {top} W{limit}.", top=number(_highest(rows)), limit=told),
        )

    def memory(self) -> Chart | None:
        lines, rows = self._lines(self.units, lambda one: one.column("memory_used_mean_bytes") / GIB)
        totals = [one.peak_of("memory_total_bytes") for _, one in self.units]
        known = {total / GIB for total in totals if total is not None}
        data = list(lines)
        if lines and len(known) == 1:
            ends = [0, self.axis.bins.n * self.axis.bins.width]
            data.append(
                line_of(
                    self.say("all there is"), ends, [short(max(known))] * 2, RED, line={"dash": "dot", "width": 1.2}
                )
            )
        return self._chart(
            "gpu-memory",
            self.say("GPU memory"),
            self.say("In use, by GPU. Engines take most of it at their start: how full the KV cache is stands beside."),
            "GiB",
            data,
            self.say("Highest mean of a bin: {top} GiB.", top=number(_highest(rows))),
        )

    # ----------------------------------------------------------------------------------------------------- engine

    def _engines(self) -> list[tuple[str, Source]]:
        return list(zip(engine_names(self.watched.engines), self.watched.engines, strict=True))

    def requests(self) -> Chart | None:
        """Requests that run and that wait in the engine, by engine; of many engines as bands."""
        data: list[Figure] = []
        tops = {"running": 0.0, "waiting": 0.0}
        engines = self._engines()
        kinds = (("running", "solid", self.say("running")), ("waiting", "dot", self.say("waiting")))
        for first, (what, dash, said) in enumerate(kinds):
            found = [(name, one.bin_means(one.column(what), self.edges_ns)) for name, one in engines]
            found = [(name, binned) for name, binned in found if np.isfinite(binned).any()]
            tops[what] = _highest([binned for _, binned in found]) or 0.0
            if len(found) > LINES_AT_MOST // 2:
                data += self._band(f"{said}, {{what}}", [binned for _, binned in found], 2 * first)
                continue
            for place, (name, binned) in enumerate(found):
                label = said if len(engines) == 1 else f"{name} {said}"
                color = PALETTE[(2 * place + first) % len(PALETTE)]
                data.append(line_of(legend_name(label), self.axis.x, shown(binned), color, line={"dash": dash}))
        if data:
            data += self._holes(engines)
        return self._chart(
            "engine-requests",
            self.say("Running and waiting in the engine"),
            self.say("As the engine itself counts them. What waits has no tokens yet: it is TTFT for its users."),
            self.say("requests"),
            data,
            self.say(
                "Highest means of a bin: {running} running, {waiting} waiting.",
                running=number(tops["running"]),
                waiting=number(tops["waiting"]),
            ),
        )

    def kv_cache(self) -> Chart | None:
        lines, rows = self._lines(self._engines(), lambda one: one.column("kv_use"))
        return self._chart(
            "engine-kv",
            self.say("KV cache"),
            self.say("Share in use. When it is full, requests wait, or are thrown out and computed again."),
            self.say("share"),
            lines,
            self.say("Highest mean of a bin: {top}.", top=share(_highest(rows))),
            yaxis=self._shares(),
        )

    def preemptions(self) -> Chart | None:
        """Only where there were some."""
        sums = [one.bin_sums(one.column("preemptions"), self.edges_ns) for _, one in self._engines()]
        total = np.sum(sums, axis=0) if sums else np.zeros(0)
        if not total.size or not total.sum() > 0:
            return None
        y = [short(float(value)) for value in total]
        bar = {"type": "bar", "name": self.say("preempted"), "x": self.axis.x, "y": y, "marker": {"color": RED}}
        return self._chart(
            "engine-preemptions",
            self.say("Preemptions"),
            self.say("Requests that the engine threw out of its KV cache, to compute them again."),
            self.say("requests in {width} s", width=self.axis.bins.width),
            [bar],
            self.say("{n} in all.", n=count(round(float(total.sum())))),
            bargap=0,
        )

    def server_time(self, name: str) -> Chart | None:
        """The engine's own TTFT or ITL beside the client's: the difference is network, proxies and queues before it."""
        server = self._server_means(name)
        if server is None:
            return None
        say = self.say
        data = [line_of(say("engine, mean"), self.axis.x, shown(server), PALETTE[2])]
        if name == "ttft":
            data.append(line_of(say("engine, p95"), self.axis.x, self._server_p95(), PALETTE[2], line={"dash": "dot"}))
        of = "ttft" if name == "ttft" else "tpot"
        parts = self.axis.bins.histograms((row.second, getattr(row, of)) for row in self.axis.windows)
        client = [ms_of(part.mean) for part in parts]
        own = say("client, mean") if name == "ttft" else say("client, mean TPOT")
        data.append(line_of(own, self.axis.x, client, PALETTE[0]))
        if name == "ttft":
            p95 = [ms_of(part.percentile(0.95)) if part.n else None for part in parts]
            data.append(line_of(say("client, p95"), self.axis.x, p95, PALETTE[0], line={"dash": "dot"}))
        top, mean = _highest([server]), Histogram.merged(parts).mean
        title = (
            say("TTFT: the engine's own and the client's")
            if name == "ttft"
            else say("Time per token: the engine's own and ours")
        )
        caption = (
            say(
                "The engine counts from the arrival of a request to its first token. What the client sees beyond is "
                "network, proxies, and time before the engine. The engine's p95 is as wide as its buckets."
            )
            if name == "ttft"
            else say(
                "The engine's mean inter-token latency by the second in which tokens came; the client's TPOT by the "
                "second in which turns ended."
            )
        )
        words = say(
            "Highest mean of a bin at the engine: {top} ms; the client's mean of all: {mean} ms.",
            top=number(top),
            mean=number(ms_of(mean)),
        )
        return self._chart(f"engine-{name}", title, caption, "ms", data, words)

    def _server_means(self, name: str) -> Floats | None:
        """Exact mean by bin in ms, over all engines; None without any value."""
        n, total = np.zeros(self.axis.bins.n), np.zeros(self.axis.bins.n)
        for one in self.watched.engines:
            counts, means = one.column(f"{name}_n"), one.column(f"{name}_mean_ms")
            n += one.bin_sums(np.where(np.isfinite(means), counts, np.nan), self.edges_ns)
            total += one.bin_sums(counts * means, self.edges_ns)
        if not (n > 0).any():
            return None
        means_by_bin: Floats = np.full(n.size, np.nan)
        means_by_bin[n > 1e-9] = total[n > 1e-9] / n[n > 1e-9]
        return means_by_bin

    def _server_p95(self) -> list[float | None]:
        texts: list[list[str]] = [[] for _ in range(self.axis.bins.n)]
        for one in self.watched.engines:
            for at_ns, text in zip(one.end_ns, one.buckets, strict=True):
                # The end of a point's interval is inside the bin, not at its beginning.
                index = self.axis.bins.of((int(at_ns) - 1) // SECOND_NS) if text else None
                if text and index is not None:
                    texts[index].append(text)
        return [_p95_ms(each) for each in texts]


def _p95_ms(texts: Sequence[str]) -> float | None:
    try:
        value = percentile(merge(parse(text) for text in texts), 0.95)
    except ValueError:
        return None
    return None if value is None else short(1000 * value)


def shown(values: Floats) -> list[float | None]:
    """For a chart: four digits, None for a hole."""
    return [short(value) if np.isfinite(value) else None for value in values.tolist()]


def _highest(rows: Sequence[Floats]) -> float | None:
    tops = [float(np.nanmax(row)) for row in rows if np.isfinite(row).any()]
    return max(tops, default=None)


def gpu_names(gpus: Sequence[Source]) -> list[str]:
    """A short name for each: `GPU 0`, with the host where there are several, and the UUID's start for MIG slices."""
    several = len({one.tags.get("host") for one in gpus}) > 1
    names = []
    for one in gpus:
        index = one.column("index")
        known = index[np.isfinite(index)]
        uuid = one.tags.get("uuid", "")
        name = f"GPU {known[-1]:.0f}" if known.size else f"GPU {uuid[:12]}"
        if one.tags.get("mig_parent", "none") != "none":
            name += f" slice {uuid.removeprefix('MIG-')[:8]}"
        names.append(f"{one.tags.get('host', '')} {name}" if several else name)
    seen = Counter(names)
    return [
        name if seen[name] == 1 else f"{name} {one.tags.get('uuid', '').removeprefix('GPU-')[:8]}"
        for name, one in zip(names, gpus, strict=True)
    ]
