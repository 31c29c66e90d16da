"""Preflight against scripted servers: every broken set-up has one message with its place, and exit code 4."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import databases
import pytest
from click.testing import CliRunner
from doctor_server import (
    CHAT,
    DONE,
    ERROR,
    GOOD,
    HTML,
    INTERIM,
    MODELS,
    ROLE,
    TEXT,
    USAGE,
    Route,
    Server,
    ask,
    chat,
    event,
    plan_for,
    response,
    serving,
    stream,
)
from scripted_server import Peer
from scripted_server import Server as ScriptedServer

from infersiege.cli.doctor import doctor
from infersiege.doctor import DoctorError, adapted, examine, preflight
from infersiege.doctor.tools import sends_tools
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import ExitCode, TargetError, UsageError
from infersiege.plan import load_plan
from infersiege.plan.schema import Channel, Load, Plan, Sampling, Timeouts, Workload
from infersiege.rundir import ChannelFacts

# ---------------------------------------------------------------------------------------------------- what works


def test_a_good_server_gives_its_facts() -> None:
    version = response('{"version": "0.32.0"}')
    with serving({**GOOD, "GET /version": version}) as server:
        facts = preflight(plan_for(server.port), environ={})["local"]
        assert facts == ChannelFacts(
            url=f"http://127.0.0.1:{server.port}/v1/chat/completions",
            engine="vllm",
            dialect="openai-chat",
            model="m",
            version="0.32.0",
            details={
                "server": "uvicorn",
                "models": "m",
                "context_length": "4096",
                "usage": "yes",
                "cached_tokens": "0",
                "model_answered": "m-real",
            },
        )
        (body,) = server.bodies("POST /v1/chat/completions")
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 4, True)
    assert body["temperature"] == 0.0, "as the run will ask"


def test_each_preflight_asks_something_new() -> None:
    """A cached answer would show nothing, and a measured prompt must not be warm."""
    with serving(GOOD) as server:
        for _ in range(2):
            preflight(plan_for(server.port), environ={})
        first, second = server.bodies("POST /v1/chat/completions")
    assert first["messages"] != second["messages"]


def test_the_request_is_the_one_that_the_run_will_send() -> None:
    with serving(GOOD) as server:
        preflight(
            plan_for(server.port, headers={"x-team": "a"}, extra_body={"top_k": 5}, ignore_eos=True, api_key_env="KEY"),
            environ={"KEY": "sk-test-123", "http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"},
        )
        asked = {route: headers for route, headers, _ in server.requests}
        (body,) = server.bodies("POST /v1/chat/completions")
    assert asked["POST /v1/chat/completions"]["authorization"] == "Bearer sk-test-123"
    assert asked["GET /v1/models"]["authorization"] == "Bearer sk-test-123"
    assert asked["POST /v1/chat/completions"]["x-team"] == "a"
    assert (body["top_k"], body["ignore_eos"], body["min_tokens"]) == (5, True, 4)


def test_proxy_variables_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert ask(GOOD).model == "m"


WORKING = [
    ("no list of models", {"POST /v1/chat/completions": CHAT}, {}, {"models": None}),
    ("a list of models in another shape", {**GOOD, "GET /v1/models": response("[]")}, {}, {"models": None}),
    ("the list is forbidden, the chat is not", {**GOOD, "GET /v1/models": response("", "403 Forbidden")}, {}, {}),
    (
        "reasoning only",
        {**GOOD, "POST /v1/chat/completions": stream(event({"choices": [{"delta": {"reasoning": "x"}}]}), DONE)},
        {},
        {"usage": "no"},
    ),
    (
        "tokens without visible text",
        {**GOOD, "POST /v1/chat/completions": stream(ROLE, USAGE, DONE)},
        {},
        {"usage": "yes"},
    ),
    (
        "no cached tokens",
        {**GOOD, "POST /v1/chat/completions": stream(TEXT, DONE)},
        {},
        {"usage": "no", "cached_tokens": None},
    ),
    (
        "in one piece, as asked",
        {**GOOD, "POST /v1/chat/completions": response('{"choices":[{"message":{"content":"hi"}}]}')},
        {"stream": False},
        {},
    ),
    (
        "an engine that takes any model name",
        GOOD,
        {"engine": "llama.cpp", "model": "x"},
        {"model_note": "llama.cpp answers to any model name; it serves m"},
    ),
    ("a cloud's alias", GOOD, {"engine": "openai", "model": "x"}, {"model_note": "not in its list of models (m)"}),
    (
        "llama.cpp's context",
        {**GOOD, "GET /v1/models": response('{"data":[{"id":"m","meta":{"n_ctx":2048}}]}')},
        {"engine": "llama.cpp"},
        {"context_length": "2048"},
    ),
    (
        "interim answers before each one",
        {
            "GET /v1/models": INTERIM + MODELS,
            "POST /v1/chat/completions": b"HTTP/1.1 100 Continue\r\n\r\n" + INTERIM + INTERIM + CHAT,
        },
        {},
        {"models": "m", "usage": "yes"},
    ),
    (
        "identity as an encoding",
        chat(stream(TEXT, USAGE, DONE, extra="content-encoding: identity\r\n")),
        {},
        {"usage": "yes"},
    ),
    ("base URL without /v1", GOOD, {"base": "http://127.0.0.1:{port}"}, {}),
    ("base URL that is the endpoint", GOOD, {"base": "http://127.0.0.1:{port}/v1/chat/completions"}, {}),
    ("base URL by name", GOOD, {"base": "http://localhost:{port}/v1/"}, {}),
]


@pytest.mark.parametrize(("routes", "more", "details"), [row[1:] for row in WORKING], ids=[row[0] for row in WORKING])
def test_what_is_odd_but_works(
    routes: dict[str, Route], more: dict[str, object], details: dict[str, str | None]
) -> None:
    facts = ask(routes, **more)
    assert {name: facts.details.get(name) for name in details} == details


@pytest.mark.parametrize(
    "routes",
    [
        {**GOOD, "POST /v1/chat/completions": stream(TEXT, DONE, extra="x-infersiege-emulated: 1\r\n")},
        {**GOOD, "GET /v1/models": response('{"data":[{"id":"m","owned_by":"infersiege"}]}')},
    ],
)
def test_an_emulator_is_known_as_one(routes: dict[str, Route]) -> None:
    assert ask(routes).emulated
    assert not ask(GOOD).emulated


# ---------------------------------------------------------------------------------------------------- what is broken


BROKEN: list[tuple[str, Mapping[str, Route], dict[str, object], list[str], list[str]]] = [
    # set-up, the server, the channel, in the message, in the hint
    (
        "wrong key in a variable",
        {"GET /v1/models": response('{"error":"Unauthorized"}', "401 Unauthorized")},
        {"api_key_env": "KEY"},
        ["the key in KEY is refused", "/v1/models answers 401", "Unauthorized"],
        ["is KEY the key of this server?"],
    ),
    (
        "no key",
        {"GET /v1/models": response('{"error":"Unauthorized"}', "401 Unauthorized")},
        {},
        ["a request without a key is refused"],
        ["api_key_env in [channel.local]"],
    ),
    (
        "key refused by the chat only",
        chat(response("", "403 Forbidden")),
        {"api_key_env": "KEY"},
        ["the key in KEY is refused", "/v1/chat/completions answers 403 to a small request"],
        ["KEY"],
    ),
    (
        "doubled /v1",
        {},
        {"base": "http://127.0.0.1:{port}/v1/v1"},
        ["/v1/v1/chat/completions answers 404"],
        ["/v1 twice"],
    ),
    ("wrong path", {}, {"base": "http://127.0.0.1:{port}/api"}, ["/api/v1/chat/completions answers 404"], ["base_url"]),
    (
        "another HTTP service",
        {"GET /v1/models": response("ok"), "POST /v1/chat/completions": response("no", "405 Method Not Allowed")},
        {},
        ["/v1/chat/completions answers 405"],
        ["is this an LLM server"],
    ),
    (
        "a model that is not there",
        {**GOOD, "GET /v1/models": response('{"data":[{"id":"qwen3-8b"},{"id":"llama"}]}')},
        {"model": "qwen3_8b"},
        ["no model 'qwen3_8b'", "it has qwen3-8b, llama"],
        ["did you mean qwen3-8b?", "[channel.local]"],
    ),
    (
        "a model that only the chat knows not to be there",
        {
            "POST /v1/chat/completions": response(
                ERROR % ("The model `m` does not exist.", "NotFoundError", 404), "404 Not Found"
            )
        },
        {},
        ["no model 'm'", "The model `m` does not exist."],
        ["set model"],
    ),
    (
        "a web page for everything",
        {"GET /v1/models": HTML, "POST /v1/chat/completions": HTML},
        {},
        ["answers 200 with a web page"],
        ["the API"],
    ),
    (
        "a packed stream",
        chat(response(b"\x1f\x8b", kind="text/event-stream", extra="content-encoding: gzip\r\n")),
        {},
        ["answers with content-encoding gzip, which nobody asked for"],
        ["a proxy packs it"],
    ),
    (
        "a packed refusal",
        chat(response(b"\x1f\x8b\x00\xff", "400 Bad Request", extra="content-encoding: br\r\n")),
        {},
        ["answers 400 to a small request (content-encoding br, not asked for)"],
        ["takes no such request"],
    ),
    (
        "interim answers without end",
        chat(INTERIM * 100),
        {},
        ["answers, but not in HTTP"],
        [],
    ),
    (
        "a switch of protocols",
        chat(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n"),
        {},
        ["answers 101 to a small request"],
        [],
    ),
    ("a web page, not streamed", chat(HTML), {"stream": False}, ["answers 200 with a web page"], ["the API"]),
    (
        "a web page with an error",
        chat(response("<html>", "500 Oops", "text/html")),
        {},
        ["answers 500", "(a web page)"],
        ["log"],
    ),
    ("empty 200", chat(response("", kind="text/plain")), {}, ["answers 200 with an empty body"], ["LLM server"]),
    ("a stream without anything", chat(stream(DONE)), {}, ["answers 200 without any text"], ["chat"]),
    ("a stream of a role only", chat(stream(ROLE, DONE)), {}, ["answers 200 without any text"], ["chat"]),
    (
        "an error inside the stream",
        chat(stream(event({"error": {"message": "no slot", "code": 500}}), DONE)),
        {},
        ["answers 200 and then an error: no slot"],
        ["log"],
    ),
    ("an error as JSON with 200", chat(response('{"error":"boom"}')), {}, ["answers 200 with an error: boom"], ["log"]),
    (
        "a proxy that collects the stream",
        chat(response('{"choices":[{"message":{"content":"hi"}}]}')),
        {},
        ["in one piece (application/json) although a stream was asked for"],
        ["stream = false"],
    ),
    (
        "JSON of something else",
        chat(response('{"ok":true}')),
        {},
        ["application/json instead of a stream", '{"ok":true}'],
        ["LLM"],
    ),
    (
        "JSON of something else, not streamed",
        chat(response('{"ok":true}')),
        {"stream": False},
        ["no answer of openai-chat"],
        ["LLM"],
    ),
    (
        "events that are no JSON",
        chat(stream("data: hello\n\n")),
        {},
        ["streams what is no JSON: 'hello'"],
        ["dialect openai-chat"],
    ),
    (
        "a stream that breaks before the first token",
        chat(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\n" + ROLE.encode()),
        {},
        ["begins to stream but"],
        ["log"],
    ),
    (
        "stream_options refused",
        chat(response(ERROR % ("unknown field stream_options", "BadRequest", 400), "400 Bad Request")),
        {},
        ["answers 400", "unknown field stream_options"],
        ["include_usage = false"],
    ),
    (
        "extra fields refused",
        chat(response(ERROR % ("extra fields not permitted", "BadRequest", 422), "422 Unprocessable")),
        {"extra_body": {"x": 1}},
        ["answers 422", "extra fields not permitted"],
        ["extra_body"],
    ),
    (
        "rate limited",
        chat(response("{}", "429 Too Many Requests", extra="retry-after: 7\r\n")),
        {},
        ["answers 429"],
        ["wait 7 s"],
    ),
    (
        "no money",
        chat(response('{"error":"insufficient balance"}', "402 Payment Required")),
        {},
        ["402", "insufficient balance"],
        ["quota"],
    ),
    (
        "still loading",
        {"GET /v1/models": response(ERROR % ("Loading model", "unavailable_error", 503), "503 Service Unavailable")},
        {},
        ["answers 503 to the list of models", "Loading model"],
        ["loading"],
    ),
    (
        "moved",
        chat(response("", "308 Permanent Redirect", extra="location: https://elsewhere/v1\r\n")),
        {},
        ["answers 308", "points to https://elsewhere/v1"],
        ["base_url"],
    ),
    (
        "silence",
        chat(None),
        {"timeouts": Timeouts(first_token_ns=300_000_000)},
        ["gives no answer within 0.3 s"],
        ["loading"],
    ),
    ("a closed connection", chat(b""), {}, ["closes the connection without an answer"], ["https://"]),
    ("another protocol", chat(b"SSH-2.0-OpenSSH_9.2\r\n"), {}, ["answers, but not in HTTP"], ["port"]),
    (
        "TLS asked of a plain server",
        GOOD,
        {"base": "https://127.0.0.1:{port}/v1"},
        ["makes no TLS connection"],
        ["http://"],
    ),
]


@pytest.mark.parametrize(
    ("routes", "more", "message", "hint"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_broken_set_up_has_one_clear_message(
    routes: Mapping[str, Route], more: dict[str, object], message: list[str], hint: list[str]
) -> None:
    with pytest.raises(TargetError) as caught:
        ask(routes, {"KEY": "sk-test-123"}, **more)
    error = caught.value
    assert error.exit_code is ExitCode.TARGET
    assert str(error).startswith("channel local: ")
    assert "\n" not in str(error)
    assert len(str(error)) < 600
    assert all(part in str(error) for part in message), str(error)
    assert all(part in (error.hint or "") for part in hint), error.hint


def test_nothing_listens(free_port: Callable[[], int]) -> None:
    port = free_port()
    with pytest.raises(TargetError, match=rf"nothing listens on 127\.0\.0\.1:{port} \(connection refused\)") as caught:
        preflight(plan_for(port), environ={})
    assert "vllm serve" in (caught.value.hint or ""), "how to start it"


def test_a_name_that_is_not_found() -> None:
    with pytest.raises(TargetError, match=r"the name nowhere\.invalid is not found"):
        preflight(plan_for(1, base="http://nowhere.invalid:{port}/v1"), environ={})


def test_a_key_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="key file cannot be read"):
        preflight(plan_for(1, api_key_file=str(tmp_path / "none")), environ={})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="key file is a pipe, not a file"):
        preflight(plan_for(1, api_key_file=str(tmp_path / "pipe")), environ={})


def test_cl_08_a_server_that_repeats_the_key_does_not_get_it_into_a_message() -> None:
    """Long enough that the quoted text is cut inside the key: half a key is not known as one any more."""
    key = "my-own-secret-key-0123456789"
    for padding in range(150, 215, 3):
        echo = response(json.dumps({"error": {"message": "x" * padding + key}}), "401 Unauthorized")
        with pytest.raises(TargetError) as caught:
            ask({"GET /v1/models": echo}, {"KEY": key}, api_key_env="KEY")
        assert "my-own" not in f"{caught.value} {caught.value.hint}"


# ---------------------------------------------------------------------------------------------------- waiting


def test_hc_14_a_server_that_starts_later_is_waited_for(free_port: Callable[[], int]) -> None:
    port = free_port()
    started: list[Server] = []

    def start() -> None:
        time.sleep(0.8)
        listener = socket.create_server(("127.0.0.1", port))
        server = Server.__new__(Server)
        server.routes, server.context, server.requests, server.listener, server.port = GOOD, None, [], listener, port
        server.tunnel = None
        server.thread = threading.Thread(target=server._serve, daemon=True)
        server.thread.start()
        started.append(server)

    starter = threading.Thread(target=start)
    starter.start()
    said: list[str] = []
    try:
        facts = preflight(plan_for(port), environ={}, wait_ns=30_000_000_000, on_wait=said.append)
    finally:
        starter.join()
        started[0].close()
    assert facts["local"].model == "m"
    assert len(said) == 1, "the same reason is said once"
    assert "connection refused" in said[0]


def test_hc_14_a_server_that_is_loading_is_waited_for() -> None:
    loading = response(ERROR % ("Loading model", "unavailable_error", 503), "503 Service Unavailable")
    with serving({**GOOD, "POST /v1/chat/completions": lambda times: loading if times < 2 else CHAT}) as server:
        facts = preflight(plan_for(server.port), environ={}, wait_ns=30_000_000_000)
        assert len(server.bodies("POST /v1/chat/completions")) == 3
    assert facts["local"].details["usage"] == "yes"


def test_hc_14_waiting_has_an_end_and_the_last_reason(free_port: Callable[[], int]) -> None:
    began = time.monotonic()
    with pytest.raises(TargetError, match="connection refused") as caught:
        preflight(plan_for(free_port()), environ={}, wait_ns=700_000_000)
    assert caught.value.exit_code is ExitCode.TARGET
    assert 0.6 < time.monotonic() - began < 20


def test_a_wrong_key_is_not_waited_for() -> None:
    with serving({"GET /v1/models": response("", "401 Unauthorized")}) as server:
        with pytest.raises(TargetError, match="refused"):
            preflight(plan_for(server.port), environ={}, wait_ns=60_000_000_000)
        assert len(server.requests) == 1


# ---------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cert.pem and key.pem of a server that nobody vouches for."""
    folder = tmp_path_factory.mktemp("certificate")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem"
    command += " -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def test_cl_11_a_self_signed_server(certificate: Path) -> None:
    with serving(GOOD, server_context(certificate)) as server:
        base = "https://127.0.0.1:{port}/v1"
        with pytest.raises(TargetError, match=r"certificate of .* is not trusted: self.signed certificate") as caught:
            preflight(plan_for(server.port, base), environ={})
        assert "insecure = true" in (caught.value.hint or "")
        trusted = preflight(plan_for(server.port, base, ca=str(certificate / "cert.pem")), environ={})["local"]
        assert not trusted.insecure
        assert preflight(plan_for(server.port, base, insecure=True), environ={})["local"].insecure
        with pytest.raises(TargetError, match=r"closes the connection|not in HTTP|connection broke"):
            preflight(plan_for(server.port), environ={})


