"""Samples of the two requests by which members of a share group get records and settle them (see `sample_requests`)."""

from __future__ import annotations

from tidemill.wire.messages import share_acknowledge, share_fetch
from tidemill.wire.schema import Message

GROUP, MEMBER = "a-share-group", "a-share-member"


def share_data_requests(topic_id: bytes) -> list[Message]:
    """A session is opened, settles what it never had, and is closed."""
    fetched = share_fetch.FetchPartition(
        partition_index=0,
        acknowledgement_batches=[
            share_fetch.AcknowledgementBatch(first_offset=0, last_offset=2, acknowledge_types=[1, 2, 3])
        ],
    )
    settled = share_acknowledge.AcknowledgePartition(
        partition_index=0,
        acknowledgement_batches=[
            share_acknowledge.AcknowledgementBatch(first_offset=0, last_offset=5, acknowledge_types=[1])
        ],
    )
    forgotten = [share_fetch.ForgottenTopic(topic_id=topic_id, partitions=[1, 2])]
    requests: list[Message] = [
        share_fetch.ShareFetchRequest(
            group_id=GROUP,
            member_id=MEMBER,
            share_session_epoch=epoch,
            max_wait_ms=1,
            min_bytes=1,
            max_records=10,
            batch_size=5,
            topics=[
                share_fetch.FetchTopic(
                    topic_id=topic_id,
                    partitions=[fetched if epoch else share_fetch.FetchPartition(partition_index=0)],
                )
            ],
            forgotten_topics_data=forgotten,
        )
        for epoch in (0, 1, -1)
    ]
    acknowledge = share_acknowledge.ShareAcknowledgeRequest(
        group_id=GROUP,
        member_id=MEMBER,
        share_session_epoch=2,
        topics=[share_acknowledge.AcknowledgeTopic(topic_id=topic_id, partitions=[settled])],
    )
    return [*requests[:2], acknowledge, requests[2]]
