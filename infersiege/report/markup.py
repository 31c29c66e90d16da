"""Pieces of HTML: every text goes through `text`, every value into a script through `script_json`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from infersiege.report.charts import Chart
from infersiege.report.numbers import ABSENT, printable
from infersiege.report.words import ENGLISH, Words


def text(value: object) -> str:
    """Any value as escaped, printable HTML text."""
    return escape(printable(str(value)))


def script_json(value: Any) -> str:
    """Strict JSON that can stand inside a script element: no `<`, `>` or `&` is left in it."""
    encoded = msgspec.json.encode(value).decode()
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def table(
    caption: str, columns: Sequence[tuple[str, str, bool]], rows: Iterable[Sequence[str]], *, label: str | None = None
) -> str:
    """A table that scrolls. Columns are (title, unit, numeric); cells are HTML; the first cell heads its row."""
    head = "".join(
        f'<th scope="col"{"" if numeric else " class=left"}>{text(title)}'
        f"{f'<small>{text(unit)}</small>' if unit else ''}</th>"
        for title, unit, numeric in columns
    )
    body = []
    for row in rows:
        cells = [f'<th scope="row">{row[0]}</th>']
        cells += [
            f"<td{'' if numeric else ' class=text'}>{cell}</td>"
            for cell, (_, _, numeric) in zip(row[1:], columns[1:], strict=True)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    name = text(label or caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def section(key: str, title: str, *parts: str) -> str:
    """A part of the page with its heading; `parts` are HTML."""
    head = f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{text(title)}</h2>'
    return f"{head}{''.join(parts)}</section>"


def absent(reason: str, say: Words = ENGLISH) -> str:
    """A missing figure, with why."""
    spoken = text(say("no figure: {reason}", reason=reason))
    return f'<abbr title="{text(reason)}"><span aria-hidden="true">{ABSENT}</span><i class="spoken">{spoken}</i></abbr>'


def english(html: str, say: Words, *, block: bool = False) -> str:
    """HTML with words of the run itself, which are English on every page: a page in another language says so."""
    if say.language == ENGLISH.language or not html:
        return html
    tag = "div" if block else "span"
    return f'<{tag} lang="en">{html}</{tag}>'


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """(name, HTML) pairs as a definition list."""
    return f'<dl class="facts">{"".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in rows)}</dl>'


def figure_of(chart: Chart) -> str:
    """A chart with its caption and its message in words."""
    if chart.figure is None:
        body = f'<p class="empty">{text(chart.words)}</p>'
        words = ""
    else:
        label = f"{text(chart.title)}: {text(chart.words)}"
        body = f'<div class="plot" id="plot-{chart.key}" role="img" aria-label="{label}"></div>'
        words = f'<span class="words">{text(chart.words)}</span>'
    return (
        f"<figure{' class=wide' if chart.wide else ''}><h3>{text(chart.title)}</h3>{body}"
        f"<figcaption>{text(chart.caption)}{words}</figcaption></figure>"
    )


def grid(charts: Iterable[Chart]) -> str:
    """Two charts beside each other where there is room."""
    return f'<div class="grid">{"".join(figure_of(chart) for chart in charts)}</div>'


def items(lines: Iterable[str]) -> str:
    """A bullet list of plain texts."""
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>"
