"""A dead worker's account: every turn that it had, and every arrival that nobody plays, has exactly one record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_rows import LABELS, RUN_ID, STEADY, Key, lines, open_turn, record, run_in

from infersiege.errors import RunInvalidError
from infersiege.records import Hello, OpenTurn, Outcome, Plays, Reason, Report, TraceChanges, TurnRecord
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import Ledger, OpenSession, workload_key
from infersiege.swarm.losses import Loss, LossAccount, Orphan, describe
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

    def tell(self) -> None:
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
        )

    def die(self, orphans: list[OpenTurn] | None = None) -> Loss:
        self.spool.close(remove=False)
        hello = Hello(
            worker="w",
            host="h",
            pid=1,
            boot_id="another host's" if self.remote else boot_id(),
            versions={},
            spool_dir=str(self.spool.directory),
        )
        state = WorkerState("node", hello, 0, last_seen_ns=0, report=self.report, lost_at_ns=1)
        account = LossAccount(self.intake, run_id=RUN_ID, channels={LABELS.name: LABELS})
        (loss,) = account.settle([state], [Orphan("w", opened) for opened in orphans or ()])
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


def test_one_line_for_the_event_log() -> None:
    hello = Hello(worker="w7", host="h", pid=1, boot_id="b", versions={}, spool_dir="")
    worker = WorkerState("node", hello, 0, last_seen_ns=0)
    said = describe(worker, Loss(recovered_rows=3, lost=2, skipped=1, plays={}, planned_turns=9))
    assert "w7" in said and "3 records" in said and "2 turns lost" in said and "1 turns" in said
    assert "can't" in describe(worker, RunInvalidError("turns.jsonl can't be read"))
