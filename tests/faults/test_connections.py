"""Clients that hold on, flood, stall or die: each is let go in time, and no good client notices."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest
from process_facts import MIB, descriptor_count, resident_bytes, socket_count
from raw import batch_of, fetch, fetch_request, produce
from waiting import wait_until

from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.wire_client import encode_request, frame_of
from tidemill.wire.messages.api_versions import ApiVersionsRequest

ASK = ApiVersionsRequest()
FRAME = frame_of(encode_request(ASK, 0))


def connect(broker: SubprocessBroker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), 5)


def is_closed(connection: socket.socket) -> bool:
    """Whether the broker ended this connection (reads and drops what it sent before)."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def drip(connection: socket.socket, data: bytes) -> None:
    try:
        connection.send(data)
    except OSError:
        pass


def test_stalled_connections_are_dropped_within_ten_seconds(own_broker: Any) -> None:
    """Slow-loris in all its forms at once; a good client works on meanwhile."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("t")
    silent, half_size, half_frame, dripping, after_one = (connect(broker) for _ in range(5))
    half_size.send(b"\x00\x00")
    half_frame.send(FRAME[:-3])
    after_one.send(FRAME + FRAME[:7])
    large = struct.pack(">i", 50_000_000)
    dripping.send(large)
    waiting = {"silent": silent, "half a size": half_size, "half a frame": half_frame}
    waiting |= {"dripping": dripping, "half a frame after a good one": after_one}
    began, slowest = time.monotonic(), 0.0
    with WireClient(broker.bootstrap) as good:
        while waiting and time.monotonic() - began < 10:
            drip(dripping, b"x")
            asked = time.monotonic()
            assert produce(good, topic, batch_of(b"fine")).error_code == 0
            slowest = max(slowest, time.monotonic() - asked)
            waiting = {name: each for name, each in waiting.items() if not is_closed(each)}
            time.sleep(0.05)
    assert not waiting, f"still open: {', '.join(waiting)}"
    assert slowest < 1
    for each in (silent, half_size, half_frame, dripping, after_one):
        each.close()


def test_idle_connections_are_closed(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker(settings={"connections.max.idle.ms": "700"})
    topic = broker.create_topic("t")
    with WireClient(broker.bootstrap) as idle, WireClient(broker.bootstrap) as busy:
        idle.call(ASK, 0)
        began = time.monotonic()
        while not is_closed(idle.socket):
            assert time.monotonic() - began < 5
            fetch(busy, topic, max_wait_ms=100)
        assert time.monotonic() - began > 0.5
        assert busy.call(ASK, 0).error_code == 0


LIMITS = {
    "max.connections": "10",
    "max.connections.per.ip": "10",
    "max.connections.per.ip.overrides": "10.1.2.3:1,127.0.0.1:10",
}


@pytest.mark.parametrize("setting", LIMITS)
def test_the_number_of_connections_is_limited(own_broker: Any, setting: str) -> None:
    broker: SubprocessBroker = own_broker(settings={setting: LIMITS[setting]})
    opened = [WireClient(broker.bootstrap) for _ in range(10)]
    assert all(each.call(ASK, 0).error_code == 0 for each in opened)
    refused = [connect(broker) for _ in range(20)]
    wait_until(lambda: all(is_closed(each) for each in refused), "the refusal of what is too many")
    assert all(each.call(ASK, 0).error_code == 0 for each in opened), "the others were not hurt"
    opened.pop().close()

    def is_admitted() -> bool:
        with WireClient(broker.bootstrap) as another:
            try:
                return bool(another.call(ASK, 0).error_code == 0)
            except ConnectionError:
                return False

    wait_until(is_admitted, "room for another connection")
    for each in [*opened, *refused]:
        each.close()


def test_new_connections_beyond_the_rate_wait_for_their_turn(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker(settings={"max.connection.creation.rate": "5"})
    opened = [WireClient(broker.bootstrap, timeout_seconds=10) for _ in range(12)]
    began = time.monotonic()
    assert all(each.call(ASK, 0).error_code == 0 for each in opened), "all are served in the end"
    assert time.monotonic() - began > 0.9, "but not all in the first second"
    for each in opened:
        each.close()


def test_a_client_that_dies_costs_nothing(own_broker: Any) -> None:
    """In the middle of a frame, of a long poll, of an answer: descriptors and memory are back as before."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("t")
    with WireClient(broker.bootstrap) as good:
        for _ in range(10):
            produce(good, topic, batch_of(b"x" * 900_000))
        fetch(good, topic)
        die_in_many_ways(broker, topic, 20)
        wait_until(lambda: socket_count(broker.pid) <= 4, "the end of the first dead connections")
        descriptors, resident = descriptor_count(broker.pid), resident_bytes(broker.pid)
        die_in_many_ways(broker, topic, 200)
        wait_until(lambda: descriptor_count(broker.pid) <= descriptors, "the end of dead connections", 5)
        assert resident_bytes(broker.pid) - resident < 24 * MIB
        assert produce(good, topic, batch_of(b"fine")).error_code == 0


def die_in_many_ways(broker: SubprocessBroker, topic: str, count: int) -> None:
    long_poll = frame_of(encode_request(fetch_request(topic, 10, max_wait_ms=60_000), 12))
    big_answer = frame_of(encode_request(fetch_request(topic, 0, max_bytes=50_000_000), 12))
    last_words = (
        b"",
        b"\x00",
        FRAME[:9],
        struct.pack(">i", 90_000_000) + b"x" * 5_000,
        long_poll,
        big_answer,
    )
    for number in range(count):
        connection = connect(broker)
        connection.send(last_words[number % len(last_words)])
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def test_a_reader_that_does_not_read_is_not_buffered_for(own_broker: Any) -> None:
    """Back-pressure: a hundred unread answers of ten megabytes stay on the disk, not in memory."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("t")
    with WireClient(broker.bootstrap) as good:
        for _ in range(11):
            produce(good, topic, batch_of(b"x" * 900_000))
        before = resident_bytes(broker.pid)
        greedy = connect(broker)
        request = frame_of(encode_request(fetch_request(topic, 0, max_bytes=50_000_000), 12))
        greedy.setblocking(False)
        for _ in range(100):
            drip(greedy, request)
        for _ in range(50):
            assert produce(good, topic, batch_of(b"fine")).error_code == 0
        assert resident_bytes(broker.pid) - before < 24 * MIB
        greedy.close()


def test_a_flood_of_connections_leaves_nothing(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    with WireClient(broker.bootstrap) as good:
        good.call(ASK, 0)
        before = descriptor_count(broker.pid)
        for _ in range(5):
            flood = [connect(broker) for _ in range(200)]
            for each in flood:
                each.send(FRAME)
            assert good.call(ASK, 0).error_code == 0
            for each in flood:
                each.close()
        wait_until(lambda: descriptor_count(broker.pid) <= before, "the end of the flood", 5)
