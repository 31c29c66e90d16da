"""Channels that another tool has already: `from_file` reads address, model, protocol and the key's place from its file.

Codex (`config.toml#model_providers.NAME`). A provider's table has `base_url`, `wire_api` ("responses" or, in older
versions, "chat"), `env_key` (the *name* of the variable with the key), and rarely `experimental_bearer_token` (the key
itself), `query_params`, `http_headers`, `env_http_headers`; the model is `model` at the top of the file. Relied on:
OpenAI's configuration reference and sample for Codex (developers.openai.com/codex/config-reference, …/config-sample)
and the provider's type in its source (openai/codex, codex-rs, model_provider_info). Without `wire_api` today's Codex
means "responses", so that is taken where the engine speaks it.

Claude Code (`settings.json`). The table `env` holds variables as a shell would: `ANTHROPIC_BASE_URL` (without /v1),
`ANTHROPIC_AUTH_TOKEN` (sent as a bearer token, and preferred by it) or `ANTHROPIC_API_KEY` (sent as x-api-key), and
`ANTHROPIC_MODEL`; `model` at the top names a model as well. Relied on: code.claude.com/docs (settings, env-vars).

What the plan says itself goes before what the file says. A key in such a file stays there: the plan keeps the file's
path and the place in it, and the key is read where it is used, on each worker's own host, as with `api_key_file`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from infersiege.channels import DIALECTS, PROFILES
from infersiege.channels.profiles import CHAT, MESSAGES, RESPONSES
from infersiege.channels.url import endpoint_url
from infersiege.errors import InfersiegeError, UsageError
from infersiege.plan.defaults import local_file
from infersiege.plan.faults import Faults
from infersiege.plan.locate import KeyPath, Position, positions, split_key
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import fit_key

_LARGEST_FILE = 4 << 20
_OTHERS_READ = 0o004
_WRITTEN = re.compile(r"(?P<path>.+?)(?:#(?P<place>model_providers\..+|[^/#]*))?", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIRE_APIS: Mapping[str, str] = {"chat": CHAT, "responses": RESPONSES}
_OFFICIAL = "api.anthropic.com"

_HOW = 'from_file = "config.toml#model_providers.NAME" (Codex) or "settings.json" (Claude Code)'
_BROKEN = "correct it, or write base_url, model and api_key_env into the plan instead of from_file"

Environ = Mapping[str, str] | None


class Source(NamedTuple):
    """A `from_file`, taken apart."""

    path: Path
    provider: str | None
    """Of a Codex file; None: it is a Claude Code file."""


class BorrowError(UsageError):
    """The file can't give a channel. The message begins with its place in the file."""


class Found(NamedTuple):
    """What a file says about one channel. None: nothing."""

    values: dict[str, str]
    """Plan keys -> values: base_url, model, dialect, engine, api_key_env. Never a key."""
    places: dict[str, str]
    """Plan key -> where in the file its value stands."""
    key: str | None
    """The key, if the file holds it itself."""
    key_place: str | None
    unfit: tuple[tuple[str, str], ...]
    """(plan key that would stand for it, what is there): things that a channel can't take over."""


def source_of(from_file: str, base: Path) -> Source:
    """Take `from_file` apart; relative paths begin at `base`. Raises BorrowError for a form that is none."""
    match = _WRITTEN.fullmatch(from_file)
    if match is None:
        raise BorrowError(f"{from_file!r} names no file", hint=_HOW)
    path, place = local_file(match["path"], base), match["place"]
    if place is None:
        if path.suffix.lower() == ".toml":
            raise BorrowError(f"{path} has providers; name one", hint=f'write "{from_file}#model_providers.NAME"')
        return Source(path, None)
    head, _, name = place.partition(".")
    if head != "model_providers" or not name:
        raise BorrowError(f"{path}: #{place} names no provider", hint=_HOW)
    with suppress(tomllib.TOMLDecodeError):  # then it is a name that needs quotes in TOML, written without
        name = ".".join(split_key(name))
    return Source(path, name)


