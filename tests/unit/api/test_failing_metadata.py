"""The metadata log refuses a change: each API says so in its own answer, and no connection is closed for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.api.configs import ConfigApi
from tidemill.api.metadata import MetadataApi
from tidemill.api.topics import TopicApi
from tidemill.metadata.image import MetadataImage, ResourceType
from tidemill.model.configs import BrokerLayers
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.wire.messages import alter_configs as legacy
from tidemill.wire.messages import incremental_alter_configs as incremental
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
CONTEXT: Any = SimpleNamespace(version=12)


class BrokenMetadata:
    image = MetadataImage(cluster_id="c")

    async def change(self, decide: Any) -> Any:
        raise ApiError(REFUSED, "the metadata log refused the write")


@pytest.fixture
def services() -> Any:
    settings = SimpleNamespace(auto_create_topics=True, layers=BrokerLayers())
    return SimpleNamespace(
        metadata=BrokenMetadata(), settings=settings, controller=None, cluster_id="c", node_id=1
    )


def test_create_partitions(services: Any) -> None:
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=3)])
    answer = asyncio.run(TopicApi(services).create_partitions(CONTEXT, request))
    assert [(each.name, each.error_code) for each in answer.results] == [("a", REFUSED)]


def test_alter_configs(services: Any) -> None:
    resource = legacy.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="a")
    request = legacy.AlterConfigsRequest(resources=[resource])
    answer = asyncio.run(ConfigApi(services).alter_configs(CONTEXT, request))
    assert [(each.resource_name, each.error_code) for each in answer.responses] == [("a", REFUSED)]


def test_incremental_alter_configs(services: Any) -> None:
    resource = incremental.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="a")
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource])
    answer = asyncio.run(ConfigApi(services).incremental_alter_configs(CONTEXT, request))
    assert [(each.resource_name, each.error_code) for each in answer.responses] == [("a", REFUSED)]


def test_a_topic_that_cannot_be_created_by_asking_stays_unknown(services: Any) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")], allow_auto_topic_creation=True)
    answer = asyncio.run(MetadataApi(services, TopicApi(services)).metadata(CONTEXT, request))
    assert [each.error_code for each in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
