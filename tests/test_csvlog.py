"""`infersiege-agent csv`: nvidia-smi's logs and other vendors' tools become points with the right units and times."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import databases
import pytest
import scripted_server
from collected import Collected
from hypothesis import example, given
from hypothesis import strategies as st
from infersiege_agents.columns import COLUMNS, SHARE, SPREADS, TAGS, header_of, mapping_of, reading_of
from infersiege_agents.csvlog import Fault, Log, zone_of
from infersiege_agents.errors import AgentError
from infersiege_agents.measurements import GPU
from infersiege_agents.points import Point
from infersiege_agents.tool import Command, ToolFault, ToolSampler, command_of, devices_in, output_of

MIB = 1 << 20
HEADER = (
    "timestamp, index, uuid, pci.bus_id, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
    "power.draw [W], clocks_event_reasons.active, temperature.gpu\n"
)
FIRST = (
    "2026/11/30 14:00:00.123, 0, GPU-a, 00000000:01:00.0, NVIDIA H100 80GB HBM3, 45 %, 1024 MiB, 81559 MiB, 312.45 W, "
    "0x0000000000000004, 61\n"
)
AT_NS = int(datetime(2026, 11, 30, 14, tzinfo=UTC).timestamp()) * 10**9 + 123_000_000


def read(text: str, **options: Any) -> list[Point | Fault]:
    options.setdefault("mapping", COLUMNS)
    return list(Log(io.StringIO(text, newline="\n"), host="h", **options).points())


def points(text: str, **options: Any) -> list[Point]:
    found = read(text, **options)
    assert not [one for one in found if isinstance(one, Fault)], found
    return [one for one in found if isinstance(one, Point)]


def agent(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infersiege_agents.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TZ": "UTC", **environ},
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------------------------------------- nvidia-smi's logs


def test_a_row_becomes_a_point_in_the_units_of_the_measurement() -> None:
    (point,) = points(HEADER + FIRST)
    assert point.at_ns == AT_NS
    assert point.tags == {
        "host": "h", "uuid": "GPU-a", "pci": "00000000:01:00.0", "name": "NVIDIA H100 80GB HBM3", "mig_parent": "none"
    }  # fmt: skip
    assert point.fields == {
        "ok": 1.0, "error": 0.0, "samples": 1.0, "interval": None, "index": 0.0,
        "utilization_min": 0.45, "utilization_mean": 0.45, "utilization_max": 0.45,
        "memory_used_min_bytes": 1024 * MIB, "memory_used_mean_bytes": 1024 * MIB, "memory_used_max_bytes": 1024 * MIB,
        "memory_total_bytes": 81559 * MIB, "power_min_w": 312.45, "power_mean_w": 312.45, "power_max_w": 312.45,
        "temperature_c": 61.0, "clock_reasons": 4.0, "power_capped": 1.0, "thermal_throttled": 0.0,
        "hardware_slowdown": 0.0,
    }  # fmt: skip


def test_tags_and_fields_are_those_of_the_table() -> None:
    (point,) = points(HEADER + FIRST)
    assert set(point.tags) == set(GPU.tags)
    assert set(point.fields) <= set(GPU.fields)
    for meaning in COLUMNS.values():
        known = meaning.target in SPREADS or meaning.target in (*TAGS, "chip", SHARE) or meaning.target in GPU.fields
        assert known, meaning


VARIANTS = {
    "nounits": (HEADER, FIRST.replace(" %", "").replace(" MiB", "").replace(" W", "")),
    "nounits, units in the header gone too": (
        HEADER.replace(" [%]", "").replace(" [MiB]", "").replace(" [W]", ""),
        FIRST.replace(" %", "").replace(" MiB", "").replace(" W", ""),
    ),
    "crlf": (HEADER.replace("\n", "\r\n"), FIRST.replace("\n", "\r\n")),
    "no spaces after commas": (HEADER.replace(", ", ","), FIRST.replace(", ", ",")),
    "iso time": (HEADER, FIRST.replace("2026/11/30 14", "2026-11-30T14")),
    "iso time with an offset": (HEADER, FIRST.replace("2026/11/30 14:00:00.123", "2026-11-30T16:00:00.123+02:00")),
    "byte order mark": ("\ufeff" + HEADER, FIRST),
    "blank lines, zeros of a crash": (HEADER + "\n", "\x00\x00\n" + FIRST + "   \n"),
    "a repeated header": (HEADER, HEADER + FIRST),
}


@pytest.mark.parametrize(("header", "row"), VARIANTS.values(), ids=VARIANTS)
def test_variants_of_a_log_say_the_same(header: str, row: str) -> None:
    assert points(header + row) == points(HEADER + FIRST)


def test_a_log_without_a_header_needs_its_columns() -> None:
    with pytest.raises(AgentError, match="line 1: values without a header line") as caught:
        read(FIRST)
    assert caught.value.hint is not None and "--columns timestamp" in caught.value.hint
    columns = [cell.split(" [")[0].strip() for cell in HEADER.split(",")]
    assert points(FIRST, columns=columns) == points(HEADER + FIRST)


def test_a_header_that_changes_is_followed() -> None:
    """Two recordings in one file, with other columns."""
    second = "timestamp, uuid, memory.used [GiB]\n2026/11/30 14:00:01.123, GPU-a, 2 GiB\n"
    last = points(HEADER + FIRST + second)[-1]
    assert (last.fields["memory_used_mean_bytes"], last.fields["interval"]) == (2048 * MIB, 1.0)
    assert "power_mean_w" not in last.fields, "no value of the row before"


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "N/A", "[Insufficient Permissions]", "", "[Not Found]"])
def test_gp_01_what_is_not_measured_is_absent(word: str) -> None:
    """Never 0: a MIG slice has no utilisation of its own."""
    (point,) = points(HEADER + FIRST.replace("45 %", word))
    assert not [name for name in point.fields if name.startswith("utilization")]
    assert point.fields["ok"] == 1.0


@pytest.mark.parametrize(
    ("word", "code"),
    [("[GPU is lost]", 15.0), ("[Unknown Error]", 999.0), ("ERR!", 999.0), ("[GPU requires reset]", 16.0)],
)
def test_gp_03_a_lost_card_has_ok_0_and_no_value(word: str, code: float) -> None:
    stamp = "2026/11/30 14:00:01.123, 0, GPU-a, 00000000:01:00.0, NVIDIA H100 80GB HBM3"
    last = points(HEADER + FIRST + stamp + f", {word}" * 6 + "\n")[-1]
    assert last.fields["ok"] == 0.0
    assert last.fields["error"] == code
    assert str(last.fields["error_text"]).startswith("utilization.gpu: ")
    assert set(last.fields) == {"ok", "error", "error_text", "index", "interval", "samples"}


def test_gp_04_the_identity_is_the_uuid_then_the_bus_then_the_index() -> None:
    def uuid(columns: str, values: str, **options: Any) -> str:
        text = f"timestamp, {columns}utilization.gpu [%]\n2026/11/30 14:00:00.123, {values}5 %\n"
        return points(text, **options)[0].tags["uuid"]

    assert uuid("index, pci.bus_id, uuid, ", "3, 0:1:0.0, GPU-a, ") == "GPU-a"
    assert uuid("index, pci.bus_id, ", "3, 0:1:0.0, ") == "0:1:0.0"
    assert uuid("index, ", "3, ") == "gpu-3"
    assert uuid("", "", device="GPU-x") == "GPU-x"
    with pytest.raises(AgentError, match="no column tells GPUs apart"):
        uuid("", "")


FAULTS = [
    ("too few values", "2026/11/30 14:00:01.123, 0, GPU-a\n", "3 values for 11 columns"),
    ("too many", FIRST.replace("\n", ", 1\n"), "12 values for 11 columns"),
    ("an error of the tool", "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n", "1 values"),
    ("a time that is none", FIRST.replace("2026/11/30", "2026/13/45"), "2026/13/45"),
    ("no time at all", FIRST.replace("2026/11/30 14:00:00.123", "soon"), "'soon' is no time stamp"),
    ("an offset that is none", FIRST.replace("00.123", "00.123 +99:99"), "there is no such offset"),
    ("a number that is none", FIRST.replace("45 %", "4x5 %"), "utilization.gpu: unit 'x5 %'"),
    ("another unit", FIRST.replace("45 %", "45 MiB"), "utilization.gpu: unit 'MiB' is none of ratio"),
    ("an index that is none", FIRST.replace(" 0,", " first,"), "index: 'first' is no number of a device"),
]


@pytest.mark.parametrize(("row", "text"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_a_fault_of_a_row_has_its_line_and_the_others_are_read(row: str, text: str) -> None:
    found = read(HEADER + FIRST + row + FIRST.replace(":00.123", ":02.123"))
    (fault,) = [one for one in found if isinstance(one, Fault)]
    assert fault.line == 3
    assert text in fault.text
    assert not fault.torn
    whole = [one for one in found if isinstance(one, Point) and "power_mean_w" in one.fields]
    assert len(whole) >= 2


def test_a_last_line_that_is_torn_is_left_out_at_whatever_place() -> None:
    """Also where the cut leaves a number that looks whole: 31 of 312.45 W."""
    second = FIRST.replace(":00.123", ":01.123")
    for cut in range(1, len(second)):
        found = read(HEADER + FIRST + second[:cut])
        assert isinstance(found[0], Point)
        rest = found[1:]
        assert all(isinstance(one, Fault) and one.torn and one.line == 3 for one in rest), (cut, rest)


def test_what_makes_no_sense_at_all_is_refused() -> None:
    with pytest.raises(AgentError, match="no column timestamp"):
        read("x", columns=["index", "utilization.gpu"])
    found = read("hello\nworld\n")
    assert [one.line for one in found if isinstance(one, Fault)] == [1, 2]
    assert "comes before the header" in str(found[0])


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
@example(HEADER + '"\n')
@example("timestamp,index\n,\n")
@example("timestamp,index,timestamp\n1,2,3\n")
@example("timestamp,index\n9999/12/31 23:59:59.999999999 -23:59,1\n")
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        found = read(text)
    except AgentError:
        return
    for one in found:
        if isinstance(one, Point):
            assert all(isinstance(value, str) or value is None or math.isfinite(value) for value in one.fields.values())


@given(
    percent=st.integers(0, 100),
    mib=st.integers(0, 10**6),
    watts=st.floats(0, 1500, allow_nan=False).map(lambda value: round(value, 2)),
    after_ms=st.integers(0, 10**9),
    gap=st.sampled_from([", ", ",", ",  "]),
    units=st.booleans(),
)
def test_values_come_out_as_they_went_in(
    percent: int, mib: int, watts: float, after_ms: int, gap: str, units: bool
) -> None:
    at_ms = 1_700_000_000_000 + after_ms
    stamp = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y/%m/%d %H:%M:%S") + f".{at_ms % 1000:03d}"
    values = [f"{percent}", f"{mib}", f"{watts:.2f}"]
    if units:
        values = [f"{value} {unit}" for value, unit in zip(values, ("%", "MiB", "W"), strict=True)]
    header = ["timestamp", "uuid", "utilization.gpu [%]", "memory.used [MiB]", "power.draw [W]"]
    (point,) = points(gap.join(header) + "\n" + gap.join([stamp, "GPU-a", *values]) + "\n")
    assert point.at_ns == at_ms * 10**6
    assert point.fields["utilization_mean"] == pytest.approx(percent / 100)
    assert point.fields["memory_used_mean_bytes"] == mib * MIB
    assert point.fields["power_mean_w"] == pytest.approx(watts)


@given(st.text(max_size=40))
def test_no_value_breaks_a_column(text: str) -> None:
    for name in ("index", "utilization.gpu", "memory.used", "clocks_event_reasons.active", "uuid", "chip id"):
        reading = reading_of([(header_of(name), text)], COLUMNS, device="d")
        assert set(reading.fields) >= {"ok", "error"}


# ----------------------------------------------------------------------------------------------------------- time zones


def test_ig_17_stamps_are_local_times_of_a_zone() -> None:
    berlin = points(HEADER + FIRST, zone=zone_of("Europe/Berlin"))[0].at_ns
    assert berlin == AT_NS - 3600 * 10**9
    assert points(HEADER + FIRST, zone=zone_of("-02:30"))[0].at_ns == AT_NS + 9000 * 10**9
    with pytest.raises(AgentError, match="there is no such time zone") as caught:
        zone_of("Mars/Olympus")
    assert caught.value.hint


def test_the_hour_that_comes_twice_goes_on() -> None:
    """Berlin, 2026-10-25: 02:59:59 is followed by 02:00:00. Two GPUs, so that stamps also go back by a few ms."""
    rows = []
    start = int(datetime(2026, 10, 25, 0, 59, 50, tzinfo=UTC).timestamp())
    zone = zone_of("Europe/Berlin")
    for second in range(start, start + 20):
        for index, below in ((0, 900), (1, 895)):
            local = datetime.fromtimestamp(second, zone).strftime("%Y/%m/%d %H:%M:%S")
            rows.append(f"{local}.{below}, {index}, 5 %\n")
    found = points("timestamp, index, utilization.gpu [%]\n" + "".join(rows), zone=zone)
    assert [point.at_ns // 10**9 for point in found if point.tags["uuid"] == "gpu-0"] == list(range(start, start + 20))
    assert {point.fields["interval"] for point in found[2:]} == {1.0}


def test_a_point_after_a_pause_stands_for_no_time() -> None:
    """The recording was stopped: nobody knows what was in between."""
    found = points(HEADER + FIRST + FIRST.replace("14:00:00", "15:00:00"))
    assert [point.fields["interval"] for point in found] == [None, None]


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_command_imports_a_log_into_influxdb_and_a_file(tmp_path: Path, influx_server: databases.InfluxDB) -> None:
    (tmp_path / "smi.csv").write_text(HEADER + FIRST + FIRST.replace(":00.123", ":01.123") + FIRST[:50])
    ended = agent(
        "csv", "smi.csv", "--host", "gpu-3", "--tz", "UTC", "--out", "gpu.jsonl", "--spool", "spool",
        "--influx-url", influx_server.url, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "smi.csv: 2 points\n"
    assert "note: smi.csv:4: the last line is torn (50 characters); left out" in ended.stderr
    assert "gpu.jsonl: 2 points written" in ended.stderr
    rows = influx_server.query('SELECT "utilization_mean" FROM "gpu" WHERE "host" = \'gpu-3\'')[0]["values"]
    assert rows == [[AT_NS, 0.45], [AT_NS + 10**9, 0.45]]
    assert [row["at_ns"] for row in rows_of(tmp_path / "gpu.jsonl")] == [AT_NS, AT_NS + 10**9]


def test_the_command_tells_each_fault_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "smi.csv").write_text(HEADER + "nonsense\n" * 25 + FIRST)
    ended = agent("csv", "smi.csv", "--out", "o.jsonl", cwd=tmp_path)
    assert ended.returncode == 2
    assert "warning: smi.csv:2: 1 values for 11 columns: 'nonsense'" in ended.stderr
    assert "warning: smi.csv: 5 more such lines" in ended.stderr
    assert ended.stdout == "smi.csv: 1 points, 25 lines with faults\n"


def test_a_log_of_powershell_is_utf_16(tmp_path: Path) -> None:
    (tmp_path / "smi.csv").write_text(HEADER + FIRST, encoding="utf-16")
    ended = agent("csv", "smi.csv", "--out", "o.jsonl", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert rows_of(tmp_path / "o.jsonl")[0]["at_ns"] == AT_NS


def test_a_log_comes_through_a_pipe_while_it_is_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "infersiege_agents.cli", "csv", "-", "--tz", "UTC", "--out", "o.jsonl"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(HEADER + FIRST)
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while not (tmp_path / "o.jsonl").exists() or not (tmp_path / "o.jsonl").read_bytes():
        assert time.monotonic() < deadline, "the point must not wait for the end of the log"
        time.sleep(0.05)
    out, err = process.communicate(FIRST.replace(":00.123", ":01.123"), timeout=20)
    assert process.returncode == 0, err
    assert out == "standard input: 2 points\n"


USAGE = [
    ("neither", ["--out", "o"], "name either a FILE or --command"),
    ("both", ["smi.csv", "--command", "x", "--out", "o"], "name either a FILE or --command"),
    ("nowhere", ["smi.csv"], "where should the points go?"),
    ("no file", ["missing.csv", "--out", "o"], "missing.csv: can't be read: No such file or directory"),
    ("a folder", [".", "--out", "o"], ".: can't be read: Is a directory"),
    ("an empty log", ["empty.csv", "--out", "o"], "empty.csv: holds no sample of a GPU"),
    ("a map without =", ["smi.csv", "--out", "o", "--map", "x"], "--map 'x': not COLUMN=TARGET"),
    ("a map to nothing", ["smi.csv", "--out", "o", "--map", "x=y"], "--map 'x=y': there is no target 'y'"),
    ("open quotes", ["--command", "'", "--out", "o"], '--command "\'": No closing quotation'),
    ("no command", ["--command", " ", "--out", "o"], "--command: is empty"),
    ("no interval", ["--command", "x", "--interval", "0", "--out", "o"], "'0' is no number of seconds from 0.05"),
]


@pytest.mark.parametrize(("words", "text"), [case[1:] for case in USAGE], ids=[case[0] for case in USAGE])
def test_a_usage_error_is_one_line_and_a_hint(tmp_path: Path, words: list[str], text: str) -> None:
    (tmp_path / "smi.csv").write_text(HEADER + FIRST)
    (tmp_path / "empty.csv").write_text("")
    ended = agent("csv", *words, cwd=tmp_path, INFERSIEGE_INFLUX_URL="")
    assert ended.returncode == 2, ended.stderr
    assert f"error: {text}" in ended.stderr.replace("argument --interval: ", "")
    assert "\nhint: " in ended.stderr
    assert "Traceback" not in ended.stderr


# ---------------------------------------------------------------------------------------------------------------- tools

ROCM = """\

WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

device,GPU use (%),GFX Activity,VRAM Total Memory (B),VRAM Total Used Memory (B),\
Average Graphics Package Power (W),Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),sclk clock speed:
card0,73,203885505,68702699520,10977280,415.0,N/A,52.0,(1700Mhz)
card1,0,203885505,68702699520,1048576,140.0,35.0,40.0,(131Mhz)

"""
NPU = """\
\tNPU ID                         : 3
\tChip Count                     : 2

\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 5
\tAicore Usage Rate(%)           : 12
\tChip ID                        : 0

\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 50
\tAicore Usage Rate(%)           : NA
\tChip ID                        : 1
"""
NPU_COMMON = """\
NPU ID                         : 0
Memory Usage Rate(%)           : 0
HBM Usage Rate(%)              : 3
Aicore Usage Rate(%)           : 7
Aicore curFreq(MHZ)            : 100
Temperature(C)                 : 65
NPU Real-time Power(W)         : 298.6
"""


def readings(text: str, *maps: str) -> dict[str, dict[str, Any]]:
    mapping = mapping_of(maps)
    found = [reading_of(cells, mapping, device=None) for cells in devices_in(text, mapping)]
    assert not [fault for one in found for fault in one.faults], found
    return {one.tags["uuid"]: one.fields for one in found}


def test_rocm_smi_s_csv_below_its_warnings() -> None:
    found = readings(ROCM)
    assert list(found) == ["gpu-0", "gpu-1"]
    first, second = found.values()
    assert (first["utilization_mean"], first["memory_used_mean_bytes"], first["power_mean_w"]) == (0.73, 10977280, 415)
    assert (first["temperature_c"], second["temperature_c"]) == (52.0, 35.0), "edge, else junction"
    assert (first["clock_sm_mhz"], second["clock_sm_mhz"]) == (1700, 131)


def test_npu_smi_s_chips_of_one_card() -> None:
    found = readings(NPU)
    assert list(found) == ["gpu-3-0", "gpu-3-1"]
    first, second = found.values()
    assert first["memory_total_bytes"] == 65536 * MIB, "its MB are MiB"
    assert first["memory_used_mean_bytes"] == pytest.approx(0.05 * 65536 * MIB)
    assert first["utilization_mean"] == pytest.approx(0.12)
    assert "utilization_mean" not in second, "NA is absent"
    common = readings(NPU_COMMON)["gpu-0"]
    assert (common["power_mean_w"], common["temperature_c"], common["clock_sm_mhz"]) == (298.6, 65, 100)
    assert "memory_used_mean_bytes" not in common, "a share of a total that is not told"


def test_columns_of_any_tool_can_be_mapped() -> None:
    text = "Id;x,Load (%),HBM Usage(%),HBM (GiB)\na-1,20,25,64\n"
    found = readings(
        text, "Id;x=uuid", "Load(%)=utilization", "HBM Usage(%)=memory_used_share", "HBM=memory_total_bytes"
    )
    assert found["a-1"]["utilization_mean"] == pytest.approx(0.2)
    assert found["a-1"]["memory_used_mean_bytes"] == 16 << 30


@pytest.mark.parametrize(
    ("text", "seen"),
    [("", "it is empty"), ("no device found\n", "'no device found'"), ("a,b\n1,2\n", "'a,b'"), ("a : 1\n", "'a : 1'")],
)
def test_an_output_without_a_known_column_is_a_fault(text: str, seen: str) -> None:
    with pytest.raises(ToolFault, match="no device in a known column") as caught:
        devices_in(text, COLUMNS)
    assert seen in str(caught.value)


@given(st.text(max_size=300))
@example(ROCM[:150])
@example("npu id : 1\nnpu id : 2\n:\n")
def test_no_output_breaks_the_reader_of_tools(text: str) -> None:
    try:
        for cells in devices_in(text, COLUMNS):
            reading_of(cells, COLUMNS, device=None)
    except ToolFault:
        pass


def command(text: str, *, shell: bool = False, timeout_s: float = 10.0) -> Command:
    return command_of(text, shell=shell, timeout_s=timeout_s, environ=os.environ)


def test_a_command_s_faults_say_what_happened() -> None:
    cases = (
        ("sh -c 'echo broken >&2; exit 3'", False, 3, "ended with 3: broken"),
        ("no-such-tool --csv", False, 127, "there is no command no-such-tool"),
        ("no-such-tool --csv | cat; exit 5", True, 5, "ended with 5"),
        ("sleep 30 | cat", True, 999, "did not end within 0.2 s"),
        ("yes", False, 999, "prints without end"),
    )
    started = time.monotonic()
    for text, shell, code, seen in cases:
        with pytest.raises(ToolFault) as caught:
            output_of(command(text, shell=shell, timeout_s=0.2))
        assert seen in str(caught.value)
        assert caught.value.code == code
    assert time.monotonic() - started < 20


def test_a_command_is_no_shell_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert output_of(command(f"echo $HOME; touch {tmp_path}/made")) == f"$HOME; touch {tmp_path}/made\n"
    assert not (tmp_path / "made").exists()


def test_a_tool_gets_no_secret_of_ours_and_what_is_asked_for() -> None:
    secrets = {"INFLUX_TOKEN": "t0p-secret", "TAOTOKEN_API_KEY": "t0p-secret", "MINE": "mine"}
    environ = {**os.environ, "LC_ALL": "C", "ROCM_PATH": "/opt/rocm", **secrets}
    seen = output_of(command_of("env", shell=False, timeout_s=10, environ=environ))
    assert "t0p-secret" not in seen and "MINE" not in seen
    assert "LC_ALL=C\n" in seen and "PATH=" in seen and "ROCM_PATH=/opt/rocm\n" in seen
    asked = command_of("env", shell=True, timeout_s=10, environ=environ, keep=("MINE",))
    assert "MINE=mine\n" in output_of(asked) and "t0p-secret" not in output_of(asked)
    with pytest.raises(AgentError, match="--env NOT_THERE: the variable is not set"):
        command_of("env", shell=False, timeout_s=10, environ=environ, keep=("NOT_THERE",))


def test_children_of_a_command_that_hangs_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "child"
    with pytest.raises(ToolFault):
        output_of(command(f"sleep 60 & echo $! > {note}; wait", shell=True, timeout_s=0.3))
    child = int(note.read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child was left running")


def taken(sink: Collected) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """uuid -> fields, and the host's fields, of what came since the last call."""
    gpus = {one.tags["uuid"]: dict(one.fields) for one in sink.points if one.measurement == "gpu"}
    (host,) = [dict(one.fields) for one in sink.points if one.measurement == "gpu_host"]
    sink.points.clear()
    return gpus, host


