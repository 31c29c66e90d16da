"""Xid events: what the driver logs when something goes wrong with a GPU. They are events, never a gauge."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from infersiege_agents.nvml import OK, TIMEOUT, CallError, Function, Handle, Nvml, address

_MOST_AT_ONCE = 256
"""A card in a storm of events must not keep the agent from reading the others."""


class XidEvents:
    """One event set over all cards, read without waiting.

    Real drivers take a few µs for a wait of 0 ms; the thread of the sampler is never held up.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._wait: Function | None = None
        self._data = pynvml.c_nvmlEventData_t()
        self._uuids: dict[int, str] = {}
        self._heard = False
        """The last `take` came to the end of what there was: no event means none."""

    def open(self) -> None:
        """Begin after an initialisation of NVML. Where there are no events, `watches` stays False."""
        self.close()
        try:
            self._set = self._nvml.call("nvmlEventSetCreate")
        except CallError:
            return
        self._wait = self._nvml.function("nvmlEventSetWait_v2")

    def watch(self, uuid: str, handle: Handle) -> None:
        """Take in a card."""
        if self._set is None or address(handle) in self._uuids:
            return
        try:
            self._nvml.call("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except CallError:  # not supported (vGPU, some consumer cards), or the card is just being lost
            return
        self._uuids[address(handle)] = uuid

    def watches(self, uuid: str) -> bool:
        """Whether the card tells of its events and could be heard, so that none means none."""
        return self._heard and uuid in self._uuids.values()

    def take(self) -> dict[str, list[int]]:
        """Xid codes since the last call by UUID of the card, in their order."""
        taken: dict[str, list[int]] = {}
        self._heard = False
        if self._set is None or self._wait is None:
            return taken
        for _ in range(_MOST_AT_ONCE):
            code = self._wait(self._set, ctypes.byref(self._data), 0)
            if code != OK:
                self._heard = code == TIMEOUT
                break
            uuid = self._uuids.get(address(self._data.device))
            if uuid is not None and self._data.eventType & pynvml.nvmlEventTypeXidCriticalError:
                taken.setdefault(uuid, []).append(int(self._data.eventData))
        return taken

    def close(self) -> None:
        """Give the set back; before NVML itself is given back."""
        if self._set is not None:
            self._nvml.function("nvmlEventSetFree")(self._set)
        self._set = self._wait = None
        self._uuids.clear()
