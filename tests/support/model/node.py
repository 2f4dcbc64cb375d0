"""One replica of the model, and what is in flight between two."""

from copy import copy
from dataclasses import dataclass

from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry
from rocketbed.replication.epochs import History
from rocketbed.replication.insync import InSyncView

Log = tuple[tuple[int, int], ...]
"""Of each entry its epoch and its value."""


@dataclass(slots=True)
class Node:
    """One replica, what it holds and believes."""

    number: int
    incarnation: int = 1
    up: bool = True
    log: Log = ()
    flushed: int = 0
    history: History = ()
    promised: int = 0
    follows: tuple[int, int, int] | None = None
    """Leader, its incarnation and epoch, while a link stands."""
    confirm: int = 0
    """The highest that it heard."""
    view: InSyncView | None = None
    """While it takes itself for a leader."""
    read: GroupEntry | None = None
    """The register's entry as it saw it last."""
    lost: bool = False
    """Whether it lost bytes that were not synced, and the register has not heard of it."""

    def clone(self) -> "Node":
        other = Node.__new__(Node)
        for name in Node.__slots__:
            setattr(other, name, getattr(self, name))
        if self.view is not None:
            other.view = copy(self.view)
            other.view.positions = dict(self.view.positions)
        return other


@dataclass(frozen=True, slots=True)
class Ack:
    source: int
    target: int
    incarnation: int
    """Of its source."""
    life: int
    """Of its target."""
    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Alter:
    proposal: Proposal
    life: int
    """Of the leader that asks."""
