"""Which way each channel's synthesised prompts get their lengths, and what it found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from infersiege.channels import PROFILES
from infersiege.doctor import SKIPPED, targets
from infersiege.doctor.lengths import served_by
from infersiege.doctor.target import Target
from infersiege.errors import InfersiegeError, TargetError
from infersiege.plan.schema import Channel, Plan, Workload
from infersiege.records import BlockText, Session, TextLengths, WrittenPrompts
from infersiege.redact import api_key
from infersiege.rundir import ChannelFacts
from infersiege.tokens.endpoint import EndpointCounter
from infersiege.tokens.frame import Asker, calibrated, framed
from infersiege.tokens.local import LocalTokenizer
from infersiege.tokens.probe import CountError, Probe
from infersiege.traces import Synthesizer, Trace
from infersiege.traces.synthesis.material import Material, key_of
from infersiege.traces.synthesis.text import USUAL_LENGTHS

_SAMPLED: Final = 8
"""Sessions of a trace that are looked at: all of one are made by the same reader from rows of one kind."""

_HINTS: Final[Mapping[str, str]] = {
    "tokenizer": "name the model's own tokenizer.json in channel.tokenizer, or leave text_lengths out",
    "endpoint": "text_lengths = 'calibrated' asks for nothing but small prompts; auto takes whatever there is",
    "calibrated": "text_lengths = 'ratio' asks nothing; tokenizer = 'tokenizer.json' counts here",
}


class TextMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What was found before the load."""

    lengths: dict[str, dict[str, TextLengths]]
    """Channel -> language; only those in which a workload's texts are written."""
    written: dict[str, WrittenPrompts]
    """Scenario -> how its prompts got their lengths; only of those whose prompts are written here, every one."""
    lines: tuple[str, ...]
    """One for each, and why a better way was not taken: to be printed."""


def text_channel(plan: Plan, workload: Workload) -> str:
    """The channel whose tokenizer a workload's texts go by: of a hybrid one its first part, for all parts.

    One text for all, or they would not be compared on the same one.
    """
    name = workload.channel or next(iter(plan.channels))
    return served_by(plan, name, workload.scenario)[0] if name in plan.hybrids else name


def synthesises(trace: Trace) -> bool:
    """Whether any text of a trace is written here."""
    return any(turn.answer_text or any(turn.texts) for session in _some(trace) for turn in session.all_turns())


def wholly_synthesised(trace: Trace, workload: Workload) -> bool:
    """Whether the length of each of its prompts is ours to make: no recorded messages, tools or live answers."""
    generated = trace.format == "builtin"
    for session in _some(trace):
        turns = tuple(session.all_turns())
        if session.tools or any(turn.tools for turn in turns):
            return False
        if workload.history == "live" and len(turns) > 1:
            return False
        texts = (turn.texts if any(turn.texts) else (None,) for turn in turns)
        if not generated and any(text is None for of_turn in texts for text in of_turn):
            return False
    return True


def _some(trace: Trace) -> Iterator[Session]:
    count = _SAMPLED if trace.sessions is None else min(_SAMPLED, trace.sessions)
    return (trace.session(index) for index in range(count))


def measured(
    plan: Plan,
    traces: Sequence[Trace],
    channels: Mapping[str, ChannelFacts],
    environ: Mapping[str, str],
    *,
    salt: str | None = None,
    asked: Callable[[str], None] | None = None,
) -> TextMeasures:
    """Find out how long the plan's texts are, for each channel and language that has some.

    `traces`: of its workloads. `salt`: what the run's prompts begin with, so that it is counted itself. `asked` is told
    the channel of each request after it.
    Channels that nobody was asked about (`--skip-doctor`) are asked nothing here either. What fails is left for the
    next way; raises TargetError when a way that the plan names can't be gone.
    """
    lengths: dict[str, dict[str, TextLengths]] = {}
    lines: list[str] = []
    servers: dict[str, Channel] = {}
    for name, _, server in targets(plan):
        servers.setdefault(name, server)
    for workload, trace in zip(plan.workloads, traces, strict=True):
        name = text_channel(plan, workload)
        of_channel = lengths.setdefault(name, {})
        if workload.language in of_channel or not synthesises(trace):
            continue
        way = _Way(name, servers[name], plan, channels[name], environ, salt)
        way.asked = None if asked is None else partial(asked, name)
        of_channel[workload.language] = way.go(workload.language)
        lines += way.lines
    for workload, trace in zip(plan.workloads, traces, strict=True):
        known = lengths[text_channel(plan, workload)].get(workload.language)
        if known is not None:
            lines += _short_blocks(plan, workload, trace, known)
    return TextMeasures(
        lengths={name: found for name, found in lengths.items() if found},
        written=_written(plan, traces, lengths),
        lines=tuple(lines),
    )


def _short_blocks(plan: Plan, workload: Workload, trace: Trace, known: TextLengths) -> Iterator[str]:
    """A line where hash blocks have no room for what a text begins with."""
    sizes = [
        text.tokens[0]
        for session in _some(trace)
        for turn in session.all_turns()
        for text in turn.texts
        if text is not None and len(text.ids) > 1
    ]
    if not sizes:
        return
    synthesizer = Synthesizer(plan.run.seed, lengths={workload.language: known})
    wanted = sum(synthesizer.least_tokens("infersiege", ident, workload.language) for ident in range(64)) / 64
    if min(sizes) < wanted:
        scale = math.ceil(workload.length_scale * wanted / min(sizes) * 1000) / 1000
        yield (
            f"{workload.scenario}: blocks of {min(sizes)} tokens are shorter than a text's first words (about "
            f"{wanted:.0f}): prompts will be longer than asked; length_scale = {scale:g} gives them room"
        )


