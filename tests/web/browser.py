"""A headless Chromium (Debian's package ``chromium``), driven over its own protocol; skips where there is none."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 60


def chromium() -> str:
    """The program; skips the test where it is not installed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed: the page is not tried in a browser (Debian: apt-get install chromium)")
    return found


class Page:
    """One tab."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.problems: list[str] = []
        """Exceptions, console errors, and what the content security policy refused."""
        self.requests: list[str] = []
        """Every address that was asked for."""
        self.dialogs: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"])[:800])
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(about["entry"]["text"] + " " + about["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and about["type"] == "error":
            self.problems.append(json.dumps(about["args"])[:800])
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(about["message"])
            self._socket.send(
                json.dumps({"id": next(self._ids), "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
            )

    def open(self, url: str, ready: str = "document.readyState === 'complete'") -> None:
        self.call("Page.navigate", url=url)
        self.until(ready)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a condition of the page holds."""
        end = time.monotonic() + 30
        while True:
            answer = self.call("Runtime.evaluate", expression=f"Boolean({condition})", returnByValue=True)
            if answer["result"].get("value") is True:
                return
            assert time.monotonic() < end, f"{condition} did not come true: {self.problems}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until what was asked for is painted."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False, vision: str = "none") -> None:
        """Size of the window, the reader's colour scheme, and a deficiency of colour vision."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setEmulatedVisionDeficiency", type=vision)
        self.settle()

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own; gives its tab."""
    from websockets.sync.client import connect

    command = [
        chromium(), "--headless=new", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
        f"--user-data-dir={folder}", "--hide-scrollbars", "about:blank",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # it refuses to run as root otherwise
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = folder / "DevToolsActivePort"
        end = time.monotonic() + START_SECONDS
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert process.poll() is None, "Chromium ended at once"
            assert time.monotonic() < end, "Chromium did not start"
            time.sleep(0.05)
        port = port_file.read_text().split("\n")[0]
        with connect(f"ws://127.0.0.1:{port}{port_file.read_text().split()[1]}", max_size=2**26) as root:
            root.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            targets = json.loads(root.recv(timeout=30))["result"]["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=2**26) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
