"""May runs be compared? What must be the same on both sides, taken from plan.json, and what may differ.

A gate against a baseline shows that something got slower. That is worth a failure only when nothing else changed: the
same model and prompts, the same load and sampling, the same hardware, the same client. What is compared on purpose may
differ: the engine's version and how it was started. Everything else needs `--allow`, by a word of WORDS or by the name
of one fact (`label.commit`, `plan.run.duration`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from infersiege.errors import UsageError
from infersiege.gate.rules import request_limits
from infersiege.plan.schema import Plan
from infersiege.plan.values import format_duration
from infersiege.records import Summary
from infersiege.rundir import PlanFile

NOT_KNOWN, NOT_SET = "not known", "not set"
LONGEST = 80
"""Characters of a value; longer ones are cut, with a hash."""


class Word(msgspec.Struct, frozen=True):
    """One kind of fact."""

    meaning: str
    passes: bool = False
    """A difference is what people compare runs for: it is told, and no more."""
    told_by_both: bool = False
    """Where one side does not know it, there is no difference."""
    only_for: tuple[str, ...] = ()
    """It matters only where one of these metrics is judged."""


WORDS: dict[str, Word] = {
    "model": Word("the model that a channel asks for"),
    "model_answered": Word("the model that answered, where the server tells", told_by_both=True),
    "engine": Word("engine profile and dialect of a channel"),
    "engine_version": Word("the engine's version, where it tells", passes=True),
    "engine_arguments": Word("how the engine was started, where it tells", passes=True),
    "emulated": Word("whether the target was infersiege's emulator"),
    "gpu": Word("the GPUs that were watched (telemetry/gpu.jsonl): how many of which name"),
    "host": Word("class of the host that runs the master: CPU and cores"),
    "client": Word("version of infersiege and Python"),
    "workers": Word("worker processes, and the hosts they were on"),
    "trace": Word("contents of a scenario's trace (SHA-256)"),
    "plan": Word("everything else in the plan that changes what is sent, how and for how long"),
    "load": Word("[load]: mode, users, rates, stages, warm-up, drain"),
    "sampling": Word("[sampling]"),
    "label": Word("[labels]"),
    "limits": Word("limits that single turns are held to", only_for=("goodput", "goodput_share")),
    "price": Word("prices of channels", only_for=("cost", "cost_per_million_output_tokens")),
}
"""Words of `--allow`: the first part of each fact's name."""

FREE: dict[str, str] = {
    "run.name": "a name",
    "run.nonce": "new for each run, so that no run meets the prompts of another in a cache",
    "run.repeats": "the number of runs is counted by the runs themselves",
    "run.workers": "the workers that were there are compared instead",
    "run.wait_for_workers": "over before the load",
    "slo": "the rules of these runs are held against both sides",
    "telemetry": "where series go changes no request",
    "redis": "how to reach it; the trace in it has a hash",
    "quality.keep_answers": "what is kept changes no request",
    "channel.*.base_url": "an address; a test server has another port each time",
    "channel.*.base_urls": "the same; how many replicas there are is compared",
    "channel.*.api_key_env": "a name",
    "channel.*.api_key_file": "a name",
    "channel.*.from_file": "what it said is in the plan",
    "channel.*.ca": "a file's place",
    "channel.*.insecure": "the same bytes are sent",
    "channel.*.budget": "a run that its budget ended is told by its length",
    "workload.*.trace": "a file's place; what is in it has a hash (the names of built-in ones are compared)",
    "workload.*.format": "the same sessions by another way",
    "workload.*.source": "the same sessions by another way",
}
"""Keys of the plan that may differ -> why."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that is not the same on both sides."""

    name: str
    baseline: str
    candidate: str
    passes: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.baseline} in the baseline, {self.candidate} here"


# ---------------------------------------------------------------------------------------------------------- one run


def facts_of(file: PlanFile, summary: Summary, gpus: Iterable[str]) -> dict[str, str]:
    """Name -> value of all that makes this run comparable to others. `gpus`: names of the GPUs that were watched.

    Raises RunDirectoryError when the plan can't be read. No secret, prompt, address or file's place is in it.
    """
    plan = file.typed_plan()
    found: dict[str, str] = {"emulated": "yes" if summary.emulated else "no"}
    for name, channel in file.channels.items():
        found[f"model.{name}"] = channel.model
        found[f"engine.{name}"] = f"{channel.engine}, {channel.dialect}"
        if channel.version is not None:
            found[f"engine_version.{name}"] = channel.version
        for detail, value in channel.details.items():
            if detail == "model_answered":
                found[f"model_answered.{name}"] = value
            elif detail.startswith("launch.") or detail == "context_length":
                found[f"engine_arguments.{name}.{detail.removeprefix('launch.')}"] = value
    watched = Counter(gpus)
    if watched:
        found["gpu"] = ", ".join(f"{count} x {name}" for name, count in sorted(watched.items()))
    found |= {f"host.{name}": file.host[name] for name in ("cpu", "cores") if name in file.host}
    if "infersiege" in file.versions:
        found["client.infersiege"] = file.versions["infersiege"]
    if "python" in file.versions:
        found["client.python"] = ".".join(file.versions["python"].split(".")[:2])
    found["workers"] = str(len(file.workers))
    if file.workers:
        found["workers.hosts"] = str(len({worker.host for worker in file.workers}))
    found |= {f"trace.{scenario}": digest for scenario, digest in file.trace_hashes.items()}
    found |= dict(_planned(plan))
    if limits := request_limits(plan.slos):
        found["limits"] = _text(sorted(msgspec.to_builtins(limits), key=str))
    return {name: _shortened(value) for name, value in found.items()}


