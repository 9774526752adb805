"""Drives a share-state shard by hand: what the runtime does, without a loop, a log file or a clock.

    driver = ShareStateDriver()
    driver.call("initialize", KEY, 1, 0)                    # None, or the ErrorCode it was refused with
    driver.call("write", KEY, StateWrite(1, 0, 5))
    driver.restart()                                        # another shard loads the log, from where it was cut

Records go through their bytes, so that what is replayed is what Kafka would read.
"""

from __future__ import annotations

from typing import Any

from tidemill.coordination.core import Outcome, SetTimer
from tidemill.coordination.group.modern import FixedTopics, Topic
from tidemill.coordination.record_codec import decode_record, encode_key, encode_value
from tidemill.coordination.records.share_records import RECORD_TYPES
from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.coordination.share.shard import ShareStateSettings, ShareStateShard
from tidemill.coordination.share.state import ShareState
from tidemill.model.errors import ApiError

TOPIC_ID = bytes(range(16))
KEY = SharePartitionKey("workers", TOPIC_ID, 0)


class ShareStateDriver:
    def __init__(self, settings: ShareStateSettings | None = None) -> None:
        self.settings = settings or ShareStateSettings()
        self.topics = FixedTopics([Topic(TOPIC_ID, "jobs", 3)])
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.log_start = 0
        self.timers: dict[object, int] = {}
        self.restart()

    def restart(self) -> None:
        """The coordinator crashes; another one loads what is left of the log."""
        self.timers.clear()
        self.shard = ShareStateShard(self.settings, self.topics, self._cut)
        for offset in range(self.log_start, len(self.log)):
            self._replay(offset)
        self._carry_out(self.shard.on_loaded(self.now_ms))

    def call(self, method: str, *arguments: object) -> Any:
        try:
            outcome = getattr(self.shard, method)(*arguments, "token", self.now_ms)
        except ApiError as error:
            return error.code
        return self._carry_out(outcome)

    def pass_time(self, milliseconds: int) -> None:
        """Let what is due happen, in order."""
        until_ms = self.now_ms + milliseconds
        while self.timers and min(self.timers.values()) <= until_ms:
            key = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self._carry_out(self.shard.on_timer(key, self.now_ms))
        self.now_ms = until_ms

    def delete_topic(self) -> None:
        self.topics.remove("jobs")
        self._carry_out(self.shard.on_topics_deleted(self.now_ms))

    def states(self) -> dict[SharePartitionKey, ShareState | None]:
        return {key: self.shard.state_of(key) for key in self.shard.share_partitions()}

    def record_types(self) -> list[int]:
        return [int.from_bytes(key[:2], "big") for key, _ in self.log]

    def _cut(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)

    def _carry_out(self, outcome: Outcome) -> Any:
        for change in outcome.timers:
            assert isinstance(change, SetTimer)
            self.timers[change.key] = change.due_ms
        for record in outcome.records:
            self.log.append((encode_key(record), encode_value(record)))
            self._replay(len(self.log) - 1)
        return outcome.replies[0].response if outcome.replies else None

    def _replay(self, offset: int) -> None:
        record = decode_record(*self.log[offset], RECORD_TYPES)
        assert record is not None
        self.shard.replay(record, offset, -1)
