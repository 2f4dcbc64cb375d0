"""A controller beside scripted replicas whose acts are drawn: its in-sync sets and its elections.

Replicas start, beat, stop, fall silent and return with less; they request other sets, hand over and
leave; an operator forces a leader. The expected entry is made by the rules of `election`, which the
model of `tests.support.model` checks. Every answer, notice and version of the register has to agree
with it, and a leader is elected when it has to be, neither earlier nor later.
"""

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final

import trio

from rocketbed.replication import election
from rocketbed.replication.election import Proposal
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_failover import AlterInSyncRequest, HandOverRequest, ReplicaRequest
from tests.model.register_model import BEAT_S, LEASE_S, Register
from tests.support.peers.replica import GROUP, ScriptedReplica
from tests.support.sim.scripted_group import (
    BUSY,
    CONTROLLER,
    DONE,
    REFUSED,
    SUPERSEDED,
    UNKNOWN,
    ScriptedGroup,
    check_code,
    run_group,
)

STEPS: Final = 40
DELIVERY_S: Final = 0.06
"""A message and the change that it causes take less than this."""
BEFORE_S: Final = 0.04
Code = RequestCode


def run_register(seed: int) -> str:
    return run_group(f"register/{seed}", _run)


async def _run(group: ScriptedGroup, random: Random) -> None:
    model = Register(group, random)
    await model.begin()
    for _ in range(STEPS):
        act = random.choices(list(ACTS), list(ACTS.values()))[0]
        await model.beat()
        await trio.sleep(DELIVERY_S)  # these beats may cause an election
        running = [replica for replica in model.replicas if replica.beats]
        if running:
            await act(model, random.choice(running))
        else:
            await return_replica(model, model.replicas[0])
        await model.settled(act.__name__)


# --- requests


async def _alter(
    model: Register, replica: ScriptedReplica, members: dict[int, int], **changes: int
) -> None:
    entry = model.entry
    basis: dict[str, Any] = {"epoch": entry.epoch, "version": entry.version}
    basis["leader"] = replica.number if entry.leader is None else entry.leader
    basis |= changes
    text = ",".join(f"{number}:{incarnation}" for number, incarnation in members.items())
    header = AlterInSyncRequest(group=GROUP, inSync=text, op=model.op(), **basis)
    code = model.change(lambda: election.altered(entry, Proposal(**basis, in_sync=members)))
    model.check(await replica.ask(Code.RB_ALTER_IN_SYNC, header), code, f"{basis} {members}")
    model.latest = (Code.RB_ALTER_IN_SYNC, header) if code == DONE else model.latest


async def _hand_over(model: Register, replica: ScriptedReplica, **changes: int) -> int:
    entry = model.entry
    fields: dict[str, Any] = {"leader": entry.leader, "epoch": entry.epoch, **changes}
    code = model.change(lambda: election.handed_over(entry, **fields))
    header = HandOverRequest(group=GROUP, op=model.op(), **fields)
    model.check(await replica.ask(Code.RB_HAND_OVER, header), code, f"hand over {fields}")
    model.latest = (Code.RB_HAND_OVER, header) if code == DONE else model.latest
    return code


async def add_member(model: Register, replica: ScriptedReplica) -> None:
    """Add a registered replica, which may not run."""
    rows, members = model.entry.replicas, model.entry.in_sync
    absent = [number for number in rows if number not in members]
    if absent:
        number = model.random.choice(absent)
        await _alter(model, replica, {**members, number: rows[number].incarnation})


async def drop_member(model: Register, replica: ScriptedReplica) -> None:
    members = dict(model.entry.in_sync)
    followers = [number for number in members if number != model.entry.leader]
    if followers and model.entry.leader is not None:
        del members[model.random.choice(followers)]
        await _alter(model, replica, members)


