"""Makes docs/measurements.md: `python grafana/measurement_tables.py`."""

from __future__ import annotations

from infersiege_grafana.measurement_page import main

if __name__ == "__main__":
    main()
