"""What a run's figures look like in a terminal or a log: pure functions of a Summary.

Everything fits the console, from 40 columns on; colour only ever repeats what the words say. Each missing figure is `–`
with a numbered reason below.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from infersiege.cost import cost_line, money
from infersiege.metrics.held import limit_of
from infersiege.records import (
    BudgetUse,
    Counts,
    GroupSummary,
    RateUse,
    RuleResult,
    Summary,
    TraceAccount,
    Verdict,
)
from infersiege.report import rule_words
from infersiege.report.delivered import delivered_tables
from infersiege.report.fitting import NARROW, fitted, plain_table
from infersiege.report.latency import Footnotes, group_name, latency_tables
from infersiege.report.numbers import (
    ABSENT,
    count,
    moment,
    number,
    printable,
    share,
    span,
)
from infersiege.report.quality_html import quality_tables
from infersiege.report.stages import SHORT, measured, unwatched

VERDICT_STYLE: Mapping[Verdict, str] = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.NO_DATA: "bold yellow",
    Verdict.INVALID: "bold magenta",
}

STOPPED = "the run was stopped before its end"

_RATES: Sequence[tuple[str, str, str]] = (
    ("asked_rate", "asked\nturns/s", "the length of the steady phase is not known"),
    ("sent_rate", "sent\nturns/s", "nothing was sent in the steady phase"),
    ("finished_rate", "finished\nturns/s", "nothing ended in the steady phase"),
    ("throughput", "output\ntok/s", "token counts are not known"),
    ("goodput", "goodput\nturns/s", "the plan has no rule on a turn's latency"),
    ("cache_share", "cache\nshare", "the server does not tell cached tokens"),
)


def load_tables(groups: Sequence[GroupSummary], notes: Footnotes, width: int) -> Iterator[Table]:
    """Per group: rates, goodput where there are rules, cache share, turns in flight; as `latency_tables`."""
    shown = [
        row for row in _RATES if row[0] != "goodput" or any(_rate(group, "goodput") is not None for group in groups)
    ]
    columns = ["", *(title for _, title, _ in shown), "in flight\nmean", "in flight\nmax"]
    rows = []
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
        rows.append(cells)
    return fitted("Load in the steady phase", columns, rows, width)


def print_resources(summary: Summary, console: Console) -> None:
    """The figures of GPUs and engines that were measured, stage by stage, and what limited each."""
    stages = summary.resources
    figures = measured(SHORT, stages)
    if figures:
        headers = ["", *(f"{title}\n{unit}" for title, unit, _ in figures)]
        rows = [[Text(printable(one.stage)), *(Text(of(one) or ABSENT) for _, _, of in figures)] for one in stages]
        for table in fitted("GPU and engine in the steady phase", headers, rows, console.width):
            console.print(table)
    for one in stages:
        where = f" of {printable(one.stage)}" if len(stages) > 1 else ""
        console.print(Text.assemble((f"limit{where}: {one.limit}", "bold"), f". {printable(one.limit_reason)}"))


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


def print_errors(errors: Mapping[str, int], ok_and_failed: int, examples: Mapping[str, str], console: Console) -> None:
    """By class, most frequent first: turns, share, one example."""
    title = "Failed turns of the steady phase by class"
    rows = []
    for name, turns in sorted(errors.items(), key=lambda item: (-item[1], item[0])):
        ratio = turns / ok_and_failed if ok_and_failed else None
        rows.append((name, count(turns), share(ratio), printable(examples.get(name, ""))))
    if console.width < NARROW:
        console.print(Text(title, style="bold"))
        for name, turns_, share_, example in rows:
            console.print(Text.assemble((name, "red"), f": {turns_} turns, {share_}"))
            console.print(Padding(Text(example, style="dim"), (0, 0, 0, 2)))
        return
    table = plain_table(title)
    for header, column in (("class", 0), ("turns", 1), ("share", 2)):
        widest = max(len(header), *(len(row[column]) for row in rows))
        table.add_column(header, justify="right" if column else "left", no_wrap=True, min_width=widest)
    table.add_column("one of them", overflow="ellipsis", no_wrap=True, ratio=1)
    for name, turns_, share_, example in rows:
        table.add_row(Text(name, style="red"), turns_, share_, Text(example, style="dim"))
    console.print(table)


def trace_lines(summary: Summary) -> list[str]:
    """Rows = those of sessions + skipped by reason, and sessions = sent + not sent: one line per workload."""
    return [
        f"{printable(trace.scenario)}: {printable(trace.trace)}: {' · '.join(_trace_parts(trace))}"
        for trace in summary.traces
    ]


def _trace_parts(trace: TraceAccount) -> Iterator[str]:
    if trace.rows is not None:
        inside = trace.rows if trace.rows_in_sessions is None else trace.rows_in_sessions
        skipped = (f" + {rows:,} skipped ({printable(reason)})" for reason, rows in sorted(trace.skipped.items()))
        yield f"{trace.rows:,} rows = {inside:,} in sessions{''.join(skipped)}"
    if trace.sessions is None:
        yield f"endless: {trace.sessions_started:,} sessions sent"
    else:
        first = trace.sessions_started - trace.sessions_repeated
        yield f"{trace.sessions:,} sessions = {first:,} sent + {trace.not_started or 0:,} not sent"
    unsent = trace.sessions_taken - trace.sessions_started
    if unsent > 0:
        yield f"no turn was sent of {unsent:,} that were begun"
    if trace.sessions_repeated and trace.repeat_factor is not None:
        mean = number(trace.repeat_factor)
        yield f"{trace.sessions_repeated:,} times sent again: each {mean} times on average, also a cache test"


def allowance_lines(summary: Summary) -> list[str]:
    """One line for each figure of a budget, and for each rate limit.

    `budget of cloud: 0.32 of 5.00 used, 4.68 left`, `rate limit of cloud: 600 requests a minute; 59 requests sent; 144
    turns waited for it, 3.2 s at most`.
    """
    budgets = (f"budget of {printable(use.channel)}: {_budget_line(use)}" for use in summary.budgets)
    rates = (f"rate limit of {printable(use.channel)}: {_rate_line(use)}" for use in summary.rate_limits)
    return [*budgets, *rates]


def served_lines(summary: Summary) -> list[str]:
    """`server of local: counted 412 finished requests, the records have 412 answered of 415 sent`."""
    return [
        f"server of {printable(one.channel)}: counted {one.counted:,} finished requests, the records have "
        f"{one.answered:,} answered of {one.sent:,} sent"
        for one in summary.served
    ]


def _budget_line(use: BudgetUse) -> str:
    """What was used and what is left; what ended the run; how much of it is a guess."""

    def written(value: float) -> str:
        return money(value) if use.kind == "cost" else f"{value:,.0f}"

    unit = "" if use.kind == "cost" else f" {use.kind}"
    over = use.used - use.amount
    rest = f"{written(over)} over" if over > 0 else "none left" if over == 0 else f"{written(-over)} left"
    ended = "; it ended the run" if use.ended_run else ""
    lost = f"; {written(use.lost)} of it granted to lost workers, which may not have spent it" if use.lost else ""
    return f"{written(use.used)} of {written(use.amount)}{unit} used, {rest}{ended}{lost}"


def _rate_line(use: RateUse) -> str:
    said = f"{limit_of(use)}; {use.requests:,} requests sent"
    if use.held:
        said += f"; {use.held:,} turns waited for it, {(use.held_longest_ms or 0.0) / 1e3:.1f} s at most"
    if use.too_large:
        said += f"; {use.too_large:,} turns ask for more than it gives"
    return said


def rule_detail(rule: RuleResult, summary: Summary) -> str:
    """As `rule_words.why`."""
    return rule_words.why(rule, summary)


def rule_table(summary: Summary) -> Table:
    """One row per rule: verdict in words, rule with its limit, n, value, 95 % range; baseline and change where given.

    All figures are of the steady phase, whose length stands above; where rules see different parts of it, in a column.
    """
    rules = summary.rules
    windows = list(dict.fromkeys(rule.window_duration_ns for rule in rules if rule.window_duration_ns is not None))
    columns = [("verdict", _verdict_cell), ("rule", _rule_cell)]
    if len(windows) > 1:
        columns.append(("steady", lambda rule: Text(span(rule.window_duration_ns))))
    columns += [("n", lambda rule: Text(count(rule.n))), ("value", lambda rule: Text(rule_words.value(rule)))]
    columns.append(("95 % range", lambda rule: Text(rule_words.extent(rule))))
    if any(rule.baseline is not None for rule in rules):
        columns.append(("baseline", lambda rule: Text(rule_words.baseline(rule))))
        columns.append(("change", lambda rule: Text(rule_words.change(rule))))
    table = plain_table(f"Rules, steady {span(windows[0])}" if len(windows) == 1 else "Rules")
    cells = [[make(rule) for _, make in columns] for rule in rules]
    for place, (header, _) in enumerate(columns):
        if header == "rule":
            table.add_column(header, overflow="fold", ratio=1)
        else:
            widest = max(len(header), *(row[place].cell_len for row in cells))
            table.add_column(header, justify="right" if place else "left", no_wrap=True, min_width=widest)
    for row in cells:
        table.add_row(*row)
    return table


def _verdict_cell(rule: RuleResult) -> Text:
    return Text(rule.verdict.value.upper(), style=VERDICT_STYLE[rule.verdict])


def _rule_cell(rule: RuleResult) -> Text:
    return Text(printable(rule.name) + (" (warn only)" if rule.severity == "warn" else ""))


def _remarks(summary: Summary) -> dict[tuple[Verdict, str], list[RuleResult]]:
    """Why rules did not pass, and what must be read beside those that did: what is said -> of which, in their order."""
    found: dict[tuple[Verdict, str], list[RuleResult]] = {}
    for rule in summary.rules:
        if rule_words.must_be_read(rule):
            said = rule_detail(rule, summary) if rule.verdict is not Verdict.PASS else rule.remark
            found.setdefault((rule.verdict, said), []).append(rule)
    return found


def _print_remarks(remarks: Mapping[tuple[Verdict, str], Sequence[RuleResult]], console: Console) -> None:
    for (_, said), (first, *others) in remarks.items():
        more = f" and {len(others)} more rule{'s' if len(others) > 1 else ''}" if others else ""
        console.print(Text.assemble(_verdict_cell(first), f" {printable(first.name)}{more}: {printable(said)}"))


def print_emulated(console: Console) -> None:
    """The line that no reader of an emulated run's figures may miss."""
    line = " EMULATED: the target was infersiege's own emulator; the figures say nothing about hardware "
    console.print(Text(line, style="bold black on yellow"))