@pytest.mark.parametrize("content", ["nothing", "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_of_authorities_that_holds_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(TargetError, match=r"ca\.pem: no certificate authorities can be read from it$") as caught:
        preflight(plan_for(1, "https://127.0.0.1:{port}/v1", ca=str(tmp_path / "ca.pem")), environ={})
    assert "BEGIN CERTIFICATE" in (caught.value.hint or "")


TRICKLED = {
    "a head": (b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 10_000, "gives no answer within 0.5 s"),
    "a stream without text": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b": ping\n\n" * 10_000,
        "begins to stream but it had not ended after 0.5 s, our own limit",
    ),
    "interim answers": (INTERIM * 10_000, "gives no answer within 0.5 s"),
}


@pytest.mark.parametrize(("answer", "says"), TRICKLED.values(), ids=TRICKLED.keys())
def test_a_trickle_is_cut_by_our_own_limit_and_the_message_says_so(answer: bytes, says: str) -> None:
    """Each piece comes in time; what all of them together take is limited, too."""

    def script(peer: Peer) -> None:
        if peer.read_some().startswith(b"GET"):
            peer.send(MODELS)
        else:
            peer.send(*(answer[at : at + 40] for at in range(0, len(answer), 40)), pause=0.05)

    began = time.monotonic()
    with ScriptedServer(script) as server, pytest.raises(TargetError, match=says):
        preflight(plan_for(server.port, timeouts=Timeouts(first_token_ns=500_000_000)), environ={})
    assert time.monotonic() - began < 15


# ---------------------------------------------------------------------------------------------------- the command


PLAN = """\
[run]
duration = "5m"
[channel.good]
engine = "vllm"
base_url = "http://127.0.0.1:{good}/v1"
model = "m"
[channel.bad]
engine = "sglang"
base_url = "http://127.0.0.1:{bad}/v1"
model = "m"
[[workload]]
scenario = "agent"
trace = "builtin:agent"
channel = "good"
[load]
users = 4
"""


def test_the_command_shows_every_channel_and_ends_with_4(tmp_path: Path, free_port: Callable[[], int]) -> None:
    plan = tmp_path / "plan.toml"
    with serving(GOOD) as server:
        plan.write_text(PLAN.format(good=server.port, bad=free_port()))
        ended = CliRunner(env={"COLUMNS": "200"}).invoke(doctor, [str(plan)])
        assert ended.exit_code == ExitCode.TARGET, ended.output
        assert "nothing listens" in ended.output
        assert "9 in, 2 out" in ended.output, "the good channel is shown all the same"
        good = CliRunner().invoke(doctor, [str(plan), "--set", f"channel.bad.base_url=http://127.0.0.1:{server.port}"])
        assert good.exit_code == ExitCode.PASS, good.output


SERIES_PLAN = """
[run]
duration = "5m"
[channel.good]
engine = "vllm"
base_url = "http://127.0.0.1:{port}/v1"
model = "m"
[[workload]]
scenario = "agent"
trace = "builtin:agent"
[load]
users = 4
[telemetry]
influx_url = "{influx}"
influx_bucket = "{bucket}"
"""


def test_the_command_checks_the_database_of_the_plan(
    tmp_path: Path, free_port: Callable[[], int], influx_server: databases.InfluxDB
) -> None:
    """Down is a warning: the run goes on and points wait on disk. Refused is a fault: they would be lost."""
    plan = tmp_path / "plan.toml"
    cases = (
        (influx_server.url, "infersiege", ExitCode.PASS, "ok", "was written to 'infersiege' and read back"),
        (f"http://127.0.0.1:{free_port()}", "infersiege", ExitCode.PASS, "warning", "the run goes on without it"),
        (influx_server.url, "nosuch", ExitCode.TARGET, "fault", "CREATE DATABASE"),
    )
    with serving(GOOD) as server:
        for influx, bucket, code, mark, text in cases:
            plan.write_text(SERIES_PLAN.format(port=server.port, influx=influx, bucket=bucket))
            ended = CliRunner(env={"COLUMNS": "250"}).invoke(doctor, [str(plan)])
            assert ended.exit_code == code, ended.output
            row = next(line for line in ended.output.splitlines() if line.startswith("telemetry"))
            assert row.split()[1:3] == [mark, "influxdb"], row
            assert text in ended.output


NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def test_a_server_without_tools_is_found_before_a_run_that_sends_them(tmp_path: Path) -> None:
    """vLLM without its flags refuses each request that has tools: every turn of the run."""
    plan = tmp_path / "plan.toml"
    refusal = json.dumps({"error": {"message": NO_TOOLS, "type": "BadRequestError", "code": 400}})
    with serving(chat(response(refusal, "400 Bad Request"))) as server:
        plan.write_text(PLAN.format(good=server.port, bad=server.port))
        with pytest.raises(DoctorError, match="the workloads of this channel send tools") as caught:
            preflight(load_plan(plan, environ={}), environ={})
        asked = server.bodies("POST /v1/chat/completions")
    assert caught.value.check == "tools"
    assert "--enable-auto-tool-choice" in (caught.value.hint or "")
    assert [len(body["tools"]) for body in asked] == [1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trace", "sends", "why"),
    [
        ("builtin:agent", True, "built in"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}', True, "a file with some"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": []}', False, "a file with none"),
        ('{"messages": [{"role": "user", "content": "which \\"tools\\"?"}]}', False, "a word in a prompt"),
    ],
)
def test_the_probe_has_a_tool_where_the_workloads_have_some(tmp_path: Path, trace: str, sends: bool, why: str) -> None:
    if not trace.startswith("builtin:"):
        (tmp_path / "t.jsonl").write_text(trace)
        trace = str(tmp_path / "t.jsonl")
    channels = {name: Channel(engine="vllm", model="m") for name in ("used", "unused")}
    plan = Plan(channels=channels, workloads=(Workload(scenario="a", trace=trace, channel="used"),), load=Load())
    assert sends_tools(plan, "used") is sends, why
    assert not sends_tools(plan, "unused"), "its turns go elsewhere"


