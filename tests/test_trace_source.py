"""The bytes of trace files: cut into rows and elements, packed, changed while they are read, or no trace at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.traces import open_trace
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace
from infersiege.traces.files.source import MOST_ROW_BYTES, Source

ROOT = Path(__file__).parents[1]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def talk(number: int, text: str = "hi") -> dict[str, Any]:
    return {"session_id": f"s{number}", "messages": [{"role": "user", "content": text}]}


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def sharegpt(count: int, text: str) -> bytes:
    said = [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}]
    return json.dumps([{"id": f"t{number}", "conversations": said} for number in range(count)]).encode()


def azure(*rows: str, header: str = HEADER) -> bytes:
    return "\n".join([header, *rows, ""]).encode()


def saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(path: Path, **asked: Any) -> TraceError:
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), **asked)
    assert caught.value.hint
    return caught.value


# ------------------------------------------------------------------------------------------- rows and elements

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('"\\[]{},:n \n\u00e9\u4e2d\U0001f600') | st.characters(codec="utf-8"), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
SPACE = st.text(st.sampled_from(" \t\r\n"), max_size=3)


@st.composite
def arrays(draw: st.DrawFn) -> str:
    """A JSON array, written with blanks anywhere, and any character escaped or not."""
    ascii_only, indent = draw(st.booleans()), draw(st.none() | st.integers(0, 3))
    values = draw(st.lists(VALUES, max_size=5))
    inner = [json.dumps(value, ensure_ascii=ascii_only, indent=indent) for value in values]
    spaced = [draw(SPACE) + text + draw(SPACE) for text in inner] or [draw(SPACE)]
    return f"{draw(SPACE)}[{','.join(spaced)}]{draw(SPACE)}"


def elements(tmp: Path, document: bytes, window: int) -> list[Any]:
    source = Source(saved(tmp / "t.json", document), window_bytes=window)
    found = []
    for row in source.elements():
        assert row.line == len(found)
        assert source.raw(row) == source.raw(row).strip()
        found.append(source.json(row))
    return found


@given(document=arrays(), window=st.integers(1, 64), mark=st.booleans())
def test_elements_are_those_of_a_json_parser(tmp_path_factory, document, window, mark):
    data = b"\xef\xbb\xbf" * mark + document.encode()
    assert elements(tmp_path_factory.mktemp("scan"), data, window) == json.loads(document)


def encodable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@settings(max_examples=60)
@given(document=arrays(), window=st.integers(1, 64), data=st.data())
def test_a_damaged_array_is_read_as_a_json_parser_does_or_refused(tmp_path_factory, document, window, data):
    """One piece is taken out, put in twice, or replaced by a mark."""
    start = data.draw(st.integers(0, len(document)))
    end = data.draw(st.integers(start, len(document)))
    between = data.draw(st.sampled_from(["", ",", "]", "[", "{", "}", '"', "\\", "1", document[start:end] * 2]))
    damaged = document[:start] + between + document[end:]
    try:
        wanted = json.loads(damaged)
    except ValueError:
        wanted = None
    try:
        found = elements(tmp_path_factory.mktemp("scan"), damaged.encode(), window)
    except TraceError as error:
        # Half a surrogate pair is taken by Python's parser, and can't be sent as UTF-8.
        assert not isinstance(wanted, list) or not encodable(wanted), str(error)
    else:
        assert found == wanted


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("", "there is no bracket"),
        ("  \n", "there is no bracket"),
        ('{"a": [1]}', "there is no bracket"),
        ("[", "it ends before element 0"),
        ("[1, 2", "it ends within element 1"),
        ("[1, 2,", "it ends before element 2"),
        ('[{"a": "b]"}, {"a": 1', "it ends within element 1"),
        ('[{"a": 1}, "b\\"', "it ends within element 1"),
        ("[1 2]", "no comma stands before element 1"),
        ('[{"a": 1} {"b": 1}]', "no comma stands before element 1"),
        ("[1, 2,]", "element 2 is missing"),
        ("[,1]", "element 0 is missing"),
        ("[1,,2]", "element 1 is missing"),
        ("[1, 2] x", "something follows its end, which stands after 2 elements"),
        ("[1]\n[2]\n", "something follows its end, which stands after 1 elements"),
    ],
)
def test_what_is_wrong_with_an_array_is_told_with_the_number_of_the_element(tmp_path, document, reason):
    for window in (1, 2, 7, 1 << 20):
        with pytest.raises(TraceError, match=re.escape(f"t.json:1: is no JSON array ({reason})")) as caught:
            elements(tmp_path, document.encode(), window)
        assert caught.value.hint == "is the file whole?"


def test_what_is_wrong_inside_an_element_is_told_with_its_number(tmp_path):
    for document in (b'[1, {"a": tru}, 2]', b'[1, {"a": ]}, 2]', b'[1, {"a" 1}, 2]', b"[1, nul]", b'[1, "\x01"]'):
        with pytest.raises(TraceError, match=r"t.json:1: is not JSON"):
            elements(tmp_path, document, 3)


@given(
    data=st.lists(st.sampled_from([b"a", b"{}", b" ", b"\r", b"\n", b"\r\n", b"x" * 70, b" " * 70]), max_size=30),
    window=st.integers(1, 100),
)
def test_rows_are_the_lines_that_are_not_blank(tmp_path_factory, data, window):
    content = b"".join(data)
    source = Source(saved(tmp_path_factory.mktemp("rows") / "t", content), window_bytes=window)
    lines = ((number, line.removesuffix(b"\r")) for number, line in enumerate(content.split(b"\n"), 1))
    wanted = [(number, line) for number, line in lines if line]
    found = [(row.line, source.raw(row)) for row in source.rows()]
    # Only short lines are looked at for being blank.
    assert [row for row in found if row[1].strip()] == [row for row in wanted if row[1].strip()]
    assert set(found) <= set(wanted)
    assert all(len(line) > 60 for _, line in found if not line.strip())


@given(data=st.text("ab", max_size=40), what=st.text("ab", min_size=1, max_size=5), window=st.integers(1, 9))
def test_what_a_file_holds_is_found_wherever_it_is_cut(tmp_path_factory, data, what, window):
    source = Source(saved(tmp_path_factory.mktemp("holds") / "t", data.encode()), window_bytes=window)
    assert source.holds(what.encode()) == (what in data)


# ---------------------------------------------------------------------------------- changed while it was read

CHANGED = "was changed while it was read"

PLAY = """
import os, sys
from infersiege.errors import TraceError
from infersiege.traces import open_trace
path, size = sys.argv[1], int(sys.argv[2])
trace = open_trace(path)
os.truncate(path, size)
try:
    for index in range(trace.sessions):
        trace.session(index)
