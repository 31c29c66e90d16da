"""`infersiege doctor` on broken set-ups, on real sockets: the line that names the cause, each time."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from doctor_server import (
    CHAT,
    DONE,
    ERROR,
    GOOD,
    HTML,
    MODELS,
    ROLE,
    TEXT,
    USAGE,
    Answer,
    ByBody,
    Pieces,
    Route,
    both,
    chat,
    event,
    response,
    serving,
    stream,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import black_hole, dead_port

from infersiege.cli.doctor import doctor
from infersiege.doctor import SKIPPED, preflight, unexamined
from infersiege.doctor.examined import Examined, examine_plan
from infersiege.doctor.host import examine_host
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import ExitCode
from infersiege.plan import load_plan
from infersiege.plan.hybrid_schema import Hybrid, Part
from infersiege.plan.schema import Channel, Load, Plan, Sampling, Telemetry, Timeouts, Workload

KEY = "my-own-secret-key-0123456789"
WHOLE = response(json.dumps({"model": "m", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}))


def plan_of(port: int, base: str = "http://127.0.0.1:{port}/v1", **more: Any) -> Plan:
    """A plan with one channel `local`, whose trace is the built-in short questions."""
    fields: dict[str, Any] = {
        "engine": "vllm",
        "base_url": base.format(port=port),
        "model": "m",
        "timeouts": Timeouts(connect_ns=500_000_000, first_token_ns=3_000_000_000, idle_ns=300_000_000),
    }
    beside = {name: more.pop(name) for name in ("sampling", "telemetry", "load", "workloads") if name in more}
    channel = Channel(**(fields | more))
    usual: dict[str, Any] = {
        "workloads": (Workload(scenario="qa", trace="builtin:short-qa"),),
        "load": Load(users=4),
    }
    return Plan(channels={"local": channel}, **(usual | beside))


GOOD_BOTH: dict[str, Route] = {**GOOD, "POST /v1/chat/completions": both(WHOLE, CHAT)}


class Broken(NamedTuple):
    """One broken set-up and the line that must name its cause."""

    why: str
    routes: Mapping[str, Route]
    check: str
    verdict: str
    seen: str
    """A regular expression."""
    hint: str = ""
    channel: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}
    code: ExitCode = ExitCode.TARGET


def unauthorised(body: str = '{"error":"Unauthorized"}', status: str = "401 Unauthorized") -> dict[str, Route]:
    answer = response(body, status)
    return {"GET /v1/models": answer, "POST /v1/chat/completions": answer}


def sse(*parts: str, pause_s: float = 0.0, hold: bool = False) -> Pieces:
    """A stream without a length, in parts."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    return Pieces((head, *(part.encode() for part in parts)), pause_s, hold)


LATE = formatdate(time.time() - 3600, usegmt=True)
WITH_KEY: dict[str, Any] = {"api_key_env": "KEY"}
FINISH = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
QUOTA = ERROR % ("You exceeded your current quota, please check your plan.", "insufficient_quota", 429)

