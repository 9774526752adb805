"""How far behind a pipeline is, asked of a broker with the settings of its job; no Spark is started."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cluster_under_test import Cluster
from confluent_kafka import Producer
from pipelines import send

from tidemill.spark.jobs.job import source_options
from tidemill.spark.pipeline.lag import Lag

JAVAS = {
    "kafka.max.poll.records": "500",
    "kafka.sasl.jaas.config": 'org.x.PlainLoginModule required username="ada" password="x";',
    "kafka.ssl.truststore.type": "PEM",
    "kafka.fetch.max.bytes": "1000000",
}
"""Settings of Java's client, some of which librdkafka refuses to hear of."""


def lag(bootstrap: str, **options: str) -> Lag:
    source: dict[str, Any] = {
        "bootstrap": bootstrap,
        "topics": ["any"],
        "pattern": "",
        "starting": "earliest",
    }
    source |= {"max_messages_per_batch": 0, "commit_group": "", "options": options}
    return Lag(source_options(source, include_headers=False))


def test_the_settings_of_the_job_may_be_those_of_javas_client(cluster: Cluster) -> None:
    topic = cluster.topic(partitions=2)
    send(cluster.bootstrap, topic, [{"partition": number % 2, "value": b"v"} for number in range(9)])
    asked = lag(cluster.bootstrap, **JAVAS)
    assert asked.behind({topic: {"0": 3, "1": 4}}) == 2
    assert asked.behind(json.dumps({topic: {"0": 0, "1": 9}})) == 5
    assert asked.behind({f"no-{topic}": {"0": 0}}) is None
    assert asked.behind({topic: {"0": 0, "1": 0}}) == 9, "a failure must not be the end of it"
    asked.close()


def test_an_open_transaction_counts_only_for_those_who_read_it(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v")
    assert producer.flush(30) == 0
    everything = lag(cluster.bootstrap, **{"kafka.isolation.level": "read_uncommitted"})
    assert [each.behind({topic: {"0": 0}}) for each in (lag(cluster.bootstrap), everything)] == [0, 1]
    producer.abort_transaction(30)


@pytest.mark.parametrize("offsets", [None, "no JSON", {"orders": 7}, '{"orders": {"0": null}}'])
def test_offsets_of_another_source_say_nothing(offsets: Any) -> None:
    assert lag("127.0.0.1:1").behind(offsets) is None


def test_a_broker_that_is_away_costs_a_moment() -> None:
    began = time.monotonic()
    unknown = lag("127.0.0.1:1", **{"kafka.request.timeout.ms": "200"}).behind({"orders": {"0": 1}})
    assert (unknown, time.monotonic() - began < 2) == (None, True)
