"""Incremental fetch sessions (KIP-227): a reader of many partitions names only what changed.

    epoch in request   session id   meaning
    -1 (FINAL)         0            a full fetch outside any session
    -1 (FINAL)         n            close session n, answer as a full fetch
    0 (INITIAL)        0            a full fetch that asks for a session
    0 (INITIAL)        n            close session n, then as above
    e > 0              n            incremental: the request patches the session's partitions; e must be the next
                                    one, else INVALID_FETCH_SESSION_EPOCH; n unknown: FETCH_SESSION_ID_NOT_FOUND

An incremental answer carries only partitions that have records, an error, or a high watermark, last stable
offset or log start offset other than the reader was last told. Partitions that sent data move to the end of the
session's order, so that a small `max_bytes` does not starve the others.

When all slots are taken a new session replaces the least recently used one, but only if that one has rested
for `MINIMUM_REST_MS`; otherwise the fetch is answered without a session. All sessions together remember at most
`MAX_PARTITIONS` partitions (some 100 MB, estimated); a session that would go beyond is not made, or, if it has
grown, closed: its reader begins again with a full fetch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import ZERO_UUID
from tidemill.ports.randomness import Randomness
from tidemill.wire.fetch_codec import FetchPartition, FetchRequest, FetchResult

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_SESSION = 0
MAX_SESSION_ID = 0x7FFFFFFF
MINIMUM_REST_MS = 120_000
MAX_PARTITIONS = 250_000


class TopicKey(NamedTuple):
    """A topic as the request named it: by name before v13, by id from then on."""

    name: str
    topic_id: bytes


PartitionKey = tuple[TopicKey, int]


class Told(NamedTuple):
    """What the reader was last told about a partition."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


NOTHING_TOLD = Told(-1, -1, -1)


class FetchSession:
    __slots__ = ("epoch", "last_used_ms", "partitions", "session_id", "told", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        self.partitions: OrderedDict[PartitionKey, FetchPartition] = OrderedDict()
        self.told: dict[PartitionKey, Told] = {}

    def update(self, request: FetchRequest) -> None:
        for key, partition in requested_partitions(request):
            self.partitions[key] = partition
            self.told.setdefault(key, NOTHING_TOLD)
        for topic in request.forgotten:
            for index in topic.partitions:
                key = (TopicKey(topic.name, topic.topic_id), index)
                self.partitions.pop(key, None)
                self.told.pop(key, None)

    def tell(self, key: PartitionKey, result: FetchResult) -> bool:
        """Note what the answer says about a partition; whether it says anything new."""
        if key not in self.partitions:
            return False  # forgotten by a later request while this one waited
        now = Told(result.high_watermark, result.last_stable_offset, result.log_start_offset)
        is_news = result.records is not None or result.error != 0 or result.diverging_epoch is not None
        if result.error:
            self.told[key] = NOTHING_TOLD
            return True
        if self.told.get(key) != now:
            self.told[key] = now
            is_news = True
        if result.records is not None:
            self.partitions.move_to_end(key)
        return is_news


def requested_partitions(request: FetchRequest) -> list[tuple[PartitionKey, FetchPartition]]:
    return [
        ((key, partition.partition), partition)
        for key, partitions in [
            (TopicKey(each.name, each.topic_id), each.partitions) for each in request.topics
        ]
        for partition in partitions
    ]


class FetchSessionCache:
    def __init__(self, slots: int, randomness: Randomness) -> None:
        self.slots = slots
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partition_count = 0
        """Of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, now_ms: int) -> FetchSession | None:
        """The session that serves this request, or None for a plain full fetch."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._close(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if request.topics and session.uses_topic_ids != (request.topics[0].topic_id != ZERO_UUID):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = session.epoch + 1 if session.epoch < MAX_SESSION_ID else 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        before = len(session.partitions)
        session.update(request)
        self._partition_count += len(session.partitions) - before
        if self._partition_count > MAX_PARTITIONS:
            self._close(session.session_id)
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    def maybe_create(self, request: FetchRequest, now_ms: int) -> FetchSession | None:
        if request.session_epoch != INITIAL_EPOCH or not request.topics or not self._make_room(now_ms):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = 1 + self._randomness.below(MAX_SESSION_ID)
        session = FetchSession(session_id, request.topics[0].topic_id != ZERO_UUID, now_ms)
        session.update(request)
        if self._partition_count + len(session.partitions) > MAX_PARTITIONS:
            return None
        self._partition_count += len(session.partitions)
        self._sessions[session_id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self.slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms < MINIMUM_REST_MS:
            return False
        self._close(oldest.session_id)
        return True
