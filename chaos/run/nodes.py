"""Start and end one process of a run by name: a node, a nameserver or a client's program."""

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.run.api import Program, State
from rocketbed.chaos.run.members import Members


class Nodes:
    def __init__(self, members: Members, programs: dict[str, Program]) -> None:
        self._members = members
        self._backend = members.backend
        self._programs = programs
        self.damaged: dict[str, int] = {}
        """Nodes whose stored data was damaged -> time since when. They may refuse to start, and
        have to report it."""

    def state(self, name: str) -> State:
        if name in self._programs:
            return self._backend.client_state(name)
        return self._backend.state(name)

    def unwanted(self, name: str) -> None:
        """Note that a node is about to be ended, so that nothing starts it again meanwhile."""
        if name in self._members.members:
            self._members.members[name].should_run = False

    def damaged_now(self, name: str) -> None:
        self.damaged.setdefault(name, self._backend.now_ns())

    async def kill(self, name: str) -> None:
        if name in self._programs:
            await self._backend.kill_client(name)
        else:
            self.unwanted(name)
            await self._backend.kill(name)

    async def power_cut(self, name: str, mode: str) -> None:
        self.unwanted(name)
        await self._backend.power_cut(name, mode)

    async def stop(self, name: str) -> None:
        await (self._members if name in self._members.members else self._backend).stop(name)

    async def pause(self, name: str) -> None:
        if name in self._programs:
            await self._backend.pause_client(name)
        else:
            await self._backend.pause(name)

    async def resume(self, name: str) -> None:
        if self.state(name) == "paused":
            if name in self._programs:
                await self._backend.pause_client(name, resume=True)
            else:
                await self._backend.resume(name)

    async def empty(self, name: str) -> None:
        """End a node and give it an empty disk."""
        self.unwanted(name)
        if name in self._members.members:
            self._members.members[name].joined = False
            self._members.members[name].has_nothing_common = False
        await self._backend.wipe(name)
        self.damaged.pop(name, None)

    async def replace_disk(self, name: str, reason: str = "") -> None:
        """Give a node an empty disk, as an operator does if it can follow no master."""
        await self.empty(name)
        fields = {"reason": reason} if reason else {}
        self._backend.history.event(Function.NODE, name, "wipe", fields)

    async def start(self, name: str, *, stale: bool = False) -> None:
        """Start a process that is down, a node in its current role."""
        if self.state(name) != "down":
            return
        if name in self._programs:
            self._backend.start_client(name, self._programs[name])
        elif name in self._members.members:
            await self._replace_leader(name)
            if self._members.members[name].has_nothing_common:
                await self.replace_disk(name)
            await self._members.start(name)
        else:
            await self._backend.start(name, {}, stale=stale)

    async def _replace_leader(self, name: str) -> None:
        """Before an emptied leader is started, promote another node. The promotion may have had no
        candidate before, when slaves took long to start or had ended."""
        member = self._members.members[name]
        if self._backend.elects or member.joined or not self._members.is_leader(name):
            return
        for follower in self._members.followers(member.group):
            await self.start(follower)
        heir = await self._members.longest(member.group)
        if heir is not None:
            await self._members.promote(heir)
