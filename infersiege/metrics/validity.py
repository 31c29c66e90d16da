"""Why a run can't be trusted, and what is worth a warning. Each reason says what was seen and what to change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from infersiege.metrics import client
from infersiege.metrics.absence import lost_workers
from infersiege.metrics.collect import Collector
from infersiege.metrics.delivery import Delivered, inside, instants
from infersiege.metrics.groups import LENGTH_TOLERANCE, prompt_lengths
from infersiege.metrics.held import about_rate_limits, held_back
from infersiege.metrics.limits import WIDE_SLACK_NS, too_many
from infersiege.metrics.unmeasured import ends, why_unmeasured
from infersiege.records import ClientVerdict, Counts, ErrorClass, GroupSummary, Outcome, Reason

DELIVERED_FLOOR = 0.95
"""Less of the asked load than this makes a run invalid."""

DELIVERED_CEILING = 1.05
"""More than this, too: it is not the load that was asked for."""

HUB_LAG_NS = 200_000_000
"""A worker whose event loop was held up longer than this (p99 of the whole run) was the bottleneck.

Only where the health of each second is missing; the rule proper is in `metrics.client`."""

WIDE_LENGTHS = 0.05
"""Error of prompt lengths (p95) above which a run is another one than the trace's: twice what calibration leaves."""

BURSTY_SHARE = 0.10

GREW_SHARE = 0.2
GREW_TURNS = 10
"""An open loop in which more turns than so many, and than this share, began and did not end is in no steady state."""

WAVES = 5
"""Fewer turns than so many times the concurrency mostly measure the first wave (LS-10)."""


def invalid_reasons(collector: Collector, counts: Counts, loads: Sequence[Delivered]) -> tuple[str, ...]:
    """Reasons in the order of their weight; empty: the figures can be trusted."""
    reasons = list(collector.facts.invalid)
    reasons += _conservation(collector, counts)
    reasons += lost_workers(collector, counts)
    reasons += _faults_of_ours(collector)
    reasons += why_unmeasured(collector)
    reasons += [reason for one in loads if (reason := _undelivered(collector, one)) is not None]
    reasons += _client(collector)
    return tuple(dict.fromkeys(reasons))


def _conservation(collector: Collector, counts: Counts) -> list[str]:
    reasons = []
    if not counts.conserved():
        records = counts.started + counts.skipped
        reasons.append(
            f"turns are not conserved: {counts.planned} planned, but {counts.started} started (ok {counts.ok}, failed "
            f"{counts.failed}, cancelled {counts.cancelled}, lost {counts.lost}) and {counts.skipped} skipped make "
            f"{records}, {abs(counts.planned - records)} {'too few' if counts.planned > records else 'too many'}"
        )
    if collector.repeated:
        reasons.append(f"{collector.repeated} turns have more than one record")
    for worker in collector.facts.workers:
        promised = worker.records_promised
        if promised is not None and promised != worker.records_received:
            reasons.append(f"worker {worker.worker} wrote {promised} records, {worker.records_received} arrived")
    return reasons


def _faults_of_ours(collector: Collector) -> list[str]:
    if not collector.internal:
        return []
    return [
        f"{collector.internal} turns were not sent because of a fault of infersiege ({collector.internal_detail}); "
        "please report it"
    ]


def _too_many(one: Delivered) -> str:
    """Why more sessions of a closed loop were alive than it has users."""
    if one.strayed:
        whose = ", ".join(one.strayed[:4]) + (" and others" if len(one.strayed) > 4 else "")
        return f": turns of {whose}, lost meanwhile, went on beside those of the workers that had its users by then"
    if one.follows_more:
        return ": turns of a stage before were still open; give the stage more warm-up, or set load.pause"
    return "; this is a fault of infersiege, please report it"


