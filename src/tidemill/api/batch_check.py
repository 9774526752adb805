"""What a produced batch must satisfy before the log takes it: its header, its checksum, its count.

Single records are looked at in two cases only, both rare and both off the event loop: a compacted topic needs a
key in every record, and a topic with a `compression.type` of its own needs batches in that codec.
"""

from __future__ import annotations

from tidemill.model.errors import ApiError, ErrorCode, MalformedMessage
from tidemill.storage.config import LogConfig
from tidemill.wire import compression
from tidemill.wire.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    checksum,
    encode_batch,
    iterate_records,
    read_header,
)

ZSTD_SINCE = 7
CODEC_IDS = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MAX_EXPANSION = 16
"""How many times `max.message.bytes` a batch may unpack to; clients bound the unpacked size of their batches too."""
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""No batch unpacks to more than this, unless its topic takes larger ones uncompressed."""


class BadRecords(ApiError):
    """A batch is refused because of these of its records."""

    def __init__(self, message: str, places: tuple[int, ...]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
        self.places = places


def check_batch(records: memoryview | None, version: int, config: LogConfig, now_ms: int) -> BatchHeader:
    """The header of the one valid batch in `records`; ApiError otherwise."""
    if records is None or len(records) < HEADER_SIZE:
        raise ApiError(ErrorCode.INVALID_RECORD, "a Produce request must carry one record batch a partition")
    header = read_header(records)
    if header.magic != MAGIC:
        raise ApiError(ErrorCode.INVALID_RECORD, f"record batches of version {header.magic} are not accepted")
    size = header.batch_length + LOG_OVERHEAD
    if size != len(records):
        raise _wrong_size(size, len(records))
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, max.message.bytes of this topic is {config.max_message_bytes}",
        )
    if checksum(records, 0, size) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch is wrong")
    _check_fields(header, version)
    _check_timestamp(header, config, now_ms)
    return header


def _wrong_size(size: int, received: int) -> ApiError:
    if HEADER_SIZE <= size < received:
        return ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for one partition")
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch claims {size} bytes and has {received}")


def _check_fields(header: BatchHeader, version: int) -> None:
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"the batch claims {header.record_count} records and a last offset delta of {header.last_offset_delta}",
        )
    attributes = header.attributes
    if attributes & 0x20:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    codec = attributes & 0x07
    if codec > 4 or (codec == 4 and version < ZSTD_SINCE):
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is not known")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ApiError(ErrorCode.INVALID_RECORD, "a producer id without a sequence number or epoch")


def _check_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if config.message_timestamp_type != "CreateTime":
        return
    newest = header.max_timestamp
    if newest > now_ms + config.message_timestamp_after_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {newest} lies more than message.timestamp.after.max.ms ahead of {now_ms}",
        )
    if 0 <= header.base_timestamp < now_ms - config.message_timestamp_before_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} lies more than message.timestamp.before.max.ms behind {now_ms}",
        )


def needs_rewrite(header: BatchHeader, config: LogConfig) -> bool:
    """Whether single records must be looked at: work for a thread, not for the loop."""
    if config.is_compacted:
        return True
    return config.compression_type != "producer" and header.compression != CODEC_IDS[config.compression_type]


def rewrite_batch(records: memoryview, header: BatchHeader, config: LogConfig) -> memoryview:
    """Check keys where the topic is compacted, recompress where it has its own codec; runs in a thread."""
    try:
        payload = _decompressed(records, header, most_unpacked_bytes(config))
        if config.is_compacted:
            _check_keys(header, payload)
        elif sum(1 for _ in iterate_records(header, payload)) != header.record_count:
            raise ApiError(ErrorCode.INVALID_RECORD, "the batch holds fewer records than it claims")
    except MalformedMessage as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if config.compression_type == "producer" or header.compression == CODEC_IDS[config.compression_type]:
        return records
    codec = CODEC_IDS[config.compression_type]
    compressed = compression.compress(codec, payload, _level(codec, config))
    return memoryview(encode_batch(header._replace(attributes=header.attributes & ~0x07 | codec), compressed))


def most_unpacked_bytes(config: LogConfig) -> int:
    """What a batch may unpack to, where it must be unpacked."""
    expanded = min(MAX_EXPANSION * config.max_message_bytes, MAX_UNPACKED_BYTES)
    return max(config.max_message_bytes, expanded)


def _level(codec: int, config: LogConfig) -> int | None:
    """None for the codec's own default."""
    gzip = config.compression_gzip_level if config.compression_gzip_level >= 0 else None
    return {1: gzip, 3: config.compression_lz4_level, 4: config.compression_zstd_level}.get(codec)


def _decompressed(records: memoryview, header: BatchHeader, limit: int) -> bytes:
    payload = bytes(records[HEADER_SIZE:])
    if header.compression == 0:
        return payload
    return compression.decompress(header.compression, payload, limit)


def _check_keys(header: BatchHeader, payload: bytes) -> None:
    keyless = [place for place, record in enumerate(iterate_records(header, payload)) if record.key is None]
    if keyless:
        raise BadRecords("a compacted topic takes no message without a key (cleanup.policy)", tuple(keyless))
