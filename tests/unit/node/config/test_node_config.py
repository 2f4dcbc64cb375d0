"""broker.conf: what is read, what is warned of, what is refused, and how it is told (design 15)."""

import json

import pytest

from rocketbed.inspect.config import read_properties
from rocketbed.node.config.keys import KEYS
from rocketbed.node.config.node_config import (
    ConfigError,
    NodeConfig,
    Setting,
    make_config,
    settings_from_options,
    settings_from_text,
)
from rocketbed.node.config.unused import UNUSED_KEYS
from rocketbed.wire.properties_text import (
    decode_file,
    encode_file,
    parse_properties,
    render_properties,
)
from tests.support.paths import FIXTURES


def config_of(text: str) -> NodeConfig:
    return make_config(settings_from_text(text, "broker.conf"))[0]


def test_defaults_are_rocketmqs() -> None:
    config = config_of("")
    assert (config.broker_name, config.cluster_name, config.broker_id) == (
        "DEFAULT_BROKER",
        "DefaultCluster",
        0,
    )
    assert (config.listen_port, config.ha_port) == (10911, 10912)
    assert config.store.segment_size == 1 << 30
    assert not config.store.sync_flush
    assert (config.address, config.ha_address) == ("127.0.0.1:10911", "127.0.0.1:10912")


def test_a_whole_file() -> None:
    config = config_of(
        """
        # a comment
        ! another
        brokerName = broker-a
        brokerId: 1
        brokerRole=SLAVE
        namesrvAddr=10.0.0.1:9876;10.0.0.2:9876,10.0.0.3:9877
        flushDiskType=SYNC_FLUSH
        fileReservedTime=48
        deleteWhen=04;16
        rbTopicDeleted=U:4400;%RETRY%g:7
        storePathRootDir=/data/with\\
           -continuation
        listenPort=20911
        brokerIP1=10.0.0.9
        """
    )
    assert config.is_slave
    assert config.nameservers == (("10.0.0.1", 9876), ("10.0.0.2", 9876), ("10.0.0.3", 9877))
    assert config.store.sync_flush
    assert config.store.reserved_ms == 48 * 3_600_000
    assert config.store.delete_when == (4, 16)
    assert config.store.topics_deleted == (("U", 4400), ("%RETRY%g", 7))
    assert config.store.root == "/data/with-continuation"
    assert config.store.is_slave
    assert (config.store.store_host, config.store.store_port) == ("10.0.0.9", 20911)
    assert config.ha_port == 20912
    assert config.values["deleteWhen"] == "04;16"


def test_later_settings_override_earlier_ones() -> None:
    settings = settings_from_text("listenPort=1000\n", "f") + settings_from_options(
        ["listenPort=2000", "brokerName=b=c"]
    )
    config, _ = make_config(settings)
    assert config.listen_port == 2000
    assert config.broker_name == "b=c"


def test_setting_for_an_unread_location_is_refused() -> None:
    for text in (
        "storeType=defaultRocksDB",
        "enableDLegerCommitLog=true",
        "configManagerVersion=v2",
        "readOnlyCommitLogStorePaths=/old",
        "storePathCommitLog=a,b",
    ):
        with pytest.raises(ConfigError, match=r"broker that wrote it|one directory only"):
            make_config(settings_from_options([text]))
    harmless = ["storeType=default", "enableDLegerCommitLog=false", "configManagerVersion=v1"]
    assert len(make_config(settings_from_options(harmless))[1]) == 0


def test_actions_of_a_diverged_slave() -> None:
    assert make_config([])[0].diverged == "refuse"
    assert make_config(settings_from_options(["rbDiverged=cut"]))[0].diverged == "cut"
    for allowed in ("cut:3", "4096"):
        assert make_config(settings_from_options([f"rbDiverged={allowed}"]))[0].diverged == allowed
    for wrong in ("follow", "cut:", "refuse:3", ":3x"):
        with pytest.raises(ConfigError, match="must be one of refuse, cut"):
            make_config(settings_from_options([f"rbDiverged={wrong}"]))


def test_share_of_the_machines_memory() -> None:
    settings = settings_from_options(["accessMessageInMemoryMaxRatio=25"])
    assert make_config(settings, memory_bytes=1000)[0].store.memory_bytes == 250
    assert make_config(settings)[0].store.memory_bytes == 0


def test_settings_of_the_recorded_broker_are_taken() -> None:
    manifest = json.loads((FIXTURES / "rocketmq-store-clean.manifest.json").read_text())
    rows = [Setting(key, value, "manifest") for key, value in manifest["brokerConfig"].items()]
    config, warnings = make_config(rows)
    assert config.store.segment_size == 1_048_576
    assert config.store.queue_segment_size == 1280
    assert len(warnings) == 3


