"""A real Redis on a free loopback port, for tests."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


class RedisServer:
    """A Redis that can be killed, stopped for a while and started again on its port, with what it had written."""

    def __init__(self, folder: Path, port: int, *settings: str, scheme: str = "redis") -> None:
        binary = shutil.which("redis-server")
        assert binary is not None, INSTALL
        folder.mkdir(exist_ok=True)
        listens = ("--port", "0", "--tls-port", str(port)) if scheme == "rediss" else ("--port", str(port))
        self._command = [binary, *listens, "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *settings]
        self._log = folder / "redis.log"
        self.port = port
        self.url = f"{scheme}://127.0.0.1:{port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.02)
        raise AssertionError(self._log.read_text(encoding="utf-8"))

    def kill(self) -> None:
        """-9: what is not on disk yet is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2, **options)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
