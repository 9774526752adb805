"""Batches of producers, markers, and what readers see of them; see `transaction_life`."""

from __future__ import annotations

from transaction_life import Life
from transaction_transcript import STRANGER, Who


def idempotent_batches(life: Life) -> None:
    topic = life.topic(2)
    who = life.init(None)
    plain = {"attributes": 0, "is_named": False}
    life.produce(who, topic, b"a", b"b", **plain)
    life.produce(who, topic, b"a", b"b", **plain)
    life.produce(who, topic, b"b", sequence=1, **plain)
    life.produce(who, topic, b"d", sequence=3, **plain)
    life.produce(who, topic, b"c", sequence=2, **plain)
    for sequence in range(3, 9):
        life.produce(who, topic, b"x", sequence=sequence, **plain)
    life.produce(who, topic, b"a", b"b", **plain)
    life.produce(who, topic, b"x", sequence=3, **plain)
    life.produce(who, topic, b"x", sequence=4, **plain)
    life.produce(who.at(1), topic, b"e", sequence=5, **plain)
    life.produce(who.at(1), topic, b"e", sequence=0, **plain)
    life.produce(who, topic, b"e", sequence=9, **plain)
    life.produce(who.at(1), topic, b"e", sequence=-1, **plain)
    life.produce(who.at(5), topic, b"e", sequence=0, **plain)
    life.produce(Who("", STRANGER, 3), topic, b"e", sequence=17, **plain)
    life.produce(Who("", STRANGER, 3), topic, b"e", sequence=17, **plain)
    life.produce(Who("", STRANGER, 3), topic, b"e", sequence=19, **plain)
    life.produce(Who("", -1, 3), topic, b"e", sequence=17, **plain)
    life.produce(Who("", -1, -1), topic, b"e", sequence=17, **plain)
    life.produce(Who("", STRANGER + 1, 3), topic, b"e", sequence=2**31 - 1, **plain)
    life.produce(Who("", STRANGER + 1, 3), topic, b"e", sequence=0, **plain)
    life.produce(Who("", STRANGER + 1, 3), topic, b"e", sequence=2**31 - 1, **plain)
    life.produce(Who("", STRANGER + 2, 32767), topic, b"e", sequence=4, **plain)
    life.produce(Who("", STRANGER + 2, 0), topic, b"e", sequence=0, **plain)
    life.produce(Who("", STRANGER + 2, 32767), topic, b"e", b"f", sequence=2**31 - 1, partition=1, **plain)
    life.produce(Who("", STRANGER + 2, 32767), topic, b"e", sequence=1, partition=1, **plain)
    life.produce(Who("", STRANGER, 3), topic, b"e", sequence=18, attributes=0, is_named=True)
    for attributes in (0x20, 0x40, 0x80):
        life.produce(who.at(5), topic, b"e", sequence=1, attributes=attributes, is_named=False)
        life.produce(Who("", -1, -1), topic, b"e", sequence=-1, attributes=attributes, is_named=False)
    life.look(topic, 0, 1)


def transactional_batches(life: Life) -> None:
    topic = life.topic(3)
    for version in (3, 8, 10, 11, 12):
        name = f"writer-{version}"
        stranger = Who("nobody", STRANGER, 0)
        life.produce(stranger, topic, version=version)
        life.produce(stranger.called(""), topic, version=version)
        life.produce(stranger, topic, version=version, is_named=False)
        life.produce(Who("nobody", -1, -1), topic, sequence=-1, version=version, is_named=False)
        other = Who("nobody", STRANGER + version, 0)
        life.produce(other, topic, attributes=0, version=version)
        life.produce(other.called(""), topic, attributes=0, sequence=1, version=version)
        who = life.init(name)
        life.produce(who, topic, version=version)
        life.produce(who, topic, version=version, is_named=False)
        life.produce(who.called("nobody"), topic, version=version)
        life.produce(who, "no-such-topic", version=version)
        life.produce(who, topic, partition=9, version=version)
        life.describe(name)
        life.add(who, topic, 1)
        life.produce(who, topic, sequence=4, partition=1, version=version)
        life.produce(who, topic, sequence=0, partition=1, version=version)
        life.produce(who, topic, sequence=5, partition=1, version=version)
        life.produce(who, topic, sequence=6, partition=1, version=version, is_named=False)
        life.produce(who.called("nobody"), topic, sequence=6, partition=1, version=version)
        life.produce(who, topic, sequence=7, partition=1, attributes=0, version=version)
        life.produce(who, topic, sequence=7, partition=1, attributes=0, is_named=False, version=version)
        life.produce(who, topic, sequence=9, partition=1, version=version)
        life.produce(who, topic, sequence=5, partition=1, version=version)
        life.produce(who.at(who.epoch + 1), topic, sequence=0, partition=1, version=version)
        life.produce(who.at(who.epoch + 1), topic, sequence=0, partition=2, version=version)
        life.produce(who, topic, sequence=0, partition=2, version=version)
        life.describe(name)
        before = who
        who = life.end(who, commit=version % 2 == 0, version=5 if version == 12 else 4)
        life.produce(before, topic, sequence=7, partition=1, version=version)
        life.produce(who, topic, sequence=3, partition=1, version=version)
        life.produce(who, topic, sequence=0, partition=1, attributes=0, version=version, is_named=False)
        life.describe(name)
        life.look(topic, 0, 1, 2)
        if version == 12:
            life.end(who, commit=False)


