"""Sessions of traces in Redis: claimed by a worker for the arrivals that are its own (docs/redis.md)."""

from infersiege.swarm.claims.keeper import ClaimKeeper
from infersiege.swarm.claims.worker import Claims

__all__ = ["ClaimKeeper", "Claims"]
