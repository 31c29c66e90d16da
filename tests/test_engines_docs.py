"""docs/engines.md against the code: its tables are made of the profiles, its lines can be copied.

After a change of a profile `python tests/test_engines_docs.py` writes the tables anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from infersiege_agents.engine_names import ENGINES

from infersiege.channels import PROFILES, Profile
from infersiege.channels.profiles import MESSAGES
from infersiege.channels.server_facts import FactsPage
from infersiege.plan.load import load_plan

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "engines.md"
README, CHINESE = "README.md", "README.zh-CN.md"
TINY = "examples/plans/tiny.toml"
SOURCES = {"runs": "runs of it", "source": "its source", "documents": "its documents", "nothing": "nothing is known"}
SECTIONS = {"generic": "Any other server", "tgi": "Text Generation Inference (TGI)"}
"""Headings that are not the profile's title."""
HERE = tuple(name for name, profile in PROFILES.items() if profile.default_port is not None)


# ---------------------------------------------------------------------------------------------------------- tables


def code(value: object | None) -> str:
    return "–" if value is None else f"`{value}`"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def body_fields(profile: Profile) -> str:
    """What fixes the output length at N tokens."""
    if profile.ignore_eos_fields is None:
        return "–"
    fields = profile.ignore_eos_fields(987)
    return ", ".join(f"`{name}: {str(value).lower().replace('987', 'N')}`" for name, value in fields.items())


def tokenizer(profile: Profile) -> str:
    endpoint = profile.tokenizer
    if endpoint is None:
        return "–"
    counted = f"`{endpoint.count_key}`" if endpoint.count_key else "the answer's length"
    return f"`POST {endpoint.path}`, text in `{endpoint.text_field}`, count in {counted}"


def key_of_messages(profile: Profile) -> str:
    if MESSAGES not in profile.dialects:
        return "–"
    forms = profile.messages_key or (("x-api-key", ""),)
    return " and ".join(f"`{header}`" for header, _ in forms)


def places(name: str, profile: Profile) -> list[str]:
    dialects = " ".join(dialect + ("*" if dialect == profile.default_dialect else "") for dialect in profile.dialects)
    version = None if profile.version_path is None else f"{profile.version_path} → {profile.version_key}"
    health, models = profile.health_path, profile.models_path and f"/v1{profile.models_path}"
    return [f"`{name}`", code(profile.default_port), *map(code, (health, models, version)), dialects]


def requests(name: str, profile: Profile) -> list[str]:
    checked = "refuses it" if profile.checks_model and profile.default_port is not None else "answers"
    if profile.default_port is None:
        checked = "–"
    told = profile.server_ttft or "–"
    return [f"`{name}`", body_fields(profile), tokenizer(profile), checked, key_of_messages(profile), told]


def metric_rows() -> list[list[str]]:
    words = list(dict.fromkeys(word for profile in PROFILES.values() for word in profile.metrics))
    return [[f"`{word}`", *(code(PROFILES[name].metrics.get(word)) for name in HERE)] for word in words]


def facts(name: str, page: FactsPage) -> list[str]:
    where = f"`{page.path}`" + (f", labels of `{page.metric}`" if page.metric else "")
    return [f"`{name}`", where, " ".join(f"`{one}`" for one in page.names)]


def tables() -> dict[str, list[str]]:
    """Name of a table -> its lines."""
    all_of = PROFILES.items()
    heads: dict[str, tuple[list[str], list[list[str]]]] = {
        "sources": (
            ["engine", "name", "facts from", "note"],
            [[f"`{n}`", p.title, SOURCES[p.known_from], p.note or "–"] for n, p in all_of],
        ),
        "places": (
            ["engine", "port", "health", "models", "version", "dialects (* default)"],
            [places(name, profile) for name, profile in all_of],
        ),
        "requests": (
            [
                *("engine", "fixed output length of N", "tokens of a text", "an unknown model name"),
                *("key of Messages", "its own TTFT in answers"),
            ],
            [requests(name, profile) for name, profile in all_of],
        ),
        "hints": (
            ["engine", "start it so", "when cached tokens are unknown"],
            [[f"`{n}`", code(p.launch_hint), p.cached_tokens_hint or "–"] for n, p in all_of],
        ),
        "metrics": (["figure", *(f"`{name}`" for name in HERE)], metric_rows()),
        "launch": (
            ["engine", "page", "in plan.json"],
            [facts(name, page) for name, profile in all_of for page in profile.facts_paths],
        ),
    }
    return {name: [row(head), row(["---"] * len(head)), *map(row, rows)] for name, (head, rows) in heads.items()}


def written(text: str) -> str:
    """The document with its tables made anew."""
    for name, lines in tables().items():
        inside = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert inside.search(text), f"docs/engines.md has no table {name}"
        text = inside.sub(lambda found, lines=lines: found[1] + "\n".join(["", *lines, "", found[2]]), text)  # type: ignore[misc]
    return text


def test_the_tables_are_those_of_the_profiles() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text), "run `python tests/test_engines_docs.py`"
    assert text.count("<!-- table: ") == len(tables())


# ------------------------------------------------------------------------------------------------------- what to copy


def section(name: str) -> str:
    """The text below the heading of one engine."""
    title = SECTIONS.get(name, PROFILES[name].title)
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/engines.md has no section {title!r}"
    return found[1]


