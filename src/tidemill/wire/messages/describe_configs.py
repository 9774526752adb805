"""DescribeConfigs (API 32)."""

from tidemill.wire.schema import STRING, Message, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(STRING, nullable_since=0)


class DescribeConfigsRequest(Message, versions=(1, 4), flexible=4):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


class DescribeConfigsResourceResult(Message):
    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_since=0)


class DescribeConfigsResult(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Message, versions=(1, 4), flexible=4):
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
