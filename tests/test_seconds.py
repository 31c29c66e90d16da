"""Options in seconds: plain numbers, and numbers with a unit as everywhere else."""

from __future__ import annotations

import math

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.cli.seconds import in_seconds

READ = [("2", 2.0), ("0", 0.0), ("0s", 0.0), ("0.25", 0.25), ("250ms", 0.25), ("1m30s", 90.0), ("-1", -1.0)]
"""What is no time to wait, such as the last one, is refused by the option that knows its bounds."""


@pytest.mark.parametrize(("text", "seconds"), READ, ids=[text for text, _ in READ])
def test_seconds_are_read_with_and_without_a_unit(text: str, seconds: float) -> None:
    assert in_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "2 days", "30s5m", "two"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        in_seconds(text)


@given(st.text(max_size=12))
def test_any_text_is_a_number_of_seconds_or_is_refused(text: str) -> None:
    try:
        found = in_seconds(text)
    except click.BadParameter:
        return
    assert isinstance(found, float) and (math.isnan(found) or found == in_seconds(str(found)))
