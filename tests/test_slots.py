"""Users over time: at every instant as many as asked, the same on any number of workers."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError
from infersiege.schedule import SECOND_NS, Slot, UserStage, ramp_offsets, user_slots, users_at, users_share

HOUR_NS = 3600 * SECOND_NS
S = SECOND_NS


def there(slots: list[Slot], at_ns: int) -> list[int]:
    return sorted(
        slot.number for slot in slots if slot.start_ns <= at_ns and (slot.end_ns is None or at_ns < slot.end_ns)
    )


def instants(slots: list[Slot], stages: list[UserStage]) -> list[int]:
    """Each time at which something changes, one nanosecond before and after it, and the middle of each ramp."""
    ends = [slot.end_ns for slot in slots if slot.end_ns is not None]
    times = {slot.start_ns for slot in slots} | set(ends) | {stage.start_ns for stage in stages}
    times |= {stage.start_ns + part for stage in stages for part in (stage.ramp_ns // 2, stage.ramp_ns)}
    return sorted({max(0, at + step) for at in times for step in (-1, 0, 1)})


@st.composite
def user_stages(draw: st.DrawFn) -> list[UserStage]:
    """Steps and ramps in both directions, pauses, a first stage that starts late, a last one without end."""
    stages: list[UserStage] = []
    at_ns, users = draw(st.sampled_from([0, 0, 3 * S])), 0
    for left in range(draw(st.integers(1, 5)), 0, -1):
        target = draw(st.integers(0, 25))
        length_ns = draw(st.sampled_from([1, 7, 10 * S, 60 * S + 1]))
        ramp_ns = draw(st.sampled_from([0, length_ns // 3, length_ns]))
        endless = left == 1 and draw(st.booleans())
        stages.append(UserStage(at_ns, None if endless else at_ns + length_ns, users, target, ramp_ns))
        pause_ns = draw(st.sampled_from([0, 0, 1, 5 * S]))
        at_ns, users = at_ns + length_ns + pause_ns, 0 if pause_ns else target
    return stages


@settings(deadline=None, max_examples=120)
@given(stages=user_stages())
def test_ls_05_at_every_instant_there_are_as_many_users_as_asked(stages):
    """LS-05, against the straight line of each ramp, worked out here in fractions: never more than its higher end."""
    slots = user_slots(stages)
    for at_ns in instants(slots, stages):
        count = len(there(slots, at_ns))
        assert count == users_at(stages, at_ns)
        stage = next((s for s in stages if s.start_ns <= at_ns and (s.end_ns is None or at_ns < s.end_ns)), None)
        if stage is None:
            assert count == 0, "between stages and after the last there is nobody"
            continue
        since_ns = at_ns - stage.start_ns
        if since_ns >= stage.ramp_ns:
            assert count == stage.users
            continue
        assert min(stage.users_from, stage.users) <= count <= max(stage.users_from, stage.users)
        line, later = (
            stage.users_from + (stage.users - stage.users_from) * Fraction(min(at, stage.ramp_ns), stage.ramp_ns)
            for at in (since_ns, since_ns + 1)
        )
        if stage.users >= stage.users_from:
            assert line <= count <= later + 1, "the first of them comes at once"
        else:
            assert later - 1 <= count <= line, "the first of them leaves at once"


@settings(deadline=None, max_examples=80)
@given(stages=user_stages(), members=st.sampled_from([1, 2, 7]))
def test_workers_share_slots_exactly_and_evenly_at_every_instant(stages, members):
    alone = user_slots(stages)
    parts = [user_slots(stages, place, members) for place in range(members)]
    together = sorted((slot for part in parts for slot in part), key=lambda slot: (slot.start_ns, slot.number))
    assert together == alone
    for place, part in enumerate(parts):
        assert all(slot.number % members == place for slot in part)
        for at_ns in instants(alone, stages):
            assert len(there(part, at_ns)) == users_share(users_at(stages, at_ns), place, members)


@settings(deadline=None, max_examples=80)
@given(stages=user_stages())
def test_the_last_to_come_are_the_first_to_leave_and_nobody_is_there_twice(stages):
    slots = user_slots(stages)
    for at_ns in instants(slots, stages):
        present = there(slots, at_ns)
        assert present == list(range(len(present))), "the lowest numbers, each once"
    by_number = defaultdict(list)
    for slot in slots:
        assert slot.end_ns is None or slot.end_ns > slot.start_ns
        by_number[slot.number].append(slot)
    for mine in by_number.values():
        for before, after in pairwise(mine):
            assert before.end_ns is not None and before.end_ns < after.start_ns, "or they would be one slot"


@pytest.mark.parametrize(
    ("stages", "slots", "reason"),
    [
        (
            [UserStage(0, 10, 0, 2), UserStage(10, 20, 2, 3), UserStage(20, 30, 3, 1)],
            [Slot(0, 0, 30), Slot(1, 0, 20), Slot(2, 10, 20)],
            "steps without a gap: who stays has one slot",
        ),
        (
            [UserStage(0, 10, 0, 2), UserStage(12, 20, 0, 2)],
            [Slot(0, 0, 10), Slot(1, 0, 10), Slot(0, 12, 20), Slot(1, 12, 20)],
            "a gap ends every slot",
        ),
        (
            [UserStage(0, 40, 0, 4, 20)],
            [Slot(0, 0, 40), Slot(1, 5, 40), Slot(2, 10, 40), Slot(3, 15, 40)],
            "up: the first at once, the last a step before the ramp is over",
        ),
        (
            [UserStage(0, 10, 0, 4), UserStage(10, 40, 4, 1, 12)],
            [Slot(0, 0, 40), Slot(1, 0, 18), Slot(2, 0, 14), Slot(3, 0, 10)],
            "down: the last to come leaves at once",
        ),
        (
            [UserStage(0, 10, 0, 3), UserStage(10, 20, 3, 1), UserStage(20, 30, 1, 3)],
            [Slot(0, 0, 30), Slot(1, 0, 10), Slot(2, 0, 10), Slot(1, 20, 30), Slot(2, 20, 30)],
            "who was away comes back in a slot of its own",
        ),
        ([UserStage(5, None, 0, 1)], [Slot(0, 5, None)], "until the work is done"),
        ([UserStage(0, 10, 0, 0)], [], "nobody asked for"),
        ([], [], "no stages"),
    ],
)
def test_slots(stages, slots, reason):
    assert user_slots(stages) == slots, reason


def test_ls_16_a_spike_of_many_users_takes_no_time_to_plan_for_one_worker():
    """LS-16: stages are made before the load, so nothing ticks while users are being spawned."""
    stages = [
        UserStage(0, 60 * S, 0, 10),
        UserStage(60 * S, 90 * S, 10, 100_000, 10 * S),
        UserStage(90 * S, HOUR_NS, 100_000, 10, 10 * S),
    ]
    part = user_slots(stages, 3, 7)
    assert len(part) == users_share(100_000, 3, 7)
    assert [slot for slot in part if slot.number < 10] == [Slot(3, 0, HOUR_NS)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((0, 0, 0, 1), "no time"),
        ((-1, 5, 0, 1), "before the start"),
        ((0, 5, -1, 1), "fewer than nobody"),
        ((0, 5, 0, 1, 6), "a ramp that is longer than its stage"),
        ((0, None, 0, 1, -1), "a ramp back in time"),
    ],
)
def test_stages_without_meaning_are_refused(values, reason):
    with pytest.raises(InternalError, match="makes no sense"):
        UserStage(*values)
    assert reason


@pytest.mark.parametrize(
    "stages",
    [
        [UserStage(0, 10, 0, 1), UserStage(9, 20, 1, 1)],
        [UserStage(0, None, 0, 1), UserStage(20, 30, 1, 1)],
    ],
)
def test_stages_that_overlap_are_refused(stages):
    with pytest.raises(InternalError, match="is over"):
        user_slots(stages)


@given(users=st.integers(0, 5000), members=st.integers(1, 50), ramp_ns=st.integers(0, HOUR_NS))
def test_ls_05_users_are_shared_out_exactly_and_ramp_evenly(users, members, ramp_ns):
    """LS-05: a share that loses one user passes every test that does not add up."""
    shares = [users_share(users, place, members) for place in range(members)]
    assert sum(shares) == users
    assert max(shares) - min(shares) <= 1
    ramps = [ramp_offsets(users, ramp_ns, place, members) for place in range(members)]
    assert [len(ramp) for ramp in ramps] == shares
    together = sorted(offset for ramp in ramps for offset in ramp)
    assert together == [user * ramp_ns // users for user in range(users)]


def test_ls_07_the_ramp_ends_within_its_time():
    """LS-07: every user is there when the ramp is over; LS-10: they do not start in one tick."""
    offsets = ramp_offsets(100, 10 * SECOND_NS)
    assert offsets[0] == 0
    assert offsets[-1] < 10 * SECOND_NS
    assert {after - before for before, after in pairwise(offsets)} == {SECOND_NS // 10}
