"""The keys of [load]: how much, and in which way."""

from __future__ import annotations

from typing import Annotated

import msgspec

from infersiege.plan.bounds import DURATION, SECOND_NS, SPAN
from infersiege.plan.bounds import meta as _meta


class Sine(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a stage goes up and down around its mean, as over a day."""

    amplitude: Annotated[
        float, _meta("Largest departure from the mean, as a share of it", unit="ratio", above=0, at_most=1)
    ] = 0.5
    period_ns: Annotated[int, _meta("From peak to peak", **SPAN)]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the run with one target load. Its figures are of turns due after its warm-up and ramp."""

    name: Annotated[str | None, _meta("Name of the stage; default: its number and load", longest=80)] = None
    duration_ns: Annotated[int, _meta("How long, its ramp and warm-up included", **SPAN)]
    users: Annotated[
        int | None, _meta("Closed loop: concurrent sessions", unit="sessions", at_least=1, at_most=100_000)
    ] = None
    rate: Annotated[
        float | None, _meta("Open loop: sessions per second", unit="sessions/s", at_least=1e-6, at_most=1e5)
    ] = None
    warmup_ns: Annotated[int | None, _meta("Warm-up inside the stage; default: [load] warmup", **DURATION)] = None
    ramp_ns: Annotated[
        int | None,
        _meta(
            "Time over which the load goes evenly from that of the stage before (at first, and after a pause, from "
            "none) to this one, all of it warm-up; default: closed [load] ramp, open 0",
            **DURATION,
        ),
    ] = None
    sine: Annotated[Sine | None, _meta("Open loop: the rate swings around `rate`")] = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """[load]: how much, and in which way."""

    mode: Annotated[
        str,
        _meta(
            "closed: so many users at a time; open: arrivals whatever the answers do; replay: the trace's own times",
            choices=("closed", "open", "replay"),
        ),
    ] = "closed"
    users: Annotated[int | None, _meta("closed: concurrent sessions", unit="sessions", at_least=1, at_most=100_000)] = (
        None
    )
    rate: Annotated[float | None, _meta("open: sessions per second", unit="sessions/s", at_least=1e-6, at_most=1e5)] = (
        None
    )
    arrivals: Annotated[str, _meta("open: the arrival process", choices="ARRIVALS")] = "poisson"
    burstiness: Annotated[
        float | None, _meta("gamma arrivals: shape; 1 is Poisson, below is burstier", at_least=1e-3, at_most=1e6)
    ] = None
    speed: Annotated[float, _meta("replay: how many times faster than the trace", at_least=1e-6, at_most=1e6)] = 1.0
    jitter_ns: Annotated[
        int, _meta("replay: spread arrivals that share a time over this long, in the trace's own time", **DURATION)
    ] = 0
    ramp_ns: Annotated[
        int, _meta("closed: users start evenly over this time, so that prefills don't coincide", **DURATION)
    ] = 1 * SECOND_NS
    warmup_ns: Annotated[
        int,
        _meta(
            "Left out of every figure, from the start of each stage; in a closed loop at least the ramp is", **DURATION
        ),
    ] = 0
    drain_ns: Annotated[
        int, _meta("How long open turns may still take after the end, before they are cancelled", **DURATION)
    ] = 30 * SECOND_NS
    late: Annotated[
        str,
        _meta(
            "Arrivals that passed while the worker was behind: send them (at most at twice the rate) or drop them",
            choices=("send", "drop"),
        ),
    ] = "send"
    max_in_flight: Annotated[
        int | None,
        _meta(
            "open: most sessions at a time, over all workers; what comes above follows `late`",
            unit="sessions",
            at_least=1,
            at_most=100_000,
        ),
    ] = None
    stages: Annotated[
        tuple[Stage, ...],
        _meta("Parts with different loads, one after the other, instead of `users` or `rate` and the run's duration"),
    ] = ()
    pause_ns: Annotated[
        int,
        _meta(
            "Between two stages: nothing is sent, open turns may end, the rest are cancelled just before the next one, "
            "sessions end; 0: the next stage begins at once and sessions go on",
            **DURATION,
        ),
    ] = 0
