"""locustfiles/ with plain `locust -f`: TTFT, TPOT and whole answers in Locust's own table, page and exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infersiege.emulator.process import EmulatorProcess

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "locustfiles"
SCENARIOS = {
    "short_qa.py": {"short-qa"},
    "long_document.py": {"long-document"},
    "agent.py": {"agent"},
    "mixed.py": {"short-qa", "long-document"},
    "hybrid.py": {"short-qa local", "short-qa cloud"},
}
"""What four users play; of mixed.py's ten users one is an agent."""
ROW = re.compile(r"^(chat|TTFT|TPOT) +(\S.*?)  +(\d+) +(\d+)\([\d.]+%\) \| +(\d+) +(\d+) +(\d+)", re.MULTILINE)


class Table:
    """Locust's summary as it prints it: (type, name) -> requests, fails, avg, min, max in ms."""

    def __init__(self, text: str) -> None:
        self.rows = {
            (kind, name): {"requests": int(n), "fails": int(fails), "avg": int(avg), "min": int(low), "max": int(high)}
            for kind, name, n, fails, avg, low, high in ROW.findall(text)
        }

    def names(self, kind: str) -> set[str]:
        return {name for row, name in self.rows if row == kind}


def start(file: str, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "locust", "-f", str(FOLDER / file), *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LOCUST_", "INFERSIEGE_"))}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**clean, **(env or {})},
    )


def end(process: subprocess.Popen[str], within_s: float = 40) -> tuple[int, str]:
    try:
        out, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        raise AssertionError(f"locust did not end within {within_s} s:\n{out}") from None
    return process.returncode, out


def headless(*more: str, seconds: int = 4) -> list[str]:
    return ["--headless", "-u", "4", "-r", "4", "-t", f"{seconds}s", "--only-summary", *more]


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorProcess]:
    # Five locustfiles share it at a time, one of them with prompts of 24,000 tokens.
    fast = ("--step-base-ms", "5", "--step-per-sequence-ms", "0", "--prefill-rate", "10000000")
    room = ("--max-num-batched-tokens", "1000000", "--max-model-len", "1000000", "--kv-blocks", "200000")
    with EmulatorProcess("--output-tokens", "20", *fast, *room) as process:
        yield process


@pytest.fixture(scope="module")
def target(emulator: EmulatorProcess) -> list[str]:
    return ["--host", emulator.base_url, "--model", emulator.model]


@pytest.fixture(scope="module")
def all_files(emulator: EmulatorProcess, target: list[str]) -> dict[str, tuple[int, str]]:
    """Each locustfile's exit code and output; they run at the same time."""
    cloud = {
        "TAOTOKEN_BASE_URL": emulator.base_url,
        "TAOTOKEN_MODEL": emulator.model,
        "TAOTOKEN_API_KEY": "sk-not-a-real-key-1234567890",
    }
    running = {file: start(file, *headless(*target), env=cloud) for file in SCENARIOS}
    return {file: end(process) for file, process in running.items()}


def test_every_locustfile_is_in_the_table() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(SCENARIOS)


@pytest.mark.parametrize("file", SCENARIOS)
def test_a_locustfile_runs_and_shows_its_rows(all_files: dict[str, tuple[int, str]], file: str) -> None:
    code, out = all_files[file]
    assert code == 0, out
    assert "Traceback" not in out
    assert "sk-not-a-real-key" not in out
    table = Table(out)
    for kind in ("chat", "TTFT", "TPOT"):
        assert table.names(kind) >= SCENARIOS[file], out
    for (kind, name), row in table.rows.items():
        assert row["fails"] == 0, out
        answers = table.rows["chat", name]["requests"]
        if kind == "TPOT":
            # What a busy machine delivered within a millisecond has none: that is how it came, not how it was made.
            assert 0.7 * answers <= row["requests"] <= answers, out
        else:
            assert row["requests"] == answers, f"{kind} of {name}: one per answer"


