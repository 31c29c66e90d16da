"""Engine profiles against what the engines themselves said (captures), and against each other."""

from __future__ import annotations

import dataclasses
import json
import urllib.request
from pathlib import Path
from typing import Any

import engines
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.engine_names import ENGINES, Term
from prometheus_client.parser import text_string_to_metric_families

from infersiege.channels import DIALECTS, LATER_DIALECTS, PROFILES
from infersiege.channels.redaction import Secrets
from infersiege.channels.server_facts import FactsPage, facts_of
from infersiege.channels.url import root_url

FULL = ("vllm", "sglang", "llama.cpp")
FILES = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}


def test_every_engine_of_the_plan_has_a_profile() -> None:
    assert set(PROFILES) == {
        *FULL,
        *("lmdeploy", "tgi", "tensorrt-llm", "openai", "taotoken", "anthropic", "generic"),
    }
    assert {name: profile.name for name, profile in PROFILES.items()} == {name: name for name in PROFILES}
    assert len({profile.title for profile in PROFILES.values()}) == len(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_can_be_used_now(name: str) -> None:
    profile = PROFILES[name]
    assert profile.default_dialect in DIALECTS
    assert profile.default_dialect not in LATER_DIALECTS
    for path in (profile.health_path, profile.models_path, profile.metrics_path, profile.version_path):
        assert path is None or path.startswith("/")
    assert (profile.version_path is None) == (profile.version_key is None)
    assert ("running" not in profile.metrics) == (profile.metrics_path is None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", FULL)
def test_the_engines_that_run_here_are_complete(name: str) -> None:
    profile = PROFILES[name]
    assert profile.known_from == "runs"
    assert profile.default_port
    expected = ("health_path", "models_path", "metrics_path", "version_path", "facts_paths", "tokenizer")
    for field in (*expected, "ignore_eos_fields", "cached_tokens_hint", "launch_hint"):
        assert getattr(profile, field), field


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (FULL, "runs"),
        (("lmdeploy", "tgi", "tensorrt-llm"), "source"),
        (("openai", "taotoken", "anthropic"), "documents"),
        (("generic",), "nothing"),
    ],
)
def test_each_profile_says_where_its_facts_come_from(names: tuple[str, ...], source: str) -> None:
    assert {name for name, profile in PROFILES.items() if profile.known_from == source} == set(names)


def test_tgi_is_in_maintenance_and_says_so() -> None:
    assert {name for name, profile in PROFILES.items() if profile.note is not None} == {"tgi"}
    assert (PROFILES["tgi"].note or "").startswith("in maintenance")


def written(term: Term) -> str:
    return term.metric + (f"{{{term.label}=…{term.ending}}}" if term.ending else "")


@pytest.mark.parametrize("name", PROFILES)
def test_metric_names_are_those_of_the_agent(name: str) -> None:
    """The agent's newest ones: the profile tells people, the agent reads, and both must mean the same series."""
    profile, agent = PROFILES[name], ENGINES.get(name)
    if agent is None:
        assert not profile.metrics and profile.metrics_path is None, "a cloud shows no metrics"
        return
    assert profile.metrics_path == agent.path
    # The share as a gauge is what older vLLMs had in place of the two counters.
    newest = {field: sources[0] for field, sources in agent.fields.items()}
    if name == "vllm":
        del newest["prefix_hit_share"]
    assert profile.metrics == {field: " + ".join(map(written, terms)) for field, terms in newest.items()}


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("vllm", {"ignore_eos": True, "min_tokens": 9}, "a stop string would end it before"),
        ("sglang", {"ignore_eos": True}, "enough"),
        ("llama.cpp", {"ignore_eos": True}, "enough"),
        ("lmdeploy", {"ignore_eos": True}, "min_new_tokens exists in chat only"),
        ("tensorrt-llm", {"ignore_eos": True, "min_tokens": 9}, "as vLLM"),
    ],
)
def test_fields_that_fix_the_output_length(name: str, fields: dict[str, object], why: str) -> None:
    make = PROFILES[name].ignore_eos_fields
    assert make is not None
    assert make(9) == fields, why


