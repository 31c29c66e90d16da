"""Files that come as one JSON array of objects or as JSON Lines of the same objects."""

from __future__ import annotations

from collections.abc import Iterator

from infersiege.traces.files.source import Row, Source


def objects(source: Source) -> Iterator[Row]:
    """Elements of the array, or lines. Raises TraceError where an array is not whole."""
    return source.elements() if is_array(source) else source.rows()


def is_array(source: Source) -> bool:
    whole = source.begin()
    return source.raw(whole._replace(end=min(whole.end, whole.start + 4096))).lstrip()[:1] == b"["
