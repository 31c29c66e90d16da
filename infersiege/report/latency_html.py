"""Latency and load of groups and replicas, and the load that was there, as tables of report.html."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infersiege.metrics.definitions import METRICS
from infersiege.records import GroupSummary, Summary
from infersiege.report.delivered import TITLE, columns_of, figures_of, where_of
from infersiege.report.glossary import title_of
from infersiege.report.headline import cost_cells
from infersiege.report.latency import DUE_COLUMNS, DUE_TITLE, LATENCY_COLUMNS, group_name, why_absent
from infersiege.report.markup import absent, english, items, table, text
from infersiege.report.numbers import count, milliseconds, number, share
from infersiege.report.words import ENGLISH, Words

_RATES = ("asked_rate", "sent_rate", "finished_rate", "throughput", "goodput", "cache_share", "delivered_share")
_REPLICA_RATES = ("sent_rate", "finished_rate", "throughput", "cache_share")


def group_label(group: GroupSummary, say: Words) -> str:
    """`group_name` in the page's language."""
    parts = [
        group.scenario or "",
        "" if group.channel is None else say("channel {name}", name=group.channel),
        "" if group.stage is None else say("stage {name}", name=group.stage),
    ]
    return " · ".join(part for part in parts if part) or say("all")


def replica_label(group: GroupSummary, say: Words) -> str:
    """`local · 10.0.0.7:8000`."""
    return " · ".join(part for part in (group.channel, group.replica) if part) or group_label(group, say)


def latency_html(summary: Summary, say: Words = ENGLISH) -> str:
    """From sent, then from due."""
    caption = say("Latency of ok turns due in the steady phase; failures never enter a percentile")
    sent = _latency(summary.groups, say("Group"), group_label, caption, say)
    rows = [[text(group_label(group, say)), *_cells(group, DUE_COLUMNS, say)] for group in summary.groups]
    return sent + table(say(DUE_TITLE), [(say("Group"), "", False), *_columns(DUE_COLUMNS, say)], rows)


def _latency(
    groups: Sequence[GroupSummary], head: str, label: Callable[[GroupSummary, Words], str], caption: str, say: Words
) -> str:
    columns = [(head, "", False), ("n", say("ok turns"), True), (say("Failed"), say("share"), True)]
    rows = [
        [
            text(label(group, say)),
            count(group.counts.ok),
            share(group.rates.get("error_share")),
            *_cells(group, LATENCY_COLUMNS, say),
        ]
        for group in groups
    ]
    return table(caption, columns + _columns(LATENCY_COLUMNS, say), rows)


def replicas_html(summary: Summary, say: Words) -> str:
    """Latency and load of each replica of channels that have several; empty without."""
    if not summary.replicas:
        return ""
    caption = say("By replica: latency of ok turns due in the steady phase")
    latency = _latency(summary.replicas, say("Replica"), replica_label, caption, say)
    columns = [(say("Replica"), "", False), *_rate_columns(_REPLICA_RATES, say), (say("In flight"), say("mean"), True)]
    rows = [
        [text(replica_label(group, say)), *_rate_cells(group, _REPLICA_RATES, say), number(group.in_flight_mean)]
        for group in summary.replicas
    ]
    return latency + table(say("By replica: load in the steady phase"), columns, rows)


def _columns(columns: Sequence[tuple[str, str]], say: Words) -> list[tuple[str, str, bool]]:
    return [(f"{title_of(METRICS[metric], say)} {say(stat)}", "ms", True) for metric, stat in columns]


def _cells(group: GroupSummary, columns: Sequence[tuple[str, str]], say: Words) -> list[str]:
    cells = []
    for metric, stat in columns:
        found = group.distributions.get(metric)
        value = None if found is None else getattr(found, stat)
        if found is None or value is None:
            cells.append(absent(why_absent(group, metric, stat, say), say))
        else:
            cells.append(number(milliseconds(value, found.unit)))
    return cells


def _rate_columns(names: Sequence[str], say: Words) -> list[tuple[str, str, bool]]:
    metrics = [METRICS[name] for name in names]
    return [(title_of(one, say), say(one.unit) if one.unit != "ratio" else "", True) for one in metrics]


def _rate_cells(group: GroupSummary, names: Sequence[str], say: Words) -> list[str]:
    cells = []
    for name in names:
        value = group.rates.get(name)
        written = share(value) if METRICS[name].unit == "ratio" else number(value)
        cells.append(absent(say("not known, or does not apply"), say) if value is None else written)
    return cells


def load_html(summary: Summary, say: Words) -> str:
    """Rates, turns in flight, tokens and cost by group."""
    columns = [(say("Group"), "", False), *_rate_columns(_RATES, say)]
    columns += [
        (say("In flight"), say("mean"), True),
        (say("In flight"), say("max"), True),
        (say("Prompt"), say("tokens"), True),
        (say("Output"), say("tokens"), True),
    ]
    if summary.costs:
        columns += [(say("Cost"), "", True), (say("Cost"), say("per million output tokens"), True)]
    rows = []
    for group in summary.groups:
        row = [text(group_label(group, say)), *_rate_cells(group, _RATES, say)]
        row += [
            number(group.in_flight_mean),
            count(group.in_flight_max),
            count(group.prompt_tokens),
            count(group.output_tokens),
        ]
        row += cost_cells(group, say) if summary.costs else []
        rows.append(row)
    return table(say("Load in the steady phase"), columns, rows)


def group_notes(summary: Summary, say: Words) -> str:
    """What must be read with a group's figures."""
    notes = [f"{group_name(group)}: {note}" for group in summary.groups for note in group.notes]
    return english(items(notes), say, block=True) if notes else ""


def delivered_html(summary: Summary, say: Words = ENGLISH) -> str:
    """What was asked of the load generator and what was there; empty where nobody knows what was asked."""
    if not summary.loads:
        return ""
    wanted = columns_of(summary.loads)
    columns = [(say("Stage · load"), "", False), *((say(name), say(unit), True) for name, unit, _ in wanted)]
    none = absent(say("does not apply"), say)
    rows = []
    for load in summary.loads:
        figures = figures_of(load, wanted)
        rows.append([text(where_of(load)), *(none if one is None else one for one in figures)])
    return table(say(TITLE), columns, rows)
