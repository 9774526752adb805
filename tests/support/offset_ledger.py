"""Committed offsets in simulation: what they must be, beside what the shard says that they are.

A ledger stands between the processes of a simulation and the shard. It remembers who read a partition last, and what
was committed for it and acknowledged:

    ledger = OffsetLedger(driver)
    ledger.fetch(reader, [("orders", 0)])         # this process begins to read; where it has to begin
    ledger.commit(reader, ("orders", 0), 7)       # the code of the answer
    ledger.check()                                # after each step

Every process commits higher offsets than it began with. So, at any time:

1. a commit is accepted only of the process that was the last to begin with the partition, and takes no offset back;
2. a member at its present epoch is not refused;
3. whoever the group does not know at this epoch gets neither a commit nor a fetch through;
4. the shard has the offsets that were acknowledged, all of them and no others;
5. an offset goes only with its topic, by a request that may delete it, or because nobody subscribes to the topic and
   the offset is as old as the retention time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from group_driver import GroupDriver, Marker, error_codes

from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.records.group_records import OffsetCommitKey
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

Key = tuple[str, int]
NOT_WRITTEN = ErrorCode.UNKNOWN_SERVER_ERROR


class Reader(Protocol):
    """A process that reads partitions as a member of the group, or believes so."""

    name: str
    member_id: str
    instance_id: str | None

    names_itself_in_fetches: bool
    """Members of the newer protocol are not told offsets when they are fenced; those of the older one do not say
    who they are."""

    @property
    def commit_epoch(self) -> int:
        """Its member epoch, or its generation."""
        ...


class Commit(NamedTuple):
    offset: int
    timestamp_ms: int


class OffsetLedger:
    def __init__(self, driver: GroupDriver) -> None:
        self._driver = driver
        self._readers: dict[Key, list[Reader]] = {}
        """The last member to begin with a partition, and who else did since: after a crash the group may take one for
        a member whom it had lost before, if nobody came in between."""
        self._committed: dict[Key, Commit] = {}
        self._removable: set[Key] = set()
        """What was asked to be deleted, and may be."""
        self._observed = 0
        """How much of the log has been looked at."""
        self._last_inhabited_ms = driver.now_ms
        """When the group was last seen with members in its records."""
        self._was_classic = False
        self.refused_commits = 0

    # -- members ------------------------------------------------------------------------------------------

    def fetch(self, reader: Reader, keys: Iterable[Key]) -> dict[Key, int] | None:
        """Where this process has to go on; None if it is not told."""
        response = self._fetch(reader, keys)
        if response.error_code:
            assert not self._is_current(reader), f"{reader.name} may fetch: {response.error_code}"
            return None
        assert self._may_fetch(reader), f"{reader.name} is fenced and was told offsets"
        found, is_current = {}, self._is_current(reader)
        for topic in response.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                known = self._committed.get(key)
                assert partition.committed_offset == (-1 if known is None else known.offset), key
                self._readers[key] = [*([] if is_current else self._readers.get(key, [])), reader]
                found[key] = max(partition.committed_offset, 0)
        return found

    def _fetch(self, reader: Reader, keys: Iterable[Key]) -> Any:
        request = OffsetFetchRequestGroup(
            group_id="g",
            member_id=reader.member_id if reader.names_itself_in_fetches else None,
            member_epoch=reader.commit_epoch if reader.names_itself_in_fetches else -1,
            topics=[OffsetFetchRequestTopics(name=name, partition_indexes=[index]) for name, index in keys],
        )
        token = self._driver.token()
        self._driver.run(self._driver.shard.fetch_offsets(request, True, token, self._driver.now_ms))
        return self._driver.replies[token]

    def commit(self, reader: Reader, key: Key, offset: int) -> int:
        was_current, known = self._is_current(reader), self._committed.get(key)
        (code,) = self._driver.commit(
            {key: offset}, reader.member_id, reader.commit_epoch, instance_id=reader.instance_id
        )
        if code == ErrorCode.NONE:
            assert reader in self._readers[key], (
                f"{reader.name} commits {key}, which another one reads by now"
            )
            assert known is None or offset > known.offset, f"{reader.name} takes {key} back from {known}"
            self._committed[key] = Commit(offset, self._driver.now_ms)
        else:
            self.refused_commits += 1
            assert not was_current or code in (NOT_WRITTEN, ErrorCode.REBALANCE_IN_PROGRESS), (
                f"{reader.name} is a member at this epoch, and its commit is refused: {code}"
            )
        return code

    def _is_current(self, reader: Reader) -> bool:
        """Whether the group takes it for a member at the epoch that it says."""
        group = self._driver.shard.group("g")
        if isinstance(group, ConsumerGroup):
            member = group.members.get(reader.member_id)
            return member is not None and member.member_epoch == reader.commit_epoch
        if isinstance(group, ClassicGroup):
            return reader.member_id in group.members and group.generation == reader.commit_epoch
        return False

    def _may_fetch(self, reader: Reader) -> bool:
        """Classic groups, and such that are not there, tell everybody."""
        is_consumer = isinstance(self._driver.shard.group("g"), ConsumerGroup)
        return self._is_current(reader) or not (is_consumer and reader.names_itself_in_fetches)

    # -- administrators -----------------------------------------------------------------------------------

    def reset(self, key: Key, offset: int) -> int:
        """Of a group without members anybody may set the offsets, of another one nobody."""
        is_empty = self._has_no_members()
        (code,) = self._driver.commit({key: offset})
        if code == ErrorCode.NONE:
            assert is_empty, "the offsets of a group with members were set from outside"
            self._committed[key] = Commit(offset, self._driver.now_ms)
        else:
            assert not is_empty or code == NOT_WRITTEN, code
        return code

    def delete(self, topic: str, indexes: Iterable[int]) -> int:
        """OffsetDelete: refused for a topic that somebody reads."""
        keys = [(topic, index) for index in indexes]
        is_read = self._is_subscribed(topic)
        if not is_read:
            self._removable.update(keys)
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for _, index in keys]
        request = OffsetDeleteRequest(
            group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )
        token = self._driver.token()
        self._driver.run(self._driver.shard.delete_offsets(request, token, self._driver.now_ms))
        response = self._driver.replies[token]
        codes = error_codes(response.topics)
        if is_read:
            assert all(code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for code in codes), codes
        self.check()
        assert is_read or not self._committed.keys() & set(keys), "what was deleted is still there"
        return int(response.error_code) or max(codes, default=0)

    def delete_group(self) -> int:
        is_empty = self._has_no_members()
        if is_empty:
            self._removable.update(self._committed)
        token = self._driver.token()
        self._driver.run(self._driver.shard.delete_groups(["g"], token, self._driver.now_ms))
        code = int(self._driver.replies[token][0].error_code)
        assert code != ErrorCode.NONE or is_empty, "a group with members was deleted"
        self.check()
        assert not (is_empty and self._committed), "the group is deleted, its offsets are not"
        return code

    def topic_is_deleted(self, topic: str) -> None:
        """Its offsets have gone with it."""
        self._removable.update(key for key in self._committed if key[0] == topic)
        self.check()
        assert not any(key[0] == topic for key in self._committed), "offsets outlive their topic"

    # -- what must hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        self._observe_removals()
        expected = {key: commit.offset for key, commit in self._committed.items()}
        assert self._driver.committed() == expected, "other offsets than were acknowledged"
        self._removable.clear()
        self._look_for_members()

    def _look_for_members(self) -> None:
        """As stored: whoever waits for a first generation has not been there, if the shard crashes."""
        group = self._driver.shard.group("g")
        if isinstance(group, ConsumerGroup) and group.members:
            self._last_inhabited_ms, self._was_classic = self._driver.now_ms, False
        elif isinstance(group, ClassicGroup) and group.stored is not None and group.stored.members:
            self._last_inhabited_ms, self._was_classic = self._driver.now_ms, True

    def check_all_expired(self) -> None:
        """Everybody is gone for longer than offsets are kept, and the group with them."""
        self.check()
        assert not self._committed and self._driver.shard.group("g") is None, "something is left of the group"

    def _observe_removals(self) -> None:
        for entry in self._driver.log[self._observed :]:
            if not isinstance(entry, Marker) and isinstance(entry[0].key, OffsetCommitKey):
                key = (entry[0].key.topic, entry[0].key.partition)
                if entry[0].value is None and key in self._committed:
                    assert key in self._removable or self._is_expired(key), f"{key} went too early"
                    del self._committed[key]
        self._observed = len(self._driver.log)

    def _is_expired(self, key: Key) -> bool:
        """Who subscribes now did so when the offset was found to be expired: time lets nobody join."""
        since_ms = self._committed[key].timestamp_ms
        if (
            self._was_classic
        ):  # then it counts from when the last member went, also for what was set afterwards
            since_ms = min(since_ms, self._last_inhabited_ms)
        age_ms = self._driver.now_ms - since_ms
        return age_ms >= self._driver.settings.offsets_retention_ms and not self._is_subscribed(key[0])

    def _has_no_members(self) -> bool:
        group = self._driver.shard.group("g")
        return not isinstance(group, ConsumerGroup | ClassicGroup) or group.is_empty

    def _is_subscribed(self, topic: str) -> bool:
        group = self._driver.shard.group("g")
        if isinstance(group, ConsumerGroup):
            return any(topic in group.subscription_of(member) for member in group.members.values())
        return isinstance(group, ClassicGroup) and not group.is_empty and group.is_subscribed_to(topic)
