"""Identity and incarnation of the replica in a directory: `replica.rb` (replication.md 7.14).

Created with the directory, so that a copied configuration with an empty disk is another replica. It
also records a loss until the register knows of it.
"""

from dataclasses import dataclass, replace
from typing import Final

from rocketbed.replication.entry import Policy
from rocketbed.replication.errors import ReplicationError
from rocketbed.replication.kept_file import KeptFileDamaged, read_kept, write_kept
from rocketbed.replication.restart import lost_nothing
from rocketbed.world.api import World

NAME: Final = "replica.rb"
KIND: Final = "rocketbed-replica 1"
ANOTHER: Final = "another"
"""Placeholder for a boot id: no kernel has this one."""


class ReplicaFileDamaged(ReplicationError):
    """The identity of this replica cannot be read, or is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Contents of the file."""

    group: str
    number: int
    uuid: str
    incarnation: int
    """Counted up at each start, before it is announced."""
    boot_id: str
    """Boot id of this incarnation's kernel; `ANOTHER` if it began without the memory contents of an
    earlier one, and the register does not know that yet."""
    stopped: bool = False
    """True if the last incarnation ended in order, with everything on disk."""
    lost: bool = False
    """True if it may lack bytes that an earlier incarnation acknowledged, and the register does not
    know."""
    alone: bool = False
    """True if a node without failover has used the directory since."""


class ReplicaFile:
    """The file of one replica."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{NAME}"
        self._state: ReplicaState | None = None

    @property
    def state(self) -> ReplicaState:
        """State on disk; available once `begin` has returned."""
        assert self._state is not None
        return self._state

    def was_alone(self) -> bool:
        """True if a node without failover used the directory last. Raises `ReplicaFileDamaged`."""
        old = self._read()
        return old is not None and old.alone

    async def begin(
        self, *, group: str, number: int, policy: Policy, trusts_cache: bool, lost: bool = False
    ) -> bool:
        """Begin an incarnation; True if the directory holds all that earlier ones acknowledged,
        which it does not if bytes of it are `lost`.

        Raises `ReplicaFileDamaged`, and as `write_kept`.
        """
        boot_id = self._world.process.boot_id
        old = self._read()
        if old is None:
            uuid = f"{self._world.random.getrandbits(128):032x}"
            old = ReplicaState(
                group=group, number=number, uuid=uuid, incarnation=0, boot_id=boot_id, stopped=True
            )
        if (old.group, old.number) != (group, number):
            raise ReplicaFileDamaged(
                f"{self.path} is of replica {old.number} of group {old.group!r}, and this is to be"
                f" replica {number} of {group!r} (rbReplica, brokerName): a directory belongs to"
                " one replica only"
            )
        same_kernel = trusts_cache and old.boot_id == boot_id
        lossless = lost_nothing(policy, stopped=old.stopped, same_kernel=same_kernel)
        lost = lost or old.lost
        # Independent of the policy: it may be wrong, and different the next time.
        kernel = boot_id if old.stopped or same_kernel else ANOTHER
        life = replace(
            old,
            incarnation=old.incarnation + 1,
            boot_id=kernel,
            stopped=False,
            alone=False,
            lost=lost,
        )
        await self._save(life)
        return lossless and not lost

    async def raise_life(self, incarnation: int) -> None:
        """Count this incarnation higher: another directory had the number. Raises as
        `write_kept`."""
        assert incarnation > self.state.incarnation, (incarnation, self.state)
        await self._save(replace(self.state, incarnation=incarnation))

    async def clear_loss(self) -> None:
        """Clear the record of a loss: the register has it. Raises as `write_kept`."""
        boot_id = self._world.process.boot_id
        if self.state.boot_id != boot_id or self.state.lost:
            await self._save(replace(self.state, boot_id=boot_id, lost=False))

    async def stopped(self) -> None:
        """Record that everything is on disk and nothing is written any more. Raises as
        `write_kept`.

        If this incarnation may have begun with a loss, and the register does not know that, the
        next one has to report it, however this one ends.
        """
        if self.state.boot_id == self._world.process.boot_id:
            await self._save(replace(self.state, stopped=True))

    async def leave(self) -> None:
        """Record that a node without failover takes a replica's directory: its epochs no longer
        cover all of the log. Raises `ReplicaFileDamaged`, and as `write_kept`."""
        if (old := self._read()) is not None and not old.alone:
            await self._save(replace(old, alone=True))

    def _read(self) -> ReplicaState | None:
        try:
            fields = read_kept(self._world, self.path, KIND)
            return None if fields is None else ReplicaState(**fields)
        except (KeptFileDamaged, TypeError) as exc:
            raise ReplicaFileDamaged(
                f"{self.path} cannot be read: {exc}. Who this replica is stands nowhere else: move"
                " the directory away and start with an empty one, which gets everything from the"
                " group's leader"
            ) from exc

    async def _save(self, state: ReplicaState) -> None:
        value = {name: getattr(state, name) for name in ReplicaState.__slots__}
        await write_kept(self._world, self._directory, NAME, KIND, value)
        self._state = state
