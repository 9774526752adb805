"""Which partition of an internal topic is responsible for a group, a transactional id or a share key.

Kafka's rule: `abs(key.hashCode()) % partitions`, with Java's `String.hashCode`: over the UTF-16 code units,
`hash = 31 * hash + unit` in 32-bit arithmetic. Whoever reads the files of a Kafka broker, or lets Kafka read ours,
depends on it.

    partition_for("orders", 50)     # "orders".hashCode() = -1008770331 -> 1008770331 % 50 = 31

Limits: the smallest 32-bit number has no absolute value; as in Kafka it counts as 0.
"""

from __future__ import annotations

import struct

_SMALLEST = -(1 << 31)


def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    value = java_hash_code(key)
    return (0 if value == _SMALLEST else abs(value)) % partitions
