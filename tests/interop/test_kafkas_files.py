"""A data directory that Apache Kafka wrote: we verify it, start on it and go on; and the other way round."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from broker_process import BrokerProcess
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka_peer import KafkaPeer
from sample_data import Sample, Written, read_back, read_partition
from tidemill_peer import TidemillPeer


def test_log_verify_accepts_it(written_by_kafka: Written) -> None:
    program = str(Path(sys.executable).parent / "tidemill")
    done = subprocess.run(
        [program, "log", "verify", str(written_by_kafka.directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"tidemill log verify:\n{done.stdout}{done.stderr}"


def test_log_verify_refuses_it_after_a_flipped_bit(written_by_kafka: Written, data_copy: Path) -> None:
    shutil.copytree(written_by_kafka.directory / "codec-none-0", data_copy / "codec-none-0")
    segment = next((data_copy / "codec-none-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    program = str(Path(sys.executable).parent / "tidemill")
    done = subprocess.run(
        [program, "log", "verify", str(data_copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0, f"tidemill log verify found nothing wrong:\n{done.stdout}"


def test_we_serve_what_kafka_wrote(written_by_kafka: Written, data_copy: Path) -> None:
    shutil.copytree(written_by_kafka.directory, data_copy)
    with TidemillPeer(data_directory=data_copy) as broker:
        _assert_served(broker, written_by_kafka.sample)
        _assert_goes_on(broker)
        broker.stop()
        broker.start()
        assert read_partition(broker.bootstrap, "codec-none", 0)[-1].value == "one more"


def test_kafka_serves_what_we_wrote(written_by_us: Written, data_copy: Path) -> None:
    shutil.copytree(written_by_us.directory, data_copy)
    with KafkaPeer(data_directory=data_copy) as broker:
        _assert_served(broker, written_by_us.sample)
        _assert_goes_on(broker)


def _assert_served(broker: BrokerProcess, sample: Sample) -> None:
    found = read_back(broker.bootstrap, sample)
    for (topic, partition), expected in sample.records.items():
        records = found[topic, partition]
        pairs = zip(records, expected, strict=False)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), (len(records), len(expected)))
        assert records == expected, f"{topic}-{partition}: read {differing[0]}, written was {differing[1]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for topic, config in sample.configs.items():
        (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        described = future.result(30)
        assert {name: described[name].value for name in config} == config, f"settings of {topic}"
    found_topics = admin.list_topics(timeout=30).topics
    assert {name: len(found_topics[name].partitions) for name in sample.partitions} == sample.partitions


def _assert_goes_on(broker: BrokerProcess) -> None:
    """A new message continues the offsets, also for a new idempotent producer."""
    before = read_partition(broker.bootstrap, "codec-none", 0)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce("codec-none", "one more", partition=0)
    assert producer.flush(30) == 0
    after = read_partition(broker.bootstrap, "codec-none", 0)
    assert after[:-1] == before
    assert (after[-1].offset, after[-1].value) == (before[-1].offset + 1, "one more")
