"""The topics of the cluster as the coordinators of groups see them: the metadata image, read at each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.coordination.group.modern import Topic
from tidemill.metadata.image import MetadataImage, TopicState


class ClusterTopics:
    """A `coordination.group.modern.Topics`."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def by_name(self, name: str) -> Topic | None:
        return _topic(self._image().topics.get(name))

    def by_id(self, topic_id: bytes) -> Topic | None:
        return _topic(self._image().topics_by_id.get(topic_id))

    def names(self) -> Iterable[str]:
        return self._image().topics.keys()


def _topic(state: TopicState | None) -> Topic | None:
    return None if state is None else Topic(state.topic_id, state.name, len(state.partitions))
