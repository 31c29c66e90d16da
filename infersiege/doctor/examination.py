"""All that is looked at of one channel: the short form before a run, and the thorough one of `infersiege doctor`."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from infersiege.doctor.answers import DROPPABLE, Answered, ask
from infersiege.doctor.findings import Check, DoctorError, Findings
from infersiege.doctor.http import Reply
from infersiege.doctor.lengths import longest_rows
from infersiege.doctor.models import EMULATED_HEADER, Models, check_model, is_the_model, read_models
from infersiege.doctor.proxies import check_proxies
from infersiege.doctor.reach import Certificate, addresses_of, handshake, presented, reach_each
from infersiege.doctor.refusals import NOT_READY, refused
from infersiege.doctor.target import Target
from infersiege.errors import InfersiegeError, UsageError
from infersiege.plan.schema import Channel, Plan, Sampling
from infersiege.redact import Secrets, api_key, scrub
from infersiege.rundir import ChannelFacts

SHORT_TOKENS: Final = 4
PACE_TOKENS: Final = 24
"""Enough to see whether chunks come one by one."""
_LISTED: Final = 50
_CLOCK_TOLERANCE_S = 5.0
_SOON_S = 14 * 86_400


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found out of one channel. Exactly one of `facts` and `error` is there."""

    channel: str
    checks: tuple[Check, ...]
    facts: ChannelFacts | None
    error: InfersiegeError | None


def examine(
    name: str,
    channel: Channel,
    sampling: Sampling,
    *,
    environ: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    channel_name: str | None = None,
    tools: bool = False,
    asked: Callable[[], None] | None = None,
) -> Examination:
    """Look at one channel once. Errors of the target, and of a key that cannot be read, are in the result.

    Without `plan`: what a run needs to know, from the list of models and one answer. With it: everything. `asked` is
    called after each request. `channel_name`: as in the plan, where `name` is one of several addresses' name. `tools`:
    the run sends some.
    """
    found = Findings(Secrets())
    looking = _Looking(name, channel, sampling, os.environ if environ is None else environ, plan, found)
    looking.channel_name = channel_name or name
    looking.tools, looking.asked = tools, asked
    try:
        facts = looking.facts()
    except InfersiegeError as error:
        check = error.check if isinstance(error, DoctorError) else None
        found.fault(check, str(error).removeprefix(f"channel {name}: "), error.hint)
        return Examination(channel=name, checks=tuple(found.checks), facts=None, error=error)
    return Examination(channel=name, checks=tuple(found.checks), facts=facts, error=None)


