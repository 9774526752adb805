"""The transaction coordinator, one transcript for each rule: producers, partitions, ends, timers, restarts."""

from __future__ import annotations

import pytest
from transaction_driver import TIMEOUT_MS, TransactionDriver, partition

from tidemill.coordination.transaction.producer_ids import ProducerIdStock
from tidemill.coordination.transaction.rules import ending
from tidemill.coordination.transaction.shard import (
    EXPIRE,
    EXPIRED_AT_ONCE,
    RETRY_MS,
    ListFilter,
    ProducerResult,
    TransactionConfig,
)
from tidemill.coordination.transaction.state import (
    NO_PRODUCER,
    PREVIOUS_STATES,
    IllegalTransition,
    ProducerIdentity,
    State,
    TransactionMetadata,
)
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_transactions import ListTransactionsRequest

VERSION_1 = TransactionConfig(transaction_version=1)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE


@pytest.fixture
def driver() -> TransactionDriver:
    return TransactionDriver()


def open_transaction(driver: TransactionDriver, *names: str, version: int = 2) -> ProducerIdentity:
    identity = driver.init().identity
    assert driver.add(identity, *(names or ("t-0",)), version=version) is NONE
    return identity


# -- InitProducerId ---------------------------------------------------------------------------------------


def test_a_new_transactional_id_gets_the_next_producer_id_at_epoch_zero(driver: TransactionDriver) -> None:
    assert driver.init("a") == ProducerResult(NONE, ProducerIdentity(1000, 0))
    assert driver.init("b") == ProducerResult(NONE, ProducerIdentity(1001, 0))
    assert driver.metadata("a").state is State.EMPTY
    (value, _) = driver.values()
    assert value.transaction_partitions is None
    assert value.transaction_start_timestamp_ms == -1


def test_a_second_producer_takes_over_with_the_next_epoch(driver: TransactionDriver) -> None:
    first = driver.init().identity
    second = driver.init().identity
    assert second == ProducerIdentity(first.producer_id, 1)
    assert driver.add(first, "t-0") is FENCED
    assert driver.add(second, "t-0") is NONE


@pytest.mark.parametrize(("timeout_ms", "error"), [(0, 50), (-1, 50), (900_000, 0), (900_001, 50)])
def test_the_timeout_of_a_transaction_is_bounded(
    driver: TransactionDriver, timeout_ms: int, error: int
) -> None:
    assert driver.init(timeout_ms=timeout_ms).error == error


def test_an_empty_transactional_id_is_refused(driver: TransactionDriver) -> None:
    assert driver.init("") == ProducerResult(ErrorCode.INVALID_REQUEST, NO_PRODUCER)
    assert driver.add(NO_PRODUCER, "t-0", transactional_id="") is ErrorCode.INVALID_REQUEST
    assert driver.verify(NO_PRODUCER, "t-0", transactional_id="") == [ErrorCode.INVALID_REQUEST]
    assert driver.end(NO_PRODUCER, commit=True, transactional_id="").error is ErrorCode.INVALID_REQUEST


def test_a_new_producer_aborts_what_its_predecessor_left_open(driver: TransactionDriver) -> None:
    first = open_transaction(driver)
    assert driver.init().error is CONCURRENT
    assert driver.state is State.PREPARE_ABORT
    assert driver.init().error is CONCURRENT
    driver.write_markers()
    assert driver.state is State.COMPLETE_ABORT
    second = driver.init().identity
    assert second == ProducerIdentity(first.producer_id, 2), "one epoch to fence, one to begin"
    assert driver.end(first, commit=True).error is FENCED


def test_version_1_fences_with_the_next_epoch_too() -> None:
    driver = TransactionDriver(VERSION_1)
    first = open_transaction(driver, version=0)
    assert driver.init().error is CONCURRENT
    assert driver.markers[0].epoch == first.epoch + 1
    assert driver.markers[0].transaction_version == 0
    driver.write_markers()
    assert driver.init().identity == ProducerIdentity(first.producer_id, 2)


