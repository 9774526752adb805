"""The load: one client process around librdkafka, doing one job, the same for every broker.

A job is a JSON object on the command line; `role` names one of the functions below. The process connects and
warms up, prints `ready`, waits for a line on standard input, does its work and prints the result as one line
of JSON:

    python -m bench.client '{"role": "produce", "bootstrap": "127.0.0.1:9092", "topic": "t", "partitions": 1,
                             "count": 1000000, "size": 100, "settings": {}}'

Times are CLOCK_MONOTONIC nanoseconds, which are comparable between the processes of one machine: a latency
message carries the time at which it was due to be sent (not the time at which a late sender got round to it),
so that a broker that stalls the sender cannot hide its stall. Latency consumers poll message by message;
`consume(n)` would wait to fill its batch. What makes the client the thing measured is set away:
`queued.min.messages` is high and `fetch.queue.backoff.ms` low.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.client_groups import rebalance
from bench.client_queues import rabbit, share
from bench.client_transactions import copy

Job = dict[str, Any]
Wait = Callable[[], None]

STAMP = struct.Struct(">q")
WARM_UP = 0  # the stamp of a message that is not measured
CONSUMER_SETTINGS = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.queue.backoff.ms": 1,
}
PRODUCER_SETTINGS = {
    "acks": "all",
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
QUEUED_MESSAGES = 200_000  # how far the producing loop may run ahead of the network
QUEUED_BYTES = 64_000_000
BATCH = 10_000
GIVE_UP_SECONDS = 60.0


def produce(job: Job, wait_go: Wait) -> dict[str, float]:
    """As fast as possible: `count` messages of `size` bytes, round robin over the partitions in runs.

    With `keys`, messages are keyed by that many different keys, each of which comes again and again.
    """
    producer = _producer(job)
    pool = _message_pool(job)
    for partition in range(job["partitions"]):
        producer.produce(job["topic"], pool[0]["value"], partition=partition)
    producer.flush()
    ahead = min(QUEUED_MESSAGES, QUEUED_BYTES // job["size"])
    run = max(1, min(BATCH, ahead // (2 * job["partitions"])))
    chunks = [pool[start : start + run] for start in range(0, len(pool), run)]
    wait_go()
    began = time.monotonic_ns()
    sent, turn = 0, 0
    while sent < job["count"]:
        queued = producer.produce_batch(
            job["topic"], chunks[turn % len(chunks)], partition=turn % job["partitions"]
        )
        sent, turn = sent + queued, turn + 1
        while len(producer) > ahead:
            producer.poll(0.001)
    left = producer.flush(GIVE_UP_SECONDS)
    return {
        "seconds": (time.monotonic_ns() - began) / 1e9,
        "messages": sent - left,
        "bytes": (sent - left) * job["size"],
    }


def _message_pool(job: Job) -> list[dict[str, bytes]]:
    """Messages to be sent over and over: more than a batch holds, half random bytes, so compression has to work."""
    source = random.Random(job["size"])
    half = job["size"] // 2
    count = max(BATCH, job.get("keys", 0))
    pool = [{"value": source.randbytes(half) + b"x" * (job["size"] - half)} for _ in range(min(count, BATCH))]
    if job.get("keys"):
        pool = [{"key": b"key-%08d" % number, **pool[number % BATCH]} for number in range(count)]
    return pool


def consume(job: Job, wait_go: Wait) -> dict[str, float]:
    """As fast as possible: `count` messages of all partitions from the beginning, `passes` times.

    The clock runs from the first messages to the last ones, so that connecting is not part of it.
    """
    wait_go()
    seconds, messages = 0.0, 0
    began_ns = time.monotonic_ns()
    for _ in range(job.get("passes", 1)):
        consumer = _consumer(job, 0)
        first = _take(consumer, min(BATCH, job["count"] // 10))
        began = time.monotonic_ns()
        taken = len(first)
        while taken < job["count"]:
            taken += len(_take(consumer, min(BATCH, job["count"] - taken)))
        seconds += (time.monotonic_ns() - began) / 1e9
        messages += taken - len(first)
        consumer.close()
    return {
        "seconds": seconds,
        "messages": messages,
        "bytes": messages * job["size"],
        "began_ns": began_ns,
        "ended_ns": time.monotonic_ns(),
    }


def _take(consumer: Consumer, count: int) -> list[Message]:
    """Exactly `count` messages: librdkafka waits until it has them."""
    messages = consumer.consume(count, GIVE_UP_SECONDS)
    if len(messages) < count:
        raise TimeoutError(f"only {len(messages)} of {count} messages came")
    for message in (messages[0], messages[-1]):
        _raise_error(message)
    return messages


def _raise_error(message: Message) -> None:
    error = message.error()
    if error is not None:
        raise RuntimeError(error.str())


def send_at_rate(job: Job, wait_go: Wait) -> dict[str, float]:
    """`rate` messages a second for `seconds`, after `warm_up_seconds` of the same that are not measured."""
    producer = _producer(job)
    padding = b"x" * (job["size"] - STAMP.size)
    for partition in range(job["partitions"]):
        producer.produce(job["topic"], STAMP.pack(WARM_UP) + padding, partition=partition)
    producer.flush()
    wait_go()
    interval_ns = 1_000_000_000 // job["rate"]
    start = time.monotonic_ns()
    first_measured = int(job["warm_up_seconds"] * job["rate"])
    total = first_measured + int(job["seconds"] * job["rate"])
    for number in range(total):
        due = start + number * interval_ns
        _wait_until(due, producer)
        stamp = due if number >= first_measured else WARM_UP
        producer.produce(job["topic"], STAMP.pack(stamp) + padding, partition=number % job["partitions"])
    late_ns = time.monotonic_ns() - (start + total * interval_ns)
    producer.flush(GIVE_UP_SECONDS)
    return {"messages": total - first_measured, "late_seconds": late_ns / 1e9}


def _wait_until(due_ns: int, producer: Producer) -> None:
    producer.poll(0)
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


def tail(job: Job, wait_go: Wait) -> dict[str, Any]:
    """End-to-end latencies of `count` measured messages: pairs of (due, latency) in nanoseconds."""
    consumer = _consumer(job, OFFSET_END if job.get("from_end") else 0)
    consumer.poll(0.2)
    wait_go()
    pairs: list[tuple[int, int]] = []
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while len(pairs) < job["count"] and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        now = time.monotonic_ns()
        _raise_error(message)
        due = STAMP.unpack_from(message.value() or b"")[0]
        if due != WARM_UP:
            pairs.append((due, now - due))
    return {"pairs": pairs, "missing": job["count"] - len(pairs)}


def ping(job: Job, wait_go: Wait) -> dict[str, Any]:
    """One message in flight: nanoseconds from the call to the acknowledgement.

    `groups` is a list of lists of [topic, partitions]; each group has a producer of its own (a librdkafka
    producer walks all the partitions it knows, and that must not be what is measured) and sends `count`
    messages over all its partitions in a shuffled order. With `until`, it goes on until that file exists.
    """
    latencies: list[int] = []
    producers = [(_producer(job), _targets(group, job["size"])) for group in job["groups"]]
    for producer, targets in producers:
        for topic, partition in targets if job.get("touch_all") else targets[:1]:
            producer.produce(topic, b"first", partition=partition)
        producer.flush(GIVE_UP_SECONDS)
    value = b"x" * job["size"]
    wait_go()
    for producer, targets in producers:
        for number in range(job["count"]):
            topic, partition = targets[number % len(targets)]
            latencies.append(_round_trip(producer, topic, partition, value))
            if "until" in job and number % 50 == 0 and os.path.exists(job["until"]):
                break
    return {"latencies": latencies}


def _targets(group: list[tuple[str, int]], seed: int) -> list[tuple[str, int]]:
    targets = [(topic, partition) for topic, partitions in group for partition in range(partitions)]
    random.Random(seed).shuffle(targets)
    return targets


def _round_trip(producer: Producer, topic: str, partition: int, value: bytes) -> int:
    answers: list[KafkaError | None] = []
    began = time.monotonic_ns()
    producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: answers.append(error))
    while not answers:
        producer.poll(1.0)
    taken = time.monotonic_ns() - began
    if answers[0] is not None:
        raise RuntimeError(answers[0].str())
    return taken


def first_acknowledgement(job: Job, wait_go: Wait) -> dict[str, int]:
    """When the first message to a topic that does not exist yet is acknowledged by a broker that is just starting."""
    fast = {
        "reconnect.backoff.ms": 2,
        "reconnect.backoff.max.ms": 5,
        "topic.metadata.refresh.fast.interval.ms": 5,
    }
    wait_go()
    producer = _producer({**job, "settings": {**fast, "log_level": 0, **job["settings"]}})
    _round_trip(producer, job["topic"], job.get("partition", 0), b"x" * 100)
    return {"at_ns": time.monotonic_ns()}


def _producer(job: Job) -> Producer:
    return Producer({"bootstrap.servers": job["bootstrap"], **PRODUCER_SETTINGS, **job["settings"]})


def _consumer(job: Job, offset: int) -> Consumer:
    consumer = Consumer({"bootstrap.servers": job["bootstrap"], **CONSUMER_SETTINGS, **job["settings"]})
    consumer.assign(
        [TopicPartition(job["topic"], partition, offset) for partition in range(job["partitions"])]
    )
    return consumer


ROLES = {
    role.__name__: role
    for role in (
        *(produce, consume, send_at_rate, tail, ping, first_acknowledgement),
        *(copy, rebalance, share, rabbit),
    )
}


def main() -> None:
    job = json.loads(sys.argv[1])

    def wait_go() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(ROLES[job["role"]](job, wait_go)), flush=True)
    os._exit(0)  # nothing is left to be said; librdkafka's slow farewell would only delay the next turn


if __name__ == "__main__":
    main()
