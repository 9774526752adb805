"""Metadata records as bytes: Kafka's frame around each, and the versions that each release may write.

The value of a record in `__cluster_metadata-0` is

    frame version   unsigned varint, always 1
    api key         unsigned varint, names the schema (`records.RECORD_TYPES`)
    version         unsigned varint, of that schema
    body            the message in flexible encoding

and its key is null. A topic named "a" with id 0101..01 is therefore, in hexadecimal,

    01 02 00   02 61   01010101010101010101010101010101   00
    frame      name    topic id                           no tagged fields

Which version of a schema is written depends on the cluster's `metadata.version`: a directory that an older
release began must stay readable by it. Reading takes any version the schema knows.

Limits: no compression (the metadata log of Kafka has none either); a record of an unknown type stops the
reader with an error, because skipping it would silently lose part of the cluster's state.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.metadata.records import (
    RECORD_TYPES,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import CONTROL_MASK, HEADER_SIZE, BatchHeader, Buffer, Record, build_batch
from tidemill.wire.batch import iterate_records as iterate_raw_records
from tidemill.wire.schema import Message, decode_from, encode_into
from tidemill.wire.schema_values import read_unsigned_varint, write_unsigned_varint

FRAME_VERSION = 1

METADATA_VERSION_3_4_IV0 = 8
METADATA_VERSION_3_7_IV2 = 17
METADATA_VERSION_4_0_IV1 = 23
METADATA_VERSION_4_3_IV0 = 30

_API_KEYS = {record: api_key for api_key, record in RECORD_TYPES.items()}
_VERSIONS: dict[type[Message], tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: (
        (METADATA_VERSION_4_3_IV0, 4), (METADATA_VERSION_3_7_IV2, 3), (METADATA_VERSION_3_4_IV0, 2), (0, 1),
    ),
    PartitionRecord: ((METADATA_VERSION_4_0_IV1, 2), (METADATA_VERSION_3_7_IV2, 1), (0, 0)),
    PartitionChangeRecord: ((METADATA_VERSION_4_0_IV1, 2), (METADATA_VERSION_3_7_IV2, 1), (0, 0)),
}  # fmt: skip
"""(from this metadata.version on, write this version), newest first; all other schemas have one version."""


def version_to_write(record: Message, metadata_version: int) -> int:
    if isinstance(record, BrokerRegistrationChangeRecord):
        return _registration_change_version(record)
    for since, version in _VERSIONS.get(type(record), ()):
        if metadata_version >= since:
            return version
    return 0


def _registration_change_version(record: BrokerRegistrationChangeRecord) -> int:
    """The lowest version that can say it, as Kafka chooses."""
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


def encode_value(record: Message, metadata_version: int) -> bytes:
    version = version_to_write(record, metadata_version)
    out = bytearray((FRAME_VERSION,))
    write_unsigned_varint(out, _API_KEYS[type(record)])
    write_unsigned_varint(out, version)
    encode_into(out, record, version)
    return bytes(out)


def decode_value(value: bytes) -> Message:
    try:
        frame, position = read_unsigned_varint(value, 0)
        if frame != FRAME_VERSION:
            raise MalformedMessage(f"a metadata record has frame version {frame}, known is {FRAME_VERSION}")
        api_key, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
    except IndexError as error:
        raise MalformedMessage("a metadata record ends inside its frame") from error
    record, end = decode_from(_schema(api_key, version), version, value, position)
    if end != len(value):
        raise MalformedMessage(f"a metadata record is followed by {len(value) - end} stray bytes")
    return record


def _schema(api_key: int, version: int) -> type[Message]:
    schema = RECORD_TYPES.get(api_key)
    if schema is None or version > schema.VERSIONS[1]:
        name = "type" if schema is None else schema.__name__
        raise MalformedMessage(
            f"a metadata record of {name} {api_key} version {version} is newer than this release can read"
        )
    return schema


def encode_records(
    records: list[Message], *, base_offset: int, leader_epoch: int, timestamp_ms: int, metadata_version: int
) -> bytearray:
    """One batch of metadata records: all of them reach the log or none."""
    framed = [
        Record(base_offset + index, timestamp_ms, None, encode_value(record, metadata_version), ())
        for index, record in enumerate(records)
    ]
    return build_batch(framed, leader_epoch=leader_epoch)


def encode_control_batch(records: list[Record], *, leader_epoch: int) -> bytearray:
    return build_batch(records, leader_epoch=leader_epoch, attributes=CONTROL_MASK)


def iterate_records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """The raw records of one whole batch of this log."""
    if header.compression:
        raise MalformedMessage(f"the metadata batch at offset {header.base_offset} is compressed")
    return iterate_raw_records(header, memoryview(batch)[HEADER_SIZE : header.size])
