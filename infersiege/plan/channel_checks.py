"""Faults of [channel.NAME]: address, protocol, headers and fields that a plan must not set, the key's source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infersiege.channels import DIALECTS, PROFILES
from infersiege.channels.request import refusal
from infersiege.channels.url import endpoint_url
from infersiege.errors import InfersiegeError, UsageError
from infersiege.plan.defaults import CLOUDS, default_base_url, local_file
from infersiege.plan.faults import Faults
from infersiege.plan.locate import KeyPath
from infersiege.plan.schema import Budget, Channel, Price, RateLimit
from infersiege.redact import api_key

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

_OWN_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "accept",
        "accept-encoding",
        "x-request-id",
    }
)
"""Headers that the framing or the measurement depends on."""

_KEY_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "user-agent"})
"""Headers that a server must not be able to set in what we send."""

CACHE_KEY_DIALECTS = ("openai-chat", "openai-responses")
"""Dialects with the field `prompt_cache_key`."""

_OWN_FIELDS: Mapping[str, str] = {
    "model": "set the channel's model instead",
    "stream": "set the channel's stream instead",
}
"""Fields of a request body that must be what the run believes them to be; the dialect's own (`prompt_fields`) too."""
_FROM_TRACE = "it comes from the workload's trace"

_FIXED_LENGTH = ("openai-chat", "openai-completions")
"""Dialects in which engines know `ignore_eos`."""

