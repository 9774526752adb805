"""The log of one partition: append at the end, read anywhere, cut at either side.

    log start <= last stable offset <= high watermark <= log end          recovery point <= log end

Segments hold the batches (`segment`), found by bisection (`segments`). The hot path of a write is: check the
producer, stamp offset and epoch into the received bytes, one vectored write, note the batch in the indexes.
The hot path of a read is: remember where the asked offset lies, because the last read or append ended there,
and hand out file, position and length for `sendfile`.

    log = Log.open(Disk(), "/data/orders-0", LogConfig(), clean_shutdown=True)
    info = log.append_as_leader(batch, read_header(batch), leader_epoch=4, now_ms=...)
    records = log.read(info.first_offset, max_bytes=1 << 20, limit_offset=log.log_end_offset)

What may go wrong: a failed write is cut off again and raised, the log goes on (a full disk can be emptied); if
cutting fails too, or an fsync fails, the log is offline for good: KAFKA_STORAGE_ERROR until the broker restarts.

Layers: `log_state`, `log_read`, `log_append`, and here what shortens, flushes and closes.

Limits: not thread safe, all calls come from one thread; `preallocate` has no effect (files are sparse).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID, TopicPartition
from tidemill.ports.files import Files
from tidemill.ports.randomness import Randomness
from tidemill.storage.batch_scan import DamagedBatch
from tidemill.storage.config import UNLIMITED, LogConfig
from tidemill.storage.log_append import AppendableLog
from tidemill.storage.log_flush import FlushJob
from tidemill.storage.log_state import AppendInfo, LogSlice
from tidemill.storage.next_segment import NEXT_SEGMENT, NextSegment
from tidemill.storage.open_files import OpenFiles
from tidemill.storage.partition_metadata import FILE_NAME as PARTITION_METADATA
from tidemill.storage.partition_metadata import read_topic_id, write_topic_id
from tidemill.storage.producer_replay import load_producers
from tidemill.storage.producer_state import DEFAULT_EXPIRATION_MS, ProducerState
from tidemill.storage.recovery import TRUNCATION_MARK, LogOpener, OnDamage
from tidemill.storage.segment import SUFFIXES, Segment
from tidemill.storage.segment_swap import DELETED_SUFFIX, commit_swap, finish_swap, retire_segments
from tidemill.storage.sparse_index import CorruptIndex
from tidemill.wire.batch import Buffer, iterate_headers

__all__ = ["AppendInfo", "FlushJob", "Log", "LogSlice", "OnDamage"]


class Log(AppendableLog):
    """One partition's log."""

    __slots__ = ()

    @classmethod
    def open(
        cls, files: Files, directory: str, config: LogConfig, *, clean_shutdown: bool = False, recovery_point: int = 0,
        log_start_offset: int = 0, now_ms: int = 0, topic_partition: TopicPartition | None = None,
        topic_id: bytes | None = None, open_files: OpenFiles | None = None, randomness: Randomness | None = None,
        producer_expiration_ms: int = DEFAULT_EXPIRATION_MS, on_damage: OnDamage = OnDamage.QUARANTINE,
    ) -> Log:  # fmt: skip
        """Open the log in this directory, made if it is missing; raises CorruptLog (see `recovery`)."""
        open_files = open_files if open_files is not None else OpenFiles()
        files.make_directory(directory)
        stored_id = read_topic_id(files, directory)
        if stored_id is None and topic_id is not None:
            write_topic_id(files, directory, topic_id)
        opener = LogOpener(
            files, open_files, directory, config, recovery_point, log_start_offset, now_ms, on_damage
        )
        recovered = opener.open(clean_shutdown=clean_shutdown)
        recovered.producers.expire(now_ms, producer_expiration_ms)
        return cls(
            files, open_files, directory, topic_partition or partition_of(directory),
            stored_id or topic_id or ZERO_UUID, config, recovered, randomness,
        )  # fmt: skip

    # -- following ------------------------------------------------------------------------------------

    def append_as_follower(self, data: Buffer, now_ms: int = 0) -> AppendInfo | None:
        """As in `log_append`; besides, a log that is empty may take a batch that begins before its start.

        The leader's log may start in the middle of a batch (DeleteRecords), and batches are not split.
        """
        start = self.log_end_offset
        first = next(iterate_headers(data), None) if self.size == 0 else None
        if first is None or not first[1].base_offset < start <= first[1].last_offset:
            return super().append_as_follower(data, now_ms)
        self.truncate_fully_and_start_at(first[1].base_offset, now_ms)
        info = super().append_as_follower(data, now_ms)
        self.log_start_offset = start
        self.high_watermark = max(self.high_watermark, start)
        self._check()
        return info

    # -- cutting the end ------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Remove everything from this offset on; False if the log does not reach it."""
        self.require_online()
        if offset >= self.log_end_offset:
            return False
        end_offset = self._truncated_end(offset)
        if end_offset < self.log_start_offset:
            self.truncate_fully_and_start_at(min(offset, self.log_start_offset))
            return True
        self._mark_truncation(end_offset)
        for segment in reversed(self._segments.from_offset(end_offset)[1:]):
            self._segments.discard(segment)
            segment.remove()
        self._active = self._segments.active
        self._active.truncate_to(end_offset)
        self._after_truncation(self._active.next_offset)
        snapshots = self._snapshots
        snapshots.remove_above(self.log_end_offset)
        self._producers = load_producers(
            self._segments, snapshots, self.log_start_offset, self.log_end_offset
        )
        self._check()
        return True

    def _truncated_end(self, offset: int) -> int:
        """Where the log will end: a batch that reaches beyond the offset goes as a whole."""
        segment = self._segments.floor(offset)
        self._check_transactions(segment)
        try:
            found = segment.locate(offset)
        except DamagedBatch as error:
            raise self._damaged(error) from error
        return offset if found is None else min(offset, found[1].base_offset)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything; the next batch gets this offset."""
        self.require_online()
        self._mark_truncation(offset)
        for segment in reversed(self.segments):
            self._segments.discard(segment)
            segment.remove()
        self._active = Segment.create(
            self._files, self._open_files, self.directory, offset, self._config, now_ms
        )
        self._set_jitter(self._active)
        self._segments.add(self._active)
        self._snapshots.remove_all()
        self._producers = ProducerState()
        self.log_start_offset = self.high_watermark = offset
        self._after_truncation(offset)
        self._check()

    def _mark_truncation(self, offset: int) -> None:
        """Before synced data goes: note it durably, so that recovery does not take it for a loss."""
        if offset < self.recovery_point:
            self._files.write_atomic(f"{self.directory}/{TRUNCATION_MARK}", str(offset).encode())

    def _after_truncation(self, end_offset: int) -> None:
        """Make the cut durable before anything new is written behind it: old and new bytes must never mix."""
        try:
            self._active.handle().sync()
            self._files.sync_directory(self.directory)
        except OSError as error:
            self.fail(error)
            self.require_online()
        self._truncation_count += 1
        self._found_end = min(self._found_end, end_offset)
        self._walks.clear()
        self._unwritten_snapshot = None
        self._is_changed = True
        self._positions.clear()
        self._epochs.truncate_from_end(end_offset)
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self.size = self._segments.size

    # -- cutting the start ----------------------------------------------------------------------------

    def increase_log_start_offset(self, offset: int) -> bool:
        """DeleteRecords, or the leader's log start: what is below is not read any more."""
        self.require_online()
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} of {self.topic_partition} would pass the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._is_changed = True
        self._epochs.truncate_from_start(offset)
        self._producers.forget_completed_below(offset)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Retention: by log start, and where the policy says `delete` by time and size; whole segments only.

        They are renamed first and removed after `file.delete.delay.ms`. Returns how many were retired.
        """
        if self.is_offline:
            return 0
        self.remove_deleted_files(now_ms)
        doomed = self._doomed(now_ms)
        if len(doomed) == len(self._segments):
            self.roll(now_ms)
        for segment in doomed:
            self._retire(segment, now_ms)
        if doomed:
            self._positions.clear()
            self.log_start_offset = max(self.log_start_offset, self._segments.first.base_offset)
            self.high_watermark = max(self.high_watermark, self.log_start_offset)
            self._epochs.truncate_from_start(self.log_start_offset)
            self._producers.forget_completed_below(self.log_start_offset)
            self._check()
        return len(doomed)

    def _doomed(self, now_ms: int) -> list[Segment]:
        """The oldest segments, as many as one of the limits condemns; never what is above the watermark."""
        excess = self.size - self._config.retention_bytes
        by_size = self._config.is_deleted and self._config.retention_bytes != UNLIMITED
        by_time = self._config.is_deleted and self._config.retention_ms >= 0
        doomed = []
        for segment in self._segments:
            if segment.next_offset > self.high_watermark or not (segment.size or segment is not self._active):
                break
            is_below_start = segment.next_offset <= self.log_start_offset and segment is not self._active
            is_excess = by_size and excess >= segment.size
            if not (is_below_start or is_excess or (by_time and self._is_expired(segment, now_ms))):
                break
            excess -= segment.size
            doomed.append(segment)
        return doomed

    def _is_expired(self, segment: Segment, now_ms: int) -> bool:
        return now_ms - segment.largest_timestamp > self._config.retention_ms

    def _retire(self, segment: Segment, now_ms: int) -> None:
        self._segments.discard(segment)
        self.size -= segment.size
        segment.rename(self.directory, DELETED_SUFFIX)
        self._deleted.append(
            (now_ms + self._config.file_delete_delay_ms, [segment.path(kind) for kind in SUFFIXES])
        )
        self._is_changed = True

    def remove_deleted_files(self, now_ms: int) -> int:
        """Remove what was renamed to `.deleted` long enough ago; how many files."""
        due = [path for due_ms, paths in self._deleted if due_ms <= now_ms for path in paths]
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        existing = [path for path in due if self._files.exists(path)]
        for path in existing:
            self._files.remove(path)
        return len(existing)

    # -- compaction -----------------------------------------------------------------------------------

    def replace_segments(self, base_offset: int, replaced: Sequence[int], now_ms: int) -> Segment:
        """Swap the `.cleaned` segment of this base offset in for the old ones (see `segment_swap`)."""
        self.require_online()
        old = [segment for segment in self._segments if segment.base_offset in replaced]
        assert old and self._active not in old and old[0].base_offset == base_offset
        next_offset = old[-1].next_offset
        commit_swap(self._files, self.directory, base_offset)
        self._files.sync_directory(self.directory)
        for segment in old:
            self._segments.discard(segment)
            segment.close()
        paths = retire_segments(self._files, self.directory, [segment.base_offset for segment in old])
        finish_swap(self._files, self.directory, base_offset)
        segment = Segment.load(
            self._files, self._open_files, self.directory, base_offset, self._config, next_offset
        )
        segment.proof = None  # the cleaner has checked what it copied,
        segment.plain_bytes = segment.size  # and left no record of an aborted transaction
        self._segments.add(segment)
        try:
            segment.load_indexes()
        except CorruptIndex:
            segment.rebuild_indexes()
        self._deleted.append((now_ms + self._config.file_delete_delay_ms, paths))
        self._positions.clear()
        self.size = self._segments.size
        self._is_changed = True
        return segment

    # -- flushing and closing -------------------------------------------------------------------------

    def begin_flush(self) -> FlushJob | None:
        """What must be synced for everything written so far to survive a power loss; None if nothing."""
        self.require_online()
        if self.recovery_point >= self.log_end_offset and not self._epochs.is_unsynced:
            return None
        snapshot, self._unwritten_snapshot = self._unwritten_snapshot, None
        # With the segment of the last record that was synced: sealing it since has written to its indexes.
        grown = self._segments.from_offset(self.recovery_point - 1)
        paths = [self._epochs.path] if self._epochs.is_unsynced else []
        if self.recovery_point <= self._segments.first.base_offset:
            paths.append(f"{self.directory}/{PARTITION_METADATA}")
        for segment in grown[:-1]:
            paths += [segment.path(kind) for kind in SUFFIXES[1:]]
        paths.append(self._active.transaction_index.path)
        handles = [segment.handle() for segment in grown]
        self._epochs.is_unsynced = False
        return FlushJob(
            self._files, self.directory, self.log_end_offset, self._truncation_count, handles, paths, snapshot
        )

    def complete_flush(self, job: FlushJob) -> None:
        """The job ran: move the recovery point, or, if it failed, go offline and raise."""
        if job.error is not None:
            self.fail(job.error)
            self.require_online()
        if job.is_done and job.truncation_count == self._truncation_count:
            if job.snapshot is not None:
                self._snapshots.adopt(job.snapshot[0])
                self._snapshots.prune(self.recovery_point, self._segments.base_offsets)
            self.recovery_point = max(self.recovery_point, min(job.end_offset, self.log_end_offset))
            assert self.recovery_point <= self.log_end_offset

    def flush(self) -> None:
        """Sync here and now."""
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            except OSError:
                self.complete_flush(job)
            self.complete_flush(job)

    def close(self, *, sync: bool = True) -> None:
        """A clean end: everything on disk, indexes trimmed, producers in a snapshot.

        Without `sync` the caller syncs the whole file system afterwards and then calls `confirm_synced`.
        """
        try:
            is_unsynced = self._is_changed or self.recovery_point < self.log_end_offset
            if is_unsynced and not self.is_offline:
                if sync:
                    self.flush()
                self._active.seal()
                if sync:
                    self._active.sync_indexes()
                self._snapshots.write(self.log_end_offset, self._producers.producers.values(), sync=sync)
                self._snapshots.prune(self.recovery_point, self._segments.base_offsets)
                mark = f"{self.directory}/{TRUNCATION_MARK}"
                if self._files.exists(mark):
                    self._files.remove(mark)
                self._is_changed = False
            self._drop_next()
        finally:
            for segment in self._segments:
                segment.close()

    def begin_next_segment(self) -> NextSegment | None:
        """The file of the next segment, if the active one fills; to be made in a thread (`next_segment`)."""
        if self._has_next or self._active.size <= self._config.segment_bytes // 2 or self.is_offline:
            return None
        return NextSegment(self._files, self.directory)

    def complete_next_segment(self, job: NextSegment) -> None:
        self._has_next = job.error is None

    def _drop_next(self) -> None:
        if self._has_next:
            self._has_next = False
            self._files.remove(f"{self.directory}/{NEXT_SEGMENT}")

    def confirm_synced(self) -> None:
        """The file system was synced after `close(sync=False)`."""
        self.recovery_point = self.log_end_offset

    def move_directory(self, directory: str) -> None:
        """Rename the directory (to delete the log later, or to another name)."""
        for segment in self._segments:
            segment.close()
        self._files.rename(self.directory, directory)
        for segment in self._segments:
            segment.move(directory, segment.suffix)
        self._deleted = [
            (due_ms, [path.replace(self.directory, directory, 1) for path in paths])
            for due_ms, paths in self._deleted
        ]
        self._snapshots.move(directory)
        self._epochs.path = self._epochs.path.replace(self.directory, directory, 1)
        self.directory = directory
        self._positions.clear()

    def delete(self) -> None:
        """Remove the directory with all its files; readers under way keep theirs."""
        for segment in self._segments:
            segment.close()
        self._files.remove_tree(self.directory)
        self.fail(FileNotFoundError(2, "the log was deleted", self.directory))


def partition_of(directory: str) -> TopicPartition:
    """The partition that a directory's name stands for: `<topic>-<partition>`."""
    topic, _, partition = directory.rstrip("/").rpartition("/")[2].rpartition("-")
    if not topic or not partition.isdecimal():
        raise ValueError(f"{directory} is no partition's directory")
    return TopicPartition(topic, int(partition))
