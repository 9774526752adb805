"""The APIs this client speaks: key, answer, and the newest version it uses of each.

Fetch and OffsetCommit stay below the versions that name topics by id: a range that Spark planned names its topic, and
the id of a topic that was made anew must not be looked up behind its back.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidemill.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidemill.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidemill.wire.messages.produce import ProduceRequest, ProduceResponse
from tidemill.wire.schema import Message


class Api(NamedTuple):
    key: int
    newest: int
    response: type[Message]


API_VERSIONS_KEY = 18

APIS: dict[type[Message], Api] = {
    ProduceRequest: Api(0, 11, ProduceResponse),
    FetchRequest: Api(1, 12, FetchResponse),
    ListOffsetsRequest: Api(2, 8, ListOffsetsResponse),
    MetadataRequest: Api(3, 12, MetadataResponse),
    OffsetCommitRequest: Api(8, 9, OffsetCommitResponse),
    FindCoordinatorRequest: Api(10, 4, FindCoordinatorResponse),
    ApiVersionsRequest: Api(API_VERSIONS_KEY, 3, ApiVersionsResponse),
    CreateTopicsRequest: Api(19, 7, CreateTopicsResponse),
    DeleteTopicsRequest: Api(20, 6, DeleteTopicsResponse),
    DeleteRecordsRequest: Api(21, 2, DeleteRecordsResponse),
    InitProducerIdRequest: Api(22, 4, InitProducerIdResponse),
    AddPartitionsToTxnRequest: Api(24, 3, AddPartitionsToTxnResponse),
    EndTxnRequest: Api(26, 4, EndTxnResponse),
}