def test_cl_04_a_cache_key_that_is_refused_is_left_out() -> None:
    with EmulatorProcess("--fault", "refuse_field=prompt_cache_key") as emulator:
        channel = Channel(engine="generic", base_url=emulator.base_url, model="emulated-model", prompt_cache_key=True)
        plan = Plan(channels={"local": channel}, workloads=(), load=Load())
        facts = preflight(plan, environ={})
    assert facts["local"].dropped_fields == ("prompt_cache_key",)
    assert not adapted(plan, facts).channels["local"].prompt_cache_key


def test_an_examination_names_the_step_that_failed() -> None:
    with serving(chat(response("", "500 Oops"))) as server:
        channel = plan_for(server.port).channels["local"]
        found = examine("local", channel, Sampling(), environ={})
    assert [(check.name, check.verdict.value) for check in found.checks] == [
        ("url", "ok"),
        ("models", "ok"),
        ("answer", "fault"),
    ]
    assert found.facts is None


def test_it_works_with_gevents_patches_too() -> None:
    """`run` and `worker` patch the process before anything else: in a process of its own."""
    code = """
from gevent import monkey; monkey.patch_all()
import sys; sys.path.insert(0, "tests")
import test_doctor as t
assert t.ask(t.GOOD).details["usage"] == "yes"
try:
    t.ask({})
except t.TargetError as error:
    assert "404" in str(error)
    print("right")
"""
    import sys

    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.strip() == "right", ended.stderr