_PER_TOKEN = 1e-4
"""Nobody sells a million tokens for less; price lists per token are below it."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def channels(draft: Draft) -> None:
    if draft.faults.ok("channel") and not draft.plan.channels:
        draft.faults.add(("channel",), "no [channel.NAME] in it: where should requests go?")
    for name, channel in draft.plan.channels.items():
        _channel(draft, name, channel)
    if draft.faults.ok("workload") and draft.faults.ok("channel"):
        _output_limits(draft)


def _output_limits(draft: Draft) -> None:
    """Limits that the plan fixes and a service refuses: every turn of the run would fail with a 400."""
    faults, plan = draft.faults, draft.plan
    least = {name: limit for name, channel in plan.channels.items() if (limit := _least_output(draft, name, channel))}
    used: set[str] = set()
    for index, workload in enumerate(plan.workloads):
        here = ("workload", index, "max_tokens")
        hybrid = plan.hybrids.get(workload.channel or "")
        names = (
            [workload.channel or next(iter(plan.channels), "")] if hybrid is None else [p.channel for p in hybrid.parts]
        )
        strict = [name for name in names if name in least]
        used.update(strict)
        if workload.max_tokens is not None and faults.ok(*here):
            _too_short(faults, here, workload.max_tokens, strict, least)
    if faults.ok("sampling", "max_tokens"):
        _too_short(faults, ("sampling", "max_tokens"), plan.sampling.max_tokens, sorted(used), least)


def _least_output(draft: Draft, name: str, channel: Channel) -> int:
    """Fewest output tokens that a service takes; 0: any number, as engines do, or nothing is known."""
    here = ("channel", name)
    if channel.engine not in CLOUDS or not all(draft.faults.ok(*here, key) for key in ("engine", "dialect")):
        return 0
    return DIALECTS[channel.dialect or PROFILES[channel.engine].default_dialect].least_output_tokens


def _too_short(faults: Faults, here: KeyPath, asked: int, names: list[str], least: Mapping[str, int]) -> None:
    refusing = next((name for name in names if asked < least[name]), None)
    if refusing is not None:
        limit = least[refusing]
        faults.add(
            here, f"channel {refusing} takes no limit below {limit} (its dialect's least); write {limit} or more"
        )


def _channel(draft: Draft, name: str, channel: Channel) -> None:
    faults = draft.faults
    here = ("channel", name)
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,100}", name):
        faults.add(here, "a channel's name is 1 to 100 printable characters")
    if faults.ok(*here, "engine") and faults.ok(*here, "base_url") and faults.ok(*here, "base_urls"):
        _base_url(faults, here, channel)
    for header, value in channel.headers.items():
        _header(faults, (*here, "headers", header), header, value)
    if faults.ok(*here, "engine") and faults.ok(*here, "dialect"):
        _dialect(draft, here, channel)
    for index, header in enumerate(channel.affinity_headers):
        _affinity_header(faults, (*here, "affinity_headers", index), header)
    if channel.ca is not None and faults.ok(*here, "ca"):
        if channel.insecure:
            faults.add((*here, "ca"), "nothing is verified with insecure = true; leave one of them out")
        elif fault := file_fault(local_file(channel.ca, draft.base), channel.ca):
            faults.add((*here, "ca"), fault)
    if faults.ok(*here, "engine"):
        _text_lengths(draft, here, channel)
    if channel.price is not None and faults.ok(*here, "price"):
        _price(faults, (*here, "price"), channel.price, channel.engine if faults.ok(*here, "engine") else "")
    if channel.budget is not None and faults.ok(*here, "budget"):
        _budget(faults, (*here, "budget"), channel.budget, channel.price)
    if channel.rate_limit is not None and faults.ok(*here, "rate_limit"):
        _rate_limit(faults, (*here, "rate_limit"), channel.rate_limit)
    _key(draft, here, channel)


def _budget(faults: Faults, here: KeyPath, budget: Budget, price: Price | None) -> None:
    """A budget limits something, and what it limits can be counted."""
    if budget.cost is None and budget.tokens is None and budget.requests is None:
        faults.add(here, "limits nothing; write cost, tokens or requests")
    if budget.cost is None or not faults.ok(*here, "cost") or not faults.ok(*here[:-1], "price"):
        return
    if price is not None and price.gpu_hour is not None:
        faults.add(
            (*here, "cost"), "counts tokens, and the channel is paid by the hour; limit the run's duration instead"
        )
    elif price is None:
        faults.add((*here, "cost"), "can't be counted without a price; write price = {input = …, output = …}")


def _rate_limit(faults: Faults, here: KeyPath, limit: RateLimit) -> None:
    if limit.requests_per_minute is None and limit.tokens_per_minute is None:
        faults.add(here, "limits nothing; write requests_per_minute or tokens_per_minute")


def _price(faults: Faults, here: KeyPath, price: Price, engine: str) -> None:
    """A channel is paid by tokens or by the hour, and nothing that is used is left without a price."""
    by_tokens = {name: getattr(price, name) for name in ("input", "output", "cached", "cache_write")}
    given = [name for name, value in by_tokens.items() if value is not None]
    for name in given:
        if 0 < by_tokens[name] < _PER_TOKEN:
            value = by_tokens[name]
            faults.add(
                (*here, name),
                f"{value:g} looks like a price per token; prices are per million tokens: write {value * 1e6:g}",
            )
    if price.gpu_hour is not None:
        if given:
            faults.add(
                (*here, "gpu_hour"), f"the channel is paid by tokens already ({', '.join(given)}); leave one out"
            )
        elif engine in CLOUDS:
            faults.add((*here, "gpu_hour"), f"{PROFILES[engine].title} is paid by tokens; write input and output")
        return
    if price.gpus is not None:
        faults.add((*here, "gpus"), "counts only with gpu_hour, the price of one GPU for one hour")
    elif not given:
        faults.add(here, "holds no price; write input and output, or gpu_hour")
        return
    for name in ("input", "output"):
        if given and by_tokens[name] is None:
            faults.add((*here, name), "is missing: without it no turn's cost is known; write 0 where it is free")


def _dialect(draft: Draft, here: KeyPath, channel: Channel) -> None:
    """The protocol is one that the engine speaks, and nothing is asked for that it can't carry."""
    faults, profile = draft.faults, PROFILES[channel.engine]
    name = channel.dialect or profile.default_dialect
    if name not in profile.dialects:
        known = " or ".join(profile.dialects)
        faults.add((*here, "dialect"), f"{profile.title} does not speak {name}; it has {known}")
        return
    own = {**dict.fromkeys(DIALECTS[name].prompt_fields, _FROM_TRACE), **_OWN_FIELDS}
    for field, value in channel.extra_body.items():
        where = (*here, "extra_body", field)
        if field in own:
            faults.add(where, f"is set by infersiege itself; {own[field]}")
        elif (reason := refusal(field, value)) is not None:
            faults.add(where, f"can't be measured: {reason}")
    if channel.ignore_eos and name not in _FIXED_LENGTH and faults.ok(*here, "ignore_eos"):
        faults.add((*here, "ignore_eos"), f"{name} has no field for it; use one of {', '.join(_FIXED_LENGTH)}")
    elif channel.ignore_eos and profile.ignore_eos_fields is None and faults.ok(*here, "ignore_eos"):
        faults.add(
            (*here, "ignore_eos"),
            f"no field of {profile.title} that fixes the length is known; put yours in extra_body",
        )
    if channel.prompt_cache_key and faults.ok(*here, "prompt_cache_key"):
        if name not in CACHE_KEY_DIALECTS:
            known = ", ".join(CACHE_KEY_DIALECTS)
            faults.add((*here, "prompt_cache_key"), f"{name} has no field for it; use one of {known}")
        elif "prompt_cache_key" in channel.extra_body:
            faults.add((*here, "prompt_cache_key"), "extra_body sets the field already; leave one of them out")


