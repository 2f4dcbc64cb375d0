"""`verify`: acknowledged messages against every replica, and the replicas against each other.

The log of one replica of each broker, its leader, counts as the truth. The other replicas are
compared with it block by block, since equal bytes are equal records; only a replica that differs or
holds more is also read row by row. So every check covers all replicas at the cost of one. The
leader is the last master of a run, else the first named of the longest replicas.

The checks and their numbers are in pipeline.md 6; V11 and V12 are possible for a testbed only.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketbed.pipeline.checks.findings import Answer, Check, answer, not_applicable
from rocketbed.pipeline.checks.keys import LOST, KeyTables, key_checks
from rocketbed.pipeline.checks.log import CHAIN, checksums, whole_chain
from rocketbed.pipeline.checks.order import ORDER, dense_queues, send_order
from rocketbed.pipeline.checks.queue_sums import entry_sums
from rocketbed.pipeline.checks.queues import QUEUES, QueueSide, queue_entries, unequal_sides
from rocketbed.pipeline.checks.readers import DISORDER, SKIPPED, out_of_order, skipped
from rocketbed.pipeline.checks.replicas import DIVERGED, Divergence, diverged
from rocketbed.pipeline.checks.tables import SYS_INNER_BATCH, send_table
from rocketbed.pipeline.errors import EXIT_FINDING
from rocketbed.pipeline.histories import Names, check_history, kind_of, read_histories
from rocketbed.pipeline.jobs.common import Job, WrongUsage
from rocketbed.pipeline.jobs.inputs import (
    BrokerLog,
    ReplicaLog,
    broker_logs,
    note_inputs,
    queues_now,
)
from rocketbed.pipeline.jobs.verify.inputs import (
    Requirement,
    read_requirement,
    read_run,
    unseen,
)
from rocketbed.pipeline.jobs.verify.logs import (
    LiveQueues,
    compare_replicas,
    firm_end,
    has_abort,
    live_starts,
    read_entries,
    read_live,
    read_records,
    topic_table,
)
from rocketbed.pipeline.session import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BY_KEY: Final = ("V1", "V3", "V11", "V12")
NO_HISTORY: Final = "no history was given"
ON_DISK: Final = "this is to be seen in the files of the stores: give --store"
UNPACKED: Final = {"spark.sql.inMemoryColumnarStorage.compressed": "false"}
"""Cached tables are read only a few times: compressing them costs more than it saves."""
SMALL_ROWS: Final = 200_000
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of `verify` beyond the common ones."""

    run: Path | None = None
    """A testbed's run directory, instead of stores and histories."""
    histories: tuple[Path, ...] = ()
    requirement: Path | None = None
    """File with the allowed losses, from the testbed."""
    copies: int = 1
    """Number of replicas that must hold an acknowledged message."""
    leaders: dict[str, str] = field(default_factory=dict)
    """Broker -> replica whose log counts."""
    ordered_topics: tuple[str, ...] = ()
    queues: bool = True
    """True to check the consume queues too."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The log of each broker that counts as the truth."""

    brokers: tuple[BrokerLog, ...]
    leaders: dict[str, ReplicaLog]
    """By broker."""

    @property
    def starts(self) -> dict[str, int]:
        """Starts, by broker, of the logs that lost their beginning to retention."""
        return {name: log.start for name, log in self.leaders.items() if log.start > 0}


