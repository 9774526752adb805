"""Share groups with the share consumer of confluent-kafka: queues, on the topics that everybody else reads as logs."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from cluster_under_test import Cluster
from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message, Producer, ShareConsumer
from share_wire import configure_group

from tidemill.testing import SubprocessBroker, WireClient

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
PATIENCE_SECONDS = 20
SHORTEST_LOCK_MS = 1000
Delivery = tuple[bytes, int]
"""Value and delivery count."""
OwnBroker = Callable[..., SubprocessBroker]


class Queue:
    """A topic and a share group that begins at its start."""

    def __init__(self, bootstrap: str, topic: str, **settings: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = f"queue-{uuid.uuid4().hex[:12]}"
        with WireClient(bootstrap) as connection:
            configure_group(connection, self.group, **({"share_auto_offset_reset": "earliest"} | settings))

    def fill(self, count: int, start: int = 0) -> set[bytes]:
        """Each message in a batch of its own, so that consumers can share them one by one."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "batch.num.messages": 1})
        values = [b"%d" % number for number in range(start, start + count)]
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return set(values)

    @contextlib.contextmanager
    def consumer(self, mode: str = "explicit", **settings: object) -> Iterator[ShareConsumer]:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "share.acknowledgement.mode": mode,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()


@pytest.fixture
def queue(cluster: Cluster) -> Queue:
    return Queue(cluster.bootstrap, cluster.topic())


