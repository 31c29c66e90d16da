"""A worker and a master that is not up yet, is something else, or goes away; and HOST[:PORT] on the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from isolated import isolated
from siege import Siege, check_conserved, check_passed, plan_text

from infersiege.cli.address import MASTER_PORT, address_of
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import UsageError

ADDRESSES = [
    ("10.0.0.5", ("10.0.0.5", 5557), "the default port"),
    ("10.0.0.5:6000", ("10.0.0.5", 6000), "a port"),
    ("master", ("master", 5557), "a name, as compose and Kubernetes have them"),
    ("master.bench.svc.cluster.local:5557", ("master.bench.svc.cluster.local", 5557), "a long one"),
    ("[::1]", ("::1", 5557), "IPv6 in brackets"),
    ("[2001:db8::7]:6000", ("2001:db8::7", 6000), "with a port"),
    ("*:0", ("*", 0), "all addresses, any free port"),
    (" host:1 ", ("host", 1), "white space of a variable"),
]


@pytest.mark.parametrize(("text", "expected", "reason"), ADDRESSES, ids=[row[2] for row in ADDRESSES])
def test_addresses(text: str, expected: tuple[str, int], reason: str) -> None:
    assert address_of("--master", text, default_port=MASTER_PORT) == expected


NO_ADDRESSES = [
    ("", "nothing"),
    (":5557", "no host"),
    ("host:", "no port behind the colon"),
    ("host:http", "no number"),
    ("host:65536", "no port"),
    ("host:99999999999999999999", "no number that fits"),
    ("host:-1", "a sign"),
    ("host:٥٥٥٧", "digits of another script"),
    ("a:b:c", "too many colons"),
    ("::1", "IPv6 without brackets: where does the port begin?"),
    ("2001:db8::7:5557", "the same"),
    ("[host]:1", "a name in brackets"),
    ("[::1", "half a bracket"),
    ("tcp://host:5557", "a URL"),
    ("user:secret@host:5557", "a login"),
    ("two hosts", "white space inside"),
]


@pytest.mark.parametrize(("text", "reason"), NO_ADDRESSES, ids=[row[1] for row in NO_ADDRESSES])
def test_what_is_no_address(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=r"^--master .*: not an address$") as told:
        address_of("--master", text, default_port=MASTER_PORT)
    assert told.value.hint


def test_an_ipv6_host_without_brackets_is_told_how_to_be_written() -> None:
    with pytest.raises(UsageError) as told:
        address_of("--master", "::1", default_port=MASTER_PORT)
    assert told.value.hint == "write an IPv6 host in brackets: [::1]:5557"


def test_without_a_default_the_port_is_needed() -> None:
    with pytest.raises(UsageError, match="--web host: not an address"):
        address_of("--web", "host")


# ------------------------------------------------------------------------------------------------- finding a master


@pytest.fixture(scope="module")
def listeners() -> dict[str, Any]:
    found: dict[str, Any] = isolated("side_joining:listeners")
    return found


WAITED_FOR = [
    (
        "closes at once",
        "(the connection was closed at once|connection reset by peer)",
        "a proxy (docker's, a load balancer's) before its backend",
    ),
    ("half a greeting", "(the connection was closed at once|connection reset by peer)", "a master that just ends"),
    ("says nothing", "no answer", "a master that is busy, or a proxy"),
]


@pytest.mark.parametrize(("name", "why", "reason"), WAITED_FOR, ids=[row[0] for row in WAITED_FOR])
def test_what_may_become_a_master_is_waited_for(listeners: dict[str, Any], name: str, why: str, reason: str) -> None:
    found = listeners[name]
    assert found["error"].startswith("TargetError: no master at 127.0.0.1:")
    assert re.search(f" within 1s: {why}$", found["error"]), found
    assert found["seconds"] > 0.9 and len(found["said"]) == 1


@pytest.mark.parametrize("name", ["HTTP", "ZeroMQ without keys"])
def test_what_is_no_master_is_told_at_once(listeners: dict[str, Any], name: str) -> None:
    found = listeners[name]
    assert found["error"].startswith("UsageError: --master 127.0.0.1:")
    assert found["error"].endswith("what listens there is no master of infersiege")
    assert found["seconds"] < 1.0 and found["said"] == []


@pytest.mark.parametrize(
    ("name", "address"),
    [("a master", "127.0.0.1"), ("a master on IPv6", "::1"), ("a master on all addresses", "127.0.0.1")],
)
def test_a_master_is_found(listeners: dict[str, Any], name: str, address: str) -> None:
    assert listeners[name]["found"] == address and listeners[name]["said"] == []


def test_a_worker_says_that_it_waits_and_ends_with_one_clear_error(free_port: Callable[[], int]) -> None:
    port = free_port()
    found = isolated("side_joining:nobody", port)
    alone = found["nobody"]
    assert alone["error"] == f"TargetError: no master at 127.0.0.1:{port} within 2s: connection refused"
    assert "--wait sets the limit" in alone["hint"]
    assert 2 <= alone["seconds"] < 6
    assert alone["said"][0] == f"waiting for a master at 127.0.0.1:{port}: connection refused (0 s of 2s)"
    assert 2 <= len(alone["said"]) <= 4, "at once, and then now and again"
    unresolved = found["no such name"]
    assert "the name does not resolve" in unresolved["error"] and unresolved["error"].startswith("TargetError")
    assert unresolved["seconds"] > 0.9, "in Kubernetes the name comes late"
    assert found["no name at all"]["error"].startswith(("UsageError: --master a..b: is no host name", "TargetError"))
    assert found["not waited"]["seconds"] < 1 and found["not waited"]["said"] == []


def test_a_master_that_comes_late_is_found(free_port: Callable[[], int]) -> None:
    found = isolated("side_joining:late", free_port())
    assert found["found"] == "127.0.0.1"
    assert len(found["said"]) == 1, "it was waited for"


def test_another_secret_is_told_as_such() -> None:
    found = isolated("side_joining:secrets")
    assert found["right"]["found"] == 0
    assert "does not let this worker in: it has another secret" in found["wrong"]["error"]
    assert found["wrong"]["hint"] == "INFERSIEGE_SECRET must be the same on both hosts"
    assert re.match(r"TargetError: the master at \S+ was gone before it let this worker in", found["ended"]["error"])


def test_a_master_that_is_gone_is_noticed() -> None:
    found = isolated("side_joining:gone")
    assert found["before"] == [], "as long as it answers nothing happens"
    assert found["after"] == ["the master is gone"], "and once"
    assert found["seconds"] < 8


# ------------------------------------------------------------------------------------------------------ the command

MISTAKES = [
    (("--master", "::1"), "x", "--master ::1: not an address", "[::1]:5557"),
    (("--master", "h", "--wait", "soon"), "x", "--wait ", "5m"),
    (("--master", "h"), None, "the environment variable INFERSIEGE_SECRET is not set", "INFERSIEGE_SECRET=…"),
    (("--master", "h"), "\udcff" * 20, "the environment variable INFERSIEGE_SECRET is not UTF-8", "openssl rand"),
    (
        ("--master", "192.0.2.5"),
        "s3cret",
        "--master 192.0.2.5:5557: other hosts can reach this address",
        "openssl rand",
    ),
    (("--master", "192.0.2.5", "--forever"), "abab" * 10, "--master 192.0.2.5:5557: other hosts", "openssl rand"),
]
"""(arguments, the secret, how the error begins, what to write instead)."""


@pytest.mark.parametrize(
    ("arguments", "secret", "error", "hint"),
    MISTAKES,
    ids=["address", "wait", "no secret", "a secret that is no text", "a short secret", "two letters, for ever"],
)
def test_a_mistake_is_one_error_with_a_hint(
    siege: Siege, arguments: tuple[str, ...], secret: str | None, error: str, hint: str
) -> None:
    siege.environment.pop("INFERSIEGE_SECRET", None)
    if secret is not None:
        siege.environment["INFERSIEGE_SECRET"] = secret
    code, said = siege.command("worker", *arguments)
    assert code == 2 and said.startswith(f"error: {error}") and len(said.splitlines()) <= 2, said
    assert len(secret or "") < 2 or (secret or "") not in said
    assert hint in said


@pytest.mark.slow
@pytest.mark.alone
def test_one_worker_serves_two_runs_the_second_of_which_comes_late(siege: Siege, free_port: Callable[[], int]) -> None:
    """`--forever`, started before any master. SIGTERM ends it."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "of-this-test-only"
    log = siege.folder / "worker.txt"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "infersiege", "worker", "--master", address, "--name", "far", "--forever"],
            env=siege.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with EmulatorProcess("--output-tokens", "10") as emulator:
            text = plan_text(emulator.base_url, load='mode = "closed"\nusers = 2\nramp = "0s"', run='duration = "2s"')
            options = ("--workers", "0", "--expect-workers", "1", "--bind", address)
            for _ in range(2):
                ran = siege.run(text, *options)
                check_passed(ran)
                check_conserved(ran)
                assert {turn.worker for turn in ran.turns} == {"far"}
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 128 + signal.SIGTERM
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    said = log.read_text(encoding="utf-8")
    assert f"waiting for a master at {address}: connection refused" in said
    assert "Traceback" not in said
    assert siege.spools() == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_worker_whose_master_is_killed_before_the_load_ends_by_itself(
    siege: Siege, free_port: Callable[[], int]
) -> None:
    """It waits for the others when that happens; there is no lease yet that could run out."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "of-this-test-only"
    with EmulatorProcess("--output-tokens", "10") as emulator:
        running = siege.start(
            plan_text(emulator.base_url), "--workers", "0", "--expect-workers", "2", "--bind", address
        )
        worker = subprocess.Popen(
            [sys.executable, "-m", "infersiege", "worker", "--master", address],
            env=siege.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + 30
        while not siege.spools() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        running.process.kill()
        running.process.wait()
        said, _ = worker.communicate(timeout=40)
    assert worker.returncode == 4, said
    assert b"error: the master is gone" in said and b"Traceback" not in said
    assert siege.spools() == [], "it has recorded nothing"
