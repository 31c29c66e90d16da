"""Reads what `nvidia-smi --query-gpu=timestamp,… --format=csv -l 1` wrote, row by row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from infersiege_agents.columns import Header, Meaning, header_of, reading_of
from infersiege_agents.errors import AgentError
from infersiege_agents.points import Point

STAMP = "timestamp"
LONGEST_INTERVAL_S = 60.0
"""A point after a longer pause stands for no time that is known."""

_STAMP = re.compile(
    r"(\d{4})[/-](\d\d?)[/-](\d\d?)[ T](\d\d?):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Fault(NamedTuple):
    """A row, or a part of it, that could not be read."""

    line: int
    text: str
    torn: bool = False
    """The last line was cut while it was written: what an end by kill leaves, and no fault of the file."""


def zone_of(text: str | None) -> tzinfo | None:
    """`Europe/Berlin`, `UTC`, `+02:00`; None: this machine's own zone. Raises AgentError."""
    if text is None:
        return None
    if text.upper() in ("UTC", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset:
        sign = -1 if offset[1] == "-" else 1
        if int(offset[2]) < 24 and int(offset[3]) < 60:
            return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise AgentError(
            f"--tz {text!r}: there is no such time zone here", hint="write it like Europe/Berlin, UTC or +02:00"
        ) from None


class Log:
    """One log, read once: `points` gives what it holds."""

    def __init__(
        self,
        lines: Iterable[str],
        *,
        host: str,
        mapping: Mapping[str, Meaning],
        zone: tzinfo | None = UTC,
        columns: Sequence[str] | None = None,
        device: str | None = None,
    ) -> None:
        """`columns`: the list given to --query-gpu, for a log without a header. `device`: the identity of the one GPU
        of a log that has no column for it. `zone` None: this machine's."""
        self._lines = lines
        self._host = host
        self._mapping = mapping
        self._zone = zone
        self._headers: tuple[Header, ...] | None = None
        self._device = device
        self._before: dict[str, int] = {}
        self._latest_ns = 0
        self.ignored: set[str] = set()
        """Columns whose meaning is not known; they are left out."""
        if columns is not None:
            self._use(tuple(header_of(name) for name in columns), "--columns")

    def points(self) -> Iterator[Point | Fault]:
        """Points of the measurement `gpu`, and what could not be read, in file order.

        Raises AgentError when nothing tells the columns, or when no column tells the time or the GPU.
        """
        for number, line in enumerate(self._lines, 1):
            if not line.strip("\x00 \t\r\n\ufeff"):
                continue
            if not line.endswith("\n"):
                yield Fault(number, f"the last line is torn ({len(line)} characters); left out", torn=True)
                continue
            try:
                cells = next(csv.reader([line.strip("\ufeff")], skipinitialspace=True))
            except (csv.Error, StopIteration) as error:
                yield Fault(number, f"is no CSV: {error}")
                continue
            yield from self._row(number, [cell.strip() for cell in cells])

    def _row(self, number: int, cells: list[str]) -> Iterator[Point | Fault]:
        if any(cell.lower() == STAMP for cell in cells):
            self._use(tuple(header_of(cell) for cell in cells), f"line {number}")
            return
        if self._headers is None:
            if any(_STAMP.fullmatch(cell) for cell in cells):
                raise AgentError(
                    f"line {number}: values without a header line: which columns are they?",
                    hint="give --columns with the list that --query-gpu had: --columns timestamp,index,utilization.gpu",
                )
            yield Fault(number, f"comes before the header: {_short(','.join(cells))}")
            return
        if len(cells) != len(self._headers):
            yield Fault(number, f"{len(cells)} values for {len(self._headers)} columns: {_short(','.join(cells))}")
            return
        stamp = cells[[header.name for header in self._headers].index(STAMP)]
        try:
            at_ns = self._at_ns(stamp)
        except ValueError as error:
            yield Fault(number, str(error))
            return
        reading = reading_of(zip(self._headers, cells, strict=True), self._mapping, device=self._device)
        for text in reading.faults:
            yield Fault(number, text)
        uuid = reading.tags["uuid"]
        if not uuid:
            yield Fault(number, "says not which GPU it is of")
            return
        fields = {**reading.fields, "interval": self._interval_s(uuid, at_ns)}
        yield Point("gpu", {"host": self._host, **reading.tags}, fields, at_ns)

    def _use(self, headers: tuple[Header, ...], where: str) -> None:
        names = [header.name for header in headers]
        if STAMP not in names:
            raise AgentError(f"{where}: no column {STAMP}", hint="record with --query-gpu=timestamp,index,uuid,…")
        targets = {self._mapping[name].target for name in names if name in self._mapping}
        if self._device is None and not targets & {"uuid", "pci", "index"}:
            raise AgentError(
                f"{where}: no column tells GPUs apart",
                hint="record with --query-gpu=timestamp,uuid,… (or pci.bus_id, or index); for a log of one GPU name it "
                "with --gpu ID",
            )
        self.ignored |= {name for name in names if name not in self._mapping and name != STAMP}
        self._headers = headers

    def _at_ns(self, text: str) -> int:
        """ns since the Unix epoch. In the hour that a clock goes through twice, time goes on. Raises ValueError."""
        found = _STAMP.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no time stamp")
        try:
            moment = datetime(*(int(part) for part in found.groups()[:6]))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        below_ns = int((found[7] or "").ljust(9, "0"))
        zone = self._zone
        if found[8]:
            try:
                zone = zone_of(found[8])
            except AgentError:
                raise ValueError(f"{text!r}: there is no such offset") from None
        at_ns = _epoch_ns(moment, zone) + below_ns
        if at_ns < self._latest_ns - 1_000_000_000:
            later_ns = _epoch_ns(moment.replace(fold=1), zone) + below_ns
            if later_ns >= self._latest_ns - 1_000_000_000:
                at_ns = later_ns
        self._latest_ns = at_ns
        return at_ns

    def _interval_s(self, uuid: str, at_ns: int) -> float | None:
        before_ns = self._before.get(uuid)
        self._before[uuid] = at_ns
        passed_s = (at_ns - before_ns) / 1e9 if before_ns is not None else 0.0
        return passed_s if 0 < passed_s <= LONGEST_INTERVAL_S else None


def _epoch_ns(moment: datetime, zone: tzinfo | None) -> int:
    """Whole seconds of a local time. `zone` None: this machine's."""
    try:
        aware = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
        return round((aware - _EPOCH).total_seconds()) * 1_000_000_000
    except (OverflowError, OSError) as error:
        raise ValueError(f"{moment}: {error}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")