TABLE = (
    # The five classics. 401: missing, wrong, out of quota, a local engine started with a key.
    Broken(
        "the key's variable is not set: as `run`, a plan error",
        unauthorised(),
        *("key", "fault", "key is missing: the environment variable KEY is not set", "export KEY"),
        channel=WITH_KEY,
        code=ExitCode.USAGE,
    ),
    Broken(
        "the key's variable is empty",
        unauthorised(),
        *("key", "fault", "KEY is empty", "export KEY"),
        channel=WITH_KEY,
        environ={"KEY": " "},
        code=ExitCode.USAGE,
    ),
    Broken(
        "a wrong key",
        unauthorised(),
        *("key", "fault", "the key in KEY is refused; .*401", "is KEY the key of this server"),
        channel=WITH_KEY,
        environ={"KEY": KEY},
    ),
    Broken(
        "out of quota, as OpenAI says it: waiting would not help",
        chat(response(QUOTA, "429 Too Many Requests", extra="retry-after: 5\r\n")),
        *("key", "fault", "account of the key in KEY is out of quota; .*429", "top it up"),
        channel=WITH_KEY,
        environ={"KEY": KEY},
    ),
    Broken(
        "out of money, as DeepSeek says it",
        chat(response(ERROR % ("Insufficient Balance", "unknown_error", 402), "402 Payment Required")),
        *("key", "fault", "out of quota; .*402", "top it up"),
    ),
    Broken(
        "out of money, as a 403 in Chinese",
        chat(response('{"error":{"message":"账户余额不足"}}', "403 Forbidden")),
        *("key", "fault", "out of quota; .*403", "top it up"),
    ),
    Broken(
        "a rate limit is no empty account",
        chat(response(ERROR % ("slow down", "rate_limit_error", 429), "429 Too Many Requests")),
        *("answer", "fault", "answers 429 to a small request: slow down", "a rate limit"),
    ),
    Broken(
        "a rate limit whose words lead to a page about billing",
        chat(
            response(
                ERROR % ("Rate limit reached: 3 a minute. See https://h/account/billing", "rate_limit_exceeded", 429),
                "429 Too Many Requests",
            )
        ),
        *("answer", "fault", "answers 429 to a small request: Rate limit reached", "^a rate limit$"),
    ),
    Broken(
        "a limit that is over in a moment, in words of a quota",
        chat(
            response(
                ERROR % ("You exceeded your current quota", "x", 429),
                "429 Too Many Requests",
                extra="retry-after: 7\r\n",
            )
        ),
        *("answer", "fault", "answers 429 to a small request", "a rate limit; it says to wait 7 s"),
    ),
    Broken(
        "a country that the service does not serve: no key helps",
        chat(
            response(
                ERROR % ("Country, region, or territory not supported", "unsupported_country_region_territory", 403),
                "403 Forbidden",
            )
        ),
        *("answer", "fault", "answers 403 .*Country, region", "where this host stands; another key does not help"),
        channel=WITH_KEY,
        environ={"KEY": KEY},
    ),
    Broken(
        "a firewall's page with 403",
        chat(response("<html>Request blocked. Invalid token</html>", "403 Forbidden", kind="text/html")),
        *("answer", "fault", "answers 403 to a small request .a web page.", "a firewall"),
        channel=WITH_KEY,
        environ={"KEY": KEY},
    ),
    Broken(
        "a 403 that names the key",
        chat(response('{"error":{"message":"Your API key may not use this model"}}', "403 Forbidden")),
        *("key", "fault", "the key in KEY is refused; .*403", "is KEY the key"),
        channel=WITH_KEY,
        environ={"KEY": KEY},
    ),
    Broken(
        "a local engine started with a key, and a plan without",
        unauthorised(),
        *("key", "fault", "without a key is refused; vLLM was started with a key", "api_key_env in .channel.local."),
    ),
    # Connection refused, or a proxy in between.
    Broken(
        "a local proxy whose server is away",
        unauthorised("<html>502 Bad Gateway</html>", "502 Bad Gateway"),
        *(
            "proxy",
            "fault",
            "local proxy failed: what listens on 127.0.0.1:.* does not reach the engine",
            "own address",
        ),
    ),
    Broken(
        "a dead proxy in the environment: the user's other tools fail, we don't",
        GOOD_BOTH,
        *(
            "proxy",
            "warning",
            r"local proxy failed: HTTP_PROXY names http://127.0.0.1:1, .*refused",
            "unset HTTP_PROXY",
        ),
        environ={"HTTP_PROXY": "http://127.0.0.1:1"},
        code=ExitCode.PASS,
    ),
    Broken(
        "a dead proxy for everything, with a password that is not shown",
        GOOD_BOTH,
        *("proxy", "warning", r"ALL_PROXY names socks5://\[redacted\]@127.0.0.1:1, ", "NO_PROXY=127.0.0.1"),
        environ={"ALL_PROXY": "socks5://me:geheim99@127.0.0.1:1"},
        code=ExitCode.PASS,
    ),
    Broken(
        "a proxy variable that is none",
        GOOD_BOTH,
        *("proxy", "warning", "http_proxy is no address", ""),
        environ={"http_proxy": "http://[::1"},
        code=ExitCode.PASS,
    ),
    Broken(
        "a proxy that wants credentials of its own",
        chat(response("", "407 Proxy Authentication Required")),
        *("answer", "fault", "a proxy in between wants credentials; .*407", "intercepts"),
    ),
    Broken(
        "a proxy that packs the stream",
        chat(response(b"\x1f\x8b", kind="text/event-stream", extra="content-encoding: gzip\r\n")),
        *("proxy", "fault", "content-encoding gzip, which nobody asked for", "turn that off"),
    ),
    # Empty or malformed choices.
    Broken(
        "choices are empty in every chunk",
        chat(stream(event({"choices": []}), USAGE.replace("2", "0"), DONE)),
        *("choices", "fault", r"answers 200 with empty choices: \[\]", "its log"),
    ),
    Broken(
        "choices are no list",
        chat(stream(event({"choices": {"text": "x"}}), DONE)),
        *("choices", "fault", "malformed choices: .*text", "its log"),
    ),
    Broken(
        "choices of nothing",
        chat(stream(event({"choices": [None]}), DONE)),
        *("choices", "fault", r"malformed choices: \[null\]", "its log"),
    ),
    Broken(
        "choices are empty, in one piece",
        chat(response('{"object":"chat.completion","choices":[]}')),
        *("choices", "fault", "empty choices", "its log"),
        channel={"stream": False},
    ),
    # A stream that never ends, or is none.
    Broken(
        "silence after the text",
        chat(sse(ROLE, TEXT, hold=True)),
        *("stream", "fault", "never ends: it gave 1 chunks, and then it fell silent for 0.3 s", "end mark"),
    ),
    Broken(
        "silence after the finish reason",
        chat(sse(ROLE, TEXT, FINISH, hold=True)),
        *("stream", "fault", "never ends: it said that it is over, and then", "a proxy that keeps it open"),
    ),
    Broken(
        "a stream that repeats itself",
        chat(sse(TEXT * 2000, hold=True)),
        *("stream", "fault", r"streams without end: \d+ chunks where a few tokens were asked", "max_tokens"),
    ),
    Broken(
        "a stream that ends without saying so",
        chat(sse(ROLE, TEXT)),
        *("stream", "fault", r"ends its stream without a finish reason or \[DONE\]", "cut|drop the end"),
    ),
    Broken(
        "text that calls itself an event stream",
        chat(response("hello there", kind="text/event-stream")),
        *("stream", "fault", "sends no events: 'hello there'", "server-sent events"),
    ),
    Broken(
        "an event stream that calls itself something else",
        chat(response(ROLE + TEXT + DONE, kind="text/plain")),
        *("stream", "fault", "sends events but calls them text/plain", "content type"),
    ),
    Broken(
        "lines of JSON instead of events",
        chat(response('{"response":"hi"}\n{"response":"you"}\n', kind="application/x-ndjson")),
        *("stream", "fault", "200 with application/x-ndjson instead of a stream", "LLM server"),
    ),
    # Context or KV memory exhausted at the engine.
    Broken(
        "no KV cache left",
        chat(response(ERROR % ("KV cache is full, try again", "server_error", 500), "500 Internal Server Error")),
        *("memory", "fault", "out of KV or GPU memory; .*KV cache is full", "--gpu-memory-utilization"),
    ),
    Broken(
        "out of memory, said in the stream after a 200",
        chat(stream(ROLE, event({"error": {"message": "CUDA out of memory. Tried to allocate", "code": 500}}), DONE)),
        *("memory", "fault", "out of KV or GPU memory; .*200 and then an error: CUDA out of memory", "--max-model-len"),
    ),
    Broken(
        "a context smaller than a question, as llama.cpp says it",
        chat(
            response(
                ERROR % ("request (23 tokens) exceeds the available context size", "exceed_context_size_error", 400),
                "400 Bad Request",
            )
        ),
        *("context", "fault", "even a small request does not fit the engine's context; .*23 tokens", "--parallel"),
        channel={"engine": "llama.cpp"},
    ),
    Broken(
        "a context smaller than the trace",
        {**GOOD_BOTH, "GET /v1/models": MODELS.replace(b"4096", b"  64")},
        *("context", "warning", r"takes 64 tokens, the longest row of qa \(session .*skips such turns", "too_long"),
        code=ExitCode.PASS,
    ),
    # The rest of the way.
    Broken(
        "/v1 twice",
        GOOD,
        *(
            "base URL",
            "fault",
            "/v1/v1/chat/completions answers 404",
            r'/v1 twice.*base_url = "http://127.0.0.1:\d+/v1"',
        ),
        channel={"base": "http://127.0.0.1:{port}/v1/v1"},
    ),
    Broken(
        "a prefix that is not there",
        GOOD,
        *(
            "base URL",
            "fault",
            "/llm/v1/chat/completions answers 404",
            r'base_url = "http://127.0.0.1:\d+/v1" has a list',
        ),
        channel={"base": "http://127.0.0.1:{port}/llm"},
    ),
    Broken("a user interface", chat(HTML), *("base URL", "fault", "200 with a web page: this is no LLM API", "API")),
    Broken("nothing there", {}, *("base URL", "fault", "/v1/chat/completions answers 404", "is this an LLM server")),
    Broken(
        "a model by a name that is nearly right",
        {**GOOD, "GET /v1/models": response('{"data":[{"id":"qwen3-8b"},{"id":"llama"}]}')},
        *("models", "fault", "no model 'qwen3_8b'; it has qwen3-8b, llama", "did you mean qwen3-8b"),
        channel={"model": "qwen3_8b"},
    ),
    Broken(
        "another model answers",
        GOOD_BOTH | chat(both(WHOLE, stream(ROLE.replace("m-real", "cheap"), TEXT, USAGE, DONE))),
        *("model answered", "warning", "cheap answers where m was asked", "alias"),
        code=ExitCode.PASS,
    ),
    Broken(
        "no usage",
        chat(both(WHOLE, stream(TEXT, DONE))),
        *("usage", "warning", "tells no token counts", "estimates"),
        code=ExitCode.PASS,
    ),
    Broken(
        "a proxy that holds chunks back (ST-24)",
        chat(both(WHOLE, sse("", TEXT * 24 + FINISH + DONE, pause_s=0.1))),
        *("chunks", "warning", r"24 chunks come in one burst after \d+ ms", "proxy_buffering off"),
        code=ExitCode.PASS,
    ),
    Broken(
        "a clock that is an hour off",
        chat(both(WHOLE, stream(TEXT, USAGE, DONE, extra=f"date: {LATE}\r\n"))),
        *("clock", "warning", r"clock is [34],\d\d\d s ahead of the server's", "NTP"),
        code=ExitCode.PASS,
    ),
    Broken(
        "streams, but refuses to answer in one piece: the run does not need it",
        chat(both(response(ERROR % ("stream only", "x", 400), "400 Bad Request"), CHAT)),
        *("answer", "warning", "asked in one piece, which the run does not do: .*stream only", ""),
        code=ExitCode.PASS,
    ),
    Broken(
        "no metrics for the engine agent",
        GOOD_BOTH,
        *("engine agent", "warning", "/metrics answers 404 without metrics", "vllm serve"),
        channel={"telemetry": Telemetry(engine_metrics=True)},
        code=ExitCode.PASS,
    ),
    Broken(
        "a trace that is not there",
        GOOD_BOTH,
        *("context", "fault", "nowhere.jsonl", ""),
        channel={"workloads": (Workload(scenario="qa", trace="/nowhere.jsonl"),)},
        code=ExitCode.USAGE,
    ),
)


