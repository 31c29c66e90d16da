"""Locust as it is, for test_locust_contract.py: signatures, and what its runners do with our parts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import locust
from locust import User, events, runners, task
from locust.env import Environment
from locust.exception import RPCReceiveError
from locust.rpc import protocol, zmqrpc

from infersiege.swarm import rpc
from infersiege.swarm.dispatcher import OnePerWorker
from infersiege.swarm.engine import SiegeEnvironment


def _parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def shapes() -> dict[str, Any]:
    """Name -> what is there. Nothing is started."""
    error: Any = RPCReceiveError("x", addr=None)
    message: Any = protocol.Message.unserialize(protocol.Message("a", b"b", "c").serialize())
    sent = re.findall(r'(?:Message|send_message)\(\s*"(\w+)"', inspect.getsource(runners.WorkerRunner))
    return {
        "version": locust.__version__,
        "BaseSocket": _parameters(zmqrpc.BaseSocket.__init__),
        "BaseSocket.ipv4_only": _parameters(zmqrpc.BaseSocket.ipv4_only),
        "Server": _parameters(zmqrpc.Server.__init__),
        "Server.recv_from_client": _parameters(zmqrpc.Server.recv_from_client),
        "Client": _parameters(zmqrpc.Client.__init__),
        "Message": _parameters(protocol.Message.__init__),
        "Message.unserialize": [message.type, message.data.decode(), message.node_id],
        "RPCReceiveError.addr": error.addr,
        "register_message": _parameters(runners.MasterRunner.register_message),
        "MasterRunner.send_message": _parameters(runners.MasterRunner.send_message),
        "WorkerRunner.send_message": _parameters(runners.WorkerRunner.send_message),
        "MasterRunner.start": _parameters(runners.MasterRunner.start)[:2],
        "User.start": _parameters(User.start),
        "MASTER_HEARTBEAT_TIMEOUT": "MASTER_HEARTBEAT_TIMEOUT"
        in runners.WorkerRunner.heartbeat_timeout_checker.__code__.co_names,
        "LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP": "LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP"
        in inspect.getsource(runners.MasterRunner),
        "WorkerRunner.worker_index": runners.WorkerRunner.worker_index,
        "Environment": sorted(
            {"user_classes", "events", "dispatcher_class", "stop_timeout"} & set(_parameters(Environment.__init__))
        ),
        "events": [
            name for name in ("init_command_line_parser", "init", "test_start", "request") if hasattr(events, name)
        ],
        "messages of a worker": sorted(set(sent)),
        "messages that we let in": sorted(rpc._SHAPES),
    }


def statistics() -> dict[str, Any]:
    """What a row that we fire becomes in Locust's table."""
    environment: Any = Environment(user_classes=[])
    environment.create_local_runner()
    common = {"name": "talk", "context": {}, "response": None}
    fire = environment.events.request.fire
    fire(request_type="chat", response_time=12.5, response_length=100, exception=None, **common)
    fire(request_type="chat", response_time=7.5, response_length=0, exception=ValueError("x"), **common)
    row = environment.stats.get("talk", "chat")
    return {"requests": row.num_requests, "fails": row.num_failures, "min": row.min_response_time}


calls: list[str] = []


class Recording(OnePerWorker):
    """Our dispatcher; every call of Locust's is written down."""

    def __init__(self, worker_nodes: list[Any], user_classes: list[type[Any]]) -> None:
        calls.append(f"made with {len(list(worker_nodes))} nodes and {[kind.__name__ for kind in user_classes]}")
        super().__init__(worker_nodes, user_classes)

    def new_dispatch(self, target_user_count: int, spawn_rate: float, user_classes: Any = None) -> None:
        calls.append("new_dispatch")
        super().new_dispatch(target_user_count, spawn_rate, user_classes)

    def add_worker(self, worker_node: Any) -> None:
        calls.append(f"add_worker {isinstance(worker_node.id, str)}")
        super().add_worker(worker_node)

    def remove_worker(self, worker_node: Any) -> None:
        calls.append(f"remove_worker {isinstance(worker_node.id, str)}")
        super().remove_worker(worker_node)

    def __iter__(self) -> Iterator[dict[str, dict[str, int]]]:
        calls.append("iter")
        return super().__iter__()


class Placed(User):
    """In the Director's place."""

    @task
    def stay(self) -> None:
        gevent.sleep(600)


class Started(User):
    """In a session's place: started by us, not by Locust."""

    @task
    def stay(self) -> None:
        gevent.sleep(600)


