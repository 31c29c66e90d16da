"""What is said in a run's plan and summary of series that came from a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from infersiege.records import TelemetryAccount
from infersiege.report.rebuild import Rebuilt
from infersiege.resources.watched import engine_names
from infersiege.rundir import PlanFile

ABOUT = "series of other hosts: "
"""Each remark begins so: those of a later fetch take the place of those of an earlier one."""

_LISTED = 8


def not_fetched(why: object) -> str:
    """The database did not give them when the run ended."""
    return f"{ABOUT}not fetched: {why}; `infersiege report RUN --with-telemetry` fetches them later"


def silent(hosts: Sequence[str], url: str) -> tuple[str, ...]:
    """Hosts that the plan names, and that wrote nothing."""
    return tuple(f"{ABOUT}{host} has none of this run's time in {url}" for host in hosts)


def unnamed(found: Rebuilt) -> tuple[str, ...]:
    """Hardware of several hosts or engines counts, and the plan does not say that it belongs to the run."""
    watched, telemetry = found.watched, found.plan.typed_plan().telemetry
    remarks = []
    hosts = sorted({series.tags.get("host", "") for series in (*watched.gpus, *watched.hosts)})
    if len(hosts) > 1 and not telemetry.hosts:
        remarks.append(
            f"{ABOUT}GPUs of {len(hosts)} hosts count, and the plan names none: {_listed(hosts)}; if some are not this "
            "run's, name its own in [telemetry] hosts"
        )
    if len(watched.engines) > 1 and not watched.by_channel:
        engines = engine_names(watched.engines)
        remarks.append(
            f"{ABOUT}{len(engines)} engines count, and no channel of the plan is one of them: {_listed(engines)}; if "
            "some are not this run's, give their agent another bucket ([telemetry] hosts chooses GPUs)"
        )
    return tuple(remarks)


def settled(file: PlanFile, remarks: Iterable[str] = ()) -> PlanFile:
    """The plan with these remarks in place of earlier ones."""
    others = (warning for warning in file.warnings if not warning.startswith(ABOUT))
    return msgspec.structs.replace(file, warnings=tuple(dict.fromkeys((*others, *remarks))))


def resettled(found: Rebuilt, remarks: Sequence[str]) -> Rebuilt:
    """After a later fetch: these remarks, in plan and summary, in place of what an earlier one left."""
    plan = settled(found.plan)
    kept = tuple(warning for warning in found.summary.warnings if not warning.startswith(ABOUT))
    summary = msgspec.structs.replace(found.summary, warnings=kept)
    return told(msgspec.structs.replace(found, plan=plan, summary=summary), (*remarks, *unnamed(found)))


def told(found: Rebuilt, warnings: Sequence[str], account: TelemetryAccount | None = None) -> Rebuilt:
    """The same with more warnings, and with an account, in plan and summary: a rebuild says the same."""
    if account is None and not warnings:
        return found
    known = tuple(dict.fromkeys((*found.plan.warnings, *warnings)))
    account = account or found.plan.telemetry
    plan = msgspec.structs.replace(found.plan, telemetry=account, warnings=known)
    everything = tuple(dict.fromkeys((*known, *found.summary.warnings)))
    summary = msgspec.structs.replace(found.summary, telemetry=account, warnings=everything)
    return msgspec.structs.replace(found, plan=plan, summary=summary)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
