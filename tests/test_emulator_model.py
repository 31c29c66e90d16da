"""The model of continuous batching against hand-computed times, and what must hold whatever the load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.emulator.blocks import BlockPool
from infersiege.emulator.model import PRESETS, Engine, EngineSpec, QueueFullError, Sequence
from infersiege.errors import UsageError

MS = 1_000_000

SPEC = EngineSpec(
    prefill_tokens_per_s=10_000.0,
    step_base_ns=10 * MS,
    step_per_sequence_ns=1 * MS,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    kv_blocks=1_000,
    max_model_len=4_096,
)
"""A prompt token takes 0.1 ms, a step 10 ms and 1 ms per sequence."""


def keys(name: str, tokens: int) -> tuple[bytes, ...]:
    return tuple(f"{name}/{index}".encode() for index in range(tokens // 16))


def play(engine: Engine, check: Callable[[], None] = lambda: None) -> dict[Sequence, list[int]]:
    """Run until idle; the instants of each sequence's tokens."""
    instants: dict[Sequence, list[int]] = {}
    while (step := engine.begin_step()) is not None:
        check()
        for sequence in engine.finish_step():
            instants.setdefault(sequence, []).append(step.end_ns)
        check()
    return instants


@pytest.mark.parametrize(
    ("prompt", "output", "ttft_ms", "reason"),
    [
        (50, 3, 10 + 1 + 5, "one chunk: base + per sequence + prefill"),
        (100, 1, 10 + 1 + 10, "exactly the budget is still one step"),
        (101, 2, 2 * 11 + 10.1, "one token over the budget costs a second step"),
        (350, 2, 4 * 11 + 35, "chunked prefill: ceil(350/100) steps, all prompt tokens once"),
        (1, 1, 11.1, "the shortest request there is"),
    ],
)
def test_one_request_alone(prompt: int, output: int, ttft_ms: float, reason: str) -> None:
    engine = Engine(SPEC)
    sequence = Sequence(7 * MS, prompt, output)
    engine.submit(sequence)
    instants = play(engine)[sequence]
    assert instants[0] - 7 * MS == round(ttft_ms * MS), reason
    assert [after - before for before, after in pairwise(instants)] == [11 * MS] * (output - 1)
    assert sequence.finished


def test_a_batch_shares_the_step() -> None:
    engine = Engine(SPEC)
    sequences = [Sequence(0, 20, 5) for _ in range(4)]
    for sequence in sequences:
        engine.submit(sequence)
    instants = play(engine)
    first = round((10 + 4 * 1 + 80 * 0.1) * MS)
    expected = [first + index * 14 * MS for index in range(5)]
    assert [instants[sequence] for sequence in sequences] == [expected] * 4


def test_a_prefill_slows_down_those_who_decode() -> None:
    engine = Engine(SPEC)
    decoding, late = Sequence(0, 10, 6), Sequence(15 * MS, 90, 1)
    engine.submit(decoding)
    engine.submit(late)
    instants = play(engine)
    gaps = [after - before for before, after in pairwise(instants[decoding])]
    # It arrives during the second step (12 to 23 ms), so it takes part in the third: 10 + 2 * 1 + 90 * 0.1 ms.
    assert gaps == [11 * MS, 21 * MS, 11 * MS, 11 * MS, 11 * MS]
    assert instants[late] == [instants[decoding][2]]


def test_more_than_the_seats_wait_in_line() -> None:
    engine = Engine(SPEC)
    sequences = [Sequence(0, 10, 2) for _ in range(6)]
    for sequence in sequences:
        engine.submit(sequence)
    step = engine.begin_step()
    assert step is not None and len(engine.running) == 4 and len(engine.waiting) == 2
    engine.finish_step()
    instants = play(engine)
    assert all(instants[sequence][0] > instants[sequences[0]][0] for sequence in sequences[4:])


def test_an_idle_engine_starts_when_the_request_arrives() -> None:
    engine = Engine(SPEC)
    early, late = Sequence(0, 10, 1), Sequence(1_000 * MS, 10, 1)
    engine.submit(early)
    engine.submit(late)
    instants = play(engine)
    assert instants[early] == [12 * MS] and instants[late] == [1_012 * MS]


