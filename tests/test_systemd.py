"""The systemd units of the agents: systemd takes them, their commands and settings exist, and little is allowed."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from infersiege_agents import errors, outlet
from infersiege_agents.cli import parser_for

ROOT = Path(__file__).parents[1]
UNITS = {path.stem.removeprefix("infersiege-agent-"): path for path in (ROOT / "agents").glob("*.service")}
each_unit = pytest.mark.parametrize("name", sorted(UNITS))


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names are in mixed case
    parsed.read_string(UNITS[name].read_text(encoding="utf-8"))
    return parsed


def command(name: str) -> list[str]:
    return shlex.split(unit(name)["Service"]["ExecStart"])


def installed(name: str, folder: Path) -> Path:
    """The unit with the program of this environment, which is where systemd looks whether it can be run."""
    program = Path(sys.executable).parent / "infersiege-agent"
    text = (
        UNITS[name]
        .read_text(encoding="utf-8")
        .replace("ExecStart=/opt/infersiege/bin/infersiege-agent", f"ExecStart={program}")
    )
    assert str(program) in text
    path = folder / UNITS[name].name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def systemd(needs: Callable[[str | None], None]) -> str:
    program = shutil.which("systemd-analyze")
    needs(None if program else "systemd-analyze is not installed (Debian: apt-get install systemd)")
    assert program is not None
    return program


def test_there_is_a_unit_for_each_agent_that_runs_for_ever() -> None:
    assert set(UNITS) == {"gpu", "engine"}


@each_unit
def test_systemd_takes_it_without_a_word(name: str, systemd: str, tmp_path: Path) -> None:
    said = subprocess.run(
        [systemd, "verify", "--man=no", str(installed(name, tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_that_check_can_fail(systemd: str, tmp_path: Path) -> None:
    path = installed("gpu", tmp_path)
    path.write_text(
        path.read_text(encoding="utf-8").replace("Restart=on-failure", "Restart=sometimes"), encoding="utf-8"
    )
    said = subprocess.run(
        [systemd, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "sometimes" in said.stdout + said.stderr


@each_unit
def test_systemd_finds_it_hardly_exposed(name: str, systemd: str, tmp_path: Path) -> None:
    """Of 100; what is left is the network and, for NVML, the devices."""
    said = subprocess.run(
        [systemd, "security", "--offline=true", "--threshold=25", "--no-pager", str(installed(name, tmp_path))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout[-300:] + said.stderr


@each_unit
def test_its_command_exists_with_its_options(name: str) -> None:
    program, *arguments = command(name)
    assert program == "/opt/infersiege/bin/infersiege-agent"
    filled = [re.sub(r"\$\{ENGINE_URL\}", "http://127.0.0.1:8000", word) for word in arguments]
    args = parser_for(name).parse_args(filled)
    assert str(args.spool) == f"%S/{unit(name)['Service']['StateDirectory']}", (
        "its own directory, which survives a restart"
    )


@each_unit
def test_its_settings_are_read_by_the_command(name: str) -> None:
    """Those that the unit's first lines name, and those that it uses."""
    text = UNITS[name].read_text(encoding="utf-8")
    named = set(re.findall(r"^#     (\w+)=", text, re.MULTILINE))
    known = {outlet.URL_VARIABLE, outlet.BUCKET_VARIABLE, outlet.ORG_VARIABLE, outlet.TOKEN_VARIABLE}
    used = set(re.findall(r"\$\{(\w+)\}", unit(name)["Service"]["ExecStart"]))
    assert named == {outlet.URL_VARIABLE, outlet.ORG_VARIABLE, outlet.TOKEN_VARIABLE} | used
    assert named - used <= known
    assert unit(name)["Service"]["EnvironmentFile"] in text.partition("[Unit]")[0], "the steps make that file"
    assert f"cp agents/{UNITS[name].name} " in text


@each_unit
def test_no_token_is_in_it(name: str) -> None:
    service = unit(name)["Service"]
    assert "Environment" not in service and "TOKEN" not in service["ExecStart"].upper()


@each_unit
def test_it_starts_again_but_not_where_that_is_hopeless(name: str) -> None:
    service = unit(name)["Service"]
    assert service["Restart"] == "on-failure"
    hopeless = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert hopeless == {errors.USAGE}, "a driver may come late: no GPU now is not none for ever"
    assert int(service["RestartSec"]) == {"gpu": 60, "engine": 10}[name], "a host without GPUs should not notice"
    assert unit(name)["Unit"]["StartLimitIntervalSec"] == "0", "an outage of days is no reason to give up"
    assert "network-online.target" in unit(name)["Unit"]["After"].split()
    assert "network-online.target" in unit(name)["Unit"]["Wants"].split()


def test_nvml_is_let_through() -> None:
    service = unit("gpu")["Service"]
    assert (service["DevicePolicy"], service["DeviceAllow"]) == ("closed", "char-nvidia* rw")
    assert "PrivateDevices" not in service and "ProcSubset" not in service
    assert "AF_UNIX" in service["RestrictAddressFamilies"], "nvidia-persistenced"
    assert unit("engine")["Service"]["PrivateDevices"] == "yes"


def test_without_a_driver_the_units_command_ends_so_that_it_is_started_again(tmp_path: Path) -> None:
    """It does not wait inside: only a start of the unit lets new devices through."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has an NVIDIA driver")
    program = Path(sys.executable).parent / "infersiege-agent"
    arguments = [word.replace("%S", str(tmp_path)) for word in command("gpu")[1:]]
    ended = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/bin:/bin", outlet.URL_VARIABLE: "http://127.0.0.1:9", outlet.TOKEN_VARIABLE: "a-secret"},
    )  # fmt: skip
    assert ended.returncode == errors.NO_GPU, ended.stderr
    assert str(ended.returncode) not in unit("gpu")["Service"]["RestartPreventExitStatus"].split()
    assert ended.stderr.startswith("error: ") and "a-secret" not in ended.stderr
