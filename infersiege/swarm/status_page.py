"""A small web page on which a run can be watched: read-only, served by the master in its own event loop.

    /             one HTML page that refreshes itself; no file from anywhere else
    /status.json  the same figures, for scripts
    /health       200 as long as the master's loop turns

Nothing here can change a run, and no fault here can end one: it is logged, and the page says 500. With a login (needed
where other hosts can reach it) only /health answers without.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import logging
import re
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import Any

import msgspec
from gevent import socket
from gevent.pywsgi import WSGIHandler, WSGIServer

from infersiege.errors import UsageError
from infersiege.report.live import LiveState
from infersiege.swarm.exposure import LOGIN_VARIABLE, Login
from infersiege.swarm.status_html import PAGE

log = logging.getLogger("infersiege.swarm.status_page")

_CONNECTIONS = 32
"""At the same time; more wait in the kernel's queue. A page is a few hundred bytes each second."""
PATIENCE_S = 10.0
"""For a client's request, and for its reading of the answer."""
_CLOSE_S = 0.5

_STATUS = {
    200: "200 OK",
    401: "401 Unauthorized",
    403: "403 Forbidden",
    404: "404 Not Found",
    405: "405 Method Not Allowed",
    500: "500 Internal Server Error",
}

_LOG_IN = f"""log in with what {LOGIN_VARIABLE} is on the master's host: its user and password, or any user and
its token; scripts: curl --user USER:PASSWORD, or the header Authorization: Bearer TOKEN
""".encode()


class StatusBoard:
    """The last state of one run: the master writes it, the page reads it."""

    def __init__(self, run: str, *, emulated: bool = False, grafana: str | None = None) -> None:
        """`grafana` is the address of its start page, for a link."""
        self.emulated = emulated
        """Known once the target was asked."""
        self._run = run
        self._grafana = grafana
        self._live: LiveState | None = None

    def show(self, state: LiveState) -> None:
        self._live = state

    def note(self, words: str) -> None:
        """The last figures stand; this is what goes on now, for as long as it takes."""
        if self._live is not None:
            self._live = msgspec.structs.replace(self._live, note=words, left_ns=None)

    def snapshot(self) -> dict[str, Any]:
        """`run`, `emulated`, `grafana` (None: no link) and `live`: the fields of LiveState, None before the load."""
        return {
            "run": self._run,
            "emulated": self.emulated,
            "grafana": self._grafana,
            "live": msgspec.to_builtins(self._live),
        }


