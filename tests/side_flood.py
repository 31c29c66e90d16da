"""A master's port with more messages than it can handle, in a process of its own (see test_fleet_scale.py).

Prints, in seconds: how long the flood took to be handled, the longest time in which nothing else ran, and how far back
the master knew of everything that had come, at worst and in the end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gevent
import msgspec
import zmq
from gevent.monkey import get_original
from locust.rpc import protocol, zmqrpc

from infersiege.records import ClockPing
from infersiege.swarm import messages, rpc
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.session_users import Director

MESSAGES = 800
HANDLING_S = 0.001


def main() -> None:
    rpc.install(b"secret")
    runner: Any = SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)
    handled, longest, deaf_ns = 0, 0.0, 0

    def handle(_: str, __: ClockPing) -> None:
        nonlocal handled, deaf_ns
        deaf_ns = max(deaf_ns, time.monotonic_ns() - runner.server.heard_until_ns)
        until = time.monotonic() + HANDLING_S
        while time.monotonic() < until:
            pass
        handled += 1

    messages.on(runner, ClockPing, handle)
    client: Any = zmqrpc.Client("127.0.0.1", runner.server.port, "peer")
    ping = msgspec.msgpack.encode(ClockPing(worker="peer", sent_ns=0))
    frame = protocol.Message(messages.NAMES[ClockPing], ping, "peer").serialize()
    client.socket.send(frame)
    while handled < 1:  # the line is there
        gevent.sleep(0.01)
    for _ in range(MESSAGES):
        client.socket.send(frame, zmq.NOBLOCK)
    began = time.monotonic()

    def others() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            gevent.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    get_original("time", "sleep")(0.3)  # All of them wait at the port by now.
    gevent.spawn(others)
    while handled < MESSAGES + 1 and time.monotonic() < began + 60:
        gevent.sleep(0.05)
    took_s = time.monotonic() - began
    gevent.sleep(0.05)
    after_ns = time.monotonic_ns() - runner.server.heard_until_ns
    found = {"handled": handled - 1, "took_s": took_s, "longest_s": longest}
    print(json.dumps({**found, "deaf_s": deaf_ns / 1e9, "deaf_after_s": after_ns / 1e9}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
