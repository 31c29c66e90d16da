"""What is seen while a run goes on: a panel on a terminal, a line every few seconds elsewhere.

No thread and no timer: the master calls `show` from its own loop. Showing may fail (a closed pipe, a strange terminal);
the run goes on without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infersiege.report.numbers import ABSENT, SECOND_NS, count, number, printable, share, span

LINE_EVERY_NS = 5 * SECOND_NS
REFRESH_EVERY_NS = SECOND_NS // 4


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a run, over all workers. Rates and percentiles are of the last seconds (`over_ns`).

    None: not known, or nothing to tell it from yet.
    """

    now_ns: int
    """Any clock that does not go back; only differences are used."""
    stage: str
    phase: str
    elapsed_ns: int
    left_ns: int | None
    """Until the end of the offered load; None: the run ends by work."""
    users: int
    in_flight: int
    over_ns: int = 10 * SECOND_NS
    turns_per_second: float | None = None
    tokens_per_second: float | None = None
    ttft_p50_ns: int | None = None
    ttft_p99_ns: int | None = None
    planned: int
    """Turns of started sessions."""
    closed: int
    """Of these, turns that have ended in any way."""
    failed: int
    error_share: float | None = None
    workers_alive: int
    workers: int
    note: str | None = None
    """Such as `waiting for open turns`."""


def _ms(ns: int | None) -> str:
    return ABSENT if ns is None else f"{number(ns / 1e6)} ms"


def plain_line(state: LiveState) -> str:
    """The state on one line, for logs: every figure has its name and unit."""
    left = "" if state.left_ns is None else f" (left {span(state.left_ns)})"
    parts = [
        f"[{span(state.elapsed_ns)}{left}] {printable(state.stage)}/{state.phase}",
        f"users {count(state.users)}",
        f"in flight {count(state.in_flight)}",
        f"{number(state.turns_per_second)} turns/s",
        f"{number(state.tokens_per_second)} tok/s",
        f"TTFT p50 {_ms(state.ttft_p50_ns)} p99 {_ms(state.ttft_p99_ns)}",
        f"failed {count(state.failed)}" + ("" if state.error_share is None else f" ({share(state.error_share)})"),
        f"closed {count(state.closed)}/{count(state.planned)}",
        f"workers {state.workers_alive}/{state.workers}",
    ]
    if state.note:
        parts.append(printable(state.note))
    return "  ".join(parts)


def panel(state: LiveState, *, emulated: bool = False) -> Group:
    """The state as four short rows; fits 80 columns."""
    head = Text(overflow="ellipsis", no_wrap=True)
    if emulated:
        head.append(" EMULATED ", style="bold black on yellow").append(" ")
    head.append(printable(state.stage), style="bold").append(f" · {state.phase} · {span(state.elapsed_ns)}")
    head.append("" if state.left_ns is None else f" · {span(state.left_ns)} left", style="dim")
    if state.note:
        head.append(f" · {printable(state.note)}", style="yellow")

    table = Table.grid(padding=(0, 2), expand=False)
    for _ in range(4):
        table.add_column(no_wrap=True)

    def cell(name: str, value: str, style: str = "bold") -> Text:
        return Text.assemble((f"{name} ", "dim"), (value, style))

    short = state.workers_alive < state.workers
    table.add_row(
        cell("users", count(state.users)),
        cell("in flight", count(state.in_flight)),
        cell("turns/s", number(state.turns_per_second)),
        cell("tok/s", number(state.tokens_per_second)),
    )
    table.add_row(
        cell("TTFT p50", _ms(state.ttft_p50_ns)),
        cell("p99", _ms(state.ttft_p99_ns)),
        cell("failed", f"{count(state.failed)} {share(state.error_share)}", "bold red" if state.failed else "bold"),
        cell("workers", f"{state.workers_alive}/{state.workers}", "bold red" if short else "bold"),
    )
    closed = cell("turns closed", f"{count(state.closed)} of {count(state.planned)}")
    last = f"rates and percentiles: last {span(state.over_ns)}"
    table_foot = Text.assemble(closed, "  ", (last, "dim"), overflow="ellipsis", no_wrap=True)
    if state.left_ns is None:
        return Group(head, table, table_foot)
    whole = max(state.elapsed_ns + state.left_ns, 1)
    bar = ProgressBar(total=whole, completed=min(max(state.elapsed_ns, 0), whole), width=60)
    return Group(head, table, table_foot, bar)


class LiveView:
    """Shows LiveStates. Use as a context manager: leaving it restores the cursor, whatever happened inside.

    `show` never raises: a view that can't show turns itself off and `fault` says why.
    """

    def __init__(
        self, console: Console, *, emulated: bool = False, plain: bool | None = None, line_every_ns: int = LINE_EVERY_NS
    ) -> None:
        """`plain` None: lines unless the console is a terminal that can move its cursor."""
        can_draw = console.is_terminal and not console.is_dumb_terminal
        self._console = console
        self._emulated = emulated
        self._line_every_ns = line_every_ns
        self._live: Live | None = None
        if not (plain if plain is not None else not can_draw):
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
        self._shown_ns: int | None = None
        self.fault: str | None = None
        """Why nothing is shown any more; None: all is well."""

    @contextlib.contextmanager
    def _never_raises(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a view is not worth a run
            # SystemExit: what rich makes of a closed pipe.
            self.fault = f"{type(error).__name__}: {error}"

    def __enter__(self) -> Self:
        if self._live is not None:
            with self._never_raises():
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the panel away and show the cursor again. Never raises; closing twice does nothing."""
        live, self._live = self._live, None
        if live is not None:
            with self._never_raises():
                live.stop()
            with self._never_raises():
                self._console.show_cursor(True)

    def show(self, state: LiveState, *, force: bool = False) -> None:
        """Draw this state if it is time (four times a second, or a line each `line_every_ns`), or when forced."""
        if self.fault is not None:
            return
        every = self._line_every_ns if self._live is None else REFRESH_EVERY_NS
        if not force and self._shown_ns is not None and state.now_ns - self._shown_ns < every:
            return
        self._shown_ns = state.now_ns
        with self._never_raises():
            if self._live is None:
                label = "EMULATED " if self._emulated else ""
                self._print(label + plain_line(state))
            else:
                self._live.update(panel(state, emulated=self._emulated), refresh=True)

    def say(self, text: str, *, style: str = "") -> None:
        """One line that stays (a worker was lost, a stage began), above the panel. Never raises."""
        if self.fault is None:
            with self._never_raises():
                self._print(printable(text), style)

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)
        # A pipe is block-buffered: a log that comes all at the end is no progress.
        self._console.file.flush()
