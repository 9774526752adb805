"""A range from the log files of a broker on the same host, as far as they are closed.

A partition's folder holds segments, named by their first offset. All but the last are closed: nobody writes
to them again, and everything in them may be read as it stands, because what is on disk are the bytes of the
wire.

    orders-0/00000000000000000000.log      closed: read from the file
             00000000000000051234.log      closed: read from the file
             00000000000000098765.log      active: over the wire

The range's end was planned from the high watermark (the last stable offset with read_committed), so nothing
beyond it is delivered, although the files may hold more. Aborted transactions stand in the `.txnindex`
files beside the segments.

The folder must belong to the topic that the brokers mean: its `partition.metadata` names the topic's id. A
folder that does not exist, on an executor of another host say, and files that retention or compaction took
away in the meantime, are no error: the rest goes over the wire.

Compaction may also replace a segment between the opening of its `.log` and of its `.index`, so that a position of
the one means nothing in the other. What is found there must be a whole batch of this segment that begins at or
before the wanted offset; else the files count as gone from there on:

    .index (old)  offset 700 at byte 9000      .log (new)  3000 bytes      -> over the wire, from 700

Limits: a segment that is found with an unknown name or layout ends the part that is read from files.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidemill.spark.errors import BadOption
from tidemill.spark.source.batches import whole_batches
from tidemill.spark.source.fetching import Fetched
from tidemill.spark.source.offsets import OffsetRange
from tidemill.spark.source.planning import ReadTask
from tidemill.wire.batch import read_prefix

CHUNK_BYTES = 8 << 20
_SEGMENT = re.compile(r"(\d{20})\.log")
_ABORTED = struct.Struct(">hqqqq")
_PREFIX_BYTES = 12


class Segment(NamedTuple):
    path: Path
    base_offset: int
    end_offset: int
    """The next segment's base offset: where this one is done, however its batches end."""


def read_segments(
    directories: tuple[str, ...], task: ReadTask, committed: bool
) -> Generator[Fetched, None, int]:
    """Portions of the range as far as closed segments reach; returns the offset to go on from."""
    folder = find_folder(directories, task)
    wanted, reached = task.offsets, task.offsets.start
    if folder is None:
        return reached
    segments = [each for each in closed_segments(folder) if each.end_offset > reached]
    if not segments or segments[0].base_offset > reached:
        return reached
    try:
        aborted = aborted_transactions(folder, wanted) if committed else []
    except FileNotFoundError:
        return reached
    for segment in segments:
        if reached >= wanted.end or segment.base_offset > max(reached, wanted.start):
            break
        try:
            for records, following in _chunks(segment, reached, wanted.end):
                yield Fetched(records, aborted, reached)
                reached = following
        except FileNotFoundError:
            break
        reached = max(reached, segment.end_offset)
    return min(reached, wanted.end)


def find_folder(directories: tuple[str, ...], task: ReadTask) -> Path | None:
    """The partition's folder in the first directory that has it; a folder of another topic is refused."""
    for directory in directories:
        folder = Path(directory) / str(task.offsets.where)
        if not folder.is_dir():
            continue
        found = _topic_id(folder)
        if found is not None and task.topic_id and found != task.topic_id:
            problem = f"holds {folder.name} of another cluster, or of a deleted topic"
            raise BadOption(
                "segments.directories", problem, "the data directories of the brokers that are read"
            )
        return folder
    return None


def _topic_id(folder: Path) -> bytes | None:
    try:
        text = (folder / "partition.metadata").read_text()
    except FileNotFoundError:
        return None
    match = re.search(r"^topic_id:\s*(\S+)$", text, re.MULTILINE)
    return base64.urlsafe_b64decode(match[1] + "==") if match else None


def closed_segments(folder: Path) -> list[Segment]:
    """All segments but the last, in order."""
    bases = sorted(int(match[1]) for name in os.listdir(folder) if (match := _SEGMENT.fullmatch(name)))
    pairs = itertools.pairwise(bases)
    return [Segment(folder / f"{base:020}.log", base, following) for base, following in pairs]


def aborted_transactions(folder: Path, wanted: OffsetRange) -> list[tuple[int, int]]:
    """(first offset, producer id) of every aborted transaction that touches the range.

    FileNotFoundError when an index goes away meanwhile: without it aborted records would pass for committed ones.
    """
    found = []
    for path in sorted(folder.glob("*.txnindex")):
        data = path.read_bytes()
        whole = len(data) - len(data) % _ABORTED.size
        for _, producer, first, last, _ in _ABORTED.iter_unpack(data[:whole]):
            if last >= wanted.start and first < wanted.end:
                found.append((first, producer))
    return found


def _chunks(segment: Segment, start: int, end: int) -> Iterator[tuple[memoryview, int]]:
    """The bytes of a segment from the batch with `start` on, some megabytes at a time, whole batches only, and the
    offset behind them.

    FileNotFoundError when the files do not fit together: see above.
    """
    with segment.path.open("rb", buffering=0) as file:
        position = index_position(segment, start)
        _check_found(segment, file.fileno(), position, start)
        size = os.fstat(file.fileno()).st_size
        while position < size:
            data = os.pread(file.fileno(), CHUNK_BYTES, position)
            first_offset, first_size = _prefix(segment, data)
            if first_offset >= end:
                return
            if first_size > len(data):
                data = os.pread(file.fileno(), first_size, position)
            whole = whole_batches(data, start)
            if not whole.size:
                raise _replaced(segment)
            yield memoryview(data)[: whole.size], whole.next_offset
            position += whole.size


def _check_found(segment: Segment, file: int, position: int, start: int) -> None:
    """What the index names must begin at or before the wanted offset."""
    if position and _prefix(segment, os.pread(file, _PREFIX_BYTES, position))[0] > start:
        raise _replaced(segment)


def _prefix(segment: Segment, data: bytes) -> tuple[int, int]:
    """Offset and size of the first batch, which must belong to this segment."""
    if len(data) < _PREFIX_BYTES:
        raise _replaced(segment)
    offset, size = read_prefix(data)
    if not segment.base_offset <= offset < segment.end_offset:
        raise _replaced(segment)
    return offset, size


def _replaced(segment: Segment) -> FileNotFoundError:
    return FileNotFoundError(f"{segment.path} was replaced while it was read")


def index_position(segment: Segment, offset: int) -> int:
    """A position at or before the batch that holds `offset`, by the sparse offset index."""
    try:
        data = segment.path.with_suffix(".index").read_bytes()
    except FileNotFoundError:
        return 0
    entries = np.frombuffer(data[: len(data) - len(data) % 8], ">i4").reshape(-1, 2)
    relative = entries[:, 0]
    used = int(np.argmax(np.diff(relative) <= 0)) + 1 if (np.diff(relative) <= 0).any() else len(entries)
    found = int(np.searchsorted(relative[:used], offset - segment.base_offset, side="right")) - 1
    return int(entries[found, 1]) if found >= 0 else 0
