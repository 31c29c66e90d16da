"""Charts of a trace: when sessions arrive, how long requests are, how sessions grow, what a cache could hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from infersiege.report.charts import PALETTE, Chart, Figure, layout_of, line_of, short, vertical
from infersiege.report.numbers import count, number, share
from infersiege.report.shapes import ticks_between
from infersiege.report.trace_table import cap_words, prefix_words
from infersiege.traces.inspection.describe import Delays, Description, Lengths
from infersiege.traces.inspection.measured import UNKNOWN, Integers, Mark, Measured

_BARS = 48
_TIME_BARS = 120
_STEPS = 60
"""Parts of the trace, one after the other, on the axis of the cache's chart."""
_TURNS_SHOWN = 200
_FEWEST = 5
"""Fewer turns give no p90 of a place in the session."""
_CURVE_POINTS = 240
_UNITS = (("hours", 3600.0, 3 * 3600.0), ("minutes", 60.0, 10 * 60.0), ("seconds", 1.0, 0.0))
"""Name, seconds, and the span from which it is used."""

Numbers = NDArray[np.float64]


def charts_of(found: Description, measured: Measured) -> list[Chart]:
    """All of them, in the page's order."""
    growth = measured.prompt - measured.own
    later = ~measured.marked(Mark.FIRST) & (measured.own != UNKNOWN)
    return [
        arrivals(measured),
        lengths("input", "Input length", "Tokens of each request's prompt.", measured.prompt, found.prompt_tokens),
        lengths("output", "Output length", "Tokens of each recorded answer.", measured.output, found.output_tokens),
        lengths("turns", "Turns per session", "Branches included.", measured.turn_counts, found.session_turns, "turns"),
        by_turn(measured),
        lengths(
            "growth",
            "Growth per turn",
            "Prompt tokens of later turns that no earlier request of their session held.",
            growth[later],
            found.growth_tokens,
        ),
        delays(measured, found.delays),
        cache(measured, found),
        contexts(measured, found),
    ]


def arrivals(measured: Measured) -> Chart:
    """Sessions per second over the trace's time."""
    title, caption = "Arrivals over time", "Sessions per second, by the recording's own clock."
    times = measured.arrivals_ns
    if times is None or len(times) < 2 or times[-1] == times[0]:
        words = "The trace has no times." if times is None else "All sessions arrive at once."
        return Chart(key="arrivals", title=title, caption=caption, words=words, figure=None, wide=True)
    seconds = times / 1e9
    width = max(1.0, float(seconds[-1]) / _TIME_BARS)
    edges = np.arange(0, float(seconds[-1]) + width, width)
    counts, _ = np.histogram(seconds, bins=[*edges, edges[-1] + width])
    unit, size, _ = next(unit for unit in _UNITS if seconds[-1] >= unit[2])
    x = [round(float(edge + width / 2) / size, 6) for edge in edges]  # closer than `short`: bars must touch
    rates = [short(float(value) / width) for value in counts]
    bar: Figure = {"type": "bar", "x": x, "y": rates, "marker": {"color": PALETTE[0]}, "showlegend": False}
    layout = layout_of("sessions/s", bargap=0)
    layout["xaxis"]["title"]["text"] = f"{unit} since the first arrival"
    words = f"n {count(len(times))} sessions in bins of {number(width)} s; highest {number(max(rates))} sessions/s."
    figure = {"data": [bar], "layout": layout}
    return Chart(key="arrivals", title=f"{title} ({unit})", caption=caption, words=words, figure=figure, wide=True)


def lengths(key: str, title: str, caption: str, values: Integers, found: Lengths | None, unit: str = "tokens") -> Chart:
    """A histogram on a logarithmic axis, with the description's percentiles."""
    if found is None:
        return _empty(key, title, caption)
    known = values[values != UNKNOWN].astype(np.float64)
    marks = [("p50", found.p50), ("p90", found.p90), ("p99", found.p99)]
    return _histogram(key, f"{title}, n {count(found.n)}", caption, {"": known}, unit, marks, _words(found, unit))


def delays(measured: Measured, found: Delays | None) -> Chart:
    """Think and tool times, by who came before."""
    title, caption = (
        "Delay before later turns",
        "Seconds from the end of the answer before; the dotted line is the cap.",
    )
    if found is None:
        return _empty("delays", title, caption)
    tool, user = measured.marked(Mark.AFTER_TOOL), measured.marked(Mark.AFTER_USER)
    kinds = {"before tool results": tool, "before a user": user, "not told": ~(tool | user)}
    known = measured.delay_ns != UNKNOWN
    parts = {name: measured.delay_ns[known & kind] / 1e9 for name, kind in kinds.items() if (known & kind).any()}
    marks = [("p50", found.all.p50), ("p90", found.all.p90)]
    words = f"{_words(found.all, 's')} {cap_words(found).capitalize()}."
    chart = _histogram("delays", f"{title}, n {count(found.all.n)}", caption, parts, "s", marks, words)
    if chart.figure is not None and found.cap_s > 0:
        chart.figure["layout"]["shapes"].append(vertical(short(found.cap_s), "dot"))
        chart.figure["layout"]["annotations"].append(_label(found.cap_s, "cap", 2))
    return chart