def test_cached_blocks_skip_the_prefill() -> None:
    engine = Engine(SPEC)
    chain = keys("shared", 80)
    first, second = Sequence(0, 80, 1, chain), Sequence(1_000 * MS, 80, 1, chain)
    engine.submit(first)
    engine.submit(second)
    instants = play(engine)
    assert first.cached_tokens == 0 and instants[first] == [round((11 + 8) * MS)]
    # 64 of 80: the block with the last token is computed again, for there must be something to sample from.
    assert second.cached_tokens == 64 and instants[second] == [1_000 * MS + round((11 + 1.6) * MS)]
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (160, 64)


def test_a_follow_up_turn_finds_the_generated_answer_too() -> None:
    engine = Engine(SPEC)
    chain = keys("talk", 160)
    first = Sequence(0, 48, 48, chain[:6])
    engine.submit(first)
    play(engine)
    second = Sequence(engine.clock_ns, 128, 1, chain[:8])
    engine.submit(second)
    play(engine)
    # 95 tokens of the first turn were computed (its last token never was): 5 full blocks.
    assert second.cached_tokens == 80


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = Engine(replace(SPEC, prefix_caching=False))
    for arrival in (0, 1_000 * MS):
        engine.submit(Sequence(arrival, 80, 1, keys("shared", 80)))
    play(engine)
    assert engine.counters.prefix_hits == 0 and engine.pool.idle == 0


def test_the_least_recently_used_prefix_is_evicted() -> None:
    engine = Engine(replace(SPEC, kv_blocks=10, max_model_len=160))
    for index, name in enumerate(("a", "b", "a", "c", "a", "b")):
        # Four blocks stay of each; c needs room and b was used before a.
        engine.submit(Sequence(index * 1_000 * MS, 65, 1, keys(name, 65)))
    hits: list[int] = []
    submitted = list(engine.waiting)
    play(engine)
    hits = [sequence.cached_tokens or 0 for sequence in submitted]
    assert hits[:5] == [0, 0, 64, 0, 64]
    assert hits[5] < 64


def test_a_full_cache_preempts_the_youngest_and_it_still_ends() -> None:
    engine = Engine(replace(SPEC, kv_blocks=8, max_model_len=128))
    old, young = Sequence(0, 48, 40), Sequence(0, 48, 40)
    engine.submit(old)
    engine.submit(young)
    instants = play(engine)
    assert old.preemptions == 0 and young.preemptions == 1 and engine.counters.preemptions == 1
    assert len(instants[old]) == len(instants[young]) == 40
    assert instants[old][-1] < instants[young][-1]


def test_noise_has_mean_one_and_repeats_by_seed() -> None:
    def times(seed: int) -> list[int]:
        engine = Engine(replace(SPEC, noise=0.2, seed=seed))
        sequence = Sequence(0, 10, 2_000)
        engine.submit(sequence)
        return play(engine)[sequence]

    assert times(1) == times(1) != times(2)
    assert times(1)[-1] / 2_000 == pytest.approx(11 * MS, rel=0.05)


def test_the_queue_limit_counts_those_without_a_seat() -> None:
    engine = Engine(replace(SPEC, max_queue=2))
    for _ in range(6):
        engine.submit(Sequence(0, 10, 1))
    with pytest.raises(QueueFullError):
        engine.submit(Sequence(0, 10, 1))
    assert len(play(engine)) == 6


@pytest.mark.parametrize("when", ["waiting", "in a step", "between steps", "finished"])
def test_an_aborted_sequence_gives_its_blocks_back(when: str) -> None:
    engine = Engine(SPEC)
    sequence = Sequence(0, 40, 5, keys("a", 40))
    engine.submit(sequence)
    if when == "in a step":
        engine.begin_step()
    elif when != "waiting":
        engine.begin_step()
        engine.finish_step()
    if when == "finished":
        play(engine)
    engine.abort(sequence)
    engine.abort(sequence)
    assert engine.pool.used == 0 and not engine.running and not engine.waiting
    if when == "in a step":
        assert engine.finish_step() == []
    assert engine.begin_step() is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_blocks": 10}, "can't hold one sequence"),
        ({"max_num_batched_tokens": 3}, "can't serve"),
        ({"prefill_tokens_per_s": 0.0}, "--prefill-rate is 0.0; it must be from 0.001"),
        ({"prefill_tokens_per_s": float("nan")}, "--prefill-rate is nan"),
        ({"step_base_ns": 0, "step_per_sequence_ns": 0}, "must take time"),
        ({"noise": -0.1}, "--noise is -0.1; it must be from 0 to 3"),
        ({"step_base_ns": -1}, "--step-base-ms"),
        ({"max_queue": -1}, "--max-queue"),
        ({"max_model_len": 1}, "--max-model-len is 1; it must be from 2"),
    ],
)
def test_an_engine_that_could_not_work_is_refused(changes: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(SPEC, **changes)  # type: ignore[arg-type]


def test_presets_are_valid_and_named() -> None:
    assert set(PRESETS) == {"small", "h100-8b"}


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 40 * MS),  # time since the one before
        st.integers(1, 120),  # prompt
        st.integers(1, 40),  # output
        st.integers(0, 3),  # which of a few shared prefixes
        st.one_of(st.none(), st.integers(0, 30)),  # aborted after so many steps
    ),
    min_size=1,
    max_size=25,
)


