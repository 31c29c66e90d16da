"""The sink of one streamed answer: events, the dialect's decoder, and when each chunk arrived."""

from __future__ import annotations

from array import array

import numpy as np

from infersiege.channels.dialect import ANSWER, DONE, TEXT, Decoder, StreamFault
from infersiege.metrics.histogram import buckets_of
from infersiege.records import ErrorClass
from infersiege.wire.sse import EventStream

SECOND_NS = 1_000_000_000
QUOTED_BYTES = 80


class Answer:
    """A `BodySink` (wire/exchange.py): hand it to `Client.start`, read it after `Exchange.wait` or `abort`.

    Instants are those of the transport's stamps, ns of the monotonic clock. None: did not happen. A chunk is one event
    with generated text (the decoder's TEXT flag), whatever number of tokens it holds.

    * `first_token_slack_ns`: the stamp of a read is that of its last segment. When the first token's event ends its
      read, the stamp is the arrival of exactly that event and the doubt is 0, whatever stood before it. When
      something follows it in the read, the token may have come as early as the read's `earliest_ns`.
    * `gaps`: from the second chunk on, stamp minus the stamp of the chunk before. Chunks that share a read have no
      gap of their own (`coalesced` counts all of them); the read's stamp is the reference for the next gap.
    """

    __slots__ = (
        "_counts",
        "_epoch_offset_ns",
        "_events",
        "_extra",
        "_last_read_ns",
        "_stamps",
        "chunks",
        "chunks_by_second",
        "coalesced",
        "decoder",
        "done_ns",
        "ended",
        "fault",
        "first_answer_ns",
        "first_token_ns",
        "first_token_slack_ns",
        "gaps",
        "last_token_ns",
    )

    def __init__(self, decoder: Decoder, *, epoch_offset_ns: int = 0) -> None:
        """`epoch_offset_ns`: Unix epoch minus the monotonic clock, for `chunks_by_second`."""
        self.decoder = decoder
        self.first_token_ns: int | None = None
        self.first_token_slack_ns: int | None = None
        self.first_answer_ns: int | None = None
        self.last_token_ns: int | None = None
        self.done_ns: int | None = None
        """Stamp of the read in which the stream said that it is over."""
        self.chunks = 0
        """Filled by `end`, as `coalesced` is; before that see `chunks_so_far`."""
        self.coalesced = 0
        self.chunks_by_second: dict[int, int] = {}
        """Unix second -> chunks that arrived in it; filled by `end`."""
        self.gaps: dict[int, int] = {}
        """Histogram bucket -> gaps; filled by `end`."""
        self.fault: StreamFault | None = None
        """The first payload that is no JSON of this dialect."""
        self.ended = False
        self._epoch_offset_ns = epoch_offset_ns
        self._events = EventStream()
        # One entry per read that held chunks; counts are kept only where they are not 1.
        self._stamps = array("q")
        self._last_read_ns: int | None = None
        self._counts: dict[int, int] = {}
        self._extra = 0
        """Chunks beyond the first of their read."""

    @property
    def done(self) -> bool:
        return self.done_ns is not None

    @property
    def chunks_so_far(self) -> int:
        """Chunks that were decoded; what `chunks` is after `end`."""
        return len(self._stamps) + self._extra

    @property
    def keepalives(self) -> int:
        """Comment lines and empty events."""
        return self._events.keepalives

    @property
    def unterminated(self) -> bool:
        """The stream ended inside an event; it was taken into account all the same."""
        return self._events.unterminated > 0

    def first(self, stamp_ns: int, earliest_ns: int, body: bytes) -> bool:
        self.more([(stamp_ns, body)], earliest_ns)
        return self.first_token_ns is not None

    def more(self, reads: list[tuple[int, bytes]], earliest_ns: int | None = None) -> bool:
        cut = self._events.feed
        feed = self.decoder.feed
        stamps = self._stamps
        if reads:
            self._last_read_ns = reads[-1][0]
        for stamp_ns, body in reads:
            if self.done_ns is not None:
                break
            payloads = cut(body)
            if len(payloads) == 1 and self.first_token_ns is not None:
                # One event in one read, after the first token: nearly every read there is.
                try:
                    flags = feed(payloads[0])
                except ValueError as error:
                    self._bad_payload(payloads[0], error)
                    continue
                if flags & TEXT:
                    stamps.append(stamp_ns)
                    if flags & ANSWER and self.first_answer_ns is None:
                        self.first_answer_ns = stamp_ns
                if flags & DONE:
                    self.done_ns = stamp_ns
            elif payloads:
                self._several(stamp_ns, stamp_ns if earliest_ns is None else earliest_ns, payloads, body)
        return self.done_ns is not None

    def end(self) -> None:
        """Take what stood unterminated, and fill the figures. A second call does nothing."""
        if self.ended:
            return
        self.ended = True
        if self.done_ns is None:
            self._unterminated()
        self._figures()

    def _several(self, stamp_ns: int, earliest_ns: int, payloads: list[bytes], body: bytes) -> None:
        """Any read: it may hold the first token, the first answer, and more than one chunk."""
        chunks = 0
        last = len(payloads) - 1
        for index, payload in enumerate(payloads):
            try:
                flags = self.decoder.feed(payload)
            except ValueError as error:
                self._bad_payload(payload, error)
                continue
            if flags & TEXT:
                chunks += 1
                if self.first_token_ns is None:
                    self.first_token_ns = stamp_ns
                    alone = index == last and _ends_with(body, payload)
                    self.first_token_slack_ns = 0 if alone else max(0, stamp_ns - earliest_ns)
                if flags & ANSWER and self.first_answer_ns is None:
                    self.first_answer_ns = stamp_ns
            if flags & DONE:
                self.done_ns = stamp_ns
                break
        if chunks:
            if chunks > 1:
                self._counts[len(self._stamps)] = chunks
                self._extra += chunks - 1
            self._stamps.append(stamp_ns)

    def _unterminated(self) -> None:
        for payload in self._events.close():
            try:
                flags = self.decoder.feed(payload)
            except ValueError:
                continue  # cut in the middle: the transport tells how the stream ended, this is no fault of its own
            if flags & DONE:
                self.done_ns = self._last_read_ns
            # Text in it counts as text, but it has no arrival time of its own: the event was never completed.

    def _figures(self) -> None:
        if not self._stamps:
            return
        stamps = np.frombuffer(self._stamps, dtype=np.int64)
        self.last_token_ns = int(stamps[-1])
        counts = np.ones(len(stamps), dtype=np.int64)
        for index, count in self._counts.items():
            counts[index] = count
        self.chunks = int(counts.sum())
        self.coalesced = sum(self._counts.values())
        seconds, where = np.unique((stamps + self._epoch_offset_ns) // SECOND_NS, return_inverse=True)
        per_second = np.bincount(where, weights=counts)
        self.chunks_by_second = {int(s): int(n) for s, n in zip(seconds, per_second, strict=True)}
        gaps = np.diff(stamps)[counts[1:] == 1]
        buckets, totals = np.unique(buckets_of(np.maximum(gaps, 0)), return_counts=True)
        self.gaps = {int(b): int(n) for b, n in zip(buckets, totals, strict=True)}

    def _bad_payload(self, payload: bytes, error: ValueError) -> None:
        if self.fault is None:
            quoted = payload[:QUOTED_BYTES].decode("utf-8", "backslashreplace")
            self.fault = StreamFault(error_class=ErrorClass.PARSE, detail=f"event is not valid ({error}): {quoted!r}")


def _ends_with(body: bytes, payload: bytes) -> bool:
    """Whether the event of this payload is the last thing in the read (its beginning may have come in reads before)."""
    text = body.rstrip(b"\r\n")
    return text.endswith(payload) or payload.endswith(text)
