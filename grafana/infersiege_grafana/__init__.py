"""Makes the Grafana dashboards, and draws them without Grafana. Run by the scripts beside this package."""
