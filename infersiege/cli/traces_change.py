"""`infersiege traces convert|sample|scale|load`: traces made of traces, in our own format."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from infersiege.cli.trace_opening import Asked, duration_ns, takes_trace

if TYPE_CHECKING:
    from infersiege.records import Session
    from infersiege.traces import Trace
    from infersiege.traces.normal import Header

_ENDLESS = 1_000
"""Sessions of a built-in workload, unless --sessions says how many."""


def _output_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--force", is_flag=True, help="Write over a file that is there."),
        click.option("--sessions", type=click.IntRange(1), help=f"Of an endless workload; default {_ENDLESS:,}."),
        click.option(
            "--out",
            "-o",
            required=True,
            type=click.Path(path_type=Path),
            help="File to write; .gz and .zst are packed; - is standard output.",
        ),
    ):
        command = option(command)
    return command


@click.command(epilog="Example: infersiege traces convert sharegpt.json --redact -o chats.jsonl.zst")
@click.argument("file")
@takes_trace
@_output_options
@click.option("--shape-only", is_flag=True, help="Keep lengths, times and hashes, and no text.")
@click.option("--redact", is_flag=True, help="Replace keys and mail addresses in all texts.")
def convert(
    file: str, asked: Asked, out: Path, sessions: int | None, force: bool, shape_only: bool, redact: bool
) -> None:
    """Write FILE in infersiege's own format: JSON Lines, a session a line (docs/traces-formats/infersiege.md).

    With --shape-only the text stays at home: turns, times, lengths and hashes of text pieces remain, so that a prefix
    cache finds as much in it as in the original. The hashes are keyed: who has only the new file can't try texts on
    them.
    """
    from infersiege.traces.change import every_session, header_of, redacted, redacted_header
    from infersiege.traces.shape import Shaper, shape_header

    trace = asked.open(file)
    changes = [name for name, wanted in (("redact", redact), ("shape-only", shape_only)) if wanted]
    found: Iterator[Session] = every_session(trace, sessions or _ENDLESS)
    made = header_of(trace, changes)
    if redact:
        found = map(redacted, found)
        made = redacted_header(made)
    if shape_only:
        made = shape_header(made, trace.format)
        found = map(Shaper(os.urandom(32), language=asked.language).session, found)
    _write(trace, found, out, changes, force=force, made=made)


@click.command(epilog="Example: infersiege traces sample trace.jsonl --share 0.1 -o tenth.jsonl")
@click.argument("file")
@takes_trace
@_output_options
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), help="Share of sessions, drawn by their ids.")
@click.option("--count", type=click.IntRange(1), help="So many sessions, evenly over the file.")
@click.option("--from", "from_", metavar="DURATION", help="Sessions that arrive from here on (`10m`) ...")
@click.option("--to", "to", metavar="DURATION", help="... and before here, in the trace's own time.")
@click.option("--draw-seed", type=int, default=1, show_default=True, help="Seed of --share.")
def sample(
    file: str,
    asked: Asked,
    out: Path,
    sessions: int | None,
    force: bool,
    share: float | None,
    count: int | None,
    from_: str | None,
    to: str | None,
    draw_seed: int,
) -> None:
    """Write some sessions of FILE: by share, by number, by time. Sessions stay whole; times start at 0 again.

    A share of sessions is a lower rate with the same shape; a piece of time is the same rate for a shorter while.
    """
    from infersiege.errors import UsageError
    from infersiege.traces.change import drawn, evenly, every_session, rebased

    if share is None and count is None and from_ is None and to is None:
        raise UsageError("nothing says which sessions to take", hint="--share, --count, --from, --to")
    trace = asked.open(file)
    begin_ns = None if from_ is None else duration_ns("--from", from_)
    end_ns = None if to is None else duration_ns("--to", to)
    if (begin_ns is not None or end_ns is not None) and trace.arrivals_ns is None:
        raise UsageError(f"{trace.name}: has no times, so --from and --to have nothing to go by", hint="use --share")

    def taken() -> Iterator[Session]:
        for index, session in enumerate(every_session(trace, sessions or _ENDLESS)):
            at_ns = session.arrival_ns or 0
            if (begin_ns is not None and at_ns < begin_ns) or (end_ns is not None and at_ns >= end_ns):
                continue
            if share is None or drawn(session.session_id, index, draw_seed) < share:
                yield session

    changes = [] if from_ is None and to is None else [f"sample from {from_ or '0s'} to {to or 'the end'}"]
    changes += [] if share is None else [f"sample share {share:g}"]
    changes += [] if count is None else [f"sample count {count}"]
    _write(trace, rebased(taken() if count is None else evenly(taken, count)), out, changes, force=force)


@click.command(epilog="Example: infersiege traces scale trace.jsonl --multiply 4 -o four-times.jsonl")
@click.argument("file")
@takes_trace
@_output_options
@click.option("--stretch", type=click.FloatRange(1e-6, 1e6), help="Times between sessions multiplied by this.")
@click.option("--delays", is_flag=True, help="--stretch also stretches the delays inside sessions.")
@click.option("--thin", type=click.FloatRange(0, 1, min_open=True), help="Keep this share of sessions.")
@click.option("--multiply", type=click.IntRange(2, 10_000), help="So many of each session; copies share no text.")
@click.option(
    "--spread", metavar="DURATION", help="Copies come up to so much later; default: the mean time between sessions."
)
@click.option("--draw-seed", type=int, default=1, show_default=True, help="Seed of --thin and --spread.")
def scale(
    file: str,
    asked: Asked,
    out: Path,
    sessions: int | None,
    force: bool,
    stretch: float | None,
    delays: bool,
    thin: float | None,
    multiply: int | None,
    spread: str | None,
    draw_seed: int,
) -> None:
    """Write FILE with more or less load in it: stretched in time, thinned out, or every session several times.

    Copies of a session are other texts of the same lengths (recorded ones get another first line), so that a prefix
    cache gains nothing by them that it had not before.
    """
    from infersiege.errors import UsageError
    from infersiege.traces.change import drawn, every_session, multiplied, stretched

    if stretch is None and thin is None and multiply is None:
        raise UsageError("nothing says what to change", hint="--stretch, --thin, --multiply")
    trace = asked.open(file)
    found: Iterator[Session] = every_session(trace, sessions or _ENDLESS)
    changes = []
    if thin is not None:
        kept = thin
        found = (session for index, session in enumerate(found) if drawn(session.session_id, index, draw_seed) < kept)
        changes.append(f"thin {thin:g}")
    if stretch is not None:
        factor = stretch
        found = (stretched(session, factor, delays=delays) for session in found)
        changes.append(f"stretch {stretch:g}" + (" with delays" if delays else ""))
    if multiply is not None:
        # A thinned trace has longer gaps.
        longer = (stretch or 1.0) / (thin or 1.0)
        spread_ns = _mean_gap_ns(trace, longer) if spread is None else duration_ns("--spread", spread)
        found = multiplied(found, multiply, spread_ns=spread_ns, seed=draw_seed)
        changes.append(f"multiply {multiply}")
    _write(trace, found, out, changes, force=force)


@click.command(epilog="Example: infersiege traces load trace.jsonl --redis redis://127.0.0.1:6379/0 --name azure")
@click.argument("file")
@takes_trace
@click.option("--redis", "url", required=True, metavar="URL", help="redis://[user:password@]host[:port][/db]")
@click.option("--name", help="Name of the trace there; default: the file's.")
@click.option("--sessions", type=click.IntRange(1), help=f"Of an endless workload; default {_ENDLESS:,}.")
@click.option("--replace", is_flag=True, help="Write over a trace of that name.")
def load(file: str, asked: Asked, url: str, name: str | None, sessions: int | None, replace: bool) -> None:
    """Put FILE's sessions into Redis, as a stream with one entry a session.

    The trace appears there at the end, whole. Whatever fails before leaves what was there before.
    """
    from infersiege import redis_stream
    from infersiege.traces.change import every_session, header_of

    trace = asked.open(file)
    title = name or Path(trace.name.removeprefix("builtin:")).name.split(".")[0]
    loaded = redis_stream.load(
        url, title, every_session(trace, sessions or _ENDLESS), header_of(trace, ()), replace=replace
    )
    click.echo(f"{loaded.key}: {loaded.sessions:,} sessions, {loaded.turns:,} turns, {loaded.bytes / 1e6:.1f} MB")


def _mean_gap_ns(trace: Trace, stretch: float) -> int:
    times = trace.arrivals_ns
    return 0 if times is None or len(times) < 2 else round(times[-1] * stretch / (len(times) - 1))


def _write(
    trace: Trace,
    found: Iterator[Session],
    out: Path,
    changes: Sequence[str],
    *,
    force: bool,
    made: Header | None = None,
) -> None:
    """Write a trace, and say what was written. Raises UsageError; a file that was begun is then gone."""
    from infersiege.errors import UsageError
    from infersiege.traces.change import header_of
    from infersiege.traces.normal import lines

    written = turns = 0

    def counted() -> Iterator[Session]:
        nonlocal written, turns
        for session in found:
            written += 1
            turns += session.turn_count
            yield session

    with _destination(out, force=force) as file:
        for line in lines(counted(), made or header_of(trace, changes)):
            file.write(line + b"\n")
        if not written:
            raise UsageError(f"{trace.name}: no session is left", hint="take a larger share or a longer time")
    said = [f"{out}: {written:,} sessions, {turns:,} turns"]
    said += [f"{count:,} rows skipped: {reason}" for reason, count in trace.skipped.items()]
    click.echo("; ".join(said), err=True)


@contextlib.contextmanager
def _destination(out: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """Where to write. A file gets its name when it is whole. Raises UsageError."""
    from infersiege.errors import UsageError

    if str(out) == "-":
        yield sys.stdout.buffer
        return
    if out.exists() and not force:
        raise UsageError(f"{out}: is there already", hint="--force writes over it")
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    try:
        with _packing(unfinished, out.suffix) as file:
            yield file
        unfinished.replace(out)
    except OSError as error:
        raise UsageError(
            f"{out}: can't be written: {error.strerror or error}", hint="name a place with room, where you may write"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _packing(path: Path, suffix: str) -> Iterator[Any]:
    import gzip

    import zstandard

    with path.open("wb") as file:
        if suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed
        elif suffix == ".zst":
            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
                yield packed
        else:
            yield file