def print_summary(summary: Summary, console: Console, *, examples: Mapping[str, str] | None = None) -> None:
    """The whole summary. `examples`: error_class -> the detail of one of its turns (`Rebuilt.examples`)."""
    whole = summary.groups[0] if summary.groups else None
    if summary.emulated:
        print_emulated(console)
    steady = None if whole is None else whole.steady_duration_ns
    title = Text(printable(summary.name), style="bold")
    title.append(f"  run {summary.run_id} · {moment(summary.started_ns)} · steady {span(steady)}", style="dim")
    console.print(title)
    if summary.interrupted:
        _reason(console, "INTERRUPTED", STOPPED, "bold yellow")
    if not summary.rules:
        for reason in summary.invalid:
            _reason(console, "invalid" if summary.interrupted else "INVALID", reason, "bold magenta")
    for reason in summary.warnings:
        _reason(console, "warning", reason, "yellow")
    console.print()

    notes = Footnotes()
    if summary.groups:
        for tables in (latency_tables, load_tables):
            for table in tables(summary.groups, notes, console.width):
                console.print(table)
        for table in delivered_tables(summary, notes, console.width):
            console.print(table)
        for line in notes.lines():
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
        for group in summary.groups:
            for note in group.notes:
                console.print(Padding(Text(f"{group_name(group)}: {printable(note)}", style="dim"), (0, 0, 0, 2)))
    for table in quality_tables(summary):
        console.print(table)
    if summary.resources:
        console.print()
        print_resources(summary, console)
    elif summary.telemetry is not None:
        console.print()
        console.print(Text(unwatched(in_database=True), style="dim"))
    counts = summary.counts
    if whole is not None and whole.errors:
        console.print()
        print_errors(whole.errors, whole.counts.ok + whole.counts.failed, examples or {}, console)
    console.print()
    console.print(Text("turns: " + conservation(counts), style="" if counts.conserved() else "bold red"))
    for line in trace_lines(summary):
        console.print(Text("trace: " + line))
    cost = cost_line(summary)
    if cost is not None:
        console.print(Text(printable(cost)))
    for line in (*allowance_lines(summary), *served_lines(summary)):
        console.print(Text(line))
    if summary.rules:
        console.print()
        print_rules(summary, console)


