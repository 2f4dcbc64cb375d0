"""The faults and operations that a step can name, and their arguments.

One row for each verb: the words after its target, whether it has a second target, whether it may
last (`for`), and the capability of the backend that it needs (chaos.md 3.5).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rocketbed.chaos.plan.damage import FIELDS, FILES, KINDS
from rocketbed.chaos.plan.units import parse_duration, parse_size

Parse = Callable[[str], object]


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1")
    return value


def _count(text: str) -> str:
    """Check a number, or `rand:LOW..HIGH`, which is drawn when the step is due."""
    low, _, high = text.removeprefix("rand:").partition("..")
    if not low.isdigit() or (text.startswith("rand:") and not high.isdigit()):
        raise ValueError(f"{text!r} is neither a number nor rand:LOW..HIGH")
    return text


def _factor(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError(f"{text!r} is not a positive factor")
    return value


def _setting(text: str) -> str:
    if not text.partition("=")[1]:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return text


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Form of the steps with a verb."""

    needs: str = ""
    """Capability; empty if no backend lacks it."""
    takes: Mapping[str, Parse | None] = field(default_factory=dict)
    """Words after the target: a word alone (None), or a word and its value."""
    word_needs: Mapping[str, str] = field(default_factory=dict)
    """Word -> capability that it needs in addition to the verb's."""
    one_of: tuple[str, ...] = ()
    """Exactly one of these words is required."""
    has_second: bool = False
    lasts: bool = False
    """True if it may be undone after a time."""
    help: str = ""


DiskKind = Literal[
    "slow-fsync",
    "eio-fsync",
    "eio-write",
    "lost-fsync",
    "hang",
    "full",
    "read-only",
    "eio-read",
    "no-descriptors",
]
"""Faults of a disk."""
RegisterFault = Literal["delete", "old", "damage"]
"""Faults of a controller's register; `old` replaces it by the copy that was taken last."""
_CUT_MODES: Final = {"random": None, "strict": None, "prefix": None, "reorder": None}

VERBS: Final[Mapping[str, Verb]] = {
    "kill": Verb(lasts=True, help="SIGKILL; with `for`, started again after that time"),
    "stop": Verb(lasts=True, takes={"gracefully": None}, help="SIGTERM"),
    "restart": Verb(
        takes={"stale-table": None, "down": None, "set": _setting},
        word_needs={"stale-table": "nameserver.stale"},
        help="start what is down; a running node is stopped first, or left alone with `down`; with"
        " `set KEY=VALUE` another setting from now on, the usual one without a value",
    ),
    "pause": Verb(needs="proc.pause", lasts=True, help="SIGSTOP"),
    "powercut": Verb(
        needs="disk.powercut", lasts=True, takes=_CUT_MODES, help="lose what was not flushed"
    ),
    "crash": Verb(
        needs="proc.crash",
        lasts=True,
        takes={
            "at": str,
            "powercut": None,
            "store-event": _count,
            "mark": str,
            "within": parse_duration,
        },
        one_of=("store-event", "mark"),
        help="crash within an operation: at the n-th event of the disk, or at a named point; with"
        " `within`, withdrawn after that time",
    ),
    "partition": Verb(
        needs="net.cut", has_second=True, lasts=True, takes={"one-way": None}, help="cut links"
    ),
    "isolate": Verb(needs="net.cut", lasts=True, help="cut a node off from all others"),
    "link": Verb(
        needs="net.delay",
        has_second=True,
        lasts=True,
        takes={
            "delay": parse_duration,
            "jitter": parse_duration,
            "loss": _share,
            "rate": parse_size,
        },
        word_needs={"loss": "net.loss", "rate": "net.rate"},
        help="make a link slow or lossy",
    ),
    "reset": Verb(needs="net.reset", has_second=True, help="reset all connections between two"),
    "swizzle": Verb(
        needs="net.cut",
        takes={"over": parse_duration},
        help="cut nodes off one by one, reconnect them in another order",
    ),
    "disk": Verb(
        needs="disk.faults",
        lasts=True,
        takes={
            "slow-fsync": parse_duration,
            "eio-fsync": None,
            "eio-write": None,
            "lost-fsync": None,
            "hang": parse_duration,
            "full": None,
            "after": parse_size,
            "once": None,
            "read-only": None,
            "eio-read": None,
            "no-descriptors": None,
        },
        one_of=get_args(DiskKind),
        word_needs={"no-descriptors": "disk.descriptors"},
        help="make a disk slow, full, failing or lying",
    ),
    "damage": Verb(
        lasts=True,
        takes={
            "flip": _one_of(*FIELDS, "topic", *FILES),
            **dict.fromkeys(("zero", "truncate", "delete", "old", "misdirect"), _one_of(*FILES)),
            "stray": None,
            "last": None,
            "stop": None,
            "kill": None,
            "powercut": None,
        },
        word_needs={"powercut": "disk.powercut"},
        one_of=KINDS,
        help="end a node (by SIGKILL, unless told otherwise) and damage its store: one bit of a"
        " field or file, a range of zeros, a truncation, a lost file, an old copy, a sector written"
        " to the wrong place, names that do not belong there; `last`: the last record or file",
    ),
    "repair": Verb(help="wipe and start a node that reported damage; a master after a promotion"),
    "crowd": Verb(
        lasts=True,
        takes={"count": int},
        one_of=("count",),
        help="open this many idle connections to each port of a node",
    ),
    "hostile": Verb(
        lasts=True,
        help="a peer on the replication port that acknowledges what it never got; in a group with"
        " failover one that poses as each replica and sends what none does (FENCE, DATA, garbage)",
    ),
    "clock": Verb(
        needs="clock.jump",
        takes={"jump": parse_duration, "drift": _share},
        word_needs={"drift": "clock.drift"},
        one_of=("jump", "drift"),
        lasts=True,
        help="move a node's wall clock, or let it run fast",
    ),
    "cpu": Verb(
        needs="proc.cpu", lasts=True, takes={"slow": _factor}, help="make a node's processor slow"
    ),
    "wipe": Verb(lasts=True, help="kill a node and replace its disk by an empty one"),
    "promote": Verb(
        takes={"unfenced": None},
        help="make a slave the master (id 0); the old one is its slave from its next start on",
    ),
    "double": Verb(lasts=True, help="operator's error: start a slave as a second master"),
    "twin": Verb(
        needs="proc.twin", help="operator's error: start a second process on a running node's store"
    ),
    "handover": Verb(
        needs="failover",
        help="operator: hand over to another replica that has all of the leader's log",
    ),
    "register": Verb(
        needs="failover",
        lasts=True,
        takes=dict.fromkeys(("copy", *get_args(RegisterFault))),
        one_of=("copy", *get_args(RegisterFault)),
        help="a nameserver's register of groups is copied, deleted, replaced by that copy, or"
        " damaged; in the end an operator restores the newest one",
    ),
    "force": Verb(
        needs="failover",
        help="operator: make a replica the leader, whatever it lacks (force-leader); a lost"
        " register is not restored then",
    ),
    "heal": Verb(help="heal all links and disks"),
}
