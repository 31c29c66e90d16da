"""*GPU*: every card by itself, and the energy that a token costs."""

from __future__ import annotations

from infersiege_grafana import queries as q
from infersiege_grafana.panels import (
    CALM,
    SHARE,
    YES_OR_NO,
    Json,
    Steps,
    layout,
    override,
    stat,
    states,
    table,
    target,
    timeseries,
    without_absent,
)
from infersiege_grafana.shell import channel, dashboard, gpu, host, run, scenario

CARD = ("host", "uuid")
NAMED = "$tag_host $tag_uuid"
BAND = [
    override("highest card", custom_fillBelowTo="lowest card", custom_lineWidth=0),
    override("lowest card", custom_lineWidth=0),
]
WHOLE = f"{q.RUN} AND {q.WHOLE_RUN}"
HOT = (("green", None), ("orange", 80.0), ("red", 90.0))


def per_card(
    title: str,
    description: str,
    unit: str,
    *columns: tuple[str, str],
    most: float | None = None,
    band: str | None = None,
    steps: Steps = CALM,
) -> Json:
    """Lines per card: (prefix of its name, expression); `band`: the field whose span over all cards is drawn."""
    targets = [
        target(q.over_time("gpu", {f"v{place}": expression}, q.GPU, CARD), alias=f"{prefix} {NAMED}".strip())
        for place, (prefix, expression) in enumerate(columns)
    ]
    if band is not None:
        targets.append(
            target(q.spread_over("gpu", band, q.GPU, CARD, least="lowest card", most="highest card"), alias="$col")
        )
    return timeseries(
        title,
        description,
        unit,
        *targets,
        most=most,
        steps=steps,
        overrides=[*(BAND if band is not None else []), LIMIT_LINES],
    )


LIMIT_LINES = override(
    "^(limit|highest|total) (?!card).*", regex=True, custom_lineStyle={"fill": "dash", "dash": [8, 6]}
)


def headline() -> list[Json]:
    return [
        stat(
            "Seen / expected",
            f"Cards that were read in the last {q.LAST_S} s of the time range, and cards that should be there: fewer "
            "means that one fell off the bus, or that its agent or host is silent.",
            "short",
            target(q.at_the_end("gpu_host", "gpus", "seen", q.HOST, "host"), alias="$col"),
            target(
                'SELECT sum("n") AS "expected" FROM (SELECT last("gpus_expected") AS "n" FROM "gpu_host" '
                f'WHERE $timeFilter AND {q.HOST} GROUP BY "host") WHERE $timeFilter',
                alias="$col",
            ),
        ),
        stat(
            "Ever lost",
            "Cards that could not be read at some time of the range; each line below that ends there is one.",
            "short",
            target(
                f'SELECT sum("lost") AS "lost" FROM (SELECT 1 - min("ok") AS "lost" FROM "gpu" '
                f'WHERE $timeFilter AND {q.GPU} GROUP BY "host", "uuid") WHERE $timeFilter'
            ),
            steps=(("green", None), ("red", 1)),
        ),
        stat(
            "Energy", "Energy that the chosen cards used in the time range, by their own counters.", "joule",
            target(f'SELECT sum("energy_j") AS "energy" FROM "gpu" WHERE $timeFilter AND {q.GPU}'),
        ),
        stat(
            "J per token, steady",
            "Energy of all GPUs / output tokens that arrived in the run's steady phase, as in summary.json.",
            "suffix: J/token",
            target(q.run_rows({"energy": "energy_per_output_token_j"}, WHOLE)), decimals=3,
        ),
        stat(
            "Power-capped",
            "Share of GPU time in the steady phase in which the power limit slowed cards, as in summary.json.",
            SHARE,
            target(q.run_rows({"capped": "power_capped_share"}, WHOLE)),
            steps=(("green", None), ("orange", 0.05), ("red", 0.5)),
        ),
        stat(
            "Throttled",
            "Share of GPU time in the steady phase in which heat or hardware slowed cards, as in summary.json.",
            SHARE,
            target(q.run_rows({"throttled": "throttled_share"}, WHOLE)),
            steps=(("green", None), ("red", 0.001)),
        ),
        stat(
            "Xid errors",
            "Faults that the driver reported in the time range; any of them calls for a look at the host's log.",
            "short",
            target(f'SELECT sum("xid_count") AS "xid" FROM "gpu" WHERE $timeFilter AND {q.GPU}'),
            steps=(("green", None), ("red", 1)),
        ),
    ]  # fmt: skip


