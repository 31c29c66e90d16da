"""The live view on a real pseudo-terminal and a real pipe: it never raises, starts no thread, gives the cursor back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from infersiege.report.live import LiveState, LiveView, plain_line

SECOND = 1_000_000_000

STATE = LiveState(
    now_ns=0,
    stage="32 users",
    phase="steady",
    elapsed_ns=95 * SECOND,
    left_ns=205 * SECOND,
    users=32,
    in_flight=27,
    turns_per_second=18.94,
    tokens_per_second=876.2,
    ttft_p50_ns=67_200_000,
    ttft_p99_ns=227_000_000,
    planned=2000,
    closed=1790,
    failed=12,
    error_share=0.0067,
    workers_alive=2,
    workers=2,
)


def after(seconds: float, **more: object) -> LiveState:
    return msgspec.structs.replace(STATE, now_ns=int(seconds * SECOND), **more)


def text_console(width: int = 200) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=False), out


def test_plain_line_names_every_figure_with_its_unit() -> None:
    assert plain_line(STATE) == (
        "[1 min 35 s (left 3 min 25 s)] 32 users/steady  users 32  in flight 27  18.9 turns/s  876 tok/s  "
        "TTFT p50 67.2 ms p99 227 ms  failed 12 (0.67 %)  closed 1,790/2,000  workers 2/2"
    )


def test_what_is_not_known_yet_is_not_zero() -> None:
    fresh = after(
        0,
        left_ns=None,
        turns_per_second=None,
        tokens_per_second=None,
        ttft_p50_ns=None,
        ttft_p99_ns=None,
        planned=0,
        closed=0,
        failed=0,
        error_share=None,
        note="waiting for workers",
    )
    assert plain_line(fresh) == (
        "[1 min 35 s] 32 users/steady  users 32  in flight 27  – turns/s  – tok/s  TTFT p50 – p99 –  failed 0  "
        "closed 0/0  workers 2/2  waiting for workers"
    )


def test_lines_come_every_five_seconds_whatever_the_master_does() -> None:
    console, out = text_console()
    with LiveView(console) as view:
        for tick in range(48):
            view.show(after(tick / 4))
    assert out.getvalue().count("32 users/steady") == 3, "at 0, 5 and 10 s of 12"


def test_the_interval_is_an_option_and_force_ignores_it() -> None:
    console, out = text_console()
    with LiveView(console, line_every_ns=SECOND) as view:
        for tick in range(12):
            view.show(after(tick / 4))
        view.show(after(2.76), force=True)
    assert out.getvalue().count("\n") == 4


def test_emulated_stands_on_every_line() -> None:
    console, out = text_console()
    with LiveView(console, emulated=True) as view:
        view.show(after(0))
        view.show(after(5))
    assert [line.startswith("EMULATED ") for line in out.getvalue().splitlines()] == [True, True]


def test_a_line_is_one_line_and_a_name_cannot_drive_the_terminal() -> None:
    console, out = text_console(width=80)
    with LiveView(console) as view:
        view.show(after(0, stage="a\x1b[2J\nb[red]c"))
        view.say("worker \x1b[31mw2\x07 is lost [bold]")
    assert len(out.getvalue().splitlines()) == 2
    assert "\x1b" not in out.getvalue() and "[red]c" in out.getvalue() and "[bold]" in out.getvalue()


class _Broken(io.StringIO):
    """A stream whose writes fail, as a full disk's do."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_broken_stream_never_reaches_the_master(terminal: bool) -> None:
    with LiveView(Console(file=_Broken(), force_terminal=terminal, width=80)) as view:
        view.show(after(0), force=True)
        view.say("x")
        view.show(after(9), force=True)
        assert view.fault == "OSError: [Errno 28] No space left on device"


def run_child(code: str, stdout: int) -> subprocess.Popen[str]:
    head = f"""
        import sys, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from rich.console import Console
        from infersiege.report.live import LiveView
        from test_live import after
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    environment.pop("NO_COLOR", None)
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_a_reader_that_went_away() -> None:
    """`infersiege run … | head -1`: rich turns a closed pipe into SystemExit, which would end the master."""
    reader, writer = os.pipe()
    os.close(reader)
    child = run_child(
        """
        with LiveView(Console()) as view:
            for second in range(3):
                view.show(after(second * 5))
        sys.stderr.write(f"alive {view.fault}")
        sys.stderr.flush()
        import os
        os._exit(0)
        """,
        writer,
    )
    os.close(writer)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 0 and said.startswith("alive ") and "None" not in said, said


def on_terminal(code: str) -> str:
    """What a pseudo-terminal got from a child that runs `code`."""
    master, slave = os.openpty()
    child = run_child(code, slave)
    os.close(slave)
    got = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux: EIO once the last writer is gone
            break
        if not part:
            break
        got += part
    os.close(master)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 0, error
    return got.decode()


SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"


def test_on_a_terminal_it_draws_without_a_thread_and_restores_the_cursor() -> None:
    got = on_terminal(
        """
        with LiveView(Console(), emulated=True) as view:
            for tick in range(40):
                view.show(after(tick / 10, closed=1000 + tick))
            assert threading.active_count() == 1, threading.enumerate()
        assert view.fault is None, view.fault
        """
    )
    assert "EMULATED" in got and "in flight" in got
    assert got.count("turns closed") == 15, "forty states in 3.9 s: at most four times a second, and once at the end"
    assert got.rindex(SHOW) > got.rindex(HIDE)


def test_the_cursor_comes_back_when_the_run_breaks() -> None:
    got = on_terminal(
        """
        try:
            with LiveView(Console()) as view:
                view.show(after(0))
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        """
    )
    assert got.rindex(SHOW) > got.rindex(HIDE)


def test_closing_twice_and_showing_after_it() -> None:
    console, _ = text_console()
    view = LiveView(console)
    with view:
        pass
    view.close()
    view.show(after(0))
    assert view.fault is None


def test_the_panel_fits_eighty_columns() -> None:
    out = io.StringIO()
    huge = {"users": 100_000, "in_flight": 99_999, "planned": 12_345_678, "closed": 12_345_670, "failed": 1_234_567}
    with LiveView(Console(file=out, width=80, force_terminal=True, color_system=None)) as view:
        view.show(after(0, stage="a stage with quite a long name, longer than anyone needs it to be", **huge))
    seen = [line for line in out.getvalue().replace("\r", "\n").split("\n") if "\x1b" not in line]
    assert any("users 100,000" in line for line in seen)
    assert max(map(len, seen)) <= 80


def test_no_thread_was_started_here() -> None:
    before = threading.active_count()
    with LiveView(Console(file=io.StringIO(), force_terminal=True, width=80)) as view:
        view.show(after(0))
        assert threading.active_count() == before
