"""The undocumented names of Locust that infersiege.swarm stands on.

Its minor version is pinned in pyproject.toml. When a new one fails here, the message says what to look at; when all of
this passes and tests/test_run*.py too, the pin can be moved.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from isolated import isolated

SHAPES: list[tuple[str, Any, str]] = [
    ("BaseSocket", ["sock_type", "ipv4_only"], "rpc.GuardedServer and GuardedClient call it"),
    ("BaseSocket.ipv4_only", ["host", "port"], "rpc.GuardedServer and GuardedClient call it"),
    ("Server", ["host", "port"], "rpc.GuardedServer stands in for it"),
    ("Server.recv_from_client", [], "rpc.GuardedServer overrides it: the check of every frame"),
    ("Client", ["host", "port", "identity"], "rpc.GuardedClient stands in for it"),
    ("Message", ["message_type", "data", "node_id"], "rpc.parse_frames reads its attributes"),
    ("Message.unserialize", ["a", "b", "c"], "rpc.parse_frames: three values, in this order"),
    ("RPCReceiveError.addr", None, "rpc.parse_frames: addr None makes the master drop the frame and go on"),
    ("register_message", ["msg_type", "listener", "concurrent"], "messages.on"),
    ("MasterRunner.send_message", ["msg_type", "data", "client_id"], "messages.send"),
    ("WorkerRunner.send_message", ["msg_type", "data", "client_id"], "messages.send"),
    ("MasterRunner.start", ["user_count", "spawn_rate"], "Master starts the Directors with it"),
    ("User.start", ["group"], "session_users.Director starts SessionUsers with it"),
    ("MASTER_HEARTBEAT_TIMEOUT", True, "engine.SiegeEnvironment sets it; WorkerRunner must read it at each check"),
    ("LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP", True, "engine.SiegeEnvironment sets it to 0"),
    ("WorkerRunner.worker_index", -1, "standalone.LocustRun starts each worker's sessions elsewhere"),
    ("Environment", ["dispatcher_class", "events", "stop_timeout", "user_classes"], "engine.SiegeEnvironment"),
    ("events", ["init_command_line_parser", "init", "test_start", "request"], "standalone.install and LocustRun"),
]


@pytest.fixture(scope="module")
def shapes() -> dict[str, Any]:
    found: dict[str, Any] = isolated("side_contract:shapes")
    return found


@pytest.mark.parametrize(("name", "expected", "user"), SHAPES, ids=[name for name, *_ in SHAPES])
def test_the_name_is_there_with_its_shape(shapes: dict[str, Any], name: str, expected: Any, user: str) -> None:
    said = f"Locust {shapes['version']}: {name} is {shapes[name]!r}, not {expected!r}; look at infersiege/swarm: {user}"
    assert shapes[name] == expected, said


def test_every_message_of_locusts_worker_is_let_in(shapes: dict[str, Any]) -> None:
    """And no other: what its handler reads of each is in rpc._SHAPES."""
    said = f"Locust {shapes['version']}: its WorkerRunner sends other messages; compare handle_message with rpc._SHAPES"
    assert shapes["messages of a worker"] == shapes["messages that we let in"], said


def test_the_installed_locust_is_the_pinned_one(shapes: dict[str, Any]) -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    (pin,) = [entry for entry in project["project"]["dependencies"] if entry.startswith("locust")]
    major, minor = shapes["version"].split(".")[:2]
    assert pin == f"locust>={major}.{minor},<{major}.{int(minor) + 1}", "its minor version is pinned, one at a time"


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    found: dict[str, Any] = isolated("side_contract:a_run", within_s=90)
    return found


RUN: list[tuple[str, Any, str]] = [
    ("heartbeat timeout", 10**9, "engine.SiegeEnvironment: runners.MASTER_HEARTBEAT_TIMEOUT"),
    ("liveness of a worker", 10**9, "engine.SiegeEnvironment: runners.HEARTBEAT_LIVENESS, read at each client_ready"),
    (
        "handler of the receiver",
        "SiegeEnvironment.create_master_runner.<locals>.guarded",
        "engine.SiegeEnvironment: client_listener calls what handle_message is then",
    ),
    ("sockets", ["GuardedServer", "GuardedClient"], "rpc.install: runners must look rpc.Server and rpc.Client up late"),
    ("first is known", True, "MasterRunner.clients, server.port: a guarded worker gets in"),
    ("index", 0, "standalone: worker_index comes with Locust's ack"),
    ("heard", True, "messages.on and send: listener(environment=, msg=), data as the bytes that were sent, node_id"),
    ("placed on the first", True, "dispatcher.OnePerWorker"),
    ("started by us is one of its users", [True, 2], "session_users: User.start(runner.user_greenlets)"),
    (
        "calls of a start",
        ["made with 1 nodes and ['Placed']", "new_dispatch", "iter"],
        "dispatcher.OnePerWorker: what MasterRunner.start calls",
    ),
    ("second is known", True, "MasterRunner.clients"),
    ("before it takes part", 0, "dispatcher.OnePerWorker.dispatch_in_progress: Locust dispatches nothing by itself"),
    ("calls of a join", ["add_worker True"], "dispatcher.OnePerWorker: client_ready"),
    ("placed on the second", True, "dispatcher.OnePerWorker.add_worker"),
    ("says again that it is ready", True, "dispatcher.OnePerWorker.add_worker"),
    ("dispatches that failed", [], "engine.SiegeEnvironment.place_directors: MasterRunner.start of nobody"),
    ("after a join", [1, 1, 1], "dispatcher.OnePerWorker: a join adds one Director and stops nobody"),
    (
        "calls of four dispatches",
        ["new_dispatch", "iter", "add_worker True"],
        "dispatcher.OnePerWorker: one that has its Director gets none again",
    ),
    ("third is known", True, "MasterRunner.clients"),
    ("of one that was not let in", [False, False, 0], "engine.SiegeEnvironment.forget: clients, worker_indexes"),
    ("second is gone", True, "Locust's quit message passes rpc.parse_frames"),
    ("after a death", [1, 1], "dispatcher.OnePerWorker: a death touches nobody"),
    (
        "calls of a death",
        ["remove_worker True"],
        "dispatcher.OnePerWorker.dispatch_in_progress: quit dispatches nothing",
    ),
    ("quit kills what runs in the runner's group", True, "worker.Worker._watch_quit"),
    ("users after quit", 0, "engine.SiegeEnvironment: stop_timeout = 0"),
]


@pytest.mark.parametrize(("name", "expected", "user"), RUN, ids=[name for name, *_ in RUN])
def test_locust_does_with_our_parts(run: dict[str, Any], name: str, expected: Any, user: str) -> None:
    assert run[name] == expected, f"Locust: {name}: {run[name]!r}, not {expected!r}; look at infersiege/swarm: {user}"


def test_a_row_that_we_fire_is_in_locusts_table() -> None:
    found = isolated("side_contract:statistics")
    assert found == {"requests": 2, "fails": 1, "min": 7.5}, "standalone.LocustRun._fire: events.request"
