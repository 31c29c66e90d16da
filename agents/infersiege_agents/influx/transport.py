"""One write request: influxdb-client under a hard deadline, and its answer put into what a sender has to do."""

from __future__ import annotations

import contextlib
import enum
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import FrameType
from typing import Any

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.domain.write_precision import WritePrecision
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from infersiege_agents.influx.target import Target

MOST_RETRY_AFTER_S = 300.0
"""A server that asks for more patience than this is asked again all the same."""


class Verdict(enum.Enum):
    """What an answer means for the lines of the request."""

    TAKEN = "taken"
    BAD_LINES = "bad lines"
    """Some line is wrong, or the request too large: smaller ones tell which."""
    LATER = "later"
    """The server or the way to it fails: it may be well again by itself."""
    REFUSED = "refused"
    """Somebody has to do something: token, database, address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    verdict: Verdict
    words: str = ""
    """One line for people: what was seen and what to do."""
    status: int | None = None
    retry_after_s: float | None = None
    clock_offset_s: int | None = None
    """This host's clock minus the server's, rounded to a second; None without a Date or after a slow answer."""


class _DeadlineError(BaseException):
    """Raised by SIGALRM, wherever the request stands. Not an Exception, so that no library takes it for its own."""


class Transport:
    """Writes line protocol to one target. For the main thread of a process of its own: the deadline is SIGALRM.

    urllib3's time-outs are per read: a server that sends a byte now and then would hold a request for ever.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: InfluxDBClient | None = None
        signal.signal(signal.SIGALRM, _raise_deadline)

    def write(self, lines: bytes, within_s: float) -> Answer:
        """One request; returns within that time. Never raises for what a server or a network does."""
        try:
            # Repeated: an exception that a destructor swallows would be the end of the deadline.
            signal.setitimer(signal.ITIMER_REAL, within_s, 1.0)
            try:
                return self._write(lines, within_s)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _DeadlineError:
            self.close()
            return Answer(Verdict.LATER, f"{self._target.url}: no answer within {within_s:.3g} s")

    def _write(self, lines: bytes, within_s: float) -> Answer:
        began = time.time()
        target = self._target
        try:
            if self._client is None:
                self._client = InfluxDBClient(target.url, token=target.token, org=target.org, enable_gzip=True)
            self._client.api_client.configuration.timeout = within_s * 1000
            api = self._client.write_api(write_options=SYNCHRONOUS)
            api.write(target.bucket, target.org, lines, WritePrecision.NS)  # type: ignore[arg-type]  # its values are plain texts
        except ApiException as error:
            if not error.status:
                return Answer(Verdict.LATER, f"{target.url}: {_one_line(str(error.reason))}")
            return answer_of(target, int(error.status), _message(error.body), error.headers or {}, began)
        except (HTTPError, OSError, ValueError) as error:
            self.close()
            return Answer(Verdict.LATER, f"{target.url}: {_in_words(error)}")
        headers: Mapping[str, str] = self._client.api_client.last_response.getheaders()
        return Answer(Verdict.TAKEN, status=204, clock_offset_s=_clock_offset_s(headers, began, time.time()))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(HTTPError, OSError):
                client.close()  # type: ignore[no-untyped-call]


def answer_of(target: Target, status: int, message: str, headers: Mapping[str, str], began: float) -> Answer:
    """What an answer other than 2xx means. `message` is the server's own."""
    seen = f"{target.url}: {status} {message}".rstrip()
    verdict, advice = Verdict.REFUSED, "the address is not that of a database that takes writes"
    if status in (400, 413, 422):
        verdict, advice = Verdict.BAD_LINES, ""
    elif status in (401, 403):
        advice = f"check the token, and that it may write to {target.bucket!r}"
    elif status == 404 and ("bucket" in message or "database" in message):
        advice = (
            f"create it: influx bucket create --name {target.bucket} (2.x), "
            f"influx -execute 'CREATE DATABASE \"{target.bucket}\"' (1.8)"
        )
    elif status == 404:
        advice = "no /api/v2/write there; InfluxDB 1.8, 2.x, 3.x and VictoriaMetrics have it"
    elif status in (408, 425, 429) or status >= 500:
        verdict, advice = Verdict.LATER, ""
    return Answer(
        verdict,
        f"{seen}: {advice}" if advice else seen,
        status,
        _retry_after_s(headers, time.time()) if status in (429, 503) else None,
        _clock_offset_s(headers, began, time.time()),
    )


def _raise_deadline(_signal: int, _frame: FrameType | None) -> None:
    raise _DeadlineError


def _message(body: Any) -> str:
    """The server's words: `message` (2.x, 3.x) or `error` (1.x) of a JSON body, else its text."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            text = str(found.get("message") or found.get("error") or text)
    return _one_line(text)


def _one_line(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _in_words(error: BaseException) -> str:
    """`Connection refused` rather than urllib3's nested representations of it."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        cause = next((one for one in error.args if isinstance(one, BaseException)), None)
        inner = cause or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _one_line(str(error) or type(error).__name__)


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3); None when absent or unreadable."""
    text = headers.get("Retry-After") or ""
    try:
        wait = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait), MOST_RETRY_AFTER_S)


def _clock_offset_s(headers: Mapping[str, str], began: float, ended: float) -> int | None:
    """The Date header has whole seconds, cut off: the server's clock stood half a second later on average."""
    if ended - began > 2:
        return None
    try:
        server = parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return round((began + ended) / 2 - (server + 0.5))