def without_folder(from_file: str) -> str:
    """The file's name and the place in it: what is the same on every host."""
    match = _WRITTEN.fullmatch(from_file)
    path, place = (match["path"], match["place"]) if match is not None else (from_file, None)
    return Path(path).name + (f"#{place}" if place is not None else "")


def borrow(raw: dict[str, Any], faults: Faults, *, base: Path, environ: Environ) -> None:
    """Write into the channels of `raw` what their `from_file` says and they don't; `from_file` becomes absolute.

    Faults go to `faults`, with the place in the file. `environ` None: don't look whether a key's variable is there.
    """
    channels = raw.get("channel")
    for name, table in channels.items() if isinstance(channels, dict) else ():
        if isinstance(table, dict) and isinstance(table.get("from_file"), str) and table.get("engine") != "hybrid":
            _borrow_one(table, ("channel", name), faults, base, environ)


def key_of(from_file: str) -> tuple[str | None, str]:
    """The key that the file holds itself, if it does, and where it stands: `settings.json: env.ANTHROPIC_API_KEY`.

    `from_file` has an absolute path. Raises UsageError for a file that can't be read any more, never with the key in
    it.
    """
    found = read(source_of(from_file, Path()))
    return found.key, found.key_place or from_file


def open_key_files(plan: Plan) -> tuple[str, ...]:
    """A line for each channel whose key lies in a file that every user of this host may read."""
    found = {name: open_key_file(channel) for name, channel in plan.channels.items()}
    return tuple(f"channel {name}: {line}" for name, line in found.items() if line is not None)


def open_key_file(channel: Channel) -> str | None:
    """Which file with the channel's key every user of this host may read, and what to do; None: none.

    The channel has absolute paths. A file that can't be read is none: whoever needs the key reports it.
    """
    path: Path | None = None
    if channel.api_key_env is None and channel.api_key_file is not None:
        path = Path(channel.api_key_file).expanduser()
    elif channel.api_key_env is None and channel.from_file is not None:
        path = _file_with_key(channel.from_file)
    if path is None or not _others_may_read(path):
        return None
    return f"every user of this host may read {path}, which holds the key: chmod 600 {path}"


def read(source: Source) -> Found:
    """What the file says. Raises BorrowError with the place in the file."""
    text = _text(source.path)
    if source.provider is None:
        return _claude(source.path, text)
    return _codex(source.path, source.provider, text)


# ------------------------------------------------------------------------------------------------- into the plan


def _borrow_one(table: dict[str, Any], here: KeyPath, faults: Faults, base: Path, environ: Environ) -> None:
    where = (*here, "from_file")
    try:
        source = source_of(table["from_file"], base.absolute())
        found = read(source)
    except BorrowError as error:
        faults.add(where, f"{error}" + (f"; {error.hint}" if error.hint else ""))
        for key in ("base_url", "model", "dialect", "engine", "api_key_env", "api_key_file"):
            if key not in table:
                faults.mark((*here, key))
        return
    table["from_file"] = f"{source.path}" + (f"#model_providers.{source.provider}" if source.provider else "")
    own_key = "api_key_env" in table or "api_key_file" in table
    for key, what in found.unfit:
        if key not in table and not (key == "api_key_env" and own_key):
            faults.add(where, what)
    for key, value in found.values.items():
        if key in table or (key == "base_url" and "base_urls" in table) or (key == "api_key_env" and own_key):
            continue
        fault = _fault(key, value, table, found, environ)
        if fault is None:
            table[key] = value
        elif fault:
            faults.add(where, f"{found.places[key]}: {fault}")
            faults.mark((*here, key))
    if not own_key and found.key is not None:
        try:
            fit_key(found.key, found.key_place or "")
        except UsageError as error:
            faults.add(where, f"{error}; {error.hint}")
            faults.mark((*here, "api_key_file"))
    if "model" not in table and faults.ok(*here, "model"):
        faults.add(where, f"{source.path} names no model; set model in the plan")
        faults.mark((*here, "model"))


