"""One chat request on its way: tokens of the model become writes, writes become truth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from infersiege.emulator import frames
from infersiege.emulator.answer import Answer
from infersiege.emulator.faults import Fault
from infersiege.emulator.frames import Frames
from infersiege.emulator.http1 import Connection, head, whole_json
from infersiege.emulator.metrics import Metrics
from infersiege.emulator.model import Sequence
from infersiege.emulator.outlets import BurstOutlet, DirectOutlet, Outlet, TrickleOutlet
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.truthlog import RequestTruth

STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}


class Reply:
    """Writes one answer. `over(reply)` is called exactly once: written, cut, or the client left."""

    def __init__(
        self,
        connection: Connection,
        answer: Answer,
        sequence: Sequence,
        settings: EmulatorSettings,
        fault: Fault | None,
        truth: RequestTruth,
        metrics: Metrics,
        over: Callable[[Reply], None],
    ) -> None:
        self.sequence = sequence
        self.truth = truth
        self.last_write_ns = truth.received_ns
        self._connection = connection
        self._answer = answer
        self._settings = settings
        self._fault = fault
        self._metrics = metrics
        self._over = over
        self._is_over = False
        self._written_tokens = 0
        self._token_ns: int | None = None
        answer_id = f"chatcmpl-{truth.number:016x}"
        self._frames = Frames(answer_id, int(time.time()), settings.model, answer.pieces, answer.tool)
        self._per_chunk = settings.tokens_per_chunk
        self._on_every_chunk = answer.usage_on_every_chunk
        self._outlet = self._choose_outlet()
        connection.on_disconnect = self.disconnected

    def start(self) -> None:
        """Headers leave at once, long before the first token, as vLLM's do."""
        self.truth.status = 200
        if self._answer.stream:
            self._outlet.write(head(200, {**STREAM_HEADERS, "x-request-id": self.truth.request_id}))
            if self._fault is not None and self._fault.cut_after == 0:
                self._cut(self._fault)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def keepalive(self, now_ns: int) -> None:
        if self._answer.stream:
            self.last_write_ns = now_ns
            self._outlet.write(frames.KEEPALIVE)

    def token(self, due_ns: int) -> None:
        """The model gave one token; `due_ns` is when it says so."""
        if self._is_over:
            return
        sequence = self.sequence
        now_ns = time.monotonic_ns()
        metrics = self._metrics
        if self._token_ns is None:
            metrics.ttft.observe((now_ns - self.truth.received_ns) / 1e9)
            admitted_ns = sequence.admitted_ns or self.truth.received_ns
            metrics.queue_time.observe(max(0, admitted_ns - self.truth.received_ns) / 1e9)
        else:
            metrics.itl.observe((now_ns - self._token_ns) / 1e9)
        self._token_ns = now_ns
        generated = sequence.generated
        if self._answer.stream:
            if generated == 1 or sequence.finished or generated - self._written_tokens >= self._per_chunk:
                self._write_tokens(generated, due_ns)
        elif sequence.finished:
            self._write_whole(due_ns)

    def disconnected(self) -> None:
        self.cut_short("disconnect")

    def cut_short(self, finish: str) -> None:
        """It ends here, for a reason that is not the model's."""
        if not self._is_over:
            self.truth.finish = finish
            self.truth.done_ns = time.monotonic_ns()
            self._end()

    def refuse_in_stream(self, error: dict[str, Any], finish: str) -> None:
        """An error event where tokens should have been, then [DONE]: what vLLM does after a 200."""
        self.truth.finish = finish
        self.truth.done_ns = time.monotonic_ns()
        self._outlet.write(frames.event({"error": error}))
        self._end()
        self._outlet.write(frames.DONE + frames.END)
        self._outlet.end()

    def _choose_outlet(self) -> Outlet:
        if self._fault is not None and self._fault.burst:
            return BurstOutlet(self._connection)
        if self._fault is not None and self._fault.trickle is not None:
            return TrickleOutlet(self._connection, self._fault.trickle / 1e3)
        return DirectOutlet(self._connection)

    def _end(self) -> None:
        """Before the last write: whoever has the whole answer finds its row in the log."""
        self._is_over = True
        self.truth.cached_tokens = self.sequence.cached_tokens
        self.truth.preemptions = self.sequence.preemptions
        self._over(self)

    def _write_tokens(self, stop: int, due_ns: int) -> None:
        start = self._written_tokens
        fault = self._fault
        truth = self.truth
        if start == 0:
            role = self._frames.role(self._usage(0) if self._on_every_chunk else None)
            self._outlet.write(role)
            if fault is not None and fault.duplicate_role:
                self._outlet.write(role)
        finish = self._finish_reason() if self.sequence.finished else None
        usage = self._usage(stop) if self._on_every_chunk else None
        thinking = fault is not None and fault.reasoning is not None and start < fault.reasoning
        data = self._frames.tokens(start, stop, finish, usage, reasoning=thinking)
        if fault is not None and fault.bad_json == truth.chunks + 1:
            data = data[: len(data) // 2].rstrip() + b"\n\n"
        data = b"%x\r\n%b\r\n" % (len(data), data)
        now_ns = time.monotonic_ns()
        self._outlet.write(data)
        self._note_write(now_ns, due_ns, stop - start)
        self._written_tokens = stop
        if fault is not None and fault.cut_after == truth.chunks:
            self._cut(fault)
        elif self.sequence.finished:
            self._finish_stream()

    def _note_write(self, now_ns: int, due_ns: int, tokens: int) -> None:
        truth = self.truth
        if truth.first_token_ns is None:
            truth.first_token_ns = now_ns
        truth.last_token_ns = self.last_write_ns = now_ns
        truth.output_tokens += tokens
        truth.chunks += 1
        late_ns = now_ns - due_ns
        if truth.late_ns is None or late_ns > truth.late_ns:
            truth.late_ns = late_ns
            if late_ns > self._metrics.worst_lateness_ns:
                self._metrics.worst_lateness_ns = late_ns
        if truth.token_writes is not None:
            truth.token_writes.append((now_ns, tokens))

    def _finish_reason(self) -> str | None:
        fault = self._fault
        if fault is not None and fault.no_finish:
            return None
        return self._answer.finish_reason if fault is None or fault.finish is None else fault.finish

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        cached = self.sequence.cached_tokens if self._settings.cached_tokens_in_usage else None
        return frames.usage_of(self._answer.prompt_tokens, output_tokens, cached)

    def _finish_stream(self) -> None:
        fault = self._fault or Fault()
        self.truth.finish = self._finish_reason()
        self._count_finish()
        if fault.tail_delay:
            asyncio.get_running_loop().call_later(fault.tail_delay / 1e3, self._write_tail, fault)
        else:
            self._write_tail(fault)

    def _write_tail(self, fault: Fault) -> None:
        if self._is_over:  # the client left in the meantime
            return
        if self._answer.include_usage and not fault.no_usage:
            self._outlet.write(self._frames.usage(self._usage(self._written_tokens)))
        self.truth.done_ns = time.monotonic_ns()
        if fault.end_delay:
            if not fault.no_done:
                self._outlet.write(frames.DONE)
            asyncio.get_running_loop().call_later(fault.end_delay / 1e3, self._write_end, frames.END)
        else:
            self._write_end(frames.END if fault.no_done else frames.DONE + frames.END)

    def _write_end(self, data: bytes) -> None:
        if not self._is_over:
            self._end()
            self._outlet.write(data)
            self._outlet.end()

    def _write_whole(self, due_ns: int) -> None:
        tokens = self.sequence.generated
        self.truth.finish = self._finish_reason()
        body = self._frames.whole(self._answer.pieces, self.truth.finish, self._usage(tokens))
        if self._fault is not None and self._fault.no_usage:
            del body["usage"]
        data = whole_json(200, body, x_request_id=self.truth.request_id)
        self.truth.output_tokens = tokens
        self.truth.done_ns = time.monotonic_ns()
        self.truth.late_ns = self.truth.done_ns - due_ns
        self._count_finish()
        self._end()
        self._outlet.write(data)
        self._outlet.end()

    def _count_finish(self) -> None:
        reason = self._answer.finish_reason
        self._metrics.finished["length" if reason == "length" else "stop"] += 1
        self._metrics.e2e.observe((time.monotonic_ns() - self.truth.received_ns) / 1e9)

    def _cut(self, fault: Fault) -> None:
        """End the stream in the way that the fault asks for."""
        now_ns = self.truth.done_ns = time.monotonic_ns()
        at = fault.cut_after
        if at == fault.error_after:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            kind = "Service Unavailable" if fault.error_code == 503 else "InternalServerError"
            self.refuse_in_stream({"message": message, "type": kind, "param": None, "code": fault.error_code}, "error")
        elif at == fault.reset_after:
            self.truth.finish = "reset"
            self._end()
            self._connection.reset()
        elif at == fault.close_after:
            self.truth.finish = "close"
            self._end()
            self._connection.close()
        elif at == fault.eof_after:
            self.truth.finish = "eof"
            self._end()
            self._outlet.write(frames.END)
            self._outlet.end()
        else:
            self.truth.finish, self.truth.done_ns = "hang", None
            self.last_write_ns = now_ns
            self._end()
