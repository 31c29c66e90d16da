"""A master's files for many workers, over real sockets, in a process of its own (see test_travel.py).

Each worker asks for the first parts of a file before it is packed. Prints how many parts each got, in how many places
two parts in a row went to one of them, and how often another greenlet, which sleeps a moment each time, ran meanwhile.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust.rpc import protocol, zmqrpc

from infersiege.records import FilePart, FileWanted, NeededFile, NeededPath
from infersiege.swarm import messages, rpc
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.session_users import Director
from infersiege.swarm.travel import PART_BYTES, PARTS_AT_ONCE, FileStore, sha256_of

WORKERS = 12


def main() -> None:
    rpc.install(b"secret")
    runner: Any = SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)
    sent: list[str] = []
    known: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_bytes(secrets.token_bytes((PARTS_AT_ONCE + 4) * PART_BYTES))  # nothing that could be packed
        file = NeededFile(name="", size_bytes=path.stat().st_size, sha256=sha256_of(path))
        store = FileStore(
            [NeededPath(path=str(path), what="trace", files=(file,))], lambda node: known.add(node) or node
        )
        store.open(runner)
        real = runner.send_message

        def send_message(kind: str, data: bytes, node: str) -> None:
            sent.append(node)
            real(kind, data, node)

        runner.send_message = send_message
        workers: dict[str, Any] = {
            f"w{n}": zmqrpc.Client("127.0.0.1", runner.server.port, f"w{n}") for n in range(WORKERS)
        }
        wanted = msgspec.msgpack.encode(FileWanted(number=0, offset_bytes=0))
        for name, worker in workers.items():
            worker.socket.send(protocol.Message(messages.NAMES[FileWanted], wanted, name).serialize())
        turns = 0

        def others() -> None:
            nonlocal turns
            while True:
                before = len(sent)
                gevent.sleep(1e-6)
                turns += 0 < before < len(sent)

        gevent.spawn(others)
        got: dict[str, list[int]] = {name: [] for name in workers}

        def receive(name: str, worker: Any) -> None:
            decoder = msgspec.msgpack.Decoder(FilePart)
            while len(got[name]) < PARTS_AT_ONCE:
                got[name].append(decoder.decode(worker.recv().data).offset_bytes)

        gevent.joinall([gevent.spawn(receive, *one) for one in workers.items()], timeout=60)
    found = {
        "asked": len(known),
        "parts": sorted(Counter(sent).values()),
        "in order": all(one == [number * PART_BYTES for number in range(PARTS_AT_ONCE)] for one in got.values()),
        "two in a row": sum(one == other for one, other in pairwise(sent)),
        "turns of others": turns,
    }
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
