"""Where turns go: the routes of a plan's channels and their replicas, and the way of one session among them."""

from __future__ import annotations

import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infersiege.channels import DIALECTS
from infersiege.channels.affinity import Kept
from infersiege.channels.answer import Answer
from infersiege.channels.dialect import Dialect
from infersiege.channels.profiles import PROFILES, Profile, key_headers
from infersiege.channels.request import without
from infersiege.channels.routing import Choice, Policy, RecentTtft, RouteReason
from infersiege.channels.url import endpoint_url
from infersiege.errors import UsageError
from infersiege.plan.hybrid_schema import Hybrid
from infersiege.plan.schema import Channel, Plan, Sampling
from infersiege.redact import api_key
from infersiege.schedule import Ticket, users_share
from infersiege.swarm.ledger import ChannelLabels
from infersiege.swarm.source import policies, workload_channel
from infersiege.traces.play.conversation import PreparedTurn
from infersiege.wire.exchange import Deadlines, Request
from infersiege.wire.transport import Client, Endpoint

_ONLY = Choice(0, RouteReason.FIRST)


class ChannelWatch:
    """What this worker has on one channel right now, and how fast that answered lately."""

    def __init__(self) -> None:
        self._open: dict[Answer, int] = {}
        self._recent = RecentTtft()

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def begin(self, answer: Answer, now_ns: int) -> None:
        self._open[answer] = now_ns

    def end(self, answer: Answer) -> None:
        start_ns = self._open.pop(answer)
        if answer.first_token_ns is not None:
            self._recent.add(answer.first_token_ns, answer.first_token_ns - start_ns)

    def is_slow(self, limit_ns: int, window_ns: int) -> bool:
        turns = ((start_ns, answer.first_token_ns) for answer, start_ns in self._open.items())
        return self._recent.is_above(limit_ns, window_ns=window_ns, now_ns=time.monotonic_ns(), open_turns=turns)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Everything about one replica of a channel that does not change from turn to turn."""

    labels: ChannelLabels
    channel: Channel
    profile: Profile
    dialect: Dialect
    endpoint: Endpoint
    path: str
    headers: tuple[tuple[str, str], ...]
    """Without x-request-id; holds the key."""
    deadlines: Deadlines
    sampling: Mapping[str, Any]
    secrets: tuple[str, ...]
    """To be scrubbed from what the server says."""
    watch: ChannelWatch
    """Of its channel, all replicas together."""
    replica: str | None = None
    """As its records name it; None: by the address that was connected."""

    def forces_length(self, turn: PreparedTurn) -> bool:
        """Whether the engine is told to go on until the asked length is reached."""
        known = turn.plain_text and turn.asked_output_tokens is not None
        return self.channel.ignore_eos and self.profile.ignore_eos_fields is not None and known

    def request(
        self, turn: PreparedTurn, request_id: str, *, cache_key: str = "", kept: tuple[tuple[str, str], ...] = ()
    ) -> Request:
        """The POST of one turn. `kept`: headers that its server gave the session."""
        dropped = self.channel.drop_fields
        extra = {**self.dialect.request_fields(turn.extra), **self.channel.extra_body}
        fixed_length = self.profile.ignore_eos_fields
        if fixed_length and self.forces_length(turn):
            extra |= without(fixed_length(turn.max_tokens), dropped)
        if self.channel.prompt_cache_key:
            extra["prompt_cache_key"] = cache_key
        body = self.dialect.request_body(
            model=self.channel.model,
            messages=turn.messages,
            tools=turn.tools,
            max_tokens=turn.max_tokens,
            stream=self.channel.stream,
            include_usage=self.channel.include_usage and "stream_options" not in dropped,
            sampling=without(self.sampling, dropped),
            extra=extra,
        )
        given = {name for name, _ in kept}
        own = self.headers if not given else tuple(pair for pair in self.headers if pair[0] not in given)
        return Request(path=self.path, headers=(*own, *kept, ("x-request-id", request_id)), body=body)


@dataclass(frozen=True, slots=True)
class Leg:
    """Where one attempt of a turn goes, and what its record says about that."""

    route: Route
    part: int
    routed_by: str | None
    reason: str | None
    moved: bool
    """The session's last turn was served by another channel."""


