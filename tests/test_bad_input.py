"""What a clumsy user meets: each broken plan, trace, target, key or option gives one message and its own exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted_server import Peer, Server, stream, whole
from siege import Siege, check_passed, plan_text

pytestmark = pytest.mark.slow

KEY = "INFERSIEGE_TEST_KEY"
TALK = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
MODEL = "emulated-model"


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"model": MODEL, "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def answering(response: bytes) -> Callable[[Peer], None]:
    """A script: this response to each request, with a body (a chat) or without (the list of models)."""

    def script(peer: Peer) -> None:
        unread = b""
        while data := peer.read_some():
            unread += data
            head, end, body = unread.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if end and len(body) >= (int(length[1]) if length else 0):
                unread = b""
                peer.send(response)

    return script


def refusal(status: str, message: str) -> bytes:
    """An error in the form of OpenAI's API."""
    return whole(json.dumps({"error": {"message": message, "code": int(status[:3])}}).encode(), status)


DONE = b"data: [DONE]\n\n"
ANSWER = stream(event(delta={"content": "word "}), event(delta={"content": "word"}, finish_reason="stop"), DONE)
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
ONE_PIECE = whole(
    json.dumps({"choices": [{"index": 0, "message": {"content": "word"}, "finish_reason": "stop"}]}).encode()
)
GZIPPED = whole(b"\x1f\x8b\x08\x00" + b"\x00" * 40, kind="text/event-stream", extra="content-encoding: gzip\r\n")
REPEATED_KEY = refusal("401 Unauthorized", "Incorrect API key provided: sk-proj-abcdefghijklmnop0123")


@dataclass(frozen=True)
class Bad:
    """One thing that is wrong."""

    why: str
    """What somebody did."""
    code: int
    says: tuple[str, ...]
    """Fragments of the output; `{folder}` is the plan's, `{target}` the server's host and port."""
    answer: bytes | None = ANSWER
    """What the server says to every request; None: nobody listens."""
    load: str = 'mode = "closed"\nusers = 2\nramp = "0s"\ndrain = "1s"'
    run: str = 'duration = "1s"'
    channel: str = ""
    trace: str = "builtin:short-qa"
    more: str = ""
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    full_disk: bool = False


TABLE: dict[str, Bad] = {
    # ---- plan, trace
    "three faults at once": Bad(
        "a typo, a bare number and a value out of range: all of them with their lines, not one after the other",
        2,
        (
            "plan-1.toml: the plan has 3 faults",
            "plan-1.toml:4: run.duration: 60 has no unit",
            "load.usrs: unknown key; did you mean load.users?",
            "load.users: -1 is too small",
            "hint: docs/plan.md",
        ),
        run="duration = 60",
        load='mode = "closed"\nusrs = 4\nusers = -1',
    ),
    "no TOML": Bad("a value without quotes", 2, ("the plan is not valid TOML", "plan-1.toml:4"), run="duration = 5m"),
    "two tables of a name": Bad("a part pasted twice", 2, ("plan-1.toml:", "twice"), more="[run]\nseed = 1"),
    "no number": Bad(
        "a rate from a division by zero",
        2,
        ("load.rate: inf is not a finite number",),
        load='mode = "open"\nrate = inf',
    ),
    "more users than any engine": Bad(
        "too many digits pasted: found in the plan, not by a worker that dies of it",
        2,
        ("load.users",),
        load='mode = "closed"\nusers = 99999999999999999999',
    ),
    "missing trace": Bad(
        "the trace was not copied to this host",
        2,
        ("workload.0.trace: there is no file {folder}/nowhere.jsonl", "plan-1.toml:"),
        trace="nowhere.jsonl",
    ),
    "row that is no JSON": Bad(
        "a line cut in the middle",
        2,
        ("{folder}/t.jsonl:3: is not JSON", "hint: each line must be one whole JSON value"),
        trace="t.jsonl",
        files={"t.jsonl": f'{TALK}\n{TALK}\n{{"messages": [\n{TALK}\n'},
    ),
    "row of another format": Bad(
        "two trace files joined",
        2,
        ("{folder}/t.jsonl:3: has no messages",),
        trace="t.jsonl",
        files={"t.jsonl": f'{TALK}\n{TALK}\n{{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[1]}}\n'},
    ),
    "number beyond 64 bits in a trace": Bad(
        "a timestamp in nanoseconds read as milliseconds, and worse",
        2,
        ("{folder}/t.jsonl:2: ",),
        trace="t.jsonl",
        load='mode = "replay"',
        files={
            "t.jsonl": "".join(
                json.dumps({"timestamp": at, "input_length": 5, "output_length": 5, "hash_ids": [1]}) + "\n"
                for at in (0, 10**30)
            )
        },
    ),
    "bad date": Bad(
        "a CSV that a spreadsheet has saved",
        2,
        ("{folder}/t.csv:3: TIMESTAMP is no date", "hint: a TIMESTAMP is like 2023-11-16"),
        trace="t.csv",
        load='mode = "replay"',
        files={
            "t.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.680,374,44\n2023-13-16 18:15:47.0,1,1\n"
        },
    ),
    # ---- target
    "nobody listens": Bad(
        "the server is not started", 4, ("nothing listens on {target}", "hint: start the server"), answer=None
    ),
    "401": Bad(
        "the key was forgotten; the server repeats one, which must not be shown",
        4,
        ("a request without a key is refused", "401", "[redacted]", "hint: name the key's variable: api_key_env"),
        answer=REPEATED_KEY,
    ),
    "404 model": Bad(
        "another model is served",
        4,
        (f"the server has no model '{MODEL}'", "hint: set model in [channel.target]"),
        answer=refusal("404 Not Found", f"The model `{MODEL}` does not exist."),
    ),
    "context too long": Bad(
        "a server started with a tiny context",
        4,
        ("answers 400", "maximum context length is 8 tokens"),
        answer=refusal("400 Bad Request", "This model's maximum context length is 8 tokens. You requested 900."),
    ),
    "rate limit": Bad(
        "a quota that is used up",
        4,
        ("answers 429", "hint: a rate limit or a quota"),
        answer=refusal("429 Too Many Requests", "slow down"),
    ),
    "no stream": Bad(
        "a proxy collects the answer",
        4,
        ("answers in one piece (application/json) although a stream was asked for", "stream = false"),
        answer=ONE_PIECE,
    ),
    "web page": Bad(
        "base_url of the user interface",
        4,
        ("answers 200 with a web page", "hint:", "base_url must be that of the API"),
        answer=whole(b"<html><h1>log in</h1></html>", kind="text/html"),
    ),
    "empty 200": Bad(
        "a gateway whose engine is dead",
        4,
        ("/v1/chat/completions answers 200", "hint:"),
        answer=whole(b"", kind="text/event-stream"),
    ),
    "gzip": Bad(
        "a proxy that compresses what nobody asked for: the message must name it",
        4,
        ("content-encoding gzip",),
        answer=GZIPPED,
    ),
    "no HTTP": Bad("another service's port", 4, ("answers, but not in HTTP", "hint:"), answer=b"SSH-2.0-OpenSSH\r\n"),
    # ---- keys
    "key missing": Bad(
        "the variable is set in another shell",
        2,
        (f"channel.target.api_key_env: the environment variable {KEY} is not set", "plan-1.toml:"),
        channel=f'api_key_env = "{KEY}"',
    ),
    "key of two lines": Bad(
        "a whole file put into the variable",
        2,
        (f"the environment variable {KEY} holds more than a key",),
        channel=f'api_key_env = "{KEY}"',
        environment={KEY: "sk-abcdefghijklmnop\nX-Evil: 1"},
    ),
    # ---- options, places
    "option that is not there": Bad(
        "--worker for --workers: no such prefix is guessed", 2, ("--wrokers", "--workers"), options=("--wrokers", "2")
    ),
    "no address": Bad("--bind with a name of no host", 2, ("--bind nonsense",), options=("--bind", "nonsense")),
    "address of another host": Bad(
        "--bind with an address that this host does not have",
        2,
        ("--bind", "192.0.2.1"),
        options=("--bind", "192.0.2.1:0"),
    ),
    "no number of seconds": Bad(
        "--wait-for-target nan", 2, ("--wait-for-target",), options=("--wait-for-target", "nan")
    ),
    "fewer workers than are started": Bad(
        "--expect-workers counts all, not those from elsewhere",
        2,
        ("--expect-workers",),
        options=("--workers", "2", "--expect-workers", "1"),
    ),
    "no place for the spool": Bad(
        "INFERSIEGE_SPOOL names a file",
        2,
        ("INFERSIEGE_SPOOL", "/dev/null"),
        environment={"INFERSIEGE_SPOOL": "/dev/null"},
    ),
    "full disk": Bad(
        "--out on a disk that fills up: the run is invalid, and what was measured is elsewhere",
        3,
        ("turns.jsonl", "no space left on device", "verdict: INVALID", "run directory: "),
        run='duration = "3s"',
        full_disk=True,
    ),
}


@pytest.mark.parametrize("bad", TABLE.values(), ids=TABLE.keys())
def test_each_mistake_has_one_message_and_its_exit_code(
    bad: Bad, tmp_path: Path, free_port: Callable[[], int], request: pytest.FixtureRequest
) -> None:
    siege = Siege(tmp_path)
    (tmp_path / "tmp").mkdir()
    siege.environment |= {"TMPDIR": str(tmp_path / "tmp"), **bad.environment}
    for name, text in bad.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    out = request.getfixturevalue("small_disk") / "run" if bad.full_disk else None
    with ExitStack() as stack:
        if bad.answer is None:
            target = f"127.0.0.1:{free_port()}"
        else:
            target = f"127.0.0.1:{stack.enter_context(Server(answering(bad.answer))).port}"
        plan = plan_text(
            f"http://{target}/v1",
            model=MODEL,
            load=bad.load,
            run=bad.run,
            workload=f'scenario = "s"\ntrace = "{bad.trace}"',
            channel=f'timeouts = {{connect = "2s", first_token = "2s"}}\n{bad.channel}',
            more=bad.more,
        )
        ran = siege.run(plan, *bad.options, out=out, within_s=30.0)
    assert ran.code == bad.code, ran.out
    for fragment in bad.says:
        assert fragment.format(folder=tmp_path, target=target) in ran.out, (bad.why, ran.out)
    assert "Traceback" not in ran.out
    assert sum(line.startswith("error:") for line in ran.out.splitlines()) == 1, ran.out
    assert "sk-abcdefghijklmnop" not in ran.out and "sk-proj-" not in ran.out, "a key is in the output"
    if siege.environment["INFERSIEGE_SPOOL"] == str(tmp_path / "spool") and not bad.full_disk:
        assert siege.spools() == []


def test_interim_answers_are_no_answers(tmp_path: Path) -> None:
    """The neighbour of the table's targets: 103 before 200 is a good server, to the preflight as well."""
    with Server(answering(EARLY_HINTS + ANSWER)) as server:
        # Not as fast as it goes: an instant server makes the client the bottleneck, and the run invalid, rightly.
        text = plan_text(f"{server.url}/v1", model=MODEL, run='duration = "2s"', load='mode = "open"\nrate = 10')
        ran = Siege(tmp_path).run(text, within_s=30.0)
    check_passed(ran)