def test_st_34_locusts_row_is_the_whole_answer() -> None:
    """20 tokens, 40 ms each: the chat row has the time to the last token, not to the headers; TTFT stands beside it."""
    slow = ("--output-tokens", "20", "--step-base-ms", "40", "--step-per-sequence-ms", "0", "--prefill-rate", "1000000")
    with EmulatorProcess(*slow) as emulator:
        code, out = end(start("short_qa.py", *headless("--host", emulator.base_url, "--model", emulator.model)))
    assert code == 0, out
    rows = Table(out).rows
    chat, ttft, tpot = (rows[kind, "short-qa"] for kind in ("chat", "TTFT", "TPOT"))
    assert chat["requests"] >= 4
    assert chat["min"] >= 500, out
    assert ttft["min"] < 200 and ttft["avg"] < chat["avg"] / 2, out
    assert tpot["min"] >= 30 and tpot["avg"] < 80, out


def test_master_and_worker(target: list[str], free_port: Callable[[], int]) -> None:
    """The worker gets host, model and seed from its master, and the rows arrive in the master's table."""
    port = str(free_port())
    master = start("short_qa.py", *headless(*target), "--master", "--master-bind-host", "127.0.0.1",
                   "--master-bind-port", port, "--expect-workers", "2")  # fmt: skip
    workers = [
        start("short_qa.py", "--worker", "--master-host", "127.0.0.1", "--master-port", port) for _ in range(2)
    ]  # fmt: skip
    code, out = end(master)
    ended = [end(worker) for worker in workers]
    assert code == 0, out
    assert [worker_code for worker_code, _ in ended] == [0, 0], ended
    rows = Table(out).rows
    assert rows["TTFT", "short-qa"]["requests"] == rows["chat", "short-qa"]["requests"] > 4, out
    assert rows["chat", "short-qa"]["fails"] == 0


def test_the_web_page_shows_the_rows(target: list[str], free_port: Callable[[], int]) -> None:
    port = free_port()
    running = start("short_qa.py", "--web-host", "127.0.0.1", "--web-port", str(port), "--autostart", "-u", "2",
                    "-r", "2", "-t", "6s", "--autoquit", "1", *target)  # fmt: skip
    shown: dict[str, int] = {}
    deadline = time.monotonic() + 25
    while "TTFT" not in shown and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=5) as answer:
                stats = json.load(answer)["stats"]
        except OSError:
            continue  # not listening yet
        shown = {str(row["method"]): int(row["num_requests"]) for row in stats}
    code, out = end(running)
    assert shown.get("TTFT", 0) > 0 and shown.get("chat", 0) > 0, (shown, out)
    assert code == 0, out


REFUSED = [
    (["--host", "http://127.0.0.1:1/v1"], "error: no model: name it with --model", "no model"),
    (["--model", "m"], "error: no target: name it with --host", "no target"),
    (["--host", "127.0.0.1:1", "--model", "m"], "error: ", "an address without its scheme"),
    (
        ["--host", "http://127.0.0.1:1/v1", "--model", "m", "--engine", "vlm"],
        "invalid choice: 'vlm'",
        "an engine that does not exist",
    ),
    (
        ["--host", "http://127.0.0.1:1/v1", "--model", "m", "--key-env", "NO_SUCH_KEY_HERE"],
        "NO_SUCH_KEY_HERE",
        "a key that is not set",
    ),
]


@pytest.mark.parametrize(("options", "message", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_is_missing_ends_locust_at_once(options: list[str], message: str, why: str) -> None:
    """Not after the run time: a minute of nothing, and then an empty table, is no message."""
    code, out = end(start("short_qa.py", *headless(*options, seconds=60)), within_s=20)
    assert code == 2, (why, out)
    assert message in out
    assert "Traceback" not in out


def test_a_master_says_too_what_is_missing(free_port: Callable[[], int]) -> None:
    code, out = end(
        start("short_qa.py", *headless("--model", "m", seconds=60), "--master", "--master-bind-host", "127.0.0.1",
              "--master-bind-port", str(free_port())),
        within_s=20,
    )  # fmt: skip
    assert code == 2 and "no target" in out, out


def test_an_unreachable_host_is_in_the_table_and_the_exit_code(free_port: Callable[[], int]) -> None:
    host = f"http://127.0.0.1:{free_port()}/v1"
    code, out = end(start("short_qa.py", *headless("--host", host, "--model", "m")))
    assert code == 1, out
    row = Table(out).rows["chat", "short-qa"]
    assert row["fails"] == row["requests"] >= 4
    assert row["fails"] < 400, "a user whose server is gone pauses between attempts"
    assert "connection refused" in out
    assert not Table(out).names("TTFT")
