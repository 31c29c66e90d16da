"""Rows that belong together, wherever they stand in a file, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator

from infersiege.traces.source import Row


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable | None], limit: int | None) -> Iterator[list[Row]]:
    """The rows of each key in the file's order, groups in the order of their first rows; a row without a key (None) is
    a group of its own. Only the first `limit` groups are made, of all their rows.

    Thirty-two bytes a row are kept (their places), and the keys.
    """
    places = array("q")
    following = array("q")
    """Of each row, the number of its group's next one; 0: it is the last."""
    firsts = array("q")
    last: dict[Hashable, int] = {}
    for row in rows:
        name = key(row)
        number = len(following)
        before = None if name is None else last.get(name)
        if before is not None:
            following[before] = number
        elif limit is not None and len(firsts) >= limit:
            continue
        else:
            firsts.append(number)
        if name is not None:
            last[name] = number
        places.extend(row)
        following.append(0)
    last.clear()
    for first in firsts:
        group = []
        number = first
        while True:
            group.append(Row(*places[3 * number : 3 * number + 3]))
            number = following[number]
            if not number:
                break
        yield group
