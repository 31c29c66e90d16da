"""`python -m infersiege.emulator`: the emulator without the rest of the command line."""

from __future__ import annotations

import sys

import click

from infersiege.emulator.command import emulate
from infersiege.errors import InfersiegeError


def main() -> int:
    """Exit code 0 after Ctrl-C, 2 for what can't be started."""
    try:
        emulate.main(prog_name="python -m infersiege.emulator", standalone_mode=False)
    except click.ClickException as error:
        message = " ".join(error.format_message().split()).removesuffix(".")
        click.echo(f"error: {message[:1].lower()}{message[1:]}", err=True)
        click.echo("hint: python -m infersiege.emulator --help shows what there is", err=True)
        return 2
    except click.Abort:
        return 0
    except InfersiegeError as error:
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
