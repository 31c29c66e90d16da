"""A trace's description in a terminal: every table fits it, and what is not known is `–` with why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from infersiege.report.fitting import fitted
from infersiege.report.numbers import ABSENT, count, number, printable, share
from infersiege.traces.inspection.describe import Delays, Description, Lengths

_NOT_TOLD = " (not told)"
SPREADS = ("n", "mean", "p50", "p90", "p99", "max")


def print_description(found: Description, console: Console) -> None:
    """Everything but the warnings."""
    console.print(Text(f"{printable(found.name)} ({found.format})", style="bold"))
    for line in sentences(found):
        console.print(line, markup=False, soft_wrap=True)
    _print_distributions(found, console)
    headers: tuple[str, ...] = ("Context\nlimit", "Sessions\nwhole", "\ncut", "\ndropped", "Turns\ndropped")
    headers += ("Input\nmean", "Output\nmean", "Prefix\nshare")
    _print(console, "What a context limit leaves", headers, context_rows(found))
    for line in clip_lines(found):
        console.print(line, markup=False, soft_wrap=True)


def sentences(found: Description) -> Iterator[str]:
    """What is no table: one line each."""
    yield found.line()
    if found.sessions is None:
        yield f"the figures are of the first {found.sampled:,} sessions"
    if found.ticks is not None:
        cv = f"inter-arrival CV {number(found.interarrival_cv)}"
        yield f"arrivals: {found.ticks:,} distinct stamps, {cv}"
    else:
        yield "arrivals: the trace has no times"
    turns = f"turns: {found.turns:,}, {number(found.turns_per_session)} per session in the mean"
    turns += f", {found.branches:,} branches" if found.branches else ""
    yield turns + (f", {found.shrinking_turns:,} with a shrinking prompt" if found.shrinking_turns else "")
    yield prefix_words(found)
    if found.longest is not None:
        longest = found.longest
        where = "" if longest.source_line is None else f"line {longest.source_line:,}, "
        output = f" + {longest.output_tokens:,} output" if longest.output_tokens is not None else ", unknown output,"
        yield f"longest request: {longest.input_tokens:,} prompt{output} tokens ({where}turn {longest.turn})"
    if found.delays is not None:
        yield cap_words(found.delays)
    if found.estimated:
        yield "estimated: lengths that the trace does not tell are of characters, about 4 a token"


def prefix_words(found: Description) -> str:
    """Prefix share and bound, or why there is none."""
    own = "not known" if found.prefix_share is None else share(found.prefix_share)
    bound = "not known (the trace does not tell what all its prompts hold)"
    if found.cache_bound is not None:
        bound = share(found.cache_bound)
    return f"prefix share {own} (of own session), infinite-cache hit bound {bound}"


def cap_words(delays: Delays) -> str:
    """What the plan's delay_cap changes."""
    if not delays.capped_turns:
        return f"delay cap of {delays.cap_s:g} s: changes nothing"
    return (
        f"delay cap of {delays.cap_s:g} s: shortens {delays.capped_turns:,} of {delays.all.n:,} delays "
        f"({share(delays.capped_share)}), takes away {share(delays.removed_share)} of the waiting"
    )


def distribution_rows(found: Description) -> list[list[str]]:
    """Name and SPREADS of each distribution that is known."""
    delays = found.delays
    named: list[tuple[str, Lengths | None]] = [
        ("input tokens", found.prompt_tokens),
        ("output tokens", found.output_tokens),
        ("turns per session", found.session_turns),
        ("growth per turn, tokens", found.growth_tokens),
        ("delay, s", None if delays is None else delays.all),
        ("  before tool results, s", None if delays is None else delays.tool),
        ("  before a user, s", None if delays is None else delays.user),
    ]
    always = {"input tokens", "output tokens"}
    rows = []
    for name, spread in named:
        if spread is not None:
            figures = [number(getattr(spread, stat)) for stat in SPREADS[1:]]
            rows.append([name, count(spread.n), *figures])
        elif name in always:
            rows.append([f"{name}{_NOT_TOLD}", "0", *([ABSENT] * (len(SPREADS) - 1))])
    return rows


def clip_lines(found: Description) -> Iterator[str]:
    """What `too_long = "clip"` cuts at each limit; none where it is "skip"."""
    for fit in found.context:
        if fit.turns_clipped is not None:
            cut = f"{fit.turns_clipped:,} prompts are cut, as far as they can be"
            yield f"too_long = clip: at {fit.limit_tokens:,} tokens {cut}"


def context_rows(found: Description) -> list[list[str]]:
    """A row per limit, and one without; none where no prompt's length is known."""
    if not found.context or found.prompt_tokens is None:
        return []
    output = None if found.output_tokens is None else found.output_tokens.mean
    rows = [["none", count(found.sampled), "0", "0", "0", number(found.prompt_tokens.mean), number(output)]]
    rows[0].append(share(found.prefix_share))
    for fit in found.context:
        whole = [fit.sessions_whole, fit.sessions_cut, fit.sessions_dropped, fit.turns_dropped]
        means = [number(fit.input_mean), number(fit.output_mean), share(fit.prefix_share)]
        rows.append([count(fit.limit_tokens), *map(count, whole), *means])
    return rows


_NARROW_NAMES = {
    "input tokens": "Input\ntokens",
    "output tokens": "Output\ntokens",
    "turns per session": "Turns/\nsession",
    "growth per turn, tokens": "Growth\ntokens",
    "delay, s": "Delay\ns",
    "  before tool results, s": "Before\ntool, s",
    "  before a user, s": "Before\nuser, s",
}


def _print_distributions(found: Description, console: Console) -> None:
    """A row per figure or, where that is too wide for one table, a column per figure: those need less room."""
    rows = distribution_rows(found)
    tables = _tables("Distributions", ("", *SPREADS), rows, console.width)
    if len(tables) > 1:
        names, *columns = zip(*rows, strict=True)
        turned = [[stat, *cells] for stat, cells in zip(SPREADS, columns, strict=True)]
        headers = ("", *(_NARROW_NAMES[name.removesuffix(_NOT_TOLD)] for name in names))
        narrow = _tables("Distributions", headers, turned, console.width)
        tables = narrow if len(narrow) < len(tables) else tables
    for table in tables:
        console.print(table)


def _tables(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Table]:
    return list(fitted(title, headers, [[Text(cell) for cell in row] for row in rows], width))


def _print(console: Console, title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        for table in _tables(title, headers, rows, console.width):
            console.print(table)
