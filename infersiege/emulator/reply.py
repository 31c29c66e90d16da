"""One request on its way: tokens of the model become writes, writes become truth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from infersiege.emulator.answer import Answer, collapsed
from infersiege.emulator.faults import Fault
from infersiege.emulator.frames import END, Counts, Frames, Script, http_chunk
from infersiege.emulator.frames_chat import ChatFrames, CompletionFrames
from infersiege.emulator.frames_messages import PING, MessagesFrames
from infersiege.emulator.frames_responses import ResponsesFrames
from infersiege.emulator.http1 import Connection
from infersiege.emulator.metrics import Metrics
from infersiege.emulator.model import Sequence
from infersiege.emulator.outlets import BurstOutlet, DirectOutlet, Outlet, TrickleOutlet
from infersiege.emulator.profile import PROFILES, Api
from infersiege.emulator.refusal import RefusedError, of_status
from infersiege.emulator.settings import EmulatorSettings
from infersiege.emulator.truthlog import RequestTruth

FRAMES: dict[Api, type[Frames]] = {
    Api.CHAT: ChatFrames,
    Api.COMPLETIONS: CompletionFrames,
    Api.RESPONSES: ResponsesFrames,
    Api.MESSAGES: MessagesFrames,
}
"""Protocol -> how its answers are written."""


def script_of(answer: Answer, settings: EmulatorSettings, fault: Fault, number: int) -> Script:
    """What the writing of this answer needs to know."""
    profile = PROFILES[settings.profile]
    layout = fault.usage_layout
    on_finish = answer.api in profile.usage_on_finish
    unasked = on_finish or answer.api in (Api.RESPONSES, Api.MESSAGES) or not answer.stream
    tells = layout != "missing" and (unasked or answer.include_usage or layout is not None)
    return Script(
        number=number,
        created=int(time.time()),
        model=fault.model or answer.model,
        pieces=answer.pieces,
        tool=answer.tool,
        reasoning=fault.reasoning or 0,
        profile=profile,
        tells_usage=tells,
        usage_on_every_chunk=tells and (layout == "cumulative" or answer.usage_on_every_chunk),
        usage_on_finish=layout == "merged" or (on_finish and layout != "late"),
        usage_asked=answer.include_usage,
        late_usage=layout == "late",
        timed=layout != "missing",
    )


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
        fields: dict[str, str] | None = None,
    ) -> None:
        """`fields`: header fields of this answer beside the usual ones."""
        self.sequence = sequence
        self.truth = truth
        self.last_write_ns = truth.received_ns
        self._connection = connection
        self._settings = settings
        self._fault = fault or Fault()
        answer = self._answer = collapsed(answer, self._fault)
        self._metrics = metrics
        self._over = over
        self._fields = {"x-request-id": truth.request_id, **(fields or {})}
        self._is_over = False
        self._written_tokens = 0
        self._token_ns: int | None = None
        script = script_of(answer, settings, self._fault, truth.number)
        self._frames = FRAMES[answer.api](script)
        self._per_chunk = settings.tokens_per_chunk
        self._on_every_chunk = script.usage_on_every_chunk
        self._reasoning = 0 if answer.tool is not None else script.reasoning
        self._outlet = self._choose_outlet()
        connection.on_disconnect = self.disconnected

    def start(self) -> None:
        """Headers leave at once, long before the first token, as engines' do."""
        self.truth.status = 200
        if self._answer.stream:
            self._outlet.write(self._connection.stream_head(self._fields))
            if self._fault.cut_after == 0:
                self._cut(self._fault)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def keepalive(self, now_ns: int) -> None:
        """A sign of life on a silent stream: a comment, or the ping of Anthropic's cloud."""
        if self._answer.stream:
            self.last_write_ns = now_ns
            profile = PROFILES[self._settings.profile]
            pings = profile.name == "anthropic" and self._answer.api is Api.MESSAGES
            self._outlet.write(http_chunk(PING if pings else profile.keepalive_comment))

    def token(self, due_ns: int) -> None:
        """The model gave one token; `due_ns` is when it says so."""
        if self._is_over:
            return
        sequence = self.sequence
        now_ns = time.monotonic_ns()
        if self._token_ns is None:
            self._observe_first(now_ns)
        else:
            self._metrics.next_token((now_ns - self._token_ns) / 1e9)
        self._token_ns = now_ns
        generated = sequence.generated
        if self._answer.stream:
            if generated == 1 or sequence.finished or generated - self._written_tokens >= self._per_chunk:
                self._write_tokens(generated, due_ns)
        elif sequence.finished:
            self._write_whole(due_ns)

    def _observe_first(self, now_ns: int) -> None:
        received_ns = self.truth.received_ns
        self._metrics.first_token(
            (now_ns - received_ns) / 1e9,
            max(0, (self.sequence.admitted_ns or received_ns) - received_ns) / 1e9,
            self._answer.prompt_tokens,
            self.sequence.cached_tokens or 0,
            stream=self._answer.stream,
        )

    def disconnected(self) -> None:
        self.cut_short("disconnect")

    def cut_short(self, finish: str) -> None:
        """It ends here, for a reason that is not the model's."""
        if not self._is_over:
            self.truth.finish = finish
            self.truth.done_ns = time.monotonic_ns()
            self._end()

    def refuse_in_stream(self, error: RefusedError, finish: str) -> None:
        """An error event where tokens should have been, after a 200."""
        self.truth.finish = finish
        self.truth.done_ns = time.monotonic_ns()
        data = self._frames.error(error) if self._written_tokens else self._frames.refusal(error)
        self._end()
        self._outlet.write(http_chunk(data) + END)
        self._outlet.end()

    def _choose_outlet(self) -> Outlet:
        if self._fault.burst:
            return BurstOutlet(self._connection)
        if self._fault.trickle is not None:
            return TrickleOutlet(self._connection, self._fault.trickle / 1e3)
        return DirectOutlet(self._connection)

    def _end(self) -> None:
        """Before the last write: whoever has the whole answer finds its row in the log."""
        self._is_over = True
        self.truth.cached_tokens = self.sequence.cached_tokens
        self.truth.preemptions = self.sequence.preemptions
        self._over(self)

    def _write(self, data: bytes) -> None:
        """SSE events as one HTTP chunk and one write; nothing for no bytes."""
        if data:
            self._outlet.write(http_chunk(data))

    def _write_tokens(self, stop: int, due_ns: int) -> None:
        start, fault, truth = self._written_tokens, self._fault, self.truth
        if start == 0:
            opening = self._frames.opening(self._counts(0))
            for _ in range(2 if fault.duplicate_role else 1):
                self._write(opening)
        finish = self._finish_reason() if self.sequence.finished else None
        told = self._on_every_chunk or (self.sequence.finished and self._frames.usage_with_last_text)
        counts = self._counts(stop) if told else None
        data = self._frames.tokens(start, stop, finish, counts)
        if fault.bad_json == truth.chunks + 1:
            data = data[: len(data) // 2].rstrip() + b"\n\n"
        data = http_chunk(data)
        now_ns = time.monotonic_ns()
        self._outlet.write(data)
        self._note_write(now_ns, due_ns, stop - start)
        self._written_tokens = stop
        if fault.cut_after == truth.chunks:
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
        if fault.no_finish:
            return None
        return self._frames.finish_reason(self._answer.finish_reason) if fault.finish is None else fault.finish

    def _counts(self, output_tokens: int) -> Counts:
        """What usage tells after so many tokens."""
        cached = self.sequence.cached_tokens or 0
        written = 0
        if self._answer.marks_cache:  # the full blocks of the prompt that were not in the cache before
            size = self._settings.spec.block_size
            written = self._answer.prompt_tokens // size * size - cached
        first_ns = self._token_ns if self.truth.first_token_ns is None else self.truth.first_token_ns
        admitted_ns = self.sequence.admitted_ns or self.truth.received_ns
        counts = Counts(
            prompt=self._answer.prompt_tokens,
            output=output_tokens,
            cached=cached if self._settings.cached_tokens_in_usage else None,
            cache_written=written,
            reasoning=min(output_tokens, self._reasoning),
            prefill_ms=max(0, (first_ns or admitted_ns) - admitted_ns) / 1e6,
            decode_ms=max(0, (self._token_ns or 0) - (first_ns or 0)) / 1e6,
        )
        return counts.zero() if self._fault.usage_layout == "zero" else counts

    def _finish_stream(self) -> None:
        fault = self._fault
        finish = self.truth.finish = self._finish_reason()
        self._count_finish()
        self._write(self._frames.finishing(finish, self._counts(self._written_tokens)))
        if fault.tail_delay:
            asyncio.get_running_loop().call_later(fault.tail_delay / 1e3, self._write_tail, fault)
        else:
            self._write_tail(fault)

    def _write_tail(self, fault: Fault) -> None:
        if self._is_over:  # the client left in the meantime
            return
        counts = self._counts(self._written_tokens)
        self._write(self._frames.tail(self.truth.finish, counts))
        self.truth.done_ns = time.monotonic_ns()
        mark = b"" if fault.no_done else http_chunk(self._frames.end(self.truth.finish, counts))
        if fault.end_delay:
            self._outlet.write(mark)
            asyncio.get_running_loop().call_later(fault.end_delay / 1e3, self._write_end, END)
        else:
            self._write_end(mark + END)

    def _write_end(self, data: bytes) -> None:
        if not self._is_over:
            self._end()
            self._outlet.write(data)
            self._outlet.end()

    def _write_whole(self, due_ns: int) -> None:
        tokens = self.sequence.generated
        self.truth.finish = self._finish_reason()
        body = self._frames.whole(self.truth.finish, self._counts(tokens))
        data = self._connection.whole_json(200, body, self._fields)
        self.truth.output_tokens = tokens
        self.truth.done_ns = time.monotonic_ns()
        self.truth.late_ns = self.truth.done_ns - due_ns
        self._count_finish()
        self._end()
        self._outlet.write(data)
        self._outlet.end()

    def _count_finish(self) -> None:
        self._metrics.answered(
            self._answer.finish_reason,
            (time.monotonic_ns() - self.truth.received_ns) / 1e9,
            self._answer.prompt_tokens,
            self.sequence.cached_tokens or 0,
            self.sequence.generated,
            stream=self._answer.stream,
        )

    def _cut(self, fault: Fault) -> None:
        """End the stream in the way that the fault asks for."""
        now_ns = self.truth.done_ns = time.monotonic_ns()
        at = fault.cut_after
        if at == fault.error_after:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            self.refuse_in_stream(of_status(fault.error_code, message), "error")
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
            self._outlet.write(END)
            self._outlet.end()
        else:
            self.truth.finish, self.truth.done_ns = "hang", None
            self.last_write_ns = now_ns
            self._end()
