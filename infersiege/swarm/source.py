"""Which sessions this worker plays, and each of them ready to be played."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from infersiege.channels.routing import ByScenario, Failover, Overflow, Policy, Weighted
from infersiege.plan.hybrid_schema import Hybrid
from infersiege.plan.schema import Plan, Workload
from infersiege.plan.streams import Stream, spans_of, streams_of
from infersiege.plan.values import format_duration
from infersiege.quality import Item, QualityTrace
from infersiege.records import Plays, Session, TextLengths, TraceAccount, TraceChanges, Turn
from infersiege.redis_stream import trace_of
from infersiege.schedule import Ticket, closed_tickets, open_tickets, replay_tickets
from infersiege.schedule.shares import is_mine
from infersiege.swarm.ledger import workload_key
from infersiege.swarm.mixing import in_turn, with_checked
from infersiege.swarm.texts import synthesizers
from infersiege.traces import Conversation, Trace, prompt_salt
from infersiege.traces.play.session_lines import SessionLine
from infersiege.traces.rewriting.change import redacted_text

ARRIVAL_LINES = (SessionLine(first_turn=0, turns=(Turn(messages=()),)),)
"""Of an arrival whose session is not known."""
_ARRIVAL = re.compile(r"[^:]*:~arrival-\d+\.\d+")


def is_arrival(session_id: str) -> bool:
    """Whether it is an `arrival_id`."""
    return _ARRIVAL.fullmatch(session_id) is not None


class SessionSource:
    """The plan's traces, and the share of one worker in the plan's sequence of sessions.

    Every worker opens the same traces and computes its own share; nothing is handed out.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        place: int,
        members: int,
        text_lengths: Mapping[str, Mapping[str, TextLengths]] | None = None,
    ) -> None:
        """`text_lengths`: by channel and language; None: texts go by the usual ratio.

        Raises TraceError for a trace that can't be read, UsageError for a load that it can't carry.
        """
        self.plan = plan
        self._place, self._members = place, members
        self._labels = _labels(plan)
        self._policies = policies(plan)
        self.traces: tuple[Trace, ...] = tuple(trace_of(plan, workload) for workload in plan.workloads)
        self._synthesizers = synthesizers(plan, text_lengths or {})
        self.streams: tuple[Stream, ...] = streams_of(plan)
        self._spans = spans_of(plan)
        # A load that the trace can't carry (replay without times) is an error before the run, not in it.
        for stream in self.streams:
            next(self.tickets(stream.number), None)

    def of_place(self, place: int) -> SessionSource:
        """The share of another worker of the same fleet, on the same traces."""
        other = copy.copy(self)
        other._place = place
        return other

    def of_fleet(self, members: int) -> SessionSource:
        """The first share of a fleet of so many workers, on the same traces."""
        other = copy.copy(self)
        other._members = members
        return other

    def of_plan(self, plan: Plan) -> SessionSource:
        """The same share of the same traces, played as another plan says: one with the same workloads and seed."""
        other = copy.copy(self)
        other.plan, other.streams, other._spans = plan, streams_of(plan), spans_of(plan)
        return other

    def with_texts(self, text_lengths: Mapping[str, Mapping[str, TextLengths]]) -> SessionSource:
        """The same sessions, their texts by these lengths."""
        other = copy.copy(self)
        other._synthesizers = synthesizers(self.plan, text_lengths)
        return other

    def tickets(self, number: int | None = None) -> Iterator[Ticket]:
        """This worker's tickets of one stream, in order; endless for a closed loop over a trace that wraps.

        Without a number: those of all streams, in turn.
        """
        wanted = [stream for stream in self.streams if number in (None, stream.number)]
        return in_turn([self._tickets(stream) for stream in wanted])

    def asked_tickets(self, stream: Stream) -> Iterator[Ticket]:
        """All arrivals that a stream's load asks for, in order, over all workers: in an open loop those too for which
        its traces hold no more sessions. A number of sessions that the plan stops at is not gone beyond."""
        alone = self.of_fleet(1).of_place(0)
        stop = self.plan.run.stop
        if stream.load.mode != "open":
            return alone._tickets(stream)
        asked = alone._tickets(stream, endless=True)
        if stop is None or stop.sessions is None:
            return asked
        last = next(islice(alone._tickets(stream), stop.sessions - 1, None), None)
        if last is None:
            return asked
        last_ns = last.offset_ns or 0
        return takewhile(lambda ticket: (ticket.offset_ns or 0) <= last_ns, asked)

    def is_finite(self, stream: Stream) -> bool:
        """Whether a closed loop comes to the end of its traces by itself."""
        traces = [(self.plan.workloads[place], self.traces[place]) for place in stream.workloads]
        return all(not workload.wrap and trace.sessions is not None for workload, trace in traces)

    def runs_out(self, stream: Stream) -> bool:
        """Whether an arrival that a stream asks for has no session, since a trace is over."""
        if stream.load.mode != "open":
            return any(
                not self.plan.workloads[place].wrap and self.traces[place].sessions is not None
                for place in stream.workloads
            )
        there = self.of_fleet(1).of_place(0)._tickets(stream)
        for asked in self.asked_tickets(stream):
            one = next(there, None)
            if one is None or one.offset_ns != asked.offset_ns:
                return True
        return False

    def _tickets(self, stream: Stream, *, endless: bool = False) -> Iterator[Ticket]:
        """`endless`: as if every trace wrapped, and without a number of sessions to stop at."""
        if not stream.checked:
            return self._planned_tickets(stream, endless=endless)
        # Which prompt is next depends on the tickets of all workers before.
        whole = self.of_fleet(1).of_place(0)._planned_tickets(stream, endless=endless)
        mixed = with_checked(self.plan, stream, whole)
        return (ticket for ticket in mixed if is_mine(ticket.index, self._place, self._members, 0))

    def _planned_tickets(self, stream: Stream, *, endless: bool) -> Iterator[Ticket]:
        plan, load = self.plan, stream.load
        sessions = plan.run.stop.sessions if plan.run.stop is not None and not endless else None
        workloads = [plan.workloads[place] for place in stream.workloads]
        traces = [self.traces[place] for place in stream.workloads]
        share: dict[str, Any] = {
            "sessions": sessions,
            "place": self._place,
            "members": self._members,
            "seed": plan.run.seed,
            "stream": stream.number,
            "workloads": stream.workloads,
        }
        if load.mode == "replay":
            return replay_tickets(
                [trace.arrivals_ns for trace in traces],
                speed=load.speed,
                wrap=[workload.wrap for workload in workloads],
                duration_ns=stream.duration_ns,
                jitter_ns=load.jitter_ns,
                **share,
            )
        share["weights"] = [workload.weight for workload in workloads]
        share["available"] = [
            None if workload.wrap or endless else trace.sessions
            for workload, trace in zip(workloads, traces, strict=True)
        ]
        if load.mode == "closed":
            return closed_tickets(**share)
        rates = {"stages": stream.rates} if stream.rates else {"rate": load.rate, "duration_ns": stream.duration_ns}
        return open_tickets(arrivals=load.arrivals, burstiness=load.burstiness, **rates, **share)

    def session_id(self, ticket: Ticket) -> tuple[str, int]:
        """(unique id in the run, index in the trace): an id of the trace, with its repeat where the trace wraps."""
        repeat, index = self._place_in_trace(ticket)
        return self._name(ticket, self.traces[ticket.workload].session(index), repeat), index

    def hands_out(self, ticket: Ticket) -> bool:
        """Whether its session is not known before it is due: the trace lies in Redis, which hands its sessions out."""
        return self.plan.workloads[ticket.workload].source is not None

    def arrival_id(self, ticket: Ticket) -> str:
        """Stands for the session of an arrival that never had one; no session has such an id."""
        return f"{self._labels[ticket.workload]}:~arrival-{ticket.stream}.{ticket.index}"

    def is_repeat(self, ticket: Ticket) -> bool:
        """Whether its session was played before: the trace wraps."""
        return self._place_in_trace(ticket)[0] > 0

    def channel_of(self, ticket: Ticket) -> tuple[str, str | None]:
        """(channel on which a ticket's session begins, as far as is known before it does; hybrid channel that says so).

        None: the workload itself names the channel.
        """
        workload = self.plan.workloads[ticket.workload]
        name = workload_channel(self.plan, workload)
        policy = self._policies.get(name)
        if policy is None:
            return name, None
        return self.plan.hybrids[name].parts[policy.home(ticket.session_index, workload.scenario).part].channel, name

    def stage_of(self, ticket: Ticket) -> str:
        """Name of the stage in which a ticket is due; the first one, for a closed loop."""
        spans, offset_ns = self._spans, ticket.offset_ns or 0
        return next(span.name for span in reversed(spans) if span.start_ns <= offset_ns or span is spans[0])

    def checked_item(self, ticket: Ticket) -> Item | None:
        """What the answer of a ticket's session is held against; None: it is not checked."""
        trace = self.traces[ticket.workload]
        return trace.item(self._place_in_trace(ticket)[1]) if isinstance(trace, QualityTrace) else None

    def conversation(self, ticket: Ticket) -> Conversation:
        """A session of the trace, salted and scaled as the plan says."""
        return self.named_conversation(ticket)[1]

    def named_conversation(self, ticket: Ticket, stage: str | None = None) -> tuple[str, Conversation]:
        """`session_id` and `conversation` of one ticket. A generator makes a session anew each time: asked once.

        `stage`: in which the session begins, as far as its ticket does not say so: no cache outlives a stage.
        """
        plan, workload = self.plan, self.plan.workloads[ticket.workload]
        load = workload.load or plan.load
        repeat, index = self._place_in_trace(ticket)
        session = self.traces[ticket.workload].session(index)
        salt = None
        if workload.salt is not False:
            salt = prompt_salt(plan.run.nonce or "", stage or self.stage_of(ticket), repeat)
        conversation = Conversation(
            session,
            synthesizer=self._synthesizers[ticket.workload],
            history=workload.history,
            salt=salt,
            max_turns=workload.max_turns,
            max_tokens=workload.max_tokens,
            default_max_tokens=plan.sampling.max_tokens,
            delay_scale=workload.delay_scale / (load.speed if load.mode == "replay" else 1.0),
            delay_cap_ns=workload.delay_cap_ns,
            context_limit=workload.context_limit,
            clip=workload.too_long == "clip",
        )
        return self._name(ticket, session, repeat), conversation

    def _place_in_trace(self, ticket: Ticket) -> tuple[int, int]:
        """(repeat, index in the trace)."""
        sessions = self.traces[ticket.workload].sessions
        return divmod(ticket.session_index, sessions) if sessions else (0, ticket.session_index)

    def _name(self, ticket: Ticket, session: Session, repeat: int) -> str:
        name = shown_id(session.session_id)
        # An id of the trace may itself look like another one's repeat.
        if repeat or "~" in name:
            name = f"{name}~{repeat}"
        return f"{self._labels[ticket.workload]}:{name}"

    def trace_hashes(self) -> dict[str, str]:
        """`scenario (trace)` -> SHA-256, of the traces that are files."""
        return {
            f"{workload.scenario} ({workload.trace})": trace.sha256
            for workload, trace in zip(self.plan.workloads, self.traces, strict=True)
            if trace.sha256 is not None
        }

    def warnings(self) -> list[str]:
        return [
            f"{workload.scenario}: {warning}"
            for workload, trace in zip(self.plan.workloads, self.traces, strict=True)
            for warning in trace.warnings
        ]

    def accounts(
        self, plays: Mapping[str, Plays], changes: Mapping[str, TraceChanges] | None = None
    ) -> tuple[TraceAccount, ...]:
        """Rows = those of sessions + skipped; sessions = sent + not sent.

        `plays`: of all workers, by `workload_key`; `changes`: what was not played as the trace has it, by the same.
        """
        found = []
        for workload, trace in zip(self.plan.workloads, self.traces, strict=True):
            key = workload_key(workload.scenario, workload_channel(self.plan, workload))
            changed = (changes or {}).get(key, TraceChanges())
            found.append(_account(workload, trace, plays.get(key, Plays()), changed))
        return tuple(found)

    def arrivals_between(self, stream: Stream, spans_ns: Sequence[tuple[int, int]]) -> list[int]:
        """Arrivals that a stream asks for in each [first, last) from the start, over all workers; spans in order."""
        counts = [0] * len(spans_ns)
        place = 0
        for ticket in self.asked_tickets(stream):
            while place < len(spans_ns) and ticket.offset_ns is not None and ticket.offset_ns >= spans_ns[place][1]:
                place += 1
            if place == len(spans_ns) or ticket.offset_ns is None:
                break
            counts[place] += ticket.offset_ns >= spans_ns[place][0]
        return counts