except TraceError as error:
    print(error, "|", error.hint)
"""


def big(number: int) -> bytes:
    """Some files of more than two megabytes, in the forms that are read in different ways."""
    rows = jsonl(*(talk(at, "word " * 2000) for at in range(250)))
    return (rows, sharegpt(250, "word " * 2000))[number]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("kept", [0, 5_000, 1_500_000])
def test_a_trace_that_is_cut_while_it_is_played_is_told(tmp_path, kind, kept):
    """A mapped file ended the process by SIGBUS, without a word."""
    path = saved(tmp_path / "t", big(kind))
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(path), str(kept)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}: {CHANGED} | play a copy, or wait until it is written\n"


@pytest.mark.parametrize("kind", [0, 1])
def test_a_trace_that_is_cut_while_it_is_opened_is_told(tmp_path, kind):
    path = saved(tmp_path / "t", big(kind))
    source = Source(path)
    rows = source.elements() if kind else source.rows()
    next(rows)
    os.truncate(path, 1_500_000)
    with pytest.raises(TraceError, match=CHANGED):
        list(rows)
    with pytest.raises(TraceError, match=CHANGED):
        source.sha256()


def moved_clock(path: Path) -> None:
    """Two writes within one tick of the kernel's clock have the same time."""
    now = path.stat()
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 10_000_000))


def test_a_change_in_place_is_told_though_the_size_is_the_same(tmp_path):
    path = saved(tmp_path / "t", jsonl(talk(1, "one"), talk(2, "two")))
    trace = open_trace(str(path))
    path.write_bytes(jsonl(talk(1, "ONE"), talk(2, "TWO")))
    moved_clock(path)
    with pytest.raises(TraceError, match=CHANGED):
        trace.session(0)


def test_rows_that_are_written_behind_the_end_are_told(tmp_path):
    path = saved(tmp_path / "t", jsonl(talk(1)))
    trace = open_trace(str(path))
    with path.open("ab") as file:
        file.write(jsonl(talk(2)))
    with pytest.raises(TraceError, match=CHANGED):
        trace.session(0)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_what_was_unpacked_is_played_whatever_becomes_of_the_file(tmp_path, pack):
    path = saved(tmp_path / "t", pack(jsonl(talk(1, "one"), talk(2, "two"))))
    trace = open_trace(str(path))
    path.write_bytes(b"")
    assert trace.session(1).session_id == "s2"


