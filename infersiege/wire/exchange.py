"""What goes into one HTTP exchange and what comes out of it: plain types, no sockets."""

from __future__ import annotations

from typing import Protocol

import msgspec

from infersiege.records import ErrorClass, StampSource


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """The four deadlines of one request, in ns of duration."""

    connect_ns: int
    first_token_ns: int
    idle_ns: int
    total_ns: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One POST. `headers` do not hold host and content-length."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why an exchange did not end by itself. `error_class` None: it was aborted by us (`detail` says why)."""

    error_class: ErrorClass | None
    detail: str


class BodySink(Protocol):
    """Takes the body of a streamed answer (status 200, content type text/event-stream), in order.

    It never raises for bad input of the server: it keeps the fault for its own result. What it raises all the same is
    a bug, which the transport turns into a fault of class `parse`.
    """

    def first(self, stamp_ns: int, earliest_ns: int, body: bytes) -> bool:
        """One read, until the first token was seen (then True). The bytes arrived in [earliest_ns, stamp_ns]."""

    def more(self, reads: list[tuple[int, bytes]]) -> bool:
        """Reads after that, in batches of (stamp_ns, body). True: the stream says it is over (`[DONE]`)."""

    def end(self) -> None:
        """No more bytes will come (complete, cut or aborted)."""

    @property
    def done(self) -> bool:
        """The stream said that it is over; what still comes is drained for at most 250 ms."""

    @property
    def done_ns(self) -> int | None:
        """Stamp of the read in which it said so (reads are handed over in batches); None: it did not."""


class ExchangeResult(msgspec.Struct, kw_only=True):
    """Facts of one exchange. Instants in ns of this process's monotonic clock; None: did not happen."""

    attempt_ns: int
    sent_ns: int | None = None
    sent_end_ns: int | None = None
    first_byte_ns: int | None = None
    closed_ns: int | None = None
    connect_duration_ns: int | None = None
    tls_duration_ns: int | None = None
    reused_connection: bool = False
    attempts: int = 1
    peer: str | None = None
    """`host:port` of the address that was connected."""
    status: int | None = None
    headers: dict[str, str] = {}
    """Lower-case names; the last of repeated ones, but of Set-Cookie all, each on a line of its own."""
    streamed: bool = False
    """The body went to the sink."""
    body: bytes = b""
    """Any other body, at most 8 MiB."""
    complete: bool = False
    """The message ended as HTTP says (last chunk, content length, or EOF where nothing else marks the end)."""
    bytes_in: int = 0
    bytes_out: int = 0
    stamp_source: StampSource = StampSource.USER
    clock_step: bool = False
    fault: Fault | None = None
