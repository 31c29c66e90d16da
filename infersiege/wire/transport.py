"""HTTP/1.1 requests whose answers are stamped by the kernel: clients, their connections, and the decoder loop.

How it works: plain non-blocking sockets in callbacks of gevent's loop, no greenlet switch per token. A read is stamped
first and parsed after; the waiting greenlet is woken once, at the end. See DESIGN.md section 5 and ARCHITECTURE.md.

What ends in which fault:

* nothing connected, or the name has no address: `connect`; descriptors or ports ran out here: `client_resource`;
* a proxy that is not there, refuses or can't reach the server: `connect`, and the detail names the proxy;
* closed before any byte of an answer: `server`. A connection that was *kept* is first replaced by a new one, once, and
  the request is sent again (`attempts` tells);
* closed or reset after that, before the end that HTTP wants: `truncated`, unless the stream had said that it is over;
* no valid HTTP, or an exception in the sink: `parse`; an answer over 8 MiB that is no stream: `client_limit`;
* deadlines: `connect` counts from the attempt (name look-up, TCP, TLS); `first_token` and `total` from the first byte
  sent; `idle` is silence after the first token, or after the headers of another body than a stream. Silence before
  the first token is the first-token deadline's matter: a role chunk may come long before a prefill ends.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

import gevent
from gevent.event import Event

from infersiege.records import ErrorClass
from infersiege.wire.buffers import ReadBuffer
from infersiege.wire.clock import PollWatch, StampClock, monotonic_ns
from infersiege.wire.connection import Connection
from infersiege.wire.endpoint import Endpoint
from infersiege.wire.exchange import BodySink, Deadlines, Request
from infersiege.wire.flight import Exchange
from infersiege.wire.tls import TlsConnection
from infersiege.wire.tunnel import TunnelConnection

__all__ = ["Client", "DecoderLoop", "Endpoint", "Exchange", "StampClock"]

BATCH_SECONDS = 0.1
SLICE_NS = 1_000_000


class DecoderLoop:
    """Decodes the bodies of all exchanges of one process, in batches and between the reads of sockets.

    A batch waits for at most 100 ms. Work is cut into slices of about 1 ms, between which the sockets are polled.
    """

    def __init__(self, clock: StampClock) -> None:
        self.loop: Any = gevent.get_hub().loop
        self.poll = PollWatch(self.loop)
        self.buffer = ReadBuffer()
        self._clock = clock
        self._waiting: list[Exchange] = []
        self._due: deque[Exchange] = deque()
        self._tick = self.loop.timer(BATCH_SECONDS)
        self._soon = self.loop.timer(0.0)

    def enlist(self, exchange: Exchange, *, urgent: bool) -> None:
        """It has reads to decode: with the next batch, or at once."""
        if urgent:
            self._due.append(exchange)
            if not self._soon.active:
                self._soon.start(self._run)
        else:
            self._waiting.append(exchange)
            if not self._tick.active:
                self._tick.start(self._on_tick)

    def _on_tick(self) -> None:
        self._tick.stop()
        self._clock.check()  # a step back by less than a stream's gap shows in no single stamp
        self._due.extend(self._waiting)
        self._waiting.clear()
        self._run()

    def _run(self) -> None:
        self._soon.stop()
        end_ns = monotonic_ns() + SLICE_NS
        due = self._due
        while due:
            exchange = due.popleft()
            if exchange.decode():
                due.append(exchange)
            if monotonic_ns() >= end_ns:
                break
        if due and not self._soon.active:
            # A timer without length, not a callback: the loop runs callbacks again and again before it polls.
            self._soon.start(self._run)


class Client:
    """The connections of one simulated user to one endpoint. One exchange at a time on each; as many as are needed."""

    def __init__(
        self, endpoint: Endpoint, clock: StampClock, decoder_loop: DecoderLoop, *, keep_alive: bool = True
    ) -> None:
        """`keep_alive=False`: a new connection for each request, closed after it."""
        self.endpoint = endpoint
        self.clock = clock
        self.decoder_loop = decoder_loop
        self.keep_alive = keep_alive
        self.loop = decoder_loop.loop
        self._idle: list[Connection] = []
        self._open: set[Exchange] = set()
        self._closed = False

    def start(self, request: Request, sink: BodySink, deadlines: Deadlines) -> Exchange:
        """Begin one exchange; never yields. What goes wrong is in its result; RuntimeError only on a closed client."""
        if self._closed:
            raise RuntimeError("this client is closed")
        exchange = Exchange(self, request, sink, deadlines, Event())
        self._open.add(exchange)
        try:
            exchange.begin()
        except Exception as error:  # noqa: BLE001 - one record per turn, whatever happens
            exchange.crashed(error)
        return exchange

    def close(self) -> None:
        """Abort what is in flight and close all connections. Never yields."""
        self._closed = True
        for exchange in tuple(self._open):
            exchange.abort("client closed")
        while self._idle:
            self._idle.pop().close()

    # ---------------------------------------------------------------------------------------- for the exchanges

    def take_idle(self) -> Connection | None:
        """The connection that was used last and still stands."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()
        return None

    def keep(self, connection: Connection) -> None:
        """For the next exchange."""
        if self.keep_alive and not self._closed:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, exchange: Exchange) -> None:
        self._open.discard(exchange)

    def connect(self, exchange: Exchange) -> None:
        """Open a connection for it, after a look-up of the name when this is the endpoint's first."""
        started_ns = monotonic_ns()
        if self.endpoint.addresses:
            self._open_connection(exchange, started_ns)
        else:
            gevent.spawn(self._resolve_and_connect, exchange, started_ns)

    def _resolve_and_connect(self, exchange: Exchange, started_ns: int) -> None:
        endpoint = self.endpoint
        try:
            found = gevent.get_hub().resolver.getaddrinfo(*endpoint.dialled, 0, socket.SOCK_STREAM)
            if not endpoint.addresses:
                endpoint.addresses = [(int(family), target) for family, _, _, _, target in found]
            if not exchange.finished:
                self._open_connection(exchange, started_ns)
        except OSError as error:
            name = endpoint.host if endpoint.proxy is None else f"the proxy {endpoint.proxy.host}"
            exchange.fail(ErrorClass.CONNECT, f"name look-up of {name} failed: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001
            exchange.crashed(error)

    def _open_connection(self, exchange: Exchange, started_ns: int) -> None:
        kind = Connection
        if self.endpoint.tls is not None:
            kind = TlsConnection if self.endpoint.proxy is None else TunnelConnection
        connection = kind(self.endpoint, self.clock, self.loop, exchange, self.decoder_loop.buffer)
        exchange.connecting(connection)
        connection.open(self.endpoint.candidates(), started_ns)
