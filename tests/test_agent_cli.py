"""The agents' command line and outlet: every way to end, where points go, and that no token leaves the process."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import databases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents import cli, environment, outlet
from infersiege_agents.errors import AgentError
from infersiege_agents.influx.counters import Counters
from infersiege_agents.influx.target import Target
from infersiege_agents.points import Point

TOKEN = "my-t0ken-that-nobody-may-see=="


def agent(*words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infersiege_agents.cli", *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env={**os.environ, **environ},
    )  # fmt: skip


def options(*words: str) -> argparse.Namespace:
    parser = cli.Parser()
    outlet.add_options(parser)
    return parser.parse_args(words)


def point(number: float = 1.0, at_ns: int = 5) -> Point:
    return Point("gpu", {"host": "h", "uuid": "GPU-a"}, {"ok": number}, at_ns)


def numbers_in(path: Path) -> list[float]:
    return [json.loads(line)["fields"]["ok"] for line in path.read_bytes().splitlines()]


# --------------------------------------------------------------------------------------------------------- command line


def test_help_and_version() -> None:
    shown = agent("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(name in shown.stdout for name in cli.COMMANDS)
    version = agent("--version")
    assert version.stdout == f"infersiege-agent {metadata.version('infersiege-agents')}\n"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help_with_an_example(command: str) -> None:
    shown = agent(command, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"infersiege-agent {command} " in shown.stdout.split("example")[1]
    assert "--influx-url URL" in shown.stdout
    assert "--influx-token " not in shown.stdout, "a token on a command line is seen by every user of the host"


def test_a_command_loads_only_its_own_module() -> None:
    """An AMD host has no use for NVML, and `check` none for a parser of metrics."""
    code = (
        "import sys; from infersiege_agents import cli; cli.parser_for('check')\n"
        "print([name for name in ('pynvml', 'prometheus_client', 'influxdb_client') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fpga"], "invalid choice: 'fpga'"),
        (["check", "--influx-ulr", "http://127.0.0.1:1"], "unrecognized arguments: --influx-ulr"),
        (["check", "--influx-url"], "expected one argument"),
        (["check"], "which database?"),
        (["csv", "x.csv"], "x.csv: can't be read"),
        (["gpu", "--with-parent", "--out", "o"], "argument --with-parent: expected one argument"),
        (["gpu", "--with-parent", "0"], "argument --with-parent: '0' is no whole number from 1 to"),
        (["gpu", "--expect", "٣"], "argument --expect: '٣' is no whole number from 1 to 1024"),
        (["engine", "--url", "http://h:1", "--interval", "1s"], "'1s' is no number of seconds from 0.05 to 3600"),
        (["engine", "--url", "http://h:1", "--close-within", "-1"], "'-1' is no number of seconds from 0 to 3600"),
    ],
)
def test_a_usage_error_is_one_line_a_hint_and_2(words: list[str], text: str) -> None:
    ended = agent(*words, INFERSIEGE_INFLUX_URL="")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]*\nhint: [^\n]*\n", ended.stderr), ended.stderr
    assert text in ended.stderr


def broken(error: BaseException) -> ModuleType:
    """A command module whose command raises."""

    def run(_args: argparse.Namespace) -> int:
        raise error

    def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        commands.add_parser("broken").set_defaults(run=run)

    module = ModuleType("broken_command")
    module.add = add  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (AgentError("no database", hint="start it", exit_code=4), 4, "error: no database\nhint: start it\n"),
        (AgentError("no hint"), 2, "error: no hint\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(), 0, ""),
        (ZeroDivisionError("by zero"), 70, "error: a fault of infersiege-agent: ZeroDivisionError: by zero\nhint: pl"),
    ],
)
def test_every_end_has_its_code(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "broken_command", broken(error))
    monkeypatch.setitem(cli.COMMANDS, "broken", ("broken_command", "Fails."))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main(["broken"])
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert said.startswith(text)
    assert "Traceback" not in said
    files = list(tmp_path.iterdir())
    assert len(files) == (code == 70)
    assert all("ZeroDivisionError" in file.read_text() and str(file) in said for file in files)


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    ended = subprocess.run(
        f"{sys.executable} -m infersiege_agents.cli --help | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable=shutil.which("bash"), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "u", "")


# ------------------------------------------------------------------------------------------------------ which database


def test_options_come_before_the_environment() -> None:
    environ = {
        "INFERSIEGE_INFLUX_URL": "http://env:1", "INFERSIEGE_INFLUX_BUCKET": "eb", "INFERSIEGE_INFLUX_ORG": "eo",
        "INFLUX_TOKEN": "et", "OTHER": "ot",
    }  # fmt: skip
    target = outlet.database_of(options(), environ)
    assert target is not None
    assert (target.url, target.bucket, target.org, target.token) == ("http://env:1", "eb", "eo", "et")
    words = (
        "--influx-url",
        "http://opt:2/",
        "--influx-bucket",
        "ob",
        "--influx-org",
        "oo",
        "--influx-token-env",
        "OTHER",
    )
    target = outlet.database_of(options(*words), environ)
    assert target is not None
    assert (target.url, target.bucket, target.org, target.token) == ("http://opt:2", "ob", "oo", "ot")
    target = outlet.database_of(options("--influx-url", "http://opt:2"), {})
    assert target is not None
    assert (target.bucket, target.org, target.token) == ("infersiege", "", "")
    assert outlet.database_of(options(), {}) is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "the environment variable TOK is not set"),
        ({"TOK": " "}, "the environment variable TOK is empty"),
        ({"TOK": f"{TOKEN}\n{TOKEN}"}, "the environment variable TOK holds more than a token"),
        ({"TOK": f"{TOKEN}ü"}, "the environment variable TOK holds more than a token"),
    ],
)
def test_a_token_that_is_none_is_told_without_it(environ: dict[str, str], text: str) -> None:
    with pytest.raises(AgentError, match=text) as caught:
        outlet.database_of(options("--influx-url", "http://h:1", "--influx-token-env", "TOK"), environ)
    assert TOKEN not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("pasted", [TOKEN, "kZt8Abc_def123", "KZT8ABC9DEF123"])
def test_a_token_pasted_in_place_of_its_variable_is_not_repeated(pasted: str) -> None:
    with pytest.raises(AgentError, match="is not set") as caught:
        outlet.database_of(options("--influx-url", "http://h:1", "--influx-token-env", pasted), {})
    assert pasted[:6] not in f"{caught.value}{caught.value.hint}"


def test_the_token_is_in_no_file_and_on_no_command_line(tmp_path: Path, influx_server: databases.InfluxDB) -> None:
    """The sender is a process of its own: it must not get the token by its command line either."""
    (tmp_path / "tool").write_text("device,GPU use (%)\ncard0,5\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "infersiege_agents.cli", "csv", "--command", "cat tool", "--interval", "0.2",
         "--influx-url", influx_server.url, "--spool", "spool", "--out", "o.jsonl"],
        cwd=tmp_path, env={**os.environ, "INFLUX_TOKEN": TOKEN}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while not (tmp_path / "o.jsonl").exists() or (tmp_path / "o.jsonl").read_bytes().count(b"\n") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lines = [
        file.read_bytes()
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if f"/proc/{os.getpid()}/" not in str(file) and file.exists()
    ]
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert any(b"--influx-url" in line for line in lines), "the test looks at the right place"
    assert len(files) > 2
    for data in (*lines, *files, out, err):
        assert TOKEN.encode() not in data


# --------------------------------------------------------------------------------------------------------------- outlet


def test_points_go_to_both(tmp_path: Path, influx: databases.InfluxDB) -> None:
    words = ("--influx-url", influx.url, "--spool", str(tmp_path / "spool"), "--out", str(tmp_path / "o.jsonl"))
    out = outlet.open_outlet(options(*words), source="gpu", environ={})
    for number in range(3):
        out.put(point(float(number), 10**9 + number))
    assert numbers_in(tmp_path / "o.jsonl") == [0.0, 1.0, 2.0], "flushed at each point"
    summary = out.close()
    assert re.fullmatch(
        rf"{influx.url}: (\d) points written, \1 acknowledged; {tmp_path}/o.jsonl: 3 points written", summary
    ), summary
    assert influx.count("gpu", "ok") == 3
    assert (out.lost, out.waiting) == (False, False)


def test_a_database_that_is_away_is_told_once_and_its_points_are_sent_by_the_next_start(
    tmp_path: Path, influx: databases.InfluxDB
) -> None:
    told: list[str] = []
    args = options("--influx-url", influx.url, "--spool", str(tmp_path / "spool"))
    influx.server.kill()
    out = outlet.open_outlet(args, source="gpu", environ={})
    out._tell = told.append
    deadline = time.monotonic() + 30
    number = 0
    while not told:
        out.put(point(1.0, 10**9 + number))
        out.tick()
        number += 1
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for _ in range(5):
        out.tick()
    assert len(told) == 1
    assert told[0].startswith("warning: ")
    summary = out.close(0.2)
    assert "still spooled in" in summary and "the next start sends them" in summary
    assert out.waiting
    influx.server.start()
    again = outlet.open_outlet(args, source="gpu", environ={})
    summary = again.close(20.0)
    assert "of earlier agents sent" in summary
    assert influx.count("gpu", "ok") == number


class Refusing:
    """A writer that says what it is told to say. The real one is in test_influx_*."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.refusal: str | None = None
        self.waiting = 0

    def put(self, point: Point) -> None:
        pass

    def tick(self) -> None:
        pass

    def counters(self) -> Counters:
        return Counters(
            written=9 + self.waiting,
            acknowledged=4,
            rejected=5,
            spooled=self.waiting,
            dropped=0,
            left_out=0,
            taken_up=0,
        )

    def close(self, within_s: float) -> Counters:
        return self.counters()

    def hurry(self) -> None:
        pass


