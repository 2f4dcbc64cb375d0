"""`rocketbed health` against servers that answer oddly, and what it does not load."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rocketbed.cli import probe
from rocketbed.cli.main import main
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.frame import FrameReader, encode

HOST = "127.0.0.1"
Serve = Callable[[socket.socket], None]


@pytest.fixture
def serving() -> Iterator[Callable[[Serve], str]]:
    """Gives the address of a server that does this with its one connection."""
    threads = []

    def start(serve: Serve) -> str:
        listener = socket.create_server((HOST, 0))

        def run() -> None:
            with listener:
                stream, _ = listener.accept()
            with stream:  # connections from here on are refused
                serve(stream)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"{HOST}:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()


def question(stream: socket.socket) -> Command:
    """Return the request as our servers read it."""
    reader = FrameReader()
    while True:
        if commands := reader.feed(stream.recv(4096)):
            (command,) = commands
            return command


def answering(code: int, remark: str | None = None) -> Serve:
    def serve(stream: socket.socket) -> None:
        data = encode(answer(question(stream), code, remark))
        for byte in data:  # however it is cut
            stream.sendall(bytes([byte]))

    return serve


def run_probe(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | None, str]:
    code = probe.run_plain(list(words))
    return code, capsys.readouterr().out.strip()


def test_the_numbers_are_those_of_the_protocol() -> None:
    assert probe.READINESS == RequestCode.RB_READINESS
    assert probe.NOT_SUPPORTED == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("code", "remark", "exit_code", "line", "live"),
    [
        (0, None, 0, "is ready", 0),
        (0, "damage: heal it", 0, "is ready (damage: heal it)", 0),
        (14, "the disk is full", 1, "is not ready: the disk is full", 0),
        (1, None, 1, "is not ready: code 1", 0),
        (3, "no", 1, "is not ready: it does not know the question: another version, or not"
         " rocketbed", 0),
    ],
)  # fmt: skip
def test_answers(
    code: int,
    remark: str | None,
    exit_code: int,
    line: str,
    live: int,
    serving: Callable[[Serve], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = serving(answering(code, remark))
    assert run_probe(capsys, address) == (exit_code, f"{address} {line}")
    address = serving(answering(code, remark))
    assert run_probe(capsys, "--live", address) == (live, f"{address} is live")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">II", 8, 4) + b"[1]\n",
        struct.pack(">II", 8, 4) + b"\xff{}\n",
        struct.pack(">II", 6, 2) + b"{}",
    ],
)
def test_invalid_answers(
    data: bytes, serving: Callable[[Serve], str], capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(stream: socket.socket) -> None:
        question(stream)
        stream.sendall(data)

    for words in ((), ("--live",)):
        address = serving(serve)
        code, line = run_probe(capsys, *words, address)
        assert code == 1
        assert line == (
            f"{address} is not {'live' if words else 'ready'}: what answers there is no server of"
            " rocketbed"
        )


def test_closed_output_is_no_error(serving: Callable[[Serve], str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "rocketbed", "health", serving(answering(0))]
    with open(write_end, "wb") as output:
        done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_server_that_closes_or_is_not_there(
    serving: Callable[[Serve], str], capsys: pytest.CaptureFixture[str]
) -> None:
    def close(stream: socket.socket) -> None:
        question(stream)

    address = serving(close)
    line = f"{address} is not ready: it closed the connection without an answer"
    assert run_probe(capsys, address) == (1, line)
    assert run_probe(capsys, address) == (1, f"{address} is not ready: Connection refused")
    assert run_probe(capsys, "--live", address) == (1, f"{address} is not live: Connection refused")
    full = serving(lambda stream: None)
    assert run_probe(capsys, "--live", full) == (0, f"{full} is live")


def test_a_server_that_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        line = f"{address} is not live: no answer within 0.2 s"
        assert run_probe(capsys, "--live", address) == (1, line)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-h"],
        ["nowhere"],
        ["a:1", "b:2"],
        ["--live"],
        ["--dead", "a:1"],
        ["a:70000"],
        ["ns..svc:1"],
    ],
)
def test_other_words_are_left_to_the_command_line(words: list[str]) -> None:
    assert probe.run_plain(words) is None


def test_the_command_line_asks_the_same(
    serving: Callable[[Serve], str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = serving(answering(14, "no"))
    assert main(["health", address]) == 1
    assert capsys.readouterr().out == f"{address} is not ready: no\n"
    assert main(["health", "nowhere"]) == 64


def test_nothing_is_loaded_that_takes_long(serving: Callable[[Serve], str]) -> None:
    """It was 0.8 s of processor time for each question, every 3 s in each container."""
    address = serving(answering(0))
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-m", "rocketbed", "health", address],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{address} is ready\n"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {name for name in loaded if name.startswith("rocketbed")} <= {
        "rocketbed", "rocketbed.cli", "rocketbed.cli.probe",
    }  # fmt: skip
    assert not loaded & {"click", "trio", "orjson", "typing", "dataclasses", "asyncio", "logging"}
    assert "json" in loaded


def test_slow_partial_answer_counts_as_missing(
    serving: Callable[[Serve], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trickle(stream: socket.socket) -> None:
        question(stream)
        stream.sendall(struct.pack(">II", 4 + 10_000, 10_000))
        with suppress(OSError):
            for _ in range(10_000):
                stream.sendall(b" ")
                time.sleep(0.01)

    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    code, line = run_probe(capsys, serving(trickle))
    assert code == 1
    assert line.endswith("is not ready: no answer within 0.2 s")
