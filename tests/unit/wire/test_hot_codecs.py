"""The codecs written by hand agree with the schemas, in every version."""

from __future__ import annotations

import pytest

from tidemill.model.errors import MalformedMessage
from tidemill.wire import fetch_codec as fc
from tidemill.wire import produce_codec as pc
from tidemill.wire.messages import fetch as fetch_schema
from tidemill.wire.messages import produce as produce_schema
from tidemill.wire.schema import decode, encode

TOPIC_ID = bytes(range(16))
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def produce_request() -> produce_schema.ProduceRequest:
    return produce_schema.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            produce_schema.TopicProduceData(
                name="orders",
                topic_id=TOPIC_ID,
                partition_data=[
                    produce_schema.PartitionProduceData(index=0, records=b"first"),
                    produce_schema.PartitionProduceData(index=7, records=None),
                ],
            ),
            produce_schema.TopicProduceData(name="b", topic_id=TOPIC_ID, partition_data=[]),
        ],
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request(version: int) -> None:
    raw = memoryview(b"head" + encode(produce_request(), version))
    request = pc.decode_produce_request(raw, 4, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 1500)
    expected = ("", TOPIC_ID) if version >= 13 else ("orders", bytes(16))
    assert (request.topics[0].name, request.topics[0].topic_id) == expected
    first, second = request.topics[0].partitions
    assert first.partition == 0 and first.records is not None and bytes(first.records) == b"first"
    assert second == pc.ProducePartition(7, None)
    assert request.topics[1].partitions == []


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_cut_off_anywhere_is_malformed(version: int) -> None:
    raw = encode(produce_request(), version)
    for end in range(len(raw)):
        with pytest.raises(MalformedMessage):
            pc.decode_produce_request(memoryview(raw[:end]), 0, version)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_response(version: int) -> None:
    results = [
        pc.ProduceResult(3, 0, 41, -1, 7),
        pc.ProduceResult(4, 87, message="no" if version >= 8 else None),
    ]
    raw = pc.encode_produce_response([pc.ProduceTopicResult("orders", TOPIC_ID, results)], version)
    response = decode(produce_schema.ProduceResponse, version, raw)
    topic = response.responses[0]
    assert (topic.topic_id if version >= 13 else topic.name) == (TOPIC_ID if version >= 13 else "orders")
    good, bad = topic.partition_responses
    assert (good.index, good.error_code, good.base_offset) == (3, 0, 41)
    assert good.log_start_offset == (7 if version >= 5 else -1)
    assert (bad.index, bad.error_code, bad.base_offset) == (4, 87, -1)
    assert bad.error_message == ("no" if version >= 8 else None)
    assert encode(response, version) == raw


def fetch_request() -> fetch_schema.FetchRequest:
    partition = fetch_schema.FetchPartition(
        partition=2, current_leader_epoch=5, fetch_offset=99, last_fetched_epoch=4, log_start_offset=1,
        partition_max_bytes=1000,
    )  # fmt: skip
    return fetch_schema.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=5000,
        isolation_level=1,
        session_id=8,
        session_epoch=3,
        topics=[
            fetch_schema.FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[partition, partition])
        ],
        forgotten_topics_data=[
            fetch_schema.ForgottenTopic(topic="old", topic_id=TOPIC_ID, partitions=[1, 2])
        ],
        rack_id="r",
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request(version: int) -> None:
    message = fetch_request()
    if version < 7:
        message.forgotten_topics_data = []
    request = fc.decode_fetch_request(memoryview(encode(message, version)), 0, version)
    assert request.replica_id == -1
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level) == (
        500,
        1,
        5000,
        1,
    )
    assert (request.session_id, request.session_epoch) == ((8, 3) if version >= 7 else (0, -1))
    assert len(request.topics) == 1 and len(request.topics[0].partitions) == 2
    assert (request.topics[0].topic_id == TOPIC_ID) == (version >= 13)
    partition = request.topics[0].partitions[1]
    assert (partition.partition, partition.fetch_offset, partition.max_bytes) == (2, 99, 1000)
    assert partition.current_leader_epoch == (5 if version >= 9 else -1)
    assert partition.last_fetched_epoch == (4 if version >= 12 else -1)
    if version >= 7:
        assert request.forgotten[0].partitions == [1, 2]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_cut_off_anywhere_is_malformed(version: int) -> None:
    raw = encode(fetch_request(), version)
    for end in range(len(raw)):
        with pytest.raises(MalformedMessage):
            fc.decode_fetch_request(memoryview(raw[:end]), 0, version)


def test_a_follower_names_itself_in_a_tagged_field() -> None:
    message = fetch_request()
    message.replica_state = fetch_schema.ReplicaState(replica_id=3, replica_epoch=77)
    request = fc.decode_fetch_request(memoryview(encode(message, 17)), 0, 17)
    assert (request.replica_id, request.replica_epoch) == (3, 77)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response(version: int) -> None:
    results = [
        fc.FetchResult(0, 0, 10, 9, 1, [(5, 6)], b"records"),
        fc.FetchResult(1, 6, current_leader=(2, 3), diverging_epoch=(1, 50)),
    ]
    topics = [fc.FetchTopicResult("orders", TOPIC_ID, results)]
    raw = b"".join(bytes(piece) for piece in fc.encode_fetch_response(topics, version, 0, 12))
    response = decode(fetch_schema.FetchResponse, version, raw)
    good, bad = response.responses[0].partitions
    assert (good.high_watermark, good.last_stable_offset, good.records) == (10, 9, b"records")
    assert good.log_start_offset == (1 if version >= 5 else -1)
    assert good.aborted_transactions is not None and good.aborted_transactions[0].first_offset == 6
    assert bad.error_code == 6 and not bad.records and bad.aborted_transactions is None
    if version >= 12:
        assert (bad.current_leader.leader_id, bad.current_leader.leader_epoch) == (2, 3)
        assert (bad.diverging_epoch.epoch, bad.diverging_epoch.end_offset) == (1, 50)
    assert response.session_id == (12 if version >= 7 else 0)
