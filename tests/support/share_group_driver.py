"""Drives the share groups of a group shard by hand, with a persister that is a share-state shard.

    driver = ShareGroupDriver()
    driver.join("a", "jobs")                       # HeartbeatResponse; state of new partitions is initialised
    driver.beat("a")                               # with the epoch that the member knows
    driver.restart()                               # the group coordinator loads its log

Records go through their bytes, so that what is replayed is what Kafka would read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from share_state_driver import ShareStateDriver

from tidemill.coordination.core import CancelTimer, Outcome
from tidemill.coordination.group.assignor import Assignment
from tidemill.coordination.group.contract import GroupSettings, RequestContext, ShareSettings, Step
from tidemill.coordination.group.modern import FixedTopics, Topic
from tidemill.coordination.group.shard import GroupShard
from tidemill.coordination.group.share_group import ShareGroup
from tidemill.coordination.group.share_heartbeat import HeartbeatAnswer, Initialization
from tidemill.coordination.group.share_shard import ShareGroups
from tidemill.coordination.record_codec import decode_record, encode_key, encode_value
from tidemill.coordination.records.group_records import RECORD_TYPES
from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.model.errors import ApiError
from tidemill.ports.randomness import SystemRandomness
from tidemill.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

GROUP = "workers"
CONTEXT = RequestContext("client", "/127.0.0.1", 1)
SESSION_MS = 45_000


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class ShareGroupDriver:
    def __init__(self, share: ShareSettings | None = None, configs: dict[str, str] | None = None) -> None:
        self.settings = GroupSettings(share=share or ShareSettings())
        self.configs = configs or {}
        self.topics = FixedTopics()
        self.states = ShareStateDriver()
        self.states.topics = self.states.shard._topics = self.topics
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[object, int] = {}
        self.epochs: dict[str, int] = {}
        """What each member believes its epoch to be."""
        self.is_persister_down = False
        self.restart()

    # -- what the runtime does ------------------------------------------------------------------------

    def restart(self) -> None:
        self.timers.clear()
        self.shard = GroupShard(self.settings, SystemRandomness(), self.topics, lambda group_id: self.configs)
        for offset in range(len(self.log)):
            self._replay(offset)
        self._carry_out(self.shard.on_loaded(self.now_ms))

    def act(self, act: Callable[[ShareGroups, Step], None]) -> Any:
        try:
            return self._carry_out(self.shard.with_share_groups(act, self.now_ms))
        except ApiError as error:
            return error.code

    def _carry_out(self, outcome: Outcome) -> Any:
        for change in outcome.timers:
            if isinstance(change, CancelTimer):
                self.timers.pop(change.key, None)
            else:
                self.timers[change.key] = change.due_ms
        for record in outcome.records:
            self.log.append((encode_key(record), encode_value(record)))
            self._replay(len(self.log) - 1)
        return outcome.replies[0].response if outcome.replies else None

    def _replay(self, offset: int) -> None:
        record = decode_record(*self.log[offset], RECORD_TYPES)
        assert record is not None
        self.shard.replay(record, offset, -1)

    def pass_time(self, milliseconds: int) -> None:
        until_ms = self.now_ms + milliseconds
        while self.timers and min(self.timers.values()) <= until_ms:
            key = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self._carry_out(self.shard.on_timer(key, self.now_ms))
        self.now_ms = until_ms

    # -- topics ---------------------------------------------------------------------------------------

    def put_topic(self, name: str, partitions: int) -> None:
        self.topics.put(Topic(topic_id(name), name, partitions))
        self._carry_out(self.shard.on_topics_changed({name}, self.now_ms))

    def delete_topic(self, name: str) -> None:
        self.topics.remove(name)
        self._carry_out(self.shard.on_topics_changed({name}, self.now_ms))
        self.states._carry_out(self.states.shard.on_topics_deleted(self.now_ms))

    # -- members --------------------------------------------------------------------------------------

    def join(self, member_id: str, *topics: str) -> ShareGroupHeartbeatResponse:
        return self.send(member_id, 0, topics)

    def beat(self, member_id: str, *topics: str) -> ShareGroupHeartbeatResponse:
        return self.send(member_id, self.epochs[member_id], topics or None)

    def leave(self, member_id: str) -> ShareGroupHeartbeatResponse:
        response = self.send(member_id, -1, None)
        self.epochs.pop(member_id, None)
        return response

    def send(self, member_id: str, epoch: int, topics: tuple[str, ...] | None) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        answer: HeartbeatAnswer = self.act(
            lambda share, step: share.heartbeat(request, CONTEXT, "token", step)
        )
        if answer.response.error_code == 0 and epoch >= 0:
            self.epochs[member_id] = answer.response.member_epoch
        if answer.initialization is not None and not self.is_persister_down:
            self.initialize(answer.initialization)
        return answer.response

    def initialize(self, initialization: Initialization) -> None:
        for topic, indexes in initialization.partitions.items():
            for index in indexes:
                key = SharePartitionKey(GROUP, topic, index)
                self.states.call("initialize", key, initialization.state_epoch, -1)
        partitions = initialization.partitions
        self.act(lambda share, step: share.state_initialized(GROUP, partitions, "token", step))

    # -- looking --------------------------------------------------------------------------------------

    @property
    def group(self) -> ShareGroup:
        group = self.shard.group(GROUP)
        assert isinstance(group, ShareGroup)
        return group

    def assigned(self) -> dict[str, Assignment]:
        return {member_id: member.assigned for member_id, member in self.group.members.items()}

    def durable(self) -> Any:
        """Everything that a restart must not change."""
        group = self.shard.group(GROUP)
        if not isinstance(group, ShareGroup):
            return None
        facts = (group.epoch, group.metadata_hash, group.target_epoch)
        return facts, dict(group.target), dict(group.members), group.state_partitions