def refusing() -> tuple[Refusing, outlet.Outlet, list[str], list[float]]:
    writer, told, now = Refusing(), list[str](), [1000.0]
    database = outlet.Database(writer, Target("http://h:1"), Path("spool"))
    return writer, outlet.Outlet(database, None, tell=told.append, clock=lambda: now[0]), told, now


def test_refused_points_are_told_once_for_each_new_text_and_are_no_outage() -> None:
    writer, out, told, now = refusing()
    writer.refusal = "http://h:1: 400 partial write: line 7"
    for _ in range(3):
        out.tick()
    assert told == ["warning: points are refused: http://h:1: 400 partial write: line 7"]
    told.clear()
    writer.problem = "http://h:1: Connection refused"
    out.tick()
    writer.problem = None
    out.tick()
    out.tick()
    assert told == ["warning: http://h:1: Connection refused", "http://h:1: takes points again"], "no old refusal again"
    told.clear()
    for line in range(170):  # the words quote a line, which is another each time
        writer.refusal = f"http://h:1: 400 partial write: line {line + 10}"
        now[0] += 1.0
        out.tick()
    assert len(told) == 2, "once a minute"


def test_a_refusal_lets_an_import_wait_for_room_all_the_same() -> None:
    """Only what keeps points waiting means that waiting is of no use."""
    writer, out, _, now = refusing()
    writer.refusal, writer.waiting = "http://h:1: 400 partial write", 100
    seen: list[float] = []

    def tick() -> None:
        seen.append(now[0])
        now[0] += 1.0
        writer.waiting -= 10

    writer.tick = tick  # type: ignore[method-assign]
    out.wait_for_room(points=50)
    assert len(seen) == 5
    writer.waiting, writer.problem = 100, "http://h:1: Connection refused"
    out.wait_for_room(points=50)
    assert len(seen) == 5


