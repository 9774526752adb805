"""The broker: the only place that wires everything together.

Start: bind, lock the directories, read the metadata log, load the logs, register, open the door.
Stop: close the door, answer what was asked, write everything down, leave the mark of a clean end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable

from tidemill.api.handlers import Handlers
from tidemill.api.pipeline import LISTENER, Pipeline
from tidemill.api.services import Services
from tidemill.api.settings import BrokerSettings
from tidemill.metadata.brokers import RegistrationRequest
from tidemill.metadata.controller import Controller
from tidemill.metadata.decisions import CLUSTER_DEFAULT, ControllerSettings
from tidemill.metadata.features import UnsupportedMetadataVersion
from tidemill.metadata.image import Endpoint, MetadataImage, ResourceType
from tidemill.metadata.quorum import Commit, ForeignQuorum, QuorumOfOne
from tidemill.metadata.store import StoreSettings
from tidemill.model.config_effects import why_without_effect
from tidemill.model.errors import CorruptLog
from tidemill.model.ids import ZERO_UUID, TopicPartition, uuid_text
from tidemill.ports.clock import SystemClock
from tidemill.ports.disk import Disk
from tidemill.ports.randomness import SystemRandomness
from tidemill.replication.manager import ReplicaManager
from tidemill.server.coordinators import Coordinators
from tidemill.server.data_lock import DataLock, UnusableDirectory
from tidemill.server.directories import DirectoryReports, assigned_directory, wanted_log
from tidemill.server.flusher import Flusher
from tidemill.server.housekeeping import Housekeeping
from tidemill.server.listener import ConnectionLimits, Listener
from tidemill.server.metadata_service import MetadataService
from tidemill.server.options import BrokerOptions, StartError
from tidemill.server.timer import LoopWheel
from tidemill.server.topic_configs import TopicConfigs
from tidemill.storage.config import LogConfig
from tidemill.storage.data_directory import WrongDirectory, cluster_id_in, require_ours
from tidemill.storage.manager import LogManager
from tidemill.storage.open_files import OpenFiles

logger = logging.getLogger(__name__)

DRAIN_PATIENCE_S = 5.0
BACKLOG = 1024
PLAINTEXT = 0
RESERVED_DESCRIPTORS = 64
"""For the interpreter, the metadata log, threads' files, listeners."""
UNREADABLE_METADATA = (CorruptLog, UnsupportedMetadataVersion, ForeignQuorum, WrongDirectory)


