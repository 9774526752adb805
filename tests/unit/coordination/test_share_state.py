"""The share coordinator: what it merges, what it refuses, when it writes everything down, what survives."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from share_state_driver import KEY, TOPIC_ID, ShareStateDriver

from tidemill.coordination.partitioning import partition_for
from tidemill.coordination.record_codec import decode_record
from tidemill.coordination.records.share_records import RECORD_TYPES
from tidemill.coordination.share.batches import combine
from tidemill.coordination.share.persister import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    ReadState,
    SharePartitionKey,
    StateBatch,
    StateSummary,
    StateWrite,
)
from tidemill.coordination.share.shard import ShareStateSettings
from tidemill.coordination.share.state import SNAPSHOT, UPDATE
from tidemill.model.errors import ErrorCode


@pytest.fixture
def driver() -> ShareStateDriver:
    driver = ShareStateDriver()
    assert driver.call("initialize", KEY, 1, 0) is None
    return driver


def done(first: int, last: int, count: int = 1) -> StateBatch:
    return StateBatch(first, last, ACKNOWLEDGED, count)


# -- batches ------------------------------------------------------------------------------------------


def test_the_example_of_the_module() -> None:
    combined = combine([StateBatch(0, 9, AVAILABLE, 1), StateBatch(5, 14, ACKNOWLEDGED, 1)], 0)
    assert combined == (StateBatch(0, 4, AVAILABLE, 1), StateBatch(5, 14, ACKNOWLEDGED, 1))


def test_a_later_delivery_counts_more_than_a_higher_state() -> None:
    assert combine([done(0, 9, 1), StateBatch(3, 3, AVAILABLE, 2)], 0) == (
        done(0, 2),
        StateBatch(3, 3, AVAILABLE, 2),
        done(4, 9),
    )


def test_neighbours_become_one_and_gaps_stay() -> None:
    assert combine([done(0, 3), done(4, 5), done(7, 7)], 0) == (done(0, 5), done(7, 7))


def test_what_lies_before_the_start_is_cut() -> None:
    assert combine([done(0, 3), done(5, 9)], 7) == (done(7, 9),)
    assert combine([done(0, 3)], 4) == ()
    assert combine([done(0, 3)], -1) == (done(0, 3),)


@pytest.mark.parametrize("seed", range(200))
def test_combined_batches_say_the_same_of_every_offset(seed: int) -> None:
    chance = random.Random(seed)
    batches = []
    for _ in range(chance.randrange(12)):
        first = chance.randrange(30)
        state = chance.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
        batches.append(StateBatch(first, first + chance.randrange(10), state, chance.randrange(1, 4)))
    start = chance.choice((-1, 0, 5, 20))
    wanted: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(max(batch.first_offset, start), batch.last_offset + 1):
            said = (batch.delivery_count, batch.delivery_state)
            wanted[offset] = max(said, wanted.get(offset, said))
    combined = combine(batches, start)
    found = {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in combined
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    assert found == wanted
    for before, after in pairwise(combined):
        assert before.last_offset < after.first_offset
        assert before.last_offset + 1 < after.first_offset or before[2:] != after[2:], "two could be one"


# -- requests -----------------------------------------------------------------------------------------


def test_the_key_of_a_share_partition_is_kafkas() -> None:
    key = SharePartitionKey("g", bytes.fromhex("245462e5c1cd47c283dc6fcb81dd731c"), 0)
    assert key.as_coordinator_key() == "g:JFRi5cHNR8KD3G_Lgd1zHA:0"
    assert partition_for(key.as_coordinator_key(), 50) == 17


def test_a_new_leader_reads_what_the_old_one_wrote(driver: ShareStateDriver) -> None:
    assert driver.call("write", KEY, StateWrite(1, 0, 2, (done(4, 5),), 2)) is None
    assert driver.call("read", KEY, 3) == ReadState(1, 2, (done(4, 5),))
    assert driver.call("write", KEY, StateWrite(1, 0, 6)) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.call("read", KEY, 2) is ErrorCode.FENCED_LEADER_EPOCH
    assert driver.call("summarize", KEY) == StateSummary(1, 3, 2, 2)


def test_reading_in_the_same_epoch_writes_nothing(driver: ShareStateDriver) -> None:
    driver.call("read", KEY, 0)
    assert len(driver.log) == 1


def test_a_new_leader_keeps_the_start_and_the_count(driver: ShareStateDriver) -> None:
    """What it writes says both: Kafka takes the count of the last record, also where that is unknown."""
    driver.call("write", KEY, StateWrite(1, 0, 2, (done(4, 5),), 2))
    driver.call("read", KEY, 3)
    record = decode_record(*driver.log[-1], RECORD_TYPES)
    assert record is not None
    value: Any = record.value
    assert (value.leader_epoch, value.start_offset, value.delivery_complete_count) == (3, 2, 2)
    driver.restart()
    assert driver.call("summarize", KEY) == StateSummary(1, 3, 2, 2)


def test_a_write_without_a_count_makes_it_unknown(driver: ShareStateDriver) -> None:
    driver.call("write", KEY, StateWrite(1, 0, 2, (done(4, 5),), 2))
    driver.call("write", KEY, StateWrite(1, 0, 2, (done(7, 7),)))
    assert driver.call("summarize", KEY) == StateSummary(1, 0, 2, -1)


def test_who_knows_no_epoch_is_believed(driver: ShareStateDriver) -> None:
    driver.call("read", KEY, 3)
    written = len(driver.log)
    assert driver.call("read", KEY, -1) == ReadState(1, 0, ())
    assert len(driver.log) == written
    assert driver.call("write", KEY, StateWrite(-1, -1, 4)) is None
    assert driver.call("summarize", KEY) == StateSummary(1, 3, 4, -1)


def test_a_fence_survives_a_restart(driver: ShareStateDriver) -> None:
    driver.call("read", KEY, 3)
    driver.restart()
    assert driver.call("write", KEY, StateWrite(1, 2, 6)) is ErrorCode.FENCED_LEADER_EPOCH


def test_offsets_set_from_outside_fence_writes_under_way(driver: ShareStateDriver) -> None:
    driver.call("write", KEY, StateWrite(1, 0, 2, (done(4, 5),)))
    assert driver.call("initialize", KEY, 2, 100) is None
    assert driver.call("write", KEY, StateWrite(1, 0, 3)) is ErrorCode.FENCED_STATE_EPOCH
    assert driver.call("read", KEY, 0) == ReadState(2, 100, ())
    assert driver.call("initialize", KEY, 1, 0) is ErrorCode.FENCED_STATE_EPOCH


def test_the_start_never_goes_back(driver: ShareStateDriver) -> None:
    """Two writes under way: the second one was made before the first was known to be done."""
    driver.call("write", KEY, StateWrite(1, 0, 5))
    driver.call("write", KEY, StateWrite(1, 0, 0, (StateBatch(5, 19, AVAILABLE, 1),)))
    wanted = ReadState(1, 5, (StateBatch(5, 19, AVAILABLE, 1),))
    assert driver.call("read", KEY, 0) == wanted
    driver.restart()
    assert driver.call("read", KEY, 0) == wanted


def test_what_was_never_initialised_is_refused() -> None:
    driver = ShareStateDriver()
    assert driver.call("read", KEY, 0) is ErrorCode.INVALID_REQUEST
    assert driver.call("write", KEY, StateWrite(0, 0, 0)) is ErrorCode.INVALID_REQUEST
    assert driver.call("summarize", KEY) == StateSummary(0, 0, -1, -1)
    assert driver.call("delete", KEY) is None
    assert not driver.log


@pytest.mark.parametrize("key", [KEY._replace(partition=3), KEY._replace(topic_id=bytes(16))])
def test_unknown_partitions_are_refused(driver: ShareStateDriver, key: SharePartitionKey) -> None:
    for method, arguments in (
        ("initialize", (1, 0)),
        ("write", (StateWrite(1, 0, 0),)),
        ("read", (0,)),
        ("summarize", ()),
    ):
        assert driver.call(method, key, *arguments) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert driver.call("write", KEY._replace(partition=-1), StateWrite(1, 0, 0)) is ErrorCode.INVALID_REQUEST


def test_a_deleted_partition_is_forgotten(driver: ShareStateDriver) -> None:
    assert driver.call("delete", KEY) is None
    driver.restart()
    assert driver.call("read", KEY, 0) is ErrorCode.INVALID_REQUEST
    assert driver.call("initialize", KEY, 0, 0) is None, "nothing of the old epochs is left"


def test_the_state_of_a_deleted_topic_goes(driver: ShareStateDriver) -> None:
    driver.delete_topic()
    assert not driver.states()
    assert driver.log[-1][1] is None


def test_a_topic_deleted_while_the_coordinator_was_away(driver: ShareStateDriver) -> None:
    driver.topics.remove("jobs")
    driver.restart()
    driver.pass_time(1)
    assert not driver.states()


# -- snapshots and pruning ----------------------------------------------------------------------------


def test_a_snapshot_after_so_many_updates() -> None:
    driver = ShareStateDriver(ShareStateSettings(updates_per_snapshot=3))
    driver.call("initialize", KEY, 1, 0)
    for offset in range(8):
        driver.call("write", KEY, StateWrite(1, 0, offset))
    assert driver.record_types() == [SNAPSHOT, *[UPDATE] * 3, SNAPSHOT, *[UPDATE] * 3, SNAPSHOT]
    state = driver.states()[KEY]
    assert state is not None and (state.snapshot_epoch, state.start_offset) == (2, 7)


def test_a_higher_state_epoch_needs_a_snapshot(driver: ShareStateDriver) -> None:
    driver.call("write", KEY, StateWrite(4, 0, 1))
    assert driver.record_types() == [SNAPSHOT, SNAPSHOT]
    assert driver.call("read", KEY, 0) == ReadState(4, 1, ())


def test_the_log_is_cut_before_the_oldest_snapshot_that_counts() -> None:
    driver = ShareStateDriver(ShareStateSettings(updates_per_snapshot=2, cold_snapshot_interval_ms=10**9))
    other = KEY._replace(partition=1)
    driver.call("initialize", KEY, 1, 0)
    driver.call("initialize", other, 1, 0)
    for offset in range(6):
        driver.call("write", KEY, StateWrite(1, 0, offset))
    driver.pass_time(300_000)
    assert driver.log_start == 1, "the other partition has only its first snapshot"
    driver.call("write", other, StateWrite(2, 0, 9))
    driver.pass_time(300_000)
    assert driver.log_start == driver.shard.redundant_before() > 1
    before = driver.states()
    driver.restart()
    assert driver.states() == before


def test_a_cold_partition_does_not_hold_the_log_up() -> None:
    driver = ShareStateDriver(ShareStateSettings(updates_per_snapshot=2))
    cold = KEY._replace(partition=1)
    driver.call("initialize", cold, 1, 0)
    driver.call("write", cold, StateWrite(1, 7, 3, (done(5, 5),), 1))
    for offset in range(9):
        driver.call("write", KEY, StateWrite(1, 0, offset)) if offset else driver.call(
            "initialize", KEY, 1, 0
        )
    before = driver.call("read", cold, 7)
    driver.pass_time(1_000_000)
    assert driver.log_start > 1
    driver.restart()
    assert driver.call("read", cold, 7) == before == ReadState(1, 3, (done(5, 5),))
    assert driver.call("summarize", cold) == StateSummary(1, 7, 3, 1)


def test_an_empty_coordinator_needs_none_of_its_log(driver: ShareStateDriver) -> None:
    driver.call("delete", KEY)
    assert driver.shard.redundant_before() == len(driver.log)


def test_keys_of_one_topic_are_kept_apart(driver: ShareStateDriver) -> None:
    other = SharePartitionKey("others", TOPIC_ID, 0)
    driver.call("initialize", other, 1, 50)
    driver.call("write", KEY, StateWrite(1, 0, 1))
    assert driver.call("read", other, 0) == ReadState(1, 50, ())
