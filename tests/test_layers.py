"""ARCHITECTURE.md's layer table is true: the imports keep it, and this test can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import layers
import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / layers.PACKAGE
TABLE = layers.read_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))

EXAMPLE = """
| layer | modules | may import |
|---|---|---|
| 1 | `errors` | nothing of ours |
| 2 | `traces`, `wire.sse` | 1, 2: pure, no sockets, no gevent |
| 3 | `wire`, `emulator` | 1 to 3; the emulator only `errors` |
| 4 | `swarm` | 1 to 4; the only one with locust (and, with `wire.transport`, gevent) |
| 5 | `cli` | all |
"""
GOOD = {
    "__init__.py": "__version__ = '1'",
    "errors.py": "import enum",
    "traces/__init__.py": "from infersiege import errors, __version__",
    "wire/__init__.py": "",
    "wire/sse.py": "from infersiege.errors import Oops",
    "wire/transport.py": "import socket, gevent\nfrom . import sse\nfrom .tls import wrap",
    "wire/tls.py": "from gevent import ssl",
    "emulator/__init__.py": "import socket\nfrom infersiege import errors",
    "swarm/__init__.py": "from locust import User\nimport gevent\nfrom infersiege.wire.transport import Client",
    "cli/__init__.py": "def main():\n    from infersiege.swarm import run",
}


def tree(root: Path, changes: dict[str, str]) -> Path:
    for name, text in {**GOOD, **changes}.items():
        file = root / layers.PACKAGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root / layers.PACKAGE


def test_the_package_keeps_the_layer_table() -> None:
    assert layers.violations(SOURCE, TABLE) == []


def test_there_are_no_import_cycles() -> None:
    assert layers.cycles(SOURCE) == []


def test_the_table_was_read_as_it_is_meant() -> None:
    assert [layer.number for layer in TABLE.layers] == [1, 2, 3, 4, 5, 6, 7]
    assert TABLE.layers[0].may_import == frozenset()
    assert TABLE.layers[1].pure
    assert TABLE.only == {"emulator": {"errors"}}
    assert TABLE.libraries == {"locust": {"swarm"}, "gevent": {"swarm", "wire.transport"}}


def test_a_tree_that_keeps_the_rules_passes(tmp_path: Path) -> None:
    root = tree(tmp_path, {})
    assert layers.violations(root, layers.read_table(EXAMPLE)) == []
    assert layers.cycles(root) == []


@pytest.mark.parametrize(
    ("name", "text", "breach"),
    [
        ("errors.py", "from infersiege.traces import read", "errors:1: layer 1 (errors) imports layer 2 (traces)"),
        ("errors.py", "def f():\n    import infersiege.cli", "errors:2: layer 1 (errors) imports layer 5 (cli)"),
        ("traces/__init__.py", "from ..wire import transport", "traces:1: layer 2 (traces) imports layer 3 (wire)"),
        (
            "traces/jsonl.py",
            "import urllib.request",
            "traces.jsonl:1: layer 2 is pure, but this imports urllib.request",
        ),
        ("wire/sse.py", "import socket", "wire.sse:1: layer 2 is pure, but this imports socket"),
        ("wire/sse.py", "import gevent", "wire.sse:1: imports gevent, which only swarm, wire.transport may"),
        ("emulator/__init__.py", "import gevent", "emulator:1: imports gevent, which only swarm, wire.transport may"),
        ("wire/transport.py", "import locust.env", "wire.transport:1: imports locust, which only swarm may"),
        ("cli/run.py", "def f():\n    from locust import User", "cli.run:2: imports locust, which only swarm may"),
        ("__init__.py", "import gevent", "infersiege:1: imports gevent, which only swarm, wire.transport may"),
        ("__init__.py", "from infersiege import errors", "infersiege:1: the package itself imports errors"),
        (
            "emulator/__init__.py",
            "from infersiege.wire import sse",
            "emulator:1: emulator may import only errors, not wire.sse",
        ),
        ("helpers.py", "", "helpers: in no row of the layer table"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, name: str, text: str, breach: str) -> None:
    assert layers.violations(tree(tmp_path, {name: text}), layers.read_table(EXAMPLE)) == [breach]


def test_a_row_without_its_module_is_found(tmp_path: Path) -> None:
    table = layers.read_table(EXAMPLE.replace("`cli`", "`cli`, `web`"))
    assert layers.violations(tree(tmp_path, {}), table) == ["web: in the layer table, but there is no such module"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"traces/a.py": "from . import b", "traces/b.py": "from .a import x"}, [("traces.a", "traces.b")]),
        # Deferred: it is there when the function is called.
        ({"traces/a.py": "from . import b", "traces/b.py": "def f():\n    from .a import x"}, []),
        # For the type checker only.
        ({"traces/a.py": "from . import b", "traces/b.py": "if TYPE_CHECKING:\n    from .a import x"}, []),
        (
            {"traces/a.py": "from infersiege.traces import read", "traces/__init__.py": "from .a import x"},
            [("traces", "traces.a")],
        ),
    ],
)
def test_a_cycle_is_found(tmp_path: Path, changes: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    assert layers.cycles(tree(tmp_path, changes)) == expected


def test_a_document_without_a_table_is_no_pass() -> None:
    with pytest.raises(ValueError, match="no layer table"):
        layers.read_table("# Architecture\n")


def loaded_after(code: str) -> set[str]:
    """Top-level names of sys.modules after `code`, in a fresh interpreter."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout.splitlines()[-1]))


def test_the_modules_below_the_transport_load_neither_gevent_nor_locust() -> None:
    lower = [
        f"{layers.PACKAGE}.{name}"
        for name in layers.modules_of(SOURCE)
        if name and (row := TABLE.row(name)) and row[1].number <= 3
    ]
    assert len(lower) > 10
    assert not loaded_after(f"import {', '.join(lower)}") & {"gevent", "locust"}


@pytest.mark.parametrize("command", ["gate", "report"])
def test_commands_that_only_read_a_run_directory_start_without_gevent(command: str) -> None:
    code = (
        f"sys.argv = ['infersiege', '{command}', '--help']\nfrom infersiege.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code"
    )
    assert not loaded_after(code) & {"gevent", "locust"}


def test_loading_the_transport_does_load_gevent() -> None:
    """The two tests above look for the right name."""
    assert "gevent" in loaded_after("import infersiege.wire.transport")
