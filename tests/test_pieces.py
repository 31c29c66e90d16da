"""A run that several processes read: the same figures as from one; where a line is odd, one process reads all."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_turns import facts
from metrics_turns import turns as any_turn
from records_sample import SECOND, START_NS, plan, records, write_run
from test_summary_bruteforce import STEADY_S, looks_of, shown, spoiled

from infersiege.compare.cuts import Shapes
from infersiege.metrics.batch import Batch
from infersiege.metrics.client import ClientWatch
from infersiege.metrics.collect import Collector
from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.lives import Sessions
from infersiege.metrics.served import RequestTally
from infersiege.metrics.summary import summary_of
from infersiege.metrics.windows import Windows
from infersiege.records import Outcome, Reason, TurnRecord
from infersiege.report import Rebuilt, judged, read
from infersiege.report.collect import Collected
from infersiege.report.details import RANKED, Details
from infersiege.report.html import render
from infersiege.report.pieces import observe_in_pieces
from infersiege.rundir import TURNS, RunDirectory
from infersiege.rundir.damage import span_of_run
from infersiege.rundir.pieces import OddError, Piece, batches_of, pieces_of

LIMITS = (RequestLimit(metric="ttft", at_most=200.0), RequestLimit(metric="tpot", at_most=300.0))
SPAN = span_of_run(START_NS, START_NS + 100 * SECOND)


# --------------------------------------------------------------------------------------------------------- merging


def observers() -> tuple[Any, ...]:
    sessions, clients = Sessions(), ClientWatch()
    given_facts = facts(limits=LIMITS)
    return (
        Windows(LIMITS, {}, sessions),
        Collector(given_facts, sessions),
        Collected(),
        clients,
        RequestTally(),
        Details(clients=clients),
        Shapes("scenario"),
    )


def seen_by(turns: Sequence[TurnRecord]) -> tuple[Any, ...]:
    made = observers()
    for observer in made:
        observer.add_batch(Batch(turns))
    return made


def figures(of: tuple[Any, ...]) -> list[Any]:
    windows, collector, collected, clients, requests, details, shapes = of
    by_length = {key: [getattr(row, name) for name in row.__slots__] for key, row in details.by_length.items()}
    return [
        summary_of(collector),
        windows.take_rows(),
        shown(collected) | {"tokens": dict(sorted(collected.tokens_by_second.items()))},
        looks_of(clients),
        (requests.answered, requests.sent),
        (by_length, details.server_ttft, details.client_ttft, details.examples, list(map(details.slowest, RANKED))),
        {name: (one.by_metric, one.asked_tokens, one.got_tokens) for name, one in shapes.found.items()},
    ]


def merged(parts: Sequence[Sequence[TurnRecord]]) -> list[Any]:
    """As processes do it: observers of each part travel as bytes."""
    whole = observers()
    for part in parts:
        for mine, theirs in zip(whole, pickle.loads(pickle.dumps(seen_by(part))), strict=True):
            mine.merge(theirs)
    return figures(whole)


def sessions_of(turns: Sequence[TurnRecord], sizes: Sequence[int]) -> list[TurnRecord]:
    """The same, in sessions of some turns: what is known of a session comes from several parts."""
    return [
        msgspec.structs.replace(turn, session_id=f"session-{place // sizes[place % len(sizes)]}", turn=place % 5)
        for place, turn in enumerate(turns)
    ]


@given(
    st.lists(any_turn(), max_size=14),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(0, 14), max_size=4),
)
def test_it_does_not_matter_who_saw_which_turns(drawn: list[TurnRecord], sizes: list[int], cuts: list[int]) -> None:
    turns = sessions_of(drawn, sizes)
    ends = [0, *sorted(min(cut, len(turns)) for cut in cuts), len(turns)]
    assert merged([turns[first:last] for first, last in pairwise(ends)]) == figures(seen_by(turns))


@pytest.mark.parametrize("seed", [3, 17])
def test_odd_turns_are_merged_as_well(seed: int) -> None:
    turns = spoiled(seed)
    assert merged([turns[:70], turns[70:71], turns[71:200], turns[200:]]) == figures(seen_by(turns))


def test_nothing_is_neutral() -> None:
    turns = spoiled(5)
    assert merged([[], turns, []]) == figures(seen_by(turns))


def test_a_session_that_the_end_met_while_its_user_thought() -> None:
    """It is alive until its next turn was due, whichever process saw that turn."""
    first, last = records(2, seed=1, steady_s=STEADY_S)[:2]
    begun = msgspec.structs.replace(first, session_id="s", turn=0)
    cut = {
        "outcome": Outcome.SKIPPED,
        "reason": Reason.STAGE_END,
        "attempt_ns": None,
        "sent_ns": None,
        "closed_ns": None,
    }
    due_ns = (begun.closed_ns or 0) + 7 * SECOND
    kept = {"scenario": first.scenario, "channel": first.channel, "session_id": "s", "turn": 1, "due_ns": due_ns}
    thought = msgspec.structs.replace(last, **cut, **kept)
    for parts in ([[begun], [thought]], [[thought], [begun]]):
        whole = Collector(facts())
        for part in parts:
            one = Collector(facts())
            one.add_all(part)
            whole.merge(one)
        alive = next(flow.alive for flow in whole.flows.values() if flow.alive.end_ns.size)
        assert alive.start_ns.tolist() == [begun.due_ns]
        assert alive.end_ns.tolist() == [due_ns]


def test_a_record_that_two_processes_have_is_one_too_many() -> None:
    turns = records(2, seed=1, steady_s=STEADY_S)[:9]
    parts = [turns[:6], [turns[2], *turns[6:]]]
    collectors = []
    for part in parts:
        collectors.append(Collector(facts()))
        collectors[-1].add_all(part)
    assert [one.repeated for one in collectors] == [0, 0]
    collectors[0].merge(collectors[1])
    assert collectors[0].repeated == 1


# ---------------------------------------------------------------------------------------------------------- pieces


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 9))
def test_pieces_are_whole_lines_and_together_the_file(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], many: int
) -> None:
    path = tmp_path_factory.mktemp("pieces") / "lines"
    text = b"".join(b"x" * length + b"\n" for length in lengths)
    path.write_bytes(text)
    pieces = pieces_of(path, many)
    assert 1 <= len(pieces) <= many
    assert b"".join(text[piece.start : piece.end] for piece in pieces) == text
    assert all(text[piece.start : piece.end].endswith(b"\n") for piece in pieces)
    assert max(piece.end - piece.start for piece in pieces) <= len(text) / many + max(lengths) + 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("pieces") / "run", spoiled(17), plan(steady_s=STEADY_S), steady_s=STEADY_S)


def test_a_piece_has_the_turns_of_its_lines(run: RunDirectory) -> None:
    path = run.path / TURNS
    found = [turn for piece in pieces_of(path, 4) for batch in batches_of(path, piece, SPAN) for turn in batch.turns]
    assert found == list(run.read_turns())


def test_a_file_that_ends_before_its_piece_does(run: RunDirectory) -> None:
    path = run.path / TURNS
    with pytest.raises(OddError, match="ends at"):
        list(batches_of(path, Piece(0, path.stat().st_size + 1), SPAN))


# ------------------------------------------------------------------------------------------------------- processes


def everything(found: Rebuilt) -> list[Any]:
    parts = (found.summary, found.plan, found.windows, found.collected, found.events, found.watched, found.details)
    return [*map(msgspec.json.encode, (found.summary, found.windows)), render(*parts)]


def test_figures_do_not_depend_on_the_number_of_processes(run: RunDirectory) -> None:
    """To the byte: summary.json, windows.jsonl, report.html, and what a comparison sees."""
    path = run.path / TURNS
    assert observe_in_pieces(path, SPAN, observers(), processes=3), "three processes can read this file"
    shapes = [Shapes("scenario"), Shapes("scenario")]
    alone, shared = (
        judged(read(run, (one,), processes=many), gated=False) for one, many in zip(shapes, (1, 3), strict=True)
    )
    assert everything(shared) == everything(alone)
    assert [{name: one.by_metric for name, one in shape.found.items()} for shape in shapes[1:]] == [
        {name: one.by_metric for name, one in shapes[0].found.items()}
    ]


def test_a_run_without_an_end_finds_it_in_all_pieces(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", spoiled(3), plan(steady_s=STEADY_S), steady_s=STEADY_S)
    made.write_plan(msgspec.structs.replace(made.read_plan(), started_ns=None, ended_ns=None))
    alone, shared = (read(made, processes=many).summary for many in (1, 2))
    assert (shared.started_ns, shared.ended_ns) == (alone.started_ns, alone.ended_ns)


ODD: Sequence[tuple[str, Callable[[bytes], bytes]]] = (
    ("half a line at the end, as a crash leaves it", lambda text: text[:-40]),
    ("an empty line", lambda text: text.replace(b"}\n{", b"}\n\n{", 1)),
    ("zero bytes, as a broken disk leaves them", lambda text: text[:300] + b"\0" * 90 + text[390:]),
    ("a row of something else", lambda text: text + b'{"not": "a turn"}\n'),
    ("an instant of another year", lambda text: text.replace(b'"due_ns":1', b'"due_ns":9', 1)),
)


@pytest.mark.parametrize(("why", "spoil"), ODD, ids=[why for why, _ in ODD])
def test_where_a_line_is_odd_one_process_reads_all(tmp_path: Path, why: str, spoil: Callable[[bytes], bytes]) -> None:
    """It can say which line that is, as it does for a small run."""
    made = write_run(tmp_path / "run", spoiled(3), plan(steady_s=STEADY_S), steady_s=STEADY_S)
    path = made.path / TURNS
    path.write_bytes(spoil(path.read_bytes()))
    blank = observers()
    assert not observe_in_pieces(path, SPAN, blank, processes=2), why
    assert figures(blank) == figures(observers()), "and nobody has seen half of the turns"
    assert read(made, processes=2).summary == read(made, processes=1).summary


def test_processes_that_can_not_do_their_part(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not even begin stands for one that is killed: either says nothing to the end."""
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    assert not observe_in_pieces(run.path / TURNS, SPAN, observers(), processes=2)


@pytest.mark.parametrize(
    ("why", "processes", "name"),
    [
        ("one process is asked for", 1, TURNS),
        ("by default, a file of a few hundred turns", None, TURNS),
        ("there is no file", None, "missing.jsonl"),
        ("there is no file, for two", 2, "missing.jsonl"),
    ],
)
def test_nothing_to_share(run: RunDirectory, why: str, processes: int | None, name: str) -> None:
    assert not observe_in_pieces(run.path / name, SPAN, observers(), processes=processes), why
