"""From series and summary to one StageResources per stage."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infersiege.metrics.facts import SteadyWindow
from infersiege.records import ErrorClass, GroupSummary, StageResources, Summary
from infersiege.resources.engines import EngineFigures, engine_figures
from infersiege.resources.evidence import Evidence
from infersiege.resources.gpus import READ_ENOUGH, GpuFigures, Spread, gpu_figures
from infersiege.resources.limit import limit_of, percent
from infersiege.resources.series import SECOND_NS
from infersiege.resources.watched import Watched

CLIENT_BOUND = ("client-bound:", "for want of ports, files or memory on a worker")
"""What metrics.validity says of a run whose own load generator was the limit."""


def stages(watched: Watched, summary: Summary, windows: Sequence[SteadyWindow]) -> tuple[StageResources, ...]:
    """What was watched in each steady phase, in the order of the stages; () when nothing was watched in the whole run.

    `summary` gives the load of each stage: its turns, its errors, and the tokens that arrived in it.
    """
    if not watched:
        return ()
    held = [window for window in windows if window.duration_ns]
    return tuple(_stage(watched, summary, window, _group(summary, window.stage, len(held))) for window in held)


def _group(summary: Summary, stage: str, stages_held: int) -> GroupSummary | None:
    """The figures of one stage: those of the whole run where it has only one."""
    for group in summary.groups:
        if group.scenario is None and group.channel is None and group.stage == stage:
            return group
    return summary.groups[0] if summary.groups and stages_held == 1 else None


def _stage(watched: Watched, summary: Summary, window: SteadyWindow, group: GroupSummary | None) -> StageResources:
    gpus, engines = gpu_figures(watched, window), engine_figures(watched, window)
    coverage = {**(gpus.coverage if gpus else {}), **(engines.coverage if engines else {})}
    evidence = _evidence(summary, group, gpus, engines, coverage)
    limit, reason = limit_of(evidence)
    made = StageResources(stage=window.stage, coverage=coverage, limit=limit, limit_reason=reason)
    if gpus is not None:
        made = _with_gpus(made, gpus, _tokens(group))
    if engines is not None:
        made = _with_engines(made, engines)
    return made


def _tokens(group: GroupSummary | None) -> float | None:
    """Output tokens that arrived in the steady phase: throughput × its length."""
    throughput = None if group is None else group.rates.get("throughput")
    return None if group is None or throughput is None else throughput * group.steady_duration_ns / SECOND_NS


def _with_gpus(made: StageResources, found: GpuFigures, tokens: float | None) -> StageResources:
    energy_j = found.energy_whole_j
    return msgspec.structs.replace(
        made,
        gpus=found.count,
        gpus_lost=found.lost,
        energy_j=found.energy_j,
        energy_per_output_token_j=energy_j / tokens if energy_j is not None and tokens else None,
        power_mean_w=found.power_mean_w,
        utilization_mean=_mean(found.utilization),
        sm_active_mean=_mean(found.sm_active),
        tensor_active_mean=_mean(found.tensor_active),
        dram_active_mean=_mean(found.dram_active),
        memory_used_mean_bytes=found.memory_used_mean_bytes,
        memory_used_peak_bytes=found.memory_used_peak_bytes,
        memory_total_bytes=found.memory_total_bytes,
        power_capped_share=_mean(found.power_capped),
        throttled_share=_mean(found.throttled),
        xids=found.xids,
    )


def _with_engines(made: StageResources, found: EngineFigures) -> StageResources:
    return msgspec.structs.replace(
        made,
        kv_use_mean=found.kv_use_mean,
        kv_use_peak=found.kv_use_peak,
        running_mean=found.running_mean,
        running_peak=found.running_peak,
        waiting_mean=found.waiting_mean,
        waiting_peak=found.waiting_peak,
        preemptions=found.preemptions,
        prefix_hit_share=found.prefix_hit_share,
        server_ttft_mean_ms=found.server_ttft_mean_ms,
        server_ttft_p50_ms=found.server_ttft_p50_ms,
        server_ttft_p95_ms=found.server_ttft_p95_ms,
        server_itl_mean_ms=found.server_itl_mean_ms,
    )


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


def _evidence(
    summary: Summary,
    group: GroupSummary | None,
    gpus: GpuFigures | None,
    engines: EngineFigures | None,
    coverage: dict[str, float],
) -> Evidence:
    client = next((reason for reason in summary.invalid if any(words in reason for words in CLIENT_BOUND)), None)
    return Evidence(
        # Only what was seen: what to change stands with the verdict.
        client=None if client is None else client.removeprefix("client-bound:").split(";")[0].strip(),
        started=0 if group is None else group.counts.started,
        ended=0 if group is None else group.counts.ok + group.counts.failed,
        rate_limited=_failed(group, ErrorClass.RATE_LIMIT),
        overloaded=_failed(group, ErrorClass.OVERLOAD),
        in_flight_mean=None if group is None else group.in_flight_mean,
        engines=() if engines is None else engines.each,
        restarts=0 if engines is None else engines.restarts,
        power_capped=None if gpus is None else gpus.power_capped,
        throttled=None if gpus is None else gpus.throttled,
        clock_loss=None if gpus is None else gpus.clock_loss,
        dram_active=None if gpus is None else gpus.dram_active,
        tensor_active=None if gpus is None else gpus.tensor_active,
        sm_active=None if gpus is None else gpus.sm_active,
        utilization=None if gpus is None else gpus.utilization,
        gpus=0 if gpus is None else gpus.count,
        idle=0 if gpus is None else gpus.idle or 0,
        thin=thin(coverage),
    )


def _failed(group: GroupSummary | None, why: ErrorClass) -> int:
    return 0 if group is None else group.errors.get(why.value, 0)


def thin(coverage: dict[str, float]) -> tuple[str, ...]:
    """Series that were read for too little of the steady phase: `engine 127.0.0.1:8000: 45 %`."""
    return tuple(f"{name}: {percent(share)}" for name, share in coverage.items() if share < READ_ENOUGH)


def warnings(found: Sequence[StageResources], watched: Watched | None = None) -> list[str]:
    """What must be read with the figures: whose series they are, lost cards, Xids, series with holes."""
    lines = [] if watched is None else list(watched.notes)
    for stage in found:
        where = f"stage {stage.stage}" if len(found) > 1 else "the steady phase"
        lines += [f"GPU not readable in {where}: {lost}" for lost in stage.gpus_lost]
        lines += [f"GPU error in {where}: {xid} ({count:,} times)" for xid, count in stage.xids.items()]
        holes = thin(stage.coverage)
        if holes:
            lines.append(f"figures of GPU and engine are from part of {where} only: {', '.join(holes)}")
        unread = stage.gpus_lost or any(hole.startswith("gpu ") for hole in holes)
        if stage.energy_j is not None and stage.energy_per_output_token_j is None and unread:
            lines.append(
                f"no energy per token for {where}: not every GPU was read for {percent(READ_ENOUGH)} of it, while its "
                "tokens are of all of it"
            )
    return lines