def _undelivered(collector: Collector, one: Delivered) -> str | None:
    who = f" of {', '.join(one.load.scenarios)}" if one.load.scenarios else ""
    where = f"stage {one.window.stage}"
    if one.share is not None and one.share < DELIVERED_FLOOR and (too_long := _too_long(collector, one)):
        return f"load not delivered in {where}: {too_long}"
    if one.load.mode == "closed":
        if one.share is not None and one.share > DELIVERED_CEILING:
            return (
                f"more load than asked in {where}: {one.got:.1f} sessions{who} were alive on average where "
                f"{one.asked:.0f} users were asked for{_too_many(one)}"
            )
        if one.share is None or one.share >= DELIVERED_FLOOR:
            return None
        usual = "; give the ramp more warm-up, the trace more sessions (wrap = true), or add workers"
        why = held_back(collector, one) or usual
        return f"load not delivered in {where}: {one.got:.1f} of {one.asked:.0f} users{who} were alive on average{why}"
    if one.due is not None and one.due < DELIVERED_FLOOR * one.asked and _ran_out(collector, one):
        return (
            f"load not delivered in {where}: {one.due} arrivals{who} were due where the rate makes {one.asked:.0f}: "
            "the trace was over; use a longer one, or wrap = true, or a shorter duration"
        )
    # The process itself scatters by sqrt(n); four of that is no accident.
    if one.expected is not None and one.asked < DELIVERED_FLOOR * one.expected - 4 * math.sqrt(one.expected):
        return (
            f"load not delivered in {where}: {one.asked:.0f} arrivals{who} were due where the rate makes "
            f"{one.expected:.0f}; the trace may be too short (wrap = true)"
        )
    if one.share is None or one.share >= DELIVERED_FLOOR:
        return None
    why = held_back(collector, one) or "; add workers, lower the rate, or raise max_in_flight"
    return (
        f"load not delivered in {where}: {one.got:.0f} of {one.asked:.0f} arrivals{who} were begun in time "
        f"({one.share:.1%}){why}"
    )


def _ran_out(collector: Collector, one: Delivered) -> bool:
    """Whether every session of a trace of this load was taken, and none twice."""
    return one.load.mode == "open" and any(
        account.sessions is not None and account.sessions_taken >= account.sessions and not account.sessions_repeated
        for account in collector.facts.traces
        if one.load.plays(account.scenario)
    )


def _too_long(collector: Collector, one: Delivered) -> str | None:
    """Where most turns of a load were over the context limit, that is why it was not there."""
    cells = [
        cell
        for (scenario, _, stage, _), cell in collector.cells.items()
        if stage == one.window.stage and one.load.plays(scenario)
    ]
    skipped = sum(cell.unplayed[f"{Outcome.SKIPPED.value}: {Reason.TOO_LONG.value}"] for cell in cells)
    turns = sum(cell.outcomes.total() for cell in cells)
    if not skipped or 2 * skipped < turns:
        return None
    limits = {
        account.context_limit
        for account in collector.facts.traces
        if account.context_limit is not None and one.load.plays(account.scenario)
    }
    limit = f"the context limit of {limits.pop():,} tokens" if len(limits) == 1 else "the context limit"
    who = f" of {', '.join(one.load.scenarios)}" if one.load.scenarios else ""
    many = f"each of the {turns:,} turns{who} was" if skipped == turns else f"{skipped:,} of {turns:,} turns{who} were"
    return (
        f"{many} over {limit}, or after one that is; use a server with more room, a trace of shorter sessions, or "
        'too_long = "clip"'
    )


def _tally(collector: Collector, name: str) -> int:
    return sum(cell.tally[name] for cell in collector.cells.values())


def _client(collector: Collector) -> list[str]:
    reasons = []
    facts = collector.facts
    bound = [one for one in facts.clients if one.verdict is ClientVerdict.CLIENT_BOUND]
    hint = (
        client.advice(facts.clients, facts.calibration) if facts.clients else "add workers or hosts, or lower the load"
    )
    slack, wide = _tally(collector, "slack"), _tally(collector, "slack_wide")
    if too_many(wide, slack) and not bound:
        reasons.append(
            f"client-bound: the first token of {wide} of {slack} turns is in doubt by more than "
            f"{WIDE_SLACK_NS / 1e6:.0f} ms; {hint}"
        )
    if bound:
        others = f" ({len(bound)} of {len(facts.clients)} workers are bound)" if len(facts.clients) > 1 else ""
        reasons.append(f"client-bound: {bound[0].worker}: {', '.join(bound[0].reasons)}{others}; {hint}")
    watched = {one.worker for one in facts.clients if one.hub_lag_p99_ms is not None}
    for worker in facts.workers:
        if worker.worker in watched:
            continue
        # Without the health of each second: a run of an older infersiege, or one whose telemetry/ is gone.
        lag_ns = worker.hub_lag_p99_ns
        if lag_ns is not None and lag_ns > HUB_LAG_NS:
            reasons.append(
                f"client-bound: the event loop of {worker.worker} was held up by {lag_ns / 1e6:.0f} ms (p99); {hint}"
            )
    turns = sum(cell.outcomes.total() for cell in collector.cells.values())
    stepped = _tally(collector, "clock_step")
    if too_many(stepped, turns):
        reasons.append(
            f"the clock was stepped during {stepped} of {turns} turns; stop time synchronisation from stepping"
        )
    if collector.client_resource:
        reasons.append(
            f"{collector.client_resource} turns failed for want of ports, files or memory on a worker; raise ulimit "
            "-n, add hosts, or lower the load"
        )
    return reasons


