"""`infersiege traces convert|sample|scale|load` as a user calls them: files, messages and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis_server
import zstandard

from infersiege.traces import open_trace

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
INFERSIEGE = [sys.executable, "-m", "infersiege", "traces"]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INFERSIEGE, *map(str, arguments)], text=True, capture_output=True, timeout=60, check=False)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("suffix", "unpack"),
    [(".jsonl", bytes), (".jsonl.gz", gzip.decompress), (".jsonl.zst", zstandard.ZstdDecompressor().decompressobj)],
)
def test_convert_writes_a_file_that_every_command_reads(tmp_path, suffix, unpack):
    out = tmp_path / f"out{suffix}"
    done = command("convert", EXAMPLES / "mooncake.jsonl", "-o", out)
    assert done.returncode == 0, done.stderr
    data = out.read_bytes()
    text = unpack().decompress(data) if suffix.endswith("zst") else unpack(data)
    header = json.loads(text.splitlines()[0])
    before = open_trace(str(EXAMPLES / "mooncake.jsonl"))
    assert header == {
        "infersiege_trace": 1,
        "made_from": "mooncake.jsonl (mooncake)",
        "sha256": before.sha256,
        "changes": [],
    }
    after = open_trace(str(out))
    assert [after.session(index) for index in range(after.sessions or 0)] == [
        before.session(index) for index in range(before.sessions or 0)
    ]
    assert f"{before.sessions} sessions" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "nothing unfinished is left"


def test_tr_15_redacted_and_shape_only_files_hold_no_secret(tmp_path):
    messages = [
        {"role": "user", "content": "key sk-test-000, mail jane@corp.example"},
        {"role": "assistant", "content": "ok"},
    ]
    source = tmp_path / "jane@corp.example.jsonl"
    source.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    for option, kept in (("--redact", True), ("--shape-only", False)):
        out = tmp_path / f"{option}.jsonl"
        done = command("convert", source, option, "-o", out)
        assert done.returncode == 0, done.stderr
        written = out.read_text(encoding="utf-8") + done.stderr + done.stdout
        assert "sk-test-000" not in written
        assert "jane@corp.example" not in written
        assert ("mail" in written) is kept
        assert rows(out)[0]["changes"] == [option.strip("-")]
        assert (digest in written) is kept, "the hash of a short file tells whoever guesses it"


def test_changes_of_changes_are_all_told(tmp_path):
    first, second, third = (tmp_path / f"{name}.jsonl" for name in "abc")
    assert command("scale", EXAMPLES / "azure.csv", "--multiply", 3, "--stretch", 2, "-o", first).returncode == 0
    assert command("sample", first, "--count", 4, "-o", second).returncode == 0
    assert command("convert", second, "--shape-only", "-o", third).returncode == 0
    assert rows(third)[0]["changes"] == ["stretch 2", "multiply 3", "sample count 4", "shape-only"]
    assert len(rows(third)) == 5


def test_copies_of_a_thinned_trace_are_spread_over_its_own_gaps(tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    stamps = [f"2023-11-16 18:{at // 60:02d}:{at % 60:02d}.0,10,5" for at in range(3_000)]
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(stamps), encoding="utf-8")
    done = command("scale", source, "--thin", 0.02, "--stretch", 2, "--multiply", 2, "-o", out)
    assert done.returncode == 0, done.stderr
    arrivals = {row["session_id"]: row.get("arrival_ns", 0) for row in rows(out)[1:]}
    later_s = [(at - arrivals[name[:-2]]) / 1e9 for name, at in arrivals.items() if name.endswith("+1")]
    assert len(later_s) > 20
    assert 50 < max(later_s) <= 100, "a second between two, a fiftieth of them, twice as slow"


def test_shape_only_is_in_the_language_that_was_asked_for(tmp_path):
    out = tmp_path / "out.jsonl"
    done = command("convert", EXAMPLES / "mooncake.jsonl", "--language", "zh", "--shape-only", "-o", out)
    assert done.returncode == 0, done.stderr
    texts = [text for row in rows(out)[1:] for turn in row["turns"] for text in turn["texts"]]
    assert {text["language"] for text in texts} == {"zh"}


def test_sample_by_time_takes_what_arrives_then(tmp_path):
    source = tmp_path / "in.csv"
    stamps = [f"2023-11-16 18:{minute:02d}:00.0000000,10,5" for minute in range(30)]
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(stamps), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert command("sample", source, "--from", "10m", "--to", "20m", "-o", out).returncode == 0
    arrivals = [row.get("arrival_ns", None) for row in rows(out)[1:]]
    assert arrivals == [minute * 60 * 10**9 for minute in range(10)], "10 to 19, counted from the first"


def test_a_builtin_workload_is_written_for_others(tmp_path):
    out = tmp_path / "out.jsonl"
    done = command("convert", "builtin:short-qa", "--sessions", 25, "--option", "input_p50=40", "-o", out)
    assert done.returncode == 0, done.stderr
    assert open_trace(str(out)).sessions == 25


def test_standard_output_takes_the_trace_and_only_the_trace():
    done = command("convert", EXAMPLES / "infersiege.jsonl", "-o", "-")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert "3 sessions" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line", "hint"),
    [
        (["convert", "missing.jsonl", "-o", "out"], "error: missing.jsonl: no such trace file", "relative"),
        (["convert", "{mooncake}"], "error: missing option '--out'", "convert --help"),
        (["convert", "{mooncake}", "-o", "{there}"], "is there already", "--force"),
        (["convert", "{mooncake}", "-o", "{nowhere}/out"], "can't be written", "folder that is there"),
        (["sample", "{mooncake}", "-o", "out"], "error: nothing says which sessions to take", "--share"),
        (["sample", "{mooncake}", "--share", "0", "-o", "out"], "error: invalid value for '--share'", "sample --help"),
        (["sample", "{chat}", "--from", "1m", "-o", "out"], "has no times", "--share"),
        (["sample", "{mooncake}", "--from", "900h", "-o", "out"], "no session is left", "arrive within"),
        (["sample", "{mooncake}", "--from", "10", "-o", "out"], "error: --from 10: '10' has no unit", "60s"),
        (["scale", "{mooncake}", "-o", "out"], "error: nothing says what to change", "--stretch"),
        (["scale", "{mooncake}", "--multiply", "1", "-o", "out"], "error: invalid value for '--multiply'", "--help"),
        (["load", "{mooncake}", "--redis", "redis://127.0.0.1:1/0"], "error: redis://127.0.0.1:1/0: ", "running"),
    ],
)
def test_faults_are_one_line_with_a_hint(tmp_path, monkeypatch, arguments, line, hint):
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there.jsonl"
    there.write_text("mine\n", encoding="utf-8")
    names = {
        "mooncake": EXAMPLES / "mooncake.jsonl",
        "chat": EXAMPLES / "openai-messages.jsonl",
        "there": there,
        "nowhere": tmp_path / "nowhere",
    }
    done = command(*[argument.format(**names) for argument in arguments])
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    said = [text for text in done.stderr.splitlines() if not text.startswith("warning: ")]
    assert line in said[0]
    assert hint in "".join(said[1:])
    assert there.read_text(encoding="utf-8") == "mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"], "nothing half-written is left"


def test_ctrl_c_leaves_nothing_half_written(tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["convert", "builtin:agent", "--sessions", "1000000", "-o", str(out)]
    with subprocess.Popen([*INFERSIEGE, *arguments], stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 30
        while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.split() == ["interrupted"]
    assert not list(tmp_path.iterdir())


def test_load_and_load_again(tmp_path, free_port, needs):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    with redis_server.redis_server(tmp_path, free_port()) as url:
        done = command("load", EXAMPLES / "weka.json", "--redis", url, "--name", "agents")
        assert done.returncode == 0, done.stderr
        assert "infersiege:agents:sessions: " in done.stdout
        again = command("load", EXAMPLES / "weka.json", "--redis", url, "--name", "agents")
        assert again.returncode == 2
        assert "there is a trace 'agents' already" in again.stderr
        assert command("load", EXAMPLES / "weka.json", "--redis", url, "--name", "agents", "--replace").returncode == 0