def test_ineffective_keys_are_warned_of_with_their_line() -> None:
    text = "brokerName=a\n\nuseReentrantLockWhenPutMessage=true\n"
    _, warnings = make_config(settings_from_text(text, "conf/broker.conf"))
    assert warnings == [
        "conf/broker.conf:3: useReentrantLockWhenPutMessage is accepted but has no effect"
    ]
    assert not KEYS.keys() & UNUSED_KEYS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nlistenPrt=3", "broker.conf:2: unknown key 'listenPrt'; did you mean listenPort?"),
        ("zzz=3", "broker.conf:1: unknown key 'zzz'"),
        ("listenPort=abc", "broker.conf:1: listenPort=abc: must be an integer"),
        ("listenPort=70000", "broker.conf:1: listenPort=70000: must be between 0 and 65535"),
        ("flushDiskType=SOMETIMES", "must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("brokerRole=MASTER", "must be one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("autoCreateTopicEnable=yes", "must be true or false"),
        ("namesrvAddr=10.0.0.1", "not an address of the form host:port: '10.0.0.1'"),
        ("namesrvAddr=a:1;ns..svc:1", "not a host name or an IP address: 'ns..svc'"),
        ("namesrvAddr=a:0", "must be between 1 and 65535"),
        ("haMasterAddress=ns..svc:1", "not a host name or an IP address: 'ns..svc'"),
        ("haMasterAddress=a:1;b:1", "must be one address, host:port"),
        ("brokerIP1=ns..svc", "broker.conf:1: brokerIP1=ns..svc: not a host name or an IP"),
        ("brokerIP2=a,b", "not a host name or an IP address: 'a,b'"),
        ("bindAddress=", "not a host name or an IP address: ''"),
        ("deleteWhen=24", "must be between 0 and 23"),
        ("rbTopicDeleted=U", "'U' is not TOPIC:OFFSET"),
        ("rbTopicDeleted=U:x", "must be an integer"),
        ("brokerRole=SLAVE\nbrokerId=0", "broker.conf:2: brokerId=0: 0 is reserved for the master"),
        ("brokerId=1", "broker.conf:1: brokerId=1: must be 0 for ASYNC_MASTER"),
        ("haListenPort=10909", "conflicts with listenPort"),
        ("mappedFileSizeCommitLog=100", "mappedFileSizeCommitLog=100: at least 256"),
        ("inSyncReplicas=0", "must be between 1 and "),
        ("brokerName=a b", "must be a name"),
        ("brokerName=\\u00zz", "broker.conf: line 1: bad escape"),
    ],
)
def test_errors_name_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("option", ["listenPort", "=5", ""])
def test_options_have_to_be_key_and_value(option: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        settings_from_options([option])


def test_comments_may_hold_any_bytes_after_a_byte_order_mark() -> None:
    data = b"\xef\xbb\xbfbrokerName=a\n# caf\xe9\nlistenPort=1\n"
    text = decode_file(data)
    assert config_of(text).listen_port == 1
    assert encode_file(text) == data.removeprefix(b"\xef\xbb\xbf")


@pytest.mark.parametrize("line", [b"brokerName=caf\xe9", b"caf\xe9=1", b"brokerName=\\ud83d"])
def test_value_that_is_no_text_is_named_with_its_line(line: bytes) -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf: line 2: text that is not UTF-8"):
        config_of(decode_file(b"# 1\n" + line))


def test_two_escapes_make_one_character_as_in_java() -> None:
    assert parse_properties("a=\\ud83d\\ude00") == [(1, "a", "\U0001f600")]


def test_value_ends_where_java_ends_a_line() -> None:
    """Only a line feed, a carriage return, or both, end a line."""
    text = "a=1\u20282\x853\x0b4\r\nb=2\rc=3\n"
    rows = [(1, "a", "1\u20282\x853\x0b4"), (2, "b", "2"), (3, "c", "3")]
    assert parse_properties(text) == rows
    assert read_properties(text) == {key: value for _, key, value in rows}


def test_properties_text_as_java_reads_it() -> None:
    text = (
        "a=1\n b : two words \nc\\ d=\\u4e2d\\n\n#x\ne\nf=g=h\n path=C:\\\\data\nlast=\\\n   joined"
    )
    assert parse_properties(text) == [
        (1, "a", "1"),
        (2, "b", "two words "),
        (3, "c d", "\u4e2d\n"),
        (5, "e", ""),
        (6, "f", "g=h"),
        (7, "path", "C:\\data"),
        (8, "last", "joined"),
    ]
    values = {"a": "x\\y", "b": "two\nlines"}
    assert {key: value for _, key, value in parse_properties(render_properties(values))} == values
