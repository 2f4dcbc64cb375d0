"""Two commands at once on one cluster: one works, the other is told so and changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from rocketbed.cli.main import main
from rocketbed.cluster.lifecycle import claimed
from rocketbed.cluster.plan import FILE, ClusterError

HOLD = """
import sys
from pathlib import Path
from rocketbed.cluster.lifecycle import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def is_free(directory: Path) -> bool:
    try:
        with claimed(directory):
            return True
    except ClusterError:
        return False


def test_second_claim_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    with claimed(tmp_path):
        refused = pytest.raises(ClusterError, match="another command is using the cluster in")
        with refused, claimed(tmp_path):
            raise AssertionError("both hold it")
        with claimed(tmp_path / "other", make=True):
            assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_link_to_the_directory_is_the_same_cluster(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with claimed(tmp_path / "real"):
        assert not is_free(tmp_path / "link")


def test_a_killed_command_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not is_free(tmp_path)
        process.kill()
    assert is_free(tmp_path)


def test_a_directory_that_stays_empty_is_not_left(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with claimed(directory, make=True):
        assert directory.is_dir()
    assert not (tmp_path / "a").exists()
    with claimed(directory, make=True):
        (directory / FILE).write_text("{}")
    assert (directory / FILE).exists()


def test_existing_directory_stays(tmp_path: Path) -> None:
    with claimed(tmp_path, make=True):
        pass
    assert tmp_path.is_dir()


def test_a_refused_command_takes_nothing_from_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with claimed(directory, make=True):
        assert not is_free(directory)
        assert directory.is_dir()


def test_recreated_directory_is_another_one(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with claimed(directory, make=True):
        directory.rmdir()
        with claimed(directory, make=True):
            assert not is_free(directory)


def test_without_a_directory_there_is_nothing_to_claim(tmp_path: Path) -> None:
    with claimed(tmp_path / "none"):
        assert not (tmp_path / "none").exists()


def test_a_file_in_the_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ClusterError, match="file cannot be written"),
        claimed(tmp_path / "file", make=True),
    ):
        pass


@pytest.mark.parametrize(
    "words",
    [("up", "--port", "0"), ("up", "--docker"), ("down", "--remove"), ("promote", "slave-1")],
    ids=lambda words: "-".join(words),
)
def test_commands_refuse_to_run_concurrently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with claimed(tmp_path):
        assert main(["cluster", *words, "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"rocketbed: another command is using the cluster in {tmp_path}: "
        "wait for it to finish, or interrupt it\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_command_alone_is_not_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "down", "--dir", str(tmp_path)]) == 1
    assert "another command" not in capsys.readouterr().err