@given(REQUESTS, st.integers(10, 40), st.integers(1, 6), st.integers(6, 64), st.booleans())
@settings(max_examples=150, deadline=None)
def test_invariants(
    requests: list[tuple[int, int, int, int, int | None]], blocks: int, seats: int, budget: int, caching: bool
) -> None:
    """Every request ends, no token is lost or made up, KV never exceeds its capacity, first come is first served."""
    spec = replace(
        SPEC,
        kv_blocks=blocks,
        max_model_len=160,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        prefix_caching=caching,
    )
    engine = Engine(spec)
    arrival = 0
    sequences: list[Sequence] = []
    abort_at: dict[int, list[Sequence]] = {}
    for gap, prompt, output, family, abort in requests:
        arrival += gap
        sequence = Sequence(arrival, prompt, min(output, 160 - prompt), keys(str(family), prompt + output))
        sequences.append(sequence)
        engine.submit(sequence)
        if abort is not None:
            abort_at.setdefault(abort, []).append(sequence)
    aborted = {sequence for group in abort_at.values() for sequence in group}
    tokens: dict[Sequence, list[int]] = {sequence: [] for sequence in sequences}
    steps = clock = 0
    while (step := engine.begin_step()) is not None:
        assert clock <= step.start_ns < step.end_ns
        assert len(step.work) <= seats and sum(count for _, count in step.work) <= budget
        assert len({id(sequence) for sequence, _ in step.work}) == len(step.work) > 0
        assert all(sequence.arrival_ns <= step.start_ns for sequence, _ in step.work)
        check_pool(engine)
        for sequence in abort_at.get(steps, []):
            engine.abort(sequence)
        for sequence in engine.finish_step():
            tokens[sequence].append(step.end_ns)
        check_pool(engine)
        clock = step.end_ns
        steps += 1
    assert engine.pool.used == 0 and not engine.running and not engine.waiting
    for sequence in sequences:
        assert sequence.finished
        if sequence not in aborted:
            assert len(tokens[sequence]) == sequence.output_tokens == sequence.generated
            assert tokens[sequence][0] > sequence.arrival_ns
        assert (sequence.cached_tokens or 0) < sequence.prompt_tokens
    assert engine.counters.generated == sum(map(len, tokens.values()))
    first = [tokens[sequence][0] for sequence in sequences if tokens[sequence] and sequence not in aborted]
    assert first == sorted(first)


def check_pool(engine: Engine) -> None:
    pool = engine.pool
    assert 0 <= pool.used <= pool.capacity
    assert pool.used + pool.idle + pool.free == pool.capacity
    assert sum(sequence.held for sequence in engine.running) >= pool.used
    assert all(sequence.held * 16 >= sequence.computed for sequence in engine.running)


def test_the_pool_refuses_without_changing_anything() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) and pool.publish(b"a") and pool.publish(b"b")
    pool.release([b"a", b"b"], 1)
    assert (pool.used, pool.idle, pool.free) == (0, 2, 2)
    # Two cached and three new would need five blocks.
    assert not pool.admit([b"a", b"b"], 3)
    assert (pool.used, pool.idle, pool.free) == (0, 2, 2)
    assert pool.admit([b"a", b"b"], 2)
    assert (pool.used, pool.idle, pool.free) == (4, 0, 0)
    assert not pool.allocate(1)
