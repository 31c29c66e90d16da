"""A file of checked prompts: JSON Lines or TOML, read whole, every fault with its place.

{"infersiege_quality": 1}
{"id": "capital", "set": "facts", "prompt": "Name the capital of France.", "checks": [{"contains": "Paris"}]}
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from infersiege.channels.redaction import scrub
from infersiege.errors import TraceError
from infersiege.quality.checks import Check, CheckError, Said, make_check
from infersiege.quality.foreign import LONGEST_KEPT, Redact, fit
from infersiege.records import Session, Turn

FORMAT = "quality"
VERSION = 1
BUILTIN = "builtin:"
BUILTIN_SETS: Mapping[str, str] = {"basic": "basic.jsonl"}
"""Name -> file of the package: what ships with infersiege."""

DEFAULT_MAX_TOKENS = 64
MOST_BYTES = 16 << 20
MOST_ITEMS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADER = f'{{"infersiege_quality": {VERSION}}}'


class Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt as the file has it."""

    id: str
    """Unique in the file; letters, digits, `.`, `_` and `-`."""
    checks: list[dict[str, Any]]
    """All of them must hold; see CHECKS."""
    prompt: str | None = None
    """One user message; or else `messages`."""
    messages: list[dict[str, Any]] | None = None
    set: str = "default"
    """By which results are split."""
    language: str | None = None
    """For readers of the file."""
    tools: list[dict[str, Any]] | None = None
    """Function definitions in OpenAI's form."""
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    good: str | dict[str, Any] | None = None
    """An answer that passes; where it stands, the file is refused unless it does."""
    bad: str | dict[str, Any] | None = None
    """An answer that must not pass."""


@dataclass(frozen=True, slots=True)
class Item:
    """One checked prompt."""

    name: str
    set: str
    checks: tuple[Check, ...]
    session: Session
    good: Said | None
    bad: Said | None

    @property
    def own_code(self) -> tuple[Check, ...]:
        """Checks that are functions of the plan's author, which may take any time."""
        return tuple(check for check in self.checks if check.kind == "callable")


class QualityTrace:
    """Checked prompts as a trace: each is a session of one turn."""

    format = FORMAT
    skipped: Mapping[str, int] = {}
    arrivals_ns: Sequence[int] | None = None

    def __init__(self, name: str, items: Sequence[Item], *, rows: int, left_out: int, sha256: str | None) -> None:
        self.name = name
        self.items = tuple(items)
        self.rows: int | None = rows
        self.sha256 = sha256
        self.sessions: int | None = len(self.items)
        if left_out:
            self.skipped = {"calls tools": left_out}
        self.warnings: tuple[str, ...] = ()

    def item(self, index: int) -> Item:
        """The checked prompt that is session `index`. Raises IndexError outside of the trace."""
        if index < 0:
            raise IndexError(index)
        return self.items[index]

    def session(self, index: int) -> Session:
        """Raises IndexError outside of the trace."""
        return self.item(index).session


def open_quality(
    spec: str, *, tools: bool = True, allow_code: bool = False, limit: int | None = None, redact: Redact = scrub
) -> QualityTrace:
    """Read `builtin:NAME` or a file. `tools`: with those prompts that call tools. `allow_code`: also `callable` checks;
    what their code says of its faults goes through `redact`.

    Raises TraceError with path and line for every fault there is, the first twenty of them.
    """
    builtin = spec.startswith(BUILTIN)
    data = _builtin(spec.removeprefix(BUILTIN)) if builtin else _bytes(Path(spec))
    rows = list(_toml_rows(spec, data) if spec.lower().endswith(".toml") else _json_rows(spec, data))
    if not rows:
        raise TraceError(f"{spec}: has no prompts", hint="docs/quality.md shows what such a file looks like")
    if len(rows) > MOST_ITEMS:
        raise TraceError(f"{spec}: {len(rows):,} prompts, the most is {MOST_ITEMS:,}")
    items, faults, seen = [], [], set()
    for place, raw in rows:
        try:
            item = _item(raw, allow_code=allow_code)
            if item.name in seen:
                raise ValueError(f"id {item.name!r} is there already")
            seen.add(item.name)
            items.append(item)
        except ValueError as error:
            faults.append(f"{place}: {fit(str(error), LONGEST_KEPT, redact)}")
    if faults:
        more = f" … and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise TraceError("\n".join(faults[:20]) + more, hint="docs/quality.md has the keys and the kinds of checks")
    kept = [item for item in items if tools or item.session.tools is None]
    if not kept:
        raise TraceError(f"{spec}: all of its prompts call tools", hint="set tools = true in [quality]")
    digest = None if builtin else hashlib.sha256(data).hexdigest()
    return QualityTrace(spec, kept[:limit], rows=len(rows), left_out=len(items) - len(kept), sha256=digest)


def _builtin(name: str) -> bytes:
    file = BUILTIN_SETS.get(name)
    if file is None:
        raise TraceError(f"{BUILTIN}{name}: there is no such set", hint=f"there is {BUILTIN}{', '.join(BUILTIN_SETS)}")
    return resources.files("infersiege.quality").joinpath(file).read_bytes()


