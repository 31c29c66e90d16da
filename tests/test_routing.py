"""Routing: which channel and replica a turn goes to, what is tried again, what a session carries. Without sockets."""

from __future__ import annotations

import socket
import string
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_turns import facts, streamed, turn
from swarm_rows import RUN_ID, STEADY, run_in, session

from infersiege.channels.affinity import MOST_COOKIES, Kept
from infersiege.channels.answer import Answer
from infersiege.channels.routing import (
    FEWEST_TTFTS,
    LONGEST_BACK_OFF_NS,
    LONGEST_RETRY_AFTER_NS,
    ByScenario,
    Choice,
    Failover,
    Overflow,
    RecentTtft,
    RouteReason,
    Weighted,
    back_off_ns,
    fails_over,
    is_refused,
    jitter_of,
)
from infersiege.errors import PlanError, UsageError
from infersiege.metrics.summary import summarise
from infersiege.plan.hybrid_schema import Hybrid, Part
from infersiege.plan.load import load_plan, plan_from_json, plan_json
from infersiege.plan.schema import Channel, Load, Plan, Run, Stop, Workload
from infersiege.records import ErrorClass, Hello, Outcome, Plays, TurnRecord
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import ChannelLabels, Ledger, workload_key
from infersiege.swarm.losses import LossAccount
from infersiege.swarm.player import Tries
from infersiege.swarm.routes import Routes, cache_key_of, route_of, way_of
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.versions import boot_id
from infersiege.traces.play.conversation import PreparedTurn
from infersiege.wire.exchange import Request
from infersiege.wire.framing import Framing, request_bytes

MS, SECOND = 1_000_000, 1_000_000_000
FULL, SLOW, FIRST, KEPT, FAILED = (
    RouteReason.FULL,
    RouteReason.SLOW,
    RouteReason.FIRST,
    RouteReason.KEPT,
    RouteReason.FAILED,
)


# ---------------------------------------------------------------------------------------------------- weighted

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=2, max_size=5)


@given(WEIGHTS, st.integers(0, 2**63 - 1), st.integers(0, 10_000), st.integers(1, 1500))
def test_weights_are_kept_in_every_stretch_of_sessions(weights: list[float], seed: int, first: int, count: int) -> None:
    policy = Weighted(weights, seed, "both")
    served = Counter(policy.home(number, "s").part for number in range(first, first + count))
    for part, weight in enumerate(weights):
        # The golden ratio's discrepancy is below 0.3 ln n + 2 points at each end of an interval.
        assert abs(served[part] - count * weight / sum(weights)) <= 8, (part, served)


def test_weights_do_not_follow_the_replicas_turns() -> None:
    """Session numbers pick replicas too: with equal weights and two replicas, every pair must come up."""
    policy = Weighted([1, 1], 7)
    pairs = Counter((policy.home(number, "s").part, number % 2) for number in range(400))
    assert all(90 <= pairs[part, replica] <= 110 for part in (0, 1) for replica in (0, 1)), pairs


def test_weights_are_dealt_anew_by_another_seed_and_another_name() -> None:
    def dealt(seed: int, name: str) -> list[int]:
        return [Weighted([1, 2], seed, name).home(number, "s").part for number in range(50)]

    assert dealt(1, "a") == dealt(1, "a")
    assert dealt(1, "a") != dealt(2, "a")
    assert dealt(1, "a") != dealt(1, "b")


# ---------------------------------------------------------------------------------------------------- scenario


@pytest.mark.parametrize(
    ("scenarios", "scenario", "part", "why"),
    [
        ((("qa",), ("agent",)), "agent", 1, "named"),
        ((("qa",), ()), "agent", 1, "the part without any takes the others"),
        (((), ("agent",)), "agent", 1, "a name goes before the rest"),
        (((), ("agent",)), "qa", 0, "the rest may be the first part"),
    ],
)
def test_scenarios_have_their_part(scenarios: tuple[tuple[str, ...], ...], scenario: str, part: int, why: str) -> None:
    assert ByScenario(scenarios).home(0, scenario) == Choice(part, RouteReason.SCENARIO), why


# ---------------------------------------------------------------------------------------------------- overflow


