"""One HTTP request under one deadline: whatever a server does, it ends in time and says what happened."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable

import pytest
import scripted_server
from infersiege_agents.influx.http import UnreachableError, request
from infersiege_agents.influx.target import Target
from infersiege_agents.timed_http import Answer, Origin, TooLargeError, ask

Script = Callable[[scripted_server.Peer], None]


def raw(*pieces: bytes, pause: float = 0.0) -> Script:
    def script(peer: scripted_server.Peer) -> None:
        peer.read_some()
        peer.send(*pieces, pause=pause)

    return script


def asked(port: int, *, scheme: str = "http", host: str = "127.0.0.1", path: str = "/x", deadline_s: float = 5.0,
          body: bytes | None = None) -> Answer:  # fmt: skip
    method = "GET" if body is None else "POST"
    return ask(Origin(scheme, host, port), method, path, headers={}, body=body, deadline_s=deadline_s, most_bytes=1000)


def test_an_answer_has_its_parts_and_any_status_is_one() -> None:
    seen: list[bytes] = []

    def script(peer: scripted_server.Peer) -> None:
        got = b""
        while not got.endswith(b"points"):
            got += peer.read_some()
        seen.append(got)
        peer.send(scripted_server.whole(b"gone", "410 Gone", "text/plain", "X-Why: because\r\n"))

    with scripted_server.Server(script) as server:
        began = time.time()
        answer = asked(server.port, body=b"points")
    assert (answer.status, answer.reason, answer.body, answer.headers["x-why"]) == (410, "Gone", b"gone", "because")
    assert began <= answer.sent_s <= answer.read_s <= time.time()
    assert seen[0].startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:") and seen[0].endswith(b"\r\n\r\npoints")


SLOW: list[tuple[str, str, Script]] = [
    ("nothing", "http", lambda peer: peer.wait_for_end()),
    ("a head drop by drop", "http", raw(*[bytes([c]) for c in b"HTTP/1.1 200 OK\r\n"] * 3, pause=0.05)),
    ("a body drop by drop", "http", raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b"x"] * 40, pause=0.05)),
    ("chunks drop by drop", "http", raw(scripted_server.STREAM_HEAD, *[b"1\r\nx\r\n"] * 40, pause=0.05)),
    ("a TLS handshake without an answer", "https", lambda peer: peer.wait_for_end()),
]


@pytest.mark.parametrize(("scheme", "script"), [pytest.param(s, script, id=name) for name, s, script in SLOW])
def test_the_deadline_is_over_all_of_it(scheme: str, script: Script) -> None:
    with scripted_server.Server(script) as server:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asked(server.port, scheme=scheme, deadline_s=0.3)
        assert time.monotonic() - began < 1.5


FAULTS: list[tuple[str, Script, type[Exception]]] = [
    ("more than asked for", raw(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1001), TooLargeError),
    ("a body cut by length", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"), http.client.IncompleteRead),
    ("a body cut in chunks", raw(scripted_server.STREAM_HEAD, b"9\r\nshort"), http.client.IncompleteRead),
    ("no HTTP", raw(b"SSH-2.0-OpenSSH_9.6\r\n"), http.client.HTTPException),
    ("no answer", raw(), http.client.HTTPException),
]


@pytest.mark.parametrize(("script", "error"), [pytest.param(s, error, id=name) for name, s, error in FAULTS])
def test_what_is_no_whole_answer_is_an_error(script: Script, error: type[Exception]) -> None:
    with scripted_server.Server(script) as server, pytest.raises(error):
        asked(server.port)


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example", ".", "no-such-host.invalid"])
def test_a_host_that_can_t_be_one_is_a_host_without_an_address(host: str) -> None:
    """Python's codec for names raises UnicodeError, which is no OSError: it went through all nets."""
    with pytest.raises(socket.gaierror):
        asked(8086, host=host)
    with pytest.raises(UnreachableError, match="the name is not known"):
        request(Target(f"http://{host}:8086"), "/ping", {}, timeout_s=5)


def test_a_path_that_can_t_be_asked_for_is_an_http_error() -> None:
    with scripted_server.Server(raw()) as server, pytest.raises(http.client.HTTPException):
        asked(server.port, path="/é")


def test_a_database_that_cuts_its_answer_has_not_answered() -> None:
    """Half a result of a query would be taken for a whole one."""
    with (
        scripted_server.Server(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}")) as server,
        pytest.raises(UnreachableError, match="in the middle of its answer"),
    ):
        request(Target(server.url), "/query", {}, timeout_s=5)


def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is ::1 first on many hosts, where nobody listens."""
    answer = raw(scripted_server.whole(b"ok", "200 OK", "text/plain"))
    with scripted_server.Server(answer) as server, scripted_server.dead_port() as dead:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (dead, server.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: places)
        assert asked(server.port, host="two.example").body == b"ok"
