"""When which session starts: pure functions of seed and plan, without clock, sockets or threads of their own.

`arrivals` are the processes, `rates` makes their rate change over time, `tickets` and `replay` say whose turn it is,
`slots` are the users of a closed loop, and `pacing` is about what comes late.
"""

from infersiege.schedule.arrivals import ARRIVALS, FAR_NS, SECOND_NS, Process, arrival_process, stream_seed
from infersiege.schedule.pacing import LATE_GRACE_NS, Pacer
from infersiege.schedule.rates import RateStage, expected, rate_at
from infersiege.schedule.replay import MOST_SESSIONS, replay_tickets
from infersiege.schedule.shares import users_share
from infersiege.schedule.slots import Slot, UserStage, ramp_offsets, user_slots, users_at
from infersiege.schedule.tickets import Ticket, closed_tickets, merge_streams, open_tickets

__all__ = [
    "ARRIVALS",
    "FAR_NS",
    "LATE_GRACE_NS",
    "MOST_SESSIONS",
    "SECOND_NS",
    "Pacer",
    "Process",
    "RateStage",
    "Slot",
    "Ticket",
    "UserStage",
    "arrival_process",
    "closed_tickets",
    "expected",
    "merge_streams",
    "open_tickets",
    "ramp_offsets",
    "rate_at",
    "replay_tickets",
    "stream_seed",
    "user_slots",
    "users_at",
    "users_share",
]
