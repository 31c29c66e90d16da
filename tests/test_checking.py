"""Own code that checks answers: beside the loop, one at a time, and never for ever."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from swarm_rows import RUN_ID, STEADY, record, session

from infersiege.channels.dialect import Decoded
from infersiege.channels.redaction import Secrets
from infersiege.metrics.quality import Answers, pass_share
from infersiege.quality import Item, open_quality, read_score
from infersiege.records import Outcome, Report, TurnRecord
from infersiege.swarm.checking import CUT, PATIENCE_S, Checker, CheckWatch
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import Ledger
from infersiege.swarm.player import SessionPlayer
from infersiege.swarm.spool import Spool, leftover_segments
from infersiege.swarm.turns import Played, TurnPlayer

SLOW = """import time
running = []
def slow(text, calls):
    assert not running, "another answer is being checked"
    running.append(text)
    time.sleep(0.2)
    running.clear()
    return True
def ever(text, calls):
    while True:
        time.sleep(0.01)
def leaves(text, calls): raise SystemExit(3)
def interrupts(text, calls): raise KeyboardInterrupt
def tells(text, calls): raise ValueError("no answer from http://user:hidden@host/")
KEY = "correct-horse-battery"
class Text(str):
    def __await__(self): yield
def key(text, calls): raise ValueError("refused zzz" + KEY + "zzz")
def key_across_the_cut(text, calls): raise ValueError(("x" + KEY) * 40)
def key_after_much(text, calls): raise ValueError("x" * 2990 + KEY)
def key_as_name(text, calls): raise type("Err" + KEY, (Exception,), {})
def key_over_lines(text, calls): raise ValueError("a\\n" + "two  blanks\\tand a tab")
def key_of_no_text(text, calls): raise ValueError("a hun\\udcffter-hunter b")
def key_awaited(text, calls): return Text(KEY)
def half_a_pair(text, calls): raise ValueError("a\\ud83d b\\udcff c\\0 d\\x1b[1m \\u202e")
"""
SECRETS = ("correct-horse-battery", "two  blanks\tand a tab", "hun\udcffter-hunter")

Make = Callable[[str], Item]


@pytest.fixture
def item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A prompt with one function of an importable module as its check."""
    module = f"slow_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(function: str) -> Item:
        path = tmp_path / f"{function}.jsonl"
        row = {"id": function, "prompt": "Hi", "checks": [{"callable": f"{module}:{function}"}]}
        path.write_text("\n".join(map(json.dumps, [{"infersiege_quality": 1}, row])))
        return open_quality(str(path), allow_code=True).items[0]

    return make


def test_the_loop_turns_while_a_slow_check_runs_and_checks_run_one_by_one(item: Make) -> None:
    checker, slow = Checker(patience_s=30), item("slow")
    asking = [gevent.spawn(checker.score, slow, "an answer") for _ in range(3)]
    turns = 0
    while not all(one.ready() for one in asking):
        turns += 1
        gevent.sleep(0.01)
    assert [str(one.get()) for one in asking] == ["pass default/slow"] * 3
    assert turns >= 10, "0.6 s of a held loop would have been one turn"
    assert checker.first_unscored is None


@pytest.mark.parametrize("function", ["leaves", "interrupts"])
def test_nothing_that_a_check_raises_ends_the_loop(item: Make, function: str) -> None:
    checker = Checker(patience_s=30)
    found = gevent.spawn(checker.score, item(function), "an answer").get()
    assert found.broken is not None and not found.passed
    assert checker.first_unscored == f"default/{function}: {found.broken}"
    assert checker.score(item("slow"), "an answer").passed, "and the next one is checked"


def test_no_secret_that_a_checker_met_is_written_down(item: Make) -> None:
    checker = Checker(patience_s=30)
    said = str(checker.score(item("tells"), "an answer"))
    assert "no answer from" in said and "hidden" not in said + (checker.first_unscored or "")


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        ("key", "ValueError: refused zzz[redacted]zzz"),
        ("key_across_the_cut", "…"),
        ("key_after_much", "x…"),
        ("key_as_name", "Err[redacted]"),
        ("key_over_lines", "ValueError: a [redacted]"),
        ("key_of_no_text", "ValueError: a [redacted] b"),
        ("key_awaited", "returned Text, not True or False"),
        ("half_a_pair", "ValueError: a\ufffd b\ufffd c\ufffd d [1m"),
    ],
)
def test_what_own_code_says_is_in_the_row_without_the_runs_secrets(
    item: Make, tmp_path: Path, function: str, ends: str
) -> None:
    """One secret is the run's, the others are what the server gave the session; none looks like one."""
    player, closes = closing(item(function), tmp_path, run_secrets=SECRETS[:1], route_secrets=SECRETS[1:])
    closes.get()
    (row,) = rows_in(tmp_path)
    assert row.quality is not None and row.quality.endswith(ends) and len(row.quality) < 360, (
        "one line of 300, and whose it is"
    )
    assert row.quality == f"unscored {player.checker.first_unscored}", "the master is told the same"
    found = read_score(row.quality)
    assert found is not None and found.broken is not None and found.broken.isprintable()
    assert not re.search("correct|horse|battery|two|tab|hunter", row.quality)


