"""Our own messages over Locust's custom messages: `ifs.<name>`, each a msgpack of one struct of records.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from infersiege import records
from infersiege.errors import ExitCode

log = logging.getLogger("infersiege.swarm")

T = TypeVar("T", bound=msgspec.Struct)

PREFIX = "ifs."
"""Keeps them apart from Locust's own: an unprefixed "ack" killed a worker's receiver."""

NAMES: dict[type[msgspec.Struct], str] = {
    records.Hello: f"{PREFIX}hello",
    records.Assignment: f"{PREFIX}assignment",
    records.Refusal: f"{PREFIX}refusal",
    records.FileWanted: f"{PREFIX}file_wanted",
    records.FilePart: f"{PREFIX}file_part",
    records.Ready: f"{PREFIX}ready",
    records.ClockPing: f"{PREFIX}clock",
    records.Go: f"{PREFIX}go",
    records.Lease: f"{PREFIX}lease",
    records.Epoch: f"{PREFIX}epoch",
    records.EpochAnswer: f"{PREFIX}epoch_answer",
    records.EpochTable: f"{PREFIX}epoch_table",
    records.UserSlots: f"{PREFIX}user_slots",
    records.SlotsHeld: f"{PREFIX}slots_held",
    records.Grant: f"{PREFIX}grant",
    records.Spending: f"{PREFIX}spending",
    records.Report: f"{PREFIX}report",
    records.Segment: f"{PREFIX}segment",
    records.Ack: f"{PREFIX}ack",
    records.Drain: f"{PREFIX}drain",
    records.Bye: f"{PREFIX}bye",
}

KNOWN = frozenset(NAMES.values())

COMPLAINTS = 5
"""Lines about malformed messages of one kind."""


def send(runner: Any, message: msgspec.Struct, to: str | None = None) -> None:
    """Send one message: to the master from a worker, to one worker or (None) to all from the master."""
    runner.send_message(NAMES[type(message)], msgspec.msgpack.encode(message), to)


def send_each(runner: Any, message: msgspec.Struct, nodes: Iterable[str]) -> None:
    """Send one message from the master to each of these, written once."""
    name, data = NAMES[type(message)], msgspec.msgpack.encode(message)
    for node in nodes:
        runner.send_message(name, data, node)


def on(runner: Any, kind: type[T], handler: Callable[[str, T], None]) -> None:
    """Call `handler(node_id, message)` for each message of this kind.

    A message that doesn't decode, or a handler that raises, is logged and dropped: it must not end the receiver.
    """
    decoder = msgspec.msgpack.Decoder(kind)
    malformed = 0

    def listener(environment: Any, msg: Any) -> None:
        nonlocal malformed
        try:
            message = decoder.decode(msg.data)
        except (msgspec.DecodeError, TypeError, RecursionError) as error:
            malformed += 1
            if malformed <= COMPLAINTS:
                log.warning("dropped a malformed %s from %.80s: %s", NAMES[kind], msg.node_id, error)
            return
        try:
            handler(msg.node_id, message)
        except Exception:
            log.exception("handling %s of %s", NAMES[kind], msg.node_id)

    runner.register_message(NAMES[kind], listener)


def exit_code_of(refusal: records.Refusal) -> ExitCode:
    """What a refusal says, also where it says nothing that there is."""
    return ExitCode(refusal.exit_code) if refusal.exit_code in set(ExitCode) else ExitCode.INVALID_RUN