def test_a_producer_that_names_itself_goes_on_with_the_next_epoch(driver: TransactionDriver) -> None:
    first = driver.init().identity
    second = driver.init(expected=first).identity
    assert second == ProducerIdentity(first.producer_id, 1)
    assert driver.init(expected=first).identity == second, "a repeated request is answered again"
    assert driver.init(expected=second).identity.epoch == 2
    assert driver.init(expected=first).error is FENCED


def test_who_was_replaced_cannot_go_on(driver: TransactionDriver) -> None:
    first = driver.init().identity
    second = driver.init().identity
    assert driver.init(expected=first).error is FENCED
    assert driver.init(expected=ProducerIdentity(4711, 0)).error is FENCED
    driver.add(second, "t-0")
    assert driver.init(expected=first).error is FENCED
    assert driver.state is State.ONGOING, "and it cannot abort what its successor does"


def test_a_forgotten_producer_that_names_itself_begins_anew(driver: TransactionDriver) -> None:
    assert driver.init(expected=ProducerIdentity(7, 9)).identity == ProducerIdentity(1000, 0)


def test_after_the_last_epoch_comes_a_new_producer_id(driver: TransactionDriver) -> None:
    last = with_epoch(driver, 32_766)
    replaced = driver.init(expected=last).identity
    assert replaced == ProducerIdentity(1001, 0)
    assert driver.init(expected=last).identity == replaced, "a repeated request is answered again"
    assert driver.init(expected=ProducerIdentity(last.producer_id, 32_765)).error is FENCED


def with_epoch(driver: TransactionDriver, epoch: int) -> ProducerIdentity:
    """The producer of "orders" has this epoch, as after many transactions."""
    producer_id = driver.init().identity.producer_id
    metadata = driver.metadata()
    identity = ProducerIdentity(producer_id, epoch)
    outcome = type(driver.shard.on_loaded(0))()
    driver.shard._write(outcome, metadata.with_identity(identity, TIMEOUT_MS, driver.now_ms))
    driver.carry_out(outcome)
    return identity


def test_without_producer_ids_the_client_is_told_to_come_back() -> None:
    driver = TransactionDriver(producer_ids=range(5, 6))
    last = with_epoch(driver, 32_766)
    assert driver.ids.take() is None
    assert driver.init("b").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.init(expected=last).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.end(last, commit=False).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.add(last, "t-0")
    assert driver.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.advance(TIMEOUT_MS)
    assert driver.state is State.ONGOING
    driver.ids.add(range(77, 80))
    driver.advance(RETRY_MS)
    assert driver.state is State.PREPARE_ABORT
    driver.write_markers()
    assert driver.metadata().identity == ProducerIdentity(77, 0)


def test_the_stock_of_producer_ids_gives_each_once() -> None:
    stock = ProducerIdStock()
    assert stock.is_low and stock.take() is None
    stock.add(range(10, 12))
    stock.add(range(0))
    stock.add(range(500, 700))
    assert [stock.take() for _ in range(3)] == [10, 11, 500]
    assert stock.remaining == 199 and not stock.is_low


# -- partitions -------------------------------------------------------------------------------------------


def test_partitions_join_and_the_first_one_begins_the_transaction(driver: TransactionDriver) -> None:
    identity = open_transaction(driver, "t-0")
    assert driver.timers[("timeout", "orders")] == driver.now_ms + TIMEOUT_MS
    started_ms = driver.now_ms
    driver.advance(10)
    assert driver.add(identity, "t-1", "u-0") is NONE
    assert driver.metadata().partitions == {partition("t-0"), partition("t-1"), partition("u-0")}
    assert driver.metadata().start_ms == started_ms
    assert driver.metadata().client_version == 2
    written = len(driver.log)
    assert driver.add(identity, "t-1") is NONE
    assert len(driver.log) == written, "nothing new, nothing written"


