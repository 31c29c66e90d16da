"""Continuous batching as equations: who takes part in a step, how long it takes, which tokens leave at its end.

Pure: no clock and no sockets. All instants are nanoseconds of whatever clock the caller's arrivals are on.
docs/emulator.md has the equations with worked examples; in short, a step with B sequences and P prompt tokens takes

    D = base + per_sequence * B + P / prefill_rate        (times a seeded noise of mean 1, if asked)

and every sequence whose prompt is computed by the end of the step gives one token at that instant.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from infersiege.emulator.blocks import BlockPool
from infersiege.emulator.bounds import require
from infersiege.errors import UsageError

LONGEST_STEP_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The engine's constants. Raises UsageError for values with which a request could never end."""

    prefill_tokens_per_s: float = 20_000.0
    step_base_ns: int = 5_000_000
    step_per_sequence_ns: int = 50_000
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2_048
    """Tokens that one step may compute: prompt chunks and one per decoding sequence."""
    kv_blocks: int = 8_192
    block_size: int = 16
    max_model_len: int = 32_768
    max_queue: int | None = None
    """Requests that may wait; None: no limit."""
    prefix_caching: bool = True
    noise: float = 0.0
    """Standard deviation of the logarithm of a step's duration; 0: none."""
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value, least, most in (
            ("--prefill-rate", self.prefill_tokens_per_s, 0.001, 1_000_000_000),
            ("--step-base-ms", self.step_base_ns / 1e6, 0, LONGEST_STEP_MS),
            ("--step-per-sequence-ms", self.step_per_sequence_ns / 1e6, 0, LONGEST_STEP_MS),
            ("--max-num-seqs", self.max_num_seqs, 1, 1_000_000),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 1_000_000_000),
            ("--kv-blocks", self.kv_blocks, 1, 1_000_000_000),
            ("block_size", self.block_size, 1, 1_000_000),
            ("--max-model-len", self.max_model_len, 2, 1_000_000_000),
            ("--max-queue", self.max_queue, 0, 1_000_000_000),
            ("--noise", self.noise, 0, 3),
        ):
            require(option, value, least, most)
        if self.step_base_ns + self.step_per_sequence_ns <= 0:
            raise UsageError("emulator: a decode step must take time", hint="set --step-base-ms above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"emulator: {self.max_num_batched_tokens} tokens per step can't serve {self.max_num_seqs} sequences",
                hint="raise --max-num-batched-tokens or lower --max-num-seqs",
            )
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise UsageError(
                f"emulator: {self.kv_blocks} KV blocks of {self.block_size} tokens can't hold one sequence of "
                f"{self.max_model_len} tokens",
                hint="raise --kv-blocks or lower --max-model-len",
            )


