"""How good the answers were: pass share of checked prompts, which checks failed, and answers that collapsed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from infersiege.records import AnswerHealth, QualityShare, Summary
from infersiege.report.charts import PALETTE, Chart, layout_of, legend_name
from infersiege.report.markup import grid, table, text
from infersiege.report.numbers import count, printable, share
from infersiege.report.words import ENGLISH, Words

FAILED_SHOWN = 20

_CASES = ("repeated", "garbled", "blank", "cut_short", "empty")
_TITLES = ("In a loop", "Garbled", "Blank", "Cut short", "Empty")


def quality_charts(summary: Summary, say: Words = ENGLISH) -> list[Chart]:
    """None where no answer was checked."""
    return [_chart(summary.quality, say)] if summary.quality else []


def quality_html(summary: Summary, charts: Sequence[Chart], say: Words = ENGLISH) -> tuple[str, ...]:
    """The parts of the section; none where no answer was checked and none looked broken."""
    parts = []
    if summary.quality:
        parts += [grid(charts), _shares(summary.quality, say), _failed(summary.quality[0], say)]
    if summary.answers:
        parts.append(_health(summary.answers, say))
    return tuple(part for part in parts if part)


def quality_tables(summary: Summary) -> list[Table]:
    """For a terminal: one of pass shares, one of answers that collapsed, as far as there are any."""
    found = []
    if summary.quality:
        shares = Table(title="Checked answers", title_justify="left", title_style="bold")
        shares.add_column("")
        for title in ("n", "passed", "95 % range"):
            shares.add_column(title, justify="right")
        for one in summary.quality:
            shares.add_row(printable(where_of(one)), count(one.n), share(one.share), _range(one))
        found.append(shares)
    if summary.answers:
        health = Table(title="Answers that are none any more", title_justify="left", title_style="bold")
        health.add_column("stage")
        for title in ("ok", *_TITLES):
            health.add_column(title.lower(), justify="right")
        for stage in summary.answers:
            health.add_row(printable(stage.stage), count(stage.ok), *(count(n) for n in _counts(stage)))
        found.append(health)
    return found


def where_of(one: QualityShare) -> str:
    """`all`, or what it is cut by: `2: 8 users · local · arithmetic`."""
    return " · ".join(name for name in (one.stage, one.channel, one.set) if name is not None) or "all"


def _range(one: QualityShare) -> str:
    return f"{share(one.low)} … {share(one.high)}"


def _counts(stage: AnswerHealth) -> list[int]:
    return [getattr(stage, name) for name in _CASES]


def _chart(shares: Sequence[QualityShare], say: Words) -> Chart:
    """By stage; in a run of one stage, by set."""
    staged = [one for one in shares if one.stage is not None and one.channel is None and one.set is None]
    shown = staged or [one for one in shares if one.stage is None and one.set is not None]
    words = ", ".join(
        f"{printable(where_of(one))} {share(one.share)} ({_range(one)}, n {count(one.n)})" for one in shown
    )
    # Rounded: what a chart can show.
    points = [
        (round(100 * one.share, 2), round(100 * (one.high - one.share), 2), round(100 * (one.share - one.low), 2))
        for one in shown
    ]
    figure = {
        "data": [
            {
                "type": "bar",
                "name": say("Passed"),
                "x": [legend_name(where_of(one)) for one in shown],
                "y": [value for value, _, _ in points],
                "marker": {"color": PALETTE[2]},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [above for _, above, _ in points],
                    "arrayminus": [below for _, _, below in points],
                },
            }
        ],
        "layout": layout_of(
            say("passed, %"),
            xaxis={"type": "category", "title": {"text": say("stage") if staged else say("set")}},
            yaxis={"title": {"text": say("passed, %")}, "range": [0, 105], "zeroline": False},
            showlegend=False,
        ),
    }
    return Chart(
        key="quality",
        title=say("Checked answers that passed"),
        caption=say("With the 95 % range of the share (Wilson). Turns that failed are not in it."),
        words=words,
        figure=figure,
        wide=len(shown) > 6,
    )


def _shares(shares: Sequence[QualityShare], say: Words) -> str:
    columns = [("", "", False), (say("Checked"), say("answers"), True), (say("Passed"), say("share"), True)]
    columns.append((say("95 % range"), "", True))
    rows = [[text(where_of(one)), count(one.n), share(one.share), _range(one)] for one in shares]
    return table(say("Pass share of checked prompts in the steady phase"), columns, rows)


def _failed(whole: QualityShare, say: Words) -> str:
    if not whole.failed:
        return ""
    rows = [[text(name), count(n)] for name, n in list(whole.failed.items())[:FAILED_SHOWN]]
    columns = [(say("Prompt: checks that failed"), "", False), (say("Answers"), "", True)]
    return table(say("Checks that failed most often"), columns, rows)


def _health(answers: Sequence[AnswerHealth], say: Words) -> str:
    columns = [(say("Stage"), "", False), (say("Turns"), "ok", True), *((say(title), "", True) for title in _TITLES)]
    rows = [[text(one.stage), count(one.ok), *(count(n) for n in _counts(one))] for one in answers]
    return table(say("Answers that are none any more, of all turns in the steady phase"), columns, rows)
