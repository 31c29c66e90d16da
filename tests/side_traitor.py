"""A worker that has the secret and sends, as its records, what is none: lines of something else, rows without an end.

python side_traitor.py --master HOST:PORT …      the options of `infersiege worker`
"""

from __future__ import annotations

import sys
import zlib

from infersiege.swarm.patching import patch

patch()

import msgspec  # noqa: E402

from infersiege.cli import main  # noqa: E402
from infersiege.records import Segment  # noqa: E402
from infersiege.swarm.spool import Spool  # noqa: E402


def broken(segment: Segment) -> Segment:
    """Of the first one the end is missing; to every other one a line is added that is no turn."""
    rows = zlib.decompress(segment.data)
    if segment.sequence == 0:
        return msgspec.structs.replace(segment, data=zlib.compress(rows[:-1]))
    return msgspec.structs.replace(segment, rows=segment.rows + 1, data=zlib.compress(rows + b'{"no":"turn"}\n'))


honest = Spool.unacknowledged


def unacknowledged(self: Spool) -> list[Segment]:
    return [broken(segment) for segment in honest(self)]


if __name__ == "__main__":
    Spool.unacknowledged = unacknowledged  # type: ignore[method-assign]
    sys.argv[1:1] = ["worker"]
    main()
