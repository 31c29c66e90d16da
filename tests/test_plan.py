"""Plans: what is read, what is refused, and that every fault has its line."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import ExitCode, InternalError, PlanError, UsageError
from infersiege.plan import Plan, load_plan, plan_from_json, plan_hash, plan_json, resolve
from infersiege.plan.document import document
from infersiege.plan.keys import keys_of, sub_table

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "plans").glob("*.toml"))
EXAMPLE_KEYS = dict.fromkeys(("TAOTOKEN_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "INFLUX_TOKEN"), "k")
"""Every variable that an example names."""

GOOD = """\
[run]
duration = "5m"
[channel.local]
engine = "vllm"
model = "m"
[[workload]]
scenario = "agent"
trace = "builtin:agent"
[load]
users = 4
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(path: Path, *overrides: str, environ: dict[str, str] | None = None) -> list[str]:
    """The faults, without the folder in front."""
    with pytest.raises(PlanError) as caught:
        load_plan(path, overrides, environ or {})
    assert caught.value.exit_code is ExitCode.USAGE
    return [fault.replace(f"{path.parent}/", "") for fault in caught.value.faults]


# ---------------------------------------------------------------------------------------------------- good plans


def test_a_plan_has_its_defaults_filled_in(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD), environ={})
    assert plan.run.name == "plan", "the file's name"
    assert plan.run.duration_ns == 300_000_000_000
    assert plan.run.nonce is None, "new for each run: resolve gives it"
    channel = plan.channels["local"]
    assert (channel.base_url, channel.dialect) == ("http://127.0.0.1:8000/v1", "openai-chat")
    assert plan.workloads[0].channel == "local"
    assert plan.load.users == 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    plan = load_plan(path, environ=EXAMPLE_KEYS)
    assert plan.channels
    assert plan.workloads


def test_there_is_an_example_for_each_kind() -> None:
    assert {path.stem for path in EXAMPLES} >= {"emulator", "vllm", "sglang", "llama.cpp", "taotoken", "ci-gate"}


def test_relative_files_begin_at_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    (folder / "t.jsonl").write_text("{}\n")
    (folder / "ca.pem").write_text("x")
    (folder / "key").write_text("secret-value\n")
    write(folder, GOOD.replace("builtin:agent", "t.jsonl").replace('"m"', '"m"\nca = "ca.pem"\napi_key_file = "key"'))
    monkeypatch.chdir(tmp_path)
    plan = load_plan("plans/plan.toml", environ={})
    assert plan.workloads[0].trace == str(folder / "t.jsonl"), "absolute: workers may run in another folder"
    assert plan.channels["local"].ca == str(folder / "ca.pem")
    assert plan.channels["local"].api_key_file == str(folder / "key")
    assert b"secret-value" not in plan_json(plan)


def test_limits_have_their_metrics_unit(tmp_path: Path) -> None:
    rules = """
[[slo]]
metric = "ttft"
stat = "p99.9"
max = "1.5s"
[[slo]]
metric = "error_share"
max = "1%"
[[slo]]
metric = "cache_share"
min = 0.25
[[slo]]
metric = "throughput"
min = 200
"""
    plan = load_plan(write(tmp_path, GOOD + rules), environ={})
    assert [(slo.at_most, slo.at_least) for slo in plan.slos] == [
        (1500.0, None),
        (0.01, None),
        (None, 0.25),
        (None, 200.0),
    ]
    assert plan.slos[0].stat == "p99_9", "the name that summary.json has"


def test_duration_and_stop_may_both_be_there(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD), ["run.stop={sessions = 10}"], {})
    assert plan.run.stop is not None
    assert (plan.run.stop.sessions, plan.run.duration_ns) == (10, 300_000_000_000)


def test_windows_line_ends_and_a_byte_order_mark_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("users", "user").replace("\n", "\r\n").encode())
    assert faults_of(path) == ["plan.toml:10: load.user: unknown key; did you mean load.users?"]


# ---------------------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("load.users=64", lambda plan: plan.load.users, 64),
        ("run.duration=90s", lambda plan: plan.run.duration_ns, 90_000_000_000),  # no TOML: a string
        ('run.duration="90s"', lambda plan: plan.run.duration_ns, 90_000_000_000),
        ("run.name=2024", lambda plan: plan.run.name, "2024"),  # a string is wanted, so it is one
        ("run.name=true", lambda plan: plan.run.name, "true"),
        ("channel.local.model=org/m:v1=x", lambda plan: plan.channels["local"].model, "org/m:v1=x"),
        ("workload.0.scenario=other", lambda plan: plan.workloads[0].scenario, "other"),
        ("sampling.stop=['a', 'b']", lambda plan: plan.sampling.stop, ("a", "b")),
        ('channel."a.b".model=x', lambda plan: plan.channels["a.b"].model, "x"),
        ("labels.gpu=RTX 4090", lambda plan: plan.labels, {"gpu": "RTX 4090"}),
        ("channel.local.timeouts.idle=5s", lambda plan: plan.channels["local"].timeouts.idle_ns, 5_000_000_000),
    ],
)
def test_overrides(tmp_path: Path, override: str, read: object, expected: object) -> None:
    more = ['channel."a.b".engine=vllm', "workload.0.channel=local"] if "a.b" in override else []
    plan = load_plan(write(tmp_path, GOOD), [*more, override], {})
    assert read(plan) == expected  # type: ignore[operator]


def test_the_last_of_equal_overrides_wins(tmp_path: Path) -> None:
    assert load_plan(write(tmp_path, GOOD), ["load.users=5", "load.users=6"], {}).load.users == 6


def test_an_empty_override_takes_the_key_out(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD), ["load.users=", "load.mode=open", "load.rate=2.5"], {})
    assert (plan.load.mode, plan.load.users, plan.load.rate) == ("open", None, 2.5)