@pytest.mark.parametrize("name", ["openai", "anthropic", "taotoken", "generic", "tgi"])
def test_unknown_servers_get_no_field_that_they_might_refuse(name: str) -> None:
    assert PROFILES[name].ignore_eos_fields is None


def test_engines_that_answer_to_any_model_name() -> None:
    assert {name for name, profile in PROFILES.items() if not profile.checks_model} == {"sglang", "llama.cpp", "tgi"}


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("state", ["idle", "under-load"])
def test_the_idle_gauges_are_what_the_engine_calls_them(name: str, state: str, shared: Path) -> None:
    raw = (shared / "captures" / f"{FILES[name]}-metrics-{state}.txt").read_text(encoding="utf-8")
    text = raw[raw.index("# HELP") :]
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    running, waiting = (PROFILES[name].metrics[word].split(" + ") for word in ("running", "waiting"))
    assert {*running, *waiting} <= samples.keys()
    if state == "idle":
        assert not any(samples[gauge] for gauge in (*running, *waiting))
    elif name != "vllm":  # that capture was taken in a gap between two requests
        assert sum(samples[gauge] for gauge in running) > 0


@pytest.mark.parametrize(("name", "file"), [("vllm", "vllm-version"), ("sglang", "sglang-server-info")])
def test_the_version_is_where_the_profile_says(name: str, file: str, shared: Path) -> None:
    raw = (shared / "captures" / f"{file}.txt").read_text(encoding="utf-8")
    profile = PROFILES[name]
    assert profile.version_path is not None
    assert profile.version_path in raw.splitlines()[0]
    assert json.loads(raw[raw.index("{") :])[profile.version_key][0].isdigit()


# ---------------------------------------------------------------------------------------------- facts of the launch

TOLD = {
    "sglang": (
        "sglang-server-info",
        {
            "launch.dtype": "bfloat16",
            "launch.context_length": "1024",
            "launch.mem_fraction_static": "0.719",
            "launch.max_running_requests": "4",
            "launch.max_total_num_tokens": "4096",
            "launch.attention_backend": "torch_native",
            "launch.disable_radix_cache": "false",
            "launch.enable_cache_report": "true",
            "launch.tp_size": "1",
        },
    ),
    "llama.cpp": ("llamacpp-props", {"launch.total_slots": "4", "launch.n_ctx": "2048", "launch.model_ftype": "Q4_1"}),
    "vllm": (
        "vllm-metrics",
        {
            "launch.block_size": "128",
            "launch.num_gpu_blocks": "16384",
            "launch.enable_prefix_caching": "True",
            "launch.gpu_memory_utilization": "0.92",
        },
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_how_it_was_started_is_where_the_profile_says(name: str, shared: Path) -> None:
    file, expected = TOLD[name]
    raw = (shared / "captures" / f"{file}.txt").read_bytes()
    body = raw.partition(b"\r\n\r\n")[2] if b"\r\n\r\n" in raw else raw.partition(b"\n\n")[2]
    (page,) = PROFILES[name].facts_paths
    assert page.path.encode() in raw.split(b"\n", 1)[0]
    told = facts_of(page, body)
    assert {key: told.get(key) for key in expected} == expected
    # What is null in the capture is left out; everything else of the list is there.
    unset = {"sglang": {"quantization", "speculative_algorithm"}, "vllm": {"num_gpu_blocks_override", "sliding_window"}}
    assert set(page.names) - set(told) == {f"launch.{key}" for key in unset.get(name, ())}


def test_cl_08_the_key_that_a_server_shows_is_not_taken(shared: Path) -> None:
    raw = (shared / "captures" / "sglang-server-info.txt").read_bytes()
    body = raw[raw.index(b"{") :]
    value = json.loads(body)
    assert value["api_key"] == "sk-test" and value["admin_api_key"] == "adm", "SGLang tells its keys to whoever has one"
    told = facts_of(PROFILES["sglang"].facts_paths[0], body)
    assert told
    assert not any("sk-test" in text or text == "adm" for text in told.values())


def test_no_list_of_facts_names_a_secret() -> None:
    words = ("key", "token_", "secret", "password", "auth")
    named = [key for profile in PROFILES.values() for page in profile.facts_paths for key in page.keys]
    assert len(named) > 30
    assert [key for key in named if any(word in key for word in words)] == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b"<html>log in</html>", "a web page"),
        (b"[1, 2]", "no object"),
        (b'{"a": {"b": null}, "c": [1], "d": "", "e": "None"}', "no value, a list, empty text, None as text"),
        (b'{"a": 3, "c": {"deep": 1}}', "another shape"),
        (b"[" * 100_000, "deeper than a parser goes"),
        (b"\xff\xfe", "no text"),
        (b'm{a="1"', "cut"),
        (b"m{a=}} 1\n", "no Prometheus text"),
    ],
)
def test_facts_that_are_not_there_are_left_out(body: bytes, why: str) -> None:
    assert facts_of(FactsPage(path="/x", keys=("a.b", "c", "d", "e")), body) == {}, why
    assert facts_of(FactsPage(path="/x", keys=("a.b", "c"), metric="m"), body) == {}, why