class StatusPage:
    """Serves one run's state. Use as a context manager, or call `start` and `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        state: Callable[[], dict[str, Any]],
        *,
        login: Login | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`state` is called for each /status.json, in the event loop: it must not block. `port` 0: any free one.

        `login` None: whoever reaches it may watch.
        """
        self._login = login
        self._address = (host, port)
        self._names = frozenset(name.lower().rstrip(".") for name in ("localhost", host, socket.gethostname()))
        self._state = state
        self._patience_s = patience_s
        self._page = PAGE.encode()
        self._headers = _headers(PAGE)
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port in use; 0 before `start`."""
        return self._server.server_port if self._server is not None else 0

    @property
    def url(self) -> str:
        host = self._address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def start(self) -> None:
        """Listen. Raises UsageError when the address can't be had."""
        try:
            listener = _listen(*self._address)
        except OSError as error:
            host, port = self._address
            raise UsageError(
                f"--web {host}:{port}: can't listen there: {error.strerror or error}",
                hint="name an address of this host and a free port, such as 127.0.0.1:8089; port 0 takes any free one",
            ) from None
        server = _Server(listener, self._answer, log=None, error_log=None, handler_class=_Handler, spawn=_CONNECTIONS)
        server.patience_s = self._patience_s
        server.start()
        self._server = server

    def close(self) -> None:
        """Stop within half a second. Never raises; closing twice does nothing."""
        server, self._server = self._server, None
        if server is not None:
            try:
                server.stop(timeout=_CLOSE_S)
            except Exception:  # the run's end is not its business
                log.exception("closing the status page")

    def __enter__(self) -> StatusPage:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        method = environ["REQUEST_METHOD"]
        extra: list[tuple[str, str]] = []
        if not self._is_ours(environ.get("HTTP_HOST")):
            status, kind, body = 403, "text/plain", b"not under this name: use its IP address, or the name in --web\n"
        elif method not in ("GET", "HEAD"):
            status, kind, body = 405, "text/plain", b"read only\n"
            extra = [("Allow", "GET, HEAD")]
        elif self._login is not None and environ["PATH_INFO"] != "/health" and not self._admitted(environ):
            status, kind, body = 401, "text/plain", _LOG_IN
            extra = [("WWW-Authenticate", 'Basic realm="infersiege", charset="UTF-8"')]
        else:
            status, kind, body = self._content(environ["PATH_INFO"])
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *self._headers,
            *extra,
        ]
        start_response(_STATUS[status], headers)
        return [] if method == "HEAD" else [body]

    def _is_ours(self, host: str | None) -> bool:
        """Whether a request was meant for this page. Another site's name that was made to point here (DNS rebinding)
        would let that site's script read it. A name that cannot be given away by a stranger is fine: an IP address,
        localhost, what --web names, and this host's own. None: no browser asks without a Host.
        """
        if host is None:
            return True
        name = _name_of(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def _admitted(self, environ: dict[str, Any]) -> bool:
        return self._login is not None and self._login.admits(environ.get("HTTP_AUTHORIZATION"))

    def _content(self, path: str) -> tuple[int, str, bytes]:
        """(status, content type, body) of one path."""
        if path == "/":
            return 200, "text/html", self._page
        if path == "/health":
            return 200, "text/plain", b"ok\n"
        if path != "/status.json":
            return 404, "text/plain", b"not found: /, /status.json and /health are here\n"
        try:
            return 200, "application/json", msgspec.json.encode(self._state())  # NaN becomes null
        except Exception:  # a view is not worth a run
            log.exception("the state of the run can't be shown")
            return 500, "text/plain", b"the state of the run can't be shown; the master's log says why\n"


def _name_of(host: str) -> str:
    """The name or address in a Host header, without port and brackets."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::\d*)?", host.strip())
    name = bracketed[1] if bracketed else re.sub(r":\d*$", "", host.strip())
    return name.lower().rstrip(".")


def _listen(host: str, port: int) -> Any:
    """A listening socket, IPv4 or IPv6. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def _headers(page: str) -> list[tuple[str, str]]:
    """Headers of every answer: nothing is loaded, run or framed but what `page` itself holds, known by its hash."""
    allowed = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        allowed[tag] = "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src '{allowed['style']}'; script-src '{allowed['script']}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
        # A browser that keeps a connection must not keep one of the few places.
        ("Connection", "close"),
    ]


class _Handler(WSGIHandler):  # type: ignore[misc]
    """gevent's, which would print a traceback into the run's output for what a client does."""

    def _handle_client_error(self, error: Exception) -> tuple[str, bytes]:
        """The whole answer to a request that can't be read."""
        # http.client takes 100 headers.
        status = "431 Request Header Fields Too Large" if isinstance(error, HTTPException) else "400 Bad Request"
        return status[:3], f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-length: 0\r\n\r\n".encode()

    def handle_error(self, kind: type[BaseException], error: BaseException, _trace: object) -> None:
        log.info("a request of the status page: %s: %s", kind.__name__, error)
        self._send_error_response_if_possible(500)


class _Server(WSGIServer):  # type: ignore[misc]
    """gevent's, with a limit on slow clients, and without a traceback for what they send."""

    patience_s = PATIENCE_S

    def handle(self, client: Any, address: Any) -> None:
        client.settimeout(self.patience_s)
        try:
            super().handle(client, address)
        except Exception as error:  # noqa: BLE001  # what a stranger sends is no fault of the run
            log.info("a client of the status page: %s: %s", type(error).__name__, error)
