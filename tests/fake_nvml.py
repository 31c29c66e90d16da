"""The stand-in NVML library (fakenvml.c): compiled once, loaded by unmodified pynvml, steered by a file.

In this process it is loaded by its path first; pynvml's own load then finds it by its name, as the loader does. For a
command of its own, `environ` has the two variables that make pynvml there find it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infersiege_agents.gpu_sampler import GpuSampler, Settings
from infersiege_agents.nvml import Nvml
from infersiege_agents.points import Point

SOURCE = Path(__file__).with_name("fakenvml.c")
CONTROL = "FAKE_NVML_CONF"
BEGAN_S = 1_800_000_000.0
"""Virtual time begins here (a whole second of the Unix epoch)."""


def compiler_missing() -> str | None:
    return None if shutil.which("gcc") else "needs gcc, to build the stand-in NVML library"


def compile_library(folder: Path) -> Path:
    """Build it into `folder`, unless it is there; the folder is what LD_LIBRARY_PATH must name.

    One folder per test process: a second copy could be loaded, and pynvml would still use the first.
    """
    library = folder / "libnvidia-ml.so.1"
    if library.is_file():
        return library
    folder.mkdir()
    command = ["gcc", "-shared", "-fPIC", "-O2", "-w", f"-Wl,-soname,{library.name}", "-o", library, SOURCE]
    subprocess.run([*command, "-lm", "-lpthread"], check=True, timeout=60)
    return library


class Control:
    """The control file. Lines are KEY=VALUE (see fakenvml.c)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.values: dict[str, object] = {}
        self._writes = 0
        self.set()

    def set(self, **values: object) -> None:
        """Add lines; `__` in a name stands for a dot, `_` in front for nothing; None takes a line away."""
        self.update({name.removeprefix("_").replace("__", "."): value for name, value in values.items()})

    def update(self, values: dict[str, object]) -> None:
        self.values |= values
        self.values = {name: value for name, value in self.values.items() if value is not None}
        self._writes += 1
        lines = [f"#{'.' * (self._writes % 150)}"]  # another size: the library looks at size and time
        lines += [f"{name}={value}" for name, value in self.values.items()]
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="ascii")
        new.replace(self.file)

    def environ(self, library: Path) -> dict[str, str]:
        """The environment of a command that shall find the stand-in and this file.

        LD_LIBRARY_PATH alone does, for a file of the usual name: a process that gets no variable of tests works too.
        """
        places = f"{self.file.parent}:{library.parent}"
        return {**os.environ, "LD_LIBRARY_PATH": places, CONTROL: str(self.file)}


class VirtualClock:
    """The library's time is the clock: a slow call takes its time here too."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.fakeTime.restype = ctypes.c_double
        library.fakeSetTime.argtypes = [ctypes.c_double]
        library.fakeSetTime(BEGAN_S)
        self.wall_offset_s = 0.0
        """What the wall clock was stepped by."""

    def monotonic_ns(self) -> int:
        return round((self._library.fakeTime() - BEGAN_S) * 1e6) * 1000

    def time_ns(self) -> int:
        return round((self._library.fakeTime() + self.wall_offset_s) * 1e6) * 1000

    def go_to(self, at_s: float) -> None:
        """At least to `at_s` since the beginning."""
        if self.monotonic_ns() < at_s * 1e9:
            self._library.fakeSetTime(BEGAN_S + at_s)


class Rig:
    """A sampler on the stand-in library in virtual time."""

    def __init__(self, library: ctypes.CDLL, control: Control) -> None:
        self.library = library
        self.control = control
        self.clock = VirtualClock(library)
        self.told: list[str] = []
        self.nvml = Nvml()
        self.samplers: list[GpuSampler] = []
        self._step_s = 0.0
        self._steps = 0

    def start(self, **settings: Any) -> GpuSampler:
        wanted = Settings(**{"host": "gpu-1", **settings})
        sampler = GpuSampler(self.nvml, self.clock, wanted, tell=self.told.append)
        self.samplers.append(sampler)
        self._step_s = wanted.fast_s
        self._began_s = self.clock.monotonic_ns() / 1e9
        self._steps = 0
        self.fault = sampler.start()
        return sampler

    def run(self, seconds: float, each: Callable[[list[Point]], None] | None = None) -> list[Point]:
        """Step until `seconds` more have passed, on times of one row, as the real loop does."""
        points: list[Point] = []
        ends = self._began_s + self._steps * self._step_s + seconds
        while self._began_s + (self._steps + 1) * self._step_s <= ends + 1e-6:
            self._steps += 1
            due = self._began_s + self._steps * self._step_s
            if self.clock.monotonic_ns() / 1e9 > due + self._step_s / 2:
                continue  # a time that passed while a step was busy
            self.clock.go_to(due)
            made = self.samplers[-1].step()
            points += made
            if each is not None:
                each(made)
        return points

    def close(self) -> None:
        for sampler in self.samplers:
            sampler.close()


@contextmanager
def rig(path: Path, folder: Path) -> Iterator[Rig]:
    """A rig with the library at `path`, which is as if just loaded; FAKE_NVML_CONF must name `folder`/nvml.conf."""
    library = ctypes.CDLL(str(path))
    library.fakeReset()
    one = Rig(library, Control(folder / "nvml.conf"))
    try:
        yield one
    finally:
        one.close()
        library.fakeReset()


def cards(points: list[Point], index: int | None = None) -> list[Point]:
    """Points of whole GPUs; with `index`, of the stand-in's card of that number."""
    found = [point for point in points if point.measurement == "gpu" and point.tags["mig_parent"] == "none"]
    return found if index is None else [point for point in found if point.tags["uuid"] == uuid(index)]


def slices(points: list[Point]) -> list[Point]:
    return [point for point in points if point.measurement == "gpu" and point.tags["mig_parent"] != "none"]


def hosts(points: list[Point]) -> list[Point]:
    return [point for point in points if point.measurement == "gpu_host"]


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def number(point: Point, name: str) -> float:
    """A field that must be there."""
    value = point.fields[name]
    assert isinstance(value, int | float), (name, value)
    return float(value)
