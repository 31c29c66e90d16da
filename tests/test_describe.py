"""What is in a trace: figures by hand, a cache bound against a plain trie, and the published figures of real files."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.records import BlockText, Branch, Session, Turn
from infersiege.traces import Conversation, Synthesizer, Trace, describe, open_trace
from infersiege.traces.inspection.context_fit import fit
from infersiege.traces.inspection.describe import Description, describe_measured
from infersiege.traces.inspection.longest_seen import LongestSeen
from infersiege.traces.inspection.measured import UNKNOWN, Mark, measure
from infersiege.traces.inspection.message_size import digest_of, message_tokens, other_parts
from infersiege.traces.inspection.prefix_cache import Piece, PrefixCache, PromptWalk

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SYNTHESIZER = Synthesizer(1)


class Held:
    """A trace of sessions that are there, in their order."""

    name = "x"
    format = "infersiege"
    sha256: str | None = "0"
    skipped: Mapping[str, int] = {}
    warnings: tuple[str, ...] = ()

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.rows: int | None = len(sessions)
        self.sessions: int | None = len(sessions)
        self._sessions = sessions
        times = [session.arrival_ns for session in sessions if session.arrival_ns is not None]
        self.arrivals_ns: Sequence[int] | None = times if times and len(times) == len(sessions) else None

    def session(self, index: int) -> Session:
        if index < 0:
            raise IndexError(index)
        return self._sessions[index]


def trace_of(*sessions: Session) -> Held:
    return Held(sessions)


def blocks(ids: Sequence[int], size: int = 10, *, scope: str = "s", output: int | None = 5, **more: object) -> Turn:
    """A request that is known by its blocks: it replaces the history, as those of hash traces do."""
    text = BlockText(scope=scope, ids=tuple(ids), tokens=(size,) * len(ids))
    return Turn(
        messages=({"role": "user", "content": ""},),
        texts=(text,),
        replaces_history=True,
        asked_prompt_tokens=size * len(ids),
        asked_output_tokens=output,
        **more,  # type: ignore[arg-type]
    )


def session(*turns: Turn, name: str = "a", **more: object) -> Session:
    return Session(session_id=name, turns=turns, **more)  # type: ignore[arg-type]


def said(text: str, answer: str | None = "x" * 40, role: str = "user", **more: object) -> Turn:
    recorded = () if answer is None else ({"role": "assistant", "content": answer},)
    return Turn(messages=({"role": role, "content": text},), recorded_answer=recorded, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- prefix cache


def test_shares_of_requests_by_blocks() -> None:
    """40 of 90 tokens were in the session before, 10 more in another one."""
    found = describe(
        trace_of(session(blocks([1, 2]), blocks([1, 2, 3]), blocks([1, 2, 4])), session(blocks([1]), name="b"))
    )
    assert (found.prefix_share, found.cache_bound) == (pytest.approx(40 / 90), pytest.approx(50 / 90))
    assert found.growth_tokens is not None
    assert (found.growth_tokens.n, found.growth_tokens.mean) == (2, 10)


SHARED = [
    # sessions, bound, why
    ([[[1, 2]], [[1, 2]]], 20 / 40, "the same request twice"),
    ([[[2, 1]], [[1, 2]]], 0.0, "the same blocks in another order are another prefix"),
    ([[[1, 2, 3]], [[1, 9, 3]]], 10 / 60, "after the first miss nothing is a hit"),
    ([[[1, 2], [1]]], 10 / 30, "a history that is cut"),
    ([[[1, 2, 3], [1, 4], [1, 2, 3]]], 40 / 80, "one that comes back: the cache forgets nothing"),
]


@pytest.mark.parametrize(("sessions", "bound", "why"), SHARED, ids=[row[2] for row in SHARED])
def test_prefixes(sessions: list[list[list[int]]], bound: float, why: str) -> None:
    made = [session(*map(blocks, requests), name=str(place)) for place, requests in enumerate(sessions)]
    assert describe(trace_of(*made)).cache_bound == pytest.approx(bound), why


def test_ids_of_two_scopes_are_never_the_same_text() -> None:
    found = describe(trace_of(session(blocks([1, 2])), session(blocks([1, 2], scope="t"), name="b")))
    assert found.cache_bound == 0.0


def sized(*pieces: tuple[int, int], scope: str = "s") -> Turn:
    """A request of blocks of different sizes: (id, tokens)."""
    text = BlockText(scope=scope, ids=tuple(one for one, _ in pieces), tokens=tuple(size for _, size in pieces))
    return Turn(messages=({"role": "user", "content": ""},), texts=(text,), replaces_history=True)


UNEVEN = [
    # requests, tokens that are hits, why
    ([sized((1, 10), (2, 3)), sized((1, 10), (2, 10), (3, 10))], 13, "a last block that holds less: a Mooncake tail"),
    ([sized((1, 10), (2, 10), (3, 10)), sized((1, 10), (2, 3))], 13, "and the other way round"),
    ([sized((1, 100), (2, 900)), sized((1, 900), (3, 100))], 100, "a shared prefix of other lengths is hit once"),
    ([sized((1, 100), (2, 900)), sized((1, 900), (2, 900))], 100, "what follows a shorter block is other text"),
    ([sized((1, 5)), sized((1, 9)), sized((1, 7))], 5 + 7, "the longest is kept"),
    ([sized((1, 5), (2, 5)), sized((1, 9)), sized((1, 5), (2, 6))], 5 + 10, "with all that followed shorter ones"),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "hits", "why"), UNEVEN, ids=[row[2] for row in UNEVEN])
def test_a_block_is_a_hit_as_far_as_it_was_seen(requests: list[Turn], hits: int, why: str) -> None:
    apart = measure(trace_of(*(session(turn, name=str(n)) for n, turn in enumerate(requests))), 1)
    together = measure(trace_of(session(*requests)), 1)
    assert (int(apart.cached.sum()), int(together.own.sum()), int(together.cached.sum())) == (hits, hits, hits), why


IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(st.lists(st.lists(IDS, min_size=1, max_size=4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_bound_is_that_of_a_trie_in_any_order(sessions: list[list[list[int]]], random: object) -> None:
    """Each distinct prefix is missed once. By whole requests (replaced histories), so that the fast path is judged."""
    requests = [tuple(ids) for ids_of in sessions for ids in ids_of]
    missed = len({ids[: place + 1] for ids in requests for place in range(len(ids))})
    whole = sum(map(len, requests))
    made = [session(*map(blocks, ids_of), name=str(place)) for place, ids_of in enumerate(sessions)]
    random.shuffle(made)  # type: ignore[attr-defined]
    measured = measure(trace_of(*made), 1)
    assert int(measured.cached.sum()) == 10 * (whole - missed)
    own = 0
    for ids_of in sessions:
        seen: set[tuple[int, ...]] = set()
        for ids in ids_of:
            own += sum(tuple(ids[: place + 1]) in seen for place in range(len(ids)))
            seen |= {tuple(ids[: place + 1]) for place in range(len(ids))}
    assert int(measured.own.sum()) == 10 * own


SIZED = st.lists(st.tuples(st.integers(-2, 1), st.integers(1, 3)), min_size=1, max_size=5)


@given(st.lists(SIZED, min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_bound_is_the_same_in_any_order_whatever_the_lengths(
    requests: list[list[tuple[int, int]]], random: object
) -> None:
    """Of each place in the tree the longest block is missed once."""
    longest: dict[tuple[object, ...], int] = {}
    for request in requests:
        for place, (ident, size) in enumerate(request):
            key = (*request[:place], ident)
            longest[key] = max(size, longest.get(key, 0))
    missed = sum(longest.values())
    whole = sum(size for request in requests for _, size in request)
    made = [session(sized(*request), name=str(place)) for place, request in enumerate(requests)]
    random.shuffle(made)  # type: ignore[attr-defined]
    assert int(measure(trace_of(*made), 1).cached.sum()) == whole - missed
    one = measure(trace_of(session(*(made_of.turns[0] for made_of in made))), 1)
    assert int(one.own.sum()) == int(one.cached.sum()) == whole - missed, "and by replaced histories"


def test_ids_that_pythons_hash_takes_for_the_same_are_not() -> None:
    """hash(-1) == hash(-2), and hash(n) == hash(n + 2^61 - 1)."""
    for one, other in ((-1, -2), (0, 2**61 - 1), (-(2**63), 2**63 - 1), (5, -5)):
        found = measure(trace_of(session(sized((one, 60))), session(sized((other, 60)), name="b")), 1)
        assert int(found.cached.sum()) == 0, (one, other)


def test_a_table_of_many_keys_holds_each_with_its_longest() -> None:
    """Against a dict, over several doublings; 0 is a key like any other, as far as 64 bits tell it from 1."""
    table, known = LongestSeen(), {}
    draw = Random(1)
    for _ in range(300):
        keys = [draw.choice((draw.getrandbits(64), draw.getrandbits(9) << 40, 0)) for _ in range(draw.randrange(60))]
        lengths = [draw.randrange(1, 1000) for _ in keys]
        held = 0
        for key, length in zip(keys, lengths, strict=True):
            held += min(length, known.get(key, 0))
            known[key] = max(length, known.get(key, 0))
        assert table.take(keys, lengths) == held
    assert len(table) == len(known) > 3000


def test_a_fork_and_its_parent_go_on_apart() -> None:
    """What one of them is given is in no request of the other, before or after it was sent."""

    def walk_of(*ids: int) -> list[Piece]:
        return [Piece(7, (ident,), (10,)) for ident in ids]

    parent = PromptWalk(PrefixCache(), LongestSeen())
    parent.add(walk_of(1))
    parent.ask()
    parent.add(walk_of(2))
    fork = parent.fork()
    fork.add(walk_of(3))
    parent.add(walk_of(4, 5))
    assert fork.ask() == (30, 10, 10)
    assert parent.ask() == (40, 20, 20), "1 and 2 were in the fork's request"
    parent.add(walk_of(6))
    fork.add(walk_of(8))
    assert (fork.ask().tokens, parent.ask().tokens) == (40, 50)
    fork.replace(walk_of(1))
    assert parent.ask().tokens == 50


def test_branches_that_inherit_do_not_change_what_they_began_with() -> None:
    """Each of two branches asks what its parent never does; the parent's next request holds nothing of theirs."""
    branches = tuple(Branch(turns=(said(text * 40), said(text * 80)), after=0, inherits=True) for text in "st")
    found = measure(trace_of(session(said("q" * 40), said("r" * 40), branches=branches)), 1)
    by_number = {int(number): place for place, number in enumerate(found.number)}
    assert [int(found.prompt[by_number[number]]) for number in range(6)] == [10, 30, 30, 60, 30, 60]
    # The first of the three that go on from turn 0 brings its answer, too.
    assert sorted(int(found.own[by_number[number]]) for number in (1, 2, 4)) == [10, 20, 20]
    assert [int(found.own[by_number[number]]) for number in (3, 5)] == [30, 30]


