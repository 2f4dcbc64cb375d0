"""The inputs of `verify` for a run of the testbed: its files and its requirement.

A run of the testbed leaves `run.json`, a history and store directories (`chaos.evidence.record`).
Only the testbed judges what an acknowledgement promised, and so which messages may be lost after
which fault (chaos.md 2.3). It passes the result on as a `requirement`, a JSON file:

    {"format": 1, "excused": ["17", ...], "agreed": {"b2": 4711}, "damaged": ["b3"],
     "turns": 1, "ordered_topics": ["t"]}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.histories import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT: Final = 1
RUN_FILE: Final = "run.json"
HISTORY_FILE: Final = "history.rbh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Deviations of a run that are not findings."""

    excused: tuple[str, ...] = ()
    """Keys of acknowledged messages that may be missing."""
    agreed: dict[str, int] = field(default_factory=dict)
    """By replica: the byte up to which it has to equal its leader."""
    damaged: tuple[str, ...] = ()
    """Replicas whose bytes the run damaged deliberately."""
    turns: int = 0
    """Number of times that a broker's surviving log may have lost its end."""
    ordered_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The parts of a run's directory that `verify` reads."""

    history: Path
    stores: tuple[str, ...]
    """`broker/replica=root`."""
    leaders: dict[str, str]
    """Broker -> the replica that was its last master."""
    names: Names
    ordered_topics: tuple[str, ...]


def read_run(directory: Path) -> RunFiles:
    """Read a run's record. Raises `PipelineError`."""
    row = _read_json(directory / RUN_FILE)
    try:
        groups = {str(broker): list(nodes) for broker, nodes in row["groups"].items()}
        places = {str(node): directory / path for node, path in row["stores"].items()}
        leaders = {str(broker): str(node) for broker, node in row["leaders"].items()}
        ordered = tuple(map(str, row.get("ordered_topics", ())))
    except (KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{directory / RUN_FILE} lacks {error}: is it the file of a run?"
        ) from error
    brokers = {node: broker for broker, nodes in groups.items() for node in nodes}
    stores = tuple(
        f"{brokers[node]}/{node}={place}"
        for node, place in sorted(places.items())
        if node in brokers
    )
    for broker, node in leaders.items():
        if node not in places:
            raise PipelineError(f"the store of {node}, last master of {broker}, was not kept")
    if missing := sorted(set(groups) - set(leaders)):
        raise PipelineError(f"broker {missing[0]} had no master at the end: it cannot be verified")
    names = Names(brokers | {broker: broker for broker in groups}, _only(groups))
    return RunFiles(
        history=directory / HISTORY_FILE,
        stores=stores,
        leaders=leaders,
        names=names,
        ordered_topics=ordered,
    )


def read_requirement(path: Path) -> Requirement:
    """Read what the testbed requires. Raises `PipelineError`."""
    row = _read_json(path)
    try:
        if row["format"] != FORMAT:
            raise PipelineError(f"{path} was written by another version of rocketbed")
        return Requirement(
            excused=tuple(map(str, row["excused"])),
            agreed={str(node): int(limit) for node, limit in row["agreed"].items()},
            damaged=tuple(map(str, row["damaged"])),
            turns=int(row["turns"]),
            ordered_topics=tuple(map(str, row["ordered_topics"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PipelineError(f"{path} is not a valid requirement: {error!r}") from error


def unseen(history: "DataFrame", counts: Mapping[str, int], ordered: Sequence[str]) -> list[str]:
    """Return notes of checks that hold because there was nothing to examine.

    `counts` are those of the history.
    """
    from pyspark.sql import functions as f

    if not counts["sends"] and not counts["reads"]:
        return ["the history has neither sends nor reads: nothing was compared with it"]
    is_ordered_read = (f.col("kind") == "read") & f.col("topic").isin(*ordered)
    rows = history.where(is_ordered_read).select("topic").distinct().collect() if ordered else ()
    return [
        f"the history has no read of topic {topic}: its order was not checked"
        for topic in sorted(set(ordered) - {row.topic for row in rows})
    ]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PipelineError(f"{path} is not JSON: {error}") from error


def _only(groups: dict[str, list[str]]) -> str:
    return next(iter(groups)) if len(groups) == 1 else ""
