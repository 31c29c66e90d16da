"""From the base URL of a plan to the URLs that we ask (CASES CL-01: every spelling that users have). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from infersiege.channels.redaction import names_secret
from infersiege.errors import UsageError

ENDPOINTS: tuple[str, ...] = ("/chat/completions", "/completions", "/responses", "/messages", "/models")
"""Endpoints that users paste as a base URL; the longest is tried first."""

_VERSION = re.compile(r"v\d+((alpha|beta)\d*)?", re.IGNORECASE)
_IN_PATH = "%:@!$&'()*+,;=~-._"
_IN_QUERY = _IN_PATH + "/?"
_NAME = re.compile(r"[a-z0-9._-]+", re.IGNORECASE)
_ADDRESS = re.compile(r"[0-9a-f:.]+(%[a-z0-9._-]+)?", re.IGNORECASE)


class _Base(NamedTuple):
    origin: str
    """`scheme://host[:port]`."""
    root: tuple[str, ...]
    """Segments above the API root, such as `api`."""
    version: tuple[str, ...]
    """Segments of the API root itself: `v1`, `v1beta/openai`; empty: the URL doesn't say."""
    endpoint: str
    """Endpoint that was part of it, or empty."""
    query: str
    """With its `?`, or empty."""


def endpoint_url(base_url: str, path: str) -> str:
    """The URL of `path` (such as `/chat/completions`) at this server.

    A host alone, or a path that ends in neither a version nor `openai`, gets `/v1`; a full endpoint stays as it is, and
    the endpoint of another dialect is replaced. Raises UsageError for what can't be a base URL.
    """
    base = _split(base_url)
    # An endpoint without a version (`https://h/chat/completions`) shows that this server has none.
    parts = base.root + (base.version or (() if base.endpoint else ("v1",)))
    return base.origin + "".join(f"/{part}" for part in parts) + path + base.query


def models_url(base_url: str) -> str:
    """Where the server lists its models. Raises UsageError."""
    return endpoint_url(base_url, "/models")


def root_url(base_url: str, path: str) -> str:
    """A path outside the API (`/health`, `/metrics`, `/version`): beside the version, below any prefix of a proxy.

    Raises UsageError.
    """
    base = _split(base_url)
    return base.origin + "".join(f"/{part}" for part in base.root) + path


def _split(base_url: str) -> _Base:
    origin = _origin(base_url)
    _, _, path, query, fragment = urlsplit(base_url.strip())
    if fragment:
        raise UsageError("base_url has a fragment (#…), which is never sent", hint="remove it")
    _refuse_keys(query)
    segments = tuple(quote(part, safe=_IN_PATH) for part in path.split("/") if part)
    joined = "/" + "/".join(segments)
    endpoint = next((known for known in ENDPOINTS if joined.endswith(known)), "")
    if endpoint:
        segments = segments[: -endpoint.count("/")]
    cut = len(segments)
    if cut and segments[cut - 1].lower() == "openai":
        cut -= 1
        if cut and _VERSION.fullmatch(segments[cut - 1]):
            cut -= 1
    elif cut and _VERSION.fullmatch(segments[cut - 1]):
        cut -= 1
    return _Base(origin, segments[:cut], segments[cut:], endpoint, f"?{quote(query, safe=_IN_QUERY)}" if query else "")


def _origin(base_url: str) -> str:
    url = base_url.strip()
    if not url:
        raise UsageError("base_url is empty", hint='write it as base_url = "http://127.0.0.1:8000/v1"')
    if "\\" in url or any(letter <= " " or letter == "\x7f" for letter in url):
        raise UsageError("base_url has a space, a backslash or a control character in it", hint="remove it")
    if "://" not in url:
        # What was written may be `user:key@host`; it is shown only where it can't be.
        shown = url if "@" not in url and "?" not in url else "[…]"
        raise UsageError(f"base_url {shown} has no scheme", hint=f"write http://{shown} or https://{shown}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = "the port is no number from 1 to 65535" if "ort" in str(error) else "the host can't be read"
        raise UsageError(
            f"base_url can't be taken apart: {reason}", hint="an IPv6 address stands in brackets: http://[::1]:8000/v1"
        ) from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"base_url has the scheme {parts.scheme}://, not http:// or https://", hint="use one of these")
    if "@" in parts.netloc:
        raise UsageError(
            "base_url holds user info (…@host), which would end up in logs", hint="put the key into api_key_env"
        )
    if not host:
        raise UsageError("base_url has no host", hint='write it as base_url = "http://127.0.0.1:8000/v1"')
    if port == 0:
        raise UsageError("base_url has port 0", hint="name the port that the server listens on")
    return f"{parts.scheme}://{_host(host)}" + (f":{port}" if port is not None else "")


def _host(host: str) -> str:
    """As it is written in a URL: an address in brackets, a name in ASCII."""
    if ":" in host:
        if _ADDRESS.fullmatch(host):
            return f"[{host}]"
    else:
        try:
            name = host.encode("idna").decode()
        except UnicodeError:
            name = ""
        if _NAME.fullmatch(name):
            return name
    raise UsageError(f"base_url has a host that is neither a name nor an address: {host!r}", hint="check its spelling")


def _refuse_keys(query: str) -> None:
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if names_secret(name) or name.lower() == "code":  # Azure Functions: ?code=KEY
            raise UsageError(
                f"base_url has a key in its query ({name}=…), which would end up in logs",
                hint="put the key into api_key_env",
            )
