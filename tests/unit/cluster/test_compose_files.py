"""Agreement of the files of compose/, with each other and with the project."""

import re
import tomllib
from pathlib import Path

import pytest

from rocketbed.cli import probe
from rocketbed.cli.servers import LOG_BYTES, LOG_FILES
from rocketbed.cluster.docker.member import NOFILE, PIDS
from rocketbed.host.docker import image as images
from rocketbed.host.docker.image import BUILT_OF, FILES, source_digest
from rocketbed.host.docker.owner import PYTHON, USER
from tests.support.paths import ROOT

COMPOSE = ROOT / "compose"
FILES_OF_COMPOSE = sorted(COMPOSE.glob("*.yaml"))
NODES = ("master", "slave-1", "slave-2")
DOCKERFILE = (COMPOSE / "Dockerfile").read_text()
SETTING = re.compile(r"--set (\w+)=(\S+)")
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)\}")


def license_files() -> list[str]:
    """License files, which a build has to find beside pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names: list[str] = project["project"]["license-files"]
    return names


def shipped() -> list[str]:
    """Names that pyproject.toml puts into the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    return names


def service(text: str, name: str) -> str:
    """The part of a compose file about a service."""
    part = re.search(rf"^  {name}:\n(?:    .*\n|\n)+", text, re.MULTILINE)
    assert part is not None, name
    return part[0]


def defaults() -> dict[str, str]:
    rows = (line.partition("=") for line in (COMPOSE / ".env").read_text().splitlines())
    return {key: value for key, equals, value in rows if equals and not key.startswith("#")}


def test_nodes_differ_only_in_their_identity() -> None:
    text = (COMPOSE / "classic.yaml").read_text()
    settings = {name: dict(SETTING.findall(service(text, name))) for name in NODES}
    for number, name in enumerate(NODES):
        own = settings[name]
        assert own.pop("brokerId") == str(number)
        assert own.pop("brokerIP1") == own.pop("brokerIP2") == f"${{SUBNET}}.{21 + number}"
        assert own.pop("brokerRole") == ("SLAVE" if number else "SYNC_MASTER")
    assert settings["master"].pop("inSyncReplicas") == "${IN_SYNC_REPLICAS}"
    assert settings["master"] == settings["slave-1"] == settings["slave-2"]
    assert settings["master"]["storePathRootDir"].startswith("/data/")


def test_failover_group_differs_only_in_its_controller() -> None:
    texts = [(COMPOSE / name).read_text() for name in ("classic.yaml", "failover.yaml")]
    settings = [dict(SETTING.findall(service(texts[0], "slave-1")))]
    for number in (1, 2, 3):
        part = service(texts[1], f"node-{number}")
        address = f"${{SUBNET}}.{20 + number}"
        assert f'volumes: ["node-{number}:/data"]' in part
        assert f'ipv4_address: "{address}"' in part
        own = dict(SETTING.findall(part))
        assert (own.pop("rbReplica"), own.pop("rbReplicas")) == (str(number), "3")
        assert own["brokerIP1"] == own["brokerIP2"] == address
        settings.append(own)
    for own in settings:
        for key in ("brokerId", "brokerRole", "brokerIP1", "brokerIP2"):
            own.pop(key, None)
    assert all(own == settings[0] for own in settings)
    assert 'volumes: ["nameserver-1:/data"]' in service(texts[1], "nameserver-1")
    shared = [
        re.findall(r"^x-(?:program|health): .*\n(?:  .*\n)+", one, re.MULTILINE) for one in texts
    ]
    assert len(shared[0]) == 2
    assert shared[0] == shared[1]


def test_each_node_has_its_own_volume_and_address() -> None:
    text = (COMPOSE / "classic.yaml").read_text()
    for number, name in enumerate(NODES):
        part, address = service(text, name), f"${{SUBNET}}.{21 + number}"
        assert f'volumes: ["{name}:/data"]' in part
        assert f'ipv4_address: "{address}"' in part


@pytest.mark.parametrize("path", FILES_OF_COMPOSE, ids=lambda path: path.name)
def test_containers_have_limits_and_rotated_logs(path: Path) -> None:
    """The first part of a file sets them for all its services."""
    text = path.read_text()
    shared = text[text.index("image: ") :].partition("\n\n")[0]
    for key in ("mem_limit", "cpus", "pids_limit", "stop_grace_period"):
        assert len(re.findall(rf"^ +{key}: ", shared, re.MULTILINE)) == 1, key
    assert f"ulimits: {{nofile: {NOFILE}}}" in shared
    sizes = f'max-size: {LOG_BYTES >> 20}m, max-file: "{LOG_FILES}"'
    assert f"logging: {{driver: local, options: {{{sizes}}}}}" in shared


