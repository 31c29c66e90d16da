"""The ledger: one record per planned turn, in whatever order things happen to its sessions."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from journals import read_journal
from swarm_rows import LABELS, RUN_ID, STEADY, keys, lines, record, session

from infersiege.records import Outcome, Phase, Plays, Reason, TurnRecord
from infersiege.swarm.ledger import Ledger, OpenSession, Place, request_id_of, workload_key
from infersiege.swarm.spool import Spool, leftover_segments

STEADY_NS = 1_000


def place_of(at_ns: int) -> Place:
    return Place("main", Phase.WARMUP) if at_ns < STEADY_NS else STEADY


def ledger_on(spool: Spool) -> Ledger:
    return Ledger(run_id=RUN_ID, worker="w", epoch=0, spool=spool, place_of=place_of)


class LedgerMachine(RuleBasedStateMachine):
    """Any interleaving of what sessions, the worker's end and late greenlets do to a ledger on a real spool."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.spool = Spool(self.directory / "spool", "w")
        self.ledger = ledger_on(self.spool)
        self.heard: list[TurnRecord] = []
        self.ledger.listeners.append(self.heard.append)
        self.sessions = 0
        self.taken: list[OpenSession] = []
        """Their lines."""
        self.expected: dict[tuple[str, int], Outcome] = {}
        self.sent: set[tuple[str, int]] = set()

    def pick(self, data: st.DataObject, *, live: bool) -> OpenSession | None:
        choices = [s for s in self.taken if (s.next_turn < s.end) or not live]
        return data.draw(st.sampled_from(choices)) if choices else None

    @rule(turns=st.lists(st.integers(1, 4), min_size=1, max_size=3), due_ns=st.integers(0, 2 * STEADY_NS))
    def take(self, turns: list[int], due_ns: int) -> None:
        """A session with so many turns on its main line and on each of its branches."""
        taken = lines(f"s{self.sessions}", *turns, due_ns=due_ns)
        self.sessions += 1
        self.taken += taken
        self.ledger.take(*taken)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        picked = self.pick(data, live=True)
        if picked is not None and not picked.started:
            self.ledger.start(picked, "id", 7)
            self.sent.add((picked.session_id, picked.next_turn))

    @rule(data=st.data(), outcome=st.sampled_from((Outcome.OK, Outcome.FAILED, Outcome.CANCELLED)))
    def close(self, data: st.DataObject, outcome: Outcome) -> None:
        picked = self.pick(data, live=True)
        if picked is not None and picked.started:
            self.expected[picked.session_id, picked.next_turn] = outcome
            self.ledger.close(picked, record(picked.session_id, picked.next_turn, outcome=outcome))

    @precondition(lambda self: any(s.next_turn > s.first_turn for s in self.taken))
    @rule(data=st.data())
    def close_too_late(self, data: st.DataObject) -> None:
        """A greenlet that did not die in time closes a turn that `skip_all` has closed."""
        picked = data.draw(st.sampled_from([s for s in self.taken if s.next_turn > s.first_turn]))
        turn = data.draw(st.integers(picked.first_turn, picked.next_turn - 1))
        self.ledger.close(picked, record(picked.session_id, turn, outcome=Outcome.FAILED))

    @rule(data=st.data(), reason=st.sampled_from((Reason.AFTER_FAILURE, Reason.TOO_LONG)))
    def skip_rest(self, data: st.DataObject, reason: Reason) -> None:
        picked = self.pick(data, live=False)
        if picked is not None:
            self.expect_skipped(picked)
            self.ledger.skip_rest(picked, reason)

    @rule()
    def skip_all(self) -> None:
        for taken in self.taken:
            self.expect_skipped(taken)
        self.ledger.skip_all(Reason.RUN_END)

    def expect_skipped(self, taken: OpenSession) -> None:
        for turn in range(taken.next_turn, taken.end):
            in_flight = taken.started and turn == taken.next_turn
            self.expected[taken.session_id, turn] = Outcome.CANCELLED if in_flight else Outcome.SKIPPED

    @invariant()
    def counts_agree(self) -> None:
        ledger = self.ledger
        assert ledger.planned_turns == sum(s.turns for s in self.taken)
        assert ledger.closed_turns == len(self.expected) == len(self.heard) == self.spool.rows_written
        assert set(ledger.open) == {s.key for s in self.taken if s.next_turn < s.end}
        assert ledger.open_sessions == len({s.session_id for s in self.taken if s.next_turn < s.end})
        still_open = sum(s.end - s.next_turn for s in ledger.open.values())
        assert ledger.planned_turns == ledger.closed_turns + still_open
        assert sum(plays.taken for plays in ledger.plays.values()) == self.sessions
        assert sum(plays.sent for plays in ledger.plays.values()) == len({session_id for session_id, _ in self.sent})

    def teardown(self) -> None:
        self.skip_all()
        self.counts_agree()
        rows = self.spool_rows()
        planned = [(s.session_id, turn) for s in self.taken for turn in range(s.first_turn, s.end)]
        assert sorted(keys(rows)) == sorted(planned), "not exactly one record per planned turn"
        assert {(row.session_id, row.turn): row.outcome for row in rows} == self.expected
        assert all(row.outcome is not Outcome.SKIPPED for row in rows if (row.session_id, row.turn) in self.sent)
        journal = list(read_journal(self.spool.directory))
        assert {(line.session_id, line.started) for line in journal if not line.taken} == self.sent
        known = [
            (one.session_id, one.first_turn) for line in journal if line.taken for one in (line.taken, *line.branches)
        ]
        assert known == [s.key for s in self.taken]
        skipped = [row for row in rows if row.outcome is Outcome.SKIPPED]
        firsts = {s.key: s.after for s in self.taken}
        for row in skipped:
            assert row.parent_turn == firsts.get((row.session_id, row.turn), row.turn - 1)
        self.spool.close(remove=False)
        shutil.rmtree(self.directory)

    def spool_rows(self) -> list[TurnRecord]:
        lines = b"".join(data for _, data in leftover_segments(self.spool.directory))
        return msgspec.json.Decoder(TurnRecord).decode_lines(lines)


