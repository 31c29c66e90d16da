"""What several test files share: ports, given material, services that may be missing, a real engine.

A test whose service is missing is skipped with the reason (`-ra` prints it). With INFERSIEGE_REQUIRE_SERVICES=1, as
CI sets it, it fails instead: a green run has then shown everything.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import databases
import engines
import pytest
from hypothesis import settings
from siege import Siege

REQUIRE_SERVICES = "INFERSIEGE_REQUIRE_SERVICES"

# No deadline: a shared two-core machine makes single examples slow. The same examples each time: a property that
# fails must fail again for whoever looks; `make test HYPOTHESIS=explore` draws new ones.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS") or "fixed")

Needs = Callable[[str | None], None]


@pytest.fixture(scope="session")
def needs() -> Needs:
    """`needs(reason)`: skip for this reason, or fail where services are required; None passes."""

    def check(missing: str | None) -> None:
        if missing is None:
            return
        if os.environ.get(REQUIRE_SERVICES) == "1":
            pytest.fail(f"{missing}; {REQUIRE_SERVICES}=1 makes that a failure", pytrace=False)
        pytest.skip(missing)

    return check


@pytest.fixture(scope="session")
def shared() -> Path:
    """The given material (real traces, captures of engines), which lies beside the checkout; skipped without it."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` beside the checkout: real traces and captures are not part of the project")
    return folder


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Gives a TCP port of loopback on which nobody listens, another one at each call."""
    given: set[int] = set()

    def pick() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return pick


@pytest.fixture(scope="session")
def llamacpp(
    needs: Needs, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """The real llama.cpp server with a 135M model on one thread, started once per session."""
    needs(engines.llamacpp_missing())
    with engines.llamacpp(free_port(), tmp_path_factory.mktemp("llamacpp") / "engine.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def influx_server(
    needs: Needs, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[databases.InfluxDB]:
    """One real InfluxDB for all tests of a process that neither break it nor need it empty."""
    needs(databases.influx_missing())
    database = databases.InfluxDB(tmp_path_factory.mktemp("influx"), free_port)
    yield database
    database.close()


@pytest.fixture
def influx(needs: Needs, free_port: Callable[[], int], tmp_path: Path) -> Iterator[databases.InfluxDB]:
    """A real InfluxDB of the test's own, to be killed, frozen and started again."""
    needs(databases.influx_missing())
    (tmp_path / "influx").mkdir()
    database = databases.InfluxDB(tmp_path / "influx", free_port)
    yield database
    database.close()


@pytest.fixture
def victoria(needs: Needs, free_port: Callable[[], int], tmp_path: Path) -> Iterator[databases.VictoriaMetrics]:
    """A real VictoriaMetrics of the test's own."""
    needs(databases.victoria_missing())
    (tmp_path / "victoria").mkdir()
    database = databases.VictoriaMetrics(tmp_path / "victoria", free_port)
    yield database
    database.close()


@pytest.fixture
def small_disk(tmp_path: Path, needs: Needs) -> Iterator[Path]:
    """A file system that is full after some hundred records."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(path)], capture_output=True, check=False
    )
    needs("a small tmpfs can't be mounted (needs root)" if mounted.returncode else None)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def siege(tmp_path: Path) -> Siege:
    """Starts runs below the test's own directory."""
    return Siege(tmp_path)
