"""The documents say what is there: commands, options, targets, links. And the tree keeps the house rules."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infersiege.plan.load import load_plan

ROOT = Path(__file__).parents[1]
GENERATED = {".git", ".venv", "build", "dist", "runs", ".demo", "__pycache__"}


def tree(*suffixes: str) -> list[Path]:
    """All files of the project with one of these suffixes (all, if none is given)."""
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            n for n in names if n not in GENERATED and not n.endswith(("_cache", ".egg-info")) and n[:5] != ".venv"
        ]
        found += [Path(folder, file) for file in files if not suffixes or Path(file).suffix in suffixes]
    return sorted(path for path in found if ".hypothesis" not in path.parts)


MARKDOWN = tree(".md")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ------------------------------------------------------------------------------------------------------- commands


@functools.cache
def help_of(*command: str) -> str:
    """What `infersiege COMMAND --help` prints, unwrapped by a wide terminal."""
    ended = subprocess.run(
        [sys.executable, "-c", "from infersiege.cli import main; main()", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )
    assert ended.returncode == 0, f"infersiege {shlex.join(command)} --help: {ended.stderr}"
    return ended.stdout


def subcommands(*command: str) -> list[str]:
    """The names in the help's list of commands; empty for a command that does something itself."""
    _, found, listing = help_of(*command).partition("\nCommands:\n")
    return re.findall(r"^  (\S+)", listing, re.MULTILINE) if found else []


def commands(*above: str) -> Iterator[tuple[str, ...]]:
    """Every command that does something: `("run",)`, `("traces", "inspect")`."""
    for name in subcommands(*above):
        below = list(commands(*above, name))
        yield from below or [(*above, name)]


def examples() -> Iterator[tuple[Path, list[str]]]:
    """Words of each `infersiege …` or `make …` line inside the fenced blocks of all documents."""
    for path in MARKDOWN:
        for block in re.findall(
            r"^ *```[^\n]*\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            for line in block.replace("\\\n", " ").splitlines():
                words = line.strip().removeprefix("$ ")
                if re.match(r"(\.venv/bin/)?(infersiege|make) \S", words):
                    yield path, shlex.split(words.removeprefix(".venv/bin/"), comments=True)


def command_of(words: list[str]) -> tuple[str, ...]:
    """The command that an example calls, as `commands` names it."""
    found: tuple[str, ...] = ()
    for word in words[1:]:
        if word not in subcommands(*found):
            break
        found = (*found, word)
    return found


def test_every_command_has_an_example_in_the_documents() -> None:
    shown = {command_of(words) for _, words in examples() if words[0] == "infersiege"}
    known = set(commands())
    assert known, "no command found in `infersiege --help`"
    assert sorted(known - shown) == []


def test_every_example_calls_a_command_and_options_that_exist() -> None:
    wrong = []
    for path, words in examples():
        if words[0] != "infersiege":
            continue
        command = command_of(words)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = set(re.findall(r"--[a-z][a-z-]*", help_of(*command)))
        if not command and words[1] != "--version":
            wrong.append(f"{name_of(path)}: no such command: {shlex.join(words)}")
        wrong += [f"{name_of(path)}: {shlex.join(words)}: no option {one}" for one in options if one not in known]
    assert wrong == []


def test_every_help_has_an_example_of_its_own() -> None:
    shown = {command: " ".join(help_of(*command).split()) for command in commands()}
    assert [command for command, text in shown.items() if f"infersiege {shlex.join(command)}" not in text] == []


def plans() -> Iterator[tuple[str, str]]:
    """Every TOML block of a document that is a whole plan, and every plan among the examples."""
    for path in MARKDOWN:
        blocks = re.findall(r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks):
            if "[channel." in block and "[[workload]]" in block:
                yield f"{name_of(path)} block {number}", block
    for path in sorted((ROOT / "examples" / "plans").glob("*.toml")):
        yield name_of(path), path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), list(plans()), ids=lambda value: value if "\n" not in value else "")
def test_every_plan_that_is_shown_can_be_loaded(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    keys = dict.fromkeys(re.findall(r'(?:api_key|influx_token)_env = "(\w+)"', text), "a-key")
    assert load_plan(tmp_path / "plan.toml", (), keys).workloads


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {(name_of(path), word) for path, words in examples() if words[0] == "make" for word in words[1:]}
    assert {"venv", "demo", "test", "check", "bench", "llamacpp", "constraints", "clean", "help"} <= targets
    assert [(path, word) for path, word in sorted(named) if word not in targets and "=" not in word] == []


# ---------------------------------------------------------------------------------------------------------- links


def anchors(markdown: str) -> set[str]:
    """Anchors of the headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    assert broken == []


def test_the_documents_were_found() -> None:
    assert {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {name_of(path) for path in MARKDOWN}


# ---------------------------------------------------------------------------------------------------- house rules

MODULE_LINES = 400
FUNCTION_LINES = 60
TOO_LONG: dict[str, int] = {}
"""Allowed to be longer, with its length today: only ever shrinks. `path` or `path:function`."""
CODE = [
    path
    for path in tree(".py")
    if path.relative_to(ROOT).parts[0] in {"infersiege", "agents", "bench", "locustfiles", "examples"}
]


def lengths() -> Iterator[tuple[str, int, int]]:
    """(name, lines, limit) of every module and function."""
    for path in CODE:
        text = path.read_text(encoding="utf-8")
        yield name_of(path), text.count("\n"), MODULE_LINES
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1, FUNCTION_LINES


def test_modules_and_functions_are_short() -> None:
    long = {name: lines for name, lines, limit in lengths() if lines > limit}
    grown = {name: lines for name, lines in long.items() if lines > TOO_LONG.get(name, 0)}
    shrunk = {name: long.get(name) for name, lines in TOO_LONG.items() if long.get(name, 0) < lines}
    assert grown == {}, "split them"
    assert shrunk == {}, "write the new length into TOO_LONG, or take the entry out"


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert [name_of(path) for path in CODE if path.stem in empty or path.parent.name in empty] == []


# Folders of one machine, and hosts of package indexes: which index is used is the configuration of pip and apt.
FOREIGN = re.compile(r"/(?:work|root|Users)/|/home/\w|\b(?:pypi|npmjs|pythonhosted|deb\.debian)\.(?:org|com)")


def test_no_file_names_a_place_of_one_machine_or_a_package_index() -> None:
    found = []
    for path in tree():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # pictures
        found += [f"{name_of(path)}: {match[0]}" for match in FOREIGN.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /wor" + "k/main", True),
        ("/ro" + "ot/x", True),
        ("py" + "pi.org/simple", True),
        ("a/workload/b", False),
        ("PyPI", False),
    ],
)
def test_the_pattern_for_foreign_places(text: str, found: bool) -> None:
    assert bool(FOREIGN.search(text)) is found
