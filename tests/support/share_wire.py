"""A member of a share group in single protocol messages: for what a real share consumer hides."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from raw import topic_id
from share_transcript import span
from waiting import wait_until

from tidemill.coordination.share.persister import SharePartitionKey
from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.wire.batch import iterate_headers
from tidemill.wire.messages import share_acknowledge, share_fetch
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidemill.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    PartitionData,
)

GROUP_RESOURCE = 32
SHARE_COORDINATOR = 2
WORDS = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}


class ShareMember:
    """One connection, one session of one partition."""

    def __init__(
        self, connection: WireClient, group: str, topic: str, member_id: str = "", partition: int = 0
    ) -> None:
        self.connection = connection
        self.group = group
        self.topic_id = topic_id(connection, topic)
        self.member_id = member_id or uuid.uuid4().hex
        self.partition = partition
        self.epoch = 0

    def fetch(self, *acknowledged: str, epoch: int | None = None, **fields: Any) -> Any:
        """The whole answer."""
        self.send_fetch(*acknowledged, epoch=epoch, **fields)
        return self.connection.receive()

    def send_fetch(self, *acknowledged: str, epoch: int | None = None, **fields: Any) -> None:
        asked = share_fetch.FetchPartition(
            partition_index=self.partition,
            acknowledgement_batches=[_batch(share_fetch.AcknowledgementBatch, text) for text in acknowledged],
        )
        request = share_fetch.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._next_epoch(epoch),
            topics=[share_fetch.FetchTopic(topic_id=self.topic_id, partitions=[asked])],
            **({"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500} | fields),
        )
        self.connection.send(request)

    def acquire(self, *acknowledged: str, **fields: Any) -> str:
        """What was acquired, like "0-9 x1, 12 x2"."""
        return acquired(self.fetch(*acknowledged, **fields))

    def acknowledge(self, *texts: str, epoch: int | None = None, **fields: Any) -> Any:
        """The whole answer."""
        asked = share_acknowledge.AcknowledgePartition(
            partition_index=self.partition,
            acknowledgement_batches=[_batch(share_acknowledge.AcknowledgementBatch, text) for text in texts],
        )
        return self.connection.call(
            share_acknowledge.ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=self._next_epoch(epoch),
                topics=[share_acknowledge.AcknowledgeTopic(topic_id=self.topic_id, partitions=[asked])],
                **fields,
            )
        )

    def tell(self, *texts: str, **fields: Any) -> int:
        """The error code of the partition."""
        answer = self.acknowledge(*texts, **fields)
        assert answer.error_code == 0
        code: int = answer.responses[0].partitions[0].error_code
        return code

    def _next_epoch(self, epoch: int | None) -> int:
        if epoch is not None:
            return epoch
        self.epoch += 1
        return self.epoch - 1


def acquired(answer: Any) -> str:
    assert answer.error_code == 0
    parts = []
    for topic in answer.responses:
        for partition in topic.partitions:
            assert partition.error_code == 0 and partition.acknowledge_error_code == 0, partition
            parts += [
                f"{span(each.first_offset, each.last_offset)} x{each.delivery_count}"
                for each in partition.acquired_records
            ]
    return ", ".join(parts)


def sent_offsets(answer: Any) -> list[tuple[int, int]]:
    """First and last offset of each batch in the answer."""
    records = answer.responses[0].partitions[0].records
    return [(header.base_offset, header.last_offset) for _, header in iterate_headers(records)]


def initialize(
    connection: WireClient, group: str, topic: str, partitions: int = 1, start_offset: int = -1
) -> None:
    """What the group coordinator does when a member is first assigned these partitions."""
    data = InitializeStateData(
        topic_id=topic_id(connection, topic),
        partitions=[
            PartitionData(partition=index, state_epoch=1, start_offset=start_offset)
            for index in range(partitions)
        ],
    )
    key = SharePartitionKey(group, data.topic_id, 0).as_coordinator_key()
    connection.call(FindCoordinatorRequest(key_type=SHARE_COORDINATOR, coordinator_keys=[key]))

    def is_initialized() -> bool:
        answer = connection.call(InitializeShareGroupStateRequest(group_id=group, topics=[data]))
        codes = {each.error_code for topic in answer.results for each in topic.partitions}
        assert codes <= {0, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, answer
        return codes == {0}

    wait_until(is_initialized, "the share coordinator")


def configure_group(connection: WireClient, group: str, **settings: str) -> None:
    """By keyword: share_auto_offset_reset="earliest"."""
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=configs)
    answer = connection.call(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@contextlib.contextmanager
def share_member(bootstrap: str, group: str, topic: str, **options: Any) -> Iterator[ShareMember]:
    with WireClient(bootstrap) as connection:
        yield ShareMember(connection, group, topic, **options)


def _batch(kind: Any, text: str) -> Any:
    offsets, words = text.split()
    first, _, last = offsets.partition("-")
    types = [WORDS[word] for word in words.split(",")]
    return kind(first_offset=int(first), last_offset=int(last or first), acknowledge_types=types)