def unusable(summary: Summary) -> tuple[str, ...]:
    """Why the figures of this run are none to compare; empty: they are."""
    reasons = list(summary.invalid)
    if summary.interrupted:
        reasons.append("it was interrupted")
    return tuple(dict.fromkeys(reasons))


def _planned(plan: Plan) -> Iterator[tuple[str, str]]:
    """Facts of the plan, without those of FREE and those that have a word of their own."""
    values = msgspec.to_builtins(plan)
    yield from _flat("load", values["load"])
    yield from _flat("sampling", values["sampling"])
    yield from _flat("label", values["labels"])
    yield from _flat("plan.run", _bound("run.", values["run"]))
    for name, channel in values["channels"].items():
        yield from _flat(f"price.{name}", channel.pop("price"))
        yield f"plan.channel.{name}.replicas", str(len(plan.channels[name].addresses))
        told = {key: value for key, value in channel.items() if key not in _TOLD}
        told |= {"tokenizer": _file_name(channel["tokenizer"]), "proxy": channel["proxy"] and _digest(channel["proxy"])}
        yield from _flat(f"plan.channel.{name}", _bound("channel.*.", told))
    yield from _flat("plan.hybrid", values["hybrids"])
    for workload in values["workloads"]:
        name = ".".join(filter(None, (workload.pop("scenario"), workload["channel"])))
        if workload["trace"].startswith("builtin:"):
            yield f"trace.{name}.builtin", workload["trace"]
        yield from _flat(f"plan.workload.{name}", _bound("workload.*.", workload))
    if quality := values["quality"]:
        yield from _flat("plan.quality", _bound("quality.", quality | {"file": _file_name(quality["file"])}))


_TOLD = ("model", "engine", "dialect")
"""Of a channel: facts with words of their own."""


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dotted names as the plan's keys are written; what is not set has none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key.removesuffix('_ns')}", _duration(inner) if key.endswith("_ns") else inner)
    elif value not in (None, [], ()):
        yield name, _text(value)


def _bound(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a table of the plan that may not differ."""
    return {key: value for key, value in table.items() if f"{where}{key.removesuffix('_ns')}" not in FREE}


def _duration(value: Any) -> Any:
    return format_duration(value) if isinstance(value, int) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _file_name(path: str | None) -> str | None:
    return path if path is None or path.startswith("builtin:") else PurePath(path).name


def _digest(text: str) -> str:
    return f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _shortened(text: str) -> str:
    """On one line; long values (a text in extra_body) by their beginning and a hash."""
    line = " ".join(text.split())
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST // 2]}… ({_digest(text)})"


# ----------------------------------------------------------------------------------------------------- both sides


def differences(
    baseline: Sequence[Mapping[str, str]],
    candidate: Sequence[Mapping[str, str]],
    *,
    allowed: Iterable[str] = (),
    strict: bool = False,
    metrics: Iterable[str] = (),
) -> tuple[Difference, ...]:
    """Facts that are not the same in all runs, in the order of WORDS.

    `allowed`: words or names of facts that may differ (`allowed_words`). `strict`: what would pass by itself does not.
    `metrics`: that are judged; some facts matter only to some.
    """
    free, judged = set(allowed), set(metrics)
    found = []
    names = dict.fromkeys(name for run in (*baseline, *candidate) for name in run)
    for name in sorted(names, key=lambda name: list(WORDS).index(name.partition(".")[0])):
        word = WORDS[name.partition(".")[0]]
        if word.only_for and not judged.intersection(word.only_for):
            continue
        before, now = ({run.get(name) for run in side} for side in (baseline, candidate))
        told = (before | now) - {None} if word.told_by_both else before | now
        if len(told) < 2:
            continue
        passes = (word.passes and not strict) or any(_starts(name, one) for one in free)
        found.append(Difference(name=name, baseline=_values(name, before), candidate=_values(name, now), passes=passes))
    return tuple(found)


def allowed_words(texts: Iterable[str]) -> tuple[str, ...]:
    """What `--allow` was given: words or names of facts, with commas between them. Raises UsageError."""
    named = [[word.strip() for word in text.split(",") if word.strip()] for text in texts]
    if not all(named):
        raise UsageError("--allow: no word is named: is a variable not set?", hint=f"words are {', '.join(WORDS)}")
    words = [word for one in named for word in one]
    for word in words:
        if word.partition(".")[0] not in WORDS:
            near = difflib.get_close_matches(word, WORDS, n=1)
            raise UsageError(
                f"--allow {word}: there is no such word" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"words are {', '.join(WORDS)}; or the whole name of a fact, such as label.commit",
            )
    return tuple(dict.fromkeys(words))


def _starts(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}.")


def _values(name: str, values: Iterable[str | None]) -> str:
    """Of the runs of one side; more than one where they differ among themselves."""
    absent = NOT_SET if name.partition(".")[0] in _WRITTEN else NOT_KNOWN
    return " and ".join(sorted(absent if value is None else value for value in values))


_WRITTEN = ("plan", "load", "sampling", "label", "limits", "price")
"""Facts that somebody wrote; others were seen."""
