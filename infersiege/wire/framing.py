"""HTTP/1.1: the bytes of a request, and one response cut by httptools (llhttp)."""

from __future__ import annotations

from typing import Any

import httptools

from infersiege.wire.exchange import Request

HttpError = httptools.HttpParserError


def request_bytes(request: Request, authority: str, *, keep_alive: bool, origin: str = "") -> bytes:
    """Head and body. `origin` stands before the path (`http://host`) where the request is a proxy's to forward.

    Raises ValueError for a line break in path or headers.
    """
    lines = [f"POST {origin}{request.path} HTTP/1.1", f"host: {authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if not keep_alive:
        lines.append("connection: close")
    lines.append(f"content-length: {len(request.body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a request header or path")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + request.body


class Framing:
    """State of one response. Feed it reads; take (and clear) `bodies` after each.

    Informational responses (1xx) before the final one are dropped: llhttp calls them complete messages as well.
    """

    __slots__ = (
        "_collected",
        "_parser",
        "bodies",
        "complete",
        "ends_at_eof",
        "feed",
        "has_headers",
        "headers",
        "on_body",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.on_body = self.bodies.append  # no Python frame per piece
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        """Lower-case names; the last of repeated ones, but of Set-Cookie all, each on a line of its own."""
        self.has_headers = False
        self.complete = False
        self.reusable = False
        """The connection may carry another request."""
        self.ends_at_eof = False
        """Neither a length nor chunks: the end of the connection is the end of the body, and llhttp never tells."""
        self._collected: dict[str, str] = {}
        self._parser: Any = httptools.HttpResponseParser(self)
        self.feed: Any = self._parser.feed_data
        """Takes bytes or a memoryview; raises HttpError on what is no HTTP."""

    def close(self) -> None:
        """Break the reference cycle with the parser, so that nothing is left to the garbage collector."""
        self._parser = self.feed = None

    @property
    def is_stream(self) -> bool:
        """The body is events: status 200 and their content type."""
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        return self.status == 200 and kind == "text/event-stream"

    @property
    def encoding(self) -> str:
        """The content encoding."""
        return self.headers.get("content-encoding", "identity").strip().lower()

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "set-cookie" and key in self._collected:  # the one header whose values can't be joined by commas
            text = f"{self._collected[key]}\n{text}"
        self._collected[key] = text

    def on_headers_complete(self) -> None:
        headers, self._collected = self._collected, {}
        status = self._parser.get_status_code()
        if 100 <= status < 200 or self.complete:
            return
        self.status = status
        self.headers = headers
        self.has_headers = True
        self.ends_at_eof = "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "")

    def on_message_complete(self) -> None:
        if self.has_headers:
            # Asked here: afterwards the parser has forgotten. A second response to one request spoils the connection.
            self.reusable = not self.complete and self._parser.should_keep_alive()
            self.complete = True
