"""The master's port on real sockets: whatever is sent to it, the receiver lives and a good worker gets through.

Locust's sockets come with monkey-patching, so all of it runs in processes of their own (side_rpc.py).
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from isolated import isolated

CASES = [
    "the byte c1, which msgpack never uses",
    "an empty frame",
    "three frames",
    "half a message",
    "two messages in one frame",
    "no tuple",
    "a map",
    "a tuple of two",
    "a tuple of four",
    "a tuple of none",
    "a type that is no text",
    "a type that can't be hashed",
    "a node id that is no text",
    "a node id that can't be hashed",
    "text that is not UTF-8",
    "a date that is none",
    "an object id without bson",
    "an array that says it has four billion items",
    "a text that says it has four gigabytes",
    "a thousand lists in each other",
    "a peer that speaks for another one",
    "heartbeat without data",
    "heartbeat without its state",
    "heartbeat with a text for a number",
    "client_ready with a number",
    "client_ready without a version",
    "spawning_complete without data",
    "spawning_complete with a list",
    "exception without data",
    "exception that can't be hashed",
    "logs without data",
    "logs of a worker that can't be hashed",
    "a request for the locustfile",
    "the same without data",
    "stats without data",
    "stats of nothing",
    "one of ours with the data of none",
    "one of ours that is no msgpack",
    "one of ours of the wrong type",
    "one of ours that does not exist",
    "one of ours whose handler has a bug",
    "a type that does not exist",
]


@pytest.fixture(scope="module")
def after_bad_frames() -> dict[str, Any]:
    found: dict[str, Any] = isolated("side_rpc:bad_frames")
    return found


def test_the_table_is_whole(after_bad_frames: dict[str, Any]) -> None:
    assert list(after_bad_frames["survived"]) == CASES


@pytest.mark.parametrize("case", CASES)
def test_the_receiver_lives_after(after_bad_frames: dict[str, Any], case: str) -> None:
    assert after_bad_frames["survived"][case], "a worker that joined after it was not heard within 3 s"


def test_a_bad_frame_costs_its_peer_nothing_but_the_frame(after_bad_frames: dict[str, Any]) -> None:
    """It may be a bug of one message: the worker behind it has records to bring home."""
    assert after_bad_frames["known"]
    assert after_bad_frames["pings"] == [-1], "the message whose handler has a bug did arrive"


@pytest.fixture(scope="module")
def strangers() -> dict[str, bool]:
    found: dict[str, bool] = isolated("side_rpc:strangers")
    return found


@pytest.mark.parametrize("name", ["no key", "wrong key"])
def test_a_peer_without_the_secret_is_not_heard(strangers: dict[str, bool], name: str) -> None:
    assert strangers["right key"], "the same message with the right key does arrive"
    assert not strangers[name]
    assert strangers[f"after {name}"]


def test_a_browser_at_the_port_disturbs_nobody(strangers: dict[str, bool]) -> None:
    assert strangers["after bytes that are no ZMTP"]


def test_a_frame_above_the_limit_does_not_arrive() -> None:
    found = isolated("side_rpc:huge_frame", 1 << 20)
    assert found["limit of the socket"] == 1 << 20
    assert found["arrived 524288"], "half of the limit is fine"
    assert not found["arrived 2097152"]
    assert found["after"]


def test_nobody_speaks_for_another_node() -> None:
    """Locust takes the node id that a message names, whoever sent it: any peer could end any worker."""
    found = isolated("side_rpc:impostor")
    assert found == {"known after the impostors": True, "known after its own quit": False}


def test_a_worker_that_comes_back_takes_its_place() -> None:
    """Without ZeroMQ's handover the new connection would be deaf and dumb for good."""
    assert isolated("side_rpc:returned") == {"heard": True, "answered": "answer"}


def test_a_line_that_carries_nothing_is_replaced_within_seconds() -> None:
    """A network cut: no TCP connection ends by it. Here the limit is 0.9 s; in a run 3 s, before a lease is over."""
    found = isolated("side_rpc:dead_line")
    assert found["before"] and found["after"], found
    assert found["connections"] >= 2
    assert 0.5 < found["seconds"] < 8, found


def test_a_full_queue_holds_nobody_up() -> None:
    """Locust's own sender waits 9 s at its 1,001st message, and raises then."""
    found = isolated("side_rpc:full_queue")
    assert found["worker"] < 2 and found["master"] < 2, found


def test_any_bytes_are_a_message_or_refused() -> None:
    """Random bytes, and a good message with bytes changed, cut and repeated: nothing but RPCReceiveError comes out."""
    pick = random.Random(11)
    good = msgspec.msgpack.encode(("heartbeat", {"state": "ready", "current_cpu_usage": 3.5}, "n"))
    cases = [b"n".hex() + "|" + good.hex(), good.hex(), "ff|" + good.hex()]
    for _ in range(1500):
        mutated = bytearray(good)
        for _ in range(pick.randint(1, 4)):
            mutated[pick.randrange(len(mutated))] = pick.randrange(256)
        cut = bytes(mutated[: pick.randint(0, len(mutated))])
        cases.append(b"n".hex() + "|" + pick.choice((bytes(mutated), cut, pick.randbytes(pick.randint(0, 40)))).hex())
    found = isolated("side_rpc:parse", list(dict.fromkeys(cases)))
    assert found[cases[0]] == "ok"
    assert found[cases[1]] == found[cases[2]] == "refused", "one frame; an identity that is not UTF-8"
    assert set(found.values()) == {"ok", "refused"}
