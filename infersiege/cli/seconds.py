"""Lengths of time on the command line that are in seconds where they have no unit."""

from __future__ import annotations

import click

from infersiege.plan.values import parse_duration


def in_seconds(text: str | float) -> float:
    """Seconds of `2`, `0.5`, `2s`, `1m30s`: the `type` of an option, whose bounds are its own affair.

    Raises click.BadParameter with the message of a plan's durations on anything else.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_duration(str(text)) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
