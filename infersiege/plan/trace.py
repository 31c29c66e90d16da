"""The trace of a workload, opened as the plan asks: by whoever plays it, and by whoever looks at it before."""

from __future__ import annotations

import os
from pathlib import Path

from infersiege.plan.schema import Plan, Workload
from infersiege.quality.items import FORMAT, open_quality
from infersiege.redact import Secrets
from infersiege.traces import Trace, open_trace


def trace_of(plan: Plan, workload: Workload) -> Trace:
    """Raises TraceError as `open_trace` does. Paths of a filled plan are absolute."""
    if workload.format == FORMAT:
        return open_quality(
            workload.trace,
            tools=workload.options.get("tools") is not False,
            allow_code=plan.quality is not None and plan.quality.allow_code,
            limit=workload.limit,
            redact=lambda said: Secrets.of(plan, os.environ).scrub(said),
        )
    return open_trace(
        workload.trace,
        base=Path(),
        format=workload.format,
        seed=plan.run.seed,
        language=workload.language,
        limit=workload.limit,
        options=workload.options,
        length_scale=workload.length_scale,
        output_scale=workload.output_scale,
    )
