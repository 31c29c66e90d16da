"""What test_recover.py does to a process that it would not do to its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from infersiege.errors import InfersiegeError
from infersiege.rundir import RunDirectory
from infersiege.swarm.leftovers import named
from infersiege.swarm.recovered_facts import begin
from infersiege.swarm.recovery import is_over, recover

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.truncate")
UNTOUCHED = 77


def _recover_until(folder: Path, spools: Path, step: int | None) -> None:
    """In a process of its own: die at the n-th time that a file below `folder` is opened, renamed or removed."""
    left = [step]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not str(arguments[0]).startswith(str(folder)) or left[0] is None:
            return
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    sys.addaudithook(watch)
    try:
        path = folder / "run"
        spools_there = [spools]
        if (path / "plan.json").exists() and is_over(RunDirectory.open(path)):
            spools_there = []
        with RunDirectory.open(path) if (path / "plan.json").exists() else begin(path, named(spools_there)) as run:
            recover(run, named(spools_there))
    except InfersiegeError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(int(error.exit_code))
    os._exit(0)


def recover_dying_at(folder: str, step: int | None) -> int:
    """Exit code of a recovery of folder/run with folder/spools that dies at a step; 9: it died."""
    pid = os.fork()
    if pid == 0:
        _recover_until(Path(folder), Path(folder) / "spools", step)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def recover_dying_at_each_step(folder: str, copies: str, stride: int) -> list[list[Any]]:
    """For n = 0, stride, 2 strides …: a copy of `folder` whose recovery dies at step n, and is then called until it is
    through; some die a second time.

    Gives (copy, exit code of the first call, exit codes of the others); ends with the first one that did not die.
    """
    found: list[list[Any]] = []
    for number in range(1000):
        copy = Path(copies) / str(number)
        shutil.copytree(folder, copy)
        first = recover_dying_at(str(copy), number * stride)
        if first != 9:
            return [*found, [str(copy), first, []]]
        steps = (number + 3, None) if number % 4 == 0 else (None,)
        found.append([str(copy), first, [recover_dying_at(str(copy), step) for step in steps]])
    raise AssertionError("it never came to its end")