def test_who_may_add_partitions(driver: TransactionDriver) -> None:
    identity = open_transaction(driver)
    other = ProducerIdentity(identity.producer_id + 1, 0)
    assert driver.add(identity, "t-0", transactional_id="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(other, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(ProducerIdentity(identity.producer_id, 1), "t-0") is FENCED
    next_identity = driver.end(identity, commit=True).identity
    assert driver.add(next_identity, "t-0") is CONCURRENT
    driver.write_markers()
    assert driver.add(identity, "t-0") is FENCED
    assert driver.add(next_identity, "t-0") is NONE


def test_a_leader_can_verify_what_is_part_of_the_transaction(driver: TransactionDriver) -> None:
    identity = open_transaction(driver, "t-0")
    assert driver.verify(identity, "t-0", "t-1") == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert driver.verify(ProducerIdentity(identity.producer_id, 7), "t-0") == [FENCED]
    assert driver.verify(identity, "t-0", transactional_id="x") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    ended = driver.end(identity, commit=True).identity
    assert driver.verify(ended, "t-0") == [CONCURRENT]
    driver.write_markers()
    assert driver.verify(ended, "t-0") == [ErrorCode.TRANSACTION_ABORTABLE]


# -- EndTxn -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_prepares_marks_and_completes_with_the_next_epoch(
    driver: TransactionDriver, commit: bool
) -> None:
    identity = open_transaction(driver, "t-1", "t-0")
    answered = driver.end(identity, commit=commit)
    assert answered == ProducerResult(NONE, ProducerIdentity(identity.producer_id, 1))
    assert driver.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    (sent,) = driver.markers
    assert (sent.producer_id, sent.epoch, sent.commit) == (identity.producer_id, 1, commit)
    assert sent.partitions == (partition("t-0"), partition("t-1"))
    assert sent.transaction_version == 2
    assert driver.end(identity, commit=commit).error is CONCURRENT
    driver.write_markers()
    assert driver.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert driver.metadata().partitions == frozenset()
    assert driver.end(identity, commit=commit) == answered, "a repeated request is answered again"
    assert driver.end(identity, commit=not commit).error is INVALID


def test_version_1_keeps_the_epoch(driver: TransactionDriver) -> None:
    identity = open_transaction(driver, version=0)
    assert driver.end(identity, commit=True, version=0) == ProducerResult(NONE, identity)
    assert driver.markers[0].epoch == 0 and driver.markers[0].transaction_version == 0
    assert driver.end(identity, commit=True, version=0).error is CONCURRENT
    assert driver.end(identity, commit=False, version=0).error is CONCURRENT
    driver.write_markers()
    assert driver.end(identity, commit=True, version=0).error is NONE
    assert driver.end(identity, commit=False, version=0).error is INVALID
    assert driver.add(identity, "t-5", version=0) is NONE


def test_a_late_end_does_not_get_the_epoch_of_a_successor_of_version_1(driver: TransactionDriver) -> None:
    """Whose epoch is one more too, but was not made by this end: the zombie would write in its name."""
    zombie = open_transaction(driver)
    assert driver.end(zombie, commit=False).error is NONE
    driver.write_markers()
    zombie = driver.metadata().identity
    successor = driver.init().identity
    assert driver.add(successor, "t-0", version=0) is NONE
    assert driver.end(successor, commit=True, version=0).error is NONE
    assert driver.end(zombie, commit=True) == ProducerResult(CONCURRENT, NO_PRODUCER)
    driver.write_markers()
    assert driver.metadata().identity == successor == (zombie.producer_id, zombie.epoch + 1)
    assert driver.end(zombie, commit=True) == ProducerResult(FENCED, NO_PRODUCER)


def test_a_late_end_cannot_touch_the_next_transaction(driver: TransactionDriver) -> None:
    """Row 9 of the reliability table."""
    first = open_transaction(driver)
    second = driver.end(first, commit=True).identity
    driver.write_markers()
    driver.add(second, "t-0")
    assert driver.end(first, commit=True).error is FENCED
    assert driver.end(first, commit=False).error is FENCED
    assert driver.add(first, "t-9") is FENCED
    assert driver.state is State.ONGOING
    assert driver.metadata().partitions == {partition("t-0")}


def test_version_2_aborts_a_transaction_without_partitions_at_once(driver: TransactionDriver) -> None:
    identity = driver.init().identity
    assert driver.end(identity, commit=True).error is INVALID
    answered = driver.end(identity, commit=False)
    assert answered == ProducerResult(NONE, ProducerIdentity(identity.producer_id, 1))
    assert driver.state is State.COMPLETE_ABORT and not driver.markers
    assert [value.transaction_status for value in driver.values()] == [0, 3, 5]
    assert driver.end(identity, commit=False) == answered


