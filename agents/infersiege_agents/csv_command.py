"""`infersiege-agent csv`: a log of nvidia-smi, or the output of another vendor's tool, as points."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from infersiege_agents import loop, options, outlet
from infersiege_agents.columns import Meaning, mapping_of
from infersiege_agents.console import say
from infersiege_agents.csvlog import LONGEST_INTERVAL_S, Fault, Log, zone_of
from infersiege_agents.errors import TARGET, USAGE, AgentError
from infersiege_agents.tool import NOT_THERE, Command, ToolSampler, command_of

EXAMPLES = """\
examples:
  nvidia-smi --query-gpu=timestamp,index,uuid,pci.bus_id,name,utilization.gpu,memory.used,memory.total,power.draw \\
             --format=csv -l 1 > smi.csv
  infersiege-agent csv smi.csv --host gpu-3 --tz Europe/Berlin --influx-url http://10.0.0.5:8086
  infersiege-agent csv --command 'rocm-smi --showuse --showpower --showmeminfo vram --csv' --out gpu.jsonl
  infersiege-agent csv --command 'npu-smi info -t usages -i 0' --command 'npu-smi info -t usages -i 1' --out gpu.jsonl
  infersiege-agent csv --command 'mytool' --map 'Load(%)=utilization' --map 'Id=index' --out gpu.jsonl

rocm-smi and npu-smi are read as their documentation and published outputs have it; neither was tried on such hardware.
"""

_SHOWN_FAULTS = 20
_LAST_POINTS = 5_000
"""So many are sent while the outlet closes."""
_ROOM_EVERY = 2_000
_TIME = options.seconds(0.05, 1e9)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-parser."""
    parser = commands.add_parser(
        "csv",
        help="Take GPU figures from nvidia-smi's CSV, or from another vendor's tool.",
        description="Import a log that `nvidia-smi --query-gpu=timestamp,… --format=csv` wrote (FILE, or - for "
        "standard input), or run a tool each interval and read what it prints (--command). Points go to the "
        "measurement gpu.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the log; - reads standard input")
    parser.add_argument("--host", metavar="NAME", help="the points' tag host  [default: this host's name]")
    parser.add_argument("--tz", metavar="ZONE", help="zone of the log's time stamps  [default: this machine's]")
    parser.add_argument("--columns", metavar="LIST", help="for a log without a header: the list that --query-gpu had")
    parser.add_argument("--gpu", metavar="ID", help="for a log of one GPU without uuid, pci.bus_id or index: its name")
    parser.add_argument(
        "--map", action="append", default=[], metavar="COLUMN=TARGET", help="what a column means; may be repeated"
    )
    tool = parser.add_argument_group("with --command")
    tool.add_argument(
        "--command", action="append", default=[], metavar="TEXT", help="a tool; may be repeated", dest="tools"
    )
    tool.add_argument(
        "--env", action="append", default=[], metavar="VARIABLE",
        help="a variable of the environment that the tools need; they get no tokens and keys; may be repeated",
    )  # fmt: skip
    tool.add_argument("--shell", action="store_true", help="run the commands by the shell")
    tool.add_argument("--interval", type=_TIME, default=1.0, metavar="S", help="from sample to sample  [default: 1]")
    tool.add_argument("--timeout", type=_TIME, default=5.0, metavar="S", help="of one command  [default: 5]")
    tool.add_argument("--seconds", type=_TIME, metavar="S", help="end after this time")
    tool.add_argument(
        "--expect", type=options.count(1024), metavar="N", help="devices there should be  [default: those seen]"
    )
    options.add_with_parent(tool)
    outlet.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0; 2 when rows could not be read; 4 when the database did not take all, or a tool can't be run."""
    if bool(args.tools) == (args.file is not None):
        raise AgentError("name either a FILE or --command", hint="infersiege-agent csv --help shows examples of both")
    host = (args.host or socket.gethostname()).strip() or "unknown"
    mapping = mapping_of(args.map)
    if args.tools:
        commands = [
            command_of(text, shell=args.shell, timeout_s=args.timeout, environ=os.environ, keep=args.env)
            for text in args.tools
        ]
        return _watch(args, commands, host, mapping)
    columns = None if args.columns is None else [name.strip() for name in args.columns.split(",")]
    _refuse_own_input(args.file, args.out)
    with _opened(args.file) as lines, loop.sigterm_interrupts():
        log = Log(lines, host=host, mapping=mapping, zone=zone_of(args.tz), columns=columns, device=args.gpu)
        return _import(args, log)


