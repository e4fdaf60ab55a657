"""Headless Chromium by its DevTools protocol; nothing is installed for it, and tests that need it are skipped without it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

sync = pytest.importorskip("websockets.sync.client", reason="NOT TESTED IN A BROWSER: websockets is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="NOT TESTED IN A BROWSER: there is no chromium here")


class Tab:
    """One page: ``told`` holds every event that the browser told."""

    def __init__(self, address: str) -> None:
        self._socket = sync.connect(address, max_size=2**26)
        self._count = 0
        self.told: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == self._count:
                assert "error" not in message, message
                return dict(message["result"])
            self.told.append(message)

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, address: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=address)
        for _ in range(200):
            if self.value("document.readyState + location.href.split('#')[0]") == f"complete{address}":
                return
            time.sleep(0.05)
        raise AssertionError("the page did not load")

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)


@contextmanager
def browser(home: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which keeps what it keeps in ``home``."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={home}"]
    environment = os.environ | {"HOME": str(home)}
    with (home / "log").open("w") as log:
        process = subprocess.Popen([str(BROWSER), *flags, "about:blank"], stderr=log, stdout=log, env=environment)
    try:
        for _ in range(600):
            told = re.search(r"ws://([\d.:]+)/", (home / "log").read_text())
            if told or process.poll() is not None:
                break
            time.sleep(0.05)
        assert told, (home / "log").read_text()
        with urlopen(f"http://{told[1]}/json/list", timeout=30) as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait(timeout=30)
