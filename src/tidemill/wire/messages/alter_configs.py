"""AlterConfigs (API 33)."""

from tidemill.wire.schema import Message, array, boolean, int8, int16, int32, string


class AlterableConfig(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)


class AlterConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message, versions=(0, 2), flexible=2):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
