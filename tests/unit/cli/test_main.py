"""The command line: exit codes, lazy imports, errors on one line (design.md 20)."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.cli.errors import sentence
from rocketbed.cli.main import COMMANDS, cli, main
from tests.support.stores import Spec, write_log


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    captured = capsys.readouterr().out
    for name in COMMANDS:
        assert name in captured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command"),
        (["node", "--nonsense"], "No such option"),
        (["node", "-c", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
        (["node", "--set", "listenPort"], "expected KEY=VALUE"),
        (["node", "--set", "listenPrt=1"], "did you mean listenPort?"),
    ],
)
def test_wrong_usage_is_64_and_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    assert message in capsys.readouterr().err


def test_config_error_names_file_line_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nflushDiskType=MAYBE\n")
    assert main(["node", "-c", str(path)]) == 64
    assert f"{path}:2: flushDiskType=MAYBE" in capsys.readouterr().err


def test_binary_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["node", "-c", str(path)]) == 64
    assert "broker.conf: line 1: text that is not UTF-8" in capsys.readouterr().err


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_taken_port_is_one_line(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["nameserver", "--set", f"listenPort={taken_port}", "--set", "bindAddress=127.0.0.1"]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        f"rocketbed: cannot listen on 127.0.0.1:{taken_port}: it is already in use:"
        " stop the program that listens there, or choose another port\n"
    )
    assert main(["--debug", *command]) == 1
    *traceback, last = capsys.readouterr().err.splitlines()
    assert any("Traceback" in line for line in traceback)
    assert last.startswith("rocketbed: cannot listen on")


def test_host_without_an_address_is_one_line() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "elsewhere: Name or service not known")
    group = ExceptionGroup("", [error])
    expected = "elsewhere: Name or service not known: check the spelling of the address"
    assert sentence(group) == expected


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["node", "--set", "listenPort=0", "--set", "storePathRootDir={}"], 64),
        (["store", "rebuild", "{store}", "--out", "{}"], 1),
        (["demo", "--report", "{}"], 64),
        (["demo", "--bug", "--report", "{}"], 64),
        (["chaos", "run", "failover", "--report", "{}"], 64),
        (["cluster", "up", "--dir", "{}"], 1),
    ],
)
def test_directory_that_cannot_be_made_is_one_line(
    arguments: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "store", [Spec()])
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "x")
    words = [word.format(place, store=tmp_path / "store") for word in arguments]
    assert main(words) == status
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    assert place in lines[-1]
    assert "Not a directory" in lines[-1]
    assert "Errno" not in lines[-1]


def test_absent_nameserver_is_one_line_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topic", "list", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "rocketbed: no nameserver answered: cannot connect to 127.0.0.1:1: Connection refused:"
        " start one (rocketbed cluster up), or give the address of yours with -n\n"
    )


def test_mistake_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ExceptionGroup("both", [OSError("disk"), KeyError("mistake")])

    monkeypatch.setattr("rocketbed.cli.client.trio.run", fail)
    with pytest.raises(ExceptionGroup):
        main(["topic", "list"])


def test_every_command_can_be_imported() -> None:
    context = cli.make_context("rocketbed", ["node"], resilient_parsing=True)
    for name in cli.list_commands(context):
        assert cli.get_command(context, name) is not None


def test_a_node_imports_none_of_the_extras() -> None:
    program = (
        "import sys; import rocketbed.__main__, rocketbed.cli.node, node.node,"
        " rocketbed.world.real;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    extras = {"numpy", "jinja2", "rich", "docker", "pyspark", "pyarrow", "chaos", "hypothesis"}
    assert not extras & set(imported)
