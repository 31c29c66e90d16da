"""Options of `run`, `capacity` and `sweep`: how many workers there are, and where those of other hosts join."""

from __future__ import annotations

import click

from infersiege.cli.address import MASTER_PORT

workers_option = click.option(
    "--workers", type=click.IntRange(0, 1_000), help="Worker processes on this host; default: the plan's, 1."
)
expect_workers_option = click.option(
    "--expect-workers", type=click.IntRange(1, 10_000), help="Workers in all, with those that join from elsewhere."
)
bind_option = click.option(
    "--bind",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST[:PORT]",
    help=f"Where other workers join; default port {MASTER_PORT}, port 0 takes any free one.",
)
