"""Latencies of groups in a terminal: which figures, in which order, and why one is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from infersiege.metrics.definitions import METRICS, STATS
from infersiege.records import GroupSummary
from infersiege.report.fitting import fitted
from infersiege.report.numbers import ABSENT, count, milliseconds, number, printable, share
from infersiege.report.words import ENGLISH, Words

LATENCY_COLUMNS: Sequence[tuple[str, str]] = (
    ("ttft", "p50"),
    ("ttft", "p95"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("e2e", "p50"),
    ("e2e", "p99"),
)
"""(metric, statistic)."""

DUE_COLUMNS: Sequence[tuple[str, str]] = (
    ("ttft_from_due", "p50"),
    ("ttft_from_due", "p95"),
    ("ttft_from_due", "p99"),
    ("e2e_from_due", "p50"),
    ("e2e_from_due", "p99"),
    ("lateness", "p50"),
    ("lateness", "p99"),
    ("lateness", "max"),
)
"""The same from the moment at which a turn was due: what users feel, the wait in the client's own queue included."""

LATENCY_TITLE = "Latency of ok turns in the steady phase"
DUE_TITLE = "Latency from due, and how late the load generator was"


def group_name(group: GroupSummary) -> str:
    """`all`, or what the group is cut by: `agent`, `channel local`, `stage 32 users`."""
    parts = [
        "" if group.scenario is None else printable(group.scenario),
        "" if group.channel is None else f"channel {printable(group.channel)}",
        "" if group.stage is None else f"stage {printable(group.stage)}",
    ]
    return " · ".join(part for part in parts if part) or "all"


UNTOLD = "not streamed, or not told by the server"
WHY_MISSING: Mapping[str, str] = {
    "ttft": "not streamed",
    "tpot": "not streamed, no token count, fewer than 2 tokens, or one burst",
}
"""Metric -> why no turn gave it; UNTOLD of all others."""


def why_absent(group: GroupSummary, metric: str, stat: str, say: Words = ENGLISH) -> str:
    """Why a group has no such figure, as one sentence without a full stop, in the language of `say`."""
    found = group.distributions.get(metric)
    name = METRICS[metric].title
    if found is None or found.n == 0:
        if group.counts.ok == 0:
            return say("no turn was ok in the steady phase")
        return say("no ok turn gave a {name} ({why})", name=name, why=say(WHY_MISSING.get(metric, UNTOLD)))
    kind = STATS[stat]
    if found.n < kind.floor:
        return say("{stat} needs {n} turns", stat=stat.replace("_", "."), n=count(kind.floor))
    if kind.q is not None and found.cancelled_share is not None and found.cancelled_share > 1 - kind.q:
        cut = share(found.cancelled_share)
        return say("{cut} of the turns were cancelled: the slowest may be among them", cut=cut)
    return say("not measured")


class Footnotes:
    """Numbers reasons in order of appearance; the same reason has one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        return f"{ABSENT} [{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"{ABSENT} [{number}] {reason}" for reason, number in self._numbers.items()]


_SHORT = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
    "ttft_from_due": "TTFT due",
    "e2e_from_due": "E2E due",
    "lateness": "late",
}


def latency_tables(groups: Sequence[GroupSummary], notes: Footnotes, width: int) -> Iterator[Table]:
    """Per group: n, failed share, percentiles of TTFT, TPOT and E2E in ms, from sent and from due; several tables where
    one is too wide."""
    settled = [group.counts.ok + group.counts.failed for group in groups]
    beside = [
        (
            Text(count(group.counts.ok)),
            Text(share(group.counts.failed / ended if ended else None), style="red" if group.counts.failed else ""),
        )
        for group, ended in zip(groups, settled, strict=True)
    ]
    rows = [
        [Text(group_name(one)), *more, *_cells(one, LATENCY_COLUMNS, notes)]
        for one, more in zip(groups, beside, strict=True)
    ]
    yield from fitted(LATENCY_TITLE, ["", "n\nturns", "failed\nshare", *_headers(LATENCY_COLUMNS)], rows, width)
    rows = [[Text(group_name(group)), *_cells(group, DUE_COLUMNS, notes)] for group in groups]
    yield from fitted(DUE_TITLE, ["", *_headers(DUE_COLUMNS)], rows, width)


def _headers(columns: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{_SHORT[metric]}\n{stat} ms" for metric, stat in columns]


def _cells(group: GroupSummary, columns: Sequence[tuple[str, str]], notes: Footnotes) -> Iterator[Text]:
    for metric, stat in columns:
        found = group.distributions.get(metric)
        value = None if found is None else getattr(found, stat)
        if found is None or value is None:
            yield Text(notes.mark(why_absent(group, metric, stat)), style="dim")
        else:
            yield Text(number(milliseconds(value, found.unit)))
