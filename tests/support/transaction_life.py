"""Producers and their transactions in raw requests over one connection; every answer is noted.

    with Life(bootstrap, "a-scene", {}) as life:
        ann = life.init("ann")                        # InitProducerId
        life.produce(ann, "topic", b"a")              # a batch of its transaction
        ann = life.end(ann, commit=True)              # and its end; who the producer is after it
        life.answers                                  # [("a-scene 0: InitProducerId ann ...", {...}), ...]

See `transaction_transcript` for the form of the answers. Scenes are in `transaction_id_scenes` and its neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from raw import FETCH_WITH_NAMES, batch_of, fetch_request, produce_request
from transaction_transcript import TIMEOUT_MS, Transcript, Who

from tidemill.wire.batch import (
    TRANSACTIONAL_MASK,
)
from tidemill.wire.messages import add_partitions_to_txn as adding
from tidemill.wire.messages import describe_producers as producers
from tidemill.wire.messages import offset_delete as deleting
from tidemill.wire.messages import offset_fetch as fetching
from tidemill.wire.messages import write_txn_markers as marking
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.list_transactions import ListTransactionsRequest
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

OLD_PRODUCE, NEW_PRODUCE = 11, 12
OLD_END, NEW_END = 4, 5


class Life(Transcript):
    def init(
        self,
        transactional_id: str | None,
        known: Who | None = None,
        version: int = 5,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Who:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        if known is not None:
            request.producer_id, request.producer_epoch = known.producer_id, known.epoch
        said = "" if known is None else f" as {self.name_of(known.producer_id)} at {known.epoch}"
        reply = self.ask(f"{transactional_id}{said} for {timeout_ms} ms", request, version)
        return Who(transactional_id or "", reply.producer_id, reply.producer_epoch)

    def add(self, who: Who, topic: str, *partitions: int, version: int = 3) -> None:
        self.add_topics(who, [(topic, partitions)], version)

    def add_topics(self, who: Who, topics: Sequence[tuple[str, Sequence[int]]], version: int = 3) -> None:
        request = adding.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=who.transactional_id,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[
                adding.AddPartitionsToTxnTopic(name=name, partitions=list(indexes))
                for name, indexes in topics
            ],
        )
        self.ask(f"{self.said(who)} {list(topics)}", request, version)

    def add_batched(
        self, *wanted: tuple[Who, Sequence[tuple[str, Sequence[int]]]], verify: bool = False, version: int = 5
    ) -> None:
        transactions = [
            adding.AddPartitionsToTxnTransaction(
                transactional_id=who.transactional_id,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                verify_only=verify,
                topics=[
                    adding.AddPartitionsToTxnTopic(name=name, partitions=list(each)) for name, each in topics
                ],
            )
            for who, topics in wanted
        ]
        said = ", ".join(f"{self.said(who)} {list(topics)}" for who, topics in wanted)
        request = adding.AddPartitionsToTxnRequest(transactions=transactions)
        self.ask(f"{'verify ' if verify else ''}{said}", request, version)

    def said(self, who: Who) -> str:
        return f"{who.transactional_id!r} ({self.name_of(who.producer_id)} at {who.epoch})"

    def add_offsets(self, who: Who, group: str, version: int = 4) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=who.transactional_id,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            group_id=group,
        )
        self.ask(f"{self.said(who)} {group!r}", request, version)

    def commit_offsets(
        self, who: Who, group: str, *offsets: tuple[str, int, int], version: int = 5, **fields: Any
    ) -> None:
        """Offsets as (topic, partition, offset)."""
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        metadata = fields.pop("metadata", "")
        for topic, index, offset in offsets:
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=who.transactional_id,
            group_id=group,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
            **fields,
        )
        self.ask(f"{self.said(who)} {group!r} {offsets}", request, version)

    def end(self, who: Who, *, commit: bool, version: int = NEW_END, settle: bool = True) -> Who:
        request = EndTxnRequest(
            transactional_id=who.transactional_id,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            committed=commit,
        )
        reply = self.ask(f"{self.said(who)} {'commit' if commit else 'abort'}", request, version)
        if settle:
            self.settle(who.transactional_id)
        if reply.error_code or version < NEW_END:
            return who
        return who._replace(producer_id=reply.producer_id, epoch=reply.producer_epoch)

    def produce(
        self,
        who: Who,
        topic: str,
        *values: bytes,
        sequence: int = 0,
        partition: int = 0,
        version: int = NEW_PRODUCE,
        attributes: int = TRANSACTIONAL_MASK,
        is_named: bool = True,
        acks: int = -1,
    ) -> None:
        batch = batch_of(
            *(values or (b"v",)),
            attributes=attributes,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
        )
        request = produce_request(topic, batch, partition=partition, acks=acks)
        request.transactional_id = who.transactional_id if is_named else None
        how = f"sequence {sequence} attributes {attributes} named {is_named}"
        self.ask(f"{self.said(who)} {topic}-{partition} {how}", request, version)

    def produce_all(self, who: Who, *partitions: tuple[str, int], version: int = NEW_PRODUCE) -> None:
        """A batch for each, in one request."""
        topics: dict[str, TopicProduceData] = {}
        for topic, index in partitions:
            batch = batch_of(
                b"v",
                attributes=TRANSACTIONAL_MASK,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                base_sequence=0,
            )
            data = topics.setdefault(topic, TopicProduceData(name=topic))
            data.partition_data.append(PartitionProduceData(index=index, records=batch))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            transactional_id=who.transactional_id,
            topic_data=list(topics.values()),
        )
        self.ask(f"{self.said(who)} {partitions}", request, version)

    def mark(
        self,
        who: Who,
        *topics: tuple[str, Sequence[int]],
        commit: bool = True,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        version: int = 2,
    ) -> None:
        marker = marking.WritableTxnMarker(
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            transaction_result=commit,
            topics=[
                marking.WritableTxnMarkerTopic(name=name, partition_indexes=list(each))
                for name, each in topics
            ],
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        how = f"coordinator {coordinator_epoch} transactions {transaction_version}"
        request = marking.WriteTxnMarkersRequest(markers=[marker])
        self.ask(f"{self.said(who)} {topics} {how}", request, version)

    # -- looking ---------------------------------------------------------------------------------------

    def describe(self, *transactional_ids: str) -> None:
        request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
        self.ask(", ".join(transactional_ids), request)

    def list(self, version: int = 2, **filters: Any) -> None:
        self.ask(", ".join(filters), ListTransactionsRequest(**filters), version)

    def look(self, topic: str, *partitions: int) -> None:
        """Producers, offsets of either isolation, and what readers get."""
        indexes = partitions or (0,)
        self.producers(topic, *indexes)
        for index in indexes:
            for isolation in (0, 1):
                self.offsets(topic, index, isolation)
                self.fetch(topic, 0, isolation, index)

    def producers(self, topic: str, *indexes: int) -> None:
        request = producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=topic, partition_indexes=list(indexes))]
        )
        self.ask(f"{topic} {indexes}", request)

    def offsets(self, topic: str, partition: int, isolation: int, timestamp: int = -1) -> None:
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        self.ask(f"{topic}-{partition} isolation {isolation} time {timestamp}", request)

    def fetch(self, topic: str, offset: int, isolation: int, partition: int = 0) -> None:
        asked = fetch_request(topic, offset, partition=partition, isolation_level=isolation, max_wait_ms=0)
        self.ask(f"{topic}-{partition} at {offset} isolation {isolation}", asked, FETCH_WITH_NAMES)

    # -- groups ----------------------------------------------------------------------------------------

    def committed(self, group: str, *topics: tuple[str, Sequence[int]], stable: bool = False) -> None:
        wanted = [
            fetching.OffsetFetchRequestTopics(name=name, partition_indexes=list(each))
            for name, each in topics
        ]
        asked = fetching.OffsetFetchRequestGroup(group_id=group, topics=wanted or None)
        request = fetching.OffsetFetchRequest(groups=[asked], require_stable=stable)
        self.ask(f"{group} {topics} stable {stable}", request, 9)

    def committed_before_batches(self, group: str, topic: str, *partitions: int, version: int = 7) -> None:
        """In the versions that ask for one group; the last of them can ask for stable offsets."""
        asked = fetching.OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))
        request = fetching.OffsetFetchRequest(group_id=group, topics=[asked], require_stable=version >= 7)
        self.ask(f"{group} {topic} {partitions}", request, version)

    def delete_offsets(self, group: str, topic: str, *partitions: int) -> None:
        listed = [deleting.OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
        request = deleting.OffsetDeleteRequest(
            group_id=group, topics=[deleting.OffsetDeleteRequestTopic(name=topic, partitions=listed)]
        )
        self.ask(f"{group} {topic} {partitions}", request)

    def commit_plainly(self, group: str, topic: str, partition: int, offset: int) -> None:
        listed = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[listed])]
        )
        self.ask(f"{group} {topic}-{partition} {offset}", request, 8)

    def group(self, group: str) -> None:
        self.ask(group, DescribeGroupsRequest(groups=[group]))

    def delete_group(self, group: str) -> None:
        self.ask(group, DeleteGroupsRequest(groups_names=[group]))

    def join(self, group: str, topic: str) -> str:
        """The id of the one member of a classic group, in its first generation."""
        name = topic.encode()
        metadata = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, 0)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        reply = self.connection.call(request, 5)
        assert (reply.error_code, reply.generation_id) == (0, 1)
        assigned = SyncGroupRequestAssignment(member_id=reply.member_id, assignment=bytes(10))
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=reply.member_id,
            group_instance_id="i",
            assignments=[assigned],
        )
        assert self.connection.call(sync, 3).error_code == 0
        return str(reply.member_id)

    def beat(self, group: str, topic: str, member_id: str) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        reply = self.connection.call(request)
        self.note(f"ConsumerGroupHeartbeat {group}", (reply.error_code, reply.member_epoch))
