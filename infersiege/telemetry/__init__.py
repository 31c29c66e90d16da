"""The run's own points for InfluxDB, agents on the master's host, and series fetched back into a run directory."""
