"""`infersiege capacity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infersiege.cli.probe_options import ProbeOptions, probe_options

if TYPE_CHECKING:
    from infersiege.capacity.search import Range
    from infersiege.plan import Plan


@click.command(epilog="Example: infersiege capacity examples/plans/vllm.toml --out runs/capacity-vllm")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--start", type=float, help="First load; default: the plan's users or rate.")
@click.option("--lowest", type=float, help="Lowest load; default: 1 user, or 1/64 of the start.")
@click.option("--highest", type=float, help="Highest load; default: 256 times the start.")
@click.option("--resolution", type=float, default=10.0, show_default=True, help="In percent (of users: or 1 user).")
@click.option("--repeats", type=int, default=3, show_default=True, help="Probes at the limit: the verdict of most.")
@probe_options
@click.pass_context
def capacity(
    context: click.Context,
    /,
    plan: Path,
    start: float | None,
    lowest: float | None,
    highest: float | None,
    resolution: float,
    repeats: int,
    **common: Any,
) -> None:
    """Find the highest load (users, or sessions per second) at which the [[slo]] rules of PLAN hold.

    The load is doubled until a rule fails, then the gap is halved; the loads at the limit are probed several times.
    Each probe is a whole run below --out, with capacity.json and capacity.html beside them. The same command with the
    same --out goes on where it was.

    Exit codes: 0 found, 1 not even the lowest load passes, 2 usage, 3 the client was the limit, 4 target, 5 a rule has
    no data or the limit could not be confirmed, 130 interrupted.
    """
    from infersiege.capacity.hunt import EXIT_CODES, begun, conclusion, hunt, must_have_rules, probes_line, unit_of
    from infersiege.capacity.shown import capacity_page, curve_tables
    from infersiege.cli.probing import Probing
    from infersiege.errors import InternalError

    probing = Probing("capacity", plan, ProbeOptions(**common))
    unit = unit_of(probing.plan, "capacity")
    must_have_rules(probing.plan.slos)
    search = _range(probing.plan, start, lowest, highest, resolution / 100, repeats)
    probing.must_fit((search.lowest, search.start, search.highest), unit)
    with probing.alone():
        state = begun(probing.folder, probing.plan, unit, search, probing.duration_ns)
        probing.say(probes_line(state))
        if state.probes:
            probing.say(f"going on with {len(state.probes)} probes of {probing.folder}")
        for note in state.notes:
            probing.say(f"note: {note}")
        with probing.until_stopped() as interruption:
            state = hunt(state, probing.plan, probing.settings, interruption, probing.say)
        if state.finding is None:
            raise InternalError("the search ended without a finding")
        page = probing.write_page("capacity.html", capacity_page(state, probing.plan.slos))
    lines = [*conclusion(state), f"page: {page}"]
    probing.show(curve_tables(state, probing.width), lines, emulated=any(probe.emulated for probe in state.probes))
    probing.print_json(state)
    context.exit(EXIT_CODES[state.finding.outcome])


def _range(
    plan: Plan, start: float | None, lowest: float | None, highest: float | None, resolution: float, repeats: int
) -> Range:
    """What is searched. Raises UsageError."""
    from infersiege.capacity.search import LEAST_RATE, MOST_RATE, MOST_USERS, Range
    from infersiege.errors import UsageError

    users = plan.load.mode == "closed"
    first = start if start is not None else float(plan.load.users or plan.load.rate or 0)
    search = Range(
        start=first,
        lowest=lowest if lowest is not None else min(1.0, first) if users else max(first / 64, LEAST_RATE),
        highest=highest if highest is not None else min(256 * first, MOST_USERS if users else MOST_RATE),
        whole=users,
        resolution=resolution,
        repeats=repeats,
    )
    if faults := search.faults():
        raise UsageError(f"capacity: {faults[0]}", hint="see --start, --lowest, --highest, --resolution, --repeats")
    return search
