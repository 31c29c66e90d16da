"""Rows of a run as points for InfluxDB, as `infersiege_agents.measurements` has them. Pure.

Each function gives every tag of its measurement, and only fields that it names; None means "not measured" and is left
out by the writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from infersiege_agents import measurements
from infersiege_agents.points import Point

from infersiege.metrics.definitions import METRICS
from infersiege.records import ClientHealth, EventRow, GroupSummary, StageResources, Summary
from infersiege.rundir import ChannelFacts, PlanFile, StageFacts
from infersiege.telemetry.crossed import Pair, is_everything, shared

SECOND_NS = 1_000_000_000
NS_PER_MS = 1_000_000

ALL = "all"
"""The tag's value for everything."""
NAMED_ALL = "all (name)"
"""That of a scenario, channel or stage that is called `all`: it would take the place of everything."""

Fields = dict[str, float | int | str | None]


def tag_of(name: str | None) -> str:
    """A scenario, channel or stage as a tag; None: all of them."""
    if name is None:
        return ALL
    return NAMED_ALL if name == ALL else name


def event_point(run: str, event: EventRow, titles: Mapping[str, str]) -> Point:
    """One row of events.jsonl. `titles`: kind -> its words."""
    fields: Fields = {
        "title": titles.get(event.kind, event.kind.replace("_", " ")),
        "detail": event.detail,
        "stage": event.stage,
        "worker": event.worker,
    }
    return Point(measurements.EVENT.name, {"run": run, "kind": event.kind}, fields, event.at_ns)


def client_point(run: str, health: ClientHealth) -> Point:
    """How one worker did in one second."""
    fields: Fields = {
        "cpu_share": health.cpu_share,
        "hub_lag_max_ms": health.hub_lag_max_ns / NS_PER_MS,
        "gc_pause_max_ms": health.gc_pause_max_ns / NS_PER_MS,
        "rss_bytes": health.rss_bytes,
        "open_files": health.open_files,
    }
    return Point(measurements.CLIENT.name, {"run": run, "worker": health.worker}, fields, health.second * SECOND_NS)


# ---------------------------------------------------------------------------------------------------------- the run


def start_point(file: PlanFile) -> Point:
    """The row of a run that goes on: its name and target, no figures. `run_points` replaces it at the end."""
    fields = _identity(file, None) | _of_stages(file, file.stages) | {"state": 0, "emulated": int(file.emulated)}
    fields["steady_ended_ms"] = None  # as planned, and it may come sooner
    return Point(measurements.RUN.name, _tags(file, None, None, None), fields, _stamp(file))


def run_points(file: PlanFile, summary: Summary, *, pairs: Sequence[Pair] = ()) -> Iterator[Point]:
    """One row per group of the summary, with the same values to the last digit; and one per part of the run that holds
    the same turns as a group (`pairs`: which scenarios went to which channels), so that no choice finds nothing.

    Resources stand in the row of their stage, and in those of all turns when there was only one stage: means of several
    stages can't be had from their means, and GPUs serve all scenarios at once.
    """
    for group in summary.groups:
        fields = _row(file, summary, group)
        if group.stage is None and is_everything((group.scenario, group.channel), pairs):
            fields |= _resources(_only(summary.resources))
        yield _point(file, group.scenario, group.channel, group.stage, fields)
        if _whole(group) and len(file.stages) == 1:
            # The only stage is the run; its row lets a table of stages read runs with one and with several alike.
            yield _point(file, None, None, file.stages[0].name, fields)
    for (scenario, channel), group in shared(summary, pairs).items():
        fields = _row(file, summary, group) | _identity(file, channel)
        if is_everything((scenario, channel), pairs):
            fields |= _resources(_only(summary.resources))
        yield _point(file, scenario, channel, None, fields)


def cut_points(file: PlanFile, summary: Summary, groups: Iterable[GroupSummary]) -> Iterator[Point]:
    """Rows of groups that the summary does not have (`crossed.groups_of`)."""
    for group in groups:
        yield _point(file, group.scenario, group.channel, group.stage, _row(file, summary, group))


def _whole(group: GroupSummary) -> bool:
    return (group.scenario, group.channel, group.stage) == (None, None, None)


