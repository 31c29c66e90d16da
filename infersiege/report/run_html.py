"""What was run: everything that somebody needs to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import msgspec

from infersiege.records import Summary
from infersiege.redact import scrub
from infersiege.report.markup import english, facts, text
from infersiege.report.numbers import count, moment, number, span
from infersiege.report.stages import account_line
from infersiege.report.words import Words
from infersiege.rundir import ChannelFacts, PlanFile, StageFacts


def what_was_run(plan: PlanFile, summary: Summary, say: Words) -> str:
    """Run, channels with engine and arguments, stages, traces with hashes, seed, versions, host; the plan itself."""
    rows = [(say("Run"), f"<code>{text(plan.run_id)}</code>"), (say("Started"), text(moment(summary.started_ns)))]
    rows.append((say("Length"), text(span(summary.ended_ns - summary.started_ns))))
    rows += [(say("Channel {name}", name=name), _channel(channel, say)) for name, channel in plan.channels.items()]
    rows += [(say("Stage {name}", name=stage.name), text(" · ".join(_stage(stage, say)))) for stage in plan.stages]
    for trace in summary.traces:
        digest = trace.sha256 or plan.trace_hashes.get(trace.scenario)
        told = f"<br><code>{text(digest)}</code>" if digest else ""
        name = say("Trace {name}", name=trace.scenario)
        rows.append((name, f"{text(trace.trace)} ({text(trace.format)}){told}"))
    seed = _part(plan.plan, "run").get("seed")
    rows.append((say("Seed, nonce"), f"{text(seed)}, <code>{text(plan.nonce)}</code>"))
    rows.append((say("Plan"), f"<code>{text(plan.plan_hash)}</code>"))
    labels = _part(plan.plan, "labels")
    if labels:
        rows.append((say("Labels"), text(", ".join(f"{key} = {value}" for key, value in labels.items()))))
    versions = ", ".join(f"{key} {value}" for key, value in plan.versions.items())
    rows.append((say("Versions"), english(text(versions), say)))
    if plan.host:
        host = ", ".join(f"{key} {value}" for key, value in plan.host.items())
        rows.append((say("Load generator"), english(text(host), say)))
    if summary.telemetry is not None:
        rows.append(("InfluxDB", english(text(account_line(summary.telemetry)), say)))
    # Redacted where it was written, and once more here.
    encoded = scrub(msgspec.json.format(msgspec.json.encode(plan.plan), indent=2).decode())
    summary_line = f"<summary>{text(say('The resolved plan'))}</summary>"
    return facts(rows) + f'<details>{summary_line}<pre tabindex="0">{escape(encoded)}</pre></details>'


def _part(plan: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = plan.get(key)
    return found if isinstance(found, dict) else {}


def _channel(channel: ChannelFacts, say: Words) -> str:
    version = channel.version or say("(version unknown)")
    parts = [f"{text(channel.engine)} {text(version)}", text(channel.dialect)]
    parts += [text(say("model {name}", name=channel.model)), f"<code>{text(channel.url)}</code>"]
    parts += [f"<b>{text(say('EMULATED'))}</b>"] if channel.emulated else []
    parts += [f"<b>{text(say('certificate not verified'))}</b>"] if channel.insecure else []
    parts += [] if channel.streamed else [text(say("not streamed: no TTFT, no TPOT"))]
    parts += [english(f"{text(key)} {text(scrub(str(value)))}", say) for key, value in sorted(channel.details.items())]
    return " · ".join(parts)


def _stage(stage: StageFacts, say: Words) -> list[str]:
    asked = []
    if stage.users is not None:
        asked.append(say("{n} sessions at a time", n=count(stage.users)))
    if stage.rate is not None:
        asked.append(say("{n} sessions/s", n=number(stage.rate)))
    asked.append(say("steady for {time}", time=span(stage.steady_ended_ns - stage.steady_started_ns)))
    if stage.started_dirty:
        asked.append(say("started dirty: the engine was not idle"))
    return asked
