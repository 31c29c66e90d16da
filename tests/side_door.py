"""A master's door with no seat left, and workers that knock again and again, in a process of its own.

Prints (see test_fleet_scale.py) what was told of whom, during it and in the end, how many got their refusal, and what
Locust keeps of them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gevent
import locust
import msgspec
from locust.rpc import protocol, zmqrpc

from infersiege.records import Hello, Refusal
from infersiege.swarm import messages, rpc
from infersiege.swarm.door import Door, Terms
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.fleet import Fleet
from infersiege.swarm.session_users import Director

KNOCKS = [("late", 11), ("late", 12), ("vm-13", 13), ("late", 14), ("vm-15", 15), ("once", 16)]
"""(name, process): the second one has no --name, and is another one with each of its processes."""


def main() -> None:
    rpc.install(b"secret")
    runner: Any = SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)
    told: list[tuple[str, str]] = []
    terms = Terms(run_id="r", plan=b"", plan_hash="", trace_hashes={}, versions={}, offset_ns=0)
    door = Door(Fleet(expected=0), terms, lambda worker, why: told.append((worker, why)))
    door.open(runner)
    refused = 0
    for name, pid in KNOCKS:
        node = f"node-{pid}"
        worker: Any = zmqrpc.Client("127.0.0.1", runner.server.port, node)
        hello = Hello(worker=name, host="vm", pid=pid, boot_id="b", versions={}, spool_dir="/none")
        for kind, data in (
            ("client_ready", locust.__version__),
            (messages.NAMES[Hello], msgspec.msgpack.encode(hello)),
        ):
            worker.socket.send(protocol.Message(kind, data, node).serialize())
        with gevent.Timeout(30):
            while (answer := worker.recv()).type != messages.NAMES[Refusal]:
                pass
        refused += msgspec.msgpack.decode(answer.data, type=Refusal).worker == name
    kept = len(runner.clients) + len(runner.worker_indexes)
    print(json.dumps({"told": told, "again": list(door.away_again()), "refused": refused, "kept": kept}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
