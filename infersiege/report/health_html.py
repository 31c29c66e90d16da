"""Whether the load generator itself was fit: how late it was, how sure its first-token stamps are."""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.records import ClientSummary, ClientVerdict, Summary
from infersiege.report.charts import Chart
from infersiege.report.collect import Collected
from infersiege.report.markup import absent, english, facts, grid, table, text
from infersiege.report.numbers import count, number, share
from infersiege.report.words import Words


def health_html(summary: Summary, collected: Collected, charts: Sequence[Chart], say: Words) -> str:
    """Facts, the table of workers, and the charts."""
    stamps, tokens = (
        ", ".join(f"{name} {count(turns)}" for name, turns in counted.items()) or say("none")
        for counted in (summary.stamp_source, summary.tokens_from)
    )
    rows = [(say("Stamps from"), english(text(stamps), say)), (say("Token counts from"), english(text(tokens), say))]
    if collected.flags:
        flags = sorted(collected.flags.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {count(turns)}" for name, turns in flags)
        rows.append((say("Oddities"), english(text(told), say)))
    return facts(rows) + _workers(summary, say) + grid(charts)


def _workers(summary: Summary, say: Words) -> str:
    if not summary.workers:
        return ""
    columns = [(say("Worker"), "", False), (say("Turns"), "", True), (say("Records"), say("received / promised"), True)]
    columns += [("CPU", say("max, of a core"), True), (say("Loop lag"), "p99, ms", True)]
    columns += [(say("Clock offset"), say("ms ± doubt"), True), (say("Clock drift"), say("ms in the run"), True)]
    columns += [(say("State"), "", False), (say("Verdict"), say("in steady"), False)]
    fitness = {one.worker: one for one in summary.clients}
    cells = []
    for worker in summary.workers:
        lag = None if worker.hub_lag_p99_ns is None else worker.hub_lag_p99_ns / 1e6
        offset = f"{number(worker.clock_offset_ns / 1e6)} ± {number(worker.clock_uncertainty_ns / 1e6)}"
        drift = number(None if worker.clock_drift_ns is None else worker.clock_drift_ns / 1e6)
        state = text(say("finished"))
        if worker.lost:
            back_s = sum(back_ns - lost_ns for lost_ns, back_ns in worker.away) / 1e9
            away = text(say("lost for {s} s", s=number(back_s)))
            state = f'<b class="v-fail">{text(say("LOST"))}</b>' if worker.back_at_ns is None else away
        promised = f"{count(worker.records_received)} / {count(worker.records_promised)}"
        name = text(say("{worker} on {host}", worker=worker.worker, host=worker.host))
        fit = _fitness(fitness.get(worker.worker), say)
        cells.append(
            [name, count(worker.turns), promised, share(worker.cpu_share_max), number(lag), offset, drift, state, fit]
        )
    return table(say("Workers of the load generator"), columns, cells)


def _fitness(seen: ClientSummary | None, say: Words) -> str:
    """A worker's verdict with its reasons."""
    if seen is None:
        return absent(say("the run has no telemetry/clients.jsonl"), say)
    if seen.verdict is None:
        why = say("not watched: it has no row in telemetry/clients.jsonl within the steady window")
        return absent(why, say)
    said = english(text(": ".join([seen.verdict.value, *([", ".join(seen.reasons)] if seen.reasons else [])])), say)
    return f'<b class="v-fail">{said}</b>' if seen.verdict is ClientVerdict.CLIENT_BOUND else said
