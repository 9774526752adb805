"""What a produced batch must satisfy: each violation gets its own error code."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from tidemill.api.batch_check import check_batch, most_unpacked_bytes, needs_rewrite, rewrite_batch
from tidemill.model.errors import ApiError, ErrorCode
from tidemill.storage.config import LogConfig
from tidemill.wire import compression
from tidemill.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    checksum,
    encode_batch,
    iterate_records,
    read_header,
)

MIB = 1024 * 1024
NOW_MS = 1_700_000_000_000
RECORDS = [Record(offset, NOW_MS + offset, b"key", b"value") for offset in range(3)]
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))


def batch(**changes: int) -> bytearray:
    """A good batch with some fields of its header replaced, and a checksum that covers them."""
    good = build_batch(RECORDS)
    header = read_header(good)._replace(**changes)
    return encode_batch(header, good[HEADER_SIZE:])


def check(data: bytes | bytearray | None, version: int = 11, config: LogConfig | None = None) -> BatchHeader:
    view = None if data is None else memoryview(bytearray(data))
    return check_batch(view, version, config or LogConfig(), NOW_MS)


def refusal(data: bytes | bytearray | None, version: int = 11, config: LogConfig | None = None) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        check(data, version, config)
    return refused.value.code


def test_a_good_batch_passes() -> None:
    assert check(batch()).record_count == 3


def test_nothing_or_too_little_is_no_record() -> None:
    assert refusal(None) is ErrorCode.INVALID_RECORD
    assert refusal(b"") is ErrorCode.INVALID_RECORD
    assert refusal(batch()[:60]) is ErrorCode.INVALID_RECORD


def test_two_batches_for_one_partition_are_refused() -> None:
    assert refusal(batch() + batch()) is ErrorCode.INVALID_RECORD


def test_a_size_that_lies_is_corrupt() -> None:
    assert refusal(batch()[:-1]) is ErrorCode.CORRUPT_MESSAGE
    negative = batch()
    struct.pack_into(">i", negative, 8, -5)
    assert refusal(negative) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("position", [17, 21, 30, 57, 62, -1])
def test_every_flipped_bit_under_the_checksum_is_corrupt(position: int) -> None:
    damaged = batch()
    damaged[position] ^= 0x40
    assert refusal(damaged) is ErrorCode.CORRUPT_MESSAGE


def test_an_old_format_is_refused() -> None:
    old = batch()
    old[16] = 1
    assert refusal(old) is ErrorCode.INVALID_RECORD


def test_the_limit_is_inclusive() -> None:
    size = len(batch())
    assert check(batch(), config=LogConfig(max_message_bytes=size)).size == size
    assert refusal(batch(), config=LogConfig(max_message_bytes=size - 1)) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("changes", [{"record_count": 0}, {"record_count": 4}, {"last_offset_delta": 1}])
def test_counts_that_disagree_are_refused(changes: dict[str, int]) -> None:
    assert refusal(batch(**changes)) is ErrorCode.INVALID_RECORD


def test_clients_write_no_control_batches() -> None:
    assert refusal(batch(attributes=0x20)) is ErrorCode.INVALID_RECORD


def test_codecs() -> None:
    assert refusal(batch(attributes=5)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(batch(attributes=4), version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check(batch(attributes=4), version=7).compression == 4


def test_a_producer_needs_a_sequence() -> None:
    assert refusal(batch(producer_id=7, producer_epoch=0, base_sequence=-1)) is ErrorCode.INVALID_RECORD
    assert check(batch(producer_id=7, producer_epoch=0, base_sequence=0)).producer_id == 7


def test_timestamps_too_far_from_now() -> None:
    late = LogConfig(message_timestamp_after_max_ms=1)
    early = LogConfig(message_timestamp_before_max_ms=1)
    assert refusal(batch(), config=late) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(batch(base_timestamp=NOW_MS - 100), config=early) is ErrorCode.INVALID_TIMESTAMP
    stamped = LogConfig(message_timestamp_after_max_ms=1, message_timestamp_type="LogAppendTime")
    assert check(batch(), config=stamped)


def test_a_compacted_topic_needs_keys() -> None:
    keyless = build_batch([*RECORDS, Record(3, NOW_MS, None, b"value")])
    header = check(keyless, config=COMPACTED)
    assert needs_rewrite(header, COMPACTED)
    with pytest.raises(ApiError) as refused:
        rewrite_batch(memoryview(keyless), header, COMPACTED)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    good = memoryview(batch())
    assert rewrite_batch(good, read_header(good), COMPACTED) is good


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", [0, 1, 2, 3, 4])
def test_a_topic_with_a_codec_of_its_own_recompresses(codec: str, source: int) -> None:
    config = LogConfig(compression_type=codec)
    plain = build_batch(RECORDS)
    payload = compression.compress(source, bytes(plain[HEADER_SIZE:])) if source else plain[HEADER_SIZE:]
    sent = encode_batch(read_header(plain)._replace(attributes=source), payload)
    header = check(sent, config=config)
    rewritten = rewrite_batch(memoryview(sent), header, config)
    after = read_header(rewritten)
    assert after.compression == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert checksum(rewritten, 0, after.size) == after.crc
    body = bytes(rewritten[HEADER_SIZE:])
    if after.compression:
        body = compression.decompress(after.compression, body, 1 << 20)
    assert list(iterate_records(after, body)) == RECORDS


def test_a_decompression_bomb_is_refused() -> None:
    bomb = compression.compress(1, bytes(17 * 1024 * 1024))
    sent = encode_batch(read_header(build_batch(RECORDS))._replace(attributes=1), bomb)
    with pytest.raises(ApiError) as refused:
        rewrite_batch(memoryview(sent), check(sent, config=COMPACTED), COMPACTED)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("max_message_bytes", "expected"),
    [(1_000, 16_000), (4 * MIB, 64 * MIB), (5 * MIB, 64 * MIB), (64 * MIB, 64 * MIB), (100 * MIB, 100 * MIB)],
)
def test_what_a_batch_may_unpack_to(max_message_bytes: int, expected: int) -> None:
    """In proportion to the topic's messages, with a ceiling that never forbids what may come uncompressed."""
    assert most_unpacked_bytes(LogConfig(max_message_bytes=max_message_bytes)) == expected


def test_a_ceiling_holds_where_messages_may_be_large() -> None:
    large = dataclasses.replace(COMPACTED, max_message_bytes=32 * MIB)
    bomb = compression.compress(4, bytes(65 * MIB))
    sent = encode_batch(read_header(build_batch(RECORDS))._replace(attributes=4), bomb)
    with pytest.raises(ApiError, match=f"at most {64 * MIB} are allowed"):
        rewrite_batch(memoryview(sent), check(sent, config=large), large)


def test_damaged_compression_is_corrupt() -> None:
    sent = encode_batch(read_header(build_batch(RECORDS))._replace(attributes=3), b"no lz4 frame")
    with pytest.raises(ApiError) as refused:
        rewrite_batch(memoryview(sent), check(sent, config=COMPACTED), COMPACTED)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