@given(st.lists(IDS, min_size=1, max_size=6))
def test_appended_and_replaced_histories_are_one(parts: list[list[int]]) -> None:
    """Turns that append their blocks hold what turns that repeat everything hold."""
    appended, replaced, held = [], [], []
    for ids in parts:
        text = BlockText(scope="s", ids=tuple(ids), tokens=(10,) * len(ids))
        answer = BlockText(scope="s", ids=(99,), tokens=(5,))
        appended.append(Turn(messages=({"role": "user", "content": ""},), texts=(text,), answer_text=answer))
        held += [(ident, 10) for ident in ids]
        whole = BlockText(scope="s", ids=tuple(i for i, _ in held), tokens=tuple(t for _, t in held))
        replaced.append(
            Turn(messages=({"role": "user", "content": ""},), texts=(whole,), replaces_history=True, answer_text=answer)
        )
        held.append((99, 5))
    one, other = (measure(trace_of(session(*turns)), 1) for turns in (appended, replaced))
    for name in ("prompt", "own", "cached"):
        assert list(getattr(one, name)) == list(getattr(other, name)), name


# -------------------------------------------------------------------------------------------------- messages


def test_messages_are_blocks_of_estimated_size() -> None:
    """First prompt 20 tokens, second 20 + answer 10 + 5; the next session shares the system prompt only."""
    system = {"role": "system", "content": "s" * 40}
    first = Turn(
        messages=(system, {"role": "user", "content": "q" * 40}),
        recorded_answer=({"role": "assistant", "content": "a" * 40},),
    )
    other = Turn(messages=(system, {"role": "user", "content": "w" * 40}))
    found = describe(trace_of(session(first, said("r" * 20)), session(other, name="b")))
    assert found.estimated
    assert found.prompt_tokens is not None and found.output_tokens is not None
    assert (found.prompt_tokens.n, found.prompt_tokens.mean) == (3, 25)
    assert (found.output_tokens.n, found.output_tokens.mean) == (2, 10)
    assert found.prefix_share == pytest.approx(20 / 75)
    assert found.cache_bound == pytest.approx(30 / 75)


