"""Network namespaces: created by name, and entered by a thread for a moment.

A socket, a TUN device or a child process belongs to the namespace that the thread was in when it
was created, and stays there. So no thread has to live inside: `inside` enters and returns (7 us). A
name is a file in /run/netns, as `ip netns` has it, so that `ip netns exec NAME ss -t` works.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rocketbed.host.janitor.cleaners import NETWORK_NAMESPACES

CLONE_NEWNET: Final = 0x40000000
MS_BIND: Final = 4096
SIOCSIFFLAGS: Final = 0x8914
SIOCSIFADDR: Final = 0x8916
SIOCSIFNETMASK: Final = 0x891C
SIOCSIFMTU: Final = 0x8922
SIOCSIFTXQLEN: Final = 0x8943
IFF_UP: Final = 1
QUEUE_LENGTH: Final = 5000
"""Packets that wait for the switch: a burst must not be lost without a fault."""
CHILD_TABLE: Final = Path("/proc/sys/net/ipv4/tcp_child_ehash_entries")
TABLE_SIZE: Final = 4096
"""A namespace's own table of connections, read for resets in 0.1 ms; the system's took 12 ms."""
_OWN: Final = "/proc/thread-self/ns/net"
_libc: Final = ctypes.CDLL(None, use_errno=True)


def make(name: str) -> None:
    """Create a namespace with a loopback interface that is up. Raises `OSError`.

    It exists until the janitor removes it; put it on record of the run (`netns`) before.
    """
    with _new_file(name) as path:
        _in_own_thread(partial(_make, path))


def adopt(name: str, pid: int) -> None:
    """Give a process's namespace a name; it exists until it is removed. Raises `OSError`."""
    with _new_file(name) as path:
        _bind(f"/proc/{pid}/ns/net", path)


@contextmanager
def _new_file(name: str) -> Iterator[Path]:
    """Create the file on which a namespace is mounted; remove it after an error."""
    NETWORK_NAMESPACES.mkdir(parents=True, exist_ok=True)
    path = NETWORK_NAMESPACES / name
    path.touch(mode=0o444, exist_ok=False)
    try:
        yield path
    except BaseException:
        path.unlink()
        raise


def _bind(source: str, path: Path) -> None:
    _check(_libc.mount(source.encode(), bytes(path), None, MS_BIND, None), f"mount on {path}")


def check_right() -> None:
    """Raise `OSError` if this process may not create network namespaces."""
    _in_own_thread(_leave)


def _make(path: Path) -> None:
    _leave()
    try:
        CHILD_TABLE.write_text(str(TABLE_SIZE))  # of this thread's namespace: for the next one only
    except OSError:
        pass  # old kernels have none, in containers it is read-only: resets take longer then
    else:
        _leave()
    _bring_up("lo")
    _bind(_OWN, path)


def _leave() -> None:
    _check(_libc.unshare(CLONE_NEWNET), "unshare(CLONE_NEWNET)")


def _in_own_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread that ends afterwards, so that no thread stays in the wrong
    namespace."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Enter a namespace with this thread. No await inside: other tasks share the thread."""
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespace = os.open(NETWORK_NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(namespace, CLONE_NEWNET), f"setns({name})")
        finally:
            os.close(namespace)
        try:
            yield
        finally:
            _check(_libc.setns(own, CLONE_NEWNET), "setns back")
    finally:
        os.close(own)


def socket_inside(name: str, family: int) -> socket.socket:
    with inside(name):
        return socket.socket(family, socket.SOCK_STREAM)


def configure(interface: str, address: str, netmask: str, mtu: int) -> None:
    """Give an interface of this thread's namespace an address, and bring it up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in (
            (SIOCSIFADDR, _address(address)),
            (SIOCSIFNETMASK, _address(netmask)),
            (SIOCSIFMTU, struct.pack("i", mtu)),
            (SIOCSIFTXQLEN, struct.pack("i", QUEUE_LENGTH)),
        ):
            fcntl.ioctl(control, request, struct.pack("16s24s", interface.encode(), value))
    _bring_up(interface)


def _bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), IFF_UP))


def _address(text: str) -> bytes:
    return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
