"""What failed and why, and how answers ended."""

from __future__ import annotations

from infersiege.records import Summary
from infersiege.report.collect import Collected
from infersiege.report.details import Details, ErrorExample
from infersiege.report.markup import english, table, text
from infersiege.report.numbers import SECOND_NS, count, number, share
from infersiege.report.words import Words


def errors_html(collected: Collected, details: Details, summary: Summary, say: Words) -> str:
    """Failed turns by class with examples; what was cut, lost or skipped; finish reasons."""
    return "".join(
        (
            _classes(collected, summary, say),
            _examples(details, summary.started_ns, say),
            _reasons(collected, say),
            _finishes(summary, say),
        )
    )


def _classes(collected: Collected, summary: Summary, say: Words) -> str:
    if not collected.errors:
        return ""
    settled = summary.counts.ok + summary.counts.failed
    rows = [
        [
            english(text(name), say),
            count(turns),
            share(turns / settled if settled else None),
            english(text(collected.examples.get(name, "")), say),
        ]
        for name, turns in sorted(collected.errors.items(), key=lambda item: (-item[1], item[0]))
    ]
    columns = [(say("Class"), "", False), (say("Turns"), "", True), (say("Share"), say("of ok + failed"), True)]
    columns.append((say("One of them"), "", False))
    return table(say("Failed turns of all phases by class"), columns, rows)


def _examples(details: Details, start_ns: int, say: Words) -> str:
    rows = []
    for name, found in sorted(details.examples.items()):
        rows += [
            [english(text(name), say), count(one.http_status), *cells_of_example(one, start_ns, say)] for one in found
        ]
    if not rows:
        return ""
    columns = [(say("Class"), "", False), ("HTTP", say("status"), True), *example_columns(say("Detail, redacted"), say)]
    return table(say("Examples of errors: the first turns of each class whose details differ"), columns, rows)


def example_columns(detail: str, say: Words) -> list[tuple[str, str, bool]]:
    """Heads of `cells_of_example`."""
    columns = [(say("Ended"), say("s since start"), True), (say("Where"), "", False), ("x-request-id", "", False)]
    return [*columns, (detail, "", False)]


def cells_of_example(one: ErrorExample, start_ns: int, say: Words) -> list[str]:
    """When it ended, where, its x-request-id and its detail."""
    where = one.channel if one.replica is None else f"{one.channel} · {one.replica}"
    turn = say("turn {n}", n=one.turn + 1)
    return [
        number((one.at_ns - start_ns) / SECOND_NS),
        text(f"{where} · {one.scenario} {turn}"),
        f"<code>{text(one.request_id)}</code>",
        english(text(one.detail), say),
    ]


def _reasons(collected: Collected, say: Words) -> str:
    if not collected.reasons:
        return ""
    rows = [
        [english(text(why), say), count(turns)]
        for why, turns in sorted(collected.reasons.items(), key=lambda item: -item[1])
    ]
    columns = [(say("Outcome: reason"), "", False), (say("Turns"), "", True)]
    return table(say("Turns that neither succeeded nor failed"), columns, rows)


def _finishes(summary: Summary, say: Words) -> str:
    finishes = summary.groups[0].finish_reasons if summary.groups else {}
    if not finishes:
        return ""
    rows = [
        [english(text(name), say), count(turns)] for name, turns in sorted(finishes.items(), key=lambda item: -item[1])
    ]
    columns = [(say("Finish reason"), "", False), (say("Turns"), "", True)]
    return table(say("Finish reasons of steady turns"), columns, rows)
