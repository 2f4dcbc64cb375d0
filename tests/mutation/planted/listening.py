"""Bugs on the way of delayed and refused messages."""

from typing import Any

from tests.mutation.planted.mutant import mutant, planted, swap

_COPY = "rocketbed.node.broker.send_back:add_again"


@mutant(
    "M24",
    "delay table believed",
    "rocketbed.node.broker.delivered:Delivered.settle",
    bug="after a crash a delayed message comes twice, or never (T21)",
    edit="a master goes on where `delayOffset.json` says, whatever was delivered by the log",
    caught_by=("delayed-duplicate", "listener-never-called"),
    family="delays",
)
async def _table_believed(_original: Any, self: Any, level: int, table: Any) -> Any:
    await self._store.dispatched.wait_for(self._store.written.value)
    low, high = self.bounds(level)
    return min(max(table.offset_table.get(level, 0), low), high), []


@planted(
    "M25",
    "repetitions not counted",
    bug="a message that cannot be handled comes again for ever, and never to the dead letters",
    edit="what is sent back keeps the number of its repetitions",
    caught_by=("delayed-duplicate", "listener-never-called", "set-up", "replicas-equal"),
    family="delays",
    targets=(_COPY,),
)
def _never_dead() -> None:
    def put_again(run: Any, message: Any, *place: Any, reconsume_times: int, **more: Any) -> None:
        put(run, message, *place, reconsume_times=message.reconsume_times, **more)

    put = swap(_COPY, put_again)
