"""How commands that take a trace are told which one: the same options everywhere, as a plan's workload has them."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from infersiege.errors import TraceError, UsageError

if TYPE_CHECKING:
    from infersiege.traces import Trace

_MANY = 1_000_000_000

_OPTIONS = (
    click.option("--format", metavar="NAME", help="Trace format, if it can't be told from the content."),
    click.option(
        "--option", "options", multiple=True, metavar="KEY=VALUE", help="Of the format or of the built-in workload."
    ),
    click.option("--language", default="en", show_default=True, help="Of the built-in workloads, and of made-up text."),
    click.option(
        "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of what is drawn or made up."
    ),
    click.option("--limit", type=click.IntRange(1, _MANY), help="Take only so many sessions, from the front."),
    click.option(
        "--length-scale", type=float, default=1.0, metavar="X", help="Multiply prompt lengths of made-up text by this."
    ),
    click.option("--output-scale", type=float, default=1.0, metavar="X", help="Multiply output lengths by this."),
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of a trace, beside its name."""

    format: str | None
    options: tuple[str, ...]
    language: str
    seed: int
    limit: int | None
    length_scale: float
    output_scale: float

    def open(self, spec: str) -> Trace:
        """`builtin:NAME` or a path. Raises TraceError, and UsageError for options that make no sense."""
        from infersiege.traces import open_trace

        _check_name(spec)
        for option, scale in (("--length-scale", self.length_scale), ("--output-scale", self.output_scale)):
            if not 0 < scale <= 1e4:  # NaN is not either
                raise UsageError(f"{option} {scale:g}: not a number above 0 and up to 10,000")
        return open_trace(
            spec,
            format=self.format,
            seed=self.seed,
            language=self.language,
            limit=self.limit,
            options=dict(map(_pair, self.options)),
            length_scale=self.length_scale,
            output_scale=self.output_scale,
        )


def takes_trace(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options above, and their values to it as `asked`."""

    @functools.wraps(command)
    def called(*arguments: Any, **values: Any) -> None:
        asked = Asked(**{name: values.pop(name) for name in Asked.__struct_fields__})
        command(*arguments, asked=asked, **values)

    made: Callable[..., None] = called
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


class Finite(click.FloatRange):
    """click's, which takes `nan` for a number of any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no number", param, ctx)
        return number


def duration_ns(option: str, text: str) -> int:
    """The value of an option that takes a duration. Raises UsageError."""
    from infersiege.plan.values import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", hint='write it like "60s" or "2m"') from None


def _check_name(spec: str) -> None:
    """What a name on the command line may be instead of a trace's. Raises UsageError, TraceError."""
    from infersiege.traces import BUILTIN_PREFIX
    from infersiege.traces.files.source import is_missing, why_unreadable

    if not spec:
        raise UsageError("no trace is named", hint="a file, a folder, or builtin:NAME")
    if spec.startswith(BUILTIN_PREFIX):
        return
    path = Path(spec)
    if is_missing(path):
        raise TraceError(
            f"{spec}: no such trace file",
            hint="relative paths start where you are; built-in traces start with builtin:",
        )
    if path.suffix == ".toml":
        raise UsageError(
            f"{spec}: is a plan, no trace", hint="only `traces inspect` takes plans: name the plan's trace"
        )
    if path.is_symlink() and not path.exists():
        raise TraceError(f"{spec}: is a link that leads nowhere", hint="`ls -l` shows where it leads to")
    reason = why_unreadable(path)
    if reason is not None and reason.startswith("cannot be read"):
        raise TraceError(f"{spec}: {reason}", hint="check the name, and your rights in its folder")


def _pair(text: str) -> tuple[str, object]:
    """`key=value` with the value as TOML where it is that (`3`, `true`), else as it stands (`ms`)."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--option {text}: not of the form KEY=VALUE", hint="such as --option unit=s")
    try:
        parsed = tomllib.loads(f"value = {value}") if "\n" not in value else {}
    except (ValueError, RecursionError):
        parsed = {}
    return key.strip(), parsed["value"] if len(parsed) == 1 else value
