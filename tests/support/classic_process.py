"""A consumer of the classic protocol in simulation, eager or cooperative, which also lives in a consumer group.

    phase      | what it does next                           | then
    -----------+---------------------------------------------+--------------------------------------------
    out        | sends JoinGroup with what it wants and owns | joining
    joining    | waits for the answer; a leader assigns      | syncing, or out if it was refused
    syncing    | waits for its assignment                    | in, or out
    in         | reads, commits, sends heartbeats            | out, when it is told to, or has given something up

An eager one gives up everything before it joins. A cooperative one gives up only what it does not subscribe to any
more and reads on; what its new assignment lacks it gives up then, and joins again to say so. In a consumer group nobody
leads; in a classic one the leader also joins again when topics have grown.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from group_driver import NOT_WRITTEN
from reading_process import Partition, ReadingProcess, Surroundings

from tidemill.coordination.group.classic_subscription import (
    Subscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
    write_assignment,
)
from tidemill.coordination.group.modern import Topics
from tidemill.model.errors import ErrorCode
from tidemill.wire.schema import encode

COOPERATIVE, EAGER = "cooperative-sticky", "range"
SESSION_MS, REBALANCE_MS = 9000, 8000
UNKNOWN_COUNTS: dict[str, int] = {}
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class ClassicProcess(ReadingProcess):
    names_itself_in_fetches = False

    def __init__(
        self,
        simulation: Surroundings,
        name: str,
        instance_id: str | None,
        protocol: str,
        configured: dict[str, list[str]],
    ) -> None:
        """`configured`: what instances subscribe to. One that comes back elsewhere has not changed its mind: as its
        group does not rebalance for it, nobody would notice."""
        super().__init__(simulation, name, instance_id)
        self.protocol = protocol
        self.configured = configured
        self.version = simulation.dice.choice([1, 2, 3] if self.is_cooperative else [0, 1, 3])
        self.topics = configured.get(instance_id or "") or self._wanted_topics()
        self.member_id = ""
        self.generation = -1
        self.phase = "out"
        self.assigned: set[Partition] = set()
        self.token = ""
        self.led_for: Mapping[str, int] | None = None
        """The topics that it assigned as leader, and how many partitions they had. One that came back and led before
        cannot know, and one that held partitions back for their owners does not count on these: it assigns anew."""

    @property
    def is_cooperative(self) -> bool:
        return self.protocol == COOPERATIVE

    @property
    def commit_epoch(self) -> int:
        return self.generation

    @property
    def is_in(self) -> bool:
        return self.phase == "in"

    def _wanted_topics(self) -> list[str]:
        return self.simulation.wish()[0] or ["orders"]

    # -- membership -----------------------------------------------------------------------------------------

    def beat(self) -> None:
        before = self.phase
        getattr(self, f"_when_{before}")()
        self.simulation.note(
            f"{self.name}: {before} -> {self.phase} at {self.generation}, reads {self._read_names()}"
        )

    def _read_names(self) -> list[str]:
        return [f"{topic}-{index}" for topic, index in self._known(self.reads).values()]

    def _when_out(self) -> None:
        if self.reads and not self._is_still_member():
            return
        kept = {each for each, key in self._known(self.reads).items() if key[0] in self.topics}
        self.stop_reading(self.reads - kept if self.is_cooperative else set(self.reads))
        if self.instance_id is not None:
            self.configured[self.instance_id] = self.topics
        self.token, self.phase = self.simulation.new_id(self.name), "joining"
        self.driver.join(
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocols=[(self.protocol, self._subscription())],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            token=self.token,
        )

    def _is_still_member(self) -> bool:
        """Heartbeats go on beside everything else: nobody joins again with partitions that it has lost since."""
        code = self.driver.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._failed(code)
        return self.generation >= 0

    def _subscription(self) -> bytes:
        owned: dict[str, list[int]] = {}
        for topic, index in self._known(self.reads).values():
            owned.setdefault(topic, []).append(index)
        message = Subscription(
            topics=self.topics,
            owned_partitions=[TopicPartitions(topic=name, partitions=each) for name, each in owned.items()],
        )
        return struct.pack(">h", self.version) + encode(message, self.version)

    def _answer(self) -> Any:
        """None while there is none; one that is lost is as one that was never sent."""
        answer = self.driver.replies.get(self.token)
        return NOT_WRITTEN if answer is not None and self.simulation.is_lost() else answer

    def _when_joining(self) -> None:
        answer = self._answer()
        if answer is None:
            return
        if answer == NOT_WRITTEN:
            self.phase = "out"
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id, self.phase = answer.member_id, "out"
        elif answer.error_code:
            self._failed(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._sync(answer)

    def _sync(self, answer: Any) -> None:
        assignments, self.led_for = None, None
        if answer.leader == answer.member_id and answer.skip_assignment:
            self.led_for = UNKNOWN_COUNTS
        elif answer.leader == answer.member_id:
            subscriptions = {entry.member_id: read_subscription(entry.metadata) for entry in answer.members}
            self.led_for = topic_counts(self.driver.topics, subscriptions)
            shares = assign(subscriptions, self.led_for, is_cooperative=self.is_cooperative)
            assignments = {each: write_assignment(share, self.version) for each, share in shares.items()}
            if sum(len(indexes) for share in shares.values() for indexes in share.values()) < sum(
                self.led_for.values()
            ):
                self.led_for = UNKNOWN_COUNTS
        self.token, self.phase = self.simulation.new_id(self.name), "syncing"
        self.driver.sync(
            self.member_id, self.generation, assignments, instance_id=self.instance_id, token=self.token
        )

    def _when_syncing(self) -> None:
        answer = self._answer()
        if answer is None:
            return
        if answer == NOT_WRITTEN:
            self.phase = "out"
        elif answer.error_code:
            self._failed(answer.error_code)
        else:
            self._take(read_assignment(answer.assignment))

    def _take(self, named: Mapping[str, frozenset[int]]) -> None:
        """What is new is read at once; what is missing when it has been given up."""
        found = ((self.driver.topics.by_name(name), indexes) for name, indexes in named.items())
        self.assigned = {(topic.topic_id, index) for topic, indexes in found if topic for index in indexes}
        self.reads |= self.assigned
        self.phase = "in"

    def _when_in(self) -> None:
        if self.reads - self.assigned and not self.is_still_busy():
            self.stop_reading(self.reads - self.assigned)
            self.phase = "out"
        elif self.led_for is not None and self._has_news(self.led_for):
            self.phase = "out"
        else:
            code = self.driver.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
            if code:
                self._failed(code)

    def _has_news(self, counts: Mapping[str, int]) -> bool:
        return counts == UNKNOWN_COUNTS or any(
            (topic := self.driver.topics.by_name(name)) is not None and topic.partition_count != count
            for name, count in counts.items()
        )

    def _failed(self, code: int) -> None:
        """Who is out, or in another generation, has lost everything; any other error is a reason to join again."""
        if code in GONE or code == ErrorCode.ILLEGAL_GENERATION:
            self.stop_reading(set(self.reads))
            self.generation = -1
        if code in GONE:
            self.member_id = ""
        self.phase = "out"

    def on_refused_commit(self, code: int) -> None:
        if code != ErrorCode.UNKNOWN_SERVER_ERROR:
            self._failed(code)

    def lose_connection(self) -> None:
        """Whoever waits for an answer of a shard that crashed asks again."""
        if self.phase in ("joining", "syncing") and self.token not in self.driver.replies:
            self.phase = "out"

    def quit(self, *, for_good: bool) -> int | str:
        """A static member that wants to come back says nothing."""
        if not for_good:
            return "without a word"
        reply = self.driver.leave((self.member_id, self.instance_id))
        return int(reply.error_code or reply.members[0].error_code)

    def change_mind(self) -> None:
        if not self.is_in:
            return
        self.topics, self.phase = self._wanted_topics(), "out"
        self.simulation.note(f"{self.name} subscribes to {self.topics}")


# -- what a leader does -----------------------------------------------------------------------------------


def topic_counts(topics: Topics, subscriptions: Mapping[str, Subscription]) -> dict[str, int]:
    """Of all topics that somebody subscribes to; 0 for one that does not exist."""
    names = sorted({name for each in subscriptions.values() for name in each.topics})
    found = {name: topics.by_name(name) for name in names}
    return {name: 0 if topic is None else topic.partition_count for name, topic in found.items()}


def assign(
    subscriptions: Mapping[str, Subscription], counts: Mapping[str, int], *, is_cooperative: bool
) -> dict[str, dict[str, list[int]]]:
    """In turn to those who subscribe; cooperative, what another one owns waits until that one has given it up."""
    shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in subscriptions}
    for topic, count in counts.items():
        members = sorted(each for each, wanted in subscriptions.items() if topic in wanted.topics)
        for index in range(count):
            chosen = members[index % len(members)]
            others = {each for each in members if _owns(subscriptions[each], topic, index)} - {chosen}
            if not (is_cooperative and others):
                shares[chosen].setdefault(topic, []).append(index)
    return shares


def _owns(subscription: Subscription, topic: str, index: int) -> bool:
    return any(each.topic == topic and index in each.partitions for each in subscription.owned_partitions)