class Says:
    """A load that says for each part whether it is full or slow."""

    def __init__(self, full: str = "", slow: str = "") -> None:
        self._full, self._slow = full, slow

    def is_full(self, part: int) -> bool:
        return str(part) in self._full

    def is_slow(self, part: int) -> bool:
        return str(part) in self._slow


@pytest.mark.parametrize(
    ("served", "load", "choice", "why"),
    [
        (None, Says(), Choice(0, FIRST), "nothing speaks against the first"),
        (None, Says(full="0"), Choice(1, FULL), "the first is full"),
        (None, Says(slow="0"), Choice(1, SLOW), "the first is slow"),
        (None, Says(full="0", slow="1"), Choice(2, SLOW), "the reason is that of the part before"),
        (None, Says(full="012"), Choice(2, FULL), "the last part takes what is left, whatever it has"),
        (0, Says(), Choice(0, KEPT), "a session stays"),
        (0, Says(full="0"), Choice(1, FULL), "and is moved when its part is full"),
        (1, Says(), Choice(1, KEPT), "it does not come back: its history is here"),
        (1, Says(full="0"), Choice(1, KEPT), "what the first part has to do is not its matter any more"),
        (1, Says(full="1"), Choice(2, FULL), "on to the next"),
    ],
)
def test_overflow(served: int | None, load: Says, choice: Choice, why: str) -> None:
    policy = Overflow(3)
    assert policy.next(policy.home(0, "s"), served, load) == choice, why
    assert policy.after_failure([choice.part]) is None


@pytest.mark.parametrize(
    ("seen_ms", "open_ms", "above", "why"),
    [
        ([], [], False, "nothing seen"),
        ([900] * (FEWEST_TTFTS - 1), [], False, "too few to say anything"),
        ([900] * FEWEST_TTFTS, [], True, "all above"),
        ([100] * FEWEST_TTFTS, [], False, "all below"),
        ([100] * 19 + [900], [], False, "1 of 20 is 5 %: the p95 is the 19th"),
        ([100] * 19 + [900] * 2, [], True, "2 of 21 are more"),
        ([500] * FEWEST_TTFTS, [], False, "at the limit is not above it"),
        ([100] * 4, [(600, None)], True, "one that waits for longer than the limit"),
        ([100] * 4, [(400, None)], False, "one that waits for less is not known yet, and no fifth value"),
        ([], [(700, 100)] * FEWEST_TTFTS, True, "first tokens of turns that are still open count"),
        ([], [(600, None)] * FEWEST_TTFTS, True, "a channel that has stopped answering"),
    ],
)
def test_recent_ttft(seen_ms: list[int], open_ms: list[tuple[int, int | None]], above: bool, why: str) -> None:
    """`open_ms`: (started so long ago, first token so long ago). The limit is 500 ms."""
    now_ns = 100 * SECOND
    recent = RecentTtft()
    for ttft in seen_ms:
        recent.add(now_ns - SECOND, ttft * MS)
    turns = [(now_ns - start * MS, None if first is None else now_ns - first * MS) for start, first in open_ms]
    found = recent.is_above(500 * MS, window_ns=10 * SECOND, now_ns=now_ns, open_turns=turns)
    assert found is above, why


def test_a_channel_that_gets_no_turns_is_tried_again_after_the_window() -> None:
    recent = RecentTtft()
    for at in range(10):
        recent.add(at * SECOND, 900 * MS)
    assert recent.is_above(500 * MS, window_ns=10 * SECOND, now_ns=10 * SECOND)
    assert not recent.is_above(500 * MS, window_ns=10 * SECOND, now_ns=30 * SECOND)


# ---------------------------------------------------------------------------------------------------- failover


def test_failover_begins_with_the_first_and_a_session_stays_where_it_was_served() -> None:
    policy = Failover(3)
    home = policy.home(5, "s")
    assert policy.next(home, None, Says()) == Choice(0, FIRST)
    assert policy.next(home, 2, Says()) == Choice(2, KEPT)


@given(st.integers(2, 6), st.data())
def test_failover_tries_each_part_once_in_order(parts: int, data: st.DataObject) -> None:
    policy, start = Failover(parts), data.draw(st.integers(0, parts - 1))
    tried = [start]
    while (choice := policy.after_failure(tried)) is not None:
        assert choice.reason is FAILED
        tried.append(choice.part)
    assert tried == [(start + step) % parts for step in range(parts)]


@pytest.mark.parametrize(
    ("error_class", "over", "why"),
    [
        (ErrorClass.CONNECT, True, "not there"),
        (ErrorClass.AUTH, True, "refuses this key, another channel has its own"),
        (ErrorClass.CONTEXT_LENGTH, True, "the other model may take more"),
        (ErrorClass.CLIENT_RESOURCE, False, "our own descriptors"),
        (ErrorClass.CLIENT_LIMIT, False, "our own limit"),
        (None, False, "no failure"),
    ],
)
def test_what_fails_over(error_class: ErrorClass | None, over: bool, why: str) -> None:
    assert fails_over(error_class) is over, why


# ---------------------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize(
    ("error_class", "status", "again", "why"),
    [
        (ErrorClass.CONNECT, None, True, "nobody listens yet"),
        (ErrorClass.TIMEOUT_CONNECT, None, True, "nobody answers the SYN"),
        (ErrorClass.RATE_LIMIT, 429, True, "told to come later"),
        (ErrorClass.OVERLOAD, 503, True, "overloaded"),
        (ErrorClass.OVERLOAD, 529, True, "Anthropic's"),
        (ErrorClass.SERVER, 502, True, "a gateway without its server"),
        (ErrorClass.SERVER, 504, True, "a gateway whose server is slow"),
        (ErrorClass.OVERLOAD, 200, True, "vLLM's full queue: an error inside a 200"),
        (ErrorClass.SERVER, 500, False, "it was worked on, and broke"),
        (ErrorClass.SERVER, None, False, "a reset: nobody knows what was worked on"),
        (ErrorClass.AUTH, 401, False, "the key stays wrong"),
        (ErrorClass.CONTEXT_LENGTH, 400, False, "the prompt stays long"),
        (ErrorClass.TLS, None, False, "the certificate stays wrong"),
        (ErrorClass.TIMEOUT_FIRST_TOKEN, 200, False, "waited long enough"),
        (ErrorClass.TRUNCATED, 200, False, "a cut is no refusal"),
    ],
)
def test_what_is_sent_again(error_class: ErrorClass, status: int | None, again: bool, why: str) -> None:
    assert is_refused(error_class, status) is again, why


@given(st.integers(1, 50), st.one_of(st.none(), st.integers(-5, 10**15)), st.floats(0, 1, exclude_max=True))
def test_back_off_is_what_was_asked_or_grows_within_bounds(retry: int, asked: int | None, jitter: float) -> None:
    wait_ns = back_off_ns(retry, asked, jitter)
    if asked is not None:
        assert wait_ns == min(max(asked, 0), LONGEST_RETRY_AFTER_NS)
    else:
        assert 100 * MS <= wait_ns <= LONGEST_BACK_OFF_NS
        assert wait_ns <= back_off_ns(retry + 1, None, jitter)


@given(st.integers(0, 2**63 - 1), st.text(max_size=40), st.integers(1, 20))
def test_jitter_is_the_seeds(seed: int, request_id: str, retry: int) -> None:
    assert 0 <= jitter_of(seed, request_id, retry) < 1
    assert jitter_of(seed, request_id, retry) == jitter_of(seed, request_id, retry)


def test_jitter_spreads_what_was_refused_together() -> None:
    jitters = [jitter_of(1, f"run.s{number}.0", 1) for number in range(1000)]
    tenths = Counter(int(jitter * 10) for jitter in jitters)
    assert len(tenths) == 10 and min(tenths.values()) > 50, tenths


def test_cl_03_a_turns_record_counts_every_attempt_and_keeps_the_first_start() -> None:
    refused = turn(
        attempt_ns=100, attempts=2, outcome=Outcome.FAILED, error_class=ErrorClass.OVERLOAD, http_status=503, bytes_in=9
    )
    served = turn(attempt_ns=900, sent_ns=950, attempts=1, bytes_in=400, flags=("no_done",))
    tries = Tries()
    assert tries.record() is None
    tries.add(refused)
    assert tries.record() is refused
    tries.retried = True
    tries.add(served)
    record = tries.record()
    assert record is not None
    assert (record.attempts, record.attempt_ns, record.sent_ns, record.bytes_in) == (3, 100, 950, 400)
    assert (record.outcome, record.error_class) == (Outcome.OK, None)
    assert record.flags == ("no_done", "retried", "after_overload")


