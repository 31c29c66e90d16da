"""What database is there, does it take points and give them back, and InfluxQL queries to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from infersiege_agents.errors import TARGET, AgentError
from infersiege_agents.influx.answers import Asked, Kind, Verdict, advice, parsed, redacted, verdict_of, words_of
from infersiege_agents.influx.answers import quoted as quoted
from infersiege_agents.influx.http import Reply, UnreachableError, request
from infersiege_agents.influx.target import Target
from infersiege_agents.points import Point, line_of

CHECK: Final = "infersiege_check"
"""Measurement of the test point: one series, one point a check."""

_QUICK_S: Final = 5.0
VISIBLE_WITHIN_S: Final = 3.0
"""A point that was taken may show up later: VictoriaMetrics and InfluxDB 3 buffer for about a second."""
_CLOCK_TOLERANCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """The database that answers at a target's URL."""

    kind: Kind
    version: str | None
    clock_offset_s: float | None
    """This host's clock minus the server's, as far as its Date header (whole seconds) tells: 0 within its doubt."""

    @property
    def name(self) -> str:
        title = {"victoriametrics": "VictoriaMetrics", "other": "something else"}.get(self.kind, "InfluxDB")
        if self.version is None:
            return title if title != "InfluxDB" else f"InfluxDB {self.kind[-1]}"
        return f"{title} {self.version}"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer."""

    name: str
    tags: dict[str, str]
    columns: tuple[str, ...]
    values: list[list[Any]]
    """Rows in the order of `columns`; the column `time` is in ns since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What `check` saw, as one line and what to do about it."""

    ok: bool | None
    """None: points are taken, with something to note. False: they are not."""
    seen: str
    hint: str | None = None
    down: bool = False
    """Nothing answers: points would wait in the spool."""
    server: Server | None = None


class TruncatedError(AgentError):
    """A server cut its answer (InfluxDB 1: `max-row-limit`): ask for less at a time."""


# ------------------------------------------------------------------------------------------------------------ identify


def identify(target: Target, *, timeout_s: float = _QUICK_S) -> Server:
    """Who answers at the target's URL.

    Raises UnreachableError (exit code 4) when nobody does, and AgentError when it points elsewhere.
    """
    reply = request(target, "/ping", {}, timeout_s=timeout_s)
    if 300 <= reply.status < 400:
        to = redacted(reply.headers.get("location", "nowhere"), target)
        raise AgentError(
            f"{target.url}: answers {reply.status} and points to {to}",
            hint="put that address into influx_url",
            exit_code=TARGET,
        )
    offset_s = _clock_offset_s(reply)
    version = reply.headers.get("x-influxdb-version", "").removeprefix("v") or _version_in(reply.body)
    build = reply.headers.get("x-influxdb-build", "")
    if version or build:
        return Server(_kind_of(version, build), version or None, offset_s)
    front = request(target, "/", {}, timeout_s=timeout_s)
    text = front.body[:4096].lower()
    if any(word in text for word in (b"victoriametrics", b"vmagent", b"vminsert")):
        return Server("victoriametrics", None, offset_s)
    if reply.status in (401, 403):  # InfluxDB 3 asks for the token even here
        return Server("influxdb 3", None, offset_s)
    return Server("other", None, offset_s)


def _kind_of(version: str, build: str) -> Kind:
    if version.startswith("1."):
        return "influxdb 1"
    if version.startswith("2."):
        return "influxdb 2"
    if version.startswith("3.") or build.lower() in ("core", "enterprise", "cloud"):
        return "influxdb 3"
    return "influxdb 2"


def _version_in(body: bytes) -> str:
    found = parsed(body)
    version = found.get("version") if isinstance(found, dict) else None
    return version.removeprefix("v") if isinstance(version, str) else ""


def _clock_offset_s(reply: Reply) -> float | None:
    """The server's clock was between Date and a second later, at some moment of the request."""
    try:
        date_s = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    least, most = reply.sent_s - (date_s + 1), reply.read_s - date_s
    if least > 0:
        return least
    return most if most < 0 else 0.0


# --------------------------------------------------------------------------------------------------------------- query


def query(target: Target, influxql: str, *, timeout_s: float = 30.0) -> list[Series]:
    """The series of one InfluxQL statement, instants in ns.

    Raises AgentError (exit code 4): UnreachableError when there is no answer in time, TruncatedError when it was cut.
    """
    asked = {"db": target.bucket, "q": influxql, "epoch": "ns"}
    if target.org:
        asked["org"] = target.org
    reply = request(target, "/query", asked, timeout_s=timeout_s)
    found = parsed(reply.body)
    if reply.status != 200:
        raise _refused(target, reply, "a query")
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise AgentError(
            f"{target.url}: answers a query with no result of InfluxQL: {words_of(reply.body, target)}",
            hint="is it an InfluxDB? VictoriaMetrics has no InfluxQL",
            exit_code=TARGET,
        )
    series: list[Series] = []
    for result in found["results"]:
        if "error" in result:
            raise _refused(target, reply, "a query")
        if result.get("partial") or any(one.get("partial") for one in result.get("series", [])):
            raise TruncatedError(
                f"{target.url}: cut its answer", hint="raise max-row-limit in its configuration", exit_code=TARGET
            )
        series += [
            Series(one.get("name", ""), one.get("tags") or {}, tuple(one["columns"]), one.get("values") or [])
            for one in result.get("series", [])
        ]
    return series


