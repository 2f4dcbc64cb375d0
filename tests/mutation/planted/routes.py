"""Bugs outside the broker: in the nameserver's table and in the client."""

from typing import Any

from tests.mutation.planted.mutant import mutant, planted, swap

_UNREGISTER = "rocketbed.routing.table:RoutingTable.unregister"
_REGISTER = "rocketbed.routing.table:RoutingTable.register"
MASTER_ID = 0


@planted(
    "M15",
    "stale route",
    bug="a nameserver goes on sending clients to a master that is dead (7017)",
    edit="the entry of a broker id 0 stays when its connection ends, and a new one has to wait",
    caught_by=("leader-serves", "replicas-in-sync", "producers-continue", "sends-succeed"),
    family="route-storm",
    targets=(
        _UNREGISTER,
        _REGISTER,
    ),
)
def _dead_master_kept() -> None:
    def unregister(self: Any, cluster: str, address: str) -> str | None:
        live = self.live.get((cluster, address))
        if live is not None and live.broker_id == MASTER_ID:
            return None
        left_broker: str | None = leave(self, cluster, address)
        return left_broker

    def register(self: Any, identity: Any, topics: Any, *, now_s: float, link: Any) -> Any:
        broker = self.brokers.get(identity.broker_name)
        held = broker.broker_addrs.get(MASTER_ID) if broker is not None else None
        answer = take(self, identity, topics, now_s=now_s, link=link)
        if identity.broker_id == MASTER_ID and held is not None:
            self.brokers[identity.broker_name].broker_addrs[MASTER_ID] = held
        return answer

    leave = swap(_UNREGISTER, unregister)
    take = swap(_REGISTER, register)


@mutant(
    "M19",
    "offset committed before delivery",
    "rocketbed.client.flow:Flow._pull",
    bug="a group's position passes messages that its consumer has not handed over",
    edit="the position moves when messages are pulled, not when they are polled",
    caught_by=("early-commit", "group-skip", "unseen-message"),
)
async def _committed_before_delivery(original: Any, self: Any, number: int) -> Any:
    batch = await original(self, number)
    self.position = self._next
    return batch
