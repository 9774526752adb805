"""One sensible request for every API of transactions, for `sample_requests.py`; their producer is a stranger."""

from __future__ import annotations

from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.list_transactions import ListTransactionsRequest
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidemill.wire.schema import Message

NAME, PRODUCER = "a-stranger", 987_654_321


def transaction_requests(topic: str) -> list[Message]:
    added = [AddPartitionsToTxnTopic(name=topic, partitions=[0])]
    committed = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return [
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(transactional_id=NAME, producer_id=PRODUCER, topics=added)
            ],
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=PRODUCER,
            v3_and_below_topics=added,
        ),
        AddOffsetsToTxnRequest(transactional_id=NAME, producer_id=PRODUCER, group_id="sample-group"),
        EndTxnRequest(transactional_id=NAME, producer_id=PRODUCER, committed=True),
        TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id="sample-group",
            producer_id=PRODUCER,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[committed])],
        ),
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=PRODUCER,
                    topics=[WritableTxnMarkerTopic(name="no-such-topic", partition_indexes=[0])],
                )
            ]
        ),
        DescribeTransactionsRequest(transactional_ids=[NAME, ""]),
        ListTransactionsRequest(state_filters=["Ongoing"], transactional_id_pattern="a.*"),
    ]
