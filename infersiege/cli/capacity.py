"""`infersiege capacity`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example: infersiege capacity examples/plans/vllm.toml --out runs/capacity-vllm")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the probes; default: runs/<time>-capacity-<name>."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan.")
@click.option("--start", type=float, help="First load; default: the plan's users or rate.")
@click.option("--lowest", type=float, help="Lowest load; default: 1 user, or 1/64 of the start.")
@click.option("--highest", type=float, help="Highest load; default: 256 times the start.")
@click.option("--resolution", type=float, default=10.0, show_default=True, help="In percent (of users: or 1 user).")
@click.option("--repeats", type=int, default=3, show_default=True, help="Probes at the limit: the verdict of most.")
@click.option("--probe-duration", metavar="DURATION", help="Length of a probe; default: the plan's duration.")
@click.option(
    "--pause", default=2.0, show_default=True, metavar="SECONDS", help="Before a probe, where no engine tells."
)
@click.option(
    "--idle-limit", default=60.0, show_default=True, metavar="SECONDS", help="Longest wait for the engine to be idle."
)
@click.option("--workers", type=click.IntRange(1, 1_000), help="Worker processes; default: the plan's, 1.")
@click.option("--wait-for-target", default=0.0, metavar="SECONDS", help="Wait so long for the target to become ready.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output; progress goes to stderr.")
@click.pass_context
def capacity(
    context: click.Context,
    plan: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    start: float | None,
    lowest: float | None,
    highest: float | None,
    resolution: float,
    repeats: int,
    probe_duration: str | None,
    pause: float,
    idle_limit: float,
    workers: int | None,
    wait_for_target: float,
    as_json: bool,
) -> None:
    """Find the highest load (users, or sessions per second) at which the [[slo]] rules of PLAN hold.

    The load is doubled until a rule fails, then the gap is halved; the loads at the limit are probed several times.
    Each probe is a whole run below --out, with capacity.json and capacity.html beside them. The same command with the
    same --out goes on where it was.

    Exit codes: 0 found, 1 not even the lowest load passes, 2 usage, 3 the client was the limit, 4 target, 5 a rule has
    no data or the limit could not be confirmed, 130 interrupted.
    """
    from rich.console import Console

    from infersiege.capacity.hunt import EXIT_CODES, begun, conclusion, hunt, must_have_rules, probes_line, unit_of
    from infersiege.capacity.search import Range
    from infersiege.capacity.shown import capacity_page, curve_tables
    from infersiege.cli.probing import Progress, folder_for, loaded, settings_for, write_page
    from infersiege.errors import InternalError, UsageError
    from infersiege.report.tables import print_emulated

    typed, duration_ns = loaded(plan, overrides, probe_duration)
    unit = unit_of(typed, "capacity")
    must_have_rules(typed.slos)
    first = start if start is not None else float(typed.load.users or typed.load.rate or 0)
    search = Range(
        start=first,
        lowest=lowest if lowest is not None else min(1.0, first) if unit == "users" else first / 64,
        highest=highest if highest is not None else min(256 * first, 1e5),
        whole=unit == "users",
        resolution=resolution / 100,
        repeats=repeats,
    )
    if faults := search.faults():
        raise UsageError(f"capacity: {faults[0]}", hint="see --start, --lowest, --highest, --resolution, --repeats")
    folder = folder_for(out, f"capacity {typed.run.name}")
    state = begun(folder, typed, unit, search, duration_ns)
    console = Console(highlight=False, stderr=as_json)
    say = Progress(console)
    say(probes_line(state))
    if state.probes:
        say(f"going on with {len(state.probes)} probes of {folder}")
    for note in state.notes:
        say(f"note: {note}")
    settings = settings_for(plan, overrides, typed, folder, workers, wait_for_target, pause, idle_limit)
    with say.until_stopped(folder) as interruption:
        state = hunt(state, typed, settings, interruption, say)
    if state.finding is None:
        raise InternalError("the search ended without a finding")
    page = write_page(folder / "capacity.html", capacity_page(state, typed.slos), console)
    if any(probe.emulated for probe in state.probes):
        print_emulated(console)
    for table in curve_tables(state, console.width):
        console.print(table)
    for number, line in enumerate(conclusion(state)):
        console.print(line, style="bold" if number == 0 else "", markup=False, soft_wrap=True)
    console.print(f"page: {page}", markup=False, soft_wrap=True)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(state), indent=2))
    context.exit(EXIT_CODES[state.finding.outcome])
