"""A database's token: what belongs to it, what is none, and that no library repeats it. Ends that are hurried."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from infersiege_agents.errors import AgentError
from infersiege_agents.influx import DurableWriter, Target, target_of
from infersiege_agents.influx.transport import Transport
from infersiege_agents.points import Point

from infersiege.errors import UsageError
from infersiege.plan.schema import Telemetry
from infersiege.telemetry.database import database_of


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("token", ["tok\n", " tok", "\ttok\r\n", "tok"])
def test_white_space_around_a_token_is_not_part_of_it(token: str) -> None:
    telemetry = Telemetry(influx_url="http://db", influx_token_env="TOKEN")
    found = database_of(telemetry, {"TOKEN": token})
    assert found is not None and found.token == target_of("http://db", token=token).token == "tok"


NO_TOKENS = ["geheim\n4711", "geheim-4711\N{LATIN SMALL LETTER E WITH ACUTE}", "geheim\x7f4711", "geheim\x004711"]


@pytest.mark.parametrize("token", NO_TOKENS)
def test_what_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    """http.client would quote the whole header in its error."""
    telemetry = Telemetry(influx_url="http://db", influx_token_env="TOKEN")
    builds: list[Callable[[], object]] = [
        lambda: target_of("http://db", token=token),
        lambda: Target("http://db", token=token),
        lambda: database_of(telemetry, {"TOKEN": token}),
    ]
    for build in builds:
        with pytest.raises((AgentError, UsageError)) as told:
            build()
        hint = getattr(told.value, "hint", None)
        assert hint and "geheim" not in f"{told.value} {hint} {told.value!r}"


def test_a_library_that_quotes_the_header_is_not_quoted(deaf: str) -> None:
    target = target_of(deaf)
    object.__setattr__(target, "token", "geheim-4711\n")  # past the check
    before = signal.getsignal(signal.SIGALRM)
    transport = Transport(target)
    try:
        answer = transport.write(b"m value=1 1\n", 5.0)
    finally:
        transport.close()
        signal.signal(signal.SIGALRM, before)
    assert "geheim" not in answer.words and "no request can be made" in answer.words


def test_a_close_that_waits_can_be_hurried(deaf: str, tmp_path: Path) -> None:
    """Ctrl-C while it waits: what is left stays in the spool."""
    writer = DurableWriter(target_of(deaf), tmp_path / "spool", source="test")
    writer.start()
    writer.put(Point("stream", {}, {"value": 1.0}, 10**18))
    timer = threading.Timer(0.5, writer.hurry)
    timer.start()
    began = time.monotonic()
    counters = writer.close(within_s=30)
    timer.join()
    assert time.monotonic() - began < 10
    assert counters.spooled == counters.written > 0