def test_overrides_can_add_a_rule(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD), ["slo.0.metric=ttft", "slo.0.stat=p50", "slo.0.max=1s"], {})
    assert plan.slos[0].at_most == 1000.0


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("load.users", "--set load.users: write --set key=value"),
        ("=5", "--set : no key of a plan"),
        ("a b=5", "--set a b: no key of a plan"),
        ("load.users=lots", "--set load.users: load.users: a string where an integer is needed"),
        ("load.user=5", "--set load.user: load.user: unknown key; did you mean load.users?"),
        ("workload.7.trace=x", "--set workload.7.trace: workload has 1 item, counted from 0"),
        ("workload.x.trace=x", "--set workload.x.trace: workload has 1 item, counted from 0"),
        ("load.users.x=5", "--set load.users.x: load.users is no table"),
        ("load=5", "--set load: load: an integer where a table is needed"),
        (
            "channel.local.api_key=hunter2hunter2",
            "--set channel.local.api_key: channel.local.api_key: keys never stand",
        ),
    ],
)
def test_faulty_overrides_name_themselves(tmp_path: Path, override: str, fault: str) -> None:
    found = faults_of(write(tmp_path, GOOD), override)
    assert any(fault in line for line in found), found
    assert not any("hunter2" in line for line in found)


def test_a_fault_in_an_overridden_key_is_not_the_files(tmp_path: Path) -> None:
    """The file's line 10 is right; what was set instead is not."""
    assert faults_of(write(tmp_path, GOOD), "load={users = 0}") == [
        "--set load: load.users: 0 is too small; the least is 1"
    ]


# ---------------------------------------------------------------------------------------------------- faults

LOAD = "[load]\nusers = 4\n"
CHANNEL = '[channel.local]\nengine = "vllm"\nmodel = "m"\n'
TRACE = 'trace = "builtin:agent"\n'

