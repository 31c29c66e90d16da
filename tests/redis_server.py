"""A real Redis on a free loopback port, for tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis

INSTALL = "apt-get install redis-server"


@contextlib.contextmanager
def redis_server(folder: Path, port: int, *settings: str) -> Iterator[str]:
    """Its URL. `settings`: more of its command line, such as `--maxmemory 2mb`."""
    binary = shutil.which("redis-server")
    assert binary is not None, INSTALL
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *settings]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        password = settings[settings.index("--requirepass") + 1] if "--requirepass" in settings else None
        with redis.Redis(port=port, password=password) as client:
            for _ in range(200):
                with contextlib.suppress(redis.ConnectionError):
                    if client.ping():
                        break
                time.sleep(0.05)
            else:
                raise AssertionError((folder / "redis.log").read_text(encoding="utf-8"))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)
