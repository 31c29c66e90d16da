"""The durable writer: points go to InfluxDB, or wait on disk until it takes them."""

from infersiege_agents.influx.target import Target, target_of

__all__ = ["Target", "target_of"]
