"""Delivery modes of groups (401): one table, for every broker that serves the directory."""

import json
from typing import Any

import pytest

from rocketbed.remoting.client import open_connection, parse_address
from rocketbed.wire.bodies_admin import RequestMode
from rocketbed.wire.command import Command, RequestCode, request
from rocketbed.world.real import real_world
from tests.support.peer.brokers import Broker, Kind, Site
from tests.support.peer.java_client import JavaClient

TOPIC = "PeerModes"
FILE = "config/messageRequestMode.json"


@pytest.mark.ci
async def test_modes_are_kept_in_one_form(site: Site) -> None:
    await site.start_nameserver("rocketmq")
    broker = site.broker()
    await site.start(broker, "rocketmq")
    async with JavaClient(site.installation, site.nameserver, site.directory / "java") as java:
        await java.create(broker.address, [TOPIC], 2)
    assert (await set_mode(broker, "popped", mode="POP", pop_share_queue_num=-1)).code == 0
    assert (await set_mode(broker, "pulled")).code == 0
    theirs = await modes(broker)
    assert set(theirs[TOPIC]) == {"popped", "pulled"}
    await restart(site, broker, "rocketbed")
    assert await modes(broker) == theirs
    assert (await set_mode(broker, "ours")).code == 0
    ours = await modes(broker)
    assert ours[TOPIC]["ours"] == {**ours[TOPIC]["pulled"], "consumerGroup": "ours"}
    assert json.loads((broker.store / FILE).read_text()) == {"messageRequestModeMap": ours}
    await restart(site, broker, "rocketmq")
    assert await modes(broker) == ours


async def restart(site: Site, broker: Broker, kind: Kind) -> None:
    await site.stop(broker)
    await site.start(broker, kind)


async def ask(broker: Broker, code: int, body: bytes = b"") -> Command:
    world = real_world("modes")
    async with open_connection(world, parse_address(broker.address)) as connection:
        return await connection.request(request(code, {}, body), timeout_s=30)


async def set_mode(broker: Broker, group: str, **more: Any) -> Command:
    body = RequestMode(topic=TOPIC, consumer_group=group, **more).encode()
    return await ask(broker, RequestCode.SET_MESSAGE_REQUEST_MODE, body)


async def modes(broker: Broker) -> Any:
    body = (await ask(broker, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body
    return json.loads(body)["messageRequestModeMap"]
