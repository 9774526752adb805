"""Share sessions (KIP-932): which partitions a member of a share group reads from this broker.

    epoch in request   meaning
    0 (INITIAL)        a new session; an old one of this member is forgotten. It carries no acknowledgements
    n > 0              the session must be there (SHARE_SESSION_NOT_FOUND) and expect n (INVALID_SHARE_SESSION_EPOCH);
                       the request adds and forgets partitions
    -1 (FINAL)         acknowledge what is acknowledged, read nothing, end the session

ShareAcknowledge uses the same session and the same count of epochs, but cannot open one. The key of a session is
(group, member); unlike a fetch session it has no number. A session ends with its connection, too: what its member
holds is released then, long before the locks time out.

When all slots are taken a new session is refused (SHARE_SESSION_LIMIT_REACHED): nobody's session is taken away, because
records are held under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidemill.model.errors import ApiError, ErrorCode

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
LAST_EPOCH = 0x7FFFFFFF
MOST_PARTITIONS = 1_000_000
"""Of all sessions together; one takes some 150 bytes."""


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    """A partition as requests of share groups name it."""

    topic_id: bytes
    partition: int


class ShareSession:
    __slots__ = ("epoch", "forget_connection", "key", "partitions")

    def __init__(self, key: SessionKey, partitions: Iterable[SharedPartition]) -> None:
        self.key = key
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[SharedPartition, None] = dict.fromkeys(partitions)
        """In the order in which they were added."""
        self.forget_connection: Callable[[], object] = lambda: None
        self.go_on()

    def go_on(self) -> None:
        """Expect the next epoch; the count begins again at 1."""
        self.epoch = self.epoch + 1 if self.epoch < LAST_EPOCH else 1

    def rotated(self) -> list[SharedPartition]:
        """Each request begins with another partition, so that a small fetch starves none."""
        partitions = list(self.partitions)
        start = self.epoch % len(partitions) if partitions else 0
        return partitions[start:] + partitions[:start]


class ShareSessions:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._members: Counter[str] = Counter()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def has_members(self, group_id: str) -> bool:
        return self._members[group_id] > 0

    def open(self, key: SessionKey, partitions: Iterable[SharedPartition]) -> ShareSession:
        self.remove(key)
        if len(self._sessions) >= self.slots:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(key, ())
        self.update(session, partitions, ())
        self._sessions[key] = session
        self._members[key.group_id] += 1
        return session

    def update(
        self,
        session: ShareSession,
        added: Iterable[SharedPartition],
        forgotten: Iterable[SharedPartition],
    ) -> None:
        """What a request adds and forgets; refused if all sessions together would have too many partitions.

        A partition that is both is forgotten: it was named for its acknowledgements.
        """
        before = len(session.partitions)
        gone = set(forgotten)
        for partition in gone:
            session.partitions.pop(partition, None)
        new = dict.fromkeys(
            partition for partition in added if partition not in session.partitions and partition not in gone
        )
        self._partition_count += len(session.partitions) - before
        if self._partition_count + len(new) > MOST_PARTITIONS:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"all sessions have at most {MOST_PARTITIONS} partitions",
            )
        session.partitions.update(new)
        self._partition_count += len(new)

    def proceed(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session that a later request belongs to; the last request of a session may have any epoch."""
        session = self._sessions.get(key)
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"epoch {epoch} where {session.epoch} is next"
            )
        session.go_on()
        return session

    def remove(self, key: SessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.forget_connection()
            self._partition_count -= len(session.partitions)
            self._members[key.group_id] -= 1
            if not self._members[key.group_id]:
                del self._members[key.group_id]
        return session