def _fault(key: str, value: str, table: dict[str, Any], found: Found, environ: Environ) -> str | None:
    """Why a value can't be taken, on one line; empty: leave it out without a word; None: it can."""
    if key == "base_url":
        try:
            endpoint_url(value, DIALECTS[CHAT].path)
        except InfersiegeError as error:
            return f"{error}" + (f"; {error.hint}" if error.hint else "")
    if key == "dialect":
        engine = table.get("engine", found.values.get("engine"))
        profile = PROFILES.get(engine) if isinstance(engine, str) else None
        if profile is not None and value not in profile.dialects:
            if not found.places[key]:
                return ""  # a default of that tool's
            return f"means {value}, which {profile.title} does not speak; it has {' or '.join(profile.dialects)}"
    if key == "api_key_env":
        if not _VARIABLE.fullmatch(value):
            return "is no name of an environment variable (the key itself must not stand here)"
        if environ is not None and not environ.get(value, "").strip():
            state = "empty" if value in environ else "not set"
            return f"the environment variable {value} is {state}; export it with the key"
    return None


# ---------------------------------------------------------------------------------------------------- the formats


def _codex(path: Path, provider: str, text: str) -> Found:
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not its message: that may quote what stands there.
        found_at = re.search(r"at line (\d+)", str(error))
        line = found_at[1] if found_at else text.rstrip().count("\n") + 1
        raise BorrowError(f"{path}:{line}: not valid TOML", hint=_BROKEN) from None
    marks = positions(text)
    providers = raw.get("model_providers")
    names = sorted(providers) if isinstance(providers, dict) else []
    table = providers.get(provider) if isinstance(providers, dict) else None
    if not isinstance(table, dict):
        there = f"there are: {', '.join(names)}" if names else "the file has none"
        raise BorrowError(f"{path}: no provider {provider!r} in it", hint=there)
    here: KeyPath = ("model_providers", provider)
    pick = _picker(path, table, here, marks)
    key, key_at = pick("experimental_bearer_token")
    variable, variable_at = pick("env_key")
    found = _Builder()
    base, base_at = pick("base_url")
    found.add("engine", "openai" if base is None else "generic", "")
    if base is not None:
        found.add("base_url", base + _query(table.get("query_params"), base), base_at)
    model, model_at = _picker(path, raw, (), marks)("model")
    if model is not None:
        found.add("model", model, model_at)
    wire, wire_at = pick("wire_api")
    if wire is not None and wire not in _WIRE_APIS:
        known = " or ".join(f'"{one}"' for one in _WIRE_APIS)
        raise BorrowError(f"{wire_at}: unknown value; {known} can be used", hint="set dialect in the plan")
    found.add("dialect", _WIRE_APIS[wire or "responses"], wire_at if wire is not None else "")
    if variable is not None:
        found.add("api_key_env", variable, variable_at)
        key, key_at = None, ""  # Codex takes the variable first
    return Found(found.values, found.places, key, key_at or None, tuple(_codex_unfit(path, here, table, marks, key)))


def _codex_unfit(
    path: Path, here: KeyPath, table: dict[str, Any], marks: Mapping[KeyPath, Position], key: str | None
) -> list[tuple[str, str]]:
    unfit = []
    for name in ("http_headers", "env_http_headers"):
        if table.get(name):
            what = "may hold keys and is not taken over; write those the server needs into headers (headers = {}: none)"
            unfit.append(("headers", f"{_at(path, (*here, name), marks)}: {what}"))
    if "env_key" not in table and key is None:
        for name in ("auth", "requires_openai_auth"):
            if table.get(name):
                what = "a login or a command gives its key, which is not used here; name the key in api_key_env"
                unfit.append(("api_key_env", f"{_at(path, (*here, name), marks)}: {what}"))
    return unfit


