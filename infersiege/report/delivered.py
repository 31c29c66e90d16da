"""The load that was asked for and the load that was there, stage by stage: in a terminal, and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from infersiege.records import DeliveredLoad, Summary
from infersiege.report.fitting import fitted
from infersiege.report.latency import Footnotes
from infersiege.report.numbers import count, number, printable, share

TITLE = "Load asked and delivered in the steady phase"

Column = tuple[str, str, Callable[[DeliveredLoad], str | None]]
"""Name, unit, figure; None: it does not apply."""


def _number(value: float | None) -> str | None:
    return None if value is None else number(value)


_COLUMNS: Sequence[Column] = (
    ("users asked", "sessions", lambda load: None if load.users_asked is None else count(load.users_asked)),
    ("users", "mean", lambda load: _number(load.users_mean)),
    ("in flight", "turns, mean", lambda load: _number(load.in_flight_mean)),
    ("rate asked", "sessions/s", lambda load: _number(load.rate_asked)),
    ("due", "sessions/s", lambda load: _number(load.rate_due)),
    ("begun", "sessions/s", lambda load: _number(load.rate_begun)),
    ("asked", "turns/s", lambda load: _number(load.asked_rate)),
    ("sent", "turns/s", lambda load: _number(load.sent_rate)),
    ("finished", "turns/s", lambda load: _number(load.finished_rate)),
    ("delivered", "share", lambda load: None if load.share is None else share(load.share)),
)


def columns_of(loads: Sequence[DeliveredLoad]) -> list[Column]:
    """Those in which any load has a figure."""
    return [column for column in _COLUMNS if any(column[2](load) is not None for load in loads)]


def where_of(load: DeliveredLoad) -> str:
    """`main`, or stage and scenarios: `2: 8 users · agent`."""
    return " · ".join(printable(name) for name in (load.stage, ", ".join(load.scenarios)) if name)


def figures_of(load: DeliveredLoad, columns: Sequence[Column]) -> list[str | None]:
    return [figure(load) for _, _, figure in columns]


def delivered_tables(summary: Summary, notes: Footnotes, width: int) -> Iterator[Table]:
    """Users and arrivals next to turns in flight and turns per second; none where nobody knows what was asked."""
    if not summary.loads:
        return
    wanted = columns_of(summary.loads)
    rows = [
        [
            Text(where_of(load)),
            *(
                Text(notes.mark(f"not of a load of mode {load.mode}"), style="dim") if found is None else Text(found)
                for found in figures_of(load, wanted)
            ),
        ]
        for load in summary.loads
    ]
    yield from fitted(TITLE, ["", *(f"{name}\n{unit}" for name, unit, _ in wanted)], rows, width)
