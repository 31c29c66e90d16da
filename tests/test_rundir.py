"""The run directory: whole rows or none, torn tails told apart from damage, errors that name file, line and remedy."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_sample import START_NS, plan, plan_file, records, write_run

from infersiege.errors import ExitCode, InternalError, RunDirectoryError, RunInvalidError, UsageError
from infersiege.records import SCHEMA_VERSION, EventRow, Phase, SeriesRow, TurnRecord, WindowRow
from infersiege.report import finish, judged, read
from infersiege.report.schema import FILES, schemas, text_of
from infersiege.report.tables import to_text
from infersiege.rundir import GPU_SERIES, PLAN, SUMMARY, TURNS, LeftOut, PlanFile, RunDirectory, default_path, slug
from infersiege.rundir.rows import decoded

SCHEMAS = Path(__file__).parents[1] / "docs" / "schema"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path / "run", name="x", now_ns=START_NS) as made:
        yield made


def lines(rows: list[TurnRecord]) -> bytes:
    return msgspec.json.Encoder().encode_lines(rows)


@pytest.fixture(scope="module")
def few() -> list[TurnRecord]:
    return records(2, steady_s=20)


# ---------------------------------------------------------------------------------------------------------- naming


@pytest.mark.parametrize(
    ("name", "expected", "why"),
    [
        ("qwen3-8b on vllm", "qwen3-8b-on-vllm", "words joined"),
        ("A/B ../../etc", "a-b-etc", "no way out of runs/"),
        ("</script><img onerror>", "script-img-onerror", "nothing that a shell or a page takes for more"),
        ("压测 一", "压测-一", "other scripts are letters too"),
        ("llama 3.1 8B", "llama-3.1-8b", "versions keep their point"),
        ("...", "run", "never empty, never hidden"),
        ("x" * 300, "x" * 60, "file names have a limit"),
    ],
)
def test_slug(name: str, expected: str, why: str) -> None:
    assert slug(name) == expected, why


def test_default_path_is_new_when_two_runs_begin_in_one_second(tmp_path: Path) -> None:
    first = default_path("Night run", START_NS, tmp_path)
    assert first.name == "20260921T141320Z-night-run"
    first.mkdir()
    assert default_path("Night run", START_NS, tmp_path).name == "20260921T141320Z-night-run-2"


# -------------------------------------------------------------------------------------------------- create and open


def test_create_refuses_what_would_be_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RunDirectoryError, match=r"is not empty \(it holds mine\.txt\)") as caught:
        RunDirectory.create(tmp_path, name="x", now_ns=START_NS)
    assert "--out" in (caught.value.hint or "") and caught.value.exit_code is ExitCode.USAGE
    RunDirectory.create(tmp_path / "run", name="x", now_ns=START_NS).close()
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        RunDirectory.create(tmp_path / "run", name="x", now_ns=START_NS)


def test_create_on_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file, not a directory"):
        RunDirectory.create(tmp_path / "run", name="x", now_ns=START_NS)


def test_open_says_what_is_there_instead(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no such run directory"):
        RunDirectory.open(tmp_path / "nowhere")
    run = write_run(tmp_path / "runs" / "a", [])
    with pytest.raises(RunDirectoryError, match=r"has no plan\.json") as caught:
        RunDirectory.open(tmp_path / "runs")
    assert str(run.path) in (caught.value.hint or "")
    with pytest.raises(RunDirectoryError, match="is a file") as caught:
        RunDirectory.open(run.path / PLAN)
    assert str(run.path) in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "expected", "why"),
    [
        (b"{", r"plan\.json: ", "cut off"),
        (b'{"schema_version": "1"}', r"plan\.json: Expected `int`", "wrong type"),
        (b'\xff{"schema_version": 1}', r"plan\.json: ", "not UTF-8"),
        (
            json.dumps({"schema_version": SCHEMA_VERSION + 1, "other": 1}).encode(),
            rf"schema {SCHEMA_VERSION + 1} is newer than this infersiege knows \({SCHEMA_VERSION}\)",
            "newer, whatever else it holds",
        ),
    ],
)
def test_open_with_a_plan_that_cannot_be_read(run: RunDirectory, content: bytes, expected: str, why: str) -> None:
    (run.path / PLAN).write_bytes(content)
    with pytest.raises(RunDirectoryError, match=expected):
        RunDirectory.open(run.path)


def test_summary_of_a_newer_schema_and_none_at_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    with pytest.raises(RunDirectoryError, match=r"summary\.json: is missing") as caught:
        run.read_summary()
    assert f"infersiege report {run.path}" in (caught.value.hint or "")
    (run.path / SUMMARY).write_text('{"schema_version": 99}')
    with pytest.raises(RunDirectoryError, match="schema 99 is newer"):
        run.read_summary()


def test_a_plan_of_another_version_inside(tmp_path: Path) -> None:
    file = msgspec.structs.replace(plan_file(plan(), turns=0), plan={"workloads": 3})
    with pytest.raises(RunDirectoryError, match="the plan of run 3f9c2a7be1d04c55 can't be read"):
        file.typed_plan()


# ------------------------------------------------------------------------------------------------------------ rows


def test_rows_come_back_as_written(run: RunDirectory, few: list[TurnRecord]) -> None:
    event = EventRow(at_ns=START_NS, kind="worker_lost", detail="w2", worker="w2")
    window = WindowRow(second=1, scenario="a", channel="c", stage="s", phase=Phase.STEADY, ttft={300: 2})
    run.append_turn_lines(lines(few[:3]))
    run.append_turn_lines(b"")
    run.append_turn_lines(lines(few[3:]))
    run.append_event(event)
    run.write_windows([window])
    assert list(run.read_turns()) == few, "readable while it is written: each append is handed to the kernel"
    assert (list(run.read_events()), list(run.read_windows())) == ([event], [window])


def test_half_a_row_is_not_taken(run: RunDirectory, few: list[TurnRecord]) -> None:
    with pytest.raises(InternalError, match="half a row"):
        run.append_turn_lines(lines(few)[:-1])
    assert (run.path / TURNS).read_bytes() == b""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_torn_tail_is_left_out_and_reported(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Wherever a crash cuts the file, every whole row before the cut comes back and nothing else."""
    rows = records(2, steady_s=5)[:4]
    with RunDirectory.create(tmp_path_factory.mktemp("torn"), name="x", now_ns=START_NS) as run:
        run.append_turn_lines(lines(rows))
    whole = (run.path / TURNS).read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    (run.path / TURNS).write_bytes(whole[:cut])
    said: list[str] = []
    found = list(run.read_turns(said.append))
    complete = whole[:cut].count(b"\n")
    # A row that lacks nothing but its newline is whole as well.
    only_newline_missing = cut < len(whole) and whole[cut : cut + 1] == b"\n" and whole[cut - 1 : cut] != b"\n"
    assert found == rows[: complete + only_newline_missing]
    torn = cut > 0 and whole[cut - 1 : cut] != b"\n" and not only_newline_missing
    assert len(said) == torn
    if torn:
        assert f"{TURNS}:{complete + 1}: the last line is torn" in said[0]


