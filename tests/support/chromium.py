"""A real Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

websockets = pytest.importorskip("websockets.sync.client", reason="pip install websockets")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab. Every call waits until the browser has done what it says."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []
        """What scripts threw, and what the console or the content policy complained of."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(
                f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}"
            )

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, timeout_s: float = 120) -> Any:
        """Wait, one frame after the other, until an expression is true; return its value."""
        script = f"""new Promise((done) => {{
            const end = performance.now() + {timeout_s * 1000};
            const look = () => {{
                let found;
                try {{ found = ({condition}); }} catch (error) {{ found = undefined; }}
                if (found instanceof Node) found = true;
                if (found || performance.now() > end) done(found ?? null);
                else setTimeout(look, 30);
            }};
            look();
        }})"""
        deadline = time.monotonic() + timeout_s + 10
        while True:
            try:
                found = self.evaluate(script)
                break
            except AssertionError:  # the page was replaced while it was asked
                assert time.monotonic() < deadline, condition
        assert found, f"never true: {condition}"
        return found

    def key(self, key: str, *, code: int = 0, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def emulate(
        self, *, scheme: str = "light", width: int = 1440, height: int = 900, ratio: float = 1
    ) -> None:
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=ratio, mobile=False,
        )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start a browser with an empty profile in `folder`; it is gone afterwards."""
    program = find_chromium()
    assert program is not None
    process = subprocess.Popen(
        [
            program,
            "--headless=new",
            "--no-sandbox",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--mute-audio",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port(folder / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=120) as answer:
            tabs = json.load(answer)
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        # A browser that is slow on a busy machine has not gone: no pings.
        with websockets.connect(address, max_size=None, ping_interval=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 120
    while True:  # the browser tells of its port in a file
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            return int(file.read_text().splitlines()[0])
        assert process.poll() is None, "Chromium ended at once"
        assert time.monotonic() < deadline, "Chromium did not say where it listens"
        time.sleep(0.02)
