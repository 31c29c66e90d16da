"""`infersiege calibrate`: the null server on real sockets, what a probe shows, the climb, the file, doctor's advice."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from emulated import read_events
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from siege import Siege

from infersiege import calibration
from infersiege.calibrate.measure import notes_of
from infersiege.calibrate.rig import Rig, Side
from infersiege.calibrate.verdict import Probe, climb, error_ms
from infersiege.doctor.findings import Findings, Verdict
from infersiege.doctor.workers import check_workers, load_of
from infersiege.errors import ExitCode, InternalError, UsageError
from infersiege.plan import load_plan
from infersiege.plan.schema import Plan
from infersiege.records import Calibration
from infersiege.redact import Secrets

MS = 1_000_000

FOUND = Calibration(
    host="h",
    cpu=calibration.cpu_model(),
    cores=calibration.cores(),
    versions=calibration.versions(),
    measured_ns=1,
    quick=False,
    streams=2048,
    stream_tokens_per_s=20,
    answer_tokens=100,
    tokens_per_s=40_000.0,
    turns_per_s=400.0,
    timing_error_p99_ms=0.1,
    coalesced_share=0.001,
    requests_per_s=2_000.0,
    connections_per_s=1_500.0,
)

# -------------------------------------------------------------------------------------------------- the null server


@pytest.fixture
def server() -> Iterator[tuple[int, Side]]:
    side = Side("infersiege.calibrate.server")
    port: int = side.read()["port"]
    side.ask({"interval_ns": 10 * MS, "tokens": 5})
    yield port, side
    side.close()


def ask(connection: http.client.HTTPConnection, *, stream: bool, name: str = "r1") -> http.client.HTTPResponse:
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "x" * 50_000}]})
    connection.request("POST", "/v1/chat/completions", body, {"x-request-id": name})
    return connection.getresponse()


def test_a_stream_is_whole_and_its_first_token_on_record(server: tuple[int, Side]) -> None:
    port, side = server
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    ask(connection, stream=True).read()  # the first answer of a connection is cut at random
    begun_ns = time.monotonic_ns()
    answer = ask(connection, stream=True, name="second")
    events = list(read_events(answer.read().decode()))
    ended_ns = time.monotonic_ns()
    connection.close()
    assert answer.headers["x-infersiege-emulated"] == "null"
    texts = [one.data["choices"][0]["delta"].get("content") for one in events[1:-2]]
    assert texts == [" word"] * 5
    assert events[-2].data["usage"]["completion_tokens"] == 5 and events[-1].data == "[DONE]"
    did = side.ask({"interval_ns": 10 * MS, "tokens": 5})
    before_ns, after_ns = did["stamps"]["second"]
    assert begun_ns < before_ns < after_ns < ended_ns
    assert before_ns - begun_ns > 4 * MS, "no sooner than half an interval after the request"
    assert ended_ns - begun_ns > 40 * MS, "five tokens, four intervals"
    assert did["answers"] == 2 and did["accepted"] == 1
    assert side.ask({"interval_ns": 10 * MS, "tokens": 5})["answers"] == 0, "each look begins anew"


def test_short_answers_and_new_connections(server: tuple[int, Side]) -> None:
    port, side = server
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(4):
            answer = ask(connection, stream=False)
            assert json.loads(answer.read())["choices"][0]["message"]["content"] == "a short answer"
        connection.close()
    did = side.ask({"interval_ns": 10 * MS, "tokens": 5})
    assert (did["answers"], did["accepted"], did["sent"]) == (12, 3, 0)


def test_a_request_in_pieces_and_two_in_one(server: tuple[int, Side]) -> None:
    port, _ = server
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nContent-Length: 16\r\n\r\n" + b'{"stream":false}'
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        for cut in range(0, len(request), 7):
            raw.sendall(request[cut : cut + 7])
            time.sleep(0.001)
        raw.sendall(request + request)
        read = b""
        while read.count(b"a short answer") < 3:
            read += raw.recv(65_536)
    assert read.count(b"HTTP/1.1 200 OK") == 3


def test_a_client_that_leaves_and_one_that_does_not_read(server: tuple[int, Side]) -> None:
    """Neither ends the server, nor holds up the others."""
    port, side = server
    side.ask({"interval_ns": 20_000, "tokens": 100_000})
    head = b"POST / HTTP/1.1\r\ncontent-length: 15\r\nx-request-id: %s\r\n\r\n" + b'{"stream":true}'
    deaf = socket.create_connection(("127.0.0.1", port), timeout=10)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    gone = socket.create_connection(("127.0.0.1", port), timeout=10)
    deaf.sendall(head % b"deaf")
    gone.sendall(head % b"gone")
    gone.recv(1000)
    gone.close()
    time.sleep(0.3)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    assert ask(connection, stream=False).status == 200
    connection.close()
    deaf.close()
    assert side.ask({"interval_ns": 10 * MS, "tokens": 5})["answers"] >= 1


def test_a_side_that_ends_says_why() -> None:
    side = Side("infersiege.calibrate.client", "no port")
    with pytest.raises(InternalError, match=r"infersiege\.calibrate\.client ended \(exit code 1\): ValueError"):
        side.read()
    side.close()


# ------------------------------------------------------------------------------------------------- probes and climb

GOOD = Probe(
    users=100,
    asked_per_s=2000.0,
    tokens_per_s=2000.0,
    turns_per_s=20.0,
    failed=0,
    example=None,
    errors_ms=(0.0,) * 99 + (0.4,),
    coalesced_share=0.0,
    client_cpu=0.3,
    client_wait=0.0,
    client_lag_p99_ms=2,
    server_cpu=0.1,
    server_wait=0.0,
    server_late_p99_ms=0.5,
)


@pytest.mark.parametrize(
    ("changes", "fault", "limit", "reason"),
    [
        ({}, None, "client", "all times are right"),
        ({"errors_ms": (0.0,) * 99 + (30.0,)}, None, "client", "one of a hundred may be off"),
        ({"errors_ms": (0.0,) * 98 + (1.1, 1.2)}, "1.1 ms off", "client", "two may not"),
        ({"errors_ms": (0.0, 1.1)}, "1.1 ms off", "client", "of few, none may"),
        ({"errors_ms": ()}, None, "client", "no first token in the window: nothing against it"),
        ({"tokens_per_s": 1899.0}, "1,899 of 2,000 tokens/s arrived", "client", "it does not keep up"),
        ({"coalesced_share": 0.021}, "2.1% of the chunks", "client", "gaps are missing"),
        ({"failed": 1, "example": "x"}, "1 requests failed (x)", "client", "any failure"),
        (
            {"failed": 1, "example": "connect: Too many open files"},
            "1 requests failed",
            "descriptors",
            "not the client's speed",
        ),
        ({"tokens_per_s": 1000.0, "server_cpu": 0.95}, "1,000 of 2,000", "server", "the server had no time left"),
        (
            {"tokens_per_s": 1000.0, "server_cpu": 0.95, "client_cpu": 0.95},
            "1,000 of 2,000",
            "client",
            "both are at their end, and the server was on time",
        ),
        (
            {"tokens_per_s": 1000.0, "server_cpu": 0.95, "client_cpu": 0.95, "server_late_p99_ms": 11.0},
            "1,000 of 2,000",
            "server",
            "both are at their end, and the server was late",
        ),
    ],
)
def test_what_a_probe_shows(changes: dict[str, Any], fault: str | None, limit: str, reason: str) -> None:
    probe = replace(GOOD, **changes)
    assert (probe.fault is None) == (fault is None) and (fault is None or fault in str(probe.fault)), reason
    assert probe.limited_by == limit, reason


@given(st.integers(1, 12), st.lists(st.integers(0, 11), max_size=3))
def test_the_climb_ends_at_the_ceiling_whatever_single_probes_are_spoilt(ceiling: int, spoilt: list[int]) -> None:
    """A neighbour spoils a probe once; the same load is then right when it is asked again."""
    left, asked = set(spoilt), []

    def probe(users: int) -> Probe:
        asked.append(users)
        if users in left:
            left.remove(users)
            return replace(GOOD, users=users, coalesced_share=0.5)
        return replace(GOOD, users=users, coalesced_share=0.0 if users <= ceiling else 0.5)

    good, ended, last_bad = climb(range(1, 13), probe)
    assert good is not None and good.users == ceiling
    assert ended == ("end of scale" if ceiling == 12 else "client")
    assert (None if last_bad is None else last_bad.users) == (None if ceiling == 12 else ceiling + 1)
    assert len(asked) <= 12 + len(spoilt) + 2


def test_a_climb_without_a_good_probe() -> None:
    assert climb((1, 2), lambda users: replace(GOOD, failed=1)) == (None, "client", replace(GOOD, failed=1))


@pytest.mark.parametrize(
    ("right", "good", "bad", "words", "reason"),
    [
        ([True, True], 2, None, "the limit was not reached (time): the client can do more", "time was all that failed"),
        ([True, False], 1, 2, "streams: 2 were too many once (50.0% of the chunks", "its repeat did not come"),
        ([True, False, False], 1, 2, "did not allow to confirm", "nor did the second"),
        ([True, False, True], 2, None, "can do more", "the repeat was right: a neighbour had spoilt the first"),
        ([False], None, 1, "not allow to confirm", "nothing was right yet"),
    ],
)
def test_a_climb_that_runs_out_of_time_says_what_it_saw_last(
    right: list[bool], good: int | None, bad: int | None, words: str, reason: str
) -> None:
    """A load that failed is no load that the client can do, though its repeat had no time."""
    left = list(right)

    def probe(users: int) -> Probe | None:
        return replace(GOOD, users=users, coalesced_share=0.0 if left.pop(0) else 0.5) if left else None

    found = climb(range(1, 13), probe, again=2)
    assert found.ended == "time", reason
    assert (found.good and found.good.users, found.last_bad and found.last_bad.users) == (good, bad), reason
    notes = "; ".join(notes_of({"requests": "client", "streams": found.ended}, found.last_bad, 0.0))
    assert words in notes and ("can do more" in notes) == (bad is None), reason


@pytest.mark.parametrize(
    ("first_ms", "slack_ms", "off_ms", "reason"),
    [
        (10.0, 0.0, 0.0, "at the first reading"),
        (10.3, 0.0, 0.0, "between the readings"),
        (10.5, 0.0, 0.0, "at the second one"),
        (12.5, 0.0, 2.0, "read late"),
        (7.0, 0.0, 3.0, "before it was sent: no clock of ours does that, and it is no exact time"),
        (10.3, 0.4, 0.4, "right, as far as the client itself knows"),
        (12.5, 0.4, 2.4, "both"),
        (7.0, 0.4, 3.4, "both"),
    ],
)
def test_how_far_a_first_token_may_be_off(first_ms: float, slack_ms: float, off_ms: float, reason: str) -> None:
    sent_ns = (10 * MS, 10 * MS + MS // 2)
    assert error_ms(round(first_ms * MS), round(slack_ms * MS), sent_ns) == pytest.approx(off_ms), reason


def test_a_rig_that_does_not_come_up_leaves_no_process() -> None:
    """The server ends at its first order, when the client runs already."""
    before = child_processes()
    with pytest.raises(InternalError, match=r"infersiege\.calibrate\.server ended"):
        Rig(interval_ns=1, tokens="none")  # type: ignore[arg-type]
    assert child_processes() == before


def child_processes() -> set[str]:
    found = (path.read_text(encoding="ascii").split() for path in Path("/proc/self/task").glob("*/children"))
    return {pid for line in found for pid in line}


# --------------------------------------------------------------------------------------------------------- the file


def environ(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder)}


def test_a_calibration_is_kept_and_read(tmp_path: Path) -> None:
    path = calibration.keep(FOUND, environ(tmp_path / "new"))
    assert path.parent == tmp_path / "new" / "infersiege" and path.name.startswith("calibration-")
    assert calibration.known(environ(tmp_path / "new")) == (FOUND, None)
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no half file is left"
    assert "40,000 tokens/s (2,048 streams), sends 2,000 short requests/s" in calibration.line_of(FOUND)


@pytest.mark.parametrize(
    ("text", "note", "reason"),
    [
        (None, "was not calibrated", "no file"),
        (b"", "is no calibration", "empty: a full disk"),
        (b"\xff\xfe{", "is no calibration", "not even text"),
        (b'{"host": 1}', "is no calibration", "other JSON"),
        (replace(FOUND, cpu="i386"), "another CPU (i386, now ", "the home directory moved to another machine"),
        (replace(FOUND, cores=FOUND.cores + 1), "another number of cores", "a container with another limit"),
        (replace(FOUND, versions={"infersiege": "0.0"}), "another infersiege (0.0, now ", "an older version"),
        (replace(FOUND, versions=FOUND.versions | {"python": "3.9"}), "another Python (3.9", "another interpreter"),
        (replace(FOUND, tokens_per_s=0.0), "ceilings are not positive", "would divide by it"),
    ],
)
def test_a_file_that_is_not_this_hosts_is_a_note(
    tmp_path: Path, text: bytes | Calibration | None, note: str, reason: str
) -> None:
    path = calibration.path_of(environ(tmp_path))
    path.parent.mkdir()
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else msgspec.json.encode(text))
    found, said = calibration.known(environ(tmp_path))
    assert found is None and said is not None and note in said, reason


def test_a_file_that_cant_be_read_or_written(tmp_path: Path) -> None:
    path = calibration.path_of(environ(tmp_path))
    path.mkdir(parents=True)
    assert "can't be read" in str(calibration.known(environ(tmp_path)).note)
    with pytest.raises(UsageError, match="can't be written"):
        calibration.keep(FOUND, environ(tmp_path))
    assert not [one for one in path.parent.iterdir() if one != path]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        calibration.keep(FOUND, environ(tmp_path / "file"))


@pytest.mark.parametrize(
    ("variables", "begins", "reason"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/infersiege/", "named"),
        ({"HOME": "/h"}, "/h/.local/state/infersiege/", "the specification's default"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/infersiege/", "empty is unset"),
        ({"XDG_STATE_HOME": "here", "HOME": "/h"}, "/h/.local/state/infersiege/", "relative paths are ignored"),
    ],
)
def test_where_the_file_lies(variables: dict[str, str], begins: str, reason: str) -> None:
    assert str(calibration.path_of(variables, "a/b c")).startswith(begins), reason
    assert calibration.path_of(variables, "../x y").name == "calibration-..-x-y.json"


# ----------------------------------------------------------------------------------------------------------- doctor


def plan_of(tmp_path: Path, load: str, *, workers: int = 1, stream: bool = True, more: str = "") -> Plan:
    (tmp_path / "trace.jsonl").write_text(
        "".join(
            json.dumps({"session_id": f"s{n}", "turns": [{"prompt_tokens": 50, "output_tokens": 100}] * 2}) + "\n"
            for n in range(3)
        )
        if more
        else ""
    )
    (tmp_path / "plan.toml").write_text(
        f'[run]\nduration = "60s"\nworkers = {workers}\n[load]\n{load}\n'
        f'[channel.local]\nengine = "vllm"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        f"stream = {str(stream).lower()}\n"
        '[[workload]]\nscenario = "a"\ntrace = "builtin:short-qa"\nmax_tokens = 10\n'
    )
    return load_plan(tmp_path / "plan.toml", environ={})


@pytest.mark.parametrize(
    ("load", "workers", "verdict", "words", "reason"),
    [
        ("users = 8", 1, Verdict.OK, "at most 400 tokens/s", "50 tokens/s for each user"),
        ("users = 2000", 1, Verdict.WARNING, "workers are needed", "100,000 tokens/s in answers of 10"),
        ("users = 2000", 10, Verdict.OK, "10 of the plan would each do", "so many are there"),
        ('mode = "open"\nrate = 10.0', 1, Verdict.OK, "at most 100 tokens/s and 10.0 turns/s", "rate x length"),
        ('mode = "open"\nrate = 3000.0', 1, Verdict.WARNING, "run", "three thousand short turns per second"),
    ],
)
def test_doctor_says_how_many_workers_a_plan_needs(
    tmp_path: Path, load: str, workers: int, verdict: Verdict, words: str, reason: str
) -> None:
    calibration.keep(FOUND, environ(tmp_path))
    found = Findings(Secrets(()))
    check_workers(found, plan_of(tmp_path, load, workers=workers), environ(tmp_path))
    (check,) = found.checks
    assert (check.name, check.verdict) == ("workers", verdict), (reason, check)
    assert words in f"{check.seen} {check.hint}", (reason, check)
    assert (check.hint is not None and "--workers" in check.hint) == (verdict is Verdict.WARNING), reason


def test_doctor_without_a_calibration_has_a_note(tmp_path: Path) -> None:
    found = Findings(Secrets(()))
    check_workers(found, plan_of(tmp_path, "users = 8"), environ(tmp_path))
    (check,) = found.checks
    assert check.verdict is Verdict.OK and "infersiege calibrate" in check.seen


def test_answers_in_one_piece_are_counted_as_requests(tmp_path: Path) -> None:
    streamed, _ = load_of(plan_of(tmp_path, 'mode = "open"\nrate = 10.0'))
    whole, _ = load_of(plan_of(tmp_path, 'mode = "open"\nrate = 10.0', stream=False))
    assert streamed is not None and whole is not None
    assert streamed.tokens > 0 == whole.tokens and whole.turns == streamed.turns


# ------------------------------------------------------------------------------------------------------ the command


@pytest.mark.slow
@pytest.mark.alone
def test_calibrate_quick_for_real(siege: Siege, tmp_path: Path) -> None:
    """On a host that is busy with other work it may also say so, with the code of a run that proves nothing."""
    siege.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    code, said = siege.command("calibrate", "--quick", "--json", within_s=180)
    kept = calibration.path_of(environ(tmp_path / "state"))
    if code == ExitCode.INVALID_RUN:
        assert "this host can't be calibrated: " in said and "when nothing else runs here" in said
        assert not kept.exists(), "what is no ceiling is not kept"
        return
    assert code == 0, said
    told = json.loads(said)
    assert json.loads(kept.read_bytes()) == told
    assert stat.S_ISREG(kept.stat().st_mode)
    assert told["quick"] and told["timing_error_p99_ms"] <= 1.0 and told["coalesced_share"] <= 0.02
    assert told["streams"] >= 64 and told["tokens_per_s"] >= 0.95 * told["streams"] * 20, "as its rule has it"
    assert told["requests_per_s"] > 0 and told["connections_per_s"] > 0
    assert set(told["limited_by"]) == {"streams", "requests", "connections"}
    assert any("shared the host's" in note for note in told["notes"])
    found, note = calibration.known({**os.environ, **environ(tmp_path / "state")})
    assert note is None and found is not None, "the file is this host's"