def verify(job: Job, options: VerifyOptions) -> None:
    """Run all checks, and enter the answers in the report. Raises `PipelineError`, `WrongUsage`."""
    names = Names()
    if options.run is not None:
        run = read_run(options.run)
        names = run.names
        options = replace(
            options,
            histories=(run.history,),
            leaders=run.leaders,
            ordered_topics=run.ordered_topics,
        )
        job.settings = replace(job.settings, stores=run.stores)
    if not options.histories:
        if options.ordered_topics:
            raise WrongUsage("--ordered-topic looks at what readers got: give a --history of reads")
        if options.copies > 1:
            job.report.notes.append(
                "--copies is of acknowledged messages: without --history it says nothing"
            )
    required = Requirement()
    if options.requirement is not None:
        required = read_requirement(options.requirement)
    from rocketbed.pipeline.files.remote import need_local

    live = None
    if job.settings.endpoints:
        if options.leaders:
            raise WrongUsage("--leader is for stores: a live cluster says who its masters are")
        state = queues_now(job.settings, job.report, (), longest=options.copies == 1)
        live = LiveQueues.of(job.settings.source_options(), state, options.copies)
    logs = [] if live else broker_logs(job.settings)
    need_local((replica.replica.root for log in logs for replica in log.replicas), "verify")
    truth = choose_truth(logs, options.leaders)
    note_inputs(job.report, list(truth.brokers))
    job.report.inputs += [{"history": str(path)} for path in options.histories]
    by_value = any(kind_of(path) == "testbed" for path in options.histories)
    if by_value and not all(kind_of(path) == "testbed" for path in options.histories):
        raise WrongUsage("a history of the testbed and other histories cannot be checked together")
    work = Work(job, options, required, truth, live, by_value=by_value)
    with configured(job.spark, UNPACKED):
        fill_report(job, work.answers(names))


