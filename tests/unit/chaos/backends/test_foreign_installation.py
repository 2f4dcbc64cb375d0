"""Source of a real RocketMQ, and the error if there is none."""

from pathlib import Path

import pytest

from rocketbed.chaos.backends.foreign import installation
from rocketbed.chaos.backends.foreign.installation import (
    InstallationError,
    cache,
    install,
    pom_text,
    unpacked,
)
from rocketbed.chaos.backends.foreign.target import foreign_host
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.cli.main import main
from rocketbed.host.program import PRELOAD, without_shim

FETCHED = """#!/bin/sh
for option; do case $option in -DoutputDirectory=*) jars=${option#*=};; esac; done
/bin/mkdir -p "$jars"
echo once >> "$COUNT"
for part in broker namesrv store controller; do : > "$jars/rocketmq-$part-5.3.3.jar"; done
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with a Java that does nothing and a Maven that fetches empty jars."""
    place = tmp_path / "bin"
    place.mkdir()
    tool(place, "java", "#!/bin/sh\n")
    tool(place, "mvn", FETCHED)
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


def tool(place: Path, name: str, text: str) -> None:
    (place / name).write_text(text)
    (place / name).chmod(0o755)


def jars(place: Path, version: str = "5.3.3", *, without: str = "") -> None:
    place.mkdir(parents=True)
    for name in installation.NEEDED:
        if name != without:
            (place / f"{name}-{version}.jar").touch()


def test_a_version_is_fetched_once(tools: Path, tmp_path: Path) -> None:
    for _ in range(2):
        installation = install("5.3.3")
    assert installation.lib == cache() / "rocketmq-5.3.3" / "lib"
    assert (tmp_path / "count").read_text() == "once\n"
    assert [
        path.name for path in installation.lib.parent.iterdir() if path.name.startswith("fetch")
    ] == []


def test_another_list_of_parts_is_fetched_again(tools: Path, tmp_path: Path) -> None:
    install("5.3.3")
    install("5.3.3", parts=("namesrv", "broker"))
    assert (tmp_path / "count").read_text() == "once\nonce\n"


def test_a_broken_download_leaves_what_was_there(tools: Path, tmp_path: Path) -> None:
    tool(tools, "mvn", "#!/bin/sh\necho no route\nexit 1\n")
    with pytest.raises(InstallationError, match=r"(?s)Maven Central.*no route"):
        install("5.3.3", tmp_path / "place")
    assert list((tmp_path / "place").iterdir()) == []
    tool(tools, "mvn", "#!/bin/sh\n")
    with pytest.raises(InstallationError, match="fetched nothing"):
        install("5.3.3", tmp_path / "place")


@pytest.mark.parametrize("missing", ["java", "mvn"])
def test_a_missing_tool_is_named(tools: Path, missing: str) -> None:
    (tools / missing).unlink()
    with pytest.raises(InstallationError, match=rf"^{missing} is missing.*apt install"):
        install("5.3.3")


@pytest.mark.parametrize("version", ["latest", "../5.3.3", "5.3", ""])
def test_invalid_version_is_not_searched_for(tools: Path, version: str) -> None:
    with pytest.raises(InstallationError, match="is not a version of RocketMQ"):
        install(version)


def test_an_unpacked_distribution(tools: Path, tmp_path: Path) -> None:
    jars(tmp_path / "rocketmq" / "lib", "5.5.0")
    assert unpacked(tmp_path / "rocketmq").version == "5.5.0"
    assert unpacked(tmp_path / "rocketmq" / "lib").lib == tmp_path / "rocketmq" / "lib"
    jars(tmp_path / "old", without="rocketmq-controller")
    with pytest.raises(InstallationError, match="has no rocketmq-controller-VERSION"):
        unpacked(tmp_path / "old")


def test_targets(tools: Path, tmp_path: Path) -> None:
    jars(tmp_path / "rocketmq" / "lib", "5.5.0")
    for text in (f"rocketmq:{tmp_path}/rocketmq", f"{tmp_path}/rocketmq"):
        assert foreign_host(text).installation.version == "5.5.0"
    assert foreign_host("rocketmq:5.3.3", "controller").mode == "controller"
    for text in ("kafka:3", "rocketmq", "rocketmq:", str(tmp_path / "nowhere")):
        with pytest.raises(ScenarioError, match="is not a target"):
            foreign_host(text)


def test_a_command_keeps_its_files_below_its_home(tools: Path) -> None:
    command = install("5.3.3").command("Main", "-c", "x", home=Path("/h"), memory_mib=99)
    assert {"-Xmx99m", "-Duser.home=/h", "-Drocketmq.home.dir=/h"} <= set(command)
    assert command[-3:] == ["Main", "-c", "x"]
    assert "<version>5.3.3</version>" in pom_text("5.3.3")


def test_only_the_clock_is_preloaded() -> None:
    both = {PRELOAD: "/x/shim.so:/lib/libfaketimeMT.so.1", "A": "1"}
    assert without_shim(both) == {PRELOAD: "/lib/libfaketimeMT.so.1", "A": "1"}
    assert without_shim({PRELOAD: "/x/shim.so"}) == {}
    assert without_shim({"A": "1"}) == {"A": "1"}


def test_command_line_names_missing_tools_first(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["chaos", "run", "power-roll", "--target", "rocketmq:5.3.3"]
    (tools / "mvn").unlink()
    assert main([*run, "--backend", "process"]) == 4
    assert "mvn is missing" in capsys.readouterr().err
    assert main([*run, "--live"]) == 4
    assert "mvn is missing" in capsys.readouterr().err
    assert main([*run, "--live", "--backend", "sim"]) == 64
    assert "--live needs a cluster that runs in real time" in capsys.readouterr().err
    assert main(run) == 64
    assert "add --backend process" in capsys.readouterr().err
    assert main([*run[:-1], "kafka", "--backend", "process"]) == 64
    assert "'kafka' is not a target" in capsys.readouterr().err
