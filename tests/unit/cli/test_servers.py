"""The output of servers in a file that is begun anew before it grows for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.cli import servers
from rocketbed.cli.main import main

PROGRAM = """
import logging, sys
from pathlib import Path
from rocketbed.cli import servers

servers.LOG_BYTES = 1000
servers.start_logging(["odd"], Path("log"), verbose=False)
for number in range(int(sys.argv[1])):
    logging.getLogger("rocketbed.node").info("line %d", number)
print("printed", flush=True)
sys.exit("rocketbed: over")
"""


def run(directory: Path, lines: int) -> None:
    """Start a program as `rocketbed.host.member` does; its output goes to the file at once."""
    with (directory / "log").open("ab") as log:
        command = [sys.executable, "-P", "-c", PROGRAM, str(lines)]
        done = subprocess.run(command, cwd=directory, stdout=log, stderr=log, check=False)
    assert done.returncode == 1


def test_output_is_kept_in_files_of_a_size(tmp_path: Path) -> None:
    run(tmp_path, 1000)
    names = ["log", *(f"log.{number}" for number in range(1, servers.LOG_FILES))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all((tmp_path / name).stat().st_size < 1100 for name in names)
    text = "".join((tmp_path / name).read_text() for name in reversed(names))
    numbers = [int(line.split()[-1]) for line in text.splitlines() if " line " in line]
    assert numbers == list(range(numbers[0], 1000))


def test_fatal_output_is_in_the_current_file(tmp_path: Path) -> None:
    run(tmp_path, 1000)
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["printed", "rocketbed: over"]


def test_starts_follow_each_other_in_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path, 1)
    text = (tmp_path / "log").read_text()
    assert text.count("rocketbed: warning: odd") == text.count("line 0") == 2


def test_file_that_cannot_be_rotated_is_continued(tmp_path: Path) -> None:
    for number in range(1, servers.LOG_FILES):
        (tmp_path / f"log.{number}" / "full").mkdir(parents=True)
    run(tmp_path, 1000)
    text = (tmp_path / "log").read_text()
    assert text.count(" line ") == 1000
    assert 1 <= text.count("cannot be rotated, it grows: ") < 100
    assert "Traceback" not in text


def test_a_program_without_standard_output(tmp_path: Path) -> None:
    program = f"import sys; sys.stdout = None\n{PROGRAM}".replace(
        'print("printed", flush=True)', ""
    )
    command = [sys.executable, "-P", "-c", program, "3"]
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False)
    assert (tmp_path / "log").read_text().count(" line ") == 3


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "log"
    assert main(["nameserver", "--log", str(path)]) == 64
    assert f"--log {path} cannot be written: No such file or directory" in capsys.readouterr().err
