"""Which partitions of a share group have state at the share coordinator, or are on the way there.

A partition is given to members only when its state exists. The group coordinator notes what it is about to do, asks
the share coordinator (through the persister), and notes that it is done; a crash in between leaves a trace, and the
next heartbeat asks again:

    (none) --subscribed--> initializing --state exists--> initialized --offsets or group deleted--> deleting --> (none)
                           initializing --refused-------> (none)
           anything --topic deleted--> (none)

A value: each change gives a new one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tidemill.coordination.group.assignments import minus, plus
from tidemill.coordination.group.assignor import Assignment


@dataclasses.dataclass(frozen=True, slots=True)
class StatePartitions:
    initializing: Assignment = dataclasses.field(default_factory=dict)
    initialized: Assignment = dataclasses.field(default_factory=dict)
    deleting: frozenset[bytes] = frozenset()
    names: Mapping[bytes, str] = dataclasses.field(default_factory=dict)
    """Of all topics above."""

    def with_initializing(self, partitions: Assignment, names: Mapping[bytes, str]) -> StatePartitions:
        return dataclasses.replace(
            self,
            initializing=plus(self.initializing, partitions),
            initialized=minus(self.initialized, partitions),
            names={**self.names, **names},
        )

    def with_initialized(self, partitions: Assignment) -> StatePartitions:
        """Only what is still being initialised: the topic may be gone by now."""
        arrived = {
            topic_id: indexes & self.initializing.get(topic_id, frozenset())
            for topic_id, indexes in partitions.items()
        }
        return dataclasses.replace(
            self,
            initializing=minus(self.initializing, partitions),
            initialized=plus(self.initialized, arrived),
        )._tidy()

    def without_initializing(self, partitions: Assignment) -> StatePartitions:
        return dataclasses.replace(self, initializing=minus(self.initializing, partitions))._tidy()

    def with_deleting(self, topic_ids: Iterable[bytes]) -> StatePartitions:
        gone = frozenset(topic_ids)
        kept = self.without_topics(gone)
        names = {topic_id: self.names.get(topic_id, "") for topic_id in gone}
        return dataclasses.replace(kept, deleting=kept.deleting | gone, names={**kept.names, **names})

    def without_topics(self, topic_ids: Iterable[bytes]) -> StatePartitions:
        gone = frozenset(topic_ids)
        return StatePartitions(
            {topic_id: indexes for topic_id, indexes in self.initializing.items() if topic_id not in gone},
            {topic_id: indexes for topic_id, indexes in self.initialized.items() if topic_id not in gone},
            self.deleting - gone,
            self.names,
        )._tidy()

    def _tidy(self) -> StatePartitions:
        topics = self.topic_ids()
        return dataclasses.replace(
            self, names={topic_id: name for topic_id, name in self.names.items() if topic_id in topics}
        )

    def topic_ids(self) -> set[bytes]:
        return self.initializing.keys() | self.initialized.keys() | self.deleting