@pytest.mark.parametrize(
    ("bad", "expected", "why"),
    [
        (b"{}\n", "missing required field", "an empty object"),
        (b"\n", "Input data was truncated", "an empty line"),
        (b"\0\0\0\0\n", "zero bytes", "what a power cut leaves"),
        (b'{"run_id": NaN}\n', "invalid character", "NaN is no JSON"),
        (b"\xff\xfe\n", "malformed|invalid", "no UTF-8"),
    ],
)
def test_a_bad_line_in_the_middle_is_left_out_and_counted(
    run: RunDirectory, few: list[TurnRecord], bad: bytes, expected: str, why: str
) -> None:
    run.append_turn_lines(lines(few[:2]) + bad + lines(few[2:5]) + bad + lines(few[5:]))
    left_out, torn = LeftOut(), list[str]()
    assert list(run.read_turns(torn.append, left_out=left_out)) == few, why
    assert left_out.rows == 2 and torn == []
    (reason,) = left_out.reasons
    assert re.fullmatch(rf"2 rows of {TURNS} could not be read and are left out \(line 3: .*({expected}).*\)", reason)


def test_a_bad_line_of_the_series_is_an_error_with_its_number(run: RunDirectory) -> None:
    """They only tell more: who reads them warns, and takes what came before it."""
    path = run.telemetry / GPU_SERIES
    path.write_bytes(b'{"at_ns":1,"measurement":"gpu","tags":{},"fields":{}}\n{}\n')
    with pytest.raises(RunDirectoryError, match=rf"{GPU_SERIES}:2: .*missing required field"):
        list(run.read_series(GPU_SERIES))


ROW_OR_NOT = st.sampled_from([None, b"{}\n", b"\n", b"\xff\xfe\n", b"[" * 9000 + b"\n", b"\0\0\n"])


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(ROW_OR_NOT, max_size=12), size=st.sampled_from([1, 700, 1 << 22]))
def test_every_good_row_is_read_whatever_stands_between_them(
    tmp_path_factory: pytest.TempPathFactory, few: list[TurnRecord], kinds: list[bytes | None], size: int
) -> None:
    """None: a row. Wherever blocks are cut: each other line is counted, and the first is named by its number."""
    path = tmp_path_factory.mktemp("rows") / TURNS
    rows = [few[number % len(few)] for number, kind in enumerate(kinds) if kind is None]
    path.write_bytes(b"".join(lines([few[n % len(few)]]) if kind is None else kind for n, kind in enumerate(kinds)))
    left_out = LeftOut()
    blocks = decoded(path, msgspec.json.Decoder(TurnRecord), None, left_out.add, size)
    assert [row for block in blocks for row in block] == rows
    bad = [number for number, kind in enumerate(kinds, 1) if kind is not None]
    assert left_out.rows == len(bad)
    assert left_out.first is None if not bad else (left_out.first or "").startswith(f"line {bad[0]}: ")


