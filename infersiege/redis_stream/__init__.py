"""Traces in Redis: `load` puts one there, `RedisTrace` reads it, `groups` has what workers share a trace by.

infersiege:NAME:trace       hash: version, layout, made_from, sha256, content_sha256, changes, sessions, turns,
                            arrivals, complete
infersiege:NAME:sessions    stream; entry `N-0` is session N - 1: `index` and `session` (a line of the format
                            `infersiege`)
infersiege:NAME:run:RUN     hash of a run that plays it: there while the run lives, and RUN_S longer
"""

from infersiege.redis_stream.address import Address, address_of, pem_of, shown
from infersiege.redis_stream.loading import BATCH_BYTES, Loaded, load
from infersiege.redis_stream.names import keys
from infersiege.redis_stream.trace import RedisTrace, trace_of

__all__ = [
    "BATCH_BYTES",
    "Address",
    "Loaded",
    "RedisTrace",
    "address_of",
    "keys",
    "load",
    "pem_of",
    "shown",
    "trace_of",
]
