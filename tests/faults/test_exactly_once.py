"""Consume, transform, produce under `kill -9` of clients and broker: what comes out is what went in, once, in order.

Two copiers share the partitions of a topic. Whatever is killed starts again, until every input offset is committed.
Then the output of each partition, read with read_committed, must be its input; no message of a transaction that was
aborted may be among it; and no transaction may be left open (the last stable offset is the high watermark).
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator

from confluent_kafka import Producer
from history import FAIL, INFO, OK, Assign, History, Operation, Poll, Send, check
from raw_groups import committed_offsets
from raw_transactions import end_offsets, is_stable
from transaction_reading import committed_messages
from waiting import wait_until
from workers import Worker

from tidemill.testing import SubprocessBroker

IS_LONG = os.environ.get("TIDEMILL_FAULTS") == "long"
MESSAGES = 1_000_000 if IS_LONG else 100_000
KILLS = 100 if IS_LONG else 6
PARTITIONS = 4
SEED = 20_261_118
TIMEOUT_SECONDS = 600 if IS_LONG else 120
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
STATUS = {"ok": OK, "fail": FAIL}


def fill(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 2_000_000}
    )
    for number in range(MESSAGES):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def copied(bootstrap: str, topic: str) -> int:
    """How many input messages are committed as read."""
    return sum((committed_offsets(bootstrap, "copiers", topic, PARTITIONS) or {}).values())


def wreck(broker: SubprocessBroker, copiers: list[Worker], source: str) -> Iterator[int]:
    """Kill one of the three, again and again, each time after some progress; ends when all is copied."""
    chance, kills, goal, deadline = random.Random(SEED), 0, 0, time.monotonic() + TIMEOUT_SECONDS
    while (done := copied(broker.bootstrap, source)) < MESSAGES:
        assert time.monotonic() < deadline, f"{done} of {MESSAGES} were copied, {kills} kills"
        if kills < KILLS and done >= goal:
            kills, goal = kills + 1, done + chance.randint(1, 2 * (MESSAGES - done) // (KILLS - kills + 1))
            time.sleep(chance.random() * 0.3)
            if chance.random() < 0.4:
                broker.kill()
                broker.restart()
            else:
                chance.choice(copiers).kill()
            yield kills
        for copier in copiers:
            if not copier.is_running:
                copier.start()
        time.sleep(0.05)


def story_of(copiers: list[Worker], output: dict[int, list[tuple[int, str]]]) -> History:
    """Every transaction as one operation, as its copier knows its end, and what the judge read."""
    ends = {transaction: STATUS[end] for copier in copiers for end, transaction in copier.journal()}
    sends: dict[str, list[Send | Poll | Assign]] = {transaction: [] for transaction in ends}
    for partition, found in output.items():
        for _, value in found:
            sends.setdefault(value.split()[1], []).append(Send(str(partition), value))
    history = [Operation(name, ends.get(name, INFO), parts) for name, parts in sends.items()]
    reads = [Poll(str(partition), found) for partition, found in output.items()]
    return [*history, Operation("judge", OK, [Assign(), *reads])]


def test_what_comes_out_is_what_went_in() -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(SubprocessBroker(settings=SETTINGS))
        source, target = (broker.create_topic(name, partitions=PARTITIONS) for name in ("source", "target"))
        fill(broker.bootstrap, source)
        names = ("copier-a", "copier-b")
        copiers = [
            stack.enter_context(Worker("transactional_copier.py", broker.bootstrap, source, target, name))
            for name in names
        ]
        kills = list(wreck(broker, copiers, source))
        assert len(kills) == KILLS, "everything was copied before the last kill"
        for copier in copiers:
            copier.stop()
        for partition in range(PARTITIONS):
            wait_until(lambda n=partition: is_stable(broker.bootstrap, target, n), "the last end", 30)  # type: ignore[misc]
        output = {
            n: [
                (offset, value.decode())
                for offset, value in committed_messages(broker.bootstrap, target, partition=n)
            ]
            for n in range(PARTITIONS)
        }
        for partition, found in output.items():
            numbers = [int(value.split()[0]) for _, value in found]
            assert numbers == list(range(partition, MESSAGES, PARTITIONS)), f"partition {partition}"
        assert not check(story_of(copiers, output))
        journals = [end for copier in copiers for end, _ in copier.journal()]
        assert journals.count("fail") > 0, "nothing was aborted"
        assert any(
            end_offsets(broker.bootstrap, target, n)[1] > MESSAGES // PARTITIONS for n in range(PARTITIONS)
        )
