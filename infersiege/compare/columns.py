"""From runs to columns: what is the same is one column, and each column has a name that people know it by."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from infersiege.compare.cuts import By, Cut
from infersiege.errors import UsageError
from infersiege.gate.comparable import facts_of, unusable
from infersiege.rundir import PlanFile


class Member(NamedTuple):
    """One run (or a part of it) in a column."""

    path: str
    """Of the run, as it was given."""
    cut: Cut
    facts: Mapping[str, str]
    """What makes runs comparable (gate.comparable), without names of channels where there is one."""
    about: str
    """Engine, version and model."""
    nonce: str
    addresses: frozenset[str]
    """To which it sent."""
    dirty: tuple[str, ...]
    """Stages that began while the engine was busy."""

    @property
    def unusable(self) -> tuple[str, ...]:
        """Why its figures can't be trusted; empty: they can."""
        return unusable(self.cut.summary)


class Source(NamedTuple):
    """A run that was given, and how."""

    members: tuple[Member, ...]
    """The run, or its parts."""
    name: str | None
    """That the user gave its column; None: none."""
    folder: str | None
    """Of a series, a sweep or any folder of runs that was named as one; None: the run itself was."""


class Column(NamedTuple):
    """Runs of the same thing."""

    name: str
    members: tuple[Member, ...]


def member_of(path: str, cut: Cut, by: By | None, file: PlanFile, gpus: Sequence[str]) -> Member:
    """A run, or one part of it by `by`. Raises RunDirectoryError when its plan can't be read."""
    wanted = cut.name if by == "channel" else None
    used = [name for name in file.channels if name in ((wanted,) if wanted else cut.group.channels or file.channels)]
    return Member(
        path=path,
        cut=cut,
        facts=dict(_without_channels(facts_of(file, cut.summary, gpus), file, used)),
        about=", ".join(dict.fromkeys(_about(file, name) for name in used)),
        nonce=file.nonce,
        addresses=frozenset(file.channels[name].url for name in used),
        dirty=tuple(stage.name for stage in file.stages if stage.started_dirty),
    )


def _about(file: PlanFile, name: str) -> str:
    channel = file.channels[name]
    return " ".join(filter(None, (channel.engine, channel.version, channel.model)))


def _without_channels(facts: Mapping[str, str], file: PlanFile, used: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A channel's name is a name: where only one is used, its facts are the run's, and those of others are nobody's."""
    prefixes = {
        f"{kind}.{name}": name
        for name in file.plan.get("channels", file.channels)
        for kind in ("model", "model_answered", "engine", "engine_version", "engine_arguments", "price", "plan.channel")
    }
    for fact, value in facts.items():
        found = [prefix for prefix in prefixes if fact == prefix or fact.startswith(f"{prefix}.")]
        if len(used) != 1:
            yield fact, value
        elif not found:
            yield from _of_workload(fact, value, used[0])
        elif prefixes[prefix := max(found, key=len)] == used[0]:
            yield f"{prefix.removesuffix(f'.{used[0]}')}{fact.removeprefix(prefix)}", value


def _of_workload(fact: str, value: str, channel: str) -> Iterator[tuple[str, str]]:
    """`plan.workload.SCENARIO.CHANNEL.key` (and `trace.`) without the channel; other facts as they are."""
    if not fact.startswith(("plan.workload.", "trace.")):
        yield fact, value
    elif not (fact.endswith(".channel") and value == channel):
        yield fact.replace(f".{channel}.", ".", 1), value


# ------------------------------------------------------------------------------------------------------- grouping


def columns_of(sources: Sequence[Source], *, each: bool) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """(columns in the order of the sources, what to say of how they were made).

    Runs belong together when the user gave them one name, or when they were given alike (in one folder, or one by one)
    and are the same in everything that is known: plan, engine, version, labels, hardware. `each`: every run is alone.
    """
    placed = [(source, member) for source in sources for member in source.members]
    groups = _grouped(placed, lambda source, member: (source.name, member.path) if each else _key(source, member))
    notes = []
    if len(groups) == 1 and len(placed) > 1 and not placed[0][0].name:
        groups = _grouped(placed, lambda source, member: (source.name, member.path))
        notes.append(
            "these runs are the same in everything that is known, so each is a column of its own; give those that "
            "belong together one name (NAME=RUN NAME=RUN)"
        )
    names = _names(groups)
    return (
        tuple(Column(name, tuple(member for _, member in group)) for name, group in zip(names, groups, strict=True)),
        tuple(notes),
    )


Placed = tuple[Source, Member]


def _grouped(placed: Iterable[Placed], key: Callable[[Source, Member], object]) -> list[list[Placed]]:
    groups: dict[object, list[Placed]] = {}
    for source, member in placed:
        groups.setdefault((member.cut.name, key(source, member)), []).append((source, member))
    return list(groups.values())


def _key(source: Source, member: Member) -> object:
    if source.name is not None:
        return source.name
    # Runs of a series may have met their server at another port each time; runs that were named one by one met others.
    where = source.folder if source.folder is not None else member.addresses
    return where, member.cut.summary.name, frozenset(member.facts.items())


# --------------------------------------------------------------------------------------------------------- naming


def _names(groups: Sequence[Sequence[Placed]]) -> list[str]:
    """A name for each column, all different: the user's, else the shortest kind of name that tells them apart."""
    firsts = [group[0] for group in groups]
    kinds: Sequence[Callable[[Source, Member], str]] = (
        lambda source, member: member.cut.summary.name,
        lambda source, member: member.about,
        lambda source, member: f"{member.cut.summary.name} ({member.about})",
        lambda source, member: PurePath(source.folder or member.path).name,
        lambda source, member: PurePath(member.path).name,
        lambda source, member: "/".join(PurePath(member.path).parts[-2:]),
        lambda source, member: member.path,
    )
    parted = any(member.cut.name is not None for _, member in firsts)
    alone = len({member.path for _, member in firsts}) == 1
    for kind in kinds:
        names = []
        for source, member in firsts:
            name = source.name or kind(source, member)
            if parted:
                part = member.cut.name or "all"
                name = part if alone and source.name is None else f"{name}: {part}"
            names.append(name)
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"{number}: {name}" for number, name in enumerate(names, 1)]


def referred(columns: Sequence[Column], name: str | None) -> tuple[Column, ...]:
    """The column of that name first, the others after it. Raises UsageError when there is none."""
    if name is None:
        return tuple(columns)
    for column in columns:
        if name == column.name or name in {member.path for member in column.members}:
            return (column, *(other for other in columns if other is not column))
    known = [column.name for column in columns]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"--reference {name}: there is no such column" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"there are: {', '.join(known)}",
    )
