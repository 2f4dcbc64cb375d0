"""The commands a user types, against a cluster of real processes: output and exit codes."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.cli.main import main
from rocketbed.host.member import rocketbed_command

pytestmark = pytest.mark.process


class Shell:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.capsys = capsys
        self.nameservers = ""
        self.errors = ""

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with `code`; what it printed."""
        self.capsys.readouterr()
        ended = main(list(words))
        captured = self.capsys.readouterr()
        self.errors = captured.err
        assert ended == code, captured
        assert "Traceback" not in captured.err
        return captured.out

    def client(self, command: str, *words: str, code: int = 0) -> str:
        """Run a command that talks to the cluster."""
        first, *words_before = command.split()
        return self.run(first, *words_before, "-n", self.nameservers, *words, code=code)

    def cluster(self, command: str, *words: str, code: int = 0) -> str:
        return self.run("cluster", command, "--dir", str(self.directory), *words, code=code)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    opened = Shell(tmp_path / "cluster", capsys)
    try:
        yield opened
    finally:
        if (opened.directory / "cluster.json").exists():
            main(["cluster", "down", "--dir", str(opened.directory)])


def up(shell: Shell, *words: str) -> str:
    output = shell.cluster("up", "--port", "0", *words)
    shell.nameservers = output.splitlines()[-1].removeprefix("clients: -n ")
    return output


def test_up_send_pull_query_status_down(shell: Shell) -> None:
    output = up(shell, "--slaves", "1", "--flush", "sync")
    assert output.count("serving") == 3
    assert shell.client("topic create", "Orders", "--queues", "2") == (
        "topic Orders: 2 queues on broker-a\n"
    )
    assert "change it with `rocketbed topic update`" in (
        shell.client("topic create", "Orders", code=1) + shell.errors
    )
    sent = shell.client(
        "send", "-t", "Orders", "--body", "first", "--key", "k1", "--tag", "A",
        "--property", "color=red", "--queue", "1",
    )  # fmt: skip
    word, message_id, queue, offset, status, offset_id = sent.split()
    assert (word, queue, offset, status) == ("sent", "broker-a/1", "0", "SEND_OK")
    rows = shell.client("send", "-t", "Orders", "--body", "more", "--count", "3", "--json")
    assert [json.loads(row)["outcome"] for row in rows.splitlines()] == ["sent"] * 3

    lines = shell.client("pull", "-t", "Orders").splitlines()
    assert len(lines) == 4
    first = next(line for line in lines if line.endswith("first"))
    assert first.startswith("broker-a/1 0  ")
    assert f"{message_id}  tag=A  keys=k1  first" in first
    (row,) = shell.client("pull", "-t", "Orders", "--tags", "A", "--json").splitlines()
    value = json.loads(row)
    assert (value["body"], value["msgId"], value["offsetMsgId"]) == (
        "first",
        message_id,
        offset_id,
    )
    assert value["properties"]["color"] == "red"

    for words in (["--id", offset_id], ["--id", message_id, "-t", "Orders"]):
        assert f"id                   {message_id}" in shell.client("query", *words)
    for words in (["--key", "k1"], ["--unique", message_id]):
        assert shell.client("query", "-t", "Orders", *words).splitlines() == [first]
    shell.client("query", "-t", "Orders", "--key", "absent", code=1)
    assert "no message in topic Orders has absent" in shell.errors

    assert shell.client("topic list") == "Orders\n"
    assert "TBW102" in shell.client("topic list", "--all")
    assert shell.client("topic route", "Orders").splitlines()[1].split()[:4] == [
        "broker-a",
        "2",
        "2",
        "rw",
    ]
    route = json.loads(shell.client("topic route", "Orders", "--json"))
    assert list(route["brokerDatas"][0]["brokerAddrs"]) == ["0", "1"]

    status = json.loads(shell.cluster("status", "--json"))
    assert status["groups"] == []
    states = status["members"]
    assert [row["state"] for row in states] == ["serving"] * 3
    assert states[1]["maxOffset"] == states[2]["maxOffset"] > 0
    assert shell.cluster("down").count("stopped") == 3
    assert shell.cluster("status", code=1).count("down") == 3
    shell.client("send", "-t", "Orders", "--body", "x", "--timeout", "1", code=1)
    assert shell.cluster("down") == "no member was running\n"