def test_the_last_line_says_why_points_were_refused_and_why_others_wait() -> None:
    writer, out, _, _ = refusing()
    writer.refusal, writer.problem, writer.waiting = "400 partial write", "Connection refused", 3
    summary = out.close()
    assert (
        "3 still spooled in spool" in summary
        and "5 rejected (set aside in spool: infersiege-agent spool list)" in summary
    )
    assert summary.endswith("; 400 partial write; Connection refused")
    assert (out.lost, out.waiting) == (True, True)


def test_nowhere_to_go_is_a_usage_error() -> None:
    with pytest.raises(AgentError, match="where should the points go") as caught:
        outlet.open_outlet(options(), source="gpu", environ={})
    assert caught.value.hint is not None and "--out FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "can't be written: No such file or directory"),
        (lambda path: path.mkdir(parents=True), "can't be written: Is a directory"),
        (lambda path: (path.parent.mkdir(), path.write_text("my notes")), "is no file of points"),
    ],
    ids=["no folder", "a folder", "somebody's notes"],
)
def test_an_out_that_can_t_be_used_is_told_at_the_start(
    tmp_path: Path, make: Callable[[Path], object], text: str
) -> None:
    path = tmp_path / "folder" / "o.jsonl"
    make(path)
    with pytest.raises(AgentError, match=text):
        outlet.open_outlet(options("--out", str(path)), source="gpu", environ={})