def test_gp_03_a_tool_that_fails_gives_ok_0_and_no_old_value(tmp_path: Path) -> None:
    """And GP-11: a device that is missing from the output is seen to be missing."""
    table, sink, told = tmp_path / "table", Collected(), list[str]()
    sampler = ToolSampler(
        [command(f"cat {table}")], sink,
        host="h", mapping=COLUMNS, expect=None, tell=told.append,
    )  # fmt: skip
    table.write_text(ROCM)
    assert sampler.sample() == []
    gpus, host = taken(sink)
    assert {uuid: fields["ok"] for uuid, fields in gpus.items()} == {"gpu-0": 1.0, "gpu-1": 1.0}
    assert (host["ok"], host["gpus"], host["gpus_expected"], host["error_text"]) == (1.0, 2.0, 2.0, None)

    table.unlink()
    assert len(sampler.sample()) == 1
    gpus, host = taken(sink)
    assert {uuid: fields["ok"] for uuid, fields in gpus.items()} == {"gpu-0": 0.0, "gpu-1": 0.0}
    assert set(gpus["gpu-0"]) == {"ok", "error", "error_text", "index", "interval"}, "no value but the fault"
    assert "No such file" in gpus["gpu-0"]["error_text"]
    assert (host["ok"], host["gpus"], host["gpus_expected"]) == (0.0, 0.0, 2.0)
    sampler.sample()
    taken(sink)

    table.write_text("\n".join(line for line in ROCM.splitlines() if not line.startswith("card1")))
    sampler.sample()
    gpus, host = taken(sink)
    assert (gpus["gpu-0"]["ok"], gpus["gpu-1"]["ok"]) == (1.0, 0.0)
    assert gpus["gpu-1"]["error_text"] == "not in the tool's output any more"
    assert (host["ok"], host["gpus"], host["gpus_expected"]) == (1.0, 1.0, 2.0)
    assert [line.split(":")[0] for line in told] == ["warning", f"cat {table}"], "the fault and its end, once each"
    assert sink.ticks == 4