class QueueFullError(Exception):
    """As many requests wait as may wait."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. `chain` has a key per full block of prompt and output (text.block_chain)."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """How many it will generate, at least 1."""
    chain: tuple[bytes, ...] = ()
    generated: int = 0
    computed: int = 0
    """Tokens whose KV is in the cache."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at its first admission; None before that."""
    preemptions: int = 0
    admitted_ns: int | None = None
    finished: bool = False
    keys: list[bytes] = field(default_factory=list)
    private: int = 0
    blocks_full: int = 0

    @property
    def target(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return self.prompt_tokens + self.generated

    @property
    def held(self) -> int:
        return len(self.keys) + self.private


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: who takes part with how many tokens, and when it ends."""

    start_ns: int
    end_ns: int
    work: tuple[tuple[Sequence, int], ...]
    prefill_tokens: int


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, in tokens unless named otherwise."""

    steps: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefilled: int = 0
    """Prompt tokens computed, recomputation after preemption included."""
    prompt: int = 0
    """Prompt tokens of requests whose prompt was done, once per request."""
    generated: int = 0


class Engine:
    """The scheduler. Call `begin_step`, wait until its end, call `finish_step`, and again."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.pool = BlockPool(spec.kv_blocks)
        self.counters = EngineCounters()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.clock_ns = 0
        """End of the last step."""
        self._step: Step | None = None
        self._rng = random.Random(spec.seed)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; arrivals must not go back in time.

        Raises QueueFullError, with nothing changed, when `max_queue` requests wait beside those who have a free seat.
        """
        spec = self.spec
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        if sequence.prompt_tokens + sequence.output_tokens > spec.max_model_len:
            raise ValueError("the sequence is longer than max_model_len")
        if spec.max_queue is not None and len(self.waiting) >= spec.max_queue + self._free_seats():
            raise QueueFullError
        self.waiting.append(sequence)

    def _free_seats(self) -> int:
        return self.spec.max_num_seqs - len(self.running)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks at once. Nothing happens if it has finished."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def begin_step(self) -> Step | None:
        """Compose the next step; None when there is nothing to do.

        It starts at the end of the one before, or, if the engine was idle, when the first waiting request arrived; a
        request that came later than that is not in it.
        """
        if self._step is not None:
            raise RuntimeError("the step before has not been finished")
        if not self.running and not self.waiting:
            return None
        start_ns = self.clock_ns
        if not self.running:
            start_ns = max(start_ns, self.waiting[0].arrival_ns)
        budget = self.spec.max_num_batched_tokens
        work: list[tuple[Sequence, int]] = []
        budget, preempted = self._continue_running(work, budget)
        if not preempted:
            self._admit_waiting(work, budget, start_ns)
        prefill = sum(count for sequence, count in work if count > 1 or sequence.generated == 0)
        self._step = Step(start_ns, start_ns + self._duration_ns(len(work), prefill), tuple(work), prefill)
        return self._step

    def finish_step(self) -> list[Sequence]:
        """End the open step; gives the sequences that generated one token each, in scheduling order.

        A sequence whose `finished` is now true gave its last one; its blocks are free again.
        """
        step = self._step
        if step is None:
            raise RuntimeError("no step is open")
        self._step = None
        self.clock_ns = step.end_ns
        self.counters.steps += 1
        self.counters.prefilled += step.prefill_tokens
        emitted: list[Sequence] = []
        done = False
        for sequence, count in step.work:
            if sequence.finished:  # aborted while the step ran
                continue
            sequence.computed += count
            if sequence.computed // self.spec.block_size > sequence.blocks_full:
                self._publish_full_blocks(sequence)
            if sequence.computed < sequence.target:
                continue
            if sequence.generated == 0:
                self.counters.prompt += sequence.prompt_tokens
            sequence.generated += 1
            emitted.append(sequence)
            if sequence.generated >= sequence.output_tokens:
                sequence.finished = done = True
                self._release(sequence)
        self.counters.generated += len(emitted)
        if done:
            self.running = [sequence for sequence in self.running if not sequence.finished]
        return emitted

    def _continue_running(self, work: list[tuple[Sequence, int]], budget: int) -> tuple[int, bool]:
        """Give each running sequence its tokens, oldest first; the youngest gives way when the cache is full."""
        preempted = False
        block_size = self.spec.block_size
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(sequence.target - sequence.computed, budget)
            new = -(-(sequence.computed + count) // block_size) - sequence.held
            while new > 0 and not self.pool.allocate(new):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                sequence.private += max(new, 0)
                work.append((sequence, count))
                budget -= count
                index += 1
        return budget, preempted

    def _preempt(self, sequence: Sequence) -> None:
        """Recompute later: drop its KV, keep what it generated, and put it before all who wait."""
        self._release(sequence)
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit_waiting(self, work: list[tuple[Sequence, int]], budget: int, start_ns: int) -> None:
        """First come, first served: a head that does not fit blocks those behind it."""
        block_size = self.spec.block_size
        while self.waiting and budget > 0 and len(self.running) < self.spec.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.arrival_ns > start_ns:
                break
            hit = 0
            if self.spec.prefix_caching:
                # One token at least must be computed, or there is nothing to sample the next from.
                hit = self.pool.matching(sequence.chain[: (sequence.target - 1) // block_size])
            cached = hit * block_size
            count = min(sequence.target - cached, budget)
            new = -(-(cached + count) // block_size) - hit
            if not self.pool.admit(sequence.chain[:hit], new):
                break
            self.waiting.popleft()
            sequence.keys = list(sequence.chain[:hit])
            sequence.private = new
            sequence.computed = cached
            sequence.blocks_full = hit
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached
                sequence.admitted_ns = start_ns
                self.counters.prefix_queries += sequence.prompt_tokens
                self.counters.prefix_hits += cached
            self.running.append(sequence)
            work.append((sequence, count))
            budget -= count

    def _publish_full_blocks(self, sequence: Sequence) -> None:
        full = sequence.computed // self.spec.block_size
        if self.spec.prefix_caching:
            for key in sequence.chain[sequence.blocks_full : full]:
                if self.pool.publish(key):
                    sequence.keys.append(key)
                    sequence.private -= 1
        sequence.blocks_full = full

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.keys, sequence.private)
        sequence.keys = []
        sequence.private = 0
        sequence.computed = 0
        sequence.blocks_full = 0

    def _duration_ns(self, sequences: int, prefill_tokens: int) -> int:
        spec = self.spec
        duration = spec.step_base_ns + spec.step_per_sequence_ns * sequences
        duration += round(prefill_tokens * 1e9 / spec.prefill_tokens_per_s)
        if spec.noise:
            duration = round(duration * math.exp(self._rng.gauss(0.0, spec.noise) - spec.noise**2 / 2))
        return max(duration, 1)


PRESETS: dict[str, EngineSpec] = {
    "small": EngineSpec(),
    "h100-8b": EngineSpec(
        prefill_tokens_per_s=28_000.0,
        step_base_ns=6_500_000,
        step_per_sequence_ns=50_000,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        kv_blocks=26_000,
        max_model_len=131_072,
    ),
}
"""Round figures of the right order; nobody measured them, and a result got with them says nothing about an H100."""
