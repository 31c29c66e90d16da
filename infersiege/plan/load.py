"""Reads a plan file, applies `--set` overrides, fills defaults; and the plan's own JSON form and hash."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from random import Random
from typing import Any

import msgspec

from infersiege.errors import InternalError, PlanError, UsageError
from infersiege.plan.borrowed import borrow, without_folder
from infersiege.plan.bounds import DEEPEST, deeper_than
from infersiege.plan.checks import check
from infersiege.plan.convert import convert
from infersiege.plan.defaults import fill
from infersiege.plan.faults import Faults, Override, dotted
from infersiege.plan.locate import KeyPath, Position, positions, split_key
from infersiege.plan.proxy_checks import proxies
from infersiege.plan.quality_checks import with_quality
from infersiege.plan.schema import Plan
from infersiege.redact import scrub

_LARGEST_FILE = 4 << 20
_ARRAYS_OF_TABLES = frozenset({"workload", "slo"})


def load_plan(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    check_environment: bool = True,
) -> Plan:
    """Read and check a plan file; channel, name and path defaults are filled in.

    `overrides` are the values of `--set`: `load.users=64`, `channel.local.model=x`, `workload.0.trace=a.jsonl`,
    `load={mode = "open", rate = 5}`; an empty value takes the key out. A value that is no TOML is a string.
    Relative paths in the plan are relative to its file. `environ` (default: the process's) is only asked whether the
    variables that hold keys are there, and that only with `check_environment`.

    Raises PlanError with every fault in file order, UsageError for a file that cannot be read.
    """
    path = Path(path)
    text = _read(path)
    raw = _parse(path, text)
    places = positions(text)
    parsed, wrong = _apply(raw, places, overrides)
    if deeper_than(DEEPEST, raw):
        raise _too_deep(path)
    faults = Faults(str(path), places, parsed)
    for place, message in wrong:
        faults.add_override(place, message)
    variables = (os.environ if environ is None else environ) if check_environment else None
    borrow(raw, faults, base=path.parent, environ=variables)
    plan = convert(raw, faults)
    proxies(plan, faults)
    check(plan, raw, faults, base=path.parent, environ=variables)
    if faults:
        raise faults.error()
    return with_quality(fill(plan, path))


def resolve(plan: Plan, now_ns: int, random: Random) -> Plan:
    """Fill what is new for each run: the nonce, and a name for a plan that came without a file.

    `now_ns` (Unix epoch) goes into that name only. A nonce that the plan sets is kept: it repeats a run to the letter.
    """
    name = plan.run.name or f"run-{now_ns // 1_000_000_000}"
    nonce = plan.run.nonce or f"{random.getrandbits(64):016x}"
    return msgspec.structs.replace(plan, run=msgspec.structs.replace(plan.run, name=name, nonce=nonce))


def plan_json(plan: Plan) -> bytes:
    """The plan as JSON, by attribute names (`duration_ns`); equal plans give equal bytes. It holds no secret."""
    return msgspec.json.encode(plan, order="sorted")


def plan_from_json(data: bytes) -> Plan:
    """The inverse of `plan_json`. Raises InternalError: such bytes come only from infersiege itself."""
    try:
        return msgspec.json.decode(data, type=Plan)
    except msgspec.MsgspecError as error:
        raise InternalError(f"a plan in JSON does not fit the schema: {error}") from None


def plan_hash(plan: Plan) -> str:
    """64 hex digits, the same for every run of the same plan on any host.

    SHA-256 of `plan_json` without what differs between such runs: the nonce, and the folders of local files (their
    contents have hashes of their own).
    """
    channels = {
        name: msgspec.structs.replace(
            channel,
            ca=_file_name(channel.ca),
            tokenizer=_file_name(channel.tokenizer),
            api_key_file=_file_name(channel.api_key_file),
            from_file=channel.from_file and without_folder(channel.from_file),
        )
        for name, channel in plan.channels.items()
    }
    workloads = tuple(
        workload if workload.source is not None else msgspec.structs.replace(workload, trace=_file_name(workload.trace))
        for workload in plan.workloads
    )
    same = msgspec.structs.replace(
        plan,
        run=msgspec.structs.replace(plan.run, nonce=None),
        channels=channels,
        workloads=workloads,
        quality=plan.quality
        and msgspec.structs.replace(plan.quality, file=_file_name(plan.quality.file) or plan.quality.file),
        telemetry=msgspec.structs.replace(plan.telemetry, spool=_file_name(plan.telemetry.spool)),
        redis=msgspec.structs.replace(
            plan.redis, password_file=_file_name(plan.redis.password_file), ca=_file_name(plan.redis.ca)
        ),
    )
    return hashlib.sha256(plan_json(same)).hexdigest()


def _file_name(path: str | None) -> str | None:
    return path if path is None or path.startswith("builtin:") else PurePath(path).name


def _read(path: Path) -> str:
    from infersiege.traces.files.source import why_unreadable

    hint = None
    try:
        size = path.stat().st_size
        if not path.is_dir() and (reason := why_unreadable(path)):
            raise UsageError(
                f"{path}: the plan {reason}", hint="a plan is read more than once: save it to a file and name that"
            )
        if size > _LARGEST_FILE:
            raise UsageError(f"{path}: larger than 4 MiB", hint="a plan is a small TOML file; traces go into `trace`")
        data = path.read_bytes()
    except OSError as error:
        if path == Path("-"):
            hint = "standard input is not read: save the plan to a file and name that"
        elif isinstance(error, FileNotFoundError):
            hint = "examples/plans/ has plans to start from"
        elif isinstance(error, IsADirectoryError):
            hint = "name the plan file inside it"
        raise UsageError(f"{path}: the plan cannot be read: {error.strerror or error}", hint=hint) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanError(f"{path}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None
    if not text.strip():
        raise PlanError(f"{path}: the plan is empty", hint="examples/plans/ has plans to start from")
    return text


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:  # TOMLDecodeError, and what int() and datetime raise
        message = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if place is not None:
            message, where = message[: place.start()], f"{path}:{place[1]}:{place[2]}"
        elif message.endswith(" (at end of document)"):
            message, where = message.removesuffix(" (at end of document)"), f"{path}:{text.rstrip().count(chr(10)) + 1}"
            message += ", and the file ends"
        else:
            where = str(path)
        fault = scrub(f"{where}: {message[:1].lower() + message[1:]}")
        raise PlanError(
            f"{path}: the plan is not valid TOML",
            faults=(fault,),
            hint='text needs quotes ("5m"), tables are [name], lists of tables [[name]]',
        ) from None


def _too_deep(path: Path) -> PlanError:
    return PlanError(f"{path}: nested too deeply", hint=f"at most {DEEPEST} tables and lists may be in one another")


def _apply(
    raw: dict[str, Any], places: dict[KeyPath, Position], overrides: Sequence[str]
) -> tuple[tuple[Override, ...], list[tuple[str, str]]]:
    """Write overrides into `raw`, and take the places of what they replace out of `places`.

    Gives those that were applied, and (place, message) of those that make no sense.
    """
    applied: list[Override] = []
    wrong: list[tuple[str, str]] = []
    for item in overrides:
        key, equals, text = item.partition("=")
        place = f"--set {scrub(key.strip())}"
        try:
            if not equals:
                raise ValueError("write --set key=value")
            path = _write(raw, _split(key), text.strip())
        except ValueError as error:
            wrong.append((place, str(error)))
            continue
        for old in [old for old in places if old[: len(path)] == path]:
            del places[old]
        applied = [old for old in applied if old.path != path]
        applied.append(Override(path=path, text=text.strip()))
    return tuple(applied), wrong


def _split(key: str) -> tuple[str, ...]:
    try:
        return split_key(key.strip())
    except tomllib.TOMLDecodeError:
        raise ValueError("no key of a plan; write it like load.users or workload.0.trace") from None


def _write(raw: dict[str, Any], parts: tuple[str, ...], text: str) -> KeyPath:
    """Set, or with an empty text delete, one key; tables on the way are made. Raises ValueError."""
    path: KeyPath = ()
    here: Any = raw
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        key: str | int = part
        if isinstance(here, list):
            key = _index(here, part, path)
            if key == len(here) and not last:
                here.append({})
        elif not isinstance(here, dict):
            raise ValueError(f"{dotted(path)} is no table")
        path = (*path, key)
        if not last:
            if isinstance(here, dict) and key not in here:
                here[key] = [] if path == (part,) and part in _ARRAYS_OF_TABLES else {}
            here = here[key]
        elif not text:
            if isinstance(here, list):
                raise ValueError("an item of a list cannot be taken out")
            here.pop(key, None)
        elif isinstance(here, list) and key == len(here):
            here.append(_toml_value(text))
        else:
            here[key] = _toml_value(text)
    return path


def _index(here: list[Any], part: str, path: KeyPath) -> int:
    if not part.isdecimal() or int(part) > len(here):
        items = "1 item" if len(here) == 1 else f"{len(here)} items"
        raise ValueError(f"{dotted(path)} has {items}, counted from 0")
    return int(part)


def _toml_value(text: str) -> Any:
    if "\n" in text or "\r" in text:
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


__all__ = ["load_plan", "plan_from_json", "plan_hash", "plan_json", "resolve"]