@dataclass(slots=True)
class Way:
    """The way of one session: which route each turn takes, and what servers gave the session to carry."""

    parts: Sequence[Route]
    """One of each part of a hybrid channel; of any other channel its own."""
    home: Choice
    policy: Policy | None = None
    load: PartsLoad | None = None
    routed_by: str | None = None
    cache_key: str = ""
    served: int | None = None
    """The part that served the last turn."""
    _kept: dict[tuple[str, str, str, int], Kept] = field(default_factory=dict)

    @property
    def likely(self) -> Route:
        """Where the next turn goes unless something speaks against it."""
        return self.parts[self.home.part if self.served is None else self.served]

    def next(self) -> Leg:
        """Where the next turn goes. To be asked when it is sent, without a yield between."""
        if self.policy is None or self.load is None:
            return self._leg(self.home)
        return self._leg(self.policy.next(self.home, self.served, self.load))

    def after_failure(self, tried: Sequence[int]) -> Leg | None:
        """Where a turn goes that failed on these parts before its first token; None: nowhere."""
        choice = None if self.policy is None else self.policy.after_failure(tried)
        return None if choice is None else self._leg(choice)

    def _leg(self, choice: Choice) -> Leg:
        moved = self.served is not None and choice.part != self.served
        reason = None if self.routed_by is None else choice.reason.value
        return Leg(self.parts[choice.part], choice.part, self.routed_by, reason, moved)

    def kept(self, route: Route) -> Kept:
        """What this route's server gave the session on this channel."""
        endpoint = route.endpoint
        # By channel too: two accounts at one gateway have nothing to do with each other.
        server = (route.labels.name, endpoint.scheme, endpoint.host, endpoint.port)
        found = self._kept.get(server)
        if found is None:
            names = route.channel.affinity_headers
            found = self._kept[server] = Kept(secure=endpoint.scheme == "https", path=route.path, headers=names)
        return found

    def request(self, route: Route, turn: PreparedTurn, request_id: str) -> Request:
        """The request of a turn on this route, with what the session carries."""
        return route.request(turn, request_id, cache_key=self.cache_key, kept=self.kept(route).request_headers())


class PartsLoad:
    """What the parts of a hybrid channel have to do right now, against their limits: this worker's share of them."""

    def __init__(self, hybrid: Hybrid, watches: Sequence[ChannelWatch], place: int, members: int) -> None:
        self._window_ns = hybrid.window_ns
        self._watches = watches
        self._most = [
            None if part.max_in_flight is None else users_share(part.max_in_flight, place, members)
            for part in hybrid.parts
        ]
        self._slowest_ns = [part.max_ttft_ns for part in hybrid.parts]

    def is_full(self, part: int) -> bool:
        most = self._most[part]
        return most is not None and self._watches[part].in_flight >= most

    def is_slow(self, part: int) -> bool:
        limit_ns = self._slowest_ns[part]
        return limit_ns is not None and self._watches[part].is_slow(limit_ns, self._window_ns)


class Routes:
    """All routes of a plan, on one worker."""

    def __init__(self, plan: Plan, environ: Mapping[str, str], *, place: int, members: int) -> None:
        """Raises UsageError for a key that can't be read, a wrong address."""
        self._plan = plan
        self._of = {name: routes_of(name, channel, plan, environ) for name, channel in plan.channels.items()}
        self._policies = policies(plan)
        self._loads = {
            name: PartsLoad(hybrid, [self._of[part.channel][0].watch for part in hybrid.parts], place, members)
            for name, hybrid in plan.hybrids.items()
        }

    def way(self, ticket: Ticket, run_id: str, session_id: str) -> Way:
        """The way of a ticket's session. Its replicas are a matter of its place in the run, whoever plays it."""
        workload = self._plan.workloads[ticket.workload]
        name = workload_channel(self._plan, workload)
        hybrid = self._plan.hybrids.get(name)
        key = cache_key_of(run_id, session_id)
        if hybrid is None:
            return way_of(self._replica(name, ticket), key)
        policy = self._policies[name]
        return Way(
            parts=[self._replica(part.channel, ticket) for part in hybrid.parts],
            home=policy.home(ticket.session_index, workload.scenario),
            policy=policy,
            load=self._loads[name],
            routed_by=name,
            cache_key=key,
        )

    def _replica(self, channel: str, ticket: Ticket) -> Route:
        routes = self._of[channel]
        return routes[ticket.index % len(routes)]


