"""Which GPUs and MIG slices NVML has at present, and where."""

from __future__ import annotations

from typing import NamedTuple

import pynvml

from infersiege_agents.gpu_card import Identity, Place
from infersiege_agents.nvml import CallError, Fault, Handle, Nvml

UNKNOWN_TAG = "unknown"


class Inventory(NamedTuple):
    """What was found. A card that does not even tell its UUID is only in `cards` and `fault`."""

    found: list[tuple[Identity, Place]]
    """Cards in the order of their index, each before its slices."""
    listed: frozenset[str]
    """UUIDs of cards whose slices are all in `found`."""
    cards: int
    """Cards that the driver counts."""
    fault: Fault | None
    """The first card that could not be identified, or why nothing could be listed."""


def take_inventory(nvml: Nvml) -> Inventory:
    """List all cards and slices. Never raises: what can't be listed is in `fault`."""
    try:
        count = int(nvml.call("nvmlDeviceGetCount"))
    except CallError as failure:
        return Inventory([], frozenset(), 0, failure.fault)
    found: list[tuple[Identity, Place]] = []
    listed: set[str] = set()
    fault: Fault | None = None
    for index in range(count):
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            card = _identify(nvml, handle, index)
        except CallError as failure:
            fault = fault or failure.fault
            continue
        found.append((card, Place(handle, handle, None)))
        try:
            found += _slices(nvml, card, handle)
        except CallError:  # being lost at this moment: its slices stay as they were
            continue
        listed.add(card.uuid)
    return Inventory(found, frozenset(listed), count, fault)


def _identify(nvml: Nvml, handle: Handle, index: int) -> Identity:
    uuid = _text(nvml.call("nvmlDeviceGetUUID", handle))
    name = nvml.text("nvmlDeviceGetName", handle) or UNKNOWN_TAG
    try:
        pci = _text(nvml.call("nvmlDeviceGetPciInfo", handle).busId) or UNKNOWN_TAG
    except CallError:
        pci = UNKNOWN_TAG
    return Identity(uuid, pci, name, None, index)


def _slices(nvml: Nvml, card: Identity, handle: Handle) -> list[tuple[Identity, Place]]:
    """The MIG slices of a card; none where MIG is off or unknown. Raises CallError when they can't be listed."""
    try:
        enabled = nvml.call("nvmlDeviceGetMigMode", handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except CallError as failure:
        if failure.fault.code in _NO_MIG:
            return []
        raise
    if not enabled:
        return []
    slices = []
    for number in range(int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))):
        try:
            piece = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        except CallError as failure:
            if failure.fault.code == pynvml.NVML_ERROR_NOT_FOUND:
                continue  # the places are not filled in order
            raise
        uuid = _text(nvml.call("nvmlDeviceGetUUID", piece))
        name = nvml.text("nvmlDeviceGetName", piece) or card.name
        instance = int(nvml.call("nvmlDeviceGetGpuInstanceId", piece))
        slices.append((Identity(uuid, card.pci, name, card.uuid, number), Place(piece, handle, instance)))
    return slices


_NO_MIG = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