def test_a_check_that_never_ends_is_given_up_and_so_is_who_waits_for_it(item: Make) -> None:
    checker = Checker(patience_s=0.3)
    asking = [gevent.spawn(checker.score, item(name), "an answer") for name in ("ever", "slow")]
    gevent.joinall(asking, timeout=30)
    assert [one.get().broken for one in asking] == ["callable: no result after 0.3 s"] * 2
    assert checker.first_unscored == "default/ever: callable: no result after 0.3 s"


def closing(
    item: Item,
    folder: Path,
    *,
    killed: BaseException | None = None,
    run_secrets: tuple[str, ...] = (),
    route_secrets: tuple[str, ...] = (),
) -> tuple[SessionPlayer, Any]:
    """A player, and the greenlet in which it closes a turn whose answer was good."""
    ledger = Ledger(run_id=RUN_ID, worker="w", epoch=0, spool=Spool(folder / "spool", "w"), place_of=lambda _: STEADY)
    ledger.take(opened := session("s"))
    turns, secrets = TurnPlayer(ledger, offset_ns=0), Secrets(run_secrets)
    player = SessionPlayer(turns, RunControl(), offset_ns=0, keep_answers=True, secrets=secrets)
    player.checker = Checker(patience_s=600)
    said = Decoded(
        text="an answer", reasoning="", refusal="", tool_calls=(), finish_reason="stop", usage=None,
        first_chunk_tokens=None, fault=None, done=True, model=None, server_ttft_ns=None, flags=(),
    )  # fmt: skip
    played = Played(record("s"), said, 0, killed)
    return player, gevent.spawn(player._close, opened, played.record, played, item, route_secrets)


def rows_in(folder: Path) -> list[TurnRecord]:
    lines = b"".join(data for _, data in leftover_segments(folder / "spool"))
    return msgspec.json.Decoder(TurnRecord).decode_lines(lines)


def test_an_answer_whose_check_the_end_of_the_run_cuts_off_is_unscored(item: Make, tmp_path: Path) -> None:
    """Without a word of quality it would be in no share, and what hangs a checker is rarely a good answer."""
    player, closes = closing(item("ever"), tmp_path)
    gevent.sleep(0.05)
    assert not closes.ready() and rows_in(tmp_path) == [], "it waits for its check"
    closes.kill(timeout=30)
    (row,) = rows_in(tmp_path)
    assert (row.outcome, row.quality) == (Outcome.OK, f"unscored default/ever: {CUT}")
    assert row.answer is not None and row.answer.text == "an answer"
    assert player.checker.first_unscored == f"default/ever: {CUT}"
    answers = Answers()
    answers.add(row)
    assert pass_share([answers]).share is None, "and the run has no quality"


def test_a_turn_whose_greenlet_is_on_its_way_out_waits_for_no_check(item: Make, tmp_path: Path) -> None:
    """What killed it came once: nothing would end the wait."""
    _, closes = closing(item("ever"), tmp_path, killed=gevent.GreenletExit())
    assert closes.get(timeout=30).quality == f"unscored default/ever: {CUT}"
    assert [row.quality for row in rows_in(tmp_path)] == [f"unscored default/ever: {CUT}"]


def test_a_row_waits_no_longer_for_its_check_than_the_documents_say() -> None:
    """A worker that is killed takes them with it."""
    docs = Path(__file__).parents[1]
    for page, words in (("docs/quality.md", "result within {} s"), ("ARCHITECTURE.md", "at most {} s later")):
        assert words.format(f"{PATIENCE_S:g}") in (docs / page).read_text(encoding="utf-8")


def test_a_check_that_is_a_rule_does_not_yield(tmp_path: Path) -> None:
    path = tmp_path / "rule.jsonl"
    rows = [{"infersiege_quality": 1}, {"id": "a", "prompt": "Hi", "checks": [{"contains": "x"}]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    others: list[float] = []
    other = gevent.spawn(lambda: others.append(time.monotonic()))
    assert Checker().score(open_quality(str(path)).items[0], "x").passed
    assert not others
    other.join()


def test_the_first_answer_that_could_not_be_checked_is_one_event() -> None:
    noted: list[tuple[str, str, str | None]] = []
    watch = CheckWatch()
    for worker, said in (("w1", None), ("w2", "a/b: why, by http://user:secret@host/"), ("w1", "a/c: why")):
        report = Report(
            worker=worker, sequence=1, windows=(), health=None, open_turns=(), sessions=0, in_flight=0,
            planned_turns=0, closed_turns=0, unscored=said,
        )  # fmt: skip
        watch.look(report, lambda kind, detail, worker: noted.append((kind, detail, worker)))
    ((kind, detail, teller),) = noted
    assert (kind, teller) == ("check_broken", "w2")
    assert detail.startswith("an answer could not be checked: a/b: why") and "secret" not in detail
