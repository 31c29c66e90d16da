"""One definition of each metric: what a turn gives, in which unit, and the formula that docs/metrics.md prints.

A value of a turn is in nanoseconds (unit `ms`), tokens or money (the plan's currency); divided by `Metric.per_unit` it
is in the metric's unit. None means that this turn does not give it: it is counted as missing and never entered as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from infersiege.metrics import turn as of
from infersiege.records import Outcome, TurnRecord

Unit = Literal["ms", "tokens", "tokens/s", "turns/s", "ratio", "count", "money", "money/M tokens"]
PerTurn = Callable[[TurnRecord], "float | None"]


@dataclass(frozen=True, slots=True)
class Stat:
    """One statistic of a distribution."""

    name: str
    q: float | None
    """The share of a percentile; None for mean, min and max."""
    floor: int
    """Fewer values give None."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What one figure means."""

    name: str
    title: str
    unit: Unit
    kind: Literal["distribution", "rate"]
    """A distribution has statistics over turns; a rate is one number per group."""
    better: Literal["lower", "higher"]
    needs_stream: bool
    """Without a stream it does not exist."""
    description: str
    formula: str
    """As docs/metrics.md prints it."""
    per_turn: PerTurn | None = None
    """The turn's value in ns, tokens or money. None for rates, and for `gap`, of which a turn gives many."""
    so_far: PerTurn | None = None
    """Lower bound of what a cut turn's value would have become; None for metrics that don't grow with time."""
    applies: Callable[[TurnRecord], bool] | None = None
    """Turns that can give it at all; None: every turn. The others are neither values nor missing."""
    censored: bool = True
    """Turns that we cut would have moved it, so that too many of them take its percentiles away."""
    outcome: Outcome = Outcome.OK
    """Turns with this outcome enter the distribution."""

    @property
    def per_unit(self) -> int:
        """What a turn's value is divided by to be in the metric's unit."""
        return of.NS_PER_MS if self.unit == "ms" else 1

    def __reduce__(self) -> tuple[Callable[[str], Metric], tuple[str]]:
        """Pickled by name: what is counted of it may go to another process, its formulas can't."""
        return _named, (self.name,)


def _named(name: str) -> Metric:
    return METRICS[name]


def _distribution(
    name: str, title: str, description: str, formula: str, per_turn: PerTurn | None, **more: object
) -> Metric:
    given: dict[str, object] = {"unit": "ms", "better": "lower", "needs_stream": False, **more}
    return Metric(
        name=name,
        title=title,
        kind="distribution",
        description=description,
        formula=formula,
        per_turn=per_turn,
        **given,  # type: ignore[arg-type]
    )


def _rate(
    name: str, title: str, unit: Unit, better: Literal["lower", "higher"], description: str, formula: str
) -> Metric:
    return Metric(
        name=name,
        title=title,
        unit=unit,
        kind="rate",
        better=better,
        needs_stream=False,
        description=description,
        formula=formula,
    )