class _Looking:
    """One examination that is going on."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        sampling: Sampling,
        environ: Mapping[str, str],
        plan: Plan | None,
        found: Findings,
    ) -> None:
        self._name, self._channel, self._sampling = name, channel, sampling
        self._environ, self._plan, self._found = environ, plan, found
        self._noted_model: str | None = None
        self.channel_name, self.tools = name, False
        self.asked: Callable[[], None] | None = None

    def facts(self) -> ChannelFacts:
        """Make all checks. Raises InfersiegeError at the one that keeps the others from being made."""
        found, channel = self._found, self._channel
        found.going_on = "key"
        key = api_key(channel, self._environ)
        found.replace_secrets(Secrets([key] if key else []))
        found.going_on = "url"
        target = Target(self._name, channel, key, asked=self.asked)
        found.ok("url", f"{scrub(target.url)} ({target.dialect.name}, {target.profile.title})")
        if self._plan is not None:
            if target.proxy is None:
                check_proxies(found, target.place, self._environ)
                self._way(target)
            else:
                found.going_on = "proxy"
                target.way._replace(place=target.place._replace(encrypted=False)).dial().close()
                found.ok("proxy", f"requests go through {target.proxy.place}, as the plan says; it looks the name up")
            if target.place.encrypted:
                found.going_on = "tls"
                self._tls(target)
            self._key_there(target)
        models = self._models(target)
        found.going_on = "answer"
        answered = self._answer(target, models)
        if key is not None:
            found.ok("key", f"the key in {target.key_source} is not refused")
        self._remarks(target, models, answered)
        return self._facts(target, models, answered)

    # ------------------------------------------------------------------------------------------------ the way there

    def _way(self, target: Target) -> None:
        """Name, port and TLS, one after the other."""
        found, place, limit_s = self._found, target.place, target.limits.connect_s
        found.going_on = "name"
        addresses = addresses_of(place)
        found.ok("name", f"{place.host} is {', '.join(addresses)}")
        found.going_on = "port"
        reached = reach_each(place, addresses, limit_s, target.start_hint)
        closed = {address: reason for address, reason in reached.items() if reason is not None}
        opened = ", ".join(address for address, reason in reached.items() if reason is None)
        said = f"{opened} takes connections on port {place.port}"
        for address, reason in closed.items():
            said += f"; {address} does not ({reason})"
        # A name of this host often has an address of both families, and servers listen on one of them.
        if closed and not (place.host == "localhost" and set(closed.values()) == {"refused"}):
            found.warn("port", said, f"a run uses all addresses of {place.host} in turn: name one in base_url")
        else:
            found.ok("port", said)

    def _tls(self, target: Target) -> None:
        found = self._found
        try:
            version, certificate = handshake(target.way, target.tls)
        except DoctorError as error:
            if error.check != "tls":
                raise
            shown = presented(target.way)
            raise DoctorError(f"{error}" + (f" ({shown})" if shown else ""), hint=error.hint, check="tls") from None
        if target.channel.insecure:
            shown = presented(target.way)
            found.warn(
                "tls",
                f"{version}, insecure = true: nobody checks who answers" + (f" ({shown})" if shown else ""),
                'name the certificate\'s authority with ca = "file.pem" instead',
            )
            return
        said = f"{version}, certificate {certificate or 'trusted'}"
        if certificate is not None and _ends_soon(certificate):
            found.warn("tls", said, "renew it before it expires")
        else:
            found.ok("tls", said)

    def _key_there(self, target: Target) -> None:
        """The plan names a key and there is none: `run` refuses such a plan, too."""
        self._found.going_on = "key"
        variable = target.channel.api_key_env
        if variable is not None and target.key is None:
            state = "empty" if variable in self._environ else "not set"
            raise _key_missing(f"the key is missing: the environment variable {variable} is {state}", variable)

    # ------------------------------------------------------------------------------------------------ answers

    def _models(self, target: Target) -> Models | None:
        found = self._found
        found.going_on = "models"
        if target.models_url is None:
            found.ok("models", f"{target.profile.title} has no list of models")
            return None
        reply = target.fetch("GET", target.models_url)
        if reply.status == 401 or reply.status in NOT_READY:
            refused(target, reply, "the list of models")
        models = read_models(target, reply)
        if models is None or not models.names:
            found.warn("models", f"the server lists none ({reply.url} answers {reply.status})")
            return models
        self._noted_model = check_model(target, models)
        if self._noted_model is not None:
            found.warn("models", f"{target.channel.model}: {self._noted_model}")
        else:
            found.ok("models", f"{target.channel.model} is listed")
        return models

    def _answer(self, target: Target, models: Models | None) -> Answered:
        """The answer as the run asks for it; in the thorough form also the other way, streamed or not."""
        streams, thorough = target.channel.stream, self._plan is not None
        tokens = PACE_TOKENS if thorough and streams else SHORT_TOKENS
        answered = ask(target, self._sampling, stream=streams, max_tokens=tokens, tools=self.tools)
        self._tell(answered)
        if thorough:
            self._other_way(target, answered)
            self._pace(target, answered)
        return answered

    def _tell(self, answered: Answered) -> None:
        decoded = answered.decoded
        end = f", finish_reason {decoded.finish_reason}" if decoded.finish_reason else ""
        if answered.streamed:
            self._found.ok("stream", f"{answered.chunks} chunks, the first after {answered.wait_ms:.0f} ms{end}")
        else:
            self._found.ok("answer", f"in one piece{end}")
        if answered.dropped:
            effects = "; ".join(dict.fromkeys(DROPPABLE[field] for field in answered.dropped))
            self._found.warn(
                "fields",
                f"the server refuses {', '.join(answered.dropped)}: adapted, requests are sent without: {effects}",
                "take them out of the plan, so that every channel is asked the same",
            )

    def _other_way(self, target: Target, answered: Answered) -> None:
        """What the run does not need may fail: that is a warning."""
        name = "answer" if answered.streamed else "stream"
        try:
            stream, dropped = not answered.streamed, answered.dropped
            other = ask(target, self._sampling, stream=stream, max_tokens=SHORT_TOKENS, dropped=dropped)
        except DoctorError as error:
            how = "streamed" if name == "stream" else "in one piece"
            said = str(error).removeprefix(f"channel {self._name}: ")
            self._found.warn(name, f"asked {how}, which the run does not do: {said}", error.hint)
        else:
            self._tell(msgspec.structs.replace(other, dropped=tuple(set(other.dropped) - set(answered.dropped))))

    def _pace(self, target: Target, answered: Answered) -> None:
        """Chunks that come all at once were held back (ST-24). Asked twice: our own host may have been busy."""
        if not answered.streamed or not answered.tells_pace:
            return
        if answered.in_one_burst:
            again = ask(target, self._sampling, stream=True, max_tokens=PACE_TOKENS, dropped=answered.dropped)
            if again.in_one_burst:
                self._found.warn(
                    "chunks",
                    f"{again.chunks} chunks come in one burst after {again.wait_ms:.0f} ms: something holds the stream "
                    "back, so TTFT and gaps are not the server's",
                    "turn buffering off in the proxy (nginx: proxy_buffering off), or go to the engine directly",
                )
                return
        self._found.ok("chunks", f"{answered.chunks} come one by one")

    # ------------------------------------------------------------------------------------------------ what it told

    def _remarks(self, target: Target, models: Models | None, answered: Answered) -> None:
        found, decoded = self._found, answered.decoded
        for name, why in not_sent(target, self._sampling).items():
            found.warn("sampling", f"{name} is not sent: {why}")
        self._usage(target, answered)
        asked, said = target.channel.model, decoded.model
        if said is not None and not is_the_model(asked, said):
            found.warn(
                "model answered",
                f"{said} answers where {asked} was asked",
                "an alias, a router or a fallback? results would be said to be of the model that the plan names",
            )
        elif said is not None:
            found.ok("model answered", said)
        if is_emulated(answered.reply, models):
            found.ok("emulated", "infersiege's own emulator: figures say nothing of hardware")
        if self._plan is not None:
            self._clock(answered.reply)
            self._context(self._plan, models)
            self._metrics(self._plan, target)

    def _usage(self, target: Target, answered: Answered) -> None:
        found, usage = self._found, answered.decoded.usage
        if usage is None or usage.output_tokens is None:
            hint = "token counts will be estimates"
            if not target.channel.include_usage:
                hint += "; set include_usage = true"
            found.warn("usage", "the server tells no token counts", hint)
            return
        found.ok("usage", f"{usage.prompt_tokens} in, {usage.output_tokens} out")
        if usage.cached_tokens is None:
            unknown = "not told: the cache share stays unknown"
            found.warn("cached tokens", unknown, target.profile.cached_tokens_hint)
        else:
            found.ok("cached tokens", str(usage.cached_tokens))

    def _clock(self, reply: Reply) -> None:
        """The answer's Date, whole seconds, against this host's clock."""
        try:
            there = email.utils.parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):
            self._found.ok("clock", "the server tells no time")
            return
        ahead = time.time() - there
        if abs(ahead) > _CLOCK_TOLERANCE_S:
            way = "ahead of" if ahead > 0 else "behind"
            said = f"this host's clock is {abs(ahead):,.0f} s {way} the server's"
            self._found.warn("clock", said, "set both by NTP: series of other hosts are laid side by side by time")
        else:
            self._found.ok("clock", f"within {_CLOCK_TOLERANCE_S:.0f} s of the server's")

    def _context(self, plan: Plan, models: Models | None) -> None:
        found = self._found
        found.going_on = "context"
        rows = longest_rows(plan, self.channel_name)
        limit = models.context_length if models is not None else None
        if not rows:
            found.ok("context", f"{limit or 'unknown'} tokens; the traces tell no lengths to hold that against")
            return
        longest = max(rows, key=lambda row: row.tokens)
        row = f"the longest row of {longest.scenario} ({longest.turn}) has {longest.prompt_tokens:,} + "
        row += f"{longest.output_tokens:,} tokens" + (
            "" if longest.whole else ", as far as the trace was looked through"
        )
        if limit is None:
            found.ok("context", f"the server does not tell its own; {row}")
        elif longest.tokens > limit:
            found.warn(
                "context",
                f"the engine takes {limit:,} tokens, {row}: a run skips such turns, or cuts them",
                'give the engine more context, or say in the workload what to do: too_long = "skip" or "clip"',
            )
        else:
            found.ok("context", f"the engine takes {limit:,} tokens, {row}")

    def _metrics(self, plan: Plan, target: Target) -> None:
        """Whether the engine agent that the plan asks for will find something to scrape."""
        path = target.profile.metrics_path
        if not plan.telemetry.engine_metrics or path is None:
            return
        url = target.beside(path)
        try:
            reply = target.fetch("GET", url)
        except InfersiegeError as error:
            self._found.warn("engine agent", str(error).removeprefix(f"channel {self._name}: "), error.hint)
            return
        if reply.status == 200 and b"\n# TYPE" in b"\n" + reply.body:
            self._found.ok("engine agent", f"{url} has metrics")
        else:
            hint = f"start the engine with its metrics on: {target.profile.launch_hint}"
            self._found.warn("engine agent", f"{url} answers {reply.status} without metrics", hint)

    def _facts(self, target: Target, models: Models | None, answered: Answered) -> ChannelFacts:
        channel, version = target.channel, target.version()
        if version is not None:
            self._found.ok("version", version)
        left_out = not_sent(target, self._sampling)
        details = _details(models, self._noted_model, answered) | target.launch_facts()
        if channel.proxy is not None:
            details["proxy"] = f"{channel.proxy} (connect times include it)"
        if answered.dropped:
            details["dropped_fields"] = ", ".join(answered.dropped)
        return ChannelFacts(
            url=scrub(target.url),
            engine=channel.engine,
            dialect=target.dialect.name,
            model=channel.model,
            emulated=is_emulated(answered.reply, models),
            version=version,
            insecure=channel.insecure,
            streamed=channel.stream,
            dropped_fields=answered.dropped,
            details={key: target.secrets.scrub(text) for key, text in details.items()}
            | ({"not_sent": ", ".join(left_out)} if left_out else {}),
        )


def not_sent(target: Target, sampling: Sampling) -> dict[str, str]:
    """Sampling fields of the plan that this protocol has no word for -> why they are left out."""
    asked = {name for name, value in (("seed", sampling.seed), ("stop", sampling.stop)) if value}
    asked |= {name for name in ("temperature", "top_p") if getattr(sampling, name) is not None}
    return {name: why for name, why in target.dialect.left_out.items() if name in asked}


def is_emulated(reply: Reply, models: Models | None) -> bool:
    return EMULATED_HEADER in reply.headers or (models is not None and models.emulated)


def _key_missing(message: str, variable: str) -> InfersiegeError:
    """A plan error, as `run` says it."""
    return UsageError(message, hint=f"export {variable} with the key of this server")


def _ends_soon(certificate: Certificate) -> bool:
    return certificate.expires_s is not None and certificate.expires_s - time.time() < _SOON_S


def _details(models: Models | None, note: str | None, answered: Answered) -> dict[str, str]:
    decoded, usage = answered.decoded, answered.decoded.usage
    found = {
        "server": answered.reply.headers.get("server"),
        "models": ", ".join(models.names[:_LISTED]) if models is not None and models.names else None,
        "context_length": str(models.context_length) if models is not None and models.context_length else None,
        "usage": "yes" if usage is not None and usage.output_tokens is not None else "no",
        "cached_tokens": str(usage.cached_tokens) if usage is not None and usage.cached_tokens is not None else None,
        "model_answered": decoded.model,
        "model_note": note,
    }
    return {name: value for name, value in found.items() if value is not None}
