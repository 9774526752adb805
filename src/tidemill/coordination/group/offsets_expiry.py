"""When committed offsets are forgotten (KIP-211).

An offset is kept while its group could still need it, and `offsets.retention.minutes` longer. The group says from when
that counts (`Group.offset_retained_since_ms`):

    the group                                   | retention counts from
    --------------------------------------------+----------------------------------------------
    had members and is empty                    | the moment when the last one left
    is stable and knows what it subscribes to   | the commit, for topics that nobody subscribes to
    never had members (simple)                  | the commit
    anything else                               | nothing expires

An offset that carries its own time of expiry (OffsetCommit 2-4) expires then. What a transaction is about to commit
stays. A group that is empty and has no offsets left goes with them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.coordination.group.contract import Group
from tidemill.coordination.group.offsets import NO_TIMESTAMP, CommittedOffset, Offsets, PartitionKey


def expired_offsets(group: Group, offsets: Offsets, retention_ms: int, now_ms: int) -> Iterator[PartitionKey]:
    for key, committed in offsets.of_group(group.group_id).items():
        is_wanted = group.is_subscribed_to(key[0]) or offsets.is_pending(group.group_id, key)
        if not is_wanted and _is_expired(group, committed, retention_ms, now_ms):
            yield key


def _is_expired(group: Group, committed: CommittedOffset, retention_ms: int, now_ms: int) -> bool:
    since_ms = group.offset_retained_since_ms(committed.commit_timestamp_ms)
    if since_ms is None:
        return False
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= committed.expire_timestamp_ms
    return now_ms - since_ms >= retention_ms
