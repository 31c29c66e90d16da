"""Files on their way from the master to a worker: packed, in parts, unpacked, checked; nothing else gets through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import RunInvalidError, UsageError
from infersiege.plan.load import load_plan
from infersiege.records import NeededFile, NeededPath
from infersiege.swarm import travel
from infersiege.swarm.luggage import Unpacker, as_planned, differs, must_be_the_masters, with_places
from infersiege.swarm.travel import PARTS_AT_ONCE, needed_paths, packed_parts, sha256_of
from infersiege.traces import open_trace

ROW = '{"session_id": "a", "messages": [{"role": "user", "content": "what was sold?"}]}\n'


def needed(base: Path, files: dict[str, bytes]) -> NeededPath:
    """Write the files and list them, as a master does."""
    listed = []
    for name, data in files.items():
        place = Path(base, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        listed.append(NeededFile(name=name, size_bytes=len(data), sha256=sha256_of(place)))
    return NeededPath(path=str(base), what="trace of talk", files=tuple(listed))


def unpack(place: Path, path: NeededPath, stream: bytes, cuts: list[int] | None = None) -> None:
    with Unpacker(place, path) as unpacker:
        at = 0
        for cut in sorted(cuts or []):
            unpacker.feed(stream[at:cut])
            at = max(at, cut)
        unpacker.feed(stream[at:])
        unpacker.finish()


def read(place: Path) -> dict[str, bytes]:
    if place.is_file():
        return {"": place.read_bytes()}
    return {found.relative_to(place).as_posix(): found.read_bytes() for found in place.rglob("*") if found.is_file()}


NAMES_ = st.lists(st.sampled_from(["a.jsonl", "b/c.jsonl", "b/d/e.jsonl", "leer zeile.jsonl", "雪.json"]), unique=True)


@given(st.data())
def test_whatever_the_files_and_the_parts_they_arrive_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("travel")
    names = data.draw(NAMES_) or [""]
    contents = {name: data.draw(st.binary(max_size=300)) * data.draw(st.integers(1, 400)) for name in names}
    path = needed(folder / "there", contents)
    stream = b"".join(packed_parts(path))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    unpack(folder / "here", path, stream, cuts)
    assert read(folder / "here") == contents


GOOD = {"a.jsonl": b"first\n" * 1000, "b.jsonl": b"second\n" * 10}


def other_list(path: NeededPath, **changes: object) -> NeededPath:
    """The same with another first file."""
    first, *rest = path.files
    return msgspec.structs.replace(path, files=(msgspec.structs.replace(first, **changes), *rest))


def packed(*parts: bytes) -> bytes:
    return zlib.compress(b"".join(parts))


BAD: list[tuple[str, Callable[[NeededPath], NeededPath], Callable[[bytes], bytes], str]] = [
    ("no zlib", lambda path: path, lambda _: b"no stream at all", "can't be unpacked"),
    ("cut", lambda path: path, lambda stream: stream[:-4], "shorter than its list"),
    ("cut early", lambda path: path, lambda stream: stream[:10], "shorter than its list"),
    ("empty", lambda path: path, lambda _: b"", "shorter than its list"),
    ("a bit changed", lambda path: path, lambda _: packed(b"First\n" * 1000, GOOD["b.jsonl"]), "hash is another one"),
    ("a row more", lambda path: path, lambda _: packed(*GOOD.values(), b"x\n"), "longer than its list"),
    ("a bomb", lambda path: path, lambda _: packed(*GOOD.values(), bytes(50 << 20)), "longer than its list"),
    ("something behind it", lambda path: path, lambda stream: stream + b"more", "longer than its list"),
    ("another hash is listed", lambda path: other_list(path, sha256="0" * 64), lambda s: s, "hash is another one"),
    ("up and out", lambda path: other_list(path, name="../a.jsonl"), lambda s: s, "outside its folder"),
    ("from the root", lambda path: other_list(path, name="/etc/passwd"), lambda s: s, "outside its folder"),
    ("in the middle", lambda path: other_list(path, name="x/../../a"), lambda s: s, "outside its folder"),
]


@pytest.mark.parametrize(("case", "listed", "sent", "why"), BAD, ids=[row[0] for row in BAD])
def test_what_is_not_as_listed_is_refused(
    tmp_path: Path,
    case: str,
    listed: Callable[[NeededPath], NeededPath],
    sent: Callable[[bytes], bytes],
    why: str,
) -> None:
    path = needed(tmp_path / "there", GOOD)
    with pytest.raises(UsageError, match=f"^{path.path}: did not arrive from the master as it should: .*{why}"):
        unpack(tmp_path / "here" / "files", listed(path), sent(b"".join(packed_parts(path))))
    assert not (tmp_path / "here" / "a.jsonl").exists() and not (tmp_path / "a.jsonl").exists()
    assert sum(len(data) for data in read(tmp_path / "here").values()) <= sum(map(len, GOOD.values()))


def test_a_file_that_was_changed_since_it_was_listed_is_not_sent(tmp_path: Path) -> None:
    path = needed(tmp_path / "there", GOOD)
    (tmp_path / "there" / "b.jsonl").write_bytes(b"Second\n" * 10)
    with pytest.raises(travel._ChangedError, match=r"b\.jsonl"):
        list(packed_parts(path))


def test_each_gets_its_parts_in_turn_and_others_run_meanwhile() -> None:
    """All that many workers ask for at once would stand in the queues of sockets, and no lease would go out."""
    side = [sys.executable, str(Path(__file__).with_name("side_travel.py"))]
    done = subprocess.run(side, capture_output=True, text=True, timeout=90, check=True)
    found = json.loads(done.stdout)
    assert found["asked"] == 12
    assert found["parts"] == [PARTS_AT_ONCE] * 12, "what they asked for, and nothing twice"
    assert found["in order"]
    assert found["two in a row"] < 12, "a worker gets two only where no other one waits"
    assert found["turns of others"] > 12 * PARTS_AT_ONCE / 8, "hardly ever more than two parts without a pause"


# ---------------------------------------------------------------------------------------------------- what is needed


def plan_with(folder: Path, trace: str, more: str = "") -> Path:
    text = f"""
