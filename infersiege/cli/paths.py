"""Names of runs and files on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click


class _NamedPath(click.Path):
    """A path. An empty text is none: `gate "$RUN"` with a variable that is not set would mean this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty: is a variable not set?", param, ctx)
        return super().convert(value, param, ctx)


NAMED_PATH: Final = _NamedPath(path_type=Path)
"""For `type=`."""