# -------------------------------------------------------------------------------------------------------------- import


def _import(args: argparse.Namespace, log: Log) -> int:
    name = "standard input" if args.file == "-" else args.file
    out = outlet.open_outlet(args, source="import")
    points = torn = faults = 0
    try:
        for one in log.points():
            if isinstance(one, Fault):
                torn, faults = torn + one.torn, faults + (not one.torn)
                if torn + faults <= _SHOWN_FAULTS:
                    say(f"{'note' if one.torn else 'warning'}: {name}:{one.line}: {one.text}")
                continue
            out.put(one)
            points += 1
            if points % _ROOM_EVERY == 0 or args.file == "-":
                out.tick()
                out.wait_for_room()
        out.wait_for_room(points=_LAST_POINTS)
    except AgentError as error:
        raise AgentError(f"{name}: {error}", hint=error.hint, exit_code=error.exit_code) from None
    except OSError as error:
        raise AgentError(f"{name}: can't be read: {error.strerror or error}") from None
    finally:
        say(out.close())
    if torn + faults > _SHOWN_FAULTS:
        say(f"warning: {name}: {torn + faults - _SHOWN_FAULTS:,} more such lines")
    if log.ignored:
        say(f"note: {name}: columns that are left out: {', '.join(sorted(log.ignored))}")
    if not points:
        raise AgentError(
            f"{name}: holds no sample of a GPU", hint="record with --query-gpu=timestamp,uuid,… --format=csv"
        )
    print(f"{name}: {points:,} points" + (f", {faults:,} lines with faults" if faults else ""))
    if out.lost or out.waiting:
        return TARGET
    return USAGE if faults else 0


def _refuse_own_input(name: str, out: Path | None) -> None:
    """Raises AgentError when the log is the file that the points would be appended to, by whatever name."""
    if out is None:
        return
    try:
        same = os.path.samestat(os.fstat(0) if name == "-" else Path(name).stat(), out.stat())
    except OSError:  # one of them is not there
        return
    if same and out.is_file():
        raise AgentError(f"--out {out}: is the log that is read", hint="name another file with --out")


@contextlib.contextmanager
def _opened(name: str) -> Iterator[IO[str]]:
    """The log as text. PowerShell writes UTF-16; whatever is no text becomes question marks, and faults."""
    if name == "-":
        yield sys.stdin
        return
    path = Path(name)
    try:
        with path.open("rb") as file:
            start = file.read(2)
        encoding = "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
        lines = path.open(encoding=encoding, errors="replace", newline="\n")
    except OSError as error:
        raise AgentError(f"{name}: can't be read: {error.strerror}", hint="is it the file of nvidia-smi?") from None
    with lines:
        yield lines


# --------------------------------------------------------------------------------------------------------------- watch


def _watch(args: argparse.Namespace, commands: Sequence[Command], host: str, mapping: Mapping[str, Meaning]) -> int:
    out = outlet.open_outlet(args, source="gpu")
    sampler = ToolSampler(
        commands, out, host=host, mapping=mapping, expect=args.expect, tell=say,
        longest_interval_s=max(LONGEST_INTERVAL_S, 3 * args.interval),
    )  # fmt: skip
    tried = False

    def sample() -> None:
        nonlocal tried
        faults = sampler.sample()
        missing = [fault for fault in faults if fault.code in NOT_THERE]
        if missing and not tried:  # it will not appear later; any other fault may pass
            raise AgentError(str(missing[0]), hint="install it, or write its whole path", exit_code=TARGET)
        tried = True

    try:
        ended = loop.run_every(args.interval, sample, seconds=args.seconds, with_parent=args.with_parent)
        say(f"ended: {ended}")
    finally:
        say(out.close())
    return out.exit_code if sampler.devices else TARGET