async def request_forbidden(model: Register, replica: ScriptedReplica) -> None:
    entry = model.entry
    if entry.leader is None:
        return
    leader, members = entry.leader, dict(entry.in_sync)
    second = next(one.number for one in model.replicas if one.number != leader)
    row = entry.replicas.get(second)
    incarnation = 0 if row is None else row.incarnation
    for changes in ({"version": entry.version - 1}, {"version": entry.version + 1},
                    {"epoch": entry.epoch - 1}, {"epoch": entry.epoch + 1},
                    {"leader": second}):  # fmt: skip
        await _alter(model, replica, members, **changes)
    followers = {number: life for number, life in members.items() if number != leader}
    for refused in (followers or {second: 1}, {**members, second: incarnation + 1},
                    {**members, second: incarnation - 1}, {**members, 9: 1}):  # fmt: skip
        await _alter(model, replica, refused)
    for changes in ({"leader": second}, {"epoch": entry.epoch + 1}, {"to": 9}):
        await _hand_over(model, replica, **{"to": leader, **changes})
    unknown = ReplicaRequest(group="h", replica=0, incarnation=1, op=model.op())
    for code in (Code.RB_LEAVE, Code.RB_FORCE_LEADER):
        check_code(await replica.ask(code, unknown), UNKNOWN, code.name)
    for life, answer in ((None, BUSY), (0, DONE)):
        header = ReplicaRequest(group=GROUP, replica=leader, incarnation=life, op=model.op())
        check_code(await replica.ask(Code.RB_LEAVE, header), answer, f"leave of life {life}")


async def repeat_request(model: Register, replica: ScriptedReplica) -> None:
    """Repeat a request whose answer was lost: it changes nothing."""
    if model.latest is None:
        return
    code, header = model.latest
    is_newest = model.group.entry.op == header.op
    response = await replica.ask(code, header)
    check_code(response, DONE if is_newest else SUPERSEDED, f"{header} repeated")


async def hand_over(model: Register, replica: ScriptedReplica) -> None:
    if model.entry.leader is None:
        return
    to = model.random.choice(sorted(model.entry.replicas))
    if await _hand_over(model, replica, to=to) == DONE and to not in model.alive:
        model.lose(to, model.entry.in_sync[to])


async def force_leader(model: Register, replica: ScriptedReplica) -> None:
    number, entry = model.random.randrange(len(model.replicas)), model.entry
    code = model.change(lambda: election.forced(entry, number, model.alive))
    header = ReplicaRequest(group=GROUP, replica=number, op=model.op())
    model.check(await replica.ask(Code.RB_FORCE_LEADER, header), code, f"force {number}")


async def grow_logs(model: Register, _replica: ScriptedReplica) -> None:
    """Let logs grow, and replicas become unfit to lead or fit again."""
    for replica in model.replicas:
        if replica.beats:
            epoch = model.entry.epoch - model.random.choice((0, 0, 1))
            replica.epoch = max(replica.epoch, epoch)
            replica.end += model.random.choice((0, 0, 5, 100))
            replica.is_unfit = model.random.random() < 0.3
            replica.promised = max(replica.promised, replica.epoch)


# --- ends and returns


async def kill(model: Register, replica: ScriptedReplica) -> None:
    """End a process: its machine refuses connections at both of its ports."""
    await _silence(model, replica, closed_ports=2)


async def mute(model: Register, replica: ScriptedReplica) -> None:
    """Stop beating, on the connection or without it but with a port that answers."""
    await _silence(model, replica, closed_ports=model.random.choice((0, 1)))


async def _silence(model: Register, replica: ScriptedReplica, *, closed_ports: int) -> None:
    """Nothing changes before the lease has expired, unless the machine tells of the death."""
    until = model.granted_until(replica, await replica.beat())
    replica.beats = False
    replica.stop_listening(closed_ports)
    if closed_ports:
        replica.hang_up()
    was_leader = model.entry.leader == replica.number
    if closed_ports < 2:
        await model.live(until - BEFORE_S - trio.current_time())
        model.unchanged(f"{replica.number} is silent within its lease")
        model.alive.pop(replica.number)
        await trio.sleep(until + DELIVERY_S - trio.current_time())
    else:
        model.alive.pop(replica.number)
        await trio.sleep(DELIVERY_S)
    if was_leader:
        model.lose(replica.number, replica.incarnation)
    replica.hang_up()
    replica.stop_listening(2 - closed_ports)


