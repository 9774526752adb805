"""The feature levels of the cluster: what all its members have agreed to understand.

A level is a number in the metadata log; a member says at its registration which range it supports. A new
cluster begins with what this release supports at most:

    >>> [(record.name, record.feature_level) for record in bootstrap_records()]
    [('metadata.version', 30), ('group.version', 1), ('share.version', 1), ('transaction.version', 2)]

`group.version` 1 is the newer protocol of consumer groups (ConsumerGroupHeartbeat), `share.version` 1 are share groups;
clients that see them finalized may use them. A cluster whose log was begun by an older release does not have the levels
until somebody sets them.

Apache Kafka 4.3 finalizes two more for a new cluster (streams 1, eligible leader replicas 1). Each gets a
line in `SUPPORTED_FEATURES` when the protocol behind it works here; levels that a Kafka controller wrote are kept in
the image and shown as they are.
"""

from __future__ import annotations

from tidemill.metadata.image import (
    LATEST_METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    MINIMUM_METADATA_VERSION,
    FeatureRange,
    MetadataImage,
)
from tidemill.metadata.records import FeatureLevelRecord
from tidemill.model.errors import TidemillError

SUPPORTED_FEATURES = (
    FeatureRange(METADATA_VERSION_FEATURE, MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
    FeatureRange("group.version", 0, 1),
    FeatureRange("share.version", 0, 1),
    FeatureRange("transaction.version", 0, 2),
)


class UnsupportedMetadataVersion(TidemillError):
    """The directory was written by a release that this one does not understand."""


def bootstrap_records() -> list[FeatureLevelRecord]:
    return [
        FeatureLevelRecord(name=feature.name, feature_level=feature.maximum) for feature in SUPPORTED_FEATURES
    ]


def check_metadata_version(image: MetadataImage) -> None:
    """Refuse to serve a log whose records might mean something else than we think."""
    level = image.features.get(METADATA_VERSION_FEATURE)
    if level is not None and not MINIMUM_METADATA_VERSION <= level <= LATEST_METADATA_VERSION:
        raise UnsupportedMetadataVersion(
            f"the metadata log has metadata.version {level}; this release understands "
            f"{MINIMUM_METADATA_VERSION} to {LATEST_METADATA_VERSION}"
        )
