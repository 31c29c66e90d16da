"""Pictures of the dashboards without Grafana: every panel's own queries, run on an InfluxDB and drawn on the same grid.

    python grafana/preview.py --influx-url http://127.0.0.1:8086 --from 1764511331000 --to 1764511451000 out/

Writes one HTML file per dashboard; with `--png` also a picture of each (needs chromium). INFLUX_TOKEN may hold a token.
It is a check for the eye that queries, units and layout make sense, and where the pictures in docs/ come from.
"""

from __future__ import annotations

import argparse
import functools
import html
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infersiege_grafana import drawing
from infersiege_grafana.expand import Value
from infersiege_grafana.files import FOLDER
from infersiege_grafana.frames import Series
from infersiege_grafana.look import Look, look_at
from infersiege_grafana.panels import Json

WIDTH_PX, COLUMN_PX, ROW_PX, GAP_PX, HEAD_PX = 1440, 60, 38, 8, 104
POINTS = 400
"""About so many points across a panel: Grafana takes one per pixel."""


def render(look: Look) -> str:
    """The dashboard as one HTML page."""
    cells, bottom = [], 0
    for panel in look.dashboard["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] * COLUMN_PX, place["y"] * ROW_PX + HEAD_PX
        width, height = place["w"] * COLUMN_PX - GAP_PX, place["h"] * ROW_PX - GAP_PX
        bottom = max(bottom, top + height)
        box = f"left:{left}px;top:{top}px;width:{width}px;height:{height}px"
        if panel["type"] == "row":
            cells.append(f'<div class="row" style="{box}">{html.escape(panel["title"])}</div>')
            continue
        body = _body(look, panel, width - 16, height - 34)
        title = html.escape(panel["title"])
        words = html.escape(panel["description"])
        cells.append(f'<div class="panel" style="{box}" title="{words}"><h2>{title}</h2>{body}</div>')
    return PAGE.format(
        plotly=drawing.SCRIPT,
        width=WIDTH_PX,
        height=bottom + 16,
        title=html.escape(look.dashboard["title"]),
        variables=_variables(look),
        cells="\n".join(cells),
    )


def _body(look: Look, panel: Json, width: int, height: int) -> str:
    if panel["type"] == "text":
        return drawing.markdown(panel["options"]["content"])
    span_ms = look.view.to_ms - look.view.from_ms
    frames = look.at_interval(_interval(span_ms)).shown(panel)
    if not frames or all(frame.empty for frame in frames):
        return '<div class="none">No data</div>'
    canvas = drawing.Canvas(f"panel{panel['id']}", width, height, look.view, look.events())
    return drawing.DRAWN[panel["type"]](panel, frames, canvas)


def _interval(span_ms: int) -> int:
    """As Grafana rounds it, never below a second."""
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
    wanted = span_ms / POINTS / 1000
    return 1000 * next((step for step in steps if step >= wanted), steps[-1])


def _variables(look: Look) -> str:
    shown = []
    for variable in look.dashboard["templating"]["list"]:
        if variable["hide"]:
            continue
        value = look.view.values[variable["name"]]
        chosen = "All" if "$__all" in value else value if isinstance(value, str) else " + ".join(value)
        shown.append(f"<span>{html.escape(variable['label'])}</span><b>{html.escape(chosen)}</b>")
    return "".join(shown)


PAGE = """<!doctype html><html data-height="{height}"><meta charset="utf-8"><title>{title}</title>{plotly}
<style>
body{{margin:0;background:#f4f5f5;font:13px/1.35 "DejaVu Sans",Arial,sans-serif;color:#24292e;width:{width}px;
height:{height}px;position:relative;overflow-x:hidden}}
header{{position:absolute;left:12px;top:10px;right:12px}}
h1{{font-size:19px;margin:0 0 8px;font-weight:600}}
h1 small{{font-weight:400;color:#6b7280;font-size:12px;margin-left:14px}}
header span,header b{{white-space:nowrap;display:inline-block}} .stat div{{white-space:nowrap}}
header span{{color:#57606a;margin-right:6px}} header b{{margin-bottom:4px;
background:#fff;border:1px solid #d0d7de;border-radius:3px;
padding:3px 8px;margin-right:16px;font-weight:500}}
.row{{position:absolute;font-weight:600;font-size:14px;padding:10px 4px 0;box-sizing:border-box}}
.panel{{position:absolute;background:#fff;border:1px solid #dfe3e8;border-radius:3px;box-sizing:border-box;
padding:6px 8px;overflow:hidden;margin-left:4px}}
h2{{font-size:13px;font-weight:600;margin:0 0 4px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}
table{{border-collapse:collapse;width:100%;font-size:11.5px}} th{{text-align:left;color:#3274d9;font-weight:500}}
th,td{{padding:4px 7px;border-bottom:1px solid #eceff2;vertical-align:top}} td.n{{white-space:nowrap;text-align:right}}
.stat{{display:flex;height:70%;align-items:center;justify-content:center;gap:22px;font-size:24px;font-weight:500}}
.stat small{{display:block;font-size:11px;color:#6b7280;text-align:center;font-weight:400}}
.none{{color:#8b949e;text-align:center;padding-top:30px}} ol,ul{{margin:4px 0 4px 20px;padding:0}} li{{margin:3px 0}}
.text{{font-size:12.5px}} .legend{{font-size:11px;line-height:16px;padding-left:30px}}
.legend span{{white-space:nowrap;margin-right:12px;display:inline-block}}
.legend i{{display:inline-block;width:16px;margin-right:5px;vertical-align:middle}}
</style>
<header><h1>{title}<small>rendered from the panel queries by grafana/preview.py</small></h1>{variables}</header>
{cells}
"""


# ---------------------------------------------------------------------------------------------------- command


def ask_over_http(url: str, database: str, token: str, query: str) -> Sequence[Series]:
    """Series of InfluxDB's /query."""
    asked = urllib.parse.urlencode({"db": database, "q": query, "epoch": "ns"})
    headers = {"Authorization": f"Token {token}"} if token else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/query?{asked}", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    for result in found["results"]:
        if "error" in result:
            raise ValueError(f"{query}\n{result['error']}")
    return [series for result in found["results"] for series in result.get("series", [])]


def write(
    folder: Path,
    ask: Callable[[str], Sequence[Series]],
    *,
    from_ms: int,
    to_ms: int,
    chosen: Mapping[str, Value],
) -> list[Path]:
    """One HTML file per dashboard, with plotly.js inside."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(FOLDER.glob("*.json")):
        dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        look = look_at(dashboard, ask, from_ms=from_ms, to_ms=to_ms, chosen=chosen)
        page = folder / f"{path.stem.replace('infersiege-', 'grafana-')}.html"
        page.write_text(render(look), encoding="utf-8")
        written.append(page)
    return written


def photograph(page: Path, scale: float) -> Path:
    """The page as PNG, by headless chromium."""
    picture = page.with_suffix(".png")
    height = int(page.read_text(encoding="utf-8").split('data-height="', 1)[1].split('"', 1)[0])
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={WIDTH_PX},{height}", f"--force-device-scale-factor={scale}"]
    command += ["--virtual-time-budget=8000", f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the dashboards, from their own queries.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--influx-url", required=True)
    parser.add_argument("--bucket", default="infersiege")
    parser.add_argument("--from", dest="from_ms", type=int, required=True, help="ms since the epoch")
    parser.add_argument("--to", dest="to_ms", type=int, required=True, help="ms since the epoch")
    parser.add_argument(
        "--set", action="append", default=[], metavar="VARIABLE=VALUE", help="choose a variable's value"
    )
    parser.add_argument("--png", action="store_true", help="pictures too, by chromium")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    ask = functools.partial(ask_over_http, args.influx_url, args.bucket, os.environ.get("INFLUX_TOKEN", ""))
    chosen = dict(one.split("=", 1) for one in args.set)
    for page in write(args.folder, ask, from_ms=args.from_ms, to_ms=args.to_ms, chosen=chosen):
        sys.stdout.write(f"{photograph(page, args.scale) if args.png else page}\n")