def workload_channel(plan: Plan, workload: Workload) -> str:
    """The channel that a workload names, which may be hybrid; else the only one."""
    return workload.channel or next(iter(plan.channels))


def policies(plan: Plan) -> dict[str, Policy]:
    """How each hybrid channel of a plan chooses."""
    return {name: _policy(name, hybrid, plan.run.seed) for name, hybrid in plan.hybrids.items()}


def _policy(name: str, hybrid: Hybrid, seed: int) -> Policy:
    if hybrid.policy == "weighted":
        return Weighted([part.weight for part in hybrid.parts], seed, name)
    if hybrid.policy == "scenario":
        return ByScenario([part.scenarios for part in hybrid.parts])
    return Overflow(len(hybrid.parts)) if hybrid.policy == "overflow" else Failover(len(hybrid.parts))


def _labels(plan: Plan) -> tuple[str, ...]:
    """What the ids of each workload's sessions begin with: its scenario, and its channel where scenarios share a name.

    No two are alike and none has a colon, so ids of two workloads never are alike either.
    """
    shared = Counter(workload.scenario for workload in plan.workloads)
    labels: list[str] = []
    for index, workload in enumerate(plan.workloads):
        several = shared[workload.scenario] > 1
        label = f"{workload.scenario}.{workload_channel(plan, workload)}" if several else workload.scenario
        label = label.replace(":", ".")
        while label in labels:
            label = f"{label}.{index}"
        labels.append(label)
    return tuple(labels)


