"""The verbs of a share group for `group_life.py`: members, readers with their sessions, offsets and stored state.

What differs from Kafka on purpose (decisions 0012) is left out of what is written down: which of several members has
which partition, answers about partitions that say nothing, and where one range of acquired records ends and the next
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from group_life import GroupLife
from told import told
from waiting import wait_until

from tidemill.testing import WireClient
from tidemill.wire.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    write_share_group_state,
)
from tidemill.wire.messages.share_group_describe import ShareGroupDescribeRequest
from tidemill.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

WORDS = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}
STATE_REQUESTS: dict[str, tuple[Any, Any, Any]] = {
    "initialize": (
        initialize_share_group_state.InitializeShareGroupStateRequest,
        initialize_share_group_state.InitializeStateData,
        initialize_share_group_state.PartitionData,
    ),
    "read": (
        read_share_group_state.ReadShareGroupStateRequest,
        read_share_group_state.ReadStateData,
        read_share_group_state.PartitionData,
    ),
    "write": (
        write_share_group_state.WriteShareGroupStateRequest,
        write_share_group_state.WriteStateData,
        write_share_group_state.PartitionData,
    ),
    "delete": (
        delete_share_group_state.DeleteShareGroupStateRequest,
        delete_share_group_state.DeleteStateData,
        delete_share_group_state.PartitionData,
    ),
    "summary": (
        read_share_group_state_summary.ReadShareGroupStateSummaryRequest,
        read_share_group_state_summary.ReadStateSummaryData,
        read_share_group_state_summary.PartitionData,
    ),
}


class ShareLife(GroupLife):
    # -- members ----------------------------------------------------------------------------------------------

    def beat(
        self, group: str, member: str, epoch: int, topics: list[str] | None = None, **fields: Any
    ) -> Any:
        answer = self._beat(group, member, epoch, topics, **fields)
        _count(answer.assignment.topic_partitions if answer.assignment else [])
        self.note(f"beat {group} {member} {epoch} {topics} {fields}", answer)
        return answer

    def _beat(
        self, group: str, member: str, epoch: int, topics: list[str] | None = None, **fields: Any
    ) -> Any:
        names = None if topics is None else [self.full(topic) for topic in topics]
        return self.connection.call(
            ShareGroupHeartbeatRequest(
                **{
                    "group_id": self.full(group),
                    "member_id": member,
                    "member_epoch": epoch,
                    "subscribed_topic_names": names,
                    **fields,
                }
            )
        )

    def join(self, group: str, member: str, topics: list[str], partitions: int, **fields: Any) -> int:
        """Until the member has its partitions: their state comes after the first answer in Kafka."""
        answers = [self._beat(group, member, 0, topics, **fields)]
        assigned = [answers[0].assignment]

        def is_assigned() -> bool:
            if (
                assigned[-1]
                and sum(len(each.partitions) for each in assigned[-1].topic_partitions) == partitions
            ):
                return True
            answers.append(self._beat(group, member, answers[-1].member_epoch))
            assigned.append(answers[-1].assignment or assigned[-1])
            return False

        wait_until(is_assigned, f"that {member} has {partitions} partitions")
        self.answers.append((f"join {group} {member}", (answers[-1].error_code, answers[-1].member_epoch)))
        epoch: int = answers[-1].member_epoch
        return epoch

    def describe(self, *groups: str, operations: bool = False) -> None:
        request = ShareGroupDescribeRequest(
            group_ids=[self.full(group) for group in groups], include_authorized_operations=operations
        )
        answer = self.connection.call(request)
        for group in answer.groups:
            group.members.sort(key=lambda member: member.member_id)
            for member in group.members:
                member.subscribed_topic_names.sort()
                _count(member.assignment.topic_partitions)
        self.note(f"describe {groups}", answer)

    # -- offsets ----------------------------------------------------------------------------------------------

    def offsets(
        self, group: str, topics: dict[str, list[int]] | None = None, version: int = 1, *, starts: bool = True
    ) -> None:
        """Without `starts` where acknowledgements moved the start, which Kafka stores one too late."""
        wanted = None
        if topics is not None:
            wanted = [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
                    topic_name=self.full(topic), partitions=partitions
                )
                for topic, partitions in topics.items()
            ]
        asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
            group_id=self.full(group), topics=wanted
        )
        request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups=[asked])
        answer = self.connection.call(request, version)
        for found in answer.groups:
            found.topics.sort(key=lambda topic: topic.topic_name)
            for partition in (each for topic in found.topics for each in topic.partitions):
                partition.start_offset = partition.start_offset if starts else 0
        self.note(f"offsets {group} {topics}", answer)

    def lag(self, group: str) -> None:
        self.offsets(group, starts=False)

    def alter(self, group: str, *starts: tuple[str, int, int]) -> None:
        """Each is a topic, a partition and an offset."""
        topics: dict[str, list[Any]] = {}
        for topic, partition, offset in starts:
            asked = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(
                partition_index=partition, start_offset=offset
            )
            topics.setdefault(topic, []).append(asked)
        request = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
            group_id=self.full(group),
            topics=[
                alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                    topic_name=self.full(topic), partitions=partitions
                )
                for topic, partitions in topics.items()
            ],
        )
        answer = self.connection.call(request)
        answer.responses.sort(key=lambda topic: topic.topic_name)
        self.note(f"alter {group} {starts}", answer)

    def delete_offsets(self, group: str, *topics: str) -> None:
        asked = delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic
        request = delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
            group_id=self.full(group), topics=[asked(topic_name=self.full(topic)) for topic in topics]
        )
        answer = self.connection.call(request)
        answer.responses.sort(key=lambda topic: topic.topic_name)
        self.note(f"delete offsets {group} {topics}", answer)

    # -- state at the share coordinator -----------------------------------------------------------------------

    def state(
        self, kind: str, group: str, topic: str, *partitions: int, version: int | None = None, **fields: Any
    ) -> Any:
        """One of STATE_REQUESTS; batches are (first, last, state, count)."""
        request_type, topic_type, partition_type = STATE_REQUESTS[kind]
        if "batches" in fields:
            batch_type = write_share_group_state.StateBatch
            fields["state_batches"] = [
                batch_type(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in fields.pop("batches")
            ]
        asked = [partition_type(partition=index, **fields) for index in partitions]
        topics = [topic_type(topic_id=self.id_of(topic), partitions=asked)]
        request = request_type(group_id=self.full(group), topics=topics)
        return self.call(f"{kind} {group} {topic} {partitions} {fields}", request, version)


class Reader:
    """A member's session, whose epochs are counted; `at` names another one."""

    def __init__(
        self,
        life: ShareLife,
        group: str,
        member: str,
        connection: WireClient | None = None,
        markers: frozenset[int] = frozenset(),
    ) -> None:
        """Offsets of `markers` are acquired by Kafka, and never here."""
        self._life = life
        self._markers = markers
        self._group = group
        self._member = member
        self._connection = connection or life.connection
        self.epoch = 0

    def fetch(
        self,
        partitions: Mapping[str, list[int]] | None = None,
        acknowledged: Mapping[tuple[str, int], list[str]] | None = None,
        *,
        forgotten: Mapping[str, list[int]] | None = None,
        at: int | None = None,
        version: int | None = None,
        **fields: Any,
    ) -> Any:
        asked: dict[str, dict[int, list[Any]]] = {}
        for topic, indexes in (partitions or {}).items():
            asked.setdefault(topic, {}).update((index, []) for index in indexes)
        for (topic, index), texts in (acknowledged or {}).items():
            batches = [_batch(share_fetch.AcknowledgementBatch, text) for text in texts]
            asked.setdefault(topic, {})[index] = batches
        request = share_fetch.ShareFetchRequest(
            topics=self._topics(share_fetch.FetchTopic, share_fetch.FetchPartition, asked),
            forgotten_topics_data=[
                share_fetch.ForgottenTopic(topic_id=self._life.id_of(topic), partitions=indexes)
                for topic, indexes in (forgotten or {}).items()
            ],
            **(
                {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500}
                | self._who(at)
                | fields
            ),
        )
        answer = self._connection.call(request, version)
        self._count_epoch(at, answer.error_code)
        self._sort(answer)
        said = told(answer, self._life.names)
        if not acknowledged:
            _drop_silent(said)
        for topic in said.get("responses", []):
            for partition in topic["partitions"]:
                partition["records"] = [
                    each for each in partition.get("records", []) if each[0] not in self._markers
                ]
                partition["acquired_records"] = _joined(partition.get("acquired_records", []), self._markers)
        asks = f"{partitions} {acknowledged} {forgotten} {at} {fields}"
        self._life.answers.append((f"fetch {self._group} {self._member} {asks}", said))
        return answer

    def take(self, partitions: Mapping[str, list[int]] | None = None, **fields: Any) -> None:
        """Fetch until there is something; what came before it is not written down."""
        answers = self._life.answers

        def has_some() -> bool:
            answer = self.fetch(partitions, max_wait_ms=200, **fields)
            found = any(each.acquired_records for topic in answer.responses for each in topic.partitions)
            if not found:
                answers.pop()
            return found

        wait_until(has_some, f"that {self._member} acquires something")

    def tell(
        self,
        acknowledged: Mapping[tuple[str, int], list[str]],
        *,
        at: int | None = None,
        version: int | None = None,
        **fields: Any,
    ) -> None:
        asked: dict[str, dict[int, list[Any]]] = {}
        for (topic, index), texts in acknowledged.items():
            batches = [_batch(share_acknowledge.AcknowledgementBatch, text) for text in texts]
            asked.setdefault(topic, {})[index] = batches
        request = share_acknowledge.ShareAcknowledgeRequest(
            topics=self._topics(
                share_acknowledge.AcknowledgeTopic, share_acknowledge.AcknowledgePartition, asked
            ),
            **(self._who(at) | fields),
        )
        answer = self._connection.call(request, version)
        self._count_epoch(at, answer.error_code)
        self._sort(answer)
        self._life.note(f"tell {self._group} {self._member} {acknowledged} {at} {fields}", answer)

    def _sort(self, answer: Any) -> None:
        """In Kafka the order is that of a hash table."""
        answer.responses.sort(key=lambda topic: self._life.names.get(topic.topic_id, ""))
        for topic in answer.responses:
            topic.partitions.sort(key=lambda partition: partition.partition_index)

    def _who(self, at: int | None) -> dict[str, Any]:
        epoch = self.epoch if at is None else at
        return {
            "group_id": self._life.full(self._group),
            "member_id": self._member,
            "share_session_epoch": epoch,
        }

    def _count_epoch(self, at: int | None, error_code: int) -> None:
        if at is None and not error_code:
            self.epoch += 1

    def _topics(
        self, topic_type: Callable[..., Any], partition_type: Callable[..., Any], asked: Mapping[str, Any]
    ) -> list[Any]:
        return [
            topic_type(
                topic_id=self._life.id_of(topic),
                partitions=[
                    partition_type(partition_index=index, acknowledgement_batches=batches)
                    for index, batches in indexes.items()
                ],
            )
            for topic, indexes in asked.items()
        ]