@given(cut=st.integers(1, 60), before=st.integers(0, 3))
def test_half_a_line_of_a_crash_is_taken_away(tmp_path_factory: pytest.TempPathFactory, cut: int, before: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "o.jsonl"
    file = outlet.PointFile(path)
    for number in range(before + 1):
        file.put(point(float(number)))
    file.close()
    data = path.read_bytes()
    whole = data.rfind(b"\n", 0, -1) + 1
    torn = data[: max(whole + 8, len(data) - cut)]
    path.write_bytes(torn)
    again = outlet.PointFile(path)
    again.put(point(99.0))
    again.close()
    assert numbers_in(path) == [float(number) for number in range(before)] + [99.0]


def test_a_full_disk_is_told_once_counted_and_stops_nobody(small_disk: Path) -> None:
    told: list[str] = []
    file = outlet.PointFile(small_disk / "o.jsonl")
    out = outlet.Outlet(None, file, tell=told.append)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 60_000)
    for number in range(1000):
        out.put(point(float(number)))
        out.tick()
    assert len(told) == 1, told
    assert "can't be written" in told[0] and "going on" in told[0]
    lost = file.lost
    assert lost > 0
    filler.unlink()
    out.put(point(-1.0))
    summary = out.close()
    assert f"{1001 - lost:,} points written, {lost:,} lost" in summary
    assert out.lost
    found = numbers_in(small_disk / "o.jsonl")
    assert found[-1] == -1.0, "it goes on when there is room again"
    assert found[:-1] == [float(number) for number in range(1000 - lost)], "whole lines only"


@pytest.mark.parametrize(
    ("signals", "within_s", "code"),
    [([signal.SIGTERM], "0.5", 4), ([signal.SIGTERM, signal.SIGTERM], "60", 130), ([signal.SIGINT] * 2, "60", 130)],
    ids=["it took no point", "a second SIGTERM", "a second Ctrl-C"],
)
def test_an_end_without_the_database_says_what_waits(
    tmp_path: Path, free_port: Callable[[], int], signals: list[signal.Signals], within_s: str, code: int
) -> None:
    (tmp_path / "tool").write_text("device,GPU use (%)\ncard0,5\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "infersiege_agents.cli", "csv", "--command", "cat tool", "--interval", "0.2",
         "--influx-url", f"http://127.0.0.1:{free_port()}", "--spool", "spool", "--close-within", within_s],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        first = process.stderr.readline()  # the database was tried
        process.send_signal(signals[0])
        said = process.stderr.readline()
        for number in signals[1:]:
            time.sleep(0.3)
            process.send_signal(number)
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert first.startswith("warning: ")
    assert said.startswith("ended: SIG")
    assert process.returncode == code
    assert re.search(r"points written, 0 acknowledged, \d+ still spooled in spool", rest), rest
    assert "interrupted" not in rest


def test_values_that_are_none_are_left_out(tmp_path: Path) -> None:
    file = outlet.PointFile(tmp_path / "o.jsonl")
    file.put(Point("gpu", {"host": "h"}, {"a": None, "b": float("nan"), "c": 1, "d": "x"}, 7))
    file.put(Point("gpu", {"host": "h"}, {"a": None}, 8))
    file.close()
    (row,) = [json.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().splitlines()]
    assert row == {"at_ns": 7, "measurement": "gpu", "tags": {"host": "h"}, "fields": {"c": 1.0, "d": "x"}}


def test_a_process_that_we_start_gets_what_it_needs_and_no_secret() -> None:
    environ = {
        "PATH": "/bin", "LC_ALL": "C", "PYTHONPATH": "/x", "LD_LIBRARY_PATH": "/l", "SSL_CERT_FILE": "/c",
        "HOME": "/h", "XDG_STATE_HOME": "/s", "INFERSIEGE_TELEMETRY_SPOOL": "/t",
        "TAOTOKEN_API_KEY": TOKEN, "INFLUX_TOKEN": TOKEN, "pypi": TOKEN, "path": TOKEN, "MINE": "asked for",
    }  # fmt: skip
    kept = environment.bare(environ, keep=("MINE", "NOT_THERE"))
    assert kept == {name: text for name, text in environ.items() if text != TOKEN}
