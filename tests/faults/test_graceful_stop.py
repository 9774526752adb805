"""SIGTERM while requests wait, are half done or still lie in the socket: what was sent is answered, then it ends.

A client that has an answer knows where it stands; one whose connection just ends must ask again, and without
idempotence it writes twice. So a broker that is stopped on purpose leaves nobody without an answer.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from log_files import read_values
from raw import FETCH_WITH_NAMES, PRODUCE_WITH_NAMES, batch_of, fetch_request, produce, produce_request

from tidemill.storage.checkpoints import CLEAN_SHUTDOWN
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.wire_client import ConnectionLost

LONG_POLL_MS = 60_000
PIPELINED = 400
"""More than a connection handles at a time, so that some still lie in buffers when the broker is told to stop."""
STOP_SECONDS = 5.0


def stop(broker: SubprocessBroker) -> None:
    os.kill(broker.pid, signal.SIGTERM)


def end_of(broker: SubprocessBroker) -> int:
    """The exit code; the mark of a clean end must be there."""
    code = broker.wait(STOP_SECONDS)
    assert (Path(broker.data_dir) / CLEAN_SHUTDOWN).exists()
    return code


def test_a_long_poll_is_answered_before_the_end(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("t")
    with WireClient(broker.bootstrap) as poller:
        poller.send(fetch_request(topic, 0, max_wait_ms=LONG_POLL_MS), FETCH_WITH_NAMES)
        with WireClient(broker.bootstrap) as other:  # answered after the poll was taken: that was sent first
            assert produce(other, broker.create_topic("other"), batch_of(b"x")).error_code == 0
        began = time.monotonic()
        stop(broker)
        answer = poller.receive()
        assert time.monotonic() - began < STOP_SECONDS, "long before its own time was over"
        assert answer.error_code == 0
        assert [part.error_code for part in answer.responses[0].partitions] == [0]
        with pytest.raises(ConnectionLost):
            poller.receive_frame()
    assert end_of(broker) == 0


def test_every_produce_in_flight_is_answered_and_kept(own_broker: Any) -> None:
    """Each waits for an fsync; a long poll that comes after them on the same connection is answered as well."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("synced", flush_messages="1")
    values = [b"%06d" % number for number in range(PIPELINED)]
    with WireClient(broker.bootstrap) as producer:
        for value in values:
            producer.send(produce_request(topic, batch_of(value)), PRODUCE_WITH_NAMES)
        producer.send(fetch_request(topic, PIPELINED, max_wait_ms=LONG_POLL_MS), FETCH_WITH_NAMES)
        stop(broker)
        answers = [producer.receive().responses[0].partition_responses[0] for _ in values]
        assert producer.receive().error_code == 0
    assert [answer.error_code for answer in answers] == [0] * PIPELINED
    assert [answer.base_offset for answer in answers] == list(range(PIPELINED))
    assert end_of(broker) == 0
    broker.restart()
    assert "0 of them checked after a crash" in broker.log_text()
    assert read_values(broker.bootstrap, topic) == values


def test_a_client_that_goes_on_sending_does_not_keep_the_broker_alive(own_broker: Any) -> None:
    """It is answered as long as the broker lives, and what was answered is there afterwards."""
    broker: SubprocessBroker = own_broker()
    topic = broker.create_topic("t")
    acknowledged = 0
    with WireClient(broker.bootstrap) as busy, pytest.raises(OSError):
        while True:
            assert produce(busy, topic, batch_of(b"%d" % acknowledged)).error_code == 0
            acknowledged += 1
            if acknowledged == 20:
                stop(broker)
            assert acknowledged < 1_000_000
    assert end_of(broker) == 0
    broker.restart()
    kept = [int(value) for value in read_values(broker.bootstrap, topic)]
    assert kept[:acknowledged] == list(range(acknowledged)) and len(kept) <= acknowledged + 1


def test_half_a_request_does_not_hold_up_the_end(own_broker: Any) -> None:
    broker: SubprocessBroker = own_broker()
    with WireClient(broker.bootstrap) as slow:
        slow.send_bytes(b"\x00\x00\x01\x00half")
        began = time.monotonic()
        stop(broker)
        assert end_of(broker) == 0
        assert time.monotonic() - began < 2
