"""Groups whose members speak both protocols, and which go from one protocol to the other and back, in simulation.

Everything that `consumer_simulation` does to its members happens here to members of both protocols in one group: the
processes of a group that is being upgraded or downgraded, some of which are replaced by one of the other protocol each
time that they leave or die, under the same instance id if they have one. Topics grow, and do not go: consumers of the
classic protocol know them by name only. `group.consumer.migration.policy` is each of its values in some seeds.

What must hold after each step, whatever the group is just then:

1. No partition is read by two members that the group takes for members, of whichever protocols.
2. The epoch, or generation, of a group with members does not go back, also when it changes its protocol; nor does
   that of a member of the newer protocol.
3. The records alone give the same groups and offsets as the shard has, also what compaction leaves of them.
4. Offsets are what `offset_ledger` says.
5. A group with a member of the newer protocol is a consumer group; and it changes its protocol only as its policy
   allows, or while it has no members.

In the end everybody who may be is in, and every partition of every topic that one of them subscribes to is read by
exactly one of them. When they have all left nothing remains.
"""

from __future__ import annotations

from collections.abc import Callable

from classic_process import COOPERATIVE, EAGER, ClassicProcess
from consumer_simulation import (
    HEARTBEAT_MS,
    RETENTION_CHECK_MS,
    RETENTION_MS,
    TOPICS,
    ConsumerSimulation,
    SimulatedMember,
)
from reading_process import ReadingProcess

from tidemill.coordination.group.classic import STABLE, ClassicGroup
from tidemill.coordination.group.consumer_group import ConsumerGroup
from tidemill.coordination.group.contract import ConsumerSettings, GroupSettings

POLICIES = [(True, True), (True, True), (True, True), (True, False), (False, True), (False, False)]
"""Whether upgrades and downgrades are allowed."""


class MixedSimulation(ConsumerSimulation):
    steps = 250

    def __init__(self, seed: int) -> None:
        self.protocol = EAGER
        self.fashion = 0.5
        """How likely a new process speaks the classic protocol."""
        self.configured: dict[str, list[str]] = {}
        super().__init__(seed)
        self.kind: type[object] | None = None
        """Of the group, while it has members."""
        self.changes = 0

    def _settings(self) -> GroupSettings:
        self.protocol = self.dice.choice([COOPERATIVE, EAGER])
        self.allows_upgrade, self.allows_downgrade = self.dice.choice(POLICIES)
        return GroupSettings(
            initial_rebalance_delay_ms=self.dice.choice([0, 500, 3000]),
            new_member_join_timeout_ms=20_000,
            offsets_retention_ms=RETENTION_MS,
            offsets_retention_check_interval_ms=RETENTION_CHECK_MS,
            consumer=ConsumerSettings(
                session_timeout_ms=9000,
                heartbeat_interval_ms=HEARTBEAT_MS,
                allows_upgrade=self.allows_upgrade,
                allows_downgrade=self.allows_downgrade,
            ),
        )

    def _process(self, name: str, instance_id: str | None) -> ReadingProcess:
        if self.dice.random() < self.fashion:
            return ClassicProcess(self, name, instance_id, self.protocol, self.configured)
        return SimulatedMember(self, name, instance_id)

    # -- trouble ----------------------------------------------------------------------------------------

    def _happenings(self) -> dict[Callable[[], None], int]:
        return {**super()._happenings(), self._migrate: 4}

    def _migrate(self) -> None:
        """From now on most new processes speak this protocol; one is replaced at once."""
        self.fashion = self.dice.choice([0.05, 0.05, 0.5, 0.95])
        self.note(f"the fashion is {self.fashion}")
        self._leave()

    def _crash(self) -> None:
        super()._crash()
        for member in self.members:
            if isinstance(member, ClassicProcess):
                member.lose_connection()

    def _change_topics(self) -> None:
        name = self.dice.choice(TOPICS)
        topic = self.driver.topics.by_name(name)
        count = 1 if topic is None else topic.partition_count + 1
        self.driver.set_topic(name, count)
        self.note(f"{name} has {count} partitions")

    # -- invariants -------------------------------------------------------------------------------------

    def _check_group(self, group: object) -> None:
        assert group is None or isinstance(group, ClassicGroup | ConsumerGroup)
        if group is None or not len(group.members):
            self.kind, self.group_epoch, self.member_epochs = None, 0, {}
            return
        self._check_kind(group)
        if isinstance(group, ConsumerGroup):
            super()._check_group(group)
        else:
            self._check_classic(group)

    def _check_kind(self, group: ClassicGroup | ConsumerGroup) -> None:
        if self.kind not in (None, type(group)):
            self.changes += 1
            is_upgrade = isinstance(group, ConsumerGroup)
            self.note(f"the group is a {type(group).__name__} now")
            assert self.allows_upgrade if is_upgrade else self.allows_downgrade, "the policy forbids it"
            if not is_upgrade:
                self.group_epoch -= 1  # that of the last leave: no member ever hears of it
        self.kind = type(group)

    def _check_classic(self, group: ClassicGroup) -> None:
        """A generation counts when it is stored: one that is not complete begins again after a crash."""
        self.member_epochs = {}
        if group.stored is not None:
            assert group.generation >= group.stored.generation >= self.group_epoch, "the generation went back"
            self.group_epoch = group.stored.generation
        current = [each for each in self.members if each.member_id in group.members]
        assert all(isinstance(each, ClassicProcess) for each in current), "it does not speak this protocol"
        self._check_one_reader(each for each in current if each.commit_epoch == group.generation)

    # -- the end ----------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        group = self.driver.shard.group("g")
        if isinstance(group, ConsumerGroup):
            inside = [each for each in self.members if each.is_in]
            has_all = len(inside) == len(self.members) or self._must_stay_out(inside)
            is_complete = has_all and {each.member_id for each in inside} == group.members.keys()
            return (
                group.state == "Stable"
                and is_complete
                and all(each.commit_epoch == group.epoch for each in inside)
            )
        if not isinstance(group, ClassicGroup):
            return False
        others = [each for each in self.members if not isinstance(each, ClassicProcess)]
        inside = [each for each in self.members if each.is_in and each.member_id in group.members]
        is_complete = len(inside) == len(group.members) == len(self.members) - len(others)
        is_complete &= all(each.commit_epoch == group.generation for each in inside)
        return group.state is STABLE and is_complete and not (others and self.allows_upgrade)

    def _must_stay_out(self, inside: list[ReadingProcess]) -> bool:
        """Where groups may not change their protocol, a consumer group takes none that speak the other one."""
        others = [each for each in self.members if each not in inside]
        may_come = self.allows_upgrade or self.allows_downgrade
        return not may_come and all(isinstance(each, ClassicProcess) for each in others)

    def subscribed_topics(self) -> set[str]:
        if isinstance(self.driver.shard.group("g"), ConsumerGroup):
            return super().subscribed_topics()
        classic = [each for each in self.members if isinstance(each, ClassicProcess)]
        return {name for each in classic for name in each.topics}
