"""Routing in whole runs, on real servers: replicas, hybrid channels, retries, and what a session carries."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
from loopback_http import LoopbackHttp
from siege import SLACK_S, START_S, Ran, Siege, check_conserved, check_passed

from infersiege.emulator.process import EmulatorProcess
from infersiege.metrics.turn import ttft, ttft_from_due
from infersiege.records import ErrorClass, Outcome, Reason, TurnRecord

pytestmark = [pytest.mark.slow, pytest.mark.alone]

MS, SECOND = 1_000_000, 1_000_000_000
FAST = ("--output-tokens", "4", "--step-base-ms", "10", "--step-per-sequence-ms", "0")


def talks(path: Path, sessions: int, turns: int = 3) -> str:
    """A trace of short sessions with several turns; wrapped, it does not end."""
    rows = []
    for number in range(sessions):
        said = [{"role": role, "content": f"{role} {number}.{turn}"} for turn in range(turns) for role in ROLES]
        rows.append(json.dumps({"session_id": f"s{number}", "messages": said}))
    path.write_text("\n".join(rows), encoding="utf-8")
    return str(path)


ROLES = ("user", "assistant")


def workload(scenario: str, trace: str, channel: str) -> str:
    return f'[[workload]]\nscenario = "{scenario}"\ntrace = "{trace}"\nwrap = true\nchannel = "{channel}"\n'


def by_session(turns: list[TurnRecord]) -> dict[str, list[TurnRecord]]:
    """Those that were sent, in order."""
    found: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.turn):
        if turn.attempts:
            found[turn.session_id].append(turn)
    return found


def most_at_a_time(turns: list[TurnRecord]) -> int:
    ends = [(turn.closed_ns, -1) for turn in turns if turn.sent_ns is not None and turn.closed_ns is not None]
    starts = [(turn.sent_ns, 1) for turn in turns if turn.sent_ns is not None and turn.closed_ns is not None]
    count = most = 0
    for _, step in sorted([*starts, *ends]):
        count += step
        most = max(most, count)
    return most


def failed(ran: Ran) -> list[TurnRecord]:
    return [turn for turn in ran.turns if turn.outcome is Outcome.FAILED]


MIXED = """
[run]
duration = "2500ms"
seed = 5
[channel.pair]
engine = "vllm"
base_urls = ["{a}", "{b}"]
model = "emulated-model"
[channel.cloud]
engine = "generic"
base_url = "{b}"
model = "emulated-model"
dialect = "anthropic-messages"
[channel.limited]
engine = "vllm"
base_url = "{limited}"
model = "emulated-model"
[channel.shaky]
engine = "vllm"
base_url = "{shaky}"
model = "emulated-model"
[channel.split]
engine = "hybrid"
policy = "weighted"
part = [{{channel = "pair", weight = 3}}, {{channel = "cloud"}}]
[channel.by]
engine = "hybrid"
policy = "scenario"
part = [{{channel = "pair"}}, {{channel = "cloud", scenarios = ["by-name"]}}]
[channel.over]
engine = "hybrid"
policy = "overflow"
part = [{{channel = "limited", max_in_flight = 2}}, {{channel = "pair"}}]
[channel.safe]
engine = "hybrid"
policy = "failover"
part = [{{channel = "shaky"}}, {{channel = "cloud"}}]
{workloads}
[load]
mode = "closed"
users = 12
ramp = "100ms"
drain = "3s"
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One run of every policy on two workers: 12 users, four workloads, four servers of which two are in trouble."""
    folder = tmp_path_factory.mktemp("mixed")
    trace = talks(folder / "talks.jsonl", 50)
    named = {"weighted": "split", "by-name": "by", "by-rest": "by", "overflow": "over", "failover": "safe"}
    slow = ("--output-tokens", "20", "--step-base-ms", "10", "--max-num-seqs", "2")
    shaky = (*FAST, "--fault", "reset_after=0", "--fault-every", "2")
    with (
        EmulatorProcess(*FAST) as a,
        EmulatorProcess(*FAST) as b,
        EmulatorProcess(*slow) as limited,
        EmulatorProcess(*shaky) as unsteady,
    ):
        text = MIXED.format(
            a=a.base_url,
            b=b.base_url,
            limited=limited.base_url,
            shaky=unsteady.base_url,
            workloads="".join(workload(name, trace, channel) for name, channel in named.items()),
        )
        yield Siege(folder).run(text, "--workers", "2")


def of(ran: Ran, scenario: str) -> list[TurnRecord]:
    found = [turn for turn in ran.turns if turn.scenario == scenario]
    assert sum(turn.attempts > 0 for turn in found) >= 30, f"too few turns of {scenario} to say anything"
    return found


def test_a_run_of_every_policy_is_conserved(mixed: Ran) -> None:
    check_passed(mixed)
    check_conserved(mixed)
    late = [turn for turn in failed(mixed) if turn.phase != "drain"]
    assert late == [], "what failed on one part was served by another, unless the load was over by then"
    for turn in mixed.turns:
        assert turn.routed_by in ("split", "by", "over", "safe")
        assert (turn.route_reason is None) == (turn.attempts == 0), "a turn that was not sent went nowhere"
        assert turn.channel in ("pair", "cloud", "limited", "shaky"), "a record names a real channel"
    accounts = {one.scenario: one.sessions_started for one in mixed.summary.traces}
    sessions = {(turn.scenario, turn.session_id) for turn in mixed.turns}
    assert accounts == Counter(scenario for scenario, _ in sessions)


def test_replicas_take_sessions_in_turn_and_keep_them(mixed: Ran) -> None:
    pair = [turn for turn in mixed.turns if turn.channel == "pair" and turn.scenario == "by-rest" and turn.attempts]
    by = by_session(pair)
    assert all(len({turn.replica for turn in turns}) == 1 for turns in by.values())
    counts = Counter(turns[0].replica for turns in by.values())
    assert len(counts) == 2 and min(counts.values()) >= 0.7 * max(counts.values()), counts
    split = {(one.channel, one.replica): one for one in mixed.summary.replicas}
    assert {channel for channel, _ in split} == {"pair"}
    assert {replica for _, replica in split} == set(counts)
    for (_, replica), group in split.items():
        steady = [turn for turn in mixed.turns if turn.replica == replica and turn.channel == "pair"]
        assert group.counts.ok == sum(turn.outcome is Outcome.OK and turn.phase == "steady" for turn in steady)


def test_weights_are_kept_and_sessions_stay(mixed: Ran) -> None:
    turns = of(mixed, "weighted")
    by = by_session(turns)
    counts = Counter(session[0].channel for session in by.values())
    assert abs(counts["pair"] - 0.75 * len(by)) <= 8, counts
    assert all(len({turn.channel for turn in session}) == 1 for session in by.values())
    assert {turn.route_reason for turn in turns if turn.attempts} == {"weight"}
    assert {turn.dialect for turn in turns if turn.channel == "cloud"} == {"anthropic-messages"}


@pytest.mark.parametrize(("scenario", "channel"), [("by-name", "cloud"), ("by-rest", "pair")])
def test_each_scenario_has_its_channel(mixed: Ran, scenario: str, channel: str) -> None:
    assert {(turn.channel, turn.route_reason) for turn in of(mixed, scenario) if turn.attempts} == {
        (channel, "scenario")
    }


def test_overflow_keeps_to_the_limit_over_all_workers(mixed: Ran) -> None:
    turns = [turn for turn in of(mixed, "overflow") if turn.attempts]
    local = [turn for turn in turns if turn.channel == "limited"]
    assert 1 <= most_at_a_time(local) <= 2
    assert Counter(turn.route_reason for turn in turns).keys() <= {"first", "kept", "full"}
    assert {turn.worker for turn in local} == {"worker-1", "worker-2"}, "each has its share of the limit"
    full = [turn for turn in turns if turn.route_reason == "full"]
    assert full and all(turn.channel == "pair" for turn in full)
    for session in by_session(turns).values():
        for before, turn in zip([None, *session], session, strict=False):
            moved = before is not None and before.channel != turn.channel
            assert ("moved" in turn.flags) is moved
            assert not (moved and turn.channel == "limited"), "a session does not come back"
            assert (turn.route_reason == "kept") is (before is not None and not moved)


def test_failover_serves_what_failed_before_its_first_token(mixed: Ran) -> None:
    turns = [turn for turn in of(mixed, "failover") if turn.attempts]
    over = [turn for turn in turns if "failed_over" in turn.flags]
    assert over
    for turn in over:
        assert (turn.channel, turn.route_reason, turn.outcome) == ("cloud", "failed", Outcome.OK)
        assert turn.attempts >= 2
        assert "after_truncated" in turn.flags, "the first channel's error class"
        assert ("moved" in turn.flags) is (turn.turn > 0)
        assert turn.attempt_ns is not None and turn.sent_ns is not None and turn.sent_ns > turn.attempt_ns
    for session in by_session(turns).values():
        began = [turn.turn for turn in session if turn in over]
        assert len(began) <= 1
        after = [turn for turn in session if began and turn.turn > began[0]]
        assert all((turn.channel, turn.route_reason) == ("cloud", "kept") for turn in after), "it stays where it is"


# ---------------------------------------------------------------------------------------------------- overflow by TTFT


def test_overflow_leaves_a_channel_that_is_slow(siege: Siege, tmp_path: Path) -> None:
    """One sequence at a time: with 8 users its queue makes the TTFT, which passes the limit; then the cloud serves."""
    slow = ("--output-tokens", "30", "--step-base-ms", "10", "--max-num-seqs", "1")
    with EmulatorProcess(*slow) as local, EmulatorProcess(*FAST) as cloud:
        text = f"""
