"""The nameserver's tables: rules of wire.md 3, without a network."""

import zlib
from dataclasses import replace

import pytest

from rocketbed.routing.config import BadSetting, read_settings
from rocketbed.routing.errors import RegistrationRefused
from rocketbed.routing.registration import read_registration
from rocketbed.routing.table import Registrant, RoutingTable
from rocketbed.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from rocketbed.wire.encoding.json_dialect import BodyError
from rocketbed.wire.headers_admin import RegisterBrokerRequest
from tests.support.routing import topics


def identity(
    name: str = "a",
    broker_id: int = 0,
    port: int = 10911,
    *,
    cluster: str = "c",
    acting_master: bool | None = False,
) -> Registrant:
    return Registrant(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=f"10.0.0.1:{port}",
        ha_address=f"10.0.0.1:{port + 1}",
        acting_master=acting_master,
    )


def registered(*rows: tuple[Registrant, TopicConfigTable]) -> RoutingTable:
    table = RoutingTable()
    for registrant, config in rows:
        table.register(registrant, config, now_s=0, link=registrant.address)
        table.check()
    return table


def test_topic_is_routed_to_all_its_brokers() -> None:
    table = registered(
        (identity("a"), topics("T", "U")), (identity("b", port=20911), topics("T", "V", counter=3))
    )
    brokers, queues = table.route("T", acting_master=False)
    assert [broker.broker_name for broker in brokers] == ["a", "b"]
    assert [data.broker_name for data in queues] == ["a", "b"]
    assert table.route("nobody", acting_master=False) == ([], [])


