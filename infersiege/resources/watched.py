"""Which series of GPUs and engines belong to a run: those of its hosts and channels.

A database is often shared. Addresses such as 127.0.0.1:8000 mean another engine on each host, so they are compared
together with the host that measured them.
"""

from __future__ import annotations

import ipaddress
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from infersiege.records import SeriesRow
from infersiege.resources.series import COLUMNS, SECOND_NS, Building, Series

NAMED_AT_MOST: Final = 8
"""So many hosts or engines are listed in a note."""

Address = tuple[str, int | None]
"""(host, port); no port: a name that the agent was given for the engine."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Every series of a run that belongs to it."""

    gpus: tuple[Series, ...] = ()
    """GPUs and MIG slices, by host and NVML index."""
    hosts: tuple[Series, ...] = ()
    engines: tuple[Series, ...] = ()
    silent: tuple[str, ...] = ()
    """Hosts of the plan of which there is no point at all, though there are some of other hosts."""
    by_channel: bool = False
    """The engines are those at the channels' addresses; else they are all that could be this run's."""
    notes: tuple[str, ...] = ()
    """What was left out: for the run's warnings."""

    def __bool__(self) -> bool:
        return bool(self.gpus or self.hosts or self.engines)


def gather(
    rows: Iterable[SeriesRow],
    *,
    span_ns: tuple[int, int],
    hosts: Sequence[str] = (),
    instances: Iterable[str] = (),
    here: Iterable[str] = (),
) -> Watched:
    """The series of a run from its points, in any order; memory is a few numbers per point.

    `span_ns`: points outside belong to another run. `hosts`: [telemetry] hosts of the plan. `instances`: host:port of
    the plan's channels. `here`: hosts that the requests went out from, the master's and its workers'; for them alone
    a loopback address is the channel's.
    """
    found: dict[tuple[str, ...], Building] = {}
    times = _Times(span_ns)
    for row in rows:
        names = COLUMNS.get(row.measurement)
        if names is None or (hosts and row.measurement != "engine" and row.tags.get("host") not in hosts):
            continue
        if not times.holds(row):
            continue
        key = _key(row)
        building = found.get(key)
        if building is None:
            building = found[key] = Building(
                row.measurement, dict(row.tags), names, columns=[array("d") for _ in names]
            )
        building.add(row)
    made = {key: Series(building) for key, building in sorted(found.items())}
    owner = _Owner(hosts, instances, here)
    engines = owner.engines([series for key, series in made.items() if key[0] == "engine"])
    kept = owner.of_hosts([series for key, series in made.items() if key[0] != "engine"])
    told = {series.tags.get("host", "") for series in (*kept, *engines)}
    return Watched(
        gpus=tuple(sorted((one for one in kept if one.measurement == "gpu"), key=_by_index)),
        hosts=tuple(one for one in kept if one.measurement == "gpu_host"),
        engines=tuple(engines),
        silent=tuple(host for host in hosts if host not in told) if kept else (),
        by_channel=owner.by_channel,
        notes=(*owner.notes, *times.notes(), *_unbelieved(found.values())),
    )


class _Times:
    """Tells points of the run's time from others, and which hosts have only others."""

    def __init__(self, span_ns: tuple[int, int]) -> None:
        self._span_ns = span_ns
        self._outside: dict[tuple[str, str], list[int]] = {}
        """(what, host) -> [points, the one nearest to the run's time in ns from it; negative: before]."""
        self._inside: set[tuple[str, str]] = set()

    def holds(self, row: SeriesRow) -> bool:
        start_ns, end_ns = self._span_ns
        key = "engines" if row.measurement == "engine" else "GPUs", row.tags.get("host", "")
        if start_ns <= row.at_ns <= end_ns:
            self._inside.add(key)
            return True
        away_ns = row.at_ns - (start_ns if row.at_ns < start_ns else end_ns)
        seen = self._outside.setdefault(key, [0, away_ns])
        seen[0] += 1
        seen[1] = min(seen[1], away_ns, key=abs)
        return False

    def notes(self) -> list[str]:
        return [
            f"series of {what} of {host or 'a host without a name'}: {points:,} points, none in the run's time (the "
            f"nearest is {abs(away_ns) / SECOND_NS:,.0f} s {'before' if away_ns < 0 else 'after'} it): are the clocks "
            "right?"
            for (what, host), (points, away_ns) in self._outside.items()
            if (what, host) not in self._inside
        ]


def _unbelieved(found: Iterable[Building]) -> list[str]:
    """One line for all values that can't be, whatever the series."""
    fields: Counter[str] = Counter()
    for building in found:
        for name, count in building.unbelieved.items():
            fields[f"{building.measurement}.{name}"] += count
    if not fields:
        return []
    most = [f"{name} ({count:,})" for name, count in fields.most_common()]
    return [
        f"{fields.total():,} values of GPUs and engines are out of range and count as missing: {_listed(most)}: what "
        "wrote these points is not to be trusted"
    ]


