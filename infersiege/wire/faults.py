"""What a failed connection is called, and what is said about it."""

from __future__ import annotations

import errno
import os
import ssl

from infersiege.records import ErrorClass
from infersiege.wire.exchange import Fault

_SPENT = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


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
