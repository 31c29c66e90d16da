"""A dead worker's account: every turn that it had, and every arrival that nobody plays, has exactly one record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_rows import LABELS, RUN_ID, STEADY, Key, lines, open_turn, record, run_in

from infersiege.errors import RunInvalidError
from infersiege.metrics.batch import Batch
from infersiege.records import Hello, OpenTurn, Outcome, Plays, Reason, Report, TraceChanges, TurnRecord
from infersiege.rundir import RunDirectory
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import Ledger, OpenSession, workload_key
from infersiege.swarm.losses import MAYBE_SENT, Loss, LossAccount, Orphan, describe, doubt_of
from infersiege.swarm.membership import LEASE_NS, MARGIN_NS
from infersiege.swarm.spool import Spool
from infersiege.swarm.versions import boot_id

TALK = workload_key("talk", LABELS.name)


@dataclass
class Life:
    """A worker as its master saw it until it died, on a real spool and a real run directory."""

    folder: Path
    remote: bool = False
    """On another host: its spool can't be read from here, and the master has its last report only."""
    taken: list[OpenSession] = field(default_factory=list)
    report: Report | None = None
    lost_at_ns: int = 1
    """When its master gave it up, which is epoch time here."""

    def __post_init__(self) -> None:
        self.run = run_in(self.folder / "run")
        self.intake = Intake(self.run)
        self.spool = Spool(self.folder / "infersiege-spool-1-w", "w")
        self.ledger = Ledger(run_id=RUN_ID, worker="w", epoch=0, spool=self.spool, place_of=lambda _: STEADY)

    def take(self, name: str, turns: int) -> OpenSession:
        return self.take_lines(name, turns)[0]

    def take_lines(self, name: str, *turns: int) -> tuple[OpenSession, ...]:
        """A session with a main line and branches."""
        taken = lines(name, *turns)
        self.taken += taken
        self.ledger.take(*taken)
        return taken

    def play(self, taken: OpenSession, turns: int) -> None:
        for _ in range(turns):
            self.start(taken)
            self.ledger.close(taken, record(taken.session_id, taken.next_turn))

    def start(self, taken: OpenSession) -> None:
        self.ledger.start(taken, "id", 1)

    def ship(self, *, acknowledge: bool = True) -> None:
        self.spool.cut()
        for segment in self.spool.unacknowledged():
            self.intake.take(segment, lambda: None)
            if acknowledge:
                self.spool.acknowledge(segment.sequence)

    def tell(self, *, next_index: int = 0) -> None:
        self.report = Report(
            worker="w",
            sequence=1,
            windows=(),
            health=None,
            open_turns=tuple(opened.open_turn(STEADY) for opened in self.ledger.open.values()),
            sessions=len(self.ledger.open),
            in_flight=0,
            planned_turns=self.ledger.planned_turns,
            closed_turns=self.ledger.closed_turns,
            changes=self.ledger.changes,
            plays=self.ledger.plays,
            next_index=(next_index,),
        )

    def die(self, orphans: list[OpenTurn] | None = None) -> Loss:
        return self.die_with([Orphan("w", opened, ticket=100) for opened in orphans or ()])

    def die_with(self, orphans: list[Orphan]) -> Loss:
        self.spool.close(remove=False)
        hello = Hello(
            worker="w",
            host="h",
            pid=1,
            boot_id="another host's" if self.remote else boot_id(),
            versions={},
            spool_dir=str(self.spool.directory),
        )
        state = WorkerState("node", hello, 0, last_seen_ns=0, report=self.report, lost_at_ns=self.lost_at_ns)
        account = LossAccount(self.intake, run_id=RUN_ID, channels={LABELS.name: LABELS})
        (loss,) = account.settle([state], orphans)
        return loss

    def rows(self) -> dict[Key, TurnRecord]:
        rows = list(self.run.read_turns())
        found = {(row.session_id, row.turn): row for row in rows}
        assert len(found) == len(rows), "a turn has two records"
        return found

    def outcomes(self) -> dict[Key, Outcome]:
        return {key: row.outcome for key, row in self.rows().items()}

    def close(self) -> None:
        self.run.close()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path, remote=True)
    yield made
    made.close()


