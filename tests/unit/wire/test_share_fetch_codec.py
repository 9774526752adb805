"""The answer to ShareFetch, coded by hand, against its schema."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.wire.frames import FileSlice, Piece
from tidemill.wire.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
)
from tidemill.wire.schema import encode
from tidemill.wire.share_fetch_codec import (
    ShareFetchResult,
    ShareFetchTopicResult,
    encode_share_fetch_response,
)


class MemoryFile:
    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def fileno(self) -> int:
        raise AssertionError("no test sends it")

    def read(self, position: int, length: int) -> bytes:
        self._data.seek(position)
        return self._data.read(length)


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(
        piece.file.read(piece.position, piece.length) if isinstance(piece, FileSlice) else bytes(piece)
        for piece in pieces
    )


texts = st.none() | st.text(max_size=200)
int16s, int32s = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
slices = st.binary(min_size=1, max_size=400).flatmap(
    lambda data: st.tuples(st.just(data), st.integers(0, len(data) - 1))
)


@st.composite
def results(draw: Any) -> ShareFetchResult:
    found = draw(st.none() | slices)
    records = None
    if found is not None:
        data, position = found
        records = FileSlice(MemoryFile(data), position, len(data) - position)
    return ShareFetchResult(
        draw(int32s), draw(int16s), draw(texts), draw(int16s), draw(texts), (draw(int32s), draw(int32s)), records,
        tuple(draw(st.lists(st.tuples(int64s, int64s, int16s), max_size=130))),
    )  # fmt: skip


def as_declared(result: ShareFetchResult) -> PartitionData:
    records = result.records
    return PartitionData(
        partition_index=result.partition,
        error_code=result.error,
        error_message=result.message,
        acknowledge_error_code=result.acknowledge_error,
        acknowledge_error_message=result.acknowledge_message,
        current_leader=LeaderIdAndEpoch(leader_id=result.leader[0], leader_epoch=result.leader[1]),
        records=b"" if records is None else records.file.read(records.position, records.length),
        acquired_records=[
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in result.acquired
        ],
    )


@pytest.mark.parametrize("version", [1, 2])
@given(
    topics=st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), st.lists(results(), max_size=3)), max_size=3
    ),
    lock_ms=int32s,
    error=int16s,
    message=texts,
)
def test_the_answer_is_what_its_schema_says(
    version: int,
    topics: list[tuple[bytes, list[ShareFetchResult]]],
    lock_ms: int,
    error: int,
    message: str | None,
) -> None:
    by_hand = [ShareFetchTopicResult(topic_id, partitions) for topic_id, partitions in topics]
    declared = ShareFetchResponse(
        error_code=error,
        error_message=message,
        acquisition_lock_timeout_ms=lock_ms,
        responses=[
            ShareFetchableTopicResponse(
                topic_id=topic_id, partitions=[as_declared(each) for each in partitions]
            )
            for topic_id, partitions in topics
        ],
    )
    pieces = encode_share_fetch_response(by_hand, lock_ms, error, message)
    assert joined(pieces) == bytes(encode(declared, version))
