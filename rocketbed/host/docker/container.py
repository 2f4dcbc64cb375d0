"""A program in a container of its own: started, signalled, waited for, then removed.

The container is created at each start, while the machine under it stays: its network belongs to
another container (`chaos.backends.docker.network`), its disk is bound from the host at the same
path. Process 1 is Docker's init, so that a program can die of a signal it sends to itself. Its
output goes to a file of the bound directory.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import trio

from rocketbed.host.docker.client import LABEL, Daemon, DockerError, call
from rocketbed.host.janitor.docker import docker_record
from rocketbed.host.janitor.processes import has_ended
from rocketbed.host.janitor.record import Ledger

SIGNALLED: Final = 128
"""Exit code of a program that a signal ended, minus the signal's number."""
OWN_HOST: Final = "127.0.1.1"
"""Address of a machine's own name, as in Debian."""
CPU_PERIOD_US: Final = 20_000
"""Shorter than Docker's 100 ms: a container limited to a tenth of a CPU then pauses 18 ms, not
90."""
_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    image: str
    command: Sequence[str]
    """The whole command; `logged` redirects its output to a file."""
    network: str
    """`none`, `container:<id>` or a network's name."""
    directory: Path | None = None
    """Its working directory, bound at the same path; None: no access to this system's files."""
    user: str = ""
    """User; empty: the image's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()
    """Files of the host that it may read, at the same paths (preloaded libraries)."""
    memory: int | None = None
    """Limit of memory, bytes."""
    pids: int | None = None
    """Limit of processes and threads."""
    nofile: int | None = None
    """Limit of a program's descriptors; None: the daemon's default."""
    address: str | None = None
    """Address in the network."""
    ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Port inside -> address and port of this system from which it is forwarded."""
    host_name: str = ""
    """Host name that resolves to loopback; empty: Docker's choice, which does not resolve without a
    network."""


class Container:
    """A program to run; implements `rocketbed.host.member.Launched`."""

    def __init__(self, daemon: Daemon, run: Ledger, name: str, spec: Spec) -> None:
        self.name = name
        self._daemon = daemon
        self._run = run
        self._spec = spec
        self.id = ""
        """The daemon's id of the container, once it is created."""
        self._record = 0
        self._pid = 0
        self._code: int | None = None
        self._descriptor = -1
        self._reaping = trio.Lock()

    @property
    def log_path(self) -> Path:
        """File of its output, after that of earlier starts."""
        assert self._spec.directory is not None
        return self._spec.directory / "log"

    async def launch(self) -> int:
        """Create and start it; return the host pid of its init, 0 when it has ended already.

        A container that does not start is removed again.
        """
        full = f"rocketbed-{self._run.id}-{self.name}-{next(_numbers)}"
        self._record = self._run.note("container", docker_record(self._daemon.address, full))
        self._pid = await call(lambda: self._start(full), f"{self.name} does not start")
        return self._pid

    def _start(self, full: str) -> int:
        self.id, pid = start(self._daemon, self._run.id, full, self._spec)
        with suppress(OSError):
            self._descriptor = os.pidfd_open(pid) if pid else -1
        return pid

    def pid(self) -> int | None:
        return self._pid if self._descriptor >= 0 and not has_ended(self._descriptor) else None

    async def send(self, number: signal.Signals) -> bool:
        """Send a signal to the program; SIGSTOP and SIGCONT freeze and thaw the whole container.

        SIGKILL ends the program even when the daemon does not answer, so that nothing is left
        running.
        """
        if self.pid() is None:
            return False
        try:
            await call(partial(self._send, number), f"{self.name}: {number.name}")
        except DockerError:
            if self.pid() is None:
                return False  # it ended meanwhile
            if number == signal.SIGKILL:
                kill_init(self._descriptor)
            raise
        return True

    def _send(self, number: signal.Signals) -> None:
        api, own = self._daemon.api, self.id
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            api.kill(own, number.name)
        elif bool(api.inspect_container(own)["State"]["Paused"]) != (number == signal.SIGSTOP):
            (api.pause if number == signal.SIGSTOP else api.unpause)(own)

    async def wait_ended(self) -> int | None:
        """Wait for its end, then remove the container; return its exit code."""
        if self._descriptor >= 0:
            own = os.dup(self._descriptor)  # several callers may wait, each with its own descriptor
            try:
                await trio.lowlevel.wait_readable(own)
            finally:
                os.close(own)
        with trio.CancelScope(shield=True):
            await self._reap()
        return self._code

    async def _reap(self) -> None:
        async with self._reaping:
            if self._code is not None:
                return
            answer = await call(lambda: self._daemon.api.wait(self.id), f"the end of {self.name}")
            self._code = posix_code(int(answer["StatusCode"]))
            await self.take_away()

    async def take_away(self) -> None:
        """Remove it, running or not. Its program ends even when the daemon does not answer."""
        try:
            await call(lambda: remove(self._daemon, self.id), f"{self.name} stays behind")
        except DockerError:
            kill_init(self._descriptor)
            raise
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
        self._run.forget(self._record)

    async def limit_cpu(self, share: float | None) -> None:
        """Limit it to this share of one processor; None: no limit. Does nothing once it has
        ended."""
        quota = -1 if share is None else max(1000, round(CPU_PERIOD_US * share))
        update = partial(self._daemon.api.update_container, self.id, cpu_period=CPU_PERIOD_US)
        try:
            await call(lambda: update(cpu_quota=quota), f"{self.name} cannot be limited")
        except DockerError:
            if self.pid() is not None:
                raise