class Broker:
    def __init__(self, options: BrokerOptions) -> None:
        self.options = options
        self.host = options.advertised_host
        self.port = options.advertised_port
        self._clock = SystemClock()
        self._randomness = SystemRandomness()
        self._files = Disk()
        self._lock = DataLock()
        self._cleanup = contextlib.AsyncExitStack()
        self._controller = Controller(
            ControllerSettings(options.node_id, options.properties), self._randomness
        )
        self._topic_configs: TopicConfigs | None = None
        self._unusable: dict[str, OSError] = {}
        self._is_stopping = False
        self.has_failed = False
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the broker cannot go on, because its metadata log is lost."""

    # -- start ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        sock = self._bind()
        self._cleanup.callback(sock.close)
        self._cleanup.callback(self._lock.release)
        self._lock_directories()
        self._open_storage()
        self._register()
        loop = asyncio.get_running_loop()
        self._wheel = LoopWheel(loop, self._clock)
        self._replicas = ReplicaManager(self.options.node_id, self._logs, self._wheel)
        self._metadata = MetadataService(self._quorum, self._apply)
        self._directories = DirectoryReports(self.options.node_id, self._controller, self._logs, self.epoch)
        self._coordinators = Coordinators(
            self._replicas,
            self._metadata,
            self._controller,
            self._wheel,
            self._clock,
            self._randomness,
            self._settings.layers,
        )
        self._flusher = Flusher(self._replicas)
        self._housekeeping = Housekeeping(self._logs, self._metadata, self._clock, lambda: self._settings)
        self._adopt_partitions()
        self._serve(loop, sock)
        self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        """Last, so that a start which fails says one thing only: why."""
        for key in self.options.unknown_keys:
            logger.warning("the setting %s is not known and has no effect", key)
        idle = [key for key in self.options.properties if why_without_effect(key) is not None]
        if idle:
            logger.warning("settings without effect here (docs/configs.md says why): %s", ", ".join(idle))

    def _lock_directories(self) -> None:
        """The first holds the metadata and must be there; another one that cannot be used is a failed disk."""
        first, *others = self.options.data_directories
        self._lock.acquire(first)
        for directory in others:
            try:
                self._lock.acquire(directory)
            except UnusableDirectory as failure:
                self._unusable[directory.rstrip("/")] = failure.error

    def _bind(self) -> socket.socket:
        host, port = self.options.host, self.options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(int(self.options.properties.get("socket.listen.backlog.size", BACKLOG)))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"port {port} on {host} is in use; stop what listens there or choose another with --listen"
                ) from error
            raise StartError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose an address of this machine with --listen"
            ) from error
        except OverflowError as error:
            sock.close()
            raise StartError(f"{port} is no port number") from error
        sock.setblocking(False)
        self.port = self.options.advertised_port or sock.getsockname()[1]
        return sock

    def _open_storage(self) -> None:
        """Metadata first: it knows the configuration that the logs are opened with."""
        options = self.options
        directories = options.data_directories
        self.cluster_id = cluster_id_in(self._files, directories) or uuid_text(self._randomness.uuid())
        try:
            require_ours(self._files, directories, options.node_id, self.cluster_id)
            self._quorum = QuorumOfOne.open(
                self._files,
                directories[0],
                node_id=options.node_id,
                cluster_id=self.cluster_id,
                clock=self._clock,
                settings=StoreSettings.of(options.properties),
            )
            self._quorum.commit()
            self._refresh_settings(self._quorum.image)
            self._logs = LogManager(
                self._files,
                self._randomness,
                directories,
                self._config_of,
                open_files=OpenFiles(_handle_limit()),
                on_failure=self._directory_failed,
            )
            self._configure_logs()
            report = self._logs.start(
                options.node_id,
                self.cluster_id,
                self._clock.wall_ms(),
                wanted=lambda where: wanted_log(self._quorum.image, where, options.node_id),
                unusable=self._unusable,
            )
        except UNREADABLE_METADATA as error:
            raise StartError(str(error)) from error
        except OSError as error:
            raise StartError(f"cannot use the data directory {directories[0]}: {error}") from error
        for partition, quarantine in report.quarantined.items():
            logger.error("%s is offline: %s", partition, quarantine.reason)
        for text in report.unreadable:
            logger.warning("%s; it is done without", text)
        for partition, missing in report.missing_offsets.items():
            logger.error("%s ends %d offsets before what had been synced: data is lost", partition, missing)
        logger.info("loaded %d partitions, %d of them checked after a crash", report.loaded, report.recovered)

    def _register(self) -> None:
        """Say who and where we are, and become active; both are on the disk before the first client."""
        quorum, options = self._quorum, self.options
        request = RegistrationRequest(
            broker_id=options.node_id,
            incarnation_id=self._randomness.uuid(),
            listeners=(Endpoint(LISTENER, self.host, self.port, PLAINTEXT),),
            directories=tuple(each.directory_id for each in self._logs.directories if each.is_online),
            rack=options.rack,
            after_clean_shutdown=all(directory.is_clean for directory in self._logs.directories),
            cluster_id=self.cluster_id,
        )
        decision = self._controller.register_broker(quorum.latest_image, request, quorum.next_offset)
        quorum.propose(decision.records)
        self.epoch = decision.result
        quorum.propose(
            self._controller.unfence_broker(quorum.latest_image, options.node_id, self.epoch).records
        )
        quorum.commit()

    def _adopt_partitions(self) -> None:
        image = self._quorum.image
        known = {TopicPartition(topic.name, index) for topic, index, _ in image.partitions()}
        for stray in set(self._logs.logs) - known:
            logger.warning("%s is not in the metadata: its files are kept as a -stray directory", stray)
            self._logs.set_aside(stray)
        self._logs.note_lost(
            {where: assigned_directory(image, where, self.options.node_id) or ZERO_UUID for where in known}
        )
        self._replicas.apply(image, known, self._clock.wall_ms())
        self._quorum.propose(self._directories.assignments(self._quorum.latest_image, known).records)
        self._quorum.commit()
        self._coordinators.apply(sorted(known))

    def _serve(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._services = Services(
            node_id=self.options.node_id,
            cluster_id=self.cluster_id,
            clock=self._clock,
            randomness=self._randomness,
            settings=self._settings,
            metadata=self._metadata,
            controller=self._controller,
            replicas=self._replicas,
            coordinators=self._coordinators,
        )
        self._pipeline = Pipeline(Handlers(self._services))
        self._listener = Listener(loop, sock, self._connection_limits())
        self._metadata.on_failure = self._metadata_failed
        self._flusher.start()
        self._housekeeping.start()
        self._listener.start(self._pipeline.handle)

    # -- metadata arrives -----------------------------------------------------------------------------

    def _apply(self, commit: Commit) -> None:
        image, changes = commit
        broker_changed = False
        for resource_type, name in changes.configs:
            if resource_type == ResourceType.BROKER and name in (CLUSTER_DEFAULT, str(self.options.node_id)):
                broker_changed = True
        if broker_changed:
            self._refresh_settings(image)
            self._configure_logs()
            self._services.settings = self._settings
            self._listener.limits = self._connection_limits()
            for topic in image.topics.values():
                self._logs.reconfigure(topic.name, topic.partitions)
        for resource_type, name in changes.configs:
            if resource_type == ResourceType.TOPIC and name in image.topics:
                self._logs.reconfigure(name, image.topics[name].partitions)
        self._replicas.apply(image, changes.partitions, self._clock.wall_ms())
        self._directories.report(self._metadata, sorted(changes.partitions))
        self._coordinators.apply(sorted(changes.partitions))
        self._coordinators.topics_deleted(changes.topics_deleted)

    def _configure_logs(self) -> None:
        self._logs.cordoned = self._settings.cordoned_directories
        self._logs.producer_expiration_ms = self._settings.producer_expiration_ms
        self._logs.compaction.offset_map_bytes = self._settings.cleaner_buffer_bytes

    def _refresh_settings(self, image: MetadataImage) -> None:
        layers = self._controller.settings.layers(image)
        self._settings = BrokerSettings.from_layers(layers)
        self._topic_configs = TopicConfigs(layers)

    def _config_of(self, topic: str) -> LogConfig:
        assert self._topic_configs is not None
        return self._topic_configs.resolve(self._quorum.image.config_of(ResourceType.TOPIC, topic))

    def _connection_limits(self) -> ConnectionLimits:
        settings = self._settings
        return ConnectionLimits(
            max_frame_bytes=settings.max_request_bytes,
            max_idle_s=settings.max_idle_ms / 1000,
            max_connections=min(settings.max_connections, _connection_limit()),
            max_connections_per_ip=settings.max_connections_per_ip,
            max_connections_of=settings.max_connections_of,
            max_new_per_second=settings.max_connection_creation_rate,
            send_buffer_bytes=settings.send_buffer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )

    def _directory_failed(self, path: str, partitions: list[TopicPartition], error: OSError) -> None:
        logger.error(
            "the data directory %s failed, %d partitions are offline: %s", path, len(partitions), error
        )
        if hasattr(self, "_replicas"):
            self._replicas.take_offline(partitions)
            self._coordinators.apply(partitions)
            if path == self._logs.directories[0].path or not any(d.is_online for d in self._logs.directories):
                self._metadata_failed(error)
            else:
                self._directories.report_failure(self._metadata)

    def _metadata_failed(self, error: Exception) -> None:
        self.has_failed = True
        self.on_failure()

    # -- stop -----------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Graceful: everything that was asked is answered, everything that was written is noted."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._listener.stop_accepting()
        self._coordinators.stop()
        self._replicas.release_all()
        await self._listener.drain(DRAIN_PATIENCE_S)
        await self._housekeeping.stop()
        await self._flusher.stop()
        await self._metadata.stop()
        self._wheel.stop()
        self._logs.close(self.epoch)
        self._quorum.close()
        await self._cleanup.aclose()

    async def abandon(self) -> None:
        """Give back what a failed start had taken."""
        await self._cleanup.aclose()


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _handle_limit() -> int:
    """Half of the descriptors for files of logs; a map of an index counts as one, though it needs none."""
    return max(64, min(20_000, (_descriptor_limit() - RESERVED_DESCRIPTORS) // 2))


def _connection_limit() -> int:
    return max(16, (_descriptor_limit() - RESERVED_DESCRIPTORS) // 2 - RESERVED_DESCRIPTORS)
