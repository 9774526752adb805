"""Producer ids, partitions and ends of transactions, in every state that holds still; see `transaction_life`."""

from __future__ import annotations

import time

from transaction_life import Life
from transaction_transcript import GROUP, STRANGER, Who


def ids_without_transactions(life: Life) -> None:
    for version in range(6):
        life.init(None, version=version)
    for timeout_ms in (0, -1, 2**31 - 1):
        life.init(None, timeout_ms=timeout_ms)
    for identity in ((STRANGER, 5), (-1, 5), (5, -1), (STRANGER, 32767)):
        life.init(None, Who("", *identity))
    for version in range(6):
        life.init("", version=version)
    life.init("", timeout_ms=0)
    life.init("", Who("", -1, 5))


def ids_of_transactions(life: Life) -> None:
    for timeout_ms in (0, -1, 900_001, 2**31 - 1):
        life.init("never", timeout_ms=timeout_ms)
    life.describe("never")
    life.init("never", Who("", -1, 5))
    life.init("never", Who("", 5, -1))
    life.init("never", Who("", -1, 5), timeout_ms=0)
    life.describe("never")
    life.init("claimed", Who("", STRANGER, 7))
    life.describe("claimed")
    life.init("claimed", Who("", STRANGER, 7))
    life.init("claimed", timeout_ms=0)
    for version in range(6):
        life.init("ann", version=version, timeout_ms=1000 + version)
    life.init("ann", timeout_ms=900_000)
    life.init("ann", timeout_ms=1)
    life.describe("ann")
    ann = life.init("ann")
    for epoch in (ann.epoch, ann.epoch, ann.epoch + 1, ann.epoch, ann.epoch - 1, ann.epoch + 9, 0):
        life.init("ann", ann.at(epoch))
    for version in (3, 4, 5):
        life.init("ann", ann.at(0), version=version)
        life.init("ann", Who("", STRANGER, 0), version=version)
    life.describe("ann")
    life.list(transactional_id_pattern="ann|claimed|never")


def ids_while_open(life: Life) -> None:
    """InitProducerId with a transaction open, and after it."""
    for old in (True, False):
        name = "old" if old else "new"
        who = life.init(name)
        topic = life.topic(1, name)
        life.add(who, topic, 0)
        life.init(name, timeout_ms=0)
        life.produce(who, topic, b"a", version=11 if old else 12)
        life.init(name, who)
        life.settle(name)
        life.describe(name)
        life.look(topic)
        life.init(name, who)
        life.describe(name)
        life.init(name, who)
        who = life.init(name)
        life.add(who, topic, 0)
        life.produce(who, topic, b"b", version=11 if old else 12)
        who = life.end(who, commit=True, version=4 if old else 5)
        life.init(name, who.at(who.epoch - 1))
        life.init(name, who.at(who.epoch - 1))
        life.init(name, who)
        who = life.init(name)
        life.add(who, topic, 0)
        life.init(name)
        life.settle(name)
        life.describe(name)
        life.produce(who, topic, b"c", version=11 if old else 12)
        life.end(who, commit=True, version=4 if old else 5)
        life.init(name)
        life.produce(who, topic, b"c", version=11 if old else 12)
        life.add(who, topic, 0)
        life.end(who, commit=True, version=4 if old else 5)
        life.describe(name)
        life.look(topic)


def adding(life: Life) -> None:
    topic = life.topic(2)
    stranger = Who("nobody", STRANGER, 0)
    for version in range(4):
        life.add(stranger, topic, 0, version=version)
        life.add(stranger, "no-such-topic", 0, version=version)
    life.add_topics(stranger, [])
    life.add(stranger, topic)
    life.add(stranger.called(""), topic, 0)
    life.add(stranger.called(""), "no-such-topic", 0)
    life.add_topics(stranger.called(""), [])
    ann = life.init("adder")
    life.add_topics(ann, [])
    life.describe("adder")
    for version in range(4):
        life.add(ann.at(9), topic, 0, version=version)
        life.add(ann.at(-1), topic, 0, version=version)
        life.add(ann._replace(producer_id=STRANGER), topic, 0, version=version)
    life.add_topics(ann, [(topic, [0, 7]), ("no-such-topic", [0, 1])])
    life.add_topics(ann, [(topic, [7, 0, 1])])
    life.add_topics(ann, [("no-such-topic", [1]), (topic, [0])])
    life.add_topics(ann, [("", [0])])
    life.add_topics(ann, [("__consumer_offsets", [0]), ("__transaction_state", [0])])
    life.describe("adder")
    life.add_topics(ann, [(topic, [0, 0]), (topic, [0])])
    life.add_topics(ann, [(topic, [-1])])
    life.add(ann, topic, 0)
    life.add_topics(ann, [])
    life.describe("adder")
    life.end(ann, commit=True, version=4)
    life.describe("adder")
    life.add(ann, topic, 1)
    life.describe("adder")
    life.end(ann, commit=False, version=4)
    life.look(topic, 0, 1)


