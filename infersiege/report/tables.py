"""What a run's figures look like in a terminal or a log: pure functions of a Summary.

Everything fits 80 columns; colour only ever repeats what the words say. Each missing figure is `–` with a numbered
reason below.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from infersiege.metrics.definitions import METRICS, STATS
from infersiege.records import Counts, GroupSummary, Outcome, RuleResult, Summary, TurnRecord, Verdict
from infersiege.redact import scrub
from infersiege.report.numbers import (
    ABSENT,
    count,
    figure,
    milliseconds,
    moment,
    number,
    printable,
    share,
    span,
)

VERDICT_STYLE: Mapping[Verdict, str] = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.NO_DATA: "bold yellow",
    Verdict.INVALID: "bold magenta",
}

LATENCY_COLUMNS: Sequence[tuple[str, str]] = (
    ("ttft", "p50"),
    ("ttft", "p95"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("e2e", "p50"),
    ("e2e", "p99"),
)


def group_name(group: GroupSummary) -> str:
    """`all`, or what the group is cut by: `agent`, `channel local`, `stage 32 users`."""
    parts = [
        "" if group.scenario is None else printable(group.scenario),
        "" if group.channel is None else f"channel {printable(group.channel)}",
        "" if group.stage is None else f"stage {printable(group.stage)}",
    ]
    return " · ".join(part for part in parts if part) or "all"


_WHY_MISSING: Mapping[str, str] = {
    "ttft": "not streamed",
    "tpot": "not streamed, no token count, fewer than 2 tokens, or one burst",
}


def why_absent(group: GroupSummary, metric: str, stat: str) -> str:
    """Why a group has no such figure, as one sentence without a full stop."""
    found = group.distributions.get(metric)
    name = METRICS[metric].title
    if found is None or found.n == 0:
        if group.counts.ok == 0:
            return "no turn was ok in the steady phase"
        return f"no ok turn gave a {name} ({_WHY_MISSING.get(metric, 'not streamed, or not told by the server')})"
    kind = STATS[stat]
    if found.n < kind.floor:
        return f"{stat.replace('_', '.')} needs {kind.floor:,} turns"
    if kind.q is not None and found.cancelled_share is not None and found.cancelled_share > 1 - kind.q:
        return f"{share(found.cancelled_share)} of the turns were cancelled: the slowest may be among them"
    return "not measured"


class _Footnotes:
    """Numbers reasons in order of appearance; the same reason has one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        return f"{ABSENT} [{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"{ABSENT} [{number}] {reason}" for reason, number in self._numbers.items()]


def _table(title: str, columns: Iterable[tuple[str, bool]]) -> Table:
    # The box's divider is one space wide already: with more padding the latency table would not fit 80 columns.
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for header, left in columns:
        table.add_column(
            header, justify="left" if left else "right", overflow="ellipsis" if left else "fold", no_wrap=not left
        )
    return table


def latency_table(groups: Sequence[GroupSummary], notes: _Footnotes) -> Table:
    """Per group: n, failed share, percentiles of TTFT, TPOT and E2E in ms."""
    titles = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
    columns = [("", True), ("n\nturns", False), ("failed\nshare", False)]
    columns += [(f"{titles[metric]}\n{stat} ms", False) for metric, stat in LATENCY_COLUMNS]
    table = _table("Latency of ok turns in the steady phase", columns)
    for group in groups:
        cells = [Text(group_name(group))]
        settled = group.counts.ok + group.counts.failed
        failed = group.counts.failed / settled if settled else None
        cells.append(Text(count(group.counts.ok)))
        cells.append(Text(share(failed), style="red" if failed else ""))
        for metric, stat in LATENCY_COLUMNS:
            found = group.distributions.get(metric)
            value = None if found is None else getattr(found, stat)
            if found is None or value is None:
                cells.append(Text(notes.mark(why_absent(group, metric, stat)), style="dim"))
            else:
                cells.append(Text(number(milliseconds(value, found.unit))))
        table.add_row(*cells)
    return table