def _query(params: object, base: str) -> str:
    if not isinstance(params, dict) or not params:
        return ""
    return ("&" if "?" in base else "?") + urlencode({str(name): str(value) for name, value in params.items()})


def _claude(path: Path, text: str) -> Found:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise BorrowError(f"{path}:{error.lineno}: not valid JSON", hint=_BROKEN) from None
    except RecursionError:
        raise BorrowError(f"{path}: nested too deeply", hint=_BROKEN) from None
    env = raw.get("env") if isinstance(raw, dict) else None
    if not isinstance(env, dict):
        raise BorrowError(f"{path}: no table env in it", hint='it should hold {"env": {"ANTHROPIC_BASE_URL": …}}')
    pick = _picker(path, env, ("env",), {})
    found = _Builder()
    base, base_at = pick("ANTHROPIC_BASE_URL")
    found.add("engine", "anthropic" if base is None or _OFFICIAL in base else "generic", "")
    if base is not None:
        found.add("base_url", base, base_at)
    model, model_at = pick("ANTHROPIC_MODEL")
    if model is None:
        model, model_at = _picker(path, raw, (), {})("model")
    if model is not None:
        found.add("model", model, model_at)
    found.add("dialect", MESSAGES, "")
    key, key_at = pick("ANTHROPIC_AUTH_TOKEN")
    if key is None:
        key, key_at = pick("ANTHROPIC_API_KEY")
    unfit = []
    if key is None and raw.get("apiKeyHelper"):
        what = "a command gives its key, and is not run here; name the key in api_key_env"
        unfit.append(("api_key_env", f"{path}: apiKeyHelper: {what}"))
    if env.get("ANTHROPIC_CUSTOM_HEADERS"):
        what = "may hold keys and is not taken over; write those the server needs into headers (headers = {}: none)"
        unfit.append(("headers", f"{path}: env.ANTHROPIC_CUSTOM_HEADERS: {what}"))
    return Found(found.values, found.places, key, key_at or None, tuple(unfit))


class _Builder:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.places: dict[str, str] = {}

    def add(self, key: str, value: str, place: str) -> None:
        """`place` empty: a default, not a value of the file."""
        self.values[key], self.places[key] = value, place


def _picker(
    path: Path, table: Mapping[str, Any], here: KeyPath, marks: Mapping[KeyPath, Position]
) -> Callable[[str], tuple[str | None, str]]:
    """A look-up of texts in one table: (text without white space around it, place). Raises BorrowError for others."""

    def pick(name: str) -> tuple[str | None, str]:
        place = _at(path, (*here, name), marks)
        value = table.get(name)
        if value is None:
            return None, place
        if not isinstance(value, str):
            raise BorrowError(f"{place}: no text; write it in quotes")
        return value.strip() or None, place

    return pick


def _at(path: Path, key: KeyPath, marks: Mapping[KeyPath, Position]) -> str:
    line = f":{marks[key].line}" if key in marks else ""
    return f"{path}{line}: {'.'.join(map(str, key))}"


# ------------------------------------------------------------------------------------------------------ the file


def _text(path: Path) -> str:
    from infersiege.traces.files.source import is_missing, why_unreadable

    if is_missing(path):
        raise BorrowError(f"there is no file {path}", hint=_HOW)
    if (reason := why_unreadable(path)) is not None:
        raise BorrowError(f"{path} {reason}", hint=_HOW)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise BorrowError(f"{path} is larger than 4 MiB", hint=_HOW)
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BorrowError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BorrowError(f"{path} is not UTF-8 text") from None


def _file_with_key(from_file: str) -> Path | None:
    try:
        source = source_of(from_file, Path())
        return source.path if read(source).key is not None else None
    except BorrowError:
        return None


def _others_may_read(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _OTHERS_READ)
    except OSError:
        return False