class Work:
    """The work of a `verify`: builds its tables one after the other."""

    def __init__(
        self,
        job: Job,
        options: VerifyOptions,
        required: Requirement,
        truth: Truth,
        live: LiveQueues | None,
        *,
        by_value: bool,
    ) -> None:
        self.job = job
        self.options = options
        self.required = required
        self.truth = truth
        self.live = live
        """Queues to read instead of the truth's logs, which are empty then."""
        self.starts = truth.starts
        """Start of each broker's log that lost its beginning to retention."""
        self.by_value = by_value
        """True if messages are identified by their body: those of a testbed."""
        self.with_properties = False
        """True if some records hold several messages, or the first key is needed."""
        self.by_broker = False
        """True if the history has the broker of each row."""

    def answers(self, names: Names) -> list[Answer]:
        """Run all checks, and return the answers in the order of their numbers."""
        spark = self.job.spark
        history = None
        if self.options.histories:
            with self.job.phase("reading the history"):
                history = read_histories(spark, self.options.histories, names).persist()
                counts = check_history(history)
                self.by_broker = counts.pop("brokerless") == 0
                self.job.report.counts |= counts
                self.job.report.notes += unseen(history, counts, self.options.ordered_topics)
        with self.job.phase("comparing replicas"):
            differing = compare_replicas(spark, self.truth.brokers, self.truth.leaders)
        answers = self._judge(history, differing)
        if not self.by_value and not self.with_properties and _doubts(answers):
            self.with_properties = True
            by_first_key = self._judge(history, differing)
            answers = min(answers, by_first_key, key=_doubts)
        answers.append(self._replicas(differing))
        answers += self._left_out(history)
        return sorted(
            answers, key=lambda result: (int(result.id[1:].rstrip("o")), result.id, result.title)
        )

    def _judge(self, history: "DataFrame | None", differing: list[Divergence]) -> list[Answer]:
        """Read the logs and check them.

        A message of a batch carries two keys: its own, followed by the batch's. Readers use the
        last one, as RocketMQ's client does, and so does this check, as it costs nothing. If that
        leaves doubts, the logs are read again with the first key.
        """
        with self.job.phase("reading logs"):
            records = self._truth_records()
            extras = self._extras(differing)
        with (
            self.job.phase("checking"),
            interpreted(self.job.spark, is_small=self._is_small()),
        ):
            checks = self._checks(history, records, extras)
            has_queues = self.options.queues and self.live is None
            entries, queues = self._of_queues(records, extras) if has_queues else ([], [])
            answers = [*queues, *answer([*checks, *entries])]
        records.unpersist()
        return answers

    def _is_small(self) -> bool:
        counts = self.job.report.counts
        return bool(counts["records"] + counts.get("sends", 0) < SMALL_ROWS)

    def _truth_records(self) -> "DataFrame":
        """Read the leaders' logs; once more with properties if records hold several messages."""
        from pyspark.sql import functions as f

        leaders = [*self.truth.leaders.values()]
        records = self._records(leaders).persist()
        if self.live is not None:
            self.starts = live_starts(records, self.live.shortened)
        batched = f.count_if(f.col("sys_flag").bitwiseAND(SYS_INNER_BATCH) != 0)
        count, several = records.agg(f.count("*"), batched).collect()[0]
        self.job.report.counts["records"] = count
        if not several or self.with_properties:
            return records
        self.with_properties = True
        records.unpersist()
        return self._records(leaders).persist()

    def _records(self, logs: Sequence[ReplicaLog]) -> "DataFrame":
        options = {
            "by_value": self.by_value,
            "by_broker": self.by_broker,
            "with_properties": self.with_properties,
        }
        if self.live is not None:
            return read_live(self.job.spark, self.live, **options)
        firm = {
            log.broker: firm_end([replica.end for replica in log.replicas], self.options.copies)
            for log in self.truth.brokers
        }
        return read_records(self.job.spark, logs, firm=firm, **options)

    def _extras(self, differing: list[Divergence]) -> dict[str, "DataFrame"]:
        """Return the rows of logs that are not a part of the truth's, by name."""
        unlike = {(divergence.broker, divergence.replica) for divergence in differing}
        extras = {}
        for broker in self.truth.brokers:
            leader = self.truth.leaders[broker.broker]
            for log in broker.replicas:
                more = log.end > leader.end or log.start < leader.start
                differs = (broker.broker, log.replica.name) in unlike
                if log is not leader and (more or differs):
                    extras[log.label] = self._records([log])
        return extras

    def _checks(
        self, history: "DataFrame | None", records: "DataFrame", extras: "dict[str, DataFrame]"
    ) -> list[Check]:
        checks = self._of_log(records, "")
        sends = None if history is None else send_table(history, by_broker=self.by_broker)
        tables = KeyTables(
            sends=sends,
            records=records,
            excused=self._excused(),
            is_whole=self.by_value,
            copies=self.options.copies,
            log_starts=self.starts,
        )
        by_key, suspects = key_checks(tables)
        checks += by_key
        if history is not None and sends is not None:
            checks.append(send_order(sends, records, suspects, tables.excused))
            checks += self._of_readers(history, records)
        for label, rows in extras.items():
            checks += self._of_log(rows, f": {label}")
            theirs, _ = key_checks(replace(tables, records=rows), label=f": {label}")
            checks += [check for check in theirs if check.id not in ("V1", "V11")]
        return checks

    def _of_log(self, records: "DataFrame", label: str) -> list[Check]:
        checks = [dense_queues(records, self.starts), checksums(records, self.required.damaged)]
        if self.live is None:
            checks.insert(0, whole_chain(records))
        return [replace(check, title=check.title + label) for check in checks]

    def _of_readers(self, history: "DataFrame", records: "DataFrame") -> list[Check]:
        if not self.job.report.counts.get("reads"):
            return []
        excused = self.required.turns > 0
        checks = [
            skipped(
                history, records, by_key=self.by_value, by_broker=self.by_broker, excused=excused
            )
        ]
        topics = self.required.ordered_topics or self.options.ordered_topics
        if topics:
            checks.append(out_of_order(history, topics, excused=excused))
        return checks

    def _of_queues(
        self, records: "DataFrame", extras: "dict[str, DataFrame]"
    ) -> tuple[list[Check], list[Answer]]:
        """V8: return checks for replicas whose queue sums differ, and answers for the others."""
        from pyspark.sql import functions as f

        sides = []
        for broker in self.truth.brokers:
            ours = records.where(f.col("broker") == broker.broker)
            for log in broker.replicas:
                topics, deleted = topic_table(log)
                side = QueueSide(
                    label=log.label,
                    entries=read_entries(self.job.spark, log),
                    records=extras.get(log.label, ours),
                    start=log.start,
                    end=log.end,
                    topics=topics,
                    deleted=deleted,
                    may_lag=has_abort(log) or log.replica.name in self.required.damaged,
                )
                sides.append(side)
        logs = [log for broker in self.truth.brokers for log in broker.replicas]
        unequal = unequal_sides(entry_sums(self.job.spark, logs), sides)
        checks = [queue_entries(side) for side in sides if side.label in unequal]
        title = QUEUES[1]
        good = [side.label for side in sides if side.label not in unequal]
        return checks, [Answer(QUEUES[0], f"{title}: {label}", "ok") for label in good]

    def _excused(self) -> "DataFrame | None":
        if not self.required.excused:
            return None
        rows = [(key,) for key in self.required.excused]
        return self.job.spark.createDataFrame(rows, "uniq_key string")

    def _replicas(self, differing: list[Divergence]) -> Answer:
        if self.live is not None:
            return not_applicable(*DIVERGED, ON_DISK)
        if all(len(broker.replicas) < 2 for broker in self.truth.brokers):
            return not_applicable(*DIVERGED, "no broker has two replicas here")
        return diverged(differing, self.required.agreed, self.required.damaged)

    def _left_out(self, history: "DataFrame | None") -> list[Answer]:
        answers = []
        if self.live is not None:
            answers = [not_applicable(*title, ON_DISK) for title in (CHAIN, QUEUES)]
        if history is None:
            answers += [not_applicable(*title, NO_HISTORY) for title in (LOST, ORDER, SKIPPED)]
        elif not self.job.report.counts.get("reads"):
            answers.append(not_applicable(*SKIPPED, "the history holds no reads"))
        elif not (self.required.ordered_topics or self.options.ordered_topics):
            answers.append(not_applicable(*DISORDER, "no topic is ordered"))
        return answers


