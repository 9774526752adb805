"""The yardstick: 50,000 partitions on one broker.

    python -m bench.yardstick [partitions]

Creates topics of 500 partitions, writes one batch to every partition and reads some back, then restarts the broker
twice: after a clean stop and after `kill -9`. Prints what each step took and what the process holds: resident
memory, descriptors, memory maps. Not part of `make bench`: a figure to look at, without a bar of its own.

Limits: one connection, one request at a time; the times are those of a client that waits for each answer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.peers import raise_descriptor_limit
from tidemill.testing import SubprocessBroker, WireClient, embedded
from tidemill.wire.batch import Record, build_batch
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

DEFAULT_PARTITIONS = 50_000
PARTITIONS_EACH = 500
PATIENCE_SECONDS = 600.0


def main(partitions: int) -> None:
    raise_descriptor_limit()
    embedded.START_TIMEOUT_SECONDS = embedded.STOP_TIMEOUT_SECONDS = PATIENCE_SECONDS
    topics = [f"yardstick-{number:03}" for number in range(partitions // PARTITIONS_EACH)]
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-yardstick-") as home,
        SubprocessBroker(data_dir=Path(home)) as broker,
    ):
        _say(broker, "idle")
        _timed(broker, f"created {partitions:,} partitions", lambda: _create(broker, topics))
        _timed(broker, "wrote to every partition", lambda: _write(broker, topics))
        _timed(broker, "read every partition", lambda: _read(broker, topics, 1))
        _timed(broker, "stopped in order and started again", broker.restart)
        _timed(broker, "wrote to every partition", lambda: _write(broker, topics))
        _timed(broker, "read every partition", lambda: _read(broker, topics, 2))
        _timed(broker, "killed and started again", lambda: _kill_and_start(broker))
        _timed(broker, "read every partition", lambda: _read(broker, topics, 2))


def _timed(broker: SubprocessBroker, what: str, step: Callable[[], None]) -> None:
    begun = time.perf_counter()
    step()
    _say(broker, f"{what}: {time.perf_counter() - begun:.1f} s")


def _say(broker: SubprocessBroker, what: str) -> None:
    process = Path(f"/proc/{broker.pid}")
    memory = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    descriptors = len(list((process / "fd").iterdir()))
    maps = (process / "maps").read_text().count("\n")
    print(
        f"{what:50} {int(memory.split()[1]) / 1000:7.1f} MB, {descriptors} descriptors, {maps} maps",
        flush=True,
    )


def _create(broker: SubprocessBroker, topics: list[str]) -> None:
    with WireClient(broker.bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        for name in topics:
            topic = CreatableTopic(name=name, num_partitions=PARTITIONS_EACH, replication_factor=1)
            (result,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000)).topics
            assert result.error_code == 0, result


def _write(broker: SubprocessBroker, topics: list[str]) -> None:
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch([Record(0, now_ms, None, b"x" * 100)]))
    with WireClient(broker.bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        for name in topics:
            parts = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS_EACH)]
            data = TopicProduceData(name=name, partition_data=parts)
            request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data])
            (answer,) = client.call(request, 12).responses
            assert not any(part.error_code for part in answer.partition_responses)


def _read(broker: SubprocessBroker, topics: list[str], batches: int) -> None:
    with WireClient(broker.bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        ids = {each.name: each.topic_id for each in client.call(MetadataRequest(topics=wanted)).topics}
        for name in topics:
            parts = [
                FetchPartition(partition=index, partition_max_bytes=1 << 20)
                for index in range(PARTITIONS_EACH)
            ]
            request = FetchRequest(
                max_wait_ms=0, max_bytes=1 << 28, topics=[FetchTopic(topic_id=ids[name], partitions=parts)]
            )
            (answer,) = client.call(request).responses
            assert all(part.high_watermark == batches and part.records for part in answer.partitions)


def _kill_and_start(broker: SubprocessBroker) -> None:
    broker.kill()
    broker.start()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PARTITIONS)
