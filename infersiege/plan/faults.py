"""Collects the faults of one plan, so that all are reported at once, in file order, each with its place."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from infersiege.errors import PlanError
from infersiege.plan.locate import KeyPath, Position
from infersiege.redact import scrub


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One `--set key=value`."""

    path: KeyPath
    text: str
    """The value as given; it may be a secret by mistake, so that messages never show it whole."""


def dotted(path: KeyPath) -> str:
    """A path as `--set` takes it: `workload.0.trace`, `channel."a.b".model`."""
    return ".".join(_part(part) for part in path)


def _part(part: str | int) -> str:
    if isinstance(part, int) or (part and all(char.isalnum() or char in "-_" for char in part)):
        return str(part)
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Faults:
    """Faults so far, and which keys have one (a check that needs such a key keeps still)."""

    def __init__(self, source: str, places: Mapping[KeyPath, Position], overrides: tuple[Override, ...]) -> None:
        self.source = source
        self._places = places
        self._overrides = {override.path: (index, override) for index, override in enumerate(overrides)}
        self._lines: list[tuple[tuple[float, int, int], str]] = []
        self._bad: set[KeyPath] = set()

    def override(self, path: KeyPath) -> Override | None:
        """The `--set` that gave this key, if one did."""
        found = self._overrides.get(path)
        return found[1] if found else None

    def add(self, path: KeyPath, message: str) -> None:
        """Note a fault of one key. Its place is the nearest enclosing key that was written."""
        self.mark(path)
        order, place = self._place(path)
        # One by one: `api_key: …` would look like a secret.
        line = ": ".join(scrub(part) for part in (place, dotted(path), message) if part)
        if all(line != other for _, other in self._lines):
            self._lines.append((order, line))

    def add_override(self, place: str, message: str) -> None:
        """Note an override that could not be applied."""
        self._lines.append(((float("inf"), -1, len(self._lines)), f"{scrub(place)}: {scrub(message)}"))

    def mark(self, path: KeyPath) -> None:
        """The key has a fault that is reported elsewhere."""
        self._bad.add(path)

    def ok(self, *path: str | int) -> bool:
        """No fault is known of this key, of a table around it or of anything in it."""
        return not any(bad[: len(path)] == path or path[: len(bad)] == bad for bad in self._bad)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def error(self) -> PlanError:
        lines = tuple(line for _, line in sorted(self._lines, key=lambda item: item[0]))
        count = "a fault" if len(lines) == 1 else f"{len(lines)} faults"
        return PlanError(
            f"{self.source}: the plan has {count}",
            faults=lines,
            hint="docs/plan.md lists every key with its type, unit and default",
        )

    def _place(self, path: KeyPath) -> tuple[tuple[float, int, int], str]:
        number = len(self._lines)
        for end in range(len(path), 0, -1):
            if path[:end] in self._overrides:
                index, override = self._overrides[path[:end]]
                return (float("inf"), index, number), f"--set {dotted(override.path)}"
            if path[:end] in self._places:
                line, column = self._places[path[:end]]
                return (line, column, number), f"{self.source}:{line}"
        return (float("inf"), -1, number), self.source
