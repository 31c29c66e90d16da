"""Makes grafana/dashboards/*.json: `python grafana/build.py`."""

from __future__ import annotations

from infersiege_grafana.files import main

if __name__ == "__main__":
    main()