_RATES: Sequence[tuple[str, str, str]] = (
    ("asked_rate", "asked\nturns/s", "the length of the steady phase is not known"),
    ("sent_rate", "sent\nturns/s", "nothing was sent in the steady phase"),
    ("finished_rate", "finished\nturns/s", "nothing ended in the steady phase"),
    ("throughput", "output\ntok/s", "token counts are not known"),
    ("goodput", "goodput\nturns/s", "the plan has no rule on a turn's latency"),
    ("cache_share", "cache\nshare", "the server does not tell cached tokens"),
)


def load_table(groups: Sequence[GroupSummary], notes: _Footnotes) -> Table:
    """Per group: rates, goodput where there are rules, cache share, turns in flight."""
    shown = [
        row for row in _RATES if row[0] != "goodput" or any(_rate(group, "goodput") is not None for group in groups)
    ]
    columns = [
        ("", True),
        *((title, False) for _, title, _ in shown),
        ("in flight\nmean", False),
        ("in flight\nmax", False),
    ]
    table = _table("Load in the steady phase", columns)
    for group in groups:
        cells = [Text(group_name(group))]
        for name, _, reason in shown:
            value = _rate(group, name)
            if value is None:
                cells.append(Text(notes.mark(reason), style="dim"))
            else:
                cells.append(Text(share(value) if name.endswith("_share") else number(value)))
        cells.append(Text(number(group.in_flight_mean)))
        cells.append(Text(count(group.in_flight_max)))
        table.add_row(*cells)
    return table


def _rate(group: GroupSummary, name: str) -> float | None:
    return group.rates.get(name)


def conservation(counts: Counts) -> str:
    """`planned 120 = started 118 + skipped 2 · started 118 = ok 116 + failed 1 + cancelled 1 + lost 0`."""
    line = (
        f"planned {counts.planned:,} = started {counts.started:,} + skipped {counts.skipped:,} · "
        f"started {counts.started:,} = ok {counts.ok:,} + failed {counts.failed:,} + "
        f"cancelled {counts.cancelled:,} + lost {counts.lost:,}"
    )
    return line if counts.conserved() else f"NOT CONSERVED: {line}"


def error_examples(turns: Iterable[TurnRecord], classes: Iterable[str]) -> dict[str, str]:
    """error_class -> the detail of its first turn. Reads no further than it must."""
    wanted = set(classes)
    found: dict[str, str] = {}
    if not wanted:
        return found
    for turn in turns:
        name = None if turn.error_class is None else turn.error_class.value
        if turn.outcome is Outcome.FAILED and name in wanted and name not in found:
            found[name] = scrub(turn.error_detail or f"HTTP {turn.http_status}")
            if len(found) == len(wanted):
                break
    return found


def error_table(errors: Mapping[str, int], ok_and_failed: int, examples: Mapping[str, str]) -> Table:
    """By class, most frequent first: turns, share, one example."""
    table = _table("Failed turns of the steady phase by class", (("class", True), ("turns", False), ("share", False)))
    table.add_column("one of them", overflow="ellipsis", no_wrap=True, ratio=1)
    for name, turns in sorted(errors.items(), key=lambda item: (-item[1], item[0])):
        ratio = turns / ok_and_failed if ok_and_failed else None
        example = printable(examples.get(name, ""))
        table.add_row(Text(name, style="red"), Text(count(turns)), Text(share(ratio)), Text(example, style="dim"))
    return table


def trace_lines(summary: Summary) -> list[str]:
    """Rows in = sessions started + skipped by reason + not started, one line per workload."""
    lines = []
    for trace in summary.traces:
        has = "endless" if trace.sessions is None else f"{trace.sessions:,} sessions"
        rows = "" if trace.rows is None else f" of {trace.rows:,} rows"
        parts = [f"started {trace.sessions_started:,}"]
        parts += [f"skipped {reason} {turns:,}" for reason, turns in sorted(trace.skipped.items())]
        parts += [] if trace.not_started is None else [f"not started {trace.not_started:,}"]
        again = ""
        if trace.repeat_factor is not None and trace.repeat_factor > 1:
            again = f" · played {number(trace.repeat_factor)} times on average: also a cache test"
        lines.append(
            f"{printable(trace.scenario)}: {printable(trace.trace)} ({has}{rows}) = {' + '.join(parts)}{again}"
        )
    return lines