[run]
duration = "3s"
[channel.local]
engine = "vllm"
base_url = "{local.base_url}"
model = "emulated-model"
[channel.cloud]
engine = "generic"
base_url = "{cloud.base_url}"
model = "emulated-model"
[channel.both]
engine = "hybrid"
policy = "overflow"
part = [{{channel = "local", max_ttft = "500ms"}}, {{channel = "cloud"}}]
{workload("talk", talks(tmp_path / "talks.jsonl", 50), "both")}
[load]
users = 8
ramp = "0s"
drain = "5s"
"""
        ran = siege.run(text)
    check_passed(ran)
    check_conserved(ran)
    sent = sorted((turn for turn in ran.turns if turn.attempts), key=lambda turn: turn.attempt_ns or 0)
    assert {turn.channel for turn in sent[:8]} == {"local"}, "nothing was known to speak against it"
    slow_ones = [turn for turn in sent if turn.route_reason == "slow"]
    assert slow_ones and all(turn.channel == "cloud" for turn in slow_ones)
    assert any("moved" in turn.flags for turn in slow_ones)
    assert Counter(turn.channel for turn in sent)["cloud"] > len(sent) / 2
    channels = {group.channel: group.counts.ok for group in ran.summary.groups if group.channel}
    assert channels.keys() == {"local", "cloud"}


# ---------------------------------------------------------------------------------------------------- retries, affinity

CHUNK = {"object": "chat.completion.chunk", "id": "1", "created": 1, "model": "m"}


def events(text: str) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    parts = [
        CHUNK | {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
        CHUNK | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        CHUNK | {"choices": [], "usage": usage},
    ]
    return b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in parts) + b"data: [DONE]\n\n"


class Refusing(BaseHTTPRequestHandler):
    """Refuses each turn of a run as its path says; the preflight, whose ids have no run in them, is served."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[Counter[str]] = Counter()
    told: ClassVar[list[tuple[str, dict[str, str]]]] = []
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._whole(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        ident = self.headers.get("x-request-id", "")
        ours = ".talk" in ident or ".stuck" in ident or ".carry" in ident
        with self.lock:
            self.seen[ident] += 1
            count = self.seen[ident]
            if ours:
                self.told.append((ident, {name.lower(): value for name, value in self.headers.items()}))
        if ".talk" in ident and count <= 2:
            after = {"retry-after-ms": "300"} if count == 1 else {}
            self._whole(503, b'{"error": {"message": "busy", "type": "overloaded", "code": 503}}', after)
        elif ".stuck" in ident:
            self._whole(429, b'{"error": {"message": "slow down", "code": 429}}', {"retry-after": "30"})
        elif ".carry" in ident and ident.endswith(".2"):
            cookie = self.headers.get("cookie", "none")
            self._whole(400, json.dumps({"error": {"message": f"your cookie is {cookie}", "code": 400}}).encode())
        elif not body.get("stream"):
            answer = {"object": "chat.completion", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            ], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}, "model": "m"}  # fmt: skip
            self._whole(200, json.dumps(answer).encode())
        else:
            session = ident.rpartition(".")[0].rpartition(":")[2]
            cookies = {"set-cookie": f"lb=sticky-{session}; Path=/", "x-session": f"worker-of-{session}"}
            self._whole(200, events("hi"), {"content-type": "text/event-stream", **cookies})

    def _whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ran, Siege]]:
    """One run against a server that refuses some turns twice, some always, and gives cookies to others."""
    folder = tmp_path_factory.mktemp("refused")
    trace = talks(folder / "talks.jsonl", 6)
    server = LoopbackHttp(Refusing)
    Refusing.seen.clear()
    Refusing.told.clear()
    siege = Siege(folder)
    text = f"""
[run]
duration = "3s"
[channel.patient]
engine = "generic"
base_url = "{server.url}"
model = "m"
retries = 3
[channel.carried]
engine = "generic"
base_url = "{server.url}/v1"
model = "m"
affinity_headers = ["X-Session"]
prompt_cache_key = true
{workload("talk", trace, "patient").replace("wrap = true", "")}
{workload("stuck", trace, "patient").replace("wrap = true", "limit = 2")}
{workload("carry", trace, "carried").replace("wrap = true", "")}
[load]
users = 16
ramp = "0s"
drain = "20s"
"""
    yield siege.run(text), siege
    server.close()