[run]
duration = "10s"
[channel.target]
engine = "generic"
base_url = "https://127.0.0.1:1/v1"
model = "m"
{more}
[[workload]]
scenario = "talk"
trace = "{trace}"
[[workload]]
scenario = "qa"
trace = "builtin:short-qa"
[load]
users = 1
"""
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    return folder / "plan.toml"


def test_traces_and_certificates_are_needed_and_keys_are_not(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(ROW, encoding="utf-8")
    for name in ("ca.pem", "key.txt", "tokenizer.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    more = 'ca = "ca.pem"\napi_key_file = "key.txt"\ntokenizer = "tokenizer.json"'
    plan = load_plan(plan_with(tmp_path, "t.jsonl", more), (), {})
    traces = [open_trace(workload.trace) for workload in plan.workloads]
    found = needed_paths(plan, traces)
    assert [(path.path, path.what) for path in found] == [
        (str(tmp_path / "t.jsonl"), "trace of talk"),
        (str(tmp_path / "ca.pem"), "ca of channel target"),
    ]
    for path in found:
        (file,) = path.files
        assert (file.name, file.size_bytes) == ("", Path(path.path).stat().st_size)
        assert file.sha256 == sha256_of(Path(path.path))


def test_of_a_folder_its_trace_files_are_needed(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "deep/a.jsonl", "LICENSE"):
        (folder / name).write_text(ROW.replace('"a"', f'"{name}"'), encoding="utf-8")
    plan = load_plan(plan_with(tmp_path, "traces"), (), {})
    (path,) = needed_paths(plan, [open_trace(workload.trace) for workload in plan.workloads])
    assert [file.name for file in path.files] == ["b.jsonl", "deep/a.jsonl"]
    unpack(tmp_path / "here" / "traces", path, b"".join(packed_parts(path)))
    there, here = open_trace(str(folder)), open_trace(str(tmp_path / "here" / "traces"))
    assert there.sha256 == here.sha256 and there.sessions == here.sessions == 2


def test_what_is_too_large_is_listed_and_does_not_travel(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(ROW, encoding="utf-8")
    plan = load_plan(plan_with(tmp_path, "t.jsonl"), (), {})
    traces = [open_trace(workload.trace) for workload in plan.workloads]
    os.truncate(path, travel.MOST_BYTES + 1)  # it has no blocks: nothing is written
    (found,) = needed_paths(plan, traces)
    assert not found.travels
    assert travel.too_large(found).startswith("is too large to be sent to workers: 1,024 MiB; ")


# -------------------------------------------------------------------------------------------------- what is here

DIFFERENCES: list[tuple[str, Callable[[Path], object], str | None]] = [
    ("the same", lambda _: None, None),
    ("a row changed", lambda base: (base / "a.jsonl").write_bytes(b"First\n" * 1000), "(its content differs)"),
    ("a row more", lambda base: (base / "a.jsonl").write_bytes(b"first\n" * 1001), "(6,006 bytes instead of 6,000)"),
    ("a file missing", lambda base: (base / "b.jsonl").unlink(), "is not whole, file b.jsonl, which is missing,"),
    ("nothing there", lambda base: base.rename(base.parent / "away"), "is not there"),
]


@pytest.mark.parametrize(("case", "change", "said"), DIFFERENCES, ids=[row[0] for row in DIFFERENCES])
def test_what_lies_here_is_told_from_the_masters(
    tmp_path: Path, case: str, change: Callable[[Path], object], said: str | None
) -> None:
    path = needed(tmp_path / "there", GOOD)
    change(tmp_path / "there")
    found = differs(path)
    assert found == said or (said is not None and said in (found or ""))


def test_a_plan_with_other_places_is_told_with_its_own() -> None:
    places = {"/master/t.jsonl": "/tmp/infersiege-files-x/0/t.jsonl"}
    assert as_planned("/tmp/infersiege-files-x/0/t.jsonl:7: no JSON", places) == "/master/t.jsonl:7: no JSON"


def test_only_what_travelled_has_another_place(tmp_path: Path) -> None:
    for name in ("t.jsonl", "ca.pem"):
        (tmp_path / name).write_text(ROW, encoding="utf-8")
    plan = load_plan(plan_with(tmp_path, "t.jsonl", 'ca = "ca.pem"'), (), {})
    moved = with_places(plan, {str(tmp_path / "t.jsonl"): "/here/t.jsonl", str(tmp_path / "ca.pem"): "/here/ca.pem"})
    assert [workload.trace for workload in moved.workloads] == ["/here/t.jsonl", "builtin:short-qa"]
    assert moved.channels["target"].ca == "/here/ca.pem"
    assert with_places(plan, {}) is plan


def test_another_trace_is_refused_with_both_hashes() -> None:
    must_be_the_masters({"talk (t)": "a" * 64, "more": "b"}, {"talk (t)": "a" * 64}, "here")
    with pytest.raises(
        RunInvalidError, match=r"^trace of talk \(t\) is another one \(sha256 b{16}… .* a{16}…\) on here$"
    ):
        must_be_the_masters({"talk (t)": "b" * 64}, {"talk (t)": "a" * 64}, "here")
