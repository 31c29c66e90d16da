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
from dataclasses import replace
from typing import Any

from infersiege.emulator.answer import Answer, answer_of
from infersiege.emulator.faults import Fault, parse_fault
from infersiege.emulator.http1 import Connection, Request
from infersiege.emulator.metrics import Metrics, VllmMetrics
from infersiege.emulator.metrics_engines import METRICS
from infersiege.emulator.model import Engine, QueueFullError, Sequence, Step
from infersiege.emulator.pages import PAGES, State
from infersiege.emulator.profile import PATHS, PROFILES, Api
from infersiege.emulator.quota import CLOUD_REQUESTS, CLOUD_TOKENS, Quota
from infersiege.emulator.refusal import Reason, RefusedError, busy, invalid
from infersiege.emulator.refused import early_answer, over_quota, refusal_bytes, refusal_in_stream
from infersiege.emulator.reply import Reply
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.text import corpus_of
from infersiege.emulator.tokenize import TOKENIZE, Tokenize
from infersiege.emulator.truthlog import RequestTruth, TruthLog
from infersiege.emulator.wish import read_wish
from infersiege.errors import UsageError


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
        self.profile = PROFILES[settings.profile]
        self.engine = Engine(settings.spec)
        self.metrics: Metrics = METRICS.get(self.profile.name, VllmMetrics)()
        self.requests = 0
        """Requests for an answer so far."""
        manner, idle_s = self.profile.manner, settings.idle_timeout_s
        self._manner = manner if idle_s is None else replace(manner, idle_timeout_s=idle_s)
        self._quota = _quota(settings)
        self._state = State(settings, self.engine)
        self._log = TruthLog(settings.log)
        self._replies: dict[Sequence, Reply] = {}
        self._connections: set[Connection] = set()
        self._connection_count = 0
        self._server: asyncio.Server | None = None
        self._step: Step | None = None
        self._stopping = False

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
        interval_s = self.settings.keepalive_interval_s or self.profile.keepalive_interval_s
        if interval_s is not None:
            loop.call_later(interval_s / 4, self._keep_alive, interval_s)
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
        connection = Connection(self._connection_count, self._route, self._manner, self._connections.discard)
        self._connections.add(connection)
        return connection

    def _route(self, connection: Connection, request: Request) -> None:
        path, profile = request.path, self.profile
        api = PATHS.get(path)
        api = api if api in profile.apis else None
        counts = path == "/v1/messages/count_tokens" and Api.MESSAGES in profile.apis
        tokenize = TOKENIZE.get(profile.name) if path == "/tokenize" else None
        posted = api is not None or counts or tokenize is not None
        page = PAGES[profile.name].get(path)
        metrics = path == "/metrics" and profile.has_metrics
        if not posted and page is None and not metrics:
            self._not_found(connection)
        elif request.method != ("POST" if posted else "GET"):
            self._wrong_method(connection, "POST" if posted else "GET")
        elif api is not None:
            self._ask(connection, request, api)
        elif not self._authorised(request, Api.MESSAGES if counts else None):
            error = RefusedError(Reason.KEY, "Unauthorized")
            self._answer(connection, refusal_bytes(connection, profile, None, error)[1])
        elif counts:
            self._count_tokens(connection, request)
        elif tokenize is not None:
            self._tokenize(connection, request, tokenize)
        elif metrics:
            text = self.metrics.render(self.engine, self.settings.model)
            self._answer(connection, connection.whole(200, text, self.metrics.content_type))
        else:
            assert page is not None
            value = page(self._state)
            if value is None:
                self._answer(connection, connection.head(200, {"content-length": "0"}))
            else:
                self._answer(connection, connection.whole_json(200, value))

    def _answer(self, connection: Connection, data: bytes) -> None:
        connection.write(data)
        connection.finished()

    def _not_found(self, connection: Connection) -> None:
        if self.profile.name in ("vllm", "sglang"):
            self._answer(connection, connection.whole_json(404, {"detail": "Not Found"}))
            return
        error = RefusedError(Reason.MODEL, "File Not Found", code="Not found")
        self._answer(connection, refusal_bytes(connection, self.profile, None, error)[1])

    def _wrong_method(self, connection: Connection, allowed: str) -> None:
        """llama.cpp knows no such path then, the others say what they would take."""
        if self.profile.name == "llama.cpp":
            self._not_found(connection)
            return
        body = {"detail": "Method Not Allowed"}
        self._answer(connection, connection.whole_json(405, body, {"allow": allowed}))

    def _authorised(self, request: Request, api: Api | None) -> bool:
        """Whether the key came in a form that this engine takes; `api` None: of a page."""
        key, profile = self.settings.api_key, self.profile
        if key is None or request.path in profile.open_paths or not request.path.startswith(profile.guards):
            return True
        bearer = api is None or api in profile.takes_bearer
        x_api_key = bool(profile.takes_x_api_key) if api is None else api in profile.takes_x_api_key
        if bearer and request.headers.get("authorization") == f"Bearer {key}":
            return True
        return x_api_key and request.headers.get("x-api-key") == key

    def _count_tokens(self, connection: Connection, request: Request) -> None:
        try:
            body = _body_json(request.body)
            if isinstance(body, dict):
                body = {**body, "max_tokens": 1}
            wish = read_wish(body, Api.MESSAGES, self.profile, self.settings.model)
        except RefusedError as error:
            self._answer(connection, refusal_bytes(connection, self.profile, Api.MESSAGES, error)[1])
            return
        self._answer(connection, connection.whole_json(200, {"input_tokens": len(wish.prompt)}))

    def _tokenize(self, connection: Connection, request: Request, tokenize: Tokenize) -> None:
        try:
            answer = connection.whole_json(200, tokenize(_body_json(request.body), self.settings))
        except RefusedError as error:
            answer = refusal_bytes(connection, self.profile, None, error)[1]
        self._answer(connection, answer)

    def _ask(self, connection: Connection, request: Request, api: Api) -> None:
        self.requests += 1
        request_id = request.headers.get("x-request-id") or f"emulated-{self.requests}"
        truth = RequestTruth(self.requests, request_id, connection.number, api.value, received_ns=request.received_ns)
        if self.settings.log_tokens:
            truth.token_writes = []
        fields = self._limit_fields()
        body: Any = None
        try:
            if not self._authorised(request, api):
                raise RefusedError(Reason.KEY, "Unauthorized")
            fault = self._fault_of(request, truth)
            if fault is not None and fault.early:
                fields = self._limit_fields(exhausted=fault.status == 429)
                early = early_answer(fault, connection, request, api, self.settings, fields)
                self._answer_early(connection, truth, *early)
                return
            body = _body_json(request.body)
            if fault is not None and fault.refuse_field is not None and fault.refuse_field in body:
                raise invalid(fault.refuse_field, f"Unrecognized request argument supplied: {fault.refuse_field}")
            if api is Api.MESSAGES and self.profile.name == "anthropic" and "anthropic-version" not in request.headers:
                raise RefusedError(Reason.INVALID, "anthropic-version: header is required")
            answer = answer_of(read_wish(body, api, self.profile, self.settings.model), self.settings)
        except RefusedError as error:
            self._refuse(connection, truth, api, error, body, {"x-request-id": request_id, **fields})
            return
        if self._quota is not None:
            wait_s = self._quota.take(answer.prompt_tokens + answer.output_tokens, time.monotonic_ns())
            fields = self._limit_fields()
            if wait_s is not None:
                refused = over_quota(connection, self.profile, api, wait_s, {"x-request-id": request_id, **fields})
                self._answer_early(connection, truth, *refused)
                return
        self._begin(connection, answer, fault, truth, fields)

    def _refuse(
        self,
        connection: Connection,
        truth: RequestTruth,
        api: Api,
        error: RefusedError,
        body: Any,
        fields: dict[str, str],
    ) -> None:
        streamed = isinstance(body, dict) and bool(body.get("stream"))
        if streamed and api is Api.MESSAGES and self.profile.messages_refuse_in_stream:
            truth.finish = "rejected"
            data = refusal_in_stream(connection, self.settings, error, fields)
            self._answer_early(connection, truth, 200, data)
            return
        self._answer_early(connection, truth, *refusal_bytes(connection, self.profile, api, error, fields))

    def _begin(
        self, connection: Connection, answer: Answer, fault: Fault | None, truth: RequestTruth, fields: dict[str, str]
    ) -> None:
        truth.stream, truth.prompt_tokens = answer.stream, answer.prompt_tokens
        sequence = Sequence(truth.received_ns, answer.prompt_tokens, answer.output_tokens, answer.chain)
        reply = Reply(connection, answer, sequence, self.settings, fault, truth, self.metrics, self._reply_over, fields)
        self._replies[sequence] = reply
        if fault is not None and fault.delay:
            asyncio.get_running_loop().call_later(fault.delay / 1e3, self._submit_late, reply, connection, answer.api)
        else:
            self._submit(reply, connection, answer.api)

    def _limit_fields(self, *, exhausted: bool = False) -> dict[str, str]:
        if self._quota is None:
            return {}
        return self._quota.headers(self.profile.rate_limit_headers, time.time(), exhausted=exhausted)

    def _fault_of(self, request: Request, truth: RequestTruth) -> Fault | None:
        """The header's fault on top of the command line's. Raises RefusedError for a header that can't be read."""
        fault = self.settings.fault_of(self.requests)
        asked = request.headers.get("x-emulate")
        if asked is not None:
            try:
                fault = parse_fault(asked, fault)
            except UsageError as error:
                raise RefusedError(Reason.INVALID, f"x-emulate: {error}", "x-emulate") from None
        truth.fault = None if fault is None else str(fault)
        return fault

    def _answer_early(self, connection: Connection, truth: RequestTruth, status: int, data: bytes) -> None:
        truth.status = status
        truth.done_ns = time.monotonic_ns()
        self._log.write(truth)
        self._answer(connection, data)

    def _submit_late(self, reply: Reply, connection: Connection, api: Api) -> None:
        if not reply.is_over:
            reply.sequence.arrival_ns = time.monotonic_ns()
            self._submit(reply, connection, api)

    def _submit(self, reply: Reply, connection: Connection, api: Api) -> None:
        try:
            self.engine.submit(reply.sequence)
        except QueueFullError:
            self.metrics.rejected += 1
            self._reject(reply, connection, api)
            return
        reply.start()
        if self._step is None:
            self._next_step()

    def _reject(self, reply: Reply, connection: Connection, api: Api) -> None:
        in_stream = self.settings.overload_in_stream
        if reply.truth.stream and (self.profile.overload_in_stream if in_stream is None else in_stream):
            reply.start()
            if not reply.is_over:
                reply.refuse_in_stream(busy(), "rejected")
            return
        fields = {"x-request-id": reply.truth.request_id}
        reply.truth.status, data = refusal_bytes(connection, self.profile, api, busy(), fields)
        reply.cut_short("rejected")
        self._answer(connection, data)

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
        raise invalid("body", "{'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error'}") from None


def _quota(settings: EmulatorSettings) -> Quota | None:
    """None: no limits, and no headers that tell of any."""
    requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
    if requests is None and tokens is None and PROFILES[settings.profile].rate_limit_headers is None:
        return None
    return Quota(requests or CLOUD_REQUESTS, tokens or CLOUD_TOKENS, time.monotonic_ns())
