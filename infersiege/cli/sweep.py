"""`infersiege sweep`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from infersiege.cli.probe_options import ProbeOptions, probe_options
from infersiege.errors import UsageError


def loads_of(option: str, text: str, *, whole: bool) -> tuple[float, ...]:
    """`1,2,4` as loads, each once, in the order given. Raises UsageError."""
    found: dict[float, None] = {}
    for part in text.split(","):
        try:
            load = float(int(part)) if whole else float(part)
        except ValueError:
            load = math.nan
        if not (1 if whole else 1e-6) <= load <= 100_000:
            kind = "a number of users from 1" if whole else "a rate from 0.000001"
            raise UsageError(
                f"{option} {text}: {part.strip()!r} is not {kind} to 100,000", hint=f"such as {option} 1,2,4"
            )
        found[load] = None
    return tuple(found)


@click.command(epilog="Example: infersiege sweep plan.toml --users 1,2,4,8,16 --channel vllm,sglang --out runs/sweep")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--users", metavar="N,N,…", help="Loads of a closed plan.")
@click.option("--rate", metavar="R,R,…", help="Loads of an open plan, in sessions per second.")
@click.option("--channel", "channels", metavar="NAME,…", help="Send every workload there, to one after the other.")
@click.option("--all-channels", is_flag=True, help="The same with every channel of the plan.")
@probe_options
@click.pass_context
def sweep(
    context: click.Context,
    /,
    plan: Path,
    users: str | None,
    rate: str | None,
    channels: str | None,
    all_channels: bool,
    **common: Any,
) -> None:
    """Run PLAN at each load, on each channel, and make the table that people publish.

    Each combination is a whole run below --out, with sweep.json, sweep.md and sweep.html beside them. The same command
    with the same --out makes only the runs that are missing.

    Exit codes: 0, 1 every turn of a run failed, 2 usage, 3 a run is invalid, 4 a target was not there, 130 interrupted.
    """
    from infersiege.capacity.hunt import fixed_loads, unit_of
    from infersiege.capacity.shown import sweep_lines, sweep_markdown, sweep_page, sweep_tables
    from infersiege.capacity.sweeping import asked_for, begun, channels_of, exit_code_of
    from infersiege.capacity.sweeping import sweep as sweep_all
    from infersiege.cli.probing import Probing

    probing = Probing("sweep", plan, ProbeOptions(**common))
    unit = unit_of(probing.plan, "sweep")
    option, given, other = ("--users", users, rate) if unit == "users" else ("--rate", rate, users)
    if given is None or other is not None:
        raise UsageError(f"sweep: a plan in mode {probing.plan.load.mode} needs {option}", hint=f"{option} 1,2,4")
    loads = loads_of(option, given, whole=unit == "users")
    wanted = tuple(name.strip() for name in (channels or "").split(",") if name.strip())
    chosen = channels_of(probing.plan, wanted, every=all_channels)
    probing.must_fit(loads, unit)
    with probing.alone():
        state = begun(probing.folder, probing.plan, unit, loads, chosen, probing.duration_ns)
        for note in fixed_loads(probing.plan):
            probing.say(f"note: {note}")
        with probing.until_stopped() as interruption:
            state = sweep_all(state, probing.plan, probing.settings, interruption, probing.say)
        markdown = probing.write_text("sweep.md", sweep_markdown(state))
        page = probing.write_page("sweep.html", sweep_page(state))
    lines = [*sweep_lines(state), f"written: {markdown}", f"written: {page}"]
    probing.show(sweep_tables(state, probing.width), lines, emulated=any(one.emulated for one in asked_for(state)))
    probing.print_json(state)
    context.exit(exit_code_of(state))
