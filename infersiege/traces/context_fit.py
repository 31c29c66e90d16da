"""What a context limit makes of a trace: which sessions fit, what is dropped, and how that changes the workload."""

from __future__ import annotations

import msgspec
import numpy as np

from infersiege.traces.measured import UNKNOWN, Measured

_NEARLY_ALL = 0.99


class ContextFit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, with `too_long = "skip"`: the first turn over it ends its session."""

    limit_tokens: int
    """Of prompt and output together, as a plan's `context_limit`."""
    sessions_whole: int
    """Of which every turn fits."""
    sessions_cut: int
    """Of which the first turns are sent."""
    sessions_dropped: int
    """Of which nothing is sent."""
    turns_kept: int
    turns_dropped: int
    input_mean: float | None
    """Prompt tokens of the turns that are left, in the mean; before: that of `input_tokens`."""
    output_mean: float | None
    prefix_share: float | None
    """Of the turns that are left, as `prefix_share` is of all."""


def fit(measured: Measured, limit_tokens: int) -> ContextFit:
    """A turn of unknown prompt is taken to fit, and one of unknown output to have none."""
    count = len(measured.prompt)
    total = np.maximum(measured.prompt, 0) + np.maximum(measured.output, 0)
    places = np.arange(count)
    # Of each session the place of its first turn over the limit, or the end.
    first_over = np.full(measured.sessions, count, dtype=np.int64)
    over = total > limit_tokens
    np.minimum.at(first_over, measured.session[over], places[over])
    kept = places < first_over[measured.session]
    left = np.bincount(measured.session[kept], minlength=measured.sessions)
    whole = int(((left == measured.turn_counts) & (left > 0)).sum())
    sent = int((left > 0).sum())
    return ContextFit(
        limit_tokens=limit_tokens,
        sessions_whole=whole,
        sessions_cut=sent - whole,
        sessions_dropped=measured.sessions - sent,
        turns_kept=int(kept.sum()),
        turns_dropped=count - int(kept.sum()),
        input_mean=_mean(measured.prompt[kept]),
        output_mean=_mean(measured.output[kept]),
        prefix_share=share_of(measured.own[kept], measured.prompt[kept]),
    )


def share_of(part: np.typing.NDArray[np.int64], whole: np.typing.NDArray[np.int64]) -> float | None:
    """Of the turns for which both are known; None where that is not nearly all of them."""
    known = (part != UNKNOWN) & (whole != UNKNOWN)
    tokens = int(whole[known].sum())
    return int(part[known].sum()) / tokens if tokens and known.mean() >= _NEARLY_ALL else None


def _mean(values: np.typing.NDArray[np.int64]) -> float | None:
    known = values[values != UNKNOWN]
    return float(known.mean()) if len(known) else None
