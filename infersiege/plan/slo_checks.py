"""Faults of [[slo]]: rules that no run of the plan could be held to, told before anything is sent (GT-02)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infersiege.plan.hybrid_checks import no_such
from infersiege.plan.locate import KeyPath
from infersiege.plan.quality_checks import SCENARIO
from infersiege.plan.schema import Plan, Slo
from infersiege.plan.streams import stage_names

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft


def slos(draft: Draft) -> None:
    """Add every fault of the plan's rules."""
    for index, slo in enumerate(draft.plan.slos):
        _slo(draft, ("slo", index), slo)


def _slo(draft: Draft, here: KeyPath, slo: Slo) -> None:
    faults, plan = draft.faults, draft.plan
    if slo.at_most is None and slo.at_least is None and slo.relative_max is None and faults.ok(*here):
        faults.add(here, 'has no limit; set max = "800ms", min = … or relative_max = "10%"')
    if slo.at_most is not None and slo.at_least is not None and slo.at_least > slo.at_most:
        faults.add((*here, "min"), f"{slo.at_least:g} is above max ({slo.at_most:g}): no value can pass")
    scenarios = tuple(dict.fromkeys(workload.scenario for workload in plan.workloads))
    scenarios += (SCENARIO,) if plan.quality is not None else ()
    if slo.scenario is not None and slo.scenario not in scenarios and faults.ok("workload"):
        faults.add((*here, "scenario"), no_such("scenario", slo.scenario, scenarios))
    if slo.channel in plan.hybrids and faults.ok("channel"):
        parts = ", ".join(part.channel for part in plan.hybrids[slo.channel].parts)
        faults.add(
            (*here, "channel"), f"results are kept by the channel that served, so name one of its parts: {parts}"
        )
    elif slo.channel is not None and slo.channel not in plan.channels and faults.ok("channel"):
        faults.add((*here, "channel"), no_such("channel", slo.channel, tuple(plan.channels)))
    if slo.stage is not None and faults.ok("load", "stages") and faults.ok(*here, "stage"):
        stages = stage_names(plan.load)
        if slo.stage not in stages:
            faults.add((*here, "stage"), no_such("stage", slo.stage, stages))
    if slo.scenario in scenarios and slo.channel in plan.channels and faults.ok("channel") and faults.ok("workload"):
        seen = _seen(plan, slo)
        if not seen:
            faults.add((*here, "channel"), f"no turn of scenario {slo.scenario!r} goes to channel {slo.channel!r}")
    if faults.ok(*here, "metric") and faults.ok(*here, "stat"):
        _slo_metric(draft, here, slo)
        if slo.abort:
            _slo_abort(draft, here, slo)


def _slo_metric(draft: Draft, here: KeyPath, slo: Slo) -> None:
    from infersiege.metrics.definitions import METRICS, STATS

    faults = draft.faults
    metric = METRICS[slo.metric]
    if metric.kind == "distribution" and slo.stat is None:
        faults.add(here, f"{slo.metric} is a distribution and needs stat: {', '.join(STATS)}")
    if metric.kind == "rate" and slo.stat is not None:
        faults.add((*here, "stat"), f"{slo.metric} is one number and has no statistic; leave stat out")
    if metric.needs_stream and faults.ok("channel") and faults.ok("workload"):
        silent = _unstreamed(draft.plan, slo)
        if silent:
            faults.add(
                (*here, "metric"),
                f"{slo.metric} exists only with streaming, but stream = false on channel {', '.join(silent)}",
            )
    if slo.metric in _GOOD and not _single_limits(draft.plan):
        faults.add(
            (*here, "metric"),
            f"{slo.metric} counts turns within their limits, and the plan has none: add a rule with max on p90 or "
            "higher of ttft, tpot, e2e …",
        )
    if slo.metric == "delivered_share" and slo.channel is not None:
        faults.add((*here, "channel"), "delivered_share belongs to a load, not to a channel; leave channel out")
    if slo.metric in _COSTS and all(faults.ok(*key) for key in (("channel",), ("workload",), (*here, "channel"))):
        _slo_cost(draft, here, slo)


_GOOD = ("goodput", "goodput_share")


def _single_limits(plan: Plan) -> bool:
    from infersiege.gate.rules import request_limits

    return bool(request_limits(plan.slos))


def _slo_abort(draft: Draft, here: KeyPath, slo: Slo) -> None:
    """Only what is a share of turns has a test that may be looked at all the time (gate.abort)."""
    from infersiege.gate.abort import COUNTED, allowed_share

    faults = draft.faults
    if slo.severity == "warn":
        faults.add((*here, "abort"), "a rule that only warns stops no run; leave abort out, or severity")
    elif allowed_share(slo) is None:
        faults.add(
            (*here, "abort"),
            f"works with max on a percentile or the maximum of {', '.join(COUNTED)}, with max on error_share and with "
            "min on goodput_share: means and rates have no bound that may be looked at all the time",
        )


_COSTS = ("cost", "cost_per_million_output_tokens")


def _slo_cost(draft: Draft, here: KeyPath, slo: Slo) -> None:
    """A rule on money needs a channel that costs some, and one on a turn's money one that is paid by tokens."""
    seen = _seen(draft.plan, slo)
    prices = [price for name in seen if (price := draft.plan.channels[name].price) is not None]
    if not seen or (slo.channel is not None and slo.channel not in seen):
        return
    if not prices:
        draft.faults.add(
            (*here, "metric"),
            f"{slo.metric} needs a price, which channel {', '.join(seen)} does not have; write price = {{input = …, "
            "output = …}",
        )
    elif slo.metric == "cost" and all(price.gpu_hour is not None for price in prices):
        draft.faults.add(
            (*here, "metric"),
            f"cost is a turn's by its tokens, and channel {', '.join(seen)} is paid by the hour; use {_COSTS[1]}",
        )


def _unstreamed(plan: Plan, slo: Slo) -> list[str]:
    """Channels without streaming, if the rule can see no other ones."""
    seen = _seen(plan, slo)
    silent = [name for name in seen if not plan.channels[name].stream]
    return silent if len(silent) == len(seen) else []


def _seen(plan: Plan, slo: Slo) -> list[str]:
    """Channels whose turns a rule can see."""
    only = next(iter(plan.channels)) if len(plan.channels) == 1 else None
    named = {
        workload.channel or only
        for workload in plan.workloads
        if slo.scenario is None or workload.scenario == slo.scenario
    }
    used = named | {part.channel for name in named if name in plan.hybrids for part in plan.hybrids[name].parts}
    return [name for name in plan.channels if name in used and (slo.channel is None or name == slo.channel)]
