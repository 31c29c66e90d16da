"""What a server tells of how it was started: which page, which keys, and how they are read. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from infersiege.channels.redaction import one_line, scrub

LAUNCH = "launch."
"""What the names of these facts begin with in `ChannelFacts.details`."""
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsPage:
    """A page on which a server tells of itself, asked once, before the load.

    Only what is listed is taken: such pages hold secrets, too. SGLang's `/server_info` has the API key in it.
    """

    path: str
    """Beside the API root, as `root_url` wants it."""
    keys: tuple[str, ...]
    """JSON: names of objects and of the value in them, joined by dots. Prometheus text: labels of `metric`."""
    metric: str | None = None
    """The page is Prometheus text, and this metric's labels are the facts; None: the page is JSON."""

    @property
    def names(self) -> tuple[str, ...]:
        """What `facts_of` calls them: `launch.` and the engine's own word, in the order of `keys`."""
        return tuple(LAUNCH + key.rpartition(".")[2] for key in self.keys)


def facts_of(page: FactsPage, body: bytes, redact: Callable[[str], str] = scrub) -> dict[str, str]:
    """Name in `ChannelFacts.details` -> value, in the order of `page.keys`.

    Leaves out what is not there, null, `None`, empty, or no single value. Never raises: the server may answer anything.
    Values are one line of at most 200 characters, cut after `redact` took the secrets out: half a key is not known.
    """
    found = _labels(page.metric, body) if page.metric is not None else _json(body)
    values = (_told(found, key, page.metric is None, redact) for key in page.keys)
    return {name: value for name, value in zip(page.names, values, strict=True) if value is not None}


def _told(found: Any, key: str, nested: bool, redact: Callable[[str], str]) -> str | None:
    for part in key.split(".") if nested else [key]:
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return "true" if found else "false"
    if not isinstance(found, str | int | float):
        return None
    text = one_line(redact(str(found)))[:_LONGEST]
    return None if text in ("", "None") else text


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _labels(metric: str, body: bytes) -> dict[str, str]:
    """The labels of the first sample of `metric`; the rest of the page is not parsed."""
    from prometheus_client.parser import text_string_to_metric_families  # brings an HTTP server: not on every import

    start = metric + "{"
    lines = (line for line in body.decode("utf-8", "replace").split("\n") if line.startswith(start))
    try:
        for family in text_string_to_metric_families(next(lines, "")):
            return dict(family.samples[0].labels)
    except (ValueError, IndexError, KeyError):
        pass
    return {}