def _row(file: PlanFile, summary: Summary, group: GroupSummary) -> Fields:
    # What the whole run's flag counts in (answers that say so) no cut knows.
    emulated = summary.emulated if _whole(group) else group.emulated
    fields = _identity(file, group.channel) | _outcome(summary) | _figures(group) | {"emulated": int(emulated)}
    fields |= _of_stages(file, [stage for stage in file.stages if group.stage in (None, stage.name)])
    if group.scenario is None and group.channel is None and group.stage is not None:
        fields |= _resources(next((one for one in summary.resources if one.stage == group.stage), None))
    return fields


def _point(file: PlanFile, scenario: str | None, channel: str | None, stage: str | None, fields: Fields) -> Point:
    return Point(measurements.RUN.name, _tags(file, scenario, channel, stage), fields, _stamp(file))


def _of_stages(file: PlanFile, stages: Sequence[StageFacts]) -> Fields:
    """When these stages were, and what every one of them asked for; stages that differ have no such figure together."""
    users = {stage.users for stage in stages}
    rates = {stage.rate for stage in stages}
    return {
        "started_ms": _ms(min((stage.started_ns for stage in stages), default=_stamp(file))),
        "steady_started_ms": _ms(min((stage.steady_started_ns for stage in stages), default=None)),
        "steady_ended_ms": _ms(max((stage.steady_ended_ns for stage in stages), default=None)),
        "users_asked": users.pop() if len(users) == 1 else None,
        "rate_asked": rates.pop() if len(rates) == 1 else None,
    }


def _stamp(file: PlanFile) -> int:
    """All rows of a run have one instant, so that the last ones replace the first."""
    return file.started_ns if file.started_ns is not None else file.created_ns


def _tags(file: PlanFile, scenario: str | None, channel: str | None, stage: str | None) -> dict[str, str]:
    return {"run": file.run_key, "scenario": tag_of(scenario), "channel": tag_of(channel), "stage": tag_of(stage)}


def _identity(file: PlanFile, channel: str | None) -> Fields:
    channels = [facts for name, facts in file.channels.items() if channel in (None, name)]
    labels = file.plan.get("labels") or {}
    return {
        "run_key": file.run_key,
        "run_id": file.run_id,
        "name": file.name,
        "models": _listed(facts.model for facts in channels),
        "engines": _listed(_engine(facts) for facts in channels),
        "labels": _listed(f"{name}={value}" for name, value in labels.items()),
    }


def _engine(facts: ChannelFacts) -> str:
    return facts.engine if facts.version is None else f"{facts.engine} {facts.version}"


def _listed(names: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(names)) or None


def _outcome(summary: Summary) -> Fields:
    return {
        "verdict": None if summary.verdict is None else summary.verdict.value,
        "invalid": "; ".join(summary.invalid) or None,
        "state": 1,
        "exit_code": summary.exit_code,
        "ended_ms": _ms(summary.ended_ns),
    }


def _figures(group: GroupSummary) -> Fields:
    counts = group.counts
    fields: Fields = {
        "turns_started": counts.started,
        "turns_ok": counts.ok,
        "turns_failed": counts.failed,
        "turns_cancelled": counts.cancelled,
        "turns_lost": counts.lost,
        "turns_skipped": counts.skipped,
        "prompt_tokens": group.prompt_tokens,
        "output_tokens": group.output_tokens,
        "in_flight_mean": group.in_flight_mean,
        "in_flight_max": group.in_flight_max,
    }
    fields |= {name: group.rates.get(name) for name in measurements.RUN_RATES}
    for metric in measurements.RUN_METRICS:
        found = group.distributions.get(metric)
        fields[f"{metric}_n"] = None if found is None else found.n
        for stat in measurements.RUN_STATS:
            fields[f"{metric}_{stat}_{METRICS[metric].unit}"] = None if found is None else getattr(found, stat)
    return fields


def _only(resources: tuple[StageResources, ...]) -> StageResources | None:
    return resources[0] if len(resources) == 1 else None


def _resources(found: StageResources | None) -> Fields:
    return {} if found is None else {column.name: getattr(found, column.name) for column in measurements.RESOURCES}


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS
