"""Which database points go to."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from infersiege_agents.errors import AgentError


@dataclass(frozen=True, slots=True)
class Target:
    """InfluxDB 1.8, 2.x, 3.x or VictoriaMetrics."""

    url: str
    bucket: str = "infersiege"
    """Bucket of 2.x, database of 1.x and 3.x."""
    org: str = ""
    token: str = field(default="", repr=False)
    """Token of 2.x and 3.x, `user:password` of 1.8; empty: none. In no output, no file and no command line.

    Printable ASCII: what else it held, a library that builds the header would quote in its error, token and all.
    """

    def __post_init__(self) -> None:
        """Raises AgentError for a token that can't stand in a header."""
        if not self.token.isascii() or not self.token.isprintable():
            raise AgentError(
                f"the token for {self.url} holds characters that no token has",
                hint="its variable must hold the token and nothing else, in printable ASCII",
            )

    @property
    def identity(self) -> str:
        """What a spool is kept for: points go to the same database also when the token was changed."""
        return f"{self.url} {self.org} {self.bucket}"


def target_of(url: str, *, bucket: str = "infersiege", org: str = "", token: str = "") -> Target:
    """The target, its URL checked and without a slash at its end, the token without white space around it.

    Raises AgentError for what is no http(s) URL, for one with a user, a password or a query in it, and for a token that
    is none.
    """
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise AgentError(
            f"influx_url {url!r}: not an address of a database", hint="write it like http://127.0.0.1:8086"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise AgentError(
            f"influx_url: user, password or query in the address of {parts.hostname}",
            hint="give the token (or user:password) in an environment variable: influx_token_env",
        )
    return Target(url=url.strip().rstrip("/"), bucket=bucket, org=org, token=token.strip())