def interpreted(spark: "SparkSession", *, is_small: bool) -> AbstractContextManager[None]:
    """Let Spark run small tables without compiling, which takes longer than all their rows."""
    return configured(spark, INTERPRETED if is_small else {})


def _doubts(answers: list[Answer]) -> int:
    """Return the number of findings that another choice of the key may explain."""
    return sum(answer.count for answer in answers if answer.id in BY_KEY)


def choose_truth(brokers: Sequence[BrokerLog], leaders: dict[str, str]) -> Truth:
    """Choose the log of each broker that counts: the named leader's, else the longest.

    Raises `WrongUsage` for a leader that is not among the stores.
    """
    chosen = {}
    if unknown := sorted(leaders.keys() - {broker.broker for broker in brokers}):
        raise WrongUsage(
            f"--leader {unknown[0]}={leaders[unknown[0]]}: no such broker among the stores"
        )
    for broker in brokers:
        named = leaders.get(broker.broker)
        logs = {log.replica.name: log for log in broker.replicas}
        if named is None:
            chosen[broker.broker] = max(broker.replicas, key=lambda log: log.end)
        elif named in logs:
            chosen[broker.broker] = logs[named]
        else:
            raise WrongUsage(f"--leader {broker.broker}={named}: no such replica among its stores")
    return Truth(tuple(brokers), chosen)


def fill_report(job: Job, answers: list[Answer]) -> None:
    """Enter the answers in the report, and the exit code."""
    report = job.report
    report.checks = [result.as_row() for result in answers]
    report.findings += [result.as_row() for result in answers if result.verdict == "violated"]
    if report.findings:
        report.exit_code = EXIT_FINDING
    ran = [result for result in answers if result.verdict != "not-applicable"]
    held = sum(result.verdict == "ok" for result in ran)
    report.counts["checks"] = f"{held} of {len(ran)} held"
    allowed: dict[str, Any] = {result.id: result.allowed for result in answers if result.allowed}
    if allowed:
        report.counts["allowed"] = allowed
