"""What can be asked of an answer: one small function per kind of check, in one table.

A check is written as an object whose first key is its kind: `{"contains": "Paris", "case": true}`. No check asks
another model, and none says anything of the answer but whether it holds.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import traceback
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

from infersiege.quality.json_shape import faults_of_schema, fits

LONGEST_TEXT = 32_768
"""Characters of an answer that are looked at: a check runs between two turns of a worker."""
SHORT_ANSWER = 8

_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_ENDS = " \t\r\n\"'`*_.,;:!?。，；：！？、「」『』“”‘’()（）"


@dataclass(frozen=True, slots=True)
class Said:
    """What is checked of an answer."""

    text: str
    """Without reasoning, also where a server leaves it in the text as `<think>…</think>`."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """In OpenAI's form."""

    @staticmethod
    def of(text: str, tool_calls: tuple[Mapping[str, Any], ...] = ()) -> Said:
        return Said(_THOUGHTS.sub("", text[:LONGEST_TEXT], count=1).strip(), tool_calls)


class CheckError(Exception):
    """A check could not be carried out, which says nothing of the answer. Its text: which, where, and why; of any
    length, with whatever a checker's exception says (`foreign.fit_line`)."""


Holds: TypeAlias = Callable[[Said], bool]
"""Whether an answer is right. Raises CheckError where that can't be told."""
Maker: TypeAlias = Callable[[Any, Mapping[str, Any]], Holds]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that an answer must be."""

    kind: str
    """Key of CHECKS; what a failed turn's record says."""
    holds: Holds
    written: str
    """As the file has it: JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check."""

    meaning: str
    make: Maker
    """(value, options) -> the check. Raises ValueError for what can't be checked."""
    options: Mapping[str, type | tuple[type, ...]]


def make_check(written: object, *, allow_code: bool = False) -> Check:
    """A check from its written form. Raises ValueError that says what is wrong with it."""
    if not isinstance(written, dict) or not written:
        raise ValueError(f'a check is an object such as {{"contains": "Paris"}}, not {_short(written)}')
    name = next(iter(written))
    if name not in CHECKS:
        raise ValueError(f"a check begins with its kind, and {_short(name)} is none; kinds: {', '.join(CHECKS)}")
    kind, options = CHECKS[name], {key: value for key, value in written.items() if key != name}
    for key, value in options.items():
        wanted = kind.options.get(key)
        if wanted is None:
            there = ", ".join(kind.options) or "none"
            raise ValueError(f"{name} has no option {key!r}; options: {there}")
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ValueError(f"{name}: option {key!r} can't be {_short(value)}")
    if name == "callable" and not allow_code:
        raise ValueError("callable runs code on the workers; set allow_code = true in [quality] if it is yours")
    return Check(name, kind.make(written[name], options), _as_written(written))


