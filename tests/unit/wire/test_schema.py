"""Our schemas, all messages and all versions, against kio; and against those who mean harm."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from schema_oracle import (
    Generator,
    neutral_ours,
    neutral_theirs,
    their_class,
    their_decode,
    their_encode,
    top_level_messages,
)

from tidemill.model.errors import MalformedMessage
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.create_topics import CreateTopicsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.schema import Message, decode, decode_from, decode_in_place, encode
from tidemill.wire.schema_values import MAX_STRING_BYTES, MAX_TAGGED_FIELDS

MESSAGES = list(top_level_messages())
NAMES = [f"{cls.__name__}-v{version}" for cls, version in MESSAGES]
MESSAGES_PER_VERSION = 15

every_message = pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=NAMES)
every_flexible_message = pytest.mark.parametrize(
    ("cls", "version"), [(cls, version) for cls, version in MESSAGES if version >= cls.FLEXIBLE]
)


def samples(cls: type[Message], version: int, count: int = MESSAGES_PER_VERSION) -> Iterator[Message]:
    seed = zlib.crc32(f"{cls.__name__}-{version}".encode())
    generator = Generator(seed)
    return (generator.message(cls, version, their_class(cls, version)) for _ in range(count))


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_all_apis_are_here() -> None:
    assert len({cls for cls, _ in MESSAGES}) >= 42
    assert len(MESSAGES) >= 200


@every_message
def test_kio_reads_what_we_write_and_writes_what_we_wrote(cls: type[Message], version: int) -> None:
    theirs = their_class(cls, version)
    for message in samples(cls, version):
        data = encode(message, version)
        entity = their_decode(theirs, data)
        assert neutral_theirs(entity) == neutral_ours(message, version)
        their_data = their_encode(entity)
        assert their_data == data
        assert decode_from(cls, version, their_data, 0) == (message, len(data))


@every_message
def test_an_empty_message_has_kafkas_defaults(cls: type[Message], version: int) -> None:
    """What a version lacks is left at its default, whatever else the message holds."""
    message = cls()
    assert decode(cls, version, encode(message, version)) == message


@every_message
def test_a_message_may_begin_anywhere(cls: type[Message], version: int) -> None:
    for message in samples(cls, version, 2):
        data = encode(message, version)
        for buffer in (b"header" + data + b"rest", bytearray(b"header" + data), memoryview(b"header" + data)):
            assert decode_from(cls, version, buffer, 6) == (message, 6 + len(data))  # type: ignore[arg-type]


@every_message
def test_cut_anywhere_it_is_malformed(cls: type[Message], version: int) -> None:
    for message in samples(cls, version, 2):
        data = encode(message, version)
        for cut in range(0, len(data), 1 + len(data) // 500):
            with pytest.raises(MalformedMessage):
                decode(cls, version, data[:cut])


@every_flexible_message
def test_unknown_tagged_fields_are_skipped(cls: type[Message], version: int) -> None:
    message = cls()
    data = encode(message, version)
    assert data[-1] == 0
    unknown = data[:-1] + b"\x02" + b"\x63\x03abc" + b"\xe7\x07\x00"
    assert decode_from(cls, version, unknown, 0) == (message, len(unknown))


BOMBS = [
    bytes.fromhex("7fffffff"), bytes.fromhex("ffffffff"), bytes.fromhex("80000000"), bytes.fromhex("7fff"),
    bytes.fromhex("ffffffff07"), bytes.fromhex("ffffffff0f"), bytes.fromhex("ffffffff7f"),
    bytes.fromhex("ffffffffffff"), bytes.fromhex("feffffff0f"), bytes.fromhex("00"),
]  # fmt: skip


@every_message
def test_a_bomb_at_any_byte_is_refused_with_memory_flat(cls: type[Message], version: int) -> None:
    (message,) = samples(cls, version, 1)
    data = encode(message, version)
    with memory_below(200_000):
        for position in range(min(len(data), 100)):
            for bomb in BOMBS:
                mutated = data[:position] + bomb + data[position + len(bomb) :]
                try:
                    decode(cls, version, mutated)
                except MalformedMessage:
                    pass


@every_message
def test_noise_raises_nothing_but_malformed(cls: type[Message], version: int) -> None:
    randomness = random.Random(version)
    for message in samples(cls, version, 5):
        for _ in range(20):
            mutated = bytearray(encode(message, version) or b"\0")
            for _ in range(randomness.randrange(1, 5)):
                mutated[randomness.randrange(len(mutated))] = randomness.randrange(256)
            try:
                decode(cls, version, bytes(mutated))
            except MalformedMessage:
                pass


def test_counts_are_checked_against_the_bytes_that_remain_before_allocating() -> None:
    with memory_below(50_000):
        for count in (b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"):
            with pytest.raises(MalformedMessage, match="longer than its message"):
                decode(MetadataRequest, 1, count + bytes(1_000))
        with pytest.raises(MalformedMessage, match="longer than its message"):
            decode(MetadataRequest, 9, b"\xff\xff\xff\xff\x07" + bytes(1_000))


def test_an_element_is_counted_with_its_smallest_size() -> None:
    """Two bytes per topic name: 600 topics cannot be in 1,000 bytes, although 600 is less than 1,000."""
    with pytest.raises(MalformedMessage, match="longer than its message"):
        decode(MetadataRequest, 1, (600).to_bytes(4, "big") + bytes(1_000))
    assert len(decode(MetadataRequest, 1, (500).to_bytes(4, "big") + bytes(1_000)).topics or ()) == 500


def test_strings_are_checked() -> None:
    too_long, negative, not_utf8 = b"\x7f\xffab", b"\xff\xfe", b"\x00\x02\xff\xfe"
    for bad, text in ((too_long, "longer than"), (negative, "must not be null"), (not_utf8, "UTF-8")):
        with pytest.raises(MalformedMessage, match=text):
            decode(MetadataRequest, 1, b"\0\0\0\1" + bad)


def test_a_compact_string_is_no_longer_than_any_other() -> None:
    longest = encode(DescribeGroupsRequest(groups=["g" * MAX_STRING_BYTES]), 5)
    assert len(decode(DescribeGroupsRequest, 5, longest).groups[0]) == MAX_STRING_BYTES
    with pytest.raises(MalformedMessage, match="at most 32767"):
        decode(DescribeGroupsRequest, 5, encode(DescribeGroupsRequest(groups=["g" * 0x8000]), 5))


def test_null_where_the_version_forbids_it() -> None:
    with pytest.raises(MalformedMessage, match="must not be null"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None
    with pytest.raises(MalformedMessage, match="must not be null"):
        decode(CreateTopicsRequest, 5, b"\x00")


def test_tag_bombs() -> None:
    head = b"\x01\x01"  # two empty strings
    assert decode(ApiVersionsRequest, 3, head + b"\x00") == ApiVersionsRequest()
    with memory_below(50_000):
        with pytest.raises(MalformedMessage, match="tagged fields in one struct"):
            decode(ApiVersionsRequest, 3, head + b"\xff\xff\xff\xff\x07" + bytes(5_000))
        with pytest.raises(MalformedMessage, match="tagged field 5 of"):
            decode(ApiVersionsRequest, 3, head + b"\x01\x05\xff\xff\xff\xff\x07" + bytes(100))
        with pytest.raises(MalformedMessage):
            decode(ApiVersionsRequest, 3, head + b"\xff\xff\xff\xff\xff\xff")
    full = b"".join(bytes((0x80 | n & 0x7F, n >> 7, 0)) for n in range(MAX_TAGGED_FIELDS))
    assert decode(ApiVersionsRequest, 3, head + b"\xe8\x07" + full) == ApiVersionsRequest()


def test_a_tagged_field_must_fill_its_size() -> None:
    message = ApiVersionsResponse(finalized_features_epoch=5)
    data = bytearray(encode(message, 3))
    position = data.index(b"\x01\x01\x08")  # one tagged field, tag 1, eight bytes
    assert decode(ApiVersionsResponse, 3, bytes(data)) == message
    data[position + 2] = 7
    with pytest.raises(MalformedMessage, match="says 7 bytes and takes 8"):
        decode(ApiVersionsResponse, 3, bytes(data))


def test_records_are_copied_unless_they_may_stay_where_they_are() -> None:
    part = PartitionData(partition_index=3, records=b"some batches")
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[part])])
    frame = bytearray(encode(answer, 12))
    stayed = decode_in_place(FetchResponse, 12, memoryview(frame), 0).responses[0].partitions[0]
    copied = decode(FetchResponse, 12, memoryview(frame)).responses[0].partitions[0]  # type: ignore[arg-type]
    assert (type(copied.records), type(stayed.records)) == (bytes, memoryview)
    at = frame.index(b"some")
    frame[at : at + 4] = b"SOME"
    assert (copied.records, stayed.records) == (b"some batches", b"SOME batches")
    with pytest.raises(MalformedMessage):
        decode_in_place(FetchResponse, 12, memoryview(frame)[:-3], 0)
    assert decode(FetchResponse, 12, bytes(frame)).responses[0].partitions[0].records == b"SOME batches"


def test_versions_differ_only_on_the_wire() -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=1, cluster_id="c", rack_id="r")
    assert decode(FetchRequest, 18, encode(request, 18)) == request
    old = decode(FetchRequest, 4, encode(request, 4))
    assert (old.max_wait_ms, old.cluster_id, old.rack_id, old.session_epoch) == (500, None, "", -1)


def test_a_message_of_a_megabyte_costs_in_proportion() -> None:
    """Nothing is allocated ahead of the bytes: half a million shortest topics are the worst case of 1 MB."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t" * 50) for _ in range(20_000)])
    data = encode(request, 1)
    with memory_below(15 * len(data)):
        assert decode(MetadataRequest, 1, data) == request
