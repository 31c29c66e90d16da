"""The limit on open files: one error before anything is sent, and nothing that has to be opened once the load runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from siege import plan_text

from infersiege.plan import load_plan
from infersiege.swarm.health import PROCESS_FILES, worker_files

CLOSED, OPEN = 'mode = "closed"\nusers = {}', 'mode = "open"\nrate = 5\nmax_in_flight = 500'

NEEDS = [
    (CLOSED.format(4), "", 1, 4, "every user keeps a connection"),
    (CLOSED.format(61), "", 2, 31, "the larger of two shares"),
    (CLOSED.format(61), "stop = {sessions = 3}", 1, 3, "no more users than sessions"),
    (OPEN, "", 1, 0, "a cap is no need: nobody knows how many are in flight"),
]


@pytest.mark.parametrize(("load", "run", "members", "users", "why"), NEEDS, ids=[why for *_, why in NEEDS])
def test_a_worker_needs_a_descriptor_for_each_user_that_keeps_a_connection(
    tmp_path: Path, load: str, run: str, members: int, users: int, why: str
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text("http://127.0.0.1:1/v1", run=run or 'duration = "5s"', load=load), encoding="utf-8")
    assert worker_files(load_plan(path), members) == PROCESS_FILES + users, why


def limited(files: int, *command: str, cwd: Path, secret: str = "") -> subprocess.CompletedProcess[str]:
    lowered = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "infersiege", *command]
    return subprocess.run(
        lowered,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(cwd), "INFERSIEGE_SECRET": secret},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_too_few_open_files_are_one_error_before_the_target_is_asked(tmp_path: Path) -> None:
    text = plan_text("http://127.0.0.1:1/v1", run='duration = "5s"', load=CLOSED.format(60))
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    for files, who, needed in ((16, "the master", PROCESS_FILES + 2), (48, "each of the workers", PROCESS_FILES + 30)):
        ran = limited(files, "run", "plan.toml", "--out", "run", "--workers", "2", cwd=tmp_path)
        said = f"a process may have {files} open files here, and {who} needs at least {needed}"
        assert (ran.returncode, said in ran.stderr, "ulimit -n" in ran.stderr) == (2, True, True), ran.stderr
    ran = limited(16, "worker", "--master", "127.0.0.1:1", cwd=tmp_path, secret="correct-horse-battery-staple-9")
    assert ran.returncode == 2 and f"a worker needs at least {PROCESS_FILES}" in ran.stderr, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"], "no run directory, no file of a fault"


LATE = """
import sys
import infersiege.swarm.worker
before = set(sys.modules)
import numpy as np
np.unique(np.array([1, 2])), np.random.PCG64(1)
print(sorted(name for name in set(sys.modules) - before if name.startswith("numpy")))
"""


def test_numpy_reads_nothing_from_disk_once_a_worker_is_there() -> None:
    ran = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr
