"""The emulator as a server: routes, admission, and the pacing of steps against the clock.

Steps are paced on absolute times: each begins where the model says that the one before ended, so that late wake-ups
never add up.
"""

from __future__ import annotations

import asyncio
import json
import select
import selectors
import time
from http import HTTPStatus
from typing import Any

from infersiege.emulator import metrics as metrics_page
from infersiege.emulator.answer import RefusedError, context_error, plan_answer
from infersiege.emulator.faults import Fault, parse_fault
from infersiege.emulator.http1 import Connection, Request, head, whole, whole_json
from infersiege.emulator.metrics import Metrics
from infersiege.emulator.model import Engine, QueueFullError, Sequence, Step
from infersiege.emulator.reply import STREAM_HEADERS, Reply
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.text import corpus_of
from infersiege.emulator.truthlog import RequestTruth, TruthLog
from infersiege.errors import UsageError

VERSION = "infersiege-emulator-1"
_LOGIN_PAGE = b"<!DOCTYPE html>\n<html><head><title>Login</title></head><body><h1>Please log in</h1></body></html>\n"
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


class PreciseSelector(selectors.EpollSelector):
    """epoll whose timeouts hold to microseconds: the plain one rounds up to the next millisecond."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            # An epoll descriptor is itself readable when one of its own is ready.
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are late by some 0.1 ms, not by up to 1 ms."""
    return asyncio.SelectorEventLoop(PreciseSelector())


