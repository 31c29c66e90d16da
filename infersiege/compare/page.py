"""compare.html: table, distributions over each other, and what makes it unfair; one file that opens without a request.

Holds aggregates only, as report.html does: its size does not grow with the turns, and no text of a prompt is in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import plotly.offline

from infersiege.compare.comparison import Cell, ColumnShown, Comparison, Line
from infersiege.compare.overlays import Shapes, charts_of
from infersiege.compare.rows import written
from infersiege.compare.tables import basis_lines, change_of, doubt_of, range_of, spread_of, title_of, word_rows
from infersiege.report.charts import PALETTE
from infersiege.report.markup import absent, grid, items, script_json, section, table, text
from infersiege.report.numbers import count, moment, span
from infersiege.report.page import POLICY, SCRIPT, STYLE

MARK = '<meta name="generator" content="infersiege compare">'
"""By which the command knows a page of its own, to write it again."""

_STYLE = """
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
td .change { display: block; font-size: 12px; color: var(--soft); white-space: normal; min-width: 96px; }
@media (min-width: 861px) {
  .few td .change { display: inline-block; min-width: 66px; } .few td .range { min-width: 250px; }
}
td .better { color: var(--good); } td .worse { color: var(--bad); } td .differs { color: var(--odd); }
thead th.run { white-space: normal; min-width: 130px; max-width: 240px; overflow-wrap: anywhere; }
.figures tbody th { position: sticky; left: 0; background: var(--card); z-index: 1; }
@media (max-width: 520px) { .figures tbody th { white-space: normal; min-width: 84px; } }
"""

_WHERE = {"runs": "range between runs", "turns": "range of the turns of these runs alone"}


def render(found: Comparison, shapes: Shapes) -> str:
    """The whole page. `shapes`: by column, of each of its runs."""
    charts = charts_of(found, shapes)
    curves, changes = charts.distributions, charts.changes
    parts = [
        section("figures", "Figures", _figures(found), items([*basis_lines(found), *found.notes])),
        section("changes", "Differences", grid([changes])) if changes is not None else "",
        section("curves", "Distributions", grid(curves)),
        section("unequal", "What is not the same", _unequal(found)),
        section("runs", "Runs", _runs(found)),
        section("words", "Words", _words()),
    ]
    drawn = [chart for chart in (changes, *curves) if chart is not None and chart.figure is not None]
    data = script_json({chart.key: chart.figure for chart in drawn})
    return _document(found, f"{_head(found)}<main>{''.join(parts)}</main>", data)


def _head(found: Comparison) -> str:
    names = " · ".join(column.name for column in found.columns)
    parts = [f'<header class="top"><p class="kind">infersiege compare</p><h1>{text(names)}</h1>']
    if found.emulated:
        parts.append(
            '<div class="banner emulated" role="note"><strong>EMULATED</strong> A target was infersiege\'s own '
            "emulator: its figures say nothing about any hardware or engine.</div>"
        )
    invalid = [f"{column.name}: {doubt}" for column in found.columns if (doubt := doubt_of(column))]
    if invalid:
        why = "these figures can't be trusted; they are shown all the same"
        parts.append(f'<div class="banner invalid" role="status"><strong>INVALID</strong> {why}{items(invalid)}</div>')
    unfair = [fact for fact in found.unequal if not fact.expected]
    if unfair or found.warnings:
        more = len(unfair)
        facts = (
            [f"{more} {'fact is' if more == 1 else 'facts are'} not the same that should be: see below"] if more else []
        )
        parts.append(
            f'<div class="banner nodata" role="note"><strong>NOT EQUAL</strong>{items([*found.warnings, *facts])}</div>'
        )
    links = (("figures", "Figures"), ("curves", "Distributions"), ("unequal", "What is not the same"), ("runs", "Runs"))
    nav = "".join(f'<a href="#{key}">{title}</a>' for key, title in links)
    return f"{''.join(parts)}<nav>{nav}</nav></header>"


def _swatch(place: int) -> str:
    return f'<span class="swatch" style="background:{PALETTE[place % len(PALETTE)]}" aria-hidden="true"></span>'


def _figures(found: Comparison) -> str:
    """Figures are rows; below each the difference to the reference."""
    head = "".join(
        f'<th scope="col" class="run">{_swatch(place)}{text(column.name)}'
        f"<small>{text(_under(column, place))}</small></th>"
        for place, column in enumerate(found.columns)
    )
    rows = [
        f'<tr><th scope="row">{text(title_of(line))}</th>{"".join(_cell(line, cell) for cell in line.cells)}</tr>'
        for line in found.rows
    ]
    rows += [
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(value)}</td>" for value in values)}</tr>'
        for name, values in word_rows(found)
    ]
    few = " few" if len(found.columns) <= 3 else ""
    caption = f"Figures of the steady phase, and differences against {found.reference}"
    return (
        f'<div class="scroll figures{few}" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f'<caption>{text(caption)}</caption><thead><tr><th scope="col" class="left"></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _under(column: ColumnShown, place: int) -> str:
    return ", ".join(filter(None, ("reference" if place == 0 else "", doubt_of(column))))


def _cell(line: Line, cell: Cell) -> str:
    if cell.value is None:
        return f"<td>{absent('not every run of this column has it')}</td>"
    value = text(written(line.unit, cell.value))
    known = [one for one in cell.values if one is not None]
    if len(known) > 1:
        spread = f"{written(line.unit, min(known))} to {written(line.unit, max(known))}"
        value += (
            f'<span class="change" title="{text(spread)} in {len(known)} runs">{text(spread_of(line, cell))}</span>'
        )
    if cell.change is None:
        return f"<td>{value}</td>"
    where = f' title="{text(_WHERE[cell.basis])}"' if cell.basis is not None else ""
    said = f"{change_of(line, cell)} {range_of(line, cell)}".strip()
    return f'<td>{value}<span class="change range {text(cell.says)}"{where}>{text(said)}</span></td>'


def _unequal(found: Comparison) -> str:
    if not found.unequal:
        return "<p>Everything that is known of these runs is the same.</p>"
    columns = [
        ("Fact", "", False),
        *((column.name, "", False) for column in found.columns),
        ("Why it matters", "", False),
    ]
    rows = [
        [text(fact.name), *map(text, fact.values), text("it is what was compared" if fact.expected else fact.why)]
        for fact in found.unequal
    ]
    return table("Facts that are not the same in all columns", columns, rows)


def _runs(found: Comparison) -> str:
    columns = [
        ("Column", "", False), ("Run", "", False), ("Started", "", True), ("Steady", "", True), ("Turns", "ok", True),
        ("Verdict", "", True), ("Client", "", True), ("Invalid", "", False),
    ]  # fmt: skip
    return table("Every run", columns, _run_rows(found))


def _run_rows(found: Comparison) -> Iterator[list[str]]:
    for place, column in enumerate(found.columns):
        for run in column.runs:
            yield [
                f"{_swatch(place)}{text(column.name)}",
                f"<code>{text(run.path)}</code> {text(column.about)}",
                text(moment(run.started_ns)),
                text(span(run.steady_duration_ns)),
                count(run.turns),
                absent("not judged") if run.verdict is None else text(run.verdict),
                absent("nothing tells") if run.client is None else text(run.client),
                text("; ".join(run.invalid)),
            ]


def _words() -> str:
    return (
        "<p>Latencies are of turns that succeeded and were due in the steady phase; several runs of a column stand as "
        "the geometric mean of their figures (shares as the arithmetic one). Differences are of a column against the "
        "reference: ratios in percent, shares in points (pt). <b>better</b>, <b>worse</b> and <b>differs</b> stand "
        "where the 95 % range leaves out 0. A figure that is not there is –, never 0. Each metric has one definition, "
        "which is in every report.html.</p>"
    )


def _document(found: Comparison, body: str, data: str) -> str:
    names = " · ".join(column.name for column in found.columns)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{MARK}'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(names)} – infersiege compare</title><style>{STYLE}{_STYLE}</style></head><body>{body}"
        "<footer>Made by infersiege compare from the turns of its runs.</footer>"
        "<noscript><p>The charts need JavaScript; the tables are complete without it.</p></noscript>"
        f'<script type="application/json" id="figure-data">{data}</script>'
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )
