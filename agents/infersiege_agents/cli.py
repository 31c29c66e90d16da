"""The command `infersiege-agent`: one module per command, loaded when it is used.

A command module has `add(commands)`, which adds its argparse sub-parser and sets its default `run`, a function that
takes the parsed arguments and returns an exit code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from infersiege_agents.console import say
from infersiege_agents.errors import INTERNAL, INTERRUPTED, USAGE, AgentError

COMMANDS: dict[str, tuple[str, str]] = {
    "gpu": ("infersiege_agents.gpu_command", "Sample the GPUs of this host with NVML."),
    "engine": ("infersiege_agents.engine_command", "Scrape the metrics of inference engines."),
    "csv": ("infersiege_agents.csv_command", "Take GPU figures from nvidia-smi's CSV, or from another vendor's tool."),
    "check": ("infersiege_agents.check_command", "Write a point to InfluxDB and read it back."),
    "spool": ("infersiege_agents.spool_command", "See, send or drop the points that wait on this host."),
}
"""Command -> (module that has it, its one line of help)."""

EXAMPLES = """\
examples:
  infersiege-agent gpu --influx-url http://10.0.0.5:8086
  infersiege-agent engine --url http://127.0.0.1:8000 --influx-url http://10.0.0.5:8086
  infersiege-agent csv smi.csv --host gpu-3 --out gpu.jsonl
  infersiege-agent check --influx-url http://10.0.0.5:8086

exit codes: 0 done, 2 usage, 4 the database or what is watched is not there or refuses, or points were lost,
6 no GPU can be read, 70 a fault of ours, 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the words and with the exit code of all other errors."""

    def error(self, message: str) -> NoReturn:
        raise AgentError(message, hint=f"{self.prog} --help shows what there is", exit_code=USAGE)


def parser_for(command: str | None) -> Parser:
    """The whole command line; only the module of `command` is imported."""
    parser = Parser(
        prog="infersiege-agent",
        description="Push GPU and engine metrics to InfluxDB, or to a file.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = metadata.version("infersiege-agents")
    parser.add_argument("--version", action="version", version=f"infersiege-agent {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, line) in COMMANDS.items():
        if name == command:
            importlib.import_module(module).add(commands)
        else:
            commands.add_parser(name, help=line)
    return parser


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point; always ends the process, with an exit code of `infersiege_agents.errors`."""
    code = _called(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        _forget(sys.stdout.fileno())
    except OSError as error:
        _forget(sys.stdout.fileno())
        say(f"error: standard output can't be written: {error.strerror}")
        code = code or USAGE
    sys.exit(code)


def _called(arguments: Sequence[str]) -> int:
    """Run the command; every way in which it can end as an exit code."""
    command = next((word for word in arguments if not word.startswith("-")), None)
    try:
        args = parser_for(command).parse_args(arguments)
        return int(args.run(args))
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else 0
    except AgentError as error:
        report_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the last net: no traceback reaches a user
        report_fault_of_ours(error)
        return INTERNAL


def report_error(error: AgentError) -> None:
    """Say it on stderr: what, where, and what to try."""
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")


def report_fault_of_ours(error: Exception) -> None:
    """An exception that nobody foresaw: the traceback goes to a file, one line to the user."""
    say(f"error: a fault of infersiege-agent: {type(error).__name__}: {error}")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="infersiege-agent-fault-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:  # a full disk may be the very reason
        say("hint: please report it (there is no room for a file with the details)")
    else:
        say(f"hint: please report it with {file.name} (look through it for private data first)")


def _forget(descriptor: int) -> None:
    """Python flushes once more at its end, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main()
