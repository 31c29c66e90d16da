"""Channels from other tools' settings: what is taken, what wins, where keys stay, and what each fault says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.url import endpoint_url
from infersiege.errors import PlanError, UsageError
from infersiege.plan.borrowed import BorrowError, Source, open_key_files, read, source_of, without_folder
from infersiege.plan.faults import Faults
from infersiege.plan.load import load_plan, plan_from_json, plan_hash, plan_json
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import Secrets, api_key

KEY = "sk-borrowed-0123456789"
CODEX = """\
model = "gpt-x"
model_provider = "tao"

[model_providers.tao]
name = "Tao"
base_url = "https://gw.example/api"
env_key = "TAO_KEY"
wire_api = "chat"
"""
CLAUDE: dict[str, Any] = {
    "env": {
        "ANTHROPIC_BASE_URL": "https://gw.example/api",
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": "claude-x",
    },
    "permissions": {"allow": []},
}
CODEX_CHANNEL = 'from_file = "config.toml#model_providers.tao"'
CLAUDE_CHANNEL = 'from_file = "settings.json"'


class Desk:
    """A folder with a plan and other tools' files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, content: str | dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
        path.chmod(0o600)
        return path

    def plan(self, channel: str, *overrides: str, environ: dict[str, str] | None = None) -> Plan:
        text = f'[run]\nduration = "5s"\n[channel.target]\n{channel}\n'
        text += '[[workload]]\nscenario = "short-qa"\ntrace = "builtin:short-qa"\n[load]\nusers = 1\n'
        return load_plan(self.put("plan.toml", text), overrides, {"TAO_KEY": KEY} if environ is None else environ)

    def channel(self, channel: str, *overrides: str, environ: dict[str, str] | None = None) -> Channel:
        return self.plan(channel, *overrides, environ=environ).channels["target"]

    def faults(self, channel: str, *overrides: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
        with pytest.raises(PlanError) as told:
            self.plan(channel, *overrides, environ=environ)
        return told.value.faults


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.put("config.toml", CODEX)
    desk.put("settings.json", CLAUDE)
    return desk


# --------------------------------------------------------------------------------------------------------------- Codex


def test_a_channel_from_codex(desk: Desk) -> None:
    channel = desk.channel(CODEX_CHANNEL)
    assert (channel.engine, channel.base_url, channel.model) == ("generic", "https://gw.example/api", "gpt-x")
    assert (channel.dialect, channel.api_key_env) == ("openai-chat", "TAO_KEY")
    assert channel.from_file == f"{desk.folder}/config.toml#model_providers.tao"
    assert api_key(channel, {"TAO_KEY": "from-the-variable"}) == "from-the-variable"


CODEX_CASES: list[tuple[str, dict[str, object], str]] = [
    ('base_url = "https://h/v1"\nwire_api = "responses"', {"dialect": "openai-responses"}, "the other protocol"),
    ('base_url = "https://h/v1"', {"dialect": "openai-responses"}, "today's Codex means responses without a word"),
    ('name = "x"', {"base_url": "https://api.openai.com/v1", "engine": "openai"}, "without an address it is OpenAI's"),
    ('base_url = " https://h/v1 "', {"base_url": "https://h/v1"}, "spaces around a value"),
    (
        'base_url = "https://h/openai"\nquery_params = {api-version = "2025-04-01"}',
        {"base_url": "https://h/openai?api-version=2025-04-01"},
        "Azure's version in the query",
    ),
    ('base_url = "https://h/v1"\nenv_key = ""', {"api_key_env": None}, "an empty name is no name"),
    (
        'base_url = "https://h/v1"\nrequest_max_retries = 4\nstream_idle_timeout_ms = 300000',
        {"retries": 0},
        "its retries are not ours",
    ),
]


@pytest.mark.parametrize(
    ("provider", "expected"), [row[:2] for row in CODEX_CASES], ids=[row[2] for row in CODEX_CASES]
)
def test_what_codex_says(desk: Desk, provider: str, expected: dict[str, object]) -> None:
    desk.put("config.toml", f'model = "m"\n[model_providers.tao]\n{provider}\n')
    channel = desk.channel(CODEX_CHANNEL)
    assert {name: getattr(channel, name) for name in expected} == expected


PLAN_WINS = [
    ('model = "mine"', {"model": "mine", "base_url": "https://gw.example/api"}, "the model alone"),
    ('base_url = "http://127.0.0.1:8000"', {"base_url": "http://127.0.0.1:8000", "model": "gpt-x"}, "the address"),
    ('dialect = "openai-completions"', {"dialect": "openai-completions"}, "the protocol"),
    ('engine = "vllm"', {"engine": "vllm", "base_url": "https://gw.example/api"}, "the engine"),
    ('api_key_env = "OTHER"', {"api_key_env": "OTHER"}, "the key's variable"),
    ('api_key_file = "key"', {"api_key_env": None}, "the key's file, beside which the variable would be a fault"),
    (
        'base_urls = ["http://a/v1", "http://b/v1"]',
        {"base_urls": ("http://a/v1", "http://b/v1"), "base_url": "http://a/v1"},
        "several addresses",
    ),
]


@pytest.mark.parametrize(("own", "expected"), [row[:2] for row in PLAN_WINS], ids=[row[2] for row in PLAN_WINS])
def test_the_plans_own_keys_win(desk: Desk, own: str, expected: dict[str, object]) -> None:
    desk.put("key", "k-in-a-file")
    channel = desk.channel(f"{CODEX_CHANNEL}\n{own}", environ={"TAO_KEY": KEY, "OTHER": "other-key"})
    assert {name: getattr(channel, name) for name in expected} == expected


def test_overrides_reach_a_borrowed_channel(desk: Desk) -> None:
    desk.put("other.toml", CODEX.replace("gpt-x", "gpt-y"))
    channel = desk.channel(CODEX_CHANNEL, "channel.target.from_file=other.toml#model_providers.tao")
    assert channel.model == "gpt-y"


def test_an_engine_that_lacks_codexs_default_protocol_keeps_its_own(desk: Desk) -> None:
    desk.put("config.toml", CODEX.replace('wire_api = "chat"\n', ""))
    assert desk.channel(f'{CODEX_CHANNEL}\nengine = "tgi"').dialect == "openai-chat"


def test_a_provider_whose_name_has_a_dot(desk: Desk) -> None:
    desk.put("config.toml", CODEX.replace("[model_providers.tao]", '[model_providers."my.gw"]'))
    for written in ("'config.toml#model_providers.\"my.gw\"'", '"config.toml#model_providers.my.gw"'):
        assert desk.channel(f"from_file = {written}").base_url == "https://gw.example/api"


def test_a_key_in_codexs_file_is_read_there(desk: Desk) -> None:
    desk.put("config.toml", CODEX.replace('env_key = "TAO_KEY"', f'experimental_bearer_token = "{KEY}"'))
    plan = desk.plan(CODEX_CHANNEL, environ={})
    assert api_key(plan.channels["target"], {}) == KEY
    assert KEY.encode() not in plan_json(plan)


# --------------------------------------------------------------------------------------------------------- Claude Code


def test_a_channel_from_claude_code(desk: Desk) -> None:
    plan = desk.plan(CLAUDE_CHANNEL, environ={})
    channel = plan.channels["target"]
    assert (channel.engine, channel.base_url, channel.model) == ("generic", "https://gw.example/api", "claude-x")
    assert (channel.dialect, channel.api_key_env) == ("anthropic-messages", None)
    assert channel.from_file == f"{desk.folder}/settings.json"
    assert api_key(channel, {}) == KEY


CLAUDE_CASES: list[tuple[dict[str, Any], dict[str, object], str | None, str]] = [
    (
        {"env": {"ANTHROPIC_MODEL": "m", "ANTHROPIC_API_KEY": KEY}},
        {"engine": "anthropic", "base_url": "https://api.anthropic.com/v1"},
        KEY,
        "without an address it is Anthropic's",
    ),
    (
        {"env": {"ANTHROPIC_BASE_URL": "https://api.anthropic.com", "ANTHROPIC_MODEL": "m"}},
        {"engine": "anthropic"},
        None,
        "its own address, and no key",
    ),
    (
        {"env": {"ANTHROPIC_BASE_URL": "https://h", "ANTHROPIC_AUTH_TOKEN": "first", "ANTHROPIC_API_KEY": "second"}}
        | {"model": "m"},
        {"model": "m"},
        "first",
        "the token goes before the key, and the model may stand at the top",
    ),
    (
        {"env": {"ANTHROPIC_BASE_URL": "https://h", "ANTHROPIC_MODEL": "a"}, "model": "b"},
        {"model": "a"},
        None,
        "the variable goes before the setting",
    ),
    (
        {"env": {"ANTHROPIC_BASE_URL": "https://h", "ANTHROPIC_MODEL": "m", "HTTPS_PROXY": "http://p:1"}},
        {"proxy": None},
        None,
        "a proxy variable is never used, wherever it stands",
    ),
]


@pytest.mark.parametrize(
    ("settings", "expected", "key"), [row[:3] for row in CLAUDE_CASES], ids=[row[3] for row in CLAUDE_CASES]
)
def test_what_claude_code_says(
    desk: Desk, settings: dict[str, Any], expected: dict[str, object], key: str | None
) -> None:
    desk.put("settings.json", settings)
    channel = desk.channel(CLAUDE_CHANNEL, environ={})
    assert {name: getattr(channel, name) for name in expected} == expected
    assert api_key(channel, {}) == key


# ------------------------------------------------------------------------------------------------------ keys stay there


def test_the_key_is_in_nothing_that_leaves_the_process(desk: Desk) -> None:
    plan = desk.plan(CLAUDE_CHANNEL, environ={})
    assert KEY.encode() not in plan_json(plan) and KEY not in repr(plan)
    assert plan_from_json(plan_json(plan)) == plan
    assert KEY not in Secrets.of(plan, {}).scrub(f"the server says: {KEY}, {KEY[::-1]}")


def test_a_worker_reads_the_file_on_its_own_host(desk: Desk) -> None:
    """As with api_key_file: the plan holds the path, and what stands there when it is needed counts."""
    plan = plan_from_json(plan_json(desk.plan(CLAUDE_CHANNEL, environ={})))
    desk.put("settings.json", {"env": {"ANTHROPIC_AUTH_TOKEN": "another"}})
    assert api_key(plan.channels["target"], {}) == "another"
    (desk.folder / "settings.json").unlink()
    with pytest.raises(UsageError, match=r"there is no file .*settings\.json"):
        api_key(plan.channels["target"], {})


def test_the_hash_does_not_depend_on_the_folder_but_on_the_place(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = Desk(tmp_path / "b")
    other.put("config.toml", CODEX + '[model_providers.two]\nbase_url = "https://gw.example/api"\nwire_api = "chat"\n')
    here, there = desk.plan(CODEX_CHANNEL), other.plan(CODEX_CHANNEL)
    assert plan_hash(here) == plan_hash(there)
    second = other.plan('api_key_env = "TAO_KEY"\nfrom_file = "config.toml#model_providers.two"')
    assert plan_hash(second) != plan_hash(here)


def test_a_file_with_a_key_that_everybody_may_read_is_noted(desk: Desk) -> None:
    plan = desk.plan(CLAUDE_CHANNEL, environ={})
    assert open_key_files(plan) == ()
    (desk.folder / "settings.json").chmod(0o644)
    (line,) = open_key_files(plan)
    assert line.startswith("channel target: every user of this host may read ") and "chmod 600" in line
    assert KEY not in line


def test_no_note_of_an_open_file_without_a_key(desk: Desk) -> None:
    (desk.folder / "config.toml").chmod(0o644)
    (desk.folder / "settings.json").chmod(0o644)
    assert open_key_files(desk.plan(CODEX_CHANNEL)) == (), "it names a variable"
    assert open_key_files(desk.plan(f'{CLAUDE_CHANNEL}\napi_key_env = "TAO_KEY"')) == (), "its key is not used"


def test_a_key_file_of_ones_own_is_looked_at_too(desk: Desk) -> None:
    desk.put("key", KEY).chmod(0o604)
    plan = desk.plan('engine = "vllm"\nmodel = "m"\napi_key_file = "key"')
    assert len(open_key_files(plan)) == 1


# -------------------------------------------------------------------------------------------------------------- faults


FAULTS: list[tuple[str, str | dict[str, Any] | None, str, str]] = [
    ("config.toml#model_providers.tao", None, "there is no file {folder}/config.toml; from_file = ", "no such file"),
    ("config.toml", CODEX, 'has providers; name one; write "config.toml#model_providers.NAME"', "no place"),
    ("config.toml#providers.x", CODEX, "#providers.x names no provider", "another table"),
    ("config.toml#model_providers.ta", CODEX, "no provider 'ta' in it; there are: tao", "a misspelt name"),
    ("config.toml#model_providers.x", 'model = "m"', "no provider 'x' in it; the file has none", "no providers"),
    ("config.toml#model_providers.tao", "a = [", "config.toml:1: not valid TOML", "broken TOML"),
    (
        "config.toml#model_providers.tao",
        CODEX.replace("https://gw.example/api", "gw.example"),
        "config.toml:6: model_providers.tao.base_url: base_url gw.example has no scheme; write http://gw.example",
        "an address without a scheme",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace('"chat"', '"grpc"'),
        'config.toml:8: model_providers.tao.wire_api: unknown value; "chat" or "responses" can be used',
        "an unknown protocol",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace('"TAO_KEY"', "7"),
        "config.toml:7: model_providers.tao.env_key: no text",
        "a number where a text belongs",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace("TAO_KEY", KEY),
        "config.toml:7: model_providers.tao.env_key: is no name of an environment variable",
        "the key in place of the variable's name",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace("TAO_KEY", "NOT_THERE"),
        "config.toml:7: model_providers.tao.env_key: the environment variable NOT_THERE is not set; export it",
        "a variable that is not set",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace('model = "gpt-x"\n', ""),
        "config.toml names no model; set model in the plan",
        "no model anywhere",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX + f'http_headers = {{X-Auth = "{KEY}"}}\n',
        "config.toml:9: model_providers.tao.http_headers: may hold keys and is not taken over",
        "headers that may be keys",
    ),
    (
        "config.toml#model_providers.tao",
        CODEX.replace('env_key = "TAO_KEY"', "requires_openai_auth = true"),
        "config.toml:7: model_providers.tao.requires_openai_auth: a login or a command gives its key",
        "a key that a login gives",
    ),
    ("settings.json", "{", "settings.json:1: not valid JSON", "broken JSON"),
    ("settings.json", "[]", "settings.json: no table env in it", "no settings"),
    ("settings.json", '{"env": []}', "settings.json: no table env in it", "variables that are none"),
    (
        "settings.json",
        {"env": {"ANTHROPIC_BASE_URL": 5}},
        "settings.json: env.ANTHROPIC_BASE_URL: no text",
        "a number for an address",
    ),
    (
        "settings.json",
        {"env": {"ANTHROPIC_BASE_URL": "https://h"}},
        "settings.json names no model; set model in the plan",
        "Claude Code has a default model, we don't",
    ),
    (
        "settings.json",
        {"env": {"ANTHROPIC_MODEL": "m", "ANTHROPIC_AUTH_TOKEN": f"{KEY}\nmore"}},
        "settings.json: env.ANTHROPIC_AUTH_TOKEN holds more than a key",
        "two lines for a key",
    ),
    (
        "settings.json",
        {"env": {"ANTHROPIC_MODEL": "m"}, "apiKeyHelper": "/bin/key"},
        "settings.json: apiKeyHelper: a command gives its key, and is not run here; name the key in api_key_env",
        "a command for the key",
    ),
    (
        "settings.json",
        {"env": {"ANTHROPIC_MODEL": "m", "ANTHROPIC_CUSTOM_HEADERS": f"X-Auth: {KEY}"}},
        "settings.json: env.ANTHROPIC_CUSTOM_HEADERS: may hold keys and is not taken over",
        "headers that may be keys",
    ),
    ("dir", None, "is a directory, not a file", "a directory"),
    ("#model_providers.x", None, "there is no file {folder}/#model_providers.x", "no path"),
]


@pytest.mark.parametrize(("from_file", "content", "said"), [row[:3] for row in FAULTS], ids=[row[3] for row in FAULTS])
def test_every_fault_has_file_place_and_hint(
    tmp_path: Path, from_file: str, content: str | dict[str, Any] | None, said: str
) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "dir").mkdir()
    if content is not None:
        desk.put(from_file.partition("#")[0], content)
    faults = desk.faults(f'from_file = "{from_file}"')
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"{tmp_path}/plan.toml:4: channel.target.from_file: ")
    assert said.format(folder=tmp_path) in faults[0]
    assert KEY not in faults[0] and "0123456789" not in faults[0]


