"""Distributions: histogram by scenario, cumulative curve and percentile marks on a logarithmic axis in ms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram, bucket_bounds
from infersiege.records import Distribution, GroupSummary
from infersiege.report.charts import PALETTE, Chart, Figure, layout_of, legend_name, line_of, ms_of, short, vertical
from infersiege.report.collect import Collected
from infersiege.report.glossary import described, title_of
from infersiege.report.numbers import count, figure, milliseconds, number, share
from infersiege.report.words import ENGLISH, Words

_CURVE_POINTS = 240

_SHARE_AXIS: Figure = {
    "overlaying": "y",
    "side": "right",
    "range": [0, 1.02],
    "tickvals": [0, 0.25, 0.5, 0.75, 1],
    "tickformat": ".0%",
    "showgrid": False,
    "zeroline": False,
}


def edges_of(histogram: Histogram, bars: int = 48) -> list[float]:
    """Bounds in ns of bars that are equally wide on a logarithmic axis and hold everything."""
    low = max(bucket_bounds(min(histogram.counts))[0], 1)
    high = max(bucket_bounds(max(histogram.counts))[1], low + 1)
    step = (high / low) ** (1 / bars)
    return [low * step**place for place in range(bars + 1)]


_DIGITS = (
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    tuple(step / 10 for step in range(10, 100, 2)),
)


def ticks_between(low: float, high: float) -> list[float]:
    """Four to eight labels between two positive values on a logarithmic axis: 1, 2, 5, 10 …, or finer."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in _DIGITS:
        found = [short(digit * 10.0**exponent) for exponent in exponents for digit in digits]
        ticks = [tick for tick in found if low <= tick <= high]
        if len(ticks) >= 4:
            break
    apart = math.log(high / low) / 8
    kept: list[float] = []
    for tick in ticks:
        if not kept or math.log(tick / kept[-1]) >= apart:
            kept.append(tick)
    return kept


def bars(histogram: Histogram, edges: Sequence[float]) -> list[int]:
    """Turns per bar. A bucket (0.8 % wide) goes to the bar with its middle."""
    made = [0] * (len(edges) - 1)
    place = 0
    for index in sorted(histogram.counts):
        low, high = bucket_bounds(index)
        while place < len(made) - 1 and (low + high) / 2 >= edges[place + 1]:
            place += 1
        made[place] += histogram.counts[index]
    return made


def ecdf(histogram: Histogram) -> tuple[list[float], list[float]]:
    """(ms, share at or below), thinned to a few hundred points; the last one is (max, 1)."""
    x: list[float] = []
    y: list[float] = []
    seen, written = 0, 0.0
    for index in sorted(histogram.counts):
        seen += histogram.counts[index]
        if seen / histogram.n - written >= 1 / _CURVE_POINTS or seen == histogram.n or not x:
            written = seen / histogram.n
            x.append(short(min(bucket_bounds(index)[1], histogram.max or 0) / 1e6))
            y.append(short(written))
    return x, y


def distribution(name: str, parts: Mapping[str, Histogram], found: Distribution | None, say: Words = ENGLISH) -> Chart:
    """A metric's distribution, with marks at the summary's percentiles."""
    metric = METRICS[name]
    if found is None:
        marks, words = [], ""
    else:
        marks = [(stat, milliseconds(getattr(found, stat), found.unit)) for stat in ("p50", "p95", "p99")]
        stats = [f"{stat} {number(value)} ms" for stat, value in marks if value is not None]
        words = say(
            "n {n}, failed share {failed}; {stats}, max {top}.",
            n=count(found.n),
            failed=share(found.failed_share),
            stats=", ".join(stats),
            top=figure(found.max, found.unit),
        )
    return _shape(name, title_of(metric, say), described(metric, say), parts, marks, words, say)