def rule_detail(rule: RuleResult, summary: Summary) -> str:
    """Why a rule's verdict is what it is, without the reason of an invalid run, which stands there once."""
    said = rule.detail
    return said.removesuffix(f" (run invalid: {summary.invalid[0]})") if summary.invalid else said


def rule_table(summary: Summary) -> Table:
    """One row per rule: verdict in words, value, n, and why."""
    table = _table("Rules", (("verdict", True), ("rule", True), ("value", False), ("n", False)))
    table.columns[1].no_wrap = False
    table.columns[1].overflow = "fold"
    table.add_column("why", overflow="fold", ratio=1)
    for rule in summary.rules:
        name = printable(rule.name) + (" (warn only)" if rule.severity == "warn" else "")
        verdict = Text(rule.verdict.value.upper(), style=VERDICT_STYLE[rule.verdict])
        table.add_row(
            verdict,
            Text(name),
            Text(figure(rule.value, rule.unit)),
            Text(count(rule.n)),
            Text(printable(rule_detail(rule, summary))),
        )
    return table


def print_emulated(console: Console) -> None:
    """The line that no reader of an emulated run's figures may miss."""
    line = " EMULATED: the target was infersiege's own emulator; the figures say nothing about hardware "
    console.print(Text(line, style="bold black on yellow"))


def print_summary(summary: Summary, console: Console, *, examples: Mapping[str, str] | None = None) -> None:
    """The whole summary. `examples`: see `error_examples`."""
    whole = summary.groups[0] if summary.groups else None
    if summary.emulated:
        print_emulated(console)
    steady = None if whole is None else whole.steady_duration_ns
    title = Text(printable(summary.name), style="bold")
    title.append(f"  run {summary.run_id} · {moment(summary.started_ns)} · steady {span(steady)}", style="dim")
    console.print(title)
    if not summary.rules:
        for reason in summary.invalid:
            _reason(console, "INVALID", reason, "bold magenta")
    for reason in summary.warnings:
        _reason(console, "warning", reason, "yellow")
    if summary.interrupted:
        _reason(console, "interrupted", "the run was stopped before its end", "yellow")
    console.print()

    notes = _Footnotes()
    if summary.groups:
        console.print(latency_table(summary.groups, notes))
        console.print(load_table(summary.groups, notes))
        for line in notes.lines():
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
        for group in summary.groups:
            for note in group.notes:
                console.print(Padding(Text(f"{group_name(group)}: {printable(note)}", style="dim"), (0, 0, 0, 2)))
    counts = summary.counts
    if whole is not None and whole.errors:
        console.print()
        console.print(error_table(whole.errors, whole.counts.ok + whole.counts.failed, examples or {}))
    console.print()
    console.print(Text("turns: " + conservation(counts), style="" if counts.conserved() else "bold red"))
    for line in trace_lines(summary):
        console.print(Text("trace: " + line))
    if summary.rules:
        console.print()
        print_rules(summary, console)


def print_rules(summary: Summary, console: Console) -> None:
    """The rules, the verdict and, of an invalid run, why."""
    console.print(rule_table(summary))
    for reason in summary.invalid:
        _reason(console, "INVALID", reason, "bold magenta")
    if summary.verdict is None:
        console.print(Text("verdict: none, the plan has no rules of its own", style="dim"))
    else:
        console.print(Text(f"verdict: {summary.verdict.value.upper()}", style=VERDICT_STYLE[summary.verdict]))


def _reason(console: Console, label: str, text: str, style: str) -> None:
    console.print(Text.assemble((f"{label}: ", style), printable(text)))


def to_text(summary: Summary, *, width: int = 100, examples: Mapping[str, str] | None = None) -> str:
    """`print_summary` as plain text without colour, `width` columns (at least 80) wide; no line ends in spaces."""
    console = Console(
        file=io.StringIO(), width=max(width, 80), color_system=None, force_terminal=False, highlight=False
    )
    with console.capture() as captured:
        print_summary(summary, console, examples=examples)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
