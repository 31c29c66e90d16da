"""Latency by turn number of the session and by prompt length, and the server's own TTFT beside the client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infersiege.metrics.histogram import Histogram
from infersiege.records import GroupSummary, Summary
from infersiege.report.charts import PALETTE, Chart, Figure, Series, layout_of, legend_name, line_of, ms_of
from infersiege.report.collect import TURN_NUMBERS, Collected
from infersiege.report.details import Details, length_bounds
from infersiege.report.latency import group_name, why_absent
from infersiege.report.markup import absent, table, text
from infersiege.report.numbers import count, milliseconds, number, share
from infersiege.report.words import Words

_SERVER_STATS = ("p50", "p95", "p99")


def by_turn_table(collected: Collected, say: Words) -> str:
    """Empty when no session has a second turn."""
    if not any(turn for _, turn in collected.by_turn):
        return ""
    rows = []
    for (scenario, turn), row in sorted(collected.by_turn.items()):
        ttft, cache = row.ttft.percentile(0.5), row.cache_share
        why = say("the server does not tell cached tokens")
        rows.append(
            [
                f"{text(scenario)} · {_turn_label(turn)}",
                count(row.n),
                number(None if ttft is None else ttft / 1e6),
                number(row.prompt_mean),
                absent(why, say) if cache is None else share(cache),
            ]
        )
    columns = [(say("Scenario · turn"), "", False), ("n", "", True), ("TTFT p50", "ms", True)]
    columns += [(say("Prompt"), say("mean tokens"), True), (say("Cache share"), "", True)]
    return table(say("By turn of the session: what a growing history and the prefix cache do"), columns, rows)


def _turn_label(turn: int) -> str:
    return f"{turn + 1}+" if turn >= TURN_NUMBERS else f"{turn + 1}"


def by_turn_chart(collected: Collected, say: Words) -> list[Chart]:
    """TTFT and cache share by turn number; none when no session has a second turn."""
    if not any(turn for _, turn in collected.by_turn):
        return []
    lines: dict[str, tuple[list[str], list[float | None]]] = {}
    for (scenario, turn), row in sorted(collected.by_turn.items()):
        x, y = lines.setdefault(scenario, ([], []))
        x.append(_turn_label(turn))
        y.append(ms_of(row.ttft.percentile(0.5)))
    if not any(value is not None for _, y in lines.values() for value in y):
        return []
    return [
        _categories(
            "turn-ttft",
            say("TTFT by turn of the session"),
            say("Median of the ok turns of the steady phase. Later turns have a longer history and more of it cached."),
            lines,
            say("turn of the session"),
            say("Highest median: {top} ms.", top=number(_top(lines))),
        )
    ]


def _top(lines: Mapping[str, tuple[Sequence[str], Sequence[float | None]]]) -> float | None:
    return max((value for _, y in lines.values() for value in y if value is not None), default=None)


def _categories(
    key: str,
    title: str,
    caption: str,
    lines: Mapping[str, tuple[list[str], list[float | None]]],
    x_title: str,
    words: str,
) -> Chart:
    """Lines over names in their order."""
    data: list[Figure] = []
    for place, (name, (x, y)) in enumerate(lines.items()):
        marks = {"mode": "lines+markers", "marker": {"size": 6}}
        data.append({**line_of(legend_name(name), (), y, PALETTE[place % len(PALETTE)], **marks), "x": x})
    layout = layout_of("ms")
    order = sorted({name for x, _ in lines.values() for name in x}, key=_first_number)
    layout["xaxis"] = {"title": {"text": x_title}, "type": "category", "categoryorder": "array", "zeroline": False}
    layout["xaxis"]["categoryarray"] = order
    return Chart(key=key, title=title, caption=caption, words=words, figure={"data": data, "layout": layout})


def _first_number(name: str) -> int:
    """Turn numbers and lengths begin with their number."""
    return int(name.split("–")[0].rstrip("+").replace(",", ""))


# --------------------------------------------------------------------------------------------------- prompt length


def _length_label(place: int) -> str:
    low, high = length_bounds(place)
    return f"{low:,}–{high - 1:,}"


def by_length(details: Details, say: Words) -> tuple[list[Chart], str]:
    """A chart of TTFT by prompt length, and the table; nothing when no prompt's length is known."""
    if not details.by_length:
        return [], ""
    lines: dict[str, tuple[list[str], list[float | None]]] = {}
    rows = []
    for (scenario, place), row in sorted(details.by_length.items()):
        ttft = ms_of(row.ttft.percentile(0.5))
        if ttft is not None:
            x, y = lines.setdefault(scenario, ([], []))
            x.append(_length_label(place))
            y.append(ttft)
        found = [row.ttft.percentile(0.5), row.ttft.percentile(0.95), row.tpot.percentile(0.5), row.e2e.percentile(0.5)]
        cells = [number(None if ns is None else ns / 1e6) for ns in found]
        rows.append([f"{text(scenario)} · {_length_label(place)}", count(row.n), *cells, number(row.output_mean)])
    columns = [(say("Scenario · prompt tokens"), "", False), ("n", "", True), ("TTFT p50", "ms", True)]
    columns += [("TTFT p95", "ms", True), ("TPOT p50", "ms", True), ("E2E p50", "ms", True)]
    columns.append((say("Output"), say("mean tokens"), True))
    written = table(say("By length of the prompt, as the server counted it"), columns, rows)
    if not lines:
        return [], written
    chart = _categories(
        "length-ttft",
        say("TTFT by prompt length"),
        say("Median of the ok turns of the steady phase. Prefill takes longer the more tokens are not cached."),
        lines,
        say("prompt tokens"),
        say("Highest median: {top} ms.", top=number(_top(lines))),
    )
    return [chart], written