def test_gp_14_a_step_of_the_wall_clock_changes_no_interval_and_a_long_pause_gives_none(tmp_path: Path) -> None:
    (tmp_path / "table").write_text(ROCM)
    sink, now = Collected(), {"wall": 10**18, "monotonic": 5 * 10**9}
    sampler = ToolSampler(
        [command(f"cat {tmp_path}/table")], sink,
        host="h", mapping=COLUMNS, expect=None, tell=lambda line: None,
        wall_ns=lambda: now["wall"], monotonic_ns=lambda: now["monotonic"],
    )  # fmt: skip
    intervals = []
    for wall_s, monotonic_s in ((0, 0), (1, 1), (1 - 3600, 1), (1 + 7200, 1), (600, 600), (1, 1)):
        now["wall"] += wall_s * 10**9
        now["monotonic"] += monotonic_s * 10**9
        sampler.sample()
        assert {point.at_ns for point in sink.points} == {now["wall"]}
        gpus, host = taken(sink)
        intervals.append(gpus["gpu-0"]["interval"])
        assert host["sample_duration"] == 0.0
    assert intervals == [None, 1.0, 1.0, 1.0, None, 1.0], "what was going on in ten minutes, nobody knows"


REFUSING = scripted_server.answering(scripted_server.whole(b'{"message": "unable to parse"}', "400 Bad Request"))


