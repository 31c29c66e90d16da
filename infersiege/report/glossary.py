"""Words and formulas at the end of the page: the definitions that the figures are made by, in the page's language."""

from __future__ import annotations

from infersiege.metrics.definitions import METRICS, Metric
from infersiege.report.glossary_zh import CHINESE_METRICS
from infersiege.report.markup import text
from infersiege.report.words import CHINESE, Words


def title_of(metric: Metric, say: Words) -> str:
    """The metric's name on the page. TTFT, TPOT and E2E stay what they are; other names are words."""
    return say(metric.title)


def described(metric: Metric, say: Words) -> str:
    """What the metric means; in English where its language has no words for it."""
    own = CHINESE_METRICS if say.language == CHINESE.language else {}
    return own.get(metric.name, metric.description)


def glossary(say: Words) -> str:
    """What percentiles are over, and every metric with its formula."""
    entries = "".join(
        f"<dt>{_heading(metric, say)}</dt>"
        f"<dd>{text(described(metric, say))}<br><code>{text(metric.formula)}</code></dd>"
        for metric in METRICS.values()
    )
    words = say(
        "Percentiles are over ok turns that were due in the steady phase. p99 needs 100 turns, p99.9 needs 1,000; "
        "a share of cancelled turns above 1 − q takes p_q away, since the slowest may be among them. A figure that is "
        "not there is –, never 0. All times are UTC or seconds since the start."
    )
    title = say("Every metric and its formula")
    return f'<p>{text(words)}</p><details><summary>{text(title)}</summary><dl class="glossary">{entries}</dl></details>'


def _heading(metric: Metric, say: Words) -> str:
    own = title_of(metric, say)
    both = own if own.startswith(metric.title) else f"{metric.title} {own}"
    return f"{text(both)} <code>{text(metric.name)}</code> <span class=soft>{text(say(metric.unit))}</span>"
