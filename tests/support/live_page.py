"""A command that serves a live page, and what a browser asks of it, without the browser."""

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0
END_S = 120.0
SCENARIO = """
name = "by-hand"
description = "Three nodes, and nothing but what somebody does to them"
steps = []

[cluster]
brokers = 3
nameservers = 1
flush = "sync"
repl = "sync"
min_isr = 2

[load.producer]
count = 2
rate = 30

[load.consumer]
count = 1

[recovery]
at = "4s"
drain = "6s"
"""


def rocketbed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command of ours, to its end."""
    command = [sys.executable, "-m", "rocketbed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


class Live:
    """A command that runs."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self.log = log
        matched = re.fullmatch(r"http://(.+):(\d+)/\?token=(.+)", address)
        assert matched is not None, address
        self.host, self.port, self.token = matched[1], int(matched[2]), matched[3]

    def press(self, action: str, name: str = "") -> tuple[int, str]:
        """A button: status and text."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        body = json.dumps({"action": action, "name": name})
        connection.request("POST", "/press", body, {"x-rocketbed-token": self.token})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def do(self, action: str, name: str = "") -> None:
        """A button that has to do what it says."""
        status, text = self.press(action, name)
        assert status == 200, text

    def feed(self) -> dict[str, Any]:
        """Return all values, as a browser gets them first."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", f"/feed?token={self.token}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        line = b""
        while not line.startswith(b"data: "):
            line = answer.readline()
        connection.close()
        values: dict[str, Any] = json.loads(line[6:])["values"]
        return values

    def wait_for(self, condition: Callable[[dict[str, Any]], Any], timeout_s: float = 60.0) -> Any:
        """Wait until a question to the feed is answered by something true."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if result := condition(self.feed()):
                return result
        raise AssertionError(f"not within {timeout_s:g} s; the command said:\n{self.output()}")

    def wait_faults(self) -> None:
        """Wait until the load is on."""
        self.wait_for(lambda values: values["phase"]["name"] in ("faults", "watching"))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(END_S)

    def output(self) -> str:
        """Output of the command so far."""
        return self.log.read_text()


@contextmanager
def live(log: Path, *arguments: str) -> Iterator[Live]:
    """Start a command and wait for its address; what still runs in the end is killed."""
    command = [sys.executable, "-m", "rocketbed", *arguments]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + START_S
        while not (matched := re.search(r"^live page: (\S+)$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, "no address"
        yield Live(process, matched[1], log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def run_live(directory: Path, *arguments: str) -> tuple[str, ...]:
    """The command line of a live run of the scenario above, with its report in `directory`."""
    scenario = directory / "by-hand.toml"
    scenario.write_text(SCENARIO)
    report = str(directory / "report")
    start = ("chaos", "run", str(scenario), "--live", "--backend", "process", "--seed", "3")
    return (*start, "--report", report, *arguments)
