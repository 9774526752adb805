"""The metadata log on disk: `__cluster_metadata-0`, its snapshots and its `quorum-state`.

It is an ordinary log of the storage engine, in Kafka's format, in the first data directory:

    __cluster_metadata-0/
        00000000000000000000.log ...                    the records
        00000000000000000084-0000000001.checkpoint      snapshots (see `snapshot`)
        quorum-state                                    the election state (see `quorum_state`)

The store knows bytes, offsets and epochs; it decides nothing. Who may append, what is committed and when a
snapshot is due is the business of the quorum above it: today `quorum.QuorumOfOne`, later an implementation
of raft over several nodes, which finds here all that it needs of a log store (append, read from an offset,
sync, cut the end, election state, snapshots).

The two newest snapshots are kept, and the log from the end of the older one on: if the newest is damaged,
the older one and the log give the same image.

Limits: not thread safe, except that `SnapshotJob.run` and `FlushJob.run` touch only files and may run in any
thread, one of each kind at a time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.metadata.control_records import decode_control, encode_control
from tidemill.metadata.framing import decode_value, encode_control_batch, encode_records, iterate_records
from tidemill.metadata.image import MetadataImage
from tidemill.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from tidemill.metadata.snapshot import (
    BOOTSTRAP_FILE,
    PARTIAL_SUFFIX,
    SUFFIX,
    Snapshot,
    SnapshotId,
    VoterSet,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
    snapshot_id,
)
from tidemill.model.configs import BrokerLayers, broker_value
from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.model.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from tidemill.ports.files import Files
from tidemill.storage.config import UNLIMITED, LogConfig
from tidemill.storage.log import FlushJob, Log
from tidemill.storage.partition_metadata import read_topic_id, write_topic_id
from tidemill.wire.batch import BatchHeader, checksum, iterate_headers, read_header
from tidemill.wire.schema import Message

logger = logging.getLogger(__name__)

METADATA_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
KEPT_SNAPSHOTS = 2
READ_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSettings:
    """Kafka's `metadata.log.*` properties."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    snapshot_after_bytes: int = 20 * 1024 * 1024
    snapshot_after_ms: int = 3600 * 1000
    """Since the last one, if anything changed; 0 is never."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> StoreSettings:
        def number(name: str) -> int:
            value = broker_value(name, BrokerLayers(static=properties))
            assert isinstance(value, int)
            return value

        return cls(
            segment_bytes=number("metadata.log.segment.bytes"),
            segment_ms=number("metadata.log.segment.ms"),
            snapshot_after_bytes=number("metadata.log.max.record.bytes.between.snapshots"),
            snapshot_after_ms=number("metadata.log.max.snapshot.interval.ms"),
        )


class StoredBatch(NamedTuple):
    """One batch as it was read: its records, or what its control records say."""

    last_offset: int
    epoch: int
    timestamp_ms: int
    size: int
    is_control: bool
    messages: list[Message]


class LoadedSnapshot(NamedTuple):
    id: SnapshotId
    content: Snapshot


class SnapshotJob:
    """Writes the snapshot of an image; the image never changes, so any thread may do it."""

    def __init__(
        self, files: Files, directory: str, image: MetadataImage, voters: VoterSet, now_ms: int
    ) -> None:
        self.id = snapshot_id(image)
        self._files = files
        self._directory = directory
        self._image = image
        self._voters = voters
        self._now_ms = now_ms
        self.is_done = False

    def run(self) -> None:
        """The file appears under its name only when it is whole and on disk."""
        path = f"{self._directory}/{self.id.file_name}"
        partial = path + PARTIAL_SUFFIX
        file = self._files.open(partial, create=True)
        try:
            file.truncate(0)
            position = 0
            for batch in encode_snapshot(self._image, self._voters, self._now_ms):
                position += file.write((batch,), position)
            file.sync()
        finally:
            file.close()
        self._files.rename(partial, path)
        self._files.sync_directory(self._directory)
        self.is_done = True


class MetadataStore:
    def __init__(
        self, files: Files, data_directory: str, log: Log, newest_snapshot: LoadedSnapshot | None
    ) -> None:
        self._files = files
        self._data_directory = data_directory
        self._directory = log.directory
        self._log = log
        self._newest_snapshot = newest_snapshot

    @classmethod
    def open(
        cls,
        files: Files,
        data_directory: str,
        settings: StoreSettings,
        *,
        clean_shutdown: bool,
        now_ms: int,
    ) -> MetadataStore:
        """Raises CorruptLog if something that was on disk is damaged; a torn end is cut off, and said to be.

        A damaged last batch cannot be told from a torn one. What the newest snapshot contains is not looked at
        in the log, so damage there hurts nobody.
        """
        directory = f"{data_directory}/{METADATA_PARTITION}"
        config = LogConfig(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            retention_ms=UNLIMITED,
            retention_bytes=UNLIMITED,
        )
        is_new = not files.exists(directory)
        files.make_directory(directory)
        _identify(files, directory)
        snapshot = _newest_snapshot(files, directory)
        try:
            log = Log.open(
                files,
                directory,
                config,
                clean_shutdown=clean_shutdown,
                recovery_point=snapshot.id.end_offset if snapshot else 0,
                now_ms=now_ms,
                topic_partition=METADATA_PARTITION,
                topic_id=METADATA_TOPIC_ID,
            )
        except CorruptLog as error:
            raise _damaged(directory, error) from error
        _report_cut(log)
        if is_new:
            files.sync_directory(data_directory)
        return cls(files, data_directory, log, snapshot)

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self._log.latest_epoch

    # -- appending ----------------------------------------------------------------------------------------

    def append(self, records: list[Message], epoch: int, metadata_version: int, now_ms: int) -> int:
        """Write one batch at the end; the bytes it took. Raises OSError, and then nothing was written."""
        batch = encode_records(
            records,
            base_offset=self.end_offset,
            leader_epoch=epoch,
            timestamp_ms=now_ms,
            metadata_version=metadata_version,
        )
        return self._append(batch, epoch, now_ms)

    def append_control(self, message: Message, epoch: int, now_ms: int) -> int:
        record = encode_control(message, self.end_offset, now_ms)
        return self._append(encode_control_batch([record], leader_epoch=epoch), epoch, now_ms)

    def _append(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        self._log.append_as_leader(batch, read_header(batch), epoch, now_ms)
        return len(batch)

    def begin_flush(self) -> FlushJob | None:
        return self._log.begin_flush()

    def complete_flush(self, job: FlushJob) -> None:
        self._log.complete_flush(job)

    def update_high_watermark(self, offset: int) -> None:
        self._log.update_high_watermark(offset)

    def close(self) -> None:
        self._log.close()

    # -- reading ------------------------------------------------------------------------------------------

    def batches_from(self, offset: int) -> Iterator[StoredBatch]:
        """Everything from this offset to the end, checked."""
        while (found := self._log.read(offset, READ_BYTES, self.end_offset)) is not None:
            data = found.file.read(found.position, found.length)
            before = offset
            for position, header in iterate_headers(data):
                yield self._read(header, data[position : position + header.size], offset)
                offset = header.last_offset + 1
            if offset == before:
                raise CorruptLog(f"the metadata log cannot be read at offset {offset}")

    def _read(self, header: BatchHeader, batch: bytes, first_offset: int) -> StoredBatch:
        if checksum(batch, 0, header.size) != header.crc:
            raise CorruptLog(f"the metadata batch at offset {header.base_offset} is damaged")
        try:
            messages = _messages(header, batch, first_offset)
        except MalformedMessage as error:
            raise CorruptLog(f"the metadata batch at offset {header.base_offset}: {error}") from error
        return StoredBatch(
            header.last_offset, header.leader_epoch, header.max_timestamp, header.size, header.is_control,
            messages,
        )  # fmt: skip

    # -- election state -----------------------------------------------------------------------------------

    def read_quorum_state(self) -> QuorumState:
        return read_quorum_state(self._files, self._directory)

    def write_quorum_state(self, state: QuorumState) -> None:
        """On disk when this returns."""
        write_quorum_state(self._files, self._directory, state)

    # -- snapshots ----------------------------------------------------------------------------------------

    def take_newest_snapshot(self) -> LoadedSnapshot | None:
        """The newest whole one, as found when the store was opened; it is not held any longer than that."""
        found, self._newest_snapshot = self._newest_snapshot, None
        return found

    def bootstrap_snapshot(self) -> Snapshot | None:
        """What Kafka's storage tool prepared for a cluster that has not started yet."""
        path = f"{self._data_directory}/{BOOTSTRAP_FILE}"
        return decode_snapshot(self._files.read_all(path)) if self._files.exists(path) else None

    def start_at_snapshot(self, id: SnapshotId) -> None:
        """The log ends before the snapshot does: it holds nothing that the snapshot does not."""
        self._log.truncate_fully_and_start_at(id.end_offset)

    def begin_snapshot(self, image: MetadataImage, voters: VoterSet, now_ms: int) -> SnapshotJob:
        return SnapshotJob(self._files, self._directory, image, voters, now_ms)

    def complete_snapshot(self, now_ms: int) -> None:
        """Remove what the kept snapshots make superfluous, and begin a segment, so that the next one can too."""
        ids = _snapshot_ids(self._files, self._directory)
        for id in ids[:-KEPT_SNAPSHOTS]:
            self._files.remove(f"{self._directory}/{id.file_name}")
        self._log.roll(now_ms)
        if len(ids) >= KEPT_SNAPSHOTS:
            self._log.increase_log_start_offset(ids[-KEPT_SNAPSHOTS].end_offset)
        self._log.delete_old_segments(now_ms)


