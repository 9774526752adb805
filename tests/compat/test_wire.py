"""The protocol itself: versions, order, tagged fields, and what a produce must be like."""

from __future__ import annotations

import struct
import time

import pytest
from clients import CONFLUENT
from cluster_under_test import Cluster
from raw import (
    FETCH_WITH_NAMES,
    PRODUCE_WITH_NAMES,
    batch_of,
    fetch,
    fetch_batches,
    fetch_request,
    new_producer_id,
    produce,
    produce_request,
    topic_id,
)

from tidemill.model.errors import ErrorCode
from tidemill.testing.wire_client import ConnectionLost, encode_request, frame_of
from tidemill.wire.batch import Record, build_batch
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.wire.messages.produce import ProduceRequest
from tidemill.wire.schema import decode

ASK = ApiVersionsRequest(client_software_name="tidemill-tests", client_software_version="1.0")
MAX_IN_FLIGHT = 30


# -- versions ---------------------------------------------------------------------------------------


def test_api_versions_in_every_version(cluster: Cluster) -> None:
    oldest, newest = ApiVersionsRequest.VERSIONS
    with cluster.connect() as connection:
        answers = [connection.call(ASK, version) for version in range(oldest, newest + 1)]
    ranges = [{k.api_key: (k.min_version, k.max_version) for k in a.api_keys} for a in answers]
    assert all(answer.error_code == 0 for answer in answers)
    assert all(found == ranges[0] for found in ranges)
    assert {0, 1, 2, 3, 18, 19, 20, 22} <= set(ranges[0])


def test_features_that_may_be_at_level_0_are_named_from_version_4_on(cluster: Cluster) -> None:
    """Java clients from 3.3 to 3.8 speak version 3 and refuse a feature whose lowest level is 0 (KAFKA-17492)."""
    with cluster.connect() as connection:
        old, new = (
            {
                feature.name: feature.min_version
                for feature in connection.call(ASK, version).supported_features
            }
            for version in (3, 4)
        )
    assert {"group.version", "share.version", "transaction.version"} <= {n for n in new if not new[n]}
    assert old == {name: low for name, low in new.items() if low > 0} and "metadata.version" in old


def test_api_versions_of_the_future_is_answered_in_version_0(cluster: Cluster) -> None:
    """A newer client learns in one round trip what it may speak (KIP-511)."""
    payload = bytearray(encode_request(ASK, 4, correlation_id=7))
    struct.pack_into(">h", payload, 2, 99)
    with cluster.connect() as connection:
        connection.send_bytes(frame_of(bytes(payload)))
        frame = connection.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == 7
        answer = decode(ApiVersionsResponse, 0, frame, 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        offered = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
        assert offered[18] == (0, 4)
        assert connection.call(ASK, 4).error_code == 0, "the connection stays usable"


def test_a_bad_software_name_is_refused(cluster: Cluster) -> None:
    bad = ApiVersionsRequest(client_software_name="-no good-", client_software_version="1")
    with cluster.connect() as connection:
        assert connection.call(bad, 3).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("key", "version"), [(3, 99), (0, 99), (1, 0), (9_999, 0), (-5, 0)])
def test_other_unknown_versions_and_keys_close_the_connection(
    cluster: Cluster, key: int, version: int
) -> None:
    """As in Apache Kafka: an answer nobody could decode is worse than none."""
    payload = bytearray(encode_request(MetadataRequest(topics=[]), 12))
    struct.pack_into(">hh", payload, 0, key, version)
    with cluster.connect() as connection:
        connection.send_bytes(frame_of(bytes(payload)))
        with pytest.raises((ConnectionLost, ConnectionResetError)):
            connection.receive_frame()
    with cluster.connect() as connection:
        assert connection.call(ASK).error_code == 0


def test_unknown_tagged_fields_are_ignored(cluster: Cluster, topic: str) -> None:
    """In the header, at the end of the body and inside a struct."""
    tags = bytes([2, 77, 3]) + b"abc" + bytes([0x80, 0x01, 1]) + b"z"
    header = struct.pack(">hhih", 3, 12, 5, 4) + b"test" + tags
    name = bytes([len(topic) + 1]) + topic.encode()
    body = bytes([2]) + bytes(16) + name + tags + bytes([0, 0]) + tags
    with cluster.connect() as connection:
        connection.send_bytes(frame_of(header + body))
        frame = connection.receive_frame()
    answer = decode(MetadataResponse, 12, frame, 5)
    assert [(t.name, t.error_code) for t in answer.topics] == [(topic, 0)]