def by_turn(measured: Measured) -> Chart:
    """Prompt length by place in the session (TR-01: a growing history, a compaction)."""
    title, caption = "Prompt length by turn", "Of the main line; p90 where five sessions or more have such a turn."
    main = measured.marked(Mark.MAIN) & (measured.prompt != UNKNOWN) & (measured.number < _TURNS_SHOWN)
    if not main.any():
        return _empty("by-turn", title, caption)
    places = measured.number[main]
    if not places.any():
        words = "Every session has one turn."
        return Chart(key="by-turn", title=title, caption=caption, words=words, figure=None)
    order = np.argsort(places, kind="stable")
    places, prompts = places[order], measured.prompt[main][order]
    numbers, starts = np.unique(places, return_index=True)
    groups = np.split(prompts, starts[1:])
    x = [float(place + 1) for place in numbers]
    p50 = [short(float(np.percentile(group, 50))) for group in groups]
    p90 = [short(float(np.percentile(group, 90))) if len(group) >= _FEWEST else None for group in groups]
    markers = {"mode": "lines+markers", "marker": {"size": 4}}
    data = [
        line_of("p90", x, p90, PALETTE[1], line={"dash": "dot"}, **markers),
        line_of("p50", x, p50, PALETTE[0], **markers),
    ]
    layout = layout_of("tokens")
    layout["xaxis"]["title"]["text"] = "turn of the session"
    words = f"n {count(len(prompts))} turns; median of the first {number(p50[0])}, of turn {x[-1]:g} {number(p50[-1])}"
    words += f" tokens (n {count(len(groups[0]))} and {count(len(groups[-1]))})."
    figure = {"data": data, "layout": layout}
    return Chart(key="by-turn", title=f"{title} (tokens)", caption=caption, words=words, figure=figure)


def cache(measured: Measured, found: Description) -> Chart:
    """Where prompt tokens come from, along the trace."""
    title = "What an endless prefix cache would hold"
    caption = "Prompt tokens by part of the trace, from its first requests to its last: the cache fills."
    known = (measured.own != UNKNOWN) & (measured.prompt != UNKNOWN)
    if found.cache_bound is None:
        words = "The trace does not tell what all its prompts hold."
        return Chart(key="cache", title=title, caption=caption, words=words, figure=None)
    prompt, own, cached = (values[known].astype(float) for values in (measured.prompt, measured.own, measured.cached))
    steps = min(_STEPS, len(prompt))
    starts = np.arange(steps) * len(prompt) // steps
    whole = np.maximum(np.add.reduceat(prompt, starts), 1.0)
    parts = {
        "own session's earlier prompts": np.add.reduceat(own, starts) / whole,
        "other sessions' prompts": np.add.reduceat(np.maximum(cached - own, 0), starts) / whole,
    }
    parts["new text"] = 1 - np.maximum(np.add.reduceat(cached, starts), np.add.reduceat(own, starts)) / whole
    x = [round(100 * (step + 0.5) / steps, 6) for step in range(steps)]
    colors = (PALETTE[2], PALETTE[0], "#b8bec8")
    data: list[Figure] = [
        {
            "type": "bar",
            "name": name,
            "x": x,
            "y": [short(float(value)) for value in values],
            "marker": {"color": color},
        }
        for (name, values), color in zip(parts.items(), colors, strict=True)
    ]
    layout = layout_of("share of prompt tokens", barmode="stack", bargap=0)
    layout["legend"]["traceorder"] = "normal"
    layout["yaxis"] |= {"range": [0, 1], "tickformat": ".0%"}
    layout["xaxis"]["title"]["text"] = "% of the trace's turns"
    words = f"n {count(len(prompt))} turns; {prefix_words(found)}."
    figure = {"data": data, "layout": layout}
    return Chart(key="cache", title=f"{title} (share)", caption=caption, words=words, figure=figure)


