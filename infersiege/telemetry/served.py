"""How many requests an engine says that it finished during a run: its own counter, read before the load and after it.

A check on the records, and nothing else: a server's counter also counts whoever else asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from infersiege_agents.engine_names import RANKS
from prometheus_client.parser import text_string_to_metric_families

from infersiege.plan.schema import Plan
from infersiege.records import ServedRequests
from infersiege.telemetry.idle import EnginePage, engine_pages, opened

FINISHED: Final[Mapping[str, str]] = {
    # By finish reason; a request whose client went away is not counted (seen with 0.32).
    "vllm": "vllm:request_success_total",
    "sglang": "sglang:num_requests_total",
}
"""Engine profile -> the counter of requests that it finished. The others have none."""
WITHIN_S = 1.0


class ServedWatch:
    """Reads the counters when it is made, and again for `counted`."""

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        self._pages = [page for page in engine_pages(plan) if page.channel.engine in FINISHED]
        self._environ = environ
        self._before = self._look()

    def _look(self) -> list[float | None]:
        """Of each page; None: it does not tell."""
        if not self._pages:
            return []
        with ThreadPoolExecutor(len(self._pages)) as pool:
            return list(pool.map(lambda page: finished(page, self._environ), self._pages))

    def counted(self) -> tuple[ServedRequests, ...]:
        """What each channel's engines finished since; without channels of which one did not tell, or restarted."""
        total: dict[str, float] = {}
        unknown = set()
        metrics = {page.name: FINISHED[page.channel.engine] for page in self._pages}
        for page, before, after in zip(self._pages, self._before, self._look(), strict=True):
            if before is None or after is None or after < before:
                unknown.add(page.name)
            else:
                total[page.name] = total.get(page.name, 0.0) + after - before
        return tuple(
            ServedRequests(channel=name, metric=metrics[name], counted=round(count))
            for name, count in total.items()
            if name not in unknown
        )


def finished(page: EnginePage, environ: Mapping[str, str]) -> float | None:
    """Requests that an engine has finished since its start. None: no answer in time, or no such counter."""
    found = opened(page, environ, WITHIN_S)
    if found is None:
        return None
    try:
        values = list(_values(found.text, FINISHED[page.channel.engine]))
    except ValueError:  # what is no exposition format
        return None
    return sum(values) if values else None


def _values(text: str, metric: str) -> Iterator[float]:
    """Samples of a counter; of copies of one replica (ranks) the first."""
    names = (metric, metric.replace(":", "_", 1))
    lines = "\n".join(line for line in text.splitlines() if line.startswith(names)) + "\n"
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if sample.name in names and all(sample.labels.get(rank, "0") == "0" for rank in RANKS):
                yield sample.value
