"""The driver's part of exactly once: publish a batch of a query, unless it is published.

    begin                 shut older drivers out, end what they left open
    newest decision = batch?   yes: done, the batch was published before
    newest decision > batch?   yes: an error, the checkpoint was set back
    add partitions, write the rows, write the decision record, commit

All of it is one transaction of one owner, so a reader sees the whole batch or nothing, and the decision exists exactly
if the rows do. Whatever goes wrong on the way has one answer: begin again. `begin` ends the transaction that was under
way, and the decision record tells whether it was committed. docs/decisions/0021 goes through every point of failure.

    publish(settings, "5d6c…", 17, staged)      # True; the second time False

Limits: publishing must take less than `kafka.transaction.timeout.ms`, else the cluster aborts and the batch fails.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from tidemill.model.errors import TidemillError
from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition, kept_cluster
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.sink.decisions import (
    Decision,
    Writer,
    decision_batch,
    stamped_batch,
    standing_decisions,
    tombstone_batch,
    writer_of,
)
from tidemill.spark.sink.publisher import Delivery, Publisher
from tidemill.spark.sink.settings import SinkSettings
from tidemill.spark.sink.staging import Staged, read_staged, staged_ends
from tidemill.spark.sink.steps import Step, reached
from tidemill.spark.sink.topics import COMMITS, SinkTopics
from tidemill.spark.sink.transaction import LOST, RETRIED, Transaction

TRANSACTIONAL_ID_PREFIX = "tidemill-spark-"
_PAUSE_SECONDS = 0.2


class DriverReplaced(TidemillError):
    """The transaction of this driver was ended by somebody else."""


class BatchOutdated(TidemillError):
    """A later batch of the query is published: what this one holds was published too, or would come out of order."""

    def __init__(self, query: str, batch: int, newest: int) -> None:
        super().__init__(
            f"batch {batch} of query {query} was not published: batch {newest} of this query is published already."
            f" Either another driver of the query has gone on, or its checkpoint was set back; to write the rows"
            f" again on purpose start with a new checkpoint. In a commitKey the number at the end may not go back"
        )
        self.query, self.batch, self.newest = query, batch, newest

    def __reduce__(self) -> tuple[type[BatchOutdated], tuple[str, int, int]]:
        return type(self), (self.query, self.batch, self.newest)


class SecondWrite(TidemillError):
    """Two writes of one batch under one name: after a restart nobody could tell which of them was published."""

    def __init__(self, query: str, batch: int) -> None:
        super().__init__(
            f"batch {batch} of query {query} is published already, by another write of the same foreachBatch."
            f" Set the option commitKey of this write to a name of its own, such as NAME/{batch} with the number of the"
            f" batch at its end, and leave the first write as it is"
        )
        self.query, self.batch = query, batch

    def __reduce__(self) -> tuple[type[SecondWrite], tuple[str, int]]:
        return type(self), (self.query, self.batch)


def publish(
    settings: SinkSettings, query: str, batch: int, staged: list[Staged], writer: Writer | None = None
) -> bool:
    """Publish what the tasks staged, exactly once; False when the batch had been published before.

    Brokers may be away for `delivery.timeout.ms`, counted from the first failure. With `writer`, the same batch from
    another write of the same attempt is refused (`decisions` says why).
    """
    reached(query, batch, Step.COMMITTING)
    if not any(each.counts for each in staged):
        return False
    deadline: float | None = None
    with kept_cluster(settings.client) as cluster:
        publication = _Publication(cluster, settings, query, batch, staged, writer)
        while True:
            try:
                is_new = publication.attempt()
                break
            except (BrokerUnavailable, BrokerError) as error:
                is_passing = isinstance(error, BrokerUnavailable) or error.code in RETRIED
                now = time.monotonic()
                deadline = deadline or now + settings.delivery_timeout_ms / 1000
                if not is_passing or now > deadline:
                    raise
            cluster.close()  # what the attempt still had under way must not be answered to the next
            cluster.forget_leaders()
            time.sleep(_PAUSE_SECONDS)
        publication.clean()
    return is_new


def forget_run(settings: SinkSettings, query: str, batch: int) -> None:
    """Remove the decision of a write that nobody can repeat."""
    with contextlib.suppress(BrokerUnavailable, BrokerError), kept_cluster(settings.client) as cluster:
        transaction = _transaction(cluster, settings, query)
        transaction.begin()
        transaction.add([COMMITS])
        publisher = Publisher(cluster, transaction.producer, _delivery(settings, transaction))
        publisher.send(tombstone_batch(query, batch))
        publisher.flush()
        transaction.commit()


class _Publication:
    def __init__(
        self,
        cluster: Cluster,
        settings: SinkSettings,
        query: str,
        batch: int,
        staged: list[Staged],
        writer: Writer | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._query = query
        self._batch = batch
        self._staged = staged
        self._topics = SinkTopics(cluster, settings.delivery_timeout_ms)
        self._transaction = _transaction(cluster, settings, query)
        counts: Counter[TopicPartition] = Counter()
        for each in staged:
            counts.update(each.counts)
        self._decision = Decision(query, batch, len(staged), counts, writer)
        self._standing: dict[int, bytes] = {}

    def attempt(self) -> bool:
        self._topics.ensure_commits()
        self._transaction.begin()
        self._reached(Step.FENCED)
        if self._is_decided():
            self._pass_by()
            self._reached(Step.SKIPPED)
            return False
        self._reached(Step.UNDECIDED)
        with self._ended_on_failure():
            self._write()
            self._transaction.commit()
        self._reached(Step.COMMITTED)
        return True

    def _pass_by(self) -> None:
        """Leave word that this attempt has met the decision, unless another write of it already has."""
        mine = self._decision.writer
        if mine is None:
            return
        value = self._standing[self._batch]
        before = writer_of(value)
        if before.write == mine.write:
            return
        if before.attempt == mine.attempt:
            raise SecondWrite(self._query, self._batch)
        with self._ended_on_failure():
            self._transaction.add([COMMITS])
            publisher = self._publisher()
            publisher.send(stamped_batch(self._query, self._batch, value, mine))
            publisher.flush()
            self._transaction.commit()

    def _publisher(self) -> Publisher:
        delivery = _delivery(self._settings, self._transaction)
        return Publisher(self._cluster, self._transaction.producer, delivery)

    def _write(self) -> None:
        """Rows and decision into one open transaction."""
        self._transaction.add([*self._decision.counts, COMMITS])
        self._reached(Step.OPENED)
        publisher = self._publisher()
        with Cluster(self._settings.client) as reader:
            for batch in read_staged(reader, self._staged):
                publisher.send(batch)
        publisher.flush()
        self._reached(Step.PUBLISHED)
        publisher.send(decision_batch(self._decision, self._standing))
        publisher.flush()
        self._reached(Step.DECIDED)

    @contextlib.contextmanager
    def _ended_on_failure(self) -> Iterator[None]:
        """Readers of the topics wait for an open transaction: do not leave one. A driver that was replaced may not
        end anything, and is told so."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(BrokerUnavailable, BrokerError):
                self._transaction.abort()
            if isinstance(error, BrokerError) and error.code in LOST:
                raise DriverReplaced(
                    f"batch {self._batch} of query {self._query} was not published: another driver of this query has"
                    f" taken over, or publishing took longer than kafka.transaction.timeout.ms"
                    f" ({self._settings.transaction_timeout_ms} ms). {error}"
                ) from error
            raise

    def _is_decided(self) -> bool:
        self._standing = standing_decisions(self._cluster, self._query, self._settings.delivery_timeout_ms)
        newest = max(self._standing, default=-1)
        if newest > self._batch:
            raise BatchOutdated(self._query, self._batch, newest)
        return newest == self._batch

    def clean(self) -> None:
        """Drop the staged copies; a cluster that refuses keeps them until their retention is over."""
        with contextlib.suppress(BrokerUnavailable, BrokerError):
            self._topics.delete_staged(staged_ends(self._staged))
        self._reached(Step.CLEANED)

    def _reached(self, step: Step) -> None:
        reached(self._query, self._batch, step)


def _transaction(cluster: Cluster, settings: SinkSettings, query: str) -> Transaction:
    return Transaction(
        cluster,
        TRANSACTIONAL_ID_PREFIX + query,
        settings.transaction_timeout_ms,
        settings.delivery_timeout_ms,
    )


def _delivery(settings: SinkSettings, transaction: Transaction) -> Delivery:
    return Delivery(-1, transaction.id, settings.delivery_timeout_ms)