def test_cl_03_retries_are_counted_and_the_time_from_due_has_them_in_it(refused: tuple[Ran, Siege]) -> None:
    """503 with Retry-After, 503 without, then 200: one record that succeeded, and shows what it took."""
    ran, _ = refused
    check_conserved(ran)
    turns = [turn for turn in ran.turns if turn.scenario == "talk" and turn.outcome is Outcome.OK]
    assert len(turns) >= 6
    for turn in turns:
        # A connection that the server had closed meanwhile is replaced once more, which counts too.
        assert Refusing.seen[turn.request_id] == 3 <= turn.attempts <= 4
        assert set(turn.flags) >= {"retried", "after_overload"}
        assert (turn.http_status, turn.error_class, turn.retry_after_ns) == (200, None, None)
        alone, felt = ttft(turn), ttft_from_due(turn)
        assert alone is not None and felt is not None
        assert felt > alone + 400 * MS, "300 ms as asked, then at least 100 ms of our own"
        assert turn.attempt_ns is not None and turn.sent_ns is not None
        assert turn.sent_ns - turn.attempt_ns > 400 * MS
    lateness = ran.summary.groups[0].distributions["lateness"]
    assert lateness.p50 is not None and lateness.p50 < 300, "waiting for a retry is not this worker's lateness"


