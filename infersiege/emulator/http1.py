"""HTTP/1.1 on the serving side: whole requests in, bytes out. One request at a time per connection, keep-alive."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from infersiege.emulator.profile import Manner
from infersiege.emulator.refusal import phrase

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request, wholly read at `received_ns` (monotonic clock). Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    received_ns: int


class _BadRequestError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Connection(asyncio.Protocol):
    """One client. The application gets each request and calls `finished` when its answer is written."""

    def __init__(
        self,
        number: int,
        handle: Callable[[Connection, Request], None],
        manner: Manner,
        closed: Callable[[Connection], None],
    ) -> None:
        self.number = number
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the client goes away while its request is open."""
        self._handle = handle
        self._closed = closed
        self._manner = manner
        self._requests = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self._close_after = False
        self._told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A stream is never held back for a slow reader: the model's clock goes on, as an engine's does.
        transport.set_write_buffer_limits(high=1 << 30)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_idle_timer()
        callback, self.on_disconnect = self.on_disconnect, None
        if callback is not None:
            callback()
        self._closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._stop_idle_timer()
        if not self._busy:
            self._next_request()

    def write(self, data: bytes) -> None:
        """One write to the socket; nothing if the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def head(self, status: int, fields: dict[str, str]) -> bytes:
        """Status line and header fields of an answer; the emulator names itself in every one.

        Decides whether the connection stays open after it.
        """
        manner = self._manner
        if status >= 400 and manner.closes_after_error:
            self._close_after = True
        lines = [f"HTTP/1.1 {status} {phrase(status)}", "server: infersiege-emulator", "x-infersiege-emulated: 1"]
        named = dict(manner.fields)
        if manner.dated:
            named["date"] = formatdate(usegmt=True)
        named |= {"connection": "close"} if self._close_after else dict(manner.open_fields)
        lines += [f"{name}: {value}" for name, value in (named | fields).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def whole(self, status: int, body: bytes, content_type: str, fields: dict[str, str] | None = None) -> bytes:
        """A complete answer with its length."""
        told = {"content-type": content_type, "content-length": str(len(body)), **(fields or {})}
        return self.head(status, told) + body

    def whole_json(self, status: int, value: Any, fields: dict[str, str] | None = None) -> bytes:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return self.whole(status, body, self._manner.json_type, fields)

    def stream_head(self, fields: dict[str, str]) -> bytes:
        """The head of a 200 with an event stream."""
        return self.head(200, {**dict(self._manner.stream_fields), "transfer-encoding": "chunked", **fields})

    def finished(self) -> None:
        """The answer is complete: take the next request or close."""
        self.on_disconnect = None
        self._busy = False
        if self._close_after:
            self.close()
        elif self._transport is not None:
            self._start_idle_timer()
            if self._buffer:
                asyncio.get_running_loop().call_soon(self._next_request_if_idle)

    def close(self) -> None:
        """Send what is left and close."""
        self.on_disconnect = None
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.on_disconnect = None
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _next_request_if_idle(self) -> None:
        if not self._busy and self._transport is not None:
            self._next_request()

    def _next_request(self) -> None:
        try:
            request = self._parse()
        except _BadRequestError as error:
            self._close_after = True
            self._busy = True
            self.write(self.whole_json(error.status, {"detail": str(error)}))
            self.finished()
            return
        if request is not None:
            self._stop_idle_timer()
            self._busy = True
            self._requests += 1
            asked_to_close = request.headers.get("connection", "").lower() == "close"
            self._close_after = asked_to_close or self._requests == self._manner.most_requests
            self._handle(self, request)

    def _parse(self) -> Request | None:
        """The next whole request of the buffer, or None as long as it is not all there."""
        end = self._buffer.find(b"\r\n\r\n", self._searched)
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise _BadRequestError(431, "Request Header Fields Too Large")
            self._searched = max(0, len(self._buffer) - 3)
            return None
        self._searched = end  # found again at once while the body is on its way
        method, path, headers = _parse_head(bytes(self._buffer[:end]))
        body_start = end + 4
        if "chunked" in headers.get("transfer-encoding", "").lower():
            found = _chunked_body(self._buffer, body_start)
            if found is None:
                self._answer_expectation(headers)
                return None
            body, consumed = found
        else:
            length = headers.get("content-length", "0")
            if not (length.isascii() and length.isdigit()):
                raise _BadRequestError(400, "Invalid Content-Length")
            if int(length) > _BODY_LIMIT:
                raise _BadRequestError(413, "Request Entity Too Large")
            consumed = body_start + int(length)
            if len(self._buffer) < consumed:
                self._answer_expectation(headers)
                return None
            body = bytes(self._buffer[body_start:consumed])
        del self._buffer[:consumed]
        self._searched = 0
        self._told_to_continue = False
        return Request(method, path, headers, body, time.monotonic_ns())

    def _answer_expectation(self, headers: dict[str, str]) -> None:
        if not self._told_to_continue and headers.get("expect", "").lower() == "100-continue":
            self._told_to_continue = True
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _start_idle_timer(self) -> None:
        if self._manner.idle_timeout_s is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._manner.idle_timeout_s, self.close)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _parse_head(data: bytes) -> tuple[str, str, dict[str, str]]:
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _BadRequestError(400, "Invalid HTTP request received.")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _BadRequestError(400, "Invalid HTTP header received.")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return words[0], words[1].partition("?")[0], headers


def _chunked_body(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """(body, end of it in the buffer), or None as long as it is not all there."""
    parts: list[bytes] = []
    at = start
    while True:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        size_text = bytes(buffer[at:line_end]).partition(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError:
            raise _BadRequestError(400, "Invalid chunk size") from None
        if size < 0 or size > _BODY_LIMIT:
            raise _BadRequestError(413, "Request Entity Too Large")
        at = line_end + 2
        if size == 0:
            # Trailers, if any, end with an empty line.
            if buffer[at : at + 2] == b"\r\n":
                return b"".join(parts), at + 2
            trailers = buffer.find(b"\r\n\r\n", at)
            return None if trailers < 0 else (b"".join(parts), trailers + 4)
        if len(buffer) < at + size + 2:
            return None
        parts.append(bytes(buffer[at : at + size]))
        at += size + 2
