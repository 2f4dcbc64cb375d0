"""Help and mistyped commands, at every level of groups."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rocketbed.cli.examples import EXAMPLES
from rocketbed.cli.main import cli, main


def leaves(group: click.Group, path: str = "") -> Iterator[str]:
    context = click.Context(group, info_name=f"rocketbed {path}".strip())
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}".strip())
        elif command is not None and not command.hidden:
            yield f"{path} {name}".strip()


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        ("sned", "'sned': did you mean send?"),
        ("topic craete", "'craete': did you mean create?"),
        ("store fcsk", "'fcsk': did you mean fsck?"),
        ("chaos rnu", "'rnu': did you mean run?"),
        ("pipeline exprot", "'exprot': did you mean export?"),
        ("failover statsu", "'statsu': did you mean status?"),
        ("cluster stauts", "'stauts': did you mean status?"),
        ("topic xyz", "expected create, delete, list, route, update"),
    ],
)
def test_mistyped_command_gets_a_suggestion(
    words: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 64
    assert suggestion in capsys.readouterr().err.splitlines()[-1]


def test_every_command_has_an_example() -> None:
    assert set(leaves(cli)) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_can_be_parsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in ("store", "out/chaos/failover-7"):
        (tmp_path / directory).mkdir(parents=True)
    for file in ("broker.conf", "out/chaos/failover-7.rbx"):
        (tmp_path / file).touch()
    monkeypatch.setattr(click.Command, "invoke", lambda *_: 0)
    assert main([*name.split(), *shlex.split(EXAMPLES[name])]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["send", "topic create", "chaos run"])
def test_help_shows_the_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert f"  rocketbed {name} {EXAMPLES[name]}\n" in capsys.readouterr().out


def test_help_uses_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (80, 150):
        monkeypatch.setenv("COLUMNS", str(columns))
        main(["pull", "--help"])
        widest = max(map(len, capsys.readouterr().out.splitlines()))
        assert columns - 10 <= widest <= columns
    main(["--help"])
    assert "check that no message was lost.\n" in capsys.readouterr().out


def test_shell_completes_commands_of_a_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ROCKETBED_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "rocketbed topic cr")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "plain,create\n"
