"""Tables that fit the terminal: what is too wide for one goes into several, so that no figure is ever cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

NARROW = 72
"""Below this many columns a table with sentences in it becomes a list."""

_EDGE = 2
"""Columns that the box takes at both sides."""
_SHORTEST_NAME = 8


def plain_table(title: str | None) -> Table:
    """A table without columns yet, in the style of all tables."""
    # The box's divider is one space wide already: with more padding the latency table would not fit 80 columns.
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)


def fitted(title: str, headers: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> Iterator[Table]:
    """One table of names and figures or, where it is wider than `width`, several with the first column in each.

    `headers` may have several lines. Only names are ever cut, and then with a mark.
    """
    widths = [
        max(*(Text(line).cell_len for line in header.splitlines() or [""]), *(row[place].cell_len for row in rows), 0)
        for place, header in enumerate(headers)
    ]
    first = widths[0]
    if first + 1 + max(widths[1:], default=0) + _EDGE > width:
        first = max(_SHORTEST_NAME, width - _EDGE - 1 - max(widths[1:], default=0))
    for number, part in enumerate(_parts(widths[1:], width - first - _EDGE)):
        table = plain_table(title if number == 0 else None)
        table.add_column(headers[0], overflow="ellipsis", no_wrap=True, max_width=first)
        for place in part:
            table.add_column(headers[place], justify="right", no_wrap=True, min_width=widths[place])
        for row in rows:
            table.add_row(row[0], *(row[place] for place in part))
        yield table


def _parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Places (from 1) of the columns of each table: as many as there is room for, one at least."""
    part: list[int] = []
    used = 0
    for place, width in enumerate(widths, 1):
        if part and used + 1 + width > room:
            yield part
            part, used = [], 0
        part.append(place)
        used += 1 + width
    if part:
        yield part
