"""One sensible request for every API the broker offers, in every version: what mutated frames are made from.

The samples name a topic that exists, so that a frame which is only a little wrong gets far into the broker. They
change nothing that lasts: what creates, deletes or alters asks for validation only, or names what is not there.
"""

from __future__ import annotations

from raw import batch_of, fetch_request, produce_request
from sample_group_requests import group_requests
from sample_share_administration import share_administration_requests
from sample_share_requests import share_data_requests
from sample_transaction_requests import transaction_requests

from tidemill.testing.apis import APIS
from tidemill.testing.wire_client import encode_request
from tidemill.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidemill.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidemill.wire.messages.describe_producers import DescribeProducersRequest
from tidemill.wire.messages.describe_producers import TopicRequest as ProducersTopic
from tidemill.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from tidemill.wire.messages.describe_topic_partitions import TopicRequest as PartitionsTopic
from tidemill.wire.messages.fetch import ForgottenTopic
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from tidemill.wire.messages.incremental_alter_configs import AlterableConfig as IncrementalConfig
from tidemill.wire.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from tidemill.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.messages.push_telemetry import PushTelemetryRequest
from tidemill.wire.schema import Message

NO_TOPIC = "no-such-topic"
INSTANCE_ID = bytes(range(16))
TOPIC_RESOURCE = 2


def sample_frames(topic: str, topic_id: bytes) -> list[bytes]:
    """Header and body of every sample in every version on offer."""
    samples = [*_data_requests(topic, topic_id), *_topic_requests(topic), *_config_requests(topic)]
    samples += [*_cluster_requests(topic), *_producer_requests(topic), *group_requests(topic, topic_id)]
    samples += [*transaction_requests(topic), *share_data_requests(topic_id)]
    samples += share_administration_requests(topic, topic_id)
    assert {type(sample) for sample in samples} == set(APIS), "an API has no sample"
    return [
        encode_request(sample, version, correlation_id=number, client_id="a client")
        for number, sample in enumerate(samples)
        for version in range(APIS[type(sample)].min_version, APIS[type(sample)].max_version + 1)
    ]


def _data_requests(topic: str, topic_id: bytes) -> list[Message]:
    produce = produce_request(topic, batch_of(b"one", b"two", timestamp_ms=1_790_000_000_000))
    produce.topic_data[0].topic_id = topic_id
    fetch = fetch_request(topic, 0, max_wait_ms=1, session_id=0, session_epoch=0)
    fetch.topics[0].topic_id = topic_id
    fetch.forgotten_topics_data = [ForgottenTopic(topic=NO_TOPIC, topic_id=topic_id, partitions=[1, 2])]
    times = [
        ListOffsetsPartition(partition_index=0, timestamp=when) for when in (-1, -2, -3, 1_700_000_000_000)
    ]
    epochs = [OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)]
    records = [DeleteRecordsPartition(partition_index=0, offset=0)]
    return [
        produce,
        fetch,
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=times)]),
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=epochs)]),
        DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=records)], timeout_ms=100),
    ]


def _topic_requests(topic: str) -> list[Message]:
    new = CreatableTopic(
        name="new-topic",
        num_partitions=3,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value="1000")],
    )
    placed = CreatableTopic(
        name="placed-topic",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
    )
    grown = CreatePartitionsTopic(
        name=topic, count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])]
    )
    return [
        CreateTopicsRequest(topics=[new, placed], timeout_ms=100, validate_only=True),
        DeleteTopicsRequest(topics=[DeleteTopicState(name=NO_TOPIC)], topic_names=[NO_TOPIC], timeout_ms=100),
        CreatePartitionsRequest(topics=[grown], timeout_ms=100, validate_only=True),
    ]


def _config_requests(topic: str) -> list[Message]:
    described = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["retention.ms", "flush.ms"]
    )
    replaced = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic,
        configs=[AlterableConfig(name="retention.ms", value="1")],
    )
    changed = IncrementalResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic,
        configs=[IncrementalConfig(name="retention.ms", config_operation=0, value="1")],
    )
    return [
        DescribeConfigsRequest(resources=[described], include_synonyms=True, include_documentation=True),
        AlterConfigsRequest(resources=[replaced], validate_only=True),
        IncrementalAlterConfigsRequest(resources=[changed], validate_only=True),
    ]


def _cluster_requests(topic: str) -> list[Message]:
    return [
        MetadataRequest(topics=[MetadataRequestTopic(name=topic), MetadataRequestTopic(name=NO_TOPIC)]),
        ApiVersionsRequest(client_software_name="samples", client_software_version="1.0"),
        DescribeClusterRequest(include_cluster_authorized_operations=True),
        DescribeTopicPartitionsRequest(
            topics=[PartitionsTopic(name=topic)], cursor=Cursor(topic_name=topic, partition_index=0)
        ),
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=[0])]),
        FindCoordinatorRequest(key="group", coordinator_keys=["group", "another"]),
        GetTelemetrySubscriptionsRequest(client_instance_id=INSTANCE_ID),
        PushTelemetryRequest(client_instance_id=INSTANCE_ID, subscription_id=7, metrics=b"metrics"),
    ]


def _producer_requests(topic: str) -> list[Message]:
    return [
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
        DescribeProducersRequest(topics=[ProducersTopic(name=topic, partition_indexes=[0])]),
    ]
