"""Traces of block hashes on a real vLLM with its prefix cache: what it finds there is what the trace shares.

INFERSIEGE_VLLM names the Python of an environment that has vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import engines
import pytest
from siege import Ran, Siege, check_conserved, plan_text

from infersiege.records import Outcome
from infersiege.traces import describe, open_trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]

VLLM_SERVE = engines.ROOT / "examples" / "engines" / "vllm_serve.py"
BLOCK_TOKENS = 32
"""Of the engine's cache: the least that the CPU build takes."""


@pytest.fixture(scope="module")
def vllm(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    """A real vLLM with room in its cache for everything that is asked here; prompts of up to 1,024 tokens."""
    python = os.environ.get("INFERSIEGE_VLLM")
    if not python:
        pytest.skip("INFERSIEGE_VLLM does not name the Python of an environment with vLLM")
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen([python, str(VLLM_SERVE), "--port", str(port)], stdout=out, stderr=subprocess.STDOUT)
    try:
        engines.wait_for_health("127.0.0.1", port, process, log, 180)
        yield engines.Engine("vllm", "127.0.0.1", port, "tiny", process.pid)
    finally:
        engines.stop(process)


def played(siege: Siege, engine: engines.Engine, trace: Path, more: str, channel: str = "") -> Ran:
    """Every row of a trace, one after the other, so that each finds all that came before it."""
    rows = trace.read_bytes().count(b"\n")
    text = plan_text(
        engine.base_url,
        model=engine.model,
        run=f"stop = {{sessions = {rows}}}",
        workload=f'scenario = "rows"\ntrace = "{trace}"\nmax_tokens = 2\n{more}',
        load='mode = "closed"\nusers = 1\nramp = "0s"\ndrain = "60s"',
        channel=channel,
    )
    ran = siege.run(text, within_s=200)
    check_conserved(ran)
    assert {row.outcome for row in ran.turns} == {Outcome.OK}, ran.out
    assert all(row.cached_tokens is not None for row in ran.turns), (
        "vLLM was started with --enable-prompt-tokens-details"
    )
    return ran


def cached_share(ran: Ran) -> float:
    return sum(row.cached_tokens or 0 for row in ran.turns) / sum(row.prompt_tokens or 0 for row in ran.turns)


def write_rows(path: Path, rows: list[tuple[int, list[int]]]) -> Path:
    """Mooncake's form: (prompt tokens, block hashes)."""
    lines = (
        json.dumps({"timestamp": n, "input_length": tokens, "output_length": 2, "hash_ids": ids})
        for n, (tokens, ids) in enumerate(rows)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_cache_finds_what_the_trace_shares(vllm: engines.Engine, siege: Siege, tmp_path: Path) -> None:
    """Blocks of 64 tokens, two of the engine's: each row finds exactly the blocks that an earlier row began with."""
    rows: list[tuple[int, list[int]]] = []
    for n in range(25):
        document = n % 4
        shared = [1, *(10 * document + at for at in range(2, 7 + document))]
        rows.append((64 * len(shared) + 100, [*shared, 1000 + 2 * n, 1001 + 2 * n]))
    trace = write_rows(tmp_path / "rows.jsonl", rows)
    ran = played(siege, vllm, trace, "options = {block_size = 64}")
    bound = describe(open_trace(str(trace), options={"block_size": 64})).cache_bound
    assert bound is not None and 0.6 < bound < 0.8
    assert cached_share(ran) == pytest.approx(bound, abs=0.03)
    wanted, seen = [], set()
    for _, ids in rows:
        begun = [tuple(ids[:end]) for end in range(1, len(ids) + 1)]
        wanted.append(64 * sum(prefix in seen for prefix in begun))
        seen.update(begun)
    found = [row.cached_tokens or 0 for row in sorted(ran.turns, key=lambda row: row.sent_ns or 0)]
    # Template and salt stand before the first block, and blocks are right to a word: one of the engine's more or less.
    assert all(abs(one - other) <= BLOCK_TOKENS for one, other in zip(found, wanted, strict=True)), (found, wanted)


def test_a_slice_of_the_mooncake_trace_is_cached_as_much_as_it_can_be(
    vllm: engines.Engine, siege: Siege, shared: Path, tmp_path: Path
) -> None:
    """Forty questions about six documents of its synthetic part, at an eighth: blocks of 512 become 64 tokens."""
    (path,) = (shared / "traces" / "mooncake").glob("synthetic*.jsonl")
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    asked = Counter(tuple(row["hash_ids"][:4]) for row in rows)
    fitting = [row for row in rows if 2000 < row["input_length"] < 7500 and asked[tuple(row["hash_ids"][:4])] >= 8]
    documents = list(dict.fromkeys(tuple(row["hash_ids"][:4]) for row in fitting))[:6]
    chosen = [row for row in fitting if tuple(row["hash_ids"][:4]) in documents][:40]
    trace = write_rows(tmp_path / "slice.jsonl", [(row["input_length"], row["hash_ids"]) for row in chosen])
    bound = describe(open_trace(str(trace), length_scale=0.125)).cache_bound
    assert bound is not None and bound > 0.75
    ran = played(siege, vllm, trace, "length_scale = 0.125")
    assert cached_share(ran) == pytest.approx(bound, abs=0.03)


@pytest.mark.parametrize("way", ["endpoint", "calibrated"])
def test_prompts_are_as_long_as_asked(vllm: engines.Engine, siege: Siege, tmp_path: Path, way: str) -> None:
    """A vocabulary of 2,048 entries has few whole words, and calibration knows the tokens of none."""
    trace = tmp_path / "rows.csv"
    rows = "\n".join(f"2023-11-16 18:15:{n:02}.0,{150 + 14 * n},2" for n in range(40))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n", encoding="utf-8")
    text = plan_text(
        vllm.base_url,
        model=vllm.model,
        run="stop = {sessions = 40}",
        workload=f'scenario = "rows"\ntrace = "{trace}"\nmax_tokens = 2',
        load='mode = "closed"\nusers = 2\nramp = "0s"\ndrain = "60s"',
        channel=f'text_lengths = "{way}"',
    )
    ran = siege.run(text, within_s=200)
    check_conserved(ran)
    lengths = ran.summary.groups[0].prompt_lengths
    assert lengths is not None and (lengths.method, lengths.n) == (way, 40)
    assert lengths.error_p95 is not None and lengths.error_p95 <= {"endpoint": 0.02, "calibrated": 0.05}[way], lengths