def health() -> list[Json]:
    return [
        states(
            "Cards", "Whether each card could be read; a gap means that its agent was silent.",
            target(q.over_time("gpu", {"ok": 'min("ok")'}, q.GPU, CARD), alias=NAMED),
            words={0: ("lost", "red"), 1: ("read", "green")},
        ),
        table(
            "Cards, latest",
            "The latest point of each card: join servers to cards by UUID, the index is not CUDA's order.",
            "short",
            target(
                q.now(
                    "gpu",
                    "ok",
                    {
                        "index": "index", "read": "ok", "memory": "memory_total_bytes", "processes": "processes",
                        "error": "error_text",
                    },
                    q.GPU,
                    ("host", "uuid", "pci", "name", "mig_parent"),
                ),
                table=True,
            ),
            units={"memory": "bytes"},
            overrides=[override("read", mappings=[YES_OR_NO])],
            aged=True,
        ),
        table(
            "Hosts, latest",
            "The latest point of each host: whether its driver answers, and how many of the expected cards it has; an "
            "old point means that its agent is silent.",
            "short",
            target(
                q.now(
                    "gpu_host",
                    "ok",
                    {
                        "driver answers": "ok", "driver": "driver", "cards": "gpus", "expected": "gpus_expected",
                        "restarts": "restarts", "agent's own time": "sample_duration", "error": "error_text",
                    },
                    q.HOST,
                    ("host",),
                ),
                table=True,
            ),
            units={"agent's own time": "s"},
            overrides=[override("driver answers", mappings=[YES_OR_NO])],
            aged=True,
        ),
    ]  # fmt: skip


def work() -> list[list[Json]]:
    return [
        [
            per_card(
                "SM active",
                "Share of time in which the SMs had work (Hopper and later): near 100 % compute is used up; the band "
                "shows idle cards that a mean would hide.",
                SHARE, ("", 'mean("sm_active")'), most=1, band="sm_active",
            ),
            per_card(
                "Tensor cores",
                "Share of time in which the tensor cores were busy: high in prefill, low in decode at small batches.",
                SHARE, ("", 'mean("tensor_active")'), most=1, band="tensor_active",
            ),
            per_card(
                "DRAM bandwidth",
                "Share of the memory bandwidth in use: near 100 % decode is limited by memory, and a larger batch "
                "costs little.",
                SHARE, ("", 'mean("dram_active")'), most=1, band="dram_active",
            ),
        ],
        [
            per_card(
                "Utilisation (any kernel ran)",
                "Share of time in which any kernel ran: 100 % at a single user is normal, it is not saturation, and "
                "no limit rests on it.",
                SHARE, ("", 'mean("utilization_mean")'), most=1, band="utilization_mean",
            ),
            per_card(
                "Memory",
                "Memory in use and in total: engines take theirs at the start, so a flat line says nothing; see KV "
                "use in the capacity review.",
                "bytes", ("", 'max("memory_used_max_bytes")'), ("total", 'last("memory_total_bytes")'),
            ),
            timeseries(
                "SM occupancy",
                "Share of the warps that the SMs can hold: low at high SM active means small kernels or small batches.",
                SHARE,
                target(q.over_time("gpu", {"v": 'mean("sm_occupancy")'}, q.GPU, CARD), alias=NAMED),
                most=1,
            ),
        ],
    ]  # fmt: skip


def power_and_heat() -> list[Json]:
    return [
            per_card(
                "Power against its limit",
                "Mean power of each card and the limit that is enforced: a card at its limit is slowed.",
                "watt", ("", 'mean("power_mean_w")'), ("limit", 'last("power_limit_w")'), band="power_mean_w",
            ),
            timeseries(
                "Energy per output token",
                "Energy of the chosen cards / output tokens that arrived in the same 10 s: the price of a token over "
                "time. While the run goes on, tokens of open turns are missing, so the newest values are too high.",
                "suffix: J/token",
                target(
                    f'SELECT sum("energy_j") AS "energy" FROM "gpu" WHERE $timeFilter AND {q.GPU} '
                    "GROUP BY time(10s) fill(none)",
                    alias="$col",
                ),
                target(
                    f'SELECT sum("tokens") AS "tokens" FROM "infersiege_window" WHERE $timeFilter '
                    f"AND {q.RUN} AND {q.CUT} GROUP BY time(10s) fill(none)",
                    alias="$col",
                ),
                transformations=PER_TOKEN,
            ),
            per_card(
                "Temperature",
                "Temperature of each card and of its memory: from about 85 °C on most cards slow down.",
                "celsius", ("", 'max("temperature_c")'), ("memory", 'max("temperature_memory_c")'), steps=HOT,
            ),
    ]  # fmt: skip