def test_recorded_counts_win_over_the_estimate() -> None:
    """The shares are of the text, the lengths those of the trace."""
    found = describe(
        trace_of(session(said("q" * 40, asked_prompt_tokens=100), said("r" * 40, asked_prompt_tokens=300)))
    )
    assert found.prompt_tokens is not None and found.prompt_tokens.mean == 200
    assert found.prefix_share == pytest.approx(100 / 400), "10 of the 30 estimated tokens of the second"


def test_what_follows_an_unknown_answer_is_of_unknown_length() -> None:
    found = describe(trace_of(session(said("q" * 40, None), said("r" * 40, None))))
    assert found.prompt_tokens is not None and (found.prompt_tokens.n, found.prompt_tokens.max) == (1, 10)
    assert (found.output_tokens, found.prefix_share, found.cache_bound) == (None, None, None)
    assert any("1 turns follow an answer" in warning for warning in found.warnings)


def test_other_tools_make_another_prefix() -> None:
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    same = describe(trace_of(session(said("q" * 40), said("r"), tools=tools)))
    changed = describe(trace_of(session(said("q" * 40), said("r", tools=()), tools=tools)))
    assert same.prefix_share is not None and same.prefix_share > 0.4
    assert changed.prefix_share == 0


def test_text_that_comes_after_its_message_is_no_prefix_of_it() -> None:
    document = BlockText(scope="d", ids=(7,), tokens=(50,), last=True)
    ask = [Turn(messages=({"role": "user", "content": text * 40},), texts=(document,)) for text in "ab"]
    before = with_the_text_first(ask)
    assert describe(trace_of(*(session(turn, name=str(n)) for n, turn in enumerate(ask)))).cache_bound == 0
    found = describe(trace_of(*(session(turn, name=str(n)) for n, turn in enumerate(before)))).cache_bound
    assert found == pytest.approx(50 / 120)


