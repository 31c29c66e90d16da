"""Makes grafana/dashboards/*.json: `python grafana/build.py`. A test holds the committed files to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dashboard_capacity
import dashboard_compare
import dashboard_gpu
import dashboard_run
from panels import Json

FOLDER = Path(__file__).parent / "dashboards"


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


if __name__ == "__main__":
    main()
