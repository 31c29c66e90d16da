"""Why a run measured nothing: it ended before its steady window began, or no turn was due in that."""

from __future__ import annotations

from collections import Counter

from infersiege.metrics.collect import Collector
from infersiege.metrics.facts import RunFacts
from infersiege.records import Reason


def why_unmeasured(collector: Collector) -> list[str]:
    """One reason, with what to change; none where something was due in a steady window, or the master knew why."""
    facts, windows = collector.facts, collector.windows
    if windows and collector.cells:
        return []
    if facts.interrupted:
        where = "before any turn was due in its steady window" if windows else "in its warm-up"
        return [f"the run was interrupted {where}: nothing was measured"]
    if windows:
        return [_nothing_due(collector)]
    if any(reason.startswith("no steady window") for reason in facts.invalid):
        return []
    return [f"no steady window was reached: the run ended within its {facts.settling or 'warm-up'}; {_remedy(facts)}"]


def _nothing_due(collector: Collector) -> str:
    """What became of the turns before the window, where that explains why there were none in it."""
    said, turns, bad = "no turn was due in the steady window", collector.outcomes.total(), collector.ends.total()
    ended = ends(collector.ends)
    if ended and 2 * bad >= turns:
        return f"{said}: of the {turns} turns of the run {bad} did not succeed ({ended})"
    if turns and collector.facts.settling is not None:
        return f"{said}, which begins after a {collector.facts.settling}; {_remedy(collector.facts)}"
    return f"{said}; check the trace's length, the rate and the warm-up"


def _remedy(facts: RunFacts) -> str:
    # A run of so many sessions ends when they are played, however long it may take.
    longer = "play more sessions (run.stop)" if facts.counted else "lengthen run.duration or the trace"
    what = "the ramp" if facts.settling is not None and facts.settling.startswith("ramp") else "the warm-up"
    return f"{longer}, or shorten {what}"


def ends(counts: Counter[str]) -> str:
    """How turns ended, the most frequent first: `failed: context_length 12, skipped: after_failure 3`."""
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    # What the run's end left is on the list of every run and explains nothing.
    told = [(name, count) for name, count in worst if name != f"skipped: {Reason.RUN_END}"]
    return ", ".join(f"{name} {count}" for name, count in told[:3])
