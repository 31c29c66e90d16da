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
import sysconfig
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import databases
import pytest
import yaml
from infersiege_agents import errors, outlet
from infersiege_agents.cli import parser_for
from infersiege_agents.influx import spool_directory
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
SECRETS = {"INFERSIEGE_SECRET", "INFLUX_PASSWORD", "INFLUX_READ_PASSWORD", "GRAFANA_PASSWORD"}
TOKEN = "token-of-the-volume-0123456789"
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
    entry: list[str] = SERVICES[name].get("entrypoint") or dockerfile_of(SERVICES[name]).last("ENTRYPOINT")
    return [*entry, *words(SERVICES[name]["command"], environ)]


def program_line(name: str, environ: dict[str, str]) -> list[str]:
    """The same, as the two scripts of deploy/ make it of that: the program, and what it is called with."""
    line = command_line(name, environ)
    assert line.pop(0) == "with-token"
    if line[0] == "sh":
        assert line[1] == "/deploy/run-with-all-workers.sh"
        line[:2] = ["infersiege", "run", "--expect-workers", environ["WORKERS"]]
    return line


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

    @property
    def environment(self) -> dict[str, str]:
        """What a container has in its environment, beside what compose puts there."""
        return dict(word.split("=", 1) for step, rest in self.final if step == "ENV" for word in rest.split())


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
    wrapper, program = dockerfile.last("ENTRYPOINT")
    assert program in PYPROJECT["project"]["scripts"] | scripts
    assert ("COPY", f"--chmod=755 deploy/with-token.sh /usr/local/bin/{wrapper}") in final
    assert f'org.opencontainers.image.title="{name}"' in dockerfile.all("LABEL")[0]


