"""A connection that sends one request after another."""

import socket
import time


class Asker:
    """A connection that sends one request after another."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask_all(self, frames: list[bytes], at_once: int) -> float:
        """Send with `at_once` requests in flight; return the seconds it took. Raises `RuntimeError`
        for a refusal."""
        began = time.perf_counter()
        for at in range(0, len(frames), at_once):
            window = frames[at : at + at_once]
            self._socket.sendall(b"".join(window))
            for _ in window:
                answer = self._file.read(int.from_bytes(self._file.read(4), "big"))
                if b'"code":0,' not in answer[:120]:
                    raise RuntimeError(f"refused: {answer[:500]!r}")
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()
