"""The command line: exit codes, lazy imports, errors on one line (design.md 20)."""

import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.cli.main import COMMANDS, cli, main


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
