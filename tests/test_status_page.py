"""The status page of a run, over real sockets: what it says, what it refuses, and that no client can disturb it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import logging
import math
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import msgspec
import pytest
from siege import Siege, plan_text

from infersiege.errors import UsageError
from infersiege.report.live import LiveState
from infersiege.swarm.exposure import Login
from infersiege.swarm.status_html import PAGE
from infersiege.swarm.status_page import StatusBoard, StatusPage

STATE = LiveState(
    now_ns=5,
    stage="main",
    phase="steady",
    elapsed_ns=61_000_000_000,
    left_ns=30_000_000_000,
    users=1234,
    in_flight=7,
    turns_per_second=12.5,
    tokens_per_second=2345.0,
    ttft_p50_ns=23_400_000,
    ttft_p99_ns=1_234_000_000,
    planned=100,
    closed=50,
    failed=2,
    error_share=0.04,
    workers_alive=1,
    workers=2,
    note="waiting for open turns",
)


def board() -> StatusBoard:
    made = StatusBoard("a <b>bold</b> run", emulated=True, grafana="http://127.0.0.1:3000")
    made.show(STATE)
    return made


@contextmanager
def served(state: Callable[[], dict[str, Any]], *, host: str = "127.0.0.1", **options: Any) -> Iterator[int]:
    """The port of a page that is served by the event loop of a thread, as by the master's."""
    ready, over = threading.Event(), threading.Event()
    ports: list[int] = []

    def loop() -> None:
        with StatusPage(host, 0, state, **options) as page:
            ports.append(page.port)
            ready.set()
            while not over.is_set():
                gevent.sleep(0.01)
        gevent.get_hub().destroy()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert ready.wait(10), "the page did not start"
        yield ports[0]
    finally:
        over.set()
        thread.join(10)
        assert not thread.is_alive(), "the page did not close"


