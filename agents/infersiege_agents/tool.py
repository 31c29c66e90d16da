"""Runs another vendor's tool again and again, and reads the table that it prints: rocm-smi's CSV, npu-smi's lists."""

from __future__ import annotations

import contextlib
import csv
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from infersiege_agents import environment
from infersiege_agents.columns import Header, Meaning, Reading, header_of, reading_of
from infersiege_agents.errors import AgentError
from infersiege_agents.gpu_codes import UNKNOWN
from infersiege_agents.points import Point, Sink

LARGEST_OUTPUT = 4 << 20
"""A tool that prints more is none that prints a table and ends."""

VENDOR_VARIABLES = (
    "ROCM_PATH", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""Passed on to tools beside environment.NAMES: where a vendor's libraries are, and which devices are meant."""

NOT_THERE = (126, 127)
"""A shell's codes for a command that can't be run."""


class Command(NamedTuple):
    """What to run."""

    text: str
    words: tuple[str, ...]
    """Empty: by the shell."""
    timeout_s: float
    environ: Mapping[str, str]


class ToolFault(Exception):  # noqa: N818 - what became of a tool, not an error of this program
    """A tool that could not be run, failed, or printed what is no table. `code` is its exit status or 999."""

    def __init__(self, message: str, code: int = UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


def command_of(
    text: str, *, shell: bool, timeout_s: float, environ: Mapping[str, str], keep: Sequence[str] = ()
) -> Command:
    """The command gets what any program needs of `environ`, and the variables in `keep`; no tokens and keys of ours.

    Raises AgentError for an empty command, for quotes that don't close, and for a variable that is not set.
    """
    missing = next((name for name in keep if name not in environ), None)
    if missing is not None:
        raise AgentError(f"--env {missing}: the variable is not set", hint="name a variable, not its value")
    environ = environment.bare(environ, (*VENDOR_VARIABLES, *keep))
    if shell:
        return Command(text, (), timeout_s, environ)
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise AgentError(f"--command {text!r}: {error}", hint="check its quotes") from None
    if not words:
        raise AgentError("--command: is empty", hint="such as --command 'rocm-smi --showuse --csv'")
    return Command(text, words, timeout_s, environ)


def output_of(command: Command) -> str:
    """Run it to its end and give its standard output. Raises ToolFault; the process and its children are then gone."""
    try:
        process = subprocess.Popen(
            command.words or command.text,
            shell=not command.words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command.environ,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolFault(f"there is no command {command.words[0]}", 127) from None
    except (OSError, ValueError) as error:
        raise ToolFault(f"{command.text}: can't be run: {getattr(error, 'strerror', None) or error}", 126) from None
    with process:
        try:
            out, err = _read(process, command)
            code = process.wait(max(0.1, command.timeout_s))
        except subprocess.TimeoutExpired:
            raise ToolFault(f"{command.text}: closes its output and does not end") from None
        finally:
            _end(process)
    if code != 0:
        said = " ".join((err or out).decode("utf-8", "replace").split())
        raise ToolFault(f"{command.text}: ended with {code}" + (f": {said[:200]}" if said else ""), abs(code))
    return out.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], command: Command) -> tuple[bytes, bytes]:
    """Both outputs until they are closed. Raises ToolFault after the timeout, or for too much."""
    assert process.stdout is not None and process.stderr is not None
    ends_s = time.monotonic() + command.timeout_s
    got = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in got:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise ToolFault(f"{command.text}: did not end within {command.timeout_s:g} s")
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                got[key.fd] += data
            if sum(map(len, got.values())) > LARGEST_OUTPUT:
                raise ToolFault(f"{command.text}: prints without end")
    out, err = got.values()
    return bytes(out), bytes(err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of it, with what it started: a shell's children keep the pipes open."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


# -------------------------------------------------------------------------------------------------------------- tables

Cells = list[tuple[Header, str]]


def devices_in(text: str, mapping: Mapping[str, Meaning]) -> list[Cells]:
    """The devices of an output: rows of CSV under a header, or blocks of `name : value`.

    Lines before the header (warnings) are passed over. Raises ToolFault when no column is known.
    """
    lines = [line.strip() for line in text.replace("\x00", "").splitlines()]
    found = _table(lines, mapping) or _blocks(lines, mapping)
    if not found:
        first = next((line for line in lines if line), "")
        seen = f"it begins with {first[:80]!r}" if first else "it is empty"
        raise ToolFault(f"its output has no device in a known column ({seen}): give --map COLUMN=TARGET")
    return found


def _table(lines: Sequence[str], mapping: Mapping[str, Meaning]) -> list[Cells]:
    found: list[Cells] = []
    headers: list[Header] = []
    for line in lines:
        try:
            cells = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            continue
        names = [header_of(cell) for cell in cells]
        if len(names) > 1 and sum(name.name in mapping for name in names) * 2 >= min(len(names), 4):
            headers = names
        elif headers and len(cells) == len(headers):
            found.append(list(zip(headers, (cell.strip() for cell in cells), strict=True)))
    return found


def _blocks(lines: Sequence[str], mapping: Mapping[str, Meaning]) -> list[Cells]:
    """`npu-smi info -t usages -i 0`: the card's lines, then those of each chip, which `Chip ID` ends or begins."""
    pairs = [
        (header_of(name), value.strip()) for name, colon, value in (line.partition(":") for line in lines) if colon
    ]
    if not any(header.name in mapping for header, _ in pairs):
        return []
    blocks: list[Cells] = [[]]
    for header, value in pairs:
        if any(header.name == other.name for other, _ in blocks[-1]):
            blocks.append([])
        blocks[-1].append((header, value))
    if len(blocks) > 1 and blocks[0][0][0].name == "npu id":  # said once, meant for all
        card = blocks[0][0]
        blocks = [block if any(h.name == "npu id" for h, _ in block) else [card, *block] for block in blocks]
    return blocks


# ------------------------------------------------------------------------------------------------------------- sampler


class ToolSampler:
    """One sample a call: a point for each device, and one for the host. Nothing that a tool does raises."""

    def __init__(
        self,
        commands: Sequence[Command],
        sink: Sink,
        *,
        host: str,
        mapping: Mapping[str, Meaning],
        expect: int | None,
        tell: Callable[[str], None],
        longest_interval_s: float = 60.0,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """A point after a pause longer than `longest_interval_s` stands for no time that is known."""
        self._commands = commands
        self._sink = sink
        self._host = host
        self._mapping = mapping
        self._expect = expect
        self._tell = tell
        self._longest_interval_s = longest_interval_s
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._known: dict[str, tuple[int, dict[str, str], float | str | None]] = {}
        """uuid -> (its command, tags, index)."""
        self._before_ns: int | None = None
        self._told: dict[int, str] = {}

    @property
    def devices(self) -> int:
        """Devices that were read at least once."""
        return len(self._known)

    def sample(self) -> list[ToolFault]:
        """Run all commands; what failed."""
        started_ns = self._monotonic_ns()
        interval_s = self._interval_s(started_ns)
        faults: dict[int, ToolFault] = {}
        seen: set[str] = set()
        for place, command in enumerate(self._commands):
            try:
                readings = self._readings(command)
            except ToolFault as fault:
                faults[place] = fault
            else:
                seen |= self._put(place, readings, interval_s)
            self._tell_of(place, faults.get(place))
        self._put_missing(seen, faults, interval_s)
        first = next(iter(faults.values()), None)
        expected = self._expect if self._expect is not None else len(self._known)
        host = {
            "ok": 0.0 if first else 1.0,
            "error": float(first.code) if first else 0.0,
            "error_text": str(first)[:300] if first else None,
            "gpus": float(len(seen)),
            "gpus_expected": float(expected),
            "sample_duration": (self._monotonic_ns() - started_ns) / 1e9,
        }
        self._sink.put(Point("gpu_host", {"host": self._host}, host, self._wall_ns()))
        self._sink.tick()
        return list(faults.values())

    def _interval_s(self, started_ns: int) -> float | None:
        """Since the sample before; by the monotonic clock, so that a step of the wall clock changes no figure."""
        before_ns, self._before_ns = self._before_ns, started_ns
        passed_s = (started_ns - before_ns) / 1e9 if before_ns is not None else 0.0
        return passed_s if 0 < passed_s <= self._longest_interval_s else None

    def _readings(self, command: Command) -> list[Reading]:
        started_ns = self._monotonic_ns()
        readings = [
            reading_of(cells, self._mapping, device=None) for cells in devices_in(output_of(command), self._mapping)
        ]
        for reading in readings:
            reading.fields["sample_duration"] = (self._monotonic_ns() - started_ns) / 1e9 / len(readings)
        if not any(reading.tags["uuid"] for reading in readings):
            raise ToolFault("its output tells no device apart: map a column to uuid, pci or index")
        return [reading for reading in readings if reading.tags["uuid"]]

    def _put(self, place: int, readings: list[Reading], interval_s: float | None) -> set[str]:
        at_ns = self._wall_ns()
        seen = set()
        for tags, fields, faults in readings:
            if faults and fields["error"] == 0.0:
                fields |= {"error": float(UNKNOWN), "error_text": "; ".join(faults)[:300]}
            self._known[tags["uuid"]] = (place, tags, fields.get("index"))
            self._sink.put(Point("gpu", {"host": self._host, **tags}, {**fields, "interval": interval_s}, at_ns))
            seen.add(tags["uuid"])
        return seen

    def _put_missing(self, seen: set[str], faults: Mapping[int, ToolFault], interval_s: float | None) -> None:
        """ok = 0 for devices that were there before: never the last value again."""
        at_ns = self._wall_ns()
        for uuid, (place, tags, index) in self._known.items():
            if uuid in seen:
                continue
            fault = faults.get(place) or ToolFault("not in the tool's output any more")
            fields: dict[str, float | str | None] = {
                "ok": 0.0,
                "error": float(fault.code),
                "error_text": str(fault)[:300],
                "index": index,
                "interval": interval_s,
            }
            self._sink.put(Point("gpu", {"host": self._host, **tags}, fields, at_ns))

    def _tell_of(self, place: int, fault: ToolFault | None) -> None:
        """Once when it begins, once when it is over."""
        text = "" if fault is None else str(fault)
        before = self._told.get(place, "")
        if bool(text) != bool(before):
            self._tell(f"warning: {text}" if text else f"{self._commands[place].text}: works again")
            self._told[place] = text