def lines_of(name: str) -> list[list[str]]:
    """The words of each line in the shell blocks of a section."""
    blocks = re.findall(r"^```sh\n(.*?)^```", section(name), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("name", PROFILES)
def test_a_stranger_can_copy_doctor_and_run(name: str) -> None:
    lines = [words[1:3] for words in lines_of(name) if words[0] == "infersiege"]
    plans = {plan for command, plan in lines if command in ("doctor", "run") and plan != TINY}
    assert len(plans) == 1, "one plan for both"
    assert {command for command, _ in lines} >= {"doctor", "run"}
    assert next(iter(plans)).startswith("examples/plans/")
    assert (ROOT / next(iter(plans))).is_file()


@pytest.mark.parametrize("name", HERE)
def test_a_section_starts_the_engine_and_its_agent(name: str) -> None:
    lines = lines_of(name)
    (agent,) = (words for words in lines if words[:2] == ["infersiege-agent", "engine"])
    options = dict(zip(agent[2::2], agent[3::2], strict=True))
    assert options["--url"] == f"http://127.0.0.1:{PROFILES[name].default_port}"
    assert options["--engine"] == name and name in ENGINES
    flags = re.findall(r"--[a-z][a-z-]+", PROFILES[name].launch_hint or "")
    shown = {word.partition("=")[0] for words in lines for word in words}
    # What concerns keys or numbers of one's own is told in the text.
    text = section(name)
    assert [flag for flag in flags if flag not in shown and flag not in text] == []


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_tiny_models_have_the_three_workloads_too(name: str) -> None:
    (options,) = (words[3:] for words in lines_of(name) if words[:3] == ["infersiege", "run", TINY])
    plan = load_plan(ROOT / TINY, tuple(options[1::2]), {})
    (channel,) = plan.channels.values()
    assert (channel.engine, channel.base_url) == (name, f"http://127.0.0.1:{PROFILES[name].default_port}/v1")
    assert len(plan.workloads) == 3


@pytest.mark.parametrize("name", HERE)
def test_the_example_plan_is_of_this_engine_with_the_three_workloads(name: str) -> None:
    plan = load_plan(ROOT / "examples" / "plans" / f"{name}.toml", (), {})
    (channel,) = plan.channels.values()
    assert channel.engine == name
    assert channel.base_url == f"http://127.0.0.1:{PROFILES[name].default_port}/v1"
    assert {workload.trace for workload in plan.workloads} == {
        f"builtin:{scenario}" for scenario in ("short-qa", "long-document", "agent")
    }


@pytest.mark.parametrize("name", ["openai", "anthropic", "taotoken"])
def test_the_example_plan_of_a_cloud_ends_by_itself_and_holds_no_key(name: str) -> None:
    path = ROOT / "examples" / "plans" / f"{name}.toml"
    variable = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "taotoken": "TAOTOKEN_API_KEY"}[name]
    plan = load_plan(path, (), {variable: "sk-none"})
    channel = plan.channels["cloud"]
    assert (channel.engine, channel.api_key_env) == (name, variable)
    assert channel.dialect == PROFILES[name].default_dialect
    assert channel.price is None, "a price that we made up would be believed"
    assert "sk-" not in path.read_text(encoding="utf-8")


def test_scripts_that_the_document_names_are_there() -> None:
    named = set(re.findall(r"examples/engines/\w+\.py", DOCUMENT.read_text(encoding="utf-8")))
    assert named == {f"examples/engines/{file.name}" for file in (ROOT / "examples" / "engines").glob("*.py")}


def test_tgi_s_maintenance_is_told_in_its_section() -> None:
    assert "maintenance" in section("tgi")


@pytest.mark.parametrize("name", HERE)
def test_a_section_tells_what_the_engine_does_not(name: str) -> None:
    """Cached tokens, KV use and TTFT are what people look for; what /metrics lacks is said in words."""
    text = section(name)
    for word, spelled in (("kv_use", "KV"), ("ttft", "TTFT")):
        if word not in PROFILES[name].metrics:
            assert re.search(rf"\bno\b[^.]*{spelled}", text, re.IGNORECASE), f"{name}: {word} is missing, and unsaid"
    assert "cached" in text.lower()


# ------------------------------------------------------------------------------------------------ the page in Chinese


def shell_lines(path: Path) -> list[str]:
    """Lines of the shell blocks, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for raw in block.splitlines() if (line := re.sub(r"\s+#.*", "", raw).strip())]


def test_the_two_readmes_lead_to_each_other() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8").splitlines() for name in (README, CHINESE))
    assert any(f"]({CHINESE})" in line for line in english[:5])
    assert any(f"]({README})" in line for line in chinese[:5])


def test_the_chinese_readme_has_the_commands_of_the_english_one() -> None:
    """The main job: what it leaves out is named here; what it adds is an engine's and a cloud's address."""
    english, chinese = shell_lines(ROOT / README), shell_lines(ROOT / CHINESE)
    left_out = {
        "infersiege run examples/plans/vllm.toml",  # there with the address from the environment
        "locust -f locustfiles/short_qa.py --headless -u 20 -r 2 -t 60s --host http://127.0.0.1:8000/v1 --model NAME",
    }
    assert [line for line in english if line not in chinese and line not in left_out] == []
    added = [line for line in chinese if line not in english]
    assert all(re.match(r"export |infersiege (doctor|run) |infersiege-agent engine ", line) for line in added), added


def test_the_chinese_readme_covers_the_main_job() -> None:
    text = (ROOT / CHINESE).read_text(encoding="utf-8")
    for word in ("make demo", "doctor", "gate", "report", "Grafana", "TAOTOKEN_API_KEY", "https://taotoken.net/api"):
        assert word in text
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    paragraphs = [
        one for one in re.split(r"\n\s*\n", prose) if one.strip() and not one.lstrip().startswith(("#", "!["))
    ]
    assert all(re.search(r"[\u4e00-\u9fff]", one) for one in paragraphs), "a paragraph was left in English"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
