"""What a context limit makes of a trace: which sessions fit, what is dropped, and how that changes the workload."""

from __future__ import annotations

import msgspec
import numpy as np

from infersiege.traces.inspection.measured import UNKNOWN, Measured

_NEARLY_ALL = 0.99


class ContextFit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit. With `too_long = "skip"` the first turn over it ends its line, and what would start from there; with
    "clip" such a turn is sent all the same, cut to the room that its answer leaves, where there is any."""

    limit_tokens: int
    """Of prompt and output together, as a plan's `context_limit`."""
    sessions_whole: int
    """Of which every turn fits."""
    sessions_cut: int
    """Of which some turns are sent, or sent cut."""
    sessions_dropped: int
    """Of which nothing is sent."""
    turns_kept: int
    turns_dropped: int
    turns_clipped: int | None = None
    """Of those kept, turns that are cut, as far as their texts can be; None: `too_long = "skip"`."""
    input_mean: float | None
    """Prompt tokens of the turns that are left, in the mean; before: that of `input_tokens`."""
    output_mean: float | None
    prefix_share: float | None
    """Of the turns that are left, as `prefix_share` is of all; None where some are cut."""


def fit(measured: Measured, limit_tokens: int, *, clip: bool = False) -> ContextFit:
    """A turn of unknown prompt is taken to fit, and one of unknown output to have none. `clip`: `too_long = "clip"`."""
    room = limit_tokens - np.maximum(measured.output, 0)
    over = np.maximum(measured.prompt, 0) > room
    kept = ~over | (room > 0) if clip else ~over
    # A turn is sent if all that it comes after fit. Each step looks twice as far back as the one before.
    places = np.arange(len(kept))
    before = np.where(measured.before == UNKNOWN, places, measured.before)
    while (before != places).any():
        kept, places, before = kept & kept[before], before, before[before]
    left = np.bincount(measured.session[kept], minlength=measured.sessions)
    cut = kept & over
    uncut = np.bincount(measured.session[cut], minlength=measured.sessions) == 0
    whole = int(((left == measured.turn_counts) & (left > 0) & uncut).sum())
    prompt = np.where(cut, room, measured.prompt)
    shared = measured.sharing_told and not cut.any()
    sent = int((left > 0).sum())
    return ContextFit(
        limit_tokens=limit_tokens,
        sessions_whole=whole,
        sessions_cut=sent - whole,
        sessions_dropped=measured.sessions - sent,
        turns_kept=int(kept.sum()),
        turns_dropped=len(kept) - int(kept.sum()),
        turns_clipped=int(cut.sum()) if clip else None,
        input_mean=_mean(prompt[kept]),
        output_mean=_mean(measured.output[kept]),
        prefix_share=share_of(measured.own[kept], measured.prompt[kept]) if shared else None,
    )


def share_of(part: np.typing.NDArray[np.int64], whole: np.typing.NDArray[np.int64]) -> float | None:
    """Of the turns for which both are known; None where that is not nearly all of them."""
    known = (part != UNKNOWN) & (whole != UNKNOWN)
    tokens = int(whole[known].sum())
    return int(part[known].sum()) / tokens if tokens and known.mean() >= _NEARLY_ALL else None


def _mean(values: np.typing.NDArray[np.int64]) -> float | None:
    known = values[values != UNKNOWN]
    return float(known.mean()) if len(known) else None