def test_with_its_spool_nothing_is_missing(life: Life) -> None:
    """Closed rows come home, the turn on its way is lost, what comes after it is skipped."""
    done, middle, fresh = life.take("done", 2), life.take("middle", 4), life.take("fresh", 2)
    life.play(done, 2)
    life.ship()
    life.play(middle, 1)
    life.start(middle)
    loss = life.die()
    assert life.outcomes() == {
        ("done", 0): Outcome.OK,
        ("done", 1): Outcome.OK,
        ("middle", 0): Outcome.OK,
        ("middle", 1): Outcome.LOST,
        ("middle", 2): Outcome.SKIPPED,
        ("middle", 3): Outcome.SKIPPED,
        ("fresh", 0): Outcome.SKIPPED,
        ("fresh", 1): Outcome.SKIPPED,
    }
    rows = life.rows()
    assert {rows[key].reason for key, outcome in life.outcomes().items() if outcome is not Outcome.OK} == {
        Reason.WORKER_LOST
    }
    assert rows["middle", 1].model_asked == LABELS.model and rows["middle", 1].worker == "w"
    assert loss == Loss(recovered_rows=1, lost=1, skipped=4, plays={TALK: Plays(taken=3, sent=2)}, planned_turns=8)
    assert fresh.turns == 2
    assert not life.spool.directory.exists()


def test_a_segment_that_came_and_was_not_acknowledged_is_written_once(life: Life) -> None:
    life.play(life.take("a", 2), 2)
    life.ship(acknowledge=False)
    loss = life.die()
    assert life.outcomes() == {("a", 0): Outcome.OK, ("a", 1): Outcome.OK}
    assert (loss.recovered_rows, loss.planned_turns) == (0, 2)


def test_a_torn_row_is_a_lost_turn(life: Life) -> None:
    """Killed while it wrote: the turn had been started, and its record is half a line."""
    taken = life.take("a", 2)
    life.play(taken, 1)
    life.start(taken)
    path = life.spool.directory / "segment-0.jsonl"
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record("a", 1))[:-9])
    life.die()
    assert life.outcomes() == {("a", 0): Outcome.OK, ("a", 1): Outcome.LOST}


def test_orphans_that_it_took_are_left_out_and_the_others_are_skipped(life: Life) -> None:
    """Arrivals of the schedule: played, in play, and never taken."""
    life.play(life.take("played", 1), 1)
    life.start(life.take("in play", 2))
    loss = life.die([open_turn(name, 2 if name != "played" else 1) for name in ("played", "in play", "x", "y")])
    assert life.outcomes() == {
        ("played", 0): Outcome.OK,
        ("in play", 0): Outcome.LOST,
        ("in play", 1): Outcome.SKIPPED,
        **{(name, turn): Outcome.SKIPPED for name in ("x", "y") for turn in (0, 1)},
    }
    assert loss.planned_turns == 7
    assert loss.plays == {TALK: Plays(taken=2, sent=2)}, "an arrival that nobody took is no session"


def test_without_its_spool_the_last_report_tells(remote: Life) -> None:
    """Another host. Turns that ended after the last shipment were sent, so they are lost and not skipped."""
    gone, first = remote.take("gone", 3), remote.take("first", 2)
    remote.play(gone, 1)
    remote.ship()
    remote.play(gone, 1)
    remote.start(first)
    remote.tell()
    loss = remote.die([open_turn("never", 1)])
    assert remote.outcomes() == {
        ("gone", 0): Outcome.OK,
        ("gone", 1): Outcome.LOST,
        ("gone", 2): Outcome.SKIPPED,
        ("first", 0): Outcome.LOST,
        ("first", 1): Outcome.SKIPPED,
        ("never", 0): Outcome.SKIPPED,
    }
    assert (loss.recovered_rows, loss.lost, loss.skipped, loss.planned_turns) == (0, 2, 3, 6)
    assert loss.maybe_sent == 3, "it may have gone on for as long as it had a lease"
    assert remote.spool.directory.exists(), "another host's path means nothing here"


