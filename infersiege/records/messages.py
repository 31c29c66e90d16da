"""Messages between master and workers: msgpack of these structs inside Locust's custom messages `ifs.<name>`."""

from __future__ import annotations

import msgspec

from infersiege.records.rows import ClientHealth, WindowRow
from infersiege.records.session import TextLengths
from infersiege.records.words import Phase, Reason


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, first. A mismatch of versions is refused."""

    worker: str
    host: str
    pid: int
    boot_id: str
    """The same boot id means the same monotonic clock."""
    versions: dict[str, str]
    spool_dir: str


class NeededFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that workers need as the master has it."""

    name: str
    """Below the path that the plan names, with `/`; empty where that path is the file itself."""
    size_bytes: int
    sha256: str


class NeededPath(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or a folder of files, that the plan names by an absolute path of the master's host."""

    path: str
    what: str
    """What the plan names it as: `trace of chat`, `ca of channel target`."""
    files: tuple[NeededFile, ...]
    """In the order in which they travel, one behind the other."""
    travels: bool = True
    """False: too large; a worker must have it under the same path."""


class FileWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: go on sending one of `Assignment.files`, by its number."""

    number: int
    offset_bytes: int
    """Of the packed bytes: so many are here."""


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: bytes of a needed path's files, one behind the other, packed as one zlib stream."""

    number: int
    offset_bytes: int
    data: bytes
    packed_bytes: int
    """Of the whole stream."""
    refused: str | None = None
    """Why it does not travel, as the end of a sentence that begins with its path."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: the resolved plan and this worker's place."""

    run_id: str
    epoch: int
    place: int
    members: int
    plan: bytes
    plan_hash: str
    trace_hashes: dict[str, str]
    offset_ns: int
    """Master's wall clock minus the master's monotonic clock: one constant per run."""
    boot_id: str
    """Of the master's host; a worker with the same one shares its monotonic clock."""
    text_lengths: dict[str, dict[str, TextLengths]] = {}
    """Channel -> language -> how long synthesised text is there; what is missing goes by the usual ratio."""
    files: tuple[NeededPath, ...] = ()
    """Of the plan; a worker that has not the same ones asks for them."""
    worker: str | None = None
    """What it is called in this run; None: as it said."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker (mismatch), or worker -> master (it cannot take part): the reason."""

    worker: str
    message: str
    hint: str | None
    exit_code: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    plan_hash: str
    trace_hashes: dict[str, str]
    clock_offset_ns: int
    """Master's monotonic clock minus the worker's, kept for the whole run."""
    clock_uncertainty_ns: int


class ClockPing(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master and back: offset = master_ns - (sent_ns + received) / 2, on monotonic clocks."""

    worker: str
    sent_ns: int
    master_ns: int | None = None


class Go(msgspec.Struct, frozen=True, kw_only=True):
    start_ns: int
    """Master's monotonic clock at which the first arrival is due."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker, twice a second: turns may start until this long after it was sent.

    A worker that does not know the epoch yet must not start any by it.
    """

    duration_ns: int
    sequence: int
    epoch: int = 0
    """The one in force."""
    sent_ns: int | None = None
    """Master's monotonic clock: a lease that lay in a queue while its worker was stopped, or cut off, is worth less.
    None: counts from its receipt."""
    until_index: tuple[int, ...] = ()
    """Closed streams: tickets below this may be taken, so that nobody has to ask a silent worker how far it went; by
    number of the stream. Missing: no limit."""


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker, an offer: who plays which tickets from a boundary on (docs/decisions/0008-epochs.md).

    Ticket i of a stream belongs to `members[i % len(members)]`.
    """

    number: int
    """Counts up; 0 is the epoch of the assignment, from the first ticket on."""
    members: tuple[str, ...]
    """Names of workers, in the order of their seats."""
    from_offset_ns: int = 0
    """Streams with times: it begins with the first ticket due then or later, from the start of the load."""
    from_index: tuple[int, ...] = ()
    """Closed streams: with this ticket; by number of the stream. Missing and of streams with times: 0."""


class EpochAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: whether it has taken nothing from the boundary on, and takes nothing until it is in force.

    Also unasked, with the number of the epoch in force, as `Lease.until_index` comes near.
    """

    number: int
    accepted: bool
    next_offset_ns: int = 0
    """The boundary could lie here or later."""
    next_index: tuple[int, ...] = ()
    """The same, of each stream."""


class EpochTable(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: all epochs that are in force, in order; their boundaries never fall."""

    epochs: tuple[Epoch, ...]


class UserSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: which users of closed streams are its own, by number of the stream; all it is to have now."""

    epoch: int
    slots: dict[int, tuple[int, ...]]


class SlotsHeld(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: which users it still has, beyond those that are its own: they end with their sessions."""

    epoch: int
    slots: dict[int, tuple[int, ...]]


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to send one request to a channel that has a rate limit."""

    number: int
    """Of the channel: no two permits have the same."""
    until_ns: int
    """Master's monotonic clock: from then on nothing may be sent by it."""
    tokens: int
    """The request may ask for so many, prompt and longest answer together; 0: nobody counts them."""


class PermitUse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a permit."""

    number: int
    sent_ns: int | None
    """When the last byte of its request was written, at the latest (master's monotonic clock); None: nothing was."""
    requests: int = 1
    """More than one where a kept connection was closed under the request."""
    tokens: int = 0
    """That it used up, or still may where the answer did not tell."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: what it may spend of each limit of the plan, in all since the start, and permits to send."""

    totals: tuple[int, ...]
    """Requests, tokens, or billionths of money, in the order of `swarm.budget.limits_of`."""
    permits: dict[str, tuple[Permit, ...]] = {}
    """New ones, by channel with a rate limit."""


class RateAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of one channel that has a rate limit. Counts are of all since the start."""

    seen: int = 0
    """The highest number of a permit that it had when it wrote this."""
    waiting: tuple[int, ...] = ()
    """Tokens that its turns ask for which wait for a permit, in their order: the first of them."""
    ahead: int = 0
    """Permits that it could use within the next second beyond those: its next turns need not wait then."""
    ahead_tokens: int = 0
    """Tokens of each."""
    uses: tuple[PermitUse, ...] = ()
    """New since the last message."""
    held: int = 0
    """Turns that were kept waiting by the rate limit."""
    held_longest_ns: int = 0
    too_large: int = 0
    """Turns that ask for more tokens than the limit gives in a minute."""


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: what it has spent of each limit, when it needs more and each second."""

    spent: tuple[int, ...]
    """In all since the start, as in `Grant.totals`."""
    waiting: tuple[int, ...]
    """Turns that are held back for want of a grant."""
    rates: dict[str, RateAsk] = {}
    """By channel with a rate limit; those of which there is nothing new are left out."""


class TraceChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of one workload was not played as its trace has it. Counts of different workers add up."""

    capped_turns: int = 0
    """Turns whose delay `delay_cap` shortened."""
    capped_sessions: int = 0
    capped_ns: int = 0
    """What it took away in all."""
    clipped_turns: int = 0
    """Turns whose prompt was cut to the context limit."""
    clipped_sessions: int = 0
    too_long_turns: int = 0
    """Turns that were skipped because of the context limit, those after them in their line included."""
    too_long_sessions: int = 0

    def plus(self, other: TraceChanges) -> TraceChanges:
        return TraceChanges(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Plays(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of one workload; of a trace that wraps each play of one counts."""

    taken: int = 0
    """Taken up: each of their turns has a record."""
    sent: int = 0
    """Of these, sessions of which at least one turn was sent."""
    repeats: int = 0
    """Of those that were sent, plays of a session that the trace had given before."""

    def plus(self, other: Plays) -> Plays:
        return Plays(taken=self.taken + other.taken, sent=self.sent + other.sent, repeats=self.repeats + other.repeats)


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a session in play, so that the master can write its records if the worker dies.

    A session without branches is one line.
    """

    session_id: str
    scenario: str
    stage: str
    phase: Phase
    channel: str
    turns: int
    """Of the line."""
    turn: int
    """The turn in flight or next, by its number in the session."""
    started: bool
    due_ns: int
    routed_by: str | None = None
    """The hybrid channel that chose `channel`."""
    first_turn: int = 0
    """Number of the line's first turn in the session; 0 is the main line's."""
    after: int | None = None
    """A branch: the turn after whose end it comes; None: it starts with the session."""
    repeated: bool = False
    """The session was played before: its trace wraps."""
    epoch: int = 0
    """The one in force when the session was taken."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, each second. Its size does not depend on the number of requests."""

    worker: str
    sequence: int
    windows: tuple[WindowRow, ...]
    health: ClientHealth | None
    open_turns: tuple[OpenTurn, ...]
    sessions: int
    in_flight: int
    planned_turns: int
    closed_turns: int
    started_turns: int = 0
    """Turns that were about to be sent, since the start."""
    chunks: int = 0
    """Content chunks that arrived since the start, open turns included."""
    changes: dict[str, TraceChanges] = {}
    """By workload_key, since the start."""
    plays: dict[str, Plays] = {}
    """The same."""
    stopped: str | None = None
    """Why it makes no more sessions, although there are more to play; None: it goes on, or all were played."""
    unscored: str | None = None
    """The first answer that could not be checked, and why (docs/quality.md); None: all could."""
    clock_offset_ns: int | None = None
    """Master's monotonic clock minus the worker's, as it is now; None: no exchange of the last minute tells."""
    clock_uncertainty_ns: int | None = None
    finished: bool = False
    """Nothing more to start: the trace or the number of sessions is used up and all turns ended."""
    epoch: int = -1
    """The last one that it knows to be in force; -1: none."""
    next_index: tuple[int, ...] = ()
    """Above every ticket that it has taken, by number of the stream."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: zlib-compressed rows of turns.jsonl; repeated until acknowledged."""

    worker: str
    sequence: int
    rows: int
    data: bytes


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: start nothing, let open turns end for so long, then cancel them."""

    duration_ns: int
    reason: Reason
    epoch: int = 0
    """The one in force. Who does not know it accounts for no more arrivals: they may be somebody else's by now."""
    ended_ns: int | None = None
    """When the load was over (master's monotonic clock): no arrival that is due later gets a record; None: now."""


class Bye(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, after the last acknowledged segment."""

    worker: str
    records: int
    planned_turns: int
    plays: dict[str, Plays]
    """By workload_key: scenario and channel."""
    hub_lag_p99_ns: int | None
    cpu_share_max: float | None
    exit_reason: str
    spool_error: str | None
    """Why its records could not be kept on its own disk as well; None: they were."""
    fault: str | None
    """The first exception of ours outside a turn; None: there was none."""
    stopped: str | None = None
    """Why it made no more sessions, where that was no fault of ours: what happened to the trace."""
    source_away_ns: int | None = None
    """As `WorkerSummary` has it."""
    clock_offset_ns: int
    """As measured at the end; beside the one at the start it tells the drift."""
    changes: dict[str, TraceChanges] = {}
    """By workload_key."""