def ask(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def send(port: int, data: bytes, *, shut: bool = True) -> bytes:
    """Everything that the server answers to these bytes, until it closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        # It need not read all that was sent: the connection may be gone before, or between, any of these.
        with contextlib.suppress(OSError):
            client.sendall(data)
            if shut:
                client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while block := client.recv(65536):
                answer += block
    return answer


ANSWERS = [
    ("GET", "/", 200, "text/html", "the page"),
    ("GET", "/?refresh=1", 200, "text/html", "a query changes nothing"),
    ("HEAD", "/", 200, "text/html", "what a link checker asks"),
    ("GET", "/status.json", 200, "application/json", "the figures"),
    ("GET", "/health", 200, "text/plain", "what compose asks"),
    ("GET", "/../../etc/passwd", 404, "text/plain", "no files are served"),
    ("GET", "/%2e%2e/etc/passwd", 404, "text/plain", "nor by another spelling"),
    ("GET", "//status.json", 404, "text/plain", "one name for each thing"),
    ("POST", "/", 405, "text/plain", "read-only"),
    ("PUT", "/status.json", 405, "text/plain", "read-only"),
    ("DELETE", "/health", 405, "text/plain", "read-only"),
    ("OPTIONS", "/", 405, "text/plain", "no other page may ask for anything"),
]


def test_each_request_has_its_answer_and_every_answer_the_strict_headers() -> None:
    with served(board().snapshot) as port:
        for method, path, status, kind, reason in ANSWERS:
            answer, body = ask(port, path, method)
            assert answer.status == status, (method, path, reason)
            headers = {name.lower(): value for name, value in answer.getheaders()}
            assert headers["content-type"] == f"{kind}; charset=utf-8", (method, path)
            assert int(headers["content-length"]) == len(body) or method == "HEAD"
            assert (body == b"") is (method == "HEAD"), (method, path)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["content-security-policy"].startswith("default-src 'none'; ")
            assert "access-control-allow-origin" not in headers, "other pages may not read it"
            assert "server" not in headers
            assert (headers.get("allow") == "GET, HEAD") is (status == 405)


TOKEN, LOGIN = "0123456789abcdef", "me:right horse: battery"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


LOGINS: list[tuple[str, str | None, int, str]] = [
    (LOGIN, None, 401, "a stranger"),
    (LOGIN, basic(LOGIN), 200, "as a browser sends it; the password may have colons"),
    (LOGIN, basic(LOGIN).replace("Basic", "bAsIc"), 200, "schemes know no case"),
    (LOGIN, basic("me:right horse: batter"), 401, "nearly"),
    (LOGIN, basic("you:right horse: battery"), 401, "another user"),
    (LOGIN, basic("me:"), 401, "no password"),
    (LOGIN, basic("me"), 401, "no colon"),
    (LOGIN, f"Bearer {LOGIN}", 401, "a login is no token"),
    (LOGIN, "Basic !!!", 401, "no base64"),
    (LOGIN, "Basic /////w==", 401, "no UTF-8"),
    (LOGIN, "Digest username=me", 401, "another scheme"),
    (LOGIN, LOGIN, 401, "no scheme"),
    (LOGIN, "", 401, "an empty header"),
    (TOKEN, f"Bearer {TOKEN}", 200, "a token"),
    (TOKEN, basic(f"anybody:{TOKEN}"), 200, "in a browser: as the password"),
    (TOKEN, basic(f"{TOKEN}:"), 401, "not as the user"),
    (TOKEN, f"Bearer {TOKEN[:-1]}", 401, "nearly"),
    (TOKEN, "Bearer", 401, "none"),
    (TOKEN, None, 401, "a stranger"),
]


def test_a_login_is_asked_for_everything_but_health() -> None:
    for value, header, status, reason in LOGINS:
        with served(board().snapshot, login=Login(value)) as port:
            for path in ("/", "/status.json", "/elsewhere"):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", path, headers={} if header is None else {"Authorization": header})
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                assert answer.status == (404 if status == 200 and path == "/elsewhere" else status), (reason, path)
                if status == 401:
                    assert answer.headers["www-authenticate"] == 'Basic realm="infersiege", charset="UTF-8"'
                    assert b"INFERSIEGE_WEB_LOGIN" in body and b"bold" not in body and value.encode() not in body
            assert ask(port, "/health")[0].status == 200, "what compose asks"
            assert ask(port, "/", "HEAD")[0].status == 401


HOSTS = [
    ("127.0.0.1:8089", 200, "an address"),
    ("[::1]:8089", 200, "an address in brackets"),
    ("192.0.2.7", 200, "any address: a name is what can be pointed elsewhere"),
    ("localhost:1", 200, "the port is a tunnel's"),
    ("LocalHost.", 200, "names know no case"),
    (f"{socket.gethostname()}:8089", 200, "this host's name, behind 0.0.0.0"),
    (None, 200, "no browser leaves it out"),
    ("evil.example:8089", 403, "a stranger's name that points here"),
    ("127.0.0.1.evil.example", 403, "it only looks like an address"),
    ("localhost.evil.example", 403, "it only looks like localhost"),
    ("[::1].evil.example", 403, "nor in brackets"),
    ("", 403, "no name"),
]


def test_another_sites_name_is_no_way_in() -> None:
    """DNS rebinding: the script of a page under a stranger's name must not read a run."""
    with served(board().snapshot) as port:
        for host, status, reason in HOSTS:
            header = b"" if host is None else f"Host: {host}\r\n".encode()
            answer = send(port, b"GET /status.json HTTP/1.0\r\n" + header + b"\r\n", shut=False)
            assert answer.startswith(b"HTTP/1.1 %d " % status), (host, reason, answer[:80])
            assert (b'"run"' in answer) is (status == 200), reason
    with served(board().snapshot, host="localhost") as port:
        assert ask(port, "/health", host="localhost")[0].status == 200


def test_the_policy_allows_what_the_page_holds_and_nothing_else() -> None:
    with served(board().snapshot) as port:
        answer, body = ask(port, "/")
    page, policy = body.decode(), answer.headers["content-security-policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    assert directives["frame-ancestors"] == directives["form-action"] == directives["base-uri"] == "'none'"
    assert re.findall(r"(?:src|@import|url\()\s*=?", page) == [], "it loads nothing"
    assert re.findall(r"https?://", page) == [], "and names no other place"
    assert re.findall(r" (?:style|on\w+)=", page) == [], "the policy forbids both"
    assert "innerHTML" not in page and "eval" not in page, "a run's name is not markup"


def test_the_script_reads_only_what_is_there() -> None:
    """A renamed field of LiveState fails here and not in a browser."""
    (script,) = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    script = script.replace('"status.json"', "")
    live, status = set(re.findall(r"\blive\.(\w+)", script)), set(re.findall(r"\bstatus\.(\w+)", script))
    assert live <= set(LiveState.__struct_fields__), live
    assert {"users", "ttft_p99_ns", "error_share", "workers_alive"} <= live
    assert status <= set(board().snapshot()) and "live" in status
    ids = set(re.findall(r'id="([\w-]+)"', PAGE))
    assert set(re.findall(r'\bat\("([\w-]+)"\)', script)) == ids


def test_status_holds_each_figure_of_the_live_view() -> None:
    with served(board().snapshot) as port:
        _, body = ask(port, "/status.json")
    status = json.loads(body)
    assert status.keys() == {"run", "emulated", "grafana", "live"}
    assert (status["run"], status["emulated"]) == ("a <b>bold</b> run", True)
    assert status["live"] == msgspec.to_builtins(STATE)


def test_before_the_load_there_are_no_figures_and_what_is_not_known_is_null() -> None:
    made = StatusBoard("early")
    with served(made.snapshot) as port:
        assert json.loads(ask(port, "/status.json")[1]) == {
            "run": "early",
            "emulated": False,
            "grafana": None,
            "live": None,
        }
        made.show(msgspec.structs.replace(STATE, tokens_per_second=math.nan, ttft_p99_ns=None))
        live = json.loads(ask(port, "/status.json")[1])["live"]
    assert live["tokens_per_second"] is None and live["ttft_p99_ns"] is None


def test_a_fault_in_the_state_is_logged_and_the_page_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    faults = [RuntimeError("a fault of ours")]

    def state() -> dict[str, Any]:
        if faults:
            raise faults.pop()
        return {"run": "well again", "live": None}

    with served(state) as port, caplog.at_level(logging.ERROR):
        answer, body = ask(port, "/status.json")
        assert answer.status == 500 and b"a fault of ours" not in body
        assert ask(port, "/health")[0].status == 200
        assert json.loads(ask(port, "/status.json")[1])["run"] == "well again"
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_taken_port_is_one_clear_error(free_port: Callable[[], int]) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"^--web 127.0.0.1:{port}: can't listen there: ") as told:
            StatusPage("127.0.0.1", port, board().snapshot).start()
    assert told.value.hint is not None and "port 0 takes any free one" in told.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_one_clear_error(host: str) -> None:
    with pytest.raises(UsageError, match=f"^--web {host}:0: can't listen there: "):
        StatusPage(host, 0, board().snapshot).start()


def test_it_listens_on_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with served(board().snapshot, host="::1") as port:
        assert ask(port, "/health", host="::1")[0].status == 200


STRANGERS = [
    (b"junk\r\n\r\n", "not HTTP"),
    (bytes(range(256)) * 200, "binary"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "somebody tries TLS"),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", "a header without end"),
    (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", "a path without end"),
    (b"GET / HTTP/9.9\r\n\r\n", "no such version"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nabc", "a body that does not come"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broken chunks"),
    (b"GET / HT", "gone within its request"),
    (b"", "gone at once"),
]


def test_no_stranger_disturbs_it(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with served(board().snapshot) as port:
        for data, reason in STRANGERS:
            answer = send(port, data)
            assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d ", answer), (reason, answer[:200])
            assert b"Traceback" not in answer
            assert ask(port, "/health")[0].status == 200, reason
    assert capfd.readouterr().err == "", "the terminal belongs to the run"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"".join(b"x-%d: 1\r\n" % n for n in range(150)), 431),
        (b"x: " + b"a" * 70_000 + b"\r\n", 400),
        (b"content-length: many\r\n", 400),
    ],
    ids=["more headers than http.client takes", "a longer line than gevent takes", "no number"],
)
def test_a_head_that_cannot_be_read_prints_nothing(head: bytes, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    with served(board().snapshot) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 %d " % status)
        assert ask(port, "/health")[0].status == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def test_silent_clients_lose_their_place() -> None:
    """More connections than there are places, and none of them says anything."""
    with served(board().snapshot, patience_s=0.3) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(100)]
        try:
            assert ask(port, "/health")[0].status == 200
        finally:
            for client in silent:
                client.close()


def test_closing_waits_for_nobody_and_frees_the_port() -> None:
    with served(board().snapshot) as port:
        kept = socket.create_connection(("127.0.0.1", port), timeout=10)
        kept.sendall(b"GET / HTTP/1.1\r\n")
        assert ask(port, "/health")[0].status == 200
        begun = time.monotonic()
    assert time.monotonic() - begun < 5, "it waited for a client"
    kept.close()
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/health")


def test_closing_twice_or_without_a_start_does_nothing() -> None:
    page = StatusPage("127.0.0.1", 0, board().snapshot)
    page.close()
    page.start()
    page.close()
    page.close()
    assert page.port == 0


@pytest.mark.parametrize(("address", "fault"), [("{taken}", "can't listen there"), ("8089", "not an address")])
def test_a_run_whose_page_can_not_be_shown_does_not_begin(siege: Siege, address: str, fault: str) -> None:
    """A mistake on the command line: no request was sent, and no run directory is left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address.format(taken=f"127.0.0.1:{taken.getsockname()[1]}")
        plan, out = siege.folder / "plan.toml", siege.folder / "run"
        plan.write_text(plan_text("http://127.0.0.1:9/v1"), encoding="utf-8")
        code, said = siege.command("run", str(plan), "--out", str(out), "--web", address)
    assert code == 2, said
    assert said.startswith(f"error: --web {address}: {fault}"), said
    assert len(said.splitlines()) == 2 and not out.exists()


@pytest.mark.slow
def test_a_browser_shows_the_figures() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: the page's script was not run")
    with served(board().snapshot) as port:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
        shown = subprocess.run(
            [*command, "--dump-dom", f"http://127.0.0.1:{port}/"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    cells = dict(re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", shown))
    assert cells == {
        "users": "1,234",
        "requests in flight": "7",
        "turns/s": "12.5",
        "tokens/s": "2,345",
        "TTFT p50": "23.4 ms",
        "TTFT p99": "1,234 ms",
        "failed turns": "2 (4 %)",
        "turns closed": "50 of 100",
        "workers": "1 of 2",
    }
    assert '<h1 id="run">a &lt;b&gt;bold&lt;/b&gt; run</h1>' in shown
    assert "main · steady · 1 min 1 s · 30 s left" in shown
    assert 'href="http://127.0.0.1:3000"' in shown