def warnings_of(collector: Collector, whole: GroupSummary) -> tuple[str, ...]:
    """What does not make the run invalid but must be read with its figures."""
    warnings = [*collector.facts.warnings, *_about_turns(collector)]
    warnings += [*_about_tokens(collector), *_about_streams(collector), *_about_quota(collector)]
    warnings += about_rate_limits(collector)
    stepped = _tally(collector, "clock_step")
    if stepped and not too_many(stepped, sum(cell.outcomes.total() for cell in collector.cells.values())):
        warnings.append(f"the clock was stepped during {stepped} turns; their stamps are those of the reads")
    warnings += [
        f"{account.scenario}: the trace was played {account.repeat_factor:.1f} times over: this is also a cache test"
        for account in collector.facts.traces
        if account.repeat_factor is not None and account.repeat_factor > 1
        if account.scenario not in collector.facts.checked  # they are few, and meant to be asked again
    ]
    users = [load.users for load in collector.facts.loads if load.users is not None]
    warnings += _about_client(collector)
    concurrency = max(users) if users else whole.in_flight_max
    if concurrency and 0 < whole.counts.started < WAVES * concurrency and not collector.facts.interrupted:
        warnings.append(
            f"only {whole.counts.started} turns for a concurrency of {concurrency}: the first wave weighs heavily "
            f"({min(1.0, concurrency / whole.counts.started):.0%} of them); run longer"
        )
    warnings += _about_growth(collector)
    return tuple(dict.fromkeys(warnings))


def _about_growth(collector: Collector) -> list[str]:
    """Open loops in which the server fell behind: what was in flight grew all the time (LS-01, LS-02)."""
    warnings = []
    for load in collector.facts.loads:
        if load.mode == "closed":
            continue
        flows = [flow for (scenario, _, _), flow in collector.flows.items() if load.plays(scenario)]
        starts, ends = (instants(getattr(flow, name) for flow in flows) for name in ("flight_start", "flight_end"))
        for window in collector.windows:
            begun, over = inside(starts, (window,)), inside(ends, (window,))
            if load.stage in (None, window.stage) and begun - over > max(GREW_TURNS, GREW_SHARE * begun):
                who = f" of {', '.join(load.scenarios)}" if load.scenarios else ""
                seconds = window.duration_ns / 1e9
                warnings.append(
                    f"the server did not keep up in stage {window.stage}: {begun / seconds:.3g} turns/s{who} were sent "
                    f"and {over / seconds:.3g} ended, so {begun - over} more were open at its end than at its start; "
                    "its latencies grow with the length of the run: lower the rate, or give it more warm-up"
                )
    return warnings


def _about_client(collector: Collector) -> list[str]:
    """Workers that were half way to being the limit, and those of which nobody knows."""
    facts = collector.facts
    warnings = []
    strained = [one for one in facts.clients if one.verdict is ClientVerdict.STRAINED]
    if strained:
        one = strained[0]
        others = f" ({len(strained)} of {len(facts.clients)} workers)" if len(facts.clients) > 1 else ""
        why = ", ".join(one.reasons)
        warnings.append(f"strained client: {one.worker}: {why}{others}; more load would need more workers")
    roughly = {one.worker for one in facts.workers if one.hub_lag_p99_ns is not None}
    blind = [one.worker for one in facts.clients if one.verdict is None and one.turns and one.worker not in roughly]
    if blind:
        others = f" ({len(blind)} of {len(facts.clients)} workers)" if len(facts.clients) > 1 else ""
        warnings.append(
            f"client not watched: {blind[0]} has no row in telemetry/clients.jsonl within the steady window{others}: "
            "whether the load generator was the limit is not known"
        )
    return warnings


