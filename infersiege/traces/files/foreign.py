"""What a file is that is no trace, told from its first bytes: what people most often name in place of one."""

from __future__ import annotations

from typing import NamedTuple


class Foreign(NamedTuple):
    what: str
    """`is …`, as a message goes on after the file's name."""
    hint: str


START_BYTES = 512

_UNPACK = "unpack it, then name the file or the folder"
_UTF_8 = "convert the file to UTF-8: iconv -f UTF-16 -t UTF-8 (or UTF-32)"
_TWICE = "unpack it once; a file that is packed once is read as it is"
_PAGE = "download the file itself: a link may lead to a page about it, or to one that asks for a login"

_BEGINNINGS = (
    (b"\xff\xfe\x00\x00", Foreign("is UTF-32 text", _UTF_8)),  # before UTF-16, which begins alike
    (b"\x00\x00\xfe\xff", Foreign("is UTF-32 text", _UTF_8)),
    (b"\xff\xfe", Foreign("is UTF-16 text", _UTF_8)),
    (b"\xfe\xff", Foreign("is UTF-16 text", _UTF_8)),
    (
        b"version https://git-lfs",
        Foreign("is a pointer of Git LFS, not the file that it stands for", "fetch the file: git lfs pull"),
    ),
    (b"PK\x03\x04", Foreign("is a zip archive", _UNPACK)),
    (b"PK\x05\x06", Foreign("is a zip archive", _UNPACK)),
    (b"BZh", Foreign("is packed with bzip2", f"{_UNPACK} (gzip and Zstandard are read as they are)")),
    (b"\xfd7zXZ\x00", Foreign("is packed with xz", f"{_UNPACK} (gzip and Zstandard are read as they are)")),
    (b"\x04\x22\x4d\x18", Foreign("is packed with LZ4", f"{_UNPACK} (gzip and Zstandard are read as they are)")),
    (b"7z\xbc\xaf\x27\x1c", Foreign("is a 7z archive", _UNPACK)),
    (b"Rar!\x1a\x07", Foreign("is a RAR archive", _UNPACK)),
    (b"%PDF-", Foreign("is a PDF document", "name the trace that it tells of")),
    (b"SQLite format 3\x00", Foreign("is an SQLite database", "export the table as JSON Lines")),
    (b"ARROW1", Foreign("is an Arrow file", "write it as Parquet")),
    (b"\x1f\x8b", Foreign("is packed twice (gzip inside)", _TWICE)),
    (b"\x28\xb5\x2f\xfd", Foreign("is packed twice (Zstandard inside)", _TWICE)),
    (b"PAR1", Foreign("is a Parquet file that was packed once more", _TWICE)),
)
_TAR_AT, _TAR = 257, b"ustar"
_PAGES = ((b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"), (b"<?xml", "an XML document"))


def foreign(start: bytes) -> Foreign | None:
    """`start`: the first START_BYTES of an unpacked file. None: it may be a trace."""
    for beginning, found in _BEGINNINGS:
        if start.startswith(beginning):
            return found
    if start[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        return Foreign("is a tar archive", _UNPACK)
    text = start.lstrip().lower()
    for beginning, what in _PAGES:
        if text.startswith(beginning):
            return Foreign(f"is {what}", _PAGE)
    # No text of JSON or CSV has one: with Latin letters one of each two bytes of UTF-16 is.
    if b"\x00" in start[:4]:
        return Foreign("is UTF-16 text without a mark, or no text", _UTF_8)
    return None
