"""A member of a cluster in containers: created at each start, and found again by its name."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from rocketbed.cluster.plan import ClusterMember
from rocketbed.host.docker.client import Daemon, DockerError, asking, call
from rocketbed.host.docker.container import Spec, logged, posix_code, remove, start
from rocketbed.host.docker.image import ready_image
from rocketbed.host.docker.owner import MEMORY, give
from rocketbed.host.janitor.processes import opened
from rocketbed.host.member import ManagedProcess, ProcessError

PIDS: Final = 100
NOFILE: Final = 16384
"""Limits of open files and processes, as in compose/classic.yaml; the reason is in
docs/guides/cluster.md, "Limits"."""


class ContainerMember(ManagedProcess):
    """The container of a member."""

    def __init__(
        self,
        daemon: Daemon,
        cluster: str,
        member: ClusterMember,
        command: list[str],
        directory: Path,
        ports: Mapping[int, tuple[str, int]],
    ) -> None:
        super().__init__(member.name, command, directory)
        self._daemon = daemon
        self._cluster = cluster
        self._host = member.host
        self._ports = ports
        self._full = f"{cluster}-{member.name}"

    def start(self) -> int:
        """Create and start the container; return the pid of its init. Raises `ProcessError`."""
        state = self._state()
        if state is not None and state["Running"]:
            raise ProcessError(f"{self.name} is already running as process {state['Pid']}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_path.touch()
        spec = Spec(
            image=ready_image(self._daemon),
            command=logged(self.command),
            network=self._cluster,
            directory=self.directory,
            user=str(give(self.directory)),
            memory=MEMORY,
            pids=PIDS,
            nofile=NOFILE,
            address=self._host,
            ports=self._ports,
        )
        with asking(f"{self.name} does not start"):
            if state is not None:
                remove(self._daemon, self._full)
            _, pid = start(self._daemon, self._cluster, self._full, spec)
        return pid

    def pid(self) -> int | None:
        """Return the host pid of the container's init process, or None."""
        state = self._state()
        return int(state["Pid"]) if state is not None and state["Running"] else None

    def _send(self, number: signal.Signals, *, is_paused: bool) -> None:
        if number == signal.SIGSTOP:
            if not is_paused:
                self._daemon.api.pause(self._full)
            return
        if is_paused and number in (signal.SIGCONT, signal.SIGTERM):
            self._daemon.api.unpause(self._full)
        if number != signal.SIGCONT:
            self._daemon.api.kill(self._full, number.name)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal: SIGSTOP and SIGCONT freeze and thaw the container, others go to the
        program."""
        state = self._state()
        if state is None or not state["Running"]:
            return False
        try:
            with asking(f"{self.name}: {number.name}"):
                self._send(number, is_paused=bool(state["Paused"]))
        except DockerError:
            if self.pid() is not None:
                raise
            return False  # it ended meanwhile
        return True

    async def wait_ended(self) -> int | None:
        """Wait for the container's end; return the program's exit code, None when it never ran."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError), opened(pid) as descriptor:
                await trio.lowlevel.wait_readable(descriptor)
        if self._state() is None:
            return None
        api, full = self._daemon.api, self._full
        try:
            answer = await call(lambda: api.wait(full), f"the end of {self.name}")
        except DockerError:
            if self._state() is None:
                return None  # it was removed meanwhile
            raise
        return posix_code(int(answer["StatusCode"]))

    def _state(self) -> dict[str, Any] | None:
        import docker.errors

        with asking(f"{self.name} cannot be inspected"):
            try:
                state: dict[str, Any] = self._daemon.api.inspect_container(self._full)["State"]
            except docker.errors.NotFound:
                return None
        return state