def test_a_report_older_than_the_records_does_not_make_a_second_record(remote: Life) -> None:
    taken = remote.take("a", 2)
    remote.start(taken)
    remote.tell()
    remote.ledger.close(taken, record("a", 0))
    remote.ship()
    remote.die()
    assert remote.outcomes() == {("a", 0): Outcome.OK, ("a", 1): Outcome.SKIPPED}


def test_a_session_that_was_over_and_half_of_it_shipped_has_the_rest_lost(remote: Life) -> None:
    """It is in no report any more; the schedule knows how many turns it had."""
    taken = remote.take("a", 3)
    remote.play(taken, 2)
    remote.ship()
    remote.play(taken, 1)
    remote.tell()
    loss = remote.die([open_turn("a", 3), open_turn("never", 1)])
    assert remote.outcomes() == {
        ("a", 0): Outcome.OK,
        ("a", 1): Outcome.OK,
        ("a", 2): Outcome.LOST,
        ("never", 0): Outcome.SKIPPED,
    }
    assert loss.planned_turns == 4


def test_records_that_nobody_can_name_are_missed_in_the_balance(remote: Life) -> None:
    """A closed loop has no schedule: of sessions that were over, the last report's count is all there is."""
    remote.play(remote.take("a", 3), 3)
    remote.tell()
    loss = remote.die()
    assert remote.outcomes() == {}
    assert loss.planned_turns == 3, "planned turns without a record make the run invalid, not green"


def test_a_ticket_that_it_was_past_at_its_last_report_was_played_to_its_end(remote: Life) -> None:
    """Sessions of one turn: nothing of them is home, and the report says that tickets below 7 were taken."""
    remote.take("open", 1)
    remote.tell(next_index=7)
    tickets = {"over": 5, "open": 6, "next": 7}
    remote.die_with([Orphan("w", open_turn(name), ticket=ticket) for name, ticket in tickets.items()])
    assert remote.outcomes() == {
        ("over", 0): Outcome.LOST,
        ("open", 0): Outcome.SKIPPED,
        ("next", 0): Outcome.SKIPPED,
    }


LEASED_NS = LEASE_NS + MARGIN_NS
MAYBE = [
    ("due before the report", 0, True, True, "it may have been late"),
    ("due under the last lease", LEASED_NS, True, True, "to the instant"),
    ("due beyond it", LEASED_NS + 1, True, False, "without a lease nothing is sent"),
    ("of a user", LEASED_NS + 1, False, True, "a closed loop's session is taken whenever a user is free"),
]


@pytest.mark.parametrize(("name", "due_ns", "timed", "maybe", "why"), MAYBE, ids=[row[0] for row in MAYBE])
def test_what_may_have_been_sent_after_the_last_report_says_so(
    remote: Life, name: str, due_ns: int, timed: bool, maybe: bool, why: str
) -> None:
    """Of a worker of another host only the last report tells; conservation holds either way."""
    remote.lost_at_ns = 0
    remote.tell()
    opened = msgspec.structs.replace(open_turn("s"), due_ns=due_ns)
    loss = remote.die_with([Orphan("w", opened, ticket=9, timed=timed)])
    (row,) = remote.rows().values()
    assert (row.outcome, row.reason) == (Outcome.SKIPPED, Reason.WORKER_LOST)
    assert row.error_detail == (MAYBE_SENT if maybe else None), why
    assert (loss.skipped, loss.maybe_sent) == (1, int(maybe))


def test_with_its_spool_here_nothing_is_maybe(life: Life) -> None:
    """The journal has every turn that was about to be sent, to the last instant."""
    life.start(life.take("s", 3))
    loss = life.die([open_turn("never")])
    assert (loss.lost, loss.skipped, loss.maybe_sent) == (1, 3, 0)
    assert {row.error_detail for row in life.rows().values()} == {None}


def test_a_journal_with_a_damaged_line_tells_what_it_can(life: Life) -> None:
    """Zeros of a disk that failed: no traceback at the end of a run, and the sessions beside them are settled."""
    life.start(life.take("a", 1))
    with (life.spool.directory / "journal.jsonl").open("ab") as file:
        file.write(b"\0\0\0\n")
    life.start(life.take("b", 1))
    loss = life.die()
    assert life.outcomes() == {("a", 0): Outcome.LOST, ("b", 0): Outcome.LOST}
    assert loss.unread is None


