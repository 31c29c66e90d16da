"""What is installed is what the tree holds: versions, licence, pins, console scripts, files of the wheels."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
AGENTS = tomllib.loads((ROOT / "agents" / "pyproject.toml").read_text(encoding="utf-8"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {
        canonical(name): version for name, _, version in (line.partition("==") for line in lines if line[:1] != "#")
    }


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    return [
        Requirement(line)
        for lines in (project["dependencies"], AGENTS["project"]["dependencies"], *groups)
        for line in lines
        if not line.startswith("infersiege-agents")  # ours: from this checkout
    ]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_each_requirement_is_pinned_inside_its_range(requirement: Requirement) -> None:
    pinned = pins().get(canonical(requirement.name))
    assert pinned is not None, "make constraints"
    assert requirement.specifier.contains(pinned, prereleases=True)


def test_constraints_hold_only_exact_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    bad = [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.!+-]+", line)]
    assert bad == [], "no address, no path, no range"
    assert {"infersiege", "infersiege-agents"}.isdisjoint(pins())


def test_locust_is_held_to_one_minor_version() -> None:
    (locust,) = [one for one in requirements() if one.name == "locust"]
    major, minor = pins()["locust"].split(".")[:2]
    assert not locust.specifier.contains(f"{major}.{int(minor) + 1}.0")


def test_both_distributions_have_one_version() -> None:
    version = PYPROJECT["project"]["version"]
    assert AGENTS["project"]["version"] == version
    assert metadata.version("infersiege") == metadata.version("infersiege-agents") == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_licence_is_the_whole_of_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert re.findall(r"^   (\d)\. [A-Z]", text, re.MULTILINE) == list("123456789")
    assert "END OF TERMS AND CONDITIONS" in text


def test_each_file_beside_the_code_is_named_as_package_data() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    package = ROOT / "infersiege"
    left_out = []
    for file in sorted(package.rglob("*")):
        if file.is_dir() or file.suffix in {".py", ".pyc"}:
            continue
        named = [
            fnmatch.fnmatch(str(file.relative_to(ROOT.joinpath(*owner.split(".")))), pattern)
            for owner, globs in patterns.items()
            if file.is_relative_to(ROOT.joinpath(*owner.split(".")))
            for pattern in globs
        ]
        if not any(named):
            left_out.append(str(file.relative_to(ROOT)))
    assert left_out == []


@pytest.mark.parametrize(("folder", "package"), [(".", "infersiege"), ("agents", "infersiege_agents")])
def test_the_wheel_holds_the_whole_package(folder: str, package: str, tmp_path: Path) -> None:
    """Built from a copy: setuptools writes beside the sources."""
    source = tmp_path / "source"
    copy = ["cp", "-r", "--", *(str(ROOT / folder / name) for name in ("pyproject.toml", "README.md", package))]
    source.mkdir()
    subprocess.run([*copy, str(source)], check=True)
    subprocess.run(["cp", str(ROOT / "LICENSE"), str(source)], check=True)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    ]
    ended = subprocess.run(
        [*build, "-w", str(tmp_path / "out"), str(source)], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {f for f in (ROOT / folder / package).rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    assert {str(file.relative_to(ROOT / folder)) for file in files} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def script(*words: str) -> Any:
    return subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["infersiege", "infersiege-agent"])
def test_the_console_script_tells_its_version(name: str) -> None:
    ended = script(name, "--version")
    assert ended.returncode == 0, ended.stderr
    assert PYPROJECT["project"]["version"] in ended.stdout


def test_an_unknown_agent_is_a_usage_error() -> None:
    ended = script("infersiege-agent", "fpga")
    assert ended.returncode == 2
    assert "invalid choice" in ended.stderr
