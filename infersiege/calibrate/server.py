"""The null server: prepared bytes on time, one process, one thread, standard library only.

    python -m infersiege.calibrate.server

It says its port on standard output, then takes a line of JSON on standard input and answers each with one: the settings
of what it serves from now on (`Serving`), and what it did since the last line. It ends when its input does.

It is no engine: it looks at nothing in a request but its length and whether it wants a stream. A stream's first token
comes within one interval of the request, then one event per interval and write. It keeps, for each first token, the
instants around its `send()`: the truth that the client's time is held against (both are CLOCK_MONOTONIC).
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import random
import resource
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-infersiege-emulated: null\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"chatcmpl-null","object":"chat.completion.chunk","created":1700000000,"model":"null",'
    b'"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]%s}\n\n'
)
_USAGE = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
_TURNS_OF_THE_LOOP = 64
"""Events that are sent before sockets are looked at again."""
_MS = 1_000_000
monotonic_ns = time.monotonic_ns


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


ROLE = _HEAD + _chunk(_EVENT % (b'{"role":"assistant","content":""}', b"null", b""))
TOKEN = _chunk(_EVENT % (b'{"content":" word"}', b"null", b""))


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served: streams of so many tokens, one per interval."""

    interval_ns: int = 50 * _MS
    tokens: int = 100

    def last(self) -> bytes:
        """The end of a stream: finish reason, usage, the end of the body."""
        finish = _EVENT % (b"{}", b'"stop"', b"," + _USAGE % (10, self.tokens, 10 + self.tokens))
        return _chunk(finish) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def short(self) -> bytes:
        """A whole short answer."""
        body = (
            b'{"id":"chatcmpl-null","object":"chat.completion","created":1700000000,"model":"null","choices":[{"index":'
            b'0,"message":{"role":"assistant","content":"a short answer"},"finish_reason":"stop"}],'
            + _USAGE
            % (10, 3, 13)
        ) + b"}"
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-infersiege-emulated: null\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )


@dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    socket: socket.socket
    read: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    request: str = ""
    left: int = 0
    """Tokens of the stream that were not sent; 0: no stream."""
    first: bool = False
    answers: int = 0


