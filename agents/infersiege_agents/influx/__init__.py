"""The durable writer: points go to InfluxDB, or wait on disk until it takes them."""

from infersiege_agents.influx.counters import Counters
from infersiege_agents.influx.spool import spool_directory
from infersiege_agents.influx.target import Target, target_of
from infersiege_agents.influx.writer import DurableWriter

__all__ = ["Counters", "DurableWriter", "Target", "spool_directory", "target_of"]
