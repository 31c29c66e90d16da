"""A headless Chromium, driven over its debugging pipe: what a page logs, what it asks for, how it looks.

Tests that need one are skipped where there is none (`find`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60.0


def find() -> str | None:
    """Path of a browser; None: there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. Every answer of the browser is waited for; what it tells by itself is kept."""

    def __init__(self, sending: int, receiving: int) -> None:
        self._sending, self._receiving = sending, receiving
        self._left = b""
        self._calls = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol. Raises AssertionError when the browser refuses it."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._sending, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive(DEADLINE_S)
            if found.get("id") == self._calls:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self.events.append(found)

    def _receive(self, within_s: float) -> dict[str, Any]:
        until = time.monotonic() + within_s
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._receiving], [], [], max(until - time.monotonic(), 0))
            assert ready, f"the browser said nothing for {within_s} s"
            got = os.read(self._receiving, 1 << 20)
            assert got, "the browser has ended"
            self._left += got
        one, self._left = self._left.split(b"\0", 1)
        return json.loads(one)

    def attach(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def show(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file, and wait until its scripts have run."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + DEADLINE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(until - time.monotonic()))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what comes of it."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """One key."""
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def picture(self, path: Path, *, full: bool = True) -> None:
        """What the tab shows, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """Everything on the console that is worse than information, and every exception."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(json.dumps(params["entry"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for, the page itself, `data:` and `blob:` left out."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        urls = [one["request"]["url"] for one in sent if one.get("type") != "Document"]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser of our own with an empty profile; ended, with all its processes, at the end."""
    path = find()
    assert path is not None, "no browser: call find() first"
    to_read, to_write = os.pipe(), os.pipe()
    ours_out, ours_in = to_read[1], to_write[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def fds() -> None:
            # The pipe's ends must be 3 and 4; both are moved out of the way first.
            high_in, high_out = os.dup2(to_read[0], 40), os.dup2(to_write[1], 41)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        process = subprocess.Popen(
            [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
             "--remote-debugging-pipe"],
            preexec_fn=fds,  # noqa: PLW1509  # only dup2: it takes no lock
            close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            made = Browser(ours_out, ours_in)
            made.attach()
            yield made
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
