"""How good the answers were: pass share of checked prompts, which checks failed, which could not be carried out, and
answers that collapsed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from infersiege.records import AnswerExample, AnswerHealth, QualityShare, Summary, Unscored, WrongAnswers
from infersiege.redact import scrub
from infersiege.report.charts import PALETTE, Chart, Ranged, ranged_bars
from infersiege.report.details import Details
from infersiege.report.errors_html import cells_of_example, example_columns
from infersiege.report.fitting import plain_table
from infersiege.report.markup import english, grid, table, text
from infersiege.report.numbers import count, printable, share
from infersiege.report.said import asked, cut, said
from infersiege.report.words import ENGLISH, Words

FAILED_SHOWN = 20
ANSWERS_SHOWN = 5
"""Prompts with an answer, in a terminal."""

_CASES = ("repeated", "garbled", "blank", "cut_short", "empty")
_TITLES = ("In a loop", "Garbled", "Blank", "Cut short", "Empty")


def quality_charts(summary: Summary, say: Words = ENGLISH) -> list[Chart]:
    """None where no answer was checked."""
    return [_chart(summary.quality, say)] if summary.quality else []


def quality_html(summary: Summary, charts: Sequence[Chart], details: Details, say: Words = ENGLISH) -> tuple[str, ...]:
    """The parts of the section; none where no answer was checked and none looked broken."""
    parts = []
    if summary.unscored is not None:
        parts.append(_unscored(summary.unscored, summary.quality[0].n if summary.quality else 0, say))
    if summary.quality:
        parts += [grid(charts), _shares(summary.quality, say), _failed(summary.quality[0], say)]
    parts.append(_wrong(summary.wrong_answers, say))
    if summary.answers:
        parts += [_health(summary.answers, say), _examples(details, summary.started_ns, say)]
    return tuple(part for part in parts if part)


def quality_tables(summary: Summary) -> list[Table]:
    """For a terminal: of what could not be checked, pass shares, what was said, and answers that collapsed, as far as
    there are any."""
    found = []
    if summary.unscored is not None:
        broken = plain_table("Answers that could not be checked")
        broken.add_column("prompt", min_width=len("Answers that could not be checked"))
        broken.add_column("answers", justify="right")
        for name, n in list(summary.unscored.prompts.items())[:FAILED_SHOWN]:
            broken.add_row(printable(name), count(n))
        found.append(broken)
    if summary.quality:
        shares = plain_table("Checked answers")
        shares.add_column("")
        for title in ("n", "passed", "95 % range"):
            shares.add_column(title, justify="right")
        for one in summary.quality:
            shares.add_row(printable(where_of(one)), count(one.n), share(one.share), _range(one))
        found.append(shares)
    if summary.wrong_answers:
        found.append(_wrong_table(summary.wrong_answers))
    if summary.answers:
        health = plain_table("Answers that are none any more")
        health.add_column("stage", overflow="ellipsis", no_wrap=True)
        for title in ("ok", "share", *_TITLES):
            health.add_column(title.lower(), justify="right")
        for row in summary.answers:
            health.add_row(printable(place_of(row)), count(row.ok), share(row.share), *(count(n) for n in _counts(row)))
        found.append(health)
    return found


def where_of(one: QualityShare) -> str:
    """`all`, or what it is cut by: `2: 8 users · local · arithmetic`."""
    return " · ".join(name for name in (one.stage, one.channel, one.set) if name is not None) or "all"


def _where(one: QualityShare, say: Words) -> str:
    """`where_of` on a page."""
    return where_of(one) if one.stage or one.channel or one.set else say("all")


def place_of(one: AnswerHealth) -> str:
    """`main`, or one scenario of it: `main · chat`."""
    return one.stage if one.scenario is None else f"{one.stage} · {one.scenario}"


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
    axis = say("passed, %")
    figure = ranged_bars(
        say("Passed"),
        [Ranged(where_of(one), one.share, one.low, one.high) for one in shown],
        axis,
        color=PALETTE[2],
        xaxis={"type": "category", "title": {"text": say("stage") if staged else say("set")}},
        yaxis={"title": {"text": axis}, "range": [0, 105], "zeroline": False},
    )
    return Chart(
        key="quality",
        title=say("Checked answers that passed"),
        caption=say("With the 95 % range of the share (Wilson). Turns that failed are not in it."),
        words=words,
        figure=figure,
        wide=True,
    )


def _shares(shares: Sequence[QualityShare], say: Words) -> str:
    columns = [("", "", False), (say("Checked"), say("answers"), True), (say("Passed"), say("share"), True)]
    columns.append((say("95 % range"), "", True))
    rows = [[text(_where(one, say)), count(one.n), share(one.share), _range(one)] for one in shares]
    return table(say("Pass share of checked prompts in the steady phase"), columns, rows)


def _failed(whole: QualityShare, say: Words) -> str:
    if not whole.failed:
        return ""
    rows = [[text(name), count(n)] for name, n in list(whole.failed.items())[:FAILED_SHOWN]]
    columns = [(say("Prompt: checks that failed"), "", False), (say("Answers"), "", True)]
    return table(say("Checks that failed most often"), columns, rows)


def _wrong_table(wrong: Sequence[WrongAnswers]) -> Table:
    """One answer of each prompt."""
    shown = plain_table("What was said")
    for title in ("prompt", "checks", "said"):
        shown.add_column(title, overflow="fold")
    shown.add_column("answers", justify="right")
    for one in wrong[:ANSWERS_SHOWN]:
        answer = one.examples[0].answer
        # As texts: a table reads `[bold]` of an answer as markup.
        words = (printable(one.prompt), cut(asked(answer), 80), cut(said(answer), 120))
        shown.add_row(*map(Text, words), count(one.n))
    return shown


def _wrong(wrong: Sequence[WrongAnswers], say: Words) -> str:
    """Empty where no answer was kept."""
    if not wrong:
        return ""
    rows = [
        [f"{text(one.prompt)}<br>{count(one.n)}" if place == 0 else "", *_said(example, say)]
        for one in wrong
        for place, example in enumerate(one.examples)
    ]
    columns = [(say("Prompt"), say("answers"), False), (say("Checks"), "", False), (say("What was said"), "", False)]
    columns.append(("x-request-id", "", False))
    return table(say("What was said that is not right: up to three answers of a prompt that differ"), columns, rows)


def _said(example: AnswerExample, say: Words) -> list[str]:
    """Checks, answer and id as HTML. Ends of lines are the only form that is left of a text."""
    answer = example.answer
    lines = [text(line) for line in scrub(answer.text).splitlines()] if answer.text.strip() else []
    if answer.text_chars > len(answer.text):
        of_all = {"shown": count(len(answer.text)), "all": count(answer.text_chars)}
        lines.append(f'<span class="soft">{text(say("the first {shown} of {all} characters", **of_all))}</span>')
    lines += [f"<code>{text(scrub(call))}</code>" for call in answer.tool_calls]
    if answer.calls > len(answer.tool_calls):
        lines.append(f'<span class="soft">{text(say("{n} tool calls in all", n=count(answer.calls)))}</span>')
    if not lines:
        lines.append(f'<span class="soft">{text(say("nothing"))}</span>')
    if not example.scored:
        lines.append(f'<span class="soft">{text(say("could not be checked"))}</span>')
    checks = "<br>".join(f"<code>{text(scrub(check))}</code>" for check in answer.asked)
    return [checks, "<br>".join(lines), f"<code>{text(example.request_id)}</code>"]


def _health(answers: Sequence[AnswerHealth], say: Words) -> str:
    columns = [(say("Stage · scenario"), "", False), (say("ok turns"), "", True), (say("Share"), "", True)]
    columns += [(say(title), "", True) for title in _TITLES]
    rows = [
        [text(place_of(one)), count(one.ok), share(one.share), *(count(n) for n in _counts(one))] for one in answers
    ]
    return table(say("Answers that are none any more, of all turns in the steady phase"), columns, rows)


def _examples(details: Details, start_ns: int, say: Words) -> str:
    """Ids by which they are found in turns.jsonl and in the server's log, and no texts."""
    titles = dict(zip(_CASES, _TITLES, strict=True))
    rows = [
        [text(say(titles[flag])), *cells_of_example(one, start_ns, say)]
        for flag in _CASES
        for one in details.collapsed.get(flag, ())
    ]
    if not rows:
        return ""
    columns = [("", "", False), *example_columns(say("How it ended"), say)]
    return table(
        say("Examples: the first turns of each kind; turns that were empty are among the errors"), columns, rows
    )


def _unscored(broken: Unscored, scored: int, say: Words) -> str:
    of_all = {"n": count(broken.n), "all": count(broken.n + scored)}
    said = say("{n} of {all} answers could not be checked, so this run has no pass share. The first of them:", **of_all)
    rows = [[text(name), count(n)] for name, n in list(broken.prompts.items())[:FAILED_SHOWN]]
    columns = [(say("Prompt"), "", False), (say("Answers"), "", True)]
    return (
        f'<div class="banner nodata"><strong>{text(said)}</strong>'
        f"<p>{english(text(scrub(broken.first)), say)}</p></div>"
        + table(say("Answers that could not be checked"), columns, rows)
    )