def test_a_file_that_takes_the_name_is_another_file(tmp_path):
    path = saved(tmp_path / "t", jsonl(talk(1, "one")))
    source = Source(path)
    row = next(source.rows())
    saved(tmp_path / "new", jsonl(talk(1, "two"))).replace(path)
    assert source.json(row) == talk(1, "one")
    assert source.sha256() == hashlib.sha256(jsonl(talk(1, "one"))).hexdigest(), "of the bytes that are played"


def test_the_hash_is_of_the_file_as_it_lies_there(tmp_path):
    data = jsonl(talk(1))
    for name, packed in {"plain": data, "gz": gzip.compress(data), "zst": zstandard.compress(data)}.items():
        assert Source(saved(tmp_path / name, packed)).sha256() == hashlib.sha256(packed).hexdigest()


def test_no_descriptor_stays_open(tmp_path):
    path = saved(tmp_path / "t", jsonl(talk(1)))
    packed = saved(tmp_path / "t.gz", gzip.compress(jsonl(talk(1))))

    def open_now() -> Counter[str]:
        return Counter(os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())

    for file in (path, packed):
        before = open_now()
        trace = open_trace(str(file))
        mine = open_now() - before
        assert mine.total() == 1, "the file, or what it was unpacked into"
        del trace
        assert not mine & (open_now() - before)


# ---------------------------------------------------------------------------------------------------- packed


def test_a_zstd_file_that_is_cut_anywhere_is_refused(tmp_path):
    """Also where the cut leaves whole rows: a reader of streams takes what is there for all."""
    rows = [jsonl(talk(at, os.urandom(30).hex())) for at in range(18)]
    frames = [zstandard.compress(b"".join(rows[:9])), zstandard.compress(b"".join(rows[9:]))]
    whole = b"".join(frames)
    path = tmp_path / "t.zst"
    for cut in range(5, len(whole), 7):
        if cut == len(frames[0]):
            continue
        error = refused(saved(path, whole[:cut]))
        assert "cannot be read" in str(error)
    assert open_trace(str(saved(path, whole))).sessions == 18


def test_zstd_files_of_several_frames_are_read(tmp_path):
    blank = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
    parts = [zstandard.compress(jsonl(talk(at))) for at in range(3)]
    assert open_trace(str(saved(tmp_path / "a", b"".join(parts)))).sessions == 3
    assert open_trace(str(saved(tmp_path / "b", blank + blank.join(parts)))).sessions == 3
    assert "cannot be read" in str(refused(saved(tmp_path / "c", parts[0] + b"garbage")))


def test_parts_of_a_zstd_file_that_are_large_are_read_in_pieces(tmp_path):
    data = jsonl(*(talk(at, "z" * 100_000) for at in range(80)))
    path = saved(tmp_path / "t", zstandard.compress(data))
    assert Source(path).data()[:] == data


FULL = """
import resource, sys
from infersiege.errors import TraceError
from infersiege.traces import open_trace
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    open_trace(sys.argv[1])
except TraceError as error:
    print(error, "|", error.hint)
"""


@pytest.mark.parametrize("packing", ["gz", "zst", "parquet", "folder"])
def test_no_room_to_unpack_names_the_folder_for_temporary_files(tmp_path, packing):
    data = jsonl(*(talk(at, "a" * 1000) for at in range(300)))
    path = tmp_path / "t"
    if packing == "folder":
        path.mkdir()
        for name in ("a.jsonl", "b.jsonl"):
            (path / name).write_bytes(data)
    elif packing == "parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist([json.loads(line) for line in data.splitlines()]), path)
    else:
        path.write_bytes(gzip.compress(data) if packing == "gz" else zstandard.compress(data))
    room = tmp_path / "room"
    room.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True, text=True, cwd=ROOT, check=False, env={**os.environ, "TMPDIR": str(room)},
    )  # fmt: skip
    assert done.stdout.startswith(f"{path}: cannot be unpacked into {room} (File too large) | set TMPDIR"), done.stderr


# ------------------------------------------------------------------------------------------------- long rows

PEAK = """
import sys
from pathlib import Path
from infersiege.errors import TraceError
from infersiege.traces import open_trace
try:
    trace = open_trace(sys.argv[1])
    trace.session(0)
except TraceError as error:
    print(error, "|", error.hint)
# Not ru_maxrss, which begins with what the parent had.
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024)
"""


