"""`kill -9` in the middle of writes, fifty times on one data directory: nothing acknowledged is lost or doubled.

Two topics are written at once. `cached` relies on the page cache, which a killed process leaves behind, and is written
by librdkafka. `synced` acknowledges only after fsync and must survive a power failure too: after each kill whatever
lies behind its last acknowledged message is cut, zeroed or noise, which is all that a power failure may do to it.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from log_files import position_after, read_values, segments, tear_tail
from sequenced_writer import SequencedWriter

from tidemill.testing import SubprocessBroker

KILLS = 50
SEED = 20_260_729
MOST_UNACKNOWLEDGED = 100
OVERLAP = 50
"""Messages that are read once more after each restart, although they were found before."""
PADDING = 2_000
"""Bytes per message, so that segments of one mebibyte roll between and during kills."""


class SteadyProducer:
    """An idempotent librdkafka producer that a thread feeds with numbered messages until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 20,
                "retry.backoff.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until everything sent is acknowledged."""
        self._is_stopping.set()
        self._thread.join()
        assert self._producer.flush(30) == 0

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            if self.sent - self.acknowledged < MOST_UNACKNOWLEDGED:
                value = b"%d" % self.sent + b"." * PADDING
                self._producer.produce(self._topic, value, on_delivery=self._delivered)
                self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.002)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        elif message.offset() != self.acknowledged:
            self.failures.append(f"message {self.acknowledged} is at offset {message.offset()}")
        self.acknowledged += 1


def numbers(values: list[bytes]) -> list[int]:
    return [int(value.rstrip(b".")) for value in values]


class Tail:
    """Reads what is new in a topic after each restart: the numbers must go on where they stopped."""

    def __init__(self, topic: str) -> None:
        self._topic, self._checked = topic, 0

    def check(self, broker: SubprocessBroker, promised: int, story: str) -> None:
        begin = max(0, min(self._checked, promised) - OVERLAP)
        found = numbers(read_values(broker.bootstrap, self._topic, begin, at_least=promised))
        assert found == list(range(begin, begin + len(found))), story
        self._checked = begin + len(found)


class Killer(threading.Thread):
    """Kills the broker as soon as the producer has made some progress."""

    def __init__(self, broker: SubprocessBroker, producer: SteadyProducer, progress: int) -> None:
        super().__init__(daemon=True)
        self._broker, self._producer = broker, producer
        self._goal = producer.acknowledged + progress
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 20
        while self._producer.acknowledged < self._goal and time.monotonic() < deadline:
            time.sleep(0.002)
        self.made_progress = self._producer.acknowledged >= self._goal
        self._broker.kill()


def test_fifty_kills_in_the_middle_of_writes(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    cached = broker.create_topic("cached", segment_bytes="1048576")
    synced = broker.create_topic("synced", segment_bytes="1048576", flush_messages="1")
    producer = SteadyProducer(broker.bootstrap, cached)
    writer = SequencedWriter(broker, synced, padding=PADDING)
    chance, tail_of_cached, tail_of_synced = random.Random(SEED), Tail(cached), Tail(synced)
    for number in range(KILLS):
        writer.reconnect()
        killer = Killer(broker, producer, progress=chance.randint(1, 60))
        writer.write(batches=1_000_000)
        killer.join()
        assert killer.made_progress, f"no progress before kill {number}:\n{broker.log_text()[-3_000:]}"
        writer.disconnect()
        promised = producer.acknowledged
        story = f"kill {number}: " + lose_power(chance, broker.data_dir, synced, writer.acknowledged)
        broker.restart()
        tail_of_cached.check(broker, promised, story)
        tail_of_synced.check(broker, writer.acknowledged, story)
    writer.reconnect()
    writer.settle()
    writer.disconnect()
    producer.stop()
    assert not producer.failures
    assert numbers(read_values(broker.bootstrap, cached)) == list(range(producer.sent))
    assert numbers(read_values(broker.bootstrap, synced)) == list(range(writer.acknowledged))
    for topic in (cached, synced):
        assert len(segments(broker.data_dir, topic)) > 1, "too little was written to roll a segment"


def lose_power(chance: random.Random, data_dir: str, topic: str, acknowledged: int) -> str:
    """Damage the bytes of the newest segment behind what was acknowledged, and its indexes at will."""
    active = segments(data_dir, topic)[-1]
    boundary = position_after(active, acknowledged)
    done = tear_tail(chance, active, boundary)
    for suffix in (".index", ".timeindex"):
        index = active.with_suffix(suffix)
        if index.exists() and chance.random() < 0.5:
            done += f", {damage_index(chance, index)} {suffix}"
    return f"{done} behind {boundary} of {active.name}, {acknowledged} acknowledged"


def damage_index(chance: random.Random, path: Path) -> str:
    """An index is never synced before its log: after a power failure anything may be in it, or nothing."""
    what = chance.choice(["removed", "emptied", "zeroed", "filled with noise"])
    size = min(path.stat().st_size, 4_096)
    if what == "removed":
        path.unlink()
    else:
        path.write_bytes({"emptied": b"", "zeroed": bytes(size)}.get(what, chance.randbytes(size)))
    return what
