"""TCP through trio's sockets.

Streams are plain `trio.SocketStream`s, which set TCP_NODELAY themselves. `send_file` sends pages
from the cache with `sendfile`; a range that is not cached is read in a thread first, because
`sendfile` would make the whole loop wait for the device.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

import trio

from rocketbed.world.api import Address, File, Listener, Offloader, Stream

BACKLOG = 1024
"""Connections that the kernel may hold before they are accepted (RocketMQ: 1024)."""
SEND_STEP = 256 * 1024
"""Bytes of a file that are sent before checking again if they are cached."""
UNSENT_MAX = 256 * 1024
"""Unsent bytes in the kernel above which a sender has to wait (TCP_NOTSENT_LOWAT)."""
ACCEPT_PAUSE = 0.1
"""Pause when the process is out of descriptors or the kernel out of memory, seconds."""
OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
PARTS_MAX = 1024
"""Most buffers of one write (Linux: IOV_MAX)."""
IP_BIND_ADDRESS_NO_PORT = 24
"""Linux: bind an address and leave the port to `connect`, which may share it between peers."""


def new_socket(family: int) -> socket.socket:
    """Return a TCP socket of this process's network."""
    return socket.socket(family, socket.SOCK_STREAM)


def usable_source(host: str) -> str:
    """Return the address from which connections go out when a server listens on `host`; empty:
    any."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return "" if address.is_unspecified else host


class RealNetwork:
    """The machine's network. Calls that block on the disk go through `offloader`."""

    def __init__(
        self,
        offloader: Offloader,
        *,
        source: str = "",
        new_socket: Callable[[int], socket.socket] = new_socket,
    ) -> None:
        """Connections go out from the address `source`, if it is set and can reach the peer.

        `new_socket` creates the sockets, given the address family: for example in another network
        namespace.
        """
        self._offloader = offloader
        self._source = source
        self._new_socket = new_socket

    async def listen(self, host: str, port: int) -> Listener:
        """Listen on an address; an empty host is every IPv4 address. Raises `OSError`."""
        address = (await self.resolve(host))[0] if host else "0.0.0.0"
        server = trio.socket.from_stdlib_socket(self._new_socket(_family(address)))
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await server.bind((address, port))
            server.listen(BACKLOG)
        except BaseException as error:
            server.close()
            if not isinstance(error, OSError):
                raise
            is_taken = error.errno == errno.EADDRINUSE
            reason = "it is already in use" if is_taken else error.strerror or error
            raise OSError(error.errno, f"cannot listen on {address}:{port}: {reason}") from error
        return RealListener(server)

    async def connect(self, host: str, port: int) -> Stream:
        """Dial each address of `host` in turn; raises the last one's `OSError`."""
        failure: OSError = OSError(errno.EHOSTUNREACH, f"{host} has no address")
        for address in await self.resolve(host):
            client = trio.socket.from_stdlib_socket(self._new_socket(_family(address)))
            try:
                if _can_reach(self._source, address):
                    client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                    await client.bind((self._source, 0))
                await client.connect((address, port))
            except OSError as error:
                client.close()
                failure = error
                if error.errno:  # trio's text repeats the address
                    failure = OSError(error.errno, os.strerror(error.errno))
            except BaseException:
                client.close()
                raise
            else:
                return _stream(client)
        raise failure

    async def resolve(self, host: str) -> list[str]:
        """Return the addresses of a name, each once, in the resolver's order."""
        try:
            entries = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(errno.ENOENT, f"{host!r} is not a host name") from error
        except socket.gaierror as error:
            raise socket.gaierror(error.errno, f"{host}: {error.strerror}") from error
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    def local_address(self, stream: Stream) -> Address:
        return _address(_socket_of(stream).getsockname())

    def peer_address(self, stream: Stream) -> Address:
        """Return the peer's address; `("", 0)` once it has closed."""
        try:
            return _address(_socket_of(stream).getpeername())
        except OSError:
            return ("", 0)

    def try_send(self, stream: Stream, parts: list[bytes]) -> int:
        """Send as much as the socket's buffer has room for; only on a plain socket."""
        if type(stream) is not trio.SocketStream:
            return 0
        try:
            if len(parts) == 1:
                return os.write(stream.socket.fileno(), parts[0])
            return os.writev(stream.socket.fileno(), parts[:PARTS_MAX])
        except OSError:
            return 0

    def try_receive(self, stream: Stream, max_bytes: int) -> bytes:
        """Return the content of the socket's buffer; only of a plain socket."""
        if type(stream) is not trio.SocketStream:
            return b""
        try:
            return os.read(stream.socket.fileno(), max_bytes)
        except OSError:
            return b""

    async def receive(self, stream: Stream, max_bytes: int) -> bytes:
        """Receive, waiting first: trio tries to read first, through five calls, which is in vain
        after `try_receive`."""
        if type(stream) is not trio.SocketStream:
            return bytes(await stream.receive_some(max_bytes))
        while stream.socket.fileno() >= 0:
            await trio.lowlevel.wait_readable(stream.socket)
            try:
                # Get the descriptor again: the socket may have been closed meanwhile, and its
                # number reused.
                return os.read(stream.socket.fileno(), max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                if stream.socket.fileno() >= 0:
                    raise trio.BrokenResourceError(f"reading failed: {error}") from error
        raise trio.ClosedResourceError("this stream is closed")

    async def send_file(self, stream: Stream, file: File, offset: int, size: int) -> None:
        """Send a range of a file.

        Raises `trio.BrokenResourceError` when the peer has closed, `OSError` when the file is
        shorter than the range. After a cancellation an unknown part was sent: close the stream.
        """
        end = offset + size
        while offset < end:
            step = min(SEND_STEP, end - offset)
            if not isinstance(stream, trio.SocketStream) or not isinstance(file, _Descriptor):
                await stream.send_all(await self._read(file, offset, step))
            elif _looks_cached(file, offset, step):
                await _send_pages(stream, file.fileno(), file.path, offset, step)
            else:
                await stream.send_all(await self._read(file, offset, step))
            offset += step

    async def _read(self, file: File, offset: int, size: int) -> bytes:
        data = file.read_cached(offset, size)
        if data is None:
            data = await self._offloader.run(file.read_at, offset, size)
        if len(data) != size:
            raise _too_short(file.path, offset + len(data))
        return data


class RealListener:
    def __init__(self, server: trio.socket.SocketType) -> None:
        self._server = server
        self.address = _address(server.getsockname())

    async def accept(self) -> Stream:
        """Wait for the next connection; pauses while the process is out of descriptors."""
        while True:
            try:
                connection, _ = await self._server.accept()
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    await trio.sleep(ACCEPT_PAUSE)
                elif error.errno == errno.EBADF:
                    raise trio.ClosedResourceError(f"listener {self.address} is closed") from error
                elif error.errno != errno.ECONNABORTED:
                    raise
            else:
                return _stream(connection)

    async def aclose(self) -> None:
        """Stop listening; calls that wait in `accept` raise `trio.ClosedResourceError`."""
        self._server.close()
        await trio.lowlevel.checkpoint()


@runtime_checkable
class _Descriptor(Protocol):
    """A file of the operating system."""

    path: str

    def fileno(self) -> int: ...
    def read_cached(self, offset: int, size: int) -> bytes | None: ...


def _looks_cached(file: _Descriptor, offset: int, size: int) -> bool:
    """True if both ends of a range are cached; then the part between nearly always is too."""
    first, last = file.read_cached(offset, 1), file.read_cached(offset + size - 1, 1)
    return bool(first) and bool(last)


async def _send_pages(
    stream: trio.SocketStream, descriptor: int, path: str, offset: int, size: int
) -> None:
    end = offset + size
    await trio.lowlevel.checkpoint()
    while offset < end:
        try:
            count = os.sendfile(stream.socket.fileno(), descriptor, offset, end - offset)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(stream.socket)
        except OSError as error:
            if stream.socket.fileno() < 0:
                raise trio.ClosedResourceError("the stream was closed while sending") from error
            raise trio.BrokenResourceError(f"sending {path} failed: {error}") from error
        else:
            if count == 0:
                raise _too_short(path, offset)
            offset += count


def _too_short(path: str, end: int) -> OSError:
    return OSError(errno.EIO, f"{path} ends at {end}, before the range that was to be sent")


def _stream(connection: trio.socket.SocketType) -> trio.SocketStream:
    """Return a stream whose sender is woken less often than with trio's default (16 KiB unsent)."""
    stream = trio.SocketStream(connection)
    with suppress(OSError):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX)
    return stream


def _can_reach(source: str, address: str) -> bool:
    """True if a connection to `address` may go out from `source`: loopback stays on loopback."""
    if not source or _family(source) != _family(address):
        return False
    loopback = ipaddress.ip_address(source).is_loopback
    return loopback == ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _socket_of(stream: Stream) -> trio.socket.SocketType:
    """Return the socket of a stream, also under TLS."""
    while not isinstance(stream, trio.SocketStream):
        inner = getattr(stream, "transport_stream", None)
        if inner is None:
            raise TypeError(f"{stream!r} is no stream of this network")
        stream = inner
    return stream.socket


def _address(name: object) -> Address:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    raise TypeError(f"{name!r} is no TCP address")