def peak(path: Path) -> tuple[str, int]:
    """(what was said, peak of memory in MB) of opening it and making a session."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, cwd=ROOT, check=True)
    *said, megabytes = done.stdout.splitlines()
    return "\n".join(said), int(megabytes)


@pytest.mark.parametrize("text", ["word ", 'a\\"'])
def test_a_long_row_takes_some_times_its_size(tmp_path, text):
    """It took a hundred times as much to tell the format of it."""
    length = 20_000_000
    path = saved(tmp_path / "t", jsonl(talk(1, text * (length // len(text)))))
    said, megabytes = peak(path)
    assert not said
    assert megabytes < 60 + 8 * path.stat().st_size / 1e6


@pytest.mark.parametrize("kind", ["row", "element", "named"])
def test_a_row_that_is_too_long_is_refused_before_it_is_read(tmp_path, kind):
    path = tmp_path / "t"
    row = jsonl(talk(1, "w" * (MOST_ROW_BYTES + 1)))
    if kind == "element":
        row = sharegpt(1, "w" * (MOST_ROW_BYTES + 1))
    path.write_bytes(row if kind == "row" else jsonl(talk(0)) * (kind == "named") + row)
    said, megabytes = peak(path)
    assert "64 MiB" in said
    assert str(path) in said
    assert megabytes < 120


def test_the_longest_row_is_taken(tmp_path):
    source = Source(saved(tmp_path / "t", b"w" * MOST_ROW_BYTES + b"\n" + b"w" * (MOST_ROW_BYTES + 1)))
    first, second = source.rows()
    assert len(source.raw(first)) == MOST_ROW_BYTES
    with pytest.raises(TraceError, match=r"t:2: is 64 MiB long, a row has at most 64 MiB"):
        source.raw(second)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"a": 1, "b": "c', {"a", "b"}),
        ('{"a": 1, "b', {"a"}),
        ('{"a": "x\\", \\"no\\": \\"', {"a"}),
        ('{"a": "x\\', {"a"}),
        ('{"a": "}", "b": 2}', {"a", "b"}),
    ],
)
def test_keys_of_a_text_that_is_cut_are_those_before_the_cut(text, keys):
    """Not what stands in quotes inside the string that the cut is in."""
    assert Head(text.encode(), cut=True).outline.keys == keys


def test_escapes_are_looked_through_in_time_and_memory():
    text = '{"a": "' + '\\"' * 1_500_000
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert Head(text.encode(), cut=True).outline.keys == {"a"}
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


# --------------------------------------------------------------------------------------------------- folders


def folder(tmp: Path, **files: bytes) -> Path:
    path = tmp / "fold"
    path.mkdir()
    for name, data in files.items():
        (path / name.replace("_", ".")).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_jsonl": jsonl(talk(1)), "b_gz": gzip.compress(jsonl(talk(2)))[:-9]}, r"fold/b.gz: cannot be read"),
        ({"a_jsonl": jsonl(talk(1)), "b_zst": zstandard.compress(b"x" * 99)[:-2]}, r"fold/b.zst: cannot be read \(the"),
        ({"a_jsonl": b"", "b_jsonl": b"\n"}, r"fold: none of its files has a row"),
        ({"a_jsonl": b"", "b_jsonl": b"{oops\n"}, r"fold/b.jsonl:1: is not JSON"),
        ({"a_jsonl": jsonl({"x": 1}), "b_jsonl": jsonl(talk(1))}, r"fold/a.jsonl:1: format can't be told from the key"),
        ({"a_jsonl": jsonl(talk(1)), "b_jsonl": b"%PDF-1.7"}, r"fold/b.jsonl: is a PDF document"),
    ],
)  # fmt: skip
def test_errors_in_a_folder_name_the_file(tmp_path, files, message):
    assert re.search(message, str(refused(folder(tmp_path, **files))))


def test_a_blank_file_of_a_folder_tells_no_format(tmp_path):
    trace = open_trace(str(folder(tmp_path, a_jsonl=b"\n", b_jsonl=jsonl(talk(1)), c_jsonl=jsonl(talk(2)))))
    assert (trace.format, trace.sessions) == ("openai-messages", 2)


def test_the_place_of_a_session_has_its_file(tmp_path):
    path = folder(tmp_path, a_jsonl=jsonl(talk(1)), b_jsonl=b"\n" + jsonl(talk(2), talk(3)))
    trace = open_trace(str(path))
    assert isinstance(trace, IndexedTrace)
    assert [trace.place(index) for index in range(3)] == [
        f"{path}/a.jsonl:1", f"{path}/b.jsonl:2", f"{path}/b.jsonl:3",
    ]  # fmt: skip
    with pytest.raises(IndexError):
        trace.place(-1)


def test_the_place_of_a_session_is_found_in_the_order_of_times(tmp_path):
    rows = [
        {"timestamp": at, "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}} for at in (9, 4, 6)
    ]
    path = saved(tmp_path / "t", jsonl(*rows))
    trace = open_trace(str(path))
    assert isinstance(trace, IndexedTrace)
    assert [trace.place(index) for index in range(3)] == [f"{path}:{line}" for line in (2, 3, 1)]


def test_ids_that_come_again_are_told_with_the_first_place(tmp_path):
    session = {"session_id": "a", "turns": [{"messages": [{"role": "user", "content": "hi"}]}]}
    header = {"infersiege_trace": 1}
    single = open_trace(str(saved(tmp_path / "t", jsonl(header, session, session, session))))
    assert single.warnings == (
        "session id came before (first again at line 3): both sessions are played, the later one has its line added "
        "to its id (2 times)",
    )
    assert [single.session(index).session_id for index in range(3)] == ["a", "a.line-3", "a.line-4"]


# ------------------------------------------------------------------------------------------- folders of CSV files


def test_csv_files_of_a_folder_are_one_table(tmp_path):
    path = folder(
        tmp_path,
        a_csv=azure("2023-11-16 18:15:46,10,1", "2023-11-16 18:15:47,11,1"),
        b_csv=b"\xef\xbb\xbf" + azure("2023-11-16 18:15:48,12,1").replace(b"\n", b"\r\n"),
        c_csv_gz=gzip.compress(azure("2023-11-16 18:15:49,13,1")),
        d_csv=b"",
    )
    trace = open_trace(str(path))
    assert (trace.format, trace.rows, trace.sessions) == ("azure", 4, 4)
    assert [trace.session(index).source_line for index in range(4)] == [2, 3, 2, 2]
    assert [trace.session(index).turns[0].asked_prompt_tokens for index in range(4)] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (azure("2023-11-16 18:15:48,1,1", header=HEADER + ",NumImages"), r"b.csv:1: its header is not that of .*a.csv"),
        (b"2023-11-16 18:15:48,1,1\n", r"b.csv:1: its header is not that of .*a.csv"),
        (azure("2023-11-16 18:15:48,1"), r"b.csv:2: has 2 columns, 3 are wanted"),
        (azure("2023-11-16 18:15:48,x,1"), r"b.csv:2: ContextTokens is a text of 1 characters"),
        (azure("2023-11-16 18:15:40,1,1"), r"b.csv:2: timestamp went back by 6 s"),
        (azure("gone,1,1"), r"b.csv:2: TIMESTAMP is"),
    ],
)
def test_what_is_wrong_with_a_csv_file_of_a_folder_names_it(tmp_path, second, message):
    error = refused(folder(tmp_path, a_csv=azure("2023-11-16 18:15:46,10,1"), b_csv=second))
    assert re.search(message, str(error))


def test_rows_skipped_in_a_csv_file_of_a_folder_name_it(tmp_path):
    rows = azure("2023-11-16 18:15:46,10,1"), azure("2023-11-16 18:15:48,0,1")
    trace = open_trace(str(folder(tmp_path, a_csv=rows[0], b_csv=rows[1])))
    assert [re.sub(r"first: .*/fold", "first: fold", text) for text in trace.warnings] == [
        "1 rows skipped: no_input (first: fold/b.csv:2)"
    ]


def test_csv_files_beside_other_traces_are_passed_over(tmp_path):
    path = folder(tmp_path, a_csv=azure("2023-11-16 18:15:46,10,1"), b_jsonl=jsonl(talk(1)))
    assert open_trace(str(path)).format == "openai-messages"


# ---------------------------------------------------------------------------------------- files that are no traces


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("t.jsonl", jsonl(talk(1)))
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("t.jsonl"))
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
TABLE = azure("2023-11-16 18:15:46,10,1")


@pytest.mark.parametrize(
    ("make", "says", "hint"),
    [
        (lambda: jsonl(talk(1)).decode().encode("utf-16"), "is UTF-16 text", "iconv"),
        (lambda: jsonl(talk(1)).decode().encode("utf-16-be"), "is UTF-16 text without a mark", "iconv"),
        (lambda: jsonl(talk(1)).decode().encode("utf-16-le"), "is UTF-16 text without a mark", "iconv"),
        (lambda: jsonl(talk(1)).decode().encode("utf-32"), "is UTF-32 text", "iconv"),
        (zipped, "is a zip archive", "unpack it"),
        (tarred, "is a tar archive", "unpack it"),
        (lambda: gzip.compress(tarred()), "is a tar archive", "unpack it"),
        (lambda: b"%PDF-1.4\n%\xe2\xe3", "is a PDF document", "name the trace"),
        (lambda: b"\n<!DOCTYPE HTML><html>", "is an HTML page", "download the file itself"),
        (lambda: b"<html><head>", "is an HTML page", "download the file itself"),
        (lambda: b'<?xml version="1.0"?><Error>', "is an XML document", "download the file itself"),
        (lambda: LFS, "is a pointer of Git LFS", "git lfs pull"),
        (lambda: gzip.compress(gzip.compress(TABLE)), "is packed twice (gzip inside)", "unpack it once"),
        (lambda: gzip.compress(zstandard.compress(TABLE)), "is packed twice (Zstandard inside)", "unpack it once"),
        (lambda: gzip.compress(b"PAR1...."), "is a Parquet file that was packed once more", "unpack it once"),
        (lambda: b"BZh91AY&SY", "is packed with bzip2", "gzip and Zstandard are read"),
        (lambda: b"\xfd7zXZ\x00\x00", "is packed with xz", "gzip and Zstandard are read"),
        (lambda: b"SQLite format 3\x00", "is an SQLite database", "export"),
    ],
)
@pytest.mark.parametrize("format", [None, "azure", "openai-messages"])
def test_what_is_no_trace_is_named_whatever_the_format(tmp_path, make, says, hint, format):
    error = refused(saved(tmp_path / "t", make()), format=format)
    assert str(error).startswith(f"{tmp_path}/t: {says}")
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace(",", ";"), "its columns are parted by semicolons"),
        (lambda text: text.replace(",", "\t"), "its columns are parted by tabs"),
        (lambda text: text.replace(",", "|"), "its columns are parted by bars"),
        (lambda text: text.replace("\n", "\r"), "its lines end with CR only"),
    ],
)
@pytest.mark.parametrize("format", [None, "azure"])
def test_tables_that_are_written_otherwise_are_told(tmp_path, change: Callable[[str], str], says, format):
    error = refused(saved(tmp_path / "t.csv", change(TABLE.decode()).encode()), format=format)
    assert str(error) == f"{tmp_path}/t.csv:1: {says}"
    assert "parted by commas" in (error.hint or "")


def test_json_lines_that_end_with_cr_only_are_told(tmp_path):
    error = refused(saved(tmp_path / "t", jsonl(talk(1), talk(2)).replace(b"\n", b"\r")))
    assert str(error) == f"{tmp_path}/t:1: its lines end with CR only"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{}\n", "from its first line, an object without keys"),
        (b"[]\n", "from its first line, which is no JSON object"),
        (b"a;b;c\n", "from its first line, which is no JSON object"),
    ],
)
def test_a_first_line_that_tells_no_format_is_called_what_it_is(tmp_path, content, says):
    assert str(refused(saved(tmp_path / "t", content))) == f"{tmp_path}/t:1: format can't be told {says}"


# ------------------------------------------------------------------------------------------------ numbers of CSV


@pytest.mark.parametrize(
    "number", ["1_000", "\u0663", "\uff15", "5\u00a0", "1e400", "0x10", "", " ", "+", "5.5", "--1"]
)
def test_azure_takes_no_numbers_of_other_scripts_and_languages(tmp_path, number):
    error = refused(saved(tmp_path / "a.csv", azure(f"2023-11-16 18:15:46,{number},1")))
    assert "a.csv:2: ContextTokens is" in str(error)
    assert "a whole number of at least 0 is wanted" in str(error)


@pytest.mark.parametrize(("number", "tokens"), [("5", 5), ("005", 5), (" 5", 5), ("5.0", 5), ("1e3", 1000), ("+5", 5)])
def test_azure_takes_whole_numbers_as_tables_write_them(tmp_path, number, tokens):
    trace = open_trace(str(saved(tmp_path / "a.csv", azure(f"2023-11-16 18:15:46,{number},1"))))
    assert trace.session(0).turns[0].asked_prompt_tokens == tokens
