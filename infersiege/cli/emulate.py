"""`infersiege emulate`; the command lives with the emulator, so that `python -m infersiege.emulator` is the same."""

from __future__ import annotations

from infersiege.emulator.command import emulate

__all__ = ["emulate"]
