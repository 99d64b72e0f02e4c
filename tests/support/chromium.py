"""A headless Chromium for tests, driven over its debugging pipe: the standard library is all it needs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
PATIENCE = 60.0
"""Seconds to wait for an answer: a loaded machine starts a browser slowly."""


def find() -> str | None:
    """The path of a Chromium, or None where there is none; ``AMP_CHROMIUM`` names another."""
    return next(filter(None, map(shutil.which, (os.environ.get("AMP_CHROMIUM", ""), *NAMES))), None)


class Page:
    """One tab. ``requests``, ``console`` and ``errors`` fill while it is used."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, source: int) -> None:
        self._process, self._to, self._from = process, to, source
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.console: list[str] = []
        self.errors: list[str] = []
        self._loaded = 0

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._from, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.console.append(f"{parameters['type']}: {parameters['args']}")
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.errors.append(str(parameters["entry"]))
            case "Page.loadEventFired":
                self._loaded += 1

    def open(self, path: Path) -> None:
        before = self._loaded
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._loaded == before:
            self._read()

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str) -> None:
        """``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, as JSON gives it."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Bring the element into view and press the mouse on it, as a person does."""
        spot = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0];"
            "return [r.x + Math.min(r.width, 40) / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def press(self, key: str, *, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A fresh tab of a fresh browser that keeps its files in ``profile``."""
    program = find()
    assert program is not None, "ask find() first"
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def place() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
        read, write = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(read, 3)
        os.dup2(write, 4)

    process = subprocess.Popen(
        [
            *(program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=place,  # noqa: PLW1509 - descriptors are placed, nothing else; no thread of ours holds a lock
    )
    os.close(theirs_in)
    os.close(theirs_out)
    found = Page(process, ours_out, ours_in)
    try:
        found.start()
        yield found
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        process.wait(PATIENCE)
