"""The comparison with other clients still runs: ours and Locust's read every event of the rig, in small."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLIENTS = ("infersiege", "FastHttpUser", "HttpUser + sseclient-py")
"""Those that need nothing from the dependency group `bench`."""

pytestmark = pytest.mark.truth


def test_each_client_reads_every_event_and_gets_a_row(needs: Callable[[str | None], None]) -> None:
    needs(None if shutil.which("gcc") else "no gcc, which compiles the server with known times (apt-get install gcc)")
    load = ["--streams", "4", "--requests", "2", "--tokens", "10", "--rounds", "1"]
    chosen = [word for client in CLIENTS for word in ("--client", client)]
    command = [sys.executable, str(ROOT / "bench" / "peers.py"), *load, *chosen]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = {cells[1]: cells for line in ended.stdout.splitlines() if len(cells := re.split(r" *\| *", line)) > 5}
    for client in CLIENTS:
        (row,) = [cells for name, cells in rows.items() if name.startswith(f"{client} (")]
        assert float(row[4]) > 0, "CPU relative to ours"
        p50, p99 = (float(part) for part in row[5].split(" / "))
        assert -0.1 < p50 <= p99, "a first token is not seen before it was written (clock offsets aside)"
