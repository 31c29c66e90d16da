"""Recorded agents on a real llama.cpp that is strict about tool calls: histories, delays, branches of whole runs."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
from siege import Ran, Siege, check_conserved, plan_text

from infersiege.records import Outcome, Session, TurnRecord
from infersiege.traces import open_trace
from infersiege.traces.play.session_lines import cut_session

pytestmark = [pytest.mark.llamacpp, pytest.mark.slow, pytest.mark.alone]

EXAMPLES = engines.ROOT / "examples" / "traces"
STRICT = """\
{%- set ns = namespace(open=[], before='') -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if m.tool_call_id not in ns.open -%}{{ raise_exception('a result without a call') }}{%- endif -%}
{%- set ns.open = ns.open | reject('equalto', m.tool_call_id) | list -%}
{%- else -%}
{%- if ns.open -%}{{ raise_exception('a call without its result') }}{%- endif -%}
{%- if m.role == ns.before -%}{{ raise_exception('two of a role in a row') }}{%- endif -%}
{%- endif -%}
{%- set ns.before = m.role -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') -}}
{%- for call in m.tool_calls or [] -%}
{%- set ns.open = ns.open + [call.id] -%}
{{- '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if tools -%}{{- '<|im_start|>system\\n' + (tools | length | string) + ' tools<|im_end|>\\n' -}}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Refuses, with 400, what no chat model was trained on."""

ONE_USER = 'mode = "closed"\nusers = 1\nramp = "0s"\ndrain = "60s"'


@pytest.fixture(scope="module")
def strict(
    needs: Callable[[str | None], None], free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """llama.cpp with the template above, and room for three long requests at a time."""
    needs(engines.llamacpp_missing())
    folder, port = tmp_path_factory.mktemp("strict"), free_port()
    (folder / "strict.jinja").write_text(STRICT, encoding="utf-8")
    command = [sys.executable, str(engines.LLAMACPP), "--port", str(port), "--alias", "strict", "--threads", "1"]
    command += ["--parallel", "3", "--ctx", "12288", "--template-file", str(folder / "strict.jinja")]
    log = folder / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_WAIT_POLICY": "passive"}
        )
    try:
        engines.wait_for_health("127.0.0.1", port, process, log, 60)
        yield engines.Engine("llama.cpp", "127.0.0.1", port, "strict", process.pid)
    finally:
        engines.stop(process)


def asked(engine: engines.Engine, messages: list[dict[str, Any]]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(engine.host, engine.port, timeout=60)
    try:
        body = json.dumps({"messages": messages, "max_tokens": 1})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def plan(engine: engines.Engine, trace: Path, more: str, sessions: int, load: str = ONE_USER) -> str:
    return plan_text(
        engine.base_url,
        model=engine.model,
        engine="llama.cpp",
        run=f"stop = {{sessions = {sessions}}}",
        workload=f'scenario = "agent"\ntrace = "{trace}"\nmax_tokens = 4\n{more}',
        load=load,
    )


def check_answered(ran: Ran) -> None:
    """Nobody was refused, and each turn was sent when it was due, which is when its delay had passed."""
    check_conserved(ran)
    failed = [
        (row.session_id, row.turn, row.http_status, row.error_detail)
        for row in ran.turns
        if row.outcome is not Outcome.OK
    ]
    assert not failed, failed
    late_ms = [((row.sent_ns or 0) - row.due_ns) / 1e6 for row in ran.turns]
    assert min(late_ms) >= 0
    assert statistics.median(late_ms) < 20 and max(late_ms) < 1000, sorted(late_ms)[-5:]


def check_delays(rows: list[TurnRecord], session: Session, scale: float, cap_ms: float) -> dict[int, TurnRecord]:
    """Each turn was due its delay after the end of what it waited for, to the nanosecond. By the number of the turn."""
    by_turn = {row.turn: row for row in rows}
    assert sorted(by_turn) == list(range(session.turn_count))
    ends = {number: row.closed_ns or 0 for number, row in by_turn.items()}
    first = len(session.turns)
    joins: dict[int, list[int]] = {}
    waits = [(number, number - 1) for number in range(1, first)]
    for branch in session.branches:
        numbers = range(first, first + len(branch.turns))
        first = numbers.stop
        waits += [(number, number - 1) for number in numbers[1:]]
        if branch.after is not None:
            waits.append((numbers[0], branch.after))
        if branch.joined_by is not None:
            joins.setdefault(branch.joined_by, []).append(ends[numbers[-1]])
    delays = [turn.delay_ns for turn in session.all_turns()]
    for number, before in waits:
        ended = max([ends[before], *joins.get(number, [])])
        delay_ns = min(round(delays[number] * scale), round(cap_ms * 1e6))
        assert abs(by_turn[number].due_ns - ended - delay_ns) <= 1, (number, before, delay_ns)
        assert (by_turn[number].sent_ns or 0) >= ended, "nothing is sent before what it waits for has ended"
    return by_turn


# ------------------------------------------------------------------------------------------------------- tool histories


@pytest.mark.parametrize(
    ("roles", "refused"),
    [
        ("user call tool", None),
        ("user tool", "a result without a call"),
        ("user call user", "a call without its result"),
        ("user user", "two of a role in a row"),
        ("user call other", "a result without a call"),
    ],
)
def test_the_template_refuses_histories_that_can_t_be(strict: engines.Engine, roles: str, refused: str | None) -> None:
    """What the tests below rely on: an engine that takes everything would show nothing."""
    function = {"name": "f", "arguments": "{}"}
    known: dict[str, dict[str, Any]] = {
        "user": {"role": "user", "content": "hi"},
        "call": {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        "tool": {"role": "tool", "tool_call_id": "a", "content": "1"},
        "other": {"role": "tool", "tool_call_id": "b", "content": "1"},
    }
    status, said = asked(strict, [known[role] for role in roles.split()])
    assert (status == 200) == (refused is None) and (refused or "") in said, said


def test_tau_bench_sessions_are_answered_by_an_engine_that_is_strict_about_tools(
    strict: engines.Engine, siege: Siege
) -> None:
    trace = open_trace("tau-bench.json", base=EXAMPLES)
    turns = [trace.session(index).turn_count for index in range(2)]
    ran = siege.run(plan(strict, EXAMPLES / "tau-bench.json", "", 2, ONE_USER.replace("users = 1", "users = 2")))
    check_answered(ran)
    assert len(ran.turns) == sum(turns) == 5
    assert all((row.cached_tokens or 0) > 0 for row in ran.turns if row.turn > 0), "a history is in the cache"


def test_a_real_tau_bench_session(strict: engines.Engine, siege: Siege, shared: Path, tmp_path: Path) -> None:
    """The one that calls a tool soonest, until the result has been read."""
    (path,) = (shared / "traces" / "tau-bench").glob("*.json")
    talk = min(json.loads(path.read_bytes()), key=lambda talk: results(talk)[:1] or [1000])
    trace = tmp_path / "one.json"
    trace.write_text(json.dumps([talk]), encoding="utf-8")
    answers = sum(message["role"] == "assistant" for message in talk["traj"][: results(talk)[0]])
    ran = siege.run(plan(strict, trace, f"max_turns = {answers + 1}", 1), within_s=110)
    check_answered(ran)
    assert len(ran.turns) == answers + 1 <= 6
    rows = sorted(ran.turns, key=lambda row: row.turn)
    prompts = [row.prompt_tokens or 0 for row in rows]
    assert prompts == sorted(set(prompts)) and prompts[0] > 1000, "a policy of 6 kB, and a history that grows"
    assert all((row.cached_tokens or 0) > 1000 for row in rows[1:]), "which is in the cache then"


def results(talk: dict[str, Any]) -> list[int]:
    """Where the results of tools stand."""
    return [place for place, message in enumerate(talk["traj"]) if message["role"] == "tool"]


def test_live_histories_with_tools(strict: engines.Engine, siege: Siege) -> None:
    """The small model calls nothing by itself: the recorded call stands before its result, and all else is its own."""
    ran = siege.run(plan(strict, EXAMPLES / "tau-bench.json", 'history = "live"', 2))
    check_answered(ran)
    assert len(ran.turns) == 5
    (last,) = (row for row in ran.turns if row.turn == 2)
    before = {row.turn: row for row in ran.turns if row.session_id == last.session_id}
    assert (last.prompt_tokens or 0) > (before[1].prompt_tokens or 0) + (before[1].output_tokens or 0)


# ------------------------------------------------------------------------------------------------- subagents and delays


def test_a_weka_session_with_subagents_keeps_its_delays_and_branches(strict: engines.Engine, siege: Siege) -> None:
    more = 'length_scale = 3.0\ndelay_scale = 0.05\ndelay_cap = "200ms"'
    ran = siege.run(plan(strict, EXAMPLES / "weka.json", more, 1))
    check_answered(ran)
    session = open_trace("weka.json", base=EXAMPLES, length_scale=3.0).session(0)
    assert [(branch.after, branch.joined_by) for branch in session.branches] == [(0, 2), (3, 4), (2, None)]
    rows = check_delays(ran.turns, session, 0.05, 200)
    assert overlap(rows, 1, 3) or overlap(rows, 1, 4), "the subagent runs beside its parent"
    assert min(rows[2].due_ns, rows[2].sent_ns or 0) >= (rows[4].closed_ns or 0), "which waits for its end"
    errors = [abs((row.prompt_tokens or 0) - (row.asked_prompt_tokens or 0)) for row in ran.turns]
    assert statistics.median(errors) <= 25, errors


def test_a_real_weka_session(strict: engines.Engine, siege: Siege, shared: Path, tmp_path: Path) -> None:
    """Two turns of the main line, the subagent that joins, and two that go on beside; four requests of each.

    A hundredth of its length: blocks of 64 tokens would hold less than one, so 19 of them become one.
    """
    document = json.loads((shared / "traces" / "weka" / "trace_0277.json").read_bytes())
    for request in document["requests"]:
        if request["type"] == "subagent":
            request["requests"] = request["requests"][:4]
    path = tmp_path / "short.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    more = 'length_scale = 0.01\nmax_turns = 2\ndelay_scale = 0.01\ndelay_cap = "200ms"'
    ran = siege.run(plan(strict, path, more, 1), within_s=110)
    check_answered(ran)
    session = cut_session(open_trace(str(path), length_scale=0.01).session(0), 2)
    found = [(branch.after, branch.joined_by, len(branch.turns)) for branch in session.branches]
    assert found == [(0, 1, 4), (0, None, 4), (0, None, 4)]
    rows = check_delays(ran.turns, session, 0.01, 200)
    subagents = [range(2, 6), range(6, 10), range(10, 14)]
    for mine, others in itertools.combinations(subagents, 2):
        assert any(overlap(rows, one, other) for one in mine for other in others), (mine, others)
    assert (rows[1].sent_ns or 0) >= (rows[5].closed_ns or 0)
    prompt = sum(row.prompt_tokens or 0 for row in ran.turns)
    assert prompt == pytest.approx(sum(row.asked_prompt_tokens or 0 for row in ran.turns), rel=0.1)
    assert sum(row.cached_tokens or 0 for row in ran.turns) > 0.5 * prompt, "most of it is history"


def overlap(rows: dict[int, TurnRecord], one: int, other: int) -> bool:
    """Whether two turns were out at once."""
    first, second = rows[one], rows[other]
    return max(first.sent_ns or 0, second.sent_ns or 0) < min(first.closed_ns or 0, second.closed_ns or 0)
