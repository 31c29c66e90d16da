"""Tables in docs/performance.md that a benchmark writes itself, between two comments."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def replace_block(text: str, name: str, block: str) -> str:
    """`text` with what is between the two comments of `name` replaced. ValueError if they aren't there once."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    found, count = pattern.subn(lambda _: f"{begin}\n{block.strip()}\n{end}", text)
    if count != 1:
        raise ValueError(f"{count} blocks {name}, not one")
    return found


def write_block(name: str, block: str) -> None:
    """Into docs/performance.md. Raises ValueError, OSError."""
    PAGE.write_text(replace_block(PAGE.read_text(encoding="utf-8"), name, block), encoding="utf-8")


def where_and_when() -> str:
    """`2026-11-30, 2 cores (AMD EPYC), Linux 6.18, Python 3.11.7`."""
    cpus = Path("/proc/cpuinfo")
    found = (
        re.search(r"^model name\s*: (.*)$", cpus.read_text(encoding="utf-8"), re.MULTILINE) if cpus.exists() else None
    )
    model = f" ({found[1].strip()})" if found else ""
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {os.cpu_count()} cores{model}, {system}, Python {platform.python_version()}"
