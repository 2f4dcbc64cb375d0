"""The examples of docs/guides/spark.md run as they stand, and give what the page says."""

import contextlib
import io
import re
import shlex
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rocketbed.cli.pipeline.group import COMMANDS
from rocketbed.cli.pipeline.group import pipeline as command
from rocketbed.pipeline.files.corrupt import REASONS
from rocketbed.pipeline.option_table import READS, TABLE, WRITES, markdown
from rocketbed.pipeline.schema import RECORDS
from tests.support.paths import CLEAN_STORE
from tests.support.spark_live import cluster_in

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/spark.md").read_text(encoding="utf-8")
TABLES = (ROOT / "docs/reference/spark.md").read_text(encoding="utf-8")
NAMESERVER = "127.0.0.1:9876"
PROMPT = "$ rocketbed pipeline "
DATA = "/data/"
NEEDS_A_TESTBED = "campaign"
"""Its examples take minutes; test_campaign.py runs small ones."""


def programs() -> list[tuple[str, str]]:
    """Each block of Python with what it prints."""
    return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.S)


def commands() -> list[tuple[list[str], str]]:
    """Arguments of each command behind `rocketbed pipeline`, and what it prints."""
    examples = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S):
        line, _, output = block.partition("\n")
        assert line.startswith(PROMPT), line
        examples.append((shlex.split(line.removeprefix(PROMPT)), output))
    return examples


def steady(text: str) -> str:
    """Without what differs from run to run: seconds, and ids that are drawn."""
    return re.sub(r"\d+\.\d s\b|\breplay-[0-9a-f]{32}\b", "~", text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[Path]:
    """A directory with the store, and the tests' session for each job that starts one."""
    with tarfile.open(CLEAN_STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copytree(tmp_path / "store", tmp_path / "copy-of-store")
    monkeypatch.setattr("rocketbed.pipeline.session.build_session", lambda *_, **__: spark)
    monkeypatch.setattr("rocketbed.pipeline.jobs.common.build_session", lambda *_, **__: spark)
    monkeypatch.setattr("rocketbed.pipeline.jobs.common.end_spark", lambda _: None)
    handler = signal.getsignal(signal.SIGINT)
    yield tmp_path
    signal.signal(signal.SIGINT, handler)


def printed(program: str, names: dict[str, object], place: Path) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        text = program.replace(DATA, f"{place}/")
        exec(compile(text, "docs/guides/spark.md", "exec"), names)
    return output.getvalue()


def output_of(arguments: list[str], place: Path) -> str:
    """Return what a command writes to standard output."""
    real_arguments = [text.replace(DATA, f"{place}/") for text in arguments]
    result = CliRunner().invoke(command, real_arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.replace(f"{place}/", DATA)


@pytest.mark.slow
def test_programs_over_a_directory(place: Path) -> None:
    names: dict[str, object] = {}
    local = [each for each in programs() if NAMESERVER not in each[0]]
    assert len(local) == 4
    for program, output in local:
        assert printed(program, names, place) == output, program


@pytest.mark.slow
def test_examples_on_a_cluster(place: Path, spark: SparkSession) -> None:
    from rocketbed.pipeline import read

    names: dict[str, object] = {"spark": spark, "read": read}
    live = [each for each in programs() if NAMESERVER in each[0]]
    sent = [each for each in commands() if NAMESERVER in each[0]]
    assert (len(live), [arguments[0] for arguments, _ in sent]) == (2, ["replay"])
    with cluster_in(place / "bed", slaves=0) as cluster:
        address = cluster.nameserver_address
        for program, output in live:
            text = program.replace(NAMESERVER, address)
            assert printed(text, names, place) == output, program
        for arguments, output in sent:
            real_arguments = [address if text == NAMESERVER else text for text in arguments]
            assert steady(output_of(real_arguments, place)) == steady(output)


@pytest.mark.slow
def test_commands(place: Path) -> None:
    local = [each for each in commands() if NAMESERVER not in each[0]]
    for arguments, output in local:
        if arguments[0] != NEEDS_A_TESTBED:
            assert steady(output_of(arguments, place)) == steady(output), arguments


def test_every_job_has_its_paragraph_and_its_example() -> None:
    sections = set(re.findall(r"^### (\w+)$", PAGE.split("## Jobs")[1], re.M))
    assert sections == set(COMMANDS)
    assert {arguments[0] for arguments, _ in commands()} == sections


def test_tables_name_what_there_is() -> None:
    tabled = re.findall(r"^\| (`.*?) \| (.*?) \|", TABLES, re.M)
    rows = [(name.strip("`"), type_.strip("`")) for name, type_ in tabled]
    columns = [(name, type_) for name, type_ in rows if name in RECORDS and type_]
    assert columns == [(name, column.type) for name, column in RECORDS.items()]
    assert all(f"`{reason}`" in PAGE for reason in REASONS)
    cells = re.findall(r"`([\w.]+)`", " ".join(name for name, _ in tabled))
    assert {option.name for option in TABLE} <= set(cells)
    assert markdown(*READS) in TABLES
    assert markdown(*WRITES) in TABLES
