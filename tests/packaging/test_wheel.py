"""The wheel in an empty environment, beside a user's packages named like our folders."""

import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.dist import CONSTRAINT, NATIVE, SEND_BODY, run, wheel_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDERS = ("node", "replication", "routing", "chaos", "pipeline")
THEIRS = (*FOLDERS, "bench")
PLUGIN_TEST = """
import bench, chaos as own, node, pipeline, replication, routing
import pytest

pytestmark = pytest.mark.rocketbed(brokers=3, repl="sync")


async def test_orders(cluster, chaos):
    assert {m.WHOSE for m in (bench, own, node, pipeline, replication, routing)} == {"the user"}
    producer = await cluster.producer("orders")
    consumer = await cluster.consumer("orders", group="billing")
    await producer.send_all(range(20))
    async with chaos.during(chaos.kill("leader")):
        await producer.send_all(range(20, 30), retry=True)
    await cluster.settled()
    assert await consumer.read_all() >= set(range(30))
    chaos.check()
"""
CLIENT = """
import sys
import node
from rocketbed.blocking import Consumer, Message, Producer, Sent

assert node.WHOSE == "the user"
with Producer(nameservers=sys.argv[1], group="shop") as producer:
    for number in range(10):
        assert isinstance(producer.send(Message("Orders", b"%d" % number)), Sent)
with Consumer(nameservers=sys.argv[1], group="kitchen") as consumer:
    consumer.subscribe("Orders", start="first")
    found = set()
    while len(found) < 10:
        found |= {received.body for received in consumer.poll(timeout_s=5)}
print("read", len(found))
"""
SPARK_READ = """
import sys
import pipeline
from rocketbed.pipeline import read
from rocketbed.pipeline.session import build_session

assert pipeline.WHOSE == "the user"
spark = build_session("orders")
print("rows", read(spark, sys.argv[1], ["topic"]).where("topic = 'Orders'").count())
spark.stop()
"""
TYPED = """
import trio
from rocketbed import Consumer, Message, Producer, Sent
from rocketbed.blocking import Producer as BlockingProducer
from rocketbed.pipeline import read
from rocketbed.testing import Chaos, Cluster


async def body(cluster: Cluster, chaos: Chaos) -> None:
    await chaos.kill("leader")
    await cluster.settled()


async def main() -> None:
    async with Producer(nameservers="127.0.0.1:9876") as producer:
        outcome = await producer.send(Message("Orders", b"one"))
        assert isinstance(outcome, Sent)
        print(outcome.queue_offset + 1, read, BlockingProducer, Consumer)


trio.run(main)
"""


def build(place: Path, source: Path = ROOT, env: Mapping[str, str] | None = None) -> Path:
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, source)
    run(*command, cwd=place, env=env)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native one: a machine that runs these tests has a compiler."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pure"), env={"ROCKETBED_PURE": "1"})


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds the wheel, its extras and what a user tests with."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", place, cwd=place)
    packages = (f"{wheel}[chaos,spark]", "pytest", "mypy")
    run(place / "bin" / "python", "-m", "pip", "install", "-q", *CONSTRAINT, *packages, cwd=place)
    return place / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project whose packages have the names of our folders."""
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('WHOSE = "the user"\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


def test_make_dist(tmp_path: Path) -> None:
    """It compares the packages, and each is installed and used."""
    output = tmp_path / "dist"
    printed = run(sys.executable, "-m", "tools.dist", "--output", output, cwd=ROOT)
    names = {Path(line).name for line in printed.splitlines() if line.startswith(str(output))}
    assert names == {path.name for path in output.iterdir()}
    assert len(names) == 3


@pytest.mark.ci
def test_make_dist_without_a_compiler(tmp_path: Path) -> None:
    output, pure = tmp_path / "dist", {"ROCKETBED_PURE": "1"}
    command = (sys.executable, "-m", "tools.dist", "--output", output)
    printed = run(*command, cwd=ROOT, env=pure, succeeds=False)
    assert "not a native and a pure wheel: rocketbed-" in printed
    assert not output.exists()


def test_wheel_built_without_a_compiler_is_pure_and_runs(pure_wheel: Path, tmp_path: Path) -> None:
    """Whatever the checkout holds of an earlier build; the node says which body it has."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    bin = tmp_path / "venv" / "bin"
    without = {"PATH": str(bin), "CC": ""}
    (tmp_path / "wheels").mkdir()
    built = build(tmp_path / "wheels", env=without)
    assert built.name == pure_wheel.name
    assert wheel_files(built) == wheel_files(pure_wheel)
    run(bin / "python", "-m", "pip", "install", "-q", *CONSTRAINT, ROOT, cwd=tmp_path, env=without)
    assert "python, as there is no native one" in run(bin / "python", "-c", SEND_BODY, cwd=tmp_path)


def test_an_editable_install_builds_it_in_place(tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".*", "tests", "bench", "docs", "__pycache__", "*.so")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", *CONSTRAINT, "--editable", source, cwd=tmp_path)
    native = [source / name for name in NATIVE]
    assert all(path.is_file() for path in native)
    assert run(python, "-c", SEND_BODY, cwd=tmp_path).strip() == "native"
    reinstall = (
        python,
        "-m",
        "pip",
        "install",
        "-q",
        *CONSTRAINT,
        "--no-deps",
        "--editable",
        source,
    )
    run(*reinstall, cwd=tmp_path, env={"ROCKETBED_PURE": "1"})
    assert not any(path.exists() for path in native), "of an earlier install"


def test_the_wheel_holds_one_package_of_real_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "rocketbed",
        "pyspark_rocketbed.py",
    }
    for folder in FOLDERS:
        modules = {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py")}
        assert modules
        assert {f"rocketbed/{name}" for name in modules} <= set(names)
    assert "rocketbed/py.typed" in names


def test_plugin_test_beside_packages_of_the_same_names(environment: Path, project: Path) -> None:
    (project / "test_orders.py").write_text(PLUGIN_TEST)
    printed = run(environment / "python", "-m", "pytest", "-q", "test_orders.py", cwd=project)
    assert "1 passed" in printed
    assert not any((environment.parent / "lib").glob(f"python3*/site-packages/{THEIRS[0]}"))


def test_a_client_and_spark(environment: Path, project: Path) -> None:
    (project / "client.py").write_text(CLIENT)
    (project / "count.py").write_text(SPARK_READ)
    command = (environment / "rocketbed", "cluster")
    at = ("--dir", project / "bed")
    run(*command, "up", *at, cwd=project)
    try:
        printed = run(*command, "status", *at, cwd=project)
        address = next(word for word in printed.split() if word.startswith("127.0.0.1:"))
        assert "read 10" in run(environment / "python", "client.py", address, cwd=project)
    finally:
        run(*command, "down", *at, cwd=project)
    store = next((project / "bed").rglob("commitlog")).parent
    assert "rows 10" in run(environment / "python", "count.py", store, cwd=project)


def test_a_users_program_is_checked_against_our_types(environment: Path, project: Path) -> None:
    (project / "typed.py").write_text(TYPED)
    checker = (environment / "python", "-m", "mypy", "--strict")
    run(*checker, "typed.py", cwd=project)
    (project / "wrong.py").write_text(TYPED.replace('kill("leader")', 'kil("leader")'))
    printed = run(*checker, "wrong.py", cwd=project, succeeds=False)
    assert 'has no attribute "kil"' in printed
