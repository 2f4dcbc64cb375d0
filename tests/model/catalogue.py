"""The sessions there are, by name: each does what it does, raises what is wrong, tells a digest."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tests.model.again import run_again
from tests.model.beginnings import run_beginnings
from tests.model.behind import run_behind
from tests.model.broker import run_broker
from tests.model.copies import run_copies
from tests.model.cuts import run_cuts
from tests.model.damage import run_damage
from tests.model.edges import run_edges
from tests.model.feeding import run_feeding
from tests.model.figures import run_figures
from tests.model.following import run_following
from tests.model.groups import run_groups
from tests.model.leaders import run_leaders
from tests.model.leading import run_leading
from tests.model.led import run_led
from tests.model.limits import run_limits
from tests.model.members import run_members
from tests.model.mending import run_holes, run_mending
from tests.model.moments import run_moments
from tests.model.nameserver import run_nameserver
from tests.model.own_files import run_own_files
from tests.model.parting import run_parting
from tests.model.pieces import run_pieces
from tests.model.questions import run_questions
from tests.model.register import run_register
from tests.model.registered import run_registered
from tests.model.replica_lives import run_replica_lives
from tests.model.room import run_room
from tests.model.routes import run_routes
from tests.model.rules import run_rules
from tests.model.scattered import run_scattered
from tests.model.sends import run_sends
from tests.model.slave_reads import run_slave_reads
from tests.model.spoilt import run_spoilt
from tests.model.steps import run_steps
from tests.model.store import run_lives, run_remade
from tests.model.table_files import run_table_files
from tests.model.tables import run_tables
from tests.model.taken_over import run_taken_over
from tests.model.tools import run_tools
from tests.model.trouble import run_trouble
from tests.model.unread import run_unread
from tests.model.waiting import run_waiting

Session = Callable[[], str]
LIVES: Final = 3
"""Sessions of lives, of `SEEDS` seeds each."""
MENDINGS: Final = 1
SEEDS: Final = 4


def sessions(seed: int) -> Mapping[str, Session]:
    """Some seconds of processor time each; other seeds for another `seed`."""
    found: dict[str, Session] = {
        f"broker/{seed}": partial(run_broker, seed),
        f"broker-again/{seed}": partial(_each, run_again, seed * 1000),
        f"broker-figures/{seed}": partial(run_figures, seed),
        f"broker-groups/{seed}": partial(run_groups, seed),
        f"broker-members/{seed}": partial(run_members, seed),
        f"broker-questions/{seed}": partial(run_questions, seed),
        f"broker-registered/{seed}": partial(run_registered, seed),
        f"broker-rules/{seed}": partial(run_rules, seed),
        f"broker-sends/{seed}": partial(_each, run_sends, seed * 1000),
        f"broker-spoilt/{seed}": partial(_each, run_spoilt, seed * 1000),
        f"broker-table-files/{seed}": partial(run_table_files, seed),
        f"broker-tables/{seed}": partial(run_tables, seed),
        f"broker-tools/{seed}": partial(run_tools, seed),
        f"broker-waiting/{seed}": partial(run_waiting, seed),
        f"copies/{seed}": partial(run_copies, seed),
        f"edges/{seed}": partial(run_edges, seed),
        f"failover-behind/{seed}": partial(run_behind, seed),
        f"failover-leaders/{seed}": partial(run_leaders, seed),
        f"failover-leading/{seed}": partial(run_leading, seed),
        f"failover-led/{seed}": partial(run_led, seed),
        f"failover-lives/{seed}": partial(run_replica_lives, seed),
        f"failover-register/{seed}": partial(_each, run_register, seed * 1000),
        f"nameserver/{seed}": partial(run_nameserver, seed),
        f"nameserver-routes/{seed}": partial(_each, run_routes, seed * 1000),
        f"replication-feeding/{seed}": partial(run_feeding, seed),
        f"replication-following/{seed}": partial(run_following, seed),
        f"replication-parting/{seed}": partial(run_parting, seed),
        f"replication-reads/{seed}": partial(run_slave_reads, seed),
        f"store-beginnings/{seed}": partial(run_beginnings, seed),
        f"store-taken-over/{seed}": partial(run_taken_over, seed),
        f"store-cuts/{seed}": partial(_each, run_cuts, seed * 1000),
        f"store-damage/{seed}": partial(_each, run_damage, seed * 1000),
        f"store-limits/{seed}": partial(run_limits, seed),
        f"store-holes/{seed}": partial(_each, run_holes, seed * 1000),
        f"store-pieces/{seed}": partial(run_pieces, seed),
        f"store-own-files/{seed}": partial(run_own_files, seed),
        f"store-remade/{seed}": partial(_each, run_remade, seed * 1000),
        f"store-scattered/{seed}": partial(run_scattered, seed),
        f"store-steps/{seed}": partial(run_steps, seed),
        f"store-trouble/{seed}": partial(run_trouble, seed),
        f"store-unread/{seed}": partial(run_unread, seed),
        f"store-moments/{seed}": partial(_each, run_moments, seed * 1000),
        f"store-room/{seed}": partial(run_room, seed),
    }
    for number in range(LIVES):
        first = seed * 1000 + number * SEEDS
        found[f"store-lives/{first}"] = partial(_each, _lives, first)
    for number in range(MENDINGS):
        first = seed * 1000 + number * SEEDS
        found[f"store-mending/{first}"] = partial(_each, run_mending, first)
    return found


def _lives(seed: int) -> str:
    return run_lives(seed)[2]


def _each(run: Callable[[int], str], first: int) -> str:
    return " ".join(run(seed) for seed in range(first, first + SEEDS))