def _damaged(directory: str, error: CorruptLog) -> CorruptLog:
    return CorruptLog(
        f"the metadata log is damaged, nothing was changed: restore {directory} from a copy, as without it the "
        f"broker does not know its topics ({error.finding})"
    )


def _report_cut(log: Log) -> None:
    """Records are on the disk before they are answered: what is cut was a torn write, or a loss."""
    if log.recovery_report.truncated_bytes:
        logger.error(
            "%d bytes at the end of the metadata log in %s were no whole batch and were cut off: if the last stop "
            "was no crash, changes to topics or settings before it may be lost",
            log.recovery_report.truncated_bytes,
            log.directory,
        )


def _identify(files: Files, directory: str) -> None:
    """The id of this topic never varies: a file that says otherwise, or nothing, is written anew."""
    try:
        if read_topic_id(files, directory) == METADATA_TOPIC_ID:
            return
    except CorruptLog:
        pass
    write_topic_id(files, directory, METADATA_TOPIC_ID)


def _snapshot_ids(files: Files, directory: str) -> list[SnapshotId]:
    """By name, oldest first; not all of them need be whole."""
    ids = (parse_snapshot_name(name) for name in files.list(directory))
    return sorted(id for id in ids if id is not None)


def _newest_snapshot(files: Files, directory: str) -> LoadedSnapshot | None:
    """The newest one that is whole; one that was never finished is removed."""
    for name in files.list(directory):
        if name.endswith(SUFFIX + PARTIAL_SUFFIX):
            files.remove(f"{directory}/{name}")
    for id in reversed(_snapshot_ids(files, directory)):
        try:
            return LoadedSnapshot(id, decode_snapshot(files.read_all(f"{directory}/{id.file_name}")))
        except CorruptLog:
            continue
    return None


def _messages(header: BatchHeader, batch: bytes, first_offset: int) -> list[Message]:
    messages: list[Message] = []
    for raw in iterate_records(header, batch):
        if raw.offset < first_offset:
            continue
        if header.is_control:
            control = decode_control(raw)
            messages += [] if control is None else [control]
        elif raw.value is None:
            raise MalformedMessage(f"the record at offset {raw.offset} has no value")
        else:
            messages.append(decode_value(raw.value))
    return messages
