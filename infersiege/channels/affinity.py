"""What a server gave a session to carry: cookies and chosen headers. Kept in memory, for one session, and never shown.

The rules are simpler than a browser's, and no laxer. What one server (scheme, host and port) set goes back to that
server alone, whatever `Domain` says; below the `Path` that it named, if it did; a `Secure` cookie only over https. A
lifetime that is over (`Max-Age` of 0 or less, `Expires` in the past) takes the cookie out; a longer one outlives no
session. What can't stand in a request header is not kept.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Sequence

MOST_COOKIES = 50
LONGEST_VALUE = 4096

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x3a\x3c-\x7e]*")
"""Printable ASCII without spaces and semicolons: more than RFC 6265 lets servers send, as browsers take it."""


class Kept:
    """What one server gave one session. Its repr does not show it."""

    def __init__(self, *, secure: bool, path: str, headers: Sequence[str] = ()) -> None:
        """`secure`: the server is reached over https. `path`: of our requests. `headers`: names to send back."""
        self._secure = secure
        self._path = path.partition("?")[0]
        self._names = tuple(name.lower() for name in headers)
        self._cookies: dict[str, str] = {}
        self._headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Kept({len(self._cookies)} cookies, {len(self._headers)} headers)"

    def take(self, headers: dict[str, str], wall_s: float) -> None:
        """Look at an answer's headers (lower-case names; several Set-Cookie on a line each). Never raises."""
        for line in headers.get("set-cookie", "").split("\n"):
            if line.strip():
                self._cookie(line, wall_s)
        for name in self._names:
            value = headers.get(name)
            if value and len(value) <= LONGEST_VALUE and value.isascii() and value.isprintable():
                self._headers[name] = value

    def request_headers(self) -> tuple[tuple[str, str], ...]:
        """To be added to the next request to that server."""
        sent = tuple(self._headers.items())
        if not self._cookies:
            return sent
        return (*sent, ("cookie", "; ".join(f"{name}={value}" for name, value in self._cookies.items())))

    @property
    def values(self) -> tuple[str, ...]:
        """All that must not show up in any output."""
        return (*self._cookies.values(), *self._headers.values())

    def _cookie(self, line: str, wall_s: float) -> None:
        pair, *rest = line.split(";")
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or len(value) > LONGEST_VALUE:
            return
        attributes: dict[str, str] = {}
        for part in rest:
            key, _, given = part.partition("=")
            attributes[key.strip().lower()] = given.strip()
        if _is_over(attributes, wall_s):
            self._cookies.pop(name, None)
        elif self._may_go(attributes) and (name in self._cookies or len(self._cookies) < MOST_COOKIES):
            self._cookies[name] = value

    def _may_go(self, attributes: dict[str, str]) -> bool:
        path = attributes.get("path", "")
        below = not path.startswith("/") or self._path == path or self._path.startswith(path.rstrip("/") + "/")
        return below and (self._secure or "secure" not in attributes)


def _is_over(attributes: dict[str, str], wall_s: float) -> bool:
    """Max-Age goes before Expires (RFC 6265, 5.3)."""
    lifetime = attributes.get("max-age", "")
    if re.fullmatch(r"-?\d{1,15}", lifetime):
        return int(lifetime) <= 0
    try:
        return email.utils.parsedate_to_datetime(attributes["expires"]).timestamp() <= wall_s
    except (KeyError, ValueError, TypeError, OverflowError, IndexError):
        return False