def slack(parts: Mapping[str, Histogram], say: Words = ENGLISH) -> Chart:
    """How wide the doubt of the first token's time is."""
    whole = Histogram.merged(parts.values())
    marks = [(stat, ms_of(whole.percentile(q))) for stat, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))]
    stats = [f"{stat} {number(value)} ms" for stat, value in marks if value is not None]
    words = say("n {n}; {stats}, max {top}.", n=count(whole.n), stats=", ".join(stats), top=figure(whole.max, "ns"))
    caption = say(
        "How much earlier the first token may have arrived than its stamp says: several segments waited in the socket. "
        "Above 1 ms for more than 1 % of the turns, the load generator itself is the limit."
    )
    return _shape("slack", say("Doubt of the first token's time"), caption, parts, marks, words, say)


def _shape(
    name: str,
    title: str,
    caption: str,
    parts: Mapping[str, Histogram],
    marks: Sequence[tuple[str, float | None]],
    words: str,
    say: Words,
) -> Chart:
    """Histogram by scenario, ECDF of all and marked percentiles, on a logarithmic axis in ms."""
    whole = Histogram.merged(parts.values())
    key = f"{name}-shape"
    if whole.n == 0:
        none = say("No ok turn of the steady phase gave one.")
        return Chart(key=key, title=title, caption=caption, words=none, figure=None)
    edges = edges_of(whole)
    middles = [short((low * high) ** 0.5 / 1e6) for low, high in itertools.pairwise(edges)]
    widths = [short((high - low) / 1e6) for low, high in itertools.pairwise(edges)]
    data: list[Figure] = []
    for place, (scenario, part) in enumerate(sorted(parts.items())):
        marker = {"color": PALETTE[place % len(PALETTE)], "opacity": 0.75}
        bar = {"type": "bar", "name": legend_name(scenario), "x": middles, "y": bars(part, edges), "width": widths}
        data.append({**bar, "marker": marker})
    x, y = ecdf(whole)
    data.append(line_of(say("cumulative"), x, y, "#888888", yaxis="y2", line={"width": 1.6, "shape": "hv"}))
    known = [(label, value) for label, value in marks if value is not None and value > 0]
    layout = layout_of(
        say("gaps") if name == "gap" else say("turns"),
        shapes=[vertical(short(value), "dash") for _, value in known],
        annotations=[_label(value, label, place) for place, (label, value) in enumerate(known)],
        barmode="stack",
        bargap=0,
        hovermode="closest",
        yaxis2=_SHARE_AXIS,
    )
    layout["margin"]["r"] = 48
    ticks = ticks_between(edges[0] / 1e6, edges[-1] / 1e6)
    layout["xaxis"] = {"title": {"text": say("ms (logarithmic)")}, "type": "log", "zeroline": False}
    layout["xaxis"] |= {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks], "tickangle": 0}
    return Chart(key=key, title=title, caption=caption, words=words, figure={"data": data, "layout": layout})


def _label(value: float, label: str, place: int) -> Figure:
    """A percentile's name at its line. On a logarithmic axis an annotation is placed by the exponent."""
    where = {"x": round(math.log10(value), 4), "xref": "x", "y": 1 - 0.09 * place, "yref": "paper"}
    return {
        **where,
        "text": label,
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "top",
        "xshift": 2,
        "font": {"size": 10},
    }


def shapes_of(collected: Collected, metric: str) -> dict[str, Histogram]:
    """scenario -> distribution."""
    if metric == "gap":
        return {scenario: Histogram.from_sparse(counts) for scenario, counts in collected.gaps.items()}
    return {scenario: part for (scenario, name), part in collected.shapes.items() if name == metric}


def distributions(collected: Collected, whole: GroupSummary, say: Words = ENGLISH) -> list[Chart]:
    """TTFT, TPOT, gap and E2E."""
    return [
        distribution(name, shapes_of(collected, name), whole.distributions.get(name), say)
        for name in ("ttft", "tpot", "gap", "e2e")
    ]
