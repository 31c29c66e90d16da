"""`infersiege traces convert|sample|scale|load` as a user calls them: files, messages and exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_server
import zstandard

from infersiege.cli import main
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


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, ["interrupted"]), (signal.SIGTERM, 143, []), (signal.SIGHUP, 129, [])],
)
def test_a_signal_leaves_nothing_half_written(tmp_path, number, code, words):
    out = tmp_path / "out.jsonl"
    arguments = ["convert", "builtin:agent", "--sessions", "1000000", "-o", str(out)]
    # Whoever runs the tests may ignore it (nohup does, and so does a shell's background), and a child would, too.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        process = subprocess.Popen([*INFERSIEGE, *arguments], stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, before)
    with process:
        until = time.monotonic() + 30
        while not any(path.stat().st_size for path in tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    assert said.split() == words
    assert not list(tmp_path.iterdir())


def test_of_two_converts_to_one_new_file_one_is_told(tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["convert", "builtin:short-qa", "--sessions", "3000", "-o", str(out)]
    both = [subprocess.Popen([*INFERSIEGE, *arguments], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert sum("is there already" in text for text in said) == 1
    assert len(rows(out)) == 3001
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


ODD = [
    ("convert {mooncake} -o .", "no file is named to write to", "--force has made a crash of it"),
    ("convert {mooncake} -o . --force", "no file is named to write to", "and still"),
    ("convert {mooncake} -o out.parquet", "JSON Lines, plain or packed as .gz or .zst, and not .parquet", "a name"),
    ("convert {mooncake} -o OUT.BZ2", "and not .bz2", "the same in capitals"),
    ("convert plan.toml -o out", "plan.toml: is a plan, no trace", "only inspect takes plans"),
    ("convert '' -o out", "no trace is named", "an empty variable of a script"),
    ("convert nothing.jsonl -o out", "nothing.jsonl: no such trace file", "a slip"),
    ("convert loop -o out", "loop: is a link that leads nowhere", "to itself"),
    ("convert dangling -o out", "dangling: is a link that leads nowhere", "to what is gone"),
    ("convert loop/x -o out", "loop/x: cannot be read", "behind a loop"),
    ("sample {timed} --from 20m --to 10m -o out", "--from 20m is not before --to 10m", "the wrong way round"),
    ("sample {timed} --to 0s -o out", "--from 0s is not before --to 0s", "nothing is before the start"),
    ("sample {timed} --share nan -o out", "invalid value for '--share': nan is no number", "no share"),
    ("scale {timed} --thin nan -o out", "invalid value for '--thin': nan is no number", "no share"),
    ("scale {timed} --stretch nan -o out", "invalid value for '--stretch': nan is no number", "no factor"),
    ("scale {chat} --stretch 2 -o out", "has no times, so --stretch", "it would do nothing"),
    ("scale {chat} --multiply 2 --spread 1s -o out", "has no times, so --spread", "it would do nothing"),
    ("scale {timed} --thin 0.5 --delays -o out", "--delays: changes nothing without --stretch", "nor would this"),
    ("scale {timed} --thin 0.5 --spread 1s -o out", "--spread: changes nothing without --multiply", "nor would this"),
    ("load {mooncake} --redis redis://h --name ''", "--name '': can't be a trace's name", "an empty variable"),
    (
        "load {mooncake} --redis redis://h --name 'x\ny\x1b[31m'",
        r"--name 'x\ny\x1b[31m': can't be",
        "a terminal's words",
    ),
]


@pytest.mark.parametrize(("line", "message", "why"), ODD, ids=[row[0].replace("\x1b", "ESC") for row in ODD])
def test_what_can_not_be_meant_is_one_line_with_a_hint(tmp_path, monkeypatch, capsys, line, message, why):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("gone")
    Path("plan.toml").write_text("[run]\n", encoding="utf-8")
    names = {"mooncake": "mooncake.jsonl", "chat": "openai-messages.jsonl", "timed": "azure.csv"}
    files = {key: EXAMPLES / name for key, name in names.items()}
    with pytest.raises(SystemExit) as caught:
        main(["traces", *(word.format(**files) for word in shlex.split(line))])
    out, said = capsys.readouterr()
    assert (caught.value.code, out) == (2, ""), said
    first, *hints = said.splitlines()
    assert first.startswith("error: ") and message in first, why
    assert len(hints) == 1 and hints[0].startswith("hint: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "loop", "plan.toml"]


def test_delays_are_stretched_where_there_are_no_arrivals(tmp_path):
    out = tmp_path / "out.jsonl"
    assert command("scale", EXAMPLES / "weka.json", "--stretch", 2, "--delays", "-o", out).returncode == 0
    before = open_trace(str(EXAMPLES / "weka.json")).session(0)
    after = open_trace(str(out)).session(0)
    assert [turn.delay_ns for turn in after.turns] == [2 * turn.delay_ns for turn in before.turns]
    assert any(turn.delay_ns for turn in after.turns)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_standard_output_gets_nothing_where_nothing_is_left(tmp_path, suffix):
    done = command("sample", EXAMPLES / "mooncake.jsonl", "--from", "900h", "-o", "-")
    assert (done.returncode, done.stdout) == (2, "")
    out = tmp_path / f"pipe{suffix}"
    os.mkfifo(out)
    with subprocess.Popen(["cat", str(out)], stdout=subprocess.PIPE) as reader:
        done = command("sample", EXAMPLES / "mooncake.jsonl", "--from", "900h", "-o", out)
        assert (done.returncode, reader.communicate(timeout=20)[0]) == (2, b"")
    assert out.is_fifo()


def test_a_pipe_is_written_into_also_with_force(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for more in ([], ["--force"]):
        with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
            done = command("convert", EXAMPLES / "infersiege.jsonl", "-o", pipe, *more)
            assert done.returncode == 0, done.stderr
            assert len(reader.communicate(timeout=20)[0].splitlines()) == 4
        assert pipe.is_fifo()


def test_names_and_keys_move_no_terminal(tmp_path, capsys):
    """Names of files, keys in a row, and what click repeats of a command line."""
    path = tmp_path / "a\x1b[31m\nhint: b.jsonl"
    path.write_text(json.dumps({"me\x1b]0;x\x07\nss\x9bages": []}), encoding="utf-8")
    good = tmp_path / "c\x1b[2J\n.jsonl"
    shutil.copy(EXAMPLES / "mooncake.jsonl", good)
    for arguments, code in (
        (["convert", str(path), "-o", str(tmp_path / "out")], 2),
        (["convert", str(good), "-o", str(tmp_path / "o\x1b[31m\r.jsonl")], 0),
        (["inspect", str(good), "--html", str(tmp_path / "p\x1b[31m.html")], 0),
        (["sample", str(good), "--count", "1\x1b[31m", "-o", "-"], 2),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["traces", *arguments])
        out, said = capsys.readouterr()
        assert caught.value.code == code, said
        assert (out + said).replace("\n", "").isprintable(), arguments
        assert all(line.partition(": ")[0] in ("error", "hint", "warning") for line in said.splitlines() if code)
        assert said.count("hint: ") <= 2, "one of ours, and one in a name"


def test_a_name_that_is_no_text_is_read_and_named(tmp_path, capsys):
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    shutil.copy(EXAMPLES / "mooncake.jsonl", path)
    out = tmp_path / "out.jsonl"
    for arguments in (["convert", str(path), "-o", str(out)], ["inspect", str(path), "--json"]):
        with pytest.raises(SystemExit) as caught:
            main(["traces", *arguments])
        assert caught.value.code == 0
    assert rows(out)[0]["made_from"] == "\\udcff.jsonl (mooncake)"
    assert json.loads(capsys.readouterr().out)["name"].endswith("\\udcff.jsonl")


def test_dev_stdout_is_standard_output_also_where_that_is_a_file(tmp_path):
    out = tmp_path / "out.jsonl"
    with out.open("wb") as file:
        arguments = [*INFERSIEGE, "convert", str(EXAMPLES / "infersiege.jsonl"), "-o", "/dev/stdout"]
        assert subprocess.run(arguments, stdout=file, timeout=60, check=False).returncode == 0
    assert len(rows(out)) == 4


REDIS_ADDRESSES = [
    ("/x", "is no Redis URL: what follows the / is no number of a database", "it was read as 0"),
    ("/0/1", "is no Redis URL: what follows the / is no number of a database", "two of them"),
    ("/-1", "is no Redis URL: what follows the / is no number of a database", "less than none"),
    ("/99", "Redis has no database of this number", "it has 16"),
]


@pytest.mark.parametrize(("path", "message", "why"), REDIS_ADDRESSES)
def test_the_database_in_a_redis_address_is_checked(tmp_path, free_port, needs, capsys, path, message, why):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    with redis_server.redis_server(tmp_path, free_port()) as url:
        with pytest.raises(SystemExit) as caught:
            main(["traces", "load", str(EXAMPLES / "weka.json"), "--redis", url.removesuffix("/0") + path])
        said = capsys.readouterr().err
        assert (caught.value.code, message in said) == (2, True), f"{why}: {said}"
        assert "memory" not in said
        with redis.Redis.from_url(url) as client:
            assert client.keys("*") == []


def test_a_full_redis_is_told_without_a_word_of_the_session(tmp_path, free_port, needs, capsys):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    source = tmp_path / "in.jsonl"
    row = json.dumps({"messages": [{"role": "user", "content": "jane@corp.example " * 60_000}]})
    source.write_text(f"{row}\n" * 5, encoding="utf-8")
    with redis_server.redis_server(tmp_path, free_port(), "--maxmemory", "3mb") as url:
        with pytest.raises(SystemExit) as caught:
            main(["traces", "load", str(source), "--redis", url])
        said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.splitlines()[0] == f"error: {url}: Redis is full: its `maxmemory` is used up"
    assert "jane" not in said and "XADD" not in said and len(said) < 400


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
