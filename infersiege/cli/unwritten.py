"""What `report` and `gate` say about files of a run that they could not write: it spoils no figure and no verdict."""

from __future__ import annotations

from collections.abc import Sequence

import click

from infersiege.cli.output import escaped
from infersiege.errors import InfersiegeError


def warn_of(unwritten: Sequence[InfersiegeError]) -> None:
    """One line per file on standard error, and each hint once."""
    for error in unwritten:
        click.echo(f"warning: {escaped(str(error))}", err=True)
    for hint in dict.fromkeys(error.hint for error in unwritten if error.hint is not None):
        click.echo(f"hint: {escaped(hint)}", err=True)
