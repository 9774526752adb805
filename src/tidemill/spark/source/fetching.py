"""A range of a partition over the wire, one request ahead of whoever decodes it.

    for portion in fetch_range(cluster, wanted, settings):
        portion.records, portion.aborted

A range that the first answer does not cover is fetched on by a thread, which waits for the broker while the
caller decodes, and never holds more than one answer ready. How much to ask for follows from what is left: a
task that wants the last thousand records of a partition does not pull eight megabytes.

What a broker may answer besides records:

- nothing, although the range is below the high watermark: asked `SILENCES_OF_A_GAP` times at the same place
  it is a gap that compaction or transactions left up to there, the range is done;
- no partition at all: the broker throttles, and is asked again after the time it names;
- nothing, because the log ends before the range does: a new leader may not know yet how far it may answer,
  so it is asked again until `request.timeout.ms`; then the records are gone;
- OFFSET_OUT_OF_RANGE: retention overtook the reader.

Gone records are an error, or with `failOnDataLoss=false` the read goes on behind them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.model.errors import ErrorCode, MalformedMessage
from tidemill.spark.client.cluster import EARLIEST, PASSING, BrokerError, Cluster, only_partition
from tidemill.spark.client.connection import Connection
from tidemill.spark.errors import BrokerUnavailable, DataLoss
from tidemill.spark.source.batches import WholeBatches, whole_batches
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.settings import SourceSettings
from tidemill.wire.batch import Buffer
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

logger = logging.getLogger(__name__)

SMALLEST_FETCH = 64 << 10
FIRST_GUESS_RECORD_BYTES = 1024
SILENCES_OF_A_GAP = 5
_PAUSE_SECONDS = 0.1
_GONE = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Fetched(NamedTuple):
    """Bytes that begin with a whole batch, and the aborted transactions that touch them (first offset, producer)."""

    records: Buffer
    aborted: list[tuple[int, int]]
    start: int
    """What was asked for: the first batch may begin before it, with records that are gone or were delivered."""


def fetched(answer: PartitionData, start: int) -> Fetched:
    """The records of an answer to a fetch at `start`."""
    aborted = [(each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()]
    return Fetched(answer.records or b"", aborted, start)


def bytes_of_a_record(records: Buffer, whole: WholeBatches) -> float:
    """About as many as a record takes here. The first batch may begin long before what was asked for."""
    first_offset = int.from_bytes(records[:8], "big")
    return max(whole.size / max(whole.next_offset - first_offset, 1), 1.0)


def wanted_bytes(records: int, record_bytes: float) -> int:
    """How much to ask for: these records, if they are as large as the last ones, and the batch around the end."""
    return int(records * record_bytes * 1.1 + SMALLEST_FETCH)


def fetch_request(
    topics: Mapping[str, list[FetchPartition]], committed: bool, wait_ms: int, size: int
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=size, isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=parts) for topic, parts in topics.items()],
    )  # fmt: skip


def fetch_range(cluster: Cluster, wanted: OffsetRange, settings: SourceSettings) -> Iterator[Fetched]:
    """The bytes of this range, in order, each portion as soon as it is there."""
    fetcher = _Fetcher(cluster, wanted, settings)
    first = fetcher.next()
    if first is None:
        return
    if fetcher.is_done:
        yield first
        return
    ahead = _Ahead(fetcher)
    try:
        yield first
        yield from ahead
    finally:
        ahead.stop()


class _Fetcher:
    """Fetches one portion after the other; knows where it is."""

    def __init__(self, cluster: Cluster, wanted: OffsetRange, settings: SourceSettings) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._settings = settings
        self._record_bytes = float(FIRST_GUESS_RECORD_BYTES)
        self._connection: Connection | None = None
        self._silences = 0
        """Empty answers in a row at this position."""
        self._stopped = threading.Event()
        self.position = wanted.start

    @property
    def is_done(self) -> bool:
        return self.position >= self._wanted.end

    def next(self) -> Fetched | None:
        """The next portion; None when the range is done, or nobody wants it any more."""
        deadline = self._deadline()
        self._silences = 0
        while not self.is_done and not self._stopped.is_set():
            before = self.position
            answer = self._fetch(deadline)
            if answer is None:
                continue
            records: Buffer = answer.records or b""
            whole = whole_batches(records, before)
            self.position = whole.next_offset
            if self.position > before:
                self._record_bytes = bytes_of_a_record(records, whole)
                return fetched(answer, before)
            if records:
                raise MalformedMessage(f"{self._wanted.where} answers a torn batch at offset {before}")
            self._judge_silence(answer, deadline)
        return None

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.client.request_timeout_ms / 1000

    def _judge_silence(self, answer: PartitionData, deadline: float) -> None:
        end = answer.last_stable_offset if self._settings.reads_committed else answer.high_watermark
        self._silences += 1
        if end >= self._wanted.end:
            if self._silences >= SILENCES_OF_A_GAP:
                self.position = self._wanted.end
        elif time.monotonic() > deadline:
            self._lose(f"{self._wanted.where} ends at {end}, before {self._wanted.end}", self._wanted.end)

    def _fetch(self, deadline: float) -> PartitionData | None:
        """One answer; None when it has to be asked again from wherever `position` is then."""
        try:
            address = self._cluster.leader(self._wanted.where)
            self._connection = self._cluster.connection(address)
            answer = self._connection.call(self._request())
            return only_partition(answer, str(self._wanted.where), self._stopped.wait)
        except BrokerError as error:
            if error.code in _GONE:
                self._step_over_loss(error)
                return None
            if error.code not in PASSING or time.monotonic() > deadline:
                raise
        except BrokerUnavailable:
            if time.monotonic() > deadline:
                raise
        self._cluster.forget_leaders()
        self._stopped.wait(_PAUSE_SECONDS)
        return None

    def _request(self) -> FetchRequest:
        left = self._wanted.end - self.position
        size = min(self._settings.fetch_bytes, wanted_bytes(left, self._record_bytes))
        part = FetchPartition(
            partition=self._wanted.where.partition, fetch_offset=self.position, partition_max_bytes=size
        )
        topics = {self._wanted.where.topic: [part]}
        return fetch_request(topics, self._settings.reads_committed, self._settings.fetch_wait_ms, size)

    def _step_over_loss(self, error: BrokerError) -> None:
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._lose(f"{self._wanted.where} no longer exists", self._wanted.end)
            return
        first = self._cluster.list_offsets({self._wanted.where: EARLIEST}, committed=False)[
            self._wanted.where
        ]
        if first > self.position:
            self._lose(f"{self._wanted.where} begins at {first}, and {self.position} is wanted", first)
        else:
            self._lose(f"{self._wanted.where} ends before {self.position}", self._wanted.end)

    def _lose(self, message: str, position: int) -> None:
        if self._settings.fails_on_data_loss:
            raise DataLoss(f"{message}; set failOnDataLoss to false to go on with what is left")
        logger.warning("records are gone: %s", message)
        self.position = min(position, self._wanted.end)

    def stop(self) -> None:
        """Let `next` return soon, also in the middle of a fetch, whose connection cannot be used again then."""
        self._stopped.set()
        if self._connection is not None:
            self._connection.close()


class _Ahead:
    """A thread that keeps one portion ready."""

    def __init__(self, fetcher: _Fetcher) -> None:
        self._fetcher = fetcher
        self._ready: queue.Queue[Fetched | BaseException | None] = queue.Queue(maxsize=1)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tidemill-fetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Fetched]:
        while True:
            portion = self._ready.get()
            if portion is None:
                return
            if isinstance(portion, BaseException):
                raise portion
            yield portion

    def _run(self) -> None:
        portion: Fetched | BaseException | None
        while not self._is_stopped:
            try:
                portion = self._fetcher.next()
            except BaseException as error:
                portion = error
            self._ready.put(portion)
            if portion is None or isinstance(portion, BaseException):
                return

    def stop(self) -> None:
        """End the thread, whatever it waits for."""
        self._is_stopped = True
        while self._thread.is_alive():
            if self._ready.full():
                self._ready.get_nowait()
            self._fetcher.stop()
            self._thread.join(timeout=0.01)
