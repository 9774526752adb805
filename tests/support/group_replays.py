"""Whether the records of a group shard alone give the same groups and offsets as the shard has.

follower = Follower(driver)
follower.check()                  # after each step: a shard that only ever saw the records knows the same
follower.check_compacted()        # now and then: so does one that is loaded from what compaction leaves of them
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from group_driver import GroupDriver, Marker, replay_into

from tidemill.coordination.core import CoordinatorRecord
from tidemill.coordination.group.classic import ClassicGroup
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.shard import GroupShard
from tidemill.coordination.record_codec import encode_key
from tidemill.ports.randomness import SeededRandomness


class Follower:
    def __init__(self, driver: GroupDriver) -> None:
        self._driver = driver
        self._shard = self._new_shard()
        self._followed = 0

    def _new_shard(self) -> GroupShard:
        return GroupShard(self._driver.settings, SeededRandomness(0), self._driver.topics)

    def check(self) -> None:
        log = self._driver.log
        replay_into(self._shard, log[self._followed :], self._followed)
        self._followed = len(log)
        _check_equal(self._shard, self._driver.shard)

    def check_compacted(self) -> None:
        shard = self._new_shard()
        for offset, record in self._compacted():
            shard.replay(record, offset, -1)
        _check_equal(shard, self._driver.shard)

    def _compacted(self) -> Iterator[tuple[int, CoordinatorRecord]]:
        """The last record of every key, without those that delete; for logs without transactions."""
        last: dict[bytes, tuple[int, CoordinatorRecord]] = {}
        for offset, entry in enumerate(self._driver.log):
            assert not isinstance(entry, Marker)
            key = encode_key(entry[0])
            last.pop(key, None)
            last[key] = (offset, entry[0])
        return ((offset, record) for offset, record in last.values() if record.value is not None)


def _check_equal(replayed: GroupShard, live: GroupShard) -> None:
    assert durable_groups(replayed) == durable_groups(live), "the records give other groups"
    assert replayed.offsets.durable_state() == live.offsets.durable_state(), "the records give other offsets"


def durable_groups(shard: GroupShard) -> dict[str, Any]:
    """What the log knows of groups: those that never had a record of their own are not in it."""
    found = {group.group_id: _durable(group) for group in shard.groups()}
    return {group_id: state for group_id, state in found.items() if state is not None}


def _durable(group: Any) -> Any:
    if isinstance(group, ConsumerGroup):
        return (
            group.epoch,
            group.metadata_hash,
            group.target_epoch,
            group.target,
            group.members,
            group.owners,
            group.regexes,
            group.instances,
        )
    assert isinstance(group, ClassicGroup)
    return group.stored
