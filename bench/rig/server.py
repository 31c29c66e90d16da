"""The C server and client of this folder: compile, run, read what the server wrote down.

Truth and our own times are both CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
_RECORD = np.dtype(
    [("id", "S64"), ("t_recv0", "u8"), ("t_recv", "u8"), ("t_first", "u8"), ("t_last", "u8"), ("t_done", "u8"),
     ("max_late", "u8"), ("tokoff", "u8"), ("ntok", "u4"), ("nev", "u4"), ("conn", "u4"), ("flags", "u4"),
     ("bodylen", "u4"), ("status", "u4")]
)  # fmt: skip
_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Times:
    """One request as the server saw it."""

    name: str
    received_ns: int
    """Its last byte was read."""
    written_ns: npt.NDArray[np.int64]
    """Just before the write of each content event; 0: not written (yet)."""

    @property
    def ttft_ns(self) -> int:
        """From the request's last byte to the first write."""
        return int(self.written_ns[0]) - self.received_ns


@dataclass(frozen=True, slots=True)
class Floor:
    """What the C client says of one run."""

    cpu_s: float
    streams: list[tuple[str, int, npt.NDArray[np.int64]]]
    """(name of the request, sent_ns, when each content event was read in ns)."""


def build(folder: Path) -> None:
    """Compile both programs into `folder`. Raises CalledProcessError, or FileNotFoundError without gcc."""
    for name in ("sseserver", "cclient"):
        command = ["gcc", "-O2", "-w", "-o", str(folder / name), str(HERE / f"{name}.c")]
        subprocess.run(command, check=True, capture_output=True)


class Rig:
    """A running server. `options` are those of sseserver.c; use with `with`. Raises OSError when it doesn't start.

    `core`: the CPU that it keeps to; None: whichever is free.
    """

    def __init__(self, folder: Path, core: int | None = None, **options: float) -> None:
        self._log = folder / "truth"
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [str(folder / "sseserver"), "--port", str(self.port), "--log", str(self._log)]
        options = {"maxrec": 1 << 16, "maxtok": 1 << 22} | options
        command += [part for key, value in options.items() for part in (f"--{key}", str(value))]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})
        deadline = time.monotonic() + 10
        while True:
            try:
                self.get("/health")
                return
            except OSError:
                if time.monotonic() > deadline:
                    self._process.kill()
                    raise
                time.sleep(0.02)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            body: bytes = response.read()
            return body

    def reset(self) -> None:
        """Forget all records."""
        self.get("/reset")

    def truth(self) -> list[Times]:
        """All requests since the start or the last reset."""
        with Path(f"{self._log}.rec").open("rb") as file:
            _, records, tokens = struct.unpack("<3Q", file.read(24))
        rows = np.fromfile(f"{self._log}.rec", dtype=_RECORD, count=records, offset=_HEADER_BYTES)
        stamps = np.fromfile(f"{self._log}.tok", dtype="i8", count=tokens)
        return [
            Times(bytes(row["id"]).decode(), int(row["t_recv"]), stamps[int(row["tokoff"]) :][: int(row["nev"])])
            for row in rows
        ]

    def c_client(self, streams: int, tokens: int, ramp_s: float) -> Floor:
        """Run the C client: each stream one request, started at random times within `ramp_s` seconds."""
        seen = self.folder / "seen"
        command = [str(self.folder / "cclient"), str(self.port), str(streams), "1", str(tokens), "", str(seen)]
        ended = subprocess.run([*command, str(ramp_s)], check=True, capture_output=True, text=True)
        used = json.loads(ended.stdout)
        row = np.dtype([("id", "S64"), ("sent", "i8"), ("count", "u8"), ("seen", "i8", (tokens,))])
        rows = np.fromfile(seen, dtype=row)
        return Floor(
            cpu_s=used["user"] + used["sys"],
            streams=[(bytes(row["id"]).decode(), int(row["sent"]), row["seen"]) for row in rows],
        )

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        for suffix in (".rec", ".tok"):
            Path(f"{self._log}{suffix}").unlink(missing_ok=True)
