"""One channel's server as the examination asks it: its URLs, its key, and what is made of its words."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from infersiege.channels import DIALECTS, PROFILES, Dialect, Profile
from infersiege.channels.profiles import key_headers
from infersiege.channels.proxy import proxy_of
from infersiege.channels.server_facts import facts_of
from infersiege.channels.url import endpoint_url, models_url, root_url
from infersiege.doctor.findings import DoctorError, NotReadyError, fit
from infersiege.doctor.http import Hear, Limits, Reply, fetch
from infersiege.doctor.reach import Place, Route, place_of, tls_context
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Channel
from infersiege.redact import Secrets

_QUOTED = 200
_SECOND_NS: Final = 1_000_000_000
_CONNECT_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 60.0
_IDLE_LIMIT_S = 10.0


class Target:
    """Asks one server. Every method raises DoctorError with one line that tells place, what was seen, what to try."""

    def __init__(
        self, name: str, channel: Channel, key: str | None, *, asked: Callable[[], None] | None = None
    ) -> None:
        """`channel` has its defaults filled in. `asked` is called after each request, however it ended.

        Raises UsageError for a base URL that is none.
        """
        self._asked = asked
        self.name = name
        self.channel = channel
        self.profile: Profile = PROFILES[channel.engine]
        self.dialect: Dialect = DIALECTS[channel.dialect or self.profile.default_dialect]
        self.secrets = Secrets([key] if key else [])
        timeouts = channel.timeouts
        self.limits = Limits(
            connect_s=min(_CONNECT_LIMIT_S, timeouts.connect_ns / _SECOND_NS),
            answer_s=min(_ANSWER_LIMIT_S, timeouts.first_token_ns / _SECOND_NS),
            idle_s=min(_IDLE_LIMIT_S, timeouts.idle_ns / _SECOND_NS),
        )
        base = channel.base_url or ""
        self.url = endpoint_url(base, self.dialect.path)
        self.models_url = models_url(base) if self.profile.models_path else None
        self.proxy = proxy_of(channel.proxy) if channel.proxy is not None else None
        self.key = key
        self.tls: ssl.SSLContext = tls_context(channel.ca, channel.insecure)

    @property
    def place(self) -> Place:
        return place_of(self.url)

    @property
    def way(self) -> Route:
        return Route(self.place, self.proxy, self.limits.connect_s, self.start_hint)

    @property
    def is_local_engine(self) -> bool:
        """One that somebody starts himself, not a service with one address for everybody."""
        return self.profile.default_port is not None

    @property
    def key_source(self) -> str | None:
        """The variable or file that the plan names."""
        return self.channel.api_key_env or self.channel.api_key_file or self.channel.from_file

    @property
    def start_hint(self) -> str:
        hint = "start the server, or correct base_url"
        return f"{hint} ({self.profile.launch_hint})" if self.profile.launch_hint else hint

    def fail(
        self, message: str, hint: str | None = None, *, check: str | None = None, passing: bool = False
    ) -> NoReturn:
        """Raise the fault of this channel, without secrets; `passing`: waiting may help."""
        kind = NotReadyError if passing else DoctorError
        raise kind(
            fit(f"channel {self.name}: {message}", self.secrets),
            hint=fit(hint, self.secrets) if hint else None,
            check=check,
        )

    def said(self, text: str) -> str:
        """What the server said, on one line and short."""
        shown = fit(text, self.secrets)
        return shown[:_QUOTED] + ("…" if len(shown) > _QUOTED else "")

    def quote(self, body: bytes) -> str:
        return repr(self.said(body[:65_536].decode("utf-8", "replace")))

    def beside(self, path: str) -> str:
        """A path outside the API, such as `/health`."""
        return root_url(self.channel.base_url or "", path)

    def fetch(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        listener: Callable[[Reply], Hear | None] | None = None,
    ) -> Reply:
        """One exchange with the headers that the run will send."""
        headers = {"accept": "text/event-stream, application/json", "user-agent": "infersiege"}
        if body is not None:
            headers["content-type"] = "application/json"
        headers |= dict(self.dialect.headers) | {name.lower(): text for name, text in self.channel.headers.items()}
        if self.key:
            headers |= key_headers(self.profile, self.dialect, self.key)
        try:
            return fetch(
                method,
                url,
                headers=headers,
                body=body,
                tls=self.tls,
                limits=self.limits,
                start_hint=self.start_hint,
                proxy=self.proxy,
                listener=listener,
            )
        except DoctorError as error:
            self.fail(str(error), error.hint, check=error.check, passing=isinstance(error, NotReadyError))
        finally:
            if self._asked is not None:
                self._asked()

    def json(self, url: str) -> Any:
        """What a GET gives as JSON with status 200; None for everything else. Never raises: it is a nicety."""
        try:
            reply = self.fetch("GET", url)
        except InfersiegeError:
            return None
        return json_of(reply.body) if reply.status == 200 else None

    def version(self) -> str | None:
        """The engine's version, where it tells. Never raises."""
        path, key = self.profile.version_path, self.profile.version_key
        if path is None or key is None:
            return None
        value = self.json(self.beside(path))
        version = value.get(key) if isinstance(value, dict) else None
        return fit(version, self.secrets)[:100] if isinstance(version, str) and version else None

    def launch_facts(self) -> dict[str, str]:
        """How the engine was started, where it tells: names and values for `ChannelFacts.details`. Never raises."""
        found: dict[str, str] = {}
        for page in self.profile.facts_paths:
            try:
                reply = self.fetch("GET", self.beside(page.path))
            except InfersiegeError:
                continue
            if reply.status == 200:
                found |= facts_of(page, reply.body, self.secrets.scrub)
        return found


def json_of(body: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def is_page(reply: Reply) -> bool:
    """HTML, or something like it."""
    return reply.content_type in ("text/html", "application/xhtml+xml") or reply.body.lstrip()[:1] == b"<"
