"""The database that a plan's [telemetry] names."""

from __future__ import annotations

from collections.abc import Mapping

from infersiege_agents.errors import AgentError
from infersiege_agents.influx.target import Target, target_of

from infersiege.errors import UsageError
from infersiege.plan.schema import Telemetry


def database_of(telemetry: Telemetry, environ: Mapping[str, str], *, url: str | None = None) -> Target | None:
    """The target with its token, or None when there is no URL. `url` is used instead of the plan's.

    Raises UsageError for a URL that is none, and for a token's variable that is not set or holds no token.
    """
    address = url or telemetry.influx_url
    if address is None:
        return None
    token = ""
    if telemetry.influx_token_env is not None:
        token = environ.get(telemetry.influx_token_env, "").strip()
        if not token:
            raise UsageError(
                f"telemetry.influx_token_env: the environment variable {telemetry.influx_token_env} is not set",
                hint="export it with the token",
            )
    try:
        return target_of(address, bucket=telemetry.influx_bucket, org=telemetry.influx_org or "", token=token)
    except AgentError as error:
        raise UsageError(str(error), hint=error.hint) from None