def test_the_end_at_the_last_epoch_gives_a_new_producer_id(driver: TransactionDriver) -> None:
    last = with_epoch(driver, 32_766)
    driver.add(last, "t-0")
    answered = driver.end(last, commit=True)
    assert answered.identity == ProducerIdentity(1001, 0)
    (sent,) = driver.markers
    assert (sent.producer_id, sent.epoch) == (last.producer_id, 32_767), "the marker still fences the old id"
    assert driver.end(last, commit=True).error is CONCURRENT
    driver.restart()
    driver.write_markers()
    assert driver.metadata().identity == answered.identity
    assert driver.end(last, commit=True) == answered
    assert driver.end(last, commit=False).error is INVALID
    assert driver.init(expected=last).identity == answered.identity


def test_the_producer_with_its_new_id_waits_for_the_end_of_its_last_transaction(
    driver: TransactionDriver,
) -> None:
    """It was told the new id before the markers of the old one are written."""
    last = with_epoch(driver, 32_766)
    driver.add(last, "t-0")
    renewed = driver.end(last, commit=True).identity
    assert renewed.producer_id != last.producer_id
    assert driver.add(renewed, "t-0") is CONCURRENT
    assert driver.end(renewed, commit=False).error is CONCURRENT
    assert driver.init(expected=renewed).error is CONCURRENT
    driver.write_markers()
    assert driver.add(renewed, "t-0") is NONE


def _metadata(state: State) -> TransactionMetadata:
    return TransactionMetadata("orders", 7, 5, TIMEOUT_MS, state, 0, client_version=2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [  # version 2: commit at the current epoch, commit repeated, abort at the current epoch, abort repeated
        (State.ONGOING, "PREPARE PRODUCER_FENCED PREPARE PRODUCER_FENCED"),
        (State.COMPLETE_COMMIT, "INVALID_TXN_STATE DONE PREPARE INVALID_TXN_STATE"),
        (State.COMPLETE_ABORT, "INVALID_TXN_STATE INVALID_TXN_STATE PREPARE DONE"),
        (State.EMPTY, "INVALID_TXN_STATE PRODUCER_FENCED PREPARE PRODUCER_FENCED"),
    ],
)
def test_the_table_of_ends_in_version_2(state: State, expected: str) -> None:
    decisions = [
        ending(_metadata(state), ProducerIdentity(7, epoch), commit, 2).name
        for commit in (True, False)
        for epoch in (5, 4)
    ]
    assert decisions == expected.split()
    for epoch in (3, 6):
        assert ending(_metadata(state), ProducerIdentity(7, epoch), True, 2) is FENCED
    assert ending(_metadata(state), ProducerIdentity(8, 5), True, 2) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
