"""Lines that a database refused for good: kept in the spool for people, within bounds of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from infersiege_agents.influx import spool
from infersiege_agents.influx.spool import Segment

MOST_FILES = 1000
"""In one writer's directory: it is read every second."""
_REFUSED = re.compile(r"(\d{12})-(\d+)\.bad")


def set_aside(segment: Segment, lines: list[bytes], words: str, *, durable: bool = True) -> None:
    """Keeps refused lines with the database's words. The segment itself is the caller's to delete.

    `durable`: on the disk for good, as the segment may be that they come from. Raises OSError.
    """
    for old in segment.directory.glob(f"{segment.sequence:012d}-*.bad"):  # a sender that was killed in between
        _remove(old)
    stem = segment.directory / f"{segment.sequence:012d}-{len(lines)}"
    spool.write_atomically(stem.with_suffix(".why"), words.encode("utf-8", "replace") + b"\n", durable=durable)
    content = b"".join(line + b"\n" for line in lines)
    spool.write_atomically(stem.with_suffix(".bad"), content, durable=durable)


def forget_oldest(directory: Path, most_bytes: int, most_files: int = MOST_FILES) -> int:
    """Removes the oldest refused lines of one's own directory until the rest is within bounds; how many lines went.

    They stay counted as rejected, also when this is killed at any moment: what is about to go is written down first.
    Raises OSError.
    """
    before = spool.read_forgotten(directory)
    waiting = {segment.sequence for segment in spool.listing(directory).waiting}
    files: list[tuple[int, int, Path, int]] = []
    for path in directory.glob("*.bad"):
        if (found := _REFUSED.fullmatch(path.name)) and int(found[1]) not in waiting:
            if int(found[1]) in before.sequences:  # killed before it could delete them
                _remove(path)
                continue
            size = spool.blocks(path.stat().st_size) + spool.BLOCK_BYTES
            files.append((int(found[1]), int(found[2]), path, size))
    files.sort()
    kept_bytes, kept = sum(size for *_, size in files), len(files)
    going = []
    for sequence, lines, path, size in files:
        if kept_bytes <= most_bytes and kept <= most_files:
            break
        going.append((sequence, lines, path))
        kept_bytes, kept = kept_bytes - size, kept - 1
    if not going:
        return 0
    gone = sum(lines for _, lines, _ in going)
    content = {"lines": before.lines + gone, "sequences": [sequence for sequence, _, _ in going]}
    spool.write_atomically(directory / "forgotten.json", json.dumps(content).encode())
    for _, _, path in going:
        _remove(path)
    return gone


def forget_of_dead_writers(place: Path, own: Path, most_bytes: int) -> None:
    """Removes refused lines that dead writers left, the oldest writer's first, until the spool's are within bounds.

    Raises OSError.
    """
    sizes = {}
    for directory in spool.writers(place):
        with contextlib.suppress(OSError):
            sizes[directory] = spool.listing(directory).set_aside_bytes
    total = sum(sizes.values())
    for directory, size in sizes.items():
        if total <= most_bytes:
            return
        if size and directory != own and (lock := spool.claim(directory)) is not None:
            try:
                drop(directory)
                spool.remove_finished(directory)
            finally:
                os.close(lock)
            total -= size


def drop(directory: Path) -> int:
    """Removes all refused lines of a dead writer; the caller holds the lock. How many. Raises OSError."""
    lines = 0
    for path in directory.glob("*.bad"):
        if found := _REFUSED.fullmatch(path.name):
            lines += int(found[2])
            _remove(path)
    return lines


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".why").unlink(missing_ok=True)