def test_broken_files_are_not_quoted(desk: Desk) -> None:
    """A parser's message shows what stands where it gave up: here that is a key."""
    for name, text in (("config.toml", f'k = {KEY}"\n'), ("settings.json", f'{{"env": {{"K": {KEY}}}}}')):
        desk.put(name, text)
    for channel in (CODEX_CHANNEL, CLAUDE_CHANNEL):
        (fault,) = desk.faults(channel)
        assert "not valid" in fault and KEY not in fault


def test_a_protocol_that_the_engine_lacks_is_a_fault_when_the_file_asks_for_it(desk: Desk) -> None:
    desk.put("config.toml", CODEX.replace('"chat"', '"responses"'))
    (fault,) = desk.faults(f'{CODEX_CHANNEL}\nengine = "tgi"')
    assert "config.toml:8: model_providers.tao.wire_api: means openai-responses, which Text Generation" in fault


def test_headers_of_the_plan_stand_for_those_of_the_file(desk: Desk) -> None:
    desk.put("config.toml", CODEX + 'http_headers = {X-Org = "a"}\n')
    assert desk.channel(f'{CODEX_CHANNEL}\nheaders = {{X-Org = "a"}}').headers == {"X-Org": "a"}
    assert desk.channel(f"{CODEX_CHANNEL}\nheaders = {{}}").headers == {}