def with_the_text_first(turns: list[Turn]) -> list[Turn]:
    document = BlockText(scope="d", ids=(7,), tokens=(50,))
    return [Turn(messages=turn.messages, texts=(document,)) for turn in turns]


SIZES = [
    ({"role": "user", "content": "abcdefgh"}, 2, 0, "four characters a token"),
    ({"role": "user", "content": "你好世界你好"}, 4, 0, "and 1.5 in Chinese"),
    ({"role": "user", "content": None}, 0, 0, "a tool call without text"),
    ({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "1234567"}}]}, 2, 0,
     "name and arguments"),
    ({"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "image_url", "file": "x" * 999}]},
     1, 1, "an image's bytes are no text"),
    ({"role": "assistant", "content": "abcd", "reasoning_content": "abcdefgh"}, 3, 0, "reasoning"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "tokens", "others", "why"), SIZES, ids=[row[3] for row in SIZES])
def test_estimated_tokens(message: dict[str, object], tokens: int, others: int, why: str) -> None:
    assert (message_tokens(message), other_parts(message)) == (tokens, others), why


def test_images_are_said() -> None:
    turn = Turn(messages=({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},))
    assert any("1 images" in warning for warning in describe(trace_of(session(turn))).warnings)


def test_equal_messages_are_known_whatever_the_order_of_their_keys() -> None:
    assert digest_of({"role": "user", "content": "x"}) == digest_of({"content": "x", "role": "user"})
    assert digest_of({"role": "user", "content": "x"}) != digest_of({"role": "system", "content": "x"})


# -------------------------------------------------------------------------------------------------- branches


