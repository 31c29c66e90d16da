"""The list of models: is the plan's among them, and where else such a list might be."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

import msgspec

from infersiege.channels.url import models_url
from infersiege.doctor.http import Reply
from infersiege.doctor.target import Target, json_of
from infersiege.errors import UsageError

EMULATED_HEADER = "x-infersiege-emulated"
_DATED = re.compile(r"[-@](\d{4}-?\d{2}-?\d{2}|\d{3,8}|latest)(-v\d+)?(:\d+)?", re.IGNORECASE)


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of models tells. None: it does not."""

    names: tuple[str, ...]
    context_length: int | None
    """Of the model that the plan asks for, in tokens."""
    emulated: bool


def read_models(target: Target, reply: Reply) -> Models | None:
    """The models of an answer; None: it is no such list (then the answer to a request decides)."""
    value = json_of(reply.body)
    if reply.status != 200 or not isinstance(value, dict):
        return None
    listed = value.get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    names = tuple(row["id"] for row in rows if isinstance(row.get("id"), str))
    asked = next((row for row in rows if row.get("id") == target.channel.model), rows[0] if len(rows) == 1 else {})
    owner = " ".join(str(row.get("owned_by")) for row in rows if isinstance(row.get("owned_by"), str))
    return Models(
        names=names,
        context_length=_context_length(asked),
        emulated=EMULATED_HEADER in reply.headers or "infersiege" in owner,
    )


def check_model(target: Target, models: Models) -> str | None:
    """Hold the plan's model against the list: what to note, or None. Raises DoctorError where it can't work."""
    asked = target.channel.model
    if not models.names or asked in models.names:
        return None
    near = get_close_matches(asked, models.names, n=3, cutoff=0.4)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    listed = _some(models.names)
    if target.profile.checks_model and target.is_local_engine:
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        target.fail(
            f"the server has no model {asked!r}; it has {listed}",
            f"{hint}set model in [channel.{target.name}]",
            check="models",
        )
    if not target.profile.checks_model:
        return f"{target.profile.title} answers to any model name; it serves {listed}"
    return f"not in its list of models ({listed}){guess}"


def is_the_model(asked: str, answered: str) -> bool:
    """Whether an answer's model is the one that was asked for: dated versions and a vendor before the name are."""
    asked, answered = (name.strip().lower().rpartition("/")[2] for name in (asked, answered))
    shorter, longer = sorted((asked, answered), key=len)
    return longer == shorter or (longer.startswith(shorter) and bool(_DATED.fullmatch(longer[len(shorter) :])))


def base_url_that_works(target: Target) -> str | None:
    """A base URL of the same server that has a list of models where the plan's has none; None: not found."""
    try:
        for base in _others(target.channel.base_url or ""):
            url = models_url(base)
            if url != target.models_url:
                value = target.json(url)
                if isinstance(value, dict) and isinstance(value.get("data"), list):
                    return base
    except UsageError:
        return None
    return None


def _others(base: str) -> list[str]:
    """Spellings worth a try: `/v1` once, prefixes cut away, prefixes that servers have."""
    parts = urlsplit(base)
    origin = f"{parts.scheme}://{parts.netloc}"
    once = re.sub(r"(/v\d+)+", lambda found: found[1], parts.path.rstrip("/"))
    found = [f"{origin}{once}"] if once != parts.path.rstrip("/") else []
    found += [f"{origin}{path}" for path in ("/v1", "/api/v1", "/openai/v1", "/v1beta/openai", "/api/v3")]
    return list(dict.fromkeys(found))


def _context_length(row: dict[str, Any]) -> int | None:
    """vLLM and SGLang: max_model_len; llama.cpp: meta.n_ctx; gateways: context_length, context_window."""
    meta = row.get("meta")
    found = [row.get("max_model_len"), row.get("context_length"), row.get("context_window")]
    if isinstance(meta, dict):
        found.append(meta.get("n_ctx"))
    return next((value for value in found if type(value) is int and value > 0), None)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(name[:80] for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