def test_what_a_bad_line_quotes_can_not_write_to_a_terminal(run: RunDirectory, few: list[TurnRecord]) -> None:
    evil = msgspec.json.encode(few[0]).replace(b'"phase":"', b'"phase":"\\u001b[2J' + b"x" * 900)
    run.append_turn_lines(evil + b"\n" + lines(few))
    left_out = LeftOut()
    assert list(run.read_turns(left_out=left_out)) == few
    assert left_out.first is not None and "[2Jxxx" in left_out.first and len(left_out.first) < 200
    assert left_out.first.isprintable()


OTHER_YEAR = 900_000_000_000_000_000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"due_ns": OTHER_YEAR}, "due_ns is 900000000000000000, which is more than a day from the run"),
        ({"closed_ns": START_NS * 2}, "closed_ns is "),
        ({"sent_ns": 0}, "sent_ns is 0"),
        ({"chunks_by_second": {3: 1}}, "chunks_by_second has a second"),
        ({"chunks_by_second": {START_NS // 10**9: -1}}, "chunks_by_second has a negative count"),
        ({"gaps": {-3: 1}}, "gaps has a bucket or a count"),
        ({"gaps": {10**6: 1}}, "gaps has a bucket or a count"),
        ({"gaps": {300: -1}}, "gaps has a bucket or a count"),
        ({"output_tokens": -5}, "output_tokens is -5"),
        ({"chunks": -1}, "chunks is -1"),
        ({"first_token_slack_ns": -1}, "first_token_slack_ns is -1"),
    ],
)
def test_a_row_that_no_turn_can_be_is_left_out_and_makes_the_run_invalid(
    tmp_path: Path, few: list[TurnRecord], changes: dict[str, object], expected: str
) -> None:
    """Damaged after it was written: no hang, no crash, no figure of it."""
    run = write_run(tmp_path / "run", [*few[:2], msgspec.structs.replace(few[2], **changes), *few[3:]])
    summary = finish(run)
    assert summary.exit_code == ExitCode.INVALID_RUN
    reason = f"1 row of {TURNS} could not be read and is left out (line 3: no turn can have this: {expected}"
    assert any(one.startswith(reason) for one in summary.invalid), summary.invalid
    assert summary.counts.started + summary.counts.skipped == len(few) - 1


_NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-2, 300) | st.just(OTHER_YEAR)
_FIELDS = [
    "due_ns", "attempt_ns", "sent_ns", "sent_end_ns", "first_byte_ns", "first_token_ns", "first_answer_ns",
    "last_token_ns", "closed_ns", "first_token_slack_ns", "connect_duration_ns", "tls_duration_ns", "prompt_tokens",
    "cached_tokens", "output_tokens", "first_chunk_tokens", "asked_prompt_tokens", "asked_output_tokens", "chunks",
    "coalesced", "retry_after_ns", "server_ttft_ns", "turn", "attempts", "bytes_in", "http_status",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(_FIELDS), _NUMBERS, min_size=1, max_size=3),
    st.none() | st.dictionaries(_NUMBERS, _NUMBERS, max_size=2),
    st.none() | st.dictionaries(_NUMBERS, _NUMBERS, max_size=2),
    st.integers(0, 20),
)
@settings(max_examples=150)
def test_absurd_rows_are_left_out_or_read_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory,
    few: list[TurnRecord],
    changes: dict[str, int],
    gaps: dict[int, int] | None,
    seconds: dict[int, int] | None,
    place: int,
) -> None:
    more = {name: value for name, value in (("gaps", gaps), ("chunks_by_second", seconds)) if value is not None}
    rows = [*few]
    rows[place % len(rows)] = msgspec.structs.replace(rows[place % len(rows)], **changes, **more)
    run = write_run(tmp_path_factory.mktemp("runs") / "run", rows, steady_s=20)
    found = judged(read(run), gated=True)
    assert len(found.windows) < 200_000
    to_text(found.summary)
    msgspec.json.encode(found.summary)