def test_a_branch_begins_with_its_parents_history_only_if_it_inherits() -> None:
    main = (said("q" * 40), said("r" * 40))
    own = (said("s" * 40),)
    inherited = measure(trace_of(session(*main, branches=(Branch(turns=own, after=0, joined_by=1, inherits=True),))), 1)
    assert list(inherited.number) == [0, 2, 1], "a branch is played before the turn that waits for it"
    assert list(inherited.prompt) == [10, 30, 30]
    assert list(inherited.own) == [0, 10, 20], "the branch brought the answer, too"
    bare = measure(trace_of(session(*main, branches=(Branch(turns=own, after=0),))), 1)
    assert list(bare.prompt) == [10, 10, 30]
    assert list(bare.own) == [0, 0, 10]
    assert bare.branches == 1 and list(bare.turn_counts) == [3]


def test_branches_of_branches_and_those_without_a_start() -> None:
    branches = (
        Branch(turns=(said("b"), said("c"))),
        Branch(turns=(said("d"),), after=1, inherits=True),
        Branch(turns=(said("e"),), after=3, inherits=True),
    )
    measured = measure(trace_of(session(said("a"), branches=branches)), 1)
    assert sorted(measured.number) == [0, 1, 2, 3, 4]
    order = list(measured.number)
    assert order.index(1) < order.index(3) < order.index(4)
    assert list(measured.prompt[[order.index(number) for number in (1, 3, 4)]]) == [1, 12, 23]


def test_a_long_chain_of_branches_is_walked_without_recursion() -> None:
    branches = tuple(Branch(turns=(said("b"),), after=number) for number in range(3000))
    assert len(measure(trace_of(session(said("a"), branches=branches)), 1).prompt) == 3001


def test_tr_01_a_compaction_is_counted() -> None:
    """TR-01: message counts 2, 4, 6, 3 (compacted), 5: the prompt shrinks once."""
    turns = [blocks(range(count)) for count in (2, 4, 6, 3, 5)]
    found = describe(trace_of(session(*turns)))
    assert found.shrinking_turns == 1
    assert list(measure(trace_of(session(*turns)), 1).prompt) == [20, 40, 60, 30, 50]


# ------------------------------------------------------------------------------------------------------ delays


def test_delays_by_who_came_before_and_what_the_cap_takes() -> None:
    second = 1_000_000_000
    tool = Turn(
        messages=({"role": "tool", "tool_call_id": "c", "content": "x"},),
        recorded_answer=({"role": "assistant", "content": "y"},),
        delay_ns=20 * second,
    )
    found = describe(trace_of(session(said("q"), tool, said("r", delay_ns=100 * second))))
    assert found.delays is not None and found.delays.tool is not None and found.delays.user is not None
    assert (found.delays.all.n, found.delays.tool.mean, found.delays.user.mean) == (2, 20, 100)
    assert (found.delays.capped_turns, found.delays.capped_share) == (1, 0.5)
    assert found.delays.removed_share == pytest.approx(40 / 120)
    hashed = describe(trace_of(session(blocks([1]), blocks([1, 2], delay_ns=second))))
    assert hashed.delays is not None
    assert (hashed.delays.all.n, hashed.delays.tool, hashed.delays.user) == (1, None, None)


def test_without_any_delay_it_is_unknown_and_not_0() -> None:
    assert describe(trace_of(session(blocks([1]), blocks([2])))).delays is None


# --------------------------------------------------------------------------------------------------- arrivals


def test_rates_and_gaps() -> None:
    at = [0, 0, 1_000_000_000, 4_000_000_000]
    found = describe(trace_of(*(session(blocks([1]), name=str(n), arrival_ns=time) for n, time in enumerate(at))))
    assert (found.span_s, found.mean_rate, found.peak_rate, found.ticks) == (4.0, 0.75, 2.0, 3)
    assert found.interarrival_cv == pytest.approx(math.sqrt(14 / 9) / (4 / 3))


@pytest.mark.parametrize("times", [[0], [0, 0], [0, 0, 0]])
def test_no_rate_where_all_arrive_at_once(times: list[int]) -> None:
    made = [session(blocks([1]), name=str(n), arrival_ns=time) for n, time in enumerate(times)]
    found = describe(trace_of(*made))
    assert (found.mean_rate, found.interarrival_cv) == (None, None)
    assert found.peak_rate == len(times)


