"""Server-sent events: bytes in, the data of whole events out. Pure; nothing depends on where the bytes were cut.

The grammar is WHATWG's (https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream), on
bytes: a payload is decoded by whoever reads it, so bad UTF-8 is no matter here. Two departures, both on purpose: an
event with empty data is not dispatched (gateways use it as a keep-alive, and it counts as one), and what stands
unterminated at the end of the stream is kept and flagged instead of dropped (`data: [DONE]` often ends without its
blank line, and a cut answer's last piece is evidence).
"""

from __future__ import annotations

from sseclient import SSEClient

_BOM = b"\xef\xbb\xbf"
_FIELD = b"data: "
_BETWEEN = b"\n\ndata: "


class EventStream:
    """Cuts one stream into events.

    `fast=False` switches the short cut for uniform events off; the results are the same (a property test holds them
    together), only slower.
    """

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_clean",
        "_fast",
        "_held",
        "_searched",
        "keepalives",
        "unterminated",
    )

    def __init__(self, *, fast: bool = True) -> None:
        self.keepalives = 0
        """Comment lines and events with empty data."""
        self.unterminated = 0
        """1 when the stream ended inside an event that had data."""
        self._fast = fast
        self._clean = fast
        """Nothing is held back, and the last byte was no CR."""
        self._at_start = True
        self._after_cr = False
        self._held = bytearray()
        self._searched = 0

    def feed(self, body: bytes) -> list[bytes]:
        """Take the next bytes; return the data of the events that they completed, in order."""
        if self._clean and body[:6] == _FIELD:
            # What engines send: one event of one line, whole.
            newline = body.find(b"\n", 6)
            if newline > 6 and body[newline:] == b"\n\n" and body.find(b"\r") < 0:
                self._at_start = False
                return [body[6:newline]]
        return self._feed_any(body)

    def close(self) -> list[bytes]:
        """The stream is over: return the data of an unterminated event (one at most), flagged in `unterminated`."""
        rest = bytes(self._held)
        self._held.clear()
        payloads = self._parse(rest + b"\n\n") if rest else []
        self.unterminated += len(payloads)
        return payloads

    def _feed_any(self, body: bytes) -> list[bytes]:
        payloads = self._take(body)
        self._clean = self._fast and not self._held and not self._after_cr
        return payloads

    def _take(self, body: bytes) -> list[bytes]:
        """Normalise line ends and BOM, hold back what is no whole event yet."""
        if self._at_start:
            body = bytes(self._held) + body
            self._held.clear()
            if len(body) < len(_BOM) and _BOM.startswith(body):
                self._held += body
                return []
            self._at_start = False
            body = body.removeprefix(_BOM)
        if self._after_cr and body:
            self._after_cr = False
            body = body.removeprefix(b"\n")
        if b"\r" in body:
            # A CR ends its line at once (the event isn't held up); an LF that follows in a later read is then skipped.
            self._after_cr = body.endswith(b"\r")
            body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        held = self._held
        held += body
        cut = held.rfind(b"\n\n", self._searched) + 2
        if cut < 2:
            self._searched = max(0, len(held) - 1)
            return []
        whole = bytes(memoryview(held)[:cut])
        del held[:cut]
        self._searched = max(0, len(held) - 1)
        payloads = _uniform(whole) if self._fast and whole.startswith(_FIELD) else None
        return self._parse(whole) if payloads is None else payloads

    def _parse(self, whole: bytes) -> list[bytes]:
        """Whole events with LF line ends, through sseclient-py.

        It is handed only what it treats rightly: no CR (it merges events on `\\n\\r\\n` and depends on cuts at
        `\\r\\r\\n`), nothing unfinished (it would dispatch half an event), and Latin-1, which maps every byte to one
        character and back (it raises on bad UTF-8).
        """
        self.keepalives += whole.count(b"\n:") + whole.startswith(b":")
        payloads = []
        for event in SSEClient(iter((whole,)), char_enc="latin-1").events():
            if event.data:
                payloads.append(event.data.encode("latin-1"))
            else:
                self.keepalives += 1
        return payloads


def _uniform(whole: bytes) -> list[bytes] | None:
    """Payloads of one-line `data: ` events that fill `whole`; None: it is something else."""
    if b"\r" in whole:
        return None
    payloads = whole[6:-2].split(_BETWEEN)
    if whole.count(b"\n") != 2 * len(payloads) or not all(payloads):
        return None
    return payloads
