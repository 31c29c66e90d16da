"""A share of a load's sessions replaced by others: the arrivals stay what they are.

Ticket k is replaced when (u0 + k * sqrt(2)) mod 1 lies below the share. Such points are spread as evenly as points can
be, in the whole sequence and in every worker's part of it; and, sqrt(2) and the golden ratio having nothing to do with
each other, over the workloads that `Deal` gives out by the golden ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from hashlib import blake2b

import msgspec

from infersiege.errors import InternalError
from infersiege.schedule.tickets import Ticket

_ROOT = 0x6A09E667F3BCC909
"""2**64 times the fraction of sqrt(2)."""
_WORD = 1 << 64


def replaced(tickets: Iterator[Ticket], share: float, seed: int, instead: Mapping[int, int]) -> Iterator[Ticket]:
    """All tickets of one stream, in order, a share of them for other workloads.

    `instead`: workload of a ticket -> the workload that takes its place; sessions of these are numbered from 0. The
    tickets must be those of all workers: a worker's own part is taken afterwards. Raises InternalError unless
    0 < share < 1.
    """
    if not 0.0 < share < 1.0:
        raise InternalError(f"a share of {share} sessions can't be replaced")
    bound = int(Fraction(share) * _WORD)
    start = int.from_bytes(blake2b(f"{seed}\0replaced".encode(), digest_size=8).digest(), "little")
    counts = dict.fromkeys(instead.values(), 0)
    for ticket in tickets:
        other = instead.get(ticket.workload)
        if other is None or (start + ticket.index * _ROOT) % _WORD >= bound:
            yield ticket
            continue
        yield msgspec.structs.replace(ticket, workload=other, session_index=counts[other])
        counts[other] += 1
