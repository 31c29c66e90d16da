"""Asked and delivered load as rows of the summary: sessions and turns side by side."""

from __future__ import annotations

from infersiege.metrics.collect import Collector
from infersiege.metrics.delivery import SECOND_NS, Delivered, inside, instants, mean_alive, users_alive
from infersiege.records import DeliveredLoad


def delivered_load(one: Delivered, collector: Collector) -> DeliveredLoad:
    """One asked load in one steady window."""
    load, window = one.load, one.window
    flows = [flow for (scenario, _, _), flow in sorted(collector.flows.items()) if load.plays(scenario)]
    cells = [cell for key, cell in collector.cells.items() if load.plays(key[0]) and key[2] == window.stage]
    seconds = window.duration_ns / SECOND_NS
    closed = load.mode == "closed"
    starts, ends = (instants(getattr(flow, name) for flow in flows) for name in ("flight_start", "flight_end"))
    return DeliveredLoad(
        stage=window.stage,
        scenarios=load.scenarios,
        mode=load.mode,
        users_asked=load.users,
        users_mean=users_alive(flows, (window,)),
        in_flight_mean=mean_alive(starts, ends, (window,)),
        rate_asked=load.rate,
        rate_due=None if closed else one.asked / seconds,
        rate_begun=None if closed else one.got / seconds,
        asked_rate=sum(cell.tally["asked"] for cell in cells) / seconds,
        sent_rate=inside(instants(flow.sent for flow in flows), (window,)) / seconds,
        finished_rate=inside(instants(flow.finished for flow in flows), (window,)) / seconds,
        share=one.share,
    )