FAULTS = [
    # what is wrong, what is replaced, by what, the fault
    (
        "unknown key",
        "users = 4",
        "users = 4\nuserz = 5",
        "plan.toml:11: load.userz: unknown key; did you mean load.users?",
    ),
    (
        "key of another table",
        "users = 4",
        "users = 4\nseed = 5",
        "plan.toml:11: load.seed: unknown key; did you mean run.seed?",
    ),
    (
        "attribute instead of key",
        '"5m"',
        '"5m"\nwait_for_workers_ns = 5',
        "plan.toml:3: run.wait_for_workers_ns: unknown key; did you mean run.wait_for_workers?",
    ),
    (
        "unknown key without neighbour",
        "users = 4",
        "users = 4\nzzz = 5",
        "plan.toml:11: load.zzz: unknown key; here are: mode, users",
    ),
    ("unknown table", LOAD, LOAD + "[workers]\n", "plan.toml:11: workers: unknown key; did you mean"),
    ("bare duration", '"5m"', "300", 'plan.toml:2: run.duration: 300 has no unit; write "300s" or "300ms"'),
    ("unitless duration text", '"5m"', '"300"', "plan.toml:2: run.duration: '300' has no unit"),
    ("no duration", '"5m"', '"soon"', "plan.toml:2: run.duration: 'soon' is no duration"),
    ("negative duration", '"5m"', '"-5m"', "plan.toml:2: run.duration: '-5m' is no duration"),
    ("duration 0", '"5m"', '"0s"', "plan.toml:2: run.duration: 0s is too small; it must be above 0s"),
    ("duration as boolean", '"5m"', "true", "plan.toml:2: run.duration: a boolean where a duration is needed"),
    ("float for integer", "users = 4", "users = 4.5", "plan.toml:10: load.users: a float where an integer is needed"),
    (
        "boolean for integer",
        "users = 4",
        "users = true",
        "plan.toml:10: load.users: a boolean where an integer is needed",
    ),
    ("text for integer", "users = 4", 'users = "4"', "plan.toml:10: load.users: a string where an integer is needed"),
    ("below its least", "users = 4", "users = 0", "plan.toml:10: load.users: 0 is too small; the least is 1"),
    (
        "not above its bound",
        TRACE,
        TRACE + "weight = 0\n",
        "plan.toml:9: workload.0.weight: 0 is too small; it must be above 0",
    ),
    ("NaN", TRACE, TRACE + "weight = nan\n", "plan.toml:9: workload.0.weight: nan is not a finite number"),
    ("array for a string", '"m"', '["m"]', "plan.toml:5: channel.local.model: an array where a string is needed"),
    ("empty string", '"m"', '""', "plan.toml:5: channel.local.model: must not be empty"),
    (
        "string for an array",
        LOAD,
        LOAD + '[sampling]\nstop = "x"\n',
        "plan.toml:12: sampling.stop: a string where an array is needed",
    ),
    (
        "item of the wrong type",
        LOAD,
        LOAD + "[sampling]\nstop = ['x', 5]\n",
        "plan.toml:12: sampling.stop.1: an integer where a string is needed",
    ),
    (
        "label of the wrong type",
        LOAD,
        LOAD + "[labels]\ngpu = 4090\n",
        "plan.toml:12: labels.gpu: an integer where a string is needed",
    ),
    (
        "table once instead of an array",
        "[[workload]]",
        "[workload]",
        "plan.toml:6: workload: one table where an array of tables is needed; write [[workload]]",
    ),
    ("array instead of a table", "[load]", "[[load]]", "plan.toml:9: load: an array where a table is needed"),
    (
        "unknown choice",
        "users = 4",
        'users = 4\nmode = "close"',
        "plan.toml:11: load.mode: unknown value 'close'; did you mean 'closed'?",
    ),
    (
        "unknown engine",
        '"vllm"',
        '"vlm"',
        "plan.toml:4: channel.local.engine: unknown value 'vlm'; did you mean 'vllm'?",
    ),
    (
        "dialect that the engine does not speak",
        '"vllm"',
        '"tgi"\ndialect = "anthropic-messages"',
        "plan.toml:5: channel.local.dialect: Text Generation Inference does not speak anthropic-messages; it has "
        "openai-chat or openai-completions",
    ),
    (
        "an output limit that the service refuses, so that every turn would fail",
        'engine = "vllm"\nmodel = "m"\n[[workload]]',
        'engine = "openai"\nmodel = "m"\ndialect = "openai-responses"\n[[workload]]\nmax_tokens = 8',
        "plan.toml:8: workload.0.max_tokens: channel local takes no limit below 16 (its dialect's least); write 16 or "
        "more",
    ),
    (
        "the same limit for all workloads",
        'engine = "vllm"\nmodel = "m"\n[[workload]]',
        'engine = "openai"\nmodel = "m"\ndialect = "openai-responses"\n[sampling]\nmax_tokens = 15\n[[workload]]',
        "plan.toml:8: sampling.max_tokens: channel local takes no limit below 16 (its dialect's least); write 16 or "
        "more",
    ),
    (
        "a field of the body that comes from the trace, in this dialect's word",
        '"m"',
        '"m"\ndialect = "openai-completions"\nextra_body = {prompt = "x"}',
        "plan.toml:7: channel.local.extra_body.prompt: is set by infersiege itself; it comes from the workload's trace",
    ),
    (
        "several answers per request",
        '"m"',
        '"m"\nextra_body = {n = 2}',
        "plan.toml:6: channel.local.extra_body.n: can't be measured: several answers in one stream have no times of "
        "their own; send one request for each",
    ),
    (
        "TK-13: an output length that nothing would fix",
        '"vllm"',
        '"tgi"\nignore_eos = true',
        "plan.toml:5: channel.local.ignore_eos: no field of Text Generation Inference that fixes the length is known; "
        "put yours in extra_body",
    ),
    (
        "an output length that this dialect can't fix",
        '"m"',
        '"m"\ndialect = "anthropic-messages"\nignore_eos = true',
        "plan.toml:7: channel.local.ignore_eos: anthropic-messages has no field for it; use one of openai-chat, "
        "openai-completions",
    ),
    (
        "no stages in it",
        "users = 4",
        "stages = []",
        "plan.toml:10: load.stages: there are none in it; write [[load.stages]]",
    ),
    (
        "no such file of checks",
        '"m"',
        '"m"\n[quality]\nfile = "q.jsonl"',
        "plan.toml:7: quality.file: q.jsonl: cannot be read: No such file or directory; quality.file names it",
    ),
    ("no model", 'model = "m"\n', "", "plan.toml:3: channel.local.model: is missing; model name to ask for"),
    ("no channel", CHANNEL, "", "plan.toml: channel: is missing; write [channel.NAME]: where requests go"),
    (
        "no workload",
        '[[workload]]\nscenario = "agent"\n' + TRACE,
        "",
        "plan.toml: workload: is missing; write [[workload]]: what is sent",
    ),
    ("no end", 'duration = "5m"', "seed = 1", 'plan.toml:1: run: the run has no end; set duration = "5m"'),
    ("empty stop", '"5m"', '"5m"\nstop = {}', "plan.toml:3: run.stop: says nothing"),
    (
        "all warm-up",
        "users = 4",
        'users = 4\nwarmup = "5m"',
        "plan.toml:11: load.warmup: the warm-up (5m) takes the whole run (5m)",
    ),
    ("closed without users", "users = 4", 'drain = "1s"', "plan.toml:9: load: mode closed needs users"),
    (
        "closed with a rate",
        "users = 4",
        "users = 4\nrate = 1.0",
        "plan.toml:11: load.rate: means nothing in mode closed, only in open",
    ),
    ("open without a rate", "users = 4", 'mode = "open"', "plan.toml:9: load: mode open needs rate"),
    (
        "open with users",
        "users = 4",
        'mode = "open"\nrate = 1.0\nusers = 4',
        "plan.toml:12: load.users: means nothing in mode open, only in closed",
    ),
    (
        "speed without replay",
        "users = 4",
        "users = 4\nspeed = 2.0",
        "plan.toml:11: load.speed: means nothing in mode closed, only in replay",
    ),
    (
        "server without an address",
        '"vllm"',
        '"generic"',
        "plan.toml:3: channel.local.base_url: is missing; generic has no default address",
    ),
    (
        "base URL without a scheme",
        '"m"',
        '"m"\nbase_url = "h:8000"',
        "plan.toml:6: channel.local.base_url: base_url h:8000 has no scheme",
    ),
    (
        "bad port",
        '"m"',
        '"m"\nbase_url = "http://h:99999"',
        "plan.toml:6: channel.local.base_url: base_url can't be taken apart: the port",
    ),
    (
        "header that is ours",
        '"m"',
        '"m"\nheaders = {Host = "x"}',
        "plan.toml:6: channel.local.headers.Host: is set by infersiege itself",
    ),
    (
        "header with a line end",
        '"m"',
        '"m"\nheaders = {x = "a\\nb"}',
        "plan.toml:6: channel.local.headers.x: its value must be printable ASCII",
    ),
    (
        "header name",
        '"m"',
        '"m"\nheaders = {"x y" = "a"}',
        'plan.toml:6: channel.local.headers."x y": is no name of an HTTP header',
    ),
    ("no CA file", '"m"', '"m"\nca = "none.pem"', "plan.toml:6: channel.local.ca: there is no file none.pem"),
    (
        "CA and insecure",
        '"m"',
        '"m"\nca = "plan.toml"\ninsecure = true',
        "plan.toml:6: channel.local.ca: nothing is verified with insecure = true",
    ),
    (
        "date in a body",
        '"m"',
        '"m"\nextra_body = {since = 2024-01-01}',
        "plan.toml:6: channel.local.extra_body.since: 2024-01-01 has no form in JSON",
    ),
    (
        "channel that is not there",
        TRACE,
        TRACE + 'channel = "lcal"\n',
        "plan.toml:9: workload.0.channel: there is no channel 'lcal'; did you mean 'local'?",
    ),
    (
        "two channels, none named",
        CHANNEL,
        CHANNEL + CHANNEL.replace("local", "b"),
        "plan.toml:9: workload.0: needs a channel, since there are several: local, b",
    ),
    (
        "same scenario and channel",
        TRACE,
        TRACE + '[[workload]]\nscenario = "agent"\n' + TRACE,
        "plan.toml:10: workload.1.scenario: 'agent' is on this channel already (workload.0)",
    ),
    ("no trace file", "builtin:agent", "none.jsonl", "plan.toml:8: workload.0.trace: there is no file none.jsonl"),
    (
        "forgotten prefix",
        "builtin:agent",
        "agent",
        'plan.toml:8: workload.0.trace: there is no file agent; for the built-in one write "builtin:agent"',
    ),
    ("device as a trace", "builtin:agent", "/dev/null", "plan.toml:8: workload.0.trace: /dev/null is a device"),
    (
        "unknown built-in",
        "builtin:agent",
        "builtin:agents",
        "plan.toml:8: workload.0.trace: there is no built-in workload 'agents'; did you mean 'agent'?",
    ),
    (
        "option of a built-in",
        TRACE,
        TRACE + "options = {zzz = 1}\n",
        "plan.toml:9: workload.0.options: option 'zzz' is unknown",
    ),
    (
        "format of a built-in",
        TRACE,
        TRACE + 'format = "mooncake"\n',
        "plan.toml:9: workload.0.format: a built-in workload is no file",
    ),
    (
        "warm-up of all",
        "users = 4",
        'users = 4\nwarmup = "5m"',
        "plan.toml:11: load.warmup: the warm-up (5m) takes the",
    ),
    (
        "ramp of all",
        "users = 4",
        'users = 4\nramp = "6m"',
        "plan.toml:11: load.ramp: the ramp (6m) takes the whole run",
    ),
    (
        "shorter than the usual ramp",
        '"5m"',
        '"1s"',
        "plan.toml:2: run.duration: the ramp (1s) takes the whole run (1s)",
    ),
    (
        "users by accident",
        "users = 4",
        f"users = {10**20}",
        "plan.toml:10: load.users: 100000000000000000000 is too large",
    ),
    ("users of 4,000 digits", "users = 4", f"users = {10**4000}", "plan.toml:10: load.users: 10000000000"),
    (
        "seed beyond 64 bits",
        '"5m"',
        f'"5m"\nseed = {1 << 63}',
        "plan.toml:3: run.seed: 9223372036854775808 is too large",
    ),
    ("duration nan", '"5m"', "nan", "plan.toml:2: run.duration: nan is not a finite number"),
    ("duration inf", '"5m"', "inf", "plan.toml:2: run.duration: inf is not a finite number"),
    ("duration of a year", '"5m"', '"8000h"', "plan.toml:2: run.duration: 8000h is too large; the most is 720h"),
    ("duration without end", '"5m"', f'"{"9" * 4000}s"', "plan.toml:2: run.duration: '999999"),
    ("rate 0", "users = 4", 'mode = "open"\nrate = 0', "plan.toml:11: load.rate: 0 is too small; the least is 1e-06"),
    (
        "rate 1e300",
        "users = 4",
        'mode = "open"\nrate = 1e300',
        "plan.toml:11: load.rate: 1e+300 is too large; the most is",
    ),
    ("rate no float can hold", "users = 4", f'mode = "open"\nrate = {10**400}', "plan.toml:11: load.rate: 1000000000"),
    (
        "speed 1e-300",
        "users = 4",
        'mode = "replay"\nspeed = 1e-300',
        "plan.toml:11: load.speed: 1e-300 is too small; the",
    ),
    (
        "speed 1e300",
        "users = 4",
        'mode = "replay"\nspeed = 1e300',
        "plan.toml:11: load.speed: 1e+300 is too large; the",
    ),
    (
        "scale 1e300",
        TRACE,
        TRACE + "length_scale = 1e300\n",
        "plan.toml:9: workload.0.length_scale: 1e+300 is too large",
    ),
    ("scale inf", TRACE, TRACE + "output_scale = inf\n", "plan.toml:9: workload.0.output_scale: inf is not a finite"),
    (
        "tokens by accident",
        TRACE,
        TRACE + f"max_tokens = {10**12}\n",
        "plan.toml:9: workload.0.max_tokens: 1000000000000 is",
    ),
    ("name over two lines", '"agent"', r'"a\nb"', "plan.toml:7: workload.0.scenario: must be at most 80 printable"),
    ("escape in a name", '"agent"', r'"a\u001b[2J"', "plan.toml:7: workload.0.scenario: must be at most 80 printable"),
    ("name of 81", '"agent"', f'"{"x" * 81}"', "plan.toml:7: workload.0.scenario: must be at most 80 printable"),
    (
        "stream in the body",
        '"m"',
        '"m"\nextra_body = {stream = false}',
        "plan.toml:6: channel.local.extra_body.stream: is set by infersiege itself; set the channel's stream instead",
    ),
    (
        "model in the body",
        '"m"',
        '"m"\nextra_body = {model = "n"}',
        "plan.toml:6: channel.local.extra_body.model: is set by infersiege itself",
    ),
    (
        "messages in the body",
        '"m"',
        '"m"\nextra_body = {messages = []}',
        "plan.toml:6: channel.local.extra_body.messages: is set by infersiege itself",
    ),
    (
        "whole number beyond 64 bits in a body",
        '"m"',
        f'"m"\nextra_body = {{seed = {1 << 70}}}',
        "plan.toml:6: channel.local.extra_body.seed: 1180591620717411303424 is beyond 64 bits",
    ),
    (
        "device as a trace",
        "builtin:agent",
        "/dev/zero",
        "plan.toml:8: workload.0.trace: /dev/zero is a device, not a file",
    ),
    (
        "device as a key",
        '"m"',
        '"m"\napi_key_file = "/dev/zero"',
        "plan.toml:6: channel.local.api_key_file: /dev/zero is a",
    ),
    (
        "device as a CA",
        '"m"',
        '"m"\nca = "/dev/zero"',
        "plan.toml:6: channel.local.ca: /dev/zero is a device, not a file",
    ),
    ("name that no file can have", "builtin:agent", "x" * 5000, "plan.toml:8: workload.0.trace: xxxxxxxx"),
    (
        "home of nobody",
        "builtin:agent",
        "~no-such-user/t",
        "plan.toml:8: workload.0.trace: there is no file ~no-such-user",
    ),
]


