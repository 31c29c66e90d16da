"""Azure LLM inference traces 2023 and 2024: CSV of `TIMESTAMP,ContextTokens,GeneratedTokens`, lengths only; 2025 adds
`NumImages` (github.com/Azure/AzurePublicDataset).

Each row is a request of its own: the traces name no sessions. Images are not in the data and can't be sent; the
context tokens of such a row are sent as text.
"""

from __future__ import annotations

from infersiege.errors import TraceError
from infersiege.traces.files.csv_table import CsvTable, header_names
from infersiege.traces.files.head import Head
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import stamp_ns
from infersiege.traces.files.values import shown_key
from infersiege.traces.options import Option
from infersiege.traces.sessions.lengths import LengthTrace
from infersiege.traces.trace import LONGEST_NS, ReadOptions, Tally, check_span

NAME = "azure"

OPTIONS = {
    "images": Option(
        default="ignore",
        choices=("ignore", "skip"),
        meaning="what to do with rows that had images, which can't be sent: send their tokens as text, or leave them "
        "out",
    ),
}

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_IMAGES = "NumImages"


def sniff(head: Head) -> bool:
    return "ContextTokens" in head.first_line and set(_COLUMNS) <= set(header_names(head.first_line))


def read(source: Source, options: ReadOptions) -> LengthTrace:
    """Raises TraceError for a wrong header or row and for times that go back."""
    tally = Tally()
    trace = LengthTrace(options, format=NAME, sha256=source.sha256())
    table = CsvTable(source, _COLUMNS, (_IMAGES,))
    for name in table.others:
        tally.odd(f"column {shown_key(name)} is not sent")
    stamp_at, prompt_at, output_at = (table.places[name] for name in _COLUMNS)
    images_at = table.places.get(_IMAGES)
    skip_images = options.values["images"] == "skip"
    rows = with_images = 0
    first: int | None = None
    before = 0
    for line, row in table.rows():
        if options.limit is not None and len(trace) >= options.limit:
            break
        rows += 1
        at = _stamp(table, line, row[stamp_at])
        prompt = table.tokens(row[prompt_at], "ContextTokens", line)
        output = table.tokens(row[output_at], "GeneratedTokens", line)
        if first is None:
            first = before = at
        if at < before:
            raise TraceError(
                f"{table.place(line)}: timestamp went back by {(before - at) / 1e9:g} s to {row[stamp_at][:40]}",
                hint="sort the rows by TIMESTAMP (files of a folder are read by name)",
            )
        before = at
        arrival_ns = at - first
        if arrival_ns > LONGEST_NS:
            check_span(table.place(line), arrival_ns, "time since the first row")
        if prompt == 0 or output == 0:
            tally.skip("no_input" if prompt == 0 else "no_output", table.where(line))
            continue
        if images_at is not None and table.tokens(row[images_at], _IMAGES, line):
            if skip_images:
                tally.skip("has_images", table.where(line))
                continue
            with_images += 1
        trace.add(line=line, arrival_ns=arrival_ns, prompt=prompt, output=output)
    if with_images:
        tally.odd("the images of a row can't be sent, its tokens are sent as text", with_images)
    trace.finish(source, rows=rows, tally=tally, unit_hint="TIMESTAMP is a date and a time of day")
    return trace


def _stamp(table: CsvTable, line: int, text: str) -> int:
    try:
        return stamp_ns(text)
    except ValueError as error:
        raise TraceError(
            f"{table.place(line)}: TIMESTAMP is {error}", hint="a TIMESTAMP is like 2023-11-16 18:15:46.6805900"
        ) from None