class ClientPool:
    """Keep-alive connections. A session borrows clients as a user owns them; the next user finds them warm."""

    def __init__(self, make: Callable[[Route], Client]) -> None:
        self._make = make
        self._idle: dict[Route, list[Client]] = {}

    def take(self, route: Route) -> Client:
        idle = self._idle.get(route)
        return idle.pop() if idle else self._make(route)

    def give(self, route: Route, client: Client) -> None:
        self._idle.setdefault(route, []).append(client)


class Clients:
    """The clients of one user, one for each route that it takes."""

    def __init__(self, make: Callable[[Route], Client]) -> None:
        self._make = make
        self._mine: dict[Route, Client] = {}

    def of(self, route: Route) -> Client:
        found = self._mine.get(route)
        if found is None:
            found = self._mine[route] = self._make(route)
        return found

    def give_to(self, pool: ClientPool) -> None:
        """To the next user. Never yields."""
        while self._mine:
            pool.give(*self._mine.popitem())

    def close(self) -> None:
        """Never yields."""
        while self._mine:
            self._mine.popitem()[1].close()


def way_of(route: Route, cache_key: str) -> Way:
    """The way of a session on a channel that is not hybrid."""
    return Way(parts=[route], home=_ONLY, cache_key=cache_key)


def cache_key_of(run_id: str, session_id: str) -> str:
    """`prompt_cache_key` of a session: 32 hex digits, within OpenAI's limit of 64 characters."""
    text = f"{run_id}\0{session_id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def routes_of(name: str, channel: Channel, plan: Plan, environ: Mapping[str, str]) -> tuple[Route, ...]:
    """A channel's routes, one for each replica, which share what is watched. Raises UsageError as `route_of` does."""
    watch = ChannelWatch()
    routes = [route_of(name, channel, plan, environ, base_url=url, watch=watch) for url in channel.addresses]
    if not channel.base_urls:
        return tuple(routes)
    hosts = [f"{route.endpoint.host}:{route.endpoint.port}" for route in routes]
    shared = Counter(hosts)
    replicas = (host if shared[host] == 1 else host + route.path for host, route in zip(hosts, routes, strict=True))
    return tuple(replace(route, replica=replica) for route, replica in zip(routes, replicas, strict=True))


def route_of(
    name: str,
    channel: Channel,
    plan: Plan,
    environ: Mapping[str, str],
    *,
    base_url: str | None = None,
    watch: ChannelWatch | None = None,
) -> Route:
    """Everything that is fixed about one server of a channel, which is `base_url` unless one of several is named.

    Raises UsageError for a key that is not there or can't be read, a wrong address.
    """
    profile = PROFILES[channel.engine]
    dialect_name = channel.dialect or profile.default_dialect
    dialect = DIALECTS[dialect_name]
    url = endpoint_url(base_url or channel.base_url or "", dialect.path)
    endpoint = Endpoint.from_url(url, ca=channel.ca, insecure=channel.insecure, proxy=channel.proxy)
    key = api_key(channel, environ)
    if key is None and channel.api_key_env is not None:
        # The master looked into its own environment only, and a load without its key would measure refusals.
        state = "empty" if channel.api_key_env in environ else "not set"
        raise UsageError(
            f"channel.{name}: the environment variable {channel.api_key_env} is {state} on {socket.gethostname()}",
            hint="export it with the key on every host that sends load",
        )
    headers = {
        "user-agent": "infersiege",
        "accept": "text/event-stream" if channel.stream else "application/json",
        "content-type": "application/json",
        **dialect.headers,
        **{header.lower(): value for header, value in channel.headers.items()},
    }
    if key is not None:
        headers |= key_headers(profile, dialect, key)
    path = "/" + url.split("://", 1)[1].partition("/")[2]
    return Route(
        labels=ChannelLabels(name=name, engine=channel.engine, dialect=dialect_name, model=channel.model),
        channel=channel,
        profile=profile,
        dialect=dialect,
        endpoint=endpoint,
        path=path,
        headers=tuple(headers.items()),
        deadlines=deadlines_of(channel),
        sampling=sampling_fields(plan.sampling),
        secrets=(key,) if key else (),
        watch=watch or ChannelWatch(),
    )


def deadlines_of(channel: Channel) -> Deadlines:
    limits = channel.timeouts
    return Deadlines(
        connect_ns=limits.connect_ns,
        # A whole answer has no first token to wait for.
        first_token_ns=limits.first_token_ns if channel.stream else limits.total_ns,
        idle_ns=limits.idle_ns,
        total_ns=limits.total_ns,
    )


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """What every request says about sampling; unset is left out."""
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
