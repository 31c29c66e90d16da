"""`infersiege-agent spool`: see, send or drop the points that wait on this host."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from infersiege_agents import options
from infersiege_agents.console import say
from infersiege_agents.errors import TARGET, USAGE, AgentError
from infersiege_agents.influx import set_aside
from infersiege_agents.influx import spool as spools
from infersiege_agents.influx.server import check
from infersiege_agents.influx.survey import Held, survey
from infersiege_agents.influx.target import Target
from infersiege_agents.influx.writer import DurableWriter
from infersiege_agents.outlet import CLOSE_WITHIN_S, URL_VARIABLE, add_database_options, database_of

WITHIN_S = 300.0
LONGEST_S = 86_400.0

EXAMPLES = """\
examples:
  infersiege-agent spool list
  infersiege-agent spool send --influx-url http://10.0.0.5:8086
  infersiege-agent spool send --influx-url http://10.0.0.5:8086 http://10.0.0.4:8086
  infersiege-agent spool drop http://10.0.0.4:8086 --yes
  infersiege-agent spool drop --refused --yes
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "spool",
        help="See, send or drop the points that wait on this host.",
        description="Points wait on disk while their database is away, and the next agent or run that writes to the\n"
        "same URL, bucket and organisation sends them. When one of these was corrected, nobody would:\n"
        "`spool send --influx-url URL` does.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    lists = actions.add_parser("list", help="What waits, and for which database.")
    sends = actions.add_parser(
        "send",
        help="Send what waits for another database to the one that is named.",
        description="Takes points that wait for another URL, bucket or organisation, and sends them to the database "
        "that is named here. What it does not take in time waits for it from now on.",
    )
    add_database_options(sends)
    sends.add_argument(
        "--within",
        type=options.seconds(0, LONGEST_S),
        default=WITHIN_S,
        metavar="S",
        help=f"wait so long for the database  [default: {WITHIN_S:.0f}]",
    )
    drops = actions.add_parser(
        "drop",
        help="Delete what waits, or what was refused.",
        description="Deletes points that wait, and points that a database refused. What an agent or a run that goes on "
        "has written is left alone.",
    )
    drops.add_argument("--refused", action="store_true", help="only points that a database refused for good")
    drops.add_argument("--yes", action="store_true", help="delete; without it, only say what would be deleted")
    for action in (sends, drops):
        action.add_argument(
            "what",
            nargs="*",
            metavar="URL|DIRECTORY",
            help="only what waits for that URL, or a directory's name as `spool list` shows it",
        )
    for action, run in ((lists, _list), (sends, _send), (drops, _drop)):
        action.add_argument("--spool", type=Path, metavar="DIR", help="where points wait  [default: as for all agents]")
        action.set_defaults(run=run)


def _held(args: argparse.Namespace) -> tuple[Path, list[Held]]:
    """The spool and what is in it. Raises AgentError when it can't be read."""
    place: Path = args.spool or spools.spool_directory(os.environ)
    try:
        return place, survey(place)
    except OSError as error:
        raise AgentError(
            f"telemetry spool {place}: {error.strerror or error}", hint="name it with --spool; who may read it?"
        ) from None


def _list(args: argparse.Namespace) -> int:
    place, held = _held(args)
    held = [one for one in held if one.points or one.refused or one.living]
    if not held:
        print(f"nothing waits in {place}")
        return 0
    for database in dict.fromkeys(one.database for one in held):
        print(database)
        for one in held:
            if one.database == database:
                began = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(one.began_ns / 1e9))
                refused = f", {one.refused:,} refused" if one.refused else ""
                state = ", in use" if one.living else ""
                print(f"  {one.points:>9,} points wait{refused}  {one.directory.name}  (since {began}{state})")
    print(f"in {place}")
    return 0


def _chosen(held: Sequence[Held], what: Sequence[str]) -> list[Held]:
    """Those of the URLs and directories named; all when none is. Raises AgentError for a name that fits nothing."""
    if not what:
        return list(held)
    chosen: list[Held] = []
    for name in what:
        url, last = name.rstrip("/"), Path(name).name
        found = [one for one in held if (one.owner is not None and one.owner.url == url) or one.directory.name == last]
        if not found:
            raise AgentError(
                f"{name}: nothing waits under that name",
                hint="`infersiege-agent spool list` shows URLs and directories",
                exit_code=USAGE,
            )
        chosen += [one for one in found if one not in chosen]
    return chosen


