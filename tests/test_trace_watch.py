"""A trace file that changes while it is played, and ids of its sessions that must not be shown."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from infersiege.errors import TraceError
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Stop, Workload
from infersiege.swarm.source import SessionSource, shown_id
from infersiege.swarm.trace_watch import LOOK_EVERY_NS, TraceWatch, watch_of

TALK = '{{"session_id": "{id}", "messages": [{{"role": "user", "content": "{text}"}}]}}\n'
SECRET = "sk-" + "live0123456789abcdef"


def written(path: Path, count: int = 3) -> Path:
    path.write_text("".join(TALK.format(id=f"s{number}", text="hello") for number in range(count)), encoding="utf-8")
    return path


def source_of(path: Path) -> SessionSource:
    plan = Plan(
        run=Run(seed=1, nonce="n", duration_ns=60_000_000_000, stop=Stop(sessions=20)),
        channels={"c": Channel(engine="generic", base_url="http://127.0.0.1:1/v1", model="m")},
        workloads=(Workload(scenario="talk", trace=str(path), format="openai-messages"),),
        load=Load(users=1),
    )
    return SessionSource(plan, place=0, members=1)


def in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def touched_later(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))


def replaced(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("something else\n", encoding="utf-8")
    new.rename(path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


CHANGES: list[tuple[Callable[[Path], None], bool, str]] = [
    (lambda path: in_place(path, b'{"session_id": "xx"'), True, "an edit of the same length"),
    (longer, True, "a file that is still being written"),
    (emptied, True, "truncated to nothing"),
    (touched_later, True, "written again with the same text, as far as can be told"),
    (replaced, False, "another file took its name: what is open stays what it was"),
    (Path.unlink, False, "removed: what is open stays"),
    (lambda _: None, False, "nothing happened"),
]


@pytest.mark.parametrize(("change", "told", "why"), CHANGES, ids=[why for *_, why in CHANGES])
def test_what_counts_as_a_change(tmp_path: Path, change: Callable[[Path], None], told: bool, why: str) -> None:
    path = written(tmp_path / "t.jsonl")
    watch = TraceWatch(path)
    watch.read(at_once=True)
    change(path)
    watch.look()  # nothing was read since
    if told:
        with pytest.raises(TraceError, match=r"t\.jsonl was changed while it was played"):
            watch.read(at_once=True)
    else:
        watch.read(at_once=True)


def test_a_change_is_seen_within_half_a_second_and_at_the_last_look(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl")
    now = [1_000]
    watch = TraceWatch(path, clock_ns=lambda: now[0])
    watch.read()
    longer(path)
    now[0] += LOOK_EVERY_NS - 1
    watch.read()  # not looked at yet, but remembered
    with pytest.raises(TraceError):
        watch.look()
    now[0] += 1
    with pytest.raises(TraceError):
        watch.read()


def packed(folder: Path) -> str:
    path = folder / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    return str(path)


UNWATCHED: list[tuple[Callable[[Path], str], str]] = [
    (lambda _: "builtin:short-qa", "made up"),
    (str, "a folder, unpacked into one file"),
    (packed, "packed"),
    (lambda folder: str(folder / "nothing"), "missing: whoever opens it says so"),
]


@pytest.mark.parametrize(("make", "why"), UNWATCHED, ids=[why for _, why in UNWATCHED])
def test_what_is_not_read_later_is_not_watched(tmp_path: Path, make: Callable[[Path], str], why: str) -> None:
    assert watch_of(Workload(scenario="s", trace=make(tmp_path))) is None


def test_a_trace_of_lengths_is_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50,396,109\n",
        encoding="utf-8",
    )
    plan = Plan(
        run=Run(seed=1, nonce="n", duration_ns=60_000_000_000, stop=Stop(sessions=20)),
        channels={"c": Channel(engine="generic", base_url="http://127.0.0.1:1/v1", model="m")},
        workloads=(Workload(scenario="rows", trace=str(path)),),
        load=Load(users=1),
    )
    source = SessionSource(plan, place=0, members=1)
    tickets = list(source.tickets())
    emptied(path)
    assert [source.session_id(ticket)[0] for ticket in tickets] == ["rows:line-2", "rows:line-3"]
    source.look_at_traces()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: in_place(path, b"#" * (path.stat().st_size - 1)), "garbage is no fault of its line"),
        (lambda path: in_place(path, path.read_bytes().replace(b"hello", b"HELLO")), "text that could be sent"),
    ],
)
def test_a_session_of_a_changed_trace_is_not_played(tmp_path: Path, change: Callable[[Path], None], why: str) -> None:
    path = written(tmp_path / "t.jsonl")
    source = source_of(path)
    tickets = list(source.tickets())
    change(path)
    with pytest.raises(TraceError, match="was changed while it was played") as caught:
        source.conversation(tickets[-1])
        source.look_at_traces()
    assert caught.value.hint is not None and "copy" in caught.value.hint, why


SHOWN = [
    ("s-1", True, "a plain name"),
    ("2b1e-4c1a_x.y~3", True, "an id of a log"),
    ("a@b", True, "an @ alone is no address"),
    (f"user-{SECRET}", False, "a key"),
    ("someone@example.org/42", False, "a mail address"),
]


@pytest.mark.parametrize(("session_id", "shown", "why"), SHOWN, ids=[why for *_, why in SHOWN])
def test_an_id_that_looks_like_a_key_or_an_address_is_not_shown(session_id: str, shown: bool, why: str) -> None:
    found = shown_id(session_id)
    assert (found == session_id) is shown, why
    assert shown or (SECRET not in found and "@" not in found and len(found) < 24)
    assert found == shown_id(session_id) == shown_id(found)


def test_ids_stay_apart_when_they_are_replaced(tmp_path: Path) -> None:
    ids = [f"{SECRET}-{number}" for number in range(20)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(TALK.format(id=one, text="hi") for one in ids), encoding="utf-8")
    source = source_of(path)
    for named in (source.session_id, source.named_conversation):
        names = [named(ticket)[0] for ticket in source.tickets()]
        assert len(set(names)) == 20 and not any("sk-" in name for name in names), json.dumps(names)
