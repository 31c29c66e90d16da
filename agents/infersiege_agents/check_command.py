"""`infersiege-agent check`."""

from __future__ import annotations

import argparse
import sys

from infersiege_agents.errors import TARGET, AgentError
from infersiege_agents.influx.server import check
from infersiege_agents.outlet import URL_VARIABLE, add_database_options, database_of


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="Write a point to InfluxDB and read it back.",
        description="Write one test point (measurement infersiege_check) with the time of now, and read it back. "
        "Exits with 0 when points are taken, with 4 when not.",
        epilog="example: infersiege-agent check --influx-url http://127.0.0.1:8086 --influx-bucket infersiege",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_database_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    target = database_of(args)
    if target is None:
        raise AgentError("which database?", hint=f"name it with --influx-url, or set {URL_VARIABLE}")
    found = check(target)
    if found.ok is False:
        raise AgentError(found.seen, hint=found.hint, exit_code=TARGET)
    print(f"{'ok' if found.ok else 'note'}: {found.seen}")
    if found.hint:
        print(f"hint: {found.hint}", file=sys.stderr)
    return 0