def test_the_end_of_the_load_ends_the_waiting(refused: tuple[Ran, Siege]) -> None:
    ran, _ = refused
    assert ran.seconds < START_S + 3 + SLACK_S + 5, "neither 30 s of Retry-After nor the whole drain were waited for"
    stuck = [turn for turn in ran.turns if turn.scenario == "stuck" and turn.attempts]
    assert len(stuck) == 2
    for turn in stuck:
        assert (turn.outcome, turn.error_class, turn.attempts) == (Outcome.FAILED, ErrorClass.RATE_LIMIT, 1)
        assert turn.retry_after_ns == 30 * SECOND
        assert "retry_cut" in turn.flags and "retried" not in turn.flags
    rest = [turn for turn in ran.turns if turn.scenario == "stuck" and not turn.attempts]
    assert {turn.reason for turn in rest} <= {Reason.RUN_END, Reason.AFTER_FAILURE}


def test_a_session_carries_what_its_server_gave_it(refused: tuple[Ran, Siege]) -> None:
    sent = {ident: headers for ident, headers in Refusing.told if ".carry" in ident}
    assert len(sent) == 18, "six sessions of three turns"
    for ident, headers in sent.items():
        session, _, turn = ident.rpartition(".")
        name = session.rpartition(":")[2]
        expected = (None, None) if turn == "0" else (f"lb=sticky-{name}", f"worker-of-{name}")
        assert (headers.get("cookie"), headers.get("x-session")) == expected, ident
    other = [headers for ident, headers in Refusing.told if ".talk" in ident]
    assert all("x-session" not in headers for headers in other), "only the channel that asked for it"


def test_cl_08_what_a_session_carries_is_in_no_output(refused: tuple[Ran, Siege]) -> None:
    """The server repeats the cookie in an error: the record says that there was one, and not which."""
    ran, siege = refused
    echoed = [turn for turn in ran.turns if turn.scenario == "carry" and turn.turn == 2]
    assert len(echoed) == 6
    for turn in echoed:
        assert turn.error_class is ErrorClass.BAD_REQUEST and turn.error_detail is not None
        assert "your cookie is" in turn.error_detail and "[redacted]" in turn.error_detail
    for path in siege.folder.rglob("*"):
        if path.is_file():
            text = path.read_bytes()
            assert b"sticky-" not in text and b"worker-of-" not in text, path