def test_group_list_lag_and_reset(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    up(shell, "--slaves", "0")
    shell.client("topic create", "Orders", "--queues", "2")
    for body in ("a", "b", "c"):
        shell.client("send", "-t", "Orders", "--body", body, "--queue", "0")
    shell.client("send", "-t", "Orders", "--body", "d", "--queue", "1")
    shell.client("pull", "-t", "Orders", "--group", "readers", "--queue", "0", "--commit")
    shell.client("send", "-t", "Orders", "--body", "e", "--queue", "0")

    groups = json.loads(shell.client("group list", "--json"))
    assert {"group": "readers", "topics": ["Orders"]} in groups
    assert "TOOLS_CONSUMER" not in [row["group"] for row in groups]
    assert "TOOLS_CONSUMER" in shell.client("group list", "--all")

    lag = json.loads(shell.client("group lag", "readers", "--json"))
    rows = [(row["queueId"], row["end"], row["position"], row["lag"]) for row in lag["queues"]]
    assert rows == [(0, 4, 3, 1), (1, 1, None, None)]
    assert lag["queues"][0]["lastConsumedTimestamp"] > 0
    assert lag["lag"] == 1
    lines = shell.client("group lag", "readers").splitlines()
    assert lines[0].split() == ["topic", "queue", "end", "position", "lag", "age"]
    assert lines[1].split()[:5] == ["Orders", "broker-a/0", "4", "3", "1"]
    assert lines[-1] == "total lag 1, without 1 queues that have no position yet"
    assert "no broker knows group nobody" in (
        shell.client("group lag", "nobody", code=1) + shell.errors
    )

    reset = ("group reset", "readers", "-t", "Orders")
    output = shell.client(*reset, "--to", "first", "--dry-run")
    assert output.splitlines()[1].split() == ["broker-a/0", "3", "0"]
    assert "nothing was changed" in output
    shell.client(*reset, "--to", "first", "--json", code=64)
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        shell.client(*reset, "--to", "first", code=130)
        assert "nothing was changed; --yes" in shell.errors
    assert json.loads(shell.client("group lag", "readers", "--json"))["lag"] == 1
    for position, expected in (("first", (0, 0)), ("last", (4, 1)), ("2", (2, 1))):
        shell.client(*reset, "--to", position, "--yes")
        rows = json.loads(shell.client("group lag", "readers", "--json"))["queues"]
        assert tuple(row["position"] for row in rows) == expected
    done = shell.client(*reset, "--to", "2020-01-01T00:00:00Z", "--yes", "--json")
    assert json.loads(done)["changed"]
    assert json.loads(shell.client("group lag", "readers", "--json"))["lag"] == 5


def test_cluster_keeps_its_data_until_removed(shell: Shell) -> None:
    up(shell, "--slaves", "0")
    shell.client("send", "-t", "T", "--body", "kept")
    shell.cluster("down")
    assert "already holds a cluster" in up(shell) + shell.errors
    assert shell.client("pull", "-t", "T").rstrip().endswith("kept")
    up(shell)
    assert "every member is already running" in shell.errors
    shell.cluster("down", "--remove")
    assert not shell.directory.exists()
    shell.cluster("status", code=1)
    assert "cluster.json is missing" in shell.errors


def test_groups_commit_and_follow(shell: Shell) -> None:
    up(shell, "--slaves", "0")
    shell.client("topic create", "T", "--queues", "1")
    shell.client("send", "-t", "T", "--body", "x", "--count", "5")
    group = ["-t", "T", "--group", "g"]
    first = shell.client("pull", *group, "--limit", "2", "--commit").splitlines()
    assert [line.split()[1] for line in first] == ["0", "1"]
    assert len(shell.client("pull", *group).splitlines()) == 3
    assert len(shell.client("pull", *group, "--from", "first").splitlines()) == 5
    assert shell.client("pull", *group, "--from", "last") == ""
    shell.client("topic create", "Closed", "--queues", "1", "--perm", "w")
    shell.client("pull", "-t", "Closed", code=1)
    assert "topic Closed has no queue that may be read" in shell.errors
    assert len(shell.client("pull", "-t", "T", "--from", "3").splitlines()) == 2
    assert len(shell.client("pull", "-t", "T", "--from", "2020-01-01T00:00").splitlines()) == 5
    followed = shell.client("pull", "-t", "T", "--follow", "--from", "first", "--limit", "5")
    assert len(followed.splitlines()) == 5
    words = ["send", "-n", shell.nameservers, "-t", "T", "--lines", "--order-key", "k"]
    piped = subprocess.run(
        rocketbed_command(*words),
        input=b"one\ntwo\n\xff\n",
        capture_output=True,
        check=True,
    )
    assert piped.stdout.count(b"sent") == 3
    last = [line.split()[-1] for line in shell.client("pull", *group, "--from", "5").splitlines()]
    assert last == ["one", "two", "0xff"]


@pytest.mark.slow
def test_output_lost_by_its_reader_is_not_committed(shell: Shell) -> None:
    up(shell, "--slaves", "0")
    shell.client("topic create", "T", "--queues", "1")
    shell.client("send", "-t", "T", "--body", "x" * 50, "--count", "3000")
    group = ["pull", "-n", shell.nameservers, "-t", "T", "--group", "g", "--commit"]
    for more in ([], ["--follow"], ["--json"]):
        with subprocess.Popen(
            rocketbed_command(*group, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as puller:
            try:
                assert puller.stdout is not None
                assert puller.stdout.readline()
                puller.stdout.close()
                _, errors = puller.communicate(timeout=60)
                assert puller.returncode == 0
                assert errors == b"nothing committed: the output's reader went away\n"
            finally:
                puller.kill()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            rocketbed_command(*group), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"Error: cannot write to standard output: No space left on device\n"
    assert len(shell.client("pull", "-t", "T", "--group", "g").splitlines()) == 3000
    shell.client("pull", "-t", "T", "--from", "9" * 20, code=64)
    assert "beyond any queue offset" in shell.errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_follow_commits_the_shown_messages(shell: Shell, number: int) -> None:
    up(shell, "--slaves", "0")
    shell.client("topic create", "T", "--queues", "1")
    shell.client("send", "-t", "T", "--body", "x", "--count", "3")
    words = ["pull", "-n", shell.nameservers, "-t", "T", "--group", "g", "--follow", "--commit"]
    with subprocess.Popen(
        rocketbed_command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        try:
            assert follower.stdout is not None
            assert [follower.stdout.readline()[:12] for _ in range(3)][2] == b"broker-a/0 2"
            follower.send_signal(number)
            _, errors = follower.communicate(timeout=60)
            assert (follower.returncode, errors) == (130, b"")
        finally:
            follower.kill()
    assert shell.client("pull", "-t", "T", "--group", "g") == ""


def test_following_ends_with_an_interrupt(shell: Shell) -> None:
    up(shell, "--slaves", "0")
    shell.client("send", "-t", "T", "--body", "seen")
    words = ["pull", "-n", shell.nameservers, "-t", "T", "--follow"]
    with subprocess.Popen(
        rocketbed_command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline().endswith(b"seen\n")
            shell.client("send", "-t", "T", "--body", "later")
            assert follower.stdout.readline().endswith(b"later\n")
            follower.send_signal(signal.SIGINT)
            _, errors = follower.communicate(timeout=30)
            assert (follower.returncode, errors) == (130, b"")
        finally:
            follower.kill()


SCRIPT = """
import sys
from rocketbed.blocking import Consumer, Message, Producer, Sent

with Producer(nameservers=sys.argv[1], group="scripts") as producer:
    outcomes = [producer.send(Message("Script", b"%d" % n), order_key="k") for n in range(9)]
assert all(isinstance(outcome, Sent) and outcome.is_safe for outcome in outcomes)
with Consumer(nameservers=sys.argv[1], group="scripts") as consumer:
    consumer.subscribe("Script", start="first")
    found = []
    while len(found) < 9:
        found += consumer.poll()
    consumer.commit()
    print(*(message.body.decode() for message in found))
    print(consumer.committed(found[0].queue))
"""


def test_a_plain_script_sends_and_reads(shell: Shell) -> None:
    up(shell, "--slaves", "1")
    command = [sys.executable, "-P", "-W", "error", "-c", SCRIPT, shell.nameservers]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout.split() == [*"012345678", "9"]
    assert completed.stderr == ""


@pytest.mark.slow
def test_topics_are_changed_and_deleted(shell: Shell) -> None:
    up(shell, "--slaves", "0")
    shell.client("topic create", "T", "--queues", "2")
    assert "5 queues" in shell.client("topic update", "T", "--queues", "5", "--perm", "r")
    assert shell.client("topic route", "T").splitlines()[1].split()[2:4] == ["5", "r"]
    shell.client("send", "-t", "T", "--body", "x", code=1)
    shell.client("topic delete", "T")
    for command in ("topic delete", "topic route"):
        shell.client(command, "T", code=1)
        assert "topic T does not exist" in shell.errors
    shell.client("topic update", "T", "--queues", "1", code=1)
    shell.client("topic create", "TBW102", code=1)
    shell.client("pull", "-t", "T", code=1)
    assert "topic T does not exist: create it first" in shell.errors


def test_a_start_that_fails_says_why(shell: Shell) -> None:
    shell.cluster("up", "--port", "0", "--slaves", "0", "--set", "brokerPermission=9", code=1)
    assert "master ended with code 64" in shell.errors
    assert "brokerPermission=9" in shell.errors
    assert (
        f"`rocketbed cluster down --remove --dir {shell.directory}` ends what runs" in shell.errors
    )
    assert "nameserver stopped" in shell.cluster("down", "--remove")
    assert "master" in up(shell, "--slaves", "0"), "the directory can be used again"