_ALL: tuple[Metric, ...] = (
    _distribution(
        "ttft",
        "TTFT",
        "Time to the first generated text of any channel: content, reasoning, refusal or a tool call. Empty text, "
        "role, ping and usage chunks do not count.",
        "first_token_ns - sent_ns",
        of.ttft,
        needs_stream=True,
        so_far=lambda turn: of.ttft(turn) if turn.first_token_ns is not None else of.closed(turn),
    ),
    _distribution(
        "ttfa",
        "TTFA",
        "Time to the first answer text (not reasoning). Missing when the answer is reasoning only.",
        "first_answer_ns - sent_ns",
        of.ttfa,
        needs_stream=True,
        so_far=lambda turn: of.ttfa(turn) if turn.first_answer_ns is not None else of.closed(turn),
    ),
    _distribution(
        "tpot",
        "TPOT",
        "Time per output token after the first chunk. The first chunk counts one token unless the server said how "
        "many. Missing below 2 tokens, and when the chunks came in one burst.",
        "(last_token_ns - first_token_ns) / (output_tokens - (first_chunk_tokens or 1))",
        of.tpot,
        needs_stream=True,
    ),
    _distribution(
        "gap",
        "Inter-chunk gap",
        "Time between successive content chunks, from the second on. A chunk may hold several tokens. Chunks that "
        "shared a read give no gap. n counts gaps; missing counts turns that gave none.",
        "chunk[i].stamp - chunk[i - 1].stamp, i >= 2",
        None,
        needs_stream=True,
    ),
    _distribution(
        "e2e",
        "E2E",
        "Time to the last generated text; to the end of the body when the answer was not streamed.",
        "last_token_ns - sent_ns",
        of.e2e,
        so_far=of.closed,
    ),
    _distribution(
        "closed",
        "Closed",
        "Time to the end of the exchange: usage chunk, [DONE] and the end of the body included.",
        "closed_ns - sent_ns",
        of.closed,
        so_far=of.closed,
    ),
    _distribution(
        "ttft_from_due",
        "TTFT from due",
        "TTFT from the moment at which the request was due: what a user feels when the load generator or the "
        "connection is late.",
        "first_token_ns - due_ns",
        of.ttft_from_due,
        needs_stream=True,
        so_far=lambda turn: of.ttft_from_due(turn) if turn.first_token_ns is not None else of.closed_from_due(turn),
    ),
    _distribution(
        "e2e_from_due",
        "E2E from due",
        "E2E from the moment at which the request was due.",
        "last_token_ns - due_ns",
        of.e2e_from_due,
        so_far=of.closed_from_due,
    ),
    _distribution(
        "lateness",
        "Lateness",
        "How late this load generator began: its own fault, not the server's.",
        "attempt_ns - due_ns",
        of.lateness,
        censored=False,
    ),
    _distribution(
        "upload",
        "Upload",
        "Time to send the request. Long documents take time.",
        "sent_end_ns - sent_ns",
        of.upload,
        censored=False,
    ),
    _distribution(
        "connect",
        "Connect",
        "Name look-up and TCP connect, of turns that made a new connection.",
        "connect_duration_ns",
        lambda turn: turn.connect_duration_ns,
        applies=lambda turn: turn.reused_connection is False,
        censored=False,
    ),
    _distribution(
        "tls",
        "TLS",
        "TLS handshake, of turns that made one.",
        "tls_duration_ns",
        lambda turn: turn.tls_duration_ns,
        applies=lambda turn: turn.tls_duration_ns is not None,
        censored=False,
    ),
    _distribution(
        "server_ttft",
        "Server's TTFT",
        "What the engine itself says, where it does; the difference to TTFT is network and client.",
        "server_ttft_ns",
        lambda turn: turn.server_ttft_ns,
        applies=lambda turn: turn.server_ttft_ns is not None,
        censored=False,
    ),
    _distribution(
        "time_to_error",
        "Time to error",
        "How long failed turns took. Fast failures do not improve any latency.",
        "closed_ns - attempt_ns of failed turns",
        of.time_to_error,
        outcome=Outcome.FAILED,
        censored=False,
    ),
    _distribution(
        "prompt_tokens",
        "Prompt tokens",
        "Input length as the server counted it, cached tokens included.",
        "prompt_tokens",
        lambda turn: turn.prompt_tokens,
        unit="tokens",
        censored=False,
    ),
    _distribution(
        "output_tokens",
        "Output tokens",
        "Output length, reasoning included.",
        "output_tokens",
        lambda turn: turn.output_tokens,
        unit="tokens",
        better="higher",
    ),
    _distribution(
        "cost",
        "Cost",
        "What a turn cost by its tokens, in the plan's currency. Unknown counts are estimated, which is noted; turns "
        "of channels without a price for tokens have none.",
        "((prompt_tokens - cached_tokens - cache_write_tokens) * input + cached_tokens * cached + cache_write_tokens * "
        "cache_write + output_tokens * output) / 1e6",
        lambda turn: turn.cost,
        unit="money",
        applies=lambda turn: turn.cost is not None,
    ),
    _rate(
        "asked_rate",
        "Asked",
        "turns/s",
        "higher",
        "Turns due in the steady window; what could not be due (the rest of a failed session, the run's end, a prompt "
        "that is too long, a spent budget) is left out.",
        "turns due in steady / steady seconds",
    ),
    _rate(
        "sent_rate",
        "Sent",
        "turns/s",
        "higher",
        "Requests whose first byte was written inside the steady window.",
        "turns with sent_ns in steady / steady seconds",
    ),
    _rate(
        "finished_rate",
        "Finished",
        "turns/s",
        "higher",
        "Successful turns that ended inside the steady window.",
        "ok turns with closed_ns in steady / steady seconds",
    ),
    _rate(
        "throughput",
        "Throughput",
        "tokens/s",
        "higher",
        "Output tokens that arrived inside the steady window, unfinished turns included.",
        "output tokens arrived in steady / steady seconds",
    ),
    _rate(
        "goodput",
        "Goodput",
        "turns/s",
        "higher",
        "Turns that met every per-request limit. Failed turns violate; cancelled ones are left out unless already past "
        "a limit; what can't be measured is left out and counted.",
        "good / steady seconds",
    ),
    _rate(
        "goodput_share",
        "Good share",
        "ratio",
        "higher",
        "Share of the judged turns that met every per-request limit.",
        "good / (good + violating)",
    ),
    _rate(
        "error_share",
        "Error share",
        "ratio",
        "lower",
        "Failed turns among those that ended by themselves.",
        "failed / (ok + failed)",
    ),
    _rate(
        "cancelled_share",
        "Cancelled share",
        "ratio",
        "lower",
        "Turns that we cut, among those that could have given a latency.",
        "cancelled / (ok + cancelled)",
    ),
    _rate(
        "cache_share",
        "Cache share",
        "ratio",
        "higher",
        "Prompt tokens served from the prefix cache, over turns where the server tells. Unknown is not 0.",
        "sum(cached_tokens) / sum(prompt_tokens) where both are known",
    ),
    _rate(
        "quality",
        "Quality",
        "ratio",
        "higher",
        "Answers of checked prompts that passed all of their checks. Turns that failed gave no answer and are in the "
        "error share instead.",
        "answers that passed / answers that were checked",
    ),
    _rate(
        "collapsed_share",
        "Collapsed share",
        "ratio",
        "lower",
        "Answers that were none any more: ended in a loop, garbled, blank, cut short of a forced length, or without a "
        "token (these turns failed as no_output).",
        "(ok with such a flag + no_output) / (ok + no_output)",
    ),
    _rate(
        "delivered_share",
        "Delivered share",
        "ratio",
        "higher",
        "Load that was delivered of what was asked. Open and replay: session arrivals begun in time. Closed: mean "
        "sessions alive.",
        "arrivals begun / arrivals due, or mean sessions alive / users",
    ),
    _rate(
        "users",
        "Users",
        "count",
        "higher",
        "Sessions alive, mean over the steady window, think time included.",
        "sum(session time in steady) / steady seconds",
    ),
    _rate(
        "cost_per_million_output_tokens",
        "Cost per million output tokens",
        "money/M tokens",
        "lower",
        "What the priced turns due in steady cost, failed and cut ones included, for a million of the output tokens "
        "they gave. Paid by the hour: what the GPUs cost in steady, for a million of the tokens that arrived in it.",
        "1e6 * sum(cost) / sum(output_tokens), or 1e6 * gpu_hour * gpus * steady hours / output tokens in steady",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric by name: distributions (keys of `GroupSummary.distributions`), then rates (of `GroupSummary.rates`)."""

STATS: dict[str, Stat] = {
    stat.name: stat
    for stat in (
        Stat("mean", None, 1),
        Stat("min", None, 1),
        Stat("max", None, 1),
        Stat("p50", 0.5, 1),
        Stat("p90", 0.9, 1),
        Stat("p95", 0.95, 1),
        Stat("p99", 0.99, 100),
        Stat("p99_9", 0.999, 1000),
    )
}
"""Every statistic of a distribution by name: the fields of `Distribution`."""