class NullServer:
    """Listens on a free port of loopback; `run` serves until standard input ends."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._peers: dict[int, Peer] = {}
        self._due: list[tuple[int, int, Peer]] = []
        """(when, tie breaker, whose) of the next event of each stream."""
        self._ties = 0
        self._random = random.Random(7)
        self._serve(Serving())
        self._forget()

    def _serve(self, serving: Serving) -> None:
        self._serving = serving
        self._last, self._short = serving.last(), serving.short()

    def _forget(self) -> None:
        self._stamps: dict[str, tuple[int, int]] = {}
        self._late: list[int] = []
        self._sent = self._answers = self._accepted = self._held = 0
        self._cpu_s, self._since_ns = _cpu_seconds(), monotonic_ns()
        self._wait_ns = _run_delay_ns()

    def run(self, control: int) -> None:
        os.set_blocking(control, False)
        self._poll.register(control, select.EPOLLIN)
        poll = self._poll.fileno()
        while True:
            self._send_what_is_due()
            wait_s = max(0.0, (self._due[0][0] - monotonic_ns()) / 1e9) if self._due else None
            # epoll's own timeout has whole milliseconds.
            if not select.select([poll], [], [], wait_s)[0]:
                continue
            for descriptor, events in self._poll.poll(0):
                if descriptor == control:
                    if not self._told(os.read(control, 65_536)):
                        return
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif (peer := self._peers.get(descriptor)) is not None:
                    self._ready(peer, events)

    # ------------------------------------------------------------------------------------------------------ control

    def _told(self, data: bytes) -> bool:
        for line in data.splitlines():
            late = sorted(self._late)
            seconds = max(1e-3, (monotonic_ns() - self._since_ns) / 1e9)
            wait_ns = _run_delay_ns()
            answer: dict[str, Any] = {
                "stamps": self._stamps,
                "sent": self._sent,
                "answers": self._answers,
                "accepted": self._accepted,
                "held": self._held,
                "seconds": seconds,
                "cpu_share": (_cpu_seconds() - self._cpu_s) / seconds,
                "cpu_wait_share": (wait_ns - self._wait_ns) / 1e9 / seconds,
                "late_p99_ms": late[int(len(late) * 0.99)] / _MS if late else 0.0,
            }
            self._serve(Serving(**json.loads(line)))
            self._forget()
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        return bool(data)

    # ------------------------------------------------------------------------------------------------------ sockets

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, or the peer is gone: the client has its own error for it
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[accepted.fileno()] = Peer(accepted)
            self._poll.register(accepted.fileno(), select.EPOLLIN)
            self._accepted += 1

    def _ready(self, peer: Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(peer, b"")
        if events & ~select.EPOLLOUT:
            try:
                data = peer.socket.recv(262_144)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(peer)
                return
            peer.read += data
            self._requests(peer)

    def _drop(self, peer: Peer) -> None:
        peer.left = 0
        if self._peers.pop(peer.socket.fileno(), None) is not None:
            self._poll.unregister(peer.socket.fileno())
        peer.socket.close()

    def _requests(self, peer: Peer) -> None:
        """Answer each whole request that was read."""
        read = peer.read
        while (end := read.find(b"\r\n\r\n")) >= 0:
            head = bytes(read[:end]).lower()
            length = int(_header(head, b"content-length") or 0)
            if len(read) < end + 4 + length:
                return
            body = bytes(read[end + 4 : end + 4 + length])
            del read[: end + 4 + length]
            if b'"stream":true' in body or b'"stream": true' in body:
                self._begin(peer, _header(head, b"x-request-id").decode("latin-1"))
            else:
                self._answers += 1
                self._write(peer, self._short)

    def _begin(self, peer: Peer, request: str) -> None:
        peer.request, peer.first = request, True
        # The first answer of a connection is cut at random, or all streams would begin and end together for ever.
        peer.left = self._random.randint(1, self._serving.tokens) if not peer.answers else self._serving.tokens
        peer.answers += 1
        self._write(peer, ROLE)
        self._ties += 1
        wait_ns = self._random.randrange(self._serving.interval_ns // 2, self._serving.interval_ns * 3 // 2)
        heapq.heappush(self._due, (monotonic_ns() + wait_ns, self._ties, peer))

    def _send_what_is_due(self) -> None:
        due, interval_ns = self._due, self._serving.interval_ns
        for _ in range(_TURNS_OF_THE_LOOP):
            before_ns = monotonic_ns()
            if not due or due[0][0] > before_ns:
                return
            at_ns, tie, peer = due[0]
            if not peer.left:
                heapq.heappop(due)
                continue
            peer.left -= 1
            self._write(peer, TOKEN if peer.left else TOKEN + self._last)
            if peer.first:
                peer.first = False
                self._stamps[peer.request] = before_ns, monotonic_ns()
            self._sent += 1
            if not self._sent & 15:
                self._late.append(before_ns - at_ns)
            if peer.left:
                heapq.heapreplace(due, (at_ns + interval_ns, tie, peer))
            else:
                heapq.heappop(due)
                self._answers += 1

    def _write(self, peer: Peer, data: bytes) -> None:
        if not peer.unsent:
            try:
                sent = peer.socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(peer)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._held += 1
            self._poll.modify(peer.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        peer.unsent += data
        try:
            del peer.unsent[: peer.socket.send(peer.unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        if not peer.unsent:
            self._poll.modify(peer.socket.fileno(), select.EPOLLIN)


def _header(head: bytes, name: bytes) -> bytes:
    """Value of a header; empty without it."""
    at = head.find(b"\r\n%s:" % name)
    if at < 0:
        return b""
    end = head.find(b"\r\n", at + 2)
    return head[at + 3 + len(name) : end if end >= 0 else len(head)].strip()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _run_delay_ns() -> int:
    """Time that it could have run but had no CPU; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - no pathlib here: it starts at once
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = NullServer()
    sys.stdout.write(json.dumps({"port": server.port}) + "\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    gc.disable()
    server.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
