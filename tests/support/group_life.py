"""A life of groups in single requests, to be lived on two brokers: what is answered is written down.

    def live(life: GroupLife) -> None:
        life.topic("jobs", 2)
        life.call("describe", ShareGroupDescribeRequest(group_ids=["workers"]))

    live_all(KafkaPeer(...), GroupLife, [live])["live"].answers        # [("describe", {...})]

Each life has topics and groups of its own: what it calls "jobs" is "live-jobs" for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from broker_process import BrokerProcess
from decoded_records import decoded, without_chance
from kafka_tools import complaints, dump_log, dumped_records
from raw import batch_of, produce, topic_id
from told import told
from waiting import wait_until

from tidemill.model.ids import uuid_text
from tidemill.testing import WireClient
from tidemill.testing.embedded import create_topic
from tidemill.wire.messages import describe_configs, incremental_alter_configs
from tidemill.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.list_groups import ListGroupsRequest

SETTINGS: dict[str, object] = {
    "auto.create.topics.enable": "false",
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.max.size": 3,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "group.share.assignment.interval.ms": 0,
    "group.share.max.size": 3,
    "group.share.min.heartbeat.interval.ms": 500,
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}
"""Kafka gathers changes of a second before it assigns; here every change is assigned at once."""
COORDINATOR_IS_BUSY = (14, 15, 16)
GROUP_RESOURCE = 32
CHANCE = ("timestamp", "hash", "clienthost", "clientid", "version")


class GroupLife:
    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.connection = WireClient(bootstrap)
        self.answers: list[tuple[str, Any]] = []
        self.names: dict[bytes | str, str] = {}
        self._prefix = f"{name}-"
        self._connections = [self.connection]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def connect(self) -> WireClient:
        self._connections.append(WireClient(self.bootstrap))
        return self._connections[-1]

    # -- names ------------------------------------------------------------------------------------------------

    def full(self, name: str) -> str:
        """The name of a topic or a group as the broker knows it; an empty one stays empty."""
        if not name:
            return name
        self.names[self._prefix + name] = name
        return self._prefix + name

    def id_of(self, topic: str) -> bytes:
        """Of a topic that does not exist, one that nobody has."""
        known = {name: key for key, name in self.names.items() if isinstance(key, bytes)}
        return known.get(topic, topic.encode().ljust(16, b"."))

    # -- what every life needs --------------------------------------------------------------------------------

    def call(self, label: str, request: Any, version: int | None = None) -> Any:
        answer = self.connection.call(request, version)
        self.note(label, answer)
        return answer

    def note(self, label: str, answer: Any) -> None:
        self.answers.append((label, told(answer, self.names)))

    def topic(self, name: str, partitions: int = 1) -> None:
        """Made, and seen by the coordinator of groups, which hears of topics later than others in Kafka."""
        create_topic(self.bootstrap, self.full(name), partitions, {})
        probe = ConsumerGroupHeartbeatRequest(
            group_id=f"{self._prefix}probe-{name}",
            member_id="probe",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[self.full(name)],
            topic_partitions=[],
        )

        def is_seen() -> bool:
            self.connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[probe.group_id]))
            answer = self.connection.call(probe)
            assert not answer.error_code or answer.error_code in COORDINATOR_IS_BUSY, answer
            return bool(answer.assignment and answer.assignment.topic_partitions)

        wait_until(is_seen, f"that {name} is assigned")
        self.names[topic_id(self.connection, self.full(name))] = name
        self.connection.call(
            ConsumerGroupHeartbeatRequest(group_id=probe.group_id, member_id="probe", member_epoch=-1)
        )

    def produce(self, topic: str, *values: str) -> None:
        """One batch."""
        part = produce(self.connection, self.full(topic), batch_of(*map(str.encode, values)))
        assert part.error_code == 0

    def configure(self, group: str, operation: int = 0, **settings: str | None) -> None:
        """By keyword, with underscores for dots; to be done before a topic is made, then the coordinator knows."""
        configs = [
            incremental_alter_configs.AlterableConfig(
                name=name.replace("_", "."), config_operation=operation, value=value
            )
            for name, value in settings.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=self.full(group), configs=configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        self.call(f"configure {group} {settings}", request)

    def describe_configs(self, group: str, keys: list[str] | None) -> None:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=self.full(group), configuration_keys=keys
        )
        request = describe_configs.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        answer = self.connection.call(request)
        for result in answer.results:
            result.configs = sorted(
                (each for each in result.configs if not each.name.startswith("streams.")),
                key=lambda config: config.name,
            )
        self.note(f"describe configs of {group}", answer)

    def consumer_beat(
        self,
        group: str,
        member: str,
        epoch: int,
        topics: list[str] | None = None,
        owned: dict[str, list[int]] | None = None,
        version: int | None = None,
        **fields: Any,
    ) -> Any:
        """A heartbeat of the newer protocol; who joins says all that is asked of it."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.full(group), member_id=member, member_epoch=epoch
        )
        if epoch == 0:
            request.rebalance_timeout_ms, request.topic_partitions = 20_000, []
        if topics is not None:
            request.subscribed_topic_names = [self.full(topic) for topic in topics]
        if owned is not None:
            request.topic_partitions = [
                TopicPartitions(topic_id=self.id_of(topic), partitions=indexes)
                for topic, indexes in owned.items()
            ]
        for name, value in fields.items():
            setattr(request, name, value)
        answer = self.connection.call(request, version)
        if answer.assignment is not None:
            answer.assignment.topic_partitions.sort(key=lambda each: self.names[each.topic_id])
        self.note(f"consumer beat {group} {member} {epoch} {topics} {owned} {fields}", answer)
        return answer

    def list(self, **filters: list[str]) -> None:
        answer = self.connection.call(ListGroupsRequest(**filters))
        mine = [group for group in answer.groups if self.names.get(group.group_id)]
        answer.groups = sorted(mine, key=lambda group: group.group_id)
        self.note(f"list {filters}", answer)

    def delete(self, *groups: str) -> None:
        answer = self.connection.call(DeleteGroupsRequest(groups_names=[self.full(name) for name in groups]))
        answer.results.sort(key=lambda result: result.group_id)
        self.note(f"delete {groups}", answer)


Life = TypeVar("Life", bound=GroupLife)


def live_all(
    broker: BrokerProcess, kind: type[Life], lives: Iterable[Callable[[Life], None]]
) -> dict[str, Life]:
    """Every life by the name of its function, when all are over. The broker is left stopped."""
    found = {}
    with broker:
        for live in lives:
            life = found[live.__name__] = kind(broker.bootstrap, live.__name__)
            try:
                live(life)
            finally:
                life.close()
        broker.stop()
    return found


def group_records(broker: BrokerProcess, topic: str, decoder: str, life: GroupLife, group: str) -> list[Any]:
    """Records of a group in an internal topic of one partition, as Kafka prints them, without what chance made."""
    text = dump_log(sorted((broker.data_directory / f"{topic}-0").glob("*.log")), decoder)
    assert not complaints(text), text
    names = {uuid_text(key): name for key, name in life.names.items() if isinstance(key, bytes)}
    pairs = [(decoded(each.key), decoded(each.payload)) for each in dumped_records(text)]
    return [
        tuple(without_chance(each, CHANCE, names, is_in_order=False) for each in (key, value))
        for key, value in pairs
        if isinstance(key, dict) and key["data"].get("groupId") == life.full(group)
    ]
