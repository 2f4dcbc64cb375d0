"""The work of `rocketbed health`: one request, with little of the standard library.

Containers send one every few seconds. Loading the command line's library and the client took ten
times the processor time of the request itself, and on a busy machine so long that servers were
reported as down. So nothing else of rocketbed is imported; `rocketbed.__main__` calls this
directly.
"""

import json
import os
import socket
import struct
import sys
import time

READINESS = 32100
"""`RequestCode.RB_READINESS`."""
NOT_SUPPORTED = 3
TIMEOUT_S = 10.0
"""Time to connect, and time for the whole answer, seconds. A slow server is not down, and the
caller has a limit of its own."""
FRAME_MAX = 1 << 20
"""Answers are far shorter: a server that claims more is not a rocketbed server."""


def run_plain(words: list[str]) -> int | None:
    """Return the exit code of `rocketbed health [--live] HOST:PORT`; None for other words."""
    address = [word for word in words if word != "--live"]
    if len(address) != 1 or len(words) > 2 or address[0].startswith("-"):
        return None
    try:
        parse(address[0])
    except ValueError:
        return None
    try:
        return check(address[0], live="--live" in words)
    except KeyboardInterrupt:
        return 130


def parse(text: str) -> tuple[str, int]:
    """Parse `host:port` as a pair; IPv6 hosts may be in brackets. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_host = bool(host.encode("idna"))
    except UnicodeError:
        is_host = False
    if not colon or not is_host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"not an address of the form host:port: {text!r}")
    return host, int(port)


def check(address: str, *, live: bool) -> int:
    """Send the request and print the result on one line; 0 good, 1 not."""
    why, code, remark = "", 0, ""
    try:
        code, remark = ask(*parse(address))
    except (ConnectionResetError, BrokenPipeError):
        # Most likely it has too many connections: it runs, and a restart would not help.
        why = "" if live else "it closed the connection without an answer"
    except TimeoutError:
        why = f"no answer within {TIMEOUT_S:g} s"
    except OSError as exc:
        why = exc.strerror or str(exc)
    except ValueError:
        why = "what answers there is no server of rocketbed"
    if why:
        return _say(1, f"{address} is not {'live' if live else 'ready'}: {why}")
    if live:
        return _say(0, f"{address} is live")
    if code == NOT_SUPPORTED:
        remark = "it does not know the question: another version, or not rocketbed"
    if code:
        return _say(1, f"{address} is not ready: {remark or f'code {code}'}")
    return _say(0, f"{address} is ready{f' ({remark})' if remark else ''}")


def ask(host: str, port: int) -> tuple[int, str]:
    """Return code and remark of the answer. Raises `OSError`, and `ValueError` for bytes that are
    no answer."""
    header = json.dumps(
        {"code": READINESS, "flag": 0, "language": "OTHER", "opaque": 1, "version": 0}
    ).encode()
    with socket.create_connection((host, port), TIMEOUT_S) as stream:
        end = time.monotonic() + TIMEOUT_S
        stream.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        length, header_length = struct.unpack(">II", _exactly(stream, 8, end))
        if not header_length <= length - 4 <= FRAME_MAX:  # its first byte, zero, says JSON
            raise ValueError("no header in JSON")
        answer = json.loads(_exactly(stream, header_length, end))
    if not isinstance(answer, dict) or not isinstance(answer.get("code"), int):
        raise ValueError("no header of an answer")
    return answer["code"], str(answer.get("remark") or "")


def _exactly(stream: socket.socket, size: int, end: float) -> bytes:
    data = b""
    while len(data) < size:
        stream.settimeout(max(end - time.monotonic(), 0.001))
        part = stream.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _say(code: int, line: str) -> int:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed (`| head`), which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