async def leave(model: Register, replica: ScriptedReplica) -> None:
    """Stop in order."""
    number, incarnation = replica.number, replica.incarnation
    if model.entry.in_sync.get(number) == incarnation:
        model.entry = election.fenced(model.entry, number)
    header = ReplicaRequest(group=GROUP, replica=number, incarnation=incarnation, op=model.op())
    model.check(await replica.ask(Code.RB_LEAVE, header), DONE, f"{number} leaves")
    replica.beats = False
    model.alive.pop(number, None)
    model.elect()
    replica.hang_up()
    replica.stop_listening()
    await trio.sleep(DELIVERY_S)


async def return_replica(model: Register, _running: ScriptedReplica) -> None:
    """Begin another incarnation of a replica that ended, or of one whose restart went unnoticed.
    Some have lost bytes, and say so or do not."""
    replica = model.random.choice(model.replicas)
    if replica.beats and model.random.random() < 0.5:
        return
    if model.random.random() < 0.5 and replica.end:
        replica.end -= 1
    await model.start(replica, lossless=model.random.random() < 0.7)


async def copy_directory(model: Register, replica: ScriptedReplica) -> None:
    """A copy of the directory of a running replica is not registered."""
    response = await replica.register(
        incarnation=replica.incarnation + 1, address="10.9.9.9:1", **model.shape
    )
    model.check(response, REFUSED, f"a copy of {replica.number}")


async def replace_directory(model: Register, running: ScriptedReplica) -> None:
    """An empty directory takes a number that is registered."""
    replica = model.random.choice(model.replicas)
    number = replica.number
    if number not in model.entry.replicas:
        return
    uuid = f"another {model.op()}"
    empty: dict[str, Any] = {
        "replica": number, "uuid": uuid, "incarnation": 1, "epoch": 0, "end": 0, "promised": 0,
        "address": replica.addresses[0], "haAddress": replica.addresses[1], **model.shape,
    }  # fmt: skip
    for field in ("epoch", "end", "promised"):
        response = await running.register(**{**empty, field: 1, "uuid": uuid + field})
        model.check(response, REFUSED, f"another directory of {number} with an {field}")
    response = await running.register(**empty)
    if replica.beats or election.counts(model.entry, number):
        model.check(response, BUSY, f"another directory of {number}")
        if replica.beats:
            await model.live(2 * BEAT_S)
            response = await running.register(**empty)
            model.check(response, REFUSED, f"another directory of {number}, which runs")
        return
    above = response.fields.get("lifeAbove")
    assert (response.code, above) == (DONE, str(replica.incarnation)), f"answer: {response.fields}"
    replica.uuid, replica.epoch, replica.end, replica.promised = uuid, 0, 0, 0
    model.positions.pop(number, None)
    await model.start(replica)


async def pause_controller(model: Register, _replica: ScriptedReplica) -> None:
    """A controller that was paused for longer than a lease does not take that for silence."""
    script = model.group.script
    await script.outside(lambda: script.simulation.pause(CONTROLLER))
    await trio.sleep(2 * LEASE_S)
    await script.outside(lambda: script.simulation.resume(CONTROLLER))
    await model.live(2 * LEASE_S)


async def restart_controller(model: Register, _replica: ScriptedReplica) -> None:
    """The next controller takes over the register, and waits to hear all before it elects."""
    await model.group.restart_controller()
    model.alive.clear()
    model.positions.clear()
    model.leases.clear()
    model.is_waiting = True
    for replica in model.replicas:
        if replica.beats:
            await replica.dial(model.group.controller)
            await model.register(replica, lossless=True)
    leader = model.entry.leader
    model.unchanged("another controller has begun")
    await model.live(LEASE_S + DELIVERY_S)
    model.is_waiting = False
    if leader is not None and leader not in model.alive:
        model.lose(leader, model.entry.in_sync[leader])
    model.elect()


ACTS: Final[Mapping[Callable[[Register, ScriptedReplica], Awaitable[None]], int]] = {
    add_member: 6, drop_member: 2, request_forbidden: 3, repeat_request: 2, kill: 5, mute: 2,
    return_replica: 6, leave: 2, hand_over: 2, force_leader: 2, grow_logs: 3, copy_directory: 1,
    pause_controller: 1, restart_controller: 1, replace_directory: 1,
}  # fmt: skip
"""Acts and how often each is drawn."""
