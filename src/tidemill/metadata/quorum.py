"""The quorum that decides what is metadata: for now, of one node.

The node leads the log from its start to its end, under an epoch one higher than the last, which it writes to
`quorum-state` before anything else and announces in the log with a LeaderChange record. Then it goes:

    offset = quorum.propose(decision.records)     # on the loop: in the log, visible in `latest_image`
    job = quorum.begin_sync()                     # on the loop: everything proposed so far
    job.run()                                     # in a thread: one fsync for all of it
    commit = quorum.complete_sync(job)            # on the loop: committed; `commit.changes` to act upon

Proposals that arrive while a sync is under way share the next one (group commit). Three rules make an answer
safe: decisions stand on `latest_image`, which contains what is proposed but not yet committed, so no two of
them contradict each other; a client is answered when `committed_offset` has reached its proposal; brokers see
only `image`, the committed one.

    latest_image.offset >= image.offset == committed_offset

A failed write leaves nothing behind and the next proposal may succeed. A failed fsync leaves unknown what is
on the disk: the log is offline for good, every further proposal raises, and the node must stop.

A proposal of more records than fit a batch becomes a transaction of the log (KIP-868). If it is not ended,
because of a crash or a full disk, the next proposal begins with its abort.

For several nodes, an implementation of raft takes the place of this class with the same interface: it will
call a record committed when a majority has it, and use `store.MetadataStore` as its log as it is.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.metadata import records as r
from tidemill.metadata.control_records import LeaderChangeMessage, Voter
from tidemill.metadata.delta import Changes, Delta
from tidemill.metadata.features import bootstrap_records, check_metadata_version
from tidemill.metadata.image import METADATA_VERSION_FEATURE, MetadataImage
from tidemill.metadata.quorum_state import QuorumState
from tidemill.metadata.snapshot import SnapshotId, VoterSet
from tidemill.metadata.store import MetadataStore, SnapshotJob, StoreSettings
from tidemill.model.errors import ApiError, CorruptLog, ErrorCode, TidemillError
from tidemill.ports.clock import Clock
from tidemill.ports.files import Files
from tidemill.storage.log import FlushJob
from tidemill.wire.schema import Message

MAX_RECORDS_PER_BATCH = 10_000


class ForeignQuorum(TidemillError):
    """The directory belongs to a quorum of other or of more nodes."""


class Commit(NamedTuple):
    """What became true with one sync."""

    image: MetadataImage
    changes: Changes


class SyncJob:
    """Brings everything proposed so far to disk; `run` may be called in any thread."""

    def __init__(self, end_offset: int, flush: FlushJob | None) -> None:
        self.end_offset = end_offset
        self.flush = flush

    def run(self) -> None:
        """Raises OSError; hand the job to `complete_sync` all the same."""
        if self.flush is not None:
            self.flush.run()


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    image: MetadataImage
    voters: VoterSet
    snapshot: SnapshotId | None
    bytes_since_snapshot: int


class QuorumOfOne:
    def __init__(
        self, store: MetadataStore, settings: StoreSettings, node_id: int, clock: Clock, loaded: _Loaded
    ) -> None:
        self.image = loaded.image
        """Committed: what brokers act upon."""
        self.latest_image = loaded.image
        """With everything proposed: what decisions stand on."""
        self.node_id = node_id
        self.leader_epoch = 0
        self._store = store
        self._settings = settings
        self._clock = clock
        self._voters = loaded.voters
        self._proposed: deque[Commit] = deque()
        self._sync: SyncJob | None = None
        self._snapshot_job: SnapshotJob | None = None
        self._last_snapshot = loaded.snapshot
        self._last_snapshot_ms = clock.wall_ms()
        self._bytes_since_snapshot = loaded.bytes_since_snapshot

    @classmethod
    def open(
        cls,
        files: Files,
        data_directory: str,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        settings: StoreSettings | None = None,
        clean_shutdown: bool = False,
    ) -> QuorumOfOne:
        """Read what is there and become leader; nothing is committed before the first sync.

        Raises CorruptLog, UnsupportedMetadataVersion or ForeignQuorum, each with a sentence for people.
        """
        settings = settings or StoreSettings()
        store = MetadataStore.open(
            files, data_directory, settings, clean_shutdown=clean_shutdown, now_ms=clock.wall_ms()
        )
        try:
            loaded = _load(store, cluster_id)
            check_metadata_version(loaded.image)
            quorum = cls(store, settings, node_id, clock, loaded)
            quorum._become_leader()
        except BaseException:
            store.close()
            raise
        return quorum

    # -- leading ------------------------------------------------------------------------------------------

    def _become_leader(self) -> None:
        state = self._known_state()
        _check_voters(self.node_id, state, self._voters, self._store.directory)
        self.leader_epoch = 1 + max(state.leader_epoch, self._store.latest_epoch, self.image.epoch)
        data_version = 0 if self._voters.kraft_version == 0 else 1
        self._store.write_quorum_state(
            QuorumState(self.node_id, self.leader_epoch, (self.node_id,), data_version)
        )
        self._announce()
        if METADATA_VERSION_FEATURE not in self.latest_image.features:
            prepared = self._store.bootstrap_snapshot()
            self.propose(list(bootstrap_records()) if prepared is None else prepared.records)
            check_metadata_version(self.latest_image)

    def _known_state(self) -> QuorumState:
        """A damaged file is no reason not to start: with one voter, the log knows all that it said."""
        try:
            return self._store.read_quorum_state()
        except CorruptLog:
            return QuorumState()

    def _announce(self) -> None:
        now_ms = self._clock.wall_ms()
        voters = [Voter(voter_id=self.node_id)]
        message = LeaderChangeMessage(leader_id=self.node_id, voters=voters, granting_voters=voters)
        delta = Delta(self.latest_image)
        self._bytes_since_snapshot += self._store.append_control(message, self.leader_epoch, now_ms)
        self._adopt(delta, now_ms)

    # -- proposing ----------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        return self._store.end_offset

    @property
    def committed_offset(self) -> int:
        """The last record that is committed."""
        return self.image.offset

    def propose(self, records: Sequence[Message]) -> int:
        """Append; the offset that must be committed before anybody may rely on it.

        Raises OSError if the disk refuses, ApiError once the log is offline.
        """
        for batch in _batches(records, self.latest_image.open_transaction is not None):
            self._propose_batch(batch)
        return self.latest_image.offset

    def _propose_batch(self, records: list[Message]) -> None:
        """Replay first: what cannot be replayed must never reach the disk."""
        now_ms = self._clock.wall_ms()
        delta = Delta(self.latest_image)
        for record in records:
            delta.replay(record)
        version = self.latest_image.metadata_version
        self._bytes_since_snapshot += self._store.append(records, self.leader_epoch, version, now_ms)
        self._adopt(delta, now_ms)

    def _adopt(self, delta: Delta, now_ms: int) -> None:
        self.latest_image = delta.apply(self._store.end_offset - 1, self.leader_epoch, now_ms)
        self._proposed.append(Commit(self.latest_image, delta.changes))

    # -- committing ---------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """A job for all that is proposed; None if there is nothing, or if one is still under way."""
        if self._sync is not None or not self._proposed:
            return None
        self._sync = SyncJob(self._store.end_offset, self._store.begin_flush())
        return self._sync

    def complete_sync(self, job: SyncJob) -> Commit:
        """What the job committed. Raises ApiError if the disk failed: the node must stop."""
        assert job is self._sync
        self._sync = None
        if job.flush is not None:
            self._store.complete_flush(job.flush)
            if not job.flush.is_done:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log was not synced")
        changes = Changes()
        while self._proposed and self._proposed[0].image.offset < job.end_offset:
            committed = self._proposed.popleft()
            changes.merge(committed.changes)
            self.image = committed.image
        self._store.update_high_watermark(job.end_offset)
        assert self.committed_offset == job.end_offset - 1 <= self.latest_image.offset
        return Commit(self.image, changes)

    def commit(self) -> Commit | None:
        """Sync here and now (at the start, and in tests)."""
        job = self.begin_sync()
        if job is None:
            return None
        job.run()
        return self.complete_sync(job)

    # -- snapshots ----------------------------------------------------------------------------------------

    def begin_snapshot(self, *, now: bool = False) -> SnapshotJob | None:
        """A job if enough was committed since the last snapshot (or anything, if `now`)."""
        has_changed = self._last_snapshot is None or self.image.offset >= self._last_snapshot.end_offset
        if self._snapshot_job is not None or not has_changed or self.image.open_transaction is not None:
            return None
        if self.image.offset < 0 or not (now or self._is_snapshot_due()):
            return None
        self._bytes_since_snapshot = 0
        self._snapshot_job = self._store.begin_snapshot(self.image, self._voters, self._clock.wall_ms())
        return self._snapshot_job

    def _is_snapshot_due(self) -> bool:
        if self._bytes_since_snapshot >= self._settings.snapshot_after_bytes:
            return True
        waited_ms = self._clock.wall_ms() - self._last_snapshot_ms
        return 0 < self._settings.snapshot_after_ms <= waited_ms

    def complete_snapshot(self, job: SnapshotJob) -> bool:
        """Older log segments and snapshots go. False if the job failed; then everything stays as it was."""
        assert job is self._snapshot_job
        self._snapshot_job = None
        self._last_snapshot_ms = self._clock.wall_ms()
        if not job.is_done:
            return False
        self._last_snapshot = job.id
        self._store.complete_snapshot(self._clock.wall_ms())
        return True

    def close(self) -> None:
        """After this nothing may be proposed; what was, and is not committed, is synced without being answered."""
        self._store.close()


def _batches(records: Sequence[Message], must_abort: bool) -> Iterator[list[Message]]:
    """One batch if possible, else a transaction over several."""
    if not records:
        return
    if must_abort:
        yield [r.AbortTransactionRecord(reason="it was never ended")]
    if len(records) <= MAX_RECORDS_PER_BATCH:
        yield list(records)
        return
    whole = [r.BeginTransactionRecord(name=f"{len(records)} records"), *records, r.EndTransactionRecord()]
    for start in range(0, len(whole), MAX_RECORDS_PER_BATCH):
        yield whole[start : start + MAX_RECORDS_PER_BATCH]


# -- starting -------------------------------------------------------------------------------------------


def _load(store: MetadataStore, cluster_id: str) -> _Loaded:
    """The newest snapshot and the log after it."""
    image = MetadataImage(cluster_id=cluster_id)
    voters = VoterSet()
    found = store.take_newest_snapshot()
    if found is not None:
        voters = found.content.voters
        delta = Delta(image)
        for record in found.content.records:
            delta.replay(record)
        image = delta.apply(found.id.end_offset - 1, found.id.epoch, found.content.timestamp_ms)
        if found.id.end_offset > store.end_offset:
            store.start_at_snapshot(found.id)
    if image.offset + 1 < store.start_offset:
        raise CorruptLog(
            f"the metadata log in {store.directory} begins at offset {store.start_offset}, and no whole "
            "snapshot says what was before"
        )
    loaded = _Loaded(image, voters, found.id if found else None, 0)
    return _replay(store, loaded)


def _replay(store: MetadataStore, loaded: _Loaded) -> _Loaded:
    delta = Delta(loaded.image)
    voters = loaded.voters
    offset, epoch, timestamp_ms = loaded.image.offset, loaded.image.epoch, loaded.image.timestamp_ms
    size = 0
    for batch in store.batches_from(offset + 1):
        for message in batch.messages:
            if batch.is_control:
                voters = voters.after(message)
            else:
                delta.replay(message)
        offset, epoch, timestamp_ms = batch.last_offset, batch.epoch, batch.timestamp_ms
        size += batch.size
    return _Loaded(delta.apply(offset, epoch, timestamp_ms), voters, loaded.snapshot, size)


def _check_voters(node_id: int, state: QuorumState, voters: VoterSet, directory: str) -> None:
    known = set(voters.ids or state.voters)
    if not known - {node_id}:
        return
    if len(known) == 1:
        raise ForeignQuorum(
            f"the metadata log in {directory} belongs to node {min(known)}, this is node {node_id}; "
            f"start it with --set node.id={min(known)}, or with another data directory"
        )
    names = ", ".join(str(voter) for voter in sorted(known))
    raise ForeignQuorum(
        f"the metadata log in {directory} belongs to a quorum of the nodes {names}, and node {node_id} "
        "alone cannot continue it; choose another data directory"
    )
