"""The control records of the metadata log, in Kafka's schemas.

They speak about the log itself (who leads it, who votes, where a snapshot begins and ends), not about the
cluster, so they never reach an image. A control record's key is `version i16, type i16`; its value is the
message alone, without the frame that the other records wear.
"""

from __future__ import annotations

import struct

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import Record
from tidemill.wire.schema import Message, array, decode, encode, int16, int32, int64, string, uint16, uuid
from tidemill.wire.schema import struct as struct_field


class Voter(Message):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid(since=1)


class LeaderChangeMessage(Message, versions=(0, 1), flexible=0):
    version: int = int16()
    leader_id: int = int32()
    voters: list[Voter] = array(Voter)
    granting_voters: list[Voter] = array(Voter)


class SnapshotHeaderRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    last_contained_log_timestamp: int = int64()


class SnapshotFooterRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()


class KRaftVersionRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    kraft_version: int = int16()


class VoterEndpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class KRaftVersionFeature(Message):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisteredVoter(Message):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    endpoints: list[VoterEndpoint] = array(VoterEndpoint)
    kraft_version_feature: KRaftVersionFeature = struct_field(KRaftVersionFeature)


class VotersRecord(Message, versions=(0, 0), flexible=0):
    version: int = int16()
    voters: list[RegisteredVoter] = array(RegisteredVoter)


CONTROL_TYPES: dict[int, type[Message]] = {
    2: LeaderChangeMessage,
    3: SnapshotHeaderRecord,
    4: SnapshotFooterRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
"""By the type in the record's key; 0 and 1 end transactions of producers and never occur in this log."""

_TYPE_OF = {message: number for number, message in CONTROL_TYPES.items()}
_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


def control_key(message: type[Message]) -> bytes:
    return _KEY.pack(0, _TYPE_OF[message])


def encode_control(message: Message, offset: int, timestamp_ms: int) -> Record:
    return Record(offset, timestamp_ms, control_key(type(message)), encode(message, 0), ())


def decode_control(record: Record) -> Message | None:
    """The message of a control record, or None if it is of a type that this log does not know."""
    if record.key is None or len(record.key) < _KEY.size or record.value is None:
        raise MalformedMessage(f"the control record at offset {record.offset} has no type or no value")
    kind = CONTROL_TYPES.get(_KEY.unpack_from(record.key)[1])
    if kind is None:
        return None
    if len(record.value) < _VERSION.size:
        raise MalformedMessage(f"the control record at offset {record.offset} is cut off")
    version = min(_VERSION.unpack_from(record.value)[0], kind.VERSIONS[1])
    return decode(kind, version, record.value)
