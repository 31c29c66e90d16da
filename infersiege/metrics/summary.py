"""From turns to summary.json: pure, in one pass, whatever the order of the turns (docs/metrics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from infersiege.metrics.client import worst
from infersiege.metrics.collect import Collector
from infersiege.metrics.delivery import delivered
from infersiege.metrics.facts import RunFacts
from infersiege.metrics.groups import costs, counts_of, cuts, group, replica_cuts
from infersiege.metrics.loads import delivered_load
from infersiege.metrics.quality import (
    AnswersOf,
    about_answers,
    answers_of_stages,
    quality_shares,
    unscored_answers,
    wrong_answers,
)
from infersiege.metrics.validity import invalid_reasons, warnings_of
from infersiege.records import SCHEMA_VERSION, Outcome, Summary, TurnRecord


def summarise(turns: Iterable[TurnRecord], facts: RunFacts) -> Summary:
    """The summary of a run, without rules (gate adds them).

    One pass over the turns, in any order. Percentiles are exact except those of inter-chunk gaps, which the records
    carry in buckets (0.4 %). `invalid` says why the figures can't be trusted, and what to change.
    """
    collector = Collector(facts)
    collector.add_all(turns)
    return summary_of(collector)


def summary_of(collector: Collector) -> Summary:
    """`summarise` of turns that were collected already; `collector.facts` are the facts."""
    facts = collector.facts
    loads = delivered(collector)
    groups = tuple(group(cut, collector, loads) for cut in cuts(collector))
    counts = counts_of(collector.outcomes, facts.planned_turns)
    paid = costs(collector)
    cells = [
        AnswersOf(key[0], key[1], key[2], cell.answers, cell.outcomes[Outcome.OK], cell.errors)
        for key, cell in sorted(collector.cells.items())
    ]
    quality = quality_shares(cells, collector.windows)
    answers, unscored = answers_of_stages(cells, collector.windows), unscored_answers(cells)
    return Summary(
        schema_version=SCHEMA_VERSION,
        run_id=facts.run_id,
        name=facts.name,
        emulated=collector.emulated,
        started_ns=facts.started_ns,
        ended_ns=facts.ended_ns,
        interrupted=facts.interrupted,
        counts=counts,
        groups=groups,
        replicas=tuple(group(cut, collector, loads) for cut in replica_cuts(collector)),
        cost=math.fsum(one.total for one in paid if one.total is not None) if paid else None,
        costs=paid,
        loads=tuple(delivered_load(one, collector) for one in sorted(loads, key=lambda one: one.window.start_ns)),
        traces=facts.traces,
        workers=facts.workers,
        clients=facts.clients,
        client=worst(facts.clients),
        invalid=invalid_reasons(collector, counts, loads),
        internal_faults=collector.internal,
        warnings=(*warnings_of(collector, groups[0]), *about_answers(quality, answers, unscored)),
        quality=quality,
        unscored=unscored,
        wrong_answers=wrong_answers(cells),
        answers=answers,
        tokens_from=dict(sorted(collector.tokens_from.items())),
        stamp_source=dict(sorted(collector.stamp_source.items())),
    )
