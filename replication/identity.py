"""Which replica a directory is, and which of its lives this is: `replica.rb` (replication.md 7.14).

Made with the directory, so that a copied configuration with an empty disk is another replica. It
also keeps what tells of a loss until the register has heard of that.
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
"""In the place of a kernel: none has this name."""


class ReplicaFileDamaged(ReplicationError):
    """Who this replica is cannot be read, or it is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What is in the file."""

    group: str
    number: int
    uuid: str
    incarnation: int
    """Counted up at each start, before anybody hears of it."""
    boot_id: str
    """The kernel's of this life; `ANOTHER` where this life began without what a former one may
    have had in memory, and the register has not heard of it yet."""
    stopped: bool = False
    """The last life ended in order, with everything on disk."""
    lost: bool = False
    """It may lack bytes that a former life acknowledged, and the register has not heard of it."""
    alone: bool = False
    """A node without failover has had the directory since."""


class ReplicaFile:
    """The file of one replica."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._directory = directory
        self.path = f"{directory}/{NAME}"
        self._state: ReplicaState | None = None

    @property
    def state(self) -> ReplicaState:
        """As it is on disk; once `begin` has returned."""
        assert self._state is not None
        return self._state

    def was_alone(self) -> bool:
        """Whether a node without failover had the directory last. Raises `ReplicaFileDamaged`."""
        old = self._read()
        return old is not None and old.alone

    async def begin(
        self, *, group: str, number: int, policy: Policy, trusts_cache: bool, lost: bool = False
    ) -> bool:
        """Begin a life; whether the directory holds all that a former one acknowledged, which it
        does not if bytes of it are `lost`.

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
        # Not by what the policy says: it may be mistaken, and another one the next time.
        kept = boot_id if old.stopped or same_kernel else ANOTHER
        life = replace(
            old,
            incarnation=old.incarnation + 1,
            boot_id=kept,
            stopped=False,
            alone=False,
            lost=lost,
        )
        await self._save(life)
        return lossless and not lost

    async def raise_life(self, incarnation: int) -> None:
        """This life is a later one than it was counted to be: another directory had the number.
        Raises as `write_kept`."""
        assert incarnation > self.state.incarnation, (incarnation, self.state)
        await self._save(replace(self.state, incarnation=incarnation))

    async def told(self) -> None:
        """The register has heard of this life. Raises as `write_kept`."""
        boot_id = self._world.process.boot_id
        if self.state.boot_id != boot_id or self.state.lost:
            await self._save(replace(self.state, boot_id=boot_id, lost=False))

    async def stopped(self) -> None:
        """Everything is on disk, and nothing is written any more. Raises as `write_kept`.

        Of a life whose beginning may lack something, and which the register has not heard of, the
        next one has to tell that, however this one ends.
        """
        if self.state.boot_id == self._world.process.boot_id:
            await self._save(replace(self.state, stopped=True))

    async def leave(self) -> None:
        """A node without failover takes the directory, if it was a replica's: what that one knows
        of epochs is not all of the log any more. Raises `ReplicaFileDamaged`,
        and as `write_kept`."""
        if (old := self._read()) is not None and not old.alone:
            await self._save(replace(old, alone=True))

    def _read(self) -> ReplicaState | None:
        try:
            found = read_kept(self._world, self.path, KIND)
            return None if found is None else ReplicaState(**found)
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