def print_rules(summary: Summary, console: Console) -> None:
    """The rules, the verdict and, of an invalid run, why."""
    table, remarks = rule_table(summary), _remarks(summary)
    if console.width >= NARROW and console.measure(table).minimum <= console.width:
        console.print(table)
        _print_remarks(remarks, console)
    else:
        shared = {said: rules for said, rules in remarks.items() if len(rules) > 1}
        console.print(Text("Rules", style="bold"))
        for rule in summary.rules:
            console.print(Text.assemble(_verdict_cell(rule), " ", _rule_cell(rule)))
            parts = [rule_words.value(rule), f"n {count(rule.n)}"]
            parts += [f"95 % range {rule_words.extent(rule)}"] if rule.low is not None or rule.high is not None else []
            parts += [f"baseline {rule_words.baseline(rule)}"] if rule.baseline is not None else []
            parts += [f"change {rule_words.change(rule)}"] if rule.change is not None else []
            detail = rule_detail(rule, summary)
            line = ", ".join(parts) + ("" if (rule.verdict, detail) in shared else f": {printable(detail)}")
            console.print(Padding(Text(line), (0, 0, 0, 2)))
        _print_remarks(shared, console)
    if summary.interrupted:
        _print_interrupted(summary, console)
        return
    for reason in summary.invalid:
        _reason(console, "INVALID", reason, "bold magenta")
    if summary.verdict is None:
        console.print(Text("verdict: none, the plan has no rules of its own", style="dim"))
    else:
        console.print(Text(f"verdict: {summary.verdict.value.upper()}", style=VERDICT_STYLE[summary.verdict]))


def _print_interrupted(summary: Summary, console: Console) -> None:
    """A run that somebody stopped is that before it is anything else."""
    for reason in summary.invalid:
        _reason(console, "invalid", reason, "magenta")
    line = Text("verdict: INTERRUPTED", style="bold yellow")
    line.append(f", {STOPPED}", style="not bold")
    if summary.verdict is not None:
        line.append(f"; what was measured until then: {summary.verdict.value.upper()}", style="not bold")
    console.print(line)


def _reason(console: Console, label: str, text: str, style: str) -> None:
    console.print(Text.assemble((f"{label}: ", style), printable(text)))


def to_text(summary: Summary, *, width: int = 100, examples: Mapping[str, str] | None = None) -> str:
    """`print_summary` as plain text without colour, `width` columns (at least 40) wide; no line ends in spaces."""
    console = Console(
        file=io.StringIO(), width=max(width, 40), color_system=None, force_terminal=False, highlight=False
    )
    with console.capture() as captured:
        print_summary(summary, console, examples=examples)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