def test_the_peak_is_of_whole_seconds_of_the_traces_clock() -> None:
    """Three within 0.9 s, but on two sides of a second."""
    at = [0, 1_600_000_000, 1_900_000_000, 2_100_000_000, 2_499_999_999, 3_000_000_000]
    found = describe(trace_of(*(session(blocks([1]), name=str(n), arrival_ns=time) for n, time in enumerate(at))))
    assert found.peak_rate == 2


# --------------------------------------------------------------------------------------------------- contexts


def test_a_turn_over_the_limit_ends_its_line_and_what_starts_from_there() -> None:
    """Main: 10, 60, 10 tokens; from its first turn one of 20, 70, 20 and, from that one's first, one of 30; from the
    main line's second turn one of 10; beside all one of 10."""
    main = (blocks([1]), blocks(range(6)), blocks([1]))
    branches = (
        Branch(turns=(blocks([1, 2]), blocks(range(7)), blocks([1, 2])), after=0, joined_by=2),
        Branch(turns=(blocks([1, 2, 3]),), after=3),
        Branch(turns=(blocks([1]),), after=1),
        Branch(turns=(blocks([1]),)),
    )
    trace = trace_of(session(*main, branches=branches))
    measured = measure(trace, 1)
    assert [fit(measured, limit).turns_kept for limit in (14, 15, 25, 35, 65, 75)] == [0, 2, 3, 4, 7, 9]
    found = fit(measured, 35)
    assert (found.sessions_whole, found.sessions_cut, found.sessions_dropped, found.turns_dropped) == (0, 1, 0, 5)
    for limit in (14, 15, 25, 35, 65, 75):
        assert played(trace, limit) == fit(measured, limit).turns_kept


def played(trace: Trace, limit: int, *, clip: bool = False) -> int:
    """Turns that a run sends, as a dry run counts them."""
    assert trace.sessions is not None
    count = 0
    for index in range(trace.sessions):
        conversation = Conversation(
            trace.session(index), synthesizer=SYNTHESIZER, context_limit=limit, default_max_tokens=0, clip=clip
        )
        count += sum(not turn.too_long for turn in conversation.outlines())
    return count


def answered(session: Session) -> Session:
    """With a length for each answer: where the trace has none, a run takes the plan's max_tokens."""

    def known(turn: Turn) -> Turn:
        return turn if turn.asked_output_tokens is not None else msgspec.structs.replace(turn, asked_output_tokens=7)

    return msgspec.structs.replace(
        session,
        turns=tuple(map(known, session.turns)),
        branches=tuple(
            msgspec.structs.replace(branch, turns=tuple(map(known, branch.turns))) for branch in session.branches
        ),
    )


BRANCHED = [
    "weka.json",
    "dynamo.jsonl",
    "copilot-agents.jsonl",
    "claude-code.jsonl",
    "otel-genai.json",
    "tau-bench.json",
]


