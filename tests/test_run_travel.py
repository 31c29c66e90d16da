"""Runs whose worker has other files than its master, or none: what travels is played, what can't is refused (DI-05)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from siege import Running, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECRET = {"INFERSIEGE_SECRET": "of-this-test-only"}
PATCHED = """
import sys
from infersiege.swarm.patching import patch
patch()
{change}
from infersiege.cli import main
main(sys.argv[1:])
"""


def write_trace(path: Path, sessions: int = 300, word: str = "sold") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number in range(sessions):
            text = f"{number}: what was {word if number == sessions - 1 else 'sold'}? {number**9:x} {path.name}"
            row = {"session_id": f"{path.stem}-{number}", "messages": [{"role": "user", "content": text}]}
            file.write(json.dumps(row) + "\n")
    return path


@dataclass(slots=True)
class Remote:
    """A worker on a host whose folder of the master's files is empty, or has other files."""

    siege: Siege
    folder: Path
    """Where the master's files are."""
    address: str
    tmp: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, given: Path | None = None, change: str = "", **environ: str) -> subprocess.Popen[bytes]:
        """`given`: a file that is there in place of the master's; `change`: made to the worker's own code."""
        python = ["-c", PATCHED.format(change=change)] if change else ["-m", "infersiege"]
        copy = f"cp {shlex.quote(str(given))} {shlex.quote(str(self.folder))}/ && " if given is not None else ""
        hide = f'mount -t tmpfs hidden {shlex.quote(str(self.folder))} && {copy}exec "$@"'
        worker = [sys.executable, *python, "worker", "--master", self.address, "--name", "far", "--wait", "30s"]
        started = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *worker],
            env={**self.siege.environment, "TMPDIR": str(self.tmp), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(started)
        return started

    def master(self, text: str, *, change: str = "") -> Running:
        """`change`: made to the master's own code."""
        options = ("--workers", "0", "--expect-workers", "1", "--bind", self.address)
        python = ("-c", PATCHED.format(change=change)) if change else ("-m", "infersiege")
        running = self.siege.start(text, *options, python=python)
        self.processes.append(running.process)
        return running


@pytest.fixture
def remote(siege: Siege, free_port: Callable[[], int], needs: Callable[[str | None], None]) -> Iterator[Remote]:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    needs("no mount namespaces here (they need root)" if tried.returncode else None)
    siege.environment |= SECRET
    folder, tmp = siege.folder / "master", siege.folder / "tmp"
    folder.mkdir()
    tmp.mkdir()
    made = Remote(siege, folder, f"127.0.0.1:{free_port()}", tmp)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


SMALL = """
import infersiege.swarm.travel as travel
travel.MOST_PACKED_BYTES = 1000
"""
"""What travels, for a trace of some KB to be too large."""

LOAD = 'mode = "closed"\nusers = 2\nramp = "0s"\ndrain = "1s"'


def plan_for(base_url: str, trace: Path, *, channel: str = "", wait: str = "20s", duration: str = "3s") -> str:
    return plan_text(
        base_url,
        load=LOAD,
        run=f'duration = "{duration}"\nwait_for_workers = "{wait}"',
        workload=f'scenario = "talk"\ntrace = "{trace}"',
        channel=channel,
    )


def test_a_trace_that_is_not_there_travels_and_is_gone_when_the_load_begins(remote: Remote) -> None:
    """A folder of traces; the copies are removed before the first turn, so that no crash leaves them."""
    traces = remote.folder / "traces"
    for name in ("b.jsonl", "deep/a.jsonl"):
        write_trace(traces / name)
    with EmulatorProcess("--output-tokens", "10") as emulator:
        running = remote.master(plan_for(emulator.base_url, traces))
        worker = remote.start()
        running.until('"outcome":"ok"')
        assert list(remote.tmp.iterdir()) == [], "the worker has the files open"
        ran = running.wait()
        said = worker.communicate(timeout=20)[0].decode()
    check_passed(ran)
    check_conserved(ran)
    assert worker.returncode == 0, said
    assert f"{traces} (trace of talk) is not there on " in said and "asking the master for its" in said
    assert ran.summary.traces[0].trace == str(traces), "under the plan's path"
    assert {turn.session_id.split(":")[1].rpartition("-")[0] for turn in ran.turns} <= {"a", "b"}


def test_di_05_one_changed_trace_row_is_not_played(remote: Remote) -> None:
    """The worker's own copy is put aside, with a word, and the master's is played."""
    trace = write_trace(remote.folder / "t.jsonl", sessions=4)
    other = write_trace(remote.siege.folder / "other" / "t.jsonl", sessions=4, word="SOLD")
    assert trace.stat().st_size == other.stat().st_size, "only its content tells"
    with EmulatorProcess("--output-tokens", "10") as emulator:
        running = remote.master(plan_for(emulator.base_url, trace))
        worker = remote.start(given=other)
        ran = running.wait()
        said = worker.communicate(timeout=20)[0].decode()
    check_passed(ran)
    check_conserved(ran)
    assert "is another one (its content differs) on " in said, said


@pytest.mark.parametrize("there", [False, True], ids=["not there", "one changed row"])
def test_di_05_what_is_too_large_to_travel_is_refused_with_the_reason(remote: Remote, there: bool) -> None:
    trace = write_trace(remote.folder / "t.jsonl")
    other = write_trace(remote.siege.folder / "other" / "t.jsonl", word="SOLD") if there else None
    with EmulatorProcess("--output-tokens", "10") as emulator:
        running = remote.master(plan_for(emulator.base_url, trace), change=SMALL)
        worker = remote.start(given=other)
        ran_code = running.process.wait(60)
        said = worker.communicate(timeout=20)[0].decode()
    out = running.output()
    found = "is another one (its content differs)" if there else "is not there"
    for text in (out, said):
        assert f"{trace} (trace of talk, sha256 " in text and found in text, text
        assert "is too large to be sent to workers" in text and "copy the master's to the same path" in text
        assert "Traceback" not in text
    assert ran_code == worker.returncode == 2
    assert not running.path.exists(), "no load, no run directory"
    assert list(remote.tmp.iterdir()) == []


REFUSED = [
    (
        "another version",
        "import infersiege.swarm.worker as w\nv = w.versions\nw.versions = lambda: {**v(), 'msgspec': '0.0.1'}",
        "far has msgspec 0.0.1, the master has",
        3,
    ),
    (
        "another plan",
        "import msgspec\nimport infersiege.swarm.worker as w\np = w.plan_from_json\n"
        "w.plan_from_json = lambda data: msgspec.structs.replace(p(data), labels={'gpu': 'another'})",
        "has another plan than the master",
        3,
    ),
]


@pytest.mark.parametrize(("case", "change", "why", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_di_05_another_version_or_plan_is_refused(remote: Remote, case: str, change: str, why: str, code: int) -> None:
    trace = write_trace(remote.folder / "t.jsonl", sessions=4)
    with EmulatorProcess("--output-tokens", "10") as emulator:
        running = remote.master(plan_for(emulator.base_url, trace, wait="6s"))
        worker = remote.start(change=change)
        assert running.process.wait(60) == 3
        said = worker.communicate(timeout=20)[0].decode()
    assert worker.returncode == code, said
    assert why in running.output() + said, running.output() + said
    assert "Traceback" not in running.output() + said


def test_a_worker_without_the_key_says_so_before_the_load(remote: Remote) -> None:
    """Keys do not travel; the master has one, the worker's host has none."""
    trace = write_trace(remote.folder / "t.jsonl", sessions=4)
    remote.siege.environment["KEY_OF_THIS_TEST"] = "sk-of-this-test-0123456789"
    with EmulatorProcess("--output-tokens", "10") as emulator:
        text = plan_for(emulator.base_url, trace, channel='api_key_env = "KEY_OF_THIS_TEST"')
        running = remote.master(text)
        worker = remote.start(KEY_OF_THIS_TEST="")
        assert running.process.wait(60) == 2, running.output()
        said = worker.communicate(timeout=20)[0].decode()
    assert "far: channel.target: the environment variable KEY_OF_THIS_TEST is empty on " in running.output()
    assert "sk-of-this-test" not in running.output() + said
    assert list(remote.tmp.iterdir()) == []
