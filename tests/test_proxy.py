"""The transport through real proxies on real sockets: tunnels, absolute form, and proxies that fail in every way."""

from __future__ import annotations

import _socket
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gevent
import pytest
from gevent.monkey import get_original
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Peer, Server, answering, black_hole, dead_port, sleep, stream, whole
from siege import Siege, check_conserved, plan_text
from test_transport import DONE, GOOD, ROLE, STOP, Rig, certificate, fault_of, kernel_stamps, rig, server_context, text

from infersiege.channels.proxy import Proxy, proxy_of
from infersiege.errors import PlanError, UsageError
from infersiege.plan.load import load_plan
from infersiege.records import ErrorClass, Outcome, StampSource
from infersiege.wire.exchange import ExchangeResult

__all__ = ["certificate", "kernel_stamps", "rig"]  # fixtures of the transport's tests

MS = 1_000_000
wait_readable = get_original("select", "select")
Script = Callable[[Peer], None]


class Relay:
    """What a proxy does: reads one head, connects where it says, and copies bytes both ways until one side ends."""

    def __init__(
        self,
        *,
        to: int | None = None,
        delay: float = 0.0,
        cut_after: int | None = None,
        answer: bytes | None = None,
        at_once: bool = False,
    ) -> None:
        """`to`: the port of loopback that every name leads to; None: the one that is asked for. `cut_after`: bytes of
        the server after which it resets the client. `answer`: of CONNECT, in place of its 200, which
        goes out line by line or `at_once`."""
        self.heads: list[bytes] = []
        self._to, self._delay, self._cut_after = to, delay, cut_after
        self._at_once = at_once
        self._answer = answer or b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n"

    def __call__(self, peer: Peer) -> None:
        head = read_head(peer)
        if not head:
            return
        self.heads.append(head)
        request, _, rest = head.partition(b"\r\n")
        method, target, version = request.split(b" ")
        server = _socket.socket()
        if method == b"CONNECT":
            server.connect(("127.0.0.1", self._to or int(target.rpartition(b":")[2])))
            sleep(self._delay)
            pieces = [self._answer] if self._at_once else self._answer.splitlines(keepends=True)
            peer.send(*pieces, pause=0.005)
        else:
            authority, _, path = target.removeprefix(b"http://").partition(b"/")
            server.connect(("127.0.0.1", self._to or int(authority.rpartition(b":")[2])))
            server.sendall(b" ".join((method, b"/" + path, version)) + b"\r\n" + rest)
        self._copy(peer, server)

    def _copy(self, peer: Peer, server: _socket.socket) -> None:
        client = peer._sock
        came = 0
        try:
            while True:
                for ready in wait_readable([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (server if ready is client else client).sendall(data)
                    came += len(data) if ready is server else 0
                    if self._cut_after is not None and came > self._cut_after:
                        peer.reset()
                        return
        finally:
            server.close()


def read_head(peer: Peer) -> bytes:
    """Up to the empty line, with what came along; empty: the other side ended first."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = peer.read_some()
        if not data:
            return b""
        head += data
    return head


def saying(answer: bytes) -> Script:
    """A proxy that gives this answer to the first head, and ends."""

    def script(peer: Peer) -> None:
        if read_head(peer):
            peer.send(answer)

    return script


def not_sent(result: ExchangeResult) -> bool:
    return (result.sent_ns, result.status, result.first_byte_ns) == (None, None, None)


# ------------------------------------------------------------------------------------------------------------ tunnels


def test_https_goes_through_a_tunnel_with_tls_to_the_server_itself(rig: Rig, certificate: Path) -> None:
    relay = Relay()
    with Server(answering(GOOD), server_context(certificate)) as server, Server(relay) as proxy:
        client = rig.client(server.url, ca=str(certificate / "cert.pem"), proxy=proxy.url)
        results = [rig.ask(client) for _ in range(3)]
    assert [answer.decoder.decoded().text for answer, _ in results] == ["ab"] * 3
    assert [result.reused_connection for _, result in results] == [False, True, True]
    place = f"127.0.0.1:{server.port}"
    assert relay.heads == [f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\nuser-agent: infersiege\r\n\r\n".encode()]
    first = results[0][1]
    assert first.fault is None and first.connect_duration_ns and first.tls_duration_ns
    assert {result.stamp_source for _, result in results} == {StampSource.KERNEL}
    assert {result.peer for _, result in results} == {place}, "the proxy's address is not the server's"


def test_the_connect_time_includes_the_proxys_own_way_and_tls_does_not(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server, Server(Relay(delay=0.2)) as proxy:
        _, result = rig.ask(rig.client(server.url, ca=str(certificate / "cert.pem"), proxy=proxy.url))
    assert result.connect_duration_ns is not None and result.tls_duration_ns is not None
    assert result.sent_ns is not None
    assert result.connect_duration_ns >= 200 * MS
    assert result.connect_duration_ns + result.tls_duration_ns <= result.sent_ns - result.attempt_ns


def test_only_the_proxy_looks_the_servers_name_up(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server:
        relay = Relay(to=server.port)
        with Server(relay) as proxy:
            _, result = rig.ask(rig.client("https://engine.invalid/v1", insecure=True, proxy=proxy.url))
    assert (result.fault, result.status, result.peer) == (None, 200, "engine.invalid:443")
    assert relay.heads[0].startswith(b"CONNECT engine.invalid:443 HTTP/1.1\r\nhost: engine.invalid:443\r\n")


def test_an_ipv6_server_is_asked_for_in_brackets(rig: Rig) -> None:
    heads: list[bytes] = []

    def script(peer: Peer) -> None:
        heads.append(read_head(peer))

    with Server(script) as proxy:
        rig.ask(rig.client("https://[::1]:8443/v1", proxy=proxy.url))
    assert heads[0].startswith(b"CONNECT [::1]:8443 HTTP/1.1\r\nhost: [::1]:8443\r\n")


@pytest.mark.parametrize("at_once", [True, False], ids=["in one segment", "line by line"])
def test_an_interim_answer_to_connect_is_not_the_answer(rig: Rig, certificate: Path, at_once: bool) -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.0 200 OK\r\n\r\n"
    relay = Relay(answer=answer, at_once=at_once)
    with Server(answering(GOOD), server_context(certificate)) as server, Server(relay) as proxy:
        _, result = rig.ask(rig.client(server.url, ca=str(certificate / "cert.pem"), proxy=proxy.url))
    assert result.fault is None


def test_cl_11_a_certificate_is_judged_through_the_tunnel(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server, Server(Relay()) as proxy:
        _, result = rig.ask(rig.client(server.url, proxy=proxy.url))
    error_class, detail = fault_of(result)
    assert error_class is ErrorClass.TLS
    assert "certificate not accepted: self" in detail and f"through the proxy 127.0.0.1:{proxy.port}" in detail


REFUSALS = [
    (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "wants a user name and password (407)", "no password"),
    (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", "refused the tunnel (403 Forbidden)", "by its rules"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "could not reach the server (502 Bad Gateway)", "the server is away"),
    (b"HTTP/1.1 504\r\n\r\n", "could not reach the server (504)", "a status without a reason"),
    (b"HTTP/1.1 503 \x1b[31mred\r\n\r\n", "refused the tunnel (503 [31mred)", "a reason that would paint terminals"),
    (b"HTTP/1.1 302 Found\r\nlocation: http://login/\r\n\r\n", "refused the tunnel (302 Found)", "a log-in page"),
    (b"SSH-2.0-OpenSSH_9\r\n\r\n", "does not speak HTTP", "some other server"),
    (b"", "closed the connection instead of opening a tunnel", "nothing at all"),
    (b"HTTP/1.1 200 OK\r\n", "closed the connection instead of opening a tunnel", "half an answer"),
    (b"HTTP/1.1 200 OK\r\n\r\nhello", "sends more than its answer to CONNECT", "no tunnel but a web server"),
    (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000, "answers CONNECT without end", "a head without end"),
]


@pytest.mark.parametrize(("answer", "said"), [row[:2] for row in REFUSALS], ids=[row[2] for row in REFUSALS])
def test_a_tunnel_that_is_refused_is_a_connect_error_of_the_proxy(rig: Rig, answer: bytes, said: str) -> None:
    with Server(saying(answer)) as proxy:
        _, result = rig.ask(rig.client("https://127.0.0.1:9/v1", proxy=proxy.url))
    error_class, detail = fault_of(result)
    assert error_class is ErrorClass.CONNECT
    assert detail.startswith(f"the proxy 127.0.0.1:{proxy.port} {said}"), detail
    assert not_sent(result), "nothing of the request may reach a proxy that opened no tunnel"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there(rig: Rig, scheme: str) -> None:
    with dead_port() as port:
        _, result = rig.ask(rig.client(f"{scheme}://127.0.0.1:9/v1", proxy=f"http://127.0.0.1:{port}"))
    assert fault_of(result) == (ErrorClass.CONNECT, f"cannot use the proxy 127.0.0.1:{port}: connection refused")


def test_a_proxy_that_resets_instead_of_an_answer(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        read_head(peer)
        peer.reset()

    with Server(script) as proxy:
        _, result = rig.ask(rig.client("https://127.0.0.1:9/v1", proxy=proxy.url))
    said = f"cannot use the proxy 127.0.0.1:{proxy.port}: connection reset by peer"
    assert fault_of(result) == (ErrorClass.CONNECT, said)


def test_a_proxy_that_is_silent(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        read_head(peer)
        peer.wait_for_end()

    with Server(script) as proxy:
        _, result = rig.ask(rig.client("https://127.0.0.1:9/v1", proxy=proxy.url), connect=0.3)
    error_class, detail = fault_of(result)
    assert error_class is ErrorClass.TIMEOUT_CONNECT
    assert detail == f"no connection to 127.0.0.1:9 through the proxy 127.0.0.1:{proxy.port} within 0.3 s"


def test_a_proxy_that_takes_no_connection(rig: Rig) -> None:
    with black_hole() as port:
        _, result = rig.ask(rig.client("https://127.0.0.1:9/v1", proxy=f"http://127.0.0.1:{port}"), connect=0.3)
    assert fault_of(result)[0] is ErrorClass.TIMEOUT_CONNECT
    assert f"through the proxy 127.0.0.1:{port}" in fault_of(result)[1]


def test_a_proxy_without_an_address(rig: Rig) -> None:
    _, result = rig.ask(rig.client("https://127.0.0.1:9/v1", proxy="http://no-such-proxy.invalid:3128"))
    error_class, detail = fault_of(result)
    assert error_class is ErrorClass.CONNECT
    assert detail.startswith("name look-up of the proxy no-such-proxy.invalid failed: ")


def test_abort_while_the_tunnel_is_being_opened(rig: Rig) -> None:
    ended: list[bool] = []

    def script(peer: Peer) -> None:
        read_head(peer)
        peer.wait_for_end()
        ended.append(True)

    with Server(script) as proxy:
        _, exchange = rig.start(rig.client("https://127.0.0.1:9/v1", proxy=proxy.url))
        gevent.sleep(0.05)
        exchange.abort("the run is over")
        assert exchange.finished
        assert fault_of(exchange.wait()) == (None, "the run is over")
        for _ in range(200):
            gevent.sleep(0.01)
            if ended:
                break
    assert ended, "the connection to the proxy is still open"


def test_hc_03_a_tunnel_that_was_closed_while_idle_is_opened_again(rig: Rig, certificate: Path) -> None:
    relay = Relay()

    def once(peer: Peer) -> None:
        assert peer.request() is not None
        peer.send(GOOD)

    with Server(once, server_context(certificate)) as server, Server(relay) as proxy:
        client = rig.client(server.url, ca=str(certificate / "cert.pem"), proxy=proxy.url)
        results = []
        for _ in range(2):
            results.append(rig.ask(client)[1])
            gevent.sleep(0.1)
    assert [result.fault for result in results] == [None, None]
    assert len(relay.heads) == 2


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cuts_the_stream_is_a_truncated_answer(rig: Rig, certificate: Path, scheme: str) -> None:
    long = stream(ROLE, *(text("word ") for _ in range(400)), STOP, DONE)
    context = server_context(certificate) if scheme == "https" else None
    relay = Relay(cut_after=12_000)

    def slowly(peer: Peer) -> None:
        assert peer.request() is not None
        for start in range(0, len(long), 500):
            peer.send(long[start : start + 500])
            sleep(0.001)

    with Server(slowly, context) as server, Server(relay) as proxy:
        ca = str(certificate / "cert.pem") if context else None
        answer, result = rig.ask(rig.client(server.url, ca=ca, proxy=proxy.url))
    assert fault_of(result)[0] is ErrorClass.TRUNCATED
    assert 10 < answer.chunks < 400, "what came before the cut is kept"


# ------------------------------------------------------------------------------------------------------ absolute form


def test_http_goes_in_absolute_form_with_the_servers_own_host(rig: Rig) -> None:
    relay, requests = Relay(), []

    def script(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            requests.append(request)
            peer.send(GOOD)

    with Server(script) as server, Server(relay) as proxy:
        client = rig.client(server.url, proxy=proxy.url)
        results = [rig.ask(client)[1] for _ in range(2)]
    place = f"127.0.0.1:{server.port}"
    line = f"POST http://{place}/v1/chat/completions HTTP/1.1\r\nhost: {place}\r\n".encode()
    assert [head.startswith(line) for head in relay.heads] == [True], "the second request uses the same connection"
    assert requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert requests[1].startswith(b"POST http://" + place.encode()), "this simple proxy rewrites only the first"
    assert [(result.fault, result.peer, result.stamp_source) for result in results] == [
        (None, place, StampSource.KERNEL)
    ] * 2
    assert results[1].reused_connection and results[0].tls_duration_ns is None


OPEN_REFUSALS = [
    (whole(b"", "407 Proxy Authentication Required"), "wants a user name and password (407)", "no password"),
    (whole(b"x", "502 Bad Gateway", "text/plain"), "answered 502: it could not reach the server", "a dead server"),
    (whole(b"", "504 Gateway Timeout", ""), "answered 504: it could not reach the server", "a silent server"),
    (
        whole(b"{}", "502 Bad Gateway", extra="proxy-status: p; error=connection_refused\r\n"),
        "answered 502: it could not reach the server",
        "one that says whose error it is (RFC 9209)",
    ),
]


@pytest.mark.parametrize(("answer", "said"), [row[:2] for row in OPEN_REFUSALS], ids=[row[2] for row in OPEN_REFUSALS])
def test_a_refusal_in_absolute_form_is_a_connect_error_of_the_proxy(rig: Rig, answer: bytes, said: str) -> None:
    with Server(answering(answer)) as proxy:
        _, result = rig.ask(rig.client("http://127.0.0.1:9/v1", proxy=proxy.url))
    error_class, detail = fault_of(result)
    assert error_class is ErrorClass.CONNECT
    assert detail.startswith(f"the proxy 127.0.0.1:{proxy.port} {said}"), detail
    assert (result.status, result.body) == (None, b""), "the server said nothing"


SERVERS_OWN = [
    (whole(b'{"error": {"message": "engine died"}}', "502 Bad Gateway"), 502, "a gateway that describes its error"),
    (whole(b"busy", "503 Service Unavailable", "text/plain"), 503, "overload is the server's to say"),
    (whole(b'{"error": "quota"}', "429 Too Many Requests"), 429, "so is a quota"),
]


@pytest.mark.parametrize(("answer", "status"), [row[:2] for row in SERVERS_OWN], ids=[row[2] for row in SERVERS_OWN])
def test_a_servers_own_refusal_stays_the_servers(rig: Rig, answer: bytes, status: int) -> None:
    with Server(answering(answer)) as server, Server(Relay()) as proxy:
        _, result = rig.ask(rig.client(server.url, proxy=proxy.url))
    assert (result.fault, result.status) == (None, status)


def test_without_a_proxy_a_407_is_an_answer_like_any_other(rig: Rig) -> None:
    with Server(answering(whole(b"", "407 Proxy Authentication Required"))) as server:
        _, result = rig.ask(rig.client(server.url))
    assert (result.fault, result.status) == (None, 407)


def test_proxy_variables_of_the_environment_are_never_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(answering(GOOD)) as server, dead_port() as port:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        _, result = rig.ask(rig.client(server.url))
    assert (result.fault, result.status) == (None, 200)


def test_what_a_proxied_request_costs_is_counted_as_without_one(rig: Rig, certificate: Path) -> None:
    """CONNECT and handshake are no part of the request's bytes."""
    with Server(answering(GOOD), server_context(certificate)) as server, Server(Relay()) as proxy:
        ca = str(certificate / "cert.pem")
        _, direct = rig.ask(rig.client(server.url, ca=ca))
        _, through = rig.ask(rig.client(server.url, ca=ca, proxy=proxy.url))
    assert through.bytes_out == direct.bytes_out


# ------------------------------------------------------------------------------------------------------------ the key


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("http://127.0.0.1:3128", Proxy("127.0.0.1", 3128)),
        ("http://proxy.corp:8080/", Proxy("proxy.corp", 8080)),
        ("HTTP://Proxy.Corp:8080", Proxy("proxy.corp", 8080)),
        ("http://[::1]:3128", Proxy("::1", 3128)),
    ],
)
def test_a_proxy_is_scheme_host_and_port(written: str, expected: Proxy) -> None:
    assert proxy_of(written) == expected


