"""Share groups in corners that no client goes to, on our broker and on Kafka: the same answers, and the same records.

What differs on purpose is in decisions 0012; `share_life.py` leaves it out.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from group_life import SETTINGS, group_records, live_all
from kafka_peer import KafkaPeer
from raw_transactions import RawProducer
from share_life import Reader, ShareLife
from tidemill_peer import TidemillPeer
from waiting import wait_until

EARLIEST = {"share_auto_offset_reset": "earliest"}
LOCK_SECONDS = SESSION_SECONDS = 1.0


def members(life: ShareLife) -> None:
    life.topic("jobs", 2)
    for fields in (
        {"group_id": ""}, {"member_id": ""}, {"member_id": 37 * "m"}, {"rack_id": ""}, {"member_epoch": -2},
        {"subscribed_topic_names": []}, {"subscribed_topic_names": None},
        {"member_epoch": 1}, {"member_epoch": -1},
    ):  # fmt: skip
        life.beat("workers", "ann", 0, ["jobs"], **fields)
    epoch = life.join("workers", "ann", ["jobs"], 2, rack_id="rack")
    life.describe("workers", operations=True)
    for said in (epoch, epoch + 5):
        life.beat("workers", "ann", said)
    life.beat("workers", "ann", 0)
    life.beat("workers", "ann", epoch, ["jobs"])
    life.beat("workers", "ann", epoch, rack_id="other")
    life.beat("workers", "nobody", epoch)
    life.beat("workers", "nobody", -1)
    life.beat("workers", "bob", 0, ["jobs"])
    life.beat("workers", "ann", epoch)
    life.beat("workers", "cas", 0, ["jobs", "nowhere"])
    life.beat("workers", "dora", 0, ["jobs"])
    life.beat("workers", "dora", 9)
    life.describe("workers")
    life.beat("workers", "cas", 5, [])
    life.describe("workers")
    life.list(types_filter=["share"])
    life.list(types_filter=["SHARE"], states_filter=["stable"])
    life.list(types_filter=["consumer"])
    life.delete("workers")
    for member in ("ann", "bob", "cas"):
        life.beat("workers", member, -1)
    life.describe("workers", "nobody", "")
    life.list(states_filter=["Empty"])
    life.delete("workers", "nobody")
    life.describe("workers")


def nothing_to_read(life: ShareLife) -> None:
    life.beat("workers", "ann", 0, ["nowhere"])
    life.beat("workers", "ann", 2)
    life.beat("workers", "ann", 2, ["elsewhere"])
    life.beat("workers", "ann", 3)
    life.describe("workers")
    life.offsets("workers")
    life.beat("workers", "ann", -1)
    life.delete("workers")


def silence(life: ShareLife) -> None:
    life.configure("workers", share_session_timeout_ms="1000", share_heartbeat_interval_ms="500")
    life.topic("jobs")
    life.join("workers", "ann", ["jobs"], 1)
    time.sleep(SESSION_SECONDS + 0.5)
    life.describe("workers")
    life.beat("workers", "ann", 3)
    life.beat("workers", "ann", 0, ["jobs"])
    life.beat("workers", "ann", -1)


def offsets(life: ShareLife) -> None:
    life.topic("jobs", 2)
    life.topic("mail")
    for _ in range(5):
        life.produce("jobs", "a", "b")
    life.offsets("nobody")
    life.offsets("nobody", {"jobs": [0, 1], "nowhere": [0]})
    life.offsets("nobody", {})
    life.delete_offsets("nobody", "jobs")
    life.delete_offsets("", "jobs")
    life.alter("", ("jobs", 0, 1))
    life.alter("workers")
    life.alter("workers", ("nowhere", 0, 0))
    life.describe("workers")
    life.alter("workers", ("jobs", 0, 4), ("nowhere", 0, 1), ("mail", 0, 0), ("mail", 5, 0))
    life.offsets("workers")
    life.offsets("workers", {"jobs": [0, 1], "nowhere": [0]}, version=0)
    life.alter("workers", ("jobs", 0, 2))
    life.offsets("workers")
    life.delete_offsets("workers", "nowhere", "mail")
    life.delete_offsets("workers", "mail")
    life.delete_offsets("workers")
    life.offsets("workers")
    life.alter("workers", ("jobs", 1, 0))
    Reader(life, "workers", "ann").take({"jobs": [0]})
    life.join("busy", "ann", ["jobs"], 2)
    for topic in ("jobs", "nowhere"):
        life.alter("busy", (topic, 0, 0))
        life.delete_offsets("busy", topic)
    life.delete("busy")
    life.delete("workers")
    life.offsets("workers")


def epochs_of_a_session(life: ShareLife) -> None:
    life.configure("workers", **EARLIEST)
    life.topic("jobs")
    life.produce("jobs", *"abcde")
    life.join("workers", "ann", ["jobs"], 1)
    ann = Reader(life, "workers", "ann")
    for epoch in (1, -1, -2):
        ann.fetch({"jobs": [0]}, at=epoch)
        ann.tell({("jobs", 0): ["0 accept"]}, at=epoch)
    ann.tell({("jobs", 0): ["0 accept"]})
    ann.fetch({"jobs": [0]}, {("jobs", 0): ["0 accept"]})
    for wrong in ({"group_id": None}, {"member_id": None}, {"member_id": ""}, {"member_id": 37 * "m"}):
        ann.fetch({"jobs": [0]}, at=0, **wrong)
        ann.tell({}, at=1, **wrong)
    ann.take({"jobs": [0]})
    ann.fetch(at=ann.epoch + 1)
    ann.tell({("jobs", 0): ["0 accept"]}, at=ann.epoch + 1)
    ann.fetch({"jobs": [7]})
    ann.fetch(forgotten={"jobs": [7], "nowhere": [0]})
    ann.fetch()
    ann.fetch({}, {("jobs", 0): ["0 accept"]}, forgotten={"jobs": [0]})
    life.produce("jobs", "f")
    ann.fetch(max_wait_ms=200)
    ann.fetch({"jobs": [0]}, max_records=0)
    ann.fetch({}, {("jobs", 0): ["1-4 accept"]}, at=-1)
    ann.fetch()
    life.offsets("workers", {"jobs": [0]}, starts=False)


def words(life: ShareLife) -> None:
    life.configure("workers", **EARLIEST)
    life.topic("jobs", 2)
    for _ in range(3):
        life.produce("jobs", *"abcde")
    life.join("workers", "ann", ["jobs"], 2)
    ann, bob = Reader(life, "workers", "ann"), Reader(life, "workers", "bob", life.connect())
    ann.take({"jobs": [0]}, max_records=10)
    bob.take({"jobs": [0, 1]}, max_records=5)
    for text in (
        "0 accept", "0 accept", "1 release", "1 accept", "2 5", "2", "2-3 accept,accept,accept", "3-2 accept",
        "2-3 accept,reject", "10 accept", "15 accept", "100 accept", "4 gap", "5 gap,gap", "8-12 accept",
    ):  # fmt: skip
        ann.tell({("jobs", 0): [text]})
    for texts in (
        ["6-7 accept", "5 accept"], ["5-6 accept", "6-7 accept"], ["5 accept", "5 release"], ["5 accept", "8 9"], [],
    ):  # fmt: skip
        ann.tell({("jobs", 0): texts})
    for where in (("jobs", 1), ("jobs", 9), ("nowhere", 0)):
        ann.tell({where: ["0 accept"]})
    ann.tell({})
    ann.tell({("jobs", 0): ["5 accept"], ("jobs", 1): ["0 accept"], ("nowhere", 0): ["1 accept"]}, version=1)
    ann.fetch({}, {("jobs", 0): ["6 accept"], ("jobs", 1): ["0 accept"]}, max_records=0)
    for text in ("6 accept", "7 9", "7 release"):
        ann.fetch({}, {("jobs", 0): [text]}, max_records=0, version=1)
    life.lag("workers")
    ann.fetch({}, {("jobs", 0): ["8 accept", "9 release"]}, at=-1)
    bob.take()
    bob.tell({("jobs", 0): ["1 accept", "7 accept", "9-14 accept"]}, at=-1)
    life.lag("workers")


def renewal(life: ShareLife) -> None:
    life.configure("workers", share_record_lock_duration_ms="60000", **EARLIEST)
    life.configure("strict", share_renew_acknowledge_enable="false", **EARLIEST)
    life.topic("jobs")
    life.produce("jobs", *"abcdefghij")
    nothing = {"max_records": 0, "min_bytes": 0, "max_bytes": 0}
    for group in ("workers", "strict"):
        life.join(group, "ann", ["jobs"], 1)
        ann = Reader(life, group, "ann")
        ann.take({"jobs": [0]})
        ann.tell({("jobs", 0): ["0 renew"]})
        for texts in (["0 renew"], ["0 renew", "1 accept"], ["2-3 renew,release"], ["3 renew"], ["0 accept"]):
            ann.tell({("jobs", 0): texts}, is_renew_ack=True)
        ann.tell({}, is_renew_ack=True)
        ann.fetch({}, {("jobs", 0): ["4 renew"]}, max_records=0)
        ann.fetch({}, {("jobs", 0): ["4 renew"]}, is_renew_ack=True)
        ann.fetch({}, {("jobs", 0): ["4 renew"]}, is_renew_ack=True, **nothing)
        ann.fetch(is_renew_ack=True, **nothing)
        ann.tell({("jobs", 0): ["4 accept"]}, version=1)
        life.lag(group)


def time_outs(life: ShareLife) -> None:
    """The first release is a delivery too; after the second one a record is given up."""
    life.configure(
        "workers", share_record_lock_duration_ms="1000", share_delivery_count_limit="2", **EARLIEST
    )
    life.topic("jobs")
    life.produce("jobs", *"abcde")
    life.join("workers", "ann", ["jobs"], 1)
    ann = Reader(life, "workers", "ann")
    ann.take({"jobs": [0]})
    ann.tell({("jobs", 0): ["0 release"]})
    ann.take()
    ann.tell({("jobs", 0): ["0 release"]})
    ann.fetch()
    life.lag("workers")
    time.sleep(LOCK_SECONDS + 0.5)
    ann.tell({("jobs", 0): ["1 accept"]})
    for _ in range(5):
        ann.fetch()
    time.sleep(LOCK_SECONDS + 0.5)
    ann.fetch()
    life.lag("workers")


def sizes(life: ShareLife) -> None:
    life.configure("workers", **EARLIEST)
    life.topic("jobs")
    for _ in range(6):
        life.produce("jobs", *"abcdefghij")
    life.join("workers", "ann", ["jobs"], 1)
    ann = Reader(life, "workers", "ann")
    ann.take({"jobs": [0]}, max_records=5, batch_size=3)
    exact = {"share_acquire_mode": 1}
    for fields in (
        {"max_records": 3, **exact},
        {"max_records": 12, **exact},
        {"max_records": 12},
        {"max_bytes": 1},
    ):
        ann.fetch(**fields)
    ann.tell({("jobs", 0): ["3-4 release", "6 release"]})
    for fields in (
        {"max_records": 1},
        {"max_records": 1, **exact},
        {"min_bytes": 100_000, "max_wait_ms": 100},
    ):
        ann.fetch(**fields)
    for _ in range(3):
        ann.fetch(max_records=100)


def beginnings(life: ShareLife) -> None:
    resets = {"first": "earliest", "last": "latest", "hour": "by_duration:PT1H", "unsaid": None}
    for group, reset in resets.items():
        if reset is not None:
            life.configure(group, share_auto_offset_reset=reset)
    life.topic("jobs")
    life.produce("jobs", *"abc")
    readers = {group: Reader(life, group, "ann") for group in resets}
    for group, reader in readers.items():
        life.join(group, "ann", ["jobs"], 1)
        if group in ("first", "hour"):
            reader.take({"jobs": [0]})
        else:
            reader.fetch({"jobs": [0]}, max_wait_ms=500)
    life.produce("jobs", "d")
    for reader in readers.values():
        reader.take()


def transactions(life: ShareLife) -> None:
    """A log of commits and aborts; whoever reads what is committed stops before the open one."""
    life.configure("careful", share_isolation_level="read_committed", **EARLIEST)
    life.topic("jobs")
    with RawProducer(life.bootstrap, life.full("producer")) as producer:
        producer.begin()
        for commit in (True, False):
            producer.produce(life.full("jobs"), b"a", b"b")
            assert producer.end(commit=commit) == 0
        life.produce("jobs", "c")
        producer.produce(life.full("jobs"), b"open")
        life.join("careful", "ann", ["jobs"], 1)
        ann = Reader(life, "careful", "ann", markers=frozenset({2, 5, 8}))
        ann.take({"jobs": [0]})
        ann.tell({("jobs", 0): ["0-1 accept"]})
        ann.fetch(max_wait_ms=200)
        assert producer.end(commit=True) == 0
        ann.take()


def stored_state(life: ShareLife) -> None:
    life.topic("jobs", 2)

    def ask(kind: str, *, partition: int = 0, **fields: Any) -> Any:
        return life.state(kind, "workers", "jobs", partition, **fields).results

    def is_known() -> bool:
        (topic,) = ask("summary")
        life.answers.pop()
        return not topic.partitions[0].error_code

    wait_until(is_known, "that the share coordinator knows the topic")
    for kind in ("initialize", "read", "write", "delete", "summary"):
        life.state(kind, "", "jobs", 0)
        life.state(kind, "workers", "jobs")
        life.state(kind, "workers", "jobs", -1)
        if kind != "initialize":
            ask(kind)
    ask("initialize", state_epoch=1, start_offset=5)
    ask("summary", leader_epoch=-1)
    for epoch in (0, 3, 2, -1):
        ask("read", leader_epoch=epoch)
        ask("summary", leader_epoch=epoch)
    life.state("summary", "workers", "jobs", 0, version=0)
    ask("initialize", state_epoch=0, start_offset=0)
    ask("write", state_epoch=0, leader_epoch=3, start_offset=6)
    ask("write", state_epoch=1, leader_epoch=2, start_offset=6)
    ask(
        "write",
        state_epoch=1,
        leader_epoch=3,
        start_offset=6,
        delivery_complete_count=2,
        batches=[(8, 9, 2, 1)],
    )
    ask("write", state_epoch=1, leader_epoch=3, start_offset=-1, batches=[(7, 8, 0, 2), (20, 24, 4, 3)])
    ask("read", leader_epoch=3)
    ask("summary", leader_epoch=-1)
    ask("write", state_epoch=-1, leader_epoch=-1, start_offset=8, delivery_complete_count=6)
    ask("read", leader_epoch=4)
    ask("summary", leader_epoch=-1)
    ask("initialize", partition=1, state_epoch=1, start_offset=-1)
    life.state("read", "workers", "jobs", 0, 1, leader_epoch=4)
    for _ in range(2):
        ask("delete")
    ask("read", leader_epoch=4)


def other_kinds(life: ShareLife) -> None:
    """A group of another kind is no share group; to the fetches of share groups it is a name like any other."""
    life.topic("jobs")
    life.consumer_beat("readers", "ann", 0, ["jobs"])
    life.describe("readers")
    life.beat("readers", "ann", 0, ["jobs"])
    life.beat("readers", "ann", 2)
    life.beat("readers", "ann", -1)
    life.offsets("readers")
    life.offsets("readers", {"jobs": [0]})
    life.alter("readers", ("jobs", 0, 0))
    life.alter("readers", ("nowhere", 0, 0))
    life.delete_offsets("readers", "jobs")
    life.join("workers", "ann", ["jobs"], 1)
    for epoch in (0, 2, -1):
        life.consumer_beat("workers", "ann", epoch, ["jobs"])
    life.list()
    life.delete("workers", "readers")


def configurations(life: ShareLife) -> None:
    for name, texts in {
        "share_auto_offset_reset": ["earliest", "Latest", "none", "by_duration:PT1H", "by_duration:-PT1H"],
        "share_isolation_level": ["READ_COMMITTED", "read_nothing", "read_uncommitted"],
        "share_record_lock_duration_ms": ["999", "60001", "1000", "long", "", " 30000 "],
        "share_delivery_count_limit": ["1", "11", "10"],
        "share_partition_max_record_locks": ["99", "4001", "100"],
        "share_renew_acknowledge_enable": ["no", "FALSE"],
        "share_heartbeat_interval_ms": ["499", "15001", "15000"],
        "share_session_timeout_ms": ["999", "60001", "15000", "15001"],
        "consumer_heartbeat_interval_ms": ["4999", "15001", "15000"],
        "consumer_session_timeout_ms": ["999", "60001", "15000", "45000"],
        "consumer_assignment_interval_ms": ["-1", "15001", "0"],
        "no_such_key": ["1"],
    }.items():
        for text in texts:
            life.configure("workers", **{name: text})
    life.configure("", share_isolation_level="read_committed")
    life.configure("workers", 1, share_isolation_level=None, no_such_key=None)
    life.configure("workers", 2, share_isolation_level="read_committed")
    for group in ("workers", "nobody", ""):
        life.describe_configs(
            group, ["share.record.lock.duration.ms", "share.isolation.level", "no.such.key"]
        )
        life.describe_configs(group, [])


LIVES = (
    members, nothing_to_read, silence, offsets, epochs_of_a_session, words, renewal, time_outs, sizes, beginnings,
    transactions, stored_state, other_kinds, configurations,
)  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, dict[str, ShareLife]]]:
    directory = tmp_path_factory.mktemp("share-lives")
    brokers = [
        TidemillPeer(data_directory=directory / "ours", settings=SETTINGS),
        KafkaPeer(data_directory=directory / "theirs", settings=SETTINGS),
    ]
    return [(broker, live_all(broker, ShareLife, LIVES)) for broker in brokers]


@pytest.mark.parametrize("name", [live.__name__ for live in LIVES])
def test_the_answers_are_kafkas(both: list[tuple[Any, dict[str, ShareLife]]], name: str) -> None:
    ours, theirs = (lives[name].answers for _, lives in both)
    assert len(theirs) > 5
    assert ours == theirs


@pytest.mark.parametrize(
    ("topic", "decoder", "name"),
    [
        ("__consumer_offsets", "--offsets-decoder", "nothing_to_read"),
        ("__consumer_offsets", "--offsets-decoder", "time_outs"),
        ("__share_group_state", "--share-group-state-decoder", "stored_state"),
    ],
)
def test_kafkas_decoder_sees_the_same_records(
    both: list[tuple[Any, dict[str, ShareLife]]], topic: str, decoder: str, name: str
) -> None:
    ours, theirs = (group_records(broker, topic, decoder, lives[name], "workers") for broker, lives in both)
    assert len(theirs) > 5
    assert ours == theirs