def test_node_has_the_limits_of_a_one_command_cluster() -> None:
    assert f"  pids_limit: {PIDS}\n" in (COMPOSE / "classic.yaml").read_text()


def test_a_health_check_waits_longer_than_the_probe() -> None:
    """A probe that fails first can say why."""
    text = (COMPOSE / "classic.yaml").read_text()
    assert re.findall(r"health, \"127.0.0.1:(\d+)\"", text) == ["9876", "10911"]
    (timeout,) = re.findall(r"^  timeout: (\d+)s$", text, re.MULTILINE)
    assert int(timeout) > probe.TIMEOUT_S


def test_stages_before_the_node_are_all_needed() -> None:
    """It makes each stage above the target, in the order of the file."""
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    names = [name for _, name in stages]
    parts = dict(
        zip(names, re.split(r"^FROM .*\n", DOCKERFILE, flags=re.MULTILINE)[1:], strict=True)
    )
    needed = {"node"}
    for base, name in reversed(stages[: names.index("node") + 1]):
        assert name in needed, name
        needed |= {base, *re.findall(r"--from=(\S+)", parts[name])}


def test_no_container_gets_a_volume_without_a_name() -> None:
    assert "VOLUME" not in re.findall(r"^(\w+)", DOCKERFILE, re.MULTILINE)
    for path in FILES_OF_COMPOSE:
        assert re.findall(r"^ +- [\"']?[^\s:]+[\"']?$", path.read_text(), re.MULTILINE) == []


def test_spark_reads_every_nodes_volume_and_writes_none() -> None:
    text = (COMPOSE / "spark.yaml").read_text()
    mounts = re.findall(r'- "([\w-]+):/stores/([\w-]+)(:ro)?"', text)
    assert mounts == [(name, name, ":ro") for name in NODES]
    assert re.findall(r"--store broker-a/([\w-]+)=/stores/([\w-]+)/store", text) == [
        (name, name) for name in NODES
    ]


@pytest.mark.parametrize("path", FILES_OF_COMPOSE, ids=lambda path: path.name)
def test_every_variable_has_a_default(path: Path) -> None:
    used = set(VARIABLE.findall(path.read_text()))
    assert used
    assert used <= defaults().keys()


def test_every_default_is_used() -> None:
    used = {name for path in FILES_OF_COMPOSE for name in VARIABLE.findall(path.read_text())}
    assert defaults().keys() == used


def test_the_image_has_all_that_the_wheel_has() -> None:
    """Dockerfile, .dockerignore and the digest name the same sources as pyproject.toml."""
    linked = [link.name for link in (ROOT / "rocketbed").iterdir() if link.is_symlink()]
    folders = [*linked, *(name for name in shipped() if (ROOT / name).is_dir())]
    files = [name for name in shipped() if (ROOT / name).is_file()]
    assert sorted([*folders, *files]) == sorted([*linked, *shipped()])
    assert sorted(BUILT_OF) == sorted(folders)
    files += license_files()
    assert set(files) < set(FILES)
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line}
    assert let_in >= {
        *shipped(),
        *license_files(),
        "requirements.lock",
        "README.md",
        "compose/pip-install",
    }
    for name in folders:
        assert f"COPY {name}/ /source/{name}/\n" in DOCKERFILE
    for name in files:
        assert re.search(rf"^COPY .*\b{name} .*/source/$", DOCKERFILE, re.MULTILINE)


def test_copied_files_are_not_ignored() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line}
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        assert {name.rstrip("/") for name in line.split()} <= let_in, line


def test_user_and_interpreter_match_the_containers() -> None:
    node = DOCKERFILE[DOCKERFILE.index("AS node\n") :]
    assert f"--uid {USER} " in node
    assert f'ENTRYPOINT ["{PYTHON}", ' in node
    assert "USER rocketbed" in node


# --- what an image was built of


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in BUILT_OF:
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text(name)
    monkeypatch.setattr(images, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["node/code.py", "chaos/new.py", "pyproject.toml", "compose/Dockerfile", "hatch_build.py"],
)
def test_other_sources_have_another_digest(name: str, checkout: Path) -> None:
    before = source_digest()
    (checkout / name).write_text("other")
    assert source_digest() != before
    assert source_digest() == source_digest()


@pytest.mark.parametrize(
    "name", ["tests/test_a.py", "docs/a.md", "node/__pycache__/code.pyc", "node/native.so"]
)
def test_files_outside_the_image_do_not_count(name: str, checkout: Path) -> None:
    before = source_digest()
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("other")
    assert source_digest() == before


def test_a_name_that_moves_counts(checkout: Path) -> None:
    before = source_digest()
    (checkout / "node/code.py").rename(checkout / "node/other.py")
    assert source_digest() != before
