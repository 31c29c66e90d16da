"""The lines of a spool's journal as they were written: infersiege reads them merged (swarm.leftovers)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from infersiege.swarm.spool import JOURNAL, JournalLine


def read_journal(directory: Path) -> Iterator[JournalLine]:
    """The journal of a dead worker; a torn last line is dropped."""
    path = directory / JOURNAL
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(JournalLine)
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield decoder.decode(line)