NO_PROXIES = [
    ("127.0.0.1:3128", "has no scheme", "as curl takes it"),
    ("", "has no scheme", "nothing"),
    ("http://proxy", "has no port", "3128, 8080 and 80 are all usual"),
    ("http://proxy:0", "has no port", "no port to connect to"),
    ("http://proxy:99999", "the port is no number", "beyond all ports"),
    ("http://:3128", "has no host", "no host"),
    ("http://pro xy:3128", "a space", "a space"),
    ("http://proxy:3128\r\nx: y", "control character", "a header of somebody's own"),
    ("https://proxy:3128", "the scheme https://", "TLS to the proxy itself"),
    ("socks5://proxy:1080", "the scheme socks5://", "another protocol"),
    ("http://proxy:3128/path", "more than scheme, host and port", "a path"),
    ("http://proxy:3128?x=1", "more than scheme, host and port", "a query"),
    ("http://user:hunter2@proxy:3128", "user info", "a password"),
    ("user:hunter2@proxy:3128", "user info", "a password without a scheme"),
    ("http://pröxy:3128", "no host that can be used", "a name that DNS doesn't know like that"),
]


@pytest.mark.parametrize(("written", "said"), [row[:2] for row in NO_PROXIES], ids=[row[2] for row in NO_PROXIES])
def test_what_is_no_proxy_is_refused_with_a_hint(written: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        proxy_of(written)
    assert told.value.hint and "hunter2" not in f"{told.value} {told.value.hint}"


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_a_proxy_or_a_usage_error(written: str) -> None:
    try:
        found = proxy_of(f"http://{written}")
    except UsageError:
        return
    assert proxy_of(f"http://{found.place}") == found
    assert 0 < found.port < 65536 and "\n" not in found.place


def test_a_plan_with_a_proxy(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text("https://h/v1", channel='proxy = "http://127.0.0.1:3128"'), encoding="utf-8")
    assert load_plan(plan).channels["target"].proxy == "http://127.0.0.1:3128"


def test_a_password_of_a_proxy_is_refused_once_and_not_shown(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text("https://h/v1", channel='proxy = "http://me:hunter2@p:1"'), encoding="utf-8")
    with pytest.raises(PlanError) as told:
        load_plan(plan)
    (fault,) = told.value.faults
    assert f"{plan}:9: channel.target.proxy: the proxy holds user info" in fault and "hunter2" not in fault


# ----------------------------------------------------------------------------------------------------------- whole runs


class Engine(BaseHTTPRequestHandler):
    """One model, one answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        found = self.path == "/v1/models"
        self._say(
            200 if found else 404, b'{"data": [{"id": "emulated-model"}]}' if found else b"{}", "application/json"
        )

    def do_POST(self) -> None:
        streamed = b'"stream":true' in self.rfile.read(int(self.headers["content-length"]))
        if streamed:
            self._say(200, ROLE + text("a") + text("b") + STOP + DONE, "text/event-stream")
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}
            self._say(200, json.dumps({"choices": [choice]}).encode(), "application/json")

    def _say(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def engine(context: ssl.SSLContext | None) -> Iterator[int]:
    """Serves on the port that it gives, with TLS if there is a context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_run_and_its_preflight_go_through_the_plans_proxy(
    siege: Siege, tmp_path: Path, certificate: Path, scheme: str
) -> None:
    """The server's name leads nowhere but at the proxy: whoever went around it would not get there."""
    siege.environment |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    with engine(server_context(certificate) if scheme == "https" else None) as port:
        relay = Relay(to=port)
        with Server(relay) as proxy:
            # A connection for each request: this proxy forwards only the first one on each.
            channel = f'proxy = "{proxy.url}"\nkeep_alive = false\ninsecure = true'
            load = 'mode = "closed"\nusers = 2\nramp = "0s"\ndrain = "1s"'
            plan = plan_text(f"{scheme}://engine.invalid/v1", run='duration = "1s"', load=load, channel=channel)
            ran = siege.run(plan)
            code, said = siege.command("doctor", str(tmp_path / "plan-1.toml"))
    check_conserved(ran)
    assert {turn.outcome for turn in ran.turns} <= {Outcome.OK, Outcome.CANCELLED}, ran.out
    assert {turn.replica for turn in ran.turns} == {f"engine.invalid:{443 if scheme == 'https' else 80}"}
    assert ran.plan.channels["target"].details["proxy"].startswith(proxy.url)
    assert proxy.url in (ran.path / "report.html").read_text(encoding="utf-8")
    assert code == 0 and f"go through 127.0.0.1:{proxy.port}, as the plan says" in " ".join(said.split()), said
    way = b"CONNECT engine.invalid:443 " if scheme == "https" else b" http://engine.invalid"
    assert len(relay.heads) > len(ran.turns) and all(way in head for head in relay.heads)
