"""KV cache of the emulated engine: a fixed number of blocks, shared by content, least recently used evicted first.

A block is free, idle (holds a known prefix that nobody uses), shared (a known prefix in use) or private (in use, not
full yet, or a twin of a known one). Idle blocks count as available: they are evicted when somebody needs room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Counts blocks and remembers prefixes. `used + idle + free == capacity` always holds."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._private = 0
        self._references: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that running sequences hold; a shared one counts once."""
        return self._private + len(self._references)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def free(self) -> int:
        return self._free

    @property
    def available(self) -> int:
        return self._free + len(self._idle)

    def matching(self, chain: Sequence[bytes]) -> int:
        """How many leading blocks of a chain are in the cache."""
        count = 0
        for key in chain:
            if key not in self._references and key not in self._idle:
                break
            count += 1
        return count

    def admit(self, keys: Sequence[bytes], new: int) -> bool:
        """Take cached blocks (all of `keys` must match) and `new` private ones, or nothing at all."""
        revived = sum(1 for key in keys if key in self._idle)
        if self.available - revived < new:
            return False
        for key in keys:
            if key in self._idle:
                del self._idle[key]
                self._references[key] = 1
            else:
                self._references[key] += 1
        return self.allocate(new)

    def allocate(self, new: int) -> bool:
        """Take `new` private blocks, evicting idle ones, or none and give False."""
        if self.available < new:
            return False
        from_free = min(new, self._free)
        self._free -= from_free
        for _ in range(new - from_free):
            self._idle.popitem(last=False)
        self._private += new
        return True

    def publish(self, key: bytes) -> bool:
        """Make a full private block known. False (it stays private) when its content is known already."""
        if key in self._references or key in self._idle:
            return False
        self._private -= 1
        self._references[key] = 1
        return True

    def release(self, keys: Sequence[bytes], private: int) -> None:
        """Give back what a sequence held. The end of a prefix becomes idle before its start, so it is evicted first."""
        for key in reversed(keys):
            left = self._references[key] - 1
            if left:
                self._references[key] = left
            else:
                del self._references[key]
                self._idle[key] = None
        self._private -= private
        self._free += private
