"""`infersiege sweep`."""

from __future__ import annotations

import math
from pathlib import Path

import click

from infersiege.errors import UsageError


def loads_of(option: str, text: str, *, whole: bool) -> tuple[float, ...]:
    """`1,2,4` as loads, each once, in the order given. Raises UsageError."""
    found: dict[float, None] = {}
    for part in text.split(","):
        try:
            load = float(int(part)) if whole else float(part)
        except ValueError:
            load = math.nan
        if not 0 < load <= 100_000:
            kind = "a number of users from 1" if whole else "a rate above 0"
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
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs; default: runs/<time>-sweep-<name>.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan.")
@click.option("--probe-duration", metavar="DURATION", help="Length of a run; default: the plan's duration.")
@click.option("--pause", default=2.0, show_default=True, metavar="SECONDS", help="Before a run, where no engine tells.")
@click.option(
    "--idle-limit", default=60.0, show_default=True, metavar="SECONDS", help="Longest wait for the engine to be idle."
)
@click.option("--workers", type=click.IntRange(1, 1_000), help="Worker processes; default: the plan's, 1.")
@click.option("--wait-for-target", default=0.0, metavar="SECONDS", help="Wait so long for a target to become ready.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output; progress goes to stderr.")
@click.pass_context
def sweep(
    context: click.Context,
    plan: Path,
    users: str | None,
    rate: str | None,
    channels: str | None,
    all_channels: bool,
    out: Path | None,
    overrides: tuple[str, ...],
    probe_duration: str | None,
    pause: float,
    idle_limit: float,
    workers: int | None,
    wait_for_target: float,
    as_json: bool,
) -> None:
    """Run PLAN at each load, on each channel, and make the table that people publish.

    Each combination is a whole run below --out, with sweep.json, sweep.md and sweep.html beside them. The same command
    with the same --out makes only the runs that are missing.

    Exit codes: 0, 1 every turn of a run failed, 2 usage, 3 a run is invalid, 4 a target was not there, 130 interrupted.
    """
    from rich.console import Console

    from infersiege.capacity.hunt import unit_of
    from infersiege.capacity.shown import sweep_markdown, sweep_page, sweep_tables
    from infersiege.capacity.sweeping import begun, channels_of, exit_code_of
    from infersiege.capacity.sweeping import sweep as sweep_all
    from infersiege.cli.probing import Progress, folder_for, loaded, settings_for, write_page, write_text
    from infersiege.report.tables import print_emulated

    typed, duration_ns = loaded(plan, overrides, probe_duration)
    unit = unit_of(typed, "sweep")
    option, given, other = ("--users", users, rate) if unit == "users" else ("--rate", rate, users)
    if given is None or other is not None:
        raise UsageError(
            f"sweep: a plan in mode {typed.load.mode} needs {option}, and nothing else", hint=f"{option} 1,2,4"
        )
    loads = loads_of(option, given, whole=unit == "users")
    wanted = tuple(name.strip() for name in (channels or "").split(",") if name.strip())
    folder = folder_for(out, f"sweep {typed.run.name}")
    state = begun(folder, typed, unit, loads, channels_of(typed, wanted, every=all_channels), duration_ns)
    console = Console(highlight=False, stderr=as_json)
    say = Progress(console)
    settings = settings_for(plan, overrides, typed, folder, workers, wait_for_target, pause, idle_limit)
    with say.until_stopped(folder) as interruption:
        state = sweep_all(state, typed, settings, interruption, say)
    markdown = write_text(folder / "sweep.md", sweep_markdown(state), console)
    page = write_page(folder / "sweep.html", sweep_page(state), console)
    if any(probe.emulated for probe in state.probes):
        print_emulated(console)
    for table in sweep_tables(state, console.width):
        console.print(table)
    for file in (markdown, page):
        console.print(f"written: {file}", markup=False, soft_wrap=True)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(state), indent=2))
    context.exit(exit_code_of(state))
