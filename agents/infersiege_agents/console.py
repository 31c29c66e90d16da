"""Lines for the user."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """A line on stderr, at once. A stderr that is closed or full stops nobody."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
