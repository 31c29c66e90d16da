"""What became of every turn and of the trace, and what happened meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.records import EventRow, Summary
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.markup import english, items, table, text
from infersiege.report.numbers import number
from infersiege.report.tables import allowance_lines, conservation, served_lines, trace_lines
from infersiege.report.words import Words

EVENTS_SHOWN = 200


def account_html(summary: Summary, say: Words) -> str:
    """The equations as the terminal has them."""
    lost = "" if summary.counts.conserved() else " v-fail"
    equation = f'<p class="equation{lost}">{english(text(conservation(summary.counts)), say)}</p>'
    lines = [
        *(trace_lines(summary) if summary.traces else ()),
        *allowance_lines(summary),
        *served_lines(summary),
    ]
    return equation + (english(items(lines), say, block=True) if lines else "")


def events_html(events: Sequence[EventRow], start_ns: int, say: Words) -> str:
    """Empty without any."""
    if not events:
        return ""
    rows = []
    for event in events[:EVENTS_SHOWN]:
        at = number((event.at_ns - start_ns) / 1e9)
        rows.append([at, text(_words(event, say)), text(event.worker or ""), english(text(event.detail), say)])
    left = len(events) - len(rows)
    caption = say("Events")
    if left:
        caption = say("Events (the first {n}; {left} more in events.jsonl)", n=EVENTS_SHOWN, left=f"{left:,}")
    columns = [(say("At"), say("s since start"), False), (say("Event"), "", False), (say("Worker"), "", False)]
    return table(caption, [*columns, (say("Detail"), "", False)], rows)


def _words(event: EventRow, say: Words) -> str:
    """Also of a kind that a newer infersiege wrote."""
    known = EVENT_WORDS.get(event.kind)
    return event.kind.replace("_", " ") if known is None else say(known)