def line_of(examined: Examined, check: str, verdict: str) -> tuple[str, str]:
    """(seen, hint) of the one line with this check and verdict."""
    lines = [line for line in examined.lines if line.check == check and line.verdict == verdict]
    assert len(lines) == 1, "\n".join(f"{line.verdict} {line.check}: {line.seen}" for line in examined.lines)
    return lines[0].seen, lines[0].hint or ""


@pytest.mark.parametrize("row", TABLE, ids=[row.why for row in TABLE])
def test_a_broken_set_up_is_named(row: Broken) -> None:
    with serving(row.routes) as server:
        examined = examine_plan(plan_of(server.port, **row.channel), row.environ)
    seen, hint = line_of(examined, row.check, row.verdict)
    assert re.search(row.seen, seen), seen
    assert re.search(row.hint, hint), hint
    assert examined.exit_code is row.code
    faults = [line for line in examined.lines if line.verdict == "fault"]
    assert len(faults) == (row.verdict == "fault"), "one cause, one fault"
    assert all(line.seen.isprintable() and len(line.seen) <= 700 for line in examined.lines)
    assert examined.verdict == row.verdict or (row.verdict == "warning" and examined.verdict == "warning")


def test_refused_is_told_from_filtered() -> None:
    with dead_port() as port:
        seen, hint = line_of(examine_plan(plan_of(port), {}), "port", "fault")
        assert f"nothing listens on 127.0.0.1:{port} (connection refused)" in seen
        assert "vllm serve" in hint
    with black_hole() as port:
        seen, hint = line_of(examine_plan(plan_of(port), {}), "port", "fault")
        assert f"127.0.0.1:{port} does not take a connection within 0.5 s" in seen
        assert "firewall" in seen and "refused" not in seen