def _as_written(check: Mapping[str, Any]) -> str:
    """Dates, which TOML has and JSON has not, as texts."""
    try:
        return json.dumps(check, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return _short(check)


def normalised(text: str) -> str:
    """For comparison: compatibility forms (full-width digits too), case, white space, and punctuation at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_ENDS)


# ------------------------------------------------------------------------------------------------------------- text


def _texts(value: object) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else ()
    if not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"needs a text or a list of texts, not {_short(value)}")
    return found


def _folded(text: str, options: Mapping[str, Any]) -> str:
    text = unicodedata.normalize("NFKC", text)
    return text if options.get("case") else text.casefold()


def _contains(value: Any, options: Mapping[str, Any]) -> Holds:
    wanted = [_folded(text, options) for text in _texts(value)]
    enough = any if options.get("any") else all
    return lambda said: enough(text in _folded(said.text, options) for text in wanted)


def _not_contains(value: Any, options: Mapping[str, Any]) -> Holds:
    unwanted = [_folded(text, options) for text in _texts(value)]
    return lambda said: not any(text in _folded(said.text, options) for text in unwanted)


def _regex(value: Any, options: Mapping[str, Any]) -> Holds:
    (text,) = _texts(value)
    try:
        pattern = re.compile(text, 0 if options.get("case") else re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"regex {_short(text)} can't be read: {error}") from None
    find = pattern.fullmatch if options.get("whole") else pattern.search
    return lambda said: find(said.text) is not None


def _equals(value: Any, options: Mapping[str, Any]) -> Holds:
    wanted = frozenset(map(normalised, _texts(value)))
    return lambda said: normalised(said.text) in wanted


def _length(value: Any, options: Mapping[str, Any]) -> Holds:
    least, most = options.get("min", 0), options.get("max", math.inf)
    if value not in _MEASURES:
        raise ValueError(f"length counts {' or '.join(_MEASURES)}, not {_short(value)}")
    if not options or least < 0 or most < least:
        raise ValueError("length needs min or max, and max at or above min")
    count = _MEASURES[value]
    return lambda said: bool(least <= count(said.text) <= most)


_MEASURES: dict[str, Callable[[str], int]] = {
    "chars": len,
    "words": lambda text: len(text.split()),
    "lines": lambda text: sum(1 for line in text.splitlines() if line.strip()),
}


# ---------------------------------------------------------------------------------------------------- numbers, JSON


def _number(value: Any, options: Mapping[str, Any]) -> Holds:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"number needs a finite number, not {_short(value)}")
    within, take = options.get("within", 0), options.get("take", "last")
    if take not in ("first", "last", "only") or within < 0:
        raise ValueError("number: take is first, last or only, and within is not below 0")

    def holds(said: Said) -> bool:
        found = numbers_in(said.text)
        if not found or (take == "only" and len(found) > 1):
            return False
        # A tolerance that is written in decimals must take its own border.
        return bool(abs(found[0 if take == "first" else -1] - value) <= within + 1e-9 * max(1.0, abs(value)))

    return holds


def numbers_in(text: str) -> list[float]:
    """Numbers as people write them: `1,024`, `-3.5`, `２０`; not the digits of a word (`B12`)."""
    text = unicodedata.normalize("NFKC", text).replace("−", "-")
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


def _json(value: Any, options: Mapping[str, Any]) -> Holds:
    if value not in ("value", "object", "array"):
        raise ValueError(f"json is value, object or array, not {_short(value)}")
    required, schema = options.get("required", []), options.get("schema")
    if not all(isinstance(name, str) for name in required):
        raise ValueError("json: required is a list of names")
    if schema is not None and (faults := faults_of_schema(schema)):
        raise ValueError(f"json: {faults[0]}")
    kind = {"object": dict, "array": list, "value": object}[value]

    def holds(said: Said) -> bool:
        try:
            found = json_in(said.text, strict=bool(options.get("bare")))
        except ValueError:
            return False
        if not isinstance(found, kind) or (required and not isinstance(found, dict)):
            return False
        if isinstance(found, dict) and any(name not in found for name in required):
            return False
        if "equals" in options and not same(found, options["equals"]):
            return False
        return schema is None or fits(found, schema)

    return holds


def json_in(text: str, *, strict: bool = False) -> object:
    """The JSON of an answer: all of it, or what stands in its only fence. Raises ValueError where there is none.

    `strict`: all of it, as a program that reads the answer would want it.
    """
    fences = _FENCE.findall(text)
    if not strict and len(fences) == 1:
        text = fences[0]
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def same(found: object, wanted: object) -> bool:
    """Equal as JSON: numbers by value, true is not 1, texts but for case and outer blanks."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted
    if isinstance(found, str) and isinstance(wanted, str):
        return normalised(found) == normalised(wanted)
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found is None and wanted is None


# -------------------------------------------------------------------------------------------------- tools, own code


def _tool(value: Any, options: Mapping[str, Any]) -> Holds:
    (name,) = _texts(value)
    wanted: dict[str, Any] = options.get("arguments", {})
    only = bool(options.get("only"))

    def holds(said: Said) -> bool:
        calls = [call["function"] for call in said.tool_calls if isinstance(call.get("function"), Mapping)]
        if only and len(calls) != 1:
            return False
        return any(call.get("name") == name and _has_arguments(call.get("arguments"), wanted) for call in calls)

    return holds


def _has_arguments(written: object, wanted: Mapping[str, Any]) -> bool:
    """Whether a call's arguments are an object that has these, and maybe more."""
    try:
        given = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        return False
    if not isinstance(given, dict):
        return False
    return all(key in given and same(given[key], value) for key, value in wanted.items())


def _no_tool(value: Any, options: Mapping[str, Any]) -> Holds:
    if value is not True:
        raise ValueError('no_tool is written {"no_tool": true}')
    return lambda said: not said.tool_calls


def _callable(value: Any, options: Mapping[str, Any]) -> Holds:
    (written,) = _texts(value)
    module, colon, name = written.partition(":")
    if not colon or not module or not name.isidentifier():
        raise ValueError(f'callable is written "module:function", not {_short(written)}')
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module of somebody else's may raise anything
        raise ValueError(f"callable {written}: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise ValueError(f"callable {written}: is no function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError(f"callable {written}: is async or a generator; a plain function returns True or False")

    def holds(said: Said) -> bool:
        try:
            found = function(said.text, [dict(call) for call in said.tool_calls])
            if found is not None and not inspect.isawaitable(found):
                return bool(found)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit() of a checker must not end a worker
            raise CheckError(f"callable {written}{_place(error, module)}: {_why(error, said.text)}") from None
        what = "None" if found is None else type(found).__name__
        raise CheckError(f"callable {written}: returned {what}, not True or False")

    return holds


def _place(error: BaseException, module: str) -> str:
    """`, line 12 of checks.py`: the last line of the checker's own module that was reached."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if PurePath(frame.filename).stem == module.rpartition(".")[2]] or frames
    return f", line {own[-1].lineno} of {PurePath(own[-1].filename).name}" if own else ""


def _why(error: BaseException, answer: str) -> str:
    """What an exception says, without the answer, which many a message quotes."""
    words = str(error)
    # A short answer may be part of any sentence: it is left out only where it is quoted as such.
    for quoted in (repr(answer), repr(answer)[1:-1], answer) if len(answer) >= SHORT_ANSWER else (repr(answer),):
        words = words.replace(quoted, "<the answer>")
    return f"{type(error).__name__}: {words}" if words.strip() else type(error).__name__


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


_CASE: dict[str, type | tuple[type, ...]] = {"case": bool}

CHECKS: Mapping[str, Kind] = {
    "contains": Kind("holds the text; of a list all, or with `any` one of them", _contains, {**_CASE, "any": bool}),
    "not_contains": Kind("holds none of the texts", _not_contains, _CASE),
    "regex": Kind("the pattern is found in it; with `whole` it is all of it", _regex, {**_CASE, "whole": bool}),
    "equals": Kind("is one of the texts, but for case, blanks and punctuation at its ends", _equals, {}),
    "number": Kind(
        "its last number (`take`: first, last, only) is this one, or no further from it than `within`",
        _number,
        {"within": (int, float), "take": str},
    ),
    "json": Kind(
        "is JSON (value, object or array), alone or in one fence (`bare`: alone), with the keys `required`, equal to "
        "`equals`, fitting `schema`",
        _json,
        {"required": list, "schema": dict, "equals": (dict, list, str, int, float), "bare": bool},
    ),
    "tool": Kind(
        "calls the function, with these `arguments` among others (`only`: and nothing else)",
        _tool,
        {"arguments": dict, "only": bool},
    ),
    "no_tool": Kind("calls no function", _no_tool, {}),
    "length": Kind("has from `min` to `max` chars, words or lines", _length, {"min": int, "max": int}),
    "callable": Kind("`module:function` says so: function(text, tool_calls) -> bool; runs code", _callable, {}),
}
"""Every kind of check by name."""
