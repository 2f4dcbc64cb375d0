"""Machines in little: each with a network, processes, a name and mounts of its own, and none of our
code.

A host lives as long as the pipe to its first process is open: when the test ends, however it does,
the kernel ends all that runs there, and takes the network away.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PREFIX: Final = Path(sys.prefix).resolve()
PYTHON: Final = PREFIX / "bin" / "python"
NETWORK: Final = "10.77.0"
HIDE: Final = """
set -e
prefix=$1 name=$2 shared=$3
shift 3
hostname "$name"
ip link set lo up
for pth in "$prefix"/lib/python*/site-packages/*rocketbed*.pth; do
    mount --bind /dev/null "$pth"
done
for package in trio outcome msgpack crcmod orjson; do
    mount -t tmpfs none "$prefix"/lib/python*/site-packages/$package
done
mount -t tmpfs none /mnt
mkdir /mnt/prefix /mnt/shared
mount --rbind "$prefix" /mnt/prefix
mount --bind "$shared" /mnt/shared
for place in "$@"; do
    mkdir -p "$place"
    mount -t tmpfs none "$place"
done
mkdir -p "$prefix" "$shared"
mount --rbind /mnt/prefix "$prefix"
mount --bind /mnt/shared "$shared"
echo ready
exec cat
"""
"""Its Python has Spark and no rocketbed, nor what that needs. Of the checkout only the packages are
left, of the tests' files only what is shared."""
HUB: Final = "hostname hub; ip link set lo up; echo ready; exec cat"


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    address: str
    pid: int
    """Of its first process."""

    def command(self, *words: str | Path) -> list[str]:
        """Command of the host's program, as any process of this machine reads it."""
        entered = ["nsenter", "-t", str(self.pid), "-n", "-m", "-p", "-u", "--"]
        return [*entered, *(str(word) for word in words)]

    def ip(self, *words: str) -> None:
        """Change its network; processes are named as this machine names them."""
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", "ip", *words], check=True)


@contextmanager
def held(name: str, number: int, script: str, *arguments: str) -> Iterator[Host]:
    """A host whose first process says `ready` and then reads until its pipe is closed."""
    kinds = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        ["unshare", *kinds, "--propagation", "private", "sh", "-c", script, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Host(name, f"{NETWORK}.{number}", int(child))
        finally:
            process.stdin.close()


@contextmanager
def hosts(
    names: Sequence[str], scratch: Path, *, shared: Path
) -> Iterator[tuple[Host, list[Host]]]:
    """A host that sees this machine's files, and others that do not, in one network."""
    with ExitStack() as stack:
        hub = stack.enter_context(held("hub", 1, HUB))
        hub.ip("link", "add", "bridge", "type", "bridge")
        hub.ip("address", "add", f"{hub.address}/24", "dev", "bridge")
        hub.ip("link", "set", "bridge", "up")
        started = []
        for number, name in enumerate(names, 2):
            hidden = [str(place) for place in (tempfile.gettempdir(), scratch, ROOT)]
            host = stack.enter_context(
                held(name, number, HIDE, str(PREFIX), name, str(shared), *hidden)
            )
            peer = ["type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
            hub.ip("link", "add", name, *peer)
            hub.ip("link", "set", name, "master", "bridge", "up")
            host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
            host.ip("link", "set", "eth0", "up")
            started.append(host)
        yield hub, started
