"""What one channel's server says when asked: its models, its version, and one small answer."""

from __future__ import annotations

import os
import ssl
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec

from infersiege.channels import DIALECTS, PROFILES, Dialect, Profile
from infersiege.channels.dialect import TEXT, Decoded
from infersiege.channels.faults import ServerError, server_error
from infersiege.channels.profiles import key_headers
from infersiege.channels.url import endpoint_url, models_url, root_url
from infersiege.doctor.http import Limits, NotReadyError, Reply, fetch, tls_context
from infersiege.errors import InfersiegeError, TargetError
from infersiege.plan.schema import Channel, Sampling
from infersiege.redact import Secrets
from infersiege.wire.sse import EventStream

MAX_TOKENS = 4
_NOT_READY = frozenset({502, 503, 504})
_QUOTED = 200


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of models tells. None: it does not."""

    names: tuple[str, ...]
    context_length: int | None
    """Of the model that the plan asks for."""
    emulated: bool
    headers: dict[str, str]


class Probe:
    """Asks one server. Every method raises TargetError with one line that tells place, what was seen, what to try."""

    def __init__(self, name: str, channel: Channel, key: str | None, limits: Limits) -> None:
        """`channel` has its defaults filled in. Raises UsageError for a base URL that is none."""
        self.name = name
        self.channel = channel
        self.profile: Profile = PROFILES[channel.engine]
        self.dialect: Dialect = DIALECTS[channel.dialect or self.profile.default_dialect]
        self.secrets = Secrets([key] if key else [])
        self.limits = limits
        base = channel.base_url or ""
        self.url = endpoint_url(base, self.dialect.path)
        self._models_url = models_url(base) if self.profile.models_path else None
        version = self.profile.version_path
        self._version_url = root_url(base, version) if version else None
        self._key = key
        self._tls: ssl.SSLContext = tls_context(channel.ca, channel.insecure)

    def fail(self, message: str, hint: str | None = None, *, ready: bool = True) -> NoReturn:
        """Raise a TargetError of this channel, without secrets."""
        kind = TargetError if ready else NotReadyError
        raise kind(
            self.secrets.scrub(f"channel {self.name}: {message}"), hint=self.secrets.scrub(hint) if hint else None
        )

    def _said(self, text: str) -> str:
        """What the server said, on one line and short. Scrubbed first: a cut key would not be known as one."""
        shown = "".join(char for char in " ".join(self.secrets.scrub(text).split()) if char.isprintable())
        return shown[:_QUOTED] + ("…" if len(shown) > _QUOTED else "")

    def _quote(self, body: bytes) -> str:
        return repr(self._said(body.decode("utf-8", "replace")))

    def models(self) -> Models | None:
        """The models that the server lists; None if it has no such list (then the chat decides)."""
        if self._models_url is None:
            return None
        reply = self._fetch("GET", self._models_url)
        if reply.status == HTTPStatus.UNAUTHORIZED or reply.status in _NOT_READY:
            self.refused(reply, "the list of models")
        value = _json(reply.body)
        if reply.status != HTTPStatus.OK or not isinstance(value, dict):
            return None
        rows = value.get("data")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        names = tuple(row["id"] for row in rows if isinstance(row.get("id"), str))
        asked = next((row for row in rows if row.get("id") == self.channel.model), rows[0] if len(rows) == 1 else {})
        owner = " ".join(str(row.get("owned_by")) for row in rows)
        return Models(
            names=names,
            context_length=_context_length(asked),
            emulated=_says_emulated(reply) or "infersiege" in owner,
            headers=dict(reply.headers),
        )

    def check_model(self, models: Models) -> str | None:
        """Hold the plan's model against the list: what to note, or None. Raises TargetError where it can't work."""
        asked = self.channel.model
        if not models.names or asked in models.names:
            return None
        near = get_close_matches(asked, models.names, n=3, cutoff=0.4)
        listed = _some(models.names)
        if self.profile.checks_model and self.profile.default_port is not None:
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            self.fail(
                f"the server has no model {asked!r}; it has {listed}", f"{hint}set model in [channel.{self.name}]"
            )
        if not self.profile.checks_model:
            return f"{self.profile.title} answers to any model name; it serves {listed}"
        return f"not in its list of models ({listed})"

    def version(self) -> str | None:
        """The engine's version, where it tells. Never raises: it is a nicety."""
        if self._version_url is None or self.profile.version_key is None:
            return None
        try:
            reply = self._fetch("GET", self._version_url)
        except InfersiegeError:
            return None
        value = _json(reply.body)
        version = (
            value.get(self.profile.version_key) if isinstance(value, dict) and reply.status == HTTPStatus.OK else None
        )
        return self.secrets.scrub(version)[:100] if isinstance(version, str) and version else None

    def chat(self, sampling: Sampling) -> tuple[Reply, Decoded]:
        """One small answer, asked as the run will ask, with a prompt that no workload has."""
        channel = self.channel
        extra = dict(channel.extra_body)
        max_tokens = max(MAX_TOKENS, self.dialect.least_output_tokens)
        if channel.ignore_eos and self.profile.ignore_eos_fields is not None:
            extra = self.profile.ignore_eos_fields(max_tokens) | extra
        body = self.dialect.request_body(
            model=channel.model,
            messages=[{"role": "user", "content": f"Preflight {os.urandom(6).hex()}: say one word."}],
            tools=None,
            max_tokens=max_tokens,
            stream=channel.stream,
            include_usage=channel.include_usage,
            sampling={
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
                "stop": list(sampling.stop),
            },
            extra=extra,
        )
        reply = self._fetch("POST", self.url, body)
        if reply.status != HTTPStatus.OK:
            self.refused(reply, "a small request")
        if reply.encoding is not None:
            self.fail(
                f"{self.url} answers with content-encoding {self._said(reply.encoding)}, which nobody asked for",
                "a proxy packs it: turn that off for this path, packed streams come late and in lumps",
            )
        decoded = self._streamed(reply) if channel.stream else self._whole(reply)
        told = decoded.usage.output_tokens if decoded.usage is not None else None
        if decoded.fault is not None:
            self.fail(
                f"{self.url} answers 200 and then an error: {self._said(decoded.fault.detail)}",
                "the server's log tells more",
                ready=False,
            )
        if not (decoded.text or decoded.reasoning or decoded.refusal or decoded.tool_calls or told):
            end = f" (finish_reason {decoded.finish_reason})" if decoded.finish_reason else ""
            cut = f", and {reply.cut}" if reply.cut else ""
            self.fail(f"{self.url} answers 200 without any text{end}{cut}", "does this model answer to chat requests?")
        return reply, decoded

    def not_sent(self, sampling: Sampling) -> dict[str, str]:
        """Sampling fields of the plan that this protocol has no word for -> why they are left out."""
        asked = {name for name, value in (("seed", sampling.seed), ("stop", sampling.stop)) if value}
        asked |= {name for name in ("temperature", "top_p") if getattr(sampling, name) is not None}
        return {name: why for name, why in self.dialect.left_out.items() if name in asked}

    def _streamed(self, reply: Reply) -> Decoded:
        if reply.content_type != "text/event-stream":
            self._not_a_stream(reply)
        events = EventStream()
        decoder = self.dialect.decoder()
        flags = 0
        for payload in events.feed(reply.body) + events.close():
            try:
                flags |= decoder.feed(payload)
            except ValueError:
                self.fail(
                    f"{self.url} streams what is no JSON: {self._quote(payload)}",
                    f"is dialect {self.dialect.name} right for this server?",
                )
        decoded = decoder.decoded()
        if reply.cut and not flags & TEXT and decoded.fault is None:
            self.fail(f"{self.url} begins to stream but {reply.cut}", "the server's log tells more", ready=False)
        return decoded

    def _whole(self, reply: Reply) -> Decoded:
        if _is_html(reply):
            self._html(reply)
        if reply.cut:
            self.fail(f"{self.url}: the answer was cut: {reply.cut}", ready=False)
        try:
            return self.dialect.decode_whole(reply.body)
        except ValueError as error:
            self.fail(
                f"{self.url} answers 200 with no answer of {self.dialect.name} ({error}): {self._quote(reply.body)}",
                "is base_url that of an LLM server?",
            )

    def _not_a_stream(self, reply: Reply) -> NoReturn:
        if _is_html(reply):
            self._html(reply)
        if not reply.body.strip():
            self.fail(
                f"{self.url} answers 200 with an empty body ({reply.content_type or 'no content type'})",
                reply.cut or "is base_url that of an LLM server?",
            )
        value = _json(reply.body)
        error = server_error(value)
        if error is not None:
            self.fail(
                f"{self.url} answers 200 with an error: {self._said(error.describe())}", "the server's log tells more"
            )
        if isinstance(value, dict) and _is_whole_answer(value):
            self.fail(
                f"{self.url} answers in one piece ({reply.content_type}) although a stream was asked for",
                "does a proxy collect it? stream = false measures it without TTFT and TPOT",
            )
        self.fail(
            f"{self.url} answers 200 with {reply.content_type or 'no content type'} instead of a stream: "
            f"{self._quote(reply.body)}",
            "is base_url that of an LLM server?",
        )

    def _html(self, reply: Reply) -> NoReturn:
        self.fail(
            f"{reply.url} answers {reply.status} with a web page: this is no LLM API",
            "a user interface, a log-in page or a proxy? base_url must be that of the API",
        )

    def refused(self, reply: Reply, what: str) -> NoReturn:
        """Raise what an HTTP status other than 200 means."""
        status = reply.status
        error = server_error(_json(reply.body))
        said = (
            f": {self._said(error.describe())}"
            if error
            else f": {self._quote(reply.body)}"
            if reply.body.strip()
            else ""
        )
        if reply.encoding is not None:
            said = f" (content-encoding {self._said(reply.encoding)}, not asked for)"
        elif _is_html(reply):
            said = " (a web page)"
        seen = f"{reply.url} answers {status} to {what}{said}"
        if status in (401, 403):
            self._key_refused(seen)
        if status in (404, 405, 410):
            self._not_found(reply, seen, error)
        if 300 <= status < 400:
            self.fail(
                f"{seen} and points to {reply.headers.get('location', 'nowhere')}", "put that address into base_url"
            )
        if status in (402, 429):
            wait = reply.headers.get("retry-after")
            self.fail(seen, "a rate limit or a quota" + (f"; it says to wait {wait} s" if wait else ""))
        if status >= 500:
            self.fail(seen, "is it still loading, or overloaded? its log tells more", ready=status not in _NOT_READY)
        hint = "the server takes no such request; its message says why"
        if "stream_options" in said:
            hint = "set include_usage = false (token counts are then estimates)"
        elif self.channel.extra_body or self.channel.ignore_eos:
            hint = "does it know the fields of extra_body and ignore_eos?"
        self.fail(seen, hint)

    def _key_refused(self, seen: str) -> NoReturn:
        channel = self.channel
        if channel.api_key_env is not None:
            source, hint = f"the key in {channel.api_key_env}", f"is {channel.api_key_env} the key of this server?"
        elif channel.api_key_file is not None:
            source, hint = f"the key in {channel.api_key_file}", "is it the key of this server?"
        else:
            source, hint = "a request without a key", f"name the key's variable: api_key_env in [channel.{self.name}]"
        self.fail(f"{source} is refused; {seen}", hint)

    def _not_found(self, reply: Reply, seen: str, error: ServerError | None) -> NoReturn:
        model = self.channel.model
        if error is not None and reply.url == self.url and ("model" in error.message.lower() or model in error.message):
            self.fail(f"the server has no model {model!r}; {seen}", f"set model in [channel.{self.name}]")
        path = reply.url.split("://", 1)[-1]
        hint = (
            "base_url leads to the wrong place; try it with /v1 at its end, or as the server's documentation gives it"
        )
        if path.count("/v1") > 1:
            hint = "base_url has /v1 twice; once is enough"
        elif path.count(self.dialect.path) > 1:
            hint = f"base_url has {self.dialect.path} twice; once is enough"
        elif "/v1" in path:
            hint = (
                f"{self.url} was made of base_url {self.channel.base_url}; is this an LLM server, and is its API there?"
            )
        self.fail(seen, hint)

    def _fetch(self, method: str, url: str, body: bytes | None = None) -> Reply:
        headers = {"Accept": "text/event-stream, application/json", "User-Agent": "infersiege"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        headers = {name.lower(): value for name, value in headers.items()} | dict(self.dialect.headers)
        headers |= {name.lower(): value for name, value in self.channel.headers.items()}
        if self._key:
            headers |= key_headers(self.profile, self.dialect, self._key)
        hint = "start the server, or correct base_url"
        if self.profile.launch_hint:
            hint += f" ({self.profile.launch_hint})"
        try:
            return fetch(method, url, headers=headers, body=body, tls=self._tls, limits=self.limits, start_hint=hint)
        except TargetError as error:
            self.fail(str(error), error.hint, ready=not isinstance(error, NotReadyError))


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _is_html(reply: Reply) -> bool:
    return reply.content_type in ("text/html", "application/xhtml+xml") or reply.body.lstrip()[:1] == b"<"


def _is_whole_answer(value: dict[str, Any]) -> bool:
    """Of chat and completions, of Anthropic messages, of Responses."""
    return bool(value.get("choices")) or value.get("type") == "message" or value.get("object") == "response"


def _says_emulated(reply: Reply) -> bool:
    return "x-infersiege-emulated" in reply.headers


def _context_length(row: dict[str, Any]) -> int | None:
    """vLLM and SGLang: max_model_len; llama.cpp: meta.n_ctx; gateways: context_length, context_window."""
    meta = row.get("meta")
    found = [row.get("max_model_len"), row.get("context_length"), row.get("context_window")]
    if isinstance(meta, dict):
        found.append(meta.get("n_ctx"))
    return next((value for value in found if type(value) is int and value > 0), None)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
