"""The load of W7: many consumers of one work queue that give some messages back. Roles of `bench.client`.

Every twentieth message is given back when it comes for the first time (RELEASE of a share group, a negative
acknowledgement with requeue in RabbitMQ) and accepted when it comes again. The figures are acceptances per second, from
the first measured message to the last acceptance, and the time from giving back to coming again.

With Kafka's protocol each consumer is a `ShareConsumer` of librdkafka in a thread of its own, and commits its
acknowledgements with each batch; with RabbitMQ each is a channel of one connection (pika), prefetching as many.

Limits: an acceptance counts when the client has said it, not when the broker has confirmed it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

GIVEN_BACK = 20
PREFETCH = 100
POLL_SECONDS = 0.2
GIVE_UP_SECONDS = 120.0
WARM_UP = b"warm-up"


class Tally:
    """What all consumers did together."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._given_back_ns: dict[bytes, int] = {}
        self.redeliveries_ns: list[int] = []
        self.began_ns = self.ended_ns = 0
        self.is_done = threading.Event()

    def is_accepted(self, value: bytes) -> bool:
        """Decide over a message that came; False to give it back."""
        now_ns = time.monotonic_ns()
        with self._lock:
            self.began_ns = self.began_ns or now_ns
            if value in self._given_back_ns:
                self.redeliveries_ns.append(now_ns - self._given_back_ns[value])
            elif int(value) % GIVEN_BACK == 0:
                self._given_back_ns[value] = now_ns
                return False
            self._left -= 1
            if not self._left:
                self.ended_ns = time.monotonic_ns()
                self.is_done.set()
            return True

    def result(self, count: int) -> dict[str, Any]:
        if not self.is_done.wait(GIVE_UP_SECONDS):
            raise TimeoutError(f"{self._left} of {count} messages were never accepted")
        seconds = (self.ended_ns - self.began_ns) / 1e9
        return {"messages": count, "seconds": seconds, "latencies": self.redeliveries_ns}


def share(job: dict[str, Any], wait_go: Any) -> dict[str, Any]:
    """A share group. It begins at the end of the topic: messages to warm up are sent until every consumer saw some."""
    from confluent_kafka import Producer

    tally, warm = Tally(job["count"]), threading.Semaphore(0)
    threads = [
        threading.Thread(target=_share_consumer, args=(job, tally, warm), daemon=True)
        for _ in range(job["consumers"])
    ]
    for thread in threads:
        thread.start()
    producer = Producer({"bootstrap.servers": job["bootstrap"], "linger.ms": 5})
    deadline, seen = time.monotonic() + GIVE_UP_SECONDS, 0
    while seen < job["consumers"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {seen} of {job['consumers']} consumers got a message")
        for number in range(4 * job["consumers"]):
            producer.produce(job["topic"], WARM_UP, partition=number % job["partitions"])
        producer.flush(GIVE_UP_SECONDS)
        while seen < job["consumers"] and warm.acquire(timeout=0.5):
            seen += 1
    wait_go()
    for number in range(job["count"]):
        producer.produce(job["topic"], b"%d" % number, partition=number % job["partitions"])
    producer.flush(GIVE_UP_SECONDS)
    return tally.result(job["count"])


def _share_consumer(job: dict[str, Any], tally: Tally, warm: threading.Semaphore) -> None:
    from confluent_kafka import AcknowledgeType, ShareConsumer

    consumer = ShareConsumer(
        {
            "bootstrap.servers": job["bootstrap"],
            "group.id": job["group"],
            "share.acknowledgement.mode": "explicit",
            "log_level": 2,
        }
    )
    consumer.subscribe([job["topic"]])
    is_warm = False
    while not tally.is_done.is_set():
        polled = [message for message in consumer.poll(POLL_SECONDS) if not message.error()]
        for message in polled:
            value = message.value()
            is_accepted = value == WARM_UP or tally.is_accepted(value)
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.RELEASE)
        if polled:
            consumer.commit_async()
            if not is_warm:
                is_warm = True
                warm.release()


def rabbit(job: dict[str, Any], wait_go: Any) -> dict[str, Any]:
    """A durable queue with persistent messages, confirmed when published."""
    import pika

    host, port = job["bootstrap"].split(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    publisher = connection.channel()
    publisher.queue_declare(job["topic"], durable=True)
    tally = Tally(job["count"])

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if tally.is_accepted(body):
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_nack(method.delivery_tag, requeue=True)

    wait_go()
    publisher.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    for number in range(job["count"]):
        publisher.basic_publish("", job["topic"], b"%d" % number, persistent)
    for _ in range(job["consumers"]):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(job["topic"], on_message)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not tally.is_done.is_set() and time.monotonic() < deadline:
        connection.process_data_events(POLL_SECONDS)
    return tally.result(job["count"])