def adding_batched(life: Life) -> None:
    topic = life.topic(2)
    stranger = Who("nobody", STRANGER, 0)
    ann, bob = life.init("batch-ann"), life.init("batch-bob")
    for verify in (True, False):
        for version in (4, 5):
            life.add_batched((stranger, [(topic, [0])]), verify=verify, version=version)
            life.add_batched((stranger.called(""), [(topic, [0])]), verify=verify, version=version)
            life.add_batched((stranger, [("no-such-topic", [0])]), verify=verify, version=version)
            life.add_batched((ann, []), verify=verify, version=version)
            life.add_batched((ann.at(5), [(topic, [0])]), verify=verify, version=version)
            life.add_batched((ann.at(-1), [(topic, [0])]), verify=verify, version=version)
            life.add_batched((ann, [(topic, [0, 7]), ("no", [0])]), verify=verify, version=version)
        life.add_batched(
            (ann, [(topic, [0])]), (bob, [(topic, [1])]), (stranger, [(topic, [0])]), verify=verify
        )
        life.describe("batch-ann", "batch-bob")
    life.add_batched((ann, [(topic, [0])]), (bob, [(topic, [1, 0])]), verify=True)
    life.end(ann, commit=True, version=4)
    life.add_batched((ann, [(topic, [0])]), verify=True)
    bob = life.end(bob, commit=True)
    life.add_batched((bob, [(topic, [0])]), verify=True)
    life.add_batched((bob.at(bob.epoch - 1), [(topic, [0])]), verify=True)
    life.add_batched((bob.at(bob.epoch - 1), [(topic, [0])]))
    life.describe("batch-ann", "batch-bob")


def ends(life: Life) -> None:
    """EndTxn in each state that holds still, by either version."""
    topic = life.topic(1)
    stranger = Who("nobody", STRANGER, 0)
    for version in range(6):
        life.end(stranger, commit=True, version=version)
        life.end(stranger.called(""), commit=True, version=version)
    for commit in (True, False):
        for version in (0, 1, 2, 3, 4, 5):
            who = life.init(f"end-{version}-{commit}")
            for empty in (True, False):
                who = life.end(who, commit=empty, version=version)
                life.describe(who.transactional_id)
            who = life.init(f"end-{version}-{commit}")
            life.add(who, topic, 0, version=0)
            for odd in (
                who.at(who.epoch + 1),
                who.at(who.epoch - 1),
                who.at(-1),
                who._replace(producer_id=STRANGER),
            ):
                life.end(odd, commit=commit, version=version)
            before = who
            who = life.end(who, commit=commit, version=version)
            life.describe(who.transactional_id)
            for again in (commit, not commit):
                life.end(before, commit=again, version=version)
            for again in (commit, not commit, commit, not commit):
                who = life.end(who, commit=again, version=version)
                life.describe(who.transactional_id)
            for other in (4, 5):
                life.end(before, commit=commit, version=other)
                life.end(who, commit=commit, version=other)
            life.describe(who.transactional_id)
    life.look(topic)


def mixed_versions(life: Life) -> None:
    topic = life.topic(1)
    who = life.init("mixed")
    life.produce(who, topic, b"a", version=12)
    life.describe("mixed")
    who = life.end(who, commit=True, version=4)
    life.describe("mixed")
    life.produce(who, topic, b"b", sequence=1, version=12)
    who = life.end(who, commit=True, version=5)
    life.add(who, topic, 0)
    life.produce(who, topic, b"c", sequence=0, version=11)
    before = who
    who = life.end(who, commit=False, version=5)
    life.end(before, commit=False, version=5)
    life.end(before, commit=False, version=4)
    life.end(who, commit=False, version=4)
    life.add(who, topic, 0)
    life.produce(who, topic, b"d", sequence=0, version=12)
    who = life.end(who, commit=True, version=4)
    life.end(who, commit=True, version=5)
    life.end(who, commit=False, version=5)
    life.describe("mixed")
    life.look(topic)


def held_markers(life: Life) -> None:
    """A foreign marker of a later epoch holds a transaction between its decision and its end."""
    topic = life.topic(4)
    for number, (version, commit) in enumerate([(4, True), (4, False), (5, True), (5, False)]):
        name = f"held-{version}-{commit}"
        who = life.init(name)
        life.add(who, topic, number)
        life.produce(who, topic, b"a", partition=number, version=11)
        life.mark(who.at(100), (topic, [number]), commit=True)
        after = life.end(who, commit=commit, version=version, settle=False)
        time.sleep(0.2)
        life.describe(name)
        for epoch in (who.epoch, who.epoch + 1, who.epoch + 2):
            asked = who.at(epoch)
            for each in (4, 5):
                life.end(asked, commit=commit, version=each, settle=False)
                life.end(asked, commit=not commit, version=each, settle=False)
            life.init(name, asked)
            life.add(asked, topic, number)
            life.add(asked, topic, 0, 1, 2, 3)
            life.add(asked, topic, version=1)
            life.add_batched((asked, [(topic, [number, (number + 1) % 4])]), verify=True)
            life.add_offsets(asked, GROUP)
            life.commit_offsets(asked, GROUP, (topic, 0, 4), version=4)
            life.produce(asked, topic, b"b", partition=number, version=11)
            life.produce(asked, topic, b"b", partition=(number + 1) % 4, version=10)
            life.produce(asked, topic, b"b", partition=(number + 1) % 4, version=11)
        life.commit_offsets(after, GROUP, (topic, 0, 4), version=5)
        life.produce(after, topic, b"b", partition=(number + 1) % 4, version=12)
        life.init(name)
        life.describe(name)
    life.list(transactional_id_pattern="held.*")
    life.look(topic, 0, 1, 2, 3)