@each_dockerfile
def test_what_a_dockerfile_copies_is_there_and_not_left_out(name: str) -> None:
    sources = [
        word
        for rest in DOCKERFILES[name].all("COPY")
        if not rest.startswith("--from=build ")
        for word in rest.split()[:-1]
        if not word.startswith("--")
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
@each_dockerfile
def test_the_pip_lines_of_a_dockerfile_make_an_environment_that_works(name: str, tmp_path: Path) -> None:
    """Each RUN of the build stage, with the image's folders below a folder of the test.

    The small image is made whole. For the large one pip is told to leave out dependencies, which are lent from this
    environment: that they are all pinned, and to what is here, the next test says.
    """
    dockerfile, whole = DOCKERFILES[name], name == "infersiege-agents"
    image = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", str(image / "python")], check=True, timeout=100)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PATH": f"{image}/python/bin:/usr/bin:/bin", "PIP_NO_COMPILE": "1"}
    if not whole:
        environment["PIP_NO_DEPS"] = "1"
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
                ["/bin/sh", "-euc", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
                check=False,
            )  # fmt: skip
            assert ran.returncode == 0, f"RUN {rest}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    made = image / "opt" / "infersiege"
    frozen = subprocess.run(
        [made / "bin" / "python", "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split()  # fmt: skip
    own = re.compile(r"(infersiege|infersiege-agents|infersiege_agents|pip|setuptools)==")
    others = [line for line in frozen if not own.match(line)]
    if whole:
        assert others and set(others) <= set((ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    else:
        assert others == []
        (packages,) = made.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    program = made / "bin" / dockerfile.last("ENTRYPOINT")[-1]
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert PYPROJECT["project"]["version"] in said.stdout
    inside = "import infersiege_agents as found" if whole else "import infersiege.cli as found"
    where = subprocess.run(
        [made / "bin" / "python", "-Ic", f"{inside}; print(found.__file__)"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert where.startswith(str(made)), "the installed package, not this checkout"


def needed(name: str) -> dict[str, str]:
    """Distributions that `name` needs, itself left out, with the versions that are installed here."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        for line in metadata.requires(waiting.pop()) or ():
            wanted = Requirement(line)
            key = canonicalize_name(wanted.name)
            if key not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
                found[key] = metadata.version(key)
                waiting.append(key)
    return found


@each_dockerfile
def test_all_that_an_image_needs_is_pinned_to_what_the_tests_run_on(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    allowed = {str(canonicalize_name(one)): version for one, _, version in (line.partition("==") for line in lines)}
    wanted = needed(name)
    wanted.pop("infersiege-agents", None)
    assert wanted.items() <= allowed.items()
    assert ("gevent" in wanted) is ("numpy" in wanted) is (name == "infersiege"), "the agents are small"


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
                from_env = re.fullmatch(r"\$\{\w+:\?set it in \.env\}", value)
                assert from_env or (key.endswith("_FILE") and value.startswith("/")), f"{name}: {key}"


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
                assert (ROOT / source).exists(), f"{name}: {source}"
                assert mode == ["ro"], f"{name}: {source}"
                continue
            used.add(source)
            if name in OURS and mode != ["ro"]:
                made = " ".join(rest for step, rest in dockerfile_of(service).final if step == "RUN")
                assert re.search(rf"install -d -o infersiege -g infersiege .*{target}\b", made), (
                    f"{name}: a volume at {target} would belong to root"
                )
    assert used == set(COMPOSE["volumes"])


def test_a_dead_workers_spool_can_be_read_by_the_master() -> None:
    """The same volume at the same path: the worker tells the master its path."""
    for name in ("master", "worker"):
        assert "spool:/spool" in SERVICES[name]["volumes"]
        assert dockerfile_of(SERVICES[name]).environment["INFERSIEGE_SPOOL"] == "/spool"


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_of_ours_exists_with_its_options(name: str) -> None:
    program, *arguments = program_line(name, filled_environment(RUN_OPTIONS="--gate --set load.users=64"))
    if program == "infersiege-agent":
        parser_for(arguments[0]).parse_args(arguments)  # raises at what it does not know
        return
    assert program == "infersiege" and arguments[0] in COMMANDS
    with infersiege.make_context("infersiege", arguments, resilient_parsing=False) as context:
        called = infersiege.get_command(context, arguments[0])
        assert called is not None
        # Parses, and calls nothing.
        called.make_context(arguments[0], arguments[1:], parent=context)


def test_workers_are_counted_when_all_of_them_are_there() -> None:
    """`--scale worker=4` is known to compose alone: the master has to see them."""
    master = SERVICES["master"]
    assert master["environment"]["WORKER_SERVICE"] == "worker"
    assert master["depends_on"]["worker"] == {"condition": "service_started"}
    assert "master" not in SERVICES["worker"]["depends_on"]
    # So that a worker, which waits ten minutes for the master, does not wait for what the master waits for.
    others = {name: wanted for name, wanted in master["depends_on"].items() if name != "worker"}
    assert SERVICES["worker"]["depends_on"] == others
    for number in ("2", "7"):
        environment = filled_environment(WORKERS=number)
        assert interpolated(SERVICES["worker"]["scale"], environment) == number
        assert interpolated(master["environment"]["WORKERS"], environment) == number
    line = command_line("master", filled_environment())
    assert "--expect-workers" not in line and line[line.index("--workers") + 1] == "0"


COUNTED = [
    ("127.0.0.1 localhost", "worker", "2", "no name: as many as WORKERS says"),
    ("10.9.0.2 worker", "worker", "1", "one"),
    ("10.9.0.2 worker\n10.9.0.3 worker\n10.9.0.4 worker\n10.9.0.5 worker", "worker", "4", "--scale worker=4"),
    ("10.9.0.2 worker\n10.9.0.2 worker w1\nfd00::2 worker", "worker", "1", "each once, whatever else is known of it"),
    ("10.9.0.2 worker\n10.9.0.9 workers", "worker", "1", "another service"),
]


@pytest.mark.parametrize(("hosts", "service", "expected", "reason"), COUNTED)
def test_the_master_counts_the_workers_that_have_an_address(
    hosts: str, service: str, expected: str, reason: str, tmp_path: Path
) -> None:
    """With a hosts file in place of compose's name server; both answer getaddrinfo with every address of a name."""
    if subprocess.run([*APART, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("no namespace can be made here (unshare): /etc/hosts stays as it is")
    (tmp_path / "hosts").write_text(hosts + "\n", encoding="utf-8")
    stand_in = tmp_path / "infersiege"
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    script = f'mount --bind {tmp_path}/hosts /etc/hosts && exec sh {ROOT}/deploy/run-with-all-workers.sh "$@"'
    ran = subprocess.run(
        [*APART, "sh", "-c", script, "-", "/plans/compose.toml", "--set", "run.name=a b"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "WORKER_SERVICE": service, "WORKERS": "2"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"run|--expect-workers|{expected}|/plans/compose.toml|--set|run.name=a b|", reason
    assert ("as WORKERS says" in ran.stderr) is ("no name" in reason)


APART = ["unshare", "--mount", "--map-root-user"]


def loaded_plan() -> Plan:
    """The plan that the master runs, from the folder that is mounted."""
    plan = words(SERVICES["master"]["command"], filled_environment())[0]
    mounts = dict(volume.split(":")[1::-1] for volume in SERVICES["master"]["volumes"])
    folder, _, file = plan.rpartition("/")
    return load_plan(ROOT / mounts[folder] / file, (), {outlet.TOKEN_VARIABLE: TOKEN})


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
    for name in ("emulator", "master", "llamacpp", "grafana", "influxdb"):
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)\b", repr(SERVICES[name]["healthcheck"]["test"]))
        published = LISTENS.get(name, (None, ""))[0]
        assert port == (published or {"emulator": "8000", "llamacpp": "8080"}[name])


def test_all_write_to_one_database() -> None:
    environment = filled_environment()
    influx = interpolated(SERVICES["influxdb"]["environment"], environment)
    bucket, org = influx["DOCKER_INFLUXDB_INIT_BUCKET"], influx["DOCKER_INFLUXDB_INIT_ORG"]
    assert (bucket, influx["DOCKER_INFLUXDB_INIT_MODE"]) == ("infersiege", "setup")
    telemetry = loaded_plan().telemetry
    assert (telemetry.influx_url, telemetry.influx_bucket, telemetry.influx_org) == (
        "http://influxdb:8086",
        bucket,
        org,
    )
    assert telemetry.influx_token_env == outlet.TOKEN_VARIABLE, "what with-token sets"
    agents = [name for name in OURS if name.endswith("-agent")]
    assert len(agents) == 3
    for name in agents:
        _, *arguments = program_line(name, environment)
        args = parser_for(arguments[0]).parse_args(arguments)
        target = outlet.database_of(args, interpolated(SERVICES[name]["environment"], environment))
        assert target is not None
        assert (target.url, target.bucket, target.org) == (telemetry.influx_url, bucket, org)
    grafana = interpolated(SERVICES["grafana"]["environment"], environment)
    assert (grafana["INFLUX_URL"], grafana["INFLUX_BUCKET"]) == (telemetry.influx_url, bucket)


def test_points_that_wait_are_in_a_volume() -> None:
    """A container's own files go with it."""
    for name in ("master", "engine-agent", "gpu-agent", "llamacpp-agent"):
        spool = spool_directory(dockerfile_of(SERVICES[name]).environment)
        targets = [volume.split(":")[1] for volume in SERVICES[name]["volumes"] if not volume.endswith(":ro")]
        assert any(spool.is_relative_to(target) for target in targets), f"{name}: {spool}"
        assert "--spool" not in command_line(name, filled_environment())
    assert loaded_plan().telemetry.spool is None


# ------------------------------------------------------------------------------------------------- who may do what


def test_only_influxdb_itself_may_do_everything_there() -> None:
    """Its script makes the other accounts; who uses one has its password, or the volume with its token, and no more."""
    influx = SERVICES["influxdb"]["environment"]
    assert "DOCKER_INFLUXDB_INIT_ADMIN_TOKEN" not in influx, "it makes one, which is nowhere else"
    operators = {name for name, service in SERVICES.items() if "INFLUX_PASSWORD" in repr(service)}
    assert operators == {"influxdb"}
    readers = {name for name, service in SERVICES.items() if "${INFLUX_READ_PASSWORD" in repr(service)}
    assert readers == {"influxdb", "grafana"}
    assert SERVICES["grafana"]["environment"]["INFLUX_READ_USER"] == influx["INFLUX_READ_USER"]
    mounts = {
        name: volume.removeprefix("influx-token:")
        for name, service in SERVICES.items()
        for volume in service.get("volumes", [])
        if str(volume).startswith("influx-token:")
    }
    writers = {name for name in OURS if name.endswith("-agent")} | {"master"}
    assert mounts == dict.fromkeys(writers, "/run/influx:ro") | {"influxdb": "/etc/influxdb2"}
    assert influx["INFLUX_TOKEN_FILE"] == "/etc/influxdb2/token"
    assert influx["INFLUX_CONFIGS_PATH"].startswith("/var/lib/influxdb2/"), "the operator's token is not in that volume"
    for name in writers:
        assert SERVICES[name]["environment"]["INFLUX_TOKEN_FILE"] == "/run/influx/token"
        assert "influxdb" in SERVICES[name]["depends_on"], "the volume must get its owner from InfluxDB's image"


# The CLI of the image (influx-cli 2.7.5): its flags, and what it prints.
INFLUX_CLI = """\
import json, os, sys
command, rest = [], sys.argv[1:]
while rest and not rest[0].startswith("-"):
    command.append(rest.pop(0))
flags = {"v1 auth create": {"--org", "--description", "--username", "--password", "--read-bucket", "--write-bucket"},
         "auth create": {"--org", "--description", "--read-bucket", "--write-bucket", "--json"}}[" ".join(command)]
given = {}
while rest:
    flag = rest.pop(0)
    assert flag in flags, flag
    given[flag] = True if flag == "--json" else rest.pop(0)
with open(os.environ["ASKED"], "a") as asked:
    asked.write(json.dumps([" ".join(command), given]) + "\\n")
if "--json" in given:
    if os.environ["ANSWER"] == "refuses":
        sys.exit("Error: failed to create authorization: 401 Unauthorized")
    made = {"id": "0a", "description": given["--description"], "token": "tOk-_en==", "status": "active",
            "userName": "infersiege", "userID": "0b", "permissions": ["read:orgs/1/buckets/2"]}
    if os.environ["ANSWER"] == "says nothing of it":
        del made["token"]
    print(json.dumps(made, indent="\\t" if os.environ["ANSWER"] == "in lines" else None))
else:
    print("ID\\tDescription\\tUsername\\n0c\\tGrafana\\tgrafana")
"""


@pytest.mark.parametrize("answer", ["in lines", "in one line", "refuses", "says nothing of it"])
def test_the_script_of_influxdb_makes_an_account_that_reads_and_one_that_writes(answer: str, tmp_path: Path) -> None:
    script = ROOT / "deploy" / "influxdb" / "accounts.sh"
    assert os.access(script, os.X_OK) and script.name.endswith("sh"), "else the image's run-parts leaves it out"
    assert SERVICES["influxdb"]["volumes"].count("./deploy/influxdb:/docker-entrypoint-initdb.d:ro") == 1
    cli = tmp_path / "influx"
    cli.write_text(f"#!{sys.executable}\n{INFLUX_CLI}", encoding="utf-8")
    cli.chmod(0o755)
    token, settings = tmp_path / "token", tmp_path / "influx-configs"
    settings.touch()
    ran = subprocess.run(
        [script],
        env={
            **{name: f"{value}" for name, value in SERVICES["influxdb"]["environment"].items()},
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "INFLUX_READ_PASSWORD": "pass word$1",
            "INFLUX_TOKEN_FILE": str(token),
            "INFLUX_CONFIGS_PATH": str(settings),
            "DOCKER_INFLUXDB_INIT_BUCKET_ID": "2",  # the image's entry point sets it
            "ASKED": str(tmp_path / "asked"),
            "ANSWER": answer,
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    (first, reader), (second, writer) = map(json.loads, (tmp_path / "asked").read_text().splitlines())
    assert first == "v1 auth create" and (reader["--username"], reader["--password"]) == ("grafana", "pass word$1")
    assert reader["--read-bucket"] == "2" and "--write-bucket" not in reader
    assert second == "auth create" and writer["--read-bucket"] == writer["--write-bucket"] == "2"
    assert "pass word$1" not in ran.stdout + ran.stderr and "tOk" not in ran.stdout + ran.stderr
    if "line" in answer:
        assert (ran.returncode, token.read_text()) == (0, "tOk-_en==\n"), ran.stderr
        assert token.stat().st_mode & 0o777 == 0o444 and settings.exists()
    else:
        assert ran.returncode != 0 and not token.exists(), "the image starts anew after a script that failed"
        assert not settings.exists(), "with them `influx setup` would refuse"


def test_the_token_comes_from_the_file_that_is_named(tmp_path: Path) -> None:
    token = tmp_path / "token"

    def ask(**environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "deploy" / "with-token.sh", "sh", "-c", 'printf "%s|%s" "$INFLUX_TOKEN" "$1"', "-", "a b"],
            env={"PATH": "/usr/bin:/bin", **environ},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert ask(INFLUX_TOKEN="of the environment").stdout == "of the environment|a b"
    assert ask().stdout == "|a b"
    for content in (None, ""):
        if content is not None:
            token.write_text(content, encoding="utf-8")
        missing = ask(INFLUX_TOKEN_FILE=str(token))
        assert missing.returncode == errors.USAGE and f"{token}: no token can be read there" in missing.stderr
    token.write_text("t0k==\n", encoding="utf-8")
    assert ask(INFLUX_TOKEN_FILE=str(token)).stdout == "t0k==|a b"
    both = ask(INFLUX_TOKEN_FILE=str(token), INFLUX_TOKEN="other")
    assert (both.returncode, both.stdout) == (errors.USAGE, "") and "t0k" not in both.stderr


def test_grafana_finds_its_dashboards_and_every_variable_of_its_provisioning() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    provisioning = ROOT / "grafana" / "provisioning"
    files = sorted(provisioning.glob("*/*.y*ml"))
    assert len(files) >= 2
    wanted = {name for file in files for name in re.findall(r"(?<!\$)\$\{?([A-Z]\w*)", _plain(file))}
    assert wanted and wanted <= SERVICES["grafana"]["environment"].keys()
    assert {"INFLUX_READ_USER", "INFLUX_READ_PASSWORD"} <= wanted, "reads by an account that may do no more"
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
        self.emulator = emulator = free_port()
        master = free_port()
        self._replaced = [
            (r"http://influxdb:8086", influx),
            (r"\bemulator:8000\b", f"127.0.0.1:{emulator}"),
            (r"\bmaster:5557\b|0\.0\.0\.0:5557\b", f"127.0.0.1:{master}"),
            (r"0\.0\.0\.0:8089\b|127\.0\.0\.1:8089\b", f"127.0.0.1:{self.web}"),
            (r"127\.0\.0\.1:8000\b", f"127.0.0.1:{emulator}"),
            (r"^8000$", str(emulator)),
            (r"^0\.0\.0\.0$", "127.0.0.1"),
            (r"^/plans/", f"{folder}/plans/"),
            (r"^/deploy/", f"{ROOT}/deploy/"),
            (r"^/run/influx/", f"{folder}/influx-token/"),
        ]
        for name in ("plans", "data", *COMPOSE["volumes"]):
            (folder / name).mkdir()
        plan = self.local((ROOT / "examples" / "plans" / "compose.toml").read_text(encoding="utf-8"))
        (folder / "plans" / "compose.toml").write_text(plan, encoding="utf-8")
        (folder / "influx-token" / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
        # What the image has in /usr/local/bin, and the programs of this environment.
        (folder / "bin").mkdir()
        (folder / "bin" / "with-token").symlink_to(ROOT / "deploy" / "with-token.sh")
        self._path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
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
        command = [self.local(word) for word in command_line(service, self.environ)]
        environment = {
            key: re.sub(r"^/spool\b", str(self.spool(service)), value)
            for key, value in dockerfile_of(SERVICES[service]).environment.items()
        }
        environment |= {"PATH": self._path, "HOME": str(self.folder), "NO_COLOR": "1", "COLUMNS": "200"}
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
    assert f"status page: http://127.0.0.1:{services.web}/" in logged
    for secret in (*(services.environ[name] for name in SECRETS), TOKEN):
        assert secret not in said, "a secret in a log"
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
    # The engine's agent is another container: its series came back from the database, and the run rests on them.
    (stage,) = summary.resources
    assert stage.running_mean is not None and stage.running_mean > 0 and stage.kv_use_peak is not None, stage
    assert list(stage.coverage) == [f"engine 127.0.0.1:{services.emulator}"] and min(stage.coverage.values()) > 0.5
    (row,) = influx.query(
        'SELECT last("limit") AS kind, last("running_mean") AS running FROM "infersiege_run" '
        "WHERE scenario = 'all' AND channel = 'all' AND stage != 'all'"
    )
    values = dict(zip(row["columns"], row["values"][0], strict=True))
    assert (values["kind"], values["running"]) == (stage.limit, stage.running_mean), "what the dashboard shows"
    (engines,) = influx.query('SHOW TAG VALUES FROM "engine" WITH KEY = "engine"')
    assert [value for _, value in engines["values"]] == ["vllm"]
    assert influx.count("engine", "up") >= 8


@pytest.mark.slow
def test_a_stop_ends_a_master_that_waits_for_workers(
    tmp_path: Path, free_port: Callable[[], int], influx: databases.InfluxDB
) -> None:
    """`docker compose down` while the master waits for workers that never come."""
    with stack(tmp_path / "stack", free_port, influx.url, RUN_OPTIONS="") as services:
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
