"""Consume, transform, produce under `kill -9` of clients and broker: what comes out is what went in, once, in order.

A copier of every client shares the partitions of a topic that is being filled; they are members of one group. A plan
says who is killed, the broker too; whatever was killed starts again, until every input offset is committed. Then the
output of each partition, read with read_committed, must be its input; no message of a transaction that was aborted may
be among it, nor among what a reader saw who looked on all the time; and no transaction may be left open (the last
stable offset is the high watermark).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

from clients import CONFLUENT
from confluent_kafka import Producer
from history import FAIL, INFO, OK, Assign, History, Operation, Poll, Send, check
from live_reader import LiveReader
from raw_groups import committed_offsets
from raw_transactions import end_offsets, is_stable
from transactional_clients import TRANSACTIONAL
from waiting import wait_until
from workers import Worker

from tidemill.testing import SubprocessBroker

IS_LONG = os.environ.get("TIDEMILL_FAULTS") == "long"
MESSAGES = 1_000_000 if IS_LONG else 100_000
ROUNDS = 15 if IS_LONG else 1
BROKER_KILLS_PER_ROUND = 3
MESSAGES_PER_SECOND = 2_000
PROGRESS_BETWEEN_KILLS = (500, 4_000)
PARTITIONS = 8
SEED = 20_261_118
TIMEOUT_SECONDS = 900 if IS_LONG else 120
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
}
STATUS = {"ok": OK, "fail": FAIL}
BROKER = "broker"


def plan() -> list[str]:
    """Whom to kill, in order."""
    chance, victims = random.Random(SEED), []
    for _ in range(ROUNDS):
        one_round = [BROKER] * BROKER_KILLS_PER_ROUND + list(TRANSACTIONAL)
        chance.shuffle(one_round)
        victims += one_round
    return victims


class Filling(threading.Thread):
    """The numbers from 0 on, to all partitions in turn, slowly: every copier has work until the last kill is done."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        settings = {"enable.idempotence": True, "linger.ms": 20, "queue.buffering.max.messages": 2_000_000}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0} | settings
        )
        self.is_urgent = threading.Event()
        self.left = -1

    def run(self) -> None:
        begin = time.monotonic()
        for number in range(MESSAGES):
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS)
            if number % 100 == 0:
                self.is_urgent.wait(begin + number / MESSAGES_PER_SECOND - time.monotonic())
        self.left = self._producer.flush(60)


class Wrecking:
    """Kills by plan, each one after some progress and in the middle of its victim's work."""

    def __init__(self, broker: SubprocessBroker, copiers: dict[str, Worker], source: str) -> None:
        self._broker, self._copiers, self._source = broker, copiers, source
        self._victims, self._chance, self._goal = plan(), random.Random(SEED), 1
        self.killed: list[str] = []

    def run(self, filling: Filling) -> None:
        """Until everything is copied."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (done := self._copied()) < MESSAGES:
            assert time.monotonic() < deadline, (
                f"{done} were copied, killed were {self.killed}\n{self._output()}"
            )
            if not self._victims:
                filling.is_urgent.set()
            elif done >= self._goal and self._is_at_work(self._victims[0]):
                self._kill(self._victims.pop(0))
                self._goal = done + self._chance.randint(*PROGRESS_BETWEEN_KILLS)
            for copier in self._copiers.values():
                if not copier.is_running:
                    copier.start()
            time.sleep(0.05)

    def _copied(self) -> int:
        """How many input messages are committed as read."""
        return sum(
            (committed_offsets(self._broker.bootstrap, "copiers", self._source, PARTITIONS) or {}).values()
        )

    def _kill(self, victim: str) -> None:
        time.sleep(self._chance.random() * 0.3)
        if victim == BROKER:
            self._broker.kill()
            self._broker.restart()
        else:
            self._copiers[victim].kill()
        self.killed.append(victim)

    def _is_at_work(self, victim: str) -> bool:
        """Whether it has come to the end of a transaction in this life."""
        if victim == BROKER:
            return True
        copier = self._copiers[victim]
        own = f"-{copier.lives}-"
        return copier.is_running and any(own in transaction for _, transaction in copier.journal())

    def story(self) -> str:
        """For whoever looks into a failure."""
        outputs = [
            f"{client}, life {each.lives}: {each.output()[-1500:]}" for client, each in self._copiers.items()
        ]
        return "\n".join([f"killed were {self.killed}, left are {self._victims}", *outputs])


def story_of(copiers: dict[str, Worker], reads: History) -> History:
    """Every transaction as one operation, as its copier knows its end, and then what readers saw of it."""
    ends = {transaction: STATUS[end] for copier in copiers.values() for end, transaction in copier.journal()}
    sends: dict[str, dict[Send, None]] = {transaction: {} for transaction in ends}
    for operation in reads:
        for part in operation.parts:
            if isinstance(part, Poll):
                for _, value in part.read:
                    sends.setdefault(value.split()[1], {})[Send(part.key, value)] = None
    history = [Operation(name, ends.get(name, INFO), list(parts)) for name, parts in sends.items()]
    return [*history, *reads]


def read_to_end(bootstrap: str, target: str) -> dict[int, list[tuple[int, str]]]:
    return {
        n: [
            (offset, value.decode())
            for offset, value in CONFLUENT.read_to_end(bootstrap, target, partition=n)
        ]
        for n in range(PARTITIONS)
    }


def test_what_comes_out_is_what_went_in() -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(SubprocessBroker(settings=SETTINGS))
        source, target = (broker.create_topic(name, partitions=PARTITIONS) for name in ("source", "target"))
        copiers = {
            client: stack.enter_context(
                Worker("transactional_copier.py", client, broker.bootstrap, source, target, f"copier{number}")
            )
            for number, client in enumerate(TRANSACTIONAL)
        }
        filling, reader = Filling(broker.bootstrap, source), LiveReader(broker.bootstrap, target, PARTITIONS)
        wrecking = Wrecking(broker, copiers, source)
        filling.start()
        reader.start()
        wrecking.run(filling)
        assert wrecking.killed == plan(), wrecking.story()
        for copier in copiers.values():
            copier.stop()
        for partition in range(PARTITIONS):
            wait_until(lambda n=partition: is_stable(broker.bootstrap, target, n), "the last end", 30)  # type: ignore[misc]
        wait_until(lambda: reader.count >= MESSAGES, "the reader to come to the end", 30)
        reader.stop()
        assert (filling.left, reader.errors) == (0, [])
        judge(broker, target, copiers, reader)


def judge(broker: SubprocessBroker, target: str, copiers: dict[str, Worker], reader: LiveReader) -> None:
    output = read_to_end(broker.bootstrap, target)
    for partition, found in output.items():
        numbers = [int(value.split()[0]) for _, value in found]
        assert numbers == list(range(partition, MESSAGES, PARTITIONS)), f"partition {partition}"
    final = [Poll(str(partition), found) for partition, found in output.items()]
    assert not check(story_of(copiers, [*reader.history, Operation("judge", OK, [Assign(), *final])]))
    ends = {client: [end for end, _ in copier.journal()] for client, copier in copiers.items()}
    assert all("ok" in each for each in ends.values()), "somebody copied nothing"
    assert any("fail" in each for each in ends.values()), "nothing was aborted"
    last = [end_offsets(broker.bootstrap, target, n)[1] for n in range(PARTITIONS)]
    assert any(offset > MESSAGES // PARTITIONS for offset in last)
