"""Latencies of groups, and the load that was there, as tables of report.html."""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.metrics.definitions import METRICS
from infersiege.records import GroupSummary, Summary
from infersiege.report.delivered import TITLE, columns_of, figures_of, where_of
from infersiege.report.latency import DUE_COLUMNS, DUE_TITLE, LATENCY_COLUMNS, group_name, why_absent
from infersiege.report.markup import absent, table, text
from infersiege.report.numbers import count, milliseconds, number, share


def latency_html(summary: Summary) -> str:
    """From sent, then from due."""
    head = [("Group", "", False), ("n", "ok turns", True), ("Failed", "share", True)]
    rows = [
        [
            text(group_name(group)),
            count(group.counts.ok),
            share(group.rates.get("error_share")),
            *_cells(group, LATENCY_COLUMNS),
        ]
        for group in summary.groups
    ]
    caption = "Latency of ok turns due in the steady phase; failures never enter a percentile"
    sent = table(caption, head + _columns(LATENCY_COLUMNS), rows)
    rows = [[text(group_name(group)), *_cells(group, DUE_COLUMNS)] for group in summary.groups]
    return sent + table(DUE_TITLE, [head[0], *_columns(DUE_COLUMNS)], rows)


def _columns(columns: Sequence[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    return [(f"{METRICS[metric].title} {stat}", "ms", True) for metric, stat in columns]


def _cells(group: GroupSummary, columns: Sequence[tuple[str, str]]) -> list[str]:
    cells = []
    for metric, stat in columns:
        found = group.distributions.get(metric)
        value = None if found is None else getattr(found, stat)
        if found is None or value is None:
            cells.append(absent(why_absent(group, metric, stat)))
        else:
            cells.append(number(milliseconds(value, found.unit)))
    return cells


def delivered_html(summary: Summary) -> str:
    """What was asked of the load generator and what was there; empty where nobody knows what was asked."""
    if not summary.loads:
        return ""
    wanted = columns_of(summary.loads)
    columns = [("Stage · load", "", False), *((name, unit, True) for name, unit, _ in wanted)]
    rows = []
    for load in summary.loads:
        figures = figures_of(load, wanted)
        rows.append([text(where_of(load)), *(absent("does not apply") if one is None else one for one in figures)])
    return table(TITLE, columns, rows)
