"""docker-compose.yml, the Dockerfiles and .env.example say what is there.

No container engine runs here. So the file is held against the schema of compose files, each command, port, path,
variable and health check in it against the code, the pip lines of the Dockerfiles are run in a fresh environment, and
the services are started by their own commands, without containers.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databases
import pytest
import yaml
from infersiege_agents import outlet
from infersiege_agents.cli import parser_for

from infersiege.cli import COMMANDS, infersiege
from infersiege.plan.load import load_plan
from infersiege.plan.schema import Plan
from infersiege.rundir import RunDirectory
from infersiege.swarm.secret import SECRET_VARIABLE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
SECRETS = {"INFERSIEGE_SECRET", "INFLUX_TOKEN", "INFLUX_PASSWORD", "GRAFANA_PASSWORD"}
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def example_environment() -> dict[str, str]:
    """Variables of .env.example, with its values."""
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled_environment(**changes: str) -> dict[str, str]:
    """As a user has it who filled in the secrets."""
    return example_environment() | {name: f"{name.lower()}-0123456789" for name in SECRETS} | changes


def interpolated(value: Any, environ: dict[str, str]) -> Any:
    """What compose makes of `${NAME}`, `${NAME:-default}` and `${NAME:?message}`. Fails where compose would."""

    def put(found: re.Match[str]) -> str:
        name, operator, word = found.groups()
        text = environ.get(name, "")
        if operator == "?":
            assert text, f"{name}: {word}"
        return text or (word if operator == "-" else "")

    if isinstance(value, str):
        return VARIABLE.sub(put, value)
    if isinstance(value, list):
        return [interpolated(one, environ) for one in value]
    if isinstance(value, dict):
        return {key: interpolated(one, environ) for key, one in value.items()}
    return value


def words(command: str | list[str], environ: dict[str, str]) -> list[str]:
    """A command's words, split as compose does."""
    filled = interpolated(command, environ)
    return shlex.split(filled) if isinstance(filled, str) else filled


def command_line(name: str, environ: dict[str, str]) -> list[str]:
    """Entry point and command of one of our services."""
    dockerfile = dockerfile_of(SERVICES[name])
    return [*dockerfile.last("ENTRYPOINT"), *words(SERVICES[name]["command"], environ)]


# -------------------------------------------------------------------------------------------------- the Dockerfiles


@dataclass(frozen=True)
class Dockerfile:
    path: Path
    steps: list[tuple[str, str]]
    """(instruction, the rest with its continued lines joined)."""

    @classmethod
    def read(cls, path: Path) -> Dockerfile:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
        joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
        steps = [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]
        assert all(len(step) == 2 for step in steps), steps
        return cls(path, [(step[0], step[1]) for step in steps])

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    def last(self, instruction: str) -> list[str]:
        """Of ENTRYPOINT or CMD in its JSON form."""
        found: list[str] = yaml.safe_load(self.all(instruction)[-1])
        return found

    @property
    def final(self) -> list[tuple[str, str]]:
        """Steps of the last stage."""
        start = max(index for index, (name, _) in enumerate(self.steps) if name == "FROM")
        return self.steps[start:]


DOCKERFILES = {
    "infersiege": Dockerfile.read(ROOT / "Dockerfile"),
    "infersiege-agents": Dockerfile.read(ROOT / "agents" / "Dockerfile"),
}
each_dockerfile = pytest.mark.parametrize("name", DOCKERFILES)


def dockerfile_of(service: dict[str, Any]) -> Dockerfile:
    path = ROOT / service["build"]["context"] / service["build"].get("dockerfile", "Dockerfile")
    return next(one for one in DOCKERFILES.values() if one.path.resolve() == path.resolve())


KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "ENTRYPOINT", "CMD"}