@pytest.mark.parametrize("name", BRANCHED)
def test_context_rows_are_what_a_dry_run_sends(name: str) -> None:
    read = open_trace(name, base=EXAMPLES)
    trace = trace_of(*(answered(read.session(index)) for index in range(read.sessions or 0)))
    measured = measure(trace, 1)
    largest = int((measured.prompt + measured.output).max())
    limits = range(1, largest + 2, max(1, largest // 40))
    assert [fit(measured, limit).turns_kept for limit in limits] == [played(trace, limit) for limit in limits]


@pytest.mark.parametrize("limit", [32_768, 50_000, 60_000, 65_536, 80_000])
def test_context_rows_of_real_subagents_are_what_a_dry_run_sends(shared: Path, limit: int) -> None:
    trace = open_trace(str(shared / "traces" / "weka" / "trace_0277.json"))
    found = fit(measure(trace, 1), limit)
    assert found.turns_kept == played(trace, limit)
    assert (found.turns_kept, found.turns_dropped) == {
        32_768: (10, 43), 50_000: (15, 38), 60_000: (24, 29), 65_536: (30, 23), 80_000: (36, 17)
    }[limit]  # fmt: skip


def test_a_turn_over_the_limit_ends_its_session() -> None:
    """Prompts of 20, 40, 20 and 30 tokens, answers of 5."""
    long = session(blocks([1, 2]), blocks([1, 2, 3, 4]), blocks([1, 2]))
    measured = measure(trace_of(long, session(blocks([1, 2, 3]), name="b")), 1)
    found = fit(measured, 44)
    assert (found.sessions_whole, found.sessions_cut, found.sessions_dropped) == (1, 1, 0)
    assert (found.turns_kept, found.turns_dropped) == (2, 2)
    assert (found.input_mean, found.output_mean, found.prefix_share) == (25, 5, 0)
    assert fit(measured, 45).turns_dropped == 0, "prompt + output may fill the context"
    nothing = fit(measured, 10)
    assert (nothing.sessions_dropped, nothing.input_mean, nothing.prefix_share) == (2, None, None)


def test_a_turn_over_the_limit_is_sent_cut_where_the_plan_clips() -> None:
    """Prompts of 200, 400, 200 and 300 tokens, answers of 5: one is over 250, and so is one of another session."""
    one, two = session(*(blocks(range(n)) for n in (20, 40, 20))), session(blocks(range(30)), name="b")
    trace = trace_of(one, two)
    measured = measure(trace, 1)
    found = fit(measured, 250, clip=True)
    assert (found.sessions_whole, found.sessions_cut, found.sessions_dropped) == (0, 2, 0)
    assert (found.turns_kept, found.turns_dropped, found.turns_clipped) == (4, 0, 2)
    assert found.turns_kept == played(trace, 250, clip=True) > played(trace, 250) == fit(measured, 250).turns_kept
    assert (found.input_mean, found.prefix_share) == ((200 + 245 + 200 + 245) / 4, None)
    assert fit(measured, 250).turns_clipped is None
    roomy = fit(measured, 405, clip=True)
    assert (roomy.turns_clipped, roomy.sessions_whole) == (0, 2) and roomy.prefix_share is not None
    assert fit(measured, 5, clip=True).turns_kept == 0, "the answer alone fills it"


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(1, 100))
def test_every_session_and_turn_is_whole_cut_or_dropped(sessions: list[list[int]], limit: int) -> None:
    made = [session(*(blocks(range(n)) for n in counts), name=str(at)) for at, counts in enumerate(sessions)]
    measured = measure(trace_of(*made), 1)
    found = fit(measured, limit)
    kept = []
    for counts in sessions:
        over = next((place for place, n in enumerate(counts) if 10 * n + 5 > limit), len(counts))
        kept.append(over)
    assert found.turns_kept == sum(kept)
    assert found.turns_kept + found.turns_dropped == len(measured.prompt)
    assert found.sessions_whole == sum(k == len(c) for k, c in zip(kept, sessions, strict=True))
    assert found.sessions_dropped == kept.count(0)
    assert found.sessions_whole + found.sessions_cut + found.sessions_dropped == len(sessions)


def test_the_longest_request_is_named_by_its_place() -> None:
    found = describe(trace_of(session(blocks([1])), session(blocks([1, 2]), blocks([1, 2, 3]), source_line=7)))
    assert found.longest is not None
    assert (found.longest.source_line, found.longest.turn, found.longest.input_tokens) == (7, 1, 30)
    assert found.longest.output_tokens == 5


def test_tr_12_few_sessions_are_warned_of_with_the_repeat_factor() -> None:
    """TR-12: 10 rows, 1,000 requests."""
    trace = trace_of(*(session(blocks([n]), name=str(n)) for n in range(10)))
    assert any("10 sessions are few" in warning for warning in describe(trace).warnings)
    found = describe_measured(trace, measure(trace, 1), wanted=1000)
    assert any("1,000 sessions take each of the 10 100 times" in warning for warning in found.warnings)
    many = trace_of(*(session(blocks([n]), name=str(n)) for n in range(100)))
    assert describe(many).warnings == ()


# ------------------------------------------------------------------------------------------------- real files


def described(shared: Path, name: str) -> Description:
    return describe(open_trace(str(shared / "traces" / name)))


AZURE = [
    ("conv", 19_366, 1.09, (1155, 1020, 2734, 4142), (211, 129, 424, 601)),
    ("code", 8_819, 13.2, (2048, 1469, 5188, 7436), (28, 13, 55, 251)),
]


@pytest.mark.parametrize(("name", "rows", "cv", "inputs", "outputs"), AZURE, ids=["conv", "code"])
def test_azure_is_as_published(
    shared: Path, name: str, rows: int, cv: float, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    found = described(shared, f"azure/AzureLLMInferenceTrace_{name}.csv")
    assert (found.rows, found.sessions, found.turns, found.turns_per_session) == (rows, rows, rows, 1.0)
    assert found.interarrival_cv == pytest.approx(cv, abs=0.05 if cv > 10 else 0.005)
    for lengths, wanted in ((found.prompt_tokens, inputs), (found.output_tokens, outputs)):
        assert lengths is not None
        assert (lengths.mean, lengths.p50, lengths.p90, lengths.p99) == pytest.approx(wanted, abs=0.51, rel=2e-3)
    assert (found.cache_bound, found.prefix_share) == (None, None), "the trace tells lengths only"
    assert {row.prefix_share for row in found.context} == {None}
    assert not found.estimated


MOONCAKE = [("conversation", 12_031, 1_180, 0.374), ("synthetic", 3_993, None, 0.651)]


@pytest.mark.parametrize(("name", "rows", "ticks", "bound"), MOONCAKE, ids=[row[0] for row in MOONCAKE])
def test_mooncake_is_as_published(shared: Path, name: str, rows: int, ticks: int | None, bound: float) -> None:
    begun = time.process_time()
    found = described(shared, f"mooncake/{name}_trace.jsonl")
    assert time.process_time() - begun < 6, "288,000 block ids: half a second on an idle core"
    assert (found.rows, found.sessions) == (rows, rows)
    assert found.prefix_share == 0, "each session has one turn, and the trace tells what is in it"
    assert ticks is None or found.ticks == ticks
    assert found.cache_bound == pytest.approx(bound, abs=5e-4)


def test_weka_sessions_share_nothing_but_grow(shared: Path) -> None:
    found = described(shared, "weka")
    assert (found.sessions, found.turns, found.branches) == (11, 96, 4)
    assert found.prefix_share is not None and 0.8 < found.prefix_share < 0.9
    assert found.cache_bound == found.prefix_share, "their ids are local to a file"


def test_tau_bench_is_estimated(shared: Path) -> None:
    """Published: 12 calls, input about 2.5k, output about 53, growth about 130 (with another tokenizer)."""
    found = described(shared, "tau-bench/gpt-4o-airline.first40.json")
    assert (found.sessions, found.turns, found.estimated) == (40, 571, True)
    assert found.prompt_tokens is not None and found.output_tokens is not None and found.growth_tokens is not None
    assert 2_000 < found.prompt_tokens.mean < 4_000
    assert found.output_tokens.p50 == pytest.approx(53, abs=15)
    assert found.growth_tokens.p50 == pytest.approx(130, abs=40)


def test_the_agent_workload_has_the_shape_that_is_documented() -> None:
    found = describe(open_trace("builtin:agent"), sample=100)
    assert (found.sessions, found.rows, found.sampled) == (None, None, 100)
    assert found.session_turns is not None and found.session_turns.p50 == pytest.approx(45, rel=0.35)
    assert found.prefix_share is not None and found.prefix_share > 0.95
    assert found.delays is not None and found.delays.tool is not None
    assert found.delays.tool.p50 == pytest.approx(9, rel=0.15)
    assert found.prompt_tokens is not None and found.prompt_tokens.n == found.turns


def test_unknown_stays_unknown_in_every_array() -> None:
    measured = measure(trace_of(session(said("q", None), said("r", None))), 1)
    assert list(measured.output) == [UNKNOWN, UNKNOWN]
    assert list(measured.prompt) == [1, UNKNOWN]
    assert list(measured.marked(Mark.PROMPT_ESTIMATED)) == [True, False]


def rows_of_lengths(count: int) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for row in range(count):
        minutes, seconds = divmod(row // 10, 60)
        time_of_day = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.{row % 10}000000"
        yield f"2024-05-10 {time_of_day},{100 + row % 1000},{1 + row % 90}"


def test_a_hundred_thousand_rows_are_described_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(rows_of_lengths(100_000)), encoding="utf-8")
    begun = time.process_time()
    found = describe(open_trace(str(path)))
    assert time.process_time() - begun < 10, "about one second on an idle core"
    assert (found.rows, found.mean_rate) == (100_000, pytest.approx(10, rel=1e-3))