def test_a_name_that_is_not_found() -> None:
    seen, _ = line_of(examine_plan(plan_of(1, "http://nowhere.invalid:{port}/v1"), {}), "name", "fault")
    assert "the name nowhere.invalid is not found" in seen


def test_no_proxy_exempts_a_host_from_the_environments_proxy() -> None:
    with serving(GOOD_BOTH) as server:
        environ = {"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "example.org,127.0.0.1"}
        seen, _ = line_of(examine_plan(plan_of(server.port), environ), "proxy", "ok")
    assert "connects directly" in seen


# ---------------------------------------------------------------------------------------------------- the plan's proxy


def test_a_channel_with_a_proxy_is_asked_through_it(certificates: Path) -> None:
    """http in absolute form, https in a tunnel; the names are the proxy's to look up."""
    through = {route.replace(" /", " http://engine.invalid:8000/"): answer for route, answer in GOOD_BOTH.items()}
    with serving(through) as proxy:
        where = {"base_url": "http://engine.invalid:8000/v1", "proxy": f"http://127.0.0.1:{proxy.port}"}
        examined = examine_plan(plan_of(0, **where), {"HTTP_PROXY": "http://127.0.0.1:1"})
        assert {headers["host"] for _, headers, _ in proxy.requests} == {"engine.invalid:8000"}
    seen, _ = line_of(examined, "proxy", "ok")
    assert seen.startswith(f"requests go through 127.0.0.1:{proxy.port}, as the plan says")
    assert examined.exit_code is ExitCode.PASS
    with serving(GOOD_BOTH, tunnel=tls_of(certificates, "good")) as proxy:
        ca = str(certificates / "good" / "cert.pem")
        where = {"base_url": "https://127.0.0.1:8443/v1", "proxy": f"http://127.0.0.1:{proxy.port}", "ca": ca}
        examined = examine_plan(plan_of(0, **where), {})
        assert "CONNECT 127.0.0.1:8443" in {route for route, _, _ in proxy.requests}
    line_of(examined, "tls", "ok")
    assert examined.exit_code is ExitCode.PASS


PROXY_FAULTS: tuple[tuple[str, dict[str, Route], str, str], ...] = (
    ("http", {}, "502 Bad Gateway", r"local proxy failed: .* it answered 502: it could not reach the server"),
    ("http", {}, "407 Authenticate", r"local proxy failed: .* wants a user name and password"),
    ("https", {}, "403 Forbidden", r"local proxy failed: .* it refused the tunnel \(403 Forbidden\)"),
    ("https", {}, "502 Bad Gateway", r"local proxy failed: .* it could not reach the server \(502 Bad Gateway\)"),
)


@pytest.mark.parametrize(("scheme", "routes", "status", "says"), PROXY_FAULTS)
def test_the_plans_proxy_is_named_when_it_fails(scheme: str, routes: dict[str, Route], status: str, says: str) -> None:
    answer = response("no", status, kind="text/plain")
    asked = {"CONNECT engine.invalid:8000": answer, "GET http://engine.invalid:8000/v1/models": answer}
    asked["POST http://engine.invalid:8000/v1/chat/completions"] = answer
    with serving({**routes, **asked}) as proxy:
        where = {"base_url": f"{scheme}://engine.invalid:8000/v1", "proxy": f"http://127.0.0.1:{proxy.port}"}
        examined = examine_plan(plan_of(0, **where), {})
    seen, hint = line_of(examined, "proxy", "fault")
    assert re.search(says, seen), seen
    assert "take `proxy` out of the channel" in hint


def test_the_plans_proxy_is_not_there() -> None:
    with dead_port() as port:
        plan = plan_of(0, base_url="http://engine.invalid:8000/v1", proxy=f"http://127.0.0.1:{port}")
        seen, _ = line_of(examine_plan(plan, {}), "proxy", "fault")
    assert f"local proxy failed: requests go through 127.0.0.1:{port} as the plan says, and nothing listens" in seen


# ---------------------------------------------------------------------------------------------------- fields (CL-04)


def refusing(*fields: str, status: str = "422 Unprocessable Entity") -> ByBody:
    """A server that does not know these fields; pydantic's words."""

    def answer(asked: dict[str, Any]) -> Answer:
        named = next((field for field in fields if field in asked), None)
        if named is None:
            return CHAT if asked["stream"] else WHOLE
        fault = {"type": "extra_forbidden", "loc": ["body", named], "msg": "Extra inputs are not permitted"}
        return response(json.dumps({"detail": [fault]}), status)

    return ByBody(answer)


REFUSED_FIELDS: tuple[tuple[tuple[str, ...], dict[str, Any], Sampling, tuple[str, ...], str], ...] = (
    # fields that the server refuses, the channel, sampling, what is dropped, in the effect
    (("stream_options",), {}, Sampling(), ("stream_options",), "token counts are estimates"),
    (("ignore_eos",), {"ignore_eos": True}, Sampling(), ("ignore_eos",), "output lengths are not fixed"),
    (("min_tokens", "ignore_eos"), {"ignore_eos": True}, Sampling(), ("min_tokens", "ignore_eos"), "not fixed"),
    (("seed",), {}, Sampling(seed=7), ("seed",), "can't be repeated"),
    (("temperature",), {}, Sampling(), ("temperature",), "a temperature of its own"),
    (("stop", "top_p"), {}, Sampling(stop=("x",), top_p=0.5), ("stop", "top_p"), "stop strings"),
)


@pytest.mark.parametrize(("refused", "channel", "sampling", "dropped", "effect"), REFUSED_FIELDS)
@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
def test_cl_04_a_refused_field_is_left_out_with_a_note(
    refused: tuple[str, ...],
    channel: dict[str, Any],
    sampling: Sampling,
    dropped: tuple[str, ...],
    effect: str,
    status: str,
) -> None:
    with serving(chat(refusing(*refused, status=status))) as server:
        plan = plan_of(server.port, sampling=sampling, **channel)
        facts = preflight(plan, environ={})["local"]
        examined = examine_plan(plan, {})
    assert facts.dropped_fields == dropped
    assert facts.details["dropped_fields"] == ", ".join(dropped)
    seen, hint = line_of(examined, "fields", "warning")
    assert seen.startswith(f"the server refuses {', '.join(dropped)}: adapted")
    assert effect in seen
    assert "every channel is asked the same" in hint
    assert examined.exit_code is ExitCode.PASS
    assert examined.channels["local"].dropped_fields == dropped


def test_cl_04_a_field_that_is_only_mentioned_is_not_taken_for_the_cause() -> None:
    """The retry without it is refused as well: what the server said first is what is told."""
    first = response(ERROR % ("bad template (seed, temperature ignored)", "BadRequest", 400), "400 Bad Request")
    with serving(chat(first)) as server:
        seen, _ = line_of(examine_plan(plan_of(server.port), {}), "answer", "fault")
    assert "bad template" in seen


def test_cl_04_a_field_of_the_plans_own_is_never_dropped() -> None:
    with serving(chat(refusing("seed"))) as server:
        examined = examine_plan(plan_of(server.port, extra_body={"seed": 7}), {})
        assert len(server.bodies("POST /v1/chat/completions")) == 1
    _, hint = line_of(examined, "answer", "fault")
    assert "extra_body" in hint


# ---------------------------------------------------------------------------------------------------- TLS (CL-11)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of certificates, each its own authority: of 127.0.0.1, soon over, long over, of another name."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    root = tmp_path_factory.mktemp("certificates")
    for name, san, dates in (
        ("good", "IP:127.0.0.1", ["-days", "300"]),
        ("soon", "IP:127.0.0.1", ["-days", "2"]),
        ("expired", "IP:127.0.0.1", ["-not_before", "20200101000000Z", "-not_after", "20200201000000Z"]),
        ("other", "DNS:elsewhere.example", ["-days", "300"]),
    ):
        folder = root / name
        folder.mkdir()
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem"
        command += f" -out cert.pem -subj /CN=test/O=Testers -addext subjectAltName={san}"
        made = subprocess.run([*command.split(), *dates], cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode and name == "expired":
            _expired_the_old_way(folder, command, san)
        else:
            assert made.returncode == 0, made.stderr
    return root


def tls_of(certificates: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / name / "cert.pem", certificates / name / "key.pem")
    return context


def _expired_the_old_way(folder: Path, command: str, san: str) -> None:
    """OpenSSL before 3.4 has no `req -not_after`: `ca` has dates."""
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=c\n[c]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
        f"x509_extensions=x\n[p]\ncommonName=optional\norganizationName=optional\n[x]\nsubjectAltName={san}\n"
    )
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    request = command.replace("-x509 ", "-new ").replace("cert.pem", "request.pem").split()
    sign = "openssl ca -batch -config ca.cnf -selfsign -in request.pem -keyfile key.pem -out cert.pem -notext"
    sign += " -startdate 20200101000000Z -enddate 20200201000000Z"
    for step in (request, sign.split()):
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


TLS: tuple[tuple[str, dict[str, Any], str, str, str], ...] = (
    # certificate, the channel, verdict, seen, hint
    ("good", {}, "fault", "not trusted: self.signed certificate .for 127.0.0.1, issued by Testers, valid", "ca = "),
    ("expired", {"ca": "expired"}, "fault", r"not trusted: certificate has expired .*valid until 2020-02-01", "renew"),
    ("other", {"ca": "other"}, "fault", "IP address mismatch.*for elsewhere.example", "a name that the certificate is"),
    ("good", {"ca": "other"}, "fault", "not trusted: .*certificate", "ca = "),
    ("expired", {"insecure": True}, "warning", "nobody checks who answers .*until 2020-02-01", "ca = "),
    ("soon", {"ca": "soon"}, "warning", "TLSv1.3, certificate for 127.0.0.1, issued by Testers", "renew"),
    ("good", {"ca": "good"}, "ok", "TLSv1.3, certificate for 127.0.0.1, issued by Testers, valid until 20", ""),
)


@pytest.mark.parametrize(("name", "channel", "verdict", "says", "advice"), TLS)
def test_cl_11_certificates(
    certificates: Path, name: str, channel: dict[str, Any], verdict: str, says: str, advice: str
) -> None:
    context = tls_of(certificates, name)
    if "ca" in channel:
        channel = {**channel, "ca": str(certificates / str(channel["ca"]) / "cert.pem")}
    with serving(GOOD_BOTH, context) as server:
        examined = examine_plan(plan_of(server.port, "https://127.0.0.1:{port}/v1", **channel), {})
    seen, hint = line_of(examined, "tls", verdict)
    assert re.search(says, seen), seen
    assert advice in hint
    assert examined.exit_code is (ExitCode.TARGET if verdict == "fault" else ExitCode.PASS)


# ---------------------------------------------------------------------------------------------------- this host


def test_hc_06_too_few_open_files_for_the_users(tmp_path: Path) -> None:
    """In a process of its own, whose hard limit is 256."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
    code += "sys.argv = ['infersiege', 'doctor', sys.argv[1]]\nfrom infersiege.cli import main; main()"
    plan = tmp_path / "plan.toml"
    with serving(GOOD_BOTH) as server:
        plan.write_text(PLAN.format(port=server.port, users=400))
        ended = subprocess.run([sys.executable, "-c", code, str(plan)], capture_output=True, text=True, check=False)
    row = next(line for line in ended.stdout.splitlines() if "open files" in line)
    assert re.match(r"host +fault +open files +256 per process; a worker needs about 500 for .*400 users", row), row
    assert "use 3 workers" in row
    assert ended.returncode == ExitCode.TARGET
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("channels", "servers", "why"),
    [
        ("", 1, "one server"),
        ("keep_alive = false", 1, "the connection is closed after each answer"),
        (
            'base_urls = ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]',
            3,
            "a user meets each replica",
        ),
        (
            'base_urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]\n[channel.cloud]\nengine = "vllm"\nmodel = "m"\n'
            '[channel.both]\nengine = "hybrid"\npolicy = "overflow"\n[[channel.both.part]]\nchannel = "local"\n'
            'max_in_flight = 2\n[[channel.both.part]]\nchannel = "cloud"\n'
            '[channel.unused]\nengine = "vllm"\nmodel = "m"',
            3,
            "the parts of a hybrid, replicas too, and no channel that no workload names",
        ),
    ],
)
def test_hc_06_open_files_count_every_server_of_a_user(tmp_path: Path, channels: str, servers: int, why: str) -> None:
    named = "both" if "both" in channels else "local"
    (tmp_path / "plan.toml").write_text(
        f'[run]\nduration = "5s"\n[load]\nusers = 100\n[channel.local]\nengine = "vllm"\nmodel = "m"\n{channels}\n'
        f'[[workload]]\nscenario = "a"\ntrace = "builtin:agent"\nchannel = "{named}"\n'
    )
    checks = examine_host(load_plan(tmp_path / "plan.toml", environ={}), {}, out=tmp_path)
    said = next(check.seen for check in checks if check.name == "open files")
    assert f"needs about {100 * servers + 100:,} for its share of 100 users" in said, why


def test_a_disk_without_room_and_a_folder_that_is_none(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving(GOOD_BOTH) as server:
        plan = plan_of(server.port)
        seen, _ = line_of(examine_plan(plan, {}, out=small_disk / "runs"), "run directory", "fault")
        assert "0 MiB free at" in seen
        environ = {"INFERSIEGE_SPOOL": str(tmp_path / "file" / "spool")}
        seen, _ = line_of(examine_plan(plan, environ), "workers' spool", "fault")
        assert "can't be written" in seen or "Not a directory" in seen


# ---------------------------------------------------------------------------------------------------- the command

PLAN = """\
[run]
duration = "5m"
[channel.local]
engine = "vllm"
base_url = "http://127.0.0.1:{port}/v1"
model = "m"
[[workload]]
scenario = "qa"
trace = "builtin:short-qa"
[load]
users = {users}
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("engine", "dialects"),
    [("vllm", ("openai-chat", "openai-completions", "openai-responses")), ("anthropic", ("anthropic-messages",))],
)
def test_a_healthy_set_up_takes_less_than_5_s_and_every_line_is_ok(
    tmp_path: Path, engine: str, dialects: tuple[str, ...]
) -> None:
    plan = tmp_path / "plan.toml"
    with EmulatorProcess("--model", "m", "--profile", engine) as emulator:
        plan.write_text(PLAN.format(port=emulator.port, users=4).replace('"vllm"', f'"{engine}"'))
        for dialect in dialects:
            _check_healthy(plan, dialect)


