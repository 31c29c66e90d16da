"""`infersiege calibrate`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from infersiege.calibrate.verdict import Probe
    from infersiege.records import Calibration


@click.command(epilog="Example: infersiege calibrate --quick")
@click.option("--quick", is_flag=True, help="A quarter of a minute instead of one: shorter probes, coarser steps.")
@click.option("--json", "as_json", is_flag=True, help="The stored figures as one JSON object.")
def calibrate(quick: bool, as_json: bool) -> None:
    """Measure what one worker process can do on this host, and keep it for reports, `doctor` and the verdict.

    Our own client reads streams of 20 tokens/s from a built-in server that sends prepared bytes on time; there are more
    and more of them, until first-token times may be more than 1 ms off the server's own (p99), or chunks run together.
    Then short answers per second, with and without a new connection for each. Run it when nothing else runs here: the
    server shares the host's cores.
    """
    import msgspec

    from infersiege.calibrate.measure import calibrated
    from infersiege.calibration import path_of

    found = calibrated(quick, os.environ, None if as_json else _show)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    for line in lines_of(found):
        click.echo(line)
    click.echo(f"kept in {path_of(os.environ)}")


def _show(kind: str, probe: Probe) -> None:
    """One probe, as soon as it is over."""
    cpu = f"client {probe.client_cpu:.0%}, server {probe.server_cpu:.0%} of a core"
    if kind != "streams":
        click.echo(f"{kind:<12}{probe.turns_per_s:>9,.0f}/s          {cpu}  {probe.fault or ''}".rstrip())
        return
    error_ms = probe.error_p99_ms
    error = "   —   " if error_ms is None else f"{error_ms:.2f} ms"
    verdict = "ok" if probe.fault is None else f"{probe.fault} (limit: {probe.limited_by})"
    click.echo(f"streams {probe.users:>5}{probe.tokens_per_s:>8,.0f} tokens/s  {error}  {cpu}  {verdict}")


def lines_of(found: Calibration) -> list[str]:
    """The result for people."""
    return [
        f"one worker on {found.host} ({found.cpu or 'unknown CPU'}, {found.cores} cores):",
        f"  {found.tokens_per_s:,.0f} tokens/s in {found.streams:,} streams, first tokens within "
        f"{found.timing_error_p99_ms:.2f} ms (p99)",
        f"  {found.requests_per_s:,.0f} short requests/s, {found.connections_per_s:,.0f} where each has a connection",
        *(f"  note: {note}" for note in found.notes),
    ]
