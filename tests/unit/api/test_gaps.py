"""The gaps that `docs/apis.md` tells of are as it says: refused in order, with the code and the bounds named there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.metadata.image import ResourceType
from tidemill.model.errors import ErrorCode
from tidemill.testing import EmbeddedBroker, WireClient
from tidemill.testing.wire_client import ConnectionLost
from tidemill.wire.messages import alter_configs as legacy
from tidemill.wire.messages import incremental_alter_configs as incremental
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.schema_values import MAX_ELEMENTS


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.mark.parametrize("kind", [ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS])
def test_resources_without_configuration(broker: EmbeddedBroker, kind: ResourceType) -> None:
    named = {"resource_type": kind, "resource_name": "1"}
    with WireClient(broker.bootstrap) as client:
        described = client.call(DescribeConfigsRequest(resources=[DescribeConfigsResource(**named)]))
        altered = client.call(legacy.AlterConfigsRequest(resources=[legacy.AlterConfigsResource(**named)]))
        changed = client.call(
            incremental.IncrementalAlterConfigsRequest(resources=[incremental.AlterConfigsResource(**named)])
        )
    codes = [
        described.results[0].error_code,
        altered.responses[0].error_code,
        changed.responses[0].error_code,
    ]
    assert codes == [ErrorCode.INVALID_REQUEST] * 3


def test_elements_of_one_request(broker: EmbeddedBroker) -> None:
    def metadata(count: int) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name="x")] * count)

    with WireClient(broker.bootstrap) as client:
        assert len(client.call(metadata(MAX_ELEMENTS // 10)).topics) == MAX_ELEMENTS // 10
        with pytest.raises((ConnectionLost, ConnectionResetError)):
            client.call(metadata(MAX_ELEMENTS + 1))
