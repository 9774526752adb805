"""Small requests that claim to be large: refused at once, before anything is allocated for them."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Iterator

import cramjam
import crc32c
import pytest
from process_facts import MIB, forget_peak, peak_resident_bytes
from raw import PRODUCE_WITH_NAMES, batch_of, produce, produce_request, topic_id
from sample_requests import sample_frames

from tidemill.api.batch_check import most_unpacked_bytes
from tidemill.model.errors import ErrorCode
from tidemill.storage.config import LogConfig
from tidemill.testing import SubprocessBroker, WireClient
from tidemill.testing.wire_client import ConnectionLost, frame_of
from tidemill.wire.batch import HEADER_SIZE, BatchHeader, encode_batch, read_header
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.schema_values import write_unsigned_varint

MOST_SECONDS = 0.1
"""For the best of `TRIES`, so that it measures the broker and not what else the machine does."""
TRIES = 3
MOST_GROWTH_BYTES = 8 * MIB


@pytest.fixture(scope="module")
def broker() -> Iterator[SubprocessBroker]:
    with SubprocessBroker() as running:
        running.create_topic("target")
        running.create_topic("zipped", compression_type="zstd")
        running.create_topic("gzipped", compression_type="gzip")
        running.create_topic("compacted", cleanup_policy="compact")
        yield running


def header(key: int, version: int, flexible: bool) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1) + (b"\x00" if flexible else b"")


HUGE_COUNT = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"
MANY_TAGS = b"\xff\xff\xff\x7f"
BOMBS = {
    "size of 2 GiB": struct.pack(">i", 2**31 - 1) + header(3, 1, False),
    "size just over the limit": struct.pack(">i", 104_857_601) + header(3, 1, False),
    "negative size": struct.pack(">i", -2) + header(3, 1, False),
    "empty frame": frame_of(b""),
    "frame without a header": frame_of(b"\x00\x03"),
    "client id beyond the frame": frame_of(struct.pack(">hhih", 3, 1, 1, 32_767)),
    "metadata: array of 2^31 topics": frame_of(header(3, 1, False) + HUGE_COUNT),
    "metadata: compact array of 2^32 topics": frame_of(header(3, 12, True) + HUGE_VARINT),
    "metadata: string of 32 KiB in 20 bytes": frame_of(
        header(3, 1, False) + struct.pack(">ih", 1, 32_767) + b"x"
    ),
    "metadata: negative count": frame_of(header(3, 4, False) + struct.pack(">i", -7)),
    "metadata: endless varint": frame_of(header(3, 12, True) + b"\xff" * 40),
    "header: millions of tagged fields": frame_of(header(3, 12, False) + MANY_TAGS + b"\x01\x00" * 50),
    "header: tagged field of 256 MiB": frame_of(header(3, 12, False) + b"\x01\x05" + MANY_TAGS),
    "fetch: array of 2^31 topics": frame_of(
        header(1, 11, False) + struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1) + HUGE_COUNT
    ),
    "fetch: compact array of 2^32 topics": frame_of(
        header(1, 15, True) + struct.pack(">iiibii", 0, 0, 1, 0, 0, -1) + HUGE_VARINT
    ),
    "produce: array of 2^31 topics": frame_of(
        header(0, 7, False) + struct.pack(">hhi", -1, 1, 1) + HUGE_COUNT
    ),
    "produce: records of 2 GiB": frame_of(
        header(0, 7, False)
        + struct.pack(">hhiih", -1, 1, 1, 1, 6)
        + b"target"
        + struct.pack(">iii", 1, 0, 2**31 - 1)
    ),
    "produce: compact array of 2^32 topics": frame_of(
        header(0, 9, True) + b"\x00" + struct.pack(">hi", 1, 1) + HUGE_VARINT
    ),
    "create topics: array of 2^31": frame_of(header(19, 4, False) + HUGE_COUNT),
    "describe configs: array of 2^31 keys": frame_of(
        header(32, 1, False) + struct.pack(">ibh", 1, 2, 1) + b"x" + HUGE_COUNT
    ),
    "list offsets: array of 2^31": frame_of(header(2, 1, False) + struct.pack(">i", -1) + HUGE_COUNT),
    "unknown api": frame_of(header(30_000, 0, False)),
    "unknown version": frame_of(header(3, 30_000, False)),
}


def seconds_until_refused(broker: SubprocessBroker, data: bytes) -> float:
    with WireClient(broker.bootstrap, timeout_seconds=5) as connection:
        began = time.monotonic()
        connection.send_bytes(data)
        with pytest.raises((ConnectionLost, ConnectionResetError)):
            connection.receive_frame()
        return time.monotonic() - began


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once(broker: SubprocessBroker, name: str) -> None:
    peak_before = forget_peak(broker.pid)
    best = min(seconds_until_refused(broker, BOMBS[name]) for _ in range(TRIES))
    assert best < MOST_SECONDS
    assert peak_resident_bytes(broker.pid) - peak_before < MOST_GROWTH_BYTES
    with WireClient(broker.bootstrap) as connection:
        assert connection.call(ApiVersionsRequest(), 0).error_code == 0


@pytest.fixture
def fresh_broker() -> Iterator[SubprocessBroker]:
    """One that holds no memory of earlier requests, which a further one could use."""
    with SubprocessBroker() as running:
        yield running


def growth_when_refused(broker: SubprocessBroker, data: bytes) -> int:
    peak_before = forget_peak(broker.pid)
    seconds_until_refused(broker, data)
    return peak_resident_bytes(broker.pid) - peak_before


def most_growth(data: bytes) -> int:
    """The bytes as they were received, and once more to read them; beside that only what any request takes."""
    return 2 * len(data) + MIB


def compact_count(count: int) -> bytes:
    out = bytearray()
    write_unsigned_varint(out, count + 1)
    return bytes(out)


TINY_COUNT = 5_700_000
"""Just over 16 MiB in all: the buffer that held that much is still there while the larger one is filled from it."""
TINY_ELEMENTS = {
    "legacy": header(3, 4, False) + struct.pack(">i", TINY_COUNT) + b"\x00\x01x" * TINY_COUNT + b"\x00",
    "flexible": header(3, 9, True) + compact_count(TINY_COUNT) + b"\x02x\x00" * TINY_COUNT + b"\x00" * 4,
}


@pytest.mark.parametrize("form", TINY_ELEMENTS)
def test_millions_of_tiny_elements(fresh_broker: SubprocessBroker, form: str) -> None:
    """Three bytes each on the wire, a hundred each in memory: refused before the first of them is made."""
    data = frame_of(TINY_ELEMENTS[form])
    assert growth_when_refused(fresh_broker, data) < most_growth(data)


def test_others_do_not_wait_for_a_bomb(broker: SubprocessBroker) -> None:
    with WireClient(broker.bootstrap) as bomber, WireClient(broker.bootstrap) as bystander:
        bomber.send_bytes(frame_of(TINY_ELEMENTS["legacy"]))
        assert bystander.call(ApiVersionsRequest(), 0).error_code == 0
        with pytest.raises((ConnectionLost, ConnectionResetError)):
            bomber.receive_frame()


def test_a_large_frame_that_trickles_in(broker: SubprocessBroker) -> None:
    """Room is made for what has come, however often something comes."""
    peak_before = forget_peak(broker.pid)
    with WireClient(broker.bootstrap) as connection:
        connection.send_bytes(struct.pack(">i", 100 * MIB) + header(3, 1, False))
        for _ in range(30):
            time.sleep(0.01)  # each byte is read by itself
            connection.send_bytes(b"\x00")
    assert peak_resident_bytes(broker.pid) - peak_before < MOST_GROWTH_BYTES


def fetch_of(topics: int, partitions: int) -> bytes:
    """Fetch v13 by topic id; the partitions of all topics together are too many, those of each are not."""
    head = struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1)
    partition = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1) + b"\x00"
    topic = bytes(16) + compact_count(partitions) + partition * partitions + b"\x00"
    return header(1, 13, True) + head + bytes([topics + 1]) + topic * topics + b"\x01\x01\x00"


def test_many_arrays_that_are_too_many_together(fresh_broker: SubprocessBroker) -> None:
    data = frame_of(fetch_of(topics=51, partitions=10_000))
    assert growth_when_refused(fresh_broker, data) < most_growth(data)
    assert "too many array elements" in fresh_broker.log_text()


# -- decompression ------------------------------------------------------------------------------------

BOMB_BYTES = 256 * MIB
MOST_UNPACKED_BYTES = most_unpacked_bytes(LogConfig())
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@functools.cache
def compressed_zeros(codec: int) -> bytes:
    """A quarter of a gibibyte of zeros in as few bytes as the codec makes of it."""
    zeros = bytes(BOMB_BYTES)
    if codec == 1:
        return bytes(cramjam.gzip.compress(zeros, level=6))
    if codec == 2:
        return bytes(cramjam.snappy.compress_raw(zeros))
    if codec == 3:
        return bytes(cramjam.lz4.compress(zeros))
    return bytes(cramjam.zstd.compress(zeros, level=1))


def bomb_batch(codec: int) -> bytes:
    plain = read_header(batch_of(b"x"))
    bomb = BatchHeader(*plain)._replace(attributes=codec)
    return bytes(encode_batch(bomb, compressed_zeros(codec)))


@pytest.mark.parametrize("topic", ["zipped", "compacted"])
@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_a_decompression_bomb_is_refused(broker: SubprocessBroker, topic: str, codec: int) -> None:
    """A topic that recompresses, and one whose keys are checked, must look inside: with a cap, off the loop."""
    if CODECS[codec] == "zstd" and topic == "zipped":
        topic = "gzipped"
    batch = bomb_batch(codec)
    if len(batch) > 1_000_000:
        batch = shrunk(batch)
    peak_before = forget_peak(broker.pid)
    best = min(seconds_until_too_large(broker, topic, batch) for _ in range(TRIES))
    assert best < MOST_SECONDS
    assert peak_resident_bytes(broker.pid) - peak_before < MOST_UNPACKED_BYTES + MOST_GROWTH_BYTES
    with WireClient(broker.bootstrap) as connection:
        assert produce(connection, "target", batch_of(b"good")).error_code == 0


def seconds_until_too_large(broker: SubprocessBroker, topic: str, batch: bytes) -> float:
    with WireClient(broker.bootstrap) as bomber, WireClient(broker.bootstrap) as bystander:
        began = time.monotonic()
        bomber.send(produce_request(topic, batch), PRODUCE_WITH_NAMES)
        assert bystander.call(ApiVersionsRequest(), 0).error_code == 0
        assert time.monotonic() - began < 0.5, "others had to wait"
        part = bomber.receive().responses[0].partition_responses[0]
        took = time.monotonic() - began
    assert part.error_code == ErrorCode.CORRUPT_MESSAGE
    reasons = (
        f"at most {MOST_UNPACKED_BYTES} are allowed",
        "claims to hold",
    )  # the latter: more than a codec can
    assert any(reason in part.error_message for reason in reasons), part.error_message
    return took


def shrunk(batch: bytes) -> bytes:
    """A batch cut to what the topic accepts, with the right length and checksum: its records end early."""
    data = bytearray(batch[:1_000_000])
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def test_record_bombs_inside_a_batch(broker: SubprocessBroker) -> None:
    """Lengths and counts inside the records are checked where they are looked at (a compacted topic)."""
    plain = read_header(batch_of(b"x"))
    huge = b"\xfe\xff\xff\xff\x0f"  # the varint of 2^31 - 1
    inside = [
        huge + b"\x00\x00\x00",
        b"\x10\x00\x00\x00" + huge,
        b"\x10\x00\x00\x00\x02k" + huge,
        b"\x14\x00\x00\x00\x02k\x02v" + huge,
        b"\xff" * 30,
    ]
    peak_before = forget_peak(broker.pid)
    with WireClient(broker.bootstrap) as connection:
        for payload in inside:
            batch = bytes(encode_batch(plain, payload))
            assert len(batch) == HEADER_SIZE + len(payload)
            error = produce(connection, "compacted", batch).error_code
            assert error in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert peak_resident_bytes(broker.pid) - peak_before < MOST_GROWTH_BYTES


def test_truncated_at_every_byte(broker: SubprocessBroker) -> None:
    """Every sample, cut after every byte and with its size put right, is answered or refused; never a hang."""
    with WireClient(broker.bootstrap) as connection:
        frames = sample_frames("target", topic_id(connection, "target"))
    chosen = frames[:: max(1, len(frames) // 12)]
    for frame in chosen:
        for end in range(0, len(frame), 3):
            with WireClient(broker.bootstrap, timeout_seconds=5) as connection:
                connection.send_bytes(frame_of(frame[:end]))
                with pytest.raises((ConnectionLost, ConnectionResetError)):
                    connection.receive_frame()
                    connection.send_bytes(frame_of(b""))
                    connection.receive_frame()
    assert "Traceback" not in broker.log_text()
