"""`kill -9` in the middle of writes, fifty times on one data directory: nothing acknowledged is lost or doubled.

A killed process leaves the page cache behind, so every byte it wrote is there. A power failure does not: the second
test cuts, scrambles or zeroes whatever lies behind the last acknowledged message of a topic that acknowledges only
after fsync, which is all that a power failure may do to it.
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
            if self.sent - self.acknowledged < 200:
                value = b"%d" % self.sent + b"." * PADDING
                self._producer.produce(self._topic, value, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0.0002)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        elif message.offset() != self.acknowledged:
            self.failures.append(f"message {self.acknowledged} is at offset {message.offset()}")
        self.acknowledged += 1


def numbers(values: list[bytes]) -> list[int]:
    return [int(value.rstrip(b".")) for value in values]


def test_fifty_kills_in_the_middle_of_writes(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("kills", segment_bytes="1048576")
    producer = SteadyProducer(broker.bootstrap, topic)
    chance = random.Random(SEED)
    checked = 0
    for _ in range(KILLS):
        goal = producer.acknowledged + chance.randint(5, 40)
        deadline = time.monotonic() + 20
        while producer.acknowledged < goal:
            assert time.monotonic() < deadline, f"no progress; the broker says:\n{broker.log_text()[-3000:]}"
            time.sleep(0.001)
        broker.kill()
        promised = producer.acknowledged
        broker.restart()
        found = numbers(read_values(broker.bootstrap, topic, checked))
        assert found == list(range(checked, checked + len(found)))
        checked += len(found)
        assert checked >= promised
    producer.stop()
    assert not producer.failures
    assert numbers(read_values(broker.bootstrap, topic)) == list(range(producer.sent))
    assert len(segments(broker.data_dir, topic)) > 1, "too little was written to roll a segment"


def test_fifty_power_failures_with_fsync_before_acknowledgement(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("power", flush_messages="1", segment_bytes="1048576")
    writer = SequencedWriter(broker, topic, padding=PADDING)
    chance = random.Random(SEED)
    history: list[str] = []
    for _ in range(KILLS):
        writer.reconnect()
        killer = threading.Timer(chance.uniform(0.02, 0.08), broker.kill)
        killer.start()
        writer.write(batches=100_000)
        killer.join()
        writer.disconnect()
        history.append(lose_power(chance, broker.data_dir, topic, writer.acknowledged))
        broker.restart()
        begin = max(0, writer.acknowledged - 100)
        found = numbers(read_values(broker.bootstrap, topic, begin))
        assert found == list(range(begin, begin + len(found))), history[-1]
        assert begin + len(found) >= writer.acknowledged, history[-1]
    writer.reconnect()
    writer.write(batches=10)
    writer.settle()
    writer.disconnect()
    assert numbers(read_values(broker.bootstrap, topic)) == list(range(writer.acknowledged))
    assert writer.acknowledged > KILLS
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
