"""The same sessions on real engines in every protocol that they speak: only the channel changes, tokens are their own.

llama.cpp has its own test (`test_run_llamacpp.py`), in every run of the tests. vLLM runs when INFERSIEGE_VLLM names the
Python of an environment that has it, SGLang when INFERSIEGE_SGLANG does: docs/engines.md has the lines that make them.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import engines
import pytest
from prometheus_client.parser import text_string_to_metric_families
from siege import Ran, Siege, check_conserved, plan_text

from infersiege.channels import PROFILES
from infersiege.channels.server_facts import facts_of
from infersiege.channels.url import root_url
from infersiege.records import Outcome, TokensFrom, TurnRecord

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = engines.ROOT / "examples" / "engines"
SCRIPTS = {"vllm": EXAMPLES / "vllm_serve.py", "sglang": EXAMPLES / "sglang_serve.py"}
PYTHONS = {"vllm": "INFERSIEGE_VLLM", "sglang": "INFERSIEGE_SGLANG"}
DIALECTS = ("openai-chat", "openai-completions", "openai-responses", "anthropic-messages")
CACHED = {"vllm": "vllm:prefix_cache_hits_total", "sglang": "sglang:cached_tokens_total"}
"""Tokens of prompts that were in the cache, counted as requests tell them."""
MOST_TOKENS = 12
SESSIONS = 4


@dataclass(frozen=True, slots=True)
class Served:
    """A real engine that answers, and what it counts."""

    engine: str
    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(root_url(self.base_url, path), timeout=30) as answer:
            return bytes(answer.read())

    def send(self, path: str, body: dict[str, object]) -> bytes:
        request = urllib.request.Request(
            root_url(self.base_url, path), json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        value: dict[str, object] = json.loads(self.send(path, body))
        return value

    def counters(self) -> dict[str, float]:
        """Our word -> the engine's count since its start; 0 for what it has not counted yet."""
        names = {**PROFILES[self.engine].metrics, "cached_tokens": CACHED[self.engine]}
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics").decode()):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        words = ("prompt_tokens", "generated_tokens", "cached_tokens", "running", "waiting")
        wanted = {word: names[word] for word in words}
        return {word: found.get(name, 0.0) for word, name in wanted.items()}


