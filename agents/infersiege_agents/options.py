"""Types of command-line options that several commands have. Each raises argparse's error, with what would be right."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


def seconds(least: float, most: float) -> Callable[[str], float]:
    """A type: a time in seconds within bounds."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from {least:g} to {most:g}")
        return value

    return parsed


def count(most: int) -> Callable[[str], int]:
    """A type: a whole number from 1 on."""

    def parsed(text: str) -> int:
        # isdecimal alone takes the digits of other scripts too, and int() whatever length.
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return int(text)

    return parsed


def variable_shown(name: str) -> str:
    """The name of an environment variable for a message: somebody may have pasted the secret itself in its place.

    Only what looks like a usual name (INFLUX_TOKEN) is shown whole.
    """
    if re.fullmatch(r"[A-Z][A-Z_]*[0-9]{0,2}", name) and len(name) <= 40:
        return name
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return f"{name[:4]}…"
    return "that was named (no name of a variable, so not shown here)"


def add_with_parent(parser: argparse._ActionsContainer) -> None:
    """--with-parent PID. The id is told from outside: a parent that died before we looked would never be missed."""
    parser.add_argument(
        "--with-parent",
        type=count(1 << 29),
        metavar="PID",
        help="end when the process of this id, which started this one, has ended",
    )