class EmulatorServer:
    """One emulated engine on one listening socket. Use inside a running event loop: start, then stop."""

    def __init__(self, settings: EmulatorSettings) -> None:
        """Raises UsageError when the log can't be written."""
        self.settings = settings
        self.engine = Engine(settings.spec)
        self.metrics = Metrics()
        self.requests = 0
        """Chat requests so far."""
        self._log = TruthLog(settings.log)
        self._replies: dict[Sequence, Reply] = {}
        self._connections: set[Connection] = set()
        self._connection_count = 0
        self._server: asyncio.Server | None = None
        self._step: Step | None = None
        self._stopping = False
        self._routes = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
        }

    async def start(self) -> int:
        """Listen; gives the port. Raises UsageError when the address can't be had."""
        for chinese in (False, True):
            corpus_of(chinese)  # built now, not inside somebody's time to first token
        host, port = self.settings.host, self.settings.port
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._new_connection, host, port, backlog=2048)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(
                f"{host}:{port}: can't listen: {reason}", hint="choose another --port, or 0 for a free one"
            ) from None
        if self.settings.keepalive_interval_s is not None:
            loop.call_later(
                self.settings.keepalive_interval_s / 4, self._keep_alive, self.settings.keepalive_interval_s
            )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything; open requests are logged as `stopped`."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for reply in list(self._replies.values()):
            reply.cut_short("stopped")
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        self._log.close()

    def _new_connection(self) -> Connection:
        self._connection_count += 1
        connection = Connection(
            self._connection_count, self._route, self.settings.idle_timeout_s, self._connections.discard
        )
        self._connections.add(connection)
        return connection

    def _route(self, connection: Connection, request: Request) -> None:
        route = self._routes.get(request.path)
        if route is None:
            self._answer(connection, whole_json(404, {"detail": "Not Found"}))
        elif request.method != route[0]:
            self._answer(connection, whole_json(405, {"detail": "Method Not Allowed"}, allow=route[0]))
        else:
            route[1](connection, request)

    def _answer(self, connection: Connection, data: bytes) -> None:
        connection.write(data)
        connection.finished()

    def _authorised(self, request: Request) -> bool:
        key = self.settings.api_key
        return key is None or request.headers.get("authorization") == f"Bearer {key}"

    def _models(self, connection: Connection, request: Request) -> None:
        if not self._authorised(request):
            self._answer(connection, whole_json(401, {"error": "Unauthorized"}))
            return
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "infersiege-emulator",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.spec.max_model_len,
        }
        self._answer(connection, whole_json(200, {"object": "list", "data": [model]}))

    def _health(self, connection: Connection, request: Request) -> None:
        self._answer(connection, head(200, {"content-length": "0"}))

    def _version(self, connection: Connection, request: Request) -> None:
        self._answer(connection, whole_json(200, {"version": VERSION}))

    def _metrics(self, connection: Connection, request: Request) -> None:
        page = self.metrics.render(self.engine, self.settings.model)
        self._answer(connection, whole(200, page, metrics_page.CONTENT_TYPE))

    def _chat(self, connection: Connection, request: Request) -> None:
        self.requests += 1
        request_id = request.headers.get("x-request-id") or f"emulated-{self.requests}"
        truth = RequestTruth(self.requests, request_id, connection.number, received_ns=request.received_ns)
        if self.settings.log_tokens:
            truth.token_writes = []
        if not self._authorised(request):
            self._answer_early(connection, truth, 401, whole_json(401, {"error": "Unauthorized"}))
            return
        try:
            fault = self._fault_of(request, truth)
            if fault is not None and fault.early:
                self._answer_early(connection, truth, *_early_answer(fault, request, self.settings))
                return
            answer = plan_answer(_body_json(request.body), self.settings)
        except RefusedError as error:
            body = whole_json(error.status, {"error": error.error}, x_request_id=request_id)
            self._answer_early(connection, truth, error.status, body)
            return
        truth.stream, truth.prompt_tokens = answer.stream, answer.prompt_tokens
        sequence = Sequence(request.received_ns, answer.prompt_tokens, answer.output_tokens, answer.chain)
        reply = Reply(connection, answer, sequence, self.settings, fault, truth, self.metrics, self._reply_over)
        self._replies[sequence] = reply
        if fault is not None and fault.delay:
            asyncio.get_running_loop().call_later(fault.delay / 1e3, self._submit_late, reply, connection)
        else:
            self._submit(reply, connection)

    def _fault_of(self, request: Request, truth: RequestTruth) -> Fault | None:
        """The header's fault on top of the command line's. Raises RefusedError for a header that can't be read."""
        fault = self.settings.fault_of(self.requests)
        asked = request.headers.get("x-emulate")
        if asked is not None:
            try:
                fault = parse_fault(asked, fault)
            except UsageError as error:
                raise RefusedError(400, "Bad Request", f"x-emulate: {error}", "x-emulate") from None
        truth.fault = None if fault is None else str(fault)
        return fault

    def _answer_early(self, connection: Connection, truth: RequestTruth, status: int, data: bytes) -> None:
        truth.status = status
        truth.done_ns = time.monotonic_ns()
        self._log.write(truth)
        self._answer(connection, data)

    def _submit_late(self, reply: Reply, connection: Connection) -> None:
        if not reply.is_over:
            reply.sequence.arrival_ns = time.monotonic_ns()
            self._submit(reply, connection)

    def _submit(self, reply: Reply, connection: Connection) -> None:
        try:
            self.engine.submit(reply.sequence)
        except QueueFullError:
            self.metrics.rejected += 1
            self._reject(reply, connection)
            return
        reply.start()
        if self._step is None:
            self._next_step()

    def _reject(self, reply: Reply, connection: Connection) -> None:
        error = {"message": _BUSY, "type": "Service Unavailable", "param": None, "code": 503}
        if reply.truth.stream and self.settings.overload_in_stream:
            reply.start()
            if not reply.is_over:
                reply.refuse_in_stream(error, "rejected")
            return
        reply.truth.status = 503
        reply.cut_short("rejected")
        self._answer(connection, whole_json(503, {"error": error}, x_request_id=reply.truth.request_id))

    def _reply_over(self, reply: Reply) -> None:
        self._replies.pop(reply.sequence, None)
        if not (self.settings.ignore_disconnects and reply.truth.finish == "disconnect"):
            self.engine.abort(reply.sequence)
        self._log.write(reply.truth)

    def _next_step(self) -> None:
        self._step = None if self._stopping else self.engine.begin_step()
        if self._step is not None:
            # loop.time() is time.monotonic(): the clock of the arrivals.
            asyncio.get_running_loop().call_at(self._step.end_ns / 1e9, self._step_over, self._step.end_ns)

    def _step_over(self, end_ns: int) -> None:
        emitted = self.engine.finish_step()
        self._next_step()
        replies = self._replies
        for sequence in emitted:
            reply = replies.get(sequence)
            if reply is not None:
                reply.token(end_ns)

    def _keep_alive(self, interval_s: float) -> None:
        now_ns = time.monotonic_ns()
        for reply in self._replies.values():
            if now_ns - reply.last_write_ns >= interval_s * 1e9:
                reply.keepalive(now_ns)
        if not self._stopping:
            asyncio.get_running_loop().call_later(interval_s / 4, self._keep_alive, interval_s)


def _body_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        message = "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error'}"
        raise RefusedError(400, "Bad Request", message, "body") from None


def _early_answer(fault: Fault, request: Request, settings: EmulatorSettings) -> tuple[int, bytes]:
    """(status, bytes) of a faulty answer that needs no engine."""
    if fault.status is not None:
        fields = {} if fault.retry_after is None else {"retry_after": fault.retry_after}
        error = {"message": "emulated fault", "type": _phrase(fault.status), "param": None, "code": fault.status}
        return fault.status, whole_json(fault.status, {"error": error}, **fields)
    if fault.context:
        refused = context_error(settings.spec.max_model_len)
        return refused.status, whole_json(refused.status, {"error": refused.error})
    if fault.echo_key:
        text = f"invalid key: {request.headers.get('authorization', 'none')}"
        return 401, whole_json(401, {"error": {"message": text, "type": "authentication_error", "code": 401}})
    if fault.html:
        return 200, whole(200, _LOGIN_PAGE, "text/html; charset=utf-8")
    if fault.json_error:
        error = {"message": "no such model", "type": "invalid_request_error", "param": None, "code": None}
        return 200, whole_json(200, {"error": error})
    return 200, head(200, STREAM_HEADERS) + b"0\r\n\r\n"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Emulated"