def fencing(life: Life) -> None:
    topic = life.topic(1)
    for version in (4, 5):
        name = f"fence-{version}"
        write = {4: 11, 5: 12}[version]
        first = life.init(name)
        life.add(first, topic, 0)
        life.produce(first, topic, b"a", version=write)
        life.init(name)
        life.settle(name)
        second = life.init(name)
        life.produce(first, topic, b"b", sequence=1, version=write)
        life.add(first, topic, 0)
        life.add_offsets(first, GROUP)
        life.commit_offsets(first, GROUP, (topic, 0, 1), version=version)
        life.end(first, commit=True, version=version)
        life.end(first, commit=False, version=version)
        life.add(second, topic, 0)
        life.produce(second, topic, b"c", version=write)
        life.produce(first, topic, b"b", sequence=1, version=write)
        life.end(first, commit=True, version=version)
        life.describe(name)
        life.end(second, commit=True, version=version)
        life.look(topic)


def timed_out(life: Life) -> None:
    topic = life.topic(2)
    for number, version in enumerate((4, 5)):
        name = f"slow-{version}"
        write = {4: 11, 5: 12}[version]
        who = life.init(name, timeout_ms=500)
        life.add(who, topic, number)
        life.produce(who, topic, b"a", partition=number, version=write)
        life.wait_for(name, "CompleteAbort")
        life.describe(name)
        life.produce(who, topic, b"b", sequence=1, partition=number, version=write)
        life.add(who, topic, number)
        life.commit_offsets(who, GROUP, (topic, 0, 1), version=version)
        life.end(who, commit=True, version=version)
        life.end(who, commit=False, version=version)
        life.end(who, commit=False, version=9 - version)
        life.init(name, who)
        life.describe(name)
        life.init(name, who)
        life.init(name)
    life.look(topic, 0, 1)


def deleted_topics(life: Life) -> None:
    """There is nothing left to end, and the transaction ends all the same."""
    for version, commit in ((4, True), (5, False)):
        kept, gone = life.topic(1, f"kept-{version}"), life.topic(1, f"gone-{version}")
        who = life.init(f"deleting-{version}")
        life.add_topics(who, [(kept, [0]), (gone, [0])])
        life.produce(who, gone, b"a", version=11)
        life.produce(who, kept, b"a", version=11)
        life.delete_topic(gone)
        life.produce(who, gone, b"b", sequence=1, version=11)
        life.add(who, gone, 0)
        life.describe(who.transactional_id)
        who = life.end(who, commit=commit, version=version)
        life.describe(who.transactional_id)
        life.look(kept)


def listing(life: Life) -> None:
    topic = life.topic(1)
    ann, bob = life.init("list-ann"), life.init("list-bob")
    life.add(ann, topic, 0)
    life.describe()
    life.describe("", "list-ann", "nobody", "list-bob", "list-ann")
    mine = "list-.*"
    life.list(transactional_id_pattern=mine)
    for version in (0, 1, 2):
        life.list(version, state_filters=["Ongoing"], producer_id_filters=[ann.producer_id, bob.producer_id])
        life.list(version, state_filters=["Nonsense"])
        life.list(
            version,
            state_filters=["Nonsense", "Empty", "ongoing", "Dead", "PrepareEpochFence"],
            producer_id_filters=[ann.producer_id, bob.producer_id],
        )
        life.list(version, producer_id_filters=[-1, STRANGER])
        life.list(version, producer_id_filters=[bob.producer_id, STRANGER])
    time.sleep(0.01)
    for duration in (-1, -5, 0, 1, 10**6):
        life.list(duration_filter=duration, transactional_id_pattern=mine)
    for pattern in ("", "list", "list-a", "list-(ann|bob)", "LIST-ANN", "[", "(?i)LIST-ANN", ".*ann$", None):
        life.list(transactional_id_pattern=pattern, producer_id_filters=[ann.producer_id, bob.producer_id])
    life.list(state_filters=["", "Empty"], transactional_id_pattern=mine)
    life.list(state_filters=["Nonsense"], transactional_id_pattern="[")
    for name, indexes in (
        (topic, [0, 5]),
        ("no-such-topic", [0]),
        ("__transaction_state", [0, 99]),
        ("", [0]),
    ):
        life.producers(name, *indexes)
    life.end(ann, commit=False)