def _text_lengths(draft: Draft, here: KeyPath, channel: Channel) -> None:
    """How synthesised prompts get their lengths: what a named way needs must be there."""
    faults, way = draft.faults, channel.text_lengths
    if channel.tokenizer is not None and faults.ok(*here, "tokenizer"):
        if fault := file_fault(local_file(channel.tokenizer, draft.base), channel.tokenizer):
            faults.add((*here, "tokenizer"), fault)
        elif way not in ("auto", "tokenizer") and faults.ok(*here, "text_lengths"):
            faults.add((*here, "tokenizer"), f"is not used with text_lengths = {way!r}; leave one of them out")
    if not faults.ok(*here, "text_lengths"):
        return
    if way == "tokenizer" and channel.tokenizer is None:
        faults.add((*here, "text_lengths"), "needs tokenizer, the path of a tokenizer.json")
    elif way == "endpoint" and PROFILES[channel.engine].tokenizer is None:
        title = PROFILES[channel.engine].title
        faults.add((*here, "text_lengths"), f"no tokenize endpoint of {title} is known; use calibrated, or tokenizer")


def _base_url(faults: Faults, here: KeyPath, channel: Channel) -> None:
    if channel.base_urls:
        if channel.base_url is not None:
            faults.add((*here, "base_urls"), "base_url is there too; leave one of them out")
            return
        seen: dict[str, int] = {}
        for index, url in enumerate(channel.base_urls):
            final = _final_url(faults, (*here, "base_urls", index), here, channel, url)
            if final is not None and seen.setdefault(final, index) != index:
                faults.add((*here, "base_urls", index), "is the same server as the one before it: name each once")
        return
    if channel.base_url is None:
        if default_base_url(channel.engine) is None:
            faults.add((*here, "base_url"), f"is missing; {channel.engine} has no default address")
        return
    _final_url(faults, (*here, "base_url"), here, channel, channel.base_url)


def _final_url(faults: Faults, where: KeyPath, here: KeyPath, channel: Channel, url: str) -> str | None:
    """The URL that requests go to; None: it has a fault, or the dialect has one."""
    dialect = channel.dialect or PROFILES[channel.engine].default_dialect
    if not faults.ok(*here, "dialect"):
        return None
    try:
        return endpoint_url(url, DIALECTS[dialect].path)
    except InfersiegeError as error:
        faults.add(where, f"{error}" + (f"; {error.hint}" if error.hint else ""))
        return None


def _affinity_header(faults: Faults, here: KeyPath, name: str) -> None:
    if not faults.ok(*here):
        return
    if not _TOKEN.fullmatch(name):
        faults.add(here, "is no name of an HTTP header")
    elif name.lower() in ("cookie", "set-cookie"):
        faults.add(here, "cookies are kept and sent back anyway")
    elif name.lower() in _OWN_HEADERS | _KEY_HEADERS:
        faults.add(here, "is set by infersiege itself")


def _header(faults: Faults, here: KeyPath, name: str, value: object) -> None:
    if not faults.ok(*here) or not isinstance(value, str):
        return
    if not _TOKEN.fullmatch(name):
        faults.add(here, "is no name of an HTTP header")
    elif name.lower() in _OWN_HEADERS:
        faults.add(here, "is set by infersiege itself")
    elif not value.isascii() or not value.isprintable():
        faults.add(here, "its value must be printable ASCII, without line ends")


def _key(draft: Draft, here: KeyPath, channel: Channel) -> None:
    faults, variable = draft.faults, channel.api_key_env
    if variable is not None and channel.api_key_file is not None and faults.ok(*here, "api_key_file"):
        faults.add((*here, "api_key_file"), "the key comes from api_key_env already; leave one of them out")
    source = "api_key_file" if variable is None else "api_key_env"
    if not faults.ok(*here, source):
        return
    if variable is not None and not _VARIABLE.fullmatch(variable):
        faults.add((*here, source), "is no name of an environment variable (the key itself must not stand here)")
        return
    if draft.environ is None:
        return
    file = channel.api_key_file and str(local_file(channel.api_key_file, draft.base))
    if variable is None and file is not None and (fault := file_fault(Path(file), file)):
        faults.add((*here, source), fault)
        return
    try:
        key = api_key(msgspec.structs.replace(channel, api_key_file=file), draft.environ)
    except UsageError as error:
        faults.add((*here, source), str(error))
        return
    if variable is not None and key is None:
        state = "empty" if variable in draft.environ else "not set"
        faults.add((*here, source), f"the environment variable {variable} is {state}; export it with the key")


def file_fault(path: Path, shown: str, *, or_folder: bool = False) -> str | None:
    """Why a file (or a folder, where one will do) that the plan names can't be read; None: it can be tried."""
    from infersiege.traces.files.source import IS_FOLDER, is_missing, why_unreadable

    if is_missing(path):
        return f"there is no file {shown}"
    reason = why_unreadable(path)
    return None if reason is None or (or_folder and reason == IS_FOLDER) else f"{shown} {reason}"
