"""What bounds a share group: the broker's properties, and above them what was set for this group."""

from __future__ import annotations

import dataclasses

from tidemill.coordination.share.partition_contract import ShareLimits
from tidemill.metadata.image import MetadataImage, ResourceType
from tidemill.model.configs import BrokerLayers
from tidemill.model.group_configs import group_value


@dataclasses.dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    limits: ShareLimits
    reset: str
    """`earliest`, `latest` or `by_duration:PnDTnHnMnS`."""
    committed_only: bool
    allows_renewal: bool


def share_group_settings(image: MetadataImage, layers: BrokerLayers, group_id: str) -> ShareGroupSettings:
    overrides = image.config_of(ResourceType.GROUP, group_id)

    def whole(name: str) -> int:
        value = group_value(name, overrides, layers)
        assert isinstance(value, int)
        return value

    return ShareGroupSettings(
        limits=ShareLimits(
            record_lock_duration_ms=whole("share.record.lock.duration.ms"),
            delivery_count_limit=whole("share.delivery.count.limit"),
            max_record_locks=whole("share.partition.max.record.locks"),
        ),
        reset=str(group_value("share.auto.offset.reset", overrides, layers)).lower(),
        committed_only=str(group_value("share.isolation.level", overrides, layers)).lower()
        == "read_committed",
        allows_renewal=bool(group_value("share.renew.acknowledge.enable", overrides, layers)),
    )
