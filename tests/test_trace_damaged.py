"""Logs of people's work that are damaged anywhere: read, or refused in one line that shows nothing of them (TR-15)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from infersiege.errors import TraceError
from infersiege.traces import open_trace
from infersiege.traces.session_checks import check_branches

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECRET = "sk-secret"
DAMAGE = (
    "null", "5", "-1", "true", "1.5", "1e30", "[]", "{}", f'"{SECRET}"', f'["{SECRET}"]', f'{{"a": "{SECRET}"}}',
    '[{"type": "text"}]', '[{"type": "tool_use"}]', '[{"role": 5}]', '"[{\\"type\\": 5}]"', "[[]]",
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


@pytest.mark.parametrize(
    "name",
    ["claude-code.jsonl", "codex.jsonl", "otel-genai.json", "otel-genai.otlp.jsonl", "otel-genai.openllmetry.jsonl"],
)
def test_tr_15_damaged_logs_are_read_or_refused_without_their_text(tmp_path, name):
    text = (EXAMPLES / name).read_text()
    path = tmp_path / name
    outcomes = {"read": 0, "refused": 0}
    for seed in range(150):
        draw = random.Random(seed)
        rows = [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else [json.loads(text)]
        if draw.random() < 0.5:
            rows = unfolded(rows)
        for _ in range(draw.randint(1, 4)):
            damage(rows, draw)
        path.write_text("\n".join(map(json.dumps, rows)))
        try:
            trace = open_trace(str(path), format=name.split(".")[0])
        except TraceError as error:
            message = f"{error} {error.hint}"
            assert SECRET not in message, seed
            assert "\n" not in message, seed
            outcomes["refused"] += 1
            continue
        for index in range(trace.sessions or 0):
            session = trace.session(index)
            check_branches(session, "here")
            for turn in session.all_turns():
                assert turn.messages, seed
                assert turn.delay_ns >= 0, seed
                assert len(turn.texts) in (0, len(turn.messages)), seed
        outcomes["read"] += 1
    assert min(outcomes.values()) > 20, outcomes
