"""What other hosts may reach, and what that needs: a strong secret at the master's port, a login at the page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping

from infersiege.errors import UsageError
from infersiege.swarm.secret import SECRET_VARIABLE

LOGIN_VARIABLE = "INFERSIEGE_WEB_LOGIN"
"""Environment variable: `user:password`, or a token, for the status page."""

SHORTEST_SECRET = 16
"""Characters. Who records one handshake can try secrets at home, some tens a second and core (scrypt)."""
SHORTEST_LOGIN = 12
"""Characters in all. It can only be tried at the page itself."""
FEWEST_DIFFERENT = 6
_MAKE_ONE = "$(openssl rand -hex 32)"


def is_public(host: str) -> bool:
    """Whether other hosts may reach what listens there. A name that does not resolve is: nothing says that it isn't."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def is_weak(secret: str, shortest: int) -> bool:
    return len(secret) < shortest or len(set(secret)) < FEWEST_DIFFERENT


def check_secret(host: str, port: int, secret: str, *, option: str = "--bind") -> None:
    """Raises UsageError where the master's port can be reached from elsewhere and its secret be guessed, and for one
    that is no text.

    `secret` empty: a random one is made. `option`: of the command line, which names the port.
    """
    try:
        secret.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the environment variable {SECRET_VARIABLE} is not UTF-8", hint=f"export {SECRET_VARIABLE}={_MAKE_ONE}"
        ) from None
    if secret and is_weak(secret, SHORTEST_SECRET) and is_public(host):
        raise UsageError(
            f"{option} {host}:{port}: other hosts can reach this address, and {SECRET_VARIABLE} can be guessed "
            f"(it needs {SHORTEST_SECRET} characters, {FEWEST_DIFFERENT} of them different)",
            hint=f"export {SECRET_VARIABLE}={_MAKE_ONE}, the same for the master and on all hosts of workers",
        )


def login_of(host: str, port: int, environ: Mapping[str, str]) -> Login | None:
    """Who may watch; None: everybody who reaches the page, which then is this host.

    Raises UsageError for a public address without a login, and for one that can be guessed.
    """
    value = environ.get(LOGIN_VARIABLE, "")
    public = is_public(host)
    if not value and not public:
        return None
    hint = f"export {LOGIN_VARIABLE}=me:{_MAKE_ONE} (user:password, or a token), or listen on 127.0.0.1"
    if not value:
        raise UsageError(
            f"--web {host}:{port}: other hosts can reach this address, and {LOGIN_VARIABLE} is not set", hint=hint
        )
    if public and is_weak(value, SHORTEST_LOGIN):
        raise UsageError(
            f"--web {host}:{port}: other hosts can reach this address, and {LOGIN_VARIABLE} can be guessed "
            f"(it needs {SHORTEST_LOGIN} characters, {FEWEST_DIFFERENT} of them different)",
            hint=hint,
        )
    return Login(value)


class Login:
    """`user:password` as browsers send it, or a token: as bearer, or as the password of any user."""

    def __init__(self, value: str) -> None:
        user, colon, password = value.partition(":")
        self._user = _digest(user) if colon else None
        self._password = _digest(password if colon else value)

    def admits(self, authorization: str | None) -> bool:
        """Whether a header `Authorization` has it. Takes the same time however much of it is right."""
        scheme, _, rest = (authorization or "").strip().partition(" ")
        user, password = "", rest.strip()
        if scheme.lower() == "basic":
            try:
                user, _, password = base64.b64decode(password, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif scheme.lower() != "bearer" or self._user is not None:
            return False
        known = self._user is None or hmac.compare_digest(_digest(user), self._user)
        return hmac.compare_digest(_digest(password), self._password) and known


def _digest(text: str) -> bytes:
    """Of one length, whatever the text's; undecodable bytes of an environment variable are themselves."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
