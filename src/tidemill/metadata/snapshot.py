"""Snapshots of the metadata log: the state after a record, in place of all records up to it.

A snapshot is a file of record batches beside the log, named by the first offset it does *not* contain and
the epoch of the last one it does:

    00000000000000000084-0000000001.checkpoint

    control batch   SnapshotHeader, and with kraft.version 1 KRaftVersion and Voters
    batches         the records of `conversions.image_records`, a thousand in each
    control batch   SnapshotFooter

A file without its footer, or with a batch that fails its checksum, was not finished or is damaged: it is no
snapshot, and an older one together with the log serves instead. That is why the two newest are kept.

`bootstrap.checkpoint`, which Kafka's storage tool writes for a new cluster, has the same form.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from tidemill.metadata.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control,
    encode_control,
)
from tidemill.metadata.conversions import image_records
from tidemill.metadata.framing import decode_value, encode_control_batch, encode_records, iterate_records
from tidemill.metadata.image import MetadataImage
from tidemill.model.errors import CorruptLog, MalformedMessage
from tidemill.wire.batch import BatchHeader, checksum, iterate_headers
from tidemill.wire.schema import Message

SUFFIX = ".checkpoint"
BOOTSTRAP_FILE = f"bootstrap{SUFFIX}"
PARTIAL_SUFFIX = ".part"
RECORDS_PER_BATCH = 1000

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotId(NamedTuple):
    """Sorts by age."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def parse_snapshot_name(name: str) -> SnapshotId | None:
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None


@dataclasses.dataclass(frozen=True, slots=True)
class VoterSet:
    """What the control records of the log say about its voters."""

    kraft_version: int = 0
    record: VotersRecord | None = None
    named_by_leader: tuple[int, ...] = ()
    """By the last LeaderChange: the voters, if there is no record of them."""

    @property
    def ids(self) -> tuple[int, ...]:
        if self.record is not None:
            return tuple(voter.voter_id for voter in self.record.voters)
        return self.named_by_leader

    def after(self, message: Message) -> VoterSet:
        if isinstance(message, LeaderChangeMessage):
            return dataclasses.replace(self, named_by_leader=tuple(v.voter_id for v in message.voters))
        if isinstance(message, KRaftVersionRecord):
            return dataclasses.replace(self, kraft_version=message.kraft_version)
        if isinstance(message, VotersRecord):
            return dataclasses.replace(self, record=message)
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    records: list[Message]
    voters: VoterSet
    timestamp_ms: int
    """When the last record that it contains was appended to the log."""


# -- writing --------------------------------------------------------------------------------------------


def snapshot_id(image: MetadataImage) -> SnapshotId:
    return SnapshotId(image.offset + 1, image.epoch)


def encode_snapshot(image: MetadataImage, voters: VoterSet, now_ms: int) -> Iterator[bytearray]:
    """The batches of the snapshot of an image."""
    head = [SnapshotHeaderRecord(last_contained_log_timestamp=image.timestamp_ms), *_voter_messages(voters)]
    yield _control_batch(head, 0, image.epoch, now_ms)
    offset = len(head)
    for records in _chunks(image_records(image)):
        yield encode_records(
            records,
            base_offset=offset,
            leader_epoch=image.epoch,
            timestamp_ms=now_ms,
            metadata_version=image.metadata_version,
        )
        offset += len(records)
    yield _control_batch([SnapshotFooterRecord()], offset, image.epoch, now_ms)


def _voter_messages(voters: VoterSet) -> list[Message]:
    if voters.kraft_version == 0:
        return []
    version = KRaftVersionRecord(kraft_version=voters.kraft_version)
    return [version] if voters.record is None else [version, voters.record]


def _control_batch(messages: Iterable[Message], offset: int, epoch: int, now_ms: int) -> bytearray:
    records = [encode_control(message, offset + index, now_ms) for index, message in enumerate(messages)]
    return encode_control_batch(records, leader_epoch=epoch)


def _chunks(records: Iterator[Message]) -> Iterator[list[Message]]:
    while chunk := list(islice(records, RECORDS_PER_BATCH)):
        yield chunk


# -- reading --------------------------------------------------------------------------------------------


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises CorruptLog unless the snapshot is whole."""
    reader = _Reader()
    try:
        for position, header in iterate_headers(data):
            if checksum(data, position, header.size) != header.crc:
                raise CorruptLog(f"the batch at position {position} of the snapshot is damaged")
            reader.read(header, data[position : position + header.size])
    except MalformedMessage as error:
        raise CorruptLog(f"the snapshot is damaged: {error}") from error
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self._records: list[Message] = []
        self._voters = VoterSet()
        self._timestamp_ms: int | None = None
        self._is_finished = False

    def read(self, header: BatchHeader, batch: bytes) -> None:
        for raw in iterate_records(header, batch):
            if self._is_finished:
                raise CorruptLog("the snapshot goes on after its footer")
            if header.is_control:
                self._read_control(decode_control(raw))
            elif raw.value is not None:
                self._records.append(decode_value(raw.value))

    def _read_control(self, message: Message | None) -> None:
        if isinstance(message, SnapshotHeaderRecord):
            self._timestamp_ms = message.last_contained_log_timestamp
        elif isinstance(message, SnapshotFooterRecord):
            self._is_finished = True
        elif message is not None:
            self._voters = self._voters.after(message)

    def finish(self) -> Snapshot:
        if self._timestamp_ms is None or not self._is_finished:
            raise CorruptLog("the snapshot has no header or no footer: it was never finished")
        return Snapshot(self._records, self._voters, self._timestamp_ms)
