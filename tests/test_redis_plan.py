"""Keys of a plan whose trace lies in Redis: what is a fault, what is shown, what `doctor` says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import redis_server
from hypothesis import given
from hypothesis import strategies as st

from infersiege.doctor.redis import examine_redis
from infersiege.errors import PlanError, TraceError, UsageError
from infersiege.plan import load_plan
from infersiege.plan.load import plan_hash, plan_json
from infersiege.plan.redis_checks import source_fault
from infersiege.records import Session, Turn
from infersiege.redact import Secrets
from infersiege.redis_stream import load
from infersiege.swarm.source import SessionSource
from infersiege.traces.formats import normal

PLAN = """
[run]
stop = {{sessions = 4}}
[channel.target]
engine = "vllm"
base_url = "http://127.0.0.1:1"
model = "m"
[[workload]]
scenario = "talk"
trace = "a trace/of mine"
{workload}
[load]
mode = "closed"
users = 1
{tables}
"""
SOURCE = 'source = "redis://127.0.0.1:6379/0"'


def plan_of(folder: Path, workload: str = SOURCE, tables: str = "", environ: dict[str, str] | None = None):
    path = folder / "plan.toml"
    path.write_text(PLAN.format(workload=workload, tables=tables), encoding="utf-8")
    return load_plan(path, (), environ or {})


ADDRESSES = [
    ("redis://redis.example", None, "the default port and database"),
    ("redis://redis.example:6380/3", None, "another database"),
    ("redis://user@redis.example:6380/3", "[redis] has user", "a user"),
    ("rediss://[::1]:6379/0", None, "TLS, and an address with colons"),
    ("unix:///run/redis.sock", None, "a socket"),
    ("redis://:hunter2@redis.example", "a user or a password in it", "a password"),
    ("redis://user:hunter2@redis.example/0", "a user or a password in it", "with its user"),
    ("redis://user:hun/ter2@redis.example", "a user or a password in it", "a slash ends the host"),
    ("redis://redis.example/0?password=hunter2", "more than an address", "in the query"),
    ("redis://redis.example/hunter2", "no number of a database", "it was read as 0"),
    ("redis://redis.example:port", "is no address", "no port"),
    ("redis://", "names no host", "nothing"),
    ("http://redis.example", "is no address", "another scheme"),
    ("redis.example:6379", "is no address", "no scheme"),
    ("unix://redis.sock", "is no socket", "a relative one would be a host"),
]


@pytest.mark.parametrize(("url", "message", "why"), ADDRESSES)
def test_addresses(url, message, why):
    fault = source_fault(url)
    assert (fault is None) if message is None else (message in (fault or "")), f"{why}: {fault}"
    assert "hunter2" not in (fault or "")


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_no_password_that_is_written_in_an_address_is_taken(password):
    for url in (f"redis://user:{password}@host:6379/0", f"redis://:{password}@host"):
        assert source_fault(url) is not None


FAULTS = [
    ('source = "redis://u:hunter2@h"', "", "workload.0.source", "password_env", "a password in the address"),
    (SOURCE + '\nformat = "azure"', "", "workload.0.format", "traces load", "it was read when it was loaded"),
    (SOURCE + "\nlength_scale = 0.5", "", "workload.0.length_scale", "traces load", "as above"),
    (SOURCE + "\noptions = {unit = 's'}", "", "workload.0.options", "traces load", "as above"),
    ("", "", "workload.0.trace", "there is no file", "without a source it is a file"),
    (SOURCE, '[redis]\npassword_env = "NOPE"', "redis.password_env", "is not set", "no such variable"),
    (SOURCE, '[redis]\npassword_env = "EMPTY"', "redis.password_env", "is empty", "an empty one"),
    (SOURCE, '[redis]\npassword_env = "hunter2!"', "redis.password_env", "no name of an environment", "the password"),
    (SOURCE, '[redis]\npassword_file = "nope"', "redis.password_file", "there is no file", "no such file"),
    (SOURCE, '[redis]\npassword_env = "P"\npassword_file = "x"', "redis.password_file", "leave one", "both"),
    (SOURCE, '[redis]\nuser = "reader"', "redis.user", "needs a password", "a user alone"),
    (SOURCE, '[redis]\nca = "ca.pem"', "redis.ca", "write rediss://", "no TLS"),
    (SOURCE.replace("redis:", "rediss:"), '[redis]\nca = "ca.pem"', "redis.ca", "there is no file", "no such file"),
    (SOURCE, '[redis]\npatience = "0s"', "redis.patience", "", "no patience at all"),
    (SOURCE, '[redis]\npassword = "hunter2"', "redis.password", "never stand in a plan", "the password itself"),
    ('trace = "builtin:short-qa"', '[redis]\nca = "x"', "redis", "no workload has a source", "nobody uses it"),
]


@pytest.mark.parametrize(("workload", "tables", "key", "message", "why"), FAULTS)
def test_faults_name_the_key_and_no_password(tmp_path, workload, tables, key, message, why):
    text = PLAN.format(workload=workload, tables=tables)
    if workload.startswith("trace"):
        text = text.replace('trace = "a trace/of mine"\n', "")
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        load_plan(path, (), {"P": "x", "EMPTY": ""})
    fault = next((line for line in caught.value.faults if f" {key}: " in line or f"{key} " in line), "")
    assert message in fault, f"{why}: {caught.value.faults}"
    assert "hunter2" not in "".join(caught.value.faults).replace("hunter2!", "") or "no name" in fault


def test_a_password_is_in_no_plan_and_is_scrubbed(tmp_path):
    (tmp_path / "secret").write_text("hunter2-hunter2\n", encoding="utf-8")
    plan = plan_of(tmp_path, tables='[redis]\npassword_file = "secret"')
    assert plan.redis.password_file == str(tmp_path / "secret")
    assert b"hunter2" not in plan_json(plan)
    assert "hunter2" not in Secrets.of(plan, {}).scrub("AUTH hunter2-hunter2")
    by_variable = plan_of(tmp_path, tables='[redis]\npassword_env = "P"', environ={"P": "hunter3-hunter3"})
    assert "hunter3" not in Secrets.of(by_variable, {"P": "hunter3-hunter3"}).scrub("AUTH hunter3-hunter3")


def test_a_traces_name_is_no_path(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    here, there = plan_of(tmp_path), plan_of(tmp_path / "elsewhere")
    assert here.workloads[0].trace == "a trace/of mine"
    assert plan_hash(here) == plan_hash(there)
    other = plan_of(tmp_path, workload=SOURCE.replace("/0", "/1"))
    assert plan_hash(here) != plan_hash(other)


# ------------------------------------------------------------------------------------------------------------- doctor


@pytest.fixture
def redis_of(tmp_path: Path, free_port: Callable[[], int], needs: Callable[[str | None], None]):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")

    def start(*settings: str) -> redis_server.RedisServer:
        return redis_server.RedisServer(tmp_path / "redis", free_port(), *settings)

    return start


def stored(server: redis_server.RedisServer) -> None:
    turn = Turn(messages=({"role": "user", "content": "hi"},))  # type: ignore[arg-type]
    found = (Session(session_id=f"s{number}", turns=(turn,)) for number in range(4))
    load(server.url, "a trace/of mine", found, normal.Header(infersiege_trace=1))


def test_doctor_looks_at_redis_and_leaves_nothing_there(redis_of, tmp_path):
    with redis_of("--appendonly", "yes") as server:
        plan = plan_of(tmp_path, f'source = "{server.url}"')
        missing = examine_redis(plan, {})
        assert isinstance(missing.error, TraceError) and "there is no trace" in missing.checks[-1].seen
        stored(server)
        found = examine_redis(plan, {})
        assert [(check.name, check.verdict.value) for check in found.checks] == [
            ("redis", "ok"), ("persistence", "ok"), ("trace", "ok"), ("groups", "ok"),
        ]  # fmt: skip
        with server.client() as client:
            assert client.xinfo_groups("infersiege:a trace/of mine:sessions") == []
    assert isinstance(examine_redis(plan, {}).error, UsageError), "it is not there any more"


def test_doctor_warns_of_a_redis_that_forgets_or_may_not_be_used(redis_of, tmp_path):
    with redis_of("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        stored(server)
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "reader", "on", ">pw-of-reader", "~*", "+@read", "+ping")
        plan = plan_of(tmp_path, f'source = "{server.url}"')
        verdicts = {check.name: check.verdict.value for check in examine_redis(plan, {}).checks}
        assert (verdicts["persistence"], verdicts["eviction"]) == ("warning", "warning")
        environ = {"P": "pw-of-reader"}
        access = '[redis]\nuser = "reader"\npassword_env = "P"'
        reader = plan_of(tmp_path, f'source = "{server.url}"', access, environ)
        refused = examine_redis(reader, environ)
        assert "Redis refused" in refused.checks[-1].seen and refused.checks[-1].verdict.value == "fault"
        assert "pw-of-reader" not in "".join(f"{check.seen}{check.hint}" for check in refused.checks)


def test_all_workers_must_see_the_same_trace(redis_of, tmp_path):
    with redis_of() as server:
        stored(server)
        source = SessionSource(plan_of(tmp_path, f'source = "{server.url}"'), place=0, members=1)
        ((name, digest),) = source.trace_hashes().items()
    assert name == "talk (a trace/of mine)"
    assert len(digest) == 64
