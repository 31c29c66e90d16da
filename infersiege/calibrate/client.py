"""The worker side of a calibration, in a process of its own: `python -m infersiege.calibrate.client PORT`.

Takes a line of JSON (`Order`) on standard input and answers it with one (`swarm.sprint.Measured`). Ends when its input
does.
"""

from __future__ import annotations

import sys

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure next. Users are added to those that run, unless the kind of load is another one."""

    kind: str
    """`streams`, `requests`, or `connections`."""
    users: int
    settle_s: float
    seconds: float


def main() -> None:
    """Raises what a sprint raises: its caller has the traceback on standard error."""
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.plan.schema import Channel
    from infersiege.swarm.health import freeze_garbage, raise_descriptor_limit
    from infersiege.swarm.sprint import Sprint

    raise_descriptor_limit()
    url = f"http://127.0.0.1:{int(sys.argv[1])}/v1"
    sprint: Sprint | None = None
    kind = ""
    freeze_garbage()
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        if order.kind != kind:
            if sprint is not None:
                sprint.__exit__()
            channel = Channel(
                engine="generic",
                base_url=url,
                model="null",
                stream=order.kind == "streams",
                keep_alive=order.kind != "connections",
            )
            sprint = Sprint(channel).__enter__()
            kind = order.kind
        assert sprint is not None
        measured = sprint.measure(order.users, order.settle_s, order.seconds)
        sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
        sys.stdout.flush()
    if sprint is not None:
        sprint.__exit__()


if __name__ == "__main__":
    main()