def test_a_null_client_id(cluster: Cluster) -> None:
    with cluster.connect(client_id=None) as connection:
        assert connection.call(ASK).error_code == 0
        assert connection.call(MetadataRequest(topics=[]), 1).brokers


def test_a_frame_in_many_pieces(cluster: Cluster) -> None:
    frame = frame_of(encode_request(ASK, 4, correlation_id=3))
    with cluster.connect() as connection:
        for position in range(len(frame)):
            connection.send_bytes(frame[position : position + 1])
            time.sleep(0.001)
        assert struct.unpack_from(">i", connection.receive_frame())[0] == 3


# -- order ------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(cluster: Cluster, topic: str) -> None:
    """A slow long poll in front holds back the quick answers behind it, on its own connection only."""
    with cluster.connect(topic) as connection:
        ids = [connection.send(fetch_request(topic, 0, max_wait_ms=300), FETCH_WITH_NAMES)]
        for number in range(MAX_IN_FLIGHT):
            request = produce_request(topic, batch_of(b"%d" % number))
            ids.append(connection.send(request, PRODUCE_WITH_NAMES))
            ids.append(connection.send(MetadataRequest(topics=[])))
        answered = [struct.unpack_from(">i", connection.receive_frame())[0] for _ in ids]
    assert answered == ids