def _written(
    plan: Plan, traces: Sequence[Trace], lengths: Mapping[str, Mapping[str, TextLengths]]
) -> dict[str, WrittenPrompts]:
    found: dict[str, WrittenPrompts] = {}
    others: set[str] = set()
    for workload, trace in zip(plan.workloads, traces, strict=True):
        known = lengths[text_channel(plan, workload)].get(workload.language)
        if known is None or not wholly_synthesised(trace, workload):
            others.add(workload.scenario)
            continue
        shortest = BlockText(scope="infersiege", ids=(0,), tokens=(1,), language=workload.language)
        least = Synthesizer(plan.run.seed, lengths={workload.language: known}).tokens(shortest) + known.request_tokens
        least += 0.0 if workload.salt is False else known.salt_tokens
        before = found.get(workload.scenario)
        methods = {known.method, *(before.method.split(", ") if before else ())}
        found[workload.scenario] = WrittenPrompts(
            method=", ".join(sorted(methods)), least_tokens=max(least, before.least_tokens if before else 0.0)
        )
    return {scenario: one for scenario, one in found.items() if scenario not in others}


class _Way:
    """One channel and language."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        plan: Plan,
        facts: ChannelFacts,
        environ: Mapping[str, str],
        salt: str | None,
    ) -> None:
        self._name, self._channel, self._plan, self._facts, self._environ = name, channel, plan, facts, environ
        self._salt = salt
        self._may_ask = facts.details.get("doctor") != SKIPPED
        self.asked: Callable[[], None] | None = None
        self._told: Target | None = None
        self._asker: Asker | None = None
        self.lines: list[str] = []

    def go(self, language: str) -> TextLengths:
        """The named way, or the first of those that can be gone. Raises TargetError."""
        ways: dict[str, Callable[[str], TextLengths]] = {
            "tokenizer": self._by_tokenizer,
            "endpoint": self._by_endpoint,
            "calibrated": self._by_calibration,
        }
        asked = self._channel.text_lengths
        if asked == "ratio":
            return self._by_ratio(language)
        names = tuple(ways) if asked == "auto" else (asked,)
        for name in names:
            if not self._may_ask and name != "tokenizer":
                continue
            if name == "tokenizer" and self._channel.tokenizer is None:
                continue
            if name == "endpoint" and PROFILES[self._channel.engine].tokenizer is None:
                continue
            try:
                return ways[name](language)
            except CountError as error:
                # A tokenizer.json that the plan names is meant to be used.
                if asked != "auto" or name == "tokenizer":
                    raise TargetError(
                        f"channel {self._name}: prompt lengths can't go by {name}: {error}", hint=_HINTS[name]
                    ) from None
                self.lines.append(f"{self._name}: prompt lengths do not go by {name}: {error}")
        return self._by_ratio(language)

    def _by_tokenizer(self, language: str) -> TextLengths:
        path = Path(self._channel.tokenizer or "")
        probe = Probe(Material(key_of(self._plan.run.seed), language), self._salt)
        found = probe.lengths(LocalTokenizer(path).begun(probe.text, probe.offsets), "tokenizer")
        return self._with_frame(found, language, f"{path.name}")

    def _by_endpoint(self, language: str) -> TextLengths:
        endpoint = PROFILES[self._channel.engine].tokenizer
        assert endpoint is not None
        counter = EndpointCounter(self._target(), endpoint)
        probe = Probe(Material(key_of(self._plan.run.seed), language), self._salt)
        found = probe.lengths(counter.begun(probe.text, probe.offsets), "endpoint")
        return self._with_frame(found, language, f"the engine's tokenizer ({counter.url}, {counter.requests} requests)")

    def _by_calibration(self, language: str) -> TextLengths:
        found = calibrated(language, self._plan.run.seed, self._ask(), self._salt)
        self._say(language, "the server's counts", found)
        return found

    def _by_ratio(self, language: str) -> TextLengths:
        found = USUAL_LENGTHS[language]
        self._say(language, "the usual ratio", found)
        return found

    def _with_frame(self, found: TextLengths, language: str, by: str) -> TextLengths:
        """Texts are counted; what the template costs only the server tells. Without it nothing is made room for."""
        if self._may_ask:
            try:
                found = framed(found, self._ask())
            except CountError as error:
                self.lines.append(f"{self._name}: nothing is known of the chat template: {error}")
        self._say(language, by, found)
        return found

    def _say(self, language: str, by: str, found: TextLengths) -> None:
        where = "" if len({workload.language for workload in self._plan.workloads}) == 1 else f" ({language})"
        said = f"{self._name}: prompt lengths{where} by {by}: {found.chars_per_token:.2f} characters a token"
        if found.request_tokens:
            said += f", chat template {found.request_tokens:.0f} tokens"
        if self._asker is not None:
            said += f"; asked {self._asker.requests} small prompts, {self._asker.tokens:,} tokens"
        self.lines.append(said)

    def _target(self) -> Target:
        if self._told is None:
            try:
                key = api_key(self._channel, self._environ)
                self._told = Target(self._name, self._channel, key, asked=self.asked)
            except InfersiegeError as error:
                raise CountError(str(error)) from None
        return self._told

    def _ask(self) -> Asker:
        if self._asker is None:
            self._asker = Asker(self._target(), self._plan.sampling, self._facts.dropped_fields)
        return self._asker
