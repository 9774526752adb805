"""What a reader does with answers that hold no records, and how it stops; the broker is a list of answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from log_batches import data_batch

from tidemill.model.errors import ErrorCode
from tidemill.spark.client.cluster import BrokerError, Cluster, TopicPartition
from tidemill.spark.errors import BrokerUnavailable
from tidemill.spark.sink.decisions import fetch_uncommitted
from tidemill.spark.source import fetching
from tidemill.spark.source.batches import whole_batches
from tidemill.spark.source.fetching import bytes_of_a_record, fetch_range
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.settings import SourceSettings, batch_settings
from tidemill.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

WHERE = TopicPartition("orders", 0)


def settings(timeout_ms: int = 3000) -> SourceSettings:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
    return batch_settings({**given, "kafka.request.timeout.ms": str(timeout_ms)})


class ScriptedCluster(Cluster):
    """Every connection gives the answers of one script; a request beyond its end finds nobody."""

    def __init__(self, *script: FetchResponse) -> None:
        super().__init__(settings().client)
        self.script = list(script)
        self.asked: list[int] = []
        self.assume_leader(WHERE, "127.0.0.1:1")

    def forget_leaders(self) -> None:
        """There is one."""

    def connection(self, address: str) -> Any:
        return self

    def call(self, request: FetchRequest) -> FetchResponse:
        self.asked.append(request.topics[0].partitions[0].fetch_offset)
        if not self.script:
            raise BrokerUnavailable("nobody is there")
        return self.script.pop(0)


def answer(records: bytes | bytearray = b"", high_watermark: int = 20) -> FetchResponse:
    part = PartitionData(partition_index=0, high_watermark=high_watermark, records=bytes(records))
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[part])])


def test_an_empty_answer_is_a_gap_only_when_it_is_repeated() -> None:
    script = [answer(), answer(), answer(data_batch(10)), *[answer()] * 4, answer(data_batch(10, offset=10))]
    cluster = ScriptedCluster(*script)
    portions = list(fetch_range(cluster, OffsetRange(WHERE, 0, 20), settings()))
    assert [portion.start for portion in portions] == [0, 10]
    silent = ScriptedCluster(*[answer()] * 5)
    assert list(fetch_range(silent, OffsetRange(WHERE, 0, 20), settings())) == []
    assert silent.asked == [0] * 5


def test_the_size_of_a_record_follows_from_whole_batches() -> None:
    """Two batches from offset 100 on, asked for at 119, and the beginning of a third."""
    whole = bytes(data_batch(10, offset=100, size=1000) + data_batch(10, offset=110, size=1000))
    records = whole + bytes(data_batch(10, offset=120, size=100_000)[:50_000])
    assert bytes_of_a_record(records, whole_batches(records, 119)) == len(whole) / 20


def test_a_throttled_fetch_waits_and_asks_again() -> None:
    cluster = ScriptedCluster(FetchResponse(throttle_time_ms=100), answer(data_batch(20)))
    before = time.monotonic()
    (portion,) = fetch_range(cluster, OffsetRange(WHERE, 0, 20), settings())
    assert (portion.start, cluster.asked) == (0, [0, 0])
    assert time.monotonic() - before >= 0.1


def test_the_error_of_a_whole_answer_is_not_passed_over() -> None:
    refused = FetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
        list(fetch_range(ScriptedCluster(refused), OffsetRange(WHERE, 0, 20), settings()))
    with pytest.raises(BrokerError, match="orders-0 at offset 7, which is throttled: REQUEST_TIMED_OUT"):
        fetch_uncommitted(ScriptedCluster(FetchResponse()), WHERE, 7, 1000)


def test_a_reader_that_stops_early_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the range is at a broker that is gone, which would be asked for a minute."""
    monkeypatch.setattr(fetching, "_PAUSE_SECONDS", 0.01)
    portions = fetch_range(
        ScriptedCluster(answer(data_batch(10))), OffsetRange(WHERE, 0, 20), settings(60_000)
    )
    assert next(portions).start == 0
    assert _ends(portions.close)  # type: ignore[attr-defined]


def _ends(action: Callable[[], None]) -> bool:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(timeout=10)
    return not thread.is_alive()
