"""Runs whose sessions come from Redis: real workers, a real Redis, and what happens to either."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis_server
from siege import Ran, check_conserved, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome, Session, Turn
from infersiege.redis_stream import load
from infersiege.swarm.source import is_arrival
from infersiege.traces.formats import normal

pytestmark = [pytest.mark.slow, pytest.mark.alone]

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture
def server(tmp_path: Path, free_port: Callable[[], int], needs: Callable[[str | None], None]):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    with redis_server.RedisServer(tmp_path / "redis", free_port(), *AOF) as started:
        yield started


@pytest.fixture
def emulator() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "8") as process:
        yield process


def stored(server: redis_server.RedisServer, count: int, gap_ms: int, *, turns: int = 1) -> None:
    turn = Turn(messages=({"role": "user", "content": "hi"},))  # type: ignore[arg-type]
    found = (
        Session(session_id=f"s{number}", turns=(turn,) * turns, arrival_ns=number * gap_ms * 1_000_000)
        for number in range(count)
    )
    load(server.url, "mine", found, normal.Header(infersiege_trace=1))


REPLAY = 'mode = "replay"'


def plan_of(url: str, emulator: EmulatorProcess, sessions: int, *, more: str = "", load: str = REPLAY) -> str:
    return plan_text(
        emulator.base_url,
        run=f"stop = {{sessions = {sessions}}}",
        load=load,
        workload=f'scenario = "talk"\ntrace = "mine"\nsource = "{url}"\n{more}',
    )


def numbers(ran: Ran) -> list[int]:
    """Of the sessions with records, in the order in which they were due."""
    first = {turn.session_id: turn.due_ns for turn in ran.turns if turn.turn == 0 and not is_arrival(turn.session_id)}
    return [int(name.removeprefix("talk:s").partition("~")[0]) for name in sorted(first, key=lambda name: first[name])]


def workers_of(ran: Ran) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for turn in ran.turns:
        found.setdefault(turn.session_id, set()).add(turn.worker)
    return found


def nothing_left(server: redis_server.RedisServer) -> None:
    with server.client() as client:
        assert client.xinfo_groups("infersiege:mine:sessions") == []
        assert sorted(client.keys()) == [b"infersiege:mine:sessions", b"infersiege:mine:trace"]


def test_di_07_three_workers_play_each_session_of_redis_once_in_the_traces_order(siege, server, emulator):
    stored(server, 300, 10)
    ran = siege.run(plan_of(server.url, emulator, 300), "--workers", "3")
    check_conserved(ran)
    found = numbers(ran)
    assert sorted(found) == list(range(300))
    assert all(len(workers) == 1 for workers in workers_of(ran).values())
    assert set(Counter(turn.worker for turn in ran.turns).values()) == {100}, "arrivals are dealt as ever"
    out_of_place = [abs(place - number) for place, number in enumerate(found)]
    assert max(out_of_place) <= 100, "a worker that was woken a second late claims late"
    assert sum(place <= 5 for place in out_of_place) >= 0.8 * len(found), out_of_place
    assert "300 sessions = 300 sent + 0 not sent" in ran.out
    nothing_left(server)


def test_sessions_of_a_killed_worker_are_played_by_others_unless_it_had_begun_them(siege, server, emulator):
    stored(server, 300, 30, turns=2)
    running = siege.start(plan_of(server.url, emulator, 300), "--workers", "3")
    running.until('"outcome":"ok"')
    time.sleep(1)
    os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
    ran = running.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert all(len(workers) == 1 for workers in workers_of(ran).values())
    found = set(numbers(ran))
    missing = set(range(max(found))) - found
    assert len(missing) <= 2, f"{missing}: at most what it had taken at that very moment"
    assert len(found) > 200, "the others went on"
    arrivals = [turn for turn in ran.turns if is_arrival(turn.session_id)]
    assert arrivals and {(turn.outcome, turn.reason) for turn in arrivals} == {(Outcome.SKIPPED, "worker_lost")}
    played = {turn.session_id for turn in ran.turns if not is_arrival(turn.session_id)}
    assert len(played) + len(arrivals) == pytest.approx(300, abs=2), "each arrival is accounted for"
    nothing_left(server)


def test_redis_restarted_in_mid_run_holds_up_arrivals_and_loses_none(siege, server, emulator):
    stored(server, 300, 15)
    running = siege.start(plan_of(server.url, emulator, 300), "--workers", "3")
    running.until('"outcome":"ok"')
    time.sleep(1)
    server.kill()
    time.sleep(1)
    server.start()
    ran = running.wait()
    check_conserved(ran)
    assert sorted(numbers(ran)) == list(range(300)), ran.out
    assert all(len(workers) == 1 for workers in workers_of(ran).values())
    held_up = max((turn.attempt_ns or turn.due_ns) - turn.due_ns for turn in ran.turns)
    assert held_up > 500_000_000, "it is shown as lateness"
    assert "Traceback" not in ran.out
    nothing_left(server)


def test_redis_that_does_not_come_back_ends_the_run_with_the_reason(siege, server, emulator):
    stored(server, 600, 25)
    text = plan_of(server.url, emulator, 600) + '[redis]\npatience = "2s"\n'
    running = siege.start(text, "--workers", "2")
    running.until('"outcome":"ok"')
    server.kill()
    ran = running.wait(40)
    assert ran.code == 3, ran.out
    check_conserved(ran)
    shown = re.sub(r"\s+", " ", ran.out)
    assert f"Redis has given no session for 2 s: {server.url}" in shown, ran.out
    assert "Traceback" not in ran.out


def test_a_trace_of_redis_that_wraps_gives_each_session_once_in_each_repeat(siege, server, emulator):
    stored(server, 20, 20)
    text = plan_of(server.url, emulator, 70, more="wrap = true", load='mode = "closed"\nusers = 6')
    ran = siege.run(text, "--workers", "2")
    check_conserved(ran)
    names = Counter(turn.session_id for turn in ran.turns)
    assert set(names.values()) == {1}
    plays = Counter(numbers(ran))
    assert sum(plays.values()) == 70
    assert set(plays.values()) <= {3, 4}, plays
    nothing_left(server)


def certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem"
    subject = "-subj /CN=redis -addext subjectAltName=IP:127.0.0.1 -days 2"
    subprocess.run([*command.split(), *subject.split()], cwd=folder, check=True, capture_output=True)


def test_a_redis_with_tls_and_a_password_that_nothing_shows(siege, tmp_path, free_port, needs, emulator):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    needs(None if shutil.which("openssl") else "no openssl command to make a certificate with")
    certificate(tmp_path)
    tls = ("--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem", "--tls-auth-clients", "no")
    tls = tuple(str(tmp_path / part) if part.endswith(".pem") else part for part in tls)
    secret = "hunter2-hunter2"
    with redis_server.RedisServer(
        tmp_path / "redis", free_port(), *tls, "--requirepass", secret, scheme="rediss"
    ) as server:
        siege.environment["REDIS_SECRET"] = secret
        trace = tmp_path / "t.jsonl"
        with trace.open("wb") as file:
            turn = Turn(messages=({"role": "user", "content": "hi"},))  # type: ignore[arg-type]
            normal.write(file, (Session(session_id=f"s{number}", turns=(turn,)) for number in range(10)))
        how = ("--redis", server.url, "--name", "mine", "--password-env", "REDIS_SECRET")
        code, said = siege.command("traces", "load", str(trace), *how, "--ca", str(tmp_path / "cert.pem"))
        assert code == 0, said
        code, said = siege.command("traces", "load", str(trace), *how, "--replace")
        assert (code, "ca of [redis]" in said or "certificate" in said) == (2, True), said
        text = plan_of(server.url, emulator, 10, load='mode = "closed"\nusers = 2')
        access = f'[redis]\npassword_env = "REDIS_SECRET"\nca = "{tmp_path / "cert.pem"}"\n'
        ran = siege.run(text + access, "--workers", "2")
        check_conserved(ran)
        assert sorted(numbers(ran)) == list(range(10)), ran.out
        for path in ran.path.rglob("*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path
        assert secret not in ran.out
        siege.environment["REDIS_SECRET"] = "another"
        ran = siege.run(text + access)
        assert ran.code == 2
        assert f"error: {server.url}: Redis wants another user or password" in ran.out
        assert "password_env" in ran.out and "another\n" not in ran.out