def clocks_and_links() -> list[Json]:
    return [
            per_card(
                "SM clock",
                "Clock of each card and the highest it has: a lower clock under load is power, heat or a cap.",
                "suffix: MHz", ("", 'mean("clock_sm_mhz")'), ("highest", 'last("clock_sm_max_mhz")'),
            ),
            per_card(
                "Why clocks were lowered",
                "Share of samples in which the power limit, heat or the hardware slowed the card.",
                SHARE, ("power limit", 'mean("power_capped")'), ("heat", 'mean("thermal_throttled")'),
                ("hardware", 'mean("hardware_slowdown")'), most=1,
            ),
            per_card(
                "PCIe and NVLink", "Bytes per second that each card received and sent: tensor parallelism shows here.",
                "Bps", ("PCIe in", q.per_interval("pcie_rx_bytes")), ("PCIe out", q.per_interval("pcie_tx_bytes")),
                ("NVLink in", q.per_interval("nvlink_rx_bytes")), ("NVLink out", q.per_interval("nvlink_tx_bytes")),
            ),
    ]  # fmt: skip


def faults() -> list[Json]:
    return [
            timeseries(
                "Faults",
                "Xid events and memory errors of each card, counted per bar: Xids and uncorrected errors are never "
                "normal.",
                "suffix: events",
                target(q.over_time("gpu", {"x": 'sum("xid_count")'}, q.GPU, CARD), alias=f"Xid {NAMED}"),
                target(q.over_time("gpu", {"e": 'sum("ecc_uncorrected")'}, q.GPU, CARD), alias=f"uncorrected {NAMED}"),
                target(q.over_time("gpu", {"c": 'sum("ecc_corrected")'}, q.GPU, CARD), alias=f"corrected {NAMED}"),
                bars=True,
            ),
            table(
                "Xid events", "Each Xid with its code: NVIDIA's documentation tells what it means.", "short",
                target(
                    f'SELECT "host", "uuid", "xid", "xid_count" AS "events" FROM "gpu" WHERE $timeFilter AND {q.GPU} '
                    'AND "xid_count" > 0',
                    table=True,
                ),
                hidden=(), units={"Time": "dateTimeAsIso"},
            ),
            timeseries(
                "Cost of watching",
                "Time that each agent spent on reading its cards for one point: it must stay far below its interval "
                "(1 s by default).",
                "s",
                target(q.over_time("gpu_host", {"s": 'max("sample_duration")'}, q.HOST, ("host",)), alias="$tag_host"),
            ),
    ]  # fmt: skip


PER_TOKEN: list[Json] = [
    {"id": "joinByField", "options": {"byField": "Time", "mode": "outer"}},
    without_absent("energy", "tokens", divisor="tokens"),
    {
        "id": "calculateField",
        "options": {
            "mode": "binary",
            "alias": "energy per output token",
            "binary": {"left": "energy", "operator": "/", "right": "tokens"},
            "replaceFields": True,
        },
    },
]
"""InfluxQL can't divide one measurement by another; Grafana can."""


def build() -> Json:
    cards, now, hosts = health()
    first, second = work()
    sections = [
        ("All chosen cards", [(4, headline())]),
        ("Are all cards there?", [(6, [cards, hosts]), (5, [now])]),
        ("How hard they work", [(8, first), (8, second)]),
        ("Power, clocks, heat", [(8, power_and_heat()), (8, clocks_and_links())]),
        ("Faults, and the agent itself", [(7, faults())]),
    ]
    return dashboard(
        "infersiege-gpu",
        "Every card by itself: work, memory, power, clocks, heat and faults; the energy of a token; cards that are "
        "missing.",
        [run(), scenario(), channel(), host(), gpu()],
        layout(sections),
        live=True,
    )
