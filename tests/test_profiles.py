"""Engine profiles against what the engines themselves said (captures), and against each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infersiege.channels import DIALECTS, LATER_DIALECTS, PROFILES

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
    assert (profile.running_metric is None) == (profile.metrics_path is None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", FULL)
def test_the_engines_that_run_here_are_complete(name: str) -> None:
    profile = PROFILES[name]
    assert profile.ready
    assert profile.default_port
    for field in ("health_path", "models_path", "metrics_path", "cached_tokens_hint", "launch_hint"):
        assert getattr(profile, field), field


def test_profiles_that_nobody_ran_say_so() -> None:
    later = {name for name, profile in PROFILES.items() if not profile.ready}
    assert later == {"lmdeploy", "tgi", "tensorrt-llm", "taotoken", "anthropic"}


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("vllm", {"ignore_eos": True, "min_tokens": 9}, "a stop string would end it before"),
        ("sglang", {"ignore_eos": True}, "enough"),
        ("llama.cpp", {"ignore_eos": True}, "enough"),
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
    assert {name for name, profile in PROFILES.items() if not profile.checks_model} == {"sglang", "llama.cpp"}


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("state", ["idle", "under-load"])
def test_the_idle_gauges_are_what_the_engine_calls_them(name: str, state: str, shared: Path) -> None:
    raw = (shared / "captures" / f"{FILES[name]}-metrics-{state}.txt").read_text(encoding="utf-8")
    text = raw[raw.index("# HELP") :]
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    running, waiting = PROFILES[name].running_metric, PROFILES[name].waiting_metric
    assert running in samples
    assert waiting in samples
    if state == "idle":
        assert samples[running] == samples[waiting] == 0
    elif name != "vllm":  # that capture was taken in a gap between two requests
        assert samples[running] > 0


@pytest.mark.parametrize(("name", "file"), [("vllm", "vllm-version"), ("sglang", "sglang-server-info")])
def test_the_version_is_where_the_profile_says(name: str, file: str, shared: Path) -> None:
    raw = (shared / "captures" / f"{file}.txt").read_text(encoding="utf-8")
    profile = PROFILES[name]
    assert profile.version_path is not None
    assert profile.version_path in raw.splitlines()[0]
    assert json.loads(raw[raw.index("{") :])[profile.version_key][0].isdigit()