def poll(consumer: ShareConsumer, seconds: float = PATIENCE_SECONDS) -> list[Message]:
    """The next messages, or none if none come in this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        messages = [message for message in consumer.poll(0.2) if message.error() is None]
        if messages:
            return messages
    return []


def value_of(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def seen(messages: list[Message]) -> list[Delivery]:
    return [(value_of(message), message.delivery_count() or 0) for message in messages]


def settle(consumer: ShareConsumer, messages: list[Message], word: AcknowledgeType = ACCEPT) -> None:
    """Say this of all of them, and wait until the broker knows."""
    for message in messages:
        consumer.acknowledge(message, word)
    failed = [error for error in consumer.commit_sync(PATIENCE_SECONDS).values() if error is not None]
    assert not failed, failed


def drain(consumer: ShareConsumer, wanted: set[bytes], quiet_seconds: float = 1.0) -> list[Delivery]:
    """Accept everything until all of this has come, and then nothing more for a while."""
    found: list[Delivery] = []
    while messages := poll(
        consumer, quiet_seconds if wanted <= {value for value, _ in found} else PATIENCE_SECONDS
    ):
        found += seen(messages)
        settle(consumer, messages)
    return found


# -- acknowledging ----------------------------------------------------------------------------------------


def test_what_is_accepted_is_delivered_once(queue: Queue) -> None:
    sent = queue.fill(30)
    with queue.consumer() as consumer:
        assert sorted(drain(consumer, sent)) == sorted((value, 1) for value in sent)
    later = queue.fill(3, start=30)
    with queue.consumer() as consumer:
        assert sorted(drain(consumer, later)) == sorted((value, 1) for value in later)


def test_implicit_acknowledgement_comes_with_the_next_poll(queue: Queue) -> None:
    sent = queue.fill(10)
    found: list[bytes] = []
    with queue.consumer("implicit") as consumer:
        while len(found) < len(sent):
            found += [value_of(message) for message in poll(consumer)]
        consumer.commit_sync(PATIENCE_SECONDS)
    assert sorted(found) == sorted(sent)
    later = queue.fill(1, start=10)
    with queue.consumer() as consumer:
        assert drain(consumer, later) == [(b"10", 1)]


def test_released_messages_come_again_and_rejected_ones_do_not(queue: Queue) -> None:
    sent = queue.fill(6)
    with queue.consumer() as consumer:
        messages: list[Message] = []
        while len(messages) < len(sent):
            part = poll(consumer)
            messages += part
            for message in part:
                words = {0: RELEASE, 1: REJECT, 2: ACCEPT}
                consumer.acknowledge(message, words[int(value_of(message)) % 3])
            assert all(error is None for error in consumer.commit_sync(PATIENCE_SECONDS).values())
        assert {count for value, count in seen(messages) if value not in (b"0", b"3")} == {1}
        again = drain(consumer, {b"0", b"3"}) if len(messages) == len(sent) else []
        released = [each for each in seen(messages) + again if each[0] in (b"0", b"3")]
        assert sorted(released) == [(b"0", 1), (b"0", 2), (b"3", 1), (b"3", 2)]


def test_a_message_is_given_up_after_its_last_delivery(cluster: Cluster) -> None:
    queue = Queue(cluster.bootstrap, cluster.topic(), share_delivery_count_limit="3")
    queue.fill(1)
    with queue.consumer() as consumer:
        for count in (1, 2, 3):
            messages = poll(consumer)
            assert seen(messages) == [(b"0", count)]
            settle(consumer, messages, RELEASE)
        later = queue.fill(1, start=1)
        assert drain(consumer, later) == [(b"1", 1)], "the next one does not wait for the bad one"


# -- many consumers ---------------------------------------------------------------------------------------


def test_more_consumers_than_partitions_share_the_work(queue: Queue) -> None:
    with contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(queue.consumer()) for _ in range(4)]
        for consumer in consumers:
            consumer.poll(0.1)
        found: dict[int, list[Delivery]] = {index: [] for index in range(4)}
        sent: set[bytes] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(found.values()) or sum(map(len, found.values())) < len(sent):
            assert time.monotonic() < deadline, found
            if not all(found.values()):
                sent |= queue.fill(4, start=len(sent))
            for index, consumer in enumerate(consumers):
                messages = [message for message in consumer.poll(0.05) if message.error() is None]
                found[index] += seen(messages)
                settle(consumer, messages)
    everything = [delivery for part in found.values() for delivery in part]
    assert sorted(everything) == sorted((value, 1) for value in sent), "each message to one consumer, once"


def test_a_consumer_that_leaves_gives_back_what_it_holds(queue: Queue) -> None:
    sent = queue.fill(5)
    with queue.consumer() as first:
        held = seen(poll(first))
        assert held
    with queue.consumer() as second:
        found = drain(second, sent)
    assert sorted(value for value, _ in found) == sorted(sent)
    assert {value for value, count in found if count == 2} == {value for value, _ in held}


# -- locks and crashes, on brokers of their own -----------------------------------------------------------


@pytest.fixture
def hasty(own_broker: OwnBroker) -> Iterator[Queue]:
    """Locks as short as they may be."""
    broker = own_broker(settings={"group.share.record.lock.duration.ms": str(SHORTEST_LOCK_MS)})
    broker.create_topic("jobs")
    yield Queue(broker.bootstrap, "jobs")


def test_a_message_that_is_held_too_long_goes_to_somebody_else(hasty: Queue) -> None:
    hasty.fill(1)
    with hasty.consumer() as slow, hasty.consumer() as fast:
        messages = poll(slow)
        assert seen(messages) == [(b"0", 1)]
        taken = poll(fast)
        assert seen(taken) == [(b"0", 2)]
        slow.acknowledge(messages[0])
        (error,) = slow.commit_sync(PATIENCE_SECONDS).values()
        assert isinstance(error, KafkaException)
        assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
        settle(fast, taken)
        assert poll(fast, 1.5) == [], "accepted by the one who held it"


def test_a_message_that_nobody_settles_is_given_up(own_broker: OwnBroker) -> None:
    settings = {
        "group.share.record.lock.duration.ms": str(SHORTEST_LOCK_MS),
        "group.share.delivery.count.limit": "2",
    }
    broker = own_broker(settings=settings)
    broker.create_topic("jobs")
    queue = Queue(broker.bootstrap, "jobs")
    queue.fill(1)
    counts = []
    with queue.consumer() as first, queue.consumer() as second:
        for consumer in (first, second):
            counts += seen(poll(consumer))
        time.sleep(SHORTEST_LOCK_MS / 1000 + 0.2)
        queue.fill(1, start=1)
        with queue.consumer() as third:
            assert drain(third, {b"1"}) == [(b"1", 1)]
    assert counts == [(b"0", 1), (b"0", 2)]


def test_states_and_counts_survive_a_killed_broker(own_broker: OwnBroker) -> None:
    broker = own_broker()
    broker.create_topic("jobs")
    queue = Queue(broker.bootstrap, "jobs")
    sent = queue.fill(6)
    with queue.consumer() as consumer:
        messages: list[Message] = []
        while len(messages) < len(sent):
            part = poll(consumer)
            messages += part
            for message in part:
                consumer.acknowledge(message, ACCEPT if int(value_of(message)) in (1, 4) else RELEASE)
            consumer.commit_sync(PATIENCE_SECONDS)
        broker.kill()
        broker.restart()
        before = dict(seen(messages))
        found = drain(consumer, sent - {b"1", b"4"})
    assert sorted(value for value, _ in found) == [b"0", b"2", b"3", b"5"], "what was accepted stays accepted"
    for value, count in found:
        assert count == before[value] + 1


def test_what_was_held_when_the_broker_was_killed_comes_again(own_broker: OwnBroker) -> None:
    broker = own_broker()
    broker.create_topic("jobs")
    queue = Queue(broker.bootstrap, "jobs")
    sent = queue.fill(5)
    with queue.consumer() as consumer:
        messages = poll(consumer)
        settle(consumer, messages)
        confirmed = {value_of(message) for message in messages}
        sent |= queue.fill(5, start=5)
        assert poll(consumer)
        broker.kill()
    broker.restart()
    with queue.consumer() as consumer:
        found = {value for value, _ in drain(consumer, sent - confirmed)}
    assert found == sent - confirmed, "all that was not accepted, and nothing else"