class _Owner:
    """Says which series are the run's."""

    def __init__(self, hosts: Sequence[str], instances: Iterable[str], here: Iterable[str]) -> None:
        self._named = tuple(hosts)
        self._here = tuple(dict.fromkeys(host for host in here if host))
        channels = [_address(instance) for instance in instances]
        self._far: list[Address] = [one for one in channels if not is_loopback(one[0])]
        ports = [port for host, port in channels if is_loopback(host)]
        self._near: list[Address] = [(host, port) for host in self._here for port in ports]
        self._anywhere = set() if self._here else set(ports)
        """Ports at loopback of a run that does not say on which host it ran."""
        self._local_only = bool(channels) and not self._far and bool(self._here)
        self.by_channel = False
        self.notes: list[str] = []

    def engines(self, found: Sequence[Series]) -> list[Series]:
        ours = [one for one in found if self._is_channel(one)]
        if ours or not found:
            self.by_channel = bool(ours)
            return ours
        # No channel's own address: a gateway lies between.
        near = [one for one in found if _any_alike(_place(one)[0], (*self._named, *self._here))]
        if self._local_only or (self._named and near):
            self._note_left_out("engines", found, near, engine_names(found))
            return near
        return list(found)

    def _is_channel(self, series: Series) -> bool:
        host, port = _place(series)
        if is_loopback(_address(series.tags.get("instance", ""))[0]) and port in self._anywhere:
            return True
        return any(port == wanted and alike(host, name) for name, wanted in (*self._near, *self._far))

    def of_hosts(self, found: Sequence[Series]) -> list[Series]:
        """GPUs and their hosts. Those that the plan names were picked before."""
        names = list(dict.fromkeys(one.tags.get("host", "") for one in found))
        if self._named or not names:
            return list(found)
        if self._local_only:
            near = [one for one in found if _any_alike(one.tags.get("host", ""), self._here)]
            self._note_left_out("GPUs", found, near, names)
            return near
        return list(found)

    def _note_left_out(self, what: str, found: Sequence[Series], near: Sequence[Series], names: Sequence[str]) -> None:
        if found and not near:
            self.notes.append(
                f"series of {what} are left out ({_listed(names)}): the channels are at loopback addresses, and none "
                f"of these is on {_listed(self._here)} ([telemetry] hosts names hosts that belong to this run)"
            )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED_AT_MOST])
    return f"{shown} and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else shown


# ------------------------------------------------------------------------------------------------------------ names


def is_loopback(host: str) -> bool:
    """A name that means another machine on each machine."""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")


def alike(one: str, other: str) -> bool:
    """The same host, whether with its domain or without."""
    one, other = one.lower().rstrip("."), other.lower().rstrip(".")
    if one == other:
        return True
    short, full = sorted((one, other), key=len)
    return bool(short) and "." not in short and full.partition(".")[0] == short and not _is_ip(full)


def _any_alike(host: str, names: Iterable[str]) -> bool:
    return any(alike(host, name) for name in names)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _address(instance: str) -> Address:
    host, _, port = instance.lower().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        return instance, None
    return host.removeprefix("[").removesuffix("]"), int(port)


def _place(series: Series) -> Address:
    """Where an engine really is: a loopback address is on the host that measured it."""
    host, port = _address(series.tags.get("instance", ""))
    return (series.tags.get("host", "") if is_loopback(host) else host), port


def _key(row: SeriesRow) -> tuple[str, ...]:
    """Which series a point belongs to.

    Two agents that scrape one engine make one series, by whatever address each of them does it.
    """
    tag = row.tags.get
    host = tag("host", "")
    if row.measurement == "gpu":
        return "gpu", host, tag("uuid", "")
    if row.measurement == "gpu_host":
        return "gpu_host", host
    instance = tag("instance", "")
    at, port = _address(instance)
    if port is None:
        return "engine", tag("engine", ""), host, instance
    return "engine", tag("engine", ""), host.lower() if is_loopback(at) else at, str(port)


def _by_index(series: Series) -> tuple[str, float, str]:
    index = series.column("index")
    known = index[np.isfinite(index)]
    return series.tags.get("host", ""), float(known[-1]) if known.size else np.inf, series.tags.get("uuid", "")


def engine_names(engines: Sequence[Series]) -> list[str]:
    """`127.0.0.1:8000`; with the host where several have that address: `127.0.0.1:8000 on gpu-2`."""
    instances = [one.tags.get("instance", "") or "engine" for one in engines]
    seen = Counter(instances)
    return [
        name if seen[name] == 1 else f"{name} on {one.tags.get('host', '')}"
        for name, one in zip(instances, engines, strict=True)
    ]
