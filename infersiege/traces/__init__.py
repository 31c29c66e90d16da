"""Traces: files of sessions in several formats and built-in workloads, all behind `open_trace`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from infersiege.errors import TraceError
from infersiege.traces.files.csv_table import WRITE_ANEW, written_otherwise
from infersiege.traces.files.head import Head
from infersiege.traces.files.source import MOST_ROW_BYTES, Source
from infersiege.traces.files.values import not_json, shown_keys
from infersiege.traces.inspection.describe import Description, describe
from infersiege.traces.options import OptionTable, check_options
from infersiege.traces.play.conversation import Conversation, PreparedTurn, prompt_salt
from infersiege.traces.readers import READERS, Reader
from infersiege.traces.synthesis.text import CHARS_PER_TOKEN, Synthesizer
from infersiege.traces.synthesis.words import WORDS
from infersiege.traces.trace import ReadOptions, Trace
from infersiege.traces.workloads.agent import AGENT_OPTIONS, Agent
from infersiege.traces.workloads.builtin import LONG_DOCUMENT_OPTIONS, SHORT_QA_OPTIONS, LongDocument, ShortQa

__all__ = [
    "BUILTINS",
    "CHARS_PER_TOKEN",
    "READERS",
    "Builtin",
    "Conversation",
    "Description",
    "PreparedTurn",
    "Reader",
    "Synthesizer",
    "Trace",
    "describe",
    "open_trace",
    "prompt_salt",
]

BUILTIN_PREFIX = "builtin:"


class Builtin(msgspec.Struct, frozen=True, kw_only=True):
    """One built-in workload."""

    meaning: str
    make: Callable[[ReadOptions], Trace]
    options: OptionTable


BUILTINS: dict[str, Builtin] = {
    "short-qa": Builtin(meaning="one short question per session", make=ShortQa, options=SHORT_QA_OPTIONS),
    "long-document": Builtin(
        meaning="several questions about a long document", make=LongDocument, options=LONG_DOCUMENT_OPTIONS
    ),
    "agent": Builtin(meaning="tool-calling sessions with a long shared prefix", make=Agent, options=AGENT_OPTIONS),
}


def open_trace(
    spec: str,
    *,
    base: Path = Path(),
    format: str | None = None,
    seed: int = 1,
    language: str = "en",
    limit: int | None = None,
    options: Mapping[str, object] | None = None,
    length_scale: float = 1.0,
    output_scale: float = 1.0,
) -> Trace:
    """Open `builtin:NAME` or a trace file (relative to `base`).

    `limit` is the number of sessions to take from the front. The scales are applied here, once: to the lengths of
    synthesised prompts, and to asked output lengths (with the recorded answers that are synthesised from them).
    Raises TraceError: unknown names with the nearest legal one, files that are missing, unreadable or not of their
    format (with path, line and hint), wrong options (all faults at once).
    """
    if language not in WORDS:
        raise TraceError(f"{spec}: language {language!r} is unknown", hint="languages: " + ", ".join(WORDS))
    read_options = ReadOptions(
        name=spec, seed=seed, language=language, limit=limit, length_scale=length_scale, output_scale=output_scale
    )
    if spec.startswith(BUILTIN_PREFIX):
        name = spec.removeprefix(BUILTIN_PREFIX)
        if name not in BUILTINS:
            raise _unknown("built-in workload", name, BUILTINS)
        if format is not None:
            raise TraceError(f"{spec}: a built-in workload has no format", hint="leave `format` out")
        builtin = BUILTINS[name]
        values = check_options(spec, builtin.options, options or {})
        return builtin.make(msgspec.structs.replace(read_options, values=values))
    if format is not None and format not in READERS:
        raise _unknown("trace format", format, READERS)
    source = Source(base / spec)
    reader = READERS[format or detect_format(source)]
    values = check_options(str(source.path), reader.options, options or {})
    return reader.read(source, msgspec.structs.replace(read_options, values=values))


def detect_format(source: Source) -> str:
    """Key of READERS, from the content. Raises TraceError where none or more than one fits."""
    head = source.head()
    fitting = _fitting(head)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise TraceError(
            f"{source.path}: could be {' or '.join(fitting)}",
            hint="name it: format = " + " or ".join(map(repr, fitting)),
        )
    if not head.text.strip():
        what = "none of its files has a row" if source.path.is_dir() else "the file has no rows"
        raise TraceError(f"{source.path}: {what}", hint="name a trace file with at least one session")
    raise _untold(head, source.place(source.begin()._replace(line=head.first_number)))


def _fitting(head: Head) -> list[str]:
    return [name for name, reader in READERS.items() if reader.sniff(head)]


def _untold(head: Head, place: str) -> TraceError:
    """Why no format fits."""
    line = head.first_line
    if head.cut and not head.outline.array:
        return TraceError(
            f"{place}: the line is longer than {MOST_ROW_BYTES >> 20} MiB, the most that a row has",
            hint="make sessions shorter; is this JSON Lines?",
        )
    written = written_otherwise(line, lambda text: bool(_fitting(Head(text.encode()))))
    if written is not None:
        return TraceError(f"{place}: {written}", hint=WRITE_ANEW)
    # A bare bracket begins a document over many lines, which may be sound.
    if head.fault is not None and len(line) > 1 and (line[0] == "{" or line[0] + line[-1] == "[]"):
        return not_json(place, head.fault)
    keys = shown_keys(head.outline.keys)
    if keys:
        seen = f"from the keys {keys}"
    elif head.row == {}:
        seen = "from its first line, an object without keys"
    else:
        seen = "from its first line, which is no JSON object"
    return TraceError(f"{place}: format can't be told {seen}", hint=f"formats: {', '.join(READERS)}")


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> TraceError:
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return TraceError(f"{kind} {name!r} is unknown", hint=f"{guess}known: {', '.join(known)}")