def posix_code(status: int) -> int:
    """Return an exit code as `subprocess` has it: negative for a signal's number."""
    is_signal = SIGNALLED < status < SIGNALLED + signal.NSIG
    return SIGNALLED - status if is_signal else status


def logged(command: Sequence[str]) -> list[str]:
    """Return a command whose output goes to the file `log` of its working directory."""
    return ["/bin/sh", "-c", 'exec "$0" "$@" >>log 2>&1', *command]


def create(daemon: Daemon, run_id: str, name: str, spec: Spec) -> str:
    """Create a container and return its id. Blocks. Raises the SDK's errors."""
    from docker.types import Ulimit

    api = daemon.api
    nofile = spec.nofile
    binds = [f"{path}:{path}:ro" for path in spec.files]
    if spec.directory is not None:
        binds.append(f"{spec.directory}:{spec.directory}:rw")
    host = api.create_host_config(
        network_mode=spec.network,
        init=True,
        binds=binds,
        mem_limit=spec.memory,
        pids_limit=spec.pids,
        ulimits=nofile and [Ulimit(name="nofile", soft=nofile, hard=nofile)],
        port_bindings=dict(spec.ports),
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        extra_hosts={spec.host_name: OWN_HOST} if spec.host_name else None,
    )
    networking = None
    if spec.address is not None:
        endpoint = api.create_endpoint_config(ipv4_address=spec.address)
        networking = api.create_networking_config({spec.network: endpoint})
    container = api.create_container(
        spec.image,
        command=list(spec.command),
        entrypoint=[],
        user=spec.user or None,
        hostname=spec.host_name or None,
        environment=dict(spec.environment),
        working_dir=None if spec.directory is None else str(spec.directory),
        ports=list(spec.ports),
        host_config=host,
        networking_config=networking,
        labels={LABEL: run_id},
        name=name,
        healthcheck={"test": ["NONE"]},
    )
    return str(container["Id"])


def start(daemon: Daemon, run_id: str, name: str, spec: Spec) -> tuple[str, int]:
    """Create and start a container; return its id, and the pid of its init, 0 when it has ended
    already.

    A container that does not start is removed again. Blocks. Raises the SDK's errors.
    """
    container = create(daemon, run_id, name, spec)
    try:
        daemon.api.start(container)
        pid = int(daemon.api.inspect_container(container)["State"]["Pid"])
    except BaseException:
        with suppress(Exception):  # the first error counts; its record stays for the reaper
            remove(daemon, container)
        raise
    return container, pid


def remove(daemon: Daemon, container: str) -> None:
    """Kill and remove a container, if it exists. Blocks."""
    import docker.errors

    with suppress(docker.errors.NotFound):
        daemon.api.remove_container(container, force=True, v=True)


def kill_init(descriptor: int) -> None:
    """End a container without its daemon: all its processes end with the first."""
    with suppress(OSError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