def test_a_spool_that_can_not_be_read_leaves_the_last_report(life: Life) -> None:
    """It stays where it is, and the log of events says why."""
    life.start(life.take("a", 2))
    life.tell()
    (life.spool.directory / "segment-0.jsonl").mkdir()
    loss = life.die()
    assert life.outcomes() == {("a", 0): Outcome.LOST, ("a", 1): Outcome.SKIPPED}
    assert loss.unread is not None and "directory" in loss.unread
    doubt = doubt_of("w", loss)
    assert doubt is not None and doubt.startswith("w: its spool can't be read (") and "last report" in doubt
    assert life.spool.directory.exists()
    hello = Hello(worker="w", host="h", pid=1, boot_id="b", versions={}, spool_dir="")
    assert "its spool can't be read: " in describe(WorkerState("node", hello, 0, last_seen_ns=0), loss)


class CountedReads(RunDirectory):
    """A run directory that counts how often its turns are read."""

    reads = 0

    def read_turn_batches(self, *args: Any, **more: Any) -> Iterator[Batch]:
        self.reads += 1
        return super().read_turn_batches(*args, **more)


def test_many_lost_workers_are_settled_in_one_pass(tmp_path: Path) -> None:
    """The turns are read once and the arrivals walked once; each worker's rows are its own."""
    names = [f"w{number}" for number in range(20)]
    with run_in(tmp_path / "run") as made:
        made.append_turn_lines(
            b"".join(
                msgspec.json.encode(record(f"s{number}", worker=names[number % 20])) + b"\n" for number in range(60)
            )
        )
    with CountedReads.open(tmp_path / "run") as run:
        account = LossAccount(Intake(run), run_id=RUN_ID, channels={LABELS.name: LABELS})
        states = [
            WorkerState(
                f"node-{name}",
                Hello(worker=name, host="h", pid=1, boot_id="another host's", versions={}, spool_dir=""),
                0,
                last_seen_ns=0,
                lost_at_ns=None if name == "w3" else 1,
            )
            for name in names
        ]
        walked = iter([Orphan(names[number % 20], open_turn(f"s{number}"), ticket=number) for number in range(100)])
        losses = account.settle(states, walked)
        assert run.reads == 1
        rows = list(run.read_turns())
    assert [(loss.skipped, loss.unplayed, loss.planned_turns) for loss in losses] == [
        (2, 2, 2 if name == "w3" else 5) for name in names
    ], "w3 is back: its own records tell of the rest"
    assert sorted((row.session_id, row.worker) for row in rows) == sorted(
        (f"s{number}", names[number % 20]) for number in range(100)
    )


def test_a_worker_that_never_reported_has_only_its_orphans(remote: Life) -> None:
    loss = remote.die([open_turn("never", 2)])
    assert set(remote.outcomes().values()) == {Outcome.SKIPPED}
    assert (loss.lost, loss.skipped, loss.planned_turns) == (0, 2, 2)


def test_branches_of_a_killed_worker_are_lost_where_they_were_sent(life: Life) -> None:
    """Of each line the turn on its way is lost; what comes after it, and a branch that had not begun, is skipped."""
    main, first, second = life.take_lines("s", 3, 2, 2)
    life.play(main, 1)
    life.start(main)
    life.play(first, 1)
    life.start(first)
    loss = life.die()
    assert [life.outcomes()["s", turn] for turn in range(7)] == [
        *(Outcome.OK, Outcome.LOST, Outcome.SKIPPED),
        *(Outcome.OK, Outcome.LOST),
        *(Outcome.SKIPPED, Outcome.SKIPPED),
    ]
    assert [life.rows()["s", turn].parent_turn for turn in (1, 2, 4, 5, 6)] == [0, 1, 3, 0, 5]
    assert loss.plays == {TALK: Plays(taken=1, sent=1)}, "a session with branches is one"
    assert second.next_turn == 5


def test_a_line_that_was_over_and_did_not_come_home_is_lost_though_its_session_went_on(remote: Life) -> None:
    """The last report names the branch only; the schedule knows that there was a main line."""
    main, branch = remote.take_lines("s", 2, 2)
    remote.play(main, 2)
    remote.start(branch)
    remote.tell()
    loss = remote.die([open_turn("s", 2), open_turn("s", 2, first_turn=2)])
    assert [remote.outcomes()["s", turn] for turn in range(4)] == [Outcome.LOST] * 3 + [Outcome.SKIPPED]
    assert loss.planned_turns == 4


