"""Contents of a RocketMQ image, how it is queried, and errors about an unusable one."""

import os
import signal
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import docker.errors
import pytest

from rocketbed.chaos.backends.foreign import contained, target
from rocketbed.chaos.backends.foreign import image as foreign
from rocketbed.chaos.backends.foreign.contained import ContainedRocketMQ, ready_target
from rocketbed.chaos.backends.foreign.image import (
    LOOK,
    ImageInstallation,
    image_of,
    in_image,
    moves_clock,
    read_layout,
    user_for,
)
from rocketbed.chaos.backends.foreign.installation import (
    NEEDED,
    OPEN,
    Installation,
    InstallationError,
)
from rocketbed.chaos.backends.process.network.base import Machines, PlainNetwork
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Plan
from rocketbed.cli.main import main
from rocketbed.host.docker.client import Daemon, DockerError
from rocketbed.host.docker.container import posix_code
from rocketbed.host.docker.image import pulled_image
from rocketbed.host.docker.owner import OURS, Owner, give
from tests.support.docker_api import refused

HOME = "/home/rocketmq/rocketmq-5.3.3"
THEIRS = f"""user 3000 3000
java /opt/java/openjdk/bin/java
says openjdk version "1.8.0_412"
says OpenJDK Runtime Environment (Temurin)(build 1.8.0_412-b08)
lib {HOME}/lib
jar rocketmq-acl-5.3.3.jar
jar rocketmq-broker-5.3.3.jar
jar rocketmq-controller-5.3.3.jar
jar rocketmq-namesrv-5.3.3.jar
jar rocketmq-store-5.3.3.jar
"""


def test_the_layout_of_the_makers_image() -> None:
    jars, owner = read_layout("theirs", THEIRS)
    assert jars == Installation("5.3.3", Path(f"{HOME}/lib"), "/opt/java/openjdk/bin/java", 8)
    assert owner == Owner(3000, 3000)
    assert str(owner) == "3000:3000"


@pytest.mark.parametrize(
    ("line", "replacement", "sentence"),
    [
        (r"java /opt", "jawa /opt", "image x has no java that its user 3000 can read"),
        ('"1.8.0_412"', '"1.7.0"', "has no Java 8 or newer; its java says: openjdk version"),
        ("says openjdk version", "says no", "has no Java 8 or newer"),
        (f"lib {HOME}", "", "image x has no RocketMQ that its user 3000 can read"),
        ("jar rocketmq-store-5", "jar rocketmq-store-five", "has no rocketmq-store-VERSION.jar"),
        ("jar rocketmq-controller-5.3.3.jar\n", "", "has no rocketmq-controller-VERSION.jar in /h"),
    ],
)
def test_parts_missing_in_an_image_are_named(line: str, replacement: str, sentence: str) -> None:
    assert line in THEIRS
    with pytest.raises(DockerError, match=sentence):
        read_layout("x", THEIRS.replace(line, replacement))


@pytest.mark.parametrize(("version_text", "release"), [("17.0.19", 17), ("1.8.0_1", 8), ("9", 9)])
def test_options_are_those_that_the_java_knows(version_text: str, release: int) -> None:
    jars, _ = read_layout("x", THEIRS.replace("1.8.0_412", version_text))
    command = jars.command("Main", home=Path("/h"), memory_mib=9)
    assert jars.java_release == release
    assert command[0] == "/opt/java/openjdk/bin/java"
    assert set(OPEN).isdisjoint(command) == (release == 8)