def _check_healthy(plan: Path, dialect: str) -> None:
    began = time.monotonic()
    ended = CliRunner().invoke(doctor, [str(plan), "--set", f"channel.local.dialect={dialect}"])
    took = time.monotonic() - began
    assert ended.exit_code == 0, ended.output
    lines = ended.output.splitlines()
    assert {line.split()[1] for line in lines} == {"ok"}, ended.output
    assert len(lines) >= 14
    assert took < 5


def test_json_says_what_the_text_says(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    with serving({**GOOD, "POST /v1/chat/completions": both(WHOLE, CHAT)}) as server:
        plan.write_text(PLAN.format(port=server.port, users=4))
        as_text = CliRunner().invoke(doctor, [str(plan)])
        server.requests.clear()
        as_json = CliRunner().invoke(doctor, [str(plan), "--json"])
    told = json.loads(as_json.output)
    shown = [
        f"{line['subject']}  {line['verdict']:<8} {line['check']:<14}  {line['seen']}"
        + (f" | try: {line['hint']}" if line["hint"] else "")
        for line in told["lines"]
    ]
    times = re.compile(r"\d+ ms|\d+\.\d GiB")
    assert [times.sub("N", line) for line in shown] == [times.sub("N", line) for line in as_text.output.splitlines()]
    assert (told["verdict"], told["exit_code"]) == ("warning", as_text.exit_code), "m-real answers"
    assert told["channels"]["local"]["details"]["usage"] == "yes"


def test_a_plan_that_is_none_ends_with_2(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(port=1, users=4).replace("model", "modell"))
    ended = subprocess.run(
        [sys.executable, "-m", "infersiege", "doctor", str(plan)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.USAGE
    assert "did you mean channel.local.model?" in ended.stderr


def test_a_missing_key_of_one_channel_does_not_hide_the_others(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    other = '[channel.cloud]\nengine = "openai"\nbase_url = "http://127.0.0.1:{port}/v1"\nmodel = "m"\n'
    other += 'api_key_env = "INFERSIEGE_NO_SUCH_KEY"\n[[workload]]'
    with serving(GOOD_BOTH) as server:
        text = PLAN.replace("[[workload]]", other).replace('short-qa"', 'short-qa"\nchannel = "local"')
        plan.write_text(text.format(port=server.port, users=4))
        ended = CliRunner().invoke(doctor, [str(plan)])
    assert ended.exit_code == ExitCode.USAGE
    assert re.search(r"^cloud +fault +key +the key is missing: .*INFERSIEGE_NO_SUCH_KEY is not set", ended.output, re.M)
    assert re.search(r"^local +ok +models", ended.output, re.M)


def test_each_address_of_a_channel_is_examined_once() -> None:
    with serving(GOOD_BOTH) as one, serving(unauthorised()) as two:
        bases = tuple(f"http://127.0.0.1:{port}/v1" for port in (one.port, two.port, one.port))
        examined = examine_plan(plan_of(0, base_urls=bases, base_url=None), {})
        asked = [route for route, _, _ in one.requests].count("GET /v1/models")
    subjects = {line.subject: line.verdict for line in examined.lines if line.check in ("key", "models")}
    assert subjects == {"local#1": "ok", "local#2": "fault"}
    assert asked == 1


def test_the_longest_row_of_a_hybrid_channel_counts_for_each_of_its_parts() -> None:
    parts = (Part(channel="local", scenarios=("other",)), Part(channel="cloud"))
    trace = Workload(scenario="qa", trace="builtin:short-qa", channel="both")
    with serving({**GOOD_BOTH, "GET /v1/models": MODELS.replace(b"4096", b"  64")}) as server:
        plan = plan_of(server.port, workloads=(trace,))
        channels = {"local": plan.channels["local"], "cloud": plan.channels["local"]}
        for policy, warned in (("failover", {"local", "cloud"}), ("scenario", {"cloud"})):
            hybrids = {"both": Hybrid(policy=policy, parts=parts)}
            examined = examine_plan(msgspec.structs.replace(plan, channels=channels, hybrids=hybrids), {})
            told = {line.subject for line in examined.lines if line.check == "context" and line.verdict == "warning"}
            assert told == warned
            assert len([line for line in examined.lines if line.check == "url"]) == 2, "each channel once"


def test_how_a_server_was_started_goes_to_the_facts_without_its_key() -> None:
    page = {"kv_cache_dtype": "fp8", "api_key": KEY, "served_model_name": f"x-{KEY}", "tp_size": 2}
    with serving({**GOOD_BOTH, "GET /server_info": response(json.dumps(page))}) as server:
        facts = preflight(plan_of(server.port, engine="sglang", **WITH_KEY), environ={"KEY": KEY})["local"]
    assert facts.details["launch.tp_size"] == "2"
    assert KEY not in str(facts)


def test_channels_that_nobody_looked_at_say_so() -> None:
    facts = unexamined(plan_of(1))["local"]
    assert facts.url == "http://127.0.0.1:1/v1/chat/completions"
    assert facts.details == {"doctor": SKIPPED}


# ---------------------------------------------------------------------------------------------------- secrets, bytes

ECHOES: tuple[tuple[str, Mapping[str, Route]], ...] = (
    ("a refusal", unauthorised(json.dumps({"error": {"message": f"bad key Bearer {KEY}"}}))),
    ("a page", chat(response(f"<title>{KEY}</title>", "500 Oops", "text/html"))),
    ("a model's name", {**GOOD, "GET /v1/models": response(json.dumps({"data": [{"id": f"m-{KEY}"}]}))}),
    ("the model that answers", chat(stream(ROLE.replace("m-real", KEY), TEXT, USAGE, DONE))),
    ("an error in the stream", chat(stream(ROLE, event({"error": {"message": f"no {KEY}"}}), DONE))),
    ("what is no JSON", chat(stream(f"data: {KEY}\n\n"))),
    ("a finish reason", chat(stream(event({"choices": [{"delta": {}, "finish_reason": KEY}]}), DONE))),
    ("headers", chat(stream(TEXT, USAGE, DONE, extra=f"server: {KEY}\r\ndate: {KEY}\r\nvia: {KEY}\r\n"))),
    ("a content type", chat(response("{}", kind=KEY))),
    ("a redirect", chat(response("", "308 Permanent Redirect", extra=f"location: http://x/?key={KEY}\r\n"))),
    ("a wait", chat(response("", "429 Too Many Requests", extra=f"retry-after: {KEY}\r\n"))),
    ("a gateway", chat(response("", "502 Bad Gateway", extra=f"server: nginx {KEY}\r\n"))),
    ("an encoding", chat(response("x", extra=f"content-encoding: {KEY}\r\n"))),
    ("a version", {**GOOD, "GET /version": response(json.dumps({"version": KEY}))}),
    ("choices", chat(stream(event({"choices": [KEY]}), DONE))),
    ("in base64", unauthorised(json.dumps({"error": {"message": "Basic bXktb3duLXNlY3JldC1rZXktMDEyMzQ1Njc4OQ=="}}))),
)


@pytest.mark.parametrize("routes", [row[1] for row in ECHOES], ids=[row[0] for row in ECHOES])
def test_cl_08_a_key_that_the_server_echoes_is_in_no_output(tmp_path: Path, routes: Mapping[str, Route]) -> None:
    plan = tmp_path / "plan.toml"
    environ = {"KEY": KEY, "HTTP_PROXY": f"http://me:{KEY}@127.0.0.1:1"}
    with serving(routes) as server:
        plan.write_text(PLAN.format(port=server.port, users=4).replace('"m"', '"m"\napi_key_env = "KEY"'))
        outputs = [CliRunner(env=environ).invoke(doctor, [str(plan), *more]).output for more in ([], ["--json"])]
        assert any(KEY in headers.get("authorization", "") for _, headers, _ in server.requests), "it was sent"
    for output in outputs:
        assert "local" in output
        assert KEY not in output
        assert "bXktb3du" not in output


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**19) | st.text(max_size=8) | st.just(KEY),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "message",
                    "error",
                    "data",
                    "id",
                    "usage",
                    "model",
                    "type",
                    "detail",
                    "code",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
_bodies = st.one_of(
    st.binary(max_size=60),
    _values.map(lambda value: json.dumps(value).encode()),
    st.lists(_values, max_size=4).map(lambda values: "".join(event(value) for value in values).encode()),
    st.just((TEXT + DONE).encode()),
)
_heads = st.tuples(
    st.sampled_from([200, 200, 200, 204, 302, 400, 401, 404, 422, 429, 500, 503, 999, 99]),
    st.sampled_from(["text/event-stream", "application/json", "text/html", "", "\xff"]),
    st.sampled_from(
        ["", "content-length: 5\r\n", "transfer-encoding: chunked\r\n", "content-encoding: br\r\n", "x\r\n"]
    ),
)


@st.composite
def _answers(draw: st.DrawFn) -> bytes:
    """Raw bytes of an answer: a head that may be one, and a body that may fit it."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    status, kind, more = draw(_heads)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}\r\n".encode("latin-1")
    return head + draw(_bodies)


@settings(max_examples=80)
@given(models=_answers(), streamed=_answers(), whole=_answers(), streams=st.booleans())
def test_no_bytes_of_a_server_make_a_traceback(models: bytes, streamed: bytes, whole: bytes, streams: bool) -> None:
    routes: dict[str, Route] = {
        "GET /v1/models": models,
        "POST /v1/chat/completions": both(whole, streamed),
        "GET /version": whole,
    }
    with serving(routes) as server:
        plan = plan_of(server.port, stream=streams, api_key_env="KEY")
        examined = examine_plan(plan, {"KEY": KEY})
    assert all(line.seen.isprintable() and (line.hint or "x").isprintable() for line in examined.lines)
    assert KEY not in examined.as_json()
    faults = [line for line in examined.lines if line.verdict == "fault"]
    assert bool(faults) == (examined.exit_code is not ExitCode.PASS) == ("local" not in examined.channels)
