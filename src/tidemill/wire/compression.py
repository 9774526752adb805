"""The four codecs of record batches, as Java clients write them, with a cap on what may come out.

    code  codec   what travels
    0     none    the records themselves
    1     gzip    RFC 1952
    2     snappy  written in xerial's framing, as Java does; read with it or raw, as librdkafka sends it
    3     lz4     frames of independent blocks of 64 KiB (Java's reader refuses blocks that refer to others)
    4     zstd    RFC 8878

A broker seldom needs this: batches are stored as they came. It does for compaction, for a topic whose
`compression.type` differs from the producer's, and for whoever reads records rather than batches.

What comes in may be a bomb: 32 kilobytes of zstd can hold a gigabyte. So nothing is believed and nothing
grows by itself. Gzip, lz4 and zstd are decoded into a buffer of fixed size, which starts small and is made
larger (and the data decoded anew, at most a third more work in all) until the data fit or the limit is
reached. Snappy states its length up front; it is checked against the limit and against what the format can
hold at best.

    decompress(ZSTD, bomb, limit=1_000_000)      # MalformedMessage, with one megabyte allocated

All calls below release the interpreter lock while they work (measured with cramjam 2.14), so a large batch
may be compressed in a thread without stopping the event loop. The one exception is lz4 with a level of its
own: only cramjam's `Compressor` has levels and independent blocks, and it keeps the lock. Without a level
the frame is put together here from single blocks.

Limits: no dictionaries; lz4 frames carry neither content checksum nor content size (the batch has its CRC).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import ModuleType

import cramjam

from tidemill.model.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_DEFAULT_GZIP_LEVEL = 6
_DEFAULT_ZSTD_LEVEL = 3
_DEFAULT_LZ4_LEVEL = 9
"""By this number Kafka means the fast compressor; any other is a level of the thorough one."""

_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
"""Magic, version 1 with independent blocks, blocks of 64 KiB, and the checksum of these two bytes."""
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x8000_0000
"""Set in the length of a block that is stored as it is, because compressing would make it longer."""
_LZ4_END = bytes(4)

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_BEST_RATIO = 22
"""The densest element of snappy is 64 bytes in 3; no honest block claims more than this many times itself."""

_FIRST_GUESS_RATIO = 8
_GROWTH = 4
_TOO_SMALL = "failed to write whole buffer"


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`level` is Kafka's (gzip 1 to 9, lz4 1 to 17, zstd 1 to 22); snappy has none."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=_DEFAULT_GZIP_LEVEL if level is None else level))
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(memoryview(data), level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_DEFAULT_ZSTD_LEVEL if level is None else level))
    raise MalformedMessage(f"there is no compression codec {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """What was compressed, at most `limit` bytes; more, or damaged data, raise MalformedMessage."""
    if codec == NONE:
        _check_limit(len(data), limit)
        return bytes(data)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), limit)
    return _decompress_growing(codec, data, limit)


def decompress_into(codec: int, data: Buffer, output: memoryview) -> int | None:
    """Decompress to the beginning of `output`: how many bytes there are, or None when they do not fit.

    For whoever reads many batches and has the room for them already.
    """
    if codec == SNAPPY:
        return _decompress_snappy_into(memoryview(data), output)
    try:
        written: int = _module(codec).decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if _TOO_SMALL not in str(error):
            raise MalformedMessage(f"compressed records are damaged: {error}") from error
        return None
    return written


def _module(codec: int) -> ModuleType:
    modules: dict[int, ModuleType] = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
    if codec not in modules:
        raise MalformedMessage(f"there is no compression codec {codec}")
    return modules[codec]


def _check_limit(size: int, limit: int) -> None:
    if size > limit:
        raise MalformedMessage(f"records of {size} bytes or more, where at most {limit} are allowed")


def _decompress_growing(codec: int, data: Buffer, limit: int) -> bytes:
    size = min(limit, max(1024, len(data) * _FIRST_GUESS_RATIO))
    while True:
        output = memoryview(bytearray(size))
        written = decompress_into(codec, data, output)
        if written is not None:
            return bytes(output[:written])
        if size >= limit:
            _check_limit(limit + 1, limit)
        del output
        size = min(limit, size * _GROWTH)


# -- snappy -------------------------------------------------------------------------------------------


def _compress_xerial(data: memoryview) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    parts: list[bytearray] = []
    size = 0
    for block in _snappy_blocks(data):
        length = _snappy_length(block)
        size += length
        _check_limit(size, limit)
        part = bytearray(length)
        _decompress_snappy_block(block, memoryview(part))
        parts.append(part)
    return b"".join(parts)


def _decompress_snappy_into(data: memoryview, output: memoryview) -> int | None:
    size = 0
    for block in _snappy_blocks(data):
        length = _snappy_length(block)
        if size + length > len(output):
            return None
        _decompress_snappy_block(block, output[size : size + length])
        size += length
    return size


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """The raw blocks of xerial's framing, or the one that came without it."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield data
        return
    position = 0
    while position < len(data):
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # streams may follow one another, each with its header
            continue
        if position + 4 > len(data):
            raise MalformedMessage("a snappy stream ends within the length of a block")
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise MalformedMessage(f"a snappy block claims {length} of the {len(data) - position} bytes left")
        yield data[position : position + length]
        position += length


def _snappy_length(block: memoryview) -> int:
    """What a block claims to hold, if a block of its size can."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"a snappy block is damaged: {error}") from error
    if not block or size > len(block) * _SNAPPY_BEST_RATIO:
        raise MalformedMessage(f"a snappy block of {len(block)} bytes claims to hold {size}")
    return size


def _decompress_snappy_block(block: memoryview, output: memoryview) -> None:
    """Exactly as much as `output` has room for."""
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise MalformedMessage(f"a snappy block is damaged: {error}") from error
    if written != len(output):
        raise MalformedMessage(f"a snappy block claims to hold {len(output)} bytes and holds {written}")


# -- lz4 ----------------------------------------------------------------------------------------------


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    if level is not None and level != _DEFAULT_LZ4_LEVEL:
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        chunk = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        if len(block) < len(chunk):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(chunk) | _LZ4_STORED), chunk)
    parts.append(_LZ4_END)
    return b"".join(parts)
