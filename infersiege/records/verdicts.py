"""What came of the rules: one result each, and gate.json, which has them all."""

from __future__ import annotations

import msgspec

from infersiege.records.words import SCHEMA_VERSION, Verdict


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One rule held against the run."""

    name: str
    """Such as `agent: ttft p99 <= 800 ms`."""
    metric: str
    stat: str
    scenario: str | None
    channel: str | None
    stage: str | None
    n: int | None
    value: float | None
    unit: str
    at_most: float | None
    at_least: float | None
    verdict: Verdict
    detail: str
    severity: str = "fail"
    built_in: bool = False
    needed: int | None = None
    """Values that it takes to judge it; None: not a matter of how many."""
    low: float | None = None
    """The 95 % range of a percentile, in `unit`; None at an end that so few values can't tell, and of other figures."""
    high: float | None = None
    window_duration_ns: int | None = None
    """Length of the steady phases that it is over; None: there is no such part of the run."""
    remark: str = ""
    """What must be read beside the value: the share of turns that failed, fewer values than usual. Part of `detail`."""
    relative_max: float | None = None
    """Held against a baseline: the smallest change for the worse that fails, as a ratio (0.1 is 10 %) or, of a share,
    in points (0.1 is 10). None: a rule with a limit of its own."""
    baseline: float | None = None
    """Mean over the baseline's runs, in `unit`; `value` is that of these runs. None, as all below: not compared."""
    change: float | None = None
    """Of `value` against `baseline`, on the scale of `relative_max`: above 0 is more, whether that is worse or not."""
    change_low: float | None = None
    """The 95 % confidence interval of the change."""
    change_high: float | None = None
    p: float | None = None
    """Chance that runs of the same thing look as bad, corrected for all rules of the gate."""
    notes: tuple[str, ...] = ()
    """Of the rule that says whether runs may be compared: what must be read with the comparison."""


class StoppedEarly(msgspec.Struct, frozen=True, kw_only=True):
    """The load ended before its time, since a rule with `abort` could not pass any more (docs/gate.md)."""

    place: int
    """Of the rule in the plan's list, from 0."""
    at_ns: int
    past: int
    """Turns past the limit so far, of those that ended in steady: by the workers' reports, so at least so many."""
    of: int
    allowed_share: float
    """Of them, that may be past it."""

    @property
    def words(self) -> str:
        """`stopped early after 412 turns: 37 of them (9 %) were past the limit, where 1 % may be`."""
        share = 100 * self.past / self.of if self.of else 0.0
        return (
            f"stopped early after {self.of:,} turns: {self.past:,} of them ({share:.3g} %) were past the limit, where "
            f"{100 * self.allowed_share:.3g} % may be"
        )


class GateFile(msgspec.Struct, frozen=True, kw_only=True):
    """gate.json: the verdict of `infersiege gate` or `run --gate`, for programs (docs/gate.md)."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    name: str
    emulated: bool
    """A target was infersiege's own emulator: figures say nothing about hardware."""
    interrupted: bool
    stopped_early: StoppedEarly | None
    """By a rule with `abort`; None: it was not."""
    verdict: Verdict | None
    exit_code: int
    """Of the command (docs/gate.md has the table)."""
    invalid: tuple[str, ...]
    """Why the figures can't be trusted; empty: they can."""
    warnings: tuple[str, ...]
    rules: tuple[RuleResult, ...]
    """The built-in ones first, then those of the plan in its order."""
