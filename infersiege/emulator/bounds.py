"""What the emulator's numbers may be: one wording for all of them."""

from __future__ import annotations

from infersiege.errors import UsageError


def require(option: str, value: float | None, least: float, most: float) -> None:
    """Raises UsageError unless `least <= value <= most`, which NaN never is. None: not set, so nothing is wrong."""
    if value is not None and not least <= value <= most:
        raise UsageError(
            f"emulator: {option} is {value}; it must be from {least:,} to {most:,}",
            hint="see infersiege emulate --help",
        )
