"""What became of the points that a writer was given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Points since the writer began; written = acknowledged + rejected + spooled + dropped + in_memory, always."""

    written: int
    """Given to `put`, with at least one value."""
    acknowledged: int
    """Taken by the database."""
    rejected: int
    """Refused by the database for good; set aside in the spool as `.bad` files, within bounds."""
    spooled: int
    """On disk, waiting; the next writer to the same database sends them."""
    dropped: int
    """Lost, because spool and memory were full, or because the disk failed until the end."""
    left_out: int
    """Values that were not finite numbers (NaN, infinite), and whole points that can't be written down."""
    taken_up: int
    """Points of earlier writers that this one has delivered. Not among `written`."""
    inherited: int = 0
    """Points of earlier writers that still wait. Not among `written`."""
    lost_before: int = 0
    """Points that earlier writers lost when they were killed (not on disk yet), as far as this one found them first.
    Not among `written`."""

    @property
    def in_memory(self) -> int:
        """Not on disk yet; 0 once the writer is closed."""
        return self.written - self.acknowledged - self.rejected - self.spooled - self.dropped
