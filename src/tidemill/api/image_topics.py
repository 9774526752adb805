"""The topics of the cluster as coordinators see them: the newest metadata image behind their port `Topics`."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.api.services import Metadata
from tidemill.coordination.group.modern import Topic
from tidemill.metadata.image import TopicState


class ImageTopics:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def by_name(self, name: str) -> Topic | None:
        return _topic(self._metadata.image.topics.get(name))

    def by_id(self, topic_id: bytes) -> Topic | None:
        return _topic(self._metadata.image.topics_by_id.get(topic_id))

    def names(self) -> Iterable[str]:
        return self._metadata.image.topics.keys()


def _topic(state: TopicState | None) -> Topic | None:
    return None if state is None else Topic(state.topic_id, state.name, len(state.partitions))