@pytest.mark.parametrize(("old", "new", "fault"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_one_fault(tmp_path: Path, old: str, new: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly this fault, at its line: a slip must not cause others that lead astray."""
    assert GOOD.count(old) == 1
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD.replace(old, new))
    found = faults_of(Path("plan.toml"))
    assert len(found) == 1, found
    assert found[0].startswith(fault), found


RULES = [
    ("typo", 'metric = "tfft"\nmax = "1s"', "plan.toml:12: slo.0.metric: unknown value 'tfft'; did you mean 'ttft'?"),
    ("no statistic", 'metric = "ttft"\nmax = "1s"', "plan.toml:11: slo.0: ttft is a distribution and needs stat: mean"),
    (
        "statistic of a rate",
        'metric = "throughput"\nstat = "p99"\nmin = 5',
        "plan.toml:13: slo.0.stat: throughput is one number",
    ),
    ("unknown statistic", 'metric = "ttft"\nstat = "p98"\nmax = "1s"', "plan.toml:13: slo.0.stat: unknown value 'p98'"),
    ("no limit", 'metric = "ttft"\nstat = "p99"', "plan.toml:11: slo.0: has no limit"),
    (
        "time without a unit",
        'metric = "ttft"\nstat = "p99"\nmax = 800',
        'plan.toml:14: slo.0.max: 800 has no unit; write "800ms"',
    ),
    (
        "share for a time",
        'metric = "ttft"\nstat = "p99"\nmax = "1%"',
        "plan.toml:14: slo.0.max: '1%' is a share, but the metric is a time",
    ),
    ("time for a share", 'metric = "error_share"\nmax = "1s"', "plan.toml:13: slo.0.max: '1s' is no share"),
    ("share above 1", 'metric = "error_share"\nmax = 5', "plan.toml:13: slo.0.max: 5 is not between 0 and 1"),
    (
        "time for a rate",
        'metric = "throughput"\nmin = "1s"',
        "plan.toml:13: slo.0.min: '1s' does not fit the metric's unit (tokens/s)",
    ),
    ("time nan", 'metric = "ttft"\nstat = "p99"\nmax = nan', "plan.toml:14: slo.0.max: nan is not a finite number"),
    ("time inf", 'metric = "ttft"\nstat = "p99"\nmax = inf', "plan.toml:14: slo.0.max: inf is not a finite number"),
    ("share nan", 'metric = "error_share"\nmax = nan', "plan.toml:13: slo.0.max: nan is not a finite number"),
    ("rate nan", 'metric = "throughput"\nmin = nan', "plan.toml:13: slo.0.min: nan is not a finite number"),
    ("rate inf", 'metric = "throughput"\nmin = inf', "plan.toml:13: slo.0.min: inf is not a finite number"),
    ("impossible range", 'metric = "throughput"\nmin = 5\nmax = 4', "plan.toml:13: slo.0.min: 5 is above max (4)"),
    (
        "no such scenario",
        'metric = "throughput"\nmin = 5\nscenario = "agnt"',
        "plan.toml:14: slo.0.scenario: there is no scenario 'agnt'; did you mean 'agent'?",
    ),
    (
        "no such channel",
        'metric = "throughput"\nmin = 5\nchannel = "x"',
        "plan.toml:14: slo.0.channel: there is no channel 'x'; there are: local",
    ),
]


@pytest.mark.parametrize(("rule", "fault"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_gt_02_a_rule_that_could_never_be_judged_is_a_fault_before_the_run(
    tmp_path: Path, rule: str, fault: str
) -> None:
    found = faults_of(write(tmp_path, f"{GOOD}[[slo]]\n{rule}\n"))
    assert len(found) == 1, found
    assert found[0].startswith(fault), found


def test_st_26_a_ttft_rule_without_streaming_is_a_fault(tmp_path: Path) -> None:
    text = GOOD.replace('"m"', '"m"\nstream = false') + '[[slo]]\nmetric = "ttft"\nstat = "p99"\nmax = "1s"\n'
    assert faults_of(write(tmp_path, text)) == [
        "plan.toml:13: slo.0.metric: ttft exists only with streaming, but stream = false on channel local"
    ]


def test_a_rule_over_a_streamed_and_a_silent_channel_is_fine(tmp_path: Path) -> None:
    text = GOOD.replace("[[workload]]\n", '[[workload]]\nchannel = "local"\n') + (
        '[channel.b]\nengine = "vllm"\nmodel = "m"\nstream = false\n'
        '[[workload]]\nscenario = "agent"\ntrace = "builtin:agent"\nchannel = "b"\n'
        '[[slo]]\nmetric = "ttft"\nstat = "p99"\nmax = "1s"\n'
    )
    assert load_plan(write(tmp_path, text), environ={}).slos
    only_b = load_plan(write(tmp_path, text), environ={}, overrides=["slo.0.channel=local"])
    assert only_b.slos[0].channel == "local"
    assert "stream = false on channel b" in faults_of(write(tmp_path, text), "slo.0.channel=b")[0]


def test_all_faults_at_once_in_file_order(tmp_path: Path) -> None:
    text = """\
[load]
users = -1
[[workload]]
scenario = "a"
trace = "nowhere.jsonl"
[channel.x]
engine = "vllm"
modle = "m"
[run]
duration = 5
[[slo]]
metric = "ttfft"
max = "1s"
"""
    found = faults_of(write(tmp_path, text), "labels.x=1", "load.zzz=1")
    assert [line.split(":")[1] for line in found[:5]] == ["2", "5", "8", "10", "12"]
    assert len(found) == 6
    assert found[5].startswith("--set load.zzz"), "what was set comes after the file"


def test_the_message_counts_the_faults(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("users", "user"))
    with pytest.raises(PlanError, match=r"plan\.toml: the plan has a fault$") as one:
        load_plan(path, environ={})
    assert len(one.value.faults) == 1
    write(tmp_path, GOOD.replace("users", "user").replace('"5m"', "5"))
    with pytest.raises(PlanError, match=r"plan\.toml: the plan has 2 faults$") as two:
        load_plan(path, environ={})
    assert len(two.value.faults) == 2


# ---------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("where", "addition"),
    [
        ("channel.local.api_key", 'api_key = "{key}"'),
        ("channel.local.token", 'token = "{key}"'),
        ("channel.local.headers.Authorization", 'headers = {{Authorization = "Bearer {key}"}}'),
        ("channel.local.headers.X-Api-Key", 'headers = {{X-Api-Key = "{key}"}}'),
        ("channel.local.headers.x-other", 'headers = {{x-other = "{key}"}}'),
        ("channel.local.extra_body.user", 'extra_body = {{user = "{key}"}}'),
        ("channel.local.extra_body.api_key", 'extra_body = {{api_key = "{key}"}}'),
        ("channel.local.base_url", 'base_url = "http://u:{key}@h/v1"'),
        ("channel.local.base_url", 'base_url = "http://h/v1?api_key={key}"'),
        ("channel.local.api_key_env", 'api_key_env = "{key}"'),
    ],
)
def test_cl_08_a_key_in_the_plan_is_a_fault_that_does_not_show_it(tmp_path: Path, where: str, addition: str) -> None:
    key = "sk-test-123456"
    found = faults_of(write(tmp_path, GOOD.replace('"m"', '"m"\n' + addition.format(key=key))))
    assert len(found) == 1, found
    assert found[0].startswith(f"plan.toml:6: {where}: ")
    assert "123456" not in found[0]


@pytest.mark.parametrize(
    ("header", "refused"),
    [
        *[(name, True) for name in ("Ocp-Apim-Subscription-Key", "x-functions-key", "x-auth", "Helicone-Auth")],
        *[(name, True) for name in ("X-Amz-Security-Token", "CF-Access-Client-Secret", "apikey", "Cookie", "x-jwt")],
        *[(name, False) for name in ("Idempotency-Key", "x-routing-key", "x-token-count", "x-author", "x-tenant")],
    ],
)
def test_cl_08_a_header_that_is_named_as_a_key_is_a_fault(tmp_path: Path, header: str, refused: bool) -> None:
    path = write(tmp_path, GOOD.replace('"m"', f'"m"\nheaders = {{{header} = "hunter2hunter2"}}'))
    if not refused:
        assert load_plan(path, environ={}).channels["local"].headers[header] == "hunter2hunter2"
        return
    found = faults_of(path)
    assert found[0].startswith(f"plan.toml:6: channel.local.headers.{header}: looks like a secret")
    assert "hunter2" not in found[0]


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({}, "the environment variable MY_KEY is not set"),
        ({"MY_KEY": "  "}, "the environment variable MY_KEY is empty"),
        ({"MY_KEY": "two words"}, "the environment variable MY_KEY holds more than a key"),
        ({"MY_KEY": "schlüssel"}, "the environment variable MY_KEY holds more than a key"),
    ],
)
def test_a_key_that_is_not_there_is_named_by_its_variable(tmp_path: Path, environ: dict[str, str], fault: str) -> None:
    path = write(tmp_path, GOOD.replace('"m"', '"m"\napi_key_env = "MY_KEY"'))
    found = faults_of(path, environ=environ)
    assert found[0].startswith(f"plan.toml:6: channel.local.api_key_env: {fault}")
    assert not any(value in found[0] for value in environ.values() if value.strip())
    assert load_plan(path, environ=environ, check_environment=False).channels["local"].api_key_env == "MY_KEY"


def test_a_key_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    found = faults_of(write(tmp_path, GOOD.replace('"m"', '"m"\napi_key_file = "nokey"')))
    assert found == ["plan.toml:6: channel.local.api_key_file: there is no file nokey"]


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the plan is empty"),
        (b" \n\n", "the plan is empty"),
        (b"[run]\nname = 'caf\xe9'\n", "plan.toml:2: not UTF-8 text"),
        (b"[run]\nduration = 5m\n", "plan.toml:2:13: "),
        (b"[run]\na = 1\na = 2\n", "plan.toml:3:6: cannot overwrite a value"),
        (b"[run\n", "plan.toml:1:5: "),
        (b'[run]\nname = """x', "plan.toml:2: "),
        (b"[run]\nseed = " + b"9" * 5000, "plan.toml: "),
        (b"a = " + b"[" * 5000, "plan.toml"),
        (b"a = " + b"[" * 120 + b"]" * 120, "plan.toml: nested too deeply"),
        (b"[a" + b".a" * 5000 + b"]", "plan.toml: nested too deeply"),
        (b"#" * (5 << 20), "larger than 4 MiB"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_plan(path, environ={})
    said = [str(caught.value), *getattr(caught.value, "faults", ())]
    assert any(message in line for line in said), said
    assert not any("\n" in line for line in said)
    assert caught.value.hint is not None or "nested" in str(caught.value)


@pytest.mark.timeout(20)
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe waits for a writer and a device never ends: neither may hang a plan or what it names."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, reason in (
        (tmp_path / "pipe", "the plan is a pipe, not a file"),
        (Path("/dev/zero"), "the plan is a device, not a file"),
        (tmp_path / "loop", "the plan cannot be read: Too many levels of symbolic links"),
    ):
        with pytest.raises(UsageError, match=reason):
            load_plan(path)
    plan = write(tmp_path, GOOD.replace("builtin:agent", "pipe").replace('"m"', '"m"\nca = "loop"'))
    assert faults_of(plan) == [
        f"plan.toml:6: channel.local.ca: loop cannot be read: {os.strerror(errno.ELOOP)}",
        "plan.toml:9: workload.0.trace: pipe is a pipe, not a file",
    ]
    with_items = write(tmp_path, f'{GOOD}\n[quality]\nfile = "pipe"\n')
    assert [fault.partition(": ")[2] for fault in faults_of(with_items)] == [
        "quality.file: pipe: is a pipe, not a file; quality.file names it"
    ]
    link = tmp_path / "link.toml"
    link.symlink_to(write(tmp_path, GOOD))
    assert load_plan(link).run.name == "link", "a link to a file is one"


def test_an_open_loop_of_more_sessions_than_anybody_means(tmp_path: Path) -> None:
    changes = ["load.users=", "load.mode=open", "load.rate=1e5"]
    found = faults_of(write(tmp_path, GOOD), *changes, "run.duration=1h")
    assert found == [
        "--set load.rate: load.rate: 100000 a second for 1h are 360,000,000 sessions; the most is 100,000,000"
    ]
    assert load_plan(write(tmp_path, GOOD), [*changes, "run.duration=1h", "run.stop={sessions = 5}"]).load.rate == 1e5


def test_the_ramp_is_the_closed_loops_only(tmp_path: Path) -> None:
    changes = ["load.users=", "load.mode=open", "load.rate=5", "run.duration=1s"]
    assert load_plan(write(tmp_path, GOOD), changes).run.duration_ns == 1_000_000_000


def test_a_file_that_is_not_there_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file") as missing:
        load_plan(tmp_path / "none.toml")
    assert "examples/plans" in (missing.value.hint or "")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_plan(tmp_path)


# ---------------------------------------------------------------------------------------------------- resolved plans


def test_resolve_gives_a_new_nonce_unless_the_plan_has_one(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD), environ={})
    first, second = (resolve(plan, 0, random.Random(seed)).run.nonce for seed in (1, 2))
    assert first
    assert first != second
    fixed = load_plan(write(tmp_path, GOOD), ["run.nonce=same"], {})
    assert resolve(fixed, 0, random.Random(1)) == fixed


def test_plan_json_and_back(tmp_path: Path) -> None:
    for path in [*EXAMPLES, write(tmp_path, GOOD)]:
        plan = load_plan(path, environ=EXAMPLE_KEYS)
        assert plan_from_json(plan_json(plan)) == plan
    with pytest.raises(InternalError):
        plan_from_json(b"{}")


# ------------------------------------------------------------------------------------------------------ telemetry


def telemetry(folder: Path, *lines: str) -> Path:
    return write(folder, GOOD + "[telemetry]\n" + "\n".join(lines) + "\n")


def test_a_whole_telemetry_table_is_read(tmp_path: Path) -> None:
    path = telemetry(
        tmp_path,
        'influx_url = "https://influx.example:8086/db"',
        'influx_bucket = "perf/autogen"',
        'influx_org = "lab"',
        'influx_token_env = "MY_TOKEN"',
        'spool = "spool"',
        "gpu = true",
        "engine_metrics = true",
        'hosts = ["gpu-1", "gpu-2"]',
        'grafana_url = "http://127.0.0.1:3000/grafana/"',
    )
    found = load_plan(path, environ={"MY_TOKEN": "user:pass=="}).telemetry
    assert found.hosts == ("gpu-1", "gpu-2")
    assert found.spool == str(tmp_path / "spool"), "it begins at the plan's folder, whoever starts the run and where"
    assert load_plan(path, environ={}, check_environment=False).telemetry == found
    elsewhere = msgspec.structs.replace(found, spool="/other/spool")
    plan = load_plan(path, environ={"MY_TOKEN": "t"})
    assert plan_hash(plan) == plan_hash(msgspec.structs.replace(plan, telemetry=elsewhere)), "a folder is no part of it"


URL = 'influx_url = "http://127.0.0.1:8086"'


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (['influx_url = "127.0.0.1:8086"'], "12: telemetry.influx_url: not an address of a database; write it like"),
        (['influx_url = "http://h:99999"'], "12: telemetry.influx_url: not an address of a database"),
        (['influx_url = "http://me:pw@h:8086"'], "12: telemetry.influx_url: user, password or query in the address"),
        (
            ['influx_url = "http://h:8086?token=abc"'],
            "12: telemetry.influx_url: user, password or query in the address",
        ),
        (
            [URL, 'influx_token_env = "NOPE"'],
            "13: telemetry.influx_token_env: the environment variable NOPE is not set",
        ),
        (
            [URL, 'influx_token_env = "EMPTY"'],
            "13: telemetry.influx_token_env: the environment variable EMPTY is empty",
        ),
        ([URL, 'influx_token_env = "TWO"'], "13: telemetry.influx_token_env: the environment variable TWO holds more"),
        (
            [URL, 'influx_token_env = "aBc9+/x=="'],
            "13: telemetry.influx_token_env: is no name of an environment variabl",
        ),
        (
            [URL, f'influx_token_env = "apiv3_{"x" * 40}"'],
            "13: telemetry.influx_token_env: is no name of an environment",
        ),
        ([URL, 'influx_org = "sk-abcdefgh1234"'], "13: telemetry.influx_org: looks like a secret"),
        (['influx_bucket = "b"'], "12: telemetry.influx_bucket: means nothing without influx_url"),
        (['influx_org = "o"'], "12: telemetry.influx_org: means nothing without influx_url"),
        (['influx_token_env = "SET"'], "12: telemetry.influx_token_env: means nothing without influx_url"),
        (['spool = "s"'], "12: telemetry.spool: means nothing without influx_url"),
        ([URL, 'spool = "plan.toml"'], "13: telemetry.spool: plan.toml is a file"),
        ([URL, 'spool = ""'], "13: telemetry.spool: must not be empty"),
        (['grafana_url = "grafana:3000"'], "12: telemetry.grafana_url: is no address; write it like"),
        (
            ['grafana_url = "http://g:3000/d/x?orgId=1"'],
            "12: telemetry.grafana_url: has more than Grafana's own address",
        ),
        (['grafana_url = "http://me:pw@g:3000"'], "12: telemetry.grafana_url: has a user or a password in it"),
        (['hosts = ["a", " "]'], "12: telemetry.hosts.1: is empty"),
    ],
)
def test_a_fault_of_telemetry_has_its_place(tmp_path: Path, lines: list[str], fault: str) -> None:
    environ = {"SET": "t", "EMPTY": " ", "TWO": "a\nb"}
    found = faults_of(telemetry(tmp_path, *lines), environ=environ)
    assert len(found) == 1, found
    assert found[0].startswith(f"plan.toml:{fault}"), found
    for secret in ("pw", "aBc9", "abcdefgh1234", "xxxx"):
        assert secret not in found[0].split(": ", 2)[2], "a secret is never repeated"


