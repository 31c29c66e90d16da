"""Faults on demand: what a request, or the command line, asks the emulator to do wrong.

Written as `name=value,name=value` (header `x-emulate` or option `--fault`). Counts are content chunks, times are
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from infersiege.errors import UsageError

USAGE_LAYOUTS = ("missing", "zero", "cumulative", "merged", "late")
"""Nowhere · all counts 0 · on every chunk · on the chunk with the finish reason · only in an event after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """All that can go wrong with one answer. None or False: it does not."""

    status: int | None = None
    """Answer with this status and the profile's error body instead of a stream."""
    retry_after: str | None = None
    """Value of a Retry-After header, with `status`."""
    retry_after_ms: int | None = None
    """Value of a `retry-after-ms` header, with `status`."""
    retry_date: int | None = None
    """Retry-After as the HTTP date that is so many seconds away, with `status`."""
    refuse_field: str | None = None
    """400 that names this field, if the request has it."""
    context: bool = False
    """400, prompt longer than the context."""
    echo_key: bool = False
    """401 whose body repeats the Authorization header."""
    html: bool = False
    """200 with a login page."""
    empty: bool = False
    """200 with an empty body: an event stream without a byte, or no bytes of JSON."""
    json_error: bool = False
    """200 application/json with an error object, also when a stream was asked for."""
    error_after: int | None = None
    """An error event after so many chunks, in the form of profile and protocol."""
    error_code: int = 500
    """What went wrong there, as the status that it would have."""
    reset_after: int | None = None
    """TCP reset after so many chunks; 0: right after the headers."""
    close_after: int | None = None
    """Close the connection after so many chunks, the chunked body unfinished; 0: right after the headers."""
    eof_after: int | None = None
    """End the body properly after so many chunks, with no finish reason and no end mark."""
    hang_after: int | None = None
    """Say nothing more after so many chunks, but keep the connection."""
    no_done: bool = False
    """No `[DONE]`, `message_stop` or `response.completed`."""
    no_usage: bool = False
    """The same as `usage=missing`."""
    usage: str | None = None
    """Layout of the usage: one of USAGE_LAYOUTS."""
    model: str | None = None
    """The answer names this model."""
    no_finish: bool = False
    """No finish reason anywhere."""
    finish: str | None = None
    """This finish reason instead of the true one."""
    bad_json: int | None = None
    """The chunk with this number (from 1) is cut in the middle of its JSON."""
    duplicate_role: bool = False
    """Send the events before the first token twice."""
    reasoning: int | None = None
    """So many leading tokens go out as reasoning."""
    loop: bool = False
    """The answer is a few words over and over, as of an engine that collapsed."""
    garble: bool = False
    """The answer is full of replacement characters."""
    burst: bool = False
    """Hold everything back and write it at once at the end."""
    trickle: int | None = None
    """Write 16 bytes at a time with this pause between, so that events and characters are cut."""
    delay: int | None = None
    """Take the request into the queue so much later."""
    tail_delay: int | None = None
    """Usage and end mark come so much after the last token."""
    end_delay: int | None = None
    """The end of the chunked body comes so much after the end mark."""

    def __str__(self) -> str:
        """The written form, which `parse_fault` reads."""
        given = [(entry.name, getattr(self, entry.name), entry.default) for entry in fields(self)]
        return ",".join(name if value is True else f"{name}={value}" for name, value, usual in given if value != usual)

    @property
    def early(self) -> bool:
        """Whether the answer is made without the engine."""
        return self.status is not None or self.context or self.echo_key or self.html or self.empty or self.json_error

    @property
    def usage_layout(self) -> str | None:
        """None: as the profile does."""
        return "missing" if self.no_usage else self.usage

    @property
    def cut_after(self) -> int | None:
        """After how many content chunks the stream ends badly; None: it does not."""
        cuts = (self.error_after, self.reset_after, self.close_after, self.eof_after, self.hang_after)
        return min((cut for cut in cuts if cut is not None), default=None)


_KINDS = {entry.name: str(entry.type) for entry in fields(Fault)}


def parse_fault(text: str, base: Fault | None = None) -> Fault:
    """A fault from its written form, on top of `base`. Raises UsageError that names the part and the legal names."""
    values: dict[str, object] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        kind = _KINDS.get(name)
        if kind is None:
            raise UsageError(f"fault {part!r}: there is no {name!r}", hint=f"known are {', '.join(sorted(_KINDS))}")
        if kind == "bool":
            if equals and value not in ("1", "true"):
                raise UsageError(f"fault {part!r}: {name} takes no value", hint=f"write {name!r}")
            values[name] = True
        elif "str" in kind:
            if not value or not value.isprintable():
                raise UsageError(f"fault {part!r}: {name} needs a value", hint=f"such as {name}=stop")
            values[name] = value
        else:
            if not (value.isascii() and value.isdigit()):
                raise UsageError(f"fault {part!r}: {name} needs a whole number", hint=f"such as {name}=3")
            values[name] = int(value)
    fault = replace(base or Fault(), **values)  # type: ignore[arg-type]
    if fault.status is not None and not 200 <= fault.status <= 599:
        raise UsageError(f"fault {text!r}: status {fault.status} is not from 200 to 599")
    if fault.usage is not None and fault.usage not in USAGE_LAYOUTS:
        raise UsageError(
            f"fault {text!r}: no usage layout {fault.usage!r}", hint=f"known are {', '.join(USAGE_LAYOUTS)}"
        )
    return fault
