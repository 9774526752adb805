"""A member of a share group at this broker: its session, and what it says about records it holds.

Both ShareFetch and ShareAcknowledge carry acknowledgements; this is the one place that checks and applies them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from tidemill.api.services import Services
from tidemill.api.share_partitions import Result, SharePartitions
from tidemill.api.share_sessions import SessionKey, SharedPartition, ShareSession, ShareSessions
from tidemill.coordination.group.share_heartbeat import LONGEST_MEMBER_ID
from tidemill.coordination.share.partition_contract import AcknowledgedRange, Acknowledgement
from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.model.errors import ApiError, ErrorCode

Results = dict[SharedPartition, Result]


class WireRange(Protocol):
    """A batch of acknowledgements as both requests carry it."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class ShareMembers:
    def __init__(self, services: Services, partitions: SharePartitions, sessions: ShareSessions) -> None:
        self._services = services
        self.partitions = partitions
        self.sessions = sessions
        self._leaving: set[asyncio.Task[None]] = set()

    # -- acknowledgements -----------------------------------------------------------------------------

    def acknowledge(
        self,
        session: SessionKey,
        asked: Iterable[tuple[SharedPartition, Sequence[WireRange]]],
        renews: bool,
    ) -> Results:
        """Begin all of them now; each result comes when it is durable."""
        together: dict[SharedPartition, list[WireRange]] = {}
        for where, batches in asked:
            together.setdefault(where, []).extend(batches)
        return {
            where: self._acknowledge_one(session, where, batches, renews)
            for where, batches in together.items()
        }

    def _acknowledge_one(
        self, session: SessionKey, where: SharedPartition, batches: Sequence[WireRange], renews: bool
    ) -> Result:
        topic = self._services.metadata.image.topics_by_id.get(where.topic_id)
        try:
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            ranges = checked_ranges(batches, renews)
            if renews and not self.partitions.settings(session.group_id).allows_renewal:
                _refuse_renewals(ranges)
            if where.partition not in topic.partitions:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except ApiError as error:
            failed: Result = asyncio.get_running_loop().create_future()
            failed.set_result(error)
            return failed
        key = SharePartitionKey(session.group_id, where.topic_id, where.partition)
        return self.partitions.acknowledge(key, session.member_id, ranges)

    # -- the end of a session -------------------------------------------------------------------------

    def leave(self, session: ShareSession) -> None:
        """Release what the member holds; the last one of a group takes its partitions along."""
        if self.sessions.get(session.key) is not session:
            return
        self.sessions.remove(session.key)
        group_id, member_id = session.key
        releases = [
            self.partitions.release(SharePartitionKey(group_id, *where), member_id)
            for where in session.partitions
        ]
        task = asyncio.get_running_loop().create_task(self._clean_up(group_id, releases))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _clean_up(self, group_id: str, releases: list[Result]) -> None:
        await asyncio.gather(*releases)
        if not self.sessions.has_members(group_id):
            self.partitions.group_is_empty(group_id)


def checked_session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    if group_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a share group has a name")
    if not member_id or len(member_id) > LONGEST_MEMBER_ID:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"a member id has between 1 and {LONGEST_MEMBER_ID} characters"
        )
    return SessionKey(group_id, member_id)


def _refuse_renewals(ranges: Iterable[AcknowledgedRange]) -> None:
    if any(Acknowledgement.RENEW in each.words for each in ranges):
        raise ApiError(ErrorCode.INVALID_RECORD_STATE, "the group does not renew locks")


def checked_ranges(batches: Sequence[WireRange], allows_renewal: bool) -> list[AcknowledgedRange]:
    """In order, each offset with its word, no word that does not exist."""
    most = Acknowledgement.RENEW if allows_renewal else Acknowledgement.REJECT
    ranges = []
    previous = -1
    for batch in batches:
        first, last, words = batch.first_offset, batch.last_offset, batch.acknowledge_types
        is_counted = len(words) == 1 or len(words) == last - first + 1
        if first > last or first < previous or not words or not is_counted:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"the acknowledgements of {first} to {last} are malformed"
            )
        if not all(Acknowledgement.GAP <= word <= most for word in words):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"one of {first} to {last} has an unknown acknowledgement"
            )
        ranges.append(AcknowledgedRange(first, last, tuple(map(Acknowledgement, words))))
        previous = last
    return ranges
