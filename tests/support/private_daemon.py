"""A Docker daemon of one's own, for tests and for machines that have none running.

    python -P tests/support/private_daemon.py DIRECTORY               until it is interrupted
    python -P tests/support/private_daemon.py DIRECTORY COMMAND ...   while a command runs,
                                                                      DOCKER_HOST set

Images and containers are kept below DIRECTORY; bridge, socket and address range are its own, and it
changes neither the system's packet filter nor its forwarding. So containers reach each other and
this system, and nothing else; images are built on the host's network. Needs root and dockerd.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Final, Self

from rocketbed.host.docker.client import LABEL, Daemon, DockerError, asking
from rocketbed.host.docker.container import remove
from rocketbed.host.janitor.record import Ledger
from rocketbed.host.program import tied_program

UP_S: Final = 30.0
DOWN_S: Final = 20.0
LOOK_S: Final = 0.02
POOL: Final = "10.99.{}.0/{}"
"""Addresses of its bridge (the first /24 of a /20) and of the networks made there."""
RANGES: Final = 16
DAEMON: Final = "dockerd"


class PrivateDaemon:
    """Run a daemon while inside. Raises `DockerError`: no root, no dockerd, or in use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()  # as mounts name it
        self.log_path = self.directory / "log"
        number = int(hashlib.sha256(bytes(self.directory)).hexdigest(), 16)
        self._bridge = f"rbd-{number % 0xFFFFFF:06x}"
        self._range = number % RANGES
        self._state = Path(f"/run/rocketbed-docker-{number % 0xFFFFFF:06x}")
        self.address = f"unix://{self._state}/socket"
        """For DOCKER_HOST."""
        self._lock = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._run: Ledger | None = None

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise DockerError("a private Docker daemon needs root")
        if shutil.which(DAEMON) is None:
            raise DockerError("dockerd not found: apt-get install docker.io")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DockerError(
                f"another program has a Docker daemon on {self.directory}: use that one "
                f"(DOCKER_HOST={self.address}) or another directory"
            ) from None
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def wait_ended(self) -> None:
        """Wait until the daemon ends without being stopped. Raises `DockerError` then."""
        assert self._process is not None
        code = self._process.wait()
        raise DockerError(
            f"dockerd exited with code {code}; {self.log_path} ends with:\n{self._tail()}"
        )

    def _tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").strip().splitlines()[-5:])

    def _start(self) -> None:
        run = self._run = Ledger.begin()
        run.note("directory", self._state)
        run.note("mount", self._state)
        run.note("mount", self.directory)
        run.note("bridge", self._bridge)
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        self._range = _free_range(self._range)
        self._make_bridge()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                tied_program(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **run.environment()},
                start_new_session=True,
            )
        until = time.monotonic() + UP_S
        while True:
            with suppress(DockerError):
                Daemon.connect(self.address).close()
                break
            if self._process.poll() is not None or time.monotonic() >= until:
                raise DockerError(f"dockerd did not start:\n{self._tail()}")
            time.sleep(LOOK_S)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what earlier runs left when this directory's daemon died: it has no user now."""
        with Daemon.connect(self.address) as daemon, asking("what earlier runs left stays"):
            for row in daemon.api.containers(all=True, filters={"label": LABEL}):
                remove(daemon, row["Id"])
            for row in daemon.api.networks(filters={"label": LABEL}):
                daemon.api.remove_network(row["Id"])

    def _command(self) -> list[str]:
        return [
            DAEMON,
            "--data-root",
            str(self.directory / "data"),
            "--exec-root",
            str(self._state / "exec"),
            "--host",
            self.address,
            "--pidfile",
            str(self._state / "pid"),
            "--bridge",
            self._bridge,
            "--default-address-pool",
            f"base={POOL.format(16 * self._range, 20)},size=24",
            "--iptables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]

    def _make_bridge(self) -> None:
        own = POOL.format(16 * self._range, 24).replace(".0/", ".1/")
        for command in (
            ["ip", "link", "add", "name", self._bridge, "type", "bridge"],
            ["ip", "addr", "add", own, "dev", self._bridge],
            ["ip", "link", "set", self._bridge, "up"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise DockerError(f"no bridge for a Docker daemon: {done.stderr.strip()}")

    def _end(self) -> None:
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(DOWN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._run is not None:
            self._run.close()
        os.close(self._lock)


def _free_range(wished: int) -> int:
    """The first range from `wished` on in which this system has no address."""
    command = ["ip", "-oneline", "-4", "addr", "show"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = [IPv4Interface(line.split()[3]).network for line in listing.splitlines()]
    for number in (wished + step for step in range(RANGES)):
        pool = IPv4Network(POOL.format(16 * (number % RANGES), 20))
        if not any(pool.overlaps(network) for network in own):
            return number % RANGES
    raise DockerError(f"all addresses of {POOL.format(0, 16)} are in use: end other daemons")


def main(arguments: list[str]) -> int:
    """Run it as the module's text says; the command's exit code."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 64
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with PrivateDaemon(Path(arguments[0])) as daemon:
            if len(arguments) > 1:
                environment = {**os.environ, "DOCKER_HOST": daemon.address}
                return subprocess.run(arguments[1:], env=environment, check=False).returncode
            print(f"export DOCKER_HOST={daemon.address}", flush=True)
            daemon.wait_ended()
    except KeyboardInterrupt:
        return 130
    except DockerError as exc:
        print(f"rocketbed: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
