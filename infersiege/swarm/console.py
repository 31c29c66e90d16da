"""A console for a run that must outlive it."""

from __future__ import annotations

from typing import Any

from rich.console import Console


class SteadyConsole(Console):
    """A console that may go away: the reader of a pipe, a closed terminal. The run goes on without it."""

    def on_broken_pipe(self) -> None:
        """rich would end the process here."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, but an output that is gone is no error."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True
