"""A whole calibration: requests, connections, and streams more and more until their times are wrong."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping

from infersiege.calibrate.client import Order
from infersiege.calibrate.rig import Rig
from infersiege.calibrate.verdict import Probe, climb
from infersiege.calibration import cores, cpu_model, keep, versions
from infersiege.errors import RunInvalidError
from infersiege.records import Calibration

INTERVAL_NS = 50_000_000
"""Of the tokens of one stream: 20 per second."""
ANSWER_TOKENS = 100
STEPS = (64, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144)
QUICK_STEPS = (64, 256, 1024, 1536, 2048, 2560, 3072)
USERS = 16
"""In a closed loop of short answers: enough that the client never waits for the server."""
TIME_S, QUICK_TIME_S = 55.0, 13.5
"""No step begins that could not end within this."""
PER_USER_S = 0.0035
"""What it takes to begin one more stream: its session, its prompt, its connection."""
DISTURBED = 0.15
"""More waiting for a CPU than this, per second, and the ceilings are those of a busy host."""

Show = Callable[[str, Probe], None]


def calibrate(quick: bool, show: Show | None = None) -> Calibration:
    """Measure this host. `show` gets each probe with its kind.

    Takes up to a minute, quick a quarter of one. Raises RunInvalidError when not even the lightest load has right
    times, InternalError when one side ends.
    """
    begun = time.monotonic()
    seconds = 1.0 if quick else 2.0
    seen: list[Probe] = []
    limits: dict[str, str] = {}
    with Rig(interval_ns=INTERVAL_NS, tokens=ANSWER_TOKENS) as rig:

        def probe(kind: str, users: int) -> Probe:
            found = rig.probe(Order(kind=kind, users=users, settle_s=0.3, seconds=seconds))
            seen.append(found)
            if show is not None:
                show(kind, found)
            return found

        def next_step(users: int) -> Probe | None:
            # Users cost time to begin, and more on a loaded worker.
            takes_s = seconds + 0.5 + max(0, users - max((one.users for one in seen), default=0)) * PER_USER_S
            if time.monotonic() - begun + takes_s > (QUICK_TIME_S if quick else TIME_S):
                return None
            return probe("streams", users)

        short = probe("requests", USERS)
        fresh = probe("connections", USERS)
        limits["requests"], limits["connections"] = short.limited_by, fresh.limited_by
        climbed = climb(QUICK_STEPS if quick else STEPS, next_step, again=2)
    best, limits["streams"] = climbed.good, climbed.ended
    if best is None or best.error_p99_ms is None or not _answered(short) or not _answered(fresh):
        why = next((one.fault for one in (short, fresh, *reversed(seen)) if one.fault), "no first token came")
        raise RunInvalidError(
            f"this host can't be calibrated: {why}, at {seen[-1].users} streams",
            hint="try it again when nothing else runs here",
        )
    notes = notes_of(limits, climbed.last_bad, max(one.client_wait for one in seen))
    return _made(quick, best, short, fresh, limits, notes)


def _answered(probe: Probe) -> bool:
    return not probe.failed and probe.turns_per_s > 0


def notes_of(limits: Mapping[str, str], last_bad: Probe | None, most_waited: float) -> tuple[str, ...]:
    """What must be read with the ceilings.

    `limits` is `Calibration.limited_by`, `last_bad` is `Climbed.last_bad` of the streams, and `most_waited` the share
    of a core that the client waited for in the worst probe.
    """
    notes = [f"server and client shared the host's {cores()} cores"]
    if most_waited > DISTURBED:
        notes.append(f"other processes took up to {most_waited:.0%} of the client's core: a quiet host can do more")
    for what, who in limits.items():
        if who == "server":
            notes.append(f"{what}: the null server was the limit: the client can do more")
        elif who == "descriptors":
            notes.append(f"{what}: open files ran out (ulimit -Hn)")
        elif who == "time" and last_bad is not None:
            notes.append(
                f"{what}: {last_bad.users:,} were too many once ({last_bad.fault}), which time did not allow to confirm"
            )
        elif who in ("time", "end of scale"):
            notes.append(f"{what}: the limit was not reached ({who}): the client can do more")
    return tuple(notes)


def _made(
    quick: bool, best: Probe, short: Probe, fresh: Probe, limits: dict[str, str], notes: tuple[str, ...]
) -> Calibration:
    return Calibration(
        host=platform.node(),
        cpu=cpu_model(),
        cores=cores(),
        versions=versions(),
        measured_ns=time.time_ns(),
        quick=quick,
        streams=best.users,
        stream_tokens_per_s=round(1e9 / INTERVAL_NS),
        answer_tokens=ANSWER_TOKENS,
        tokens_per_s=best.tokens_per_s,
        turns_per_s=best.turns_per_s,
        timing_error_p99_ms=best.error_p99_ms or 0.0,
        coalesced_share=best.coalesced_share,
        requests_per_s=short.turns_per_s,
        connections_per_s=fresh.turns_per_s,
        limited_by=limits,
        notes=notes,
    )


def calibrated(quick: bool, environ: Mapping[str, str], show: Show | None = None) -> Calibration:
    """`calibrate`, and the file written. Raises UsageError too, when it can't be."""
    found = calibrate(quick, show)
    keep(found, environ)
    return found
