"""Messages up to `max.message.bytes` exactly, and one byte over it."""

from __future__ import annotations

import pytest
from clients import CLIENTS, CONFLUENT, Client, Refused, Sent
from cluster_under_test import Cluster
from raw import batch_of, fetch, produce

from tidemill.model.errors import ErrorCode
from tidemill.wire.batch import iterate_headers

LIMIT = 2_000_000


def value_filling(batch_bytes: int) -> bytes:
    """The value that makes a batch of one record exactly this big."""
    overhead = len(batch_of(b"x" * batch_bytes)) - batch_bytes
    value = b"x" * (batch_bytes - overhead)
    while len(batch_of(value)) < batch_bytes:  # the length of the length may have shrunk
        value += b"x"
    return value


def test_the_limit_is_exact(cluster: Cluster) -> None:
    """The limit counts the whole batch, header included."""
    topic = cluster.topic(max_message_bytes=LIMIT)
    fits, too_big = batch_of(value_filling(LIMIT)), batch_of(value_filling(LIMIT + 1))
    assert (len(fits), len(too_big)) == (LIMIT, LIMIT + 1)
    with cluster.connect(topic) as connection:
        assert produce(connection, topic, fits).error_code == 0
        assert produce(connection, topic, too_big).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert produce(connection, topic, batch_of(b"after")).base_offset == 1


def test_every_client_sends_and_reads_the_biggest(cluster: Cluster, client: Client) -> None:
    topic = cluster.topic(max_message_bytes=LIMIT)
    biggest = [Sent(bytes([65 + n]) * len(value_filling(LIMIT))) for n in range(2)]
    client.produce(cluster.bootstrap, topic, biggest, max_request_bytes=3 * LIMIT)
    for reader in CLIENTS:
        received = reader.consume(cluster.bootstrap, topic, 2)
        assert [r.value for r in received] == [message.value for message in biggest]


def test_one_over_the_limit_is_refused(cluster: Cluster, client: Client) -> None:
    topic = cluster.topic(max_message_bytes=LIMIT)
    over = [Sent(value_filling(LIMIT + 1))]
    with pytest.raises(Refused, match=r"MSG_SIZE_TOO_LARGE|MESSAGE_TOO_LARGE|MessageSizeTooLarge"):
        client.produce(cluster.bootstrap, topic, over, max_request_bytes=3 * LIMIT)
    client.produce(cluster.bootstrap, topic, [Sent(b"small")])
    assert client.watermarks(cluster.bootstrap, topic) == (0, 1)


def test_the_default_limit(cluster: Cluster, topic: str) -> None:
    default = 1_048_588
    fits, over = batch_of(value_filling(default)), batch_of(value_filling(default + 1))
    assert len(fits) == default
    with cluster.connect(topic) as connection:
        assert produce(connection, topic, fits).error_code == 0
        assert produce(connection, topic, over).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_limit_changes_at_run_time(cluster: Cluster, topic: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    big = Sent(b"x" * 1_500_000)
    with pytest.raises(Refused):
        CONFLUENT.produce(cluster.bootstrap, topic, [big], max_request_bytes=3_000_000)
    entry = ConfigEntry("max.message.bytes", "1600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    cluster.admin().incremental_alter_configs([resource])[resource].result(20)
    CONFLUENT.produce(cluster.bootstrap, topic, [big], max_request_bytes=3_000_000)
    assert CONFLUENT.watermarks(cluster.bootstrap, topic) == (0, 1)


def test_a_fetch_smaller_than_the_first_batch_still_gets_it(cluster: Cluster, topic: str) -> None:
    """A consumer with a small buffer must not get stuck on a big message (KIP-74)."""
    with cluster.connect(topic) as connection:
        produce(connection, topic, batch_of(b"x" * 500_000))
        produce(connection, topic, batch_of(b"y" * 500_000))
        part = fetch(connection, topic, max_bytes=1_000)
        whole = [header.base_offset for _, header in iterate_headers(part.records)]
        assert whole == [0]
        assert len(part.records) < 600_000