def shown_id(session_id: str) -> str:
    """A session's id as records, requests and reports have it: one that looks as if it held a key or a mail address is
    replaced by its hash."""
    if redacted_text(session_id) == session_id:
        return session_id
    return "id-" + hashlib.blake2b(session_id.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _account(workload: Workload, trace: Trace, plays: Plays, changed: TraceChanges) -> TraceAccount:
    sessions = trace.sessions
    return TraceAccount(
        scenario=workload.scenario,
        trace=workload.trace,
        format=trace.format,
        sha256=trace.sha256,
        rows=trace.rows,
        sessions=sessions,
        rows_in_sessions=None if trace.rows is None else trace.rows - sum(trace.skipped.values()),
        skipped=dict(trace.skipped),
        sessions_taken=plays.taken,
        sessions_started=plays.sent,
        sessions_repeated=plays.repeats,
        not_started=None if sessions is None else sessions - (plays.sent - plays.repeats),
        repeat_factor=plays.sent / sessions if sessions else None,
        capped_delays=changed.capped_turns,
        capped_delay_s=changed.capped_ns / 1e9,
        context_limit=workload.context_limit,
        clipped_turns=changed.clipped_turns,
        clipped_sessions=changed.clipped_sessions,
        too_long_turns=changed.too_long_turns,
        too_long_sessions=changed.too_long_sessions,
    )


def changed_traces(accounts: Sequence[TraceAccount], plan: Plan) -> list[str]:
    """A line for each way in which a workload was not played as its trace has it."""
    lines = []
    for account, workload in zip(accounts, plan.workloads, strict=True):
        if account.capped_delays:
            cap = format_duration(workload.delay_cap_ns or 0)
            lines.append(
                f"{account.scenario}: {account.capped_delays:,} delays are cut to delay_cap = {cap}, by "
                f"{account.capped_delay_s:,.1f} s in all"
            )
        limit = f"the context limit of {account.context_limit or 0:,} tokens"
        if account.clipped_turns:
            lines.append(
                f"{account.scenario}: {account.clipped_turns:,} prompts of {account.clipped_sessions:,} sessions are "
                f"cut to {limit}"
            )
        if account.too_long_turns:
            lines.append(
                f"{account.scenario}: {account.too_long_turns:,} turns of {account.too_long_sessions:,} sessions are "
                f"skipped: over {limit}, or after one that is"
            )
    return lines
