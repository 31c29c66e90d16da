"""What of a sequence belongs to worker `place` of `members`: the same rule for arrivals and for users."""

from __future__ import annotations

from infersiege.errors import InternalError


def check_split(place: int, members: int, first: int = 0) -> None:
    """Raises InternalError for a place that no worker can have."""
    if members < 1 or not 0 <= place < members or first < 0:
        raise InternalError(f"place {place} of {members} members from arrival {first} on makes no sense")


def is_mine(index: int, place: int, members: int, first: int) -> bool:
    return index >= first and (index - first) % members == place


def users_share(users: int, place: int, members: int) -> int:
    """Users of worker `place` of `members`; the shares add up to `users` and differ by at most one."""
    check_split(place, members)
    return users // members + (place < users % members)
