"""One client reading streamed answers, in a process of its own: what bench/peers.py starts and compares.

    python bench/peer_clients.py aiohttp '{"port": 8100, "streams": 32, "requests": 2, "tokens": 100}'

Every client does the same work per event: read it, cut it out, decode its JSON, look whether it has text, keep the time
of each text and count. JSON goes through msgspec for all, into types that hold only what is looked at: others
aren't made to pay for the parser or for dicts. Ours runs with the decoder of a real run, which does more (it collects
text, tool calls, usage and finish reason). Prints one JSON object, `Reading`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

PATH = "/v1/chat/completions"
HOST = "127.0.0.1"
START_EVERY_S = 0.002


class Load(msgspec.Struct, frozen=True):
    """What every client is asked to do."""

    port: int
    """Of the server; 0 until it runs."""
    streams: int
    """Read at the same time, each on a connection of its own."""
    requests: int
    """Of each stream, one after the other."""
    tokens: int
    """Of each request; one event each."""

    def body(self) -> dict[str, Any]:
        return {
            "model": "fake",
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": self.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def start_s(self, stream: int) -> float:
        """When it begins: one after the other, so that a thousand connections at once aren't what is measured."""
        return stream * START_EVERY_S

    def ids(self, stream: int) -> list[str]:
        """The `x-request-id` of each of its requests."""
        return [f"{stream}-{request}" for request in range(self.requests)]


class Reading(msgspec.Struct, kw_only=True):
    """What one client made of it."""

    client: str
    version: str
    events: int = 0
    """Events with text."""
    cpu_s: float = 0.0
    """User and system time of the process, from before the first request to after the last answer."""
    peak_bytes: int = 0
    """Largest resident set of the process, imports included."""
    sent_ns: dict[str, int] = {}
    """`x-request-id` -> when TTFT begins, ns of CLOCK_MONOTONIC: before the call; ours when the request was written."""
    token_ns: dict[str, list[int]] = {}
    """`x-request-id` -> when the client says that each text came, likewise."""


class Delta(msgspec.Struct, gc=False):
    content: str | None = None


class Choice(msgspec.Struct, gc=False):
    delta: Delta


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice]


decode = msgspec.json.Decoder(Chunk).decode