# ---------------------------------------------------------------------------------------------------- affinity

COOKIES = [
    (["a=1"], "a=1", "plain"),
    (["a=1; Path=/", "b=2; HttpOnly; SameSite=Lax"], "a=1; b=2", "several, each in a header of its own"),
    (["a=1", "a=2"], "a=2", "the last one of a name"),
    (["a=1; Domain=.example.com"], "a=1", "a Domain changes nothing: it goes to its own server"),
    (["a=1; Secure"], None, "Secure over plain HTTP"),
    (["a=1; Path=/v1"], "a=1", "our path is below it"),
    (["a=1; Path=/v1/"], "a=1", "with or without the slash"),
    (["a=1; Path=/v1/chat/completions"], "a=1", "or is it"),
    (["a=1; Path=/v"], None, "a prefix of letters is no path above"),
    (["a=1; Path=/admin"], None, "another path"),
    (["a=1", "a=; Max-Age=0"], None, "taken back"),
    (["a=1", "a=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], None, "taken back by a date"),
    (["a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60"], "a=1", "Max-Age goes before Expires"),
    (["a=1; Expires=Thu, 01 Jan 2170 00:00:00 GMT"], "a=1", "lives longer than the session"),
    (["a=1; Expires=nonsense; Max-Age=soon"], "a=1", "what can't be read is left out"),
    (['a="quoted"'], 'a="quoted"', "quotes are part of the value"),
    (["=1", "nothing", "a b=1", "c=1 2", "d=\x00", "é=1", "e=ü"], None, "no cookies"),
    (["a=" + "x" * 5000], None, "longer than any browser keeps"),
]


@pytest.mark.parametrize(("lines", "sent", "why"), COOKIES, ids=[why for *_, why in COOKIES])
def test_cookies(lines: list[str], sent: str | None, why: str) -> None:
    kept = Kept(secure=False, path="/v1/chat/completions")
    kept.take({"set-cookie": "\n".join(lines)}, 1_800_000_000.0)
    assert dict(kept.request_headers()).get("cookie") == sent, why


def test_a_secure_cookie_goes_back_over_https() -> None:
    kept = Kept(secure=True, path="/v1/messages")
    kept.take({"set-cookie": "a=1; Secure"}, 0.0)
    assert kept.request_headers() == (("cookie", "a=1"),)


def test_cookies_are_bounded_and_not_shown() -> None:
    kept = Kept(secure=False, path="/")
    kept.take({"set-cookie": "\n".join(f"c{number}=secret" for number in range(1000))}, 0.0)
    assert dict(kept.request_headers())["cookie"].count("=") == MOST_COOKIES
    assert "secret" not in repr(kept)
    assert set(kept.values) == {"secret"}


def test_chosen_headers_are_kept_and_others_are_not() -> None:
    kept = Kept(secure=False, path="/", headers=("X-Route", "x-other"))
    kept.take({"x-route": "gpu-3", "x-unasked": "1"}, 0.0)
    assert kept.request_headers() == (("x-route", "gpu-3"),)
    kept.take({}, 0.0)
    assert kept.request_headers() == (("x-route", "gpu-3"),), "kept until there is another"
    kept.take({"x-route": "gpu-4"}, 0.0)
    assert kept.request_headers() == (("x-route", "gpu-4"),)
    kept.take({"x-route": "bad\x00value", "x-other": "ü"}, 0.0)
    assert kept.request_headers() == (("x-route", "gpu-4"),), "no header of ours could carry them"


LINES = st.text(alphabet=string.printable + "äß\x00\x85\u2028", max_size=60)


@given(st.lists(LINES, max_size=8), LINES)
def test_whatever_a_server_sets_the_next_request_is_sound(lines: list[str], value: str) -> None:
    kept = Kept(secure=False, path="/v1/chat/completions", headers=("x-route",))
    kept.take({"set-cookie": "\n".join(lines), "x-route": value}, 0.0)
    request = Request(path="/v1/chat/completions", headers=kept.request_headers(), body=b"{}")
    head = request_bytes(request, "h", keep_alive=True).partition(b"\r\n\r\n")[0]
    assert head.count(b"\r\n") == 2 + len(request.headers)
    assert head.isascii()


def test_every_set_cookie_header_is_seen_and_other_headers_are_the_last() -> None:
    framing = Framing()
    framing.feed(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nx-a: 1\r\nset-cookie: b=2\r\nx-a: 2\r\ncontent-length: 0\r\n\r\n"
    )
    assert framing.headers["set-cookie"] == "a=1\nb=2"
    assert framing.headers["x-a"] == "2"
    framing.close()


# ---------------------------------------------------------------------------------------------------- ways


def channel(model: str, *urls: str, **more: Any) -> Channel:
    where: dict[str, Any] = {"base_urls": urls} if urls else {"base_url": "http://a:1/v1"}
    return Channel(engine="vllm", model=model, **where, **more)


def plan(**changes: Any) -> Plan:
    base: dict[str, Any] = {
        "run": Run(seed=7, nonce="n", stop=Stop(sessions=30)),
        "channels": {
            "local": channel("m", "http://a:1/v1", "http://b:2/v1", "http://c:3"),
            "cloud": channel("big"),
        },
        "hybrids": {
            "both": Hybrid(policy="weighted", parts=(Part(channel="local", weight=2), Part(channel="cloud"))),
        },
        "workloads": (Workload(scenario="qa", trace="builtin:short-qa", channel="both"),),
        "load": Load(mode="closed", users=4),
    }
    return Plan(**(base | changes))


def _turn() -> PreparedTurn:
    source = SessionSource(plan(), place=0, members=1)
    found = source.conversation(next(source.tickets())).next_turn()
    assert found is not None
    return found


@given(st.integers(1, 5))
def test_channel_and_replica_are_the_same_whatever_the_number_of_workers(members: int) -> None:
    asked = plan()
    whole = _dealt(asked, 1)
    assert _dealt(asked, members) == whole
    assert {replica for _, replica in whole.values()} == {"a:1", "b:2", "c:3", None}
    assert Counter(name for name, _ in whole.values()) == {"local": 20, "cloud": 10}


def _dealt(asked: Plan, members: int) -> dict[str, tuple[str, str | None]]:
    found = {}
    for place in range(members):
        source = SessionSource(asked, place=place, members=members)
        routes = Routes(asked, {}, place=place, members=members)
        for ticket in source.tickets():
            session_id, _ = source.session_id(ticket)
            way = routes.way(ticket, "run", session_id)
            leg = way.next()
            assert (leg.route.labels.name, "both") == source.channel_of(ticket)
            assert (leg.routed_by, leg.reason, leg.moved) == ("both", "weight", False)
            found[session_id] = (leg.route.labels.name, leg.route.replica)
    return found


def test_each_worker_holds_its_share_of_a_limit() -> None:
    over = Hybrid(policy="overflow", parts=(Part(channel="local", max_in_flight=5), Part(channel="cloud")))
    asked = plan(hybrids={"both": over})
    taken = []
    for place in range(3):
        routes = Routes(asked, {}, place=place, members=3)
        source = SessionSource(asked, place=place, members=3)
        way = routes.way(next(source.tickets()), "run", "s")
        count = 0
        while (leg := way.next()).reason == "first":
            leg.route.watch.begin(Answer(leg.route.dialect.decoder()), 0)
            count += 1
        assert (leg.reason, leg.route.labels.name) == ("full", "cloud")
        taken.append(count)
    assert sorted(taken) == [1, 2, 2]


def test_a_session_that_moves_says_so_and_carries_nothing_to_another_server() -> None:
    asked = plan(hybrids={"both": Hybrid(policy="failover", parts=(Part(channel="local"), Part(channel="cloud")))})
    routes = Routes(asked, {}, place=0, members=1)
    way = routes.way(next(SessionSource(asked, place=0, members=1).tickets()), "run", "s")
    first = way.next()
    way.kept(first.route).take({"set-cookie": "a=secret"}, 0.0)
    way.served = first.part
    moved = way.after_failure([first.part])
    assert moved is not None and (moved.reason, moved.moved, moved.part) == ("failed", True, 1)
    turn = _turn()
    assert ("cookie", "a=secret") in way.request(first.route, turn, "id").headers
    assert all(name != "cookie" for name, _ in way.request(moved.route, turn, "id").headers)
    assert way.after_failure([0, 1]) is None


def test_replicas_on_one_address_are_named_by_their_path() -> None:
    asked = plan(
        channels={"local": channel("m", "http://lb/a/v1", "http://lb/b/v1", "http://other/v1"), "cloud": channel("big")}
    )
    source = SessionSource(asked, place=0, members=1)
    routes = Routes(asked, {}, place=0, members=1)
    ways = [routes.way(ticket, "run", "s") for ticket in source.tickets()]
    assert {way.parts[0].replica for way in ways} == {
        "lb:80/a/v1/chat/completions",
        "lb:80/b/v1/chat/completions",
        "other:80",
    }


@pytest.mark.parametrize(("environ", "state"), [({}, "not set"), ({"KEY": " "}, "empty")])
def test_a_worker_without_the_key_sends_nothing(environ: dict[str, str], state: str) -> None:
    asked = plan(channels={"local": channel("m", api_key_env="KEY"), "cloud": channel("big")})
    with pytest.raises(UsageError, match=f"channel.local: the environment variable KEY is {state} on ") as caught:
        Routes(asked, environ, place=0, members=1)
    assert str(caught.value).endswith(socket.gethostname()), "which of the hosts"
    Routes(asked, {"KEY": "a-key"}, place=0, members=1)


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses"])
def test_the_cache_key_is_one_for_a_session(dialect: str) -> None:
    route = route_of("c", channel("m", prompt_cache_key=True, dialect=dialect), plan(), {})
    turn = _turn()
    key = cache_key_of("run", "s")
    sent = way_of(route, key).request(route, turn, "id")
    assert msgspec.json.decode(sent.body)["prompt_cache_key"] == key
    assert len(key) <= 64
    assert len({cache_key_of(run, session) for run in ("r1", "r2") for session in ("a", "b", "\ud800")}) == 6
    plain = route_of("c", channel("m", dialect=dialect), plan(), {})
    assert "prompt_cache_key" not in msgspec.json.decode(way_of(plain, key).request(plain, turn, "id").body)


# ---------------------------------------------------------------------------------------------------- plans

GOOD = """
[run]
duration = "1m"
[channel.local]
engine = "vllm"
model = "m"
base_urls = ["http://127.0.0.1:8000/v1", "http://127.0.0.1:8001"]
[channel.cloud]
engine = "generic"
base_url = "http://127.0.0.1:9000/v1"
model = "big"
[channel.both]
engine = "hybrid"
policy = "overflow"
[[channel.both.part]]
channel = "local"
max_in_flight = 3
[[channel.both.part]]
channel = "cloud"
[[workload]]
scenario = "qa"
trace = "builtin:short-qa"
channel = "both"
[load]
users = 2
"""
WEIGHTED = GOOD.replace('"overflow"', '"weighted"').replace("max_in_flight = 3\n", "")
SCENARIO = GOOD.replace('"overflow"', '"scenario"').replace("max_in_flight = 3", 'scenarios = ["qa"]')

CLOUD, MODEL = 'channel = "cloud"\n', 'model = "m"'
SLO = '[[slo]]\nmetric = "ttft"\nstat = "p50"\nmax = "1s"\n'

FAULTS = [
    (GOOD, 'channel = "cloud"', 'channel = "clod"', "there is no channel 'clod'; did you mean 'cloud'"),
    (GOOD, 'channel = "cloud"', 'channel = "both"', "'both' is hybrid itself"),
    (GOOD, 'channel = "cloud"', 'channel = "local"', "'local' is a part already"),
    (GOOD, "max_in_flight = 3\n", "", "channel.both.part.0: has no limit"),
    (GOOD, CLOUD + "[[", CLOUD + 'max_ttft = "1s"\n[[', "part.1: takes what the parts before it don't"),
    (GOOD, "max_in_flight = 3", "max_in_flight = 0", "0 is too small"),
    (GOOD, "max_in_flight = 3", 'max_ttft = "1s"\nweight = 2', "part.0.weight: means nothing to the policy overflow"),
    (GOOD, 'policy = "overflow"', "", "channel.both.policy: is missing"),
    (GOOD, 'policy = "overflow"', 'policy = "overflow"\nmodel = "m"', "channel.both.model: unknown key"),
    (GOOD, 'policy = "overflow"', 'policy = "cheapest"', "unknown value 'cheapest'"),
    (GOOD, 'policy = "overflow"', 'policy = "failover"\nwindow = "5s"', "window: means nothing to the policy failover"),
    (GOOD, '[[channel.both.part]]\nchannel = "cloud"', "", "is made of one channel or none"),
    (GOOD, 'channel = "both"', 'channel = "bot"', "there is no channel 'bot'; did you mean 'both'?"),
    (GOOD, 'channel = "both"', "", "needs a channel, since there are several: local, cloud, both"),
    (GOOD, MODEL, MODEL + '\nbase_url = "http://127.0.0.1:8000"', "base_urls: base_url is there too"),
    (GOOD, '8001"]', '8000/v1/"]', "base_urls.1: is the same server as the one before"),
    (GOOD, '"http://127.0.0.1:8001"', '"127.0.0.1:8001"', "base_urls.1: base_url 127.0.0.1:8001 has no scheme"),
    (GOOD, MODEL, MODEL + '\nretries = -1', "-1 is too small"),
    (GOOD, MODEL, MODEL + '\naffinity_headers = ["Authorization"]', "affinity_headers.0: is set by infersiege"),
    (GOOD, MODEL, MODEL + '\naffinity_headers = ["Set-Cookie"]', "cookies are kept and sent back anyway"),
    (GOOD, MODEL, MODEL + '\naffinity_headers = ["a b"]', "is no name of an HTTP header"),
    (GOOD, MODEL, MODEL + '\ndialect = "openai-completions"\nprompt_cache_key = true', "has no field for it"),
    (GOOD, "max_in_flight = 3", 'max_ttft = "1s"', None),
    (GOOD.replace(MODEL, MODEL + "\nstream = false"), "max_in_flight = 3", 'max_ttft = "1s"', "stream = false"),
    (GOOD, "[load]", SLO + 'channel = "both"\n[load]', "results are kept by the channel that served, so name one of"),
    (WEIGHTED, "", "", None),
    (WEIGHTED, 'channel = "cloud"', 'channel = "cloud"\nweight = 0', "0 is too small; it must be above 0"),
    (SCENARIO, "", "", None),
    (SCENARIO, '["qa"]', '["qaa"]', "there is no scenario on this channel: 'qaa'; did you mean 'qa'?"),
    (SCENARIO, 'channel = "cloud"\n[', 'channel = "cloud"\nscenarios = ["qa"]\n[', "'qa' goes to part 0 already"),
    (SCENARIO, 'scenarios = ["qa"]', "", "part.1: a second part without scenarios"),
    (
        SCENARIO + '[[workload]]\nscenario = "doc"\ntrace = "builtin:long-document"\nchannel = "both"\n',
        'channel = "cloud"\n[',
        'channel = "cloud"\nscenarios = ["qa"]\n[',
        "no part takes doc",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "old", "new", "fault"), FAULTS, ids=[str(fault) for *_, fault in FAULTS])
def test_plan_faults(tmp_path: Path, text: str, old: str, new: str, fault: str | None) -> None:
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1) if old else text, encoding="utf-8")
    if fault is None:
        load_plan(path, environ={})
        return
    with pytest.raises(PlanError) as caught:
        load_plan(path, environ={})
    assert any(fault in line for line in caught.value.faults), caught.value.faults


