"""A headless Chromium that is told what to do through its DevTools protocol.

It speaks over two pipes (descriptors 3 and 4, one JSON text after the other, each ended by a zero
byte), so that nothing but Chromium is needed. Everything that the page complains about is kept.
"""

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRIVEN = ("--hide-scrollbars", "--remote-debugging-pipe")
ANSWER_S = 30.0
DRAWN_S = 120.0
LEFT = ("navigated", "context was destroyed", "find context")
"""What Chromium says of a question to a page that it left before the answer."""


class PageLeft(AssertionError):
    """The page was left, or loaded again, before it answered."""


class Browser:
    """A Chromium with a single page."""

    def __init__(self, process: "subprocess.Popen[bytes]", reading: int, writing: int) -> None:
        self.complaints: list[str] = []
        """Errors of scripts, of loading, and what the page wrote as errors."""
        self._process = process
        self._reading = reading
        self._writing = writing
        self._number = 0
        self._data = bytearray()
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._writing, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while True:
            message = self._message(until)
            if message.get("id") == self._number:
                if "error" in message:
                    text = f"{method}: {message['error']}"
                    raise (PageLeft if any(one in text for one in LEFT) else AssertionError)(text)
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def window(self, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        """Size and colours from now on."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def reload(self) -> None:
        """Load the page again; the old one is gone on return."""
        self.value("globalThis.old = true")
        self.call("Page.reload")
        self.wait_for("!globalThis.old")

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression; promises are waited for."""
        response = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in response, response["exceptionDetails"]
        return response["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 120.0) -> Any:
        """Wait until an expression is true; its value. Looked at whenever the page is drawn."""
        look = (
            "new Promise(done => requestAnimationFrame(() => done("
            f"(() => {{ try {{ const found = ({expression});"
            " return found instanceof Node ? true : found; } catch { return false; } })())))"
        )
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            with suppress(PageLeft):
                if result := self.value(look):
                    return result
            select.select([self._reading], [], [], 0.05)
        raise AssertionError(f"not within {timeout_s:g} s: {expression}; {self.complaints}")

    def press(self, key: str) -> None:
        """A key on the keyboard."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"chromium gave no answer within {ANSWER_S:g} s"
            data = os.read(self._reading, 1 << 20)
            assert data, "chromium has ended"
            self._data += data
        text, _, self._data = self._data.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.complaints.append(json.dumps(parameters["args"])[:500])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A Chromium of its own, ended with the block."""
    their_reading, writing = os.pipe()
    reading, their_writing = os.pipe()

    def move() -> None:
        os.dup2(their_reading, 13)
        os.dup2(their_writing, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    process = subprocess.Popen(
        _command(profile, *DRIVEN, "about:blank"),
        close_fds=False,
        preexec_fn=move,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(their_reading)
    os.close(their_writing)
    try:
        yield Browser(process, reading, writing)
    finally:
        process.terminate()
        process.wait(30)
        os.close(reading)
        os.close(writing)


def drawn(address: str, profile: Path, *options: str) -> str:
    """Return a page as HTML after its scripts have run."""
    command = _command(profile, *options, "--dump-dom", address)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=DRAWN_S, check=True)
    return answer.stdout


def _command(profile: Path, *arguments: str) -> list[str]:
    assert os.path.exists(CHROMIUM), "install Chromium (Debian: apt-get install chromium)"
    return [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *arguments]