@given(st.binary(max_size=60), st.sampled_from([None, "m"]))
def test_facts_of_anything_are_short_lines(tail: bytes, metric: str | None) -> None:
    page = FactsPage(path="/x", keys=("a",), metric=metric)
    for body in (tail, b'{"a": "' + tail + b'"}', b'm{a="' + tail + b'"} 1\n'):
        for value in facts_of(page, body).values():
            assert value and len(value) <= 200 and value.isprintable()


def test_facts_are_one_short_line_without_what_looks_like_a_secret() -> None:
    page = FactsPage(path="/x", keys=("a", "b"))
    body = json.dumps({"a": "x\n" * 500, "b": "https://user:pw@host/model"}).encode()
    told = facts_of(page, body)
    assert len(told["launch.a"]) == 200 and "\n" not in told["launch.a"]
    assert "pw" not in told["launch.b"]


def test_a_key_across_the_end_of_a_fact_is_taken_out_before_the_cut() -> None:
    key = "Qm8vT4xWz1LpR7yKc2Nd"
    body = json.dumps({"a": f"{'x' * 190} {key}"}).encode()
    told = facts_of(FactsPage(path="/x", keys=("a",)), body, Secrets([key]).scrub)
    assert told == {"launch.a": f"{'x' * 190} [redacted"}


# -------------------------------------------------------------------------------------------------------- on an engine


def ask(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as answer:
        return bytes(answer.read())


@pytest.mark.llamacpp
def test_llama_cpp_tells_what_its_profile_says(llamacpp: engines.Engine) -> None:
    profile = PROFILES["llama.cpp"]
    (page,) = profile.facts_paths
    told = facts_of(page, ask(root_url(llamacpp.base_url, page.path)))
    assert told["launch.total_slots"] == "4" and int(told["launch.n_ctx"]) > 0
    assert set(told) == set(page.names)
    assert profile.version_path and profile.version_key
    assert json.loads(ask(root_url(llamacpp.base_url, profile.version_path)))[profile.version_key]
    counter = profile.tokenizer
    assert counter and counter.count_key
    counted = json.loads(ask(root_url(llamacpp.base_url, counter.path), {counter.text_field: "Hello world"}))
    completion = json.loads(
        ask(f"{llamacpp.base_url}/completions", {"prompt": "Hello world", "max_tokens": 1, "model": llamacpp.model})
    )
    assert len(counted[counter.count_key]) == completion["usage"]["prompt_tokens"]