def test_pipelined_produces_keep_their_order(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        for number in range(MAX_IN_FLIGHT):
            connection.send(produce_request(topic, batch_of(b"%d" % number)), PRODUCE_WITH_NAMES)
        offsets = [
            connection.receive().responses[0].partition_responses[0].base_offset for _ in range(MAX_IN_FLIGHT)
        ]
    assert offsets == list(range(MAX_IN_FLIGHT))
    values = [received.value for received in CONFLUENT.consume(cluster.bootstrap, topic, MAX_IN_FLIGHT)]
    assert values == [b"%d" % number for number in range(MAX_IN_FLIGHT)]


def test_acks_0_gets_no_answer(cluster: Cluster, topic: str) -> None:
    """The next answer on the connection belongs to the next request."""
    with cluster.connect(topic) as connection:
        for _ in range(5):
            request = produce_request(topic, batch_of(b"x"), acks=0)
            connection.send(request, PRODUCE_WITH_NAMES, is_answered=False)
        assert connection.call(ASK).error_code == 0
        assert len(fetch_batches(connection, topic)) == 5


def test_an_error_with_acks_0_closes_the_connection(cluster: Cluster, topic: str) -> None:
    """The only way to tell a producer that does not listen."""
    with cluster.connect(topic) as connection:
        request = produce_request(topic, batch_of(b"x"), partition=55, acks=0)
        connection.send(request, PRODUCE_WITH_NAMES, is_answered=False)
        with pytest.raises((ConnectionLost, ConnectionResetError, BrokenPipeError)):
            connection.call(ASK)
            connection.call(ASK)


# -- what a produce must be like ----------------------------------------------------------------------


def damaged(position: int, batch: bytes | None = None) -> bytes:
    data = bytearray(batch_of(b"some value") if batch is None else batch)
    data[position] ^= 0x40
    return bytes(data)


def with_field(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one header field replaced and the right checksum."""
    import crc32c

    data = bytearray(batch)
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("position", [18, 22, 40, 65, 70])
def test_a_flipped_bit_is_refused(cluster: Cluster, topic: str, position: int) -> None:
    with cluster.connect(topic) as connection:
        assert produce(connection, topic, damaged(position)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert produce(connection, topic, batch_of(b"good")).base_offset == 0


def test_wrong_counts_are_refused(cluster: Cluster, topic: str) -> None:
    batch = batch_of(b"a", b"b", b"c")
    wrong = [
        with_field(batch, 57, ">i", 2),
        with_field(batch, 57, ">i", -1),
        with_field(batch, 57, ">i", 2**31 - 1),
        with_field(batch, 23, ">i", 7),
        with_field(batch, 23, ">i", -1),
    ]
    with cluster.connect(topic) as connection:
        for each in wrong:
            assert produce(connection, topic, each).error_code in (
                ErrorCode.INVALID_RECORD,
                ErrorCode.CORRUPT_MESSAGE,
            )
        assert produce(connection, topic, batch).base_offset == 0


def test_wrong_lengths_are_refused(cluster: Cluster, topic: str) -> None:
    batch = batch_of(b"some value")
    refused = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR)
    with cluster.connect(topic) as connection:
        for length in (0, -1, len(batch) - 13, len(batch), 2**31 - 1):
            data = bytearray(batch)
            struct.pack_into(">i", data, 8, length)
            assert produce(connection, topic, bytes(data)).error_code in refused, length
        assert produce(connection, topic, batch).base_offset == 0


def test_two_batches_for_one_partition_are_refused(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        two = batch_of(b"one") + batch_of(b"two")
        assert produce(connection, topic, two).error_code == ErrorCode.INVALID_RECORD


def test_control_batches_are_not_for_clients(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        control = batch_of(b"x", attributes=0x20)
        assert produce(connection, topic, control).error_code == ErrorCode.INVALID_RECORD


def test_old_formats_are_refused(cluster: Cluster, topic: str) -> None:
    for magic in (0, 1, 3):
        data = bytearray(batch_of(b"x"))
        data[16] = magic
        with cluster.connect(topic) as connection:
            error = produce(connection, topic, bytes(data)).error_code
        assert error in (
            ErrorCode.INVALID_RECORD,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )


def test_a_compacted_topic_needs_keys(cluster: Cluster) -> None:
    topic = cluster.topic(cleanup_policy="compact")
    keyed = bytes(build_batch([Record(0, int(time.time() * 1000), b"key", b"value")]))
    with cluster.connect(topic) as connection:
        refused = produce(connection, topic, batch_of(b"no key"))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [0]
        assert produce(connection, topic, keyed).error_code == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_only_three_kinds_of_acks(cluster: Cluster, topic: str, acks: int) -> None:
    with cluster.connect(topic) as connection:
        assert (
            produce(connection, topic, batch_of(b"x"), acks=acks).error_code
            == ErrorCode.INVALID_REQUIRED_ACKS
        )


def test_unknown_partitions_and_topic_ids(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        beyond = produce(connection, topic, batch_of(b"x"), partition=9)
        assert beyond.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = produce_request(topic, batch_of(b"x"))
        request.topic_data[0].topic_id = b"0123456789abcdef"
        answer = connection.call(request, 13)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_stale_producer_epochs_are_fenced(cluster: Cluster, topic: str) -> None:
    with cluster.connect(topic) as connection:
        producer_id, epoch = new_producer_id(connection)
        newer = batch_of(b"x", producer_id=producer_id, producer_epoch=epoch + 1, base_sequence=0)
        older = batch_of(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        assert produce(connection, topic, newer).error_code == 0
        assert produce(connection, topic, older).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_every_version_of_produce(cluster: Cluster, topic: str) -> None:
    oldest, newest = ProduceRequest.VERSIONS
    with cluster.connect(topic) as connection:
        known_id = topic_id(connection, topic)
        for number, version in enumerate(range(oldest, newest + 1)):
            request = produce_request(topic, batch_of(b"%d" % version))
            request.topic_data[0].topic_id = known_id
            part = connection.call(request, version).responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, number), version


def test_the_bytes_come_back_as_they_were_sent(cluster: Cluster, topic: str) -> None:
    """Only base offset and leader epoch are the broker's to write."""
    batch = batch_of(b"a", b"b", b"c")
    with cluster.connect(topic) as connection:
        produce(connection, topic, batch)
        returned = fetch(connection, topic).records
    assert returned[8:12] == batch[8:12]
    assert returned[16:] == batch[16:]


def test_many_partitions_in_one_produce(cluster: Cluster) -> None:
    """Good and bad partitions of one request do not spoil each other."""
    topic = cluster.topic(partitions=3, together=True)
    request = produce_request(topic, batch_of(b"x"), partition=0)
    for other in (
        produce_request(topic, damaged(40), partition=1),
        produce_request(topic, batch_of(b"x"), partition=2),
    ):
        request.topic_data[0].partition_data += other.topic_data[0].partition_data
    with cluster.connect(topic) as connection:
        answer = connection.call(request, PRODUCE_WITH_NAMES)
    codes = {p.index: p.error_code for t in answer.responses for p in t.partition_responses}
    assert codes == {0: 0, 1: ErrorCode.CORRUPT_MESSAGE, 2: 0}


def test_metadata_without_topics_and_of_all(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as connection:
        assert connection.call(MetadataRequest(topics=[])).topics == []
        names = {t.name for t in connection.call(MetadataRequest(topics=None)).topics}
        assert topic in names
        one = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        assert [t.name for t in one.topics] == [topic]