def contexts(measured: Measured, found: Description) -> Chart:
    """Share of sessions and turns that fit, by context limit."""
    title = "What fits into a context"
    caption = "Share of sessions whose longest request (prompt + output) fits, and of single turns that would."
    if not found.context:
        return _empty("contexts", title, caption)
    known = measured.prompt != UNKNOWN
    total = measured.prompt[known] + np.maximum(measured.output[known], 0)
    longest = np.zeros(measured.sessions, dtype=np.int64)
    np.maximum.at(longest, measured.session[known], total)
    longest = longest[longest > 0]
    data = [
        line_of("sessions", *_curve(longest), PALETTE[0], line={"shape": "hv"}),
        line_of("turns", *_curve(total), PALETTE[1], line={"shape": "hv", "dash": "dot"}),
    ]
    limits = [float(fit.limit_tokens) for fit in found.context]
    layout = layout_of(
        "share",
        shapes=[vertical(limit, "dash") for limit in limits],
        annotations=[_label(limit, f"{limit:,.0f}", place % 3) for place, limit in enumerate(limits)],
        hovermode="closest",
    )
    low, high = min(float(total.min()), *limits), max(float(total.max()), *limits)
    layout["xaxis"] = _log_axis(low, high * 1.2, "context, tokens")
    layout["yaxis"] |= {"range": [0, 1.02], "tickformat": ".0%"}
    fits = ", ".join(
        f"{count(fit.limit_tokens)} tokens {count(fit.sessions_whole)} ({share(fit.sessions_whole / found.sampled)})"
        for fit in found.context
    )
    words = f"Of n {count(found.sampled)} sessions fit whole: {fits}."
    figure = {"data": data, "layout": layout}
    return Chart(key="contexts", title=f"{title} (tokens)", caption=caption, words=words, figure=figure)


# --------------------------------------------------------------------------------------------------------- pieces


def _empty(key: str, title: str, caption: str) -> Chart:
    return Chart(key=key, title=title, caption=caption, words="The trace does not tell.", figure=None)


def _words(found: Lengths, unit: str) -> str:
    stats = ", ".join(f"{stat} {number(getattr(found, stat))}" for stat in ("p50", "p90", "p99", "max"))
    return f"n {count(found.n)}, mean {number(found.mean)}, {stats} {unit}."


def _histogram(
    key: str,
    title: str,
    caption: str,
    parts: Mapping[str, Numbers],
    unit: str,
    marks: Sequence[tuple[str, float]],
    words: str,
) -> Chart:
    """Stacked bars, equally wide on a logarithmic axis. What is 0 has no place there and is said in words."""
    whole = np.concatenate(list(parts.values()))
    positive = whole[whole > 0]
    zeros = len(whole) - len(positive)
    if zeros:
        words += f" {count(zeros)} of them are 0 and not drawn."
    title = f"{title} ({unit}, logarithmic)"
    if not len(positive) or float(positive.min()) == float(positive.max()):
        return Chart(key=key, title=title, caption=caption, words=words, figure=None)
    edges = _edges(positive, whole_numbers=unit != "s")
    middles = [short(float(low * high) ** 0.5) for low, high in pairwise(edges)]
    widths = [short(float(high - low)) for low, high in pairwise(edges)]
    data: list[Figure] = []
    for place, (name, values) in enumerate(parts.items()):
        counts, _ = np.histogram(values[values > 0], bins=edges)
        bar: Figure = {"type": "bar", "name": name, "x": middles, "y": [int(value) for value in counts]}
        bar |= {"width": widths, "showlegend": bool(name), "marker": {"color": PALETTE[place], "opacity": 0.8}}
        data.append(bar)
    drawn = [(label, value) for label, value in marks if value > 0]
    layout = layout_of(
        "sessions" if unit == "turns" else "turns",
        shapes=[vertical(short(value), "dash") for _, value in drawn],
        annotations=[_label(value, label, place) for place, (label, value) in enumerate(drawn)],
        barmode="stack",
        bargap=0,
        hovermode="closest",
    )
    layout["xaxis"] = _log_axis(float(edges[0]), float(edges[-1]), f"{unit} (logarithmic)")
    return Chart(key=key, title=title, caption=caption, words=words, figure={"data": data, "layout": layout})


def _edges(values: Numbers, *, whole_numbers: bool) -> Numbers:
    """Bounds of bars. Of whole numbers none lies on one, and no bar holds none of them."""
    low, high = float(values.min()), float(values.max())
    if whole_numbers:
        edges = np.unique(np.floor(np.geomspace(low, high + 1, _BARS + 1))) - 0.5
        return np.append(edges, high + 0.5) if edges[-1] < high else edges
    return np.geomspace(low, max(high, low * 1.01) * 1.000001, _BARS + 1)


def _label(value: float, label: str, place: int) -> Figure:
    """A name at a vertical line. On a logarithmic axis an annotation is placed by the exponent."""
    where = {"x": round(math.log10(value), 4), "xref": "x", "y": 1 - 0.09 * place, "yref": "paper", "xshift": 2}
    return {**where, "text": label, "showarrow": False, "xanchor": "left", "yanchor": "top", "font": {"size": 10}}


def _log_axis(low: float, high: float, title: str) -> Figure:
    ticks = ticks_between(low, high)
    labels = {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks], "tickangle": 0}
    return {"title": {"text": title}, "type": "log", "zeroline": False, **labels}


def _curve(values: Integers) -> tuple[list[float], list[float]]:
    """(value, share at or below), thinned."""
    ordered = np.sort(values)
    places = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _CURVE_POINTS)).round().astype(np.int64))
    return [short(float(ordered[place])) for place in places], [short((place + 1) / len(ordered)) for place in places]