# ---------------------------------------------------------------------------------------------------------------- send


def _send(args: argparse.Namespace) -> int:
    target = database_of(args)
    if target is None:
        raise AgentError("to which database?", hint=f"name it with --influx-url, or set {URL_VARIABLE}")
    place, held = _held(args)
    waiting = _chosen([one for one in held if one.points], args.what)
    others = [one for one in waiting if one.owner is None or one.owner.identity != target.identity]
    databases = list(dict.fromkeys(one.database for one in others))
    if len(databases) > 1 and not args.what:
        raise AgentError(
            f"points for {len(databases)} other databases wait: {'; '.join(databases)}",
            hint="name the one whose points are meant: its URL, or a directory of `infersiege-agent spool list`",
            exit_code=USAGE,
        )
    if not waiting:
        print(f"nothing waits in {place}")
        return 0
    found = check(target)
    if found.ok is False:
        raise AgentError(f"{found.seen}; nothing was changed", hint=found.hint, exit_code=TARGET)
    return _deliver(target, place, [one.directory for one in waiting if _readdressed(one, target)], args.within)


def _readdressed(one: Held, target: Target) -> bool:
    """From now on its points are for `target`. False: its writer lives, and they stay as they are."""
    try:
        lock = spools.claim(one.directory)
        if lock is None:
            say(f"note: {one.directory.name} is in use: its {one.points:,} points are left for {one.database}")
            return False
        try:
            spools.recover(one.directory)
            if one.owner is None or one.owner.identity != target.identity:
                spools.write_owner(one.directory, target)
        finally:
            os.close(lock)
    except OSError as error:
        raise AgentError(f"{one.directory}: {error.strerror or error}", hint="who may write to it?") from None
    return True


def _deliver(target: Target, place: Path, directories: Sequence[Path], within_s: float) -> int:
    """By a writer that has nothing to write: its sender takes up what waits."""
    before = left = _left(directories)
    writer = DurableWriter(target, place, source="spool")
    writer.start()
    ends = time.monotonic() + within_s
    try:
        while left and time.monotonic() < ends and writer.problem is None:
            time.sleep(0.1)
            writer.tick()
            left = _left(directories)
    except KeyboardInterrupt:
        writer.close(0)
        raise
    counters = writer.close(min(CLOSE_WITHIN_S, within_s))
    left = _left(directories)
    refused = max(0, before - left - counters.taken_up)
    print(
        f"{target.url}: {counters.taken_up:,} points sent"
        + (f", {left:,} still wait in {place}" if left else "")
        + (f", {refused:,} rejected (set aside in {place})" if refused else "")
    )
    for reason in (writer.problem if left else None, writer.refusal if refused else None):
        if reason:
            say(f"warning: {reason}")
    return TARGET if left or refused else 0


def _left(directories: Sequence[Path]) -> int:
    """Points that still wait there. A directory that is gone has none."""
    points = 0
    for directory in directories:
        with contextlib.suppress(OSError):
            points += spools.listing(directory).spooled
    return points


# ---------------------------------------------------------------------------------------------------------------- drop


def _drop(args: argparse.Namespace) -> int:
    place, held = _held(args)
    dead = [one for one in _chosen(held, args.what) if not one.living]
    found = [one for one in dead if one.refused or (one.points and not args.refused)]
    points = 0 if args.refused else sum(one.points for one in found)
    refused = sum(one.refused for one in found)
    what = " and ".join(
        text
        for count, text in ((points, f"{points:,} points that wait"), (refused, f"{refused:,} refused ones"))
        if count
    )
    if not found:
        print(f"nothing to delete in {place}")
        return 0
    if not args.yes:
        raise AgentError(
            f"{what} in {len(found)} directories of {place} would be deleted", hint="--yes does it", exit_code=USAGE
        )
    for one in found:
        _delete(one, refused_only=args.refused)
    print(f"{what} deleted")
    return 0


def _delete(one: Held, *, refused_only: bool) -> None:
    """Raises AgentError."""
    try:
        lock = spools.claim(one.directory)
        if lock is None:
            say(f"note: {one.directory.name} is in use now: left alone")
            return
        try:
            set_aside.drop(one.directory)
            if not refused_only:
                spools.drop_waiting(one.directory)
            spools.remove_finished(one.directory)
        finally:
            os.close(lock)
    except OSError as error:
        raise AgentError(f"{one.directory}: {error.strerror or error}", hint="who may write to it?") from None
