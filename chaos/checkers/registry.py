"""The checks that there are, in the order of the report, and what each needs.

A check takes the `Context`, which computes what several need only once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from rocketbed.chaos.checkers import (
    followers,
    groups,
    links,
    liveness,
    messages,
    promises,
    queries,
    reads,
    recovery,
    replicas,
    service,
    stores,
)
from rocketbed.chaos.checkers import idempotence as again
from rocketbed.chaos.checkers import loss_checks as loss
from rocketbed.chaos.checkers.context import Surroundings
from rocketbed.chaos.checkers.evidence import Evidence
from rocketbed.chaos.checkers.loss_bound import Losses
from rocketbed.chaos.checkers.result import CheckResult

WAITING: Final = [
    {"id": "A20", "name": "dirty half", "waits_for": "transactions"},
    {"id": "A21", "name": "lost commit", "waits_for": "transactions"},
    {"id": "A26", "name": "early delay", "waits_for": "delay levels"},
    {"id": "A27", "name": "late or never delay", "waits_for": "delay levels"},
    {"id": "A28", "name": "retry and dead letters", "waits_for": "delay levels"},
    {"id": "A29", "name": "double owner", "waits_for": "locks of ordered queues"},
]
"""Checks of chaos.md 2.5 that wait for the feature they judge; not run."""


class Context:
    """The evidence, and what is worked out from it for several checks."""

    def __init__(self, evidence: Evidence, *, recoveries: int = 0) -> None:
        self.evidence = evidence
        self.recoveries = recoveries
        """Images that are booted twice (S14)."""

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.evidence)

    def bounds(self) -> list[dict[str, Any]]:
        """Bound and loss of every event."""
        return loss.bound_rows(self.evidence, self.losses)

    @property
    def losses_if_whole(self) -> Losses | None:
        """The same; None when the history is not whole."""
        return self.losses if self.evidence.history.cut is None else None

    @cached_property
    def surroundings(self) -> Surroundings:
        return Surroundings(self.evidence)


@dataclass(frozen=True, slots=True)
class Check:
    """One check, or several that are made together."""

    titles: tuple[str, ...]
    run: Callable[[Context], list[CheckResult]]
    needs_history: bool = True

    @property
    def ids(self) -> set[str]:
        """`A1`, ..."""
        return {title.partition(" ")[0] for title in self.titles}


def checks() -> list[Check]:
    return [*_messages(), *_readers(), *_replicas_and_stores()]


def _one(title: str, run: Callable[[Context], CheckResult], *, history: bool = True) -> Check:
    return Check((title,), lambda context: [run(context)], history)


def _messages() -> list[Check]:
    """Loss, and what was sent against what is there."""
    return [
        _one("A1 lost write", lambda c: loss.lost_writes(c.evidence, c.losses)),
        _one("2.3 allowed loss", lambda c: loss.allowed_loss(c.evidence, c.losses)),
        _one(
            "I7 acknowledged before its promise",
            lambda c: promises.early_acknowledgements(c.evidence, c.losses),
        ),
        _one("A2 unseen", lambda c: reads.unseen(c.evidence)),
        _one("A3 phantom", lambda c: messages.phantom_writes(c.evidence)),
        _one("A4 unknown value", lambda c: messages.unknown_values(c.evidence)),
        _one("A5 duplicate", lambda c: messages.duplicates(c.evidence)),
        _one("A6 retry duplicate", lambda c: messages.retried_duplicates(c.evidence)),
        _one(
            "A7 inconsistent offset", lambda c: messages.inconsistent_offsets(c.evidence, c.losses)
        ),
        _one("A8 moved write", lambda c: messages.moved_writes(c.evidence)),
        _one("A9 nonmonotonic send", lambda c: messages.nonmonotonic_sends(c.evidence, c.losses)),
    ]


def _readers() -> list[Check]:
    """What readers and groups saw, and answers to questions."""
    return [
        _one("A10 nonmonotonic poll", lambda c: reads.polls_rise(c.evidence)),
        _one("A11 poll skip", lambda c: reads.polls_skip(c.evidence)),
        Check(
            ("A10e nonmonotonic polls", "A11e skip between polls"),
            lambda c: followers.polls_over_time(c.evidence, c.losses),
        ),
        _one("A12 wrong position", lambda c: reads.poll_positions(c.evidence)),
        _one("A13 vanished read", lambda c: reads.vanished_reads(c.evidence, c.losses)),
        _one("A14 future read", lambda c: reads.future_reads(c.evidence)),
        _one("A15 order violation", lambda c: groups.order_violations(c.evidence, c.losses)),
        _one("A16 real-time lag", lambda c: reads.lag(c.evidence)),
        Check(
            ("A17 query mismatch", "A17w query misses in storm"),
            lambda c: queries.key_queries(c.evidence),
        ),
        _one("A18 bound error", lambda c: queries.bounds(c.evidence, c.losses)),
        _one("A19 time search", lambda c: queries.time_searches(c.evidence)),
        _one("A19s store times rise", lambda c: queries.store_times(c.evidence), history=False),
        _one("A22 group skip", lambda c: groups.group_skips(c.evidence, c.losses)),
        _one("A23 redelivery", lambda c: groups.redeliveries(c.evidence)),
        _one("A24 offset regress", lambda c: groups.offset_regress(c.evidence, c.losses)),
        _one("A25 offset overrun", lambda c: groups.offset_overrun(c.evidence, c.losses)),
    ]


def _replicas_and_stores() -> list[Check]:
    """Logs against each other, directories, recoveries, and liveness."""
    return [
        _one("I13 queues dense", lambda c: messages.dense_queues(c.evidence)),
        _one(
            "R1 logs byte-equal",
            lambda c: replicas.equal_logs(c.evidence, c.losses_if_whole),
            history=False,
        ),
        _one("R1i images byte-equal", lambda c: replicas.equal_images(c.evidence, c.losses)),
        _one("R2 zombie bytes", lambda c: links.zombie_bytes(c.evidence)),
        _one("R3 dishonest ack", lambda c: links.honest_reports(c.evidence, c.losses)),
        _one("R8 catch-up stall", lambda c: links.catch_up(c.evidence, c.losses)),
        _one("R9 half-open blindness", lambda c: links.half_open(c.evidence, c.losses)),
        Check(
            tuple(title for title, _, _ in stores.STORE_CHECKS),
            lambda c: stores.store_checks(c.evidence),
            needs_history=False,
        ),
        _one("SI images", lambda c: stores.image_checks(c.evidence), history=False),
        _one(
            "S11m marks not ahead of the disk",
            lambda c: stores.honest_marks(c.evidence),
            history=False,
        ),
        _one(
            "S15t tables replaced as a whole",
            lambda c: stores.whole_tables(c.evidence),
            history=False,
        ),
        _one("S12a abort law", lambda c: stores.abort_law(c.evidence), history=False),
        _one("S13 recovered end", lambda c: recovery.recovered_ends(c.evidence, c.losses)),
        _one(
            again.TITLE,
            lambda c: again.recovery_idempotent(c.evidence, c.recoveries),
            history=False,
        ),
        _one("S17 write after fatal", lambda c: recovery.writes_after_error(c.evidence, c.losses)),
        _one("S18 one owner", lambda c: stores.two_owners(c.evidence)),
        _one("C1 no node ended by itself", lambda c: liveness.crashes(c.evidence), history=False),
        Check(
            tuple(title for title, _ in liveness.LIVENESS),
            lambda c: liveness.liveness(c.evidence),
            needs_history=False,
        ),
        _one("L7 sends succeed in calm", lambda c: liveness.producers_succeed(c.evidence)),
        _one(service.RECOVERY, lambda c: service.recovery_time(c.evidence)),
        _one(service.PROGRESS, lambda c: service.progress(c.evidence)),
        _one(service.NO_LOSS, lambda c: service.nothing_lost(c.evidence, c.losses)),
    ]