def test_points_that_the_database_refuses_are_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "rocm").write_text(ROCM)
    with scripted_server.Server(REFUSING) as server:
        ended = agent(
            "csv", "--command", "cat rocm", "--interval", "0.2", "--seconds", "0.3", "--influx-url", server.url,
            "--spool", "spool", cwd=tmp_path,
        )  # fmt: skip
    assert ended.returncode == 4, ended.stderr
    assert "rejected" in ended.stderr and "unable to parse" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_that_is_interrupted_does_not_wait_for_the_database(tmp_path: Path, number: signal.Signals) -> None:
    """The database takes connections and says nothing; more points than may be on their way at a time."""
    rows = (FIRST.replace("14:00:00", f"{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}") for n in range(60_000))
    (tmp_path / "smi.csv").write_text(HEADER + "".join(rows))
    with scripted_server.Server(lambda peer: peer.wait_for_end()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "infersiege_agents.cli", "csv", "smi.csv", "--influx-url", server.url, "--spool",
             "spool", "--close-within", "0.5", "--tz", "UTC"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while server.connections == 0:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(0.3)  # it waits for room by then, or still reads
            began = time.monotonic()
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            took_s = time.monotonic() - began
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert took_s < 10
    assert "still spooled" in err and err.endswith("interrupted\n")


def test_the_command_watches_tools_until_its_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "rocm").write_text(ROCM)
    (tmp_path / "npu").write_text(NPU)
    ended = agent(
        "csv", "--command", "cat rocm", "--command", "cat npu", "--interval", "0.2", "--seconds", "0.7", "--host", "h",
        "--expect", "5", "--out", "o.jsonl", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    rows = rows_of(tmp_path / "o.jsonl")
    hosts = [row for row in rows if row["measurement"] == "gpu_host"]
    assert 1 <= len(hosts) <= 4
    assert {row["tags"]["uuid"] for row in rows if row["measurement"] == "gpu"} == {
        "gpu-0", "gpu-1", "gpu-3-0", "gpu-3-1"
    }  # fmt: skip
    assert {(row["fields"]["gpus"], row["fields"]["gpus_expected"]) for row in hosts} == {(4.0, 5.0)}


def test_a_tool_that_is_not_there_ends_the_command_with_4(tmp_path: Path) -> None:
    ended = agent("csv", "--command", "no-such-tool", "--out", "o.jsonl", cwd=tmp_path)
    assert ended.returncode == 4
    assert "error: there is no command no-such-tool\nhint: " in ended.stderr


def test_a_tool_that_never_gave_a_device_is_no_success(tmp_path: Path) -> None:
    ended = agent(
        "csv", "--command", "false", "--seconds", "0.3", "--interval", "0.2", "--out", "o.jsonl", cwd=tmp_path
    )
    assert ended.returncode == 4
    assert {row["fields"]["ok"] for row in rows_of(tmp_path / "o.jsonl")} == {0.0}


# --------------------------------------------------------------------------------------------------- what can't be true


IMPOSSIBLE = [
    ("45 %", "4500 %", "utilization.gpu", {"utilization_min", "utilization_mean", "utilization_max"}),
    ("45 %", "-1 %", "utilization.gpu", {"utilization_mean"}),
    ("1024 MiB", "-5 MiB", "memory.used", {"memory_used_mean_bytes"}),
    ("1024 MiB", "1e30 MiB", "memory.used", {"memory_used_max_bytes"}),
    ("312.45 W", "-3 W", "power.draw", {"power_mean_w"}),
    ("312.45 W", "1e999 W", "power.draw", {"power_mean_w"}),
]


@pytest.mark.parametrize(("good", "bad", "column", "absent"), IMPOSSIBLE, ids=[row[1] for row in IMPOSSIBLE])
def test_a_value_that_can_not_be_is_missing_with_a_warning(good: str, bad: str, column: str, absent: set[str]) -> None:
    fault, point = read(HEADER + FIRST.replace(good, bad))
    assert isinstance(fault, Fault) and fault.text == f"{column}: {bad!r} can't be: the value is left out"
    assert isinstance(point, Point) and point.fields["ok"] == 1.0 and point.fields["temperature_c"] == 61.0
    assert not absent & set(point.fields)


@pytest.mark.parametrize("name", ["smi.csv", "link.csv", "-"])
def test_points_are_not_appended_to_the_log_that_is_read(tmp_path: Path, name: str) -> None:
    log = tmp_path / "smi.csv"
    log.write_text(HEADER + FIRST)
    (tmp_path / "link.csv").hardlink_to(log)
    with log.open() as stdin:
        ended = subprocess.run(
            [sys.executable, "-m", "infersiege_agents.cli", "csv", name, "--out", "smi.csv"],
            cwd=tmp_path, stdin=stdin, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (2, "error: --out smi.csv: is the log that is read")
    assert log.read_text() == HEADER + FIRST
