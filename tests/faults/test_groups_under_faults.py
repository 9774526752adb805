"""Groups whose members join, leave, die and stall while messages flow and the broker is killed: nothing is skipped.

Four groups read one topic at the same time, each with members of one client and protocol. Everything that can happen to
a member happens to members of every client. A member writes down that it is assigned partitions, and what it reads
before it commits it; all offsets that were ever committed are read from the log of the coordinator itself. `history`
judges each group: everything was read by somebody, nobody skipped anything or went back within an assignment, and no
committed offset is lower than the one before.
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
from group_members import NEWER_PROTOCOL
from history import OK, Assign, Commit, History, Operation, Poll, Send, check
from journal_member import STALL_SECONDS
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
CLIENTS = ("confluent-kafka", NEWER_PROTOCOL, "kafka-python", "aiokafka")
KINDS = ("kill", "leave", "pause", "stall")
ROUNDS = 10 if IS_LONG else 1
BROKER_KILLS = 15 if IS_LONG else 2
MEMBERS_PER_GROUP = 2
PARTITIONS = 4
OFFSET_PARTITIONS = 50
SEED = 20_261_118
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
}
PAUSE_SECONDS = 3.5
"""Longer than a session."""
Strike = tuple[str, str]
"""A client, and what happens to one of its members."""


def plan() -> list[Strike]:
    """Everything happens to every client, in an order without order."""
    chance, strikes = random.Random(SEED), []
    for _ in range(ROUNDS):
        one_round = list(itertools.product(CLIENTS, KINDS))
        chance.shuffle(one_round)
        strikes += one_round
    return strikes


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
    """What happens to members; one thing is over before the next one begins, for this member."""

    def __init__(self, groups: dict[str, list[Worker]]) -> None:
        self._groups = groups
        self._chance = random.Random(SEED)
        self._timers: list[threading.Timer] = []
        self._busy_until: dict[Worker, float] = {}
        self.happened: list[Strike] = []

    def strike(self, client: str, kind: str) -> None:
        """It happens to a member of this client that is at work and to which nothing else happens now."""
        free: list[Worker] = []
        wait_until(lambda: free.extend(self._free(client)) or free, f"a member of {client} to {kind}", 20)
        member = self._chance.choice(free)
        actions = {"kill": self._kill, "leave": self._leave, "pause": self._pause, "stall": self._stall}
        actions[kind](member)
        self.happened.append((client, kind))

    def _free(self, client: str) -> list[Worker]:
        bring_back(self._groups[client])
        now = time.monotonic()
        return [
            each
            for each in self._groups[client]
            if self._busy_until.get(each, 0.0) <= now and is_at_work(each)
        ]

    def _kill(self, member: Worker) -> None:
        member.kill()

    def _leave(self, member: Worker) -> None:
        """Its end is awaited by whoever wants to strike it next."""
        member.signal(signal.SIGTERM)
        self._later(PAUSE_SECONDS, member, lambda: None)

    def _pause(self, member: Worker) -> None:
        member.signal(signal.SIGSTOP)
        self._later(PAUSE_SECONDS, member, lambda: member.signal(signal.SIGCONT))

    def _stall(self, member: Worker) -> None:
        """Longer than it may take over its messages; it begins with the next ones."""
        before = stalls_of([member])
        member.signal(signal.SIGUSR1)
        wait_until(lambda: stalls_of([member]) > before, "a member to stall", 20)
        self._later(STALL_SECONDS, member, lambda: None)

    def _later(self, seconds: float, member: Worker, action: Callable[[], None]) -> None:
        self._busy_until[member] = time.monotonic() + seconds
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
        for members in groups.values():
            bring_back(members)
        flow = Flow(broker.bootstrap, topic)
        flow.start()
        for client in CLIENTS:
            wait_until(lambda c=client: reached(broker, topic, c), f"the group of {client}", 60)  # type: ignore[misc]
        strike_all(broker, groups)
        flow.stop()
        assert flow.sent > 1_000
        wait_for_rest(broker, topic, groups, flow.sent)
        for client in CLIENTS:
            judge(broker, client, groups[client], flow.sent)


def reached(broker: SubprocessBroker, topic: str, client: str) -> dict[int, int]:
    return committed_offsets(broker.bootstrap, f"group-{client}", topic, PARTITIONS) or {}


def strike_all(broker: SubprocessBroker, groups: dict[str, list[Worker]]) -> None:
    trouble, chance = Trouble(groups), random.Random(SEED)
    kills = set(random.Random(SEED).sample(range(len(plan())), BROKER_KILLS))
    for number, strike in enumerate(plan()):
        trouble.strike(*strike)
        if number in kills:
            broker.kill()
            broker.restart()
        time.sleep(chance.random())
        for members in groups.values():
            bring_back(members)
    trouble.end()
    assert set(trouble.happened) == set(itertools.product(CLIENTS, KINDS))


def is_at_work(member: Worker) -> bool:
    """Whether it reads, in its present life."""
    done = [what for what, _ in member.journal() if what != "assigned"]
    return done.count("started") == member.lives and done[-1] == "read"


def stalls_of(members: list[Worker]) -> int:
    return sum(what == "stalled" for member in members for what, _ in member.journal())


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
    commits = commits_in_log(broker.bootstrap, f"group-{client}")
    assert commits.keys() == set(range(PARTITIONS))
    found = check([*sends(sent), *reads_of(members), *commits_of(commits)])
    assert not found, f"{client}: {found[:10]}"
    assert sum(member.lives for member in members) > MEMBERS_PER_GROUP, "nobody died"
    assert stalls_of(members) == ROUNDS, client


def sends(count: int) -> History:
    return [Operation("flow", OK, [Send(str(n % PARTITIONS), str(n), n // PARTITIONS)]) for n in range(count)]


def reads_of(members: list[Worker]) -> History:
    """Every life of a member, and every time that it is told its partitions, begins at other positions."""
    history: History = []
    for number, member in enumerate(members):
        for what, places in member.journal():
            if what in ("started", "assigned"):
                history.append(Operation(f"member {number}", OK, [Assign()]))
            polls: dict[int, list[tuple[int, str]]] = {}
            for partition, offset, value in places:
                polls.setdefault(partition, []).append((offset, value))
            for partition, read in polls.items():
                history.append(Operation(f"member {number}", OK, [Poll(str(partition), read)]))
    return history


def commits_of(commits: dict[int, list[int]]) -> History:
    return [
        Operation("group", OK, [Commit(str(partition), offset)])
        for partition, offsets in commits.items()
        for offset in offsets
    ]
