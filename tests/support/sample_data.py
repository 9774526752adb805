"""Sample topics for tests of files: every shape that a log can have, written by a real client, and what to
expect back.

    sample = write_sample(bootstrap)               # topics with all codecs, many segments, tombstones, …
    assert read_back(other_bootstrap, sample) == sample.records

The same sample is written to Apache Kafka and to Tidemill, so that each side's files can be given to the
other.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 120
READ_SECONDS = 30.0
LONG_VALUE = "long " * 400


class Record(NamedTuple):
    offset: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...]
    timestamp_ms: int | None  # None where the broker chose it


Records = dict[tuple[str, int], list[Record]]


class Sample(NamedTuple):
    """What was written: settings of each topic, and for each partition the records that a consumer must see."""

    configs: dict[str, dict[str, str]]
    partitions: dict[str, int]
    records: Records


class Written(NamedTuple):
    """A data directory whose broker has stopped, what is in it, and which APIs that broker listed."""

    directory: Path
    sample: Sample
    apis: dict[int, tuple[int, int]]


TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    **{f"codec-{codec}": (1, {}) for codec in CODECS},
    "three-partitions": (3, {}),
    "many-segments": (1, {"segment.bytes": "1048576", "index.interval.bytes": "1024"}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
    "to-be-compacted": (1, {"cleanup.policy": "compact"}),
    "shortened": (1, {"retention.ms": "604800000"}),
}
SHORTENED_TO = 50
TRANSACTIONS = "transactions"


def write_sample(bootstrap: str, transactions: bool = False) -> Sample:
    """Create the topics and fill them. With `transactions`, one more topic with committed and aborted ones."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {**TOPICS, **({TRANSACTIONS: (1, {})} if transactions else {})}
    new = [NewTopic(name, count, 1, config=config) for name, (count, config) in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(30)
    records: Records = {}
    for name, (count, _) in TOPICS.items():
        for partition in range(count):
            records[name, partition] = _fill(bootstrap, name, partition)
    _shorten(admin, records)
    if transactions:
        records[TRANSACTIONS, 0] = _write_transactions(bootstrap)
    configs = {name: config for name, (_, config) in topics.items()}
    return Sample(configs, {name: count for name, (count, _) in topics.items()}, records)


def _fill(bootstrap: str, topic: str, partition: int) -> list[Record]:
    codec = topic.removeprefix("codec-") if topic.startswith("codec-") else "none"
    settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 2}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    count = 1500 if topic == "many-segments" else EACH
    start_ms = int(time.time() * 1000) - 3_600_000
    written = []
    for number in range(count):
        record = _record(topic, number, start_ms)
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms or 0,
        )
        written.append(record)
        if number % 40 == 39:
            _flush(producer)
    _flush(producer)
    return written


def _record(topic: str, number: int, start_ms: int) -> Record:
    value: str | None = f"value {number} of {topic}"
    if topic == "many-segments":
        value = f"{number} {LONG_VALUE}"
    if topic == "to-be-compacted" and number % 10 == 9:
        value = None
    key = None if number % 7 == 3 and topic != "to-be-compacted" else f"key-{number % 20}"
    headers = (("number", str(number)), ("empty", "")) if number % 5 == 0 else ()
    return Record(number, key, value, headers, None if topic == "append-time" else start_ms + number * 10)


def _flush(producer: Producer) -> None:
    if producer.flush(READ_SECONDS):
        raise TimeoutError("the sample could not be written")


def _shorten(admin: AdminClient, records: Records) -> None:
    asked = [TopicPartition("shortened", 0, SHORTENED_TO)]
    for future in admin.delete_records(asked).values():
        future.result(30)
    records["shortened", 0] = records["shortened", 0][SHORTENED_TO:]


def _write_transactions(bootstrap: str) -> list[Record]:
    """Committed, aborted, committed; each transaction's marker takes an offset of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "sample"})
    producer.init_transactions(30)
    seen, offset, start_ms = [], 0, int(time.time() * 1000) - 60_000
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for number in range(10):
            record = Record(offset, f"key-{number}", f"{outcome} {number}", (), start_ms + offset)
            producer.produce(
                TRANSACTIONS, record.value, record.key, partition=0, timestamp=record.timestamp_ms or 0
            )
            offset += 1
            if outcome == "commit":
                seen.append(record)
        _flush(producer)
        if outcome == "commit":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        offset += 1
    return seen


def read_back(bootstrap: str, sample: Sample) -> Records:
    """Everything that a consumer sees of the sample's partitions, in the sample's own shape."""
    return {where: read_partition(bootstrap, *where, known=sample) for where in sample.records}


def read_partition(bootstrap: str, topic: str, partition: int, known: Sample | None = None) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "sample",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    own_times = known is not None and known.configs[topic].get("message.timestamp.type") == "LogAppendTime"
    records: list[Record] = []
    deadline = time.monotonic() + READ_SECONDS
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                records.append(_seen(message, own_times))
            elif error.code() == KafkaError._PARTITION_EOF:
                return records
            else:
                raise AssertionError(f"reading {topic}-{partition}: {error}")
    finally:
        consumer.close()
    raise TimeoutError(f"the end of {topic}-{partition} was not reached; {len(records)} records came")


def _seen(message: Message, own_times: bool) -> Record:
    """A message in the sample's shape."""
    headers = tuple((str(name), _text(value) or "") for name, value in list(message.headers() or ()))
    timestamp_ms = None if own_times else message.timestamp()[1]
    return Record(message.offset() or 0, _text(message.key()), _text(message.value()), headers, timestamp_ms)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
