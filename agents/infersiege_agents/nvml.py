"""NVML as pynvml loads it: return codes in place of exceptions, and words for them.

pynvml finds, loads and initialises the library, and knows the layout of its structures. Calls that are made several
times a second go straight to the library's functions with buffers that are kept: that is a third of the cost, and
"not supported" is an answer there, not an exception.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pynvml

from infersiege_agents.gpu_codes import UNKNOWN

OK: int = pynvml.NVML_SUCCESS
UNINITIALIZED: int = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT: int = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
NOT_FOUND: int = pynvml.NVML_ERROR_NOT_FOUND
TOO_MANY: int = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
TIMEOUT: int = pynvml.NVML_ERROR_TIMEOUT
FUNCTION_NOT_FOUND: int = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND

NEVER: frozenset[int] = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_DEPRECATED}
)
"""The card or the driver does not have it: asking again before the next initialisation is of no use."""

NEVER_OF_MANY = NEVER | {INVALID_ARGUMENT}
"""The same for one value of a call that gives several: which it is never changes, so an invalid one stays so. That is
what drivers say of a field that is newer than they are, and of NVLink on a card without."""

GONE: frozenset[int] = frozenset(
    {
        UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
"""Said by any call: the whole card (or the driver) can't be read now."""

INIT = "nvmlInit"
"""Name of the call that finds no driver; any other is answered by one."""

Function = Callable[..., int]
Handle = Any
"""A ctypes pointer of the library."""


class Fault(NamedTuple):
    """A call that failed."""

    code: int
    """NVML's return code."""
    call: str
    """The function, as NVML names it."""

    @property
    def text(self) -> str:
        """The code in words, with the call: `GPU is lost (nvmlDeviceGetMemoryInfo_v2)`."""
        return f"{words(self.code)} ({self.call})"


class Pending(NamedTuple):
    """A call that is under way."""

    call: str
    began_s: float
    """On the monotonic clock."""


class CallError(Exception):
    """A call that failed where a value was needed; only used between modules of the agent."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call}: {code}")
        self.fault = Fault(code, call)


def words(code: int) -> str:
    """NVML's return code in its own words."""
    return str(pynvml.NVMLError(code))


_CONTAINER = "in a container, give it the GPUs (docker: --gpus all; needs the NVIDIA Container Toolkit on the host)"
_HINTS: dict[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"install the NVIDIA driver; {_CONTAINER}",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: f"load the driver (modprobe nvidia) and look at `nvidia-smi`; {_CONTAINER}",
    pynvml.NVML_ERROR_NO_PERMISSION: "the agent's user must be allowed to open /dev/nvidiactl and /dev/nvidia0 …",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: f"something keeps the agent from the device files; {_CONTAINER}",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while it was loaded: reboot the host, or unload "
    "and load its modules; restart containers afterwards",
    UNKNOWN: "in a container: restart the agent's container (a `systemctl daemon-reload` on the host takes its GPUs "
    "away); else look at `nvidia-smi` and `dmesg`",
}
_HINT = "look at `nvidia-smi` and `dmesg` on this host"


def hint(code: int) -> str:
    """What an administrator can try when NVML can't be initialised."""
    return _HINTS.get(code, _HINT)


class Nvml:
    """The library. One instance per process, since NVML itself is one per process."""

    def __init__(self) -> None:
        self._up = False
        self.pending: Pending | None = None
        """The call that the driver has not answered yet. Another thread may look at it."""

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        self.pending = Pending(name, time.monotonic())
        try:
            yield
        finally:
            self.pending = None

    def start(self) -> Fault | None:
        """Load and initialise it; None when it answers. Can be called again after `stop`."""
        try:
            with self._waiting(INIT):
                pynvml.nvmlInitWithFlags(0)
        except pynvml.NVMLError as error:
            return Fault(error.value, INIT)
        self._up = True
        return None

    def stop(self) -> None:
        """Give it back. Never raises: after a restart of the driver it can't be given back any more."""
        if self._up:
            self._up = False
            try:
                with self._waiting("nvmlShutdown"):
                    pynvml.nvmlShutdown()
            except pynvml.NVMLError:  # that is the state which was wanted
                return

    def function(self, name: str) -> Function:
        """The library's function of this name; where an old driver lacks it, one that returns FUNCTION_NOT_FOUND."""
        try:
            function: Function = getattr(pynvml.nvmlLib, name)
        except AttributeError:
            return _lacking

        def waited_for(*arguments: object) -> int:
            self.pending = Pending(name, time.monotonic())
            try:
                return function(*arguments)
            finally:
                self.pending = None

        return waited_for

    def call(self, name: str, *arguments: object) -> Any:
        """pynvml's own wrapper `name`. Raises CallError."""
        try:
            with self._waiting(name):
                return getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            raise CallError(error.value, name) from None
        except UnicodeDecodeError:  # pynvml decodes names: a dying card gives rubbish
            raise CallError(UNKNOWN, name) from None

    def text(self, name: str, *arguments: object) -> str | None:
        """What the wrapper `name` returns, as text; None where it fails."""
        try:
            value = self.call(name, *arguments)
        except CallError:
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def address(handle: Handle) -> int:
    """A number that is the same for the same handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _lacking(*_arguments: object) -> int:
    return FUNCTION_NOT_FOUND