def several_at_once(life: Life) -> None:
    topic = life.topic(2)
    hasty = life.init("hasty")
    for version in (11, 12):
        life.produce(hasty, topic, acks=1, version=version)
    life.end(hasty, commit=True)
    who = life.init("several")
    life.produce_all(who, (topic, 0), (topic, 1), (topic, 7), ("no-such-topic", 0))
    life.describe("several")
    who = life.end(who, commit=True)
    life.produce_all(who, (topic, 0), (topic, 1), version=11)
    life.add(who, topic, 0)
    life.produce_all(who, (topic, 0), (topic, 1), version=11)
    who = life.end(who, commit=False)
    life.look(topic, 0, 1)


def markers(life: Life) -> None:
    topic = life.topic(3)
    stranger = Who("", STRANGER, 5)
    for version in (1, 2):
        life.mark(stranger, ("no-such-topic", [0]), (topic, [9]), version=version)
    life.mark(stranger, (topic, [0]))
    life.mark(stranger, (topic, [0]))
    life.look(topic)
    life.mark(stranger.at(6), (topic, [0]), coordinator_epoch=3)
    life.mark(stranger.at(6), (topic, [0]), coordinator_epoch=2)
    life.mark(stranger.at(5), (topic, [0]), coordinator_epoch=3)
    life.mark(stranger.at(6), (topic, [0]), coordinator_epoch=3, transaction_version=2)
    life.mark(stranger.at(7), (topic, [0]), coordinator_epoch=3, transaction_version=2)
    life.mark(stranger.at(-1), (topic, [0]), coordinator_epoch=3)
    life.mark(stranger.at(7), (topic, [0]), coordinator_epoch=-1)
    life.mark(Who("", -1, 0), (topic, [2]))
    life.mark(Who("", -1, -1), (topic, [2]))
    life.look(topic, 0, 2)
    life.mark(Who("", STRANGER + 7, 0), (topic, [2]), transaction_version=3)
    life.mark(Who("", STRANGER + 7, 32767), (topic, [2]), transaction_version=2)
    life.mark(Who("", STRANGER + 8, 32767), (topic, [2]), coordinator_epoch=-1)
    life.look(topic, 2)
    ann = life.init("marked")
    life.add(ann, topic, 1)
    life.produce(ann, topic, b"a", partition=1, version=11)
    life.mark(ann, (topic, [1]), commit=False, transaction_version=2)
    life.mark(ann, (topic, [1]), commit=False, transaction_version=1)
    life.look(topic, 1)
    life.produce(ann, topic, b"b", sequence=1, partition=1, version=11)
    life.produce(ann, topic, b"b", sequence=0, partition=1, version=12)
    life.mark(ann, (topic, [1]), ("no-such-topic", [1]), commit=True)
    life.mark(ann, (topic, [1]), commit=True, transaction_version=2)
    life.produce(ann.at(7), topic, b"b", sequence=0, partition=1, version=12)
    life.end(ann, commit=True)
    life.look(topic, 1)
    life.mark(stranger, ("__consumer_offsets", [0]))
    life.mark(stranger.at(4), ("__consumer_offsets", [0]))
    life.mark(stranger.at(6), ("__consumer_offsets", [0]), coordinator_epoch=-1)


def aborted_lists(life: Life) -> None:
    topic = life.topic(1)
    ann, bob = life.init("ab-ann"), life.init("ab-bob")
    life.produce(ann, topic, b"a0")
    life.produce(bob, topic, b"b0")
    life.produce(Who("", -1, -1), topic, b"plain", sequence=-1, attributes=0, is_named=False)
    life.look(topic)
    bob = life.end(bob, commit=False)
    life.look(topic)
    life.produce(bob, topic, b"b1")
    bob = life.end(bob, commit=True)
    life.produce(ann, topic, b"a1", sequence=1)
    ann = life.end(ann, commit=False)
    life.look(topic)
    for offset in range(9):
        life.fetch(topic, offset, 1)
    for timestamp in (-1, -2, 0, -4, -5):
        for isolation in (0, 1):
            life.offsets(topic, 0, isolation, timestamp)
    life.produce(ann, topic, b"a2")
    for timestamp in (-1, -2, 0, -4, -5):
        for isolation in (0, 1):
            life.offsets(topic, 0, isolation, timestamp)
    life.end(ann, commit=True)
