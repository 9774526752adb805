"""What all kinds of groups have in common: how a request is worked on, and what the shard asks of a group.

A shard (`shard.py`) holds groups of several kinds side by side: classic groups, and groups of newer protocols.
Offsets do not care which kind it is; what they, and the shard, need to know stands in `Group`.

Work on one event happens on a `Step`: an `Outcome` that grows while rules are applied, and the time. It offers the four
things a core may do besides reading its state:

    step = Step(now_ms)
    step.append(record)                                  # proposed; changes nothing until it is replayed
    step.reply(token, HeartbeatResponse())               # sent when the records above are committed
    step.set_timer(SessionTimer("g", "m"), delay_ms=45_000)
    step.cancel_timer(JoinTimer("g"))
    return step
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from tidemill.coordination.core import CancelTimer, CoordinatorRecord, Outcome, Reply, SetTimer, Token
from tidemill.wire.messages.list_groups import ListedGroup

NO_MEMBER_ID = ""
NO_GENERATION = -1
CONSUMER_PROTOCOL_TYPE = "consumer"

MINUTE_MS = 60_000


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`group.consumer.*`: what groups of the newer protocol obey."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 0x7FFF_FFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is for groups whose members have no wish."""
    allows_upgrade: bool = True
    """A classic group becomes a consumer group when the first such member joins it."""
    allows_downgrade: bool = True
    """A consumer group becomes classic when only members of the classic protocol are left."""

    def with_own(self, configs: Mapping[str, str]) -> ConsumerSettings:
        """What was set for one group stands above what the broker says."""
        session_ms = configs.get("consumer.session.timeout.ms", self.session_timeout_ms)
        heartbeat_ms = configs.get("consumer.heartbeat.interval.ms", self.heartbeat_interval_ms)
        return dataclasses.replace(
            self, session_timeout_ms=int(session_ms), heartbeat_interval_ms=int(heartbeat_ms)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ShareSettings:
    """`group.share.*`: what share groups obey."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200
    initialize_retry_interval_ms: int = 30_000

    def with_own(self, configs: Mapping[str, str]) -> ShareSettings:
        """With what was set for one group."""
        return dataclasses.replace(
            self,
            session_timeout_ms=int(configs.get("share.session.timeout.ms", self.session_timeout_ms)),
            heartbeat_interval_ms=int(configs.get("share.heartbeat.interval.ms", self.heartbeat_interval_ms)),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's properties that groups and offsets obey, by Kafka's names and with its defaults."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFF_FFFF
    new_member_join_timeout_ms: int = 300_000
    """How long a member nobody has heard of again may wait in its first join; Kafka has no key for it."""
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10_080 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 600_000
    consumer: ConsumerSettings = ConsumerSettings()
    share: ShareSettings = ShareSettings()


class RequestContext(NamedTuple):
    """What a request brings besides its message."""

    client_id: str = ""
    client_host: str = ""
    """As Kafka stores it: the address after a slash, `/127.0.0.1`."""
    api_version: int = 0


class Step(Outcome):
    """One event being worked on: its time, and what comes out of it."""

    __slots__ = ("now_ms",)

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records, self.replies, self.timers = [], [], []

    def append(self, record: CoordinatorRecord) -> None:
        self.records.append(record)

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append(Reply(token, response))

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel_timer(self, key: Hashable) -> None:
        self.timers.append(CancelTimer(key))


class Group(Protocol):
    """What the shard and the offsets ask of a group of any kind; refusals are `ApiError`s."""

    group_id: str

    @property
    def group_type(self) -> str:
        """As ListGroups names it: `classic`, `consumer`, `share`."""
        ...

    @property
    def is_empty(self) -> bool:
        """Without members, so that it may be deleted."""
        ...

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        api_version: int,
        partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Whether this member may commit offsets of these partitions now."""
        ...

    def keep_session(self, member_id: str, step: Step) -> None:
        """The member was heard of by a commit."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None:
        """Whether the group may be deleted now."""
        ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_retained_since_ms(self, commit_timestamp_ms: int) -> int | None:
        """From when the retention time of an offset counts; None while it cannot expire."""
        ...

    def listed(self) -> ListedGroup: ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group, without its offsets."""
        ...

    def restore_timers(self, step: Step) -> None:
        """The shard was loaded: members get fresh sessions."""
        ...

    def unload(self, step: Step) -> None:
        """The shard goes away: answer who waits."""
        ...