def test_the_script_finds_what_the_variables_name(tmp_path: Path) -> None:
    for name, text in (("java/bin/java", "#!/bin/sh\necho 'openjdk version \"21\"' >&2\n"),):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    lib = tmp_path / "rocketmq" / "lib"
    lib.mkdir(parents=True)
    for part in NEEDED:
        (lib / f"{part}-5.5.0.jar").touch()
    environment = {"CLOCK": "", "PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path / "java")}
    for more, place in (({"ROCKETMQ_HOME": str(lib.parent)}, tmp_path), ({}, lib.parent)):
        done = subprocess.run(
            ["/bin/sh", "-c", LOOK],
            env={**environment, **more},
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        jars, owner = read_layout("x", done.stdout)
        assert jars == Installation("5.5.0", lib, f"{tmp_path}/java/bin/java", 21)
        assert owner == Owner(os.getuid(), os.getgid())


def test_programs_run_as_the_images_user_unless_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [user_for(own) for own in ("", "root", "0:0", "root:wheel")] == [str(OURS)] * 4
    assert user_for("rocketmq") == "rocketmq"
    assert user_for("3000:3000") == "3000:3000"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    assert user_for("rocketmq") == user_for("") == "1000:100"


# --- images that are present, pulled, or unavailable


class Hub:
    """A daemon's images, and those that it can pull."""

    def __init__(self, *present: str, hub: tuple[str, ...] = ()) -> None:
        self.present = set(present)
        self.hub = hub
        self.pulled: list[str] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.present:
            raise docker.errors.ImageNotFound("no such image")
        return {"Id": f"id of {name}", "Config": {"User": "rocketmq", "Labels": None}}

    def pull(self, name: str) -> str:
        self.pulled.append(name)
        if name not in self.hub:
            raise refused("pull access denied", 404)
        self.present.add(name)
        return ""


def daemon_with(hub: Hub) -> Daemon:
    return Daemon(cast(Any, hub), "unix:///here")


def test_missing_image_is_pulled() -> None:
    hub, notices = Hub("a", hub=("b",)), list[str]()
    assert pulled_image(daemon_with(hub), "a", notices.append)["Id"] == "id of a"
    assert (hub.pulled, notices) == ([], [])
    assert pulled_image(daemon_with(hub), "b", notices.append)["Id"] == "id of b"
    assert (hub.pulled, notices) == (["b"], ["pulling b"])


def test_unavailable_image_is_named_with_the_reason() -> None:
    reason = r"unix:///here has no image c and cannot pull it \(pull access denied\); provide it"
    with pytest.raises(DockerError, match=reason):
        pulled_image(daemon_with(Hub()), "c")


def test_an_image_is_asked_as_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[tuple[str, str, list[str]]] = []
    clock = "clock 1700000000 1700864000\n"

    def answer(
        daemon: Daemon,
        image: str,
        command: list[str],
        user: str,
        environment: dict[str, str],
        files: list[str],
    ) -> tuple[int, str]:
        queries.append((image, user, files))
        assert environment["CLOCK"] == "".join(files)
        return (127, "sh: not found\n") if "bad" in image else (0, THEIRS + clock)

    monkeypatch.setattr(foreign, "output_of", answer)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(foreign, "find_library", lambda: "/lib/faketime")
    installation = in_image(daemon_with(Hub("a")), "a")
    assert installation == ImageInstallation("id of a", *read_layout("a", THEIRS), moves_clock=True)
    assert queries == [("id of a", "rocketmq", ["/lib/faketime"])]
    clock = "clock 1700000000 1700000000\n"
    assert not in_image(daemon_with(Hub("a")), "a").moves_clock
    with pytest.raises(DockerError, match=r"image bad has no shell that runs \(.*127\): sh: not f"):
        in_image(daemon_with(Hub("bad")), "bad")


def test_clock_moves_where_the_library_loads() -> None:
    assert moves_clock("user 1 1\nclock 1700000000 1700864001\n")
    for bad in ("clock 1700000000 1700000000", "clock 1700000000 ", "clock ", "ERROR: ld.so"):
        assert not moves_clock(f"user 1 1\n{bad}\n"), bad


# --- images that are made here


def test_image_of_jars_is_built_once_per_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, list[str], str]] = []
    labels: dict[str, str] = {}

    def build(_: Daemon, name: str, digest: str, files: list[str], context: BytesIO) -> None:
        with tarfile.open(fileobj=context) as archive:
            rows = {row.name: row for row in archive}
            recipe = archive.extractfile("Dockerfile")
            assert recipe is not None
            built.append((name, [*rows], recipe.read().decode()))
            assert rows["lib/a.jar"].mode == 0o644
        labels[name] = digest

    monkeypatch.setattr(foreign, "run_build", build)
    monkeypatch.setattr(foreign, "prune", lambda daemon: None)
    monkeypatch.setattr(
        foreign, "found_image", lambda daemon, name: ("id", labels[name]) if labels else None
    )
    monkeypatch.setattr(foreign, "in_image", lambda daemon, name: name)
    (tmp_path / "a.jar").write_bytes(b"1")
    (tmp_path / "a.jar").chmod(0o600)
    (tmp_path / "notes").touch()
    jars, notices = Installation("5.3.3", tmp_path), list[str]()
    for content, times in ((b"1", 1), (b"1", 1), (b"2", 2)):
        (tmp_path / "a.jar").write_bytes(content)
        image = image_of(daemon_with(Hub()), jars, notices.append)
        assert cast(str, image) == "rocketbed/rocketmq:5.3.3"
        assert len(built) == len(notices) == times
    name, files, recipe = built[0]
    assert (name, files) == ("rocketbed/rocketmq:5.3.3", ["Dockerfile", "lib/a.jar"])
    assert "FROM ${BASE}" in recipe
    assert f"ENV ROCKETMQ_HOME={HOME}\nCOPY lib/ {HOME}/lib/\nUSER {OURS}\n" in recipe


