"""Pictures of the dashboards without Grafana: `python grafana/preview.py --help`."""

from __future__ import annotations

from infersiege_grafana.preview import main

if __name__ == "__main__":
    main()
