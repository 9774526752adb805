"""Codecs: what other clients wrote is read, what we write they read, and bombs do not go off."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable

import cramjam
import kafka.codec
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from java_batches import JAVA_BATCHES

from tidemill.model.errors import MalformedMessage
from tidemill.wire.batch import HEADER_SIZE
from tidemill.wire.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
    decompress_into,
)

CODECS = range(5)
COMPRESSED = (GZIP, SNAPPY, LZ4, ZSTD)
TEXT = b"the same words again and again, " * 10_000
NOISE = os.urandom(200_000)
SAMPLES = [b"", b"a", TEXT, NOISE, TEXT[:65_536], TEXT[:65_537], NOISE[:32_768] + TEXT]

Decoder = Callable[[bytes], bytes]
THEIR_DECODERS: dict[int, Decoder] = {
    GZIP: kafka.codec.gzip_decode,
    SNAPPY: kafka.codec.snappy_decode,
    LZ4: kafka.codec.lz4_decode,
    ZSTD: kafka.codec.zstd_decode,
}
THEIR_ENCODERS: dict[int, list[Decoder]] = {
    GZIP: [kafka.codec.gzip_encode],
    SNAPPY: [
        kafka.codec.snappy_encode,
        lambda data: kafka.codec.snappy_encode(data, xerial_compatible=False),
    ],
    LZ4: [kafka.codec.lz4_encode, lambda data: bytes(lz4.frame.compress(data, block_linked=True))],
    ZSTD: [kafka.codec.zstd_encode],
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_there_and_back(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), limit=len(data)) == data
    assert decompress(codec, compress(codec, memoryview(bytearray(data))), limit=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_other_clients_read_ours_and_we_read_theirs(codec: int, data: bytes) -> None:
    assert THEIR_DECODERS[codec](compress(codec, data)) == data
    for encode in THEIR_ENCODERS[codec]:
        assert decompress(codec, encode(data), limit=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_java_wrote_is_read(codec: int) -> None:
    plain = bytes.fromhex(JAVA_BATCHES["none"])[HEADER_SIZE:]
    theirs = bytes.fromhex(JAVA_BATCHES[CODEC_NAMES[codec]])[HEADER_SIZE:]
    assert decompress(codec, theirs, limit=1_000) == plain


def test_snappy_and_lz4_frames_begin_as_java_writes_them() -> None:
    plain = bytes.fromhex(JAVA_BATCHES["none"])[HEADER_SIZE:]
    for codec, header_size in ((SNAPPY, 16), (LZ4, 7)):
        theirs = bytes.fromhex(JAVA_BATCHES[CODEC_NAMES[codec]])[HEADER_SIZE:]
        assert compress(codec, plain)[:header_size] == theirs[:header_size]
    frame = lz4.frame.get_frame_info(compress(LZ4, TEXT))
    assert (frame["block_linked"], frame["block_size"]) == (False, 65_536)


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 12), (ZSTD, 1, 19)])
def test_levels(codec: int, low: int, high: int) -> None:
    data = b"".join(b"%d words, " % random.Random(n).randrange(10_000) for n in range(20_000))
    small, large = compress(codec, data, high), compress(codec, data, low)
    assert len(small) < len(large)
    for result in (small, large, compress(codec, data)):
        assert decompress(codec, result, len(data)) == data


def test_several_frames_one_after_the_other() -> None:
    for codec in COMPRESSED:
        assert decompress(codec, compress(codec, b"abc") + compress(codec, b"def"), limit=6) == b"abcdef"


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_over_the_limit_is_refused(codec: int) -> None:
    for data in (b"ab", TEXT, NOISE):
        packed = compress(codec, data)
        assert decompress(codec, packed, limit=len(data)) == data
        with pytest.raises(MalformedMessage, match="at most"):
            decompress(codec, packed, limit=len(data) - 1)
    with pytest.raises(MalformedMessage, match="at most"):
        decompress(SNAPPY, kafka.codec.snappy_encode(TEXT, xerial_compatible=False), limit=len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_into_room_that_is_there_already(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    room = bytearray(b"-" * (len(data) + 10))
    assert decompress_into(codec, packed, memoryview(room)[3:]) == len(data)
    assert bytes(room) == b"---" + data + b"-------"
    if data:
        assert decompress_into(codec, packed, memoryview(room)[: len(data) - 1]) is None


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_no_lack_of_room(codec: int) -> None:
    with pytest.raises(MalformedMessage):
        decompress_into(codec, compress(codec, TEXT[:100])[:-5], memoryview(bytearray(1000)))


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(MalformedMessage, match="no compression codec"):
        compress(codec, b"")
    with pytest.raises(MalformedMessage, match="no compression codec"):
        decompress(codec, b"", 10)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_nothing_is_not_a_stream(codec: int) -> None:
    with pytest.raises(MalformedMessage):
        decompress(codec, b"", 10)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_takes_no_more_than_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(64_000_000))
    limit = 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="at most"):
            decompress(codec, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit + 100_000


def test_a_snappy_block_that_claims_what_it_cannot_hold_allocates_nothing() -> None:
    claim = b"\xff\xff\xff\xff\x07" + bytes(20)  # 2 GiB - 1
    tracemalloc.start()
    try:
        for data in (claim, compress(SNAPPY, b"") + len(claim).to_bytes(4, "big") + claim):
            with pytest.raises(MalformedMessage, match="claims to hold"):
                decompress(SNAPPY, data, 1 << 40)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [-1, 0, 6, 0x7FFFFFFF])
def test_xerial_blocks_with_wrong_lengths(length: int) -> None:
    block = bytes(cramjam.snappy.compress_raw(b"abc"))
    head = compress(SNAPPY, b"")
    with pytest.raises(MalformedMessage):
        decompress(SNAPPY, head + length.to_bytes(4, "big", signed=True) + block, 100)
    with pytest.raises(MalformedMessage):
        decompress(SNAPPY, head + b"\0\0", 100)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncation_at_every_byte(codec: int) -> None:
    data = TEXT[:100] + NOISE[:200]
    packed = compress(codec, data)
    for cut in range(len(packed)):
        try:
            found = decompress(codec, packed[:cut], 1_000)
        except MalformedMessage:
            continue
        assert codec == SNAPPY and found in (b"", data)  # a cut between two xerial blocks


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMPRESSED), st.integers(0, 2**32), st.integers(1, 8))
def test_damage_raises_nothing_else(codec: int, seed: int, changes: int) -> None:
    randomness = random.Random(seed)
    packed = bytearray(compress(codec, TEXT[:300] + NOISE[:300]))
    for _ in range(changes):
        packed[randomness.randrange(len(packed))] = randomness.randrange(256)
    try:
        assert len(decompress(codec, packed, 5_000)) <= 5_000
    except MalformedMessage:
        pass


@given(st.sampled_from(CODECS), st.binary(max_size=200))
def test_noise_raises_nothing_else(codec: int, data: bytes) -> None:
    try:
        decompress(codec, data, 1_000)
    except MalformedMessage:
        pass


def test_none_is_a_copy() -> None:
    buffer = bytearray(b"abc")
    copied = decompress(NONE, buffer, 3)
    buffer[0] = 0
    assert copied == b"abc"
