"""The client's commands without a cluster: wrong usage, unreachable peers, how things look."""

from pathlib import Path

import pytest

from rocketbed.cli.client import body_text, moment, parse_queue, table
from rocketbed.cli.main import main
from rocketbed.client.admin import Admin
from rocketbed.client.errors import BadMessage
from rocketbed.wire.bodies import BrokerData, ClusterInfo, MessageQueue

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("send -t T --body x -n nonsense", "host:port"),
        ("send -t T --body x --property color", "NAME=TEXT"),
        ("send -t T --body x --lines", "cannot be combined with --body"),
        ("send -t T --body x --count 0", "--count"),
        ("send --body x", "--topic"),
        ("send -t bad! --body x", "letters, digits"),
        ("send -t T --body x --timeout 0", "positive"),
        ("send -t T --body x --key=a\u0001b", "characters U+0001 and U+0002"),
        ("pull -t T --commit", "needs --group"),
        ("pull -t T --from committed", "needs --group"),
        ("pull -t T --from yesterday", "'yesterday' must be first, last"),
        ("pull -t T --limit 0", "--limit"),
        ("query", "give one of"),
        ("query --id 1 --key 2 -t T", "give one of"),
        ("query --key k", "need --topic"),
        (
            "query --key k -t T --begin soon",
            "neither milliseconds since the epoch nor an ISO 8601 date",
        ),
        ("topic create bad! -n 127.0.0.1:1 --queues 0", "--queues"),
        ("topic route", "NAME"),
        ("cluster up --set x --dir /nowhere/c", "KEY=VALUE"),
        ("cluster up --flush maybe", "--flush"),
        ("cluster sideways", "No such command"),
        ("failover handover", "GROUP"),
        ("failover force-leader g 1", "--accept-loss"),
    ],
)
def test_wrong_usage(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split(" ")) == 64
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "pull -t T",
        "query --key k -t T",
        "topic list",
        "topic create T",
        "topic delete T",
        "topic route T",
    ],
)
def test_an_unreachable_nameserver(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "-n", NOBODY]) == 1
    error = capsys.readouterr().err
    assert "no nameserver answered: cannot connect to 127.0.0.1:1" in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("words", ["failover status", "failover handover g"])
def test_an_unreachable_controller(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "-n", NOBODY]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:1 did not answer: cannot connect" in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_send_without_a_broker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["send", "-n", NOBODY, "-t", "T", "--body", "x"]) == 1
    assert capsys.readouterr().out.startswith("refused")
    assert main(["send", "-n", NOBODY, "-t", "T", "--body", "x", "--json"]) == 1
    assert '"outcome": "refused"' in capsys.readouterr().out


def test_send_takes_a_body_that_is_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["send", "-n", NOBODY, "-t", "T", "--timeout", "0.1", "--body", "caf\udce9"]
    assert main(words) == 1, "no broker"
    assert capsys.readouterr().out.startswith("refused")


def test_topic_create_names_brokers_without_a_master(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def route(admin: Admin, topic: str) -> None:
        """It is new."""

    async def create_topic(admin: Admin, topic: str, **options: object) -> list[str]:
        return ["broker-a"]

    async def cluster(admin: Admin) -> ClusterInfo:
        data = {
            name: BrokerData(cluster="c", broker_name=name, broker_addrs=addresses)
            for name, addresses in (("broker-a", {0: "h:1"}), ("broker-b", {1: "h:2"}))
        }
        return ClusterInfo(broker_addr_table=data, cluster_addr_table={"c": list(data)})

    for method in (route, create_topic, cluster):
        monkeypatch.setattr(Admin, method.__name__, method)
    assert main(["topic", "create", "T"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "topic T: 4 queues on broker-a\n"
    assert captured.err.startswith("topic T is not on broker-b, which had no master: ")
    assert main(["topic", "create", "T", "--broker", "broker-a"]) == 0
    assert capsys.readouterr().err == ""


def test_a_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up", "--port", "0", "--dir", "/proc/none"]) == 1
    assert "/proc/none cannot be written" in capsys.readouterr().err


def test_a_directory_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("down", "status"):
        assert main(["cluster", command, "--dir", str(tmp_path)]) == 1
        assert "has no cluster" in capsys.readouterr().err


def test_bodies_are_shown_as_text_where_they_are() -> None:
    assert body_text("grüße".encode()) == "grüße"
    assert body_text(b"two\nlines") == r"two\nlines"
    assert body_text(b"\xff\x00") == "0xff00"
    assert body_text(b"x" * 61) == "x" * 60 + "... (61 bytes)"


def test_moments() -> None:
    assert moment("1700000000000") == 1_700_000_000_000
    assert moment("2026-01-01T00:00:00Z") == 1_767_225_600_000
    assert moment("noon") is None


def test_queues_by_name_and_number() -> None:
    def queue(broker: str, number: int) -> MessageQueue:
        return MessageQueue(topic="T", broker_name=broker, queue_id=number)

    queues = [queue("a", 0), queue("b", 0), queue("b", 1)]
    assert parse_queue("b/0", queues) == queue("b", 0)
    assert parse_queue("1", queues) == queue("b", 1)
    for text, reason in (
        ("0", "exists on several brokers: a/0, b/0"),
        ("7", "does not exist: a/0, b/0, b/1"),
        ("c/0", "does not exist"),
        ("x", "expected ID or BROKER/ID"),
    ):
        with pytest.raises(BadMessage, match=reason):
            parse_queue(text, queues)


def test_tables_have_columns() -> None:
    assert table([("a", "b"), ("long", "")]) == ["a     b", "long"]
