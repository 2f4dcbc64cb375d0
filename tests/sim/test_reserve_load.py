"""Bugs that only rare load or rare faults show, kept out of the catalogue that the testbed knows.

Each is put into the node in the processes of its runs only, and seeds alone have to find it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.library import DIRECTORY, load_scenario
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.node.broker.clients import EXPIRY_S
from rocketbed.replication.lease import LEASE_S
from rocketbed.wire.bodies import LockQueues
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.properties import RETRY_TOPIC, encode_properties
from tests.mutation.planted.mutant import swap
from tests.support.reserve import assert_found

FIRST_SEED = 12_000
BUDGET_S = 1000.0
"""Simulated seconds, some 14 runs."""


def ring_overflow_forgets() -> None:
    """Do not read overflowed entries again from the log."""

    def push(self: Any, entries: Any) -> None:
        was_lost = self._lost
        original(self, entries)
        self._lost = self._lost and was_lost

    original = swap("rocketbed.node.store.dispatch:Dispatcher.push", push)


def reported_before_it_was_written() -> None:
    """A slave reports a little more than it has."""

    def acknowledged(self: Any) -> int:
        return int(original(self)) + 100

    original = swap("rocketbed.replication.follow:MasterConnection._acknowledged", acknowledged)


def large_bodies_cut() -> None:
    def add(self: Any, topic: str, queue: int, body: bytes, properties: bytes, **more: Any) -> Any:
        return original(self, topic, queue, body[: 1 << 17], properties, **more)

    original = swap("rocketbed.node.store.run:Run.add", add)


def settings_not_taken_over() -> None:
    swap("rocketbed.node.broker.settings:take_over", lambda config, changed, keys: None)


def added_queues_not_in_routes() -> None:
    def put(self: Any, identity: Any, config: Any) -> None:
        known_config = self.topics.get(config.topic_name, {}).get(identity.broker_name)
        original(self, identity, config)
        if known_config is not None:
            self.topics[config.topic_name][identity.broker_name] = known_config

    original = swap("rocketbed.routing.table:RoutingTable._put_topic", put)


def topic_used_before_durable() -> None:
    swap("rocketbed.node.broker.topics:Topics.is_durable", lambda self, topic: True)


def positions_left_beyond_their_queue() -> None:
    swap("rocketbed.node.broker.offsets:Offsets.bring_down", lambda self, queue_max: 0)


def cut_bytes_not_kept() -> None:
    async def keep(parts: Any, offset: int, *, end: int) -> tuple[str, int]:
        return "", 0

    swap("rocketbed.node.store.removal:keep_cut_bytes", keep)


def cut_bytes_kept_as_zeros() -> None:
    async def keep(parts: Any, name: str, read: Any, start: int, end: int) -> Any:
        return await original(parts, name, lambda at: bytes(len(read(at))), start, end)

    original = swap("rocketbed.node.store.cut:_keep", keep)


def blind_scrub() -> None:
    swap("rocketbed.node.store.scrub:Scrubber._add", lambda self, *place, **more: None)


def slaves_not_in_routes() -> None:
    def register(self: Any, identity: Any, *arguments: Any, **more: Any) -> Any:
        reply = original(self, identity, *arguments, **more)
        if identity.broker_id and len(self.brokers[identity.broker_name].broker_addrs) > 1:
            del self.brokers[identity.broker_name].broker_addrs[identity.broker_id]
        return reply

    original = swap("rocketbed.routing.table:RoutingTable.register", register)


def locks_kept_by_who_has_left() -> None:
    def unlock(self: Any, command: Command, connection: Any) -> Command:
        return answer(command, ResponseCode.SUCCESS, None, {})

    swap("rocketbed.node.broker.locks:QueueLocks.unlock", unlock)


def locks_given_back_by_anybody() -> None:
    def unlock(self: Any, command: Command, connection: Any) -> Command:
        lock_request = LockQueues.decode(command.body)
        held = self._groups.get(lock_request.consumer_group, {})
        for queue in lock_request.mq_set:
            held.pop(queue, None)
        return answer(command, ResponseCode.SUCCESS, None, {})

    swap("rocketbed.node.broker.locks:QueueLocks.unlock", unlock)


def locks_that_last_five_seconds() -> None:
    swap("rocketbed.node.broker.locks:LASTS_S", 5.0)


def locks_unknown_to_the_next_leader() -> None:
    swap("rocketbed.node.broker.locks:QueueLocks.apply", lambda self, changes: None)


def delivered_again_by_the_next_leader() -> None:
    async def settle(self: Any, level: int, table: Any) -> Any:
        at, remaining_count = await original(self, level, table)
        return max(at - 2, self.bounds(level)[0]), remaining_count

    original = swap("rocketbed.node.broker.delivered:Delivered.settle", settle)


def tag_lost_when_it_is_due() -> None:
    def add(run: Any, message: Any, topic: str, queue_id: int, **more: Any) -> None:
        text = encode_properties({**message.properties, "TAGS": None})
        original(run, message, topic, queue_id, text=text, **more)

    original = swap("rocketbed.node.broker.delays:add_again", add)


def first_topic_forgotten() -> None:
    """Forget the first topic of a message that is put back for the second time."""

    def put(self: Any, message: Any, *place: Any) -> int:
        properties = {name: one for name, one in message.properties.items() if name != RETRY_TOPIC}
        return int(original(self, replace(message, properties=properties), *place))

    original = swap("rocketbed.node.broker.send_back:SendBack._put", put)


def members_kept_after_their_end() -> None:
    """Keep members until they have been silent for two minutes."""

    def closed(self: Any, connection: Any) -> None:
        for name, group in list(self.consumers.items()):
            client = group.members.get(connection)
            if client and client.last_heartbeat < trio.current_time() - EXPIRY_S:
                self._remove_consumer(name, connection)

    swap("rocketbed.node.broker.clients:Clients.connection_closed", closed)


def a_lease_of_six_seconds() -> None:
    def until(self: Any, *members: Any) -> float:
        end_s: float = original(self, *members)
        return end_s + 9 * LEASE_S

    original = swap("rocketbed.replication.lease:Roll._may_act_until", until)


def followers_join_after_half_a_minute() -> None:
    swap("rocketbed.replication.membership:CAUGHT_UP_S", 30.0)


def who_is_behind_stays_in_the_in_sync_set() -> None:
    swap("rocketbed.replication.membership:Membership._is_behind", lambda self, *more: False)


def acknowledged_by_whom_it_was_not_sent() -> None:
    def newest(self: Any, data: Any) -> int:
        version = int(original(self, data))
        self._link.offered = max(self._link.offered, version)
        return version

    original = swap("rocketbed.replication.master:SlaveConnection._newest", newest)


def altered(scenario: str, was: str, to_be: str) -> Family:
    text = (DIRECTORY / f"{scenario}.toml").read_text(encoding="utf-8")
    assert was in text
    return read_toml(text.replace(was, to_be), f"{scenario}, {to_be}")


SWARM, POSITIONS = load_scenario("soak-swarm"), load_scenario("table-cuts")
CUTS, BIT_ROT = load_scenario("demote-truncate"), load_scenario("bit-rot")
TOPICS = altered("table-cuts", 'flush = "async"', 'flush = "sync"')
"""What is acknowledged is on disk: a topic has to be there before it."""
CHANGES = altered("rebalance", 'stay = "8s"', 'stay = "8s"\nchanges = 4')
TAKEOVER, HANDOVER = load_scenario("takeover"), altered("rolling-handover", "rate = 50", "rate = 2")
"""The second with few messages besides those of its listeners, as only these matter here."""
CASES: list[tuple[Callable[[], None], Family, tuple[str, ...]]] = [
    (
        ring_overflow_forgets,
        SWARM,
        (
            "queue-entries-complete",
            "queue-entry-places",
            "unseen-message",
            "group-backlog",
            "follower-skip",
            "group-skip",
            "replicas-equal",
            "groups-caught-up",
            "dense-queue-offsets",
        ),
    ),
    (reported_before_it_was_written, SWARM, ("dishonest-ack",)),
    (large_bodies_cut, SWARM, ("unknown-value",)),
    (settings_not_taken_over, SWARM, ("settings-kept",)),
    (added_queues_not_in_routes, CHANGES, ("routes-correct",)),
    (topic_used_before_durable, TOPICS, ("topics-before-messages",)),
    (positions_left_beyond_their_queue, POSITIONS, ("offset-without-message",)),
    (cut_bytes_not_kept, CUTS, ("truncated-bytes-kept",)),
    (cut_bytes_kept_as_zeros, CUTS, ("truncated-bytes-kept",)),
    (blind_scrub, BIT_ROT, ("record-checksums", "equal-logs", "equal-image-logs")),
    (slaves_not_in_routes, SWARM, ("routes-correct",)),
    (locks_kept_by_who_has_left, load_scenario("rebalance"), ("late-ordered-call",)),
    (locks_given_back_by_anybody, load_scenario("rebalance"), ("double-queue-owner",)),
    (locks_that_last_five_seconds, load_scenario("rebalance"), ("double-queue-owner",)),
    (locks_unknown_to_the_next_leader, HANDOVER, ("double-queue-owner",)),
    (delivered_again_by_the_next_leader, HANDOVER, ("delayed-duplicate",)),
    (tag_lost_when_it_is_due, SWARM, ("retries-and-dead-letters",)),
    (first_topic_forgotten, load_scenario("delays"), ("retries-and-dead-letters",)),
    (
        members_kept_after_their_end,
        load_scenario("delays"),
        ("listener-never-called", "late-delayed-call"),
    ),
    (a_lease_of_six_seconds, TAKEOVER, ("recovery-time",)),
    (followers_join_after_half_a_minute, TAKEOVER, ("recovery-time",)),
    (acknowledged_by_whom_it_was_not_sent, load_scenario("damage"), ("acked-before-durable",)),
    (who_is_behind_stays_in_the_in_sync_set, TAKEOVER, ("recovery-time",)),
]


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "scenario", "ids"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_it_is_found(plant: Callable[[], None], scenario: Family, ids: tuple[str, ...]) -> None:
    assert_found(plant, ids, first_seed=FIRST_SEED, budget_s=BUDGET_S, scenario=scenario)
