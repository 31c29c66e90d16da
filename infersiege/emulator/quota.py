"""A cloud's rate limits: so many requests and tokens a minute, and the headers that tell what is left.

Each limit is a bucket that holds a minute's worth and fills evenly. Pure: the clock is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

CLOUD_REQUESTS, CLOUD_TOKENS = 60_000, 100_000_000
"""A minute, where nobody set a limit: more than an emulator can serve."""


@dataclass(slots=True)
class Bucket:
    """One limit."""

    per_minute: int
    left: float
    at_ns: int

    def fill(self, now_ns: int) -> None:
        self.left = min(self.per_minute, self.left + (now_ns - self.at_ns) / 60e9 * self.per_minute)
        self.at_ns = now_ns

    def wait_s(self, wanted: int) -> float:
        """How long until so much is there; what is more than a minute's worth waits for a full bucket."""
        missing = min(wanted, self.per_minute) - self.left
        return max(0.0, missing) * 60 / self.per_minute

    def full_in_s(self) -> float:
        return (self.per_minute - self.left) * 60 / self.per_minute


class Quota:
    """Both limits of one account."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int, now_ns: int) -> None:
        self._requests = Bucket(requests_per_minute, requests_per_minute, now_ns)
        self._tokens = Bucket(tokens_per_minute, tokens_per_minute, now_ns)

    def take(self, tokens: int, now_ns: int) -> float | None:
        """None: granted, and taken off. Else the seconds after which to come again, and nothing is taken."""
        for bucket in (self._requests, self._tokens):
            bucket.fill(now_ns)
        wait_s = max(self._requests.wait_s(1), self._tokens.wait_s(tokens))
        if wait_s > 0:
            return wait_s
        self._requests.left -= 1
        self._tokens.left -= tokens
        return None

    def headers(self, form: str | None, wall_s: float, *, exhausted: bool = False) -> dict[str, str]:
        """What is left, as `openai` or `anthropic` tell it; nothing for None. `exhausted`: no request is left."""
        if form is None:
            return {}
        fields: dict[str, str] = {}
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            whole = 0 if exhausted and kind == "requests" else max(0, math.floor(bucket.left))
            left, full_s = str(whole), bucket.full_in_s()
            if form == "openai":
                fields[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
                fields[f"x-ratelimit-remaining-{kind}"] = left
                fields[f"x-ratelimit-reset-{kind}"] = f"{full_s:.3f}s"
            else:
                when = datetime.fromtimestamp(math.ceil(wall_s + full_s), UTC)
                fields[f"anthropic-ratelimit-{kind}-limit"] = str(bucket.per_minute)
                fields[f"anthropic-ratelimit-{kind}-remaining"] = left
                fields[f"anthropic-ratelimit-{kind}-reset"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
        return fields


def retry_fields(form: str | None, wait_s: float) -> dict[str, str]:
    """When to come again."""
    fields = {"retry-after": str(max(1, math.ceil(wait_s)))}
    if form == "openai":
        fields["retry-after-ms"] = str(max(1, math.ceil(wait_s * 1e3)))
    return fields
