"""Closed sets of words that rows use: outcomes, phases, error classes, reasons, verdicts."""

from __future__ import annotations

from enum import StrEnum

SCHEMA_VERSION = 1
"""Version of the run directory's rows. A reader refuses a newer one."""


class Outcome(StrEnum):
    """How a turn ended. Exactly one per planned turn, whatever happens."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Cut by us: the run's end, its budget."""
    LOST = "lost"
    """Its worker died; written by the master."""
    SKIPPED = "skipped"
    """Never sent; `reason` says why."""


class Phase(StrEnum):
    """Part of a stage. A turn belongs to the phase in which it was due."""

    WARMUP = "warmup"
    STEADY = "steady"
    DRAIN = "drain"


class ErrorClass(StrEnum):
    """Why a turn failed. Told apart by status, body and stream."""

    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    STALE_CONNECTION = "stale_connection"
    RATE_LIMIT = "rate_limit"
    OVERLOAD = "overload"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "bad_request"
    SERVER = "server"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    NO_OUTPUT = "no_output"
    PARSE = "parse"
    CONTENT_FILTER = "content_filter"
    CLIENT_RESOURCE = "client_resource"
    CLIENT_LIMIT = "client_limit"
    QUALITY = "quality"


class Reason(StrEnum):
    """Why a turn was skipped, cancelled or lost."""

    RUN_END = "run_end"
    """The duration was over before it was due or sent, or the drain was over before it ended."""
    STAGE_END = "stage_end"
    """Its stage, or the time of its user in it, was over before it was due or sent, or the pause before it ended."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or SIGTERM."""
    AFTER_FAILURE = "after_failure"
    """An earlier turn of its session failed, so its history does not exist."""
    LATE_DROPPED = "late_dropped"
    """`late = "drop"`: its arrival passed while the worker was behind."""
    MAX_IN_FLIGHT = "max_in_flight"
    """`late = "drop"` with the cap reached."""
    WORKER_LOST = "worker_lost"
    NO_LEASE = "no_lease"
    """The worker lost its master."""
    BUDGET = "budget"
    STOPPED_EARLY = "stopped_early"
    """A rule with `abort` could not pass any more."""
    RATE_LIMIT = "rate_limit"
    """It alone asks for more tokens than the channel's rate limit gives in a minute."""
    TOO_LONG = "too_long"
    """Over the context limit, by choice of the plan."""
    SOURCE_FAILED = "source_failed"
    """Its trace gave no session: Redis did not answer, or what it is read from broke; error_detail says which."""
    INTERNAL = "internal"
    """A fault of ours before it could be sent; error_detail has it."""


class StampSource(StrEnum):
    KERNEL = "kernel"
    USER = "user"


class TokensFrom(StrEnum):
    USAGE = "usage"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NO_DATA = "no data"
    INVALID = "invalid"