# ----------------------------------------------------------------------------------------------------- server TTFT


def server_table(summary: Summary, say: Words) -> str:
    """What servers say in their answers beside what we saw; empty where none says anything."""
    groups = [group for group in summary.groups if _told(group)]
    if not groups:
        return ""
    columns = [(say("Group"), "", False), ("n", say("told turns"), True)]
    for whose in (say("client"), say("server")):
        columns += [(f"TTFT {stat}", f"{whose}, ms", True) for stat in _SERVER_STATS]
    rows = []
    for group in groups:
        cells = [_cell(group, metric, stat, say) for metric in ("ttft", "server_ttft") for stat in _SERVER_STATS]
        rows.append([text(group_name(group)), count(group.distributions["server_ttft"].n), *cells])
    return table(say("TTFT as the client saw it and as the server tells it in its answers"), columns, rows)


def _told(group: GroupSummary) -> bool:
    found = group.distributions.get("server_ttft")
    return found is not None and found.n > 0


def _cell(group: GroupSummary, metric: str, stat: str, say: Words) -> str:
    found = group.distributions.get(metric)
    value = None if found is None else getattr(found, stat)
    if found is None or value is None:
        return absent(why_absent(group, metric, stat, say), say)
    return number(milliseconds(value, found.unit))


def server_chart(details: Details, axis: Series, say: Words) -> list[Chart]:
    """The server's own TTFT (of its answers) and the client's of the same turns, over time."""
    if not details.server_ttft:
        return []
    data: list[Figure] = []
    medians: list[float | None] = []
    for whose, seconds, color in (
        (say("server"), details.server_ttft, PALETTE[2]),
        (say("client"), details.client_ttft, PALETTE[0]),
    ):
        bins = [Histogram() for _ in range(axis.bins.n)]
        for second, part in seconds.items():
            place = axis.bins.of(second)
            if place is not None:
                bins[place].merge(part)
        for stat, q, dash in (("p50", 0.5, "solid"), ("p95", 0.95, "dot")):
            y = [ms_of(part.percentile(q)) for part in bins]
            data.append(line_of(f"{whose} {stat}", axis.x, y, color, line={"dash": dash}))
        medians.append(ms_of(Histogram.merged(bins).percentile(0.5)))
    return [
        Chart(
            key="server-ttft-time",
            title=say("TTFT: the server's own and the client's"),
            caption=say(
                "Of the turns in which the server told its own. What the client sees beyond is network, proxies and "
                "the wait before the server's clock starts."
            ),
            words=say(
                "Medians: server {server} ms, client {client} ms.", server=number(medians[0]), client=number(medians[1])
            ),
            figure={"data": data, "layout": axis.over_time("ms")},
        )
    ]
