"""Which partition a row goes to: the one it names, the one of its key, or one for a whole Arrow batch.

    the row has a partition        that one
    the row has a key              toPositive(murmur2(key)) % partitions, as Java's producer does
    neither                        all such rows of an Arrow batch together, the next batch to the next partition

So a key that this sink writes and a key that a Java service writes meet in the same partition. The last rule is the
"sticky" partitioner: full batches instead of even ones.

murmur2 takes four bytes at a time; here it takes the next four bytes of *all* keys at a time, so the cost is one round
of numpy per four bytes of the longest key.

    >>> murmur2(pa.array([b"21", b"foobar"])).tolist()
    [-973932308, -790332482]
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.spark.sink.encoding import Numbers, lengths_of

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_ROTATION = np.uint32(24)

Words = npt.NDArray[np.uint32]


def partitions_of_keys(keys: pa.BinaryArray, partition_count: int) -> Numbers:
    """The partition of each key; a null key gets -1."""
    hashes = murmur2(keys).astype(np.int64) & 0x7FFFFFFF
    places = hashes % partition_count
    if keys.null_count:
        places[lengths_of(keys) < 0] = -1
    return cast(Numbers, places)


def murmur2(keys: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Kafka's hash of each key (of an empty one for null)."""
    lengths = np.maximum(lengths_of(keys), 0)
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys)].astype(
        np.int64
    )
    data = keys.buffers()[2]
    raw = np.zeros(4, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    with np.errstate(over="ignore"):
        hashes = _SEED ^ lengths.astype(np.uint32)
        for word in range(int(lengths.max(initial=0)) // 4):
            chosen = np.flatnonzero(lengths >= 4 * word + 4)
            hashes[chosen] = _mixed(hashes[chosen], _words(raw, starts[chosen] + 4 * word))
        hashes = _with_tails(hashes, raw, starts, lengths)
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    return hashes.view(np.int32)


def _words(raw: npt.NDArray[np.uint8], starts: Numbers) -> Words:
    """The four bytes from each start on, least significant first."""
    words = raw[starts].astype(np.uint32)
    for byte in range(1, 4):
        words |= raw[starts + byte].astype(np.uint32) << np.uint32(8 * byte)
    return words


def _mixed(hashes: Words, words: Words) -> Words:
    words = words * _M
    words ^= words >> _ROTATION
    words *= _M
    return cast(Words, (hashes * _M) ^ words)


def _with_tails(hashes: Words, raw: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    """The one to three bytes that are left, from the last to the first."""
    tails, ends = lengths % 4, starts + lengths - lengths % 4
    for byte in (2, 1, 0):
        chosen = np.flatnonzero(tails > byte)
        hashes[chosen] ^= raw[ends[chosen] + byte].astype(np.uint32) << np.uint32(8 * byte)
    chosen = np.flatnonzero(tails)
    hashes[chosen] *= _M
    return hashes
