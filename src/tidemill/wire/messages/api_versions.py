"""ApiVersions (API 18)."""

from tidemill.wire.schema import Message, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message, versions=(0, 4), flexible=3):
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


class ApiVersion(Message):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Message):
    name: str = string(since=3)
    min_version: int = int16(since=3)
    max_version: int = int16(since=3)


class FinalizedFeatureKey(Message):
    name: str = string(since=3)
    max_version_level: int = int16(since=3)
    min_version_level: int = int16(since=3)


class ApiVersionsResponse(Message, versions=(0, 4), flexible=3):
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = int64(default=-1, since=3, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)
