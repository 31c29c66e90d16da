"""No secret in anything that any command writes, prints or starts, also when the server says it back in every place.

CASES CL-08. One server echoes what it was sent (keys, cookies, database tokens) in error bodies, in streams, in model
names, finish reasons and headers; runs, preflights, reports and gates are then searched for every form of it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest
from loopback_http import LoopbackHttp
from siege import Siege, check_conserved

from infersiege.emulator.process import EmulatorProcess
from infersiege.plan.schema import Channel, Plan, Telemetry, Workload
from infersiege.records import Outcome
from infersiege.redact import REDACTED, Secrets

pytestmark = [pytest.mark.slow, pytest.mark.alone]

# No prefix that the scrubber knows by its looks: only the knowledge of the very value can take these out.
SECRETS = {
    "variable": "Qm8vT4xWz1LpR7yKc2Nd",
    "file": "hJ5sG9bV3uXe6ZtPa0Fw",
    "borrowed": "oY7kD2nM8rCq4IvLx1Ub",
    "database": "eA6wS3zT9jHf5GpRy8Kd",
    "cookie": "nB4mX7vQ2cWl9EsZi6Ot",
}
MODEL = "echo-model"
COOKIE_NAME = "sticky"


class Echo(BaseHTTPRequestHandler):
    """Says back what it was sent: to a run's turns (they have an x-request-id) in turn in each of `WAYS`."""

    protocol_version = "HTTP/1.1"
    heard: Counter[str]
    """Secrets that it was sent, and ways in which it said them back."""
    refuse_all = False
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._hear()
        if self.refuse_all:
            self._refuse(401)
        elif self.path == "/v1/models":
            self._say(200, {"data": [{"id": MODEL}, {"id": f"m-{self._said()}", "owned_by": self._said()}]})
        else:
            self._say(404, {"error": {"message": self._said()}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._hear()
        if self.refuse_all or not self.path.startswith("/v1"):
            self._refuse(401)
        elif "x-request-id" not in self.headers:
            self._answer(json.loads(body), self._said())
        else:
            with self.lock:
                number = self.heard["turns"]
                self.heard["turns"] += 1
            ways = WAYS if "cookie" in self.headers else (Echo._answer_plainly,)  # the cookie comes with the first turn
            way = ways[number % len(ways)]
            with self.lock:
                self.heard[way.__name__] += 1
            way(self, json.loads(body))

    # -------------------------------------------------------------------------------------------------- what was sent

    def _said(self) -> str:
        """All that came in headers, as servers print it in error messages."""
        return "; ".join(f"{name}={value}" for name, value in self.headers.items() if name.lower() in CARRIERS)

    def _hear(self) -> None:
        text = self._said()
        with self.lock:
            self.heard.update(name for name, secret in SECRETS.items() if secret in text)

    # ------------------------------------------------------------------------------------------------------- answers

    def _answer_plainly(self, request: dict[str, object]) -> None:
        self._answer(request, "hello")

    def _in_401(self, request: dict[str, object]) -> None:
        self._refuse(401)

    def _in_500(self, request: dict[str, object]) -> None:
        bare = " ".join(value for name, value in self.headers.items() if name.lower() in CARRIERS)
        self._say(500, {"error": {"message": f"crashed on {bare}", "code": bare, "type": base64_of(bare)}})

    def _in_429(self, request: dict[str, object]) -> None:
        self._say(429, {"error": self._said()}, {"retry-after": "0", "x-ratelimit-remaining-requests": self._said()})

    def _in_text(self, request: dict[str, object]) -> None:
        self._raw(400, quote(self._said()).encode(), "text/plain")

    def _in_redirect(self, request: dict[str, object]) -> None:
        self._say(302, {}, {"location": f"http://elsewhere/?sid={quote(self._said())}"})

    def _in_content_type(self, request: dict[str, object]) -> None:
        self._raw(200, b"?", f"text/{self._said()[:200]}")

    def _in_stream(self, request: dict[str, object]) -> None:
        self._stream([self._chunk("a"), {"error": {"message": self._said(), "code": 401}}])

    def _in_names(self, request: dict[str, object]) -> None:
        said = self._said()
        self._stream([self._chunk("a", model=said), self._chunk("b", model=said, finish=said), USAGE])

    def _in_broken_event(self, request: dict[str, object]) -> None:
        self._stream([self._chunk("a"), f"{{{self._said()}"])

    def _answer(self, request: dict[str, object], words: str) -> None:
        if request.get("stream"):
            self._stream([self._chunk(words, model=words), self._chunk("", finish="stop"), USAGE])
        else:
            message = {"role": "assistant", "content": words}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            self._say(200, {"object": "chat.completion", "model": words, "choices": choices, "usage": USAGE["usage"]})

    def _refuse(self, status: int) -> None:
        self._say(status, {"error": {"message": f"not accepted: {self._said()}", "headers": dict(self.headers)}})

    def _chunk(self, words: str, *, model: str = MODEL, finish: str | None = None) -> dict[str, object]:
        delta = {"content": words} if words else {}
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return {"object": "chat.completion.chunk", "model": model, "choices": choices}

    def _stream(self, events: list[dict[str, object] | str]) -> None:
        lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
        body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        self._raw(200, body.encode(), "text/event-stream")

    def _say(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        self._raw(status, json.dumps(value).encode(), "application/json", headers)

    def _raw(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("set-cookie", f"{COOKIE_NAME}={SECRETS['cookie']}; Path=/; HttpOnly")
        self.send_header("x-echo", self._said())
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


WAYS = (
    Echo._in_401,
    Echo._in_500,
    Echo._in_429,
    Echo._in_text,
    Echo._in_redirect,
    Echo._in_content_type,
    Echo._in_stream,
    Echo._in_names,
    Echo._in_broken_event,
)
CARRIERS = frozenset({"authorization", "x-api-key", "cookie"})
USAGE: dict[str, object] = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def echo() -> Iterator[tuple[str, type[Echo]]]:
    handler = type("ThisEcho", (Echo,), {"heard": Counter()})
    server = LoopbackHttp(handler)
    yield server.url, handler
    server.close()


@pytest.fixture
def vault(siege: Siege, tmp_path: Path, echo: tuple[str, type[Echo]]) -> Siege:
    """A siege whose keys are in all places where keys may be; all that it writes lies below one folder."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "key").write_text(SECRETS["file"] + "\n", encoding="utf-8")
    settings = {"ANTHROPIC_BASE_URL": echo[0], "ANTHROPIC_AUTH_TOKEN": SECRETS["borrowed"], "ANTHROPIC_MODEL": MODEL}
    (keys / "settings.json").write_text(json.dumps({"env": settings}), encoding="utf-8")
    for file in keys.iterdir():
        file.chmod(0o600)
    siege.environment |= {
        "TEST_KEY": SECRETS["variable"],
        "TEST_TOKEN": SECRETS["database"],
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "home" / "state"),
        "INFERSIEGE_TELEMETRY_SPOOL": str(tmp_path / "points"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    (tmp_path / "tmp").mkdir()
    return siege


def plan(url: str, *, duration: str = "3s") -> str:
    """Three channels whose keys come from a variable, a file and another tool's settings, and a database."""
    channels = {
        "variable": f'engine = "generic"\nbase_url = "{url}"\nmodel = "{MODEL}"\napi_key_env = "TEST_KEY"',
        "file": f'engine = "generic"\nbase_url = "{url}"\nmodel = "{MODEL}"\napi_key_file = "keys/key"',
        "borrowed": f'from_file = "keys/settings.json"\ndialect = "openai-chat"\nmodel = "{MODEL}"',
    }
    text = f'[run]\nname = "echo"\nduration = "{duration}"\n'
    for name, lines in channels.items():
        text += f"[channel.{name}]\n{lines}\n"
        text += f'[[workload]]\nscenario = "{name}"\ntrace = "builtin:agent"\nchannel = "{name}"\ndelay_scale = 0\n'
    text += '[load]\nmode = "closed"\nusers = 6\nramp = "0s"\ndrain = "1s"\n'
    text += '[[slo]]\nmetric = "error_share"\nmax = "50%"\n'
    return text + f'[telemetry]\ninflux_url = "{url}/influx"\ninflux_org = "o"\ninflux_token_env = "TEST_TOKEN"\n'


FORMS = {
    name: re.compile(
        "|".join(
            re.escape(form)
            for form in (
                secret,
                secret[3:17],  # a part of it is a hit as well
                base64_of(secret)[:20],
                base64_of("xx" + secret)[4:24],
                base64_of("x" + secret)[4:24],
                secret.encode().hex(),
                secret[::-1],
            )
        ).encode()
    )
    for name, secret in SECRETS.items()
}


def leaks(data: bytes) -> list[str]:
    """Names of the secrets in it, in any form; packed data is looked at unpacked, too."""
    found = [name for name, pattern in FORMS.items() if pattern.search(data)]
    for start in (match.start() for match in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", data)):
        try:
            unpacked = zlib.decompressobj().decompress(data[start:])
        except zlib.error:
            continue
        found += [name for name, pattern in FORMS.items() if pattern.search(unpacked)]
    return found


def written(folder: Path) -> Iterator[Path]:
    """All files below it but those in which we put the keys."""
    for path in folder.rglob("*"):
        if path.is_file() and "keys" not in path.relative_to(folder).parts:
            yield path


def check_nothing_leaked(folder: Path, *said: str) -> None:
    for text in said:
        assert not leaks(text.encode()), text
    files = list(written(folder))
    assert files
    hits = {str(path.relative_to(folder)): names for path in files if (names := leaks(path.read_bytes()))}
    assert not hits


class CommandLines(threading.Thread):
    """Reads the command line of each process of a session over and over; they are what `ps` shows to everybody."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._session = session
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for folder in Path("/proc").iterdir():
                if not folder.name.isdigit():
                    continue
                try:
                    if self._belongs(folder):
                        self.seen.add((folder / "cmdline").read_bytes())
                except OSError:
                    continue  # it has just ended

    def _belongs(self, folder: Path) -> bool:
        """In the session that the run began, or begun by one that is."""
        stat = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        parent, session = int(stat[1]), int(stat[3])
        if session == self._session:
            return True
        return parent > 1 and os.getsid(parent) == self._session

    def stop(self) -> None:
        self._over.set()
        self.join()


def test_the_search_finds_every_form() -> None:
    secret = SECRETS["variable"]
    for text in (
        f"Bearer {secret}",
        base64_of(f"user:{secret}"),
        base64_of(f"{secret}:x"),
        base64_of(f"ab{secret}"),
        secret.encode().hex(),
        f"…{secret[2:18]}…",
    ):
        assert leaks(text.encode()) == ["variable"], text
    assert leaks(b"head" + zlib.compress(secret.encode() * 3)) == ["variable"]
    assert leaks(b"nothing of the kind") == []


def test_cl_08_a_run_that_is_told_its_keys_writes_and_shows_none(
    vault: Siege, tmp_path: Path, echo: tuple[str, type[Echo]]
) -> None:
    url, handler = echo
    running = vault.start(plan(url), "--workers", "2", "--gate")
    lines = CommandLines(running.process.pid)
    lines.start()
    ran = running.wait()
    lines.stop()
    check_conserved(ran)
    for name in SECRETS:
        assert handler.heard[name], f"the server never heard the secret: {name}"
    assert all(handler.heard[way.__name__] for way in WAYS), handler.heard
    failed = ran.by_outcome(Outcome.FAILED)
    assert REDACTED in (ran.path / "turns.jsonl").read_text(encoding="utf-8"), "nothing had to be taken out?"
    assert any(REDACTED in (turn.error_detail or "") for turn in failed)
    path, text = str(ran.path), str(tmp_path / "plan-1.toml")
    commands = (
        ("report", path),
        ("gate", path),
        ("run", text, "--dry-run"),
        ("doctor", text),
        ("doctor", text, "--json"),
    )
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda words: vault.command(*words), commands))
    assert all(out and "Traceback" not in out and code != 70 for code, out in done), done
    check_nothing_leaked(tmp_path, ran.out, *(out for _, out in done))
    assert sum(b"worker" in line for line in lines.seen) >= 2, "the workers' command lines were looked at"
    assert not leaks(b"\n".join(lines.seen))


def test_cl_08_ctrl_c_leaves_none_either(vault: Siege, tmp_path: Path, echo: tuple[str, type[Echo]]) -> None:
    running = vault.start(plan(echo[0], duration="30s"))
    running.until(REDACTED)
    running.interrupt()
    time.sleep(0.3)
    running.interrupt()  # an impatient user
    ran = running.wait()
    assert ran.code == 130, ran.out
    check_nothing_leaked(tmp_path, ran.out)


def test_cl_08_a_refused_preflight_shows_none(vault: Siege, tmp_path: Path, echo: tuple[str, type[Echo]]) -> None:
    url, handler = echo
    handler.refuse_all = True
    ran = vault.run(plan(url))
    assert ran.code == 4, ran.out
    code, said = vault.command("doctor", str(tmp_path / "plan-1.toml"))
    assert code == 4, said
    assert "401" in ran.out and REDACTED in ran.out
    assert handler.heard["variable"] and handler.heard["file"] and handler.heard["borrowed"]
    check_nothing_leaked(tmp_path, ran.out, said)


def test_cl_08_the_emulator_that_echoes_the_key(vault: Siege, tmp_path: Path) -> None:
    """Its 401 repeats the header, as some gateways do."""
    with EmulatorProcess("--fault", "echo_key", "--fault-every", "2", api_key=SECRETS["variable"]) as emulator:
        lines = (
            f'engine = "vllm"\nbase_url = "{emulator.base_url}"\nmodel = "{emulator.model}"\napi_key_env = "TEST_KEY"'
        )
        text = f'[run]\nduration = "2s"\n[channel.a]\n{lines}\n[[workload]]\nscenario = "short-qa"\n'
        text += 'trace = "builtin:short-qa"\n[load]\nusers = 4\nramp = "0s"\ndrain = "1s"\n'
        ran = vault.run(text, "--wait-for-target", "5")
    details = " ".join(turn.error_detail or "" for turn in ran.by_outcome(Outcome.FAILED))
    assert REDACTED in details, (ran.out, details)
    check_nothing_leaked(tmp_path, ran.out)


def test_the_secrets_of_a_plan_are_its_keys_and_the_databases_token() -> None:
    made = Plan(
        channels={"a": Channel(engine="vllm", model="m", api_key_env="K")},
        workloads=(Workload(scenario="s", trace="t"),),
        telemetry=Telemetry(influx_url="http://db", influx_token_env="T"),
    )
    found = Secrets.of(made, {"K": SECRETS["variable"], "T": f"user:{SECRETS['database']}"})
    said = f"{SECRETS['variable']} user:{SECRETS['database']} and {SECRETS['database']} alone"
    assert found.scrub(said) == f"{REDACTED} {REDACTED} and {REDACTED} alone"
    assert Secrets.of(made, {}).scrub("user: nobody") == "user: nobody"
