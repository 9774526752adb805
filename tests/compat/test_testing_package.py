"""`tidemill.testing`: brokers for other people's tests. Quick to start, several at once, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clients import CLIENTS, CONFLUENT, Sent
from waiting import wait_until

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.testing import EmbeddedBroker, SubprocessBroker
from tidemill.testing.embedded import BrokerDidNotStart, TestBroker

KINDS: tuple[type[TestBroker], ...] = (EmbeddedBroker, SubprocessBroker)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


class Traces:
    """What a broker could leave behind: temporary files, descriptors, threads."""

    def __init__(self) -> None:
        self._names = set(os.listdir(tempfile.gettempdir()))
        self._descriptors = len(os.listdir("/proc/self/fd"))
        self._threads = threading.active_count()

    def wait_until_gone(self) -> None:
        wait_until(lambda: Traces()._is_no_more_than(self), "the end of every trace")

    def _is_no_more_than(self, before: Traces) -> bool:
        return (
            self._names == before._names
            and self._descriptors <= before._descriptors
            and self._threads <= before._threads
        )


@pytest.fixture
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes make temporary files, too: look only at ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def round_trip(broker: TestBroker, topic: str) -> None:
    CONFLUENT.produce(broker.bootstrap, topic, [Sent(b"hello")])
    assert CONFLUENT.consume(broker.bootstrap, topic, 1)[0].value == b"hello"


@kinds
@pytest.mark.usefixtures("own_temporary_directory")
def test_nothing_is_left_behind(kind: type[TestBroker]) -> None:
    with kind() as broker:
        round_trip(broker, broker.create_topic("warm-up"))
    before = Traces()
    for _ in range(3):
        with kind() as broker:
            home = broker.data_dir
            broker.create_topic("t", partitions=5)
    assert not Path(home).exists()
    before.wait_until_gone()


@kinds
def test_up_in_well_under_half_a_second(kind: type[TestBroker]) -> None:
    """The best of some starts: what else the machine does is not the broker's doing."""
    assert min(start_seconds(kind) for _ in range(3)) < 0.5


def start_seconds(kind: type[TestBroker]) -> float:
    broker, began = kind(), time.monotonic()
    with broker:
        return time.monotonic() - began


@kinds
def test_several_at_once(kind: type[TestBroker]) -> None:
    with kind() as first, kind() as second, kind() as third:
        brokers = (first, second, third)
        assert len({broker.bootstrap for broker in brokers}) == 3
        for number, broker in enumerate(brokers):
            broker.create_topic("same-name", partitions=number + 1)
            round_trip(broker, "same-name")


@kinds
def test_a_restart_keeps_address_and_data(kind: type[TestBroker]) -> None:
    with kind() as broker:
        address, topic = broker.bootstrap, broker.create_topic("kept")
        CONFLUENT.produce(address, topic, [Sent(b"before")])
        broker.restart()
        assert broker.bootstrap == address
        CONFLUENT.produce(address, topic, [Sent(b"after")])
        assert [r.value for r in CONFLUENT.consume(address, topic, 2)] == [b"before", b"after"]


@kinds
def test_a_given_directory_is_kept(kind: type[TestBroker], tmp_path: Path) -> None:
    with kind(data_dir=tmp_path) as broker:
        CONFLUENT.produce(broker.bootstrap, broker.create_topic("kept"), [Sent(b"x")])
    with kind(data_dir=tmp_path) as broker:
        assert CONFLUENT.consume(broker.bootstrap, "kept", 1)[0].value == b"x"
    assert (tmp_path / "meta.properties").exists()


@kinds
def test_settings_and_topic_configs(kind: type[TestBroker]) -> None:
    with kind(settings={"num.partitions": "4"}) as broker:
        broker.create_topic("small", retention_ms="1000")
        assert CONFLUENT.produce(broker.bootstrap, "made-by-sending", [Sent(b"x")], partition=3) == [0]
        with pytest.raises(ApiError) as refused:
            broker.create_topic("wrong", retention_ms="soon")
        assert refused.value.code == ErrorCode.INVALID_CONFIG


@kinds
@pytest.mark.usefixtures("own_temporary_directory")
def test_a_start_that_fails_says_why_and_leaves_nothing(kind: type[TestBroker]) -> None:
    with kind() as broker:
        before = Traces()
        with pytest.raises(BrokerDidNotStart, match=r"(?i)in use|port"):
            kind(listen=broker.bootstrap).start()
        before.wait_until_gone()


def test_a_killed_broker_comes_back() -> None:
    with SubprocessBroker() as broker:
        topic = broker.create_topic("t")
        CONFLUENT.produce(broker.bootstrap, topic, [Sent(b"x")])
        broker.kill()
        broker.restart()
        assert CONFLUENT.consume(broker.bootstrap, topic, 1)[0].value == b"x"


# -- the pytest plugin ----------------------------------------------------------------------------------


def test_the_fixtures(
    tidemill_broker: EmbeddedBroker, tidemill_topic: str, tidemill_topic_factory: Callable[..., str]
) -> None:
    another = tidemill_topic_factory(partitions=2, cleanup_policy="compact")
    assert another != tidemill_topic
    for client in CLIENTS:
        client.produce(tidemill_broker.bootstrap, tidemill_topic, [Sent(b"x")])
    assert CONFLUENT.watermarks(tidemill_broker.bootstrap, tidemill_topic) == (0, 3)
    assert CONFLUENT.watermarks(tidemill_broker.bootstrap, another, partition=1) == (0, 0)


def test_the_plugin_in_a_strangers_project(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import confluent_kafka\n"
        "def test_it(tidemill_broker, tidemill_topic):\n"
        "    producer = confluent_kafka.Producer({'bootstrap.servers': tidemill_broker.bootstrap})\n"
        "    producer.produce(tidemill_topic, b'x')\n"
        "    assert producer.flush(10) == 0\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_costs_nothing_unless_used() -> None:
    code = "import sys, pytest; before = set(sys.modules); import tidemill.testing.plugin; "
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"tidemill", "tidemill.testing", "tidemill.testing.plugin"}