def _bytes(path: Path) -> bytes:
    from infersiege.traces.files.source import why_unreadable

    reason = why_unreadable(path)
    if reason is not None:
        raise TraceError(f"{path}: {reason}", hint="quality.file names it")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"{path}: larger than {MOST_BYTES >> 20} MiB, for a file of prompts and checks")
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}", hint="quality.file names it") from None


def _text(spec: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{spec}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None


def _check_version(place: str, header: object) -> None:
    version = header.get("infersiege_quality") if isinstance(header, dict) else None
    if version is None:
        raise TraceError(f"{place}: is no file of checked prompts", hint=f"its first line is {_HEADER}")
    if version is not VERSION:
        raise TraceError(f"{place}: version {version!r} of the format is not known, {VERSION} is")


def _json_rows(spec: str, data: bytes) -> Iterator[tuple[str, object]]:
    first = True
    for number, line in enumerate(_text(spec, data).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{spec}:{number}: not JSON: {error}", hint="JSON Lines: one prompt a line") from None
        if first:
            _check_version(f"{spec}:{number}", value)
            first = False
        else:
            yield f"{spec}:{number}", value


def _toml_rows(spec: str, data: bytes) -> Iterator[tuple[str, object]]:
    try:
        value = tomllib.loads(_text(spec, data))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{spec}: not valid TOML: {error}") from None
    _check_version(spec, value)
    items = value.get("item", [])
    unknown = ", ".join(sorted(value.keys() - {"infersiege_quality", "item"}))
    if unknown or not isinstance(items, list):
        raise TraceError(f"{spec}: unknown keys: {unknown or 'item'}", hint="prompts are written [[item]]")
    for number, item in enumerate(items, 1):
        yield f"{spec}: item {number}", item


def _item(raw: object, *, allow_code: bool) -> Item:
    """Raises ValueError."""
    try:
        written = msgspec.convert(raw, Written)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    for what, name in (("id", written.id), ("set", written.set)):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{what} {name!r:.60} has other characters than letters, digits, '.', '_', '-', or over 64"
            )
    if not written.checks:
        raise ValueError(f"{written.id}: has no checks: what is a right answer?")
    checks = []
    for number, check in enumerate(written.checks, 1):
        try:
            checks.append(make_check(check, allow_code=allow_code))
        except ValueError as error:
            raise ValueError(f"{written.id}: check {number}: {error}") from None
    item = Item(
        name=written.id,
        set=written.set,
        checks=tuple(checks),
        session=_session(written),
        good=_said(written.id, written.good),
        bad=_said(written.id, written.bad),
    )
    _try_references(item)
    return item


def _try_references(item: Item) -> None:
    """A check that its author's own answers don't pass, or that passes anything, measures nothing."""
    try:
        if item.good is not None:
            failed = [check.kind for check in item.checks if not check.holds(item.good)]
            if failed:
                raise ValueError(f"{item.name}: the good answer does not pass {', '.join(failed)}")
        if item.bad is not None and all(check.holds(item.bad) for check in item.checks):
            raise ValueError(f"{item.name}: the bad answer passes every check")
    except CheckError as error:
        raise ValueError(f"{item.name}: a check can't be carried out on its own answers: {error}") from None


def _session(written: Written) -> Session:
    name = written.id
    if (written.prompt is None) == (written.messages is None):
        raise ValueError(f"{name}: needs prompt or messages, and not both")
    messages = written.messages if written.prompt is None else [{"role": "user", "content": written.prompt}]
    if not messages or not all(isinstance(one.get("role"), str) and one.get("content") for one in messages):
        raise ValueError(f"{name}: each message needs a role and a content")
    if not 1 <= written.max_tokens <= 100_000:
        raise ValueError(f"{name}: max_tokens is from 1 to 100,000, not {written.max_tokens}")
    extra: dict[str, Any] = {"max_tokens": written.max_tokens}
    if written.tool_choice is not None:
        extra["tool_choice"] = written.tool_choice
    for tool in written.tools or ():
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f'{name}: a tool is written {{"type": "function", "function": {{"name": …}}}}')
    turn = Turn(messages=tuple(messages), extra=extra)
    return Session(session_id=name, turns=(turn,), tools=tuple(written.tools) if written.tools else None)


def _said(name: str, written: str | dict[str, Any] | None) -> Said | None:
    """A reference answer: its text, or `{"text": …, "tool_calls": [{"name": …, "arguments": {…}}]}`."""
    if written is None or isinstance(written, str):
        return None if written is None else Said.of(written)
    calls = written.get("tool_calls", [])
    if written.keys() - {"text", "tool_calls"} or not isinstance(calls, list):
        raise ValueError(f"{name}: a reference answer is a text or an object with text and tool_calls")
    made = tuple({"type": "function", "function": call} for call in calls)
    return Said.of(str(written.get("text", "")), made)
