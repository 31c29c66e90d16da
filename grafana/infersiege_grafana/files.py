"""The dashboards as files: what `python grafana/build.py` writes. A test holds the committed files to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from infersiege_grafana import dashboard_capacity, dashboard_compare, dashboard_gpu, dashboard_run
from infersiege_grafana.panels import Json

FOLDER = Path(__file__).parents[1] / "dashboards"


def dashboards() -> dict[str, Json]:
    """File name -> dashboard."""
    made = (dashboard_run.build(), dashboard_capacity.build(), dashboard_gpu.build(), dashboard_compare.build())
    return {f"{one['uid']}.json": one for one in made}


def text_of(dashboard: Json) -> str:
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")
        sys.stdout.write(f"{FOLDER.name}/{name}: {len(dashboard['panels'])} panels\n")
