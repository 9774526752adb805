"""Walking the batches of a log file without loading it.

Four walks, from cheap to thorough:

    find_offset       where the batch that reaches an offset begins; looks at four fields of each header
    scan_headers      position and header of each batch; bodies are skipped, not read (when they are large)
    scan_checked      the same, each batch read whole and its checksum compared
    find_valid_batch  the first undamaged batch anywhere after a damaged place, found byte by byte

A walk that meets bytes which are no batch raises `DamagedBatch` with the position. Whether that is a torn
tail or a hole in the middle, the caller decides: `find_valid_batch` tells them apart.

    for position, header in scan_headers(file, 0, file.size()):
        ...

Limits: a batch must fit into memory for `scan_checked`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tidemill.model.errors import TidemillError
from tidemill.ports.files import OpenFile
from tidemill.wire.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, checksum, read_header
from tidemill.wire.frames import SlicedFile

CHUNK_BYTES = 64 * 1024
PAGE_BYTES = 4096
SECTOR_BYTES = 512
CHECKED_CHUNK_BYTES = 4 * 1024 * 1024
_MAGIC_BYTE = bytes([MAGIC])
_MAGIC_POSITION = 16
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_SEARCH_OFFSET_LIMIT = 1 << 40
_REACH = struct.Struct(">qi4xb6xi")
"""Base offset, length, magic and last offset delta of a header."""
_REACH_BYTES = _REACH.size
NOT_FOUND = -1
WRONG_START = -2


class DamagedBatch(TidemillError):
    """Bytes where a batch should be, and are none."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no batch at position {position}: {reason}")
        self.position = position
        self.reason = reason


def _require_header(header: BatchHeader, position: int, end: int, least_offset: int) -> None:
    reason = ""
    if header.magic != MAGIC:
        reason = f"magic is {header.magic}"
    elif header.batch_length < _MIN_LENGTH or header.last_offset_delta < 0:
        reason = f"length {header.batch_length}, last offset delta {header.last_offset_delta}"
    elif position + header.size > end:
        reason = f"its {header.size} bytes go beyond the end of the file"
    elif header.base_offset < least_offset:
        reason = f"base offset {header.base_offset} is below {least_offset}"
    if reason:
        raise DamagedBatch(position, reason)


def find_offset(
    file: OpenFile, position: int, end: int, offset: int, chunk_bytes: int, first_last_offset: int = -1
) -> int:
    """The position of the first batch that reaches `offset`, or NOT_FOUND.

    With `first_last_offset` (what an index claims about the batch at `position`) the first batch must end there;
    WRONG_START says that it does not.
    """
    unpack_from = _REACH.unpack_from
    while position < end:
        chunk = file.read(position, min(chunk_bytes, end - position))
        start, limit = 0, len(chunk) - _REACH_BYTES
        while start <= limit:
            base, length, magic, delta = unpack_from(chunk, start)
            if first_last_offset >= 0 and base + delta != first_last_offset:
                return WRONG_START
            first_last_offset = -1
            if magic != MAGIC or length < _MIN_LENGTH or position + start + length + LOG_OVERHEAD > end:
                raise DamagedBatch(position + start, f"magic {magic}, length {length}")
            if base + delta >= offset:
                return position + start
            start += LOG_OVERHEAD + length
        if start == 0:
            raise DamagedBatch(position, f"{len(chunk)} bytes are less than a header")
        position += start
    return NOT_FOUND


def scan_headers(
    file: SlicedFile, position: int, end: int, least_offset: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from `position` to `end`; offsets must grow from `least_offset` on."""
    chunk, chunk_start = b"", position
    while position < end:
        start = position - chunk_start
        if start + HEADER_SIZE > len(chunk):
            chunk, chunk_start, start = file.read(position, min(chunk_bytes, end - position)), position, 0
            if len(chunk) < HEADER_SIZE:
                raise DamagedBatch(position, f"{len(chunk)} bytes are less than a header")
        header = read_header(chunk, start)
        _require_header(header, position, end, least_offset)
        yield position, header
        least_offset = header.base_offset + header.last_offset_delta + 1
        position += LOG_OVERHEAD + header.batch_length


def scan_checked(
    file: OpenFile, position: int, end: int, least_offset: int = 0
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, the whole batch) of each batch; raises DamagedBatch also where a checksum is wrong."""
    chunk, chunk_start = memoryview(b""), position
    while position < end:
        start = position - chunk_start
        if start + HEADER_SIZE > len(chunk):
            chunk, chunk_start, start = _read_chunk(file, position, end, CHECKED_CHUNK_BYTES), position, 0
            if len(chunk) < HEADER_SIZE:
                raise DamagedBatch(position, f"{len(chunk)} bytes are less than a header")
        header = read_header(chunk, start)
        _require_header(header, position, end, least_offset)
        size = header.size
        if start + size > len(chunk):
            wanted = max(size, CHECKED_CHUNK_BYTES)
            chunk, chunk_start, start = _read_chunk(file, position, end, wanted), position, 0
        if size > len(chunk) - start or checksum(chunk, start, size) != header.crc:
            raise DamagedBatch(position, "its checksum is wrong")
        yield position, header, chunk[start : start + size]
        least_offset = header.last_offset + 1
        position += size


def _read_chunk(file: OpenFile, position: int, end: int, wanted: int) -> memoryview:
    return memoryview(file.read(position, min(wanted, end - position)))


def find_valid_batch(
    file: OpenFile, position: int, end: int, least_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first whole, undamaged batch that begins after `position`, at an offset it could have."""
    while position < end:
        chunk = file.read(position, min(CHECKED_CHUNK_BYTES, end - position))
        found = _search_chunk(file, chunk, position, end, least_offset)
        if found is not None:
            return found
        if position + len(chunk) >= end:
            return None
        position += len(chunk) - HEADER_SIZE
    return None


def _search_chunk(
    file: OpenFile, chunk: bytes, chunk_start: int, end: int, least_offset: int
) -> tuple[int, BatchHeader] | None:
    magic = chunk.find(_MAGIC_BYTE, _MAGIC_POSITION)
    while magic >= 0:
        start = magic - _MAGIC_POSITION
        if start + HEADER_SIZE > len(chunk):
            return None
        header = read_header(chunk, start)
        position = chunk_start + start
        if _is_plausible(header, position, end, least_offset):
            body = file.read(position, header.size)
            if len(body) == header.size and checksum(body, 0, header.size) == header.crc:
                return position, header
        magic = chunk.find(_MAGIC_BYTE, magic + 1)
    return None


def _is_plausible(header: BatchHeader, position: int, end: int, least_offset: int) -> bool:
    return (
        least_offset <= header.base_offset < least_offset + _SEARCH_OFFSET_LIMIT
        and header.last_offset_delta >= 0
        and header.batch_length >= _MIN_LENGTH
        and position + header.size <= end
    )


# -- what happened to bytes that are no batch ----------------------------------------------------------


def has_zero_page(data: bytes, position: int) -> bool:
    """Whether one of the file's pages in this range (or the part of it that is here) was never written."""
    start = 0
    while start < len(data):
        end = min(len(data), start + PAGE_BYTES - (position + start) % PAGE_BYTES)
        if end - start >= SECTOR_BYTES and not any(data[start:end]):
            return True
        start = end
    return False


def is_cut_off(data: bytes) -> bool:
    """Whether this is the beginning of a batch whose end is missing (and not a whole one with a wrong length)."""
    header = read_header(data)
    return header.magic == MAGIC and header.size > len(data) and checksum(data, 0, len(data)) != header.crc
