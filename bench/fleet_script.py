"""What busy workers say: made up beforehand, from records with the shape of real ones, and said again and again."""

from __future__ import annotations

import itertools
import zlib
from random import Random

import msgspec

from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.windows import windows
from infersiege.records import OpenTurn, Outcome, Phase, StampSource, TokensFrom, TurnRecord, WindowRow

SECOND_NS = 1_000_000_000
KINDS = [("short-qa", "local"), ("long-document", "local"), ("agent", "local"), ("agent", "cloud")]
"""Scenario and channel of the turns in a report: four rows for each second that it touches."""
POOL = 8
"""Different seconds that a worker tells of, again and again."""


def turns_of_a_second(rate: float, rng: Random, at_ns: int = 0, worker: str = "worker") -> list[TurnRecord]:
    """Turns that ended in one second, as many as `rate` on average."""
    count = int(rate) + (rng.random() < rate % 1)
    return [_turn(rng, at_ns + round(rng.random() * SECOND_NS), worker) for _ in range(count)]


def _turn(rng: Random, closed_ns: int, worker: str) -> TurnRecord:
    scenario, channel = rng.choice(KINDS)
    tokens = rng.randint(20, 150)
    ttft_ns, gap_ns = round(rng.lognormvariate(19.2, 0.4)), round(rng.lognormvariate(16.8, 0.2))
    first_ns = closed_ns - gap_ns * (tokens - 1)
    sent_ns = first_ns - ttft_ns
    by_second: dict[int, int] = {}
    gaps: dict[int, int] = {}
    for index in range(tokens):
        second = (first_ns + index * gap_ns) // SECOND_NS
        by_second[second] = by_second.get(second, 0) + 1
        if index:
            bucket = bucket_of(round(gap_ns * rng.gauss(1, 0.05)))
            gaps[bucket] = gaps.get(bucket, 0) + 1
    failed = rng.random() < 0.01
    return TurnRecord(
        run_id="0123456789ab", worker=worker, epoch=0, session_id=f"{scenario}-{rng.randrange(10**9)}", turn=0,
        parent_turn=None, scenario=scenario, stage="main", phase=Phase.STEADY, channel=channel,
        replica="127.0.0.1:8000", engine="vllm", dialect="openai-chat", model_asked="emulated-model",
        model_answered="emulated-model", request_id=f"{rng.randrange(16**16):016x}", due_ns=sent_ns - 80_000,
        attempt_ns=sent_ns - 40_000, sent_ns=sent_ns, sent_end_ns=sent_ns + 20_000, first_byte_ns=first_ns,
        first_token_ns=first_ns, first_token_slack_ns=9_000, first_answer_ns=first_ns, last_token_ns=closed_ns,
        closed_ns=closed_ns, reused_connection=True, attempts=1, prompt_tokens=rng.randint(50, 4000),
        cached_tokens=0, output_tokens=tokens, first_chunk_tokens=1, tokens_from=TokensFrom.USAGE, chunks=tokens,
        chunks_by_second=by_second, gaps=dict(sorted(gaps.items())), finish_reason="stop",
        outcome=Outcome.FAILED if failed else Outcome.OK, http_status=200, bytes_in=tokens * 180, bytes_out=900,
        stamp_source=StampSource.KERNEL,
    )  # fmt: skip


class Script:
    """What busy workers say, made once: `POOL` seconds of turns, as window rows and as compressed records."""

    def __init__(self, rate: float, seed: int) -> None:
        rng = Random(seed)
        self.rate = rate
        seconds = [turns_of_a_second(rate, rng, at_ns=1000 * SECOND_NS) for _ in range(POOL)]
        self.rows = [windows(turns) for turns in seconds]
        """Of the Unix second 1,000 and some before it."""
        halves = [half for turns in seconds for half in (turns[::2], turns[1::2])]
        encode = msgspec.json.Encoder().encode_lines
        self.segments = [(len(half), zlib.compress(encode(half), level=1)) for half in halves if half]
        self.record_bytes = sum(len(encode(turns)) for turns in seconds) // POOL
        """Of a second's records, before they are compressed."""
        self.open_turns = tuple(
            OpenTurn(session_id=f"{turn.scenario}-{rng.randrange(10**9)}", scenario=turn.scenario, stage="main",
                     phase=Phase.STEADY, channel=turn.channel, turns=1, turn=0, started=True, due_ns=turn.due_ns)
            for turn in itertools.islice(itertools.cycle(itertools.chain(*seconds)), round(rate * 2))
        )  # fmt: skip

    def windows(self, number: int, second: int) -> tuple[WindowRow, ...]:
        """The rows of a report that is sent in this Unix second."""
        rows = self.rows[number % POOL]
        return tuple(msgspec.structs.replace(row, second=row.second - 1000 + second) for row in rows)