class Events:
    """What is done with each event's data, the same for all clients but ours (which has its own decoder)."""

    def __init__(self) -> None:
        self.count = 0
        self.sent_ns: dict[str, int] = {}
        self.token_ns: dict[str, list[int]] = {}

    def begin(self, request_id: str) -> None:
        """Right before the call that sends it."""
        self.token_ns[request_id] = []
        self.sent_ns[request_id] = time.monotonic_ns()

    def take(self, request_id: str, payload: bytes | str) -> bool:
        """True when the stream says that it is over."""
        if payload in (b"[DONE]", "[DONE]"):
            return True
        choices = decode(payload).choices
        if choices and choices[0].delta.content:
            self.token_ns[request_id].append(time.monotonic_ns())
            self.count += 1
        return False

    def give(self, reading: Reading) -> None:
        reading.events, reading.sent_ns, reading.token_ns = self.count, self.sent_ns, self.token_ns

    def lines(self, request_id: str, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(b"data: "):
                self.take(request_id, line[6:].rstrip())


def infersiege(load: Load, reading: Reading) -> None:
    """Our transport, with the sink and the decoder that a run uses."""
    import gevent

    from infersiege.channels import DIALECTS
    from infersiege.channels.answer import Answer
    from infersiege.wire.clock import StampClock
    from infersiege.wire.endpoint import Endpoint
    from infersiege.wire.exchange import Deadlines, Request
    from infersiege.wire.transport import Client, DecoderLoop

    dialect = DIALECTS["openai-chat"]
    endpoint = Endpoint("http", HOST, load.port)
    clock = StampClock()
    decoders = DecoderLoop(clock)
    body = msgspec.json.encode(load.body())
    second = 1_000_000_000
    deadlines = Deadlines(
        connect_ns=10 * second, first_token_ns=60 * second, idle_ns=60 * second, total_ns=600 * second
    )

    def stream(number: int) -> None:
        gevent.sleep(load.start_s(number))
        client = Client(endpoint, clock, decoders)
        for request_id in load.ids(number):
            headers = (("content-type", "application/json"), ("x-request-id", request_id))
            answer = Answer(dialect.decoder())
            result = client.start(Request(path=PATH, headers=headers, body=body), answer, deadlines).wait()
            reading.events += answer.chunks
            if result.sent_ns is not None:
                reading.sent_ns[request_id] = result.sent_ns
            # A chunk that shared its read with others has their time, as with every client.
            stamps, counts = answer._stamps, answer._counts
            reading.token_ns[request_id] = [at for i, at in enumerate(stamps) for _ in range(counts.get(i, 1))]
        client.close()

    gevent.joinall([gevent.spawn(stream, number) for number in range(load.streams)], raise_error=True)


def fast_http_user(load: Load, reading: Reading) -> None:
    """Locust's FastHttpUser, read with geventhttpclient's readline: its own iter_lines waits for 1,024 bytes."""
    from locust import FastHttpUser

    def read(user: Any, request_id: str, events: Events) -> None:
        headers = {"x-request-id": request_id}
        with user.client.post(PATH, json=load.body(), headers=headers, stream=True, catch_response=True) as answer:
            events.lines(request_id, iter(lambda: answer._response.readline(b"\n"), b""))
            answer.success()

    _locust_users(FastHttpUser, load, reading, read)


def http_user(load: Load, reading: Reading) -> None:
    """Locust's HttpUser (requests), read with sseclient-py: what most locustfiles for LLMs do."""
    import sseclient
    from locust import HttpUser

    def read(user: Any, request_id: str, events: Events) -> None:
        headers = {"x-request-id": request_id}
        with user.client.post(PATH, json=load.body(), headers=headers, stream=True, catch_response=True) as answer:
            for event in sseclient.SSEClient(answer).events():
                if events.take(request_id, event.data):
                    break
            answer.content  # noqa: B018 - the rest of the body, so that the connection can be used again
            answer.success()

    _locust_users(HttpUser, load, reading, read)


def _locust_users(base: Any, load: Load, reading: Reading, read: Callable[[Any, str, Events], None]) -> None:
    import gevent
    from locust.env import Environment

    events = Events()
    user_class = type("Reader", (base,), {"host": f"http://{HOST}:{load.port}"})
    environment = Environment(user_classes=[user_class])

    def stream(number: int) -> None:
        gevent.sleep(load.start_s(number))
        user = user_class(environment)
        for request_id in load.ids(number):
            events.begin(request_id)
            read(user, request_id, events)

    gevent.joinall([gevent.spawn(stream, number) for number in range(load.streams)], raise_error=True)
    events.give(reading)


def aiohttp(load: Load, reading: Reading) -> None:
    import asyncio

    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    async def run() -> None:
        events = Events()
        async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600)) as session:

            async def stream(number: int) -> None:
                await asyncio.sleep(load.start_s(number))
                for request_id in load.ids(number):
                    headers = {"x-request-id": request_id}
                    events.begin(request_id)
                    async with session.post(
                        f"http://{HOST}:{load.port}{PATH}", json=load.body(), headers=headers
                    ) as answer:
                        async for line in answer.content:
                            if line.startswith(b"data: "):
                                events.take(request_id, line[6:].rstrip())

            await asyncio.gather(*(stream(number) for number in range(load.streams)))
        events.give(reading)

    asyncio.run(run())


def httpx(load: Load, reading: Reading) -> None:
    import asyncio

    from httpx import AsyncClient, Limits

    async def lines(answer: Any, request_id: str, events: Events) -> None:
        source: AsyncIterator[str] = answer.aiter_lines()
        async for line in source:
            if line.startswith("data: "):
                events.take(request_id, line[6:])

    async def run() -> None:
        events = Events()
        async with AsyncClient(timeout=600, limits=Limits(max_connections=None), trust_env=False) as client:

            async def stream(number: int) -> None:
                await asyncio.sleep(load.start_s(number))
                for request_id in load.ids(number):
                    headers = {"x-request-id": request_id}
                    events.begin(request_id)
                    url = f"http://{HOST}:{load.port}{PATH}"
                    async with client.stream("POST", url, json=load.body(), headers=headers) as answer:
                        await lines(answer, request_id, events)

            await asyncio.gather(*(stream(number) for number in range(load.streams)))
        events.give(reading)

    asyncio.run(run())


CLIENTS: dict[str, tuple[str, Callable[[Load, Reading], None]]] = {
    "infersiege": ("infersiege", infersiege),
    "FastHttpUser": ("locust", fast_http_user),
    "HttpUser + sseclient-py": ("locust", http_user),
    "aiohttp": ("aiohttp", aiohttp),
    "httpx": ("httpx", httpx),
}
"""Name -> (distribution whose version is told, client)."""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    from importlib import metadata

    name, load = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Load)
    distribution, client = CLIENTS[name]
    if distribution == "locust":
        import locust  # noqa: F401 - patches the standard library: before anything of it is used
    # One short answer first: imports, name look-ups and lazy set-up are not what is compared.
    client(Load(port=load.port, streams=1, requests=1, tokens=2), Reading(client=name, version=""))
    version = metadata.version(distribution)
    reading = Reading(client=name, version=version if distribution == name else f"{distribution} {version}")
    before_s = cpu_s()
    client(load, reading)
    reading.cpu_s = cpu_s() - before_s
    reading.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(msgspec.json.encode(reading).decode())


if __name__ == "__main__":
    main()