def test_times_of_a_set_back_clock_are_no_damage(tmp_path: Path, few: list[TurnRecord]) -> None:
    """A first token a second before its request: what a step of the clock leaves must not cost the run."""
    odd = next(row for row in few if row.phase is Phase.STEADY and row.sent_ns and row.first_token_ns)
    assert odd.sent_ns is not None
    rows = [row if row is not odd else msgspec.structs.replace(odd, first_token_ns=odd.sent_ns - 10**9) for row in few]
    summary = finish(write_run(tmp_path / "run", rows, steady_s=20))
    assert summary.counts.planned == len(few)
    assert any("contradict" in warning for warning in summary.warnings)


def test_turns_are_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    (run.path / TURNS).unlink()
    with pytest.raises(RunDirectoryError, match=r"turns\.jsonl: is missing"):
        list(run.read_turns())


# ------------------------------------------------------------------------------------------------------ full disks

_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from infersiege.errors import RunInvalidError, UsageError
from infersiege.rundir import RunDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write past the limit fails with EFBIG, like a full disk
run = RunDirectory.create(Path(sys.argv[1]), name="x", now_ns=0)
row = b'{"a":"' + b"x" * 990 + b'"}\\n'
run.append_turn_lines(row * 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (4500, resource.RLIM_INFINITY))
try:
    run.append_turn_lines(row * 4)
except RunInvalidError as error:
    print(error, "|", error.hint, "|", int(error.exit_code))
print((run.path / "turns.jsonl").stat().st_size)
run.append_turn_lines(row)
print((run.path / "turns.jsonl").stat().st_size)
try:
    run.write_report("x" * 9000)
except UsageError as error:
    print(error, "|", error.hint)
print(sorted(path.name for path in run.path.iterdir()))
"""


def test_a_full_disk_leaves_whole_rows_and_says_so(tmp_path: Path) -> None:
    """A real short write: 4,500 bytes fit, so the kernel takes a part of the rows and refuses the rest."""
    child = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    said, size, later, report, files = child.stdout.splitlines()
    assert "turns.jsonl: 3996 bytes of results can't be written: file too large" in said
    assert "--out" in said and said.endswith("| 3")
    assert (int(size), int(later)) == (3 * 999, 4 * 999), "the part of the refused rows was taken back"
    assert "report.html: can't be written" in report
    assert "report" not in files and ".part" not in files, "no half report, no leftovers"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_no_space_left(tmp_path: Path, few: list[TurnRecord]) -> None:
    """/dev/full answers ENOSPC, and can't be truncated either."""
    path = tmp_path / "run"
    path.mkdir()
    (path / TURNS).symlink_to("/dev/full")
    with (
        RunDirectory(path) as run,
        pytest.raises(RunInvalidError, match="no space left on device") as caught,
    ):
        run.append_turn_lines(lines(few))
    assert "free some space" in (caught.value.hint or "") and str(path / TURNS) in str(caught.value)


def test_out_of_file_descriptors(run: RunDirectory) -> None:
    run.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(RunDirectoryError, match="too many open files") as caught:
            run.append_event(EventRow(at_ns=1, kind="k", detail="d"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest_free)
    assert "ulimit -n" in (caught.value.hint or "")


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    run = RunDirectory.open(write_run(tmp_path / "run", []).path)
    run.report_path.mkdir()
    with pytest.raises(UsageError, match=r"report\.html: can't be written") as caught:
        run.write_report("x")
    assert caught.value.hint is not None and "--out" not in caught.value.hint, "report and gate have no --out"


# --------------------------------------------------------------------------------------------------------- schemas


def test_committed_schemas_are_current() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in SCHEMAS.glob("*.json")}
    assert found == {name: text_of(schema) for name, schema in schemas().items()}, (
        "the row types changed: run `python -m infersiege.report.schema docs/schema`"
    )


def test_real_output_fits_the_schemas(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records(3, steady_s=20))
    with run:
        run.append_event(EventRow(at_ns=START_NS, kind="stage", detail="begins"))
    point = SeriesRow(at_ns=START_NS, measurement="gpu", tags={"host": "a"}, fields={"ok": 1.0, "error_text": ""})
    run.write_series(GPU_SERIES, [point])
    finish(run)
    seen = dict.fromkeys(FILES, 0)
    for name in FILES:
        validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8")))
        rows = run.telemetry / GPU_SERIES if name == "series" else run.path / f"{name}.jsonl"
        texts = (
            rows.read_text("utf-8").splitlines() if rows.exists() else [(run.path / f"{name}.json").read_text("utf-8")]
        )
        for row in texts[:200]:
            validator.validate(json.loads(row))
            seen[name] += 1
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({})
    assert all(seen.values()), seen


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    file = msgspec.structs.replace(run.read_plan(), plan={"value": float("nan"), "other": float("inf")})
    run.write_plan(file)
    assert json.loads((run.path / PLAN).read_text(), parse_constant=pytest.fail)["plan"] == {
        "value": None,
        "other": None,
    }
    assert isinstance(run.read_plan(), PlanFile)