def test_hybrids_are_apart_from_channels_and_travel_in_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(GOOD, encoding="utf-8")
    loaded = load_plan(path, ["channel.both.part.0.max_in_flight=9", 'channel.both.window="3s"'], {})
    assert list(loaded.channels) == ["local", "cloud"]
    both = loaded.hybrids["both"]
    assert (both.parts[0].max_in_flight, both.window_ns) == (9, 3 * SECOND)
    assert loaded.channels["local"].addresses == ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8001")
    assert loaded.channels["local"].base_url == "http://127.0.0.1:8000/v1", "what asks one address asks the first"
    assert loaded.channels["cloud"].addresses == ("http://127.0.0.1:9000/v1",)
    assert plan_from_json(plan_json(loaded)) == loaded


def test_the_faults_of_a_hybrid_channel_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(GOOD.replace('channel = "cloud"\n[', 'channel = "clod"\n['), encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        load_plan(path, environ={})
    line = GOOD.splitlines().index('channel = "cloud"') + 1
    assert f"plan.toml:{line}: channel.both.part.1.channel: there is no channel 'clod'" in "\n".join(
        caught.value.faults
    )


# ---------------------------------------------------------------------------------------------------- results


def test_results_are_split_by_replica() -> None:
    turns = [
        streamed(number * 10, [number * 10 + (100 if number % 2 else 300)], tokens=5, replica=f"h:{number % 2}")
        for number in range(40)
    ]
    turns.append(turn(replica="h:1", outcome=Outcome.FAILED, error_class=ErrorClass.CONNECT))
    turns.append(turn(outcome=Outcome.SKIPPED))
    summary = summarise(turns, facts())
    whole = summary.groups[0]
    assert (whole.counts.planned, whole.counts.ok, whole.counts.failed) == (42, 40, 1)
    even, odd = summary.replicas
    assert [(one.channel, one.replica) for one in (even, odd)] == [("local", "h:0"), ("local", "h:1")]
    assert (even.counts.ok, odd.counts.ok, odd.counts.failed) == (20, 20, 1)
    assert (even.distributions["ttft"].p50, odd.distributions["ttft"].p50) == (300, 100)
    assert whole.rates["finished_rate"] == pytest.approx(4.0)
    assert even.rates["finished_rate"] == odd.rates["finished_rate"] == pytest.approx(2.0)
    assert even.rates["users"] is None, "a session may see several replicas"
    assert [group.replica for group in summary.groups] == [None] * len(summary.groups)


def test_one_replica_is_no_split() -> None:
    assert summarise([streamed(0, [10], replica="h:1"), turn(outcome=Outcome.SKIPPED)], facts()).replicas == ()


def test_a_session_that_moved_is_one_user() -> None:
    """Thinking between two channels is a user's life; without it the load would look as if it were not delivered."""
    both: dict[str, Any] = {"session_id": "s", "routed_by": "both"}
    turns = [
        streamed(0, [1000], **both, channel="local"),
        streamed(9000, [10000], **both, channel="cloud", turn=1, flags=("moved",)),
    ]
    summary = summarise(turns, facts())
    assert summary.groups[0].rates["users"] == pytest.approx(1.0)
    channels = [group for group in summary.groups if group.channel is not None]
    assert [(group.channel, group.rates["users"]) for group in channels] == [("cloud", None), ("local", None)]


def test_a_dead_workers_turns_are_of_the_channel_that_had_them(tmp_path: Path) -> None:
    """The session began on one part and was sent to another; its worker died with the second turn on its way."""
    labels = {name: ChannelLabels(name=name, engine="e", dialect="d", model="m") for name in ("local", "cloud")}
    run, spool = run_in(tmp_path / "run"), Spool(tmp_path / "infersiege-spool-1-w", "w")
    ledger = Ledger(run_id=RUN_ID, worker="w", epoch=0, spool=spool, place_of=lambda _: STEADY)
    opened = session("s", 3)
    opened.channel, opened.routed_by = labels["local"], "both"
    ledger.take(opened)
    assert ledger.plays == {workload_key("talk", "both"): Plays(taken=1)}
    opened.channel = labels["cloud"]
    ledger.start(opened, "id", 1)
    spool.close(remove=False)
    hello = Hello(worker="w", host="h", pid=1, boot_id=boot_id(), versions={}, spool_dir=str(spool.directory))
    state = WorkerState("node", hello, 0, last_seen_ns=0, lost_at_ns=1)
    (loss,) = LossAccount(Intake(run), run_id=RUN_ID, channels=labels).settle([state], [])
    assert loss.plays == {workload_key("talk", "both"): Plays(taken=1, sent=1)}
    rows = [(row.turn, row.outcome, row.channel, row.routed_by) for row in run.read_turns()]
    assert rows == [
        (0, Outcome.LOST, "cloud", "both"),
        (1, Outcome.SKIPPED, "cloud", "both"),
        (2, Outcome.SKIPPED, "cloud", "both"),
    ]
    run.close()


def test_rows_of_old_runs_are_read() -> None:
    row = msgspec.to_builtins(turn())
    for name in ("routed_by", "route_reason"):
        del row[name]
    old = msgspec.convert(row, TurnRecord)
    assert (old.routed_by, old.route_reason) == (None, None)
