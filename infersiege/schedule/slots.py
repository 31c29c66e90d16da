"""When which user of a closed loop is there: pure functions of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from infersiege.errors import InternalError
from infersiege.schedule.shares import check_split


class UserStage(msgspec.Struct, frozen=True):
    """Concurrent users over [start, end), offsets from the start of the load.

    The number goes from `users_from` to `users` by steps of one, evenly over `ramp_ns` and in either direction the
    first step at once: step k of n at start + k * ramp / n, so that the last one is made before the ramp is over.
    Raises InternalError for values without meaning.
    """

    start_ns: int
    end_ns: int | None
    """None: until the work is done; only the last stage may say so."""
    users_from: int
    users: int
    ramp_ns: int = 0

    def __post_init__(self) -> None:
        length_ns = None if self.end_ns is None else self.end_ns - self.start_ns
        times_ok = self.start_ns >= 0 and self.ramp_ns >= 0 and (length_ns is None or length_ns >= max(1, self.ramp_ns))
        if not times_ok or min(self.users_from, self.users) < 0:
            raise InternalError(f"{self} makes no sense")


class Slot(msgspec.Struct, frozen=True):
    """User `number` is to be there over [start, end)."""

    number: int
    """From 0 on; of the users that are there at a time, those that came last have the highest."""
    start_ns: int
    end_ns: int | None
    """None: until the work is done."""


def user_slots(stages: Sequence[UserStage], place: int = 0, members: int = 1) -> list[Slot]:
    """Slots of the users with number `place` modulo `members`, by start, then number.

    At every instant the number of slots over all workers is `users_at`; it is the lowest numbers that are there. Time
    that a user spends in stages without a gap between them is one slot; a gap ends every slot. Raises InternalError for
    stages that overlap or go back.
    """
    check_split(place, members)
    _check_order(stages)
    slots: list[Slot] = []
    open_slots: dict[int, Slot] = {}
    for stage in stages:
        here: dict[int, Slot] = {}
        for number in range(place, max(stage.users_from, stage.users), members):
            start_ns, end_ns = _presence(stage, number)
            if start_ns == end_ns:
                continue
            before = open_slots.get(number)
            if before is not None and before.end_ns == start_ns:
                del open_slots[number]
                start_ns = before.start_ns
            here[number] = Slot(number, start_ns, end_ns)
        slots += open_slots.values()
        open_slots = here
    slots += open_slots.values()
    return sorted(slots, key=lambda slot: (slot.start_ns, slot.number))


def users_at(stages: Sequence[UserStage], at_ns: int) -> int:
    """The asked number of users at an offset; 0 between stages and after the last."""
    for stage in stages:
        if stage.start_ns <= at_ns and (stage.end_ns is None or at_ns < stage.end_ns):
            steps = abs(stage.users - stage.users_from)
            since_ns = at_ns - stage.start_ns
            # Steps k with k * ramp // steps <= since, that is k * ramp < (since + 1) * steps.
            ramp_ns = stage.ramp_ns
            made = steps if since_ns >= ramp_ns else min(steps, ((since_ns + 1) * steps - 1) // ramp_ns + 1)
            return stage.users_from + (made if stage.users > stage.users_from else -made)
    return 0


def ramp_offsets(users: int, ramp_ns: int, place: int = 0, members: int = 1) -> list[int]:
    """When each user of one worker starts: user u of all at u * ramp / users, so that workers interleave evenly."""
    return [slot.start_ns for slot in user_slots([UserStage(0, None, 0, users, ramp_ns)], place, members)]


def _presence(stage: UserStage, number: int) -> tuple[int, int | None]:
    """From when to when a user is there in one stage; one of no length is none."""
    steps = abs(stage.users - stage.users_from)
    if number < min(stage.users, stage.users_from):
        return stage.start_ns, stage.end_ns
    if stage.users > stage.users_from:
        return stage.start_ns + (number - stage.users_from) * stage.ramp_ns // steps, stage.end_ns
    return stage.start_ns, stage.start_ns + (stage.users_from - 1 - number) * stage.ramp_ns // steps


def _check_order(stages: Sequence[UserStage]) -> None:
    for before, after in pairwise(stages):
        if before.end_ns is None or after.start_ns < before.end_ns:
            raise InternalError(f"{after} begins before {before} is over")
