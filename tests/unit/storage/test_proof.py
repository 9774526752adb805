"""What an earlier process wrote is checked before it is served, once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_batches import append, data_batch, open_log, read_bytes, read_records

from tidemill.model.errors import ApiError, ErrorCode
from tidemill.storage.config import LogConfig
from tidemill.storage.log import Log
from tidemill.storage.proof import Proof
from tidemill.testing.files import MemoryFiles
from tidemill.wire.batch import iterate_headers

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=200)
BATCHES = 20


def closed_log() -> tuple[MemoryFiles, bytes]:
    """A log of three segments and two epochs that ended in order, and all its bytes."""
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for place in range(BATCHES):
        append(log, data_batch(2, size=40), epoch=place // 8)
    data = b"".join(files.read_all(segment.path(".log")) for segment in log.segments)
    assert len(log.segments) == 3
    log.close()
    return files, data


def reopened(files: MemoryFiles) -> Log:
    return open_log(files, SMALL, clean_shutdown=True, recovery_point=2 * BATCHES)


def paths_of(files: MemoryFiles) -> list[str]:
    return [path for path in files.paths() if path.endswith(".log")]


def test_sound_bytes_are_served_and_read_only_once() -> None:
    files, _ = closed_log()
    log = reopened(files)
    assert log.recovery_report.checked_bytes == 0
    assert all(segment.proof is not None for segment in log.segments)
    assert len(read_records(log)) == 2 * BATCHES
    assert all(segment.proof is None for segment in log.segments), "all of it is proven"
    append(log, data_batch(1), epoch=2)
    assert len(read_records(log)) == 2 * BATCHES + 1


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_changed_bit_is_ever_served(data: st.DataObject) -> None:
    """Whichever bit of the log changes after a clean end: what is served is what was written, and nothing else.

    One field is left out: the leader epoch of the last batch, which nothing can prove.
    """
    files, written = closed_log()
    last = max(position for position, _ in iterate_headers(written))
    places = st.integers(0, len(written) - 1).filter(lambda place: not last + 12 <= place < last + 16)
    position = data.draw(places)
    for path in paths_of(files):
        size = files.size(path)
        if position < size:
            break
        position -= size
    files.flip_bit(path, position * 8 + data.draw(st.integers(0, 7)))
    served = bytearray()
    try:
        log = reopened(files)
        offset = 0
        while chunk := read_bytes(log, offset, max_bytes=700):
            whole = [header for start, header in iterate_headers(chunk)]
            served += chunk[: sum(header.size for header in whole)]
            offset = whole[-1].last_offset + 1
    except ApiError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE
        assert written.startswith(served)
    except Exception as error:
        assert "CorruptLog" in type(error).__name__, "refused at the start, as a whole"
    else:
        assert served == written, "the bit was in nobody's way"


def test_what_lies_before_and_behind_the_damage_is_served() -> None:
    files, _ = closed_log()
    victim = list(reopened(files).segments[0].headers())[3]
    files.flip_bit(paths_of(files)[0], (victim[0] + 70) * 8)
    log = reopened(files)
    offset = victim[1].base_offset
    assert len(read_bytes(log, 0)) == victim[0]
    with pytest.raises(ApiError) as caught:
        read_bytes(log, offset)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert read_records(log, victim[1].last_offset + 1)[-1][0] == 2 * BATCHES - 1


def test_ranges_grow_together() -> None:
    proof = Proof(100)
    proof.add(10, 20)
    proof.add(40, 60)
    assert (proof.proven_to(10), proof.proven_to(19), proof.proven_to(20), proof.proven_to(5)) == (
        20,
        20,
        20,
        5,
    )
    proof.add(20, 40)
    assert proof.proven_to(10) == 60 and not proof.is_complete
    proof.add(0, 10)
    proof.add(60, 100)
    assert proof.is_complete
