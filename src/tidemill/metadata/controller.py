"""All decisions of the controller behind one door, for the node that leads the metadata log.

Every method is pure: it takes the image that the decision stands on and returns a `Decision`, the records to
append and the result to answer with once they are committed. The image must be the newest one, including
what was appended and is not yet committed (`Quorum.latest_image`), so that two requests in flight cannot
create the same topic.

    decision = controller.create_topics(quorum.latest_image, [NewTopic("orders", partitions=3)])
    offset = quorum.append(decision.records)
    # when the quorum has committed `offset`: answer with decision.result

The theory of each decision is in its own module: topics, config_changes, brokers, elections, placement,
producer_ids, features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.metadata import brokers, config_changes, producer_ids, topics
from tidemill.metadata.decisions import ControllerSettings, Decision, Outcome
from tidemill.metadata.image import MetadataImage
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.ports.randomness import Randomness


class Controller:
    def __init__(self, settings: ControllerSettings, randomness: Randomness) -> None:
        self.settings = settings
        self._randomness = randomness

    def create_topics(
        self, image: MetadataImage, new: Sequence[topics.NewTopic], *, validate_only: bool = False
    ) -> Decision[list[topics.TopicOutcome]]:
        return topics.create_topics(image, self.settings, self._randomness, new, validate_only=validate_only)

    def create_partitions(
        self, image: MetadataImage, growing: Sequence[topics.TopicGrowth], *, validate_only: bool = False
    ) -> Decision[dict[str, Outcome]]:
        return topics.create_partitions(image, self._randomness, growing, validate_only=validate_only)

    def delete_topics(
        self, image: MetadataImage, deletions: Sequence[topics.TopicDeletion]
    ) -> Decision[list[topics.DeletionOutcome]]:
        return topics.delete_topics(image, self.settings, deletions)

    def incremental_alter_configs(
        self,
        image: MetadataImage,
        requests: Sequence[config_changes.ResourceChange],
        *,
        validate_only: bool = False,
    ) -> Decision[config_changes.ConfigOutcomes]:
        return config_changes.incremental_alter_configs(
            image, self.settings, requests, validate_only=validate_only
        )

    def alter_configs(
        self,
        image: MetadataImage,
        requests: Sequence[config_changes.ResourceReplacement],
        *,
        validate_only: bool = False,
    ) -> Decision[config_changes.ConfigOutcomes]:
        return config_changes.alter_configs(image, self.settings, requests, validate_only=validate_only)

    def allocate_producer_ids(
        self, image: MetadataImage, broker_id: int, broker_epoch: int
    ) -> Decision[producer_ids.ProducerIdBlock]:
        return producer_ids.allocate_producer_ids(image, broker_id, broker_epoch)

    def register_broker(
        self,
        image: MetadataImage,
        request: brokers.RegistrationRequest,
        next_offset: int,
        *,
        has_session: bool = False,
    ) -> Decision[int]:
        return brokers.register_broker(image, request, next_offset, has_session=has_session)

    def unfence_broker(self, image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
        return brokers.unfence_broker(image, broker_id, broker_epoch)

    def fence_broker(self, image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[None]:
        return brokers.fence_broker(image, broker_id, broker_epoch)

    def unregister_broker(self, image: MetadataImage, broker_id: int) -> Decision[None]:
        return brokers.unregister_broker(image, broker_id)

    def assign_directories(
        self,
        image: MetadataImage,
        broker_id: int,
        broker_epoch: int,
        assigned: Mapping[TopicPartition, bytes],
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        return brokers.assign_directories(image, broker_id, broker_epoch, assigned)

    def change_directories(
        self, image: MetadataImage, broker_id: int, broker_epoch: int, online: tuple[bytes, ...]
    ) -> Decision[None]:
        return brokers.change_directories(image, broker_id, broker_epoch, online)
