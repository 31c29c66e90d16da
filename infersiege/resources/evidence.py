"""What the rules on limits look at: the figures of one steady phase, engine by engine and card by card."""

from __future__ import annotations

from dataclasses import dataclass

from infersiege.resources.gpus import Spread

KV_FULL = 0.90
"""A cache with less than this in use takes the next request; above, a long prompt may have to wait for blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One engine. None: it does not tell.

    Engines are judged one by one: of two, one may be full and the other empty, and their mean is neither.
    """

    name: str = ""
    """`127.0.0.1:8000`."""
    kv_use_mean: float | None = None
    kv_use_peak: float | None = None
    running_mean: float | None = None
    running_peak: float | None = None
    waiting_mean: float | None = None
    waiting_peak: float | None = None
    waiting_while_full: float | None = None
    """Of all the waiting (requests × time), the share at points with KV-cache use of KV_FULL or more."""
    preemptions: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the rules look at, of the steady phase of one stage. None: not known."""

    client: str | None = None
    """Why the run is client-bound."""
    started: int = 0
    """Turns."""
    ended: int = 0
    """Turns, ok or failed."""
    rate_limited: int = 0
    """Of these, those that failed by a rate limit."""
    overloaded: int = 0
    """Those that the server refused since it had too much to do."""
    in_flight_mean: float | None = None
    engines: tuple[EngineLoad, ...] = ()
    restarts: int = 0
    """Of engines."""
    power_capped: Spread | None = None
    throttled: Spread | None = None
    clock_loss: Spread | None = None
    """1 − SM clock / highest SM clock."""
    dram_active: Spread | None = None
    tensor_active: Spread | None = None
    sm_active: Spread | None = None
    utilization: Spread | None = None
    gpus: int = 0
    """GPUs and slices that were read."""
    idle: int = 0
    """Of these, those that did no work."""
    thin: tuple[str, ...] = ()
    """Series that were read for too little of the steady phase: `engine 127.0.0.1:8000: 45 %`."""

    @property
    def batch(self) -> float | None:
        """Requests that share one step: those of the engine with most of them, else the client's."""
        running = [one.running_mean for one in self.engines if one.running_mean is not None]
        return max(running, default=self.in_flight_mean)

    @property
    def preemptions(self) -> float:
        return sum(one.preemptions or 0.0 for one in self.engines)

    @property
    def kv_peak(self) -> float | None:
        """Of the fullest engine."""
        return max((one.kv_use_peak for one in self.engines if one.kv_use_peak is not None), default=None)