def test_what_a_dead_worker_had_changed_is_not_forgotten(remote: Life) -> None:
    taken = remote.take("s", 1)
    remote.ledger.changed(taken, TraceChanges(capped_turns=1, capped_ns=5))
    remote.ledger.changed(taken, TraceChanges(capped_turns=2, capped_ns=6, clipped_turns=1))
    remote.tell()
    assert remote.die().changes == {TALK: TraceChanges(capped_turns=3, capped_ns=11, clipped_turns=1)}


LINE = st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans(), st.booleans())
"""Turns, turns played, the next one started, shipped afterwards."""
PLAYED = st.lists(st.lists(LINE, min_size=1, max_size=3), min_size=1, max_size=5)
"""Sessions: their lines."""


@given(PLAYED, st.integers(0, 3), st.booleans())
def test_conservation_whatever_it_was_doing(
    tmp_path_factory: pytest.TempPathFactory,
    played: list[list[tuple[int, int, bool, bool]]],
    never: int,
    remote: bool,
) -> None:
    life = Life(tmp_path_factory.mktemp("life"), remote=remote)
    for number, parts in enumerate(played):
        taken = life.take_lines(f"s{number}", *(turns for turns, *_ in parts))
        for line, (turns, done, started, shipped) in zip(taken, parts, strict=True):
            life.play(line, min(done, turns))
            if started and line.next_turn < line.end:
                life.start(line)
            if shipped:
                life.ship()
    life.tell()
    orphans = [open_turn(line.session_id, line.turns, first_turn=line.first_turn) for line in life.taken]
    loss = life.die([*orphans, *(open_turn(f"never{number}") for number in range(never))])
    outcomes = life.outcomes()
    life.close()
    planned = sum(turns for parts in played for turns, *_ in parts) + never
    assert len(outcomes) == loss.planned_turns == planned
    in_flight = {(opened.session_id, opened.next_turn) for opened in life.taken if opened.started}
    assert all(outcomes[key] is Outcome.LOST for key in in_flight)
    done_turns = ((line.session_id, turn) for line in life.taken for turn in range(line.first_turn, line.next_turn))
    sent = {*done_turns, *in_flight}
    ok = {key for key, outcome in outcomes.items() if outcome is Outcome.OK}
    assert ok <= sent
    if not remote:
        assert ok == sent - in_flight, "its spool has all of them"
        assert {key for key, outcome in outcomes.items() if outcome is Outcome.SKIPPED} == set(outcomes) - sent


DOUBTS = [
    (None, 0, None, "all is known"),
    (None, 3, "w: 3 of its 40 skipped turns may have been sent", "it was on another host"),
    ("s: no", 0, "w: its spool can't be read (s: no), so its last report had to tell which of its turns are lost", ""),
    ("s: no", 3, "are skipped; 3 of its 40 skipped turns may have been sent", "one line of both"),
]


@pytest.mark.parametrize(("unread", "maybe", "said", "why"), DOUBTS)
def test_what_is_not_certain_of_a_dead_workers_turns_is_said(
    unread: str | None, maybe: int, said: str | None, why: str
) -> None:
    loss = Loss(recovered_rows=0, lost=1, skipped=40, plays={}, planned_turns=41, maybe_sent=maybe, unread=unread)
    doubt = doubt_of("w", loss)
    assert (doubt is None) == (said is None) and (said or "") in (doubt or ""), why


def test_one_line_for_the_event_log() -> None:
    hello = Hello(worker="w7", host="h", pid=1, boot_id="b", versions={}, spool_dir="")
    worker = WorkerState("node", hello, 0, last_seen_ns=0)
    said = describe(worker, Loss(recovered_rows=3, lost=2, skipped=1, plays={}, planned_turns=9))
    assert "w7" in said and "3 records" in said and "2 turns lost" in said and "1 turns" in said
    assert "can't" in describe(worker, RunInvalidError("turns.jsonl can't be read"))
