"""What a failed connection or a passed deadline is called, and what is said about it."""

from __future__ import annotations

import errno
import os
import ssl

from infersiege.records import ErrorClass
from infersiege.wire.exchange import Deadlines, Fault

_SPENT = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})

Deadline = tuple[int, ErrorClass, str]
"""(when, class, detail)."""


def is_ours(error: OSError) -> bool:
    """This machine ran out of something (descriptors, ports, buffers): not the server's fault."""
    return error.errno in _SPENT


def connect_fault(error: OSError, where: str, *, shaking: bool) -> Fault:
    """`shaking`: TCP had connected, the TLS handshake failed."""
    if is_ours(error):
        return Fault(error_class=ErrorClass.CLIENT_RESOURCE, detail=f"cannot connect to {where}: {plain(error)}")
    if shaking or isinstance(error, ssl.SSLError):
        return Fault(error_class=ErrorClass.TLS, detail=f"TLS handshake with {where} failed: {plain(error)}")
    return Fault(error_class=ErrorClass.CONNECT, detail=f"cannot connect to {where}: {plain(error)}")


def plain(error: OSError) -> str:
    """The error in words, without number and source line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error).lower()


def connect_deadline(begun_ns: int, limits: Deadlines, where: str) -> Deadline:
    what = f"no connection to {where} within {_seconds(limits.connect_ns)}"
    return begun_ns + limits.connect_ns, ErrorClass.TIMEOUT_CONNECT, what


def answer_deadline(sent_ns: int, last_ns: int | None, limits: Deadlines) -> Deadline:
    """The nearest one once the request is being sent. `last_ns`: the last read of an answer that has begun."""
    total = (sent_ns + limits.total_ns, ErrorClass.TIMEOUT_TOTAL, f"not over after {_seconds(limits.total_ns)}")
    if last_ns is None:
        what = f"no token within {_seconds(limits.first_token_ns)}"
        other = (sent_ns + limits.first_token_ns, ErrorClass.TIMEOUT_FIRST_TOKEN, what)
    else:
        what = f"nothing came for {_seconds(limits.idle_ns)} in mid-answer"
        other = (last_ns + limits.idle_ns, ErrorClass.TIMEOUT_IDLE, what)
    return min(total, other)


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:g} s"
