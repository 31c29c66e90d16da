"""One request in flight: from the connection to the sink, until one of the many possible ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infersiege.records import ErrorClass, StampSource
from infersiege.wire.buffers import BATCH_BYTES, Backlog, WholeBody
from infersiege.wire.clock import monotonic_ns
from infersiege.wire.connection import Connection
from infersiege.wire.deadlines import DRAIN_NS, Alarm, Deadline, answer_deadline, connect_deadline, drain_deadline
from infersiege.wire.exchange import BodySink, Deadlines, ExchangeResult, Fault, Request
from infersiege.wire.faults import answer_of_proxy, connect_fault, plain
from infersiege.wire.framing import Framing, HttpError, request_bytes

if TYPE_CHECKING:
    from infersiege.wire.transport import Client

# What becomes of body bytes.
_RAW, _FIRST, _LATER, _IGNORED = range(4)


class Exchange(Backlog):
    """One request and its answer. Made by `Client.start`; all methods but `wait` may be called from anywhere.

    `wait` returns once the result is final: the answer was complete and decoded, or it failed, or it was aborted. A
    stream that said that it is over is awaited for at most 250 ms more, so that its connection can be used again;
    that time is in no figure.
    """

    __slots__ = (
        "_alarm", "_client", "_connection", "_cut", "_deadlines", "_fault", "_framing", "_last_ns", "_over",
        "_payload", "_phase_ns", "_request", "_resent", "_result", "_sink", "_steps", "_stream_closed_ns", "_to",
        "_whole", "_woken", "finished",
    )  # fmt: skip

    def __init__(self, client: Client, request: Request, sink: BodySink, deadlines: Deadlines, woken: Any) -> None:
        super().__init__()
        self._client = client
        self._sink, self._deadlines, self._woken = sink, deadlines, woken
        self._request, self._payload = request, b""
        self._connection: Connection | None = None
        self._result = ExchangeResult(attempt_ns=monotonic_ns(), headers={})
        self._phase_ns = self._result.attempt_ns
        self._alarm = Alarm(client.loop)
        self._steps, self._resent = client.clock.steps, False
        self._framing, self._to = Framing(), _RAW
        self._whole = WholeBody()
        self._last_ns = 0
        self._stream_closed_ns: int | None = None
        self._fault: Fault | None = None
        self._cut: str | None = None
        self._over = False
        """Nothing more comes from the socket; what was read may still have to be decoded."""
        self.finished = False

    # ------------------------------------------------------------------------------------------- for the caller

    def wait(self) -> ExchangeResult:
        """Block this greenlet until the result is final, and return it."""
        self._woken.wait()
        return self._result

    def result(self) -> ExchangeResult:
        """The facts; final once `finished`. Raises RuntimeError before."""
        if not self.finished:
            raise RuntimeError("the exchange is still in flight: wait or abort first")
        return self._result

    @property
    def sent_end_ns(self) -> int | None:
        """When its last byte was written (of the attempt that goes on); None: it was not yet."""
        return None if self._connection is None else self._connection.sent_end_ns

    def abort(self, detail: str) -> None:
        """End it now: close the connection, decode what was read, wake the waiter. Never yields.

        Without effect on an exchange that is finished. The result has a fault without error class.
        """
        self._stop(Fault(error_class=None, detail=detail), now=True)

    # ---------------------------------------------------------------------------------------------------- start

    def begin(self) -> None:
        """Send on an idle connection, or connect. Called once, by the client."""
        client, to = self._client, self._client.endpoint
        try:
            self._payload = request_bytes(
                self._request, to.authority, keep_alive=client.keep_alive, origin=to.request_origin
            )
        except ValueError as error:
            self.fail(ErrorClass.BAD_REQUEST, str(error))
            return
        self._arm(self._deadlines.connect_ns)
        connection = client.take_idle()
        if connection is None:
            client.connect(self)
        else:
            self._result.reused_connection = True
            self._result.peer = connection.peer
            self._send(connection)

    def connecting(self, connection: Connection) -> None:
        """The client made this connection for us."""
        self._connection = connection

    def connected(self) -> None:
        connection = self._connection
        assert connection is not None
        self._result.peer = connection.peer
        self._result.connect_duration_ns = connection.connect_duration_ns
        self._result.tls_duration_ns = connection.tls_duration_ns
        self._send(connection)

    def connect_failed(self, error: OSError) -> None:
        connection = self._connection
        shaking = connection is not None and connection.connect_duration_ns is not None
        fault = connect_fault(error, self._where(), shaking=shaking, proxy=self._client.endpoint.proxy)
        self._stop(fault, now=False)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self._phase_ns = monotonic_ns()
        connection.watch(self._client.decoder_loop.poll)
        connection.begin(self, self._payload)
        self._arm(min(self._deadlines.first_token_ns, self._deadlines.total_ns))

    # ------------------------------------------------------------------------------------ told by the connection

    def received(self, data: memoryview, stamp_ns: int, earliest_ns: int) -> None:
        """One read. The hot path: nearly always one event of a stream whose first token was seen."""
        framing = self._framing
        self._last_ns = stamp_ns
        broken = None
        try:
            feed = framing.feed  # in two steps: one is a slower lookup for what a slot holds
            feed(data)
        except HttpError as error:
            framing.reusable = False
            broken = error
        if self._to == _LATER:
            bodies = framing.bodies
            if bodies:
                if len(bodies) == 1:
                    body = bodies.pop()
                else:
                    body = b"".join(bodies)
                    bodies.clear()
                reads = self._reads
                reads.append((stamp_ns, body))
                self._held += len(body)
                if len(reads) == 1:
                    self._client.decoder_loop.enlist(self, urgent=False)
                elif self._held >= BATCH_BYTES:
                    self._client.decoder_loop.enlist(self, urgent=True)
        else:
            self._early(stamp_ns, earliest_ns)
        if framing.complete:
            self._message_ended(stamp_ns)
        elif broken is not None:
            self.fail(ErrorClass.PARSE, f"no valid HTTP/1.1 from {self._where()}: {broken}")

    def disconnected(self, error: OSError | None) -> None:
        result = self._result
        now_ns = monotonic_ns()
        if result.first_byte_ns is None:
            if result.reused_connection and not self._resent:
                self._resend()
                return
            why = "" if error is None else f" ({plain(error)})"
            self.fail(ErrorClass.SERVER, f"connection closed before any answer{why}")
        elif error is None and self._framing.has_headers and self._framing.ends_at_eof:
            self._message_ended(now_ns)
        else:
            self._cut = "connection cut" if error is None else f"connection cut ({plain(error)})"
            self._close_connection()
            self._socket_done(now_ns)

    def crashed(self, error: Exception) -> None:
        """A fault of ours (or of the sink), also in an answer that had ended but was not decoded to its end."""
        detail = f"{type(error).__name__} while reading the answer: {error}"
        if self._over and not self.finished and self._fault is None:
            self._fault = Fault(error_class=ErrorClass.PARSE, detail=detail)
        self.fail(ErrorClass.PARSE, detail)

    def _resend(self) -> None:
        """A kept connection was closed under our request: once more, on a new one."""
        self._resent = True
        self._close_connection()
        self._result.reused_connection = False
        self._result.attempts += 1
        self._phase_ns = monotonic_ns()
        self._arm(self._deadlines.connect_ns)
        self._client.connect(self)

    # ------------------------------------------------------------------------ before the first token, other bodies

    def _early(self, stamp_ns: int, earliest_ns: int) -> None:
        """A read before the first token, or of another body than a stream, or in the drain."""
        framing, result = self._framing, self._result
        if result.first_byte_ns is None:
            result.first_byte_ns = stamp_ns
        if framing.has_headers and result.status is None:
            self._headers_came()
        if self.finished or not framing.bodies:
            return
        body = b"".join(framing.bodies)
        framing.bodies.clear()
        if self._to == _FIRST:
            self._first(stamp_ns, earliest_ns, body)
        elif self._to == _RAW and not self._whole.add(body):
            self.fail(ErrorClass.CLIENT_LIMIT, f"answer with status {result.status} is over 8 MiB")

    def _headers_came(self) -> None:
        result = self._result
        result.status, result.headers = self._framing.status, self._framing.headers
        if not self._framing.is_stream:
            self._unwatch()
            self._arm_next()
            return
        result.streamed = True
        self._to = _FIRST
        if self._framing.encoding != "identity":
            what = f"stream with content-encoding {self._framing.encoding}, which was not asked for"
            self.fail(ErrorClass.PARSE, what)

    def _first(self, stamp_ns: int, earliest_ns: int, body: bytes) -> None:
        try:
            if self._sink.first(stamp_ns, earliest_ns, body):
                self._to = _LATER
                self._unwatch()
                self._arm_next()
            self._look_if_done()
        except Exception as error:  # noqa: BLE001 - also an OSError of the sink's is its bug, not the connection's
            self.crashed(error)

    def _message_ended(self, now_ns: int) -> None:
        """The response is complete as HTTP says."""
        if self._over:
            return
        connection = self._connection
        self._result.complete = True
        if connection is not None:
            if self._framing.reusable and connection.sent_end_ns is not None and not connection.closed:
                self._settle_connection()
                self._client.keep(connection)
            else:
                self._close_connection()
        self._socket_done(now_ns)

    # ------------------------------------------------------------------------------------------------- decoding

    def decode(self) -> bool:
        """Hand one batch to the sink; return whether there is more. Called by the decoder loop."""
        if self.finished:
            return False
        try:
            self._sink.more(self._take())
            self._look_if_done()
        except Exception as error:  # noqa: BLE001 - a bug in the sink must not end the loop
            self._take_all()
            self.crashed(error)
        if self._over and not self._reads:
            self._conclude()
        return bool(self._reads)

    def _look_if_done(self) -> None:
        if not self._over and self._to in (_FIRST, _LATER) and self._sink.done:
            self._to = _IGNORED
            self._unwatch()
            self._stream_closed_ns = self._sink.done_ns or self._last_ns
            if not self._framing.complete:
                self._arm(DRAIN_NS)

    # ------------------------------------------------------------------------------------------------ deadlines

    def _arm(self, after_ns: int) -> None:
        self._alarm.set(after_ns, self._on_alarm)

    def _on_alarm(self) -> None:
        try:
            now_ns = monotonic_ns()
            at_ns, error_class, what = self._next_deadline()
            if at_ns > now_ns:
                self._arm(at_ns - now_ns + 100_000)
            elif error_class is None:
                self._close_connection()
                self._socket_done(at_ns)
            else:
                self.fail(error_class, what)
        except Exception as error:  # noqa: BLE001
            self.crashed(error)

    def _arm_next(self) -> None:
        """A nearer deadline may hold from now on. Not called for each read: the timer looks again when it fires."""
        self._arm(self._next_deadline()[0] - monotonic_ns())

    def _next_deadline(self) -> Deadline:
        connection = self._connection
        if self._to == _IGNORED and self._stream_closed_ns is not None:
            return drain_deadline(self._stream_closed_ns)
        if connection is None or not connection.shaken:
            return connect_deadline(self._phase_ns, self._deadlines, self._where())
        begun = self._framing.has_headers and self._to != _FIRST
        return answer_deadline(connection.sent_ns or self._phase_ns, self._last_ns if begun else None, self._deadlines)

    # ------------------------------------------------------------------------------------------------------ end

    def fail(self, error_class: ErrorClass, detail: str) -> None:
        """End with a fault of the server, the network or this machine."""
        self._stop(Fault(error_class=error_class, detail=detail), now=False)

    def _stop(self, fault: Fault, *, now: bool) -> None:
        if self.finished:
            return
        if self._over:
            if not now:
                return  # the answer was over before
        elif self._fault is None:
            self._fault = fault
        self._close_connection()
        if now or not self._reads:
            self._over = True
            self._close_time(monotonic_ns())
            self._conclude()
        else:
            self._socket_done(monotonic_ns())

    def _close_time(self, now_ns: int) -> None:
        if self._result.closed_ns is None:
            self._result.closed_ns = self._stream_closed_ns or now_ns

    def _socket_done(self, now_ns: int) -> None:
        """Nothing more will be read: decode the rest, then conclude."""
        if self._over:
            return
        self._over = True
        self._close_time(now_ns)
        if self._reads:
            self._client.decoder_loop.enlist(self, urgent=True)
        else:
            self._conclude()

    def _conclude(self) -> None:
        """The result is final."""
        if self.finished:
            return
        self.finished = True
        result = self._result
        try:
            self._alarm.stop()
            self._finish_sink()
            result.body = self._whole.joined()
            if self._cut is not None and self._fault is None and not self._says_done():
                self._fault = Fault(error_class=ErrorClass.TRUNCATED, detail=self._cut)
            result.clock_step = result.clock_step or self._client.clock.steps != self._steps
            if self._client.endpoint.request_origin and self._fault is None:
                self._fault = answer_of_proxy(result, self._client.endpoint.proxy)
        except Exception as error:  # noqa: BLE001
            self._fault = Fault(error_class=ErrorClass.PARSE, detail=f"{type(error).__name__} at the end: {error}")
        finally:
            result.fault = self._fault
            self._client.forget(self)
            self._framing.close()
            self._woken.set()

    def _finish_sink(self) -> None:
        if self._reads:
            self._sink.more(self._take_all())
        self._sink.end()
        if self._says_done():
            self._result.closed_ns = self._sink.done_ns or self._result.closed_ns

    def _says_done(self) -> bool:
        return self._result.streamed and self._sink.done

    def _unwatch(self) -> None:
        if self._connection is not None:
            self._connection.unwatch()

    def _settle_connection(self) -> None:
        """Take over what the connection counted for us, and let go of it."""
        connection, result = self._connection, self._result
        if connection is None:
            return
        connection.unwatch()
        connection.owner = None
        self._connection = None
        connection.count_into(result)
        if self._client.clock.kernel and result.first_byte_ns is not None and not connection.user_reads:
            result.stamp_source = StampSource.KERNEL

    def _close_connection(self) -> None:
        connection = self._connection
        self._settle_connection()
        if connection is not None:
            connection.close()

    def _where(self) -> str:
        return self._client.endpoint.where(self._connection.peer if self._connection is not None else None)