@each_dockerfile
def test_a_dockerfile_builds_in_one_stage_and_runs_in_another_as_nobody_special(name: str) -> None:
    dockerfile = DOCKERFILES[name]
    assert {step for step, _ in dockerfile.steps} <= KNOWN
    bases = [rest.split()[0] for rest in dockerfile.all("FROM")]
    assert len(bases) == 2 and len(set(bases)) == 1, "an environment moves only between equal Pythons"
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", bases[0])
    assert version, f"{bases[0]}: a whole version"
    assert f"Programming Language :: Python :: {version[1]}" in PYPROJECT["project"]["classifiers"]
    final = dockerfile.final
    runs = " ".join(rest for step, rest in final if step == "RUN")
    assert not re.search(r"\b(pip|apt|apt-get|gcc|curl|wget)\b", runs), "nothing is installed in the last stage"
    assert [rest for step, rest in final if step == "USER"] == ["10001:10001"]
    assert final.index(("USER", "10001:10001")) > max(i for i, (step, _) in enumerate(final) if step == "RUN")
    scripts = tomllib.loads((ROOT / "agents" / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert dockerfile.last("ENTRYPOINT")[0] in PYPROJECT["project"]["scripts"] | scripts
    assert f'org.opencontainers.image.title="{name}"' in dockerfile.all("LABEL")[0]


@each_dockerfile
def test_what_a_dockerfile_copies_is_there_and_not_left_out(name: str) -> None:
    sources = [
        word
        for rest in DOCKERFILES[name].all("COPY")
        if not rest.startswith("--from=build ")
        for word in rest.split()[:-1]
    ]
    assert sources
    assert [word for word in sources if not (ROOT / word).exists()] == []
    assert [word for word in sources if left_out(word)] == []


def left_out(path: str) -> bool:
    """Whether .dockerignore keeps it out: the last pattern that matches it or a folder above it decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parts = path.split("/")
        heads = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        names = parts if pattern.startswith("**/") else heads
        if any(fnmatch.fnmatch(one, pattern.removeprefix("**/")) for one in names):
            out = not line.startswith("!")
    return out


IGNORED = [
    (".git/config", "history and remotes"),
    (".venv/bin/python", "an environment of another machine"),
    (".env", "secrets"),
    ("runs/one/turns.jsonl", "results"),
    ("shared/traces/a.jsonl", "material that is not ours"),
    ("infersiege/__pycache__/errors.cpython-311.pyc", "compiled here"),
    ("agents/infersiege_agents.egg-info/PKG-INFO", "of an editable installation"),
    ("agents/build/lib/x.py", "of an earlier build"),
    ("tests/conftest.py", "not in an image"),
]


@pytest.mark.parametrize(("path", "reason"), IGNORED)
def test_the_build_context_holds_nothing_that_is_not_copied(path: str, reason: str) -> None:
    assert left_out(path), reason


def test_the_build_context_holds_the_sources() -> None:
    for path in ("infersiege/cli/demo.toml", "agents/infersiege_agents/influx/writer.py", "agents/pyproject.toml"):
        assert not left_out(path), path


@pytest.mark.slow
@pytest.mark.timeout(400)
@each_dockerfile
def test_the_pip_lines_of_a_dockerfile_make_an_environment_that_works(name: str, tmp_path: Path) -> None:
    """Each RUN of the build stage, with the image's folders below a folder of the test."""
    dockerfile = DOCKERFILES[name]
    image = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", str(image / "python")], check=True, timeout=100)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{image}/python/bin:/usr/bin:/bin"
    folder = image / "src"
    folder.mkdir()
    for step, rest in dockerfile.steps[: len(dockerfile.steps) - len(dockerfile.final)]:
        if step == "COPY":
            *sources, target = rest.split()
            for source in sources:
                into = folder / target if target != "./" else folder / source
                skip = ["--exclude=__pycache__", "--exclude=*.egg-info", "--exclude=build"]
                into.parent.mkdir(parents=True, exist_ok=True)
                archive = subprocess.run(["tar", "c", *skip, source], cwd=ROOT, stdout=subprocess.PIPE, check=True)
                subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
        elif step == "RUN":
            line = re.sub(r"(?<![\w.])/(opt|wheels)\b", rf"{image}/\1", rest)
            ran = subprocess.run(
                ["/bin/sh", "-euc", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
                check=False,
            )  # fmt: skip
            assert ran.returncode == 0, f"RUN {rest}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    (program,) = dockerfile.last("ENTRYPOINT")
    bin_folder = image / "opt" / "infersiege" / "bin"
    said = subprocess.run([bin_folder / program, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert PYPROJECT["project"]["version"] in said.stdout
    frozen = subprocess.run(
        [bin_folder / "python", "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split()  # fmt: skip
    allowed = set((ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    own = re.compile(r"(infersiege|infersiege-agents|infersiege_agents|pip|setuptools)==")
    assert [line for line in frozen if line not in allowed and not own.match(line)] == [], "not pinned"
    assert any(line.startswith("gevent==") for line in frozen) is (name == "infersiege"), "the agents are small"


# --------------------------------------------------------------------------------------------------- the compose file


def keeps_the_schema(path: Path) -> bool:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_it_keeps_the_schema_of_compose_files(tmp_path: Path) -> None:
    assert keeps_the_schema(ROOT / "docker-compose.yml")
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(TEXT.replace("healthcheck:", "healthchek:", 1), encoding="utf-8")
    assert not keeps_the_schema(broken), "the check itself must be able to fail"


def test_docker_compose_itself_takes_it() -> None:
    """Where there is one: it needs no engine to read the file, and splits and types everything as it will."""
    found = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
        if _docker()
        else None
    )
    if found is None or found.returncode:
        pytest.skip("no `docker compose` here; the schema and the tests below stand in for it")
    environment = filled_environment(WORKERS="3", RUN_OPTIONS="--gate --set load.users=9")
    command = ["docker", "compose", "--env-file", os.devnull, "--profile", "*", "config", "--format", "json"]

    def ask(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False
        )

    read = ask(environment)
    assert read.returncode == 0, read.stderr
    services = json.loads(read.stdout)["services"]
    assert services.keys() == SERVICES.keys()
    for name, service in SERVICES.items():
        if "command" in service:
            assert services[name]["command"] == words(service["command"], environment), name
    assert services["worker"]["scale"] == 3
    missing = ask(environment | {"GRAFANA_PASSWORD": ""})
    assert missing.returncode != 0 and "GRAFANA_PASSWORD is missing a value: set it in .env" in missing.stderr


def _docker() -> bool:
    return shutil.which("docker") is not None


def test_it_has_the_services_that_were_asked_for() -> None:
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    always = {name for name, found in profiles.items() if not found}
    assert always == {"redis", "influxdb", "grafana", "emulator", "master", "worker", "engine-agent"}
    assert profiles["gpu-agent"] == ["gpu"]
    assert profiles["llamacpp"] == profiles["llamacpp-agent"] == ["llamacpp"]
    (device,) = SERVICES["gpu-agent"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}


def test_each_variable_is_in_the_example_and_the_other_way_round() -> None:
    assert {found[1] for found in VARIABLE.finditer(TEXT)} == set(example_environment())
    assert not re.search(r"\$(?!\{\w)", re.sub(r"#.*", "", TEXT)), "one spelling, which these tests know"


def test_defaults_are_those_of_the_example() -> None:
    for found in VARIABLE.finditer(TEXT):
        name, operator, word = found.groups()
        if operator == "-":
            assert word == example_environment()[name], name


def test_no_secret_has_a_default() -> None:
    example = example_environment()
    assert {name for name in example if re.search("SECRET|TOKEN|PASSWORD|KEY", name)} == SECRETS
    assert [name for name in SECRETS if example[name]] == []
    for found in VARIABLE.finditer(TEXT):
        assert (found[2] == "?") is (found[1] in SECRETS), f"{found[0]}: without it compose must stop, and say why"
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search("SECRET|TOKEN|PASSWORD", key):
                assert re.fullmatch(r"\$\{\w+:\?set it in \.env\}", value), f"{name}: {key}"


def test_no_secret_is_on_a_command_line() -> None:
    environment = filled_environment()
    for name, service in SERVICES.items():
        parts = [service.get("command", []), service.get("healthcheck", {}).get("test", [])]
        said = repr([interpolated(part, environment) for part in parts])
        assert [secret for secret in SECRETS if environment[secret] in said] == [], name


def test_compose_stops_at_a_secret_that_is_not_set() -> None:
    for missing in SECRETS:
        with pytest.raises(AssertionError, match=f"{missing}: set it in .env"):
            interpolated(COMPOSE, filled_environment(**{missing: ""}))


LISTENS = {
    "influxdb": ("8086", "InfluxDB's own default"),
    "grafana": ("3000", "Grafana's own default"),
    "master": ("8089", "--web"),
}


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == LISTENS.keys()
    for name, ports in published.items():
        port, reason = LISTENS[name]
        assert ports == [f"127.0.0.1:{port}:{port}"], (name, reason)
    assert "host" not in {service.get("network_mode") for service in SERVICES.values()}
    master = words(SERVICES["master"]["command"], filled_environment())
    assert master[master.index("--web") + 1] == f"0.0.0.0:{LISTENS['master'][0]}"


def test_images_are_pinned() -> None:
    version = PYPROJECT["project"]["version"]
    for name, service in SERVICES.items():
        image, _, tag = service["image"].partition(":")
        assert image and tag, name
        if "build" in service:
            assert tag == version, f"{name}: the version that is built"
            assert service["image"].partition(":")[0] in DOCKERFILES
        else:
            assert re.fullmatch(r"\d+\.\d+\.\d+(-\w+)?|server-b\d+", tag), f"{name}: a whole version"
    assert SERVICES["influxdb"]["image"].startswith("influxdb:2.7.")


# The image's own user: it is not root there either, and owns the volume.
OWN_USER = {"grafana": "runs as grafana (472)"}


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_can_do_little(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged") and "cap_add" not in service and "pid" not in service
    if name in OURS:
        assert "user" not in service, "the Dockerfile's"
        assert service["read_only"] is True and service["tmpfs"] == ["/tmp"]
    elif name not in OWN_USER:
        assert service["user"] not in ("root", "0", "0:0")


def test_a_dependency_that_must_be_healthy_can_tell() -> None:
    seen = 0
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] in ("service_healthy", "service_started"), name
            if wanted["condition"] == "service_healthy":
                seen += 1
                assert "test" in SERVICES[other]["healthcheck"], f"{name} waits for {other}"
            profiles = set(SERVICES[other].get("profiles", []))
            assert profiles <= set(service.get("profiles", [])), f"{name} needs {other}, which may not be there"
    assert seen >= 4


# Programs of foreign images, looked up in what builds them.
IN_IMAGES = {
    "redis": ("redis-cli", "the image is Redis"),
    "influxdb": ("influx", "its Dockerfile installs the CLI; `influx ping` asks /health"),
    "grafana": ("curl", "in the Alpine image since grafana/grafana#65547"),
    "llamacpp": ("curl", "the image's own health check uses it"),
}


def test_health_checks_call_what_is_in_the_image() -> None:
    for name, service in SERVICES.items():
        if "healthcheck" not in service:
            continue
        kind, program, *_ = service["healthcheck"]["test"]
        assert kind == "CMD", "no shell is needed"
        assert program == (IN_IMAGES[name][0] if name in IN_IMAGES else "python"), name
    without = {name for name, service in SERVICES.items() if "healthcheck" not in service}
    # These serve nothing; that they are alive is what the restart policy sees.
    assert without == {"worker", "engine-agent", "gpu-agent", "llamacpp-agent"}
    assert all("restart" in SERVICES[name] for name in without)


def test_volumes_are_declared_and_used() -> None:
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            if isinstance(volume, dict):
                # A folder of the user's: compose must not make an empty one in its place, as root.
                assert volume["bind"] == {"create_host_path": False} and volume["read_only"] is True
                assert VARIABLE.fullmatch(volume["source"]), name
                continue
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert (ROOT / source).is_dir(), f"{name}: {source}"
                assert mode == ["ro"], f"{name}: {source}"
                continue
            used.add(source)
            if name in OURS:
                made = " ".join(rest for step, rest in dockerfile_of(service).final if step == "RUN")
                assert re.search(rf"install -d -o infersiege -g infersiege .*{target}\b", made), (
                    f"{name}: a volume at {target} would belong to root"
                )
    assert used == set(COMPOSE["volumes"])


def test_a_dead_workers_spool_can_be_read_by_the_master() -> None:
    """The same volume at the same path: the worker tells the master its path."""
    for name in ("master", "worker"):
        assert "spool:/spool" in SERVICES[name]["volumes"]
        assert "INFERSIEGE_SPOOL=/spool" in " ".join(dockerfile_of(SERVICES[name]).all("ENV"))


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_of_ours_exists_with_its_options(name: str) -> None:
    program, *arguments = command_line(name, filled_environment(RUN_OPTIONS="--gate --set load.users=64"))
    if program == "infersiege-agent":
        parser_for(arguments[0]).parse_args(arguments)  # raises at what it does not know
        return
    assert program == "infersiege" and arguments[0] in COMMANDS
    with infersiege.make_context("infersiege", arguments, resilient_parsing=False) as context:
        called = infersiege.get_command(context, arguments[0])
        assert called is not None
        # Parses, and calls nothing.
        called.make_context(arguments[0], arguments[1:], parent=context)


def test_the_number_of_workers_is_one_variable() -> None:
    for number in ("2", "7"):
        environment = filled_environment(WORKERS=number)
        master = words(SERVICES["master"]["command"], environment)
        assert master[master.index("--expect-workers") + 1] == number
        assert master[master.index("--workers") + 1] == "0"
        assert interpolated(SERVICES["worker"]["scale"], environment) == number


def loaded_plan() -> Plan:
    """The plan that the master runs, from the folder that is mounted."""
    plan = words(SERVICES["master"]["command"], filled_environment())[1]
    mounts = dict(volume.split(":")[1::-1] for volume in SERVICES["master"]["volumes"])
    folder, _, file = plan.rpartition("/")
    return load_plan(ROOT / mounts[folder] / file, (), filled_environment())


def test_every_address_is_that_of_a_service_and_its_port() -> None:
    environment = filled_environment()
    texts = [(ROOT / "examples" / "plans" / "compose.toml").read_text(encoding="utf-8")]
    texts += [repr(interpolated(service, environment)) for service in SERVICES.values()]
    named = {tuple(found) for text in texts for found in re.findall(r"(?:http://|')([a-z][a-z-]*):(\d{4,5})\b", text)}
    emulator, llamacpp, master = (
        words(SERVICES[name]["command"], environment) for name in ("emulator", "llamacpp", "master")
    )
    assert named == {
        ("influxdb", LISTENS["influxdb"][0]),
        ("emulator", emulator[emulator.index("--port") + 1]),
        ("llamacpp", llamacpp[llamacpp.index("--port") + 1]),
        ("master", master[master.index("--bind") + 1].removeprefix("0.0.0.0:")),
    }  # fmt: skip
    for command in (emulator, llamacpp):
        assert command[command.index("--host") + 1] == "0.0.0.0", "other containers ask"
    for name in ("emulator", "master", "llamacpp", "grafana"):
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", repr(SERVICES[name]["healthcheck"]["test"]))
        published = LISTENS.get(name, (None, ""))[0]
        assert port == (published or {"emulator": "8000", "llamacpp": "8080"}[name])


def test_all_write_to_one_database() -> None:
    environment = filled_environment()
    influx = interpolated(SERVICES["influxdb"]["environment"], environment)
    bucket, org = influx["DOCKER_INFLUXDB_INIT_BUCKET"], influx["DOCKER_INFLUXDB_INIT_ORG"]
    token = influx["DOCKER_INFLUXDB_INIT_ADMIN_TOKEN"]
    assert (bucket, influx["DOCKER_INFLUXDB_INIT_MODE"]) == ("infersiege", "setup")
    telemetry = loaded_plan().telemetry
    assert (telemetry.influx_url, telemetry.influx_bucket, telemetry.influx_org) == (
        "http://influxdb:8086",
        bucket,
        org,
    )
    assert telemetry.influx_token_env is not None
    assert interpolated(SERVICES["master"]["environment"], environment)[telemetry.influx_token_env] == token
    assert telemetry.spool is not None and telemetry.spool.startswith("/spool/"), "in a volume"
    agents = [name for name in OURS if name.endswith("-agent")]
    assert len(agents) == 3
    for name in agents:
        _, *arguments = command_line(name, environment)
        args = parser_for(arguments[0]).parse_args(arguments)
        target = outlet.database_of(args, interpolated(SERVICES[name]["environment"], environment))
        assert target is not None
        assert (target.url, target.bucket, target.org, target.token) == (telemetry.influx_url, bucket, org, token)
        assert args.spool == Path("/spool")
    grafana = interpolated(SERVICES["grafana"]["environment"], environment)
    assert (grafana["INFLUX_URL"], grafana["INFLUX_BUCKET"]) == (telemetry.influx_url, bucket)
    assert grafana["INFLUX_TOKEN"] == token


def test_grafana_finds_its_dashboards_and_every_variable_of_its_provisioning() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    provisioning = ROOT / "grafana" / "provisioning"
    files = sorted(provisioning.glob("*/*.y*ml"))
    assert len(files) >= 2
    wanted = {name for file in files for name in re.findall(r"(?<!\$)\$\{?([A-Z]\w*)", _plain(file))}
    assert wanted and wanted <= SERVICES["grafana"]["environment"].keys()
    (provider,) = [
        found for file in provisioning.glob("dashboards/*") for found in yaml.safe_load(_plain(file))["providers"]
    ]
    assert provider["options"]["path"] == mounts["./grafana/dashboards"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning", "where the image looks"


def _plain(file: Path) -> str:
    """Without comments, which may name variables that Grafana does not see."""
    return re.sub(r"(?m)^\s*#.*$", "", file.read_text(encoding="utf-8"))


def test_both_ends_of_the_frames_know_the_secret() -> None:
    for name in ("master", "worker"):
        assert SECRET_VARIABLE in SERVICES[name]["environment"]
    assert SECRET_VARIABLE not in SERVICES["engine-agent"]["environment"]


def test_the_document_names_what_there_is() -> None:
    text = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    for word in (*example_environment(), *SERVICES, *(f"127.0.0.1:{port}" for port, _ in LISTENS.values())):
        assert word in text, word
    for volume in re.findall(r"`([a-z-]+):/", text):
        assert volume in COMPOSE["volumes"]


# ---------------------------------------------------------------------------------- the services without containers


class Stack:
    """The services as processes: their own commands, with names of services replaced by ports of loopback."""

    def __init__(self, folder: Path, free_port: Callable[[], int], influx: str, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        self.web = free_port()
        emulator, master = free_port(), free_port()
        self._replaced = [
            (r"http://influxdb:8086", influx),
            (r"\bemulator:8000\b", f"127.0.0.1:{emulator}"),
            (r"\bmaster:5557\b|0\.0\.0\.0:5557\b", f"127.0.0.1:{master}"),
            (r"0\.0\.0\.0:8089\b|127\.0\.0\.1:8089\b", f"127.0.0.1:{self.web}"),
            (r"127\.0\.0\.1:8000\b", f"127.0.0.1:{emulator}"),
            (r"^8000$", str(emulator)),
            (r"^0\.0\.0\.0$", "127.0.0.1"),
            (r"^/plans/", f"{folder}/plans/"),
        ]
        for name in ("plans", "data", *COMPOSE["volumes"]):
            (folder / name).mkdir()
        plan = self.local((ROOT / "examples" / "plans" / "compose.toml").read_text(encoding="utf-8"))
        plan = plan.replace('"/spool/', f'"{self.spool("master")}/')
        (folder / "plans" / "compose.toml").write_text(plan, encoding="utf-8")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def spool(self, service: str) -> Path:
        """The volume that the service has at /spool: some share one, others have their own."""
        volumes = SERVICES[service].get("volumes", [])
        name = next((volume.partition(":")[0] for volume in volumes if volume.endswith(":/spool")), "data")
        return self.folder / name

    def local(self, text: str) -> str:
        for pattern, replacement in self._replaced:
            text = re.sub(pattern, replacement, text)
        return text

    def start(self, service: str, name: str = "") -> None:
        name = name or service
        spool = str(self.spool(service))
        command = [spool if word == "/spool" else self.local(word) for word in command_line(service, self.environ)]
        command[0] = str(Path(sys.executable).parent / command[0])
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "INFERSIEGE_SPOOL": spool,
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        for key, value in interpolated(SERVICES[service].get("environment", {}), self.environ).items():
            environment[key] = self.local(value)
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=self.folder / "data"
            )

    def healthy(self, service: str) -> bool:
        """What the service's health check says."""
        kind, program, *arguments = SERVICES[service]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        command = [sys.executable, *(self.local(word) for word in arguments)]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 40.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.stem}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log")
        )

    def stop(self, name: str, within_s: float = 20.0) -> int:
        """As `docker stop` does."""
        process = self.running[name]
        process.send_signal(signal.SIGTERM)
        return process.wait(within_s)


@contextmanager
def stack(folder: Path, free_port: Callable[[], int], influx: str, **environ: str) -> Iterator[Stack]:
    folder.mkdir()
    made = Stack(folder, free_port, influx, filled_environment(**environ))
    try:
        yield made
    finally:
        for process in made.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.alone
def test_the_services_do_one_run_together(
    tmp_path: Path, free_port: Callable[[], int], influx: databases.InfluxDB
) -> None:
    options = "--set run.duration=8s --set load.warmup=2s --set load.drain=10s --set load.users=4"
    with stack(tmp_path / "stack", free_port, influx.url, WORKERS="2", RUN_OPTIONS=options) as services:
        # A worker may be there first: it waits for its master.
        services.start("worker", "worker-1")
        assert not services.healthy("emulator") and not services.healthy("master"), "nobody is there yet"
        services.start("emulator")
        services.until(lambda: services.healthy("emulator"), "the emulator is not healthy")
        services.start("engine-agent")
        services.start("master")
        services.until(lambda: services.healthy("master"), "the status page does not answer")
        services.start("worker", "worker-2")
        master = services.running["master"]
        code = master.wait(90)
        assert code in (0, 3), services.logs()
        for name in ("worker-1", "worker-2"):
            assert services.running[name].wait(20) == 0, services.logs()
        assert not services.healthy("master"), "its page ends with the run"
        assert services.running["engine-agent"].poll() is None
        assert services.stop("engine-agent") == 0, services.logs()
        assert services.stop("emulator") == 0, services.logs()
        (path,) = (services.folder / "data" / "runs").iterdir()
        said = services.logs()
        logged = (services.folder / "master.log").read_text(encoding="utf-8")
    summary = RunDirectory.open(path).read_summary()
    assert summary.exit_code == code
    if code == 3:  # a busy machine, or agents that think beyond the end of so short a run; and nothing else
        assert summary.invalid
        assert all(reason.startswith(("client-bound", "load not delivered")) for reason in summary.invalid)
    assert summary.counts.conserved() and summary.counts.ok > 0
    assert f"status: http://127.0.0.1:{services.web}/" in logged
    for secret in SECRETS:
        assert services.environ[secret] not in said, "a secret in a log"
    account = summary.telemetry
    assert account is not None and account.written == account.acknowledged > 0, account
    assert influx.count("infersiege_window", "ok") >= 8, "a point a second"
    assert influx.count("infersiege_event", "title") >= 2
    (final,) = influx.query(
        'SELECT last("exit_code") AS code, last("turns_ok") AS ok FROM "infersiege_run" '
        "WHERE scenario = 'all' AND channel = 'all' AND stage = 'all' AND state = 1"
    )
    values = dict(zip(final["columns"], final["values"][0], strict=True))
    (whole,) = [one for one in summary.groups if (one.scenario, one.channel, one.stage) == (None, None, None)]
    assert (values["code"], values["ok"]) == (code, whole.counts.ok)
    (engines,) = influx.query('SHOW TAG VALUES FROM "engine" WITH KEY = "engine"')
    assert [value for _, value in engines["values"]] == ["vllm"]
    assert influx.count("engine", "up") >= 8


@pytest.mark.slow
def test_a_stop_ends_a_master_that_waits_for_workers(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """`docker compose down` while the master waits for workers that never come."""
    with stack(tmp_path / "stack", free_port, "http://127.0.0.1:9", RUN_OPTIONS="") as services:
        services.start("emulator")
        services.until(lambda: services.healthy("emulator"), "the emulator is not healthy")
        services.start("master")
        services.until(lambda: services.healthy("master"), "the status page does not answer")
        services.until(
            lambda: "waiting for 2 worker(s)" in (services.folder / "master.log").read_text(), "it does not wait"
        )
        code = services.stop("master")
        assert code in (3, 130), services.logs()
        assert "Traceback" not in services.logs()
