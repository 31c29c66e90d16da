"""`infersiege traces`: the commands on traces, and the first of them, `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli import Commands, LazyGroup
from infersiege.cli.destination import check_destination, destination, is_standard_output
from infersiege.cli.output import escaped, unicode_of
from infersiege.cli.trace_opening import Asked, duration_ns, takes_trace
from infersiege.errors import UsageError

if TYPE_CHECKING:
    from infersiege.report.trace_page import Inspected
    from infersiege.traces import Trace

COMMANDS: Commands = {
    "inspect": ("infersiege.cli.traces", "Rates, lengths, turns, delays and cache bound of a trace."),
    "convert": ("infersiege.cli.traces_change", "Any trace in infersiege's own format; its shape only; redacted."),
    "sample": ("infersiege.cli.traces_change", "Some sessions of a trace: by share, by number, by time."),
    "scale": ("infersiege.cli.traces_change", "More or less load: stretched in time, thinned, multiplied."),
    "load": ("infersiege.cli.traces_change", "A trace into Redis."),
}
"""A command that is here can be called; see `infersiege.cli.Commands`."""

_MANY = 1_000_000_000
_UNITS = {"k": 1 << 10, "m": 1 << 20}


@click.group(cls=LazyGroup, table=COMMANDS)
def traces() -> None:
    """Look at traces, and make others of them."""


@traces.command(epilog="Example: infersiege traces inspect trace.jsonl --context-limit 32k --html trace.html")
@click.argument("file")
@takes_trace
@click.option(
    "--sessions", type=click.IntRange(1, _MANY), help="Of a built-in workload: look at so many.  [default: 200]"
)
@click.option(
    "--context-limit",
    "limits",
    multiple=True,
    metavar="TOKENS",
    help="What a model's context would drop, such as 32k; may be repeated.  [default: 8k, 32k, 128k]",
)
@click.option("--delay-cap", default="60s", show_default=True, help="What the plan's delay_cap would change.")
@click.option("--json", "as_json", is_flag=True, help="All figures as one JSON object.")
@click.option("--html", type=click.Path(path_type=Path), metavar="PAGE", help="Write a page with charts, too.")
@click.option("--force", is_flag=True, help="Write over a page that is there.")
@click.pass_context
def inspect(
    context: click.Context,
    file: str,
    asked: Asked,
    sessions: int | None,
    limits: tuple[str, ...],
    delay_cap: str,
    as_json: bool,
    html: Path | None,
    force: bool,
) -> None:
    """Say what is in FILE before it is run: a trace, a built-in workload (builtin:NAME), or all of a plan (.toml).

    Nothing of the trace's text is in any output. Lengths that the trace does not tell are estimated from characters,
    and said to be. Exits with 2 for a trace that can't be read, or whose times can't be meant (a unit misread).
    """
    limit_tokens = tuple(map(_tokens, limits))
    cap_ns = duration_ns("--delay-cap", delay_cap)
    if file.endswith(".toml"):
        _inspect_plan(Path(file), _given(context), sessions, limit_tokens, as_json)
        return
    if html is not None:
        if is_standard_output(html):
            raise UsageError(f"--html {html}: the figures go to standard output", hint="name a file for the page")
        check_destination(html, force=force)
    found = _inspected(asked.open(file), sessions, limit_tokens, cap_ns)
    if html is not None:
        _write(html, found, force=force)
    if as_json:
        click.echo(_json(found.description))
    else:
        _show(found)
    if html is not None:
        click.echo(f"page: {escaped(str(html))}", err=as_json)


def _inspected(
    trace: Trace, sessions: int | None, limits: tuple[int, ...], cap_ns: int, *, clip: bool = False
) -> Inspected:
    import msgspec

    from infersiege.report.trace_page import Inspected
    from infersiege.traces.inspection.describe import CONTEXT_LIMITS, SAMPLE_SESSIONS, describe_measured
    from infersiege.traces.inspection.measured import measure

    measured = measure(trace, sessions or SAMPLE_SESSIONS)
    description = describe_measured(
        trace, measured, context_limits=limits or CONTEXT_LIMITS, clip=clip, delay_cap_ns=cap_ns, wanted=sessions
    )
    description = msgspec.structs.replace(description, name=unicode_of(description.name))
    return Inspected(description=description, measured=measured)


_WITH_A_PLAN = frozenset({"file", "sessions", "limits", "as_json"})


def _given(context: click.Context) -> list[str]:
    """Options on the command line that a plan's workloads decide."""
    return [
        option.opts[0]
        for option in context.command.params
        if option.name is not None
        and option.name not in _WITH_A_PLAN
        and context.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
    ]


def _inspect_plan(path: Path, given: list[str], sessions: int | None, limits: tuple[int, ...], as_json: bool) -> None:
    """Each workload's trace with the plan's own options, context limit and delay cap."""
    from infersiege.plan.load import load_plan
    from infersiege.redis_stream import trace_of
    from infersiege.traces.inspection.describe import DELAY_CAP_NS

    if given:
        raise UsageError(
            f"{', '.join(given)}: not with a plan, whose workloads say how they are read and played",
            hint="name the trace instead of the plan",
        )
    plan = load_plan(path, (), check_environment=False)
    rows = []
    for workload in plan.workloads:
        own = () if workload.context_limit is None else (workload.context_limit,)
        cap_ns = DELAY_CAP_NS if workload.delay_cap_ns is None else workload.delay_cap_ns
        clip = workload.too_long == "clip"
        found = _inspected(trace_of(plan, workload), sessions, limits or own, cap_ns, clip=clip)
        if as_json:
            rows.append({"scenario": workload.scenario, "trace": found.description})
        else:
            click.echo(f"\n{workload.scenario}")
            _show(found)
    if as_json:
        click.echo(_json({"workloads": rows}))


def _show(found: Inspected) -> None:
    from rich.console import Console

    from infersiege.report.trace_table import print_description

    print_description(found.description, Console(highlight=False))
    for warning in found.description.warnings:
        click.echo(f"warning: {escaped(warning)}", err=True)


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _write(path: Path, found: Inspected, *, force: bool) -> None:
    from infersiege.report.trace_page import render

    page = render(found).encode()
    with destination(path, force=force) as file:
        file.write(page)


def _tokens(text: str) -> int:
    """`32k` is 32,768. Raises UsageError."""
    digits, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 1)
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits[:12]) * unit <= _MANY:
        raise UsageError(f"--context-limit {text}: not a number of tokens", hint="write it like 40000 or 32k (32,768)")
    return int(digits) * unit