def test_a_login_of_the_other_tool_is_no_fault_where_the_plan_names_a_key(desk: Desk) -> None:
    desk.put("config.toml", CODEX.replace('env_key = "TAO_KEY"', "requires_openai_auth = true"))
    assert desk.channel(f'{CODEX_CHANNEL}\napi_key_env = "TAO_KEY"').api_key_env == "TAO_KEY"


def test_other_faults_of_the_plan_are_told_as_well(desk: Desk) -> None:
    faults = desk.faults('from_file = "nowhere.json"\nretries = -1\nmodle = "x"')
    assert [fault.split(": ")[1] for fault in faults] == [
        "channel.target.from_file",
        "channel.target.retries",
        "channel.target.modle",
    ]


def test_without_the_environment_a_variable_is_not_looked_for(desk: Desk) -> None:
    desk.plan(CODEX_CHANNEL)
    plan = load_plan(desk.folder / "plan.toml", environ={}, check_environment=False)
    assert plan.channels["target"].api_key_env == "TAO_KEY"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a.toml#model_providers.x", Source(Path("/b/a.toml"), "x")),
        ("/etc/#1/a.json", Source(Path("/etc/#1/a.json"), None)),
        ("d#1/a.toml#model_providers.x/y", Source(Path("/b/d#1/a.toml"), "x/y")),
        ("settings.local.json", Source(Path("/b/settings.local.json"), None)),
    ],
)
def test_paths_and_places(written: str, expected: Source) -> None:
    assert source_of(written, Path("/b")) == expected
    assert without_folder(written) == Path(expected.path).name + written.partition(".toml")[2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL", "X"])


@given(
    env=st.dictionaries(NAMES, JSON, max_size=5), top=st.dictionaries(st.sampled_from(["model", "apiKeyHelper"]), JSON)
)
def test_any_settings_give_a_channel_or_a_fault(
    tmp_path_factory: pytest.TempPathFactory, env: dict[str, Any], top: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-settings.json"
    path.write_text(json.dumps({"env": env, **top}), encoding="utf-8")
    try:
        found = read(Source(path, None))
    except BorrowError as error:
        assert str(path) in str(error)
        return
    assert found.key is None or found.key not in found.values.values() or found.key in (env.get("ANTHROPIC_MODEL"), "")
    assert set(found.values) <= {"engine", "base_url", "model", "dialect"}


def test_a_hybrid_channel_borrows_nothing() -> None:
    from infersiege.plan.borrowed import borrow

    raw = {"channel": {"both": {"engine": "hybrid", "from_file": "x.json"}}}
    faults = Faults("plan.toml", {}, ())
    borrow(raw, faults, base=Path(), environ={})
    assert not faults and raw == {"channel": {"both": {"engine": "hybrid", "from_file": "x.json"}}}


def test_the_addresses_in_docs_channels_md_are_those_that_are_asked() -> None:
    text = (Path(__file__).parents[1] / "docs" / "channels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`http.*`) \| `(http[^`]*)` \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for spellings, final in rows:
        for written in re.findall(r"`([^`]+)`", spellings):
            assert endpoint_url(written, "/chat/completions") == final
