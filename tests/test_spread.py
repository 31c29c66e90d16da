"""Durations kept as numbers are the histograms that counting them one by one gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.spread import Spread

NAMES = ("ttft", "tpot", "e2e")
Value = tuple[int, str, int]
"""Place, name, bucket."""

_places = st.sampled_from([-5, 0, 7, 1 << 40])
_buckets = st.sampled_from([0, 1, 255, 8000 // 2, bucket_of((1 << 63) - 1)])
_values = st.lists(st.tuples(_places, st.sampled_from(NAMES), _buckets), max_size=20)


def spread_of(values: list[Value]) -> Spread:
    made = Spread(NAMES)
    for name in NAMES:
        mine = [(place, bucket) for place, its, bucket in values if its == name]
        places = sorted({place for place, _ in mine})
        of = np.array([places.index(place) for place, _ in mine], dtype=np.int64)
        made.add(name, places, of, np.array([bucket for _, bucket in mine], dtype=np.int64))
    return made


def counted(values: list[Value]) -> dict[tuple[int, str], dict[int, int]]:
    found: dict[tuple[int, str], dict[int, int]] = {}
    for (place, name, bucket), count in Counter(values).items():
        found.setdefault((place, name), {})[bucket] = count
    return found


def taken(spread: Spread) -> dict[tuple[int, str], dict[int, int]]:
    rows = list(spread.take())
    assert all(list(counts) == sorted(counts) for _, _, counts in rows), "by rising bucket"
    found = {(place, name): counts for place, name, counts in rows}
    assert len(found) == len(rows), "each once"
    return found


@given(_values)
def test_counts(values: list[Value]) -> None:
    made = spread_of(values)
    assert taken(made) == counted(values)
    assert taken(made) == {}, "taken once"


@given(_values, _values)
def test_merging_adds_up_and_may_move_places(mine: list[Value], theirs: list[Value]) -> None:
    whole, other = spread_of(mine), spread_of(theirs)
    whole.merge(other, [place + 7 for place in other.places])
    assert taken(whole) == counted(mine + [(place + 7, name, bucket) for place, name, bucket in theirs])
