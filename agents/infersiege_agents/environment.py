"""What a process that we start gets of our environment: what programs need to run, and no secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "INFERSIEGE_TELEMETRY_SPOOL",
})  # fmt: skip
PREFIXES = ("LC_", "PYTHON")


def bare(environ: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """The variables of `environ` that any program may have, and those named in `keep`.

    A list of what is passed on, not of what is held back: nobody knows the names of all tokens and keys.
    """
    kept = NAMES.union(keep)
    return {name: text for name, text in environ.items() if name in kept or name.startswith(PREFIXES)}