def _batch(kind: Callable[..., Any], text: str) -> Any:
    """Of "3-4 accept,release", or "3" without a word, or "3 9" with a word that does not exist."""
    offsets, _, words = text.partition(" ")
    first, _, last = offsets.partition("-")
    types = [WORDS.get(word) if word in WORDS else int(word) for word in words.split(",") if word]
    return kind(first_offset=int(first), last_offset=int(last or first), acknowledge_types=types)


def _count(topic_partitions: list[Any]) -> None:
    for topic in topic_partitions:
        topic.partitions = [len(topic.partitions)]


def _drop_silent(said: dict[str, Any]) -> None:
    for topic in said.get("responses", []):
        topic["partitions"] = [each for each in topic["partitions"] if each.keys() - {"partition_index"}]
    said["responses"] = [topic for topic in said.get("responses", []) if topic["partitions"]]


def _joined(acquired: list[dict[str, int]], markers: frozenset[int]) -> list[tuple[int, int, int]]:
    """(first, last, deliveries), neighbours of one count together, without markers."""
    ranges: list[tuple[int, int, int]] = []
    for each in acquired:
        for offset in range(each.get("first_offset", 0), each.get("last_offset", 0) + 1):
            if offset in markers:
                continue
            if ranges and ranges[-1][1:] == (offset - 1, each["delivery_count"]):
                ranges[-1] = (ranges[-1][0], offset, each["delivery_count"])
            else:
                ranges.append((offset, offset, each["delivery_count"]))
    return ranges