# --- targets


def test_targets_of_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "in_image", lambda daemon, name, say: name)
    monkeypatch.setattr(contained, "image_of", lambda daemon, jars, say: jars.version)
    daemon = daemon_with(Hub())
    for part in NEEDED:
        (tmp_path / f"{part}-5.5.0.jar").touch()
    versions = [
        ready_target(daemon, text)
        for text in ("image:registry:5000/a:b", f"rocketmq:{tmp_path}", str(tmp_path))
    ]
    assert cast(list[str], versions) == ["registry:5000/a:b", "5.5.0", "5.5.0"]
    for text in ("image:", "image", "kafka:3"):
        with pytest.raises(ScenarioError, match=r"is not a target: .*image:NAME"):
            ready_target(daemon, text)

    def missing(version: str) -> Installation:
        raise InstallationError("mvn is missing")

    monkeypatch.setattr(target, "install", missing)
    with pytest.raises(DockerError, match="mvn is missing"):
        ready_target(daemon, "rocketmq:5.3.3")


def test_the_command_line_refuses_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere")
    run = ["chaos", "run", "power-roll", "--target", "image:a"]
    assert main([*run, "--backend", "docker"]) == 4
    assert "no Docker daemon runs at" in capsys.readouterr().err
    assert main([*run, "--backend", "process"]) == 64
    assert "'image:a' runs in containers: add --backend docker" in capsys.readouterr().err


# --- how it runs


def test_a_container_is_not_tied_to_the_harness(tmp_path: Path) -> None:
    jars, _ = read_layout("x", THEIRS)
    plan = Plan(name="x", seed=1)
    software = ContainedRocketMQ(jars, "classic", PlainNetwork(Machines(["b1"], ["ns1"])), plan)
    command = software.nameserver_command("ns1", tmp_path, {"listenPort": "9876"})
    assert command[0] == "/opt/java/openjdk/bin/java"
    assert software.lacks("clock.jump") is None
    software.moves_clock = False
    assert "libfaketime cannot be loaded" in (software.lacks("clock.jump") or "")
    assert "writes through mappings" in (software.lacks("disk.faults") or "")
    ends = (0, posix_code(143), posix_code(137), posix_code(255), 1)
    assert [software.is_clean(code) for code in ends] == [True, True, False, False, False]


def test_exit_codes_above_all_signals_are_no_signals() -> None:
    assert [posix_code(status) for status in (0, 1, 128)] == [0, 1, 128]
    assert [posix_code(status) for status in (137, 143)] == [-signal.SIGKILL, -signal.SIGTERM]
    assert [posix_code(status) for status in (193, 255)] == [193, 255]


def test_directory_is_chowned_after_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    def chown(path: Path, user: int, group: int, *, follow_symlinks: bool) -> None:
        assert (user, group, follow_symlinks) == (Owner(3000, 4000).user, 4000, False)
        paths.append(str(path.relative_to(tmp_path)))

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "store/config").mkdir(parents=True)
    (tmp_path / "store/config/topics.json").touch()
    give(tmp_path, Owner(3000, 4000))
    assert paths == ["store/config/topics.json", "store/config", "store", "."]
    paths.clear()
    give(tmp_path, Owner(os.getuid(), 4000))
    assert paths == []