@pytest.mark.parametrize("identity", [(7, 5), (7, 4), (7, 6), (8, 0)])
def test_nothing_is_decided_twice_in_version_2(state: State, identity: tuple[int, int]) -> None:
    for commit in (True, False):
        assert ending(_metadata(state), ProducerIdentity(*identity), commit, 2) is CONCURRENT


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (State.ONGOING, "PREPARE", "PREPARE"),
        (State.PREPARE_COMMIT, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
        (State.PREPARE_ABORT, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
        (State.COMPLETE_COMMIT, "DONE", "INVALID_TXN_STATE"),
        (State.COMPLETE_ABORT, "INVALID_TXN_STATE", "DONE"),
        (State.EMPTY, "INVALID_TXN_STATE", "INVALID_TXN_STATE"),
    ],
)
def test_the_table_of_ends_in_version_1(state: State, commit: str, abort: str) -> None:
    identity = ProducerIdentity(7, 5)
    assert ending(_metadata(state), identity, True, 0).name == commit
    assert ending(_metadata(state), identity, False, 0).name == abort
    assert ending(_metadata(state), ProducerIdentity(7, 4), True, 0) is FENCED
    assert ending(_metadata(state), ProducerIdentity(6, 5), True, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert ending(None, identity, True, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- markers, time-outs, restarts -------------------------------------------------------------------------


def test_partitions_without_a_marker_are_asked_for_again(driver: TransactionDriver) -> None:
    identity = open_transaction(driver, "t-0", "t-1", "t-2")
    driver.end(identity, commit=True)
    driver.write_markers("t-1")
    assert driver.state is State.PREPARE_COMMIT and not driver.markers
    driver.advance(RETRY_MS)
    assert driver.markers[0].partitions == (partition("t-0"), partition("t-2"))
    driver.write_markers("t-0", "t-2")
    assert driver.state is State.COMPLETE_COMMIT
    driver.advance(10 * RETRY_MS)
    assert not driver.markers


def test_a_report_about_another_epoch_is_ignored(driver: TransactionDriver) -> None:
    first = open_transaction(driver)
    second = driver.end(first, commit=True).identity
    old = driver.markers[0]
    driver.write_markers()
    driver.report(old, old.partitions)
    driver.add(second, "t-0")
    driver.end(second, commit=False)
    driver.report(old, old.partitions)
    assert driver.state is State.PREPARE_ABORT


def test_a_report_for_an_earlier_life_of_the_coordinator_is_ignored(driver: TransactionDriver) -> None:
    """It has asked again since: to complete now would leave a marker on the way that nobody waits for."""
    identity = open_transaction(driver)
    driver.end(identity, commit=True)
    old = driver.markers[0]
    driver.restart()
    driver.report(old, old.partitions)
    assert driver.state is State.PREPARE_COMMIT
    driver.write_markers()
    assert driver.state is State.COMPLETE_COMMIT


def test_an_abandoned_transaction_is_aborted_in_time(driver: TransactionDriver) -> None:
    identity = open_transaction(driver)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.state is State.ONGOING
    driver.advance(1)
    assert driver.state is State.PREPARE_ABORT
    assert driver.markers[0].epoch == identity.epoch + 1
    assert driver.end(identity, commit=True).error is CONCURRENT
    driver.write_markers()
    assert driver.end(identity, commit=True).error is INVALID
    assert driver.add(identity, "t-0") is FENCED
    assert driver.init(expected=identity).identity.epoch == 1, "the bump of the abort is the one it asks for"


def test_the_timeout_counts_for_each_transaction(driver: TransactionDriver) -> None:
    identity = open_transaction(driver)
    driver.advance(TIMEOUT_MS // 2)
    identity = driver.end(identity, commit=True).identity
    driver.write_markers()
    driver.add(identity, "t-0")
    driver.advance(TIMEOUT_MS // 2 + 1)
    assert driver.state is State.ONGOING
    driver.advance(TIMEOUT_MS // 2)
    assert driver.state is State.PREPARE_ABORT


def test_a_transaction_of_an_outside_coordinator_never_times_out() -> None:
    driver = TransactionDriver(TransactionConfig(is_two_phase_commit_enabled=True))
    identity = driver.init(timeout_ms=0x7FFF_FFFF).identity
    driver.add(identity, "t-0")
    assert ("timeout", "orders") not in driver.timers
    assert TransactionDriver().init(timeout_ms=0x7FFF_FFFF).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_goes_on_with_the_markers(driver: TransactionDriver, commit: bool) -> None:
    identity = open_transaction(driver, "t-0", "t-1")
    driver.end(identity, commit=commit)
    driver.write_markers("t-0")
    driver.restart()
    (sent,) = driver.markers
    assert sent.partitions == (partition("t-0"), partition("t-1")), "who has one is not remembered"
    assert (sent.commit, sent.coordinator_epoch, sent.epoch) == (commit, 1, 1)
    driver.write_markers()
    assert driver.end(identity, commit=commit) == ProducerResult(NONE, ProducerIdentity(1000, 1))


def test_a_restart_remembers_the_open_transaction_and_its_timeout(driver: TransactionDriver) -> None:
    open_transaction(driver)
    driver.advance(TIMEOUT_MS // 2)
    driver.restart()
    driver.advance(TIMEOUT_MS // 2)
    assert driver.state is State.PREPARE_ABORT


def test_what_the_log_refused_has_not_happened_and_is_tried_again(driver: TransactionDriver) -> None:
    identity = open_transaction(driver)
    driver.refuses_writes = True
    assert driver.end(identity, commit=True).error is ErrorCode.NOT_COORDINATOR
    assert driver.state is State.ONGOING and not driver.markers
    driver.advance(TIMEOUT_MS)
    assert driver.state is State.ONGOING
    driver.refuses_writes = False
    driver.advance(RETRY_MS)
    assert driver.state is State.PREPARE_ABORT
    driver.refuses_writes = True
    driver.write_markers()
    assert driver.state is State.PREPARE_ABORT
    driver.refuses_writes = False
    driver.advance(RETRY_MS)
    assert driver.state is State.COMPLETE_ABORT


def test_a_refused_init_leaves_no_trace_of_its_epoch(driver: TransactionDriver) -> None:
    first = driver.init().identity
    driver.refuses_writes = True
    driver.init(expected=first)
    driver.refuses_writes = False
    second = driver.init().identity
    assert second.epoch == 1
    assert driver.init(expected=first).error is FENCED, "the epoch went to another producer"


def test_unused_transactional_ids_expire(driver: TransactionDriver) -> None:
    config = driver.config
    driver.restart()
    driver.init("idle")
    identity = driver.init("busy", timeout_ms=900_000).identity
    driver.advance(config.id_expiration_ms - 1000)
    driver.add(identity, "t-0", transactional_id="busy")
    driver.advance(config.expiration_interval_ms)
    assert driver.shard.describe("idle") is None
    assert driver.log[-1][1] is None or driver.values().count(None) == 1
    assert driver.shard.describe("busy") is not None
    driver.restart()
    assert driver.shard.describe("idle") is None


def test_many_expired_ids_go_in_several_batches(driver: TransactionDriver) -> None:
    driver.restart()
    for number in range(EXPIRED_AT_ONCE + 1):
        driver.init(f"id-{number}")
    driver.now_ms += driver.config.id_expiration_ms
    driver.carry_out(driver.shard.on_timer(EXPIRE, driver.now_ms))
    assert len(driver.shard.list(ListFilter(), driver.now_ms)) == 1
    assert driver.timers[EXPIRE] == driver.now_ms + RETRY_MS


# -- records and lists ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "value_version"), [(0, b"\x00\x00"), (1, b"\x00\x01"), (2, b"\x00\x01")])
def test_records_follow_the_transaction_version(version: int, value_version: bytes) -> None:
    driver = TransactionDriver(TransactionConfig(transaction_version=version))
    open_transaction(driver, "t-1", "t-0", "u-0", version=0)
    assert all(value is not None and value[:2] == value_version for _, value in driver.log)
    topics = [(each.topic, each.partition_ids) for each in driver.values()[-1].transaction_partitions]
    assert topics == [("t", [0, 1]), ("u", [0])]


def test_a_change_that_is_not_in_the_table_raises() -> None:
    for state in State:
        metadata = TransactionMetadata("orders", 7, 5, TIMEOUT_MS, state, 0)
        for target, allowed in PREVIOUS_STATES.items():
            if state in allowed:
                metadata.check_change_to(target)
            else:
                with pytest.raises(IllegalTransition):
                    metadata.check_change_to(target)


def test_lists_are_filtered(driver: TransactionDriver) -> None:
    identity = open_transaction(driver)
    driver.init("other")
    driver.advance(50)

    def listed(**wanted: object) -> list[str]:
        found = driver.shard.list(ListFilter(**wanted), driver.now_ms)  # type: ignore[arg-type]
        return sorted(each.transactional_id for each in found)

    assert listed() == ["orders", "other"]
    assert listed(states=[State.ONGOING]) == ["orders"]
    assert listed(producer_ids=[identity.producer_id]) == ["orders"]
    assert listed(longer_than_ms=49, states=[State.ONGOING]) == ["orders"]
    assert listed(longer_than_ms=50, states=[State.ONGOING]) == []
    assert State.PREPARE_EPOCH_FENCE.text == "PrepareEpochFence"
    assert ListTransactionsRequest().duration_filter == -1
