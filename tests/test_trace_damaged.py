"""Traces that are damaged anywhere: read and played, or refused in one line that shows nothing of them (TR-15)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import Conversation, Synthesizer, describe, open_trace
from infersiege.traces.sessions.session_checks import check_branches

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECRET = "sk-secret"
SEEDS = 20
DAMAGE = (
    "null", "5", "-1", "true", "1.5", "1e30", "[]", "{}", f'"{SECRET}"', f'["{SECRET}"]', f'{{"a": "{SECRET}"}}',
    "1e17", "9223372036854775808", "-0.5", "1180591620717411303424", '""', '"\\ud800"', "[null]", "[5]", '"   "',
    '"2026-01-31T12:00:00+99:99"', '"0001-01-01T00:00:00+14:00"', f'{{"{SECRET}": 1}}',
    '[{"type": "text"}]', '[{"type": "tool_use"}]', '[{"role": 5}]', '"[{\\"type\\": 5}]"', "[[]]",
)  # fmt: skip
CELLS = (
    "7", "7.0",
    "", "-1", "1e400", "nan", "inf", SECRET, "9" * 30, "1.5", '"a', '"', "1_0", "\uff19", "2023-11-16 18:15:46+23:59",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if not path else [path]
    for key, member in inner:
        found += places(member, (*path, key))
    return found


def damage(rows: list[Any], draw: random.Random) -> None:
    """One row goes, comes twice or later, or loses or changes one value."""
    at = draw.randrange(len(rows))
    kind = draw.random()
    if kind < 0.1 and len(rows) > 1:
        del rows[at]
    elif kind < 0.2:
        rows.insert(draw.randrange(len(rows)), json.loads(json.dumps(rows[at])))
    elif rows[at]:
        *path, last = draw.choice(places(rows[at]))
        holder = rows[at]
        for key in path:
            holder = holder[key]
        if draw.random() < 0.3:
            del holder[last]
        else:
            holder[last] = json.loads(draw.choice(DAMAGE))


def unfolded(value: Any) -> Any:
    """JSON strings as what they say, so that damage gets into them, too."""
    if isinstance(value, dict):
        return {key: unfolded(member) for key, member in value.items()}
    if isinstance(value, list):
        return [unfolded(member) for member in value]
    return json.loads(value) if isinstance(value, str) and value.startswith("[{") else value


def damaged(name: str, seed: int) -> bytes:
    """The example, with a few things wrong."""
    text = (EXAMPLES / name).read_text()
    draw = random.Random(seed)
    if name.endswith(".csv"):
        table = [line.split(",") for line in text.splitlines()]
        for _ in range(draw.randint(1, 3)):
            row = draw.choice(table[1:])
            row[draw.randrange(len(row))] = draw.choice(CELLS)
        return "\n".join(map(",".join, table)).encode()
    rows = [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else [json.loads(text)]
    if draw.random() < 0.5:
        rows = unfolded(rows)
    for _ in range(draw.randint(1, 4)):
        damage(rows, draw)
    return "\n".join(map(json.dumps, rows)).encode()


def play(session: Session) -> None:
    """All of its requests, with answers of our own."""
    check_branches(session, "here")
    for turn in session.all_turns():
        assert turn.messages
        assert turn.delay_ns >= 0
        assert len(turn.texts) in (0, len(turn.messages))
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    for _ in conversation.outlines():
        pass
    while conversation.next_turn() is not None:
        conversation.answered("hi")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_tr_15_damaged_traces_are_read_and_played_or_refused_without_their_text(tmp_path, name):
    """Whatever is wrong, and wherever: no crash, nothing of what stands there in a message, and what was read plays."""
    path = tmp_path / name
    options = {"rows": "cumulative"} if "cumulative" in name else {}
    outcomes = {"read": 0, "refused": 0}
    for seed in range(SEEDS):
        path.write_bytes(damaged(name, seed))
        try:
            trace = open_trace(str(path), format=name.split(".")[0], options=options)
        except TraceError as error:
            message = f"{error} {error.hint}"
            assert error.hint, error
            assert SECRET not in message, seed
            assert "\n" not in message, seed
            assert len(message) < 600 + 2 * len(str(path)), seed
            outcomes["refused"] += 1
            continue
        assert not any(SECRET in warning for warning in trace.warnings), seed
        describe(trace)
        for index in range(trace.sessions or 0):
            play(trace.session(index))
        outcomes["read"] += 1
    assert sum(outcomes.values()) == SEEDS
    assert outcomes["read"], "damage is such that some traces can still be read"
