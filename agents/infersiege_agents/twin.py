"""Notices another agent of the same kind that writes the same series from this host."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def noticed(series: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Claim `series` for this process; where another has it, `tell` a line and go on all the same.

    The claim is a name in Linux' abstract socket namespace: it is seen by agents of all users (of one network
    namespace), leaves no file, and ends with the process, however that ends.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as claim:
        try:
            claim.bind(f"\0infersiege-agent {hashlib.sha256(series.encode()).hexdigest()}")
        except OSError as error:  # any other: a system without such names, and nobody to be noticed
            if error.errno == errno.EADDRINUSE:
                tell(
                    f"note: another infersiege-agent on this host writes the series of {series} too: each interval "
                    "then has two points; one agent is enough"
                )
        yield
