"""One write request: influxdb-client under a hard deadline, and its answer put into what a sender has to do."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import FrameType

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.domain.write_precision import WritePrecision
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as LateError

from infersiege_agents.influx.answers import Verdict, advice, one_line, redacted, verdict_of, words_of
from infersiege_agents.influx.target import Target

MOST_RETRY_AFTER_S = 300.0
"""A server that asks for more patience than this is asked again all the same."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    verdict: Verdict
    words: str = ""
    """One line for people: what was seen and what to do."""
    status: int | None = None
    retry_after_s: float | None = None
    late: bool = False
    """It was not there within the time: a smaller request may be."""
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
            return Answer(Verdict.LATER, f"{self._target.url}: no answer within {within_s:.3g} s", late=True)

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
                return self._failed(str(error.reason))
            return answer_of(target, int(error.status), error.body, error.headers or {}, began)
        except (HTTPError, OSError, ValueError) as error:  # ValueError: http.client on a header
            if isinstance(error, LateError) and not isinstance(error, NewConnectionError):
                raise _DeadlineError from None  # urllib3 counts the same time as we do, and may be first
            self.close()
            return self._failed(_in_words(error))
        last = self._client.api_client.last_response
        return answer_of(target, int(last.status), last.data, last.getheaders(), began)

    def _failed(self, words: str) -> Answer:
        return Answer(Verdict.LATER, f"{self._target.url}: {one_line(redacted(words, self._target))}")

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(HTTPError, OSError):
                client.close()  # type: ignore[no-untyped-call]


def answer_of(
    target: Target, status: int, body: bytes | str | None, headers: Mapping[str, str], began: float
) -> Answer:
    """What an answer to a write means; `began` is the time.time() of the request."""
    lower = {name.lower(): value for name, value in headers.items()}
    said = words_of(body, target)
    verdict = verdict_of(status, said)
    words = f"{target.url}: {status} {said}".rstrip()
    if verdict in (Verdict.UNCLEAR, Verdict.REFUSED):
        words += f": {advice(target, status, said, lower)}"
    return Answer(
        verdict,
        "" if verdict is Verdict.TAKEN else words,
        status,
        _retry_after_s(lower, time.time()) if status in (429, 503) else None,
        clock_offset_s=_clock_offset_s(lower, began, time.time()),
    )


def _raise_deadline(_signal: int, _frame: FrameType | None) -> None:
    raise _DeadlineError


def _in_words(error: BaseException) -> str:
    """`Connection refused` rather than urllib3's nested representations of it.

    A ValueError is not quoted: that of http.client on a header holds the header, and the header the token.
    """
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        cause = next((one for one in error.args if isinstance(one, BaseException)), None)
        inner = cause or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if isinstance(error, UnicodeDecodeError):  # influxdb-client on a body
        return "its answer is no text"
    if isinstance(error, ValueError) and not isinstance(error, HTTPError):
        return "no request can be made of this address and this token"
    return str(error) or type(error).__name__


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3); None when absent or unreadable."""
    text = headers.get("retry-after") or ""
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
        server = parsedate_to_datetime(headers.get("date") or "").timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return round((began + ended) / 2 - (server + 0.5))