def test_faults_of_telemetry_come_all_at_once(tmp_path: Path) -> None:
    path = telemetry(tmp_path, 'influx_url = "nope"', 'influx_token_env = "NOPE"', 'grafana_url = "g"', 'hosts = [""]')
    assert [fault.split(": ")[1] for fault in faults_of(path)] == [
        "telemetry.influx_url", "telemetry.influx_token_env", "telemetry.grafana_url", "telemetry.hosts.0"
    ]  # fmt: skip


def test_the_hash_stands_for_what_is_run_not_for_where_or_when(tmp_path: Path) -> None:
    hashes = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.jsonl").write_text("{}\n")
        plan = load_plan(write(tmp_path / folder, GOOD.replace("builtin:agent", "t.jsonl")), environ={})
        hashes.append(plan_hash(resolve(plan, 0, random.Random(folder))))
    assert hashes[0] == hashes[1], "another folder, another nonce"
    assert len(hashes[0]) == 64
    for override in ("load.users=5", "run.seed=2", "labels.gpu=x", "channel.local.model=n", "sampling.temperature=0.5"):
        assert plan_hash(load_plan(tmp_path / "a" / "plan.toml", [override], {})) != hashes[0], override


# ---------------------------------------------------------------------------------------------------- any plan


WORDS = st.sampled_from(["5m", "", "ttft", "p99", "vllm", "1%", "builtin:agent", "builtin:", "open", "http://h"])
NAMES = """
a duration users rate engine model base_url metric stat max mode trace scenario channel options stop headers price
timeouts load
"""
KEYS = st.sampled_from(NAMES.split())
TABLES = st.sampled_from(["run", "channel", "workload", "load", "slo", "sampling", "labels", "x"])
VALUES = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TABLES, VALUES))
def test_any_values_make_a_plan_or_faults(raw: dict[str, object]) -> None:
    """Whatever TOML can say gives a plan or a PlanError, never another exception."""
    from infersiege.plan.checks import check
    from infersiege.plan.convert import convert
    from infersiege.plan.faults import Faults

    faults = Faults("plan.toml", {}, ())
    plan = convert(raw, faults)
    check(plan, raw, faults, base=Path(), environ={})
    if faults:
        error = faults.error()
        assert error.faults
        assert all("\n" not in line for line in error.faults)
    else:
        assert isinstance(plan, Plan)


# ---------------------------------------------------------------------------------------------------- the document


def test_docs_plan_md_is_current() -> None:
    written = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "plans" / "vllm.toml").read_text(encoding="utf-8")
    assert written == document(example), "run: python -m infersiege.plan.document > docs/plan.md"


def test_every_key_has_a_description_and_is_documented() -> None:
    written = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    waiting: list[type[msgspec.Struct]] = [Plan]
    seen = set()
    while waiting:
        table = waiting.pop()
        seen.add(table)
        for key in keys_of(table).values():
            assert key.description, (table, key.name)
            assert f"`{key.name}`" in written or table is Plan, (table, key.name)
            inner = sub_table(key.type)
            if inner is not None and inner not in seen:
                waiting.append(inner)
    assert len(seen) > 10