@pytest.fixture(scope="module", params=list(SCRIPTS))
def served(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A real engine with a tiny model of random weights."""
    engine: str = request.param
    python = os.environ.get(PYTHONS[engine])
    if not python:
        pytest.skip(f"{PYTHONS[engine]} does not name the Python of an environment with {PROFILES[engine].title}")
    port, log = free_port(), tmp_path_factory.mktemp(engine) / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, str(SCRIPTS[engine]), "--port", str(port)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        engines.wait_for_health("127.0.0.1", port, process, log, 150)
        yield Served(engine, port)
    finally:
        engines.stop(process)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of sessions of two turns each."""
    path = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    rows = (
        [f"Tell me of {city}, its river and its bridges.", "It is old.", "And of its people?", "They sing."]
        for city in ("Oslo", "Rome", "Bern", "Riga")
    )
    roles = ("user", "assistant", "user", "assistant")
    sessions = [[{"role": role, "content": text} for role, text in zip(roles, row, strict=True)] for row in rows]
    path.write_text("\n".join(json.dumps({"messages": session}) for session in sessions), encoding="utf-8")
    return path


def plan_of(served: Served, dialect: str, trace: Path, channel: str = "") -> str:
    return plan_text(
        served.base_url,
        model="tiny",
        engine=served.engine,
        run=f'stop = {{sessions = {SESSIONS}}}\nnonce = "the same words"',
        channel=f'dialect = "{dialect}"\n{channel}',
        workload=f'scenario = "talks"\ntrace = "{trace}"\nmax_tokens = {MOST_TOKENS}',
        load='mode = "closed"\nusers = 3\nramp = "0s"',
    )


def key_of(turn: TurnRecord) -> tuple[str, int]:
    return turn.session_id, turn.turn


class Counting:
    """The engine's counters, read all the time: its growth in a run begins after the preflight, at the first turn."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._stop.wait(0.1):
            began_ns = time.time_ns()
            self._rows.append((began_ns, self._served.counters()))

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def grown(self, first_turn_ns: int) -> dict[str, float]:
        """From the last reading that was over before the first turn began, until now."""
        ended = zip(self._rows, self._rows[1:], strict=False)
        before = [row for (_, row), (next_ns, _) in ended if next_ns < first_turn_ns]
        assert before[-1]["running"] == before[-1]["waiting"] == 0.0, "the preflight's request is over"
        after = self._served.counters()
        return {name: after[name] - before[-1][name] for name in after}


@dataclass(frozen=True, slots=True)
class Judged:
    """A run, and by how much the engine's counters grew by its turns."""

    ran: Ran
    grown: dict[str, float]


@pytest.fixture(scope="module")
def runs(served: Served, talks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """One run in each protocol."""
    found = {}
    for dialect in DIALECTS:
        with Counting(served) as counting:
            ran = Siege(tmp_path_factory.mktemp(dialect)).run(plan_of(served, dialect, talks))
        began = [turn.attempt_ns for turn in ran.turns if turn.attempt_ns is not None]
        assert began, ran.out
        found[dialect] = Judged(ran, counting.grown(min(began)))
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tokens_are_the_engine_s_own_count(dialect: str, served: Served, runs: dict[str, Judged]) -> None:
    ran, grown = runs[dialect].ran, runs[dialect].grown
    check_conserved(ran)
    turns = ran.turns
    assert len(turns) == 2 * SESSIONS
    assert {turn.outcome for turn in turns} == {Outcome.OK}, ran.out
    assert {(turn.dialect, turn.engine) for turn in turns} == {(dialect, served.engine)}
    assert {turn.tokens_from for turn in turns} == {TokensFrom.USAGE}
    assert {turn.model_answered for turn in turns} == {"tiny"}
    assert all(turn.first_token_ns is not None for turn in turns)
    assert sum(turn.prompt_tokens or 0 for turn in turns) == grown["prompt_tokens"]
    assert sum(turn.output_tokens or 0 for turn in turns) == grown["generated_tokens"]
    assert None not in {turn.cached_tokens for turn in turns}, "they were started so that they tell it"
    assert sum(turn.cached_tokens or 0 for turn in turns) == grown["cached_tokens"] > 0
    assert all(0 < (turn.output_tokens or 0) <= MOST_TOKENS for turn in turns)


def test_only_the_protocol_changes(runs: dict[str, Judged]) -> None:
    """The same sessions and turns; where the engine's own chat template makes the prompt, the same prompt tokens."""
    prompts = {
        dialect: {key_of(turn): turn.prompt_tokens for turn in judged.ran.turns} for dialect, judged in runs.items()
    }
    assert prompts["openai-chat"].keys() == prompts["openai-completions"].keys()
    assert prompts["openai-chat"] == prompts["anthropic-messages"] == prompts["openai-responses"]
    hashes = {tuple(judged.ran.plan.trace_hashes.values()) for judged in runs.values()}
    assert len(hashes) == 1


def test_it_tells_what_its_profile_says(served: Served) -> None:
    profile = PROFILES[served.engine]
    assert profile.version_path and profile.version_key
    assert json.loads(served.get(profile.version_path))[profile.version_key][0].isdigit()
    (page,) = profile.facts_paths
    told = facts_of(page, served.get(page.path))
    expected = {
        "vllm": {"launch.block_size": "32", "launch.enable_prefix_caching": "True"},
        "sglang": {"launch.dtype": "bfloat16", "launch.context_length": "1024", "launch.enable_cache_report": "true"},
    }[served.engine]
    assert {name: told.get(name) for name in expected} == expected
    # Most series are there from their first count on.
    asked = {"model": "tiny", "prompt": "The sea", "max_tokens": 8, "ignore_eos": True, "stream": True}
    assert served.send("/v1/completions", asked).endswith(b"data: [DONE]\n\n")
    named = {name.partition("{")[0] for sum_of in profile.metrics.values() for name in sum_of.split(" + ")}
    page_text = served.get("/metrics").decode()
    # Nothing was retracted.
    late = {"sglang:num_retracted_requests_total"}
    assert {
        name for name in named - late if f"{name}{{" not in page_text and f"{name}_bucket{{" not in page_text
    } == set()


def test_its_tokenizer_counts_as_its_prompts_are_counted(served: Served) -> None:
    counter = PROFILES[served.engine].tokenizer
    assert counter and counter.model_field and counter.count_key
    words = "The quick brown fox, 七 and an Ætt."
    counted = served.post(counter.path, {counter.model_field: "tiny", counter.text_field: words})[counter.count_key]
    done = served.post("/v1/completions", {"model": "tiny", "prompt": words, "max_tokens": 1})
    usage = done["usage"]
    assert isinstance(usage, dict) and counted == usage["prompt_tokens"]