def test_a_slave_learns_its_live_master() -> None:
    table = registered((identity(), topics("T", "U")))
    first = table.register(identity(broker_id=1, port=30911), topics("T", "U"), now_s=0, link="s")
    assert (first.master_address, first.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")
    table.unregister("c", "10.0.0.1:10911")
    second = table.register(identity(broker_id=1, port=30911), topics("T", "U"), now_s=1, link="s")
    assert second.master_address is None


def test_a_first_registration_with_one_topic_is_refused() -> None:
    table = RoutingTable()
    with pytest.raises(RegistrationRefused, match="register broker failed"):
        table.register(identity(), topics("T"), now_s=0, link=1)
    table.check()
    table.register(identity(), topics("T", "U"), now_s=0, link=1)
    table.register(identity(), topics("New", counter=1), now_s=0, link=1)
    assert set(table.topics) == {"T", "U", "New"}


def test_address_with_a_new_id_leaves_the_old_one() -> None:
    table = registered((identity(broker_id=1), topics("T", "U")), (identity(), topics("T", "U")))
    assert table.brokers["a"].broker_addrs == {0: "10.0.0.1:10911"}


def test_id_of_a_later_epoch_is_not_taken() -> None:
    table = registered(
        (identity(port=1111), topics("T", "U", state=5)),
        (identity(port=2222), topics("T", "U", state=4)),
    )
    assert table.brokers["a"].broker_addrs == {0: "10.0.0.1:1111"}
    table.register(identity(port=2222), topics("T", "U", state=6), now_s=0, link=2)
    assert table.brokers["a"].broker_addrs == {0: "10.0.0.1:2222"}


def test_silent_broker_expires_and_a_heartbeat_keeps_it() -> None:
    table = registered((identity(), topics("T", "U")))
    assert table.expired(120) == []
    table.touch("c", "10.0.0.1:10911", now_s=100)
    assert table.expired(220) == []
    assert table.expired(221) == [("c", "10.0.0.1:10911")]
    table.touch("c", "unknown", now_s=0)
    assert ("c", "unknown") not in table.live


def test_the_last_address_takes_the_broker_name_along() -> None:
    table = registered(
        (identity(), topics("T", "U")), (identity(broker_id=1, port=30911), topics("T", "U"))
    )
    assert table.unregister("c", "10.0.0.1:10911") == "a"
    table.check()
    assert table.route("T", acting_master=False)[0][0].broker_addrs == {1: "10.0.0.1:30911"}
    assert table.unregister("c", "10.0.0.1:30911") == "a"
    assert (table.brokers, table.clusters, table.topics, table.live) == ({}, {}, {}, {})
    assert table.unregister("c", "10.0.0.1:30911") is None


def test_old_connection_end_keeps_a_newer_registration() -> None:
    table = registered((identity(), topics("T", "U")))
    table.register(identity(), topics("T", "U"), now_s=1, link="newer")
    assert table.on_link("10.0.0.1:10911") == []
    assert table.on_link("newer") == [("c", "10.0.0.1:10911")]


def test_write_permission_is_wiped_until_a_changed_registration() -> None:
    table = registered((identity(), topics("T", "U", counter=1)))
    assert table.wipe_write("a") == 2
    assert table.route("T", acting_master=False)[1][0].perm == 4
    table.register(identity(), topics("T", "U", counter=1), now_s=1, link=1)
    assert table.route("T", acting_master=False)[1][0].perm == 4
    table.register(identity(), topics("T", "U", counter=2), now_s=2, link=1)
    assert table.route("T", acting_master=False)[1][0].perm == 6
    assert table.wipe_write("a") == 2
    assert table.add_write("a") == 2
    assert table.route("T", acting_master=False)[1][0].perm == 6


def test_slave_acts_as_master_on_request() -> None:
    table = registered(
        (identity(acting_master=True), topics("T", "U")),
        (identity(broker_id=2, port=30911, acting_master=True), topics("T", "U")),
    )
    table.unregister("c", "10.0.0.1:10911")
    plain, queues = table.route("T", acting_master=False)
    assert plain[0].broker_addrs == {2: "10.0.0.1:30911"}
    assert queues[0].perm == 4
    brokers, _ = table.route("T", acting_master=True)
    assert brokers[0].broker_addrs == {0: "10.0.0.1:30911"}


def test_late_registration_of_a_dead_master_takes_nothing() -> None:
    table = RoutingTable()
    old, new = identity("a"), identity("a", port=20911)
    table.register(old, topics("T", "U"), now_s=0, link="old")
    table.unregister("c", old.address)
    table.register(new, topics("T", "U"), now_s=1, link="new")
    table.register(old, topics("T", "U"), now_s=2, link="late")
    assert table.on_link("late") == [("c", old.address)]
    table.unregister("c", old.address)
    assert table.brokers["a"].broker_addrs == {0: new.address}
    assert table.route("T", acting_master=False)[1]
    table.unregister("c", new.address)
    assert table.brokers == {}
    table.check()


@pytest.mark.parametrize("order", [("c", "d"), ("d", "c")])
def test_name_in_two_clusters_leaves_with_its_last_broker(order: tuple[str, str]) -> None:
    brokers = {
        "c": identity(cluster="c", port=10911),
        "d": identity(cluster="d", port=20911),
    }
    table = registered(*((broker, topics("T", "U")) for broker in brokers.values()))
    first, last = (brokers[cluster] for cluster in order)
    assert table.unregister(first.cluster, first.address) in ("a", None)
    table.check()
    assert table.brokers["a"].broker_addrs == {0: last.address}
    assert (table.brokers["a"].cluster, table.clusters) == (
        last.cluster,
        {last.cluster: {"a": None}},
    )
    assert table.unregister(last.cluster, last.address) == "a"
    assert (table.brokers, table.clusters, table.topics, table.live) == ({}, {}, {}, {})


def test_address_stays_while_it_lives_in_another_cluster() -> None:
    """A broker was started again with another brokerClusterName."""
    table = registered(
        (identity(cluster="c"), topics("T", "U")), (identity(cluster="d"), topics("T", "U"))
    )
    table.unregister("c", identity().address)
    table.check()
    assert table.brokers["a"].broker_addrs == {0: identity().address}
    assert list(table.clusters) == ["d"]


def test_address_leaves_its_former_name_too() -> None:
    """A broker was started again with another brokerName."""
    table = registered((identity("a"), topics("T", "U")), (identity("b"), topics("T", "U")))
    assert table.unregister("c", identity().address) == "b"
    assert (table.brokers, table.clusters, table.topics, table.live) == ({}, {}, {}, {})


def test_name_without_an_address_leaves_the_list_of_its_cluster() -> None:
    """A broker took the id of another one, which lives on, and then another id."""
    table = registered(
        (identity("a", port=20911, broker_id=2), topics("T", "U")),
        (identity("a", broker_id=2), topics("T", "U")),
        (identity("a", broker_id=0), topics("T", "U")),
    )
    assert table.unregister("c", identity().address) == "a"
    assert (table.brokers, table.clusters, table.topics) == ({}, {}, {})
    table.check()


def test_topics_are_deleted_everywhere_or_in_one_cluster() -> None:
    table = registered(
        (identity("a"), topics("T", "U")),
        (identity("b", port=20911, cluster="d"), topics("T", "U")),
    )
    table.delete_topic("T", "d")
    assert [data.broker_name for data in table.route("T", acting_master=False)[1]] == ["a"]
    table.delete_topic("T", None)
    assert "T" not in table.topics
    assert table.topics_of("d") == ["U"]
    table.check()


def register_request(
    body: bytes, *, crc: int = 0, compressed: bool = False
) -> tuple[RegisterBrokerRequest, bytes]:
    header = RegisterBrokerRequest(
        brokerName="a", brokerAddr="x:1", clusterName="c", haServerAddr="x:2", brokerId=0,
        bodyCrc32=crc, compressed=compressed,
    )  # fmt: skip
    return header, body


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(4, "big") + value.encode()


def compressed_body(lines: list[str]) -> bytes:
    data = text('{"counter":7,"stateVersion":0,"timestamp":9}') + len(lines).to_bytes(4, "big")
    data += b"".join(text(line) for line in lines) + text("[]") + (0).to_bytes(4, "big")
    return zlib.compress(data, 9)


def test_compressed_registrations_are_read_whatever_the_flag_says() -> None:
    body = compressed_body(['T 8 4 6 SINGLE_TAG {"+message.type":"FIFO"}', "U 1 1 7 MULTI_TAG"])
    for flag in (True, False):
        table = read_registration(*register_request(body, compressed=flag))
        assert table.data_version == DataVersion(counter=7, timestamp=9)
        assert table.topic_config_table["T"].read_queue_nums == 8
        assert table.topic_config_table["T"].attributes == {"+message.type": "FIFO"}
        assert table.topic_config_table["U"].topic_filter_type == "MULTI_TAG"


def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    body = RegisterBrokerBody(topic_config_serialize_wrapper=topics("T")).encode()
    good = zlib.crc32(body) & 0x7FFFFFFF
    assert "T" in read_registration(*register_request(body, crc=good)).topic_config_table
    with pytest.raises(RegistrationRefused, match="crc32 not match"):
        read_registration(*register_request(body, crc=good ^ 1))


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
def test_a_cut_registration_is_an_error(cut: int) -> None:
    body = compressed_body(["T 8 4 6 SINGLE_TAG"])
    with pytest.raises(BodyError):
        read_registration(*register_request(body[:-cut]))
    inflated = zlib.decompress(body)
    with pytest.raises(BodyError):
        read_registration(*register_request(zlib.compress(inflated[: len(inflated) - 10 - cut])))


def test_settings_name_what_is_wrong() -> None:
    config, warnings = read_settings({"listenPort": "1234", "rocketmqHome": "/x"})
    assert (config.port, len(warnings)) == (1234, 1)
    with pytest.raises(BadSetting, match="did you mean listenPort"):
        read_settings({"listenport": "1"})
    with pytest.raises(BadSetting, match="ports end at 65535"):
        read_settings({"listenPort": "70000"})
    with pytest.raises(BadSetting, match=r"bindAddress=ns\.\.svc: not a host name"):
        read_settings({"bindAddress": "ns..svc"})
    with pytest.raises(BadSetting, match="must be a number"):
        read_settings({"listenPort": "x"})
    with pytest.raises(BadSetting, match="true or false"):
        read_settings({"orderMessageEnable": "yes"})


def test_remaining_master_keeps_only_its_topics() -> None:
    """Though its table is as it was when it registered first (soak-swarm 1270008)."""
    remaining_master, leaving = (identity(), topics("T", "U")), identity(port=20911)
    own = topics("T", "U")
    own.topic_config_table["T"] = TopicConfig(topic_name="T", write_queue_nums=5)
    table = registered(remaining_master, (leaving, own), (replace(leaving, broker_id=1), own))
    assert table.data_version("c", remaining_master[0].address) is None, "it has to register again"
    table.register(*remaining_master, now_s=1, link="left")
    _, queues = table.route("T", acting_master=False)
    queues_own = remaining_master[1].topic_config_table["T"].write_queue_nums
    assert [data.write_queue_nums for data in queues] == [queues_own] != [5]
    assert table.data_version("c", remaining_master[0].address) == remaining_master[1].data_version


def test_promoted_slave_has_its_own_queues() -> None:
    """In the same process, with the same table, while its master is still listed."""
    own = topics("T", "U")
    own.topic_config_table["T"] = TopicConfig(topic_name="T", write_queue_nums=5)
    slave = identity(broker_id=1, port=20911)
    table = registered(
        (identity(), topics("T", "U")), (slave, own), (replace(slave, broker_id=0), own)
    )
    _, queues = table.route("T", acting_master=False)
    assert [data.write_queue_nums for data in queues] == [5]


def test_single_topic_update_does_not_replace_the_table() -> None:
    """RocketMQ 5 registers just the topic that changed."""
    own = topics("T", "U", counter=3)
    second_master = identity(port=20911)
    table = registered(
        (second_master, topics("T", "U")),
        (identity(), own),
        (second_master, topics("T", "U", counter=1)),
    )
    table.register(identity(), topics("N", counter=4), now_s=1, link="own")
    assert table.data_version("c", identity().address) is None, "it has to register again"
    table.register(identity(), topics("T", "U", "N", counter=4), now_s=1, link="own")
    assert table.data_version("c", identity().address) == DataVersion(counter=4, state_version=0)
