"""A cluster as Spark's driver and tasks need it: which partitions, which leaders, which offsets.

    with Cluster(settings) as cluster:
        cluster.partitions(["orders"])                                     # {"orders": [0, 1, 2]}
        cluster.list_offsets({TopicPartition("orders", 0): LATEST}, committed=False)

Requests go to whoever must answer them: any broker for metadata, the leader for offsets, the coordinator
for groups and transactions. What may pass by itself (a leader that moves, a coordinator that loads, a
connection that broke) is tried again until `request.timeout.ms` is over; everything else raises at once.

Connections may outlive the work they were made for: a Python worker of Spark serves one task after the other, and a
stream would otherwise connect anew in every batch.

    with kept_cluster(settings) as cluster: ...

Limits: blocking, for one thread. Metadata and coordinators are asked for when they are needed and forgotten on the
first sign that they are old.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.spark.client.connection import Connection
from tidemill.spark.client.settings import ClientSettings
from tidemill.spark.errors import BrokerUnavailable
from tidemill.wire.messages.fetch import FetchResponse, PartitionData
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.schema import Message

LATEST, EARLIEST = -1, -2
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
_PAUSE_SECONDS = 0.1

PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR,
    }
)  # fmt: skip
"""Errors that pass by themselves."""

T = TypeVar("T")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BrokerError(TidemillError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str) -> None:
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"
        super().__init__(f"{what}: {name}")
        self.code, self.what = code, what

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str]]:
        return type(self), (self.code, self.what)


def check(code: int, what: str) -> None:
    """Raise BrokerError unless the code means success."""
    if code:
        raise BrokerError(code, what)


def only_partition(answer: FetchResponse, what: str, sleep: Callable[[float], object]) -> PartitionData:
    """What a fetch of one partition brought; raises BrokerError.

    A broker that throttles answers without partitions and says how long to stay away.
    """
    check(answer.error_code, what)
    found = [partition for topic in answer.responses for partition in topic.partitions]
    if not found:
        sleep(answer.throttle_time_ms / 1000)
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"{what}, which is throttled")
    check(found[0].error_code, what)
    return found[0]


class Cluster:
    """Connections to the brokers of one cluster, by address."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._connections: dict[str, Connection] = {}
        self._leaders: dict[TopicPartition, str] = {}
        self._coordinators: dict[tuple[int, str], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- connections --------------------------------------------------------------------------------------

    def connection(self, address: str) -> Connection:
        """The open connection to this broker, made when there is none."""
        found = self._connections.get(address)
        if found is None or found.is_closed:
            found = self._connections[address] = Connection(address, self.settings)
        return found

    def call_any(self, request: Message) -> Any:
        """The answer of any broker: one that is connected, else the first of the bootstrap servers that answers."""
        failures = []
        for address in dict.fromkeys([*self._connections, *self.settings.bootstrap]):
            try:
                return self.connection(address).call(request)
            except BrokerUnavailable as error:
                self._connections.pop(address, None)
                failures.append(str(error))
        raise BrokerUnavailable("; ".join(failures))

    def retrying(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, tried again while it fails with what passes by itself."""
        deadline = time.monotonic() + self.settings.request_timeout_ms / 1000
        while True:
            try:
                return attempt()
            except (BrokerUnavailable, BrokerError) as error:
                is_passing = isinstance(error, BrokerUnavailable) or error.code in PASSING
                if not is_passing or time.monotonic() > deadline:
                    raise
            self.forget_leaders()
            time.sleep(_PAUSE_SECONDS)

    # -- topics and leaders -------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None) -> MetadataResponse:
        """Metadata of these topics (None: of all), which also renews what is known of leaders."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = self.call_any(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        )
        addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name or "", partition.partition_index)
                self._leaders[where] = addresses.get(partition.leader_id, "")
        return answer

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """The partitions of each of these topics that exists; None asks for all topics but the internal ones."""
        answer = self.retrying(lambda: self.metadata(topics))
        return {
            topic.name: sorted(partition.partition_index for partition in topic.partitions)
            for topic in answer.topics
            if topic.name and topic.error_code == 0 and (topics is not None or not topic.is_internal)
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        return {
            topic.name or "": topic.topic_id for topic in self.metadata(topics).topics if not topic.error_code
        }

    def leader(self, where: TopicPartition) -> str:
        """The address of the broker that leads this partition."""
        if not self._leaders.get(where):
            answer = self.metadata([where.topic])
            for topic in answer.topics:
                check(topic.error_code, str(where))
        if where not in self._leaders:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(where))
        if not self._leaders[where]:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(where))
        return self._leaders[where]

    def assume_leader(self, where: TopicPartition, address: str) -> None:
        """Take the planner's word for who leads, until a broker says otherwise."""
        self._leaders[where] = address

    def forget_leaders(self) -> None:
        """And coordinators: who is asked in vain may have moved."""
        self._leaders.clear()
        self._coordinators.clear()

    # -- offsets ------------------------------------------------------------------------------------------

    def list_offsets(self, asked: Mapping[TopicPartition, int], committed: bool) -> dict[TopicPartition, int]:
        """The offset at LATEST, EARLIEST or a timestamp in milliseconds (-1: nothing that late) of each partition."""
        return self.retrying(lambda: self._list_offsets(asked, committed)) if asked else {}

    def _list_offsets(
        self, asked: Mapping[TopicPartition, int], committed: bool
    ) -> dict[TopicPartition, int]:
        by_leader: dict[str, list[TopicPartition]] = {}
        self._learn_leaders({where.topic for where in asked})
        for where in asked:
            by_leader.setdefault(self.leader(where), []).append(where)
        found: dict[TopicPartition, int] = {}
        for address, partitions in by_leader.items():
            request = _offsets_request({where: asked[where] for where in partitions}, committed)
            for topic in self.connection(address).call(request).topics:
                for answer in topic.partitions:
                    where = TopicPartition(topic.name, answer.partition_index)
                    check(answer.error_code, f"the offsets of {where}")
                    found[where] = answer.offset
        return found

    def _learn_leaders(self, topics: set[str]) -> None:
        """One request for all topics, instead of one for each unknown partition."""
        if not topics <= {where.topic for where in self._leaders}:
            self.metadata(sorted(topics))

    # -- groups -------------------------------------------------------------------------------------------

    def coordinator(self, key: str, kind: int = GROUP) -> str:
        """The address of the broker that keeps this group (or transactional id), as far as anybody knows."""
        if (kind, key) not in self._coordinators:
            self._coordinators[kind, key] = self._find_coordinator(key, kind)
        return self._coordinators[kind, key]

    def _find_coordinator(self, key: str, kind: int) -> str:
        answer = self.call_any(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]))
        found = answer.coordinators[0] if answer.coordinators else answer
        check(found.error_code, f"the coordinator of {key}")
        return f"{found.host}:{found.port}"

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Publish positions under a group that nobody is a member of, as administration tools do."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for where, offset in sorted(offsets.items()):
            part = OffsetCommitRequestPartition(
                partition_index=where.partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(where.topic, []).append(part)
        listed = [OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()]
        request = OffsetCommitRequest(group_id=group, topics=listed)

        def attempt() -> None:
            answer = self.connection(self.coordinator(group)).call(request)
            for topic in answer.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    check(partition.error_code, f"committing {where} for group {group}")

        self.retrying(attempt)


class _Kept(threading.local):
    """The clusters of this thread, by the settings that made them: a connection is for one thread."""

    def __init__(self) -> None:
        self.clusters: dict[ClientSettings, Cluster] = {}


_kept = _Kept()


@contextlib.contextmanager
def kept_cluster(settings: ClientSettings) -> Iterator[Cluster]:
    """A cluster that stays connected for whoever is next.

    After a failure it does not: requests may be under way, and their answers would be taken for those to later ones.
    """
    cluster = _kept.clusters.setdefault(settings, Cluster(settings))
    try:
        yield cluster
    except BaseException:
        cluster.close()
        cluster.forget_leaders()
        raise


def _offsets_request(asked: Mapping[TopicPartition, int], committed: bool) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for where, timestamp in asked.items():
        part = ListOffsetsPartition(partition_index=where.partition, timestamp=timestamp)
        topics.setdefault(where.topic, []).append(part)
    listed = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
    return ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=listed)