def literal(text: str) -> str:
    """A string of InfluxQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


# --------------------------------------------------------------------------------------------------------------- check


def check(
    target: Target,
    *,
    timeout_s: float = _QUICK_S,
    visible_within_s: float = VISIBLE_WITHIN_S,
    clock_ns: Callable[[], int] = time.time_ns,
    host: str | None = None,
) -> Finding:
    """Write one test point with the time of now and read it back with that time. Never raises AgentError.

    It leaves one point in the measurement `infersiege_check`.
    """
    server: Server | None = None
    try:
        server = identify(target, timeout_s=timeout_s)
        at_ns = clock_ns()
        tags = {"host": host or socket.gethostname()}
        # The value names the point: seconds and microseconds of now are exact in a float.
        value = float(at_ns // 1000 % 10**12)
        _write(target, server, Point(CHECK, tags, {"value": value}, at_ns), timeout_s)
        if server.kind == "victoriametrics":
            return _with_clock(_victoria(target, at_ns, timeout_s, visible_within_s), server)
        return _with_clock(_read_back(target, server, at_ns, value, timeout_s, visible_within_s), server)
    except UnreachableError as error:
        return Finding(False, str(error), error.hint, down=True, server=server)
    except AgentError as error:
        return Finding(False, str(error), error.hint, server=server)


def _write(target: Target, server: Server, point: Point, timeout_s: float) -> None:
    """As influxdb-client writes: the same path, the same parameters."""
    asked = {"org": target.org, "bucket": target.bucket, "precision": "ns"}
    reply = request(target, "/api/v2/write", asked, body=line_of(point), timeout_s=timeout_s)
    if verdict_of(reply.status, "") is Verdict.TAKEN:
        return
    if reply.status in (404, 405) and b"not found" in reply.body[:200].lower() and parsed(reply.body) is None:
        what = f"is {server.name}" if server.kind != "other" else "is no InfluxDB"
        raise AgentError(
            f"{target.url}: has no /api/v2/write: it {what}",
            hint="InfluxDB 1.8, 2.x or 3.x, or VictoriaMetrics is needed; is influx_url its address?",
            exit_code=TARGET,
        )
    raise _refused(target, reply, "a write", server)


def _read_back(
    target: Target, server: Server, at_ns: int, value: float, timeout_s: float, visible_within_s: float
) -> Finding:
    where = f"{server.name} at {target.url}"
    ends_s = time.monotonic() + visible_within_s
    while True:
        found = query(
            target, f'SELECT "value" FROM {quoted(CHECK)} WHERE time = {at_ns}',
            timeout_s=timeout_s,
        )  # fmt: skip
        if any(row[1] == value for series in found for row in series.values):
            return Finding(True, f"{where}: a point was written to {target.bucket!r} and read back with its time")
        if time.monotonic() >= ends_s:
            break
        time.sleep(0.2)
    for series in query(target, f'SELECT "value" FROM {quoted(CHECK)} WHERE "value" = {value}', timeout_s=timeout_s):
        times = [int(row[series.columns.index("time")]) for row in series.values]
        if times:
            return Finding(
                False,
                f"{where}: the point of {_utc(at_ns)} came back as one of {_utc(times[-1])}",
                "something on the way reads the time stamps in another precision than ns: a proxy or relay?",
            )
    return Finding(
        False,
        f"{where}: took a point for {target.bucket!r}, and does not find it again",
        "can the token read that bucket, and does its retention reach back at all?",
    )


def _victoria(target: Target, at_ns: int, timeout_s: float, visible_within_s: float) -> Finding:
    """VictoriaMetrics has no InfluxQL: its own export shows the point, cut to ms."""
    note = (
        "InfluxQL is missing there: points are kept for PromQL, but infersiege's dashboards and `report "
        "--with-telemetry` need InfluxDB"
    )
    asked = {"match[]": f"{CHECK}_value", "start": str(at_ns // 10**9 - 60), "end": str(at_ns // 10**9 + 60)}
    request(target, "/internal/force_flush", {}, timeout_s=timeout_s)  # else it shows points some seconds later
    ends_s = time.monotonic() + visible_within_s
    while time.monotonic() < ends_s:
        rows = [parsed(row) for row in request(target, "/api/v1/export", asked, timeout_s=timeout_s).body.splitlines()]
        for row in rows:
            if isinstance(row, dict) and at_ns // 10**6 in row.get("timestamps", ()):
                return Finding(None, f"VictoriaMetrics at {target.url}: a point was written and read back", note)
        time.sleep(0.2)
    return Finding(None, f"VictoriaMetrics at {target.url}: took a point, and does not show it yet", note)


def _with_clock(finding: Finding, server: Server) -> Finding:
    offset_s = server.clock_offset_s
    if offset_s is None or abs(offset_s) <= _CLOCK_TOLERANCE_S or finding.ok is False:
        return Finding(finding.ok, finding.seen, finding.hint, server=server)
    side = "ahead of" if offset_s > 0 else "behind"
    seen = f"{finding.seen}; this host's clock is {abs(offset_s):.0f} s {side} the database's"
    hint = "synchronise both clocks (chrony or NTP): series of several hosts would be shifted against each other"
    return Finding(None, seen, hint if finding.hint is None else f"{finding.hint}; {hint}", server=server)


# ------------------------------------------------------------------------------------------------------------ refusals


def _refused(target: Target, reply: Reply, asked: Asked, server: Server | None = None) -> AgentError:
    """What an answer other than success means."""
    said = words_of(reply.body, target)
    hint = advice(target, reply.status, said, reply.headers, asked=asked, kind=server.kind if server else None)
    seen = f"{target.url}: answers {reply.status} to {asked}" + (f": {said}" if said else "")
    return AgentError(seen, hint=hint, exit_code=TARGET)


def _utc(at_ns: int) -> str:
    try:
        return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"