def _until(condition: Callable[[], bool]) -> bool:
    with gevent.Timeout(10, False):
        while not condition():
            gevent.sleep(0.01)
        return True
    return False


def _count(runner: Any, kind: type[User]) -> int:
    return int(runner.user_classes_count[kind.__name__])


def _worker(port: int) -> Any:
    return SiegeEnvironment([Placed, Started]).create_worker_runner("127.0.0.1", port)


def a_run() -> dict[str, Any]:
    """A master and two workers in one process, with our sockets, environment and dispatcher."""
    rpc.install(b"secret")
    environment: Any = SiegeEnvironment([Placed])

    def recorded(worker_nodes: list[Any], user_classes: list[type[Any]]) -> OnePerWorker:
        made = environment.dispatcher = Recording(worker_nodes, user_classes)
        return made

    environment.dispatcher_class = recorded
    master = environment.create_master_runner("127.0.0.1", 0)
    heard: list[list[Any]] = []
    master.register_message(
        "ifs.ready", lambda environment, msg: heard.append([msg.type, msg.data.decode(), msg.node_id])
    )
    first = _worker(master.server.port)
    first.register_message(
        "ifs.go",
        lambda environment, msg: heard.append([msg.type, msg.data.decode(), environment is first.environment]),
    )
    found: dict[str, Any] = {
        "heartbeat timeout": runners.MASTER_HEARTBEAT_TIMEOUT,
        "liveness of a worker": master.clients[first.client_id].heartbeat,
        "handler of the receiver": master.handle_message.__qualname__,
        "sockets": [type(master.server).__name__, type(first.client).__name__],
        "first is known": _until(lambda: first.client_id in master.clients),
        "index": first.worker_index,
    }
    first.send_message("ifs.ready", b"hello", None)
    master.send_message("ifs.go", b"terms", first.client_id)
    found["heard"] = _until(lambda: len(heard) == 2) and sorted(heard) == sorted(
        [["ifs.ready", "hello", first.client_id], ["ifs.go", "terms", True]]
    )
    gevent.spawn(environment.place_directors, 1)
    found["placed on the first"] = _until(lambda: _count(first, Placed) == 1)
    user: Any = Started(first.environment)
    greenlet = user.start(first.user_greenlets)
    found["started by us is one of its users"] = [greenlet in first.user_greenlets, first.user_count]
    found["calls of a start"] = list(dict.fromkeys(calls))
    calls.clear()

    second = _worker(master.server.port)
    found["second is known"] = _until(lambda: second.client_id in master.clients)
    gevent.sleep(0.2)
    found["before it takes part"] = _count(second, Placed)
    found["calls of a join"] = list(dict.fromkeys(calls))
    calls.clear()
    # Of two that join at once the first dispatch serves both; Locust's start raises at the second, which is of nobody.
    placing = [gevent.spawn(environment.place_directors, 2) for _ in range(3)]
    found["placed on the second"] = _until(lambda: _count(second, Placed) == 1)
    second.send_message("client_ready", locust.__version__)  # as after a line that was cut
    found["says again that it is ready"] = _until(lambda: "add_worker True" in calls)
    placing.append(gevent.spawn(environment.place_directors, 2))
    gevent.joinall(placing, timeout=10)
    gevent.sleep(0.2)
    found["dispatches that failed"] = [str(one.exception) for one in placing if not one.successful()]
    found["after a join"] = [_count(first, Placed), _count(first, Started), _count(second, Placed)]
    found["calls of four dispatches"] = calls.copy()
    calls.clear()

    third = _worker(master.server.port)
    found["third is known"] = _until(lambda: third.client_id in master.clients)
    environment.forget(third.client_id)
    environment.place_directors(2)
    gevent.sleep(0.2)
    found["of one that was not let in"] = [
        third.client_id in master.clients, third.client_id in master.worker_indexes, _count(third, Placed),
    ]  # fmt: skip
    calls.clear()

    second.environment.events.quitting.fire(environment=second.environment, reverse=True)
    found["second is gone"] = _until(lambda: second.client_id not in master.clients)
    gevent.sleep(0.2)
    found["after a death"] = [_count(first, Placed), _count(first, Started)]
    found["calls of a death"] = list(dict.fromkeys(calls))

    ended: list[str] = []

    def watch() -> None:
        try:
            gevent.sleep(600)
        finally:
            ended.append("watcher")

    first.greenlet.spawn(watch)
    gevent.sleep(0)
    master.quit()
    found["quit kills what runs in the runner's group"] = _until(lambda: ended == ["watcher"])
    found["users after quit"] = len(first.user_greenlets)
    return found
