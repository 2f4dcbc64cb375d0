"""A connection that asks one thing after the other."""

import socket
import time


class Asker:
    """A connection that asks one thing after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask_all(self, frames: list[bytes], at_once: int) -> float:
        """So many under way; seconds it took. Raises `RuntimeError` for a refusal."""
        began = time.perf_counter()
        for at in range(0, len(frames), at_once):
            some = frames[at : at + at_once]
            self._socket.sendall(b"".join(some))
            for _ in some:
                answer = self._file.read(int.from_bytes(self._file.read(4), "big"))
                if b'"code":0,' not in answer[:120]:
                    raise RuntimeError(f"refused: {answer[:500]!r}")
        return time.perf_counter() - began

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()