TestAnyInterleaving = LedgerMachine.TestCase
TestAnyInterleaving.settings = settings(max_examples=60, stateful_step_count=25)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return ledger_on(Spool(tmp_path / "spool", "w"))


def test_skip_rest_after_the_last_turn_does_nothing(ledger: Ledger) -> None:
    """`SessionPlayer.play` calls it in its `finally`, whatever went before."""
    taken = session("s", 1)
    ledger.take(taken)
    ledger.start(taken, "id", 0)
    ledger.close(taken, record("s"))
    ledger.skip_rest(taken, Reason.INTERRUPTED)
    ledger.skip_all(Reason.INTERRUPTED)
    assert (ledger.planned_turns, ledger.closed_turns, ledger.open) == (1, 1, {})


def test_a_turn_belongs_to_the_phase_in_which_it_was_due(ledger: Ledger) -> None:
    heard: list[TurnRecord] = []
    ledger.listeners.append(heard.append)
    taken = session("s", 2, due_ns=STEADY_NS - 1)
    ledger.take(taken)
    ledger.start(taken, "id", 0)
    ledger.close(taken, record("s", 0))
    taken.due_ns = STEADY_NS
    ledger.skip_rest(taken, Reason.AFTER_FAILURE, "why")
    assert heard[1].phase is Phase.STEADY
    assert (heard[1].due_ns, heard[1].reason, heard[1].error_detail) == (STEADY_NS, Reason.AFTER_FAILURE, "why")


def test_the_same_scenario_on_two_channels_is_counted_apart(ledger: Ledger) -> None:
    ledger.take(session("a"))
    ledger.take(session("b"))
    assert ledger.plays == {workload_key("talk", LABELS.name): Plays(taken=2)}
    assert workload_key("talk", "x") != workload_key("talk", "y")


HOSTILE = [
    ("a\r\nx-admin: 1", "a line end would start a header of its own"),
    ("a\n", "`$` in a pattern would let a last newline pass"),
    ("\0", "zero byte"),
    ("会话", "not ASCII"),
    ("١٢", "digits that are not ASCII's"),
    ("x" * 10_240, "servers refuse headers of 8 KB"),
    ("\ud800", "a lone surrogate can't be encoded"),
    ("", "would leave two dots and nothing between"),
    (" a ", "servers strip spaces"),
    ("a,b", "a list, for some proxies"),
]


@pytest.mark.parametrize(("session_id", "why"), HOSTILE, ids=[why for _, why in HOSTILE])
def test_request_ids_of_hostile_session_ids_are_fit_for_a_header(session_id: str, why: str) -> None:
    made = request_id_of("0123456789ab", session_id, 3)
    assert made.startswith("0123456789ab.") and made.endswith(".3")
    assert len(made) <= 128
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~:#-"), why


@given(st.lists(st.tuples(st.text(max_size=90), st.integers(0, 500)), unique=True, min_size=2, max_size=20))
def test_request_ids_are_unique_and_safe_for_any_session_ids(turns: list[tuple[str, int]]) -> None:
    made = [request_id_of("r", session_id, turn) for session_id, turn in turns]
    assert Counter(made).most_common(1)[0][1] == 1
    assert all(identifier.isascii() and identifier.isprintable() and " " not in identifier for identifier in made)


def test_a_safe_session_id_is_kept_as_it_is() -> None:
    """So that it is found in the server's log."""
    assert request_id_of("r", "talk:line-7~2#x", 0) == "r.talk:line-7~2#x.0"
