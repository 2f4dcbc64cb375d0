"""Configuration lines that make a RocketMQ small, quick and harmless on a test machine.

They do not affect a promise: sizes of files, periods, what a broker deletes or reserves by itself.
Flush, replication and election come from the scenario.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.process.software import SMALL_FILES
from rocketbed.world.api import Address

CONTROLLER_PORT: Final = 9878
SMALL: Final = {
    **SMALL_FILES,
    "timerWheelEnable": "false",
    "transientStorePoolEnable": "false",
    "slaveReadEnable": "true",
    "diskMaxUsedSpaceRatio": "95",
    "traceTopicEnable": "false",
}
"""The sizes of our own nodes; the timer's 38 MB are not written if there are no delays."""
OURS: Final = "rb"
"""Prefix of settings that only our nodes know."""
DISK_PROPERTIES: Final = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97",
)
"""A nearly full disk of the harness must not stop a broker on a plain directory."""
PLAIN_TEXT: Final = "-Dtls.server.mode=disabled"
"""Preparing TLS, which is not used, would take 1.7 s of a start."""
LOGBACK: Final = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %c{0} - %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqRemoting" level="WARN"/>
  <logger name="RocketmqPop" level="WARN"/>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""
"""All to the standard output and written at once: RocketMQ's own files lose lines at a kill."""


def controller_lines(
    lines: Mapping[str, str], peers: Sequence[Address], number: int, directory: Path
) -> dict[str, str]:
    """Return the settings of a nameserver with a controller: the `number`-th of `peers`."""
    texts = [f"n{place}-{host}:{port}" for place, (host, port) in enumerate(peers)]
    return {
        **lines,
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "testbed",
        "controllerDLegerPeers": ";".join(texts),
        "controllerDLegerSelfId": f"n{number}",
        "controllerStorePath": str(directory / "controller"),
        "mappedFileSize": str(1 << 20),
    }


def broker_lines(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker in classic mode; `lines` are those of one of our nodes."""
    listen = int(lines["listenPort"])
    common = {key: value for key, value in lines.items() if not key.startswith(OURS)}
    return {
        **SMALL,
        **common,
        "haListenPort": str(listen + 1),
        "storePathCommitLog": f"{lines['storePathRootDir']}/commitlog",
    }


def elected_lines(lines: Mapping[str, str], controllers: Sequence[Address]) -> dict[str, str]:
    """Return the settings of a broker whose role a controller assigns."""
    settings = broker_lines(lines)
    copies = settings.get("inSyncReplicas", "1")
    return {
        **settings,
        "enableControllerMode": "true",
        "controllerAddr": ";".join(f"{host}:{port}" for host, port in controllers),
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "minInSyncReplicas": copies,
        "allAckInSyncStateSet": "true" if int(copies) > 1 else "false",
    }


def topics_file(topics: Sequence[str], queues: int) -> str:
    """Return `config/topics.json` with just these topics, for all to read and write."""
    table = {
        topic: {
            "topicName": topic,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
            "attributes": {},
        }
        for topic in topics
    }
    version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
    return json.dumps({"dataVersion": version, "topicConfigTable": table})
