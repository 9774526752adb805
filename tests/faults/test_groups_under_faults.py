"""Groups whose members join, leave, die and stall while messages flow and the broker is killed: nothing is skipped.

Three groups read one topic at the same time, each with members of one client. A member writes down what it reads before
it commits it, so whatever is committed must be written down by somebody: what is not, was skipped. All offsets that
were ever committed are read from the log of the coordinator itself: none is lower than the one before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer
from raw import fetch
from raw_groups import committed_offsets
from waiting import wait_until
from workers import Worker

from tidemill.coordination.partitioning import partition_for
from tidemill.coordination.record_codec import decode_record
from tidemill.coordination.records import group_records
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.wire.batch import HEADER_SIZE, iterate_headers, iterate_records

IS_LONG = os.environ.get("TIDEMILL_FAULTS") == "long"
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
EVENTS = 150 if IS_LONG else 14
BROKER_KILLS = 15 if IS_LONG else 2
MEMBERS_PER_GROUP = 2
PARTITIONS = 4
OFFSET_PARTITIONS = 50
SEED = 20_261_118
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}


class Flow(threading.Thread):
    """Messages without end, to all partitions in turn."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic, self._is_over = topic, threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            self._producer.produce(self._topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
            self.sent += 1
            self._producer.poll(0.002)

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        assert self._producer.flush(30) == 0


class Trouble:
    """What happens to members; each thing is over before the next one begins, for this member."""

    def __init__(self, members: list[Worker]) -> None:
        self._members = members
        self._chance = random.Random(SEED)
        self._timers: list[threading.Timer] = []

    def strike(self) -> str:
        happening = self._chance.choice([self._kill, self._leave, self._pause, self._stall])
        happening(self._chance.choice([each for each in self._members if each.is_running]))
        return happening.__name__

    def _kill(self, member: Worker) -> None:
        member.kill()

    def _leave(self, member: Worker) -> None:
        member.signal(signal.SIGTERM)

    def _pause(self, member: Worker) -> None:
        """Longer than its session."""
        member.signal(signal.SIGSTOP)
        self._later(3.5, lambda: member.signal(signal.SIGCONT))

    def _stall(self, member: Worker) -> None:
        """Longer than it may take over its messages."""
        member.signal(signal.SIGUSR1)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.start()
        self._timers.append(timer)

    def end(self) -> None:
        for timer in self._timers:
            timer.join()


def commits_in_log(bootstrap: str, group: str) -> dict[int, list[int]]:
    """Every offset that the group ever committed, by partition, in the order of the log."""
    found: dict[int, list[int]] = {}
    index, offset = partition_for(group, OFFSET_PARTITIONS), 0
    with WireClient(bootstrap) as connection:
        while data := fetch(connection, "__consumer_offsets", offset, partition=index, max_wait_ms=0).records:
            for position, header in iterate_headers(data):
                offset = header.last_offset + 1
                payload = data[position + HEADER_SIZE : position + header.size]
                for record in iterate_records(header, payload):
                    decoded = decode_record(record.key, record.value, group_records.RECORD_TYPES)
                    if decoded is None or not isinstance(decoded.key, group_records.OffsetCommitKey):
                        continue
                    if decoded.key.group == group and decoded.value is not None:
                        found.setdefault(decoded.key.partition, []).append(decoded.value.offset)
    return found


def test_nothing_is_skipped_and_no_offset_goes_back() -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(SubprocessBroker(settings=SETTINGS))
        topic = broker.create_topic("flow", partitions=PARTITIONS)
        groups = {
            client: [
                stack.enter_context(
                    Worker("journal_member.py", client, broker.bootstrap, f"group-{client}", topic)
                )
                for _ in range(MEMBERS_PER_GROUP)
            ]
            for client in CLIENTS
        }
        members = [member for each in groups.values() for member in each]
        for member in members:
            member.start()
        flow = Flow(broker.bootstrap, topic)
        flow.start()
        for client in CLIENTS:
            wait_until(lambda c=client: reached(broker, topic, c), f"the group of {client}", 60)  # type: ignore[misc]
        strike_all(broker, members)
        flow.stop()
        assert flow.sent > 1_000
        wait_for_rest(broker, topic, groups, flow.sent)
        for client in CLIENTS:
            judge(broker, client, groups[client], flow.sent)


def reached(broker: SubprocessBroker, topic: str, client: str) -> dict[int, int]:
    return committed_offsets(broker.bootstrap, f"group-{client}", topic, PARTITIONS) or {}


def strike_all(broker: SubprocessBroker, members: list[Worker]) -> None:
    trouble, chance = Trouble(members), random.Random(SEED)
    kills = set(random.Random(SEED).sample(range(EVENTS), BROKER_KILLS))
    for number in range(EVENTS):
        trouble.strike()
        if number in kills:
            broker.kill()
            broker.restart()
        time.sleep(chance.random())
        bring_back(members)
    trouble.end()


def bring_back(members: list[Worker]) -> None:
    for member in members:
        if not member.is_running:
            member.start()


def wait_for_rest(broker: SubprocessBroker, topic: str, groups: dict[str, list[Worker]], sent: int) -> None:
    """Until every group has committed everything."""
    deadline = time.monotonic() + 60
    ends = {n: len(range(n, sent, PARTITIONS)) for n in range(PARTITIONS)}
    while behind := [client for client in CLIENTS if reached(broker, topic, client) != ends]:
        assert time.monotonic() < deadline, {client: reached(broker, topic, client) for client in behind}
        for client in behind:
            bring_back(groups[client])
        time.sleep(0.1)


def judge(broker: SubprocessBroker, client: str, members: list[Worker], sent: int) -> None:
    read = {
        (partition, offset)
        for member in members
        for _, places in member.journal()
        for partition, offset in places
    }
    everything = {(number % PARTITIONS, number // PARTITIONS) for number in range(sent)}
    assert not everything - read, f"{client} skipped {sorted(everything - read)[:10]}"
    commits = commits_in_log(broker.bootstrap, f"group-{client}")
    assert commits.keys() == set(range(PARTITIONS))
    for partition, offsets in commits.items():
        back = [(a, b) for a, b in itertools.pairwise(offsets) if b < a]
        assert not back, f"{client} went back on {partition}: {back}"
    assert sum(member.lives for member in members) > MEMBERS_PER_GROUP, "nobody died"
