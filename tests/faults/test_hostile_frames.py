"""A hundred thousand frames that are a little wrong: others are served meanwhile, and memory stays flat."""

from __future__ import annotations

import selectors
import socket
import statistics
import struct
import time
from typing import Any

from clients import CLIENTS, Sent
from log_files import values_from
from mutation import Mutator, passes_header
from process_facts import MIB, resident_bytes, socket_count
from raw import batch_of, fetch, produce, topic_id
from sample_requests import sample_frames
from waiting import wait_until

from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.wire_client import encode_request, frame_of
from tidemill.wire.messages.api_versions import ApiVersionsRequest

FRAMES = 100_000
WARM_UP_FRAMES = 15_000
SEED = 411
CONNECTIONS = 32
PATIENCE_SECONDS = 0.05
"""How long an attacker waits for an answer before it lets the connection go."""
PROBE_ID = 0x50524F42
PROBE = frame_of(encode_request(ApiVersionsRequest(), 0, PROBE_ID))
LEAST_SHARE_PAST_THE_HEADER = 0.30
MOST_GROWTH_BYTES = 24 * MIB
FRAMES_PER_BYSTANDER_ROUND = 500
USUAL_SECONDS, MOST_SECONDS = 0.1, 0.5
"""For one write and one read: in half of the rounds, and in 99 of 100. The attack may keep the whole machine busy."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Attacker:
    """One connection at a time. After each frame a valid request shows whether the broker still listens here."""

    def __init__(self, address: tuple[str, int], selector: selectors.BaseSelector) -> None:
        self._address, self._selector = address, selector
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self.deadline = 0.0

    def attack(self, frame: bytes, now: float) -> None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        self._received.clear()
        self.deadline = now + PATIENCE_SECONDS
        try:
            self._socket.send(frame + PROBE)
        except OSError:
            self.let_go()
            self.attack(frame, now)

    def is_done(self) -> bool:
        """Read what came; True when the probe was answered or the connection is over."""
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.let_go()
            return True
        self._received += data
        return self._has_probe_answer()

    def _has_probe_answer(self) -> bool:
        received, position = self._received, 0
        while len(received) >= position + 8:
            size, correlation_id = struct.unpack_from(">ii", received, position)
            if correlation_id == PROBE_ID and len(received) >= position + 4 + size:
                return True
            position += 4 + size
        return False

    def let_go(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, 5)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ, self)


class Bystander:
    """A good client that writes and reads all along; how long the broker takes for it."""

    def __init__(self, connection: WireClient, topic: str) -> None:
        self._connection, self._topic = connection, topic
        self._seen = 0
        self._offset = 0
        self.seconds: list[float] = []

    def maybe_work(self, sent: int) -> None:
        """Once in so many frames of the attack."""
        if sent // FRAMES_PER_BYSTANDER_ROUND != self._seen // FRAMES_PER_BYSTANDER_ROUND:
            self._seen = sent
            began = time.monotonic()
            self._work()
            self.seconds.append(time.monotonic() - began)

    def _work(self) -> None:
        written = produce(self._connection, self._topic, batch_of(b"fine"))
        assert (written.error_code, written.base_offset) == (0, self._offset)
        read = fetch(self._connection, self._topic, self._offset)
        assert values_from(read.records, self._offset) == [b"fine"]
        self._offset += 1


def attack(broker: SubprocessBroker, mutator: Mutator, count: int, bystander: Bystander) -> int:
    """Send so many frames, each until it is answered, refused or ignored; how many passed the header."""
    passed = sent = 0
    with selectors.DefaultSelector() as selector:
        attackers = [Attacker((broker.host, broker.port), selector) for _ in range(CONNECTIONS)]
        ready, busy = attackers[:], set[Attacker]()
        while sent < count or busy:
            bystander.maybe_work(sent)
            now = time.monotonic()
            while ready and sent < count:
                frame = mutator.next_frame()
                passed += passes_header(frame)
                attacker = ready.pop()
                attacker.attack(frame, now)
                busy.add(attacker)
                sent += 1
            for key, _ in selector.select(PATIENCE_SECONDS):
                if key.data in busy and key.data.is_done():
                    busy.discard(key.data)
                    ready.append(key.data)
            for attacker in [each for each in busy if each.deadline < now]:
                attacker.let_go()
                busy.discard(attacker)
                ready.append(attacker)
        for attacker in attackers:
            attacker.let_go()
    return passed


def test_a_hundred_thousand_mutated_frames(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker(settings={"auto.create.topics.enable": "false"})
    topic = broker.create_topic("target")
    with WireClient(broker.bootstrap) as good:
        frames = sample_frames(topic, topic_id(good, topic))
        bystander = Bystander(good, broker.create_topic("quiet"))
        sockets_before = socket_count(broker.pid)
        mutator = Mutator(frames, SEED)
        passed = attack(broker, mutator, WARM_UP_FRAMES, bystander)
        resident_before = resident_bytes(broker.pid)
        passed += attack(broker, mutator, FRAMES - WARM_UP_FRAMES, bystander)
        growth = resident_bytes(broker.pid) - resident_before
    assert len(bystander.seconds) >= FRAMES // FRAMES_PER_BYSTANDER_ROUND // 2
    percentiles = statistics.quantiles(bystander.seconds, n=100)
    assert percentiles[49] < USUAL_SECONDS and percentiles[98] < MOST_SECONDS, "a good client was hurt"
    assert passed / FRAMES >= LEAST_SHARE_PAST_THE_HEADER
    assert growth < MOST_GROWTH_BYTES, f"memory grew by {growth / MIB:.1f} MiB"
    wait_until(lambda: socket_count(broker.pid) <= sockets_before, "the end of all connections")
    assert "Traceback" not in broker.log_text(), broker.log_text()[-6_000:]
    healthy = broker.create_topic("healthy")
    for client in CLIENTS:
        client.produce(broker.bootstrap, healthy, [Sent(b"still here")])
    assert len(CLIENTS[0].consume(broker.bootstrap, healthy, len(CLIENTS))) == len(CLIENTS)


def test_the_samples_are_accepted_as_they_are(own_broker: Any) -> None:
    """The control: unmutated, every sample of every version is answered."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("target")
    with WireClient(broker.bootstrap) as connection:
        frames = sample_frames(topic, topic_id(connection, topic))
        for frame in frames:
            connection.send_bytes(frame_of(frame))
            answer = connection.receive_frame()
            assert answer[:4] == frame[4:8], "the answer belongs to another request"
    assert len(frames) > 80
    assert "Traceback" not in broker.log_text()
