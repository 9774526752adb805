"""What only a broker in this process lets a test see: which system calls it makes, and which clock it goes by."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raw import FETCH_WITH_NAMES, batch_of, fetch, fetch_request, produce

from tidemill.ports.clock import SystemClock
from tidemill.server.connection import JOINED_BYTES
from tidemill.testing import EmbeddedBroker, WireClient

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def client() -> Iterator[WireClient]:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        with WireClient(broker.bootstrap) as connection:
            yield connection


@pytest.mark.parametrize(("size", "leaves_by_sendfile"), [(100, False), (2 * JOINED_BYTES, True)])
def test_large_records_leave_by_sendfile(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, size: int, leaves_by_sendfile: bool
) -> None:
    """A small answer is copied, which costs less than a system call for each of its pieces."""
    sent: list[int] = []
    sendfile = os.sendfile

    def counted(*arguments: Any) -> int:
        sent.append(sendfile(*arguments))
        return sent[-1]

    batch = batch_of(b"x" * size)
    produce(client, "t", batch)
    monkeypatch.setattr(os, "sendfile", counted)
    assert len(fetch(client, "t").records) == len(batch)
    assert sum(sent) == (len(batch) if leaves_by_sendfile else 0)


class Jumping:
    """A wall clock that somebody sets while the broker runs."""

    def __init__(self) -> None:
        self.by_ms = 0
        self.readings = 0

    def wall_ms(self, _: SystemClock) -> int:
        self.readings += 1
        return time.time_ns() // 1_000_000 + self.by_ms


@pytest.mark.parametrize("by_ms", [DAY_MS, -DAY_MS])
def test_a_jump_of_the_wall_clock_moves_no_long_poll(monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    """It lasts as long as was asked, and still wakes for what is written meanwhile."""
    wall = Jumping()
    monkeypatch.setattr(SystemClock, "wall_ms", lambda clock: wall.wall_ms(clock))
    with EmbeddedBroker() as broker, WireClient(broker.bootstrap) as poller:
        broker.create_topic("t", message_timestamp_before_max_ms=str(2**62))
        began = time.monotonic()
        poller.send(fetch_request("t", 0, max_wait_ms=400), FETCH_WITH_NAMES)
        threading.Timer(0.1, setattr, (wall, "by_ms", by_ms)).start()
        assert not poller.receive().responses[0].partitions[0].records
        assert 0.35 < time.monotonic() - began < 2
        poller.send(fetch_request("t", 0, max_wait_ms=30_000), FETCH_WITH_NAMES)
        with WireClient(broker.bootstrap) as producer:
            readings = wall.readings
            assert produce(producer, "t", batch_of(b"x", timestamp_ms=0)).error_code == 0
            assert wall.readings > readings, "the broker goes by another wall clock than this one"
        assert poller.receive().responses[0].partitions[0].records
        assert time.monotonic() - began < 10
