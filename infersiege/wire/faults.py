"""What a failed connection is called, and what is said about it."""

from __future__ import annotations

import errno
import os
import ssl

from infersiege.channels.proxy import Proxy, proxy_refusal
from infersiege.records import ErrorClass
from infersiege.wire.exchange import ExchangeResult, Fault

_SPENT = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


def is_ours(error: OSError) -> bool:
    """This machine ran out of something (descriptors, ports, buffers): not the server's fault."""
    return error.errno in _SPENT


class ProxyError(OSError):
    """A proxy answered, and made no connection. Its text goes after `the proxy host:port`."""


def connect_fault(error: OSError, where: str, *, shaking: bool, proxy: Proxy | None = None) -> Fault:
    """`shaking`: TCP had connected (through `proxy`, if there is one), the TLS handshake failed."""
    if proxy is not None and isinstance(error, ProxyError):
        return proxy_fault(proxy, str(error))
    if proxy is not None and not shaking and not is_ours(error):
        return Fault(error_class=ErrorClass.CONNECT, detail=f"cannot use the proxy {proxy.place}: {plain(error)}")
    if is_ours(error):
        return Fault(error_class=ErrorClass.CLIENT_RESOURCE, detail=f"cannot connect to {where}: {plain(error)}")
    if shaking or isinstance(error, ssl.SSLError):
        return Fault(error_class=ErrorClass.TLS, detail=f"TLS handshake with {where} failed: {plain(error)}")
    return Fault(error_class=ErrorClass.CONNECT, detail=f"cannot connect to {where}: {plain(error)}")


def proxy_fault(proxy: Proxy, said: str) -> Fault:
    """`said`: what the proxy did, as the end of a sentence."""
    return Fault(error_class=ErrorClass.CONNECT, detail=f"the proxy {proxy.place} {said}")


def answer_of_proxy(result: ExchangeResult, proxy: Proxy | None) -> Fault | None:
    """Take an answer out of `result` that a forwarding proxy gave in the server's place; None: it is the server's.

    Its status, headers and body are nothing that the server said.
    """
    refusal = proxy_refusal(result.status, result.headers) if proxy is not None and result.status is not None else None
    if refusal is None or proxy is None:
        return None
    result.status, result.headers, result.body = None, {}, b""
    return proxy_fault(proxy, refusal)


def plain(error: OSError) -> str:
    """The error in words, without number and source line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error).lower()
