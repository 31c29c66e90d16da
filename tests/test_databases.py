"""The databases that other tests rely on behave as those tests think."""

from __future__ import annotations

import databases
from influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS


def test_influxdb_takes_the_writes_of_influxdb_client(influx_server: databases.InfluxDB) -> None:
    with InfluxDBClient(influx_server.url, token="t", org="o", enable_gzip=True) as client:
        client.write_api(write_options=SYNCHRONOUS).write(
            "infersiege", record="probe,a=b value=1.0 1764500000000000001"
        )
    (series,) = influx_server.query('SELECT "value" FROM "probe"')
    assert series["values"] == [[1764500000000000001, 1.0]]


def test_influxdb_keeps_its_data_over_a_kill(influx: databases.InfluxDB) -> None:
    influx.write(b"probe value=1 1764500000000000000\n")
    influx.server.kill()
    influx.server.start()
    assert influx.count("probe") == 1


def test_victoria_metrics_takes_the_writes_of_influxdb_client(victoria: databases.VictoriaMetrics) -> None:
    with InfluxDBClient(victoria.url, token="t", org="o", enable_gzip=True) as client:
        write = client.write_api(write_options=SYNCHRONOUS).write
        write(
            "infersiege", record=["probe,a=b value=1.0 1764500000000000000", "probe,a=b value=2.0 1764500001000000000"]
        )
    assert victoria.count("probe_value") == 2
