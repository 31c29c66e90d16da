"""The truth log: one JSON line per request for an answer, written and flushed at its end.

All `_ns` values are `time.monotonic_ns()` of this host: comparable with any process on the same machine that reads
CLOCK_MONOTONIC. docs/emulator.md lists the fields.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from infersiege.errors import UsageError


@dataclass(slots=True)
class RequestTruth:
    """What really happened to one request. None: it did not happen, or is not known."""

    number: int
    request_id: str
    connection: int
    api: str = "chat"
    """`chat`, `completions`, `responses` or `messages`."""
    stream: bool | None = None
    status: int | None = None
    """None: nothing was answered."""
    finish: str | None = None
    """The finish reason sent, or `disconnect`, `error`, `reset`, `close`, `eof`, `hang`, `rejected`, `stopped`."""
    received_ns: int = 0
    """The whole request had been read."""
    first_token_ns: int | None = None
    """Just before the write that held the first token."""
    last_token_ns: int | None = None
    done_ns: int | None = None
    """Just before the write that ended the answer, or when it was cut."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    """Tokens written."""
    chunks: int = 0
    """Writes that held tokens."""
    preemptions: int = 0
    late_ns: int | None = None
    """How much later than the model's time its tokens were written, at worst."""
    fault: str | None = None
    token_writes: list[tuple[int, int]] | None = None
    """(instant, tokens) of each content write, with --log-tokens."""


class TruthLog:
    """Appends to a file; does nothing without one."""

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError when the file can't be written."""
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise UsageError(f"{path}: can't be written: {error.strerror}", hint="choose another --log") from None

    def write(self, truth: RequestTruth) -> None:
        """One line, in the hands of the kernel when this returns."""
        if self._file is not None:
            row = asdict(truth)
            if row["token_writes"] is None:
                del row["token_writes"]
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
