"""Runs a function in a process of its own: importing Locust patches the standard library for good.

    assert isolated("side_rpc:good_worker", port) == {"receiver": "alive"}

The function lies in a module beside the tests; arguments and result go through JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def isolated(target: str, *arguments: Any, within_s: float = 60.0, env: dict[str, str] | None = None) -> Any:
    """Result of `module:function(*arguments)`. Fails with what the process said when it does not end well in time."""
    command = [sys.executable, str(Path(__file__)), target, json.dumps(arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False, env={**os.environ, **(env or {})}
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{target} took more than {within_s:.0f} s:\n{error.stderr!r}") from None
    assert done.returncode == 0, f"{target} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def _main() -> None:
    target, arguments = sys.argv[1:3]
    module, _, function = target.partition(":")
    result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print("\n" + json.dumps(result), flush=True)
    # Locust's sockets and greenlets would hold the exit up.
    os._exit(0)


if __name__ == "__main__":
    _main()