def _about_turns(collector: Collector) -> list[str]:
    warnings = []
    ended = sum(cell.outcomes[Outcome.OK] + cell.outcomes[Outcome.FAILED] for cell in collector.cells.values())
    unplayed: Counter[str] = Counter()
    for cell in collector.cells.values():
        unplayed.update(cell.unplayed)
    if unplayed and not ended:
        how = ends(unplayed) or f"skipped: {Reason.RUN_END} {unplayed.total()}"
        warnings.append(f"none of the {unplayed.total()} turns that were due in the steady window ended: {how}")
    contradicting = _tally(collector, "contradicting")
    if contradicting:
        warnings.append(
            f"{contradicting} turns have times that contradict one another (a first token before its request, an end "
            "before its start): the clock was set back, or rows are damaged; the figures they would give are missing"
        )
    return warnings


def _about_tokens(collector: Collector) -> list[str]:
    warnings = []
    estimated, known = _tally(collector, "estimated"), _tally(collector, "output_known")
    odd = _tally(collector, "estimated_odd")
    if estimated - odd:
        warnings.append(f"token counts are estimated for {estimated - odd} of {known} turns: the server sent no usage")
    nonsense = _tally(collector, "odd_usage")
    if nonsense:
        instead = f"; {odd} of {known} counts of output are estimates instead" if odd else ""
        warnings.append(
            f"the server sent nonsense as usage in {nonsense} turns (a token count that is negative, absurdly large or "
            f"no whole number), which is left out{instead}"
        )
    asked, real = _tally(collector, "prompt_asked"), _tally(collector, "prompt_compared")
    if asked and abs(real / asked - 1) > LENGTH_TOLERANCE:
        warnings.append(
            f"prompts are {real / asked - 1:+.0%} off the asked length, as the server counts them: {real:,} tokens, not"
            f" {asked:,}"
        )
    warnings += _about_lengths(collector)
    for channel in sorted({channel for _, channel, _ in collector.flows if channel}):
        cells = [cell for (_, name, _, _), cell in collector.cells.items() if name == channel]
        told = sum(cell.tally["cached_known"] for cell in cells)
        if not told and any(cell.tally["prompt_known"] for cell in cells):
            hint = collector.facts.cache_hints.get(channel)
            warnings.append(f"{channel}: cache share unknown" + (f"; {hint}" if hint else ""))
    return warnings


def _about_lengths(collector: Collector) -> list[str]:
    """Scenarios of which one prompt in twenty is far from what its trace asks for."""
    warnings = []
    for scenario in sorted(collector.facts.written_prompts):
        lengths = prompt_lengths([cell for key, cell in sorted(collector.cells.items()) if key[0] == scenario])
        if lengths is not None and lengths.error_p95 is not None and lengths.error_p95 > WIDE_LENGTHS:
            warnings.append(
                f"{scenario}: one prompt in twenty is {lengths.error_p95:.0%} or more off the asked length (p50 "
                f"{lengths.error_p50:.1%}, {lengths.n:,} turns, lengths by {lengths.method}): name the model's "
                "tokenizer.json in channel.tokenizer"
            )
    return warnings


def _about_quota(collector: Collector) -> list[str]:
    """Whether what was reached is the account's limit (CL-10): a plateau then says nothing of the server."""
    warnings = []
    for channel in sorted({key[1] for key in collector.cells}):
        cells = [cell for key, cell in collector.cells.items() if key[1] == channel]
        refused = sum(
            cell.errors[ErrorClass.RATE_LIMIT] + cell.failed_attempts[ErrorClass.RATE_LIMIT] for cell in cells
        )
        gone = sum(cell.tally["quota_gone"] for cell in cells)
        asked = sum(cell.outcomes[Outcome.OK] + cell.outcomes[Outcome.FAILED] for cell in cells)
        asked += sum(cell.failed_attempts.total() for cell in cells)
        seen = [f"{refused} of {asked} requests were refused by a rate limit"] if too_many(refused, asked) else []
        seen += [f"{gone} of {asked} answers said that nothing is left of it"] if too_many(gone, asked) else []
        if seen:
            warnings.append(
                f"{channel}: quota-bound: {', and '.join(seen)}: these figures show what the account may do, not what "
                "the server can; lower the load or raise the limit"
            )
    return warnings


def _about_streams(collector: Collector) -> list[str]:
    bursty, judged = _tally(collector, "bursty"), _tally(collector, "burst_judged")
    if not bursty or bursty <= BURSTY_SHARE * judged:
        return []
    return [
        f"{bursty} of {judged} streams came in bursts (most chunks within 1 ms of the one before): a proxy that "
        "buffers, or a busy client; their TTFT and TPOT are not the server's"
    ]
