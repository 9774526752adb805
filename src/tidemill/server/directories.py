"""Data directories as the cluster's metadata sees them (KIP-858).

A broker with several directories chooses one for each new partition and reports the choice (`PartitionChangeRecord`);
with one directory the controller writes it into the partition's first record. A directory that fails is taken out of
the broker's registration. So the metadata knows, after a restart as well, whose data a failed disk holds:

    metadata says            the log is                then
    directory A              in A                      nothing to do
    directory A              in B (moved by hand)      B is reported
    nothing, or "unassigned" in B                      B is reported
    directory A              nowhere, A is offline     the partition is offline until A is back
    directory A              nowhere, A is online      it is made anew, in A

Limits: the partitions of a failed directory keep this broker as their leader, which answers KAFKA_STORAGE_ERROR;
with one broker there is no other to elect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import Decision
from tidemill.metadata.image import MetadataImage, PartitionState
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.model.ids import TopicPartition
from tidemill.server.metadata_service import MetadataService
from tidemill.storage.manager import LogManager, WantedLog

logger = logging.getLogger(__name__)


class DirectoryReports:
    def __init__(self, node_id: int, controller: Controller, logs: LogManager, epoch: int) -> None:
        self._node_id = node_id
        self._controller = controller
        self._logs = logs
        self._epoch = epoch
        self._tasks: set[asyncio.Task[None]] = set()

    def assignments(
        self, image: MetadataImage, partitions: Iterable[TopicPartition]
    ) -> Decision[dict[TopicPartition, ErrorCode]]:
        """The records that tell where these partitions lie, as far as the metadata does not know."""
        found = {where: self._logs.directory_id_of(where) for where in partitions}
        differing = {
            where: directory
            for where, directory in found.items()
            if directory is not None and assigned_directory(image, where, self._node_id) != directory
        }
        return self._controller.assign_directories(image, self._node_id, self._epoch, differing)

    def online(self, image: MetadataImage) -> Decision[None]:
        ids = tuple(each.directory_id for each in self._logs.directories if each.is_online)
        return self._controller.change_directories(image, self._node_id, self._epoch, ids)

    def report(self, metadata: MetadataService, partitions: list[TopicPartition]) -> None:
        """Without waiting: nobody depends on it before the next start."""
        if partitions and self.assignments(metadata.image, partitions).records:
            self._begin(metadata.change(lambda image: self.assignments(image, partitions)))

    def report_failure(self, metadata: MetadataService) -> None:
        self._begin(metadata.change(self.online))

    def _begin(self, change: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(change: Coroutine[Any, Any, Any]) -> None:
    try:
        await change
    except ApiError as error:
        logger.error("the metadata does not know of the state of the data directories: %s", error)


def assigned_directory(image: MetadataImage, where: TopicPartition, node_id: int) -> bytes | None:
    """Where the metadata says that this broker's replica lies; None if it has none."""
    state = _state(image, where)
    if state is None or node_id not in state.replicas:
        return None
    return state.directory_of(node_id)


def wanted_log(image: MetadataImage, where: TopicPartition, node_id: int) -> WantedLog | None:
    """What the metadata says about a partition whose files were found."""
    directory = assigned_directory(image, where, node_id)
    return WantedLog(where, image.topics[where.topic].topic_id, directory) if directory is not None else None


def _state(image: MetadataImage, where: TopicPartition) -> PartitionState | None:
    topic = image.topics.get(where.topic)
    return topic.partitions.get(where.partition) if topic else None
