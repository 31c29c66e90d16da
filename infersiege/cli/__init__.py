"""The command `infersiege`: one file per command, loaded when it is used.

Commands that generate load patch the process before anything else is imported; those that only read never do.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from infersiege.cli.output import Outlet, escaped, steady_output
from infersiege.errors import ExitCode, InfersiegeError, PlanError, UsageError, strongest

Commands = Mapping[str, tuple[str, str]]
"""Command -> (module that has it under its own name, its one line of help)."""

COMMANDS: Commands = {
    "run": ("infersiege.cli.run", "Run a plan and leave a run directory."),
    "demo": ("infersiege.cli.demo", "Three workloads against the built-in emulator: see it work."),
    "doctor": ("infersiege.cli.doctor", "Check a plan's channels before any load."),
    "capacity": ("infersiege.cli.capacity", "Find the highest load at which a plan's rules hold."),
    "sweep": ("infersiege.cli.sweep", "Run a plan over given loads and channels."),
    "gate": ("infersiege.cli.gate", "Judge runs by the rules of their plan, and against a baseline."),
    "baseline": ("infersiege.cli.baseline", "Keep the figures of some runs, to hold later ones against."),
    "compare": ("infersiege.cli.compare", "Runs side by side: figures, differences, what is unfair."),
    "report": ("infersiege.cli.report", "Rebuild a run's summary and report."),
    "export": ("infersiege.cli.export", "Write a run's turns as Parquet or CSV."),
    "recover": ("infersiege.cli.recover", "Bring home what a crash left in workers' spools."),
    "traces": ("infersiege.cli.traces", "Look at traces, and make others of them."),
    "emulate": ("infersiege.cli.emulate", "A fake engine on real sockets, with true times on record."),
    "calibrate": ("infersiege.cli.calibrate", "Measure what one worker can do on this host."),
    "worker": ("infersiege.cli.worker", "Join a run that a master on another host offers."),
}


class LazyGroup(click.Group):
    """Knows all commands, imports the one that is called."""

    def __init__(self, *arguments: Any, table: Commands, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module = importlib.import_module(self._table[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="infersiege")
def infersiege() -> None:
    """Load testing for LLM inference: TTFT, TPOT, throughput, cache and cost, on the same basis for every engine.

    \b
    Example:
      infersiege demo
      infersiege run examples/plans/vllm.toml
    """


def report_error(error: InfersiegeError) -> None:
    """Say it on stderr: what, where, and what to try. Each is one line, whatever the file or server put into it."""
    click.echo(f"error: {escaped(str(error))}", err=True)
    if isinstance(error, PlanError):
        for fault in error.faults:
            click.echo(f"  {escaped(fault)}", err=True)
    if error.hint:
        click.echo(f"hint: {escaped(error.hint)}", err=True)


def report_usage(error: click.ClickException) -> None:
    """What click found wrong with the command line, in our words."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    message = " ".join(error.format_message().split()).removesuffix(".")
    hint = None
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help shows what there is"
    report_error(UsageError(message[:1].lower() + message[1:], hint=hint))


def report_fault_of_ours(error: Exception) -> None:
    """An exception that nobody foresaw: the traceback goes to a file, one line to the user."""
    click.echo(f"error: a fault of infersiege: {type(error).__name__}: {escaped(str(error))}", err=True)
    try:
        # The message may hold what is in no UTF-8, and may be the very reason.
        with tempfile.NamedTemporaryFile(
            "w", prefix="infersiege-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:  # a full disk may be the very reason
        click.echo("hint: please report it (there is no room for a file with the details)", err=True)
    else:
        click.echo(f"hint: please report it with {Path(file.name)} (look through it for private data first)", err=True)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point; always ends the process, with one of errors.ExitCode."""
    with steady_output() as outlets:
        code = _called(arguments, outlets)
        if _lost_output(outlets):
            code = strongest({ExitCode(code), ExitCode.USAGE}) if code in tuple(ExitCode) else code
    sys.exit(int(code))


def _called(arguments: list[str] | None, outlets: list[Outlet]) -> int:
    """Run the command; every way in which it can end as an exit code."""
    try:
        code: Any = infersiege.main(args=arguments, prog_name="infersiege", standalone_mode=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int | None) else ExitCode.INTERNAL
    except InfersiegeError as error:
        report_error(error)
        code = error.exit_code
    except click.ClickException as error:
        report_usage(error)
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last net: no traceback reaches a user
        if any(error is outlet.fault for outlet in outlets):
            return ExitCode.USAGE
        report_fault_of_ours(error)
        code = ExitCode.INTERNAL
    return int(code or 0)


def _lost_output(outlets: list[Outlet]) -> bool:
    """Write what is left of the output; say why some of it could not be written, if so."""
    try:
        if outlets:
            sys.stdout.flush()
    except OSError:
        pass  # the outlet knows it
    faults = [outlet.fault for outlet in outlets if outlet.fault is not None]
    for fault in faults:
        hint = "free some space, or send the output elsewhere"
        report_error(UsageError(f"standard output can't be written: {fault.strerror or fault}", hint=hint))
    return bool(faults)
