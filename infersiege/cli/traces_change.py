"""`infersiege traces convert|sample|scale|load`: traces made of traces, in our own format."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from infersiege.cli.destination import check_destination, destination
from infersiege.cli.output import escaped, unicode_of
from infersiege.cli.trace_opening import Asked, Finite, duration_ns, takes_trace

if TYPE_CHECKING:
    from infersiege.records import Session
    from infersiege.traces import Trace
    from infersiege.traces.formats.normal import Header

_ENDLESS = 1_000
"""Sessions of a built-in workload, unless --sessions says how many."""
_OTHERS = frozenset(
    {".parquet", ".arrow", ".feather", ".csv", ".tsv", ".html", ".sqlite"}
    | {".bz2", ".xz", ".lz4", ".br", ".7z", ".zip", ".tar", ".tgz", ".tzst"}
)
"""Names that promise what is not written."""
_LONGEST_NAME = 200


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
    from infersiege.traces.rewriting.change import every_session, header_of, redacted, redacted_header
    from infersiege.traces.rewriting.shape import Shaper, shape_header

    trace = _opened(asked, file, out, force=force)
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
@click.option("--share", type=Finite(0, 1, min_open=True), help="Share of sessions, drawn by their ids.")
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
    from infersiege.traces.rewriting.change import drawn, evenly, every_session, rebased

    if share is None and count is None and from_ is None and to is None:
        raise UsageError("nothing says which sessions to take", hint="--share, --count, --from, --to")
    begin_ns = None if from_ is None else duration_ns("--from", from_)
    end_ns = None if to is None else duration_ns("--to", to)
    if end_ns is not None and end_ns <= (begin_ns or 0):
        raise UsageError(f"--from {from_ or '0s'} is not before --to {to}", hint="are they the wrong way round?")
    trace = _opened(asked, file, out, force=force)
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
    _write(
        trace,
        rebased(taken() if count is None else evenly(taken, count)),
        out,
        changes,
        force=force,
        none_left=_sample_hint(trace, timed=begin_ns is not None or end_ns is not None),
    )


@click.command(epilog="Example: infersiege traces scale trace.jsonl --multiply 4 -o four-times.jsonl")
@click.argument("file")
@takes_trace
@_output_options
@click.option("--stretch", type=Finite(1e-6, 1e6), help="Times between sessions multiplied by this.")
@click.option("--delays", is_flag=True, help="--stretch also stretches the delays inside sessions.")
@click.option("--thin", type=Finite(0, 1, min_open=True), help="Keep this share of sessions.")
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
    from infersiege.traces.rewriting.change import drawn, every_session, multiplied, stretched

    if stretch is None and thin is None and multiply is None:
        raise UsageError("nothing says what to change", hint="--stretch, --thin, --multiply")
    for option, given, wanted, base in (
        ("--delays", delays, "--stretch", stretch),
        ("--spread", spread is not None, "--multiply", multiply),
    ):
        if given and base is None:
            raise UsageError(f"{option}: changes nothing without {wanted}", hint=f"give {wanted}, too")
    trace = _opened(asked, file, out, force=force)
    if trace.arrivals_ns is None and stretch is not None and not delays:
        raise UsageError(
            f"{trace.name}: has no times, so --stretch has nothing to go by",
            hint="--delays stretches the delays inside sessions",
        )
    if trace.arrivals_ns is None and spread is not None:
        raise UsageError(f"{trace.name}: has no times, so --spread has nothing to go by", hint="leave it out")
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
    _write(trace, found, out, changes, force=force, none_left="keep a larger share")


@click.command(epilog="Example: infersiege traces load trace.jsonl --redis redis://127.0.0.1:6379/0 --name azure")
@click.argument("file")
@takes_trace
@click.option(
    "--redis", "url", required=True, metavar="URL", help="redis://[user[:password]@]host[:port][/db]; rediss:// is TLS"
)
@click.option("--password-env", metavar="NAME", help="Environment variable that holds the password.")
@click.option("--ca", metavar="FILE", help="PEM file of authorities to trust instead of the system's (rediss://).")
@click.option("--name", help="Name of the trace there; default: the file's.")
@click.option("--sessions", type=click.IntRange(1), help=f"Of an endless workload; default {_ENDLESS:,}.")
@click.option("--replace", is_flag=True, help="Write over a trace of that name.")
def load(
    file: str,
    asked: Asked,
    url: str,
    password_env: str | None,
    ca: str | None,
    name: str | None,
    sessions: int | None,
    replace: bool,
) -> None:
    """Put FILE's sessions into Redis, as a stream with one entry a session.

    The trace appears there at the end, whole. Whatever fails before leaves what was there before.
    """
    from infersiege import redis_stream
    from infersiege.errors import UsageError
    from infersiege.traces.rewriting.change import every_session, header_of

    title = name if name is not None else Path(file.removeprefix("builtin:")).name.split(".")[0]
    if not title.strip() or not title.isprintable() or len(title) > _LONGEST_NAME:
        raise UsageError(
            f"--name {title[:_LONGEST_NAME]!r}: can't be a trace's name in Redis",
            hint=f"--name gives one: up to {_LONGEST_NAME} letters, on one line",
        )
    if ca is not None and not url.startswith("rediss:"):
        raise UsageError("--ca: means nothing without TLS", hint="write --redis rediss://…")
    password = None if password_env is None else os.environ.get(password_env)
    if password_env is not None and not password:
        raise UsageError("--password-env: there is no such variable, or it is empty", hint="export it first")
    address = redis_stream.Address(url, password=password, ca_pem=None if ca is None else redis_stream.pem_of(ca))
    trace = asked.open(file)
    loaded = redis_stream.load(
        address, title, every_session(trace, sessions or _ENDLESS), _named(header_of(trace, ())), replace=replace
    )
    click.echo(f"{loaded.key}: {loaded.sessions:,} sessions, {loaded.turns:,} turns, {loaded.bytes / 1e6:.1f} MB")


def _opened(asked: Asked, file: str, out: Path, *, force: bool) -> Trace:
    """The trace, if there is a place for what will be made of it. Raises UsageError."""
    check_destination(out, force=force)
    return asked.open(file)


def _named(header: Header) -> Header:
    import msgspec

    made_from = None if header.made_from is None else unicode_of(header.made_from)
    return msgspec.structs.replace(header, made_from=made_from)


def _sample_hint(trace: Trace, *, timed: bool) -> str:
    times = trace.arrivals_ns
    if not timed or times is None or not len(times):
        return "take a larger share"
    return f"take a longer time: the trace's sessions arrive within {times[-1] / 1e9:g} s"


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
    none_left: str = "`infersiege traces inspect` shows what is in it",
) -> None:
    """Write a trace, and say what was written. Raises UsageError; nothing is then written, also not to standard output.

    `none_left` is the hint where no session is.
    """
    from infersiege.errors import UsageError
    from infersiege.traces.formats.normal import lines
    from infersiege.traces.rewriting.change import header_of

    written = turns = 0

    def counted(first: Session) -> Iterator[Session]:
        nonlocal written, turns
        for session in itertools.chain((first,), found):
            written += 1
            turns += session.turn_count
            yield session

    suffix = out.suffix.lower()
    if suffix in _OTHERS:
        raise UsageError(
            f"{out}: what is written is JSON Lines, plain or packed as .gz or .zst, and not {suffix}",
            hint=f"name it {out.stem.partition('.')[0]}.jsonl or {out.stem.partition('.')[0]}.jsonl.zst",
        )
    with destination(out, force=force) as file:
        first = next(found, None)
        if first is None:
            raise UsageError(f"{trace.name}: no session is left", hint=none_left)
        with _packed(file, suffix) as packed:
            for line in lines(counted(first), _named(made or header_of(trace, changes))):
                packed.write(line + b"\n")
    said = [f"{out}: {written:,} sessions, {turns:,} turns"]
    said += [f"{count:,} rows skipped: {reason}" for reason, count in trace.skipped.items()]
    click.echo(escaped("; ".join(said)), err=True)


@contextlib.contextmanager
def _packed(file: IO[bytes], suffix: str) -> Iterator[Any]:
    import gzip

    import zstandard

    if suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield packed
    elif suffix == ".zst":
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file
