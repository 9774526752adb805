"""What brokers answer to raw requests, one after another, in a form that is the same for brokers that behave the same.

Producer ids are named in the order in which they appear, times and texts are left out, fields with their usual values
are not shown, and what Kafka lists in the order of a hash table is sorted. The offset where the log starts is left out
of refused batches: here it is -1 in all of them, in Kafka in those that are refused before the log is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from raw import produce
from waiting import wait_until

from tidemill.coordination.record_codec import encode_key, encode_value
from tidemill.coordination.transaction.state import TransactionMetadata, to_record
from tidemill.model.errors import ErrorCode
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.batch import HEADER_SIZE, Record, build_batch, iterate_headers, iterate_records
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tidemill.wire.schema import Message

GROUP = "readers"
STRANGER = 987_654_321
"""An id that no producer is given."""
TIMEOUT_MS = 60_000
PATIENCE_SECONDS = 30
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1
COORDINATOR_IS_BUSY = (14, 15, 16)
TIMES = {"last_timestamp", "transaction_start_time_ms", "timestamp"}
LEFT_OUT = {"error_message", "throttle_time_ms", "log_append_time_ms"}
UNORDERED = {
    "AddPartitionsToTxnResponse.results_by_topic_v3_and_below",
    "AddPartitionsToTxnResponse.results_by_transaction",
    "AddPartitionsToTxnResult.topic_results",
    "AddPartitionsToTxnTopicResult.results_by_partition",
    "ListTransactionsResponse.transaction_states",
    "PartitionResponse.active_producers",
    "TopicData.partitions",
    "TopicProduceResponse.partition_responses",
    "TransactionState.topics",
    "WritableTxnMarkerResult.topics",
}


class Who(NamedTuple):
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1

    def at(self, epoch: int) -> Who:
        return self._replace(epoch=epoch)

    def called(self, transactional_id: str) -> Who:
        return self._replace(transactional_id=transactional_id)


class Transcript:
    """One connection, and what came back over it."""

    def __init__(self, bootstrap: str, scene: str, names: dict[int, str]) -> None:
        """`names` are those of producer ids; one scene hands them on to the next."""
        self.bootstrap, self.scene = bootstrap, scene
        self.connection = WireClient(bootstrap)
        self.answers: list[tuple[str, Any]] = []
        self._names = names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, what: str, request: Message, version: int | None = None) -> Any:
        """The answer, which is noted."""
        reply = self.connection.call(request, version)
        shown = "" if version is None else f" v{version}"
        self.note(f"{type(request).__name__.removesuffix('Request')} {what}{shown}", self._plain(reply))
        return reply

    def note(self, what: str, value: Any) -> None:
        self.answers.append((f"{self.scene} {len(self.answers)}: {what}", value))

    def name_of(self, producer_id: int) -> Any:
        if producer_id < 0:
            return producer_id
        return self._names.setdefault(producer_id, f"producer {len(self._names)}")

    def _plain(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Message):
            return self._plain_message(value)
        if isinstance(value, list):
            each = [self._plain(one) for one in value]
            return sorted(each, key=str) if name in UNORDERED else each
        field = name.rpartition(".")[2]
        if field == "producer_id":
            return self.name_of(value)
        if field in TIMES and value >= 0:
            return "..."
        return self._plain_batches(value) if field == "records" else value

    def _plain_message(self, message: Message) -> dict[str, Any]:
        kind, usual = type(message).__name__, vars(type(message)())
        plain = {
            field: self._plain(value, f"{kind}.{field}")
            for field, value in vars(message).items()
            if value != usual[field] and field not in LEFT_OUT
        }
        if plain.get("error_code"):
            plain.pop("log_start_offset", None)
        return plain

    def _plain_batches(self, data: bytes | None) -> list[Any]:
        found, view = [], memoryview(data or b"")
        for position, header in iterate_headers(view):
            body = view[position + HEADER_SIZE : position + header.size]
            records = [(each.key, each.value) for each in iterate_records(header, body)]
            producer = (self.name_of(header.producer_id), header.producer_epoch, header.base_sequence)
            found.append((header.base_offset, header.attributes, producer, records))
        return found

    # -- what is not noted ------------------------------------------------------------------------------

    def warm_up(self, *groups: str) -> None:
        """Coordinators are there, and the first block of producer ids."""
        self._find(TRANSACTION_COORDINATOR, "anybody")
        self._wait_for(InitProducerIdRequest(transactional_id=None), lambda reply: not reply.error_code)
        asked = DescribeTransactionsRequest(transactional_ids=["anybody"])
        self._wait_for(asked, lambda reply: reply.transaction_states[0].error_code not in COORDINATOR_IS_BUSY)
        for group in groups:
            self._find(GROUP_COORDINATOR, group)
            wanted = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[])])
            self._wait_for(wanted, lambda reply: reply.groups[0].error_code not in COORDINATOR_IS_BUSY, 9)

    def _find(self, kind: int, key: str) -> None:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        self._wait_for(request, lambda reply: not reply.coordinators[0].error_code)

    def _wait_for(
        self, request: Message, is_there: Callable[[Any], bool], version: int | None = None
    ) -> None:
        wait_until(lambda: is_there(self.connection.call(request, version)), repr(request), PATIENCE_SECONDS)

    def topic(self, partitions: int, suffix: str = "") -> str:
        """A topic of this scene, when every partition has its leader. (DescribeProducers answers before.)"""
        name = f"{self.scene}-{suffix}" if suffix else self.scene
        create_topic(self.bootstrap, name, partitions, {})
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        self._wait_for(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)]),
            lambda reply: not any(each.error_code for each in reply.topics[0].partitions),
        )
        return name

    def delete_topic(self, name: str) -> None:
        """It is gone when the leader knows."""
        deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=15_000)
        assert self.connection.call(deleted).responses[0].error_code == 0
        asked = [TopicRequest(name=name, partition_indexes=[0])]
        self._wait_for(
            DescribeProducersRequest(topics=asked),
            lambda reply: reply.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )

    def settle(self, transactional_id: str) -> None:
        """Wait until the markers are written."""
        self._wait_for_state(transactional_id, lambda state: not state.startswith("Prepare"))

    def wait_for(self, transactional_id: str, wanted: str) -> None:
        self._wait_for_state(transactional_id, lambda state: state == wanted)

    def _wait_for_state(self, transactional_id: str, is_there: Callable[[str], bool]) -> None:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        self._wait_for(request, lambda reply: is_there(reply.transaction_states[0].transaction_state))

    def write_state(self, metadata: TransactionMetadata) -> None:
        """Into the log of the coordinator, which sees it when it is loaded again."""
        written = to_record(metadata, 2)
        record = Record(0, metadata.last_update_ms, encode_key(written), encode_value(written))
        with WireClient(self.bootstrap, client_id="__admin_client") as admin:
            assert produce(admin, "__transaction_state", bytes(build_batch([record]))).error_code == 0
