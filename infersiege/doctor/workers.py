"""How many workers a plan's load needs on this host, by what one of them was measured to do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from infersiege.calibration import HINT, cores, known
from infersiege.doctor.findings import Findings
from infersiege.errors import InfersiegeError
from infersiege.metrics.client import ROOM, ceiling_share, workers_for
from infersiege.plan.schema import Plan, Workload
from infersiege.plan.streams import Stream, streams_of
from infersiege.redis_stream import trace_of
from infersiege.traces.play.session_lines import cut_session

USER_TOKENS_PER_S = 50.0
"""What a user of a closed loop is counted with: how fast an engine serves it is not known before the load."""
_MOST_SESSIONS = 200
_MOST_S = 1.0


class Mean(NamedTuple):
    """Of a workload's first sessions."""

    turns: float
    """Of a session."""
    output_tokens: float
    """Of a turn."""


class Rates(NamedTuple):
    """Load per second, over all workers, where it is heaviest."""

    tokens: float
    turns: float

    def plus(self, other: Rates) -> Rates:
        return Rates(self.tokens + other.tokens, self.turns + other.turns)


def check_workers(found: Findings, plan: Plan, environ: Mapping[str, str]) -> None:
    """One line: what the plan asks of a worker against its ceiling. Without a calibration a note, no warning."""
    calibration, note = known(environ)
    if calibration is None:
        found.ok("workers", f"{note}, so how many workers this load needs is not known; {HINT}")
        return
    try:
        rates, assumed = load_of(plan)
    except InfersiegeError as error:
        found.ok("workers", f"the load can't be told before the run: {error}")
        return
    if rates is None:
        found.ok("workers", "a replay has its trace's own rates: how many workers it needs is not known")
        return
    workers = plan.run.workers
    needed = workers_for(rates.tokens, rates.turns, calibration)
    share = ceiling_share(rates.tokens, rates.turns, calibration) / workers
    said = f"at most {rates.tokens:,.0f} tokens/s and {rates.turns:,.1f} turns/s{assumed}: {needed} " + (
        "worker is enough" if needed == 1 else "workers are needed"
    )
    said += f"; {workers} of the plan would each do {share:.0%} of what one can"
    if needed <= workers:
        found.ok("workers", said)
        return
    hint = (
        f"run.workers = {needed}, or --workers {needed}; more than {ROOM:.0%} of a worker's ceiling leaves it no room"
    )
    if needed >= cores():
        hint += f"; this host has {cores()} cores, so let some join from other hosts"
    found.warn("workers", said, hint)


def load_of(plan: Plan) -> tuple[Rates | None, str]:
    """(Load of all streams at their highest, what was assumed in words). None: a replay, which has no rate of its own.

    Raises TraceError for a trace that can't be read.
    """
    rates, assumed = Rates(0.0, 0.0), ""
    for stream in streams_of(plan):
        if stream.load.mode == "replay":
            return None, ""
        rates = rates.plus(_stream(plan, stream))
        if stream.load.mode == "closed":
            assumed = f" (with {USER_TOKENS_PER_S:.0f} tokens/s for each user)"
    return rates, assumed


def _stream(plan: Plan, stream: Stream) -> Rates:
    workloads = [plan.workloads[place] for place in stream.workloads]
    whole = sum(workload.weight for workload in workloads) or 1.0
    rates = Rates(0.0, 0.0)
    for workload in workloads:
        mean, share = mean_of(plan, workload), workload.weight / whole
        streamed = _streamed(plan, workload)
        if stream.load.mode == "closed":
            users = max((asked.users or 0 for asked in stream.asked), default=0) * share
            turns = users * USER_TOKENS_PER_S / max(mean.output_tokens, 1.0)
        else:
            turns = max((asked.rate or 0.0 for asked in stream.asked), default=0.0) * share * mean.turns
        rates = rates.plus(Rates(turns * mean.output_tokens if streamed else 0.0, turns))
    return rates


def _streamed(plan: Plan, workload: Workload) -> bool:
    name = workload.channel or next(iter(plan.channels))
    channel = plan.channels.get(name)
    return channel is None or channel.stream  # a hybrid one: as if all its parts were


def mean_of(plan: Plan, workload: Workload) -> Mean:
    """Turns of a session and output tokens of a turn, of the first sessions of its trace. Raises TraceError."""
    trace = trace_of(plan, workload)
    until = time.monotonic() + _MOST_S
    most = _MOST_SESSIONS if trace.sessions is None else min(_MOST_SESSIONS, trace.sessions)
    sessions = turns = tokens = 0
    while sessions < most and time.monotonic() < until:
        for turn in cut_session(trace.session(sessions), workload.max_turns).all_turns():
            asked = turn.asked_output_tokens or plan.sampling.max_tokens
            turns += 1
            tokens += min(asked, workload.max_tokens or asked)
        sessions += 1
    return Mean(turns / max(sessions, 1), tokens / max(turns, 1))
