"""What waits in a spool, for people: by writer, by database, and as lines for the start of the next writer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infersiege_agents.influx import losses, spool
from infersiege_agents.influx.target import Target


@dataclass(frozen=True, slots=True)
class Held:
    """One writer's directory."""

    directory: Path
    owner: Target | None
    """The database that its points are for, without the token; None: that can't be read any more."""
    living: bool
    """A writer or its sender works in it."""
    points: int
    """That wait."""
    refused: int
    """Lines that the database refused for good."""
    began_ns: int
    """When its writer was started."""

    @property
    def database(self) -> str:
        """In words."""
        if self.owner is None:
            return "a database that nobody knows any more (meta.json can't be read)"
        org = f", org {self.owner.org}" if self.owner.org else ""
        return f"{self.owner.url} (bucket {self.owner.bucket}{org})"


def survey(place: Path) -> list[Held]:
    """Every writer's directory in a spool, the oldest first. Raises OSError when the spool can't be read."""
    found = []
    for directory in spool.writers(place):
        with contextlib.suppress(FileNotFoundError):  # its writer has finished at this moment
            living = spool.living(directory)
            listing = spool.listing(directory)
            torn = 0 if living else sum(path.read_bytes().count(b"\n") for path in directory.glob("*.open"))
            began_ns = int(directory.name.rpartition("-")[2])
            points = listing.spooled + torn
            found.append(Held(directory, spool.owner(directory), living, points, listing.rejected, began_ns))
    return found


def notices(place: Path, target: Target) -> list[str]:
    """What is worth a line when a writer to `target` starts: points for other databases, and refused ones.

    An unreadable spool is no notice: whoever can't write to it says so.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        held = survey(place)
        others = [one for one in held if one.points and (one.owner is None or one.owner.identity != target.identity)]
        for database, points in by_database(others).items():
            known = any(one.owner is not None for one in others if one.database == database)
            sent = "the next writer to that database sends them; " if known else ""
            other = "another one" if known else "one that is named"
            lines.append(
                f"{points:,} points for {database} wait in {place}: {sent}"
                f"`infersiege-agent spool send` sends them to {other}"
            )
        refused = sum(one.refused for one in held if not one.living)
        if refused:
            lines.append(
                f"{refused:,} points that a database refused for good lie in {place} (*.bad, with its words in *.why); "
                "`infersiege-agent spool drop --refused` deletes them"
            )
    return lines


def settle_losses(place: Path, target: Target, own: Path) -> int:
    """Points that killed writers to this database took with them. Each loss is found by one writer only.

    A directory that is in use is left to the sender, which looks again.
    """
    points = 0
    with contextlib.suppress(OSError):
        for directory in spool.writers(place):
            owner = spool.owner(directory)
            if directory == own or owner is None or owner.identity != target.identity or not losses.lost(directory):
                continue
            with contextlib.suppress(OSError):
                if (lock := spool.claim(directory)) is not None:
                    try:
                        points += losses.settle(directory)
                    finally:
                        os.close(lock)
    return points


def by_database(held: Iterable[Held]) -> dict[str, int]:
    """Database in words -> points that wait for it."""
    points: dict[str, int] = {}
    for one in held:
        points[one.database] = points.get(one.database, 0) + one.points
    return points
