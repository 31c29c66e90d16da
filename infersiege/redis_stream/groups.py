"""One consumer group of a trace's stream, as a worker of a run uses it: each call is one round trip or a few.

A session is *claimed* when the group has given it to a worker, *taken* once that worker has acknowledged it: from then
on it is that worker's for good. Claims that are not taken go to others when their worker shows no sign of life for
TAKE_OVER_S, or gives them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import redis

from infersiege.redis_stream.names import RUN_S, entry_id, group_of, index_of, keys, run_key

TAKE_OVER_S = 5.0
"""A worker that the master has not heard for 2 s is lost, and starts nothing 3 s later (the length of a lease)."""
_MANY = 10_000
"""More than a worker ever holds."""

TAKE = """
local last = redis.call('HGET', KEYS[2], ARGV[2])
if last and string.sub(last, 1, #ARGV[3] + 1) == ARGV[3] .. ' ' then
  return string.sub(last, #ARGV[3] + 2)
end
local taken = {}
for place = 5, #ARGV do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[place], ARGV[place], 1, ARGV[2])
  if #mine > 0 then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[place])
    taken[#taken + 1] = '1'
  else
    taken[#taken + 1] = '0'
  end
end
local said = table.concat(taken)
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. said)
redis.call('EXPIRE', KEYS[2], ARGV[4])
return said
"""
"""Acknowledges entries that are still this worker's, and says which were. Asked again with the same word, since the
answer was lost on its way, it says the same again."""


class Entry(NamedTuple):
    """A session that the group gave."""

    number: int
    """In the trace."""
    line: bytes
    """As JSON."""


class Group:
    """The group of one workload and one repeat of its trace."""

    def __init__(self, name: str, run_id: str, workload: int, repeat: int, worker: str) -> None:
        self.stream = keys(name)[1]
        self.run_key = run_key(name, run_id)
        self.name = group_of(run_id, workload, repeat)
        self.worker = worker
        self.repeat = repeat

    def create(self, server: redis.Redis, *, after: int = -1) -> bool:
        """Make the group, unless it is there; it gives the sessions after this one. False: it was there."""
        try:
            server.xgroup_create(self.stream, self.name, id=entry_id(after))
        except redis.ResponseError as error:
            if "BUSYGROUP" in str(error):
                return False
            raise
        return True

    def read(self, server: redis.Redis, count: int) -> list[Entry]:
        """Claim the next sessions of the trace; none: all were given out."""
        return _entries(_read(server, self, ">", count))

    def mine(self, server: redis.Redis) -> list[Entry]:
        """All that this worker has claimed and not taken."""
        return _entries(_read(server, self, "0", None))

    def take(self, server: redis.Redis, numbers: Sequence[int], word: str) -> list[bool]:
        """Take claimed sessions; which of them were still this worker's. `word`: another one for each call that means
        something new."""
        said: Any = server.eval(
            TAKE, 2, self.stream, self.run_key, self.name, self.worker, word, str(RUN_S), *map(entry_id, numbers)
        )
        return [mark in (49, "1") for mark in said]

    def acknowledge(self, server: redis.Redis, numbers: Iterable[int]) -> None:
        """They were taken before: say so again."""
        ids = [entry_id(number) for number in numbers]
        if ids:
            server.xack(self.stream, self.name, *ids)

    def touch(self, server: redis.Redis, numbers: Sequence[int]) -> set[int]:
        """A sign of life for claims; those of them that are still this worker's."""
        return self._claim_again(server, numbers, idle_s=0)

    def give_back(self, server: redis.Redis, numbers: Sequence[int]) -> set[int]:
        """Let others have claims at once, as if their worker had shown no sign of life; which were still its own."""
        return self._claim_again(server, numbers, idle_s=TAKE_OVER_S)

    def _claim_again(self, server: redis.Redis, numbers: Sequence[int], *, idle_s: float) -> set[int]:
        if not numbers:
            return set()
        pending: Any = server.xpending_range(
            self.stream,
            self.name,
            min=entry_id(min(numbers)),
            max=entry_id(max(numbers)),
            count=_MANY,
            consumername=self.worker,
        )
        mine = {index_of(one["message_id"]) for one in pending} & set(numbers)
        if mine:
            ids: list[Any] = [entry_id(one) for one in sorted(mine)]
            server.xclaim(self.stream, self.name, self.worker, 0, ids, idle=round(idle_s * 1000), justid=True)
        return mine

    def take_over(self, server: redis.Redis, count: int) -> list[Entry]:
        """Claim what others have claimed and show no more sign of life for."""
        found: Any = server.xautoclaim(
            self.stream, self.name, self.worker, min_idle_time=round(TAKE_OVER_S * 1000), start_id="0-0", count=count
        )
        return _entries(found[1])

    def restore(self, server: redis.Redis, held: Sequence[int], taken: Sequence[int]) -> None:
        """After Redis was started again, and may have forgotten its last moments: say what was given to this worker.

        `held`: claimed and not taken; `taken`: lately.
        """
        last = max((*held, *taken), default=-1)
        if last < 0:
            return
        ids = [entry_id(number) for number in held] or [entry_id(last)]
        command: Any = server.execute_command
        command(
            "XCLAIM",
            self.stream,
            self.name,
            self.worker,
            0,
            *ids,
            "FORCE",
            "JUSTID",
            "LASTID",
            entry_id(last),
            parse_justid=True,
        )
        self.acknowledge(server, taken)

    def waiting(self, server: redis.Redis) -> int:
        """Claims of all workers that are not taken."""
        summary: Any = server.xpending(self.stream, self.name)
        return int(summary["pending"])


def _read(server: redis.Redis, group: Group, start: str, count: int | None) -> list[Any]:
    found: Any = server.xreadgroup(group.name, group.worker, {group.stream: start}, count=count)
    return found[0][1] if found else []


def _entries(found: Iterable[Any]) -> list[Entry]:
    """An entry that was deleted has no fields."""
    return [Entry(index_of(entry), fields[b"session"]) for entry, fields in found if fields]
